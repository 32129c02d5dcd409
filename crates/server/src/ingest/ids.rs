//! Makes ids for messages that arrive without one: UUIDv7, all of a request from one draw of randomness.
//!
//! The bits below the time are random in the first id of a request; each further id counts up from the first, as RFC
//! 9562 (6.2, method 2) allows. So a thousand messages cost one system call, and their ids sort in their order.

use uuid::Uuid;

/// The bits in which ids count up. Version and variant lie above them, so counting does not change them.
const COUNTED: u128 = (1 << 62) - 1;
/// The bits of the random start. The highest counting bit starts as 0, which leaves half of the space to count in.
const START: u128 = COUNTED >> 1;

/// Makes the ids of one request.
pub(super) struct Ids {
    next: u128,
}

impl Ids {
    /// Characters of an id.
    pub(super) const LENGTH: usize = uuid::fmt::Hyphenated::LENGTH;

    /// Ids for a request that arrived at `now_ms`.
    pub(super) fn new(now_ms: u64) -> Ids {
        let mut random = [0; 10];
        getrandom::fill(&mut random).expect("the system gives random bytes, or ids would collide");
        let first = uuid::Builder::from_unix_timestamp_millis(now_ms, &random).into_uuid().as_u128();
        Ids { next: (first & !COUNTED) | (first & START) }
    }

    /// The next id, written into `space`.
    pub(super) fn next<'a>(&mut self, space: &'a mut [u8; Ids::LENGTH]) -> &'a str {
        let id = Uuid::from_u128(self.next);
        self.next += 1;
        id.hyphenated().encode_lower(space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MSG-1.
    #[test]
    fn ids_are_version_7_rise_and_differ_between_requests() {
        let (mut a, mut b) = (Ids::new(1_700_000_000_000), Ids::new(1_700_000_000_000));
        let (mut last, mut space) = (String::new(), [0; Ids::LENGTH]);
        for _ in 0..10_000 {
            let id = a.next(&mut space).to_owned();
            assert!(id > last, "{id} after {last}");
            assert_ne!(id, b.next(&mut space));
            let parsed: Uuid = id.parse().expect("a UUID");
            assert_eq!((parsed.get_version_num(), parsed.get_variant()), (7, uuid::Variant::RFC4122));
            assert_eq!(parsed.get_timestamp().expect("it has one").to_unix().0, 1_700_000_000);
            last = id;
        }
    }
}
