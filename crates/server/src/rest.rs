//! A request's body that two can hold: the route that reads it, and whoever has to throw away what the route left.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::body::{Body, HttpBody};
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Incoming;

/// A body as it comes in.
pub(crate) struct Rest(Arc<Mutex<Incoming>>);

impl Rest {
    pub(crate) fn new(body: Incoming) -> Rest {
        Rest(Arc::new(Mutex::new(body)))
    }

    /// What is left of it; all such read the same one.
    pub(crate) fn body(&self) -> Body {
        let shared = Arc::clone(&self.0);
        Body::new(StreamBody::new(stream::poll_fn(move |cx| {
            Pin::new(&mut *shared.lock().expect("no holder panics")).poll_frame(cx)
        })))
    }

    /// True if nothing is left for certain.
    pub(crate) fn is_read(&self) -> bool {
        self.0.lock().expect("no holder panics").is_end_stream()
    }
}
