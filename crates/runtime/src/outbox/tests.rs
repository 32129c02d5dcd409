//! What needs no database server: options, statements, and what a row means.

use std::time::Duration;

use keylane_broker::ProduceError;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row as _};

use super::relay::Refusal;
use super::row::Row;
use super::table::Table;
use super::*;

/// PRD-5, SEC-5.
#[test]
fn options_are_shown_without_their_url() {
    let options = OutboxOptions::new("postgres://shop:secret@db/shop").table("t");
    let shown = format!("{options:?}");
    assert!(!shown.contains("secret") && shown.contains("(redacted)") && shown.contains("\"t\""), "{shown}");
}

/// PRD-5.
#[test]
fn options_that_make_no_sense_are_refused_without_showing_the_url() {
    let good = OutboxOptions::new("mysql://shop:secret@db/shop");
    assert_eq!(good.check(), Ok(()));
    let bad = [
        OutboxOptions::new("oracle://shop:secret@db/shop"),
        OutboxOptions::new("sqlite::memory:"),
        OutboxOptions::new("sqlite://secret?mode=memory"),
        good.clone().table("a.b.c"),
        good.clone().table("1a"),
        good.clone().table("a; DROP TABLE a"),
        good.clone().table(""),
        good.clone().batch(0),
        good.clone().batch(BATCH_MAX + 1),
        good.clone().poll(Duration::ZERO),
    ];
    for options in bad {
        let why = options.check().expect_err("refused");
        assert!(!why.contains("secret"), "{why}");
    }
    assert_eq!(good.table("shop.outbox").check(), Ok(()));
}

/// PRD-5: a row as it was written, in each way that SQLite lets one be written.
#[tokio::test]
async fn a_row_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}/a.db?mode=rwc", folder.path().display());
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(&url).await.expect("a file");
    let table = Table::new(&url, "o").expect("a name");
    sqlx::raw_sql(AssertSqlSafe(table.ddl())).execute(&mut connection).await.expect("a table");
    let insert = "INSERT INTO o (id, topic, key, payload, headers, version, created_at) VALUES \
                  ('a', 't', x'00ff', x'01', '{\"z\":\"1\",\"a\":\"2\"}', 7, '2026-01-02 03:04:05.678'), \
                  ('b', 't', 'text', 'text', NULL, NULL, '2026-01-02'), \
                  ('c', 't', NULL, NULL, '[]', NULL, '2026-01-02'), \
                  ('d', 't', '', '', NULL, -1, '2026-01-02')";
    sqlx::query(insert).execute(&mut connection).await.expect("rows");
    let found = sqlx::query(AssertSqlSafe(table.read(0))).bind(10_i64).fetch_all(&mut connection).await;
    let rows: Vec<Row> = found.expect("rows").iter().map(|row| Row::of(row).expect("a row")).collect();
    let shown = |row: &Row| {
        row.with_draft(5, |draft| {
            let headers: Vec<&str> = draft.headers.iter().map(|(name, _)| *name).collect();
            format!(
                "{} {:?} {:?} {headers:?} {:?} {}",
                draft.id, draft.key, draft.payload, draft.version, draft.produced_ms
            )
        })
    };
    // Through a floating day count: off by a millisecond at most.
    let first = shown(&rows[0]).expect("a message");
    assert!(first.starts_with("a Some([0, 255]) Some([1]) [\"z\", \"a\"] Some(7) 176732304567"), "{first}");
    assert_eq!(rows[1].key.as_deref(), Some(&b"text"[..]));
    assert!(
        shown(&rows[1]).expect("a message").contains("Some([116, 101, 120, 116]) Some([116, 101, 120, 116])")
    );
    assert!(shown(&rows[2]).expect_err("no object").contains("headers must be a JSON object"));
    assert_eq!(rows[2].key, None);
    assert!(shown(&rows[3]).expect_err("negative").contains("version is -1"));
    assert_eq!(rows[3].key.as_deref(), Some(&b""[..]), "an empty key is a key");
    let made =
        sqlx::query("INSERT INTO o (topic) VALUES ('t') RETURNING id").fetch_one(&mut connection).await;
    assert_eq!(made.expect("a row").get::<String, _>(0).len(), 32, "an id is made");
}

/// PRD-5: what the broker refuses for the message's own sake blocks its key; the rest is waited for.
#[test]
fn what_is_refused_for_good_is_told_from_what_passes() {
    let topic = || "t".to_owned();
    let for_good = [
        ProduceError::TooLarge { topic: topic(), bytes: 2, bytes_max: 1 },
        ProduceError::TooLargeThere(topic()),
        ProduceError::UnknownTopic(topic()),
        ProduceError::Invalid(topic()),
    ];
    for error in for_good {
        assert!(Refusal::of(error.clone().into()).is_final(), "{error}");
    }
    let passing = [
        ProduceError::Unavailable(topic()),
        ProduceError::Denied(topic()),
        ProduceError::Full { topic: topic(), bytes: 1, bytes_max: 1 },
        ProduceError::SpillFull { bytes: 1, bytes_max: 1 },
    ];
    for error in passing {
        assert!(!Refusal::of(error.clone().into()).is_final(), "{error}");
    }
}
