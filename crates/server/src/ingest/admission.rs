//! May messages come in now? Not on the way out, and not before topics are made; and a request that produces has a place
//! among those that do, or is refused at once: a client that is told can slow down, one that waits cannot.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use keylane::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::Problem;
use crate::serve::{App, Phase};

/// How long, and how many times, a message waits for the topics of a server that starts: half a minute in all.
const TOPICS_WAIT: Duration = Duration::from_millis(200);
const TOPICS_WAITS: u32 = 150;

/// Places of requests that produce.
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    places_max: usize,
}

impl Admission {
    pub(crate) fn new(places_max: usize) -> Admission {
        Admission { places: Arc::new(Semaphore::new(places_max)), places_max }
    }
}

/// Says so if no more messages are taken.
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

/// Waits until topics are made, and says so if that takes too long. While the broker is away, messages are taken all the
/// same: they are kept here.
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

/// A place among the requests that produce, or why there is none.
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
