//! Real SQL databases for a test, started by `dev/services`, and outboxes in them; they end with the test's process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sqlx::any::{AnyRow, install_default_drivers};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row};
use tempfile::TempDir;

/// The kinds of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// SQLite.
    Sqlite,
}

/// A running database.
pub struct Database {
    /// Its kind.
    pub engine: Engine,
    url: String,
    service: Option<Mutex<Service>>,
    _folder: TempDir,
}

/// The server's process, which ends when our end of its standard input is closed.
struct Service {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Engine {
    /// A database that all tests of this process share; each test has its own tables in it.
    pub fn shared(self) -> Arc<Database> {
        static SHARED: [OnceLock<Arc<Database>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        Arc::clone(SHARED[self as usize].get_or_init(|| Arc::new(self.start())))
    }

    /// A database for this test alone.
    pub fn start(self) -> Database {
        install_default_drivers();
        let folder = TempDir::new().expect("a folder for the test");
        let name = match self {
            Engine::Postgres => "postgres",
            Engine::MariaDb => "mariadb",
            Engine::Sqlite => {
                let url = format!("sqlite:{}/shop.db?mode=rwc", folder.path().display());
                return Database { engine: self, url, service: None, _folder: folder };
            }
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/services");
        let mut process = Command::new(script)
            .args(["run", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dev/services starts");
        let input = process.stdin.take();
        let mut output = BufReader::new(process.stdout.take().expect("it was asked for"));
        let line = line_of(&mut output);
        let (_, url) = line.split_once('=').unwrap_or_else(|| panic!("dev/services said {line:?}"));
        assert_eq!(line_of(&mut output), "ready");
        let service = Service { process, input, output };
        Database { engine: self, url: url.to_owned(), service: Some(Mutex::new(service)), _folder: folder }
    }

    fn name(self) -> &'static str {
        match self {
            Engine::Postgres => "postgres",
            Engine::MariaDb => "mariadb",
            Engine::Sqlite => "sqlite",
        }
    }
}

impl Database {
    /// The address to connect to.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the caller's own.
    pub async fn connect(&self) -> AnyConnection {
        AnyConnection::connect(&self.url).await.expect("the database runs")
    }

    /// Does `kill` (kill -9), `stop` or `start` to the server; returns when that is done.
    pub fn tell(&self, verb: &str) {
        let service = self.service.as_ref().expect("SQLite is no server");
        let mut service = service.lock().expect("no holder panics");
        let line = format!("{verb} {}\n", self.engine.name());
        service.input.as_mut().expect("it is open").write_all(line.as_bytes()).expect("dev/services listens");
        assert_eq!(line_of(&mut service.output), "ok");
    }

    /// An outbox of the test's own; its table is not made yet, the relay makes it.
    pub fn outbox(self: &Arc<Database>) -> Outbox {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let table = format!("outbox_{}", MADE.fetch_add(1, Ordering::Relaxed));
        Outbox { database: Arc::clone(self), table }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(service) = &self.service {
            let mut service = service.lock().expect("no holder panics");
            drop(service.input.take());
            let _ = service.process.wait();
        }
    }
}

fn line_of(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("dev/services says something");
    line.trim_end().to_owned()
}

/// A table that is relayed.
pub struct Outbox {
    /// The database in which it is.
    pub database: Arc<Database>,
    /// The table's name.
    pub table: String,
}

/// A row to be written; `n` counts a key's rows from 0 on.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// The topic.
    pub topic: String,
    /// The key.
    pub key: String,
    /// The payload; [`OutboxRow::new`] makes it an object with `n`.
    pub payload: Vec<u8>,
    /// The row's id; [`OutboxRow::new`] makes it from key and `n`.
    pub id: String,
    /// Headers as text.
    pub headers: Option<String>,
}

impl OutboxRow {
    /// The `n`th row of a key, for topic `t`.
    pub fn new(key: &str, n: u64) -> OutboxRow {
        OutboxRow {
            topic: "t".to_owned(),
            key: key.to_owned(),
            payload: format!("{{\"n\":{n}}}").into_bytes(),
            id: format!("{key}-{n}"),
            headers: None,
        }
    }
}

impl Outbox {
    /// The outbox in the config, with these further settings.
    pub fn yaml(&self, more: &str) -> String {
        let (url, table) = (self.database.url(), &self.table);
        format!("outbox: {{ shop: {{ url: \"{url}\", table: {table}, create: true, poll: 50ms, {more} }} }}")
    }

    /// Makes the table with the documented statements.
    pub async fn create(&self) {
        let ddl = keylane::outbox::ddl(self.database.url(), &self.table).expect("a good name");
        let mut connection = self.database.connect().await;
        sqlx::raw_sql(AssertSqlSafe(ddl)).execute(&mut connection).await.expect("the statements fit");
    }

    /// Writes a row, in the connection's current transaction, if it has one.
    pub async fn insert(&self, connection: &mut AnyConnection, row: &OutboxRow) -> Result<(), sqlx::Error> {
        let (key, values) = match self.database.engine {
            Engine::Postgres => ("key", "$1, $2, $3, $4, $5"),
            Engine::MariaDb => ("`key`", "?, ?, ?, ?, ?"),
            Engine::Sqlite => ("key", "?, ?, ?, ?, ?"),
        };
        let sql =
            format!("INSERT INTO {} (id, topic, {key}, payload, headers) VALUES ({values})", self.table);
        sqlx::query(AssertSqlSafe(sql))
            .bind(row.id.as_str())
            .bind(row.topic.as_str())
            .bind(row.key.as_bytes())
            .bind(row.payload.as_slice())
            .bind(row.headers.as_deref())
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Writes rows in one transaction of their own.
    pub async fn write(&self, rows: &[OutboxRow]) {
        let mut connection = self.database.connect().await;
        let mut transaction = connection.begin().await.expect("a transaction");
        for row in rows {
            self.insert(&mut transaction, row).await.expect("a row");
        }
        transaction.commit().await.expect("committed");
    }

    /// Runs a statement, in which `{}` stands for the table; returns the rows that it finds.
    pub async fn query(&self, sql: &str) -> Vec<AnyRow> {
        let mut connection = self.database.connect().await;
        let sql = sql.replace("{}", &self.table);
        sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("the statement fits")
    }

    /// The number of rows.
    pub async fn len(&self) -> u64 {
        let rows = self.query("SELECT COUNT(*) FROM {}").await;
        rows[0].get::<i64, _>(0) as u64
    }

    /// True if there are no rows.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }
}
