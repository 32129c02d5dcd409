//! What a server, a benchmark or an adapter is built from, and most users never need: messages in batches without a copy,
//! the clock and the tasks that everything of one [`Keylane`](crate::Keylane) shares, and what the broker's client tells.

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
