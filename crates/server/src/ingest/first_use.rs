//! Topics that their first use makes.
//!
//! A topic is for good, so it is made for a message that can be taken, never for a request that cannot be read; and
//! there is a bound, so that a client with a loop in its names does not fill the disk with folders.

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

/// Topics at most when one more is made by its first use. Whoever needs more of them has a list, and can declare it.
pub(super) const TOPICS_MAX: usize = 1_000;

/// As long as an id that is made here.
const MADE_ID: &str = "00000000-0000-0000-0000-000000000000";

/// Which topics are known to be there.
#[derive(Default)]
pub(crate) struct FirstUse {
    known: RwLock<HashSet<String>>,
    /// One at a time, or the bound could be passed by many at once.
    making: Mutex<()>,
}

impl FirstUse {
    /// Whether it is known, before a body was read, that there is no such topic and that none is made. An error of the
    /// broker leaves that open: a message can be kept here meanwhile.
    pub(super) async fn is_nowhere(&self, app: &App, topic: &str) -> bool {
        let may_be = app.topics.is_empty() || app.topics.iter().any(|declared| declared == topic);
        !may_be && !self.knows(topic) && matches!(app.keylane.topic_spec(topic).await, Ok(None))
    }

    fn knows(&self, topic: &str) -> bool {
        self.known.read().expect("no holder panics").contains(topic)
    }

    /// Makes sure that `topic` is there or may be made for `body`. False: nothing in the body can be taken, so that
    /// there is nothing to make it for.
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

    /// Remembers a topic that a producer has found. Warns once, in the log and in the answer, if nobody reads it: a name
    /// was mistyped, or a pipeline is missing, and messages pile up.
    pub(super) fn found(&self, app: &App, topic: &str) -> Option<String> {
        if self.knows(topic) {
            return None;
        }
        let is_new = self.known.write().expect("no holder panics").insert(topic.to_owned());
        // A pipeline of the config may be about to start, and a program may have started one of its own.
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
