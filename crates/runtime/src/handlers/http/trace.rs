//! The W3C trace context of a push: the message's own, or one made for it.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Attempt;

/// The header, and the name under which a message carries it.
pub(super) const TRACEPARENT: &str = "traceparent";

/// The `traceparent` of an attempt: the message's own if it is valid. Otherwise all attempts of the message share a
/// trace, and each has its own span. Not marked as sampled, since nothing was recorded here.
pub(super) fn traceparent(attempt: &Attempt<'_>) -> String {
    let own = attempt
        .headers()
        .find(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))
        .and_then(|(_, value)| std::str::from_utf8(value).ok())
        .filter(|value| is_valid(value));
    if let Some(own) = own {
        return own.to_owned();
    }
    let place = (attempt.id(), attempt.topic(), attempt.partition(), attempt.position());
    let (high, low) = (hash(&(0, place)), hash(&(1, place)));
    let span = hash(&(2, place, attempt.epoch(), attempt.number()));
    format!("00-{high:016x}{low:016x}-{span:016x}-00")
}

/// Never zero: an id of zeros is invalid.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish().max(1)
}

/// `version-trace-parent-flags` in lowercase hexadecimal; a later version may append more.
fn is_valid(value: &str) -> bool {
    let mut parts = value.split('-');
    let mut hex = |length: usize| {
        parts
            .next()
            .filter(|part| part.len() == length)
            .filter(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
    };
    let (Some(version), Some(trace), Some(parent), Some(_)) = (hex(2), hex(32), hex(16), hex(2)) else {
        return false;
    };
    let zeros = |id: &str| id.bytes().all(|byte| byte == b'0');
    let ends =
        parts.next().is_none() || (version != "00" && value.bytes().all(|byte| (0x21..0x7F).contains(&byte)));
    version != "ff" && !zeros(trace) && !zeros(parent) && ends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ING-5.
    #[test]
    fn only_a_well_formed_traceparent_is_passed_on() {
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_valid(valid));
        assert!(is_valid("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
        for invalid in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-a b",
        ] {
            assert!(!is_valid(invalid), "{invalid}");
        }
    }
}
