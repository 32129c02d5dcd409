//! The commands of the binary. Each command has a file with `Args`, its arguments, and `run`, which carries it out.

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
