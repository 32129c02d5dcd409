//! Conformance cases: what open handles are told when their broker or topic ends, what a kill leaves behind, and very
//! high positions.

use super::client::{
    PLENTY, append, changes, deliveries, frames, journal_from, next_batch, positions, produce, read_from,
    texts,
};
use super::commits::commit;
use super::journals::with_journal;
use super::rig::{Rig, with_topic};
use crate::contract::{BrokerError, Change, ProduceError};

/// Positions stay below 2^53: up to there every whole number is exact in JSON, as most readers parse it.
const EXACT: u64 = 1 << 53;

/// BRK-8, `can close`: every call that waits, and every later one, is told that the broker was closed.
pub async fn whoever_waits_hears_that_the_broker_was_closed(rig: &mut dyn Rig) {
    let (broker, journal, name) = with_journal(rig).await;
    let topic = name.topic.clone();
    let placed = produce(&*broker, &topic, 0, &["a"]).await[0];
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    let partitions = broker.topic(&topic).await.expect("asked").expect("it is there").partitions;
    changes(&mut *member, partitions as usize).await;
    let mut reader = broker.reader(&topic, 0, placed + 1).await.expect("at the end");
    let waits = async {
        let read = next_batch(&mut *reader, PLENTY).await.err();
        let changed = member.changed().await.err();
        let end = journal.read(0, 1).await.map_or(0, |page| page.end);
        (read, changed, journal.beyond(end).await.is_err())
    };
    let ((read, changed, beyond), ()) = tokio::join!(waits, rig.close());
    assert_eq!((read, changed, beyond), (Some(BrokerError::Closed), Some(BrokerError::Closed), true));
    let results = broker.produce(&topic, frames(0, &["late"])).await;
    assert!(matches!(results[0], Err(ProduceError::Unavailable(_))), "{results:?}");
    assert_eq!(next_batch(&mut *reader, PLENTY).await.err(), Some(BrokerError::Closed));
    assert!(broker.reader(&topic, 0, placed).await.is_err());
    assert!(broker.commit("group", &topic, 0, commit(placed, "m")).await.is_err());
}

/// BRK-10, `can delete`: a reader whose next messages retention deletes reads on without a gap, or gets an error.
pub async fn an_open_reader_that_retention_overtakes_never_skips(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b"]).await;
    let mut reader = broker.reader(&topic, 0, placed[0]).await.expect("in range");
    rig.delete_below(&topic, 0, placed[1] + 1).await;
    produce(&*broker, &topic, 0, &["c"]).await;
    let mut expected = ["a", "b", "c"].iter();
    loop {
        match next_batch(&mut *reader, 1).await {
            Ok(batch) => {
                for text in texts(&deliveries(&batch)) {
                    assert_eq!(Some(&text.as_str()), expected.next(), "nothing is skipped unsaid");
                }
                if expected.len() == 0 {
                    return;
                }
            }
            Err(BrokerError::OutOfRange { position, .. }) => {
                assert!(position <= placed[1], "{position} is where it stood");
                return;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// P1, BRK-1, `can kill`: messages, records and commits that were acknowledged before a kill are there after it.
pub async fn what_was_acknowledged_is_there_after_a_kill(rig: &mut dyn Rig) {
    let (mut broker, journal, name) = with_journal(rig).await;
    let (topic, group) = (name.topic.clone(), rig.name("billing"));
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    drop(journal);
    let (mut placed, mut sent) = (Vec::new(), Vec::new());
    for round in 0..3u64 {
        let text = format!("m{round}");
        let position = produce(&*broker, &topic, 0, &[&text]).await[0];
        placed.push(position);
        sent.push(text);
        let journal = broker.journal(&name).await.expect("a journal opens");
        assert_eq!(append(&*journal, &format!("r{round}")).await, round);
        // An operator's commit must be durable when it is answered; Keylane's own commits only mirror the journal.
        let committed = commit(position, "");
        assert_eq!(broker.commit(&group, &topic, 0, committed.clone()).await, Ok(()));
        drop((journal, broker));
        broker = rig.reopen_after_kill().await;
        let read = read_from(&*broker, &topic, 0, start, sent.len()).await;
        assert_eq!((positions(&read), texts(&read)), (placed.clone(), sent.clone()));
        let journal = broker.journal(&name).await.expect("a journal opens");
        assert_eq!(journal_from(&*journal, 0).await.len() as u64, round + 1);
        assert_eq!(broker.committed(&group, &topic, 0).await, Ok(Some(committed)));
    }
}

/// MSG-3, `can begin_far`: the highest positions work like the lowest.
pub async fn positions_near_the_highest_are_exact(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    drop(broker);
    rig.begin_at(&topic, EXACT - 100).await;
    let broker = rig.broker().await;
    let placed = produce(&*broker, &topic, 0, &["a", "b", "c", "d", "e"]).await;
    assert!(placed[0] >= EXACT - 100 && placed[4] < EXACT, "{placed:?}");
    for (at, position) in placed.iter().enumerate() {
        let read = read_from(&*broker, &topic, 0, *position, 5 - at).await;
        assert_eq!(positions(&read), placed[at..]);
    }
    let group = rig.name("billing");
    assert_eq!(broker.commit(&group, &topic, 0, commit(placed[3], "m")).await, Ok(()));
    assert_eq!(broker.committed(&group, &topic, 0).await, Ok(Some(commit(placed[3], "m"))));
}

/// BRK-10, `can grow`: a member is told when its topic got more partitions, because keys have moved.
pub async fn a_member_of_a_topic_that_got_more_partitions_is_told(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    changes(&mut *member, 2).await;
    rig.grow_topic(&topic, 5).await;
    let told = member.changed().await.err();
    assert_eq!(told, Some(BrokerError::Partitions { topic, there: 5, asked: 2 }));
}

/// BRK-10, `can swap`: a member is told when its topic was deleted and made again, because positions mean other
/// messages now.
pub async fn a_member_of_a_topic_that_was_made_again_is_told(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    changes(&mut *member, 2).await;
    rig.recreate_topic(&topic).await;
    let told = loop {
        match member.changed().await {
            Ok(Change::Lost(_)) => {}
            other => break other,
        }
    };
    assert_eq!(told, Err(BrokerError::Recreated(topic)));
}
