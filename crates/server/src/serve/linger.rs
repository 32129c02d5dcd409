//! What is left of a request's body when its answer is already on its way (SEC-2).
//!
//! Whoever is refused learns it at once, also in the middle of a long body. A connection that was simply closed then
//! would often take the answer with it: bytes that nobody has read make the kernel reset the connection. So a refused
//! client's bytes are read away for a moment, while the answer travels, and then the connection is closed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::sync::Notify;

/// How long a refused client may go on sending.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// The place where a connection's answer leaves the rest of a body.
#[derive(Clone, Default)]
pub(super) struct Linger {
    left: Arc<Left>,
}

#[derive(Default)]
struct Left {
    body: Mutex<Option<Body>>,
    there: Notify,
}

impl Linger {
    /// Leaves what nobody wants of a request; its connection serves no other one.
    pub(crate) fn leave(&self, body: Body) {
        *self.left.body.lock().expect("no holder panics") = Some(body);
        self.left.there.notify_one();
    }

    /// Serves a connection to its end. What is left there is read away meanwhile, and dropped in time: without a
    /// reader of its body the connection ends.
    pub(super) async fn during<T>(self, connection: impl Future<Output = T>) -> T {
        let read_away = async {
            loop {
                self.left.there.notified().await;
                let left = self.left.body.lock().expect("no holder panics").take();
                if let Some(mut body) = left {
                    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
                    let _longer = tokio::time::timeout(LINGER_MAX, reading).await;
                }
            }
        };
        tokio::select! {
            biased;
            ended = connection => ended,
            never = read_away => never,
        }
    }
}
