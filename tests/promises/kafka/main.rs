//! The promises on real Kafka, from outside: Keylane and brokers killed, members that come and go or sleep, answers
//! that get lost, topics changed under their readers, and other clients beside it.
//!
//! Cases share one broker and have a topic each, but for those that do something to the cluster itself.

mod answers;
mod changes;
mod commits;
mod gaps;
mod growth;
mod kills;
mod rebalance;
mod sleepers;
mod spill;
mod wire;

use std::sync::{Arc, OnceLock};

use keylane_tests::{Cluster, PipelineView, Server, until};

/// Short, so that a member that vanished is noticed within the test.
const SOON: &str = "session.timeout.ms: 3000, heartbeat.interval.ms: 300";

/// Completions of one partition that may not be on record when its owner dies: a lot of 1,000 is under way, as many wait
/// to be the next (COM-2), and some come while a busy machine writes.
const UNRECORDED_MAX: u64 = 2_500;

/// One broker, which allows short sessions and compacts at once.
fn cluster() -> Arc<Cluster> {
    static SHARED: OnceLock<Arc<Cluster>> = OnceLock::new();
    let options = ["--set", "group.min.session.timeout.ms=1000", "--set", "log.cleaner.backoff.ms=200"];
    Arc::clone(SHARED.get_or_init(|| Arc::new(Cluster::with(&options))))
}

/// How many partitions a server runs.
async fn owned(server: &Server) -> Option<usize> {
    let view = PipelineView::of(server).await?;
    Some(view.partitions.iter().filter(|partition| partition.state == "running").count())
}

/// Waits until a server runs so many partitions.
async fn owns(server: &Server, count: usize) {
    until("a server to own its share", async || (owned(server).await? == count).then_some(())).await;
}
