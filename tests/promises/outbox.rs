//! PRD-5: rows written in a caller's own transaction become messages, each key in order, nothing lost; on real
//! Postgres, MariaDB and SQLite, against the binary.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use keylane_tests::{
    Call, Cluster, Database, Engine, Outbox, OutboxRow, Server, Setup, Sink, fill, items, until,
};
use serde_json::Value;
use sqlx::{Connection, Row};

const BATCH: u64 = 40;
const BATCHES: &str = "batch: 40";

fn setup(outbox: &Outbox, more: &str) -> Setup {
    Setup { top: outbox.yaml(more), ..Setup::default() }
}

async fn status(server: &Server) -> Option<Value> {
    let (code, body) = server.get("/admin/outbox").await?;
    (code == 200).then(|| body["outbox"][0].clone())
}

async fn waits_for(server: &Server, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until(what, async || status(server).await.filter(|status| wanted(status))).await
}

/// The first call of each message, by key, as `n` in the order of the calls.
fn seen(calls: &[Call]) -> BTreeMap<String, Vec<u64>> {
    let (mut keys, mut ids) = (BTreeMap::<String, Vec<u64>>::new(), HashSet::new());
    for call in calls {
        if ids.insert(call.id.clone()) {
            keys.entry(call.key.clone().expect("a key")).or_default().push(call.n.expect("an n"));
        }
    }
    keys
}

/// Messages in the log beyond one for each row.
fn repeats(calls: &[Call]) -> u64 {
    let places: BTreeSet<(u32, u64)> = calls.iter().map(|call| (call.partition, call.offset)).collect();
    let ids: BTreeSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    (places.len() - ids.len()) as u64
}

async fn arrives(sink: &Sink, rows: u64) {
    let enough = move |sink: &Sink| {
        let ids: HashSet<String> = sink.calls().into_iter().map(|call| call.id).collect();
        ids.len() as u64 >= rows
    };
    sink.wait(&format!("{rows} rows to arrive"), enough).await;
}

fn assert_in_order(sink: &Sink, keys: usize, rows: u64) {
    let seen = seen(&sink.calls());
    assert_eq!(seen.len(), keys, "{:?}", seen.keys());
    for (key, numbers) in seen {
        let wanted: Vec<u64> = (0..rows).collect();
        assert_eq!(numbers, wanted, "key {key}");
    }
}

/// Several writers at once, each with keys of its own, in transactions of different sizes.
async fn write(outbox: &Arc<Outbox>, writers: u64, keys: u64, rows: u64) {
    write_from(outbox, writers, keys, 0..rows).await;
}

/// As `write`, with these rows of each key.
async fn write_from(outbox: &Arc<Outbox>, writers: u64, keys: u64, rows: Range<u64>) {
    // SQLite has one writer at a time, and a second may wait in vain while the relay writes as well.
    let writers = if outbox.database.engine == Engine::Sqlite { 1 } else { writers };
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (outbox, rows) = (Arc::clone(outbox), rows.clone());
            tokio::spawn(async move {
                let mine: Vec<String> =
                    (0..keys).filter(|k| k % writers == writer).map(|k| format!("k{k}")).collect();
                let all: Vec<OutboxRow> =
                    rows.flat_map(|n| mine.iter().map(move |key| OutboxRow::new(key, n))).collect();
                let mut rest = &all[..];
                for size in (1..=17).cycle() {
                    let (now, later) = rest.split_at(size.min(rest.len()));
                    outbox.write(now).await;
                    rest = later;
                    if rest.is_empty() {
                        break;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer ends well");
    }
}

async fn many_keys_keep_their_order(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut server = Server::new(&setup(&outbox, BATCHES), &sink);
    server.start().await;
    write(&outbox, 3, 20, 60).await;
    arrives(&sink, 20 * 60).await;
    assert_in_order(&sink, 20, 60);
    assert_eq!(repeats(&sink.calls()), 0);
    let told =
        waits_for(&server, "all to be counted", |told| told["relayed"] == 1200 && told["pending"] == 0).await;
    assert_eq!((&told["state"], &told["last_error"]), (&Value::from("relaying"), &Value::Null), "{told}");
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    let (_, metrics) = server.get("/metrics").await.expect("it answers");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("keylane_outbox_relayed_total{outbox=\"shop\"} 1200"), "{metrics}");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_keep_their_order_from_postgres() {
    many_keys_keep_their_order(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_keep_their_order_from_mariadb() {
    many_keys_keep_their_order(Engine::MariaDb).await;
}

/// PRD-5: on SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_keep_their_order_from_sqlite() {
    many_keys_keep_their_order(Engine::Sqlite).await;
}

/// A transaction takes its number, waits while batches of later ones are relayed, and commits; then its key goes on.
async fn a_late_commit_is_not_passed_over(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut server = Server::new(&setup(&outbox, BATCHES), &sink);
    server.start().await;
    let mut connection = outbox.database.connect().await;
    let mut late = connection.begin().await.expect("a transaction");
    outbox.insert(&mut late, &OutboxRow::new("late", 0)).await.expect("a row");
    write(&outbox, 2, 4, BATCH).await;
    arrives(&sink, 4 * BATCH).await;
    assert!(sink.calls_of("late").is_empty(), "it was not committed");
    late.commit().await.expect("committed");
    // The same key, serialised behind the late row, with many rows of other keys in between.
    for n in 1..5 {
        outbox.write(&[OutboxRow::new("late", n)]).await;
    }
    arrives(&sink, 4 * BATCH + 5).await;
    assert_eq!(seen(&sink.calls())["late"], [0, 1, 2, 3, 4]);
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    // A relay that waited for the late transaction's locks would give up, and repeat what it had sent.
    assert_eq!(repeats(&sink.calls()), 0);
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_not_passed_over_on_postgres() {
    a_late_commit_is_not_passed_over(Engine::Postgres).await;
}

/// PRD-5: on MariaDB. SQLite has one writer at a time, so nothing there commits late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_not_passed_over_on_mariadb() {
    a_late_commit_is_not_passed_over(Engine::MariaDb).await;
}

/// PRD-5: a key that commits while a full table is relayed. Its first row has a low number and commits late; the
/// second, written after that, has a high one. A relay that remembered how far it had read would send the second first.
async fn a_late_commit_amid_batches_keeps_its_keys_order(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(outbox.database.connect().await);
    }
    let mut late = Vec::new();
    for (at, connection) in connections.iter_mut().enumerate() {
        let mut transaction = connection.begin().await.expect("a transaction");
        outbox.insert(&mut transaction, &OutboxRow::new(&format!("late{at}"), 0)).await.expect("a row");
        late.push(transaction);
    }
    write(&outbox, 2, 10, 400).await;
    let mut server = Server::new(&setup(&outbox, "batch: 10"), &sink);
    server.start().await;
    for (at, transaction) in late.into_iter().enumerate() {
        let want = (at as u64 + 1) * 40;
        sink.wait("some batches", |sink| sink.len() as u64 >= want).await;
        transaction.commit().await.expect("committed");
        outbox.write(&[OutboxRow::new(&format!("late{at}"), 1)]).await;
    }
    arrives(&sink, 10 * 400 + 40).await;
    for at in 0..20 {
        assert_eq!(seen(&sink.calls())[&format!("late{at}")], [0, 1]);
    }
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_amid_batches_keeps_its_keys_order_on_postgres() {
    a_late_commit_amid_batches_keeps_its_keys_order(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_amid_batches_keeps_its_keys_order_on_mariadb() {
    a_late_commit_amid_batches_keeps_its_keys_order(Engine::MariaDb).await;
}

async fn a_killed_server_loses_nothing(engine: Engine) {
    const KILLS: u64 = 4;
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut server = Server::new(&setup(&outbox, BATCHES), &sink);
    let (mut kills, mut amid, mut written) = (0, 0, 0);
    // A kill that comes when all rows are relayed shows nothing.
    while amid < KILLS {
        write_from(&outbox, 1, 10, written..written + 100).await;
        written += 100;
        let want = sink.settled() + 2 * BATCH;
        server.start().await;
        sink.wait("a part of the rows", |sink| sink.settled() >= want).await;
        server.kill9().await;
        kills += 1;
        amid += u64::from(!outbox.is_empty().await);
        assert!(kills < 10 * KILLS, "of {kills} kills only {amid} came while there were rows");
    }
    server.start().await;
    arrives(&sink, 10 * written).await;
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    server.recorded().await;
    assert_in_order(&sink, 10, written);
    let repeats = repeats(&sink.calls());
    assert!(repeats <= kills * BATCH, "{repeats} repeats after {kills} kills with batches of {BATCH}");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// PRD-5, P1: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_of_postgres() {
    a_killed_server_loses_nothing(Engine::Postgres).await;
}

/// PRD-5, P1: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_of_mariadb() {
    a_killed_server_loses_nothing(Engine::MariaDb).await;
}

/// PRD-5, P1: on SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_of_sqlite() {
    a_killed_server_loses_nothing(Engine::Sqlite).await;
}

/// PRD-5, P10: a server that is told to stop finishes its batch: nothing is lost, and nothing repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_repeats_nothing() {
    let sink = Sink::start().await;
    let outbox = Arc::new(Engine::Postgres.shared().outbox());
    outbox.create().await;
    let mut server = Server::new(&setup(&outbox, BATCHES), &sink);
    let mut written = 0;
    // A stop that comes when all rows are relayed shows nothing.
    while outbox.is_empty().await {
        assert!(written < 2000, "every stop came too late");
        write_from(&outbox, 1, 10, written..written + 200).await;
        written += 200;
        let want = sink.settled() + 5 * BATCH;
        server.start().await;
        sink.wait("a part of the rows", |sink| sink.settled() >= want).await;
        assert_eq!(server.stop().await, Some(0), "{}", server.output());
    }
    server.start().await;
    arrives(&sink, 10 * written).await;
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    server.recorded().await;
    assert_in_order(&sink, 10, written);
    assert_eq!(repeats(&sink.calls()), 0);
}

async fn one_of_two_relays_and_the_other_takes_over(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut first = Server::new(&setup(&outbox, BATCHES), &sink);
    first.start().await;
    waits_for(&first, "the first to relay", |told| told["state"] == "relaying").await;
    let mut second = Server::new(&setup(&outbox, BATCHES), &sink);
    second.start().await;
    waits_for(&second, "the second to stand by", |told| told["state"] == "standing_by").await;
    write(&outbox, 2, 10, 30).await;
    arrives(&sink, 300).await;
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    assert_eq!(sink.len(), 300, "each once");
    assert_eq!(status(&second).await.expect("it answers")["relayed"], 0);
    first.kill9().await;
    waits_for(&second, "the second to take over", |told| told["state"] == "relaying").await;
    for key in 0..10 {
        outbox.write(&[OutboxRow::new(&format!("k{key}"), 30)]).await;
    }
    arrives(&sink, 310).await;
    assert_in_order(&sink, 10, 31);
    assert_eq!(sink.len(), 310, "each once");
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_relays_and_the_other_takes_over_on_postgres() {
    one_of_two_relays_and_the_other_takes_over(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_relays_and_the_other_takes_over_on_mariadb() {
    one_of_two_relays_and_the_other_takes_over(Engine::MariaDb).await;
}

/// PRD-5: on SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_relays_and_the_other_takes_over_on_sqlite() {
    one_of_two_relays_and_the_other_takes_over(Engine::Sqlite).await;
}

/// More rows than one read takes, each so large that nothing may be sent behind it before it is acknowledged.
async fn large_rows_keep_their_order(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let filler = "x".repeat(900 << 10);
    let large = |key: &str, n: u64| OutboxRow {
        payload: format!("{{\"n\":{n},\"x\":\"{filler}\"}}").into_bytes(),
        ..OutboxRow::new(key, n)
    };
    for n in 0..15 {
        outbox.write(&[large("a", n), large("b", n)]).await;
    }
    let mut server = Server::new(&setup(&outbox, "batch: 1000"), &sink);
    server.start().await;
    arrives(&sink, 30).await;
    assert_in_order(&sink, 2, 15);
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    assert_eq!(repeats(&sink.calls()), 0);
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_rows_keep_their_order_from_postgres() {
    large_rows_keep_their_order(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_rows_keep_their_order_from_mariadb() {
    large_rows_keep_their_order(Engine::MariaDb).await;
}

/// PRD-5: on SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_rows_keep_their_order_from_sqlite() {
    large_rows_keep_their_order(Engine::Sqlite).await;
}

/// Rows that cannot be produced, each for another reason, each with a good row behind it.
async fn a_bad_row_blocks_its_key_alone(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let mut server = Server::new(&setup(&outbox, "batch: 40, retry: 100ms"), &sink);
    server.start().await;
    let bad = [
        OutboxRow { topic: "nowhere".to_owned(), ..OutboxRow::new("topic", 0) },
        OutboxRow { payload: vec![b'x'; 2 << 20], ..OutboxRow::new("large", 0) },
        OutboxRow { headers: Some("{\"a\":1}".to_owned()), ..OutboxRow::new("headers", 0) },
        OutboxRow { id: String::new(), ..OutboxRow::new("id", 0) },
    ];
    let mut rows: Vec<OutboxRow> = bad.to_vec();
    for row in &bad {
        let behind = OutboxRow::new(&row.key, 1);
        rows.push(OutboxRow { topic: row.topic.clone(), ..behind });
    }
    rows.extend((0..100).map(|n| OutboxRow::new("good", n)));
    outbox.write(&rows).await;
    arrives(&sink, 100).await;
    let told = waits_for(&server, "the bad ones to be counted", |told| told["failed"] == 4).await;
    assert!(told["last_error"].is_string(), "{told}");
    until("more attempts", async || {
        let tried = outbox.query("SELECT id FROM {} WHERE attempts > 2").await;
        (tried.len() == 4).then_some(())
    })
    .await;
    let errors = outbox.query("SELECT error FROM {} WHERE error IS NOT NULL ORDER BY seq").await;
    let errors: Vec<String> = errors.iter().map(|row| row.get::<String, _>(0)).collect();
    for (error, part) in
        errors.iter().zip(["no topic nowhere", "max_message", "headers must be", "the id has"])
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert_eq!(sink.len(), 100, "{:?}", seen(&sink.calls()).keys());
    // The rows are repaired one by one; a row that is tried again now and then goes on by itself.
    let payload = if engine == Engine::Postgres { "'{\"n\":0}'::bytea" } else { "'{\"n\":0}'" };
    outbox.query("UPDATE {} SET topic = 't' WHERE topic = 'nowhere'").await;
    outbox.query("UPDATE {} SET headers = '{\"a\":\"b\"}' WHERE headers IS NOT NULL").await;
    outbox.query(&format!("UPDATE {{}} SET payload = {payload} WHERE id = 'large-0'")).await;
    outbox.query("UPDATE {} SET id = 'id-0', failed = 0 WHERE id = ''").await;
    arrives(&sink, 108).await;
    let seen = seen(&sink.calls());
    for key in ["topic", "large", "headers", "id"] {
        assert_eq!(seen[key], [0, 1], "{key}");
    }
    waits_for(&server, "none to be left", |told| told["failed"] == 0 && told["pending"] == 0).await;
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_row_blocks_its_key_alone_on_postgres() {
    a_bad_row_blocks_its_key_alone(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_row_blocks_its_key_alone_on_mariadb() {
    a_bad_row_blocks_its_key_alone(Engine::MariaDb).await;
}

/// PRD-5: on SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_row_blocks_its_key_alone_on_sqlite() {
    a_bad_row_blocks_its_key_alone(Engine::Sqlite).await;
}

async fn a_restarted_database_loses_nothing(engine: Engine) {
    let sink = Sink::start().await;
    let database: Arc<Database> = Arc::new(engine.start());
    let outbox = Arc::new(database.outbox());
    let mut server = Server::new(&setup(&outbox, BATCHES), &sink);
    server.start().await;
    waits_for(&server, "it to relay", |told| told["state"] == "relaying").await;
    for (round, verb) in ["stop", "kill", "stop"].into_iter().enumerate() {
        let rows: Vec<_> =
            (0..20).flat_map(|n| (0..10).map(move |key| (key, 20 * round as u64 + n))).collect();
        let rows: Vec<_> = rows.into_iter().map(|(key, n)| OutboxRow::new(&format!("k{key}"), n)).collect();
        outbox.write(&rows).await;
        database.tell(verb);
        let told = waits_for(&server, "it to say so", |told| told["state"] == "connecting").await;
        assert!(told["last_error"].is_string(), "{told}");
        database.tell("start");
        waits_for(&server, "it to relay again", |told| told["state"] == "relaying").await;
    }
    arrives(&sink, 600).await;
    assert_in_order(&sink, 10, 60);
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    assert!(!server.output().contains("keylane:keylane"), "the password was shown:\n{}", server.output());
}

/// PRD-5, SEC-5: on Postgres. The status and the log do not show the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_postgres_loses_nothing() {
    a_restarted_database_loses_nothing(Engine::Postgres).await;
}

/// PRD-5, SEC-5: on MariaDB. The status and the log do not show the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_mariadb_loses_nothing() {
    a_restarted_database_loses_nothing(Engine::MariaDb).await;
}

/// A user who may read and mark rows, but not remove them.
async fn a_relay_that_may_not_remove_sends_nothing(engine: Engine) {
    let sink = Sink::start().await;
    let outbox = Arc::new(engine.shared().outbox());
    outbox.create().await;
    let user = format!("{}_user", outbox.table);
    let (owner, create) = match engine {
        Engine::Postgres => ("//postgres:", format!("CREATE ROLE {user} LOGIN PASSWORD 'keylane'")),
        _ => ("//keylane:", format!("CREATE USER {user} IDENTIFIED BY 'keylane'")),
    };
    outbox.query(&create).await;
    outbox.query(&format!("GRANT SELECT, UPDATE ON {{}} TO {user}")).await;
    let yaml = outbox.yaml(BATCHES).replace(owner, &format!("//{user}:"));
    let mut server = Server::new(&Setup { top: yaml, ..Setup::default() }, &sink);
    write(&outbox, 1, 2, 10).await;
    server.start().await;
    let told = waits_for(&server, "it to say so", |told| {
        told["last_error"].as_str().is_some_and(|error| error.contains("rows cannot be removed"))
    })
    .await;
    assert_eq!((&told["state"], &told["relayed"]), (&"connecting".into(), &0.into()), "{told}");
    let (_, kept) = server.get("/admin/topics/t/messages").await.expect("it answers");
    assert_eq!(kept, Value::Array(Vec::new()), "nothing was sent");
    outbox.query(&format!("GRANT DELETE ON {{}} TO {user}")).await;
    arrives(&sink, 20).await;
    assert_in_order(&sink, 2, 10);
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    assert_eq!(repeats(&sink.calls()), 0);
}

/// PRD-5: on Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_may_not_remove_sends_nothing_from_postgres() {
    a_relay_that_may_not_remove_sends_nothing(Engine::Postgres).await;
}

/// PRD-5: on MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_may_not_remove_sends_nothing_from_mariadb() {
    a_relay_that_may_not_remove_sends_nothing(Engine::MariaDb).await;
}

/// PRD-5, MSG-4: a topic that is created by its first row has the figures of the profile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_row_makes_its_topic_by_the_profile() {
    let sink = Sink::start().await;
    let outbox = Arc::new(Engine::Sqlite.shared().outbox());
    outbox.create().await;
    let top = format!("profile: production\n{}", outbox.yaml(BATCHES));
    let mut server = Server::new(&Setup { top, topics: Some("{}".to_owned()), ..Setup::default() }, &sink);
    server.start().await;
    outbox.write(&[OutboxRow { topic: "first".to_owned(), ..OutboxRow::new("k", 0) }]).await;
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    let (_, topics) = server.get("/admin/topics").await.expect("it answers");
    let made =
        topics["topics"].as_array().and_then(|topics| topics.iter().find(|topic| topic["name"] == "first"));
    assert_eq!(made.expect("the topic")["partitions"], 12, "{topics}");
}

/// PRD-5, PRD-3, BRK-8: while the broker is away, rows wait in their table, even when other messages are long spilled;
/// when the broker is back, they are handled, each key in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_for_a_broker_that_is_away() {
    let cluster = Cluster::start(1);
    // A new cluster has no coordinator for groups yet; asking about a group makes it, and waits for it.
    cluster.tool(&[
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--describe",
        "--group",
        "t",
    ]);
    let sink = Sink::start().await;
    let outbox = Arc::new(Engine::Postgres.shared().outbox());
    outbox.create().await;
    let top = format!("{}\nspill: {{ after: 1s, drain: 1s }}", outbox.yaml(BATCHES));
    let setup = Setup { top, ..Setup::default() }
        .on_kafka(&cluster, "session.timeout.ms: 6000, heartbeat.interval.ms: 1500");
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    write(&outbox, 1, 10, 20).await;
    arrives(&sink, 200).await;
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    cluster.kill(1);
    for n in 20..60 {
        let rows: Vec<_> = (0..10).map(|key| OutboxRow::new(&format!("k{key}"), n)).collect();
        outbox.write(&rows).await;
    }
    waits_for(&server, "it to say so", |told| {
        told["last_error"].as_str().is_some_and(|error| error.contains("topic t: the broker did not take"))
    })
    .await;
    let spilled = fill(&server, &items("other", 0, 1)).await;
    assert!(spilled[0].offset.is_none(), "the cluster is away");
    let spill = until("the cluster to be missed several times", async || {
        let (_, spill) = server.get("/admin/spill").await?;
        let lines = spill["lines"].as_array()?;
        lines.iter().any(|line| line["retries"].as_u64() >= Some(6)).then_some(spill)
    })
    .await;
    assert_eq!(outbox.len().await, 400, "nothing leaves the table");
    assert_eq!(spill["messages"], 1, "no row is spilled: {spill}");
    let told = status(&server).await.expect("it answers");
    assert_eq!((&told["state"], &told["relayed"]), (&"relaying".into(), &200.into()), "{told}");
    cluster.restart(1);
    until("the table to be empty", async || outbox.is_empty().await.then_some(())).await;
    arrives(&sink, 601).await;
    let mut keys = seen(&sink.calls());
    assert_eq!(keys.remove("other"), Some(vec![0]));
    assert_eq!(keys.len(), 10, "{:?}", keys.keys());
    for (key, numbers) in keys {
        assert_eq!(numbers, (0..60).collect::<Vec<u64>>(), "key {key}");
    }
}
