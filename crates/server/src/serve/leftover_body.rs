//! A request's body that two can hold: the route that reads it, and whoever has to throw away what the route left.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use axum::body::{Body, HttpBody};
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Incoming;

/// A body as it comes in.
pub(super) struct LeftoverBody(Arc<Mutex<Coming>>);

struct Coming {
    body: Incoming,
    /// Its end was seen: one in chunks does not know it beforehand.
    ended: bool,
}

impl LeftoverBody {
    pub(crate) fn new(body: Incoming) -> LeftoverBody {
        LeftoverBody(Arc::new(Mutex::new(Coming { body, ended: false })))
    }

    /// What is left of it; all such read the same one.
    pub(crate) fn body(&self) -> Body {
        let shared = Arc::clone(&self.0);
        Body::new(StreamBody::new(stream::poll_fn(move |cx| {
            let mut coming = shared.lock().expect("no holder panics");
            let polled = Pin::new(&mut coming.body).poll_frame(cx);
            coming.ended |= matches!(polled, Poll::Ready(None));
            polled
        })))
    }

    /// True if nothing is left for certain.
    pub(super) fn is_read(&self) -> bool {
        let coming = self.0.lock().expect("no holder panics");
        coming.ended || coming.body.is_end_stream()
    }
}
