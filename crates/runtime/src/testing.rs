//! Tools that only tests may use: known flaws that can be put back, and a gate that freezes or kills a simulated
//! process as a whole between any two of its steps.

#[cfg(feature = "flaws")]
pub use crate::flaws::Flaws;
#[cfg(feature = "testing")]
pub use crate::tasks::Gate;
