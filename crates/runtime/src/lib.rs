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
//! keylane.produce(Message::new("orders").key("user-1").json(&42)?).await?;
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
//! A handler is a closure that takes a [`Message`], or a type with the trait [`Handler`], which borrows. It answers
//! with an [`Outcome`], or with a `Result` whose error is retried. `examples/` goes on from here, in numbered steps.

mod client;
pub mod clock;
pub mod data;
pub mod error;
mod flaws;
pub mod handlers;
pub mod harmless;
mod message;
#[cfg(feature = "sql")]
pub mod outbox;
mod ownership;
pub mod percent;
mod pipeline;
pub mod produce;
pub mod seldom;
pub mod settings;
mod shard;
pub mod status;
pub mod tasks;

pub use client::{Config, Keylane};
#[cfg(feature = "kafka")]
pub use client::{KafkaJournals, KafkaOptions};
pub use error::Error;
#[cfg(feature = "flaws")]
pub use flaws::Flaws;
pub use handlers::{Attempt, Handler};
pub use keylane_broker::tls::provide_cryptography;
pub use keylane_broker::{ClientBroker, ClientFigures, Compression, Ids, ProduceError, TopicSpec};
pub use keylane_core::{Delivery, Draft, ErrorCode, Order, Outcome};
pub use message::Message;
pub use ownership::{Accepted, Upgraded};
pub use pipeline::{Pipeline, PipelineBuilder};
pub use produce::spill;
pub use produce::{Backlog, Call, Producer, Receipt, Severity, Ticket, WhenFull};
pub use settings::Settings;
pub use spill::{SpillOptions, WhenAway};
