//! Lists every setting of this version with its name, its kind, its default and a description. Settings of later
//! versions are listed by name, so that the error for them can say so instead of calling them unknown.

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
            "Where this server runs: `production`, `staging` or `development`. A profile changes the default of some settings, as named below (`staging` has the defaults of `production`); without a profile, each default is the value shown.",
        ),
        field(
            "server",
            Kind::Section(&SERVER),
            is(""),
            "The HTTP server: its address, its tokens and its limits.",
        ),
        field(
            "data",
            Kind::Text,
            is("./keylane-data"),
            "Folder for the topics of the embedded broker, or for the spill with any other broker. Only one process can use the folder at a time.",
        ),
        field("broker", Kind::Section(&BROKER), is(""), "The broker that stores the topics."),
        field(
            "topics",
            Kind::Named(&TOPIC),
            Absent::Example("orders"),
            "Topics by name. If none is declared, the first message for a new name creates its topic; otherwise a name that is not declared is an error.",
        ),
        field(
            "pipelines",
            Kind::Named(&PIPELINE),
            Absent::Example("orders"),
            "Pipelines by name. A pipeline reads a topic for a group and calls a handler for each message.",
        ),
        field("ingest", Kind::Section(&INGEST), is(""), "Limits for producing over HTTP."),
        field(
            "spill",
            Kind::Section(&SPILL),
            is(""),
            "The spill: messages that the server keeps in the data folder while a broker on another machine is away. See docs/spill.md.",
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
            "Address and port on which the server listens. An address that other machines can reach needs tokens; with port 0 the system chooses a free port.",
        ),
        field(
            "tokens",
            Kind::List(&TOKEN),
            Absent::Example(""),
            "Tokens that clients must show, each with a role. Without tokens, the server answers only requests from this machine and refuses requests that a proxy passes on.",
        ),
        field(
            "connections",
            Kind::Whole { min: 1, max: 1_000_000 },
            is("4096"),
            "How many clients may be connected at once; one more gets the answer 503. The server accepts fewer if the limit of file descriptors (`ulimit -n`) leaves no more.",
        ),
        field(
            "idle_timeout",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("60s"),
            "How long a new or idle connection may take to send the head of a request, and how long a client may read nothing of its answer. After that the server closes the connection.",
        ),
        field(
            "body_timeout",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "How long no byte of a request's body may arrive, or the body may lag behind a pace of 16 KiB a second. After that the server answers 408.",
        ),
        field(
            "drain",
            Kind::Duration { min_ms: 0, max_ms: DAY },
            is("30s"),
            "How long running handlers may take to finish when the server shuts down.",
        ),
    ],
    later: &["tls"],
};

static TOKEN: Shape = Shape {
    fields: &[
        field(
            "name",
            Kind::Name,
            Absent::Required("ops"),
            "Name of the token's owner, which the server's diagnostics show with refused requests and admin calls.",
        ),
        field(
            "role",
            Kind::Choice { of: &["read", "operate", "admin"], later: &[] },
            Absent::Required("admin"),
            "What the token permits: `read`, `operate` (read, produce and change) or `admin` (everything).",
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
            "The Kafka cluster. Give it only with `kind: kafka`.",
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
            "Addresses of some brokers of the cluster, `host:port` separated by commas; from these Keylane learns the others.",
        ),
        field(
            "settings",
            Kind::PassedOn,
            is("{}"),
            "Settings of the Kafka client librdkafka by name, such as `security.protocol`. docs/kafka.md names those that cannot be set.",
        ),
        field(
            "journals",
            Kind::Section(&JOURNALS),
            is(""),
            "The topics on the cluster in which Keylane keeps its own state, beside your topics.",
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
            "Prefix of the names of these topics. Set it before the first start: under another prefix Keylane finds no state.",
        ),
        field(
            "create",
            Kind::Flag,
            is("true"),
            "Whether Keylane creates these topics. If not, the error about a missing topic shows the command that creates it.",
        ),
        field(
            "settings",
            Kind::PassedOn,
            is("{}"),
            "Topic settings of Kafka with which Keylane creates these topics, such as `segment.bytes`; they replace Keylane's own values.",
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
            "Kind of the topic: `log` keeps messages in order, and pipelines read them from a position.",
        ),
        field(
            "partitions",
            Kind::Whole { min: 1, max: 4096 },
            is("4"),
            "Number of partitions. You cannot change it once the topic exists: keys would move to other partitions and lose their order.",
        )
        .production("12"),
        field(
            "replicas",
            Kind::Whole { min: 1, max: 32 },
            is("1"),
            "Number of copies of each partition, at most one per broker of the cluster. The embedded broker keeps one copy.",
        )
        .production("3"),
        field(
            "min_insync",
            Kind::Whole { min: 1, max: 32 },
            is("1"),
            "Number of copies that must have a message before it is acknowledged; at most `replicas`.",
        )
        .production("2"),
        field(
            "retention",
            Kind::Duration { min_ms: SECOND, max_ms: 36_500 * DAY },
            is("7d"),
            "How long the broker keeps messages. The embedded broker keeps a message longer while a pipeline has not settled it; Kafka does not.",
        ),
        field(
            "retention_bytes",
            Kind::Size { min: 1 << 20, max: 1 << 50 },
            is("10GiB"),
            "How many bytes of messages the broker keeps. The embedded broker never deletes messages that a pipeline has not settled: if they fill this size, producing gets the answer 503. Kafka deletes the oldest messages.",
        ),
        field(
            "compression",
            Kind::Choice { of: &["lz4", "none", "snappy", "zstd", "gzip"], later: &[] },
            is("lz4"),
            "Codec in which Kafka stores the topic's messages, whichever program produced them. The embedded broker does not compress messages.",
        ),
        field(
            "ids",
            Kind::Choice { of: &["all", "caller"], later: &[] },
            is("all"),
            "Which messages have an id on Kafka: `all`, or only those to which a `caller` gave one. A message without an id costs less and is named by topic, partition and offset, so a handler cannot recognise it if Kafka stores it twice. The embedded broker stores an id with every message.",
        ),
        field(
            "max_message",
            Kind::Size { min: 1, max: 16 << 20 },
            is("1MiB"),
            "Stored size of a message at most: id, key, headers and payload, plus 28 bytes.",
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
            "Topic that the pipeline reads; if left out, the topic with the pipeline's name.",
        ),
        field(
            "group",
            Kind::Name,
            Absent::Example("orders"),
            "Group for which the pipeline reads and whose position it commits; if left out, the pipeline's name.",
        ),
        field(
            "order",
            Kind::Choice { of: &["key", "partition", "none"], later: &["adaptive"] },
            is("key"),
            "Which messages are handled in order, one at a time: those of one `key`, those of one `partition`, or `none`.",
        ),
        field(
            "shards",
            Kind::Auto { max: 1024 },
            is("auto"),
            "Number of loops that share the pipeline's partitions; `auto` is one per core, and at most 64 in development.",
        ),
        field(
            "concurrency",
            Kind::Whole { min: 1, max: 1_000_000 },
            Absent::Example("256"),
            "How many messages the pipeline may handle at once. If left out: 256 with the handler `http`, 10000 with any other.",
        ),
        field(
            "blocking",
            Kind::Whole { min: 1, max: 100_000 },
            is("512"),
            "How many threads the pipeline's handlers may block at once. These threads come on top of those that run everything else.",
        ),
        field(
            "lane",
            Kind::Section(&LANE),
            is(""),
            "Limits of a lane. A lane holds the messages of one key in their order.",
        ),
        field(
            "buffer",
            Kind::Section(&BUFFER),
            is(""),
            "Limits for all messages that the pipeline has read and not settled yet, over all lanes.",
        ),
        field(
            "handler",
            Kind::OneOf(&HANDLER),
            Absent::Required(""),
            "The handler that the pipeline calls for each message. Give exactly one.",
        ),
        field(
            "retry",
            Kind::Section(&RETRY),
            is(""),
            "How the pipeline retries a message after the handler failed. Only the message's key waits.",
        ),
    ],
    later: &["version", "dedup", "rate_limit", "breaker", "dead_letters", "recovery"],
};

static LANE: Shape = Shape {
    fields: &[
        field(
            "capacity",
            Kind::Whole { min: 1, max: 10_000_000 },
            is("1000"),
            "How many messages a lane may hold.",
        )
        .development("100"),
        field(
            "idle",
            Kind::Duration { min_ms: SECOND, max_ms: 7 * DAY },
            is("5m"),
            "How long a lane may be idle before its memory is freed.",
        ),
        field(
            "overflow",
            Kind::Choice { of: &["pause"], later: &["hold", "dead_letter"] },
            is("pause"),
            "What happens when a lane is full: `pause` stops reading its partition until the lane has room.",
        ),
    ],
    later: &[],
};

static BUFFER: Shape = Shape {
    fields: &[
        field(
            "messages",
            Kind::Whole { min: 1, max: 100_000_000 },
            is("100000"),
            "How many such messages there may be.",
        ),
        field(
            "bytes",
            Kind::Size { min: 1 << 20, max: 1 << 40 },
            is("256MiB"),
            "How many bytes these messages may have.",
        ),
        field(
            "pause_at",
            Kind::Share,
            is("0.8"),
            "Reading stops when this share of either limit is reached.",
        )
        .development("0.7"),
        field("resume_at", Kind::Share, is("0.5"), "Reading resumes below this share of both limits."),
    ],
    later: &[],
};

static RETRY: Shape = Shape {
    fields: &[
        field(
            "retries",
            Kind::Whole { min: 0, max: 1000 },
            is("3"),
            "Retries after the first attempt. When they are used up, the key counts as stuck, and its message is retried every `max`.",
        )
        .development("2"),
        field(
            "base",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("100ms"),
            "How long the first retry waits. Each further retry waits twice as long.",
        )
        .development("50ms"),
        field("max", Kind::Duration { min_ms: 1, max_ms: DAY }, is("30s"), "The longest that a retry waits.")
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
            "How many bytes of messages the spill may hold. When it is full, producing gets the answer 503.",
        ),
        field(
            "after",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("5s"),
            "How long a broker may acknowledge nothing before it counts as away. Then the server spills every message that the broker has not acknowledged.",
        ),
        field(
            "drain",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "How long the server waits, after sending spilled messages failed, before it sends them again. Whether the broker is back is asked every second.",
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
            "How many producing requests the server works on at once; one more gets the answer 503. A request whose body is still arriving does not count.",
        ),
        field(
            "max_request",
            Kind::Size { min: 1 << 10, max: 16 << 20 },
            is("16MiB"),
            "Size of a request's body at most. A request may also have at most 100000 messages.",
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
            "URL of the database: `postgres://`, `mysql://` or `mariadb://`, or `sqlite:` with a file. Keylane never shows the URL, because it may hold a password.",
        ),
        field(
            "table",
            Kind::Text,
            is("keylane_outbox"),
            "Name of the table; a schema and a dot may stand before it.",
        ),
        field(
            "poll",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("500ms"),
            "The longest time between two queries while the table is empty.",
        ),
        field(
            "batch",
            Kind::Whole { min: 1, max: keylane::outbox::BATCH_MAX as u64 },
            is("500"),
            "How many rows are read and produced at once. After a crash, at most so many rows are produced again.",
        ),
        field(
            "retry",
            Kind::Duration { min_ms: 10, max_ms: DAY },
            is("30s"),
            "How long the relay waits before it retries rows that could not be produced.",
        ),
        field("create", Kind::Flag, is("false"), "Whether Keylane creates the table if it does not exist."),
    ],
    later: &[],
};
