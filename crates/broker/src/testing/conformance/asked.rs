//! Conformance cases: what a broker says about itself and its topics, and how calls to produce are ordered, dropped and
//! recalled.

use keylane_core::{Draft, Frames};

use super::client::{frames, poll_once, produce, read_from, spec, texts};
use super::rig::{Rig, with_spec, with_topic};
use crate::contract::{ProduceError, TopicSpec};

/// BRK-8.
pub async fn a_broker_that_works_is_healthy_and_takes_messages(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    for _ in 0..2 {
        assert_eq!(broker.health().await, Ok(()));
        assert_eq!(broker.troubles().await, []);
        assert_eq!(broker.takes(&topic, 1).await, Ok(()));
        produce(&*broker, &topic, 1, &["a"]).await;
    }
}

/// BRK-9: warnings concern the topics that were asked for and no others; a topic that does not exist is left out.
pub async fn warnings_are_of_the_topics_asked_for(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let asked = [topic, rig.name("missing")];
    let warnings = broker.warnings(&asked).await.expect("asked");
    assert!(warnings.iter().all(|warning| warning.topic == asked[0]), "{warnings:?}");
    assert!(warnings.iter().all(|warning| !warning.what.is_empty() && !warning.remedy.is_empty()));
}

/// BRK-5: without open transactions the tail of a partition is its end.
pub async fn tails_are_where_partitions_end(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    for text in ["a", "b"] {
        produce(&*broker, &topic, 1, &[text]).await;
        let ends = broker.ends(&topic).await.expect("asked");
        let expected: Vec<u64> = ends.iter().map(|ends| ends.end).collect();
        assert_eq!(broker.tails(&topic).await, Ok(expected));
    }
    assert!(broker.tails(&rig.name("missing")).await.is_err());
}

/// BRK-10: a group's journals are made for as many partitions as an operator accepted, on brokers whose topics can
/// grow.
pub async fn journals_are_made_for_as_many_partitions_as_were_accepted(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let group = rig.name("group");
    for _ in 0..2 {
        assert_eq!(broker.grow_journals(&group, &topic, 3).await, Ok(()));
        // `None` on a broker whose topics never get more partitions.
        let made = broker.journals(&group, &topic).await.expect("asked");
        assert!(made.is_none() || made == Some(3), "{made:?}");
    }
}

/// MSG-4: creating an existing topic gives it the new limits, and it stays the same topic.
pub async fn a_topic_that_is_there_gets_new_limits(rig: &mut dyn Rig) {
    let small = TopicSpec { message_bytes_max: 2000, ..spec(1) };
    let (broker, made) = with_spec(rig, &small).await;
    let large = "x".repeat(3000);
    let mut one = Frames::default();
    let draft = Draft { id: "large", payload: Some(large.as_bytes()), ..Draft::default() };
    one.push(0, &draft).expect("a valid draft");
    let refused = broker.produce(&made.name, one.clone()).await.remove(0);
    assert!(matches!(refused, Err(ProduceError::TooLarge { bytes_max: 2000, .. })), "{refused:?}");
    let larger = TopicSpec { message_bytes_max: 10_000, ..spec(1) };
    let altered = broker.create_topic(&made.name, &larger).await.expect("limits can be changed");
    assert_eq!((altered.incarnation, altered.spec.message_bytes_max), (made.incarnation, 10_000));
    let placed = loop {
        match broker.produce(&made.name, one.clone()).await.remove(0) {
            Ok(position) => break position,
            // The brokers of a cluster learn of the new limit one after another.
            Err(ProduceError::TooLarge { .. } | ProduceError::TooLargeThere(_)) => {
                tokio::task::yield_now().await
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(texts(&read_from(&*broker, &made.name, 0, placed, 1).await), [large]);
}

/// P2, BRK-5: a call takes its place when it is first polled, not when it is made.
pub async fn a_call_takes_its_place_when_it_is_first_polled(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let names: Vec<String> = (0..6).map(|index| index.to_string()).collect();
    let mut calls: Vec<_> = names.iter().map(|name| broker.produce(&topic, frames(0, &[name]))).collect();
    let order = [3, 0, 5, 1, 4, 2];
    let mut done = vec![None; 6];
    for at in order {
        done[at] = poll_once(calls[at].as_mut()).await;
    }
    for (at, call) in calls.into_iter().enumerate() {
        if done[at].is_none() {
            done[at] = Some(call.await);
        }
    }
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    let expected: Vec<String> = order.iter().map(|at| at.to_string()).collect();
    assert_eq!(texts(&read_from(&*broker, &topic, 0, start, 6).await), expected);
    assert!(done.iter().flatten().all(|results| results[0].is_ok()), "{done:?}");
}

/// P2, BRK-5: a message whose caller dropped the call stands in its place, or nowhere.
pub async fn a_call_that_was_dropped_spoils_nothing(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    for round in 0..5 {
        let (gone, after) = (format!("gone {round}"), format!("after {round}"));
        let _dropped = poll_once(broker.produce(&topic, frames(0, &[&gone]))).await;
        produce(&*broker, &topic, 0, &[&after]).await;
    }
    let mut reader = broker.reader(&topic, 0, start).await.expect("in range");
    let mut found = Vec::new();
    while found.last().is_none_or(|last| last != "after 4") {
        found.extend(texts(&super::client::read(&mut *reader, 1).await));
    }
    let expected: Vec<String> =
        (0..5).flat_map(|round| [format!("gone {round}"), format!("after {round}")]).collect();
    let left: Vec<&String> = expected.iter().filter(|text| found.contains(text)).collect();
    assert_eq!(found.iter().collect::<Vec<_>>(), left, "in order, and each once");
    assert_eq!(found.iter().filter(|text| text.starts_with("after")).count(), 5);
}

/// PRD-3: a recall ends all calls under way, no message behind one that was given up is acknowledged, and the broker
/// goes on.
pub async fn a_recall_ends_what_is_under_way_in_order(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    let names: Vec<String> = (0..8).map(|index| index.to_string()).collect();
    let mut calls: Vec<_> = names.iter().map(|name| broker.produce(&topic, frames(0, &[name]))).collect();
    let mut done = Vec::new();
    for call in &mut calls {
        done.push(poll_once(call.as_mut()).await);
    }
    broker.recall().await;
    let mut taken = Vec::new();
    for (done, call) in done.into_iter().zip(calls) {
        let results = match done {
            Some(results) => results,
            None => call.await,
        };
        taken.push(results[0].is_ok());
    }
    assert!(taken.is_sorted_by(|one, next| one >= next), "none behind one that was given up: {taken:?}");
    produce(&*broker, &topic, 0, &["after"]).await;
    let mut reader = broker.reader(&topic, 0, start).await.expect("in range");
    let mut found = Vec::new();
    while found.last().is_none_or(|last| last != "after") {
        found.extend(texts(&super::client::read(&mut *reader, 1).await));
    }
    let acknowledged = names.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(name, _)| name);
    assert!(acknowledged.into_iter().all(|name| found.contains(name)), "{found:?} of {taken:?}");
    assert!(found[..found.len() - 1].is_sorted(), "{found:?}");
}
