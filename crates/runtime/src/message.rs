//! A message as programs see it: one that is built to be produced, or one that was read and is given to a handler.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use keylane_core::message::PRIORITY;
use keylane_core::{Delivery, Draft};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handlers::{CONTENT_TYPE, OCTET_STREAM, is_content_type};

/// A message that was read, as a handler receives it. [`Message::to`] begins a new one.
#[derive(Debug, Clone)]
pub struct Message {
    topic: Arc<str>,
    delivery: Delivery,
    attempt: u32,
}

impl Message {
    /// Begins a new message for `topic`. Without a payload it carries a null.
    pub fn to(topic: impl Into<Arc<str>>) -> NewMessage {
        NewMessage {
            topic: topic.into(),
            id: None,
            key: None,
            payload: None,
            is_bytes: false,
            headers: Vec::new(),
            version: None,
            deliver_at_ms: None,
            priority: None,
            ttl_ms: None,
        }
    }

    pub(crate) fn read(topic: Arc<str>, delivery: Delivery, attempt: u32) -> Message {
        Message { topic, delivery, attempt }
    }

    /// The topic from which the message was read.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The id: the producer's, or the one that Keylane made.
    pub fn id(&self) -> &str {
        self.delivery.id()
    }

    /// The key, if the message has one. An empty key is a key.
    pub fn key(&self) -> Option<&[u8]> {
        self.delivery.key()
    }

    /// The key as text, in which bytes that are not UTF-8 are replaced; empty without a key.
    pub fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.key().unwrap_or_default())
    }

    /// The payload; empty for a null.
    pub fn payload(&self) -> &[u8] {
        self.delivery.payload().unwrap_or_default()
    }

    /// True if the payload is a null, which is not the same as an empty payload.
    pub fn is_null(&self) -> bool {
        self.delivery.payload().is_none()
    }

    /// Reads the payload as JSON.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.payload())
    }

    /// The headers, in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.delivery.headers()
    }

    /// The first header of that name, in exactly this spelling.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The version of the key, if its producer numbers versions.
    pub fn version(&self) -> Option<u64> {
        self.delivery.version()
    }

    /// When the message is due, if it was not to run at once.
    pub fn deliver_at(&self) -> Option<SystemTime> {
        // A time beyond the system's clock, some 292 billion years from now, counts as none.
        let due = |ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        self.delivery.deliver_at_ms().and_then(due)
    }

    /// The message's priority among keys, 1 to 10; 5 unless it was given one.
    pub fn priority(&self) -> u8 {
        self.delivery.priority().unwrap_or(PRIORITY)
    }

    /// How long after its append time the message is of use, if that has an end.
    pub fn ttl(&self) -> Option<Duration> {
        self.delivery.ttl_ms().map(Duration::from_millis)
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Where the message was read: partition, position and epoch.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// A new message for `topic` with the same content: id, key, payload, headers, version, times and priority.
    pub fn copy_to(&self, topic: impl Into<Arc<str>>) -> NewMessage {
        let delivery = &self.delivery;
        NewMessage {
            id: Some(delivery.id().to_owned()),
            key: delivery.key().map(<[u8]>::to_vec),
            payload: delivery.payload().map(|_| delivery.payload_bytes()),
            headers: delivery.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
            version: delivery.version(),
            deliver_at_ms: delivery.deliver_at_ms(),
            priority: delivery.priority(),
            ttl_ms: delivery.ttl_ms(),
            ..Message::to(topic)
        }
    }
}

/// A message that is yet to be produced: payload, and optionally key, id, headers, version, time of delivery, priority
/// and time to live (MSG-1).
///
/// ```
/// use keylane::Message;
///
/// let message = Message::to("orders").key("user-1").payload("hello").header("source", "shop");
/// ```
#[derive(Debug, Clone)]
#[must_use = "a message goes nowhere until it is produced"]
pub struct NewMessage {
    topic: Arc<str>,
    id: Option<String>,
    key: Option<Vec<u8>>,
    payload: Option<Bytes>,
    /// Whether the payload was given as bytes of unknown type.
    is_bytes: bool,
    headers: Vec<(String, Vec<u8>)>,
    version: Option<u64>,
    deliver_at_ms: Option<u64>,
    priority: Option<u8>,
    ttl_ms: Option<u64>,
}

impl NewMessage {
    /// Sets the key: messages of one key are handled one at a time, in order. At most 4 KiB; an empty key is a key.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> NewMessage {
        self.key = Some(key.as_ref().to_vec());
        self
    }

    /// Sets the id. Without one, a UUIDv7 is made when the message is produced.
    pub fn id(mut self, id: impl Into<String>) -> NewMessage {
        self.id = Some(id.into());
        self
    }

    /// Sets the payload to bytes. When the message is produced it gets the header `content-type:
    /// application/octet-stream`, unless it has a `content-type` already; for JSON use [`NewMessage::json`].
    pub fn payload(mut self, payload: impl Into<Bytes>) -> NewMessage {
        (self.payload, self.is_bytes) = (Some(payload.into()), true);
        self
    }

    /// Sets the payload to `value` as JSON.
    pub fn json(mut self, value: &impl Serialize) -> Result<NewMessage, serde_json::Error> {
        (self.payload, self.is_bytes) = (Some(serde_json::to_vec(value)?.into()), false);
        Ok(self)
    }

    /// Adds a header. Headers keep their order.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> NewMessage {
        self.headers.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// Sets the version of the key that this message makes, for producers that number versions.
    pub fn version(mut self, version: u64) -> NewMessage {
        self.version = Some(version);
        self
    }

    /// Sets when the message is due (MSG-6). This version of Keylane cannot delay messages, and refuses such a message.
    pub fn deliver_at(mut self, at: SystemTime) -> NewMessage {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.deliver_at_ms = Some(whole_ms(since));
        self
    }

    /// Sets the message's priority among keys, 1 to 10 (MSG-7). This version of Keylane knows no priorities: it refuses
    /// a message with one.
    pub fn priority(mut self, priority: u8) -> NewMessage {
        self.priority = Some(priority);
        self
    }

    /// Sets how long the message is of use (MSG-7). This version of Keylane cannot expire messages: it refuses one with
    /// a time to live.
    pub fn ttl(mut self, ttl: Duration) -> NewMessage {
        self.ttl_ms = Some(whole_ms(ttl));
        self
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn own_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Lends the message as a draft with `id`: its own, or one made for it.
    pub(crate) fn with_draft<T>(&self, id: &str, now_ms: u64, use_it: impl FnOnce(&Draft<'_>) -> T) -> T {
        let mut headers: Vec<(&str, &[u8])> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        if self.is_bytes && !headers.iter().any(|(name, _)| is_content_type(name)) {
            headers.push((CONTENT_TYPE, OCTET_STREAM.as_bytes()));
        }
        use_it(&Draft {
            id,
            key: self.key.as_deref(),
            payload: self.payload.as_deref(),
            headers: &headers,
            version: self.version,
            produced_ms: now_ms,
            appended_ms: None,
            deliver_at_ms: self.deliver_at_ms,
            priority: self.priority,
            ttl_ms: self.ttl_ms,
        })
    }
}

fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use keylane_core::Frames;

    use super::*;

    fn headers(message: &NewMessage) -> Vec<(String, Vec<u8>)> {
        message.with_draft("m", 0, |draft| {
            draft.headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect()
        })
    }

    /// ING-5, MSG-1: bytes say that they are bytes, unless their producer says what they are; JSON says nothing.
    #[test]
    fn bytes_get_a_content_type_and_json_gets_none() {
        let octets = (CONTENT_TYPE.to_owned(), OCTET_STREAM.as_bytes().to_vec());
        let bytes = Message::to("t").payload("{}").header("a", "b");
        assert_eq!(headers(&bytes), [("a".to_owned(), b"b".to_vec()), octets]);
        let own = Message::to("t").header("Content-Type", "text/csv").payload("1,2");
        assert_eq!(headers(&own), [("Content-Type".to_owned(), b"text/csv".to_vec())]);
        let json = |message: NewMessage| headers(&message.json(&1).expect("JSON"));
        assert_eq!(json(Message::to("t")), []);
        assert_eq!(json(Message::to("t").payload("bytes at first")), []);
        assert_eq!(headers(&Message::to("t").key("without a payload")), []);
    }

    /// MSG-1: a message that was read can be produced once more, with everything that its producer gave it.
    #[test]
    fn a_copy_has_everything_but_the_place() {
        let mut frames = Frames::default();
        let draft = Draft {
            id: "m-1",
            key: Some(b"k"),
            payload: Some(b"{}"),
            headers: &[("a", b"b")],
            version: Some(3),
            deliver_at_ms: Some(5),
            priority: Some(7),
            ttl_ms: Some(9),
            ..Draft::default()
        };
        frames.push(0, &draft).expect("a valid draft");
        let delivery = frames.messages().next().expect("just pushed").expect("just encoded");
        let copy = Message::read("t".into(), delivery, 1).copy_to("u");
        assert_eq!((copy.topic(), copy.own_id()), ("u", Some("m-1")));
        copy.with_draft("m-1", 0, |copied| {
            assert_eq!((copied.id, copied.key, copied.payload), (draft.id, draft.key, draft.payload));
            assert_eq!(copied.headers, draft.headers);
            let numbers =
                |draft: &Draft<'_>| (draft.version, draft.deliver_at_ms, draft.priority, draft.ttl_ms);
            assert_eq!(numbers(copied), numbers(&draft));
        });
    }
}
