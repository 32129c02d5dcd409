//! Conformance cases: memberships, which decide who may read which partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{oneshot, watch};

use super::client::{changes, poll_once};
use super::rig::{Rig, with_topic};
use crate::contract::{Change, Membership};

/// Waits until a member was assigned each of `partitions` partitions, in any order.
async fn assigned_all(member: &mut dyn Membership, partitions: u32) {
    let mut heard = changes(member, partitions as usize).await;
    heard.sort_by_key(|change| match change {
        Change::Assigned(partition) => *partition,
        other => panic!("nobody else is there, and yet: {other:?}"),
    });
    let expected: Vec<Change> = (0..partitions).map(Change::Assigned).collect();
    assert_eq!(heard, expected);
}

/// BRK-5.
pub async fn the_only_member_gets_every_partition(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 5).await;
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    assigned_all(&mut *member, 5).await;
    for partition in 0..5 {
        assert_eq!(member.confirm(partition).await, Ok(true));
    }
    assert_eq!(member.confirm(5).await, Ok(false), "there is no such partition");
    assert_eq!(member.confirm_all(&[0, 5, 1]).await, Ok(vec![true, false, true]));
    assert_eq!(poll_once(member.changed()).await, None);
}

/// BRK-5.
pub async fn groups_do_not_know_of_each_other(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let mut members = Vec::new();
    for group in ["one", "two"] {
        let mut member = broker.join(&rig.name(group), &topic, "a").await.expect("joins");
        assigned_all(&mut *member, 3).await;
        members.push(member);
    }
    members[0].leave().await;
    for partition in 0..3 {
        assert_eq!(members[1].confirm(partition).await, Ok(true));
    }
    assert_eq!(poll_once(members[1].changed()).await, None);
}

/// BRK-5: cancelling the wait for a change loses no change.
pub async fn a_wait_for_changes_can_be_cancelled(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 4).await;
    let mut member = broker.join(&rig.name("group"), &topic, "a").await.expect("joins");
    let mut heard = Vec::new();
    while heard.len() < 4 {
        match poll_once(member.changed()).await {
            Some(change) => heard.push(change.expect("it goes on")),
            None => tokio::task::yield_now().await,
        }
    }
    heard.sort_by_key(|change| format!("{change:?}"));
    let expected: Vec<Change> = (0..4).map(Change::Assigned).collect();
    assert_eq!(heard, expected);
}

/// BRK-5.
pub async fn who_comes_after_a_member_left_gets_everything(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let group = rig.name("group");
    let mut first = broker.join(&group, &topic, "a").await.expect("joins");
    assigned_all(&mut *first, 3).await;
    first.leave().await;
    assert_eq!(first.confirm(0).await, Ok(false), "who has left has nothing, and is told so");
    let mut second = broker.join(&group, &topic, "b").await.expect("joins");
    assigned_all(&mut *second, 3).await;
    drop(second);
    let mut third = broker.join(&group, &topic, "c").await.expect("joins");
    assigned_all(&mut *third, 3).await;
}

/// BRK-5, BRK-7, `can share`: two members share the partitions fairly, and no partition has two owners at a time.
pub async fn members_share_and_never_own_the_same_partition(rig: &mut dyn Rig) {
    let (_, topic) = with_topic(rig, 4).await;
    let group = rig.name("group");
    let owners = Arc::new(Owners::default());
    let mut counts = owners.counts.subscribe();
    let mut members = Vec::new();
    for name in ["a", "b"] {
        let broker = rig.broker().await;
        let member = broker.join(&group, &topic, name).await.expect("joins");
        let (stop, stopped) = oneshot::channel();
        members.push((stop, tokio::spawn(owners.clone().follow(name, member, stopped))));
        let fair = 4 / members.len();
        let is_fair = |counts: &BTreeMap<&str, usize>| {
            counts.len() == 4 / fair && counts.values().all(|count| *count == fair)
        };
        counts.wait_for(is_fair).await.expect("someone follows");
    }
    for remaining in [1, 0] {
        let (stop, following) = members.remove(0);
        stop.send(()).expect("it follows until told");
        following.await.expect("it does not panic");
        let all_went_on = |counts: &BTreeMap<&str, usize>| counts.values().sum::<usize>() == 4 * remaining;
        counts.wait_for(all_went_on).await.expect("the owners are kept here");
    }
}

/// BRK-5, ORD-9, `can wait`: a revoked partition is assigned to another member only after its owner gave it up.
pub async fn a_partition_goes_on_only_after_it_was_given_up(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let (group, elsewhere) = (rig.name("group"), rig.broker().await);
    let mut first = broker.join(&group, &topic, "a").await.expect("joins");
    assigned_all(&mut *first, 2).await;
    let mut second = elsewhere.join(&group, &topic, "b").await.expect("joins");
    let moved = match first.changed().await {
        Ok(Change::Revoked(partition)) => partition,
        other => panic!("a share is due to the other, and yet: {other:?}"),
    };
    let kept = 1 - moved;
    for _ in 0..3 {
        assert_eq!(poll_once(second.changed()).await, None, "it was not given up yet");
        assert_eq!(second.confirm(moved).await, Ok(false));
        assert_eq!(second.confirm(kept).await, Ok(false));
        assert_eq!(first.confirm(kept).await, Ok(true));
    }
    first.gave_up(moved).await;
    assert_eq!(second.changed().await, Ok(Change::Assigned(moved)));
    assert_eq!(second.confirm(moved).await, Ok(true));
    assert_eq!(first.confirm(moved).await, Ok(false));
    assert_eq!(first.confirm(kept).await, Ok(true));
}

/// Which member believes to own which partition, over all members of a case.
#[derive(Default)]
struct Owners {
    owned: Mutex<BTreeMap<u32, &'static str>>,
    counts: watch::Sender<BTreeMap<&'static str, usize>>,
}

impl Owners {
    async fn follow(
        self: Arc<Self>,
        name: &'static str,
        mut member: Box<dyn Membership>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        loop {
            let change = tokio::select! {
                change = member.changed() => change.expect("it goes on"),
                _ = &mut stopped => break,
            };
            match change {
                Change::Assigned(partition) => self.change(|owned| {
                    let other = owned.insert(partition, name);
                    assert_eq!(other, None, "{partition} was still owned when {name} got it");
                }),
                Change::Revoked(partition) => {
                    self.change(|owned| assert_eq!(owned.remove(&partition), Some(name)));
                    member.gave_up(partition).await;
                }
                Change::Lost(partition) => panic!("{name} lost {partition}, and nothing failed"),
            }
        }
        self.change(|owned| owned.retain(|_, owner| *owner != name));
        member.leave().await;
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u32, &'static str>)) {
        let mut owned = self.owned.lock().expect("a failed case has ended");
        change(&mut owned);
        let mut counts = BTreeMap::new();
        for owner in owned.values() {
            *counts.entry(*owner).or_insert(0) += 1;
        }
        self.counts.send_replace(counts);
    }
}

/// BRK-7.
pub async fn a_process_never_proves_itself_dead(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let one = broker.join(&rig.name("one"), &topic, "a").await.expect("joins");
    let two = broker.join(&rig.name("two"), &topic, "a").await.expect("joins");
    assert_ne!(one.instance(), 0, "an instance is random");
    assert_eq!(one.instance(), two.instance(), "it is the process's");
    assert!(!one.proves_dead(one.instance()));
}

/// BRK-7, `can share`: no process is proven dead while it lives.
pub async fn a_process_that_lives_is_not_proven_dead_by_another(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let one = broker.join(&rig.name("one"), &topic, "a").await.expect("joins");
    let elsewhere = rig.broker().await;
    let other = elsewhere.join(&rig.name("two"), &topic, "b").await.expect("joins");
    assert_ne!(one.instance(), other.instance());
    assert!(!one.proves_dead(other.instance()), "it lives");
}
