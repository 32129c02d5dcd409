//! What tests need of brokers, and users never get: it is there only with the feature `testing`.
//!
//! [`conformance`] is the suite that every broker passes, [`memory`] a broker that a simulation drives, [`faults`] a
//! wrapper that misbehaves within the contract.

pub mod conformance;
pub mod faults;
pub mod memory;
mod random;
mod waiters;
