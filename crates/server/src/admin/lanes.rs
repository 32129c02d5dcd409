//! The route that lists lanes: the keys that have messages in memory, those with the most messages first, or those
//! whose first message is the oldest.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use keylane::status::LaneSort;
use serde::Deserialize;
use serde_json::json;

use super::limit;
use crate::http::{self, Problem};
use crate::serve::App;

/// Lanes in an answer if the request names no limit.
const LANES: usize = 50;
/// Lanes in an answer at most: more would help no person and no table.
const LANES_MAX: usize = 1000;

/// The query of the route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LanesQuery {
    pipeline: Option<String>,
    sort: Option<String>,
    limit: Option<usize>,
}

/// `GET /admin/lanes`
pub(crate) async fn lanes(
    State(app): State<Arc<App>>,
    query: Result<Query<LanesQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::of_query(&error))?;
    let sort = match query.sort.as_deref() {
        None | Some("depth") => LaneSort::Depth,
        Some("waiting") => LaneSort::Waiting,
        Some(_) => return Err(Problem::bad_query("sort must be `depth` or `waiting`")),
    };
    let limit = limit(query.limit, LANES, LANES_MAX)?;
    let lanes = app.keylane.lanes(query.pipeline.as_deref(), sort, limit).await;
    let lanes = lanes.map_err(|error| {
        let pipelines = app.keylane.pipelines_seen();
        let names = pipelines.iter().map(|pipeline| pipeline.name.as_str());
        Problem::from(error).with_nearest(query.pipeline.as_deref().unwrap_or_default(), names)
    })?;
    Ok(http::json(StatusCode::OK, json!(lanes).to_string().into_bytes()))
}
