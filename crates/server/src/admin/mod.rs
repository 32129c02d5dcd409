//! The admin API (ADM-1): one function for each route. The routes about lanes and about the spill have files of their
//! own; `tail` reads the messages of a topic, and `pages` bounds how many answers with messages are in memory.

mod lanes;
mod pages;
mod spill;
mod tail;

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};

use crate::http::{PathPart, Problem, Who, json, listed};
use crate::serve::App;
pub(crate) use lanes::lanes;
pub(crate) use pages::Pages;
pub(crate) use spill::{drain_spill, spill};
use tail::{From, Tail};

/// Messages in an answer if the request names no limit.
const MESSAGES: usize = 100;
/// Messages in an answer at most.
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
    PathPart(topic): PathPart,
    Extension(who): Extension<Who>,
) -> Result<Response<Body>, Problem> {
    match app.keylane.accept(&topic, who.as_str()).await {
        Ok(accepted) => Ok(listed("accepted", accepted)),
        Err(error) => Err(with_topics(&app, error.into(), &topic).await),
    }
}

/// The query of `forget-group`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupQuery {
    group: String,
}

/// `POST /admin/topics/{topic}/forget-group`
pub(crate) async fn forget_group(
    State(app): State<Arc<App>>,
    PathPart(topic): PathPart,
    query: Result<Query<GroupQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::of_query(&error))?;
    app.keylane.forget_group(&topic, &query.group).await?;
    Ok(listed("forgotten", query.group))
}

/// The body of a request for a backup: the folder to create.
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
    PathPart(topic): PathPart,
    Extension(who): Extension<Who>,
) -> Result<Response<Body>, Problem> {
    Ok(listed("upgraded", app.keylane.upgrade(&topic, who.as_str()).await?))
}

/// `GET /admin/outbox`
pub(crate) async fn outbox(State(app): State<Arc<App>>) -> Response<Body> {
    listed("outbox", app.outboxes.shown())
}

/// The query of the route that shows a topic's messages.
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
    PathPart(topic): PathPart,
    query: Result<Query<MessagesQuery>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::of_query(&error))?;
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
    let mut tail = match Tail::open(&app.keylane, &topic, query.partition, from).await {
        Ok(tail) => tail,
        Err(problem) => return Err(with_topics(&app, problem, &topic).await),
    };
    if query.follow {
        let limit = query.limit.unwrap_or(usize::MAX);
        let body = Body::from_stream(tail.follow(
            app.pages.followed(),
            app.phase.subscribe(),
            limit,
            app.blank_every,
        ));
        let kind = HeaderValue::from_static("application/x-ndjson");
        return Ok(([(header::CONTENT_TYPE, kind)], body).into_response());
    }
    let limit = limit(query.limit, MESSAGES, MESSAGES_MAX)?;
    let place = app.pages.place()?;
    Ok(json(StatusCode::OK, place.hold(tail.array(limit).await?)))
}

/// If the problem is an unknown topic, adds the name of the topic that the client may have meant.
async fn with_topics(app: &App, problem: Problem, topic: &str) -> Problem {
    if problem.status != StatusCode::NOT_FOUND {
        return problem;
    }
    let topics = app.keylane.topics().await.unwrap_or_default();
    problem.with_nearest(topic, topics.iter().map(|topic| topic.name.as_str()))
}

fn limit(asked: Option<usize>, default: usize, max: usize) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(default);
    if limit > max {
        return Err(Problem::bad_query(format!("limit must be at most {max}")));
    }
    Ok(limit)
}
