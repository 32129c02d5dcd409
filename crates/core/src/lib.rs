//! What Keylane decides.
//!
//! This crate holds every rule about order, settlement and ownership, and nothing else: no I/O, no async, no clock,
//! no randomness. It is asked and answers with small enums; the `keylane` crate carries them out. Time arrives as
//! `now` in milliseconds, randomness as a seed, so that every rule can be tested exhaustively and simulated.
//!
//! Two ways lead through it: a message's and a partition's. ARCHITECTURE.md follows both, file by file.

pub mod delivery;
pub mod encoding;
pub mod engine;
pub mod frame;
pub mod growth;
pub mod intake;
pub mod journal;
pub mod lane;
pub mod ledger;
pub mod outcome;
pub mod owner;
pub mod partition;
pub mod ranges;
mod record;
pub mod retry;
pub mod rice;
mod rules;
pub mod settle;
pub mod setup;
mod slab;
pub mod snapshot;
pub mod state;
pub mod stop;
mod table;

pub use delivery::{Batch, BatchCursor, Delivery, Found};
pub use engine::{Counts, Engine, LaneView, Left, Order, Ready, Settings, Verdict};
pub use frame::{Draft, FrameError, Frames};
pub use growth::{Acceptance, Growth};
pub use intake::{Intake, Load};
pub use journal::{DeadEffect, DeadEntry, DeadReason, Record, RecordError, Source, key_hash};
pub use lane::{LaneHash, LaneId, LaneState};
pub use ledger::Ledger;
pub use outcome::Outcome;
pub use owner::{Action, Appended, Input, Owner};
pub use partition::partition_of;
pub use ranges::{Ranges, Settled};
pub use retry::{Retry, RetryPolicy};
#[cfg(feature = "flaws")]
pub use rules::Rules;
pub use settle::{End, Settlement, settle};
pub use setup::{Committed, Mirror, Setup, commit_metadata, parse_commit_metadata};
pub use snapshot::Replay;
pub use state::{Applied, State, apply};
pub use stop::{StepBack, Stop};
