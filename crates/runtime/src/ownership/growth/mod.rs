//! A topic gets more partitions: an operator accepts them, and until then no pipeline reads too far (BRK-10).

mod accept;
mod read_limit;

pub use accept::Accepted;
pub(crate) use read_limit::ReadLimits;
pub(super) use read_limit::{complete, growth_of, lift_limits};
