//! The tools with which tests prove the promises from outside: the real binary on a throwaway folder ([`Server`]), a
//! push handler that records every call and behaves as told ([`Sink`]), producers that remember what was acknowledged
//! ([`Load`]), and a checker that compares the two ([`check`]).
//!
//! Nothing here knows how Keylane works inside; the tools use only what INTERFACE.md describes. The order of events
//! comes from a count that each record takes from the sink, not from clocks, so a slow machine changes no verdict.
//! Waits have a limit only so that a test that hangs fails with a sentence.

#![allow(
    clippy::disallowed_methods,
    reason = "what stands outside of Keylane has its own clock, environment and tasks"
)]

mod browser;
mod check;
mod cluster;
mod database;
mod faults;
mod ground;
mod load;
mod program;
mod proxy;
mod rude;
mod server;
mod sink;
mod status;
mod storm;
mod tokens;
mod wait;

pub use browser::Browser;
pub use check::{Report, check, check_committed};
pub use cluster::Cluster;
pub use database::{Database, Engine, Outbox, OutboxRow};
pub use faults::{SmallDisk, Tracer, files_below, find_bytes, not_here};
pub use ground::Ground;
pub use load::{Acked, Item, Load, Pace, Refusal, client, fill, items, produce};
pub use program::Program;
pub use proxy::Proxy;
pub use rude::Rude;
pub use server::{Server, Setup, binary, free_port, run_binary};
pub use sink::{Call, Reply, Sink};
pub use status::{Committed, PartitionView, PipelineView};
pub use storm::{Storm, restarts, storm};
pub use tokens::TokenServer;
pub use wait::{WAIT_MAX, until};
