//! Reads the fields `deliver_at`, `priority` and `ttl` of a message from JSON, as MSG-1 defines them.
//!
//! In: the JSON value from the request. Out: a number, or a sentence that names the field and its valid values. `null`
//! counts as absent.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message_json::Text;
use crate::config;

/// When the message is due, in ms since 1970.
pub(super) fn deliver_at(value: &RawValue) -> Result<Option<u64>, String> {
    let read = |text: &str| {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_millisecond()).ok()
    };
    one(
        "deliver_at",
        value,
        "a time since 1970 with its offset, such as \"2027-01-01T00:00:00Z\"",
        |Text(text)| read(&text),
    )
}

/// The priority of the message.
pub(super) fn priority(value: &RawValue) -> Result<Option<u8>, String> {
    one("priority", value, "a whole number from 1 to 10", |number: u8| {
        Some(number).filter(|number| (1..=10).contains(number))
    })
}

/// How long the message is useful, in ms.
pub(super) fn ttl(value: &RawValue) -> Result<Option<u64>, String> {
    one(
        "ttl",
        value,
        "a duration with its unit, such as \"90s\", \"24h\" or \"7d\", and not zero",
        |Text(text)| {
            let ttl = config::duration(&text)?.as_millis();
            u64::try_from(ttl).ok().filter(|ttl| *ttl > 0)
        },
    )
}

fn one<'a, T: Deserialize<'a>, U>(
    name: &str,
    value: &'a RawValue,
    may_be: &str,
    read: impl FnOnce(T) -> Option<U>,
) -> Result<Option<U>, String> {
    let given: Result<Option<T>, _> = serde_json::from_str(value.get());
    match given {
        Ok(None) => Ok(None),
        Ok(Some(given)) => match read(given) {
            Some(read) => Ok(Some(read)),
            None => Err(format!("`{name}` must be {may_be}")),
        },
        Err(_) => Err(format!("`{name}` must be {may_be}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).expect("JSON")
    }

    /// MSG-1, MSG-6, MSG-7.
    #[test]
    fn what_is_well_formed_is_read() {
        assert_eq!(deliver_at(raw(r#""1970-01-01T00:00:01.5Z""#)), Ok(Some(1_500)));
        assert_eq!(deliver_at(raw(r#""2027-01-01T02:00:00+02:00""#)), Ok(Some(1_798_761_600_000)));
        assert_eq!(deliver_at(raw("\"1970\\u002d01-01T00:00:00Z\"")), Ok(Some(0)));
        assert_eq!((priority(raw("1")), priority(raw("10"))), (Ok(Some(1)), Ok(Some(10))));
        assert_eq!((ttl(raw(r#""1ms""#)), ttl(raw(r#""7d""#))), (Ok(Some(1)), Ok(Some(604_800_000))));
        assert_eq!(deliver_at(raw("null")), Ok(None));
        assert_eq!((priority(raw("null")), ttl(raw("null"))), (Ok(None), Ok(None)));
    }

    /// MSG-1: the answer names the field and what it may be.
    #[test]
    fn what_is_not_names_the_field() {
        for text in ["5", r#""tomorrow""#, r#""2027-01-01T00:00:00""#, r#""1969-12-31T23:59:59Z""#, "[]"] {
            let why = deliver_at(raw(text)).expect_err(text);
            assert!(why.starts_with("`deliver_at` must be a time since 1970 with its offset"), "{why}");
        }
        for text in ["0", "11", "-1", "5.0", "256", r#""5""#, "true"] {
            assert_eq!(priority(raw(text)), Err("`priority` must be a whole number from 1 to 10".to_owned()));
        }
        for text in ["60", r#""60""#, r#""0s""#, r#""-1s""#, r#""1w""#, r#""99999999999999999d""#, "{}"] {
            let why = ttl(raw(text)).expect_err(text);
            assert!(why.starts_with("`ttl` must be a duration with its unit"), "{why}");
        }
    }
}
