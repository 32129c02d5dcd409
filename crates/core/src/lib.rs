//! Keylane's decisions, without any of its effects: the core crate.
//!
//! This crate holds every rule about order, settlement and ownership, and nothing else: no I/O, no async, no clock, no
//! randomness. Callers ask it questions and get small enums as answers; the `keylane` crate carries them out. Time
//! comes in as `now` in milliseconds and randomness as a seed, so that every rule can be tested exhaustively and
//! simulated.
//!
//! Two paths lead through the crate: that of a message, and that of a partition. ARCHITECTURE.md follows both, file by
//! file.

mod error_code;
pub mod journal;
pub mod lanes;
pub mod ledger;
pub mod message;
pub mod owner;
pub mod random;

pub use error_code::ErrorCode;
pub use journal::{
    Acceptance, Applied, DeadEffect, DeadEntry, DeadReason, Effect, Entry, Growth, Record, RecordError,
    Replay, Source, State, apply, key_hash,
};
pub use lanes::{
    Arrival, Candidate, Counts, End, Engine, HeldLane, HoldState, HoldView, Intake, LaneHash, LaneId,
    LaneKey, LaneState, LaneView, Left, Load, Order, Ready, Retry, RetryPolicy, Settings, Settlement,
    Verdict, settle,
};
pub use ledger::{Ledger, Ranges, Settled};
pub use message::{Batch, BatchCursor, Delivery, Draft, Found, FrameError, Frames, Outcome, partition_of};
#[cfg(feature = "flaws")]
pub use owner::Rules;
pub use owner::{
    Action, Appended, Committed, Copied, Death, Input, Mirror, Owner, Setup, StepBack, Stop, Stored, Storing,
    commit_metadata, parse_commit_metadata,
};
