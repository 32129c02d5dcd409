//! Topics that change under their readers: records deleted, partitions added, a topic made anew. Each change is
//! noticed, stops the part that it concerns with a clear error, now and after a restart, and never goes unnoticed.

use std::collections::BTreeMap;
use std::time::Duration;

use keylane_tests::{
    Acked, Call, PipelineView, Reply, Server, Setup, Sink, check, client, fill, run_binary, until,
};

use crate::commits::Commits;
use crate::{SOON, cluster, delete_records, many, owns, stopped};

fn of_partition(acked: &[Acked], partition: u32) -> Vec<Acked> {
    acked.iter().filter(|acked| acked.partition == partition).cloned().collect()
}

/// BRK-10, P10: messages that were deleted before they were read are not skipped in silence. Their partition stops and
/// says where it was, the others go on; a restart changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_before_they_were_read_stop_their_partition_alone() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    sink.behave(|_| Reply::Held(200));
    // Little is read ahead, so that most messages still lie on the broker when they are deleted.
    let setup = Setup::pipeline(&["buffer: { messages: 50, bytes: 1MiB }"]).topic("deleted");
    let mut server = Server::new(&setup.on_kafka(&cluster, SOON), &sink);
    server.start().await;
    owns(&server, 4).await;
    let mut acked = fill(&server, &many(0, 15, 20_000)).await;
    sink.wait("some calls to be under way", |sink| !sink.is_empty()).await;
    let first = of_partition(&acked, 0);
    let below = first.last().expect("some lie there").position();
    delete_records(&cluster, "deleted", 0, below as i64);
    sink.behave(|_| Reply::Status(200));
    sink.release();
    stopped(&server, &[0], &["KL-1106", "deleted"]).await;
    let others: Vec<Acked> = acked.iter().filter(|acked| acked.partition != 0).cloned().collect();
    server.settles(&sink, &others).await;
    let (committed, settled) =
        (PipelineView::of(&server).await.expect("it answers").partitions[0].committed, |offset| {
            sink.calls().iter().any(|call| call.partition == 0 && call.offset == offset && call.is_settled())
        });
    assert!(committed < below, "nothing was skipped: {committed} of {below}");
    assert!(
        first.iter().all(|acked| settled(acked.position()) == (acked.position() < committed)),
        "up to {committed}"
    );
    // Later messages of that partition wait, and the other partitions go on.
    let more = fill(&server, &many(15, 5, 0)).await;
    acked = more.into_iter().filter(|acked| acked.partition != 0).chain(others).collect();
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    // The server does not become ready, since a partition is stopped.
    server.spawn();
    stopped(&server, &[0], &["KL-1106", &format!("{committed}"), &format!("{below}")]).await;
    let more = fill(&server, &many(20, 1, 0)).await;
    acked.extend(more.into_iter().filter(|acked| acked.partition != 0));
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-10, P10, P2: partitions that are added move keys. Nothing more starts, running attempts finish and go on record,
/// and the status says so, now and after a restart. Once an operator accepts the partitions the pipeline goes on, and
/// each key keeps its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_added_while_keys_are_in_flight_stop_the_pipeline_until_they_are_accepted() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup = Setup::default().topic("widened").on_kafka(&cluster, SOON);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    owns(&server, 4).await;
    sink.behave(|_| Reply::Held(200));
    let mut acked = fill(&server, &many(0, 5, 0)).await;
    sink.wait("each key to be in flight", |sink| sink.len() == 40).await;
    cluster.tool(&["TopicCommand", "--alter", "--topic", "widened", "--partitions", "8"]);
    until("the pipeline to drain", async || {
        let view = PipelineView::of(&server).await?;
        view.partitions.iter().all(|at| at.state == "draining").then_some(())
    })
    .await;
    sink.release();
    stopped(&server, &[0, 1, 2, 3, 4, 5, 6, 7], &["KL-1304", "topics accept"]).await;
    assert_eq!((sink.settled(), sink.len()), (40, 40), "what ran was finished, and nothing more was begun");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    // With the old number in its config the server does not start; with the new one the journal knows the old one.
    server.spawn();
    assert_eq!(server.ended().await, Some(1), "{}", server.output());
    assert!(server.output().contains("8 partitions"), "{}", server.output());
    server.configure(&setup.clone().partitions(8), &sink);
    server.spawn();
    stopped(&server, &[0, 1, 2, 3, 4, 5, 6, 7], &["KL-1304", "topics accept"]).await;
    // Messages are accepted meanwhile, by the new number.
    acked.extend(fill(&server, &many(5, 5, 0)).await);
    assert!(acked.iter().any(|acked| acked.partition >= 4), "keys have moved");
    assert_eq!((sink.settled(), sink.len()), (40, 40), "nothing was begun");
    sink.behave(|_| Reply::Status(200));
    let said = accept(&server, "widened").await;
    assert!(said.contains("8 partitions instead of 4"), "{said}");
    acked.extend(fill(&server, &many(10, 5, 0)).await);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    in_order_across_partitions(&sink);
    owns(&server, 8).await;
    let said = accept(&server, "widened").await;
    assert!(said.contains("nothing to accept"), "{said}");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    // The acceptance outlives a restart.
    server.start().await;
    acked.extend(fill(&server, &many(15, 5, 0)).await);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-10, P2: the same with two processes, of which the one that is asked to accept is killed while it does. The other
/// is asked again, and both have moved keys by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_accepted_by_whoever_lives() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup = Setup::default().topic("broadened").on_kafka(&cluster, SOON);
    let (mut first, mut second) = (Server::new(&setup, &sink), Server::new(&setup, &sink));
    first.start().await;
    second.start().await;
    let mut acked = fill(&first, &many(0, 5, 0)).await;
    first.settles(&sink, &acked).await;
    sink.behave(|_| Reply::After(Duration::from_millis(20), 200));
    acked.extend(fill(&second, &many(5, 100, 0)).await);
    cluster.tool(&["TopicCommand", "--alter", "--topic", "broadened", "--partitions", "8"]);
    for server in [&first, &second] {
        stopped(server, &[0, 1, 2, 3, 4, 5, 6, 7], &["KL-1304"]).await;
    }
    let url = first.url("/admin/topics/broadened/accept");
    let accepting = tokio::spawn(client().post(url).send());
    acked.extend(fill(&second, &many(105, 5, 0)).await);
    // Once the new number is on record: from then on the process waits for owners, decides, and makes journals.
    until("something about it to be on record", async || {
        let records = cluster.kcat(&["-C", "-e", "-q", "-t", "_keylane.journal.broadened.broadened"], "");
        // By whom, with its length before it: that of a server without tokens.
        records.contains("\u{5}local").then_some(())
    })
    .await;
    first.kill9().await;
    let _in_vain = accepting.await;
    let said = accept(&second, "broadened").await;
    assert!(said.contains("8 partitions") || said.contains("nothing to accept"), "{said}");
    acked.extend(fill(&second, &many(110, 5, 0)).await);
    second.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_kept();
    in_order_across_partitions(&sink);
    assert_eq!(second.stop().await, Some(0), "{}", second.output());
}

/// Runs `keylane topics accept`.
async fn accept(server: &Server, topic: &str) -> String {
    let (code, said) = run_binary(&["topics", "accept", topic, "--url", &server.url("")]).await;
    assert_eq!(code, Some(0), "{said}");
    said
}

/// Proves that a message of a key begins only when all earlier ones were settled, wherever they lie.
pub(crate) fn in_order_across_partitions(sink: &Sink) {
    let mut keys: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in sink.calls() {
        keys.entry(call.key.clone().expect("all have one")).or_default().push(call);
    }
    let mut moved = 0;
    for (key, mut calls) in keys {
        calls.sort_by_key(|call| call.started);
        let mut settled = BTreeMap::<u64, _>::new();
        for call in calls.iter().filter(|call| call.is_settled()) {
            let (n, ended) = (call.n.expect("it has one"), call.ended.expect("it was settled"));
            settled.entry(n).or_insert(ended);
        }
        for call in &calls {
            let n = call.n.expect("it has one");
            let early = settled.range(..n).find(|(_, ended)| **ended > call.started);
            assert!(early.is_none(), "{key}: {n} began before {early:?} was settled: {call:?}");
        }
        moved += usize::from(calls.iter().any(|call| call.partition != calls[0].partition));
    }
    assert!(moved > 0, "keys have moved");
}

/// BRK-10, P10: a topic that was deleted and made again is another topic, whatever its positions say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_topic_stops_the_pipeline() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("recreated").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let acked = fill(&server, &many(0, 5, 0)).await;
    server.settles(&sink, &acked).await;
    cluster.tool(&["TopicCommand", "--delete", "--topic", "recreated"]);
    cluster.tool(&["TopicCommand", "--create", "--topic", "recreated", "--partitions", "4"]);
    stopped(&server, &[0, 1, 2, 3], &["KL-1303"]).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    server.spawn();
    stopped(&server, &[0, 1, 2, 3], &["KL-1303"]).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-10, P10: the same while no Keylane was running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_recreated_while_keylane_was_away_is_noticed_at_its_start() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("replaced").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let acked = fill(&server, &many(0, 5, 0)).await;
    server.settles(&sink, &acked).await;
    Commits::of(&cluster, "replaced", 4).follow(&acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    cluster.tool(&["TopicCommand", "--delete", "--topic", "replaced"]);
    cluster.tool(&["TopicCommand", "--create", "--topic", "replaced", "--partitions", "4"]);
    let before = sink.len();
    let lines: String = (0..200).map(|n| format!("k{n}:{{\"n\":{n}}}\n")).collect();
    cluster.kcat(&["-P", "-t", "replaced", "-K", ":"], &lines);
    server.spawn();
    stopped(&server, &[0, 1, 2, 3], &["KL-1303"]).await;
    assert_eq!(sink.len(), before, "nothing of the new topic was taken for the old one's");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// P3, P10: another system's record that cannot be a message stops its partition alone; the error says where it lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_a_message_stops_its_partition_alone() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("oversized").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let key = "k".repeat(5_000);
    cluster.kcat(&["-P", "-t", "oversized", "-p", "1", "-K", ":"], &format!("fine:1\n{key}:2\nfine:3\n"));
    stopped(&server, &[1], &["KL-1113", "oversized/1/1"]).await;
    let acked = fill(&server, &many(0, 2, 0)).await;
    let others: Vec<Acked> = acked.into_iter().filter(|acked| acked.partition != 1).collect();
    server.settles(&sink, &others).await;
    let first: Vec<u64> =
        sink.calls().iter().filter(|call| call.partition == 1).map(|call| call.offset).collect();
    assert_eq!(first, [0], "what lies before it was handled, what lies behind it was not");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2, P10: a second process under the same name takes over the group's partitions; the first says that it was shut
/// out, and by what.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_shut_out_by_a_process_of_the_same_name_says_so() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup =
        Setup::default().topic("named").on_kafka(&cluster, &format!("{SOON}, group.instance.id: one"));
    let mut first = Server::new(&setup, &sink);
    first.start().await;
    owns(&first, 4).await;
    let mut second = Server::new(&setup, &sink);
    second.start().await;
    stopped(&first, &[0, 1, 2, 3], &["KL-1104", "group.instance.id"]).await;
    owns(&second, 4).await;
    let acked = fill(&second, &many(0, 2, 0)).await;
    second.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(first.stop().await, Some(0), "{}", first.output());
    assert_eq!(second.stop().await, Some(0), "{}", second.output());
}
