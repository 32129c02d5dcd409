//! The table, and every statement about it, for each kind of database. Values are always bound; the table's name,
//! which cannot be, is checked.

use std::path::PathBuf;
use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;

/// Rows counted at most for the status: a count of all would read all, every time.
pub(super) const COUNT_MAX: i64 = 100_000;

/// Which SQL is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    MySql,
    Sqlite,
}

/// A table in a kind of database.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) dialect: Dialect,
    pub(super) name: String,
}

impl Table {
    /// Reads the kind of database from its URL. Errors do not show the URL.
    pub(super) fn new(url: &str, name: &str) -> Result<Table, String> {
        let dialect = match url.split(':').next() {
            Some("postgres" | "postgresql") => Dialect::Postgres,
            Some("mysql" | "mariadb") => Dialect::MySql,
            Some("sqlite") => Dialect::Sqlite,
            _ => {
                return Err("the url must begin with postgres://, mysql://, mariadb:// or sqlite:".to_owned());
            }
        };
        if dialect == Dialect::Sqlite && (url.contains(":memory:") || url.contains("mode=memory")) {
            return Err("a SQLite database in memory cannot be shared with a relay; use a file".to_owned());
        }
        if !is_table(name) {
            return Err(format!(
                "the table is called {name:?}; a name is made of ASCII letters, digits and _, does not begin with a digit, and may have one schema before it and a dot"
            ));
        }
        Ok(Table { dialect, name: name.to_owned() })
    }

    /// Where SQLite keeps the database of `url`.
    pub(super) fn file(url: &str) -> Result<PathBuf, sqlx::Error> {
        Ok(SqliteConnectOptions::from_str(url)?.get_filename().to_owned())
    }

    /// Makes the table and its indexes. Those of failed rows are partial where the database can do that: a row that
    /// does not fail costs nothing then. Postgres hashes the key there, since a long one does not fit into a B-tree.
    pub(super) fn ddl(&self) -> String {
        let name = &self.name;
        let index = name.rsplit('.').next().unwrap_or(name);
        match self.dialect {
            Dialect::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS {name} (
  seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id         TEXT NOT NULL DEFAULT gen_random_uuid()::text,
  topic      TEXT NOT NULL,
  key        BYTEA,
  payload    BYTEA,
  headers    TEXT,
  version    BIGINT,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  failed     SMALLINT NOT NULL DEFAULT 0,
  attempts   INTEGER NOT NULL DEFAULT 0,
  error      TEXT
);
CREATE INDEX IF NOT EXISTS {index}_failed ON {name} (seq) WHERE failed <> 0;
CREATE INDEX IF NOT EXISTS {index}_failed_key ON {name} USING hash (key) WHERE failed <> 0;
"
            ),
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {name} (
  seq        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  id         VARCHAR(1024) NOT NULL DEFAULT (UUID()),
  topic      VARCHAR(249) NOT NULL,
  `key`      VARBINARY(4096),
  payload    LONGBLOB,
  headers    LONGTEXT,
  version    BIGINT,
  created_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  failed     SMALLINT NOT NULL DEFAULT 0,
  attempts   INT NOT NULL DEFAULT 0,
  error      TEXT,
  INDEX {index}_failed (failed, `key`(255))
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
"
            ),
            Dialect::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {name} (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  id         TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
  topic      TEXT NOT NULL,
  key        BLOB,
  payload    BLOB,
  headers    TEXT,
  version    INTEGER,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
  failed     INTEGER NOT NULL DEFAULT 0,
  attempts   INTEGER NOT NULL DEFAULT 0,
  error      TEXT
);
CREATE INDEX IF NOT EXISTS {index}_failed ON {name} (CAST(key AS BLOB), seq) WHERE failed <> 0;
"
            ),
        }
    }

    /// What a session needs first. MySQL: a server's own default might show rows that are not committed.
    pub(super) fn prepare(&self) -> Option<&'static str> {
        (self.dialect == Dialect::MySql)
            .then_some("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET SESSION autocommit = 1")
    }

    /// Takes the table's lock for as long as the connection lasts, and answers whether it did. Binds the table's name once.
    pub(super) fn lock(&self) -> Option<String> {
        match self.dialect {
            // By the table's own number: the same table may be named with its schema or without.
            Dialect::Postgres => Some(
                "SELECT CASE WHEN pg_try_advisory_lock(hashtextextended('keylane outbox ' || \
                 CAST(CAST(CAST($1 AS TEXT) AS regclass) AS oid), 0)) THEN 1 ELSE 0 END"
                    .to_owned(),
            ),
            // A name of the whole server's, of at most 64 characters.
            Dialect::MySql => {
                let schema = if self.name.contains('.') { "''" } else { "CONCAT(DATABASE(), '.')" };
                let name = format!("CONCAT('keylane:', SHA2(CONCAT({schema}, ?), 224))");
                Some(format!("SELECT CAST(COALESCE(GET_LOCK({name}, 0), 0) AS SIGNED)"))
            }
            Dialect::Sqlite => None,
        }
    }

    /// The lowest rows that may be sent: not failed, not behind a failed one of their key, not of a topic that has to
    /// wait. Binds the topics, then how many.
    pub(super) fn read(&self, waiting_topics: usize) -> String {
        format!("{} {}", self.whole_row(), self.lowest(waiting_topics))
    }

    /// The numbers of those rows alone. Binds the same.
    pub(super) fn read_numbers(&self, waiting_topics: usize) -> String {
        format!("SELECT o.seq FROM {} o {}", self.name, self.lowest(waiting_topics))
    }

    /// One row. Binds its number.
    pub(super) fn read_one(&self) -> String {
        format!("{} WHERE o.seq = {}", self.whole_row(), self.value(1))
    }

    fn whole_row(&self) -> String {
        let (name, key, text) = (&self.name, self.key(), self.text());
        let created = match self.dialect {
            Dialect::Postgres => "CAST(EXTRACT(EPOCH FROM o.created_at) * 1000 AS BIGINT)",
            Dialect::MySql => "CAST(UNIX_TIMESTAMP(o.created_at) * 1000 AS SIGNED)",
            Dialect::Sqlite => "CAST((julianday(o.created_at) - 2440587.5) * 86400000 AS INTEGER)",
        };
        format!(
            "SELECT o.seq, CAST(o.id AS {text}), o.topic, o.{key}, o.payload, CAST(o.headers AS {text}), o.version, \
             o.attempts, {created} FROM {name} o"
        )
    }

    fn lowest(&self, waiting_topics: usize) -> String {
        let name = &self.name;
        let (key_o, key_b) = (self.key_of("o"), self.key_of("b"));
        let (topic_o, topic_b) = (self.topic_of("o"), self.topic_of("b"));
        let waiting = match waiting_topics {
            0 => String::new(),
            count => format!("AND o.topic NOT IN ({}) ", self.list(1, count)),
        };
        let limit = self.value(waiting_topics + 1);
        format!(
            "WHERE o.failed = 0 AND NOT EXISTS (SELECT 1 FROM {name} b WHERE b.failed <> 0 AND {key_b} = {key_o} \
             AND {topic_b} = {topic_o} AND b.seq < o.seq) {waiting}ORDER BY o.seq LIMIT {limit}"
        )
    }

    /// Removes nothing, and needs the right to remove.
    pub(super) fn remove_none(&self) -> String {
        format!("DELETE FROM {} WHERE 1 = 0", self.name)
    }

    /// Rows that are there, with their ids. Binds their numbers.
    pub(super) fn ids(&self, count: usize) -> String {
        let (name, text, numbers) = (&self.name, self.text(), self.list(1, count));
        format!("SELECT seq, CAST(id AS {text}) FROM {name} WHERE seq IN ({numbers})")
    }

    /// Removes rows. Binds their numbers.
    pub(super) fn remove(&self, count: usize) -> String {
        match self.dialect {
            Dialect::MySql => format!("DELETE o FROM {}", self.by_number(count)),
            _ => format!("DELETE FROM {} WHERE seq IN ({})", self.name, self.list(1, count)),
        }
    }

    /// Marks rows as failed. Binds their numbers, then the error.
    pub(super) fn fail(&self, count: usize) -> String {
        let error = self.value(count + 1);
        self.change(count, |o| format!("{o}failed = 1, {o}attempts = {o}attempts + 1, {o}error = {error}"))
    }

    /// Lets failed rows be read again; attempts and error stay. Binds their numbers.
    pub(super) fn again(&self, count: usize) -> String {
        self.change(count, |o| format!("{o}failed = 0"))
    }

    fn change(&self, count: usize, set: impl Fn(&str) -> String) -> String {
        match self.dialect {
            Dialect::MySql => format!("UPDATE {} SET {}", self.by_number(count), set("o.")),
            _ => format!("UPDATE {} SET {} WHERE seq IN ({})", self.name, set(""), self.list(1, count)),
        }
    }

    /// Rows `o` by their numbers, one look-up each. Given a list, MySQL and MariaDB may rather scan the table. A scan
    /// locks what it passes and waits for rows of transactions that are open: rows would be relayed, not removed, and
    /// relayed again.
    fn by_number(&self, count: usize) -> String {
        let numbers = vec!["SELECT CAST(? AS SIGNED) AS seq"; count].join(" UNION ALL ");
        format!("({numbers}) d STRAIGHT_JOIN {} o FORCE INDEX (PRIMARY) ON o.seq = d.seq", self.name)
    }

    /// Failed rows above a number. Binds it, then how many.
    pub(super) fn failed(&self) -> String {
        let (above, limit) = (self.value(1), self.value(2));
        format!(
            "SELECT seq FROM {} WHERE failed <> 0 AND seq > {above} ORDER BY seq LIMIT {limit}",
            self.name
        )
    }

    /// Counts rows, up to a bound.
    pub(super) fn count(&self) -> String {
        format!("SELECT COUNT(*) FROM (SELECT 1 AS one FROM {} LIMIT {COUNT_MAX}) counted", self.name)
    }

    /// Counts failed rows, up to a bound.
    pub(super) fn count_failed(&self) -> String {
        format!(
            "SELECT COUNT(*) FROM (SELECT 1 AS one FROM {} WHERE failed <> 0 LIMIT {COUNT_MAX}) counted",
            self.name
        )
    }

    /// The column of that name; it is a word of MySQL's own.
    fn key(&self) -> &'static str {
        if self.dialect == Dialect::MySql { "`key`" } else { "key" }
    }

    /// The key to compare. SQLite keeps what it is given, and there text never equals the same bytes.
    fn key_of(&self, table: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("CAST({table}.key AS BLOB)"),
            _ => format!("{table}.{}", self.key()),
        }
    }

    /// The topic to compare, likewise.
    fn topic_of(&self, table: &str) -> String {
        match self.dialect {
            Dialect::Sqlite => format!("CAST({table}.topic AS TEXT)"),
            _ => format!("{table}.topic"),
        }
    }

    /// What a text is cast to.
    fn text(&self) -> &'static str {
        if self.dialect == Dialect::MySql { "CHAR" } else { "TEXT" }
    }

    fn value(&self, number: usize) -> String {
        match self.dialect {
            Dialect::Postgres => format!("${number}"),
            Dialect::MySql => "?".to_owned(),
            Dialect::Sqlite => format!("?{number}"),
        }
    }

    fn list(&self, first: usize, count: usize) -> String {
        let values: Vec<String> = (first..first + count).map(|number| self.value(number)).collect();
        values.join(", ")
    }
}

fn is_table(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|sign: char| sign.is_ascii_alphabetic() || sign == '_')
            && word.len() <= 63
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let words: Vec<&str> = name.split('.').collect();
    words.len() <= 2 && words.iter().all(|word| is_word(word))
}
