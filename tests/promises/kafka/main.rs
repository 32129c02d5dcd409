//! The promises on real Kafka, from outside: Keylane and brokers killed, members that come and go or sleep, answers
//! that get lost, topics changed under their readers, and other clients beside Keylane.
//!
//! Tests share one broker and have a topic each, except for those that do something to the cluster itself.

mod answers;
mod changes;
mod commits;
mod cuts;
mod gaps;
mod growth;
mod kills;
mod looks;
mod rebalance;
mod scale;
mod sleepers;
mod spill;
mod wire;

keylane_tests::promises!(Kafka);

use std::sync::Arc;

use keylane_tests::{Cluster, Item, PipelineView, Server, items, until};

/// Short times, so that a member that vanished is noticed within the test.
const SOON: &str = "session.timeout.ms: 3000, heartbeat.interval.ms: 300";

/// The settings of a journal's topic that a test makes by hand.
const JOURNAL: [&str; 3] = ["cleanup.policy=delete", "retention.ms=-1", "retention.bytes=-1"];

/// Completions of one partition that may not be on record when its owner dies: a lot of 1,000 is under way, as many
/// wait to be the next (COM-2), and some come while a busy machine writes.
const UNRECORDED_MAX: u64 = 2_500;

/// One broker, which all tests of this binary share.
fn cluster() -> Arc<Cluster> {
    Cluster::shared()
}

/// Messages of many keys, each with this many bytes.
fn many(from: u64, count: u64, padding: usize) -> Vec<Item> {
    let all = (0..40).flat_map(|key| items(&format!("k{key}"), from, count));
    all.map(|item| Item { padding, ..item }).collect()
}

/// Deletes all records of a partition below an offset, or all (-1), with Kafka's own tool.
fn delete_records(cluster: &Cluster, topic: &str, partition: u32, below: i64) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("delete.json");
    let text = format!(
        r#"{{"partitions":[{{"topic":"{topic}","partition":{partition},"offset":{below}}}],"version":1}}"#
    );
    std::fs::write(&file, text).expect("it can be written");
    cluster.tool(&["DeleteRecordsCommand", "--offset-json-file", &file.display().to_string()]);
}

/// Waits until exactly these partitions are stopped, each with all of these words in its reason.
async fn stopped(server: &Server, partitions: &[u32], said: &[&str]) {
    until("partitions to be stopped", async || {
        let view = PipelineView::of(server).await?;
        let stopped = view.partitions.iter().filter(|at| {
            let why = at.why.as_deref().unwrap_or_default();
            at.state == "stopped" && said.iter().all(|said| why.contains(said))
        });
        let stopped: Vec<u32> = stopped.map(|at| at.partition).collect();
        (stopped == partitions).then_some(())
    })
    .await;
}

/// How many partitions a server runs.
async fn owned(server: &Server) -> Option<usize> {
    let view = PipelineView::of(server).await?;
    Some(view.partitions.iter().filter(|partition| partition.state == "running").count())
}

/// Waits until a server runs this many partitions.
async fn owns(server: &Server, count: usize) {
    until("a server to own its share", async || (owned(server).await? == count).then_some(())).await;
}
