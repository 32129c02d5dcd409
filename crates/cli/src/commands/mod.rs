//! The commands, a file each: `Args` says what can be typed, `run` does it.

pub mod bench;
pub mod check;
pub mod completions;
pub mod data;
pub mod demo;
pub mod lanes;
pub mod pipelines;
pub mod produce;
pub mod serve;
pub mod spill;
pub mod tail;
pub mod token;
pub mod topics;
