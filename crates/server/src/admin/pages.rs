//! Bounds how many pages of messages are in memory at once (SEC-2). One page can take tens of MiB, and thousands of
//! connections could each ask for one.
//!
//! A page holds a place from before it is read until the client has taken its last byte. If no place is free, a request
//! for one page is refused. A client that follows a topic waits for a place instead, because its answer has already
//! begun; followers have places of their own, so that the two kinds do not keep each other out.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use keylane::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::Problem;

/// Pages at once, of each kind. A page is 16 MiB of messages plus the batches it was read from, so this bounds the
/// memory to about 1 GiB at worst. People look at a few pages.
const PAGES_MAX: usize = 16;

/// The places of both kinds: for single pages, and for followed topics.
pub(crate) struct Pages {
    asked: Arc<Semaphore>,
    followed: Arc<Semaphore>,
}

impl Default for Pages {
    fn default() -> Pages {
        let places = || Arc::new(Semaphore::new(PAGES_MAX));
        Pages { asked: places(), followed: places() }
    }
}

impl Pages {
    /// A place for a single page, or the problem that all places are taken.
    pub(super) fn place(&self) -> Result<PagePlace, Problem> {
        Arc::clone(&self.asked).try_acquire_owned().map(PagePlace).map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::TooMuchInFlight,
                "there is no room now",
                format!(
                    "{PAGES_MAX} pages of messages are being read or sent already; ask again in a moment"
                ),
            )
        })
    }

    /// The places for followed topics.
    pub(super) fn followed(&self) -> Followed {
        Followed(Arc::clone(&self.followed))
    }
}

/// The places for pages of followed topics, which are sent as messages arrive.
pub(super) struct Followed(Arc<Semaphore>);

impl Followed {
    /// A place, if one becomes free within `longest`.
    pub(super) async fn place(&self, longest: Duration) -> Option<PagePlace> {
        let place = tokio::time::timeout(longest, Arc::clone(&self.0).acquire_owned()).await;
        place.ok()?.ok().map(PagePlace)
    }
}

/// The place of one page.
pub(super) struct PagePlace(OwnedSemaphorePermit);

impl PagePlace {
    /// Makes bytes that hold the place until they are dropped: when the client has taken them or has gone away.
    pub(super) fn hold(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Page { bytes, _place: self.0 })
    }
}

struct Page {
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
