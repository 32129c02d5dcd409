//! PRD-5: the relay's behaviour when the broker, a row or the table has a fault. Runs on SQLite, which needs no server;
//! `tests/promises/outbox.rs` has the other databases, and the binary.
#![cfg(feature = "sql")]

mod wait;

use std::collections::BTreeSet;
use std::time::Duration;

use keylane::outbox::{OutboxOptions, OutboxRelay, OutboxStatus, ddl};
use keylane::raw::{Clock, Tasks};
use keylane::{Config, Keylane, Message, SpillOptions, TopicSpec};
use keylane_broker::MemoryBroker;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::watch;
use wait::until;

/// An outbox in a file.
struct Shop {
    _folder: TempDir,
    url: String,
}

impl Shop {
    async fn new() -> Shop {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}/shop.db?mode=rwc", folder.path().display());
        let shop = Shop { _folder: folder, url };
        shop.execute(&ddl(&shop.url, "keylane_outbox").expect("a good name")).await;
        shop
    }

    async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect(&self.url).await.expect("a file")
    }

    async fn execute(&self, sql: &str) {
        let mut connection = self.connect().await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("it fits");
    }

    /// Writes rows with key and payload as text.
    async fn write(&self, rows: &[(&str, &str)]) {
        for (key, payload) in rows {
            let values = format!("('t', '{key}', '{payload}')");
            self.execute(&format!("INSERT INTO keylane_outbox (topic, key, payload) VALUES {values}")).await;
        }
    }

    async fn rows(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM keylane_outbox");
        count.fetch_one(&mut self.connect().await).await.expect("a count")
    }

    /// Why rows failed, in their order.
    async fn errors(&self) -> Vec<String> {
        let errors = sqlx::query_scalar("SELECT error FROM keylane_outbox WHERE failed <> 0 ORDER BY seq");
        errors.fetch_all(&mut self.connect().await).await.expect("texts")
    }

    async fn gone(&self, what: &str) {
        for _ in 0..6000 {
            if self.rows().await == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {what}; {:?}", self.errors().await);
    }

    fn relay(&self, keylane: &Keylane) -> (OutboxRelay, watch::Receiver<OutboxStatus>) {
        self.relay_of(keylane, OutboxOptions::new(&self.url).poll(Duration::from_millis(20)))
    }

    fn relay_of(
        &self,
        keylane: &Keylane,
        options: OutboxOptions,
    ) -> (OutboxRelay, watch::Receiver<OutboxStatus>) {
        let relay = keylane.outbox(options);
        let status = relay.watch();
        (relay, status)
    }
}

async fn says(status: &watch::Receiver<OutboxStatus>, what: &str) {
    let said = || status.borrow().last_error.as_ref().is_some_and(|error| error.contains(what));
    until(&format!("it says {what:?}"), said).await;
}

/// A broker on another machine, with one topic `t` of one partition, and a spill.
async fn far() -> (MemoryBroker, Keylane) {
    let (clock, tasks) = (Clock::system(), Tasks::default());
    let far = MemoryBroker::new(1, move || clock.wall_ms());
    let near = MemoryBroker::new(2, move || clock.wall_ms()).node("near");
    let options = SpillOptions::default();
    let keylane = Keylane::with_spill(far.node("here"), near, options, clock, tasks, false).await;
    let keylane = keylane.expect("it opens");
    keylane.ensure_topic("t", &one_partition()).await.expect("a topic");
    keylane.producer().call("t").await.expect("it is known from now on");
    (far, keylane)
}

fn one_partition() -> TopicSpec {
    TopicSpec { partitions: 1, ..TopicSpec::default() }
}

async fn log(keylane: &Keylane) -> Vec<String> {
    let kept = keylane.peek("t", 0, 0, 100).await.expect("a log");
    kept.iter().map(|message| String::from_utf8_lossy(message.payload().unwrap_or_default()).into()).collect()
}

/// PRD-5: a spilled row would exist on this machine only, and could be gone, or come too late, once a relay on another
/// machine takes over.
#[tokio::test]
async fn rows_are_not_spilled() {
    let (far, keylane) = far().await;
    let shop = Shop::new().await;
    far.cut_off("here");
    shop.write(&[("k", "1"), ("k", "2")]).await;
    let (relay, status) = shop.relay(&keylane);
    let body = async {
        says(&status, "topic t: the broker did not take the message").await;
        until("the broker was asked for some time", || {
            keylane.spill().lines.iter().any(|line| line.retries > 1)
        })
        .await;
        assert_eq!(shop.rows().await, 2);
        assert_eq!((keylane.spill().messages, keylane.spill().degraded_messages), (0, 0));
        far.reconnect("here");
        shop.gone("rows are sent to a broker that is back").await;
    };
    relay.run_until(body).await.expect("it ran");
    assert_eq!(log(&keylane).await, ["1", "2"]);
}

/// PRD-5, PRD-3: messages that an application produced earlier, and that wait in the spill, stay before the row.
#[tokio::test]
async fn a_row_does_not_overtake_what_waits_in_the_spill() {
    let (far, keylane) = far().await;
    let shop = Shop::new().await;
    far.cut_off("here");
    let receipt = keylane.produce(Message::to("t").key("k").payload("before")).await.expect("spilled");
    assert!(receipt.is_spilled());
    shop.write(&[("k", "row")]).await;
    let (relay, status) = shop.relay(&keylane);
    let body = async {
        says(&status, "wait in the spill of this machine").await;
        assert_eq!(shop.rows().await, 1);
        far.reconnect("here");
        shop.gone("the row is sent behind it").await;
    };
    relay.run_until(body).await.expect("it ran");
    assert_eq!(log(&keylane).await, ["before", "row"]);
}

/// PRD-5, PRD-3: behind a message that was refused for good, rows of its key wait and say why, and others go on.
#[tokio::test]
async fn a_row_behind_a_refused_message_of_its_key_blocks_its_key_alone() {
    let (far, keylane) = far().await;
    let shop = Shop::new().await;
    far.cut_off("here");
    let large = Message::to("t").key("k").payload("x".repeat(600));
    assert!(keylane.produce(large).await.expect("spilled").is_spilled());
    far.delete_topic("t");
    let smaller = TopicSpec { message_bytes_max: 300, ..one_partition() };
    far.node("there").create_topic("t", &smaller).await.expect("a topic");
    far.reconnect("here");
    until("it is refused", || keylane.spill().blocked_keys == 1).await;
    shop.write(&[("k", "behind"), ("l", "other")]).await;
    let (relay, status) = shop.relay(&keylane);
    let body = async {
        until("the other goes on", || status.borrow().relayed == 1).await;
        until("it is counted", || status.borrow().failed == 1).await;
    };
    relay.run_until(body).await.expect("it ran");
    let errors = shop.errors().await;
    assert!(errors.len() == 1 && errors[0].contains("/admin/spill"), "{errors:?}");
    assert_eq!(log(&keylane).await, ["other"]);
}

/// PRD-5, P1, P2: a relay that dies behind the mark of a refused row, or while that row is tried again, leaves nothing
/// half done: the next relay tries the row alone, and later rows of its key wait until it is through.
#[tokio::test]
async fn a_relay_that_dies_around_a_failed_mark_sends_nothing_past_it() {
    let (far, keylane) = far().await;
    let shop = Shop::new().await;
    let there = far.node("there");
    let limited = async |message_bytes_max: usize| {
        far.delete_topic("t");
        let spec = TopicSpec { message_bytes_max, ..one_partition() };
        there.create_topic("t", &spec).await.expect("a topic");
    };
    // Only the broker knows of the limit, so the row is refused after it was sent, not before.
    limited(300).await;
    shop.write(&[("k", &"x".repeat(600))]).await;
    let attempts = async || -> i64 {
        let sum = sqlx::query_scalar("SELECT COALESCE(MAX(attempts), 0) FROM keylane_outbox");
        sum.fetch_one(&mut shop.connect().await).await.expect("a number")
    };
    let dies_behind = async |tries: i64, retry: Duration| {
        let options = OutboxOptions::new(&shop.url).poll(Duration::from_millis(1)).retry(retry);
        let (relay, _) = shop.relay_of(&keylane, options);
        tokio::select! {
            ended = relay.run_until(std::future::pending::<()>()) => panic!("it ended: {ended:?}"),
            () = async { while attempts().await < tries {} } => {}
        }
    };
    let never = Duration::from_secs(86_400);
    dies_behind(1, never).await;
    assert_eq!(shop.errors().await.len(), 1, "it is marked");
    shop.write(&[("k", "behind"), ("l", "other")]).await;
    dies_behind(2, never).await;
    // The row is marked and tried again without a pause, and each relay dies at another point of that.
    for tries in 3..30 {
        dies_behind(tries, Duration::from_millis(1)).await;
    }
    // The state that a relay leaves if it dies after it let the row be read again, and before it sent it.
    shop.execute("UPDATE keylane_outbox SET failed = 0").await;
    dies_behind(attempts().await + 1, never).await;
    assert_eq!((log(&keylane).await, shop.rows().await), (vec!["other".to_owned()], 2));
    limited(1 << 20).await;
    let (relay, _) = shop.relay(&keylane);
    relay.run_until(shop.gone("both are sent")).await.expect("it ran");
    assert_eq!(log(&keylane).await, [&"x".repeat(600), "behind"]);
}

/// PRD-5: a row stays until its message is acknowledged, not only until it is sent.
#[tokio::test]
async fn a_row_stays_until_its_message_is_acknowledged() {
    let clock = Clock::system();
    let far = MemoryBroker::new(1, move || clock.wall_ms());
    let keylane = Keylane::with_broker(far.node("here"), clock, Tasks::default(), false);
    keylane.ensure_topic("t", &one_partition()).await.expect("a topic");
    keylane.producer().call("t").await.expect("it is known from now on");
    let shop = Shop::new().await;
    shop.write(&[("k", "1"), ("l", "1")]).await;
    let never = Duration::from_secs(86_400);
    far.set_latency(never, never);
    let options = OutboxOptions::new(&shop.url).drain(Duration::ZERO);
    let (relay, status) = shop.relay_of(&keylane, options);
    let body = async {
        until("they are on their way", || keylane.producer().in_flight() == 1).await;
        assert_eq!((shop.rows().await, status.borrow().relayed), (2, 0));
    };
    relay.run_until(body).await.expect("it ran");
    assert_eq!(shop.rows().await, 2, "a relay that is told to stop has no answer either");
    far.set_latency(Duration::ZERO, Duration::ZERO);
    let (relay, _) = shop.relay(&keylane);
    relay.run_until(shop.gone("they are sent")).await.expect("it ran");
    // Messages that were on their way have landed as well: an answer that does not come proves nothing.
    let kept = keylane.peek("t", 0, 0, 100).await.expect("a log");
    let ids: BTreeSet<&str> = kept.iter().map(|message| message.id()).collect();
    assert_eq!((kept.len(), ids.len()), (4, 2));
}

/// PRD-5: SQLite takes anything in any column. A row that cannot be read is refused, and blocks its key alone.
#[tokio::test]
async fn a_row_that_cannot_be_read_blocks_its_key_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let keylane =
        Keylane::open(Config::embedded(folder.path()).new_topic(one_partition())).await.expect("it opens");
    let shop = Shop::new().await;
    shop.execute(
        "INSERT INTO keylane_outbox (id, topic, key, payload, version) VALUES \
         ('a', x'74', 'blob topic', 'bad', NULL), \
         ('b', 't', 'text version', 'bad', 'seven'), \
         ('c', 't', 'real payload', 1.5, NULL), \
         ('d', 't', 'no utf-8', CAST(x'ff' AS TEXT), NULL), \
         ('e', 't', 1.5, 'bad', NULL), \
         (CAST(x'ff' AS TEXT), 't', 'id', 'bad', NULL), \
         ('g', 't', 'blob topic', 'behind', NULL), \
         ('h', 't', 'text version', 'behind', NULL), \
         ('i', 't', 'real payload', 'behind', NULL), \
         ('j', 't', 'no utf-8', 'behind', NULL), \
         ('k', 't', '1.5', 'behind', NULL), \
         ('l', 't', 'id', 'behind', NULL), \
         ('m', 't', 17, 1, NULL), \
         ('n', 't', '17', 2, NULL), \
         ('o', 't', 'good', 'good', NULL)",
    )
    .await;
    let (relay, status) = shop.relay(&keylane);
    let body = async {
        until("the good ones are sent", || status.borrow().relayed >= 3).await;
        until("the bad ones are counted", || status.borrow().failed == 6).await;
    };
    relay.run_until(body).await.expect("it ran");
    assert_eq!(log(&keylane).await, ["1", "2", "good"]);
    assert_eq!(keylane.peek("t", 0, 0, 1).await.expect("a log")[0].key(), Some(&b"17"[..]));
    let errors = shop.errors().await;
    let parts = ["topic holds BLOB", "version holds TEXT", "payload holds ", "utf-8", "key holds ", "utf-8"];
    assert_eq!(errors.len(), parts.len(), "{errors:?}");
    for ((row, error), part) in (1..).zip(&errors).zip(parts) {
        assert!(error.starts_with(&format!("row {row} cannot be read")) && error.contains(part), "{error}");
    }
    shop.execute(
        "UPDATE keylane_outbox SET id = 'x' || seq, topic = 't', key = CAST(key AS TEXT), payload = 'repaired', \
         version = NULL WHERE failed <> 0",
    )
    .await;
    let (relay, _) = shop.relay(&keylane);
    relay.run_until(shop.gone("they are sent")).await.expect("it ran");
    let sent = log(&keylane).await;
    assert_eq!(sent.iter().filter(|payload| *payload == "repaired").count(), 6, "{sent:?}");
    assert_eq!(sent.iter().filter(|payload| *payload == "behind").count(), 6, "{sent:?}");
}

/// PRD-5: if a table does not let go of its rows, they are not sent over and over.
async fn nothing_is_sent_while_rows_are_not_removed(trigger: &str, said: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let keylane =
        Keylane::open(Config::embedded(folder.path()).new_topic(one_partition())).await.expect("it opens");
    let shop = Shop::new().await;
    shop.execute(&format!(
        "CREATE TRIGGER kept BEFORE DELETE ON keylane_outbox BEGIN SELECT RAISE({trigger}); END"
    ))
    .await;
    shop.write(&[("k", "1")]).await;
    let (relay, status) = shop.relay(&keylane);
    let body = async {
        says(&status, "1 rows that were sent are not removed yet").await;
        shop.write(&[("k", "2")]).await;
        // The error shows only while the relay tries, so this is another session.
        let again = || status.borrow().last_error.as_ref().is_some_and(|error| error.ends_with(said));
        until("another session tries", again).await;
        assert_eq!((log(&keylane).await, status.borrow().relayed), (vec!["1".to_owned()], 0));
        shop.execute("DROP TRIGGER kept").await;
        shop.gone("it goes on").await;
        until("both are counted", || status.borrow().relayed == 2).await;
    };
    relay.run_until(body).await.expect("it ran");
    assert_eq!(log(&keylane).await, ["1", "2"]);
}

/// PRD-5: with an error, as on a full disk.
#[tokio::test]
async fn nothing_is_sent_while_rows_cannot_be_removed() {
    nothing_is_sent_while_rows_are_not_removed("ABORT, 'not this one'", "not this one").await;
}

/// PRD-5: without an error, as with a policy of Postgres.
#[tokio::test]
async fn nothing_is_sent_while_rows_stay_though_removed() {
    nothing_is_sent_while_rows_are_not_removed("IGNORE", "that keeps them").await;
}

/// PRD-5: another row with the number of a row that was sent is not removed in its place, neither in the session that
/// sent it nor in a later one.
#[tokio::test]
async fn a_row_of_a_table_made_anew_is_not_removed_for_another() {
    for said in ["not this one", "nothing is sent before they are"] {
        let folder = tempfile::tempdir().expect("a folder");
        let keylane = Keylane::open(Config::embedded(folder.path()).new_topic(one_partition())).await;
        let keylane = keylane.expect("it opens");
        let shop = Shop::new().await;
        shop.execute(
            "CREATE TRIGGER kept BEFORE DELETE ON keylane_outbox BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .await;
        shop.write(&[("k", "old")]).await;
        let (relay, status) = shop.relay(&keylane);
        let body = async {
            let said_it = || status.borrow().last_error.as_ref().is_some_and(|error| error.ends_with(said));
            until("it says so", said_it).await;
            shop.execute(&format!(
                "BEGIN; DROP TABLE keylane_outbox; {} \
                 INSERT INTO keylane_outbox (topic, payload) VALUES ('t', 'new'); COMMIT",
                ddl(&shop.url, "keylane_outbox").expect("a good name")
            ))
            .await;
            shop.gone("it is sent").await;
        };
        relay.run_until(body).await.expect("it ran");
        assert_eq!(log(&keylane).await, ["old", "new"], "{said}");
    }
}

/// PRD-5: a relay that may not remove rows says so before it sends anything.
#[tokio::test]
async fn nothing_is_sent_from_a_table_that_cannot_be_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let keylane = Keylane::open_embedded(folder.path()).await.expect("it opens");
    let shop = Shop::new().await;
    shop.write(&[("k", "1")]).await;
    let options = OutboxOptions::new(shop.url.replace("rwc", "ro"));
    let (relay, status) = shop.relay_of(&keylane, options);
    relay.run_until(says(&status, "rows cannot be removed")).await.expect("it ran");
    assert_eq!(keylane.topics().await.expect("topics").len(), 0);
    assert_eq!(shop.rows().await, 1);
}

/// PRD-5, MSG-4: a topic that is created by its first row is as the config says.
#[tokio::test]
async fn a_first_row_makes_its_topic_as_configured() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = TopicSpec { partitions: 7, ..TopicSpec::default() };
    let keylane = Keylane::open(Config::embedded(folder.path()).new_topic(spec)).await.expect("it opens");
    let shop = Shop::new().await;
    shop.write(&[("k", "1")]).await;
    let (relay, _) = shop.relay(&keylane);
    relay.run_until(shop.gone("it is sent")).await.expect("it ran");
    assert_eq!(keylane.topics().await.expect("topics")[0].partitions, 7);
}
