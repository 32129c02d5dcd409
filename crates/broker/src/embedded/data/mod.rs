//! Commands on a whole data folder for operators: check it, repair it, back it up, restore it.
//!
//! - `check` reads every byte of a folder that no server uses, and reports which positions of which stream are gone
//!   (`walk` and `segments` find them, `doubt` and `gaps` put them down to damaged places, `report` has the words).
//! - `repair` overwrites one damaged place, which the operator names, with batches that say that it is lost; the
//!   damaged bytes are kept in a file.
//! - `backup` copies a folder while a server uses it. `restore` makes a folder from such a copy, after it has
//!   verified every byte against the manifest (`manifest`).

mod backup;
mod check;
mod doubt;
mod gaps;
mod manifest;
mod repair;
mod report;
mod restore;
mod segments;
mod walk;

pub(super) use backup::{Captured, back_up};
pub use check::check;
pub use repair::{Repaired, repair};
pub use report::{Damage, LogReport, Lost, Report, SegmentReport};
pub(super) use restore::refuse_restoring;
pub use restore::{RestoreError, restore};
