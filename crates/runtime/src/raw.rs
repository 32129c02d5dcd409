//! Exports what servers, benchmarks and adapters are built from, and most programs never need: batches of messages
//! without a copy, the clock and the tasks that everything of one [`Keylane`](crate::Keylane) shares, and the figures
//! of the broker's client.

pub use keylane_broker::tls::provide_cryptography;
pub use keylane_broker::{ClientBroker, ClientFigures, ProduceError};
pub use keylane_core::{Delivery, Draft};

pub use crate::clock::Clock;
pub use crate::error::produce_code;
pub use crate::harmless::harmless;
pub use crate::percent::encode as percent_encode;
pub use crate::produce::Call;
pub use crate::seldom::Seldom;
pub use crate::tasks::{TaskKind, Tasks};
