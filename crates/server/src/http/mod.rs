//! The parts of HTTP that all routes have in common: paths, access rules, errors and JSON answers, metrics, health, and
//! the pages for browsers.
//!
//! [`router`] maps each path to its route. A route is one function of `ingest`, of `admin` or of this room.

mod access;
mod error_pages;
mod health;
mod json;
mod metrics;
mod openapi;
mod page;
mod path;
mod problem;
mod routes;

pub(crate) use access::{Access, Who, known_to_everybody, parse_hash};
pub use access::{Role, hash_token, is_token, new_token};
pub(crate) use health::alive;
pub(crate) use json::{json, listed};
pub(crate) use metrics::Metrics;
pub(crate) use path::PathPart;
pub(crate) use problem::{Problem, Rejected, produce_status};
pub(crate) use routes::{label, router};
