//! Tests of intake against everything that readers and handlers may do.

use keylane_core::lanes::Bounds;
use keylane_core::{Intake, Load};
use proptest::prelude::*;

const MESSAGE_BYTES_MIN: usize = 29;
const MESSAGE_BYTES_MAX: usize = 2000;
const PARTITIONS: usize = 5;

fn bounds() -> impl Strategy<Value = Bounds> {
    (
        prop_oneof![1 => Just(1usize), 9 => 1usize..3000],
        prop_oneof![1 => Just(1usize), 9 => 1usize..200_000],
        100usize..20_000,
    )
        .prop_map(|(messages, bytes, read_bytes_max)| Bounds {
            messages,
            bytes,
            read_bytes_max,
            ..Bounds::default()
        })
}

#[derive(Debug, Clone)]
enum Step {
    /// A partition is read, if it may be; its messages have this size.
    Read(usize, usize),
    /// So many per mille of a partition's messages end.
    End(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        3 => (0..PARTITIONS, MESSAGE_BYTES_MIN..MESSAGE_BYTES_MAX).prop_map(|(p, size)| Step::Read(p, size)),
        1 => (0..PARTITIONS, 0usize..=1000).prop_map(|(p, share)| Step::End(p, share)),
    ];
    proptest::collection::vec(one, 0..300)
}

#[derive(Debug, Clone, Copy, Default)]
struct Feed {
    load: Load,
    stopped: bool,
}

fn total(feeds: &[Feed]) -> Load {
    feeds.iter().fold(Load::default(), |mut sum, feed| {
        sum.add(feed.load.messages, feed.load.bytes);
        sum
    })
}

/// What one of these partitions may read now.
fn ask(intake: &Intake, feeds: &mut [Feed], partition: usize) -> Option<usize> {
    let Feed { load, stopped } = feeds[partition];
    let may_read = intake.may_read(total(feeds), load, feeds.len(), stopped);
    feeds[partition].stopped = may_read.is_none();
    may_read
}

proptest! {
    /// BPR-1, P5: reading passes the bounds by at most one message a partition, whatever sizes the messages have.
    #[test]
    fn bounds_are_passed_by_at_most_one_message_a_partition(bounds in bounds(), steps in steps()) {
        let intake = Intake::new(&bounds);
        let mut feeds = [Feed::default(); PARTITIONS];
        for step in steps {
            match step {
                Step::Read(partition, size) => {
                    if let Some(allowed) = ask(&intake, &mut feeds, partition) {
                        // A reader brings as many messages as fit into what is allowed, but at least one.
                        let count = (allowed / size).max(1);
                        feeds[partition].load.add(count, count * size);
                    }
                }
                Step::End(partition, share) => {
                    let load = &mut feeds[partition].load;
                    let ends = load.messages * share / 1000;
                    load.sub(ends, load.bytes.checked_div(load.messages).unwrap_or(0) * ends);
                    if load.messages == 0 {
                        load.bytes = 0;
                    }
                }
            }
            let Load { messages, bytes } = total(&feeds);
            prop_assert!(messages <= bounds.messages + PARTITIONS, "{} messages", messages);
            prop_assert!(bytes <= bounds.bytes + PARTITIONS * MESSAGE_BYTES_MAX, "{} bytes", bytes);
        }
    }

    /// P3, BPR-2: a partition with nothing in memory may read, whatever the others have and however that came about.
    /// Once all messages have ended every partition may read: nothing can stick.
    #[test]
    fn a_partition_with_nothing_in_memory_may_read(
        bounds in bounds(),
        others in proptest::collection::vec((0usize..1 << 40, 0usize..1 << 40, any::<bool>()), 0..8),
        stopped: bool,
    ) {
        let intake = Intake::new(&bounds);
        let mut feeds = vec![Feed { stopped, ..Feed::default() }];
        feeds.extend(others.into_iter().map(|(messages, bytes, stopped)| Feed {
            load: Load { messages, bytes },
            stopped,
        }));
        prop_assert!(ask(&intake, &mut feeds, 0).is_some_and(|bytes| bytes > 0));
        for feed in &mut feeds {
            *feed = Feed { stopped: true, ..Feed::default() };
        }
        for partition in 0..feeds.len() {
            prop_assert!(ask(&intake, &mut feeds, partition).is_some());
        }
    }

    /// BPR-2: the answer depends on the state only: asked twice, intake answers the same.
    #[test]
    fn asking_changes_nothing(
        bounds in bounds(),
        feeds in proptest::collection::vec((0usize..3000, 0usize..200_000, any::<bool>()), 1..8),
    ) {
        let intake = Intake::new(&bounds);
        let mut feeds: Vec<Feed> = feeds
            .into_iter()
            .map(|(messages, bytes, stopped)| Feed { load: Load { messages, bytes }, stopped })
            .collect();
        let first = ask(&intake, &mut feeds, 0);
        prop_assert_eq!(ask(&intake, &mut feeds, 0), first);
    }
}

fn stopped(intake: &Intake, feeds: &mut [Feed]) -> Vec<bool> {
    (0..feeds.len()).map(|partition| ask(intake, feeds, partition).is_none()).collect()
}

/// BPR-2: at 80 % the partition that causes the pressure stops and the others read on; it resumes below 50 %, not
/// before.
#[test]
fn the_partition_that_feeds_the_pressure_stops_and_resumes() {
    let intake = Intake::new(&Bounds { messages: 1000, ..Bounds::default() });
    let mut feeds = [Feed::default(); 3];
    feeds[0].load.messages = 700;
    feeds[1].load.messages = 99;
    assert_eq!(stopped(&intake, &mut feeds), [false, false, false], "79.9 %");
    feeds[1].load.messages = 100;
    assert_eq!(stopped(&intake, &mut feeds), [true, false, false], "80 %");
    feeds[0].load.messages = 400;
    assert_eq!(stopped(&intake, &mut feeds), [true, false, false], "50 %");
    feeds[0].load.messages = 399;
    assert_eq!(stopped(&intake, &mut feeds), [false, false, false], "49.9 %");
}

/// BPR-1, BPR-2, P3: bytes press as messages do. A partition with little in memory reads on while there is room; once
/// there is none, only a partition with nothing in memory reads, one message at a time.
#[test]
fn bytes_press_as_messages_do() {
    let intake = Intake::new(&Bounds { bytes: 10 << 20, ..Bounds::default() });
    let load = |messages, bytes| Feed { load: Load { messages, bytes }, stopped: false };
    let mut feeds = [load(9, 9 << 20), Feed::default()];
    assert_eq!(stopped(&intake, &mut feeds), [true, false]);
    feeds[1] = load(1, 1);
    assert!(ask(&intake, &mut feeds, 1).is_some(), "there is room");
    feeds[1] = load(1, 1 << 20);
    assert_eq!(ask(&intake, &mut feeds, 1), None, "the bound is reached");
    feeds[1] = Feed::default();
    feeds[0].load.bytes = 11 << 20;
    assert_eq!(ask(&intake, &mut feeds, 1), Some(1), "with nothing in memory, a single message");
}
