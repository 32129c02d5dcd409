//! The routes about the spill (PRD-4): one shows the messages that wait on this machine for the broker, the other sends
//! them to the broker now.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use keylane::spill::{SpillEntry, SpillEntryState, SpillStatus};
use serde::{Deserialize, Serialize};

use super::limit;
use crate::http::{Problem, json};
use crate::serve::App;

/// Entries in an answer if the request names no limit.
const ENTRIES: usize = 50;
/// Entries in an answer at most.
const ENTRIES_MAX: usize = 1000;

/// The query of `GET /admin/spill`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpillQuery {
    state: Option<SpillEntryState>,
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct ShownSpill {
    #[serde(flatten)]
    status: SpillStatus,
    entries: Vec<SpillEntry>,
}

/// `GET /admin/spill`
pub(crate) async fn spill(
    State(app): State<Arc<App>>,
    query: Result<Query<SpillQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::of_query(&error))?;
    answer(&app, StatusCode::OK, query.state, limit(query.limit, ENTRIES, ENTRIES_MAX)?).await
}

/// `POST /admin/spill/drain`
pub(crate) async fn drain_spill(State(app): State<Arc<App>>) -> Result<Response<Body>, Problem> {
    app.keylane.drain_spill();
    answer(&app, StatusCode::ACCEPTED, None, ENTRIES).await
}

async fn answer(
    app: &App,
    status: StatusCode,
    state: Option<SpillEntryState>,
    limit: usize,
) -> Result<Response<Body>, Problem> {
    let entries = app.keylane.spill_entries(state, limit).await?;
    let shown = ShownSpill { status: app.keylane.spill(), entries };
    Ok(json(status, serde_json::to_vec(&shown).expect("text and numbers always serialize")))
}
