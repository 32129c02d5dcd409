//! Keylane takes messages in, keeps them in a log, and runs a handler on them: each key in order, all keys in
//! parallel, nothing lost.
//!
//! ```
//! use keylane::{Keylane, Message};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let shutdown = tokio::time::sleep(std::time::Duration::from_millis(100));
//! let keylane = Keylane::open_embedded(folder.path()).await?;
//! keylane.produce(Message::to("orders").key("user-1").json(&42)?).await?;
//! keylane
//!     .pipeline("orders")
//!     .handle(|message: Message| async move {
//!         let order: u32 = message.parse()?;
//!         println!("{} orders {order}", message.key_text());
//!         Ok::<(), serde_json::Error>(())
//!     })
//!     .run_until(shutdown)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! A handler is a closure that takes a [`Message`], or a type with the trait [`Handler`], which borrows it. A handler
//! answers with an [`Outcome`], or with a `Result` whose error is retried. `examples/` continues in numbered steps.

mod client;
mod clock;
pub mod data;
mod error;
mod flaws;
pub mod handlers;
mod harmless;
mod message;
#[cfg(feature = "sql")]
pub mod outbox;
mod ownership;
mod percent;
mod pipeline;
mod produce;
pub mod raw;
mod seldom;
mod settings;
mod shard;
pub mod status;
mod tasks;
#[cfg(any(feature = "flaws", feature = "testing"))]
pub mod testing;

pub use client::{BrokerChoice, Config, Keylane};
#[cfg(feature = "kafka")]
pub use client::{KafkaJournals, KafkaOptions};
pub use error::Error;
pub use handlers::{Attempt, Handler};
pub use keylane_broker::{Compression, Ids, TopicSpec};
pub use keylane_core::{ErrorCode, Order, Outcome};
pub use message::{Message, NewMessage};
pub use ownership::{Accepted, Upgraded};
pub use pipeline::{Pipeline, PipelineBuilder};
pub use produce::spill;
pub use produce::{Backlog, Producer, ProducerCounters, Receipt, Severity, Ticket, WhenFull};
pub use settings::Settings;
pub use spill::{SpillOptions, WhenAway};
