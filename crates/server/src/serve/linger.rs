//! Discards the rest of a request's body after the server has answered without it (SEC-2).
//!
//! The server refuses a request at once, even in the middle of a long body. If it then closed the connection with
//! unread bytes, the kernel would reset the connection, and the client would often lose the answer. So the server reads
//! and drops the client's bytes for a moment while the answer travels, and then closes the connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::sync::Notify;

/// How long the server reads on after a refusal.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// Where a connection's service leaves the rest of a body for [`Linger::during`] to discard.
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
    /// Leaves the unread rest of a body. The caller makes sure that the connection serves no further request.
    pub(crate) fn leave(&self, body: Body) {
        *self.left.body.lock().expect("no holder panics") = Some(body);
        self.left.there.notify_one();
    }

    /// Runs a connection to its end, and meanwhile reads and drops what was left. The rest of the body is dropped after
    /// [`LINGER_MAX`] at the latest; without a reader of the body the connection ends.
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
