//! Topics of a cluster, ours included: made, described, changed, and looked at for what weakens a promise.
//!
//! [`Admin`] asks and changes; `native` has the questions that the Rust wrapper lacks, `spec` translates settings,
//! [`Journals`] names and makes the topics that keep Keylane's own state.

mod admin;
mod alter;
mod journals;
mod native;
mod spec;
mod weak;

pub(super) use admin::{ASK, Admin, Learn, blocking, options, partitions_of};
pub(super) use journals::{Journals, topic_name};
pub(super) use spec::check_name;
pub(super) use weak::{kept_whole, warnings};
