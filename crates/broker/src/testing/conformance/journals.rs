//! Conformance cases: the journals, Keylane's own small logs.

use std::sync::Arc;

use bytes::Bytes;

use super::client::{PLENTY, append, journal_from, journal_name, poll_once, spec};
use super::rig::{Rig, with_topic};
use crate::contract::{AppendError, Broker, Journal, JournalName, LogKind, TopicSpec};

async fn open(broker: &dyn Broker, name: &JournalName) -> Arc<dyn Journal> {
    broker.journal(name).await.expect("a journal opens")
}

/// A topic, the journal of its partition 0, and that journal's name.
pub(super) async fn with_journal(rig: &mut dyn Rig) -> (Arc<dyn Broker>, Arc<dyn Journal>, JournalName) {
    let (broker, topic) = with_topic(rig, 2).await;
    let name = journal_name(&rig.name("billing"), &topic, LogKind::Journal);
    let journal = open(&*broker, &name).await;
    (broker, journal, name)
}

fn record(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// BRK-6.
pub async fn a_journal_is_empty_before_its_first_append(rig: &mut dyn Rig) {
    let (broker, journal, name) = with_journal(rig).await;
    for _ in 0..2 {
        let page = journal.read(0, PLENTY).await.expect("it can be read");
        assert_eq!((page.start, page.end, page.records.len()), (0, 0, 0));
    }
    assert_eq!(journal.cut(5).await, Ok(()), "there is nothing to cut");
    let again = open(&*broker, &name).await;
    assert_eq!(append(&*again, "a").await, 0);
    assert_eq!(journal_from(&*journal, 0).await, [(0, record("a"))]);
}

/// BRK-6.
pub async fn positions_are_dense_from_zero(rig: &mut dyn Rig) {
    let (_, journal, _) = with_journal(rig).await;
    for expected in 0..50 {
        assert_eq!(append(&*journal, &format!("r{expected}")).await, expected);
    }
    let expected: Vec<(u64, Bytes)> = (0..50).map(|at| (at, record(&format!("r{at}")))).collect();
    assert_eq!(journal_from(&*journal, 0).await, expected);
}

/// BRK-6.
pub async fn pages_are_bounded_and_say_where_the_journal_begins_and_ends(rig: &mut dyn Rig) {
    let (_, journal, _) = with_journal(rig).await;
    let text = "r".repeat(100);
    for _ in 0..20 {
        append(&*journal, &text).await;
    }
    let (mut from, mut pages) = (0, 0);
    while from < 20 {
        let page = journal.read(from, 550).await.expect("it can be read");
        assert_eq!((page.start, page.end), (0, 20));
        assert!(!page.records.is_empty() && page.records.len() <= 6, "{}", page.records.len());
        for (position, _) in &page.records {
            assert_eq!(*position, from);
            from += 1;
        }
        pages += 1;
    }
    assert!(pages >= 4, "{pages}");
    let page = journal.read(7, 1).await.expect("it can be read");
    assert_eq!(page.records, [(7, record(&text))], "at least one");
    for beyond in [20, 21, 1000] {
        let page = journal.read(beyond, PLENTY).await.expect("it can be read");
        assert_eq!((page.start, page.end, page.records.len()), (0, 20, 0));
    }
}

/// BRK-6.
pub async fn journals_of_other_names_are_other_journals(rig: &mut dyn Rig) {
    let (broker, _, name) = with_journal(rig).await;
    broker.create_topic(&rig.name("returns"), &spec(2)).await.expect("a new topic is made");
    let names = [
        name.clone(),
        JournalName { kind: LogKind::Hold, ..name.clone() },
        JournalName { partition: 1, ..name.clone() },
        JournalName { group: rig.name("shipping"), ..name.clone() },
        JournalName { topic: rig.name("returns"), ..name },
    ];
    for round in 0..2 {
        for (index, name) in names.iter().enumerate() {
            let journal = open(&*broker, name).await;
            assert_eq!(append(&*journal, &format!("{index} {round}")).await, round);
        }
    }
    for (index, name) in names.iter().enumerate() {
        let expected: Vec<(u64, Bytes)> =
            (0..2).map(|round| (round, record(&format!("{index} {round}")))).collect();
        assert_eq!(journal_from(&*open(&*broker, name).await, 0).await, expected);
    }
}

/// BRK-6.
pub async fn waiting_beyond_the_end_is_woken(rig: &mut dyn Rig) {
    let (_, journal, name) = with_journal(rig).await;
    assert_eq!(poll_once(journal.beyond(0)).await, None);
    let mut waiting = Vec::new();
    for target in [0, 0, 3, 9] {
        let broker = rig.broker().await;
        let watched = open(&*broker, &name).await;
        waiting.push(tokio::spawn(async move {
            watched.beyond(target).await.expect("it goes on");
            let page = watched.read(0, PLENTY).await.expect("it can be read");
            assert!(page.end > target, "{} is not beyond {target}", page.end);
        }));
    }
    for _ in 0..10 {
        append(&*journal, "r").await;
        tokio::task::yield_now().await;
    }
    for task in waiting {
        task.await.expect("a wait does not panic");
    }
    assert_eq!(journal.beyond(9).await, Ok(()), "already there");
}

/// BRK-6.
pub async fn a_wait_beyond_the_end_can_be_cancelled(rig: &mut dyn Rig) {
    let (_, journal, _) = with_journal(rig).await;
    for end in 0..10 {
        for _ in 0..3 {
            assert_eq!(poll_once(journal.beyond(end)).await, None);
        }
        append(&*journal, "r").await;
        assert_eq!(journal.beyond(end).await, Ok(()));
    }
}

/// BRK-6.
pub async fn a_condition_that_does_not_hold_appends_nothing(rig: &mut dyn Rig) {
    let (_, journal, _) = with_journal(rig).await;
    append(&*journal, "a").await;
    if !journal.conditional() {
        let refused = journal.append(record("b"), Some(1)).await;
        assert_eq!(refused, Err(AppendError::Unconditional));
        assert_eq!(journal_from(&*journal, 0).await.len(), 1);
        return;
    }
    assert_eq!(journal.append(record("b"), Some(1)).await, Ok(1));
    for wrong in [0, 1, 3] {
        let refused = journal.append(record("c"), Some(wrong)).await;
        assert_eq!(refused, Err(AppendError::Moved { end: 2 }));
    }
    assert_eq!(journal_from(&*journal, 0).await, [(0, record("a")), (1, record("b"))]);
    journal.cut(2).await.expect("it can be cut");
    assert_eq!(journal.append(record("c"), Some(2)).await, Ok(2), "a cut does not move the end");
}

/// BRK-6: of two appends on the same condition exactly one lands. A broker that cannot append on condition refuses
/// both.
pub async fn of_two_appends_on_the_same_condition_one_lands(rig: &mut dyn Rig) {
    const ROUNDS: u64 = 30;
    let (_, journal, name) = with_journal(rig).await;
    let brokers = [rig.broker().await, rig.broker().await];
    for end in 0..ROUNDS {
        let mut racing = Vec::new();
        for broker in &brokers {
            let racer = open(&**broker, &name).await;
            racing.push(tokio::spawn(async move { racer.append(record("r"), Some(end)).await }));
        }
        let mut landed = 0;
        for racer in racing {
            match racer.await.expect("an append does not panic") {
                Ok(position) => {
                    assert_eq!(position, end);
                    landed += 1;
                }
                Err(AppendError::Moved { end: moved }) => assert_eq!(moved, end + 1),
                Err(AppendError::Unconditional) => assert!(!journal.conditional()),
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(landed, u64::from(journal.conditional()));
    }
    let all = journal_from(&*journal, 0).await.len() as u64;
    assert_eq!(all, ROUNDS * u64::from(journal.conditional()));
}

/// BRK-6.
pub async fn a_cut_forgets_what_is_below_and_nothing_else(rig: &mut dyn Rig) {
    let (_, journal, name) = with_journal(rig).await;
    for at in 0..10 {
        append(&*journal, &format!("r{at}")).await;
    }
    let expected: Vec<(u64, Bytes)> = (4..10).map(|at| (at, record(&format!("r{at}")))).collect();
    for below in [4, 4, 2, 0] {
        assert_eq!(journal.cut(below).await, Ok(()));
        let page = journal.read(0, PLENTY).await.expect("it can be read");
        assert_eq!((page.start, page.end), (4, 10), "after a cut below {below}");
        assert_eq!(page.records, expected);
    }
    let broker = rig.broker().await;
    let elsewhere = open(&*broker, &name).await;
    assert_eq!(journal_from(&*elsewhere, 0).await, expected);
    assert_eq!(append(&*journal, "r10").await, 10);
}

/// BRK-6.
pub async fn a_journal_that_was_cut_whole_goes_on_counting(rig: &mut dyn Rig) {
    let (_, journal, _) = with_journal(rig).await;
    for _ in 0..3 {
        append(&*journal, "r").await;
    }
    assert_eq!(journal.cut(100).await, Ok(()), "what is above the end is not touched");
    let page = journal.read(0, PLENTY).await.expect("it can be read");
    assert_eq!((page.start, page.end, page.records.len()), (3, 3, 0));
    for position in 3..6 {
        assert_eq!(append(&*journal, "later").await, position);
    }
    let page = journal.read(0, PLENTY).await.expect("it can be read");
    assert_eq!((page.start, page.end, page.records.len()), (3, 6, 3));
}

/// BRK-6, P10: a reader that stands below the journal's new start is told where the journal now begins, and misses
/// nothing of the rest.
pub async fn a_reader_under_which_a_journal_was_cut_is_told_so(rig: &mut dyn Rig) {
    let (_, journal, name) = with_journal(rig).await;
    for at in 0..10 {
        append(&*journal, &format!("r{at}")).await;
    }
    let broker = rig.broker().await;
    let reader = open(&*broker, &name).await;
    let page = reader.read(0, 5).await.expect("it can be read");
    let next = page.records.last().expect("there are some").0 + 1;
    assert!((page.start, page.end) == (0, 10) && next < 6, "it stands amid the journal, at {next}");
    journal.cut(6).await.expect("it can be cut");
    let page = reader.read(next, PLENTY).await.expect("it can be read");
    // Records that the broker had read ahead before the cut may still come; then all of them must come.
    let from = page.records.first().map_or(10, |(position, _)| *position);
    assert!(page.start <= from && (from == next || from == 6), "from {from} of {}", page.start);
    let left: Vec<(u64, Bytes)> = (from..10).map(|at| (at, record(&format!("r{at}")))).collect();
    assert_eq!((page.end, page.records), (10, left));
    // Now the whole journal is cut under a reader that waits at its end.
    assert!(poll_once(reader.beyond(10)).await.is_none(), "nothing has landed");
    for at in 10..13 {
        append(&*journal, &format!("r{at}")).await;
    }
    journal.cut(13).await.expect("it can be cut");
    reader.beyond(10).await.expect("something has landed");
    let page = reader.read(10, PLENTY).await.expect("it can be read");
    // Records that the broker had read ahead before the cut may come here, too: all of them, or none.
    let whole =
        (page.start == 13 && page.records.is_empty()) || (page.start <= 10 && page.records.len() == 3);
    assert!(page.end == 13 && whole, "{page:?}");
    assert_eq!(append(&*journal, "r13").await, 13);
    reader.beyond(13).await.expect("something has landed");
    assert_eq!(journal_from(&*reader, 10).await, [(13, record("r13"))]);
}

/// BRK-6.
pub async fn appends_of_two_handles_stand_in_one_order(rig: &mut dyn Rig) {
    const EACH: u64 = 40;
    let (_, journal, name) = with_journal(rig).await;
    let mut writing = Vec::new();
    for writer in 0..2 {
        let broker = rig.broker().await;
        let journal = open(&*broker, &name).await;
        writing.push(tokio::spawn(async move {
            let mut placed = Vec::new();
            for index in 0..EACH {
                let text = format!("{writer} {index}");
                placed.push((append(&*journal, &text).await, record(&text)));
            }
            (placed, journal)
        }));
    }
    let mut written = Vec::new();
    let mut handles = vec![journal];
    for task in writing {
        let (placed, handle) = task.await.expect("a writer does not panic");
        assert!(placed.is_sorted(), "a writer's records stand in its order");
        written.extend(placed);
        handles.push(handle);
    }
    written.sort_unstable();
    assert!(written.iter().map(|(position, _)| *position).eq(0..2 * EACH));
    for handle in handles {
        assert_eq!(journal_from(&*handle, 0).await, written, "every handle sees the same");
    }
}

/// BRK-6: a journal takes records of twice the message limit, because a dead letter's body with its report is larger
/// than the message.
pub async fn a_record_of_twice_the_message_limit_is_kept(rig: &mut dyn Rig) {
    let (broker, _, name) = with_journal(rig).await;
    let bytes = 2 * TopicSpec::default().message_bytes_max;
    for kind in [LogKind::Journal, LogKind::Hold] {
        let journal = open(&*broker, &JournalName { kind, ..name.clone() }).await;
        let large: Bytes = (0..bytes).map(|index| (index % 251) as u8).collect::<Vec<u8>>().into();
        append(&*journal, "before").await;
        assert_eq!(journal.append(large.clone(), None).await, Ok(1));
        append(&*journal, "behind").await;
        let found = journal_from(&*journal, 0).await;
        assert!(found == [(0, record("before")), (1, large), (2, record("behind"))]);
    }
}
