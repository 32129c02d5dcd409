//! Reads the body of a request within bounds (SEC-2): its size, the size of all bodies together, the time without a
//! byte, and the pace. A body that breaks off is an error: it is never taken for a shorter body.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use keylane::ErrorCode;
use keylane::raw::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::http::Problem;

/// Size of all bodies in memory, in KiB: eight of the largest. Frames and the answer made from a body take several
/// times its size, so this bounds far more memory than its own number.
const ALL_KIB_MAX: usize = 128 * 1024;
/// The slowest pace of a body: that of a poor line. Without this bound, a client that sends a byte now and then would
/// hold a connection for ever.
const BYTES_PER_SECOND_MIN: u64 = 16 * 1024;
/// Bytes of an unwanted body that are read and dropped at most. Clients that send the whole body before they read need
/// this to see the answer; after this many bytes the connection is closed.
const DISCARDED_BYTES_MAX: u64 = 64 << 20;

/// Reads bodies.
pub(crate) struct Bodies {
    bytes_max: usize,
    idle_max: Duration,
    room_kib: Arc<Semaphore>,
    clock: Clock,
}

/// Measures how fast a body arrives.
struct Pace {
    began_ms: u64,
    bytes: u64,
}

/// A whole body. Dropping it frees its share of the room for all bodies.
pub(super) struct WholeBody {
    pub(super) bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Bodies {
    pub(crate) fn new(bytes_max: usize, idle_max: Duration) -> Bodies {
        Bodies {
            bytes_max,
            idle_max,
            room_kib: Arc::new(Semaphore::new(ALL_KIB_MAX)),
            clock: Clock::system(),
        }
    }

    /// Reads all of `body`.
    pub(super) async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<WholeBody, Problem> {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > self.bytes_max) {
            return Err(self.too_large());
        }
        let mut room = self.room(1)?;
        let mut granted = 1024;
        let mut first: Option<Bytes> = None;
        let mut gathered = BytesMut::new();
        let mut length = 0;
        let mut pace = self.pace();
        while let Some(part) = self.next(&mut body, &mut pace).await? {
            length += part.len();
            if length > self.bytes_max {
                return Err(self.too_large());
            }
            if length > granted {
                let more = (length - granted).div_ceil(1024);
                room.merge(self.room(more)?);
                granted += more * 1024;
            }
            match first.take() {
                None if gathered.is_empty() => first = Some(part),
                None => gathered.extend_from_slice(&part),
                Some(begin) => {
                    gathered.reserve(announced.unwrap_or(0).max(begin.len() + part.len()));
                    gathered.extend_from_slice(&begin);
                    gathered.extend_from_slice(&part);
                }
            }
        }
        Ok(WholeBody { bytes: first.unwrap_or_else(|| gathered.freeze()), _room: room })
    }

    /// Reads all of a small body, such as that of an admin call.
    pub(crate) async fn small(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
        Ok(self.read(headers, body).await?.bytes)
    }

    /// Reads and drops the rest of a body whose request was answered without it. Otherwise a client that sends its
    /// whole body before it reads would find a closed connection and never see the answer.
    pub(crate) async fn discard(&self, mut body: Body) {
        let mut pace = self.pace();
        while let Ok(Some(_)) = self.next(&mut body, &mut pace).await {
            if pace.bytes > DISCARDED_BYTES_MAX {
                return;
            }
        }
    }

    fn pace(&self) -> Pace {
        Pace { began_ms: self.clock.now_ms(), bytes: 0 }
    }

    async fn next(&self, body: &mut Body, pace: &mut Pace) -> Result<Option<Bytes>, Problem> {
        loop {
            let earned = Duration::from_millis(pace.bytes * 1000 / BYTES_PER_SECOND_MIN);
            let took = Duration::from_millis(self.clock.now_ms() - pace.began_ms);
            let left = (self.idle_max + earned).saturating_sub(took);
            let frame = timeout(self.idle_max.min(left), body.frame()).await.map_err(|_| {
                let detail = match left < self.idle_max {
                    true => format!("the body came slower than {BYTES_PER_SECOND_MIN} bytes a second"),
                    false => format!("nothing of the body came for {:?}", self.idle_max),
                };
                did_not_come(StatusCode::REQUEST_TIMEOUT, &detail)
            })?;
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    // Trailers contain no messages, so they are skipped.
                    if let Ok(part) = frame.into_data()
                        && !part.is_empty()
                    {
                        pace.bytes += part.len() as u64;
                        return Ok(Some(part));
                    }
                }
                Some(Err(error)) => {
                    return Err(did_not_come(
                        StatusCode::BAD_REQUEST,
                        &format!("the body broke off: {error}"),
                    ));
                }
            }
        }
    }

    fn room(&self, kib: usize) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.room_kib).try_acquire_many_owned(kib as u32).map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::TooMuchInFlight,
                "there is no room now",
                format!("requests of {} MiB are on their way already", ALL_KIB_MAX / 1024),
            )
        })
    }

    fn too_large(&self) -> Problem {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::RequestTooLarge,
            "the request is too large",
            format!(
                "a request has at most {} bytes (ingest.max_request); send the messages in several",
                self.bytes_max
            ),
        )
    }
}

fn did_not_come(status: StatusCode, detail: &str) -> Problem {
    Problem::new(
        status,
        ErrorCode::BodyDidNotCome,
        "the body did not come",
        format!("{detail}; nothing was kept"),
    )
}
