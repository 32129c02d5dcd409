//! A topic that got more partitions: somebody accepts that, and until then nobody reads too far (BRK-10).

mod accept;
mod read_limit;

pub use accept::Accepted;
pub(super) use accept::append;
pub(crate) use read_limit::ReadLimits;
pub(super) use read_limit::{command, complete, growth_of, journal_of, lift_limits, read_on};
