//! The transactional outbox (PRD-5): rows that a caller writes in the transaction of its own changes become messages.
//!
//! The relay reads the rows of one table in order, produces each to its topic, and removes it once the broker has it: at
//! least once, each key in order, with the row's id as the message's. `table.rs` has the table and every statement,
//! `database.rs` the connection and the lock, `row.rs` what a row means, `relay.rs` the loop.
//!
//! Invariants. Nothing remembers how far reading has come: every read takes the lowest rows that are there, so one that
//! commits late is not passed over. Rows are read over the connection that holds the table's lock, so whoever has lost
//! the lock reads nothing more. A row leaves the table only after the broker itself has acknowledged its message: the spill
//! does not count. Nothing is sent while rows that were sent are not removed.
//!
//! ```
//! use keylane::Keylane;
//! use keylane::outbox::{OutboxOptions, ddl};
//! use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let url = format!("sqlite:{}/shop.db?mode=rwc", folder.display());
//! let mut database = SqliteConnection::connect(&url).await?;
//! sqlx::raw_sql(AssertSqlSafe(ddl(&url, "keylane_outbox")?)).execute(&mut database).await?;
//!
//! // The order and its message: both, or neither.
//! let mut transaction = database.begin().await?;
//! // … the caller's own changes …
//! sqlx::query("INSERT INTO keylane_outbox (id, topic, key, payload) VALUES (?, ?, ?, ?)")
//!     .bind("order-17")
//!     .bind("orders")
//!     .bind("user-1")
//!     .bind("{\"total\":42}")
//!     .execute(&mut *transaction)
//!     .await?;
//! transaction.commit().await?;
//!
//! let keylane = Keylane::open_embedded(folder.join("data")).await?;
//! let relay = keylane.outbox(OutboxOptions::new(url));
//! let mut status = relay.watch();
//! let relayed = async move { status.wait_for(|status| status.relayed == 1).await.map(drop).unwrap_or(()) };
//! relay.run_until(relayed).await?;
//! assert_eq!(keylane.topics().await?[0].messages, 1);
//! # Ok(())
//! # }
//! ```

mod database;
mod relay;
mod row;
mod table;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::{Error, Keylane};
use relay::Relay;
use table::Table;

/// Rows read at once unless told: enough that a group commit is shared, little to repeat after a crash.
const BATCH: usize = 500;
/// Rows read at once at most: each is bound to a statement, and MySQL takes 65,535 values.
pub const BATCH_MAX: usize = 10_000;

/// Which table is relayed, and how. Shown without its URL, which may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboxOptions {
    url: String,
    table: String,
    poll: Duration,
    batch: usize,
    retry: Duration,
    drain: Duration,
    create: bool,
}

impl OutboxOptions {
    /// The table `keylane_outbox` in the database at `url`: `postgres://…`, `mysql://…`, `mariadb://…` or `sqlite:…`.
    pub fn new(url: impl Into<String>) -> OutboxOptions {
        OutboxOptions {
            url: url.into(),
            table: "keylane_outbox".to_owned(),
            poll: Duration::from_millis(500),
            batch: BATCH,
            retry: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            create: false,
        }
    }

    /// Another table: a name, or a schema and a name.
    pub fn table(mut self, table: impl Into<String>) -> OutboxOptions {
        self.table = table.into();
        self
    }

    /// The longest wait between two looks into an empty table. The wait begins shorter and doubles.
    pub fn poll(mut self, poll: Duration) -> OutboxOptions {
        self.poll = poll;
        self
    }

    /// Rows read at once: what a crash may repeat.
    pub fn batch(mut self, batch: usize) -> OutboxOptions {
        self.batch = batch;
        self
    }

    /// How often rows that could not be produced are tried again.
    pub fn retry(mut self, retry: Duration) -> OutboxOptions {
        self.retry = retry;
        self
    }

    /// How long what is on its way may take when the relay is told to stop.
    pub fn drain(mut self, drain: Duration) -> OutboxOptions {
        self.drain = drain;
        self
    }

    /// Whether the relay creates the table if it is not there.
    pub fn create(mut self, create: bool) -> OutboxOptions {
        self.create = create;
        self
    }

    /// What is wrong with them, if anything is. Never shows the URL.
    pub fn check(&self) -> Result<(), String> {
        Table::new(&self.url, &self.table)?;
        match self {
            OutboxOptions { batch: 0, .. } => Err("a batch of 0 rows would relay nothing".to_owned()),
            OutboxOptions { batch, .. } if *batch > BATCH_MAX => {
                Err(format!("a batch has at most {BATCH_MAX} rows"))
            }
            OutboxOptions { poll: Duration::ZERO, .. } => Err("a poll of 0 would never rest".to_owned()),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for OutboxOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxOptions")
            .field("url", &"(redacted)")
            .field("table", &self.table)
            .field("poll", &self.poll)
            .field("batch", &self.batch)
            .field("retry", &self.retry)
            .field("drain", &self.drain)
            .field("create", &self.create)
            .finish()
    }
}

/// The statements that make the table and its indexes, for the database at `url`, which is only looked at for its
/// kind. An existing table stays as it is.
pub fn ddl(url: &str, table: &str) -> Result<String, Error> {
    Ok(Table::new(url, table).map_err(Error::Outbox)?.ddl())
}

/// What a relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutboxState {
    /// The database is not reached, the table is not there, or its rows cannot be removed; `last_error` says why. It is
    /// tried again.
    #[default]
    Connecting,
    /// Another relay has the table's lock; this one takes over when that one ends.
    StandingBy,
    /// Rows are relayed.
    Relaying,
    /// It was told to stop, and has; or what it ran in ended as nobody asked (KL-1321).
    Stopped,
}

/// How a relay is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutboxStatus {
    /// The table.
    pub table: String,
    /// What it is doing.
    pub state: OutboxState,
    /// Rows relayed and removed since the start, repeats included.
    pub relayed: u64,
    /// Rows in the table when they were last counted, at most 100,000; failed ones and those behind them included.
    pub pending: u64,
    /// Rows that could not be produced, of those; each blocks the rest of its key. Their column `error` says why.
    pub failed: u64,
    /// The last error of the database, the broker or a row.
    pub last_error: Option<String>,
}

/// A relay, not yet running.
#[must_use = "a relay does nothing until it runs"]
pub struct OutboxRelay {
    keylane: Keylane,
    options: OutboxOptions,
    status: watch::Sender<OutboxStatus>,
}

impl Keylane {
    /// Relays a table of a SQL database to this broker. See [`crate::outbox`].
    pub fn outbox(&self, options: OutboxOptions) -> OutboxRelay {
        let status = OutboxStatus { table: options.table.clone(), ..OutboxStatus::default() };
        OutboxRelay { keylane: self.clone(), options, status: watch::Sender::new(status) }
    }
}

impl OutboxRelay {
    /// Tells how it is, now and later.
    pub fn watch(&self) -> watch::Receiver<OutboxStatus> {
        self.status.subscribe()
    }

    /// Relays until `shutdown` is ready, then finishes what is on its way. Only options that make no sense are an
    /// error: a database or a broker that is away is waited for.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        self.options.check().map_err(Error::Outbox)?;
        let table = Table::new(&self.options.url, &self.options.table).map_err(Error::Outbox)?;
        let drain = self.options.drain;
        let (told, stop) = watch::channel(false);
        let mut relay = Relay::new(self.keylane, self.options, table, self.status, stop);
        let mut running = std::pin::pin!(relay.run());
        tokio::select! {
            biased;
            () = &mut running => return Ok(()),
            () = shutdown => told.send_replace(true),
        };
        // What is on its way when time is up was not removed, and is relayed again after the next start.
        if tokio::time::timeout(drain, running).await.is_err() {
            tracing::warn!(
                ?drain,
                "the outbox was not drained in time; what was on its way is relayed again"
            );
        }
        Ok(())
    }
}
