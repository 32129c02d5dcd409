//! Conformance cases: whatever was acknowledged is there when the broker is opened again.

use super::client::{
    PLENTY, append, changes, journal_from, journal_name, positions, produce, read_from, texts,
};
use super::commits::commit;
use super::journals::with_journal;
use super::rig::{Rig, with_topic};
use crate::contract::{Change, LogKind};

/// BRK-5, BRK-10: topics, messages and positions survive reopening.
pub async fn what_was_acknowledged_is_there_after_reopening(rig: &mut dyn Rig) {
    let (mut broker, topic) = with_topic(rig, 2).await;
    let described = broker.topic(&topic).await.expect("asked");
    let start = broker.ends(&topic).await.expect("asked")[1].start;
    let (mut placed, mut sent) = (Vec::new(), Vec::new());
    for round in 0..4 {
        let payloads: Vec<String> = (0..5).map(|index| format!("{round} {index}")).collect();
        let borrowed: Vec<&str> = payloads.iter().map(String::as_str).collect();
        placed.extend(produce(&*broker, &topic, 1, &borrowed).await);
        sent.extend(payloads);
        let ends = broker.ends(&topic).await.expect("asked");
        drop(broker);
        broker = rig.reopen().await;
        assert_eq!(broker.topic(&topic).await.expect("asked"), described);
        assert_eq!(broker.ends(&topic).await.expect("asked"), ends);
        let read = read_from(&*broker, &topic, 1, start, sent.len()).await;
        assert_eq!(texts(&read), sent);
        assert_eq!(positions(&read), placed);
    }
    assert!(placed.is_sorted_by(|one, next| one < next), "positions go on: {placed:?}");
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    let heard = changes(&mut *member, 2).await;
    assert!(heard.contains(&Change::Assigned(0)) && heard.contains(&Change::Assigned(1)));
}

/// BRK-6.
pub async fn journals_and_their_cuts_survive_reopening(rig: &mut dyn Rig) {
    let (mut broker, journal, name) = with_journal(rig).await;
    let hold = journal_name(&name.group, &name.topic, LogKind::Hold);
    for at in 0..6 {
        assert_eq!(append(&*journal, &format!("r{at}")).await, at);
    }
    journal.cut(4).await.expect("it can be cut");
    let held = broker.journal(&hold).await.expect("a journal opens");
    append(&*held, "gone").await;
    held.cut(1).await.expect("it can be cut");
    let expected = journal_from(&*journal, 0).await;
    drop((journal, held));
    for round in 0..2 {
        drop(broker);
        broker = rig.reopen().await;
        let journal = broker.journal(&name).await.expect("a journal opens");
        let page = journal.read(0, PLENTY).await.expect("it can be read");
        assert_eq!((page.start, page.end), (4, 6 + round));
        assert_eq!(page.records[..2], expected);
        assert_eq!(append(&*journal, "later").await, 6 + round);
        let held = broker.journal(&hold).await.expect("a journal opens");
        let page = held.read(0, PLENTY).await.expect("it can be read");
        assert_eq!((page.start, page.end), (1, 1), "a journal that was cut whole keeps its count");
    }
}

/// BRK-5.
pub async fn commits_survive_reopening(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b"]).await;
    let group = rig.name("billing");
    for position in placed {
        let taken = broker.commit(&group, &topic, 0, commit(position, "m")).await;
        assert_eq!(taken, Ok(()));
    }
    let committed = broker.committed(&group, &topic, 0).await;
    drop(broker);
    let broker = rig.reopen().await;
    assert_eq!(broker.committed(&group, &topic, 0).await, committed);
}
