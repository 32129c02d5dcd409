//! Reads the messages of a topic for the admin API: one page as a JSON array, or a stream with a line for each message.
//!
//! A [`Tail`] has a position in each partition and reads the partitions in turn, a few messages at a time, so that its
//! memory is bounded however large the messages are. It reads without a group and commits nothing.

use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use keylane::raw::Delivery;
use keylane::{Error, ErrorCode, Keylane};
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::pages::Followed;
use crate::http::Problem;
use crate::serve::Phase;

/// Messages read at a time: at most 16 MiB with the default limit of 1 MiB for a message.
const STEP: usize = 16;
/// A page ends after about this many bytes, even if the client asked for more messages.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How often a followed topic is read again while it has no new messages: often enough for a person who watches.
const END_EVERY: Duration = Duration::from_millis(100);

/// Where a tail begins in each partition.
#[derive(Debug, Clone, Copy)]
pub(crate) enum From {
    Earliest,
    Latest,
    Position(u64),
}

/// Reads a topic.
pub(crate) struct Tail {
    keylane: Keylane,
    topic: String,
    /// Partition and next position, for each that is read.
    next: Vec<(u32, u64)>,
    /// Counts the reads; the next one is of the partition at this number, modulo the partitions.
    turn: usize,
}

impl Tail {
    /// A tail that begins at `from` in one partition, or in all partitions.
    pub(crate) async fn open(
        keylane: &Keylane,
        topic: &str,
        partition: Option<u32>,
        from: From,
    ) -> Result<Tail, Problem> {
        let found = keylane.topic(topic).await?.ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                ErrorCode::UnknownTopic,
                "there is no such topic",
                format!("there is no topic {topic}; `keylane topics` lists those there are"),
            )
        })?;
        let next: Vec<_> = found
            .ends
            .iter()
            .filter(|ends| partition.is_none_or(|partition| partition == ends.partition))
            .map(|ends| match from {
                From::Earliest => (ends.partition, ends.start),
                From::Latest => (ends.partition, ends.end),
                From::Position(position) => (ends.partition, position),
            })
            .collect();
        if next.is_empty() {
            return Err(Problem::bad_query(format!(
                "topic {topic} has {} partitions, counted from 0",
                found.partitions
            )));
        }
        Ok(Tail { keylane: keylane.clone(), topic: topic.to_owned(), next, turn: 0 })
    }

    /// Up to `limit` messages as a JSON array.
    pub(crate) async fn array(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut body = vec![b'['];
        let mut left = limit;
        while left > 0 && body.len() < ANSWER_BYTES_MAX {
            let messages = self.step(left).await?;
            if messages.is_empty() {
                break;
            }
            left -= messages.len();
            for message in &messages {
                if body.len() > 1 {
                    body.push(b',');
                }
                self.put(&mut body, message);
            }
        }
        body.push(b']');
        Ok(body)
    }

    /// A stream with a line for each message. It ends after `limit` messages, when the server drains, or when the
    /// client goes away. While the topic has no new messages, it sends a blank line every `blank_every`: only a failing
    /// write shows that a client has vanished.
    pub(super) fn follow(
        self,
        places: Followed,
        phase: watch::Receiver<Phase>,
        limit: usize,
        blank_every: Duration,
    ) -> impl Stream<Item = Result<Bytes, Error>> {
        let pause = END_EVERY.min(blank_every);
        let begin = (self, places, phase, limit);
        stream::try_unfold(begin, move |(mut tail, places, mut phase, left)| async move {
            let mut quiet = Duration::ZERO;
            loop {
                if left == 0 || *phase.borrow() >= Phase::Draining {
                    return Ok(None);
                }
                let place = places.place(pause).await;
                let had_place = place.is_some();
                if let Some(place) = place
                    && let Some((lines, count)) = tail.lines(left).await?
                {
                    return Ok(Some((place.hold(lines), (tail, places, phase, left - count))));
                }
                if quiet >= blank_every {
                    return Ok(Some((Bytes::from_static(b"\n"), (tail, places, phase, left))));
                }
                if had_place {
                    let draining = phase.wait_for(|phase| *phase >= Phase::Draining);
                    let _ = tokio::time::timeout(pause, draining).await;
                }
                quiet += pause;
            }
        })
    }

    /// The next few messages, a line each, with their number; none if all partitions are read to their ends.
    async fn lines(&mut self, left: usize) -> Result<Option<(Vec<u8>, usize)>, Error> {
        let messages = self.step(left).await?;
        let mut lines = Vec::new();
        for message in &messages {
            self.put(&mut lines, message);
            lines.push(b'\n');
        }
        Ok((!messages.is_empty()).then_some((lines, messages.len())))
    }

    /// The next few messages of the next partition that has any; empty if all partitions are read to their ends.
    async fn step(&mut self, left: usize) -> Result<Vec<Delivery>, Error> {
        for _ in 0..self.next.len() {
            let at = self.turn % self.next.len();
            self.turn += 1;
            let (partition, position) = self.next[at];
            let found = self.keylane.peek(&self.topic, partition, position, left.min(STEP)).await?;
            if let Some(last) = found.last() {
                self.next[at].1 = last.position() + 1;
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn put(&self, body: &mut Vec<u8>, delivery: &Delivery) {
        let shown = ShownMessage { topic: &self.topic, delivery };
        serde_json::to_writer(body, &shown).expect("text and numbers go to memory without failing");
    }
}

/// A message as the admin API shows it.
struct ShownMessage<'a> {
    topic: &'a str,
    delivery: &'a Delivery,
}

impl Serialize for ShownMessage<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let delivery = self.delivery;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("topic", self.topic)?;
        map.serialize_entry("partition", &delivery.partition())?;
        map.serialize_entry("offset", &delivery.position())?;
        map.serialize_entry("id", delivery.id())?;
        match delivery.key().map(std::str::from_utf8) {
            None => map.serialize_entry("key", &None::<&str>)?,
            Some(Ok(key)) => map.serialize_entry("key", key)?,
            Some(Err(_)) => {
                map.serialize_entry("key_base64", &STANDARD.encode(delivery.key().unwrap_or_default()))?;
            }
        }
        if let Some(version) = delivery.version() {
            map.serialize_entry("version", &version)?;
        }
        if let Some(deliver_at_ms) = delivery.deliver_at_ms() {
            map.serialize_entry("deliver_at", &deliver_at_ms)?;
        }
        if let Some(priority) = delivery.priority() {
            map.serialize_entry("priority", &priority)?;
        }
        if let Some(ttl_ms) = delivery.ttl_ms() {
            map.serialize_entry("ttl_ms", &ttl_ms)?;
        }
        map.serialize_entry("headers", &HeadersOf(delivery))?;
        map.serialize_entry("produced_at", &delivery.produced_ms())?;
        map.serialize_entry("appended_at", &delivery.appended_ms())?;
        match delivery.payload() {
            None => {}
            Some(payload) => match serde_json::from_slice::<&RawValue>(payload) {
                // Only JSON without a line break and without whitespace around it can stand in a line byte for byte.
                Ok(json) if json.get().len() == payload.len() && !payload.contains(&b'\n') => {
                    map.serialize_entry("payload", json)?;
                }
                _ => map.serialize_entry("payload_base64", &STANDARD.encode(payload))?,
            },
        }
        map.end()
    }
}

struct HeadersOf<'a>(&'a Delivery);

impl Serialize for HeadersOf<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.headers().map(|(name, value)| (name, String::from_utf8_lossy(value))))
    }
}
