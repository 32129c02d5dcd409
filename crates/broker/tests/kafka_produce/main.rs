//! Producing to Kafka when not all goes well: what is refused, what fails for a while, and a cluster that throttles.
#![cfg(feature = "kafka")]

mod failing;
mod refused;
mod threads;

use keylane_core::{Draft, Frames};

/// A message: id, key and payload.
type Item<'a> = (&'a str, Option<&'a [u8]>, &'a [u8]);

/// Messages for partition 0.
fn frames(items: &[Item<'_>]) -> Frames {
    let mut frames = Frames::default();
    for (id, key, payload) in items {
        let draft = Draft { id, key: *key, payload: Some(payload), ..Draft::default() };
        frames.push(0, &draft).expect("it is well formed");
    }
    frames
}
