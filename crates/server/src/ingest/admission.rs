//! Decides whether the server accepts messages now: not while it shuts down, and not before its topics are created. It
//! also bounds the number of producing requests. A request without a place is refused at once instead of waiting: a
//! client that gets an error can slow down.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use keylane::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::Problem;
use crate::serve::{App, Phase};

/// How long and how often a request waits for the topics of a starting server: half a minute in all.
const TOPICS_WAIT: Duration = Duration::from_millis(200);
const TOPICS_WAITS: u32 = 150;

/// The places for producing requests.
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    places_max: usize,
}

impl Admission {
    pub(crate) fn new(places_max: usize) -> Admission {
        Admission { places: Arc::new(Semaphore::new(places_max)), places_max }
    }
}

/// An error if the server is shutting down and accepts no more messages.
pub(super) fn takes_messages(app: &App) -> Result<(), Problem> {
    if app.phase() >= Phase::Draining {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::ShuttingDown,
            "the server is shutting down",
            "the server is shutting down and takes no more messages; send it again, to another server or later",
        ));
    }
    Ok(())
}

/// Waits until the topics are created, and returns an error if that takes too long. While the broker is away, does not
/// wait: the spill keeps the messages.
pub(super) async fn has_topics(app: &App) -> Result<(), Problem> {
    let mut phase = app.phase.subscribe();
    for _ in 0..TOPICS_WAITS {
        if app.phase() != Phase::Opening || app.keylane.health().await.is_err() {
            return Ok(());
        }
        let _made = tokio::time::timeout(TOPICS_WAIT, phase.wait_for(|phase| *phase > Phase::Opening)).await;
    }
    Err(Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Starting,
        "the server is starting",
        "the server is still making sure of its topics; send it again in a moment",
    ))
}

/// A place for a producing request, or the problem that all places are taken.
pub(super) fn admit(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    takes_messages(app)?;
    let Admission { places, places_max } = &app.admission;
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::TooMuchInFlight,
            "there is no room now",
            format!(
                "{places_max} requests are producing already (ingest.in_flight); slow down, or send more messages in each"
            ),
        )
    })
}
