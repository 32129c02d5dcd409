//! The route for producing over HTTP (ING-1): `POST /v1/topics/{topic}/messages`.
//!
//! In: a body with one or many messages. Out, once each message is durable or refused: its partition and position, or
//! the reason. Messages are copied from the body straight into the producer's arena, without a structure between. If
//! the body cannot be read to its end, none of its messages is produced.

mod admission;
mod answer;
mod body;
mod explain;
mod first_use;
mod ids;
mod items;
mod message_json;
mod timing;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::response::IntoResponse;
use keylane::handlers::{CONTENT_TYPE, OCTET_STREAM, is_content_type};
use keylane::raw::{Call, Draft, ProduceError};
use keylane::{Error, ErrorCode};

use crate::config::{NAME_BYTES_MAX, is_name, nearest};
use crate::http::{PathPart, Problem};
use crate::serve::App;
pub(crate) use admission::Admission;
use answer::Refusals;
pub(crate) use body::Bodies;
pub(crate) use first_use::FirstUse;
use first_use::fits_a_new_topic;
use ids::Ids;
use items::Items;
use message_json::MessageJson;

/// Messages that are parsed before other tasks of the thread get their turn: this takes well under a millisecond.
const PARSED_AT_ONCE: usize = 1024;

/// The route.
pub(crate) async fn produce(
    State(app): State<Arc<App>>,
    PathPart(topic): PathPart,
    request: Request,
) -> Response<Body> {
    match produce_all(&app, &topic, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn produce_all(app: &App, topic: &str, request: Request) -> Result<Response<Body>, Problem> {
    let form = Form::of(request.headers())?;
    if !is_name(topic) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            ErrorCode::InvalidTopicName,
            "this cannot be a topic",
            format!("a topic is called by letters, digits, `.`, `_` and `-`, at most {NAME_BYTES_MAX}"),
        ));
    }
    admission::takes_messages(app)?;
    admission::has_topics(app).await?;
    if app.first_use.is_nowhere(app, topic).await {
        return Err(no_call(app, topic, ProduceError::UnknownTopic(topic.to_owned()).into()));
    }
    let (parts, body) = request.into_parts();
    let body = app.bodies.read(&parts.headers, body).await?;
    // Take a place only after the body has arrived: a slow body must not keep other requests out.
    let _place = admission::admit(app)?;
    let goal = match app.first_use.admit(app, topic, form, &body.bytes).await? {
        true => Goal::Topic(app.producer.call(topic).await.map_err(|error| no_call(app, topic, error))?),
        false => Goal::Nowhere { topic: topic.to_owned(), refused: Vec::new() },
    };
    let mut intake = Intake {
        goal,
        ids: Ids::new(app.producer.wall_ms()),
        now_ms: app.producer.wall_ms(),
        refused: Refusals::default(),
        count: 0,
    };
    intake.take_all(Items::new(form, &body.bytes)?).await?;
    drop(body);
    let (results, warning) = match intake.goal {
        Goal::Topic(call) => {
            let results = call.send().await?;
            let any = results.iter().any(Result::is_ok);
            (results, any.then(|| app.first_use.found(app, topic)).flatten())
        }
        Goal::Nowhere { refused, .. } => (refused.into_iter().map(Err).collect(), None),
    };
    answer::answer(results, intake.refused, warning)
}

/// The form in which a body holds its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A message object, or an array of them.
    Json,
    /// A message object on each line.
    Lines,
}

impl Form {
    /// Reads the form from the headers. A header for something that this version does not have is refused, never
    /// ignored: its sender would rely on it.
    fn of(headers: &HeaderMap) -> Result<Form, Problem> {
        let unsupported = |detail: String| {
            Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                ErrorCode::FormNotTaken,
                "this form is not taken",
                detail,
            )
        };
        if headers.contains_key("idempotency-key") {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                ErrorCode::HeaderNotYet,
                "not in this version",
                "`Idempotency-Key` is not in this version; leave it out, and give each message an `id`",
            ));
        }
        if headers.contains_key("ce-specversion") {
            return Err(unsupported("CloudEvents are not in this version".to_owned()));
        }
        if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(unsupported("a body is taken as it is, without Content-Encoding".to_owned()));
        }
        let kind = headers.get(header::CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap_or("?"));
        let name = kind.split(';').next().unwrap_or_default().trim();
        if name.eq_ignore_ascii_case("application/json") {
            Ok(Form::Json)
        } else if name.eq_ignore_ascii_case("application/x-ndjson")
            || name.eq_ignore_ascii_case("application/jsonl")
        {
            Ok(Form::Lines)
        } else if name.to_ascii_lowercase().starts_with("application/cloudevents") {
            Err(unsupported("CloudEvents are not in this version".to_owned()))
        } else {
            let sent = if name.is_empty() { "none" } else { name };
            Err(unsupported(format!(
                "Content-Type must be application/json (a message, or an array) or application/x-ndjson (a message a line); it is {}",
                sent.escape_debug()
            )))
        }
    }
}

/// The messages of one request on their way into the producer's arena.
struct Intake {
    goal: Goal,
    ids: Ids,
    now_ms: u64,
    refused: Refusals,
    count: usize,
}

/// Where messages go.
enum Goal {
    Topic(Call),
    /// The topic does not exist, and no message of the body could be stored in a new one. Each message only gets its
    /// refusal.
    Nowhere {
        topic: String,
        refused: Vec<ProduceError>,
    },
}

impl Intake {
    async fn take_all(&mut self, mut items: Items<'_>) -> Result<(), Problem> {
        while let Some(line) = items.next()? {
            match line {
                Ok(line) => self.push(&line),
                Err(error) => self.refused.push(self.count, error),
            }
            self.count += 1;
            if self.count.is_multiple_of(PARSED_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    fn push(&mut self, line: &MessageJson<'_>) {
        let mut space = [0; Ids::LENGTH];
        let (id, id_is_callers) = match &line.id {
            Some(id) => (&**id, true),
            None => (self.ids.next(&mut space), false),
        };
        with_draft(line, id, self.now_ms, |draft| match &mut self.goal {
            Goal::Topic(call) if id_is_callers => call.push(draft),
            Goal::Topic(call) => call.push_without_id(draft),
            Goal::Nowhere { topic, refused } => refused.push(match fits_a_new_topic(topic, draft) {
                Err(refused) => refused,
                Ok(()) => ProduceError::UnknownTopic(topic.clone()),
            }),
        });
    }
}

/// Calls `then` with the message in the form that the producer takes.
fn with_draft<T>(line: &MessageJson<'_>, id: &str, now_ms: u64, then: impl FnOnce(&Draft<'_>) -> T) -> T {
    let mut headers: Vec<(&str, &[u8])> =
        line.headers.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
    // Bytes may happen to be valid JSON. The content type tells the handler that they are not meant as JSON.
    if line.payload.is_bytes() && !headers.iter().any(|(name, _)| is_content_type(name)) {
        headers.push((CONTENT_TYPE, OCTET_STREAM.as_bytes()));
    }
    then(&Draft {
        id,
        key: line.key.as_deref().map(str::as_bytes),
        payload: Some(line.payload.bytes()),
        headers: &headers,
        version: line.version,
        produced_ms: now_ms,
        appended_ms: None,
        deliver_at_ms: line.deliver_at_ms,
        priority: line.priority,
        ttl_ms: line.ttl_ms,
    })
}

fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, ErrorCode::BodyUnreadable, "the body cannot be read", detail)
}

/// The problem of a call that could not begin. For an unknown topic it says how to declare the topic: this error occurs
/// only if the config declares topics, because otherwise the topic would have been created.
fn no_call(app: &App, topic: &str, error: Error) -> Problem {
    let mut problem = Problem::from(error);
    // A declared topic will exist once the broker can be reached, so the client may try again.
    if problem.status == StatusCode::NOT_FOUND && app.topics.iter().any(|declared| declared == topic) {
        problem.status = StatusCode::SERVICE_UNAVAILABLE;
        problem.detail = format!(
            "topic `{topic}` is declared, but is not there: not yet, or not any more; try again, and see /readyz"
        );
    } else if problem.status == StatusCode::NOT_FOUND {
        let near = nearest(topic, app.topics.iter().map(String::as_str))
            .map_or_else(String::new, |near| format!("did you mean `{near}`? Else "));
        problem.detail = format!(
            "there is no topic `{topic}`, and this server's config declares its topics; {near}declare it under `topics:` as `{topic}: {{}}` and restart"
        );
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(headers: &[(&'static str, &'static str)]) -> Result<Form, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        Form::of(&map).map_err(|problem| problem.status.as_u16())
    }

    /// ING-1: what is not in this version is refused, never ignored.
    #[test]
    fn the_form_of_a_body_is_told_by_its_headers() {
        assert_eq!(form(&[("content-type", "application/json; charset=utf-8")]), Ok(Form::Json));
        assert_eq!(form(&[("content-type", "Application/X-NDJSON")]), Ok(Form::Lines));
        assert_eq!(form(&[]), Err(415));
        assert_eq!(form(&[("content-type", "text/plain")]), Err(415));
        assert_eq!(form(&[("content-type", "application/cloudevents+json")]), Err(415));
        assert_eq!(form(&[("content-type", "application/json"), ("ce-specversion", "1.0")]), Err(415));
        assert_eq!(form(&[("content-type", "application/json"), ("content-encoding", "gzip")]), Err(415));
        assert_eq!(form(&[("content-type", "application/json"), ("idempotency-key", "x")]), Err(400));
    }
}
