//! Every setting of this version: its name, what it takes, its default, a sentence. And by name those of
//! INTERFACE.md that a later version brings, so that they are refused for what they are and not as slips.

mod handler;

use super::schema::{Absent, Field, Kind, Profile, Profiled, Shape};
use handler::HANDLER;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 24 * 60 * MINUTE;

const fn field(name: &'static str, kind: Kind, absent: Absent, about: &'static str) -> Field {
    Field { name, kind, absent, profiled: Profiled { production: None, development: None }, about }
}

const fn is(text: &'static str) -> Absent {
    Absent::Is(text)
}

pub(super) static ROOT: Shape = Shape {
    fields: &[
        field(
            "profile",
            Kind::Choice { of: Profile::NAMES, later: &[] },
            Absent::Nothing("production"),
            "Where this server runs: `production`, `staging` or `development`. What is left out has that profile's value where one is named below; without a profile, the value shown.",
        ),
        field("server", Kind::Section(&SERVER), is(""), "How HTTP is served."),
        field(
            "data",
            Kind::Text,
            is("./keylane-data"),
            "Folder of the embedded broker, and of the spill of any other. One process at a time.",
        ),
        field("broker", Kind::Section(&BROKER), is(""), "Where topics live."),
        field(
            "topics",
            Kind::Named(&TOPIC),
            Absent::Example("orders"),
            "Topics by name. Without any, a topic is created by its first use; with some, another name is an error.",
        ),
        field(
            "pipelines",
            Kind::Named(&PIPELINE),
            Absent::Example("orders"),
            "Pipelines by name: a topic, a group, and what runs on each message.",
        ),
        field("ingest", Kind::Section(&INGEST), is(""), "Bounds of producing over HTTP."),
        field(
            "spill",
            Kind::Section(&SPILL),
            is(""),
            "What is kept in the data folder while a broker on another machine is away.",
        ),
        field(
            "outbox",
            Kind::Named(&OUTBOX),
            Absent::Example("shop"),
            "Outboxes by name: tables of SQL databases whose rows become messages. See docs/outbox.md.",
        ),
    ],
    later: &["locks", "alerts", "redis", "users", "wecom"],
};

static SERVER: Shape = Shape {
    fields: &[
        field(
            "listen",
            Kind::Address,
            is("127.0.0.1:7400"),
            "Address and port. Anything but loopback needs tokens; port 0 takes any free one.",
        ),
        field(
            "tokens",
            Kind::List(&TOKEN),
            Absent::Example(""),
            "Who may do what. Without tokens only this machine may do anything, and what a proxy passes on is refused.",
        ),
        field(
            "connections",
            Kind::Whole { min: 1, max: 1_000_000 },
            is("4096"),
            "Connections at once; one more is answered 503. At most half of what the limit of file descriptors leaves.",
        ),
        field(
            "idle_timeout",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("60s"),
            "A connection that has not sent a whole request head within this is closed, a new or an idle one; so is one that takes nothing of its answer for this long.",
        ),
        field(
            "body_timeout",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "A request whose body stands still for this long is answered 408; so is one that comes slower than 16 KiB a second for longer.",
        ),
        field(
            "drain",
            Kind::Duration { min_ms: 0, max_ms: DAY },
            is("30s"),
            "On shutdown, handlers that run get this long to finish.",
        ),
    ],
    later: &["tls"],
};

static TOKEN: Shape = Shape {
    fields: &[
        field("name", Kind::Name, Absent::Required("ops"), "Whose it is."),
        field(
            "role",
            Kind::Choice { of: &["read", "operate", "admin"], later: &[] },
            Absent::Required("admin"),
            "What it may do: `read`, `operate` (read, produce, change), `admin` (all).",
        ),
        field(
            "sha256",
            Kind::Hash,
            Absent::Required("\"<64 hex digits: what `keylane token hash` prints>\""),
            "The token's SHA-256, as `keylane token hash` prints it.",
        ),
    ],
    later: &[],
};

static BROKER: Shape = Shape {
    fields: &[
        field(
            "kind",
            Kind::Choice { of: &["embedded", "kafka"], later: &["nats", "redis"] },
            is("embedded"),
            "Which broker: `embedded`, a log in the data folder, or `kafka`, a cluster.",
        ),
        field(
            "kafka",
            Kind::Section(&KAFKA),
            Absent::Nothing(""),
            "The cluster, with `kind: kafka` and not without.",
        ),
    ],
    later: &["nats", "redis"],
};

static KAFKA: Shape = Shape {
    fields: &[
        field(
            "brokers",
            Kind::Text,
            is("localhost:9092"),
            "Addresses to begin with: `host:port`, separated by commas.",
        ),
        field(
            "settings",
            Kind::PassedOn,
            is("{}"),
            "Any setting of librdkafka, such as `security.protocol`, by its name.",
        ),
        field(
            "journals",
            Kind::Section(&JOURNALS),
            is(""),
            "The topics in which Keylane keeps its own state, beside yours.",
        ),
    ],
    later: &[],
};

static JOURNALS: Shape = Shape {
    fields: &[
        field(
            "prefix",
            Kind::Text,
            is("_keylane"),
            "What their names begin with. Another prefix is another state: set it before the first start.",
        ),
        field(
            "create",
            Kind::Flag,
            is("true"),
            "Whether Keylane makes them. If not, the error of a missing one shows the command that makes it.",
        ),
        field(
            "settings",
            Kind::PassedOn,
            is("{}"),
            "Settings of Kafka that they are made with, such as `segment.bytes`, instead of Keylane's own.",
        ),
    ],
    later: &[],
};

pub(super) static TOPIC: Shape = Shape {
    fields: &[
        field(
            "kind",
            Kind::Choice { of: &["log"], later: &["queue"] },
            is("log"),
            "What kind of topic: `log`, kept in order and read from a position.",
        ),
        field(
            "partitions",
            Kind::Whole { min: 1, max: 4096 },
            is("4"),
            "Partitions. Fixed once the topic is made: other counts move keys.",
        )
        .production("12"),
        field(
            "replicas",
            Kind::Whole { min: 1, max: 32 },
            is("1"),
            "Copies, at most one a broker. The embedded broker keeps one.",
        )
        .production("3"),
        field(
            "min_insync",
            Kind::Whole { min: 1, max: 32 },
            is("1"),
            "Copies that must have a message before it is acknowledged; at most `replicas`.",
        )
        .production("2"),
        field(
            "retention",
            Kind::Duration { min_ms: SECOND, max_ms: 36_500 * DAY },
            is("7d"),
            "How long messages are kept. The embedded broker keeps longer what a pipeline has not settled; Kafka does not.",
        ),
        field(
            "retention_bytes",
            Kind::Size { min: 1 << 20, max: 1 << 50 },
            is("10GiB"),
            "How much is kept. When the embedded broker is full of what is not settled, producing is answered 503; Kafka deletes the oldest.",
        ),
        field(
            "compression",
            Kind::Choice { of: &["lz4", "none", "snappy", "zstd", "gzip"], later: &[] },
            is("lz4"),
            "How a broker that compresses keeps messages, whoever sent them; the embedded one keeps them as they are.",
        ),
        field(
            "ids",
            Kind::Choice { of: &["all", "caller"], later: &[] },
            is("all"),
            "Which messages carry an id on Kafka: `all`, or only those that a `caller` gave one; the others are called by topic, partition and offset, cost less, and cannot be told by it if they land twice. The embedded broker keeps an id with each.",
        ),
        field(
            "max_message",
            Kind::Size { min: 1, max: 16 << 20 },
            is("1MiB"),
            "The largest message as it is kept: its id, key, headers and payload, and 28 bytes around them.",
        ),
    ],
    later: &[],
};

static PIPELINE: Shape = Shape {
    fields: &[
        field(
            "topic",
            Kind::Name,
            Absent::Example("orders"),
            "The topic it reads; the pipeline's name if left out.",
        ),
        field(
            "group",
            Kind::Name,
            Absent::Example("orders"),
            "The group whose position it keeps; the pipeline's name if left out.",
        ),
        field(
            "order",
            Kind::Choice { of: &["key", "partition", "none"], later: &["adaptive"] },
            is("key"),
            "What keeps its order: messages of one `key`, of one `partition`, or `none`.",
        ),
        field(
            "shards",
            Kind::Auto { max: 1024 },
            is("auto"),
            "Loops that share the partitions; `auto` is one for each core, in development 64 at most.",
        ),
        field(
            "concurrency",
            Kind::Whole { min: 1, max: 1_000_000 },
            Absent::Example("256"),
            "Handlers in flight at most; 256 calls of `http`, and 10000 of any other handler, if left out.",
        ),
        field(
            "blocking",
            Kind::Whole { min: 1, max: 100_000 },
            is("512"),
            "Threads that handlers may block at once, beside those that run everything else.",
        ),
        field("lane", Kind::Section(&LANE), is(""), "A lane is one key's messages, in order."),
        field("buffer", Kind::Section(&BUFFER), is(""), "What is read and not settled yet, over all lanes."),
        field("handler", Kind::OneOf(&HANDLER), Absent::Required(""), "What runs on each message."),
        field("retry", Kind::Section(&RETRY), is(""), "What happens when a handler fails."),
    ],
    later: &["version", "dedup", "rate_limit", "breaker", "dead_letters", "recovery"],
};

static LANE: Shape = Shape {
    fields: &[
        field(
            "capacity",
            Kind::Whole { min: 1, max: 10_000_000 },
            is("1000"),
            "Messages in one lane at most.",
        )
        .development("100"),
        field(
            "idle",
            Kind::Duration { min_ms: SECOND, max_ms: 7 * DAY },
            is("5m"),
            "An idle lane's memory is freed after this.",
        ),
        field(
            "overflow",
            Kind::Choice { of: &["pause"], later: &["hold", "dead_letter"] },
            is("pause"),
            "What a full lane does: `pause` stops reading its partition until there is room.",
        ),
    ],
    later: &[],
};

static BUFFER: Shape = Shape {
    fields: &[
        field("messages", Kind::Whole { min: 1, max: 100_000_000 }, is("100000"), "Messages at most."),
        field("bytes", Kind::Size { min: 1 << 20, max: 1 << 40 }, is("256MiB"), "Their bytes at most."),
        field("pause_at", Kind::Share, is("0.8"), "Reading stops at this share of either bound.")
            .development("0.7"),
        field("resume_at", Kind::Share, is("0.5"), "And goes on below this one."),
    ],
    later: &[],
};

static RETRY: Shape = Shape {
    fields: &[
        field(
            "retries",
            Kind::Whole { min: 0, max: 1000 },
            is("3"),
            "Attempts after the first. Then the key counts as stuck, and is tried again every `max`.",
        )
        .development("2"),
        field(
            "base",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("100ms"),
            "The first wait; each further one is twice as long.",
        )
        .development("50ms"),
        field("max", Kind::Duration { min_ms: 1, max_ms: DAY }, is("30s"), "The longest wait.")
            .development("5s"),
    ],
    later: &[],
};

static SPILL: Shape = Shape {
    fields: &[
        field(
            "bytes",
            Kind::Size { min: 1 << 10, max: 1 << 50 },
            is("1GiB"),
            "Bytes of messages kept at most; past it producing is answered 503.",
        ),
        field(
            "after",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("5s"),
            "A broker that has not acknowledged a message within this is away: what it has not acknowledged is spilled.",
        ),
        field(
            "drain",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "How long after a try that failed what waits is brought to the broker again. It is asked every second whether it is back.",
        ),
    ],
    later: &[],
};

static INGEST: Shape = Shape {
    fields: &[
        field(
            "in_flight",
            Kind::Whole { min: 1, max: 1_000_000 },
            is("1000"),
            "Requests that produce, at once; one more is answered 503. One whose body is on its way does not count.",
        ),
        field(
            "max_request",
            Kind::Size { min: 1 << 10, max: 16 << 20 },
            is("16MiB"),
            "The largest request body. A request also has at most 100000 messages.",
        ),
    ],
    later: &["lag_protection", "write_limit"],
};

static OUTBOX: Shape = Shape {
    fields: &[
        field(
            "url",
            Kind::Text,
            Absent::Required("\"postgres://shop@db.example.com/shop\""),
            "The database: `postgres://`, `mysql://`, `mariadb://` or `sqlite:` with a file. It is never shown.",
        ),
        field(
            "table",
            Kind::Text,
            is("keylane_outbox"),
            "The table; a schema and a dot may stand before it.",
        ),
        field(
            "poll",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("500ms"),
            "The longest wait between two looks into an empty table.",
        ),
        field(
            "batch",
            Kind::Whole { min: 1, max: keylane::outbox::BATCH_MAX as u64 },
            is("500"),
            "Rows read at once, and so what a crash may repeat.",
        ),
        field(
            "retry",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "How often rows that could not be produced are tried again.",
        ),
        field("create", Kind::Flag, is("false"), "Whether the table is created if it is not there."),
    ],
    later: &[],
};
