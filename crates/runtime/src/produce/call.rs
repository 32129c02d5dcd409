//! One call of a producer: messages for one topic in one arena, sent as one batch, with a result each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use keylane_broker::{Ids, NO_POSITION, ProduceError, Topic};
use keylane_core::{Draft, Frames, partition_of};

use super::in_flight::Room;
use super::spill::Stored;
use crate::Error;
use crate::produce::{Producer, Receipt};

/// A message of a call: its id, and where it goes.
struct Placed {
    id: String,
    partition: u32,
    /// False if the broker will call it by where it lies.
    has_id: bool,
}

/// Messages of one call, encoded, not yet sent.
pub struct Call {
    producer: Producer,
    target: Arc<Target>,
    frames: Frames,
    placed: Vec<Placed>,
    refused: Vec<(usize, ProduceError)>,
}

impl Call {
    pub(crate) fn new(producer: Producer, target: Arc<Target>) -> Call {
        Call { producer, target, frames: Frames::default(), placed: Vec::new(), refused: Vec::new() }
    }

    /// Adds a message. What cannot be taken is remembered, and answered in its place by [`Call::send`].
    pub fn push(&mut self, draft: &Draft<'_>) {
        self.push_placed(draft, true);
    }

    /// Adds a message whose id was made here, not by the caller: without a key it goes to any partition.
    pub fn push_without_id(&mut self, draft: &Draft<'_>) {
        self.push_placed(draft, false);
    }

    fn push_placed(&mut self, draft: &Draft<'_>, id_is_callers: bool) {
        let index = self.len();
        if let Err(refused) = Call::check(draft) {
            return self.refused.push((index, refused));
        }
        // How large a message may be is the broker's to say: it knows what a message takes when it is kept.
        let partition = self.target.partition(draft, id_is_callers);
        let has_id = id_is_callers || self.target.ids != Ids::Caller;
        let pushed = match has_id {
            true => self.frames.push(partition, draft),
            false => self.frames.push_without_id(partition, draft),
        };
        match pushed {
            Ok(()) => self.placed.push(Placed { id: draft.id.to_owned(), partition, has_id }),
            Err(error) => self.refused.push((index, ProduceError::Invalid(error.to_string()))),
        }
    }

    /// Whether any topic would take the message: what it asks for can be done. Its size is for its topic to judge.
    pub fn check(draft: &Draft<'_>) -> Result<(), ProduceError> {
        if let Some((name, _)) = draft.headers.iter().find(|(name, _)| is_ours(name)) {
            let text =
                format!("the header {name:?} cannot be used: names that begin with keylane- are taken");
            return Err(ProduceError::Invalid(text));
        }
        // Frames have a place for these; whoever stored them now would have them ignored in silence.
        let asked = [
            ("deliver_at", draft.deliver_at_ms.is_some()),
            ("priority", draft.priority.is_some()),
            ("ttl", draft.ttl_ms.is_some()),
        ];
        match asked.iter().find(|(_, asked)| *asked) {
            Some((name, _)) => {
                let text = format!("`{name}` is not carried out by this version; leave it out");
                Err(ProduceError::Invalid(text))
            }
            None => Ok(()),
        }
    }

    /// As [`Call::push`]; says how many bytes it takes, or none if it cannot be taken.
    #[cfg(feature = "sql")]
    pub(crate) fn push_measured(&mut self, draft: &Draft<'_>) -> Option<usize> {
        let (bytes, refused) = (self.frames.bytes(), self.refused.len());
        self.push(draft);
        (self.refused.len() == refused).then(|| self.frames.bytes() - bytes)
    }

    /// Nothing of a key is sent behind a message of it that the broker refuses: for who keeps it and tries it again.
    #[cfg(feature = "sql")]
    pub(crate) fn stop_at_refused(&mut self) {
        self.frames.stop_at_refused();
    }

    /// The topic's limit when the producer first used it.
    #[cfg(feature = "sql")]
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.target.message_bytes_max
    }

    /// Messages in it, the refused ones included.
    pub fn len(&self) -> usize {
        self.placed.len() + self.refused.len()
    }

    /// True if nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends all and waits until each is durable or refused: a result each, in the order they were pushed. The outer
    /// error says that nothing was sent.
    pub async fn send(self) -> Result<Vec<Result<Receipt, ProduceError>>, Error> {
        let room = self.room().await?;
        Ok(self.send_within(room).await)
    }

    /// Waits for room, or fails at once.
    pub(crate) async fn room(&self) -> Result<Room, Error> {
        self.producer.room(self.frames.bytes()).await
    }

    /// Sends all; its first poll takes the messages' place.
    pub(crate) async fn send_within(self, room: Room) -> Vec<Result<Receipt, ProduceError>> {
        let Call { producer, target, frames, placed, refused } = self;
        let count = placed.len() + refused.len();
        let answers = match placed.is_empty() {
            true => Vec::new(),
            false => producer.hand_over(&target, frames, room).await,
        };
        let topic = &target.name;
        let sent = placed.into_iter().zip(answers).map(|(Placed { id, partition, has_id }, answer)| {
            answer.map(|stored| match stored {
                Stored::At(offset) => {
                    let offset = (offset != NO_POSITION).then_some(offset);
                    let place =
                        || offset.map_or(String::new(), |offset| format!("{topic}/{partition}/{offset}"));
                    let id = if has_id { id } else { place() };
                    Receipt { id, partition, offset, spilled: false }
                }
                // What is kept here has the id that was made for it.
                Stored::Here => Receipt { id, partition, offset: None, spilled: true },
            })
        });
        // Both are in the order of the call: one pass puts each back into its place.
        let mut results = Vec::with_capacity(count);
        let mut refused = refused.into_iter().peekable();
        for result in sent {
            while let Some((_, error)) = refused.next_if(|(index, _)| *index == results.len()) {
                results.push(Err(error));
            }
            results.push(result);
        }
        results.extend(refused.map(|(_, error)| Err(error)));
        let succeeded = results.iter().filter(|result| result.is_ok()).count() as u64;
        let failed = results.len() as u64 - succeeded;
        producer.counters().succeeded.fetch_add(succeeded, Ordering::Relaxed);
        producer.counters().failed.fetch_add(failed, Ordering::Relaxed);
        results
    }
}

/// True for a header's name that a broker may keep for itself, or cannot keep.
pub(crate) fn is_ours(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("keylane-")) || name.contains('\0')
}

/// A topic as a producer knows it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: u32,
    /// What it takes as far as is known here; the broker has the last word.
    pub(crate) message_bytes_max: usize,
    /// Whether the broker keeps an id that nobody chose.
    pub(crate) ids: Ids,
    pub(crate) next: AtomicU32,
}

impl Target {
    pub(crate) fn new(name: &str, partitions: u32, message_bytes_max: usize, ids: Ids) -> Target {
        Target { name: name.into(), partitions, message_bytes_max, ids, next: AtomicU32::new(0) }
    }

    pub(crate) fn of(topic: &Topic) -> Target {
        Target::new(&topic.name, topic.partitions, topic.spec.message_bytes_max, topic.spec.ids)
    }

    /// Where a message goes: by key, else by the caller's id, else in turn (MSG-2, MSG-3).
    fn partition(&self, draft: &Draft<'_>, id_is_callers: bool) -> u32 {
        match draft.key {
            Some(key) => partition_of(key, self.partitions),
            None if id_is_callers => partition_of(draft.id.as_bytes(), self.partitions),
            None => self.next.fetch_add(1, Ordering::Relaxed) % self.partitions,
        }
    }
}
