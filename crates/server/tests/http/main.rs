//! Tests of the server over a real port with real bytes, on a broker in memory.

mod admin;
mod bounds;
mod client;
mod life;
mod produce;
mod refusals;
