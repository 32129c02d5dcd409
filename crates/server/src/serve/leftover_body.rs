//! Shares a request's body between the route that reads it and the code that later discards what the route left unread.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use axum::body::{Body, HttpBody};
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Incoming;

/// The body of a request while it arrives.
pub(super) struct LeftoverBody(Arc<Mutex<Coming>>);

struct Coming {
    body: Incoming,
    /// The end was read. A chunked body does not know its length beforehand, so its end must be seen.
    ended: bool,
}

impl LeftoverBody {
    pub(crate) fn new(body: Incoming) -> LeftoverBody {
        LeftoverBody(Arc::new(Mutex::new(Coming { body, ended: false })))
    }

    /// The rest of the body. All values that this returns read the same body, each frame once.
    pub(crate) fn body(&self) -> Body {
        let shared = Arc::clone(&self.0);
        Body::new(StreamBody::new(stream::poll_fn(move |cx| {
            let mut coming = shared.lock().expect("no holder panics");
            let polled = Pin::new(&mut coming.body).poll_frame(cx);
            coming.ended |= matches!(polled, Poll::Ready(None));
            polled
        })))
    }

    /// True if the body was certainly read to its end.
    pub(super) fn is_read(&self) -> bool {
        let coming = self.0.lock().expect("no holder panics");
        coming.ended || coming.body.is_end_stream()
    }
}
