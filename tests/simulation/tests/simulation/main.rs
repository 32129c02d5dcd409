//! Simulates Keylane's runtime: several processes on one memory broker, one thread, a clock that jumps from event to
//! event, and everything that goes wrong in the world, from one seed.
//!
//! `KEYLANE_SIM_SEED=n` runs one seed and prints everything that happens; `KEYLANE_SIM_SEEDS=n` sets how many are run.

mod checker;
mod flaws;
mod growth;
mod handler;
mod listening;
mod pauses;
mod process;
mod queued;
mod rig;
mod scenario;
mod seeds;
mod world;

/// The topic of every simulation.
pub const TOPIC: &str = "orders";
/// The group that reads it.
pub const GROUP: &str = "billing";
/// The text of a handler's panic on purpose.
pub const PANIC: &str = "a simulated panic";
/// The text of a task that a simulation ends.
pub const STRUCK: &str = "a test ended it";
