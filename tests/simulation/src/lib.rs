//! What a simulation is made of, besides Keylane itself: dice, and a trace that can be compared.
//!
//! The simulation is a test (`tests/simulation/main.rs`), so that what lets tests put flaws back never comes into a
//! build for users.

mod dice;
mod trace;

pub use dice::Dice;
pub use trace::Trace;
