//! What tests need of brokers, behind the feature `testing`, which no build for users has.
//!
//! [`conformance`] is the suite that every broker must pass, [`memory`] a broker in memory that a simulation drives,
//! and [`faults`] a wrapper that makes a broker misbehave within the contract.

pub mod conformance;
pub mod faults;
pub mod memory;
mod random;
mod waiters;
