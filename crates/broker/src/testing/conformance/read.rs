//! Conformance cases: reading from a position on, in batches, past the end of the log.

use super::client::{PLENTY, deliveries, next_batch, poll_once, positions, produce, read, read_from, texts};
use super::rig::{Rig, with_topic};
use crate::contract::{BrokerError, Ends};

/// BRK-5.
pub async fn reading_starts_at_any_position(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let mut placed = produce(&*broker, &topic, 0, &["a", "b", "c"]).await;
    placed.extend(produce(&*broker, &topic, 0, &["d", "e"]).await);
    for (skipped, from) in placed.iter().enumerate() {
        let read = read_from(&*broker, &topic, 0, *from, 5 - skipped).await;
        assert_eq!(texts(&read), ["a", "b", "c", "d", "e"][skipped..]);
        assert_eq!(positions(&read), placed[skipped..]);
    }
}

/// BRK-5: a batch's `next` is the position at which another reader would go on.
pub async fn a_batch_says_where_to_go_on(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let sent: Vec<String> = (0..60).map(|index| format!("m{index}")).collect();
    for call in sent.chunks(5) {
        let payloads: Vec<&str> = call.iter().map(String::as_str).collect();
        produce(&*broker, &topic, 0, &payloads).await;
    }
    let ends = broker.ends(&topic).await.expect("asked")[0];
    let (mut from, mut found) = (ends.start, Vec::new());
    while found.len() < sent.len() {
        let mut reader = broker.reader(&topic, 0, from).await.expect("in range");
        let batch = next_batch(&mut *reader, 200).await.expect("there is more");
        let read = deliveries(&batch);
        let within = |position: &u64| (from..batch.next).contains(position);
        assert!(positions(&read).iter().all(within), "{from} {batch:?}");
        assert!(batch.next <= ends.end);
        found.extend(texts(&read));
        from = batch.next;
    }
    assert_eq!(found, sent);
}

/// BRK-5.
pub async fn batches_keep_to_their_size_but_hold_at_least_one_message(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let payload = "x".repeat(500);
    for _ in 0..20 {
        produce(&*broker, &topic, 0, &[&payload]).await;
    }
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    let mut tiny = broker.reader(&topic, 0, start).await.expect("in range");
    let batch = next_batch(&mut *tiny, 1).await.expect("at least one");
    let frame = deliveries(&batch)[0].size();
    let mut reader = broker.reader(&topic, 0, start).await.expect("in range");
    let (mut messages, mut batches) = (0, 0);
    while messages < 20 {
        let batch = next_batch(&mut *reader, 5000).await.expect("there is more");
        assert!(batch.frames.len() <= 5000 + frame, "about as much as was asked for");
        assert!(batch.count > 0);
        messages += batch.count;
        batches += 1;
    }
    assert_eq!(messages, 20);
    assert!(batches > 1, "20 messages of 1,000 bytes each do not fit into 5,000");
}

/// BRK-5.
pub async fn readers_do_not_disturb_each_other(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b", "c", "d"]).await;
    let elsewhere = rig.broker().await;
    let mut one = broker.reader(&topic, 0, placed[0]).await.expect("in range");
    let mut two = elsewhere.reader(&topic, 0, placed[2]).await.expect("in range");
    let mut stopped = broker.reader(&topic, 0, placed[1]).await.expect("in range");
    assert_eq!(texts(&read(&mut *one, 4).await), ["a", "b", "c", "d"]);
    assert_eq!(texts(&read(&mut *two, 2).await), ["c", "d"]);
    produce(&*broker, &topic, 0, &["e"]).await;
    assert_eq!(texts(&read(&mut *one, 1).await), ["e"]);
    assert_eq!(texts(&read(&mut *two, 1).await), ["e"]);
    assert_eq!(texts(&read(&mut *stopped, 4).await), ["b", "c", "d", "e"], "it only stood still");
}

/// BRK-5.
pub async fn a_reader_at_the_tail_is_woken(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let mut waiting = Vec::new();
    for partition in [0, 0, 1] {
        let end = broker.ends(&topic).await.expect("asked")[partition as usize].end;
        let mut reader = broker.reader(&topic, partition, end).await.expect("the end is in range");
        assert!(poll_once(next_batch(&mut *reader, PLENTY)).await.is_none());
        waiting.push(tokio::spawn(async move {
            let mut read_in_turn = Vec::new();
            for _ in 0..20 {
                read_in_turn.extend(texts(&read(&mut *reader, 1).await));
                if read_in_turn.last().is_some_and(|text| text == "m19") {
                    break;
                }
            }
            read_in_turn
        }));
    }
    let sent: Vec<String> = (0..20).map(|index| format!("m{index}")).collect();
    let producer = rig.broker().await;
    for text in &sent {
        produce(&*producer, &topic, 0, &[text]).await;
        produce(&*producer, &topic, 1, &[text]).await;
        tokio::task::yield_now().await;
    }
    for task in waiting {
        assert_eq!(task.await.expect("a reader does not panic"), sent);
    }
}

/// BRK-5: cancelling the wait for a batch loses no message.
pub async fn a_wait_for_a_batch_can_be_cancelled(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    let mut reader = broker.reader(&topic, 0, start).await.expect("in range");
    let mut found = Vec::new();
    for text in ["a", "b", "c"] {
        for _ in 0..3 {
            if let Some(batch) = poll_once(next_batch(&mut *reader, PLENTY)).await {
                found.extend(texts(&deliveries(&batch.expect("it goes on"))));
            }
        }
        produce(&*broker, &topic, 0, &[text]).await;
    }
    while found.len() < 3 {
        found.extend(texts(&read(&mut *reader, 1).await));
    }
    assert_eq!(found, ["a", "b", "c"]);
}

/// BRK-10: reading above the end is an error, never a silent reset.
pub async fn a_position_above_the_end_is_an_error(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    produce(&*broker, &topic, 0, &["a"]).await;
    let ends = broker.ends(&topic).await.expect("asked")[0];
    assert!(broker.reader(&topic, 0, ends.end).await.is_ok());
    for position in [ends.end + 1, ends.end + 1_000_000] {
        let refused = broker.reader(&topic, 0, position).await.err();
        assert_eq!(refused, Some(out_of_range(&topic, position, ends)));
    }
    assert!(broker.reader(&topic, 1, 0).await.is_err(), "there is no such partition");
}

/// BRK-10, `can delete`: reading below the start is an error, never a silent reset.
pub async fn a_position_below_the_start_is_an_error(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b"]).await;
    rig.delete_below(&topic, 0, placed[1] + 1).await;
    let last = produce(&*broker, &topic, 0, &["c"]).await[0];
    let ends = broker.ends(&topic).await.expect("asked")[0];
    assert!((placed[1] + 1..=last).contains(&ends.start), "{ends:?}");
    for position in placed {
        let refused = broker.reader(&topic, 0, position).await.err();
        assert_eq!(refused, Some(out_of_range(&topic, position, ends)));
    }
    assert_eq!(texts(&read_from(&*broker, &topic, 0, ends.start, 1).await), ["c"]);
}

/// MSG-3.
pub async fn positions_may_have_gaps(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let first = produce(&*broker, &topic, 0, &["a"]).await[0];
    rig.skip_positions(&topic, 0, 10_000).await;
    let second = produce(&*broker, &topic, 0, &["b"]).await[0];
    assert!(second > first + 10_000);
    assert_eq!(positions(&read_from(&*broker, &topic, 0, first, 2).await), [first, second]);
    assert_eq!(texts(&read_from(&*broker, &topic, 0, first + 5_000, 1).await), ["b"]);
}

fn out_of_range(topic: &str, position: u64, ends: Ends) -> BrokerError {
    BrokerError::OutOfRange {
        topic: topic.to_owned(),
        partition: 0,
        position,
        start: ends.start,
        end: ends.end,
    }
}
