//! What HTTP is here, whatever is asked: paths, who may call them, how errors and JSON are answered, what is measured,
//! and the pages that a browser sees.
//!
//! [`router`] says which path leads where. A route is one function of `ingest`, `admin` or this room.

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
