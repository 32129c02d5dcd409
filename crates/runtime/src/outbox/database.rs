//! One session with the database, which holds the table's lock. All that is read and written goes over it: a session
//! that is gone has lost its lock, and can read nothing more.
//!
//! SQLite has no lock that outlives a transaction without stopping its writers. There the lock is one of the system's,
//! on a file beside the database's, and ends with the process.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::future::Future;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::any::{AnyArguments, install_default_drivers};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, AssertSqlSafe, Connection, Row as _};

use super::row::Row;
use super::table::Table;

/// A statement that takes longer has failed, and the session with it: behind a dead network nothing ever answers.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Bytes of rows read at once: a quarter of what may be on its way to the broker (`produce/call.rs`).
const READ_BYTES_MAX: usize = 16 << 20;
/// How long an error of a row may be: it is read by people.
const ERROR_CHARS_MAX: usize = 1000;
/// Rows that one statement changes: each is a part of its text.
const CHANGE_MAX: usize = 500;
/// Failed rows that are tried again at once.
const AGAIN_MAX: i64 = 1000;

/// What went wrong with the database.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the database says: {0}")]
    Sql(#[from] sqlx::Error),
    #[error("the database did not answer within {ANSWER_MAX:?}")]
    Slow,
    #[error(
        "rows cannot be removed, so that none is sent: {0}; the relay needs the rights to SELECT, UPDATE and DELETE, and a database that takes changes now"
    )]
    MayNotRemove(sqlx::Error),
    #[error(
        "rows were removed without an error and are still there; look for a policy, a rule or a trigger of the table's that keeps them"
    )]
    NotRemoved,
    #[error("the lock file beside the database cannot be had: {0}")]
    LockFile(#[from] std::io::Error),
}

impl Trouble {
    /// What is told of it.
    pub(super) fn told(&self) -> String {
        // Postgres, MySQL and MariaDB have a code for it, SQLite only says so.
        let is_missing = |error: &dyn sqlx::error::DatabaseError| {
            matches!(error.code().as_deref(), Some("42P01" | "42S02"))
                || error.message().contains("no such table")
        };
        match self {
            Trouble::Sql(sqlx::Error::Database(error)) if is_missing(&**error) => {
                format!(
                    "{self}; create the table as docs/outbox.md says, or let the relay do it with `create`"
                )
            }
            _ => self.to_string(),
        }
    }

    /// True if a row could not be read, though the database gave it.
    fn is_of_a_row(&self) -> bool {
        matches!(self, Trouble::Sql(sqlx::Error::Decode(_)))
    }

    /// True if the session lives, and the same statement may do better: a lock, a deadlock, a busy file.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Trouble::Sql(sqlx::Error::Database(_)) | Trouble::NotRemoved)
    }
}

/// A session.
pub(super) struct Database {
    table: Table,
    connection: AnyConnection,
    /// SQLite's lock, once we have it.
    lock: Option<File>,
    again_after: i64,
}

/// What a look into the table found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// In their order; none if some cannot be read: what is behind those must not be sent before they are marked.
    pub(super) rows: Vec<Row>,
    /// Rows that cannot be read, by why not.
    pub(super) unreadable: RefusedRows,
}

/// Rows by why they were refused.
pub(super) type RefusedRows = BTreeMap<String, Vec<i64>>;

/// A row whose message is durable: its number and its id.
pub(super) type Sent = (i64, String);

/// What is in the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) pending: u64,
    pub(super) failed: u64,
}

impl Database {
    /// Connects, and makes the table if asked to.
    pub(super) async fn open(url: &str, table: &Table, create: bool) -> Result<Database, Trouble> {
        install_default_drivers();
        let connection = within(AnyConnection::connect(url)).await?;
        let mut database = Database { table: table.clone(), connection, lock: None, again_after: 0 };
        if let Some(prepare) = table.prepare() {
            within(sqlx::raw_sql(prepare).execute(&mut database.connection)).await?;
        }
        // Only if it is not there: even to find an index that exists, Postgres waits for all who write to the table.
        if create && database.count().await.is_err() {
            let ddl = AssertSqlSafe(table.ddl());
            within(sqlx::raw_sql(ddl).execute(&mut database.connection)).await?;
        }
        Ok(database)
    }

    /// Tries to take the table's lock; true once it is ours.
    pub(super) async fn lock(&mut self, url: &str) -> Result<bool, Trouble> {
        match self.table.lock() {
            Some(statement) => {
                let name = self.table.name.clone();
                let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(statement)).bind(name);
                Ok(within(query.fetch_one(&mut self.connection)).await? == 1)
            }
            None => {
                self.lock = lock_file(url, &self.table)?;
                Ok(self.lock.is_some())
            }
        }
    }

    /// The lowest rows that may be sent, but for those of `waiting` topics: at most `batch`, and about so many bytes.
    pub(super) async fn read(&mut self, waiting: &[String], batch: usize) -> Result<Found, Trouble> {
        match self.read_together(waiting, batch).await {
            Err(trouble) if trouble.is_of_a_row() => self.read_each(waiting, batch).await,
            found => found,
        }
    }

    async fn read_together(&mut self, waiting: &[String], batch: usize) -> Result<Found, Trouble> {
        let query = sqlx::query(AssertSqlSafe(self.table.read(waiting.len())));
        let query = bind(query.persistent(waiting.is_empty()), waiting).bind(batch as i64);
        let mut reading = query.fetch(&mut self.connection);
        within(async {
            let (mut found, mut bytes) = (Found::default(), 0);
            while bytes < READ_BYTES_MAX
                && let Some(row) = reading.try_next().await?
            {
                match Row::of(&row) {
                    Ok(row) => {
                        bytes += row.bytes();
                        found.rows.push(row);
                    }
                    Err(why) => found.cannot_read(row.try_get(0)?, &why),
                }
            }
            if !found.unreadable.is_empty() {
                found.rows.clear();
            }
            Ok(found)
        })
        .await
    }

    /// Finds the rows that keep others from being read with them: SQLite's texts need not be UTF-8.
    async fn read_each(&mut self, waiting: &[String], batch: usize) -> Result<Found, Trouble> {
        let query = sqlx::query(AssertSqlSafe(self.table.read_numbers(waiting.len()))).persistent(false);
        let query = bind(query, waiting).bind(batch as i64);
        let numbers = within(query.fetch_all(&mut self.connection)).await?;
        let mut found = Found::default();
        for number in numbers {
            let seq: i64 = number.try_get(0)?;
            let query = sqlx::query(AssertSqlSafe(self.table.read_one())).bind(seq);
            match within(query.fetch_optional(&mut self.connection)).await {
                Ok(_) => {}
                Err(trouble) if trouble.is_of_a_row() => found.cannot_read(seq, &trouble.to_string()),
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(found)
    }

    /// Fails unless rows may be removed.
    pub(super) async fn check_removing(&mut self) -> Result<(), Trouble> {
        let query = sqlx::query(AssertSqlSafe(self.table.remove_none())).persistent(false);
        match within(query.execute(&mut self.connection)).await {
            Err(Trouble::Sql(error @ sqlx::Error::Database(_))) => Err(Trouble::MayNotRemove(error)),
            other => other.map(drop),
        }
    }

    /// Removes rows that are durable elsewhere.
    pub(super) async fn remove(&mut self, sent: &[Sent]) -> Result<(), Trouble> {
        let rows: Vec<i64> = sent.iter().map(|(seq, _)| *seq).collect();
        let removed = self.change(Table::remove, &rows, None).await?;
        match removed < rows.len() as u64 && !self.left(sent).await?.is_empty() {
            true => Err(Trouble::NotRemoved),
            false => Ok(()),
        }
    }

    /// Removes those that are still there. Not by their numbers alone: in a table that was made anew, or in a database
    /// that was restored, another row may have the number.
    pub(super) async fn remove_left(&mut self, sent: &[Sent]) -> Result<(), Trouble> {
        let left = self.left(sent).await?;
        self.remove(&left).await
    }

    /// Which of these are in the table.
    async fn left(&mut self, sent: &[Sent]) -> Result<Vec<Sent>, Trouble> {
        let mut left = Vec::new();
        for sent in sent.chunks(CHANGE_MAX) {
            let statement = AssertSqlSafe(self.table.ids(sent.len()));
            let mut query = sqlx::query_as::<_, Sent>(statement).persistent(false);
            for (seq, _) in sent {
                query = query.bind(*seq);
            }
            let there = within(query.fetch_all(&mut self.connection)).await?;
            left.extend(there.into_iter().filter(|row| sent.contains(row)));
        }
        Ok(left)
    }

    /// Marks rows with why they were refused.
    pub(super) async fn fail(&mut self, refused: &RefusedRows) -> Result<(), Trouble> {
        for (error, rows) in refused {
            // Postgres takes no zero byte in a text.
            let error: String = error.chars().filter(|sign| *sign != '\0').take(ERROR_CHARS_MAX).collect();
            self.change(Table::fail, rows, Some(&error)).await?;
        }
        Ok(())
    }

    /// Lets failed rows be read again: some at a time, in turn.
    pub(super) async fn again(&mut self) -> Result<(), Trouble> {
        let statement = AssertSqlSafe(self.table.failed());
        let query = sqlx::query_scalar::<_, i64>(statement).bind(self.again_after).bind(AGAIN_MAX);
        let rows = within(query.fetch_all(&mut self.connection)).await?;
        self.again_after = if rows.len() < AGAIN_MAX as usize { 0 } else { rows[rows.len() - 1] };
        self.change(Table::again, &rows, None).await.map(drop)
    }

    /// Counts what there is.
    pub(super) async fn count(&mut self) -> Result<Counts, Trouble> {
        let all = sqlx::query_scalar::<_, i64>(AssertSqlSafe(self.table.count()));
        let pending = within(all.fetch_one(&mut self.connection)).await?;
        let failed = sqlx::query_scalar::<_, i64>(AssertSqlSafe(self.table.count_failed()));
        let failed = within(failed.fetch_one(&mut self.connection)).await?;
        Ok(Counts { pending: pending as u64, failed: failed as u64 })
    }

    /// Ends the session, so that its lock is free at once.
    pub(super) async fn close(self) {
        let _gone_either_way = within(self.connection.close()).await;
    }

    async fn change(
        &mut self,
        statement: fn(&Table, usize) -> String,
        rows: &[i64],
        text: Option<&str>,
    ) -> Result<u64, Trouble> {
        let mut changed = 0;
        for rows in rows.chunks(CHANGE_MAX) {
            // Not kept prepared: there would be one for each number of rows.
            let statement = AssertSqlSafe(statement(&self.table, rows.len()));
            let mut query: Query<'_, Any, AnyArguments> = sqlx::query(statement).persistent(false);
            for row in rows {
                query = query.bind(*row);
            }
            if let Some(text) = text {
                query = query.bind(text.to_owned());
            }
            changed += within(query.execute(&mut self.connection)).await?.rows_affected();
        }
        Ok(changed)
    }
}

impl Found {
    fn cannot_read(&mut self, row: i64, why: &str) {
        let why = format!("row {row} cannot be read: {why}");
        self.unreadable.entry(why).or_default().push(row);
    }
}

fn bind<'q>(query: Query<'q, Any, AnyArguments>, topics: &[String]) -> Query<'q, Any, AnyArguments> {
    topics.iter().fold(query, |query, topic| query.bind(topic.clone()))
}

async fn within<T>(work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Trouble> {
    Ok(tokio::time::timeout(ANSWER_MAX, work).await.map_err(|_| Trouble::Slow)??)
}

fn lock_file(url: &str, table: &Table) -> Result<Option<File>, Trouble> {
    // By its real path: links to one database are one database.
    let mut path = Table::file(url)?.canonicalize()?.into_os_string();
    path.push(format!("-{}.lock", table.name));
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
