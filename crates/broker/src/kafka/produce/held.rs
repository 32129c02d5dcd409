//! Partitions of which a client gets only a part at a time, and the next when the last has ended.
//!
//! There are two reasons. Whoever leads the partition does not know the client yet (`primed.rs`): then the part is one
//! message. Or messages were refused together, and one of them is to blame: then it is half of them, until it is found.
//! Invariants: what waits is in the order of its calls; nothing of a partition goes past what waits.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::super::clock;
use super::under_way::{Answer, Place, UnderWay};

/// A partition that is held back.
#[derive(Default)]
pub(super) struct Held {
    waiting: VecDeque<u64>,
    /// Messages of the part that the client has.
    out: usize,
}

impl UnderWay {
    /// From now on those of a topic's partitions are held back of which it is not sure that their leaders know the
    /// client.
    pub(super) fn hold_unprimed(&mut self, topic: &Arc<str>, partitions: impl Iterator<Item = u32>) {
        let now = clock::now();
        for partition in
            partitions.filter(|partition| !self.primed.is(topic, *partition, now)).collect::<Vec<_>>()
        {
            let place = (Arc::clone(topic), partition);
            if self.held.contains_key(&place) {
                continue;
            }
            // The answer to what is under way will tell.
            if self.primed.was(topic, partition) && self.handed_to().contains(&place) {
                continue;
            }
            self.held.insert(place, Held::default());
        }
    }

    /// Which partitions of a topic are held back.
    pub(super) fn held_of(&self, topic: &str) -> HashSet<u32> {
        self.held.keys().filter(|(of, _)| **of == *topic).map(|(_, partition)| *partition).collect()
    }

    /// As [`UnderWay::put_back`], in its partition's queue. False if the partition is not held back any more.
    pub(super) fn hold(&mut self, place: &Place, number: u64) -> bool {
        let Some(held) = self.held.get_mut(place) else { return false };
        held.waiting.push_back(number);
        self.put_back(number);
        true
    }

    /// A new client begins, which no leader knows: all that is to be sent again waits in its partition. Says which those
    /// are.
    pub(super) fn hold_all(&mut self) -> Vec<Place> {
        self.held.clear();
        self.primed.forget();
        for (number, _) in self.backs() {
            let Some((place, _)) = self.message(number) else { continue };
            self.held.entry(place).or_default().waiting.push_back(number);
        }
        let mut places: Vec<Place> = self.held.keys().cloned().collect();
        places.sort_unstable();
        places
    }

    /// The next part of a partition that is held back, to be handed over now; empty while another part is out. Where the
    /// leader knows the client and nobody is suspected it is all the rest, and the partition is free.
    pub(super) fn next_part(&mut self, place: &Place) -> Vec<u64> {
        let Some(held) = self.held.get(place) else { return Vec::new() };
        if held.out > 0 {
            return Vec::new();
        }
        let suspects = held.waiting.iter().enumerate().find_map(|(at, number)| {
            let suspects = self.suspects(*number)?;
            (suspects > 0).then_some((at, suspects))
        });
        let count = match suspects {
            _ if !self.primed.is(&place.0, place.1, clock::now()) => 1,
            // Half of them: whoever is to blame is found among a thousand by ten tries.
            Some((first, suspects)) => first + suspects.div_ceil(2),
            None => return self.held.remove(place).map(|held| held.waiting.into()).unwrap_or_default(),
        };
        let held = self.held.get_mut(place).expect("found above");
        held.waiting.drain(..count.min(held.waiting.len())).collect()
    }

    /// The client has so many more messages of a partition, if that is held back.
    pub(super) fn went_out(&mut self, place: &Place, messages: usize) {
        if let Some(held) = self.held.get_mut(place) {
            held.out += messages;
        }
    }

    /// The client has reported so many messages of a partition.
    pub(super) fn came_out(&mut self, place: &Place, messages: usize) {
        if let Some(held) = self.held.get_mut(place) {
            held.out = held.out.saturating_sub(messages);
        }
    }

    /// What waits in a partition ends, since one before it failed whose call is not answered yet.
    pub(super) fn end_waiting(&mut self, place: &Place) -> Vec<Answer> {
        let waiting = self.held.get_mut(place).map(|held| std::mem::take(&mut held.waiting));
        waiting.into_iter().flatten().filter_map(|number| self.turn_back_away(number, place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use keylane_core::{Draft, Frames};
    use tokio::sync::oneshot;

    use super::super::client::Report;
    use super::super::under_way::{Open, number};
    use super::*;

    /// P1, P2, BRK-2: a new client gets one message of a partition, and all others once that was acknowledged. What fails
    /// in several partitions together leaves none of them waiting for ever.
    #[test]
    fn a_new_client_gets_one_message_of_a_partition_until_it_was_acknowledged() {
        let (mut under_way, topic) = (UnderWay::default(), Arc::<str>::from("t"));
        let mut frames = Frames::default();
        for partition in [0, 0, 0, 1, 1] {
            frames.push(partition, &Draft { id: "id", ..Draft::default() }).expect("a valid draft");
        }
        let (done, _answer) = oneshot::channel();
        under_way.hold_unprimed(&topic, [0, 1].into_iter());
        under_way.begin(1, Open::new(Arc::clone(&topic), Some(frames), 5, done));
        let places: [Place; 2] = [(Arc::clone(&topic), 0), (Arc::clone(&topic), 1)];
        for index in 0..5 {
            assert!(under_way.hold(&places[usize::from(index > 2)], number(1, index)));
        }
        let hand = |under_way: &mut UnderWay, place: &Place| {
            let part = under_way.next_part(place);
            part.iter().for_each(|number| under_way.hand(*number));
            under_way.went_out(place, part.len());
            part
        };
        assert_eq!(hand(&mut under_way, &places[0]), [number(1, 0)]);
        assert_eq!(hand(&mut under_way, &places[1]), [number(1, 3)]);
        assert!(hand(&mut under_way, &places[0]).is_empty(), "one is out");
        // Both come back together.
        let report = |number, partition, result| Report { number, result, text_at: 0, partition, broker: 1 };
        let purged = Err(rdkafka::error::RDKafkaErrorCode::PurgeQueue);
        let back = [report(number(1, 0), 0, purged), report(number(1, 3), 1, purged)];
        assert_eq!(under_way.report(&back, &mut Vec::new()), (places.to_vec(), true));
        assert_eq!(under_way.hold_all(), places);
        assert_eq!(hand(&mut under_way, &places[0]), [number(1, 0)]);
        under_way.report(&[report(number(1, 0), 0, Ok(9))], &mut Vec::new());
        assert_eq!(
            hand(&mut under_way, &places[0]),
            [number(1, 1), number(1, 2)],
            "the leader knows the client"
        );
        assert_eq!(under_way.held_of("t"), [1].into(), "the other partition still waits");
    }
}
