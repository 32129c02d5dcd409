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

mod accept;
mod assign;
mod backlog;
mod batch_times;
mod bury;
mod call;
mod cell;
pub mod clock;
mod commit;
mod committer;
mod contain;
pub mod data;
mod elsewhere;
pub mod error;
mod flaws;
mod follow;
mod growth;
mod handle;
pub mod handler;
pub mod handlers;
mod in_flight;
mod keylane;
mod lag;
mod link;
mod message;
mod news;
mod obey;
mod open;
#[cfg(feature = "sql")]
pub mod outbox;
mod own;
mod peek;
pub mod percent;
mod permits;
mod pipeline;
mod poll;
pub mod produce;
mod rejections;
mod seldom;
pub mod settings;
mod settle;
mod shard;
mod shards;
mod slot;
pub mod spawn;
pub mod spill;
mod stats;
pub mod status;
mod subscription;
mod targets;
mod thread;
mod ticket;
mod upgrade;
mod view;
mod wake;
mod watch;

pub use accept::Accepted;

pub use backlog::{Backlog, Severity};
pub use call::Call;
pub use error::Error;
#[cfg(feature = "flaws")]
pub use flaws::Flaws;
pub use handler::{Attempt, Handler};
pub use keylane_broker::tls::provide_cryptography;
pub use keylane_broker::{ClientBroker, ClientFigures, Compression, Ids, ProduceError, TopicSpec};
pub use keylane_core::{Delivery, Draft, Order, Outcome};
pub use message::Message;
#[cfg(feature = "kafka")]
pub use open::{KafkaJournals, KafkaOptions};
pub use pipeline::{Pipeline, PipelineBuilder};
pub use produce::{Producer, Receipt, WhenFull};
pub use settings::Settings;
pub use spill::{SpillOptions, WhenAway};
pub use ticket::Ticket;
pub use upgrade::Upgraded;

pub use crate::keylane::{Config, Keylane};
