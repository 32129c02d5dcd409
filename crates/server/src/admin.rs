//! The admin API (ADM-1): pipelines, lanes, topics, what lies in a topic, accepting its partitions, and upgrading its
//! journals.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use keylane::status::LaneSort;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::App;
use crate::ingest;
use crate::problem::Problem;
use crate::routes::listed;
use crate::segment::Segment;
use crate::tail::{From, Tail};

/// Lanes shown unless told.
const LANES: usize = 50;
/// Lanes shown at most: what a person or a table can take.
const LANES_MAX: usize = 1000;
/// Messages shown unless told.
const MESSAGES: usize = 100;
/// Messages shown at most in one answer.
const MESSAGES_MAX: usize = 1000;

/// `GET /admin/pipelines`
pub(crate) async fn pipelines(State(app): State<Arc<App>>) -> Result<Response<Body>, Problem> {
    Ok(listed("pipelines", app.keylane.pipelines().await?))
}

/// `GET /admin/topics`
pub(crate) async fn topics(State(app): State<Arc<App>>) -> Result<Response<Body>, Problem> {
    Ok(listed("topics", app.keylane.topics().await?))
}

/// `POST /admin/topics/{topic}/accept`
pub(crate) async fn accept(
    State(app): State<Arc<App>>,
    Segment(topic): Segment,
) -> Result<Response<Body>, Problem> {
    Ok(listed("accepted", app.keylane.accept(&topic, "admin API").await?))
}

/// Which group.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupQuery {
    group: String,
}

/// `POST /admin/topics/{topic}/forget-group`
pub(crate) async fn forget_group(
    State(app): State<Arc<App>>,
    Segment(topic): Segment,
    query: Result<Query<GroupQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_query(error.body_text()))?;
    app.keylane.forget_group(&topic, &query.group).await?;
    Ok(listed("forgotten", query.group))
}

/// Where to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupBody {
    folder: PathBuf,
}

/// `POST /admin/data/backup`
pub(crate) async fn backup(State(app): State<Arc<App>>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = app.bodies.small(&parts.headers, body).await?;
    let asked: BackupBody = serde_json::from_slice(&body).map_err(|error| {
        Problem::bad_query(format!("the body must be {{\"folder\":\"/a/path\"}} as JSON: {error}"))
    })?;
    let made = app.keylane.backup(&asked.folder).await?;
    let keylane::data::Backup { files, bytes, shared_bytes, left_out } = made;
    Ok(listed("backup", BackupMade { files, bytes, shared_bytes, left_out }))
}

#[derive(Debug, Serialize)]
struct BackupMade {
    files: u64,
    bytes: u64,
    shared_bytes: u64,
    left_out: Vec<String>,
}

/// `POST /admin/topics/{topic}/upgrade`
pub(crate) async fn upgrade(
    State(app): State<Arc<App>>,
    Segment(topic): Segment,
) -> Result<Response<Body>, Problem> {
    Ok(listed("upgraded", app.keylane.upgrade(&topic, "admin API").await?))
}

/// `GET /admin/outbox`
pub(crate) async fn outbox(State(app): State<Arc<App>>) -> Response<Body> {
    listed("outbox", app.outboxes.shown())
}

/// Which lanes.
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
    let Query(query) = query.map_err(|error| Problem::bad_query(error.body_text()))?;
    let sort = match query.sort.as_deref() {
        None | Some("depth") => LaneSort::Depth,
        Some("waiting") => LaneSort::Waiting,
        Some(_) => return Err(Problem::bad_query("sort must be `depth` or `waiting`")),
    };
    let limit = limit(query.limit, LANES, LANES_MAX)?;
    let lanes = app.keylane.lanes(query.pipeline.as_deref(), sort, limit).await?;
    Ok(ingest::json(StatusCode::OK, json!(lanes).to_string().into_bytes()))
}

/// Which messages of a topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesQuery {
    partition: Option<u32>,
    from: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    follow: bool,
}

/// `GET /admin/topics/{topic}/messages`
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    Segment(topic): Segment,
    query: Result<Query<MessagesQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_query(error.body_text()))?;
    let from = match query.from.as_deref() {
        None if query.follow => From::Latest,
        None | Some("earliest") => From::Earliest,
        Some("latest") => From::Latest,
        Some(number) => From::Position(
            number
                .parse()
                .map_err(|_| Problem::bad_query("from must be `earliest`, `latest` or a position"))?,
        ),
    };
    if matches!(from, From::Position(_)) && query.partition.is_none() {
        return Err(Problem::bad_query("from as a position needs a partition"));
    }
    let mut tail = Tail::open(&app.keylane, &topic, query.partition, from).await?;
    if query.follow {
        let limit = query.limit.unwrap_or(usize::MAX);
        let body = Body::from_stream(tail.follow(app.phase.subscribe(), limit, app.blank_every));
        let kind = HeaderValue::from_static("application/x-ndjson");
        return Ok(([(header::CONTENT_TYPE, kind)], body).into_response());
    }
    let limit = limit(query.limit, MESSAGES, MESSAGES_MAX)?;
    Ok(ingest::json(StatusCode::OK, tail.array(limit).await?))
}

pub(crate) fn limit(asked: Option<usize>, default: usize, max: usize) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(default);
    if limit > max {
        return Err(Problem::bad_query(format!("limit must be at most {max}")));
    }
    Ok(limit)
}
