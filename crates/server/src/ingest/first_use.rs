//! Creates topics when their first message arrives.
//!
//! Keylane deletes no topic, so a topic is created only for a message that it can store, not for a request that cannot
//! be read. The number of topics is bounded: a client with a bug in its names must not fill the disk with folders.

use std::collections::HashSet;
use std::sync::RwLock;

use axum::http::StatusCode;
use bytes::BytesMut;
use keylane::raw::{Call, Draft, ProduceError};
use keylane::{ErrorCode, TopicSpec};
use tokio::sync::Mutex;

use super::items::Items;
use super::{Form, PARSED_AT_ONCE, with_draft};
use crate::http::Problem;
use crate::serve::App;

/// If this many topics exist, a first message creates no further one. A user who needs more topics has a list of them,
/// and can declare them in the config.
pub(super) const TOPICS_MAX: usize = 1_000;

/// A placeholder with the length of a generated id, to compute a message's size.
const MADE_ID: &str = "00000000-0000-0000-0000-000000000000";

/// Remembers which topics exist, so that the broker is asked only once for each.
#[derive(Default)]
pub(crate) struct FirstUse {
    known: RwLock<HashSet<String>>,
    /// Only one request at a time creates a topic. Otherwise many at once could pass the bound.
    making: Mutex<()>,
}

impl FirstUse {
    /// Whether the topic certainly does not exist and will not be created, so that the body need not be read. If the
    /// broker gives an error, the answer is false: the spill can keep the message meanwhile.
    pub(super) async fn is_nowhere(&self, app: &App, topic: &str) -> bool {
        let may_be = app.topics.is_empty() || app.topics.iter().any(|declared| declared == topic);
        !may_be && !self.knows(topic) && matches!(app.keylane.topic_spec(topic).await, Ok(None))
    }

    fn knows(&self, topic: &str) -> bool {
        self.known.read().expect("no holder panics").contains(topic)
    }

    /// Makes sure that `topic` exists, and creates it if it may be created for `body`. False if the topic does not
    /// exist and could store no message of the body.
    pub(super) async fn admit(
        &self,
        app: &App,
        topic: &str,
        form: Form,
        body: &[u8],
    ) -> Result<bool, Problem> {
        if self.knows(topic) {
            return Ok(true);
        }
        if app.topics.is_empty() {
            let _making = self.making.lock().await;
            if app.keylane.topic_spec(topic).await?.is_none() {
                if !any_can_be_taken(topic, form, body).await? {
                    return Ok(false);
                }
                if app.keylane.topics().await?.len() >= TOPICS_MAX {
                    return Err(too_many(topic));
                }
                app.keylane.ensure_topic(topic, &app.new_topic).await?;
            }
        }
        Ok(true)
    }

    /// Remembers that the topic exists. Warns once, in the log and in the answer, if no pipeline reads the topic: its
    /// name may be mistyped, or a pipeline may be missing, and messages would pile up.
    pub(super) fn found(&self, app: &App, topic: &str) -> Option<String> {
        if self.knows(topic) {
            return None;
        }
        let is_new = self.known.write().expect("no holder panics").insert(topic.to_owned());
        // A pipeline of the config may not have started yet, and a program may have started one without a config.
        if !is_new || app.read_topics.contains(topic) || !app.keylane.readers(topic).is_empty() {
            return None;
        }
        tracing::warn!(topic, "messages are produced to this topic, and no pipeline of this server reads it");
        Some(format!(
            "no pipeline of this server reads the topic `{topic}`: its messages are kept, and nothing handles them"
        ))
    }
}

/// Whether the body can be read to its end and holds a message that a new topic would take.
async fn any_can_be_taken(topic: &str, form: Form, body: &[u8]) -> Result<bool, Problem> {
    let mut items = Items::new(form, body)?;
    let (mut any, mut count) = (false, 0usize);
    while let Some(line) = items.next()? {
        if let (false, Ok(line)) = (any, line) {
            let id = line.id.as_deref().unwrap_or(MADE_ID);
            any = with_draft(&line, id, 0, |draft| fits_a_new_topic(topic, draft)).is_ok();
        }
        count += 1;
        if count.is_multiple_of(PARSED_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    Ok(any)
}

/// Whether a topic that is made by first use takes the message; else why not, as a topic would say.
pub(super) fn fits_a_new_topic(topic: &str, draft: &Draft<'_>) -> Result<(), ProduceError> {
    Call::check(draft)?;
    let mut frame = BytesMut::new();
    draft.encode(&mut frame).map_err(|error| ProduceError::Invalid(error.to_string()))?;
    let (bytes, bytes_max) = (frame.len(), TopicSpec::default().message_bytes_max);
    match bytes > bytes_max {
        true => Err(ProduceError::TooLarge { topic: topic.to_owned(), bytes, bytes_max }),
        false => Ok(()),
    }
}

fn too_many(topic: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        ErrorCode::NoMoreTopics,
        "no more topics are made by first use",
        format!(
            "there are {TOPICS_MAX} topics, and `{topic}` is none of them; declare the topics you need under `topics:` and restart"
        ),
    )
}
