//! A message as its users see it: built to be produced, or read and handed to a handler.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use keylane_core::message::PRIORITY;
use keylane_core::{Delivery, Draft};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handlers::{CONTENT_TYPE, OCTET_STREAM, is_content_type};

/// A message: payload, and optionally key, id, headers, version, time of delivery, priority and time to live (MSG-1).
///
/// Builder methods are plain nouns, as in `std::process::Command`; what reads is called `get_…`.
///
/// ```
/// use keylane::Message;
///
/// let message = Message::new("orders").key("user-1").payload("hello").header("source", "shop");
/// assert_eq!(message.get_key(), Some(&b"user-1"[..]));
/// assert_eq!(message.get_payload(), b"hello");
/// ```
#[derive(Debug, Clone)]
pub struct Message {
    topic: Arc<str>,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Built(Built),
    Read { delivery: Delivery, attempt: u32 },
}

#[derive(Debug, Clone, Default)]
struct Built {
    id: Option<String>,
    key: Option<Vec<u8>>,
    payload: Option<Bytes>,
    /// Whether the payload was given as bytes, of which nobody knows what they mean.
    is_bytes: bool,
    headers: Vec<(String, Vec<u8>)>,
    version: Option<u64>,
    deliver_at_ms: Option<u64>,
    priority: Option<u8>,
    ttl_ms: Option<u64>,
}

impl Message {
    /// An empty message for `topic`. Without a payload it carries a null.
    pub fn new(topic: impl Into<Arc<str>>) -> Message {
        Message { topic: topic.into(), body: Body::Built(Built::default()) }
    }

    pub(crate) fn read(topic: Arc<str>, delivery: Delivery, attempt: u32) -> Message {
        Message { topic, body: Body::Read { delivery, attempt } }
    }

    /// Sets the key: messages of one key are handled one at a time, in order. At most 4 KiB; an empty key is a key.
    pub fn key(self, key: impl AsRef<[u8]>) -> Message {
        self.change(|built| built.key = Some(key.as_ref().to_vec()))
    }

    /// Sets the id. Without one, a UUIDv7 is made when it is produced.
    pub fn id(self, id: impl Into<String>) -> Message {
        self.change(|built| built.id = Some(id.into()))
    }

    /// Sets the payload to bytes. When the message is produced it gets the header `content-type:
    /// application/octet-stream`, unless it has a `content-type` already; for JSON use [`Message::json`].
    pub fn payload(self, payload: impl Into<Bytes>) -> Message {
        self.change(|built| (built.payload, built.is_bytes) = (Some(payload.into()), true))
    }

    /// Sets the payload to `value` as JSON.
    pub fn json(self, value: &impl Serialize) -> Result<Message, serde_json::Error> {
        let payload = serde_json::to_vec(value)?;
        Ok(self.change(|built| (built.payload, built.is_bytes) = (Some(payload.into()), false)))
    }

    /// Adds a header. Headers keep their order.
    pub fn header(self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Message {
        self.change(|built| built.headers.push((name.into(), value.as_ref().to_vec())))
    }

    /// Sets the version of the key that this message makes, for producers that number them.
    pub fn version(self, version: u64) -> Message {
        self.change(|built| built.version = Some(version))
    }

    /// Sets when it is due (MSG-6). Not carried out by this version: a message that has it is refused when it is produced.
    pub fn deliver_at(self, at: SystemTime) -> Message {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.change(|built| built.deliver_at_ms = Some(whole_ms(since)))
    }

    /// Sets its priority among keys, 1 to 10 (MSG-7). Not carried out by this version: a message that has it is refused
    /// when it is produced.
    pub fn priority(self, priority: u8) -> Message {
        self.change(|built| built.priority = Some(priority))
    }

    /// Sets how long it is of use (MSG-7). Not carried out by this version: a message that has it is refused when it is
    /// produced.
    pub fn ttl(self, ttl: Duration) -> Message {
        self.change(|built| built.ttl_ms = Some(whole_ms(ttl)))
    }

    /// A message that was read becomes one that can be produced: same content, no position.
    fn change(mut self, change: impl FnOnce(&mut Built)) -> Message {
        if let Body::Read { delivery, .. } = &self.body {
            self.body = Body::Built(Built {
                id: Some(delivery.id().to_owned()),
                key: delivery.key().map(<[u8]>::to_vec),
                payload: delivery.payload().map(|_| delivery.payload_bytes()),
                // What it was told is among its headers.
                is_bytes: false,
                headers: delivery.headers().map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
                version: delivery.version(),
                deliver_at_ms: delivery.deliver_at_ms(),
                priority: delivery.priority(),
                ttl_ms: delivery.ttl_ms(),
            });
        }
        if let Body::Built(built) = &mut self.body {
            change(built);
        }
        self
    }

    /// The topic.
    pub fn get_topic(&self) -> &str {
        &self.topic
    }

    /// The id; none on a message that was not given one and is not produced yet.
    pub fn get_id(&self) -> Option<&str> {
        match &self.body {
            Body::Built(built) => built.id.as_deref(),
            Body::Read { delivery, .. } => Some(delivery.id()),
        }
    }

    /// The key.
    pub fn get_key(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Built(built) => built.key.as_deref(),
            Body::Read { delivery, .. } => delivery.key(),
        }
    }

    /// The key as text, with what is not UTF-8 replaced; empty without a key.
    pub fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.get_key().unwrap_or_default())
    }

    /// The payload; empty for a null.
    pub fn get_payload(&self) -> &[u8] {
        match &self.body {
            Body::Built(built) => built.payload.as_deref().unwrap_or_default(),
            Body::Read { delivery, .. } => delivery.payload().unwrap_or_default(),
        }
    }

    /// True if the payload is a null, which is not the same as an empty one.
    pub fn is_null(&self) -> bool {
        match &self.body {
            Body::Built(built) => built.payload.is_none(),
            Body::Read { delivery, .. } => delivery.payload().is_none(),
        }
    }

    /// Reads the payload as JSON.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.get_payload())
    }

    /// Headers in their order.
    pub fn get_headers(&self) -> Vec<(&str, &[u8])> {
        match &self.body {
            Body::Built(built) => built.headers.iter().map(|(n, v)| (n.as_str(), v.as_slice())).collect(),
            Body::Read { delivery, .. } => delivery.headers().collect(),
        }
    }

    /// The version of the key.
    pub fn get_version(&self) -> Option<u64> {
        match &self.body {
            Body::Built(built) => built.version,
            Body::Read { delivery, .. } => delivery.version(),
        }
    }

    /// When it is due, if it was not to run at once.
    pub fn get_deliver_at(&self) -> Option<SystemTime> {
        // What is beyond the system's clock, some 292 billion years from now, is not told from what has no time.
        let due = |ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        self.deliver_at_ms().and_then(due)
    }

    /// Its priority among keys, 1 to 10; 5 unless it was given one.
    pub fn get_priority(&self) -> u8 {
        self.own_priority().unwrap_or(PRIORITY)
    }

    /// How long after its append time it is of use, if that has an end.
    pub fn get_ttl(&self) -> Option<Duration> {
        self.ttl_ms().map(Duration::from_millis)
    }

    fn deliver_at_ms(&self) -> Option<u64> {
        match &self.body {
            Body::Built(built) => built.deliver_at_ms,
            Body::Read { delivery, .. } => delivery.deliver_at_ms(),
        }
    }

    fn own_priority(&self) -> Option<u8> {
        match &self.body {
            Body::Built(built) => built.priority,
            Body::Read { delivery, .. } => delivery.priority(),
        }
    }

    fn ttl_ms(&self) -> Option<u64> {
        match &self.body {
            Body::Built(built) => built.ttl_ms,
            Body::Read { delivery, .. } => delivery.ttl_ms(),
        }
    }

    /// Where it was read; none on a message that is yet to be produced.
    pub fn delivery(&self) -> Option<&Delivery> {
        match &self.body {
            Body::Built(_) => None,
            Body::Read { delivery, .. } => Some(delivery),
        }
    }

    /// Which attempt this is, from 1; 0 on a message that was not read.
    pub fn attempt(&self) -> u32 {
        match &self.body {
            Body::Built(_) => 0,
            Body::Read { attempt, .. } => *attempt,
        }
    }

    /// Lends the message as a draft with `id` (its own, or one made for it).
    pub(crate) fn with_draft<T>(&self, id: &str, now_ms: u64, use_it: impl FnOnce(&Draft<'_>) -> T) -> T {
        let mut headers = self.get_headers();
        let is_bytes = matches!(&self.body, Body::Built(built) if built.is_bytes);
        if is_bytes && !headers.iter().any(|(name, _)| is_content_type(name)) {
            headers.push((CONTENT_TYPE, OCTET_STREAM.as_bytes()));
        }
        use_it(&Draft {
            id,
            key: self.get_key(),
            payload: (!self.is_null()).then(|| self.get_payload()),
            headers: &headers,
            version: self.get_version(),
            produced_ms: now_ms,
            appended_ms: None,
            deliver_at_ms: self.deliver_at_ms(),
            priority: self.own_priority(),
            ttl_ms: self.ttl_ms(),
        })
    }
}

fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(message: &Message) -> Vec<(String, Vec<u8>)> {
        message.with_draft("m", 0, |draft| {
            draft.headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect()
        })
    }

    /// ING-5, MSG-1: bytes say that they are bytes, unless their producer says what they are; JSON says nothing.
    #[test]
    fn bytes_get_a_content_type_and_json_gets_none() {
        let octets = (CONTENT_TYPE.to_owned(), OCTET_STREAM.as_bytes().to_vec());
        let bytes = Message::new("t").payload("{}").header("a", "b");
        assert_eq!(headers(&bytes), [("a".to_owned(), b"b".to_vec()), octets]);
        let own = Message::new("t").header("Content-Type", "text/csv").payload("1,2");
        assert_eq!(headers(&own), [("Content-Type".to_owned(), b"text/csv".to_vec())]);
        let json = |message: Message| headers(&message.json(&1).expect("JSON"));
        assert_eq!(json(Message::new("t")), []);
        assert_eq!(json(Message::new("t").payload("bytes at first")), []);
        assert_eq!(headers(&Message::new("t").key("without a payload")), []);
    }
}
