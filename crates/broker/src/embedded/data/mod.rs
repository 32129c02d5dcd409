//! A data folder as a whole, for operators: is it as it was written, what is gone, how to go on, how to copy it.
//!
//! - `check` reads every byte of a folder that no server uses, and says which positions of what are gone (`walk` finds
//!   them, `report` has the words).
//! - `repair` writes over one damaged place, named by the operator, what says that it is lost, and keeps a copy.
//! - `backup` copies a folder while it is used; `restore` makes a folder of such a copy, once every byte of it was
//!   verified against its manifest (`manifest`).

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
