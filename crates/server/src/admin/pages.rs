//! How many pages of topics may be in memory at once (SEC-2): one alone takes tens of MiB, and there may be thousands of
//! connections.
//!
//! A page has a place from before it is read until its last byte was taken. Whoever asks for a page and finds no place is
//! told so; whoever follows a topic waits for one, in places of their own, since a stream cannot be refused any more.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use keylane::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::Problem;

/// Pages at once, of each kind. A page is 16 MiB of messages and what it was read from, so this bounds about 1 GiB at
/// the worst; people look at a few.
const PAGES_MAX: usize = 16;

/// The places of pages.
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
    /// A place for a page that was asked for, or why there is none.
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

    /// The places of those who follow.
    pub(super) fn followed(&self) -> Followed {
        Followed(Arc::clone(&self.followed))
    }
}

/// The places of pages that are sent as messages come.
pub(super) struct Followed(Arc<Semaphore>);

impl Followed {
    /// A place, if one is free within `longest`.
    pub(super) async fn place(&self, longest: Duration) -> Option<PagePlace> {
        let place = tokio::time::timeout(longest, Arc::clone(&self.0).acquire_owned()).await;
        place.ok()?.ok().map(PagePlace)
    }
}

/// The place of one page.
pub(super) struct PagePlace(OwnedSemaphorePermit);

impl PagePlace {
    /// Bytes that hold the place until they are dropped: once they were taken, or whoever asked has gone.
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
