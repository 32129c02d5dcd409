//! Offsets without a message: aborted transactions, their markers, and records that compaction removed.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane_tests::{Cluster, Server, Setup, Sink, check, until};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::commits::Commits;
use crate::{SOON, cluster};

const ASK: Duration = Duration::from_secs(60);

/// Sends `{"n": …}` under a few keys, in one transaction.
fn transaction(producer: &BaseProducer, topic: &str, numbers: std::ops::Range<u64>, commits: bool) {
    producer.begin_transaction().expect("none is open");
    for n in numbers {
        let (key, payload) = (format!("k{}", n % 10), format!("{{\"n\":{n}}}"));
        let record = BaseRecord::to(topic).key(&key).payload(&payload);
        producer.send(record).map_err(|(error, _)| error).expect("the client takes it");
    }
    match commits {
        true => producer.commit_transaction(ASK).expect("it commits"),
        false => {
            producer.flush(ASK).expect("all is with the broker before it is void");
            producer.abort_transaction(ASK).expect("it aborts");
        }
    }
}

/// Waits until Kafka's commits stand at the ends of all partitions, markers included.
async fn commits_reach_the_end(cluster: &Cluster, server: &Server, topic: &str, partitions: u32) {
    let ends: Vec<(u32, u64)> =
        server.recorded().await.partitions.iter().map(|at| (at.partition, at.end)).collect();
    let commits = Commits::of(cluster, topic, partitions);
    until("Kafka's commits to reach the end", async || (commits.now()? == ends).then_some(())).await;
}

/// COM-1, BRK-2: aborted messages are never seen, and their gaps do not stop commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_transactions_are_never_seen_and_their_gaps_are_committed_over() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("ledgered").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &cluster.bootstrap)
        .set("transactional.id", "gaps")
        .create()
        .expect("a producer");
    producer.init_transactions(ASK).expect("it is alone");
    for round in 0..10 {
        // Whole transactions that are void, also at the end, where no later message shows that a transaction is over.
        transaction(&producer, "ledgered", round * 100..round * 100 + 50, true);
        transaction(&producer, "ledgered", round * 100 + 50..(round + 1) * 100, false);
    }
    sink.wait_settled(500).await;
    commits_reach_the_end(&cluster, &server, "ledgered", 4).await;
    let calls = sink.calls();
    let seen: BTreeSet<u64> = calls.iter().filter_map(|call| call.n).collect();
    let expected: BTreeSet<u64> = (0..1000).filter(|n| n % 100 < 50).collect();
    assert_eq!(seen, expected, "what was committed, and nothing else");
    check(&[], &calls).assert_once();
    // A transaction that is still open holds back everything behind it, and Keylane guesses nothing about it.
    producer.begin_transaction().expect("none is open");
    producer
        .send(BaseRecord::to("ledgered").key("k0").payload("{\"n\":1000}"))
        .map_err(|(error, _)| error)
        .expect("taken");
    producer.flush(ASK).expect("it is with the broker");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    server.start().await;
    producer.commit_transaction(ASK).expect("it commits");
    sink.wait_settled(501).await;
    commits_reach_the_end(&cluster, &server, "ledgered", 4).await;
    check(&[], &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// COM-1, MSG-3: a topic that another system compacts is read and committed across its gaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gaps_of_a_compacted_topic_are_committed_over() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut create = vec!["TopicCommand", "--create", "--topic", "compacted", "--partitions", "2"];
    for setting in [
        "cleanup.policy=compact",
        "min.cleanable.dirty.ratio=0.001",
        "segment.ms=100",
        "max.compaction.lag.ms=100",
    ] {
        create.extend(["--config", setting]);
    }
    cluster.tool(&create);
    let produce = |from: u64| {
        let lines: String = (from..from + 500).map(|n| format!("k{}:{{\"n\":{n}}}\n", n % 10)).collect();
        cluster.kcat(&["-P", "-t", "compacted", "-K", ":", "-X", "topic.partitioner=murmur2_random"], &lines);
    };
    let there = || cluster.kcat(&["-C", "-e", "-q", "-t", "compacted", "-f", "%o\n"], "").lines().count();
    for round in 0..4 {
        produce(round * 500);
        // A segment that is written to is not compacted; the next write closes it.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    until("the cleaner to take away what was overwritten", async || (there() < 1_000).then_some(())).await;
    // The topic belongs to another system, so the config does not declare it.
    let setup = Setup { partitions: 0, ..Setup::default() }.topic("compacted");
    let mut server = Server::new(&setup.on_kafka(&cluster, SOON), &sink);
    server.start().await;
    sink.wait("the last of each key", |sink| {
        let calls = sink.calls();
        (1_990..2_000).all(|n| calls.iter().any(|call| call.n == Some(n) && call.is_settled()))
    })
    .await;
    commits_reach_the_end(&cluster, &server, "compacted", 2).await;
    let calls = sink.calls();
    check(&[], &calls).assert_once();
    assert!(calls.len() < 2_000, "it has gaps: {}", calls.len());
    // Each message has its own position, as another client finds it, not one counted through gaps. More may be gone.
    let called: BTreeSet<String> = calls
        .iter()
        .map(|call| {
            let (key, n) = (call.key.as_deref().expect("a key"), call.n.expect("a number"));
            format!("{}/{} {key} {{\"n\":{n}}}", call.partition, call.offset)
        })
        .collect();
    let found = cluster.kcat(&["-C", "-e", "-q", "-t", "compacted", "-f", "%p/%o %k %s\n"], "");
    assert!(found.lines().count() >= 10, "{found}");
    for line in found.lines() {
        assert!(called.contains(line), "{line} was not called as that");
    }
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    // Keylane did not switch compaction off.
    let configs = cluster.tool(&["TopicCommand", "--describe", "--topic", "compacted"]);
    assert!(configs.contains("cleanup.policy=compact"), "{configs}");
}
