//! Journals that are cut under their readers, by the partition's next owner and by an operator; and journals whose
//! maker died before the first record.

use keylane_tests::{Acked, Item, Reply, Server, Setup, Sink, check, fill, items};

use crate::{JOURNAL, SOON, cluster, delete_records, many, owns, stopped};

const KEYS: u64 = 10;

fn some(from: u64, count: u64) -> Vec<Item> {
    (0..KEYS).flat_map(|key| items(&format!("k{key}"), from, count)).collect()
}

/// A member that sleeps with a call of each key in flight, and another that has the only partition by then and has
/// handled everything else.
async fn asleep(topic: &str, sink: &Sink) -> (Server, Server, Vec<Acked>) {
    sink.refuse_older_epochs();
    let setup = Setup::pipeline(&["retry: { retries: 3, base: 10ms, max: 50ms }"]).topic(topic);
    let setup = Setup { timeout: "20s", ..setup }.partitions(1).on_kafka(&cluster(), SOON);
    let mut sleeper = Server::new(&setup, sink);
    sleeper.start().await;
    owns(&sleeper, 1).await;
    let mut other = Server::new(&setup, sink);
    other.start().await;
    let mut acked = fill(&other, &some(0, 5)).await;
    sleeper.settles(sink, &acked).await;
    sleeper.recorded().await;
    sink.behave(|_| Reply::Held(200));
    let before = sink.len();
    acked.extend(fill(&other, &some(5, 5)).await);
    sink.wait("a call of each key", |sink| sink.len() == before + KEYS as usize).await;
    sleeper.signal("STOP").await;
    sink.behave(|_| Reply::Status(200));
    owns(&other, 1).await;
    other.settles(sink, &acked).await;
    other.recorded().await;
    (sleeper, other, acked)
}

/// P9, P10, BRK-6, BRK-7: the successor has put a snapshot on record and cut the journal beyond what the sleeper had
/// read. The sleeper starts over from what is left, and repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeper_under_which_the_journal_was_cut_starts_over() {
    let sink = Sink::start().await;
    let (mut sleeper, mut other, mut acked) = asleep("trimmed", &sink).await;
    assert_eq!(other.stop().await, Some(0), "{}", other.output());
    // The successor's epoch is its fence's position, behind everything that the sleeper had read.
    let fence = sink.calls().iter().map(|call| call.epoch).max().expect("there were calls");
    let start = cluster().starts("_keylane.journal.trimmed.trimmed")[0];
    assert!(start > fence, "the journal starts at {start}, and was to be cut above {fence}");
    sink.release();
    sleeper.signal("CONT").await;
    owns(&sleeper, 1).await;
    acked.extend(fill(&sleeper, &some(10, 5)).await);
    sleeper.settles(&sink, &acked).await;
    sleeper.recorded().await;
    let calls = sink.calls();
    check(&acked, &calls).assert_once();
    let newest = calls.iter().map(|call| call.epoch).max();
    assert!(newest > Some(start), "it owns under an epoch of its own: {newest:?}");
    assert_eq!(sleeper.stop().await, Some(0), "{}", sleeper.output());
}

/// P10, BRK-6, BRK-10: records that no snapshot stands for were deleted. The sleeper stops and says so, does nothing on
/// the basis of what it knew, and a restart changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeper_whose_journal_was_deleted_stops_its_partition() {
    let sink = Sink::start().await;
    let (mut sleeper, mut other, acked) = asleep("shredded", &sink).await;
    other.kill9().await;
    delete_records(&cluster(), "_keylane.journal.shredded.shredded", 0, -1);
    let lines: String = (0..20).map(|n| format!("late{n}:{{\"n\":{n}}}\n")).collect();
    cluster().kcat(&["-P", "-t", "shredded", "-K", ":"], &lines);
    let before = sink.len();
    sink.release();
    sleeper.signal("CONT").await;
    let said = ["KL-1307", "its beginning was lost"];
    stopped(&sleeper, &[0], &said).await;
    assert_eq!(sleeper.stop().await, Some(0), "{}", sleeper.output());
    sleeper.spawn();
    stopped(&sleeper, &[0], &said).await;
    assert_eq!(sink.len(), before, "nothing was begun");
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(sleeper.stop().await, Some(0), "{}", sleeper.output());
}

/// P1, P4, BRK-6: the journals' maker died before the first record; the next start goes on as if there were none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journals_that_were_made_and_never_written_are_gone_on_with() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    cluster.tool(&["TopicCommand", "--create", "--topic", "begun", "--partitions", "4"]);
    let lines: String = (0..100).map(|n| format!("early{n}:{{\"n\":{n}}}\n")).collect();
    cluster.kcat(&["-P", "-t", "begun", "-K", ":"], &lines);
    for journal in ["_keylane.journal.begun.begun", "_keylane.hold.begun.begun"] {
        let mut create = vec!["TopicCommand", "--create", "--topic", journal, "--partitions", "4"];
        JOURNAL.iter().for_each(|setting| create.extend(["--config", setting]));
        cluster.tool(&create);
    }
    let mut server = Server::new(&Setup::default().topic("begun").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let mut acked = fill(&server, &many(0, 2, 0)).await;
    server.settles(&sink, &acked).await;
    sink.wait_settled(100 + acked.len() as u64).await;
    server.recorded().await;
    server.kill9().await;
    server.start().await;
    acked.extend(fill(&server, &many(2, 2, 0)).await);
    server.settles(&sink, &acked).await;
    assert_eq!(sink.len(), 100 + acked.len(), "each was called once, what lay there before included");
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
