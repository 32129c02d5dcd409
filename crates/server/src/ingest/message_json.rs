//! Reads one message from JSON, and borrows its parts from the request.
//!
//! The payload is not parsed into values: it is checked to be JSON and kept byte for byte (MSG-3). Text without escapes
//! is borrowed. An unknown field is refused, and the error names the field.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::explain::explain;
use super::timing;
use crate::config::nearest;

/// Levels of nested arrays and objects at most: every JSON reader accepts as many (SEC-2).
pub(super) const DEPTH_MAX: usize = 128;

const FIELDS: [&str; 9] =
    ["key", "payload", "payload_base64", "id", "version", "headers", "deliver_at", "priority", "ttl"];

/// A message as the client sent it.
#[derive(Debug)]
pub(super) struct MessageJson<'a> {
    pub(super) key: Option<Cow<'a, str>>,
    pub(super) id: Option<Cow<'a, str>>,
    pub(super) payload: Payload<'a>,
    pub(super) version: Option<u64>,
    pub(super) headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) deliver_at_ms: Option<u64>,
    pub(super) priority: Option<u8>,
    pub(super) ttl_ms: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Payload<'a> {
    /// JSON, byte for byte.
    Json(&'a str),
    /// Bytes, decoded.
    Bytes(Vec<u8>),
}

impl Payload<'_> {
    pub(super) fn is_bytes(&self) -> bool {
        matches!(self, Payload::Bytes(_))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Bytes(bytes) => bytes,
        }
    }
}

impl<'a> MessageJson<'a> {
    /// Reads one message.
    pub(super) fn parse(text: &'a [u8]) -> Result<MessageJson<'a>, String> {
        serde_json::from_slice(text).map_err(|error| explain(text, &error))
    }

    /// Reads one message from text that is known to be JSON.
    pub(super) fn of_raw(raw: &'a RawValue) -> Result<MessageJson<'a>, String> {
        serde_json::from_str(raw.get()).map_err(|error| explain(raw.get().as_bytes(), &error))
    }
}

impl<'de> Deserialize<'de> for MessageJson<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MessageJson<'de>, D::Error> {
        deserializer.deserialize_map(LineVisitor)
    }
}

struct LineVisitor;

#[derive(Default)]
struct Found<'a> {
    key: Option<Option<Text<'a>>>,
    id: Option<Option<Text<'a>>>,
    payload: Option<&'a RawValue>,
    payload_base64: Option<Text<'a>>,
    version: Option<Option<u64>>,
    headers: Option<Option<Headers<'a>>>,
    deliver_at: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    ttl: Option<&'a RawValue>,
}

impl<'de> Visitor<'de> for LineVisitor {
    type Value = MessageJson<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message: an object with `payload`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MessageJson<'de>, A::Error> {
        let mut found = Found::default();
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "key" => once(&mut found.key, "key", &mut map)?,
                "payload" => once(&mut found.payload, "payload", &mut map)?,
                "payload_base64" => once(&mut found.payload_base64, "payload_base64", &mut map)?,
                "id" => once(&mut found.id, "id", &mut map)?,
                "version" => once(&mut found.version, "version", &mut map)?,
                "headers" => once(&mut found.headers, "headers", &mut map)?,
                "deliver_at" => once(&mut found.deliver_at, "deliver_at", &mut map)?,
                "priority" => once(&mut found.priority, "priority", &mut map)?,
                "ttl" => once(&mut found.ttl, "ttl", &mut map)?,
                other => return Err(A::Error::custom(unknown(other))),
            }
        }
        let payload = match (found.payload, found.payload_base64) {
            (Some(raw), None) => json(raw.get())?,
            (None, Some(Text(text))) => decode(&text)?,
            (None, None) => {
                return Err(A::Error::custom(
                    "`payload` is missing; it is the one field a message must have",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(A::Error::custom("`payload` and `payload_base64` are both given; one is taken"));
            }
        };
        Ok(MessageJson {
            key: found.key.flatten().map(|Text(text)| text),
            id: found.id.flatten().map(|Text(text)| text),
            payload,
            version: found.version.flatten(),
            headers: found.headers.flatten().map_or_else(Vec::new, |Headers(list)| list),
            deliver_at_ms: read(found.deliver_at, timing::deliver_at)?,
            priority: read(found.priority, timing::priority)?,
            ttl_ms: read(found.ttl, timing::ttl)?,
        })
    }
}

fn once<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    slot: &mut Option<T>,
    name: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::custom(format_args!("`{name}` is given twice")));
    }
    *slot = Some(map.next_value()?);
    Ok(())
}

fn read<T, E: serde::de::Error>(
    value: Option<&RawValue>,
    read: impl FnOnce(&RawValue) -> Result<Option<T>, String>,
) -> Result<Option<T>, E> {
    value.map_or(Ok(None), read).map_err(E::custom)
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    match nearest(&shown, FIELDS.into_iter()) {
        Some(near) => format!("unknown field `{shown}`; did you mean `{near}`?"),
        None => format!("unknown field `{shown}`; known are {}", FIELDS.join(", ")),
    }
}

fn json<'a, E: serde::de::Error>(text: &'a str) -> Result<Payload<'a>, E> {
    // Counting all brackets gives an upper bound of the depth, because brackets within text count too. It costs little,
    // and is nearly always enough.
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if brackets > DEPTH_MAX && depth(text.as_bytes()) > DEPTH_MAX {
        return Err(E::custom(format_args!("`payload` nests deeper than {DEPTH_MAX} levels")));
    }
    Ok(Payload::Json(text))
}

/// Number of nested levels in valid JSON.
fn depth(text: &[u8]) -> usize {
    let (mut now, mut most, mut quoted, mut escaped) = (0usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' if !quoted => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

fn decode<'a, E: serde::de::Error>(text: &str) -> Result<Payload<'a>, E> {
    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text)
        .map(Payload::Bytes)
        .map_err(|_| E::custom("`payload_base64` is not base64, for example \"payload_base64\":\"aGVsbG8=\""))
}

/// Text, borrowed where it has no escapes.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'de>, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The headers: an object whose values are text, in the order in which they were sent.
#[derive(Debug)]
struct Headers<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de> Deserialize<'de> for Headers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Headers<'de>, D::Error> {
        struct HeadersVisitor;
        impl<'de> Visitor<'de> for HeadersVisitor {
            type Value = Headers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of text")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers<'de>, A::Error> {
                let mut headers = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    headers.push((name, value));
                }
                Ok(Headers(headers))
            }
        }
        deserializer.deserialize_map(HeadersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        MessageJson::parse(text.as_bytes()).expect_err("not a message")
    }

    /// MSG-1, MSG-3.
    #[test]
    fn every_field_is_read_and_the_payload_is_kept_as_it_came() {
        let text = br#" {"key":"a\u00e9","payload": {"n" : 1.0e+2 , "x":[ ]} ,"id":"m","version":7,"headers":{"b":"1","a":"2"},
            "deliver_at":"1970-01-01T00:00:01Z","priority":9,"ttl":"2s"} "#;
        let line = MessageJson::parse(text).expect("a message");
        assert_eq!(line.key.as_deref(), Some("aé"));
        assert_eq!(line.id.as_deref(), Some("m"));
        assert_eq!(line.version, Some(7));
        assert_eq!(line.payload.bytes(), br#"{"n" : 1.0e+2 , "x":[ ]}"#);
        assert_eq!(line.headers, [("b".into(), "1".into()), ("a".into(), "2".into())]);
        assert_eq!((line.deliver_at_ms, line.priority, line.ttl_ms), (Some(1_000), Some(9), Some(2_000)));
        assert!(matches!(line.id, Some(Cow::Borrowed(_))), "no copy without escapes");
    }

    #[test]
    fn null_is_json_and_an_absent_key_is_not_an_empty_one() {
        let line = MessageJson::parse(br#"{"payload":null,"key":""}"#).expect("a message");
        assert_eq!((line.payload.bytes(), line.key.as_deref()), (&b"null"[..], Some("")));
        let line = MessageJson::parse(br#"{"payload_base64":"AP8=","key":null}"#).expect("a message");
        assert_eq!((line.payload.bytes(), line.key), (&[0, 255][..], None));
    }

    #[test]
    fn what_cannot_be_taken_is_named() {
        for (text, wants) in [
            ("{}", "`payload` is missing"),
            (r#"{"payload":1,"payload_base64":"AA=="}"#, "both given"),
            (r#"{"payload_base64":"?"}"#, "not base64"),
            (r#"{"payload":1,"ttl":60}"#, "`ttl` must be a duration with its unit"),
            (r#"{"payload":1,"deliver_at":"tomorrow"}"#, "`deliver_at` must be a time since 1970"),
            (r#"{"payload":1,"priority":11}"#, "`priority` must be a whole number from 1 to 10"),
            (r#"{"payload":1,"ttl":"1h","ttl":"1h"}"#, "`ttl` is given twice"),
            (r#"{"paylod":1}"#, "unknown field `paylod`; did you mean `payload`?"),
            (r#"{"payload":1,"colour":1}"#, "unknown field `colour`; known are key, payload"),
            (r#"{"payload":1,"payload":2}"#, "`payload` is given twice"),
            (
                r#"{"payload":1,"key":5}"#,
                "`key` must be text in quotes, or null, for example \"key\":\"user-1\"; it is the number 5",
            ),
            (
                r#"{"payload":1,"id":[1]}"#,
                "`id` must be text in quotes, or null, for example \"id\":\"order-17\"; it is an array",
            ),
            (r#"{"payload_base64":{}}"#, "`payload_base64` must be text in quotes: bytes in base64"),
            (
                r#"{"payload":1,"version":-1}"#,
                "`version` must be a whole number from 0 on, or null, for example \"version\":7; it is the number -1",
            ),
            (r#"{"payload":1,"headers":{"a":1}}"#, "the header `a` must be text in quotes"),
            (r#"{"payload":1,"headers":[]}"#, "`headers` must be an object of text"),
            (r#"{"payload":1} x"#, "this is not JSON: something stands behind the end (column 15)"),
            ("{\"payload\":1}\n{\"payload\":2}", "Content-Type: application/x-ndjson"),
            (r#"{"payload":tea}"#, "a word that is not true, false or null must stand in quotes"),
            (r#"{"payload" 1}"#, "there must be `:`"),
            (r#"{"payload":1,}"#, "a comma stands before a bracket"),
            (r#"{bad}"#, "this is not JSON: a field's name must stand in quotes (column 2)"),
            (r#"{"key":"#, "the JSON ends too early (column 7)"),
            (
                "[1]",
                "a message is an object such as {\"key\":\"user-1\",\"payload\":{\"n\":1}}; this is an array",
            ),
            ("7", "this is the number 7"),
            ("", "there is no message"),
        ] {
            let got = error(text);
            assert!(got.contains(wants), "{text}: {got}");
        }
        let long = error(&format!(r#"{{"payload":1,"version":"{}"}}"#, "é".repeat(1_000_000)));
        assert!(long.chars().count() < 300 && long.ends_with("it is text"), "{long}");
        let unpaired = MessageJson::parse(b"{\"payload\":\"\xff\"}").expect_err("not UTF-8");
        assert!(!unpaired.is_empty());
    }

    /// SEC-2.
    #[test]
    fn depth_is_bounded_and_brackets_in_text_do_not_count() {
        let nested = |levels: usize| format!("{{\"payload\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(MessageJson::parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(error(&nested(DEPTH_MAX + 1)).contains("deeper than 128"));
        assert!(error(&nested(1_000_000)).contains("deeper than 128"));
        let text = format!("{{\"payload\":[\"{}\\\"[\",[1],[2]]}}", "[{".repeat(500));
        assert!(MessageJson::parse(text.as_bytes()).is_ok());
    }

    proptest! {
        /// MSG-3.
        #[test]
        fn payload_bytes_survive_exactly(text in "[ -~é\\u{1F600}]{0,60}", spaces in " {0,3}", number in any::<f64>()) {
            let inner = serde_json::to_string(&serde_json::json!({ "t": text, "n": number })).expect("JSON");
            let payload = inner.replace(',', &format!(",{spaces}"));
            // A comma within text may have changed; it is JSON still.
            let line = format!("{{\"payload\":{spaces}{payload}{spaces}}}");
            let parsed = MessageJson::parse(line.as_bytes()).expect("a message");
            prop_assert_eq!(parsed.payload.bytes(), payload.as_bytes());
        }

        #[test]
        fn whatever_the_bytes_are_there_is_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MessageJson::parse(&bytes);
        }

        #[test]
        fn a_damaged_message_never_panics(at in 0usize..80, byte in any::<u8>()) {
            let mut text = br#"{"key":"k","payload":{"a":["\u00e9",1]},"id":"m","version":7,"headers":{"b":"1"}}"#.to_vec();
            let at = at % text.len();
            text[at] = byte;
            let _ = MessageJson::parse(&text);
            text.truncate(at);
            prop_assert!(MessageJson::parse(&text).is_err());
        }
    }
}
