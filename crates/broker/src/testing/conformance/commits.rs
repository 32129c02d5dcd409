//! Conformance cases: commits, in which a group's position is mirrored on the broker.

use bytes::Bytes;

use super::client::produce;
use super::rig::{Rig, with_topic};
use crate::contract::Commit;

/// A commit as Keylane makes it. The metadata is text, since Kafka keeps nothing else.
pub(super) fn commit(position: u64, metadata: &str) -> Commit {
    Commit { position, metadata: Bytes::copy_from_slice(metadata.as_bytes()) }
}

/// BRK-5.
pub async fn a_commit_is_read_back_with_its_metadata(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b"]).await;
    let group = rig.name("billing");
    assert_eq!(broker.committed(&group, &topic, 0).await, Ok(None));
    let longest = commit(placed[1], &"m".repeat(256));
    for commit in [commit(placed[0], "journal 7 epoch 3"), longest, commit(placed[0], "")] {
        let taken = broker.commit(&group, &topic, 0, commit.clone()).await;
        assert_eq!(taken, Ok(()));
        assert_eq!(broker.committed(&group, &topic, 0).await, Ok(Some(commit.clone())));
        let elsewhere = rig.broker().await;
        assert_eq!(elsewhere.committed(&group, &topic, 0).await, Ok(Some(commit)));
    }
}

/// BRK-5.
pub async fn commits_are_apart_by_group_and_partition(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let mut expected = Vec::new();
    for partition in 0..2u32 {
        let placed = produce(&*broker, &topic, partition, &["a", "b", "c"]).await;
        for (group, position) in ["a", "b"].iter().zip(placed) {
            let made = commit(position, &format!("{group} {partition}"));
            let group = rig.name(group);
            let taken = broker.commit(&group, &topic, partition, made.clone()).await;
            assert_eq!(taken, Ok(()));
            expected.push((group, partition, made));
        }
    }
    for (group, partition, made) in expected {
        assert_eq!(broker.committed(&group, &topic, partition).await, Ok(Some(made)));
    }
    assert_eq!(broker.committed(&rig.name("c"), &topic, 0).await, Ok(None));
}

/// BRK-5: the broker keeps the last commit, even if it goes back; a commit is a mirror and decides nothing.
pub async fn the_last_commit_stands_even_if_it_goes_back(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let placed = produce(&*broker, &topic, 0, &["a", "b", "c"]).await;
    let group = rig.name("billing");
    for position in [placed[2], placed[0], placed[1]] {
        let made = commit(position, "m");
        let taken = broker.commit(&group, &topic, 0, made.clone()).await;
        assert_eq!(taken, Ok(()));
        assert_eq!(broker.committed(&group, &topic, 0).await, Ok(Some(made)));
    }
}

/// BRK-5, COM-2.
pub async fn one_call_commits_many_partitions(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let group = rig.name("billing");
    let mut commits = Vec::new();
    for partition in [2, 0, 1] {
        let placed = produce(&*broker, &topic, partition, &["a", "b"]).await;
        commits.push((partition, commit(placed[1], &format!("of {partition}"))));
    }
    let taken = broker.commit_all(&group, &topic, commits.clone()).await;
    assert_eq!(taken, [Ok(()), Ok(()), Ok(())]);
    for (partition, made) in commits {
        assert_eq!(broker.committed(&group, &topic, partition).await, Ok(Some(made)));
    }
}
