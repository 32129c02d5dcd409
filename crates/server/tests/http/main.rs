//! The server from outside: a real port, real bytes, the broker in memory.

mod admin;
mod bounds;
mod client;
mod life;
mod produce;
mod refusals;
