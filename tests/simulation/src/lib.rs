//! The parts of a simulation besides Keylane itself: randomness, and a trace that can be compared.
//!
//! The simulation is a test (`tests/simulation/main.rs`), so that the code with which tests put flaws back never comes
//! into a build for users.

mod random;
mod trace;

pub use random::Random;
pub use trace::Trace;
