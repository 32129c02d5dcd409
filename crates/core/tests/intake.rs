//! Intake against everything that readers and handlers may do.

use keylane_core::intake::Bounds;
use keylane_core::{Feed, Intake};
use proptest::prelude::*;

const MESSAGE_BYTES_MIN: usize = 29;

fn bounds() -> impl Strategy<Value = Bounds> {
    (
        prop_oneof![1 => Just(1usize), 9 => 1usize..3000],
        prop_oneof![1 => Just(1usize), 9 => 1usize..200_000],
        40usize..2000,
        100usize..20_000,
    )
        .prop_map(|(messages, bytes, message_bytes_max, read_bytes_max)| Bounds {
            messages,
            bytes,
            message_bytes_max,
            read_bytes_max,
            ..Bounds::default()
        })
}

#[derive(Debug, Clone)]
enum Step {
    /// A partition is read, if it may be; its messages have about this size.
    Read(usize, usize),
    /// So many per mille of a partition's messages end.
    End(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => (0usize..5, MESSAGE_BYTES_MIN..2000).prop_map(|(p, size)| Step::Read(p, size)),
        1 => (0usize..5, 0usize..=1000).prop_map(|(p, share)| Step::End(p, share)),
    ];
    proptest::collection::vec(one, 0..300)
}

/// What a reader brings: as many messages as fit into what is allowed, but at least one.
fn read(feed: &mut Feed, allowed: usize, size: usize) {
    let count = (allowed / size).max(1);
    feed.messages += count;
    feed.bytes += count * size;
}

fn total(feeds: &[Feed]) -> (usize, usize) {
    feeds.iter().fold((0, 0), |(messages, bytes), feed| (messages + feed.messages, bytes + feed.bytes))
}

proptest! {
    /// BPR-1: the bounds are never passed, whatever sizes messages have; only with nothing in memory a single message
    /// may be larger than the bound.
    #[test]
    fn bounds_are_never_passed(bounds in bounds(), steps in steps()) {
        let intake = Intake::new(&bounds);
        let mut feeds = [Feed::default(); 5];
        for step in steps {
            match step {
                Step::Read(partition, size) => {
                    let allowed = intake.cycle(&mut feeds);
                    if allowed > 0 && !feeds[partition].stopped {
                        read(&mut feeds[partition], allowed, size.min(bounds.message_bytes_max));
                    }
                }
                Step::End(partition, share) => {
                    let feed = &mut feeds[partition];
                    let ends = feed.messages * share / 1000;
                    feed.bytes -= feed.bytes.checked_div(feed.messages).unwrap_or(0) * ends;
                    feed.messages -= ends;
                    if feed.messages == 0 {
                        feed.bytes = 0;
                    }
                }
            }
            let (messages, bytes) = total(&feeds);
            prop_assert!(messages <= bounds.messages, "{} messages", messages);
            prop_assert!(bytes <= bounds.bytes || messages == 1, "{} bytes", bytes);
        }
    }

    /// BPR-2: from any state, however it came about, a partition that has nothing in memory is not stopped, and once
    /// all have ended all are read: it cannot stick.
    #[test]
    fn intake_never_sticks(
        bounds in bounds(),
        feeds in proptest::collection::vec((0usize..3000, 0usize..200_000, any::<bool>()), 1..8),
    ) {
        let intake = Intake::new(&bounds);
        let mut feeds: Vec<Feed> =
            feeds.into_iter().map(|(messages, bytes, stopped)| Feed { messages, bytes, stopped }).collect();
        feeds[0] = Feed { stopped: true, ..Feed::default() };
        intake.cycle(&mut feeds);
        prop_assert!(!feeds[0].stopped, "nothing in memory, and stopped");
        feeds.iter_mut().for_each(|feed| *feed = Feed { stopped: true, ..Feed::default() });
        prop_assert!(intake.cycle(&mut feeds) > 0);
        prop_assert!(feeds.iter().all(|feed| !feed.stopped));
    }

    /// BPR-2: the answer depends on nothing but the state: asked twice, it is the same.
    #[test]
    fn asking_changes_nothing(
        bounds in bounds(),
        feeds in proptest::collection::vec((0usize..3000, 0usize..200_000, any::<bool>()), 0..8),
    ) {
        let intake = Intake::new(&bounds);
        let mut once: Vec<Feed> =
            feeds.into_iter().map(|(messages, bytes, stopped)| Feed { messages, bytes, stopped }).collect();
        let first = intake.cycle(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(intake.cycle(&mut twice), first);
        prop_assert_eq!(once, twice);
    }
}

fn stopped(intake: &Intake, feeds: &mut [Feed]) -> Vec<bool> {
    intake.cycle(feeds);
    feeds.iter().map(|feed| feed.stopped).collect()
}

/// BPR-2: at 80 % the partition that feeds the pressure stops, the others read on; below 50 % it resumes, not before.
#[test]
fn the_partition_that_feeds_the_pressure_stops_and_resumes() {
    let intake = Intake::new(&Bounds { messages: 1000, ..Bounds::default() });
    let mut feeds = [Feed::default(); 3];
    feeds[0].messages = 700;
    feeds[1].messages = 99;
    assert_eq!(stopped(&intake, &mut feeds), [false, false, false], "79.9 %");
    feeds[1].messages = 100;
    assert_eq!(stopped(&intake, &mut feeds), [true, false, false], "80 %");
    feeds[0].messages = 400;
    assert_eq!(stopped(&intake, &mut feeds), [true, false, false], "50 %");
    feeds[0].messages = 399;
    assert_eq!(stopped(&intake, &mut feeds), [false, false, false], "49.9 %");
}

/// BPR-1, BPR-2: bytes press as messages do.
#[test]
fn bytes_press_as_messages_do() {
    let intake = Intake::new(&Bounds { bytes: 10 << 20, ..Bounds::default() });
    let mut feeds = [Feed { messages: 9, bytes: 9 << 20, stopped: false }, Feed::default()];
    assert_eq!(stopped(&intake, &mut feeds), [true, false]);
    assert!(intake.cycle(&mut feeds) > 0, "room for one of 1 MiB");
    feeds[1] = Feed { messages: 1, bytes: 1, stopped: false };
    assert_eq!(intake.cycle(&mut feeds), 0, "the next could be 1 MiB");
}
