//! What a config says, and what is said about a wrong one.

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse("k.yaml", text, &Environment::empty())
}

/// The one problem of `text`.
fn problem(text: &str) -> ConfigProblem {
    let error = parse(text).expect_err("the config is wrong");
    assert_eq!(error.problems.len(), 1, "{error}");
    error.problems.into_iter().next().expect("just counted")
}

fn at(line: u64, column: u64) -> Place {
    Place::File { line, column }
}

const PIPELINE: &str = "pipelines:\n  a:\n    handler: { log: {} }\n";

/// ADM-9.
#[test]
fn a_misspelt_field_is_named_with_its_place_and_the_nearest_known_one() {
    let text = "broker: { kind: embedded }\npipelines:\n  a:\n    topic: a\n    concurency: 5\n    handler: { log: {} }\n";
    let error = parse(text).expect_err("misspelt");
    assert_eq!(
        error.to_string(),
        "k.yaml:5:5: unknown setting `concurency` in pipelines.a [KL-1003]\n  help: did you mean `concurrency`? Known here: `topic`, `group`, `order`, `shards`, `concurrency`, `blocking`, `lane`, `buffer`, `handler`, `retry`"
    );
}

/// ADM-9.
#[test]
fn what_a_later_version_brings_is_refused_as_that() {
    let pipeline = |line: &str| format!("{PIPELINE}    {line}\n");
    for (text, place, names) in [
        ("locks: { kind: auto }\n".to_owned(), at(1, 1), "`locks`"),
        ("alerts: { webhooks: [] }\n".to_owned(), at(1, 1), "`alerts`"),
        ("redis: { url: x }\n".to_owned(), at(1, 1), "`redis`"),
        ("broker: { kind: nats }\n".to_owned(), at(1, 17), "`broker.kind: nats`"),
        ("broker:\n  redis: { url: x }\n".to_owned(), at(2, 3), "`redis` in broker"),
        ("ingest:\n  lag_protection: off\n".to_owned(), at(2, 3), "`lag_protection` in ingest"),
        ("ingest:\n  write_limit: { local: 1 }\n".to_owned(), at(2, 3), "`write_limit` in ingest"),
        (pipeline("dedup: { window: 24h }"), at(4, 5), "`dedup` in pipelines.a"),
        (pipeline("rate_limit: off"), at(4, 5), "`rate_limit` in pipelines.a"),
        (pipeline("version: { check: true }"), at(4, 5), "`version` in pipelines.a"),
        (pipeline("breaker: off"), at(4, 5), "`breaker` in pipelines.a"),
        (pipeline("dead_letters: {}"), at(4, 5), "`dead_letters` in pipelines.a"),
        (pipeline("recovery: {}"), at(4, 5), "`recovery` in pipelines.a"),
        (pipeline("order: adaptive"), at(4, 12), "`pipelines.a.order: adaptive`"),
        (pipeline("lane: { overflow: hold }"), at(4, 23), "`pipelines.a.lane.overflow: hold`"),
        (
            "pipelines:\n  a:\n    handler: { sql: { url: x } }\n".to_owned(),
            at(3, 16),
            "`sql` in pipelines.a.handler",
        ),
    ] {
        let problem = problem(&text);
        assert_eq!((problem.code.as_str(), &problem.place), ("KL-1004", &place), "{text}");
        assert_eq!(problem.what, format!("{names} is not in this version"), "{text}");
    }
}

/// ADM-9.
#[test]
fn a_wrong_value_is_told_what_is_expected_with_an_example() {
    for (text, place, what, help) in [
        (
            "server:\n  idle_timeout: 60\n",
            at(2, 17),
            "server.idle_timeout must be a duration with its unit (ms, s, m, h, d) from 10ms to 1d; it is `60`",
            "write it like this: `idle_timeout: 60s`",
        ),
        (
            "topics: { t: { retention_bytes: 10 gigs } }\n",
            at(1, 33),
            "topics.t.retention_bytes must be a size (KB, KiB, MB, MiB, GB, GiB) from 1MiB to 1024TiB; it is `10 gigs`",
            "write it like this: `retention_bytes: 10GiB`",
        ),
        (
            "topics: { t: { partitions: 0 } }\n",
            at(1, 28),
            "topics.t.partitions must be a whole number from 1 to 4096; it is `0`",
            "write it like this: `partitions: 4`",
        ),
        (
            "server: { listen: 7400 }\n",
            at(1, 19),
            "server.listen must be an address and a port; it is `7400`",
            "write it like this: `listen: 127.0.0.1:7400`",
        ),
        (
            "ingest: 5\n",
            at(1, 9),
            "ingest must be a section; it is `5`",
            "write it like this: `{ in_flight: 1000 }`",
        ),
        (
            "server: { tokens: { name: ops } }\n",
            at(1, 19),
            "server.tokens must be a list; it is a section",
            "write it like this: `tokens: []`",
        ),
    ] {
        let problem = problem(text);
        assert_eq!((problem.code.as_str(), &problem.place), ("KL-1005", &place), "{text}");
        assert_eq!((problem.what.as_str(), problem.help.as_str()), (what, help), "{text}");
    }
}

#[test]
fn every_problem_is_told_at_once_in_order() {
    let error =
        parse("data: 5\nserver: { lisen: x }\ntopics: { t: { partitions: many } }\n").expect_err("wrong");
    let lines: Vec<_> = error.problems.iter().map(|problem| problem.place.clone()).collect();
    assert_eq!(lines, [at(1, 7), at(2, 11), at(3, 28)]);
}

#[test]
fn text_that_is_not_yaml_is_told_where() {
    let problem = problem("server:\n  listen: \"127.0.0.1:1\n");
    assert_eq!(problem.code.as_str(), "KL-1002");
    assert!(matches!(problem.place, Place::File { .. }), "{problem:?}");
    for wrong in ["a: 1\na: 2\n", "server: {\n", "server:\n\tlisten: x\n", "- 1\n", "just text\n"] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

/// ADM-9: common mistakes are told in our words, with a remedy that fits, and their place once.
#[test]
fn yaml_mistakes_are_told_in_plain_words() {
    for (text, place, what, help) in [
        ("data: a\ndata: b\n", at(2, 1), "the setting `data` is given twice", "remove one of the two"),
        (
            "data: a\n---\ndata: b\n",
            at(3, 1),
            "there is more than one document: `---` begins another",
            "remove the line `---`, or keep each config in a file of its own",
        ),
    ] {
        let problem = problem(text);
        assert_eq!((problem.code.as_str(), problem.place), ("KL-1002", place), "{text}");
        assert_eq!((problem.what.as_str(), problem.help.as_str()), (what, help), "{text}");
    }
    for text in
        ["server: {\n", "server:\n\tlisten: x\n", "a: [1\nb: 2\n", "x: \"\n", "a: *b\n", "a: 1\n b: 2\n"]
    {
        let problem = problem(text);
        assert!(!problem.what.contains(" line "), "the place is told twice: {}", problem.what);
    }
}

/// ADM-9.
#[test]
fn a_wrong_name_an_empty_folder_and_a_section_are_told_what_they_must_be() {
    let name = "a name of letters, digits, `.`, `_` and `-`, at most 249";
    for (text, what, help) in [
        (
            "pipelines: { a: { topic: \"a b\", handler: { log: {} } } }\n",
            format!("pipelines.a.topic must be {name}; it is `a b`"),
            "write it like this: `topic: orders`",
        ),
        (
            "data: \"\"\n",
            "data must be text, and not empty; it is ``".to_owned(),
            "write it like this: `data: ./keylane-data`",
        ),
        (
            "[1]\n",
            "the config must be a section; it is a list".to_owned(),
            "write it like this: `{ data: ./keylane-data }`",
        ),
        (
            "data: file:secret\n",
            "`file:` must be followed by an absolute path".to_owned(),
            "write it like this: `file:/run/secrets/token`",
        ),
    ] {
        let problem = problem(text);
        assert_eq!((problem.what.as_str(), problem.help.as_str()), (what.as_str(), help), "{text}");
    }
}

/// ADM-2.
#[test]
fn the_hash_of_an_empty_token_is_refused() {
    let hash = crate::hash_token("");
    let problem =
        problem(&format!("server: {{ tokens: [{{ name: ops, role: admin, sha256: \"{hash}\" }}] }}\n"));
    assert_eq!((problem.code.as_str(), problem.place), ("KL-1005", at(1, 54)));
}

/// ADM-9, SEC-5: the remedy fits the mistake, and no part of a URL shows.
#[test]
fn a_url_that_cannot_be_pushed_to_is_told_why_without_being_shown() {
    let environment = Environment::of([("S", "hunter2")]);
    for (url, says, help) in [
        ("http://10.0.0.1/${S}?token=${S}", "private address", "allow_private: true"),
        ("http://me:${S}@example.com/", "user name or a password", "without user or password"),
        ("http://[${S}", "not a URL", "write it like this"),
    ] {
        let text = format!("pipelines: {{ a: {{ handler: {{ http: {{ url: \"{url}\" }} }} }} }}\n");
        let error = Config::parse("k.yaml", &text, &environment).expect_err("it cannot be pushed to");
        let problem = &error.problems[0];
        assert!(problem.what.contains(says) && problem.help.contains(help), "{error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
}

/// MSG-5.
#[test]
fn settings_that_contradict_each_other_are_refused() {
    let problem = problem(
        "pipelines:\n  a: { topic: t, group: g, handler: { log: {} } }\n  b: { topic: t, group: g, handler: { log: {} } }\n",
    );
    assert_eq!((problem.code.as_str(), problem.place), ("KL-1007", at(3, 25)));
    assert!(
        problem.what.contains("pipelines.b and pipelines.a both read topic t as group g"),
        "{}",
        problem.what
    );
    for text in [
        "topics: { t: {} }\npipelines: { a: { topic: u, handler: { log: {} } } }\n",
        "pipelines: { a: { buffer: { pause_at: 0.5, resume_at: 0.9 }, handler: { log: {} } } }\n",
        "pipelines: { a: { retry: { base: 1m, max: 1s }, handler: { log: {} } } }\n",
        "pipelines: { a: { handler: { log: {}, http: { url: \"http://x/\" } } } }\n",
        "topics: { t: { replicas: 3 } }\n",
    ] {
        assert_eq!(self::problem(text).code.as_str(), "KL-1007", "{text}");
    }
    assert_eq!(self::problem("pipelines: { a: {} }\n").code.as_str(), "KL-1006");
    assert_eq!(self::problem("pipelines: { a: { handler: { http: {} } } }\n").code.as_str(), "KL-1006");
    assert_eq!(self::problem("topics: { \"a/../b\": {} }\n").code.as_str(), "KL-1005");
}

/// SEC-1.
#[test]
fn other_machines_are_served_only_with_tokens() {
    for listen in ["0.0.0.0:7400", "10.0.0.1:7400", "\"[::]:7400\""] {
        for tokens in ["", ", tokens: []", ", tokens: null"] {
            let problem = problem(&format!("server: {{ listen: {listen}{tokens} }}\n"));
            assert_eq!(problem.code.as_str(), "KL-1009", "{listen}{tokens}");
        }
        let hash = "a".repeat(64);
        let with = format!(
            "server: {{ listen: {listen}, tokens: [{{ name: ops, role: admin, sha256: \"{hash}\" }}] }}\n"
        );
        assert_eq!(parse(&with).expect("with a token").server.tokens[0].role, Role::Admin);
    }
    for listen in ["127.0.0.1:0", "localhost:7400", "\"[::1]:7400\""] {
        assert!(parse(&format!("server: {{ listen: {listen} }}\n")).is_ok(), "{listen}");
    }
}

/// ADM-9, SEC-5.
#[test]
fn values_come_from_the_environment_and_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, format!("{}\n", "b".repeat(64))).expect("written");
    let text = format!(
        "server:\n  listen: 127.0.0.1:${{PORT}}\n  connections: ${{MANY:-17}}\n  tokens: [{{ name: ops, role: read, sha256: 'file:{}' }}]\ndata: '$${{x}}${{EMPTY}}'\n",
        secret.display()
    );
    let environment = Environment::of([("PORT", "99"), ("EMPTY", "")]);
    let config = Config::parse("k.yaml", &text, &environment).expect("valid");
    assert_eq!(config.server.listen.port(), 99);
    assert_eq!(config.server.connections, 17);
    assert_eq!(config.server.tokens[0].sha256, [0xbb; 32]);
    assert_eq!(config.data, PathBuf::from("${x}"));

    for (text, code, says) in [
        ("data: ${NONE}\n", "KL-1008", "NONE is not set"),
        ("data: ${NONE:?ask ops}\n", "KL-1008", "NONE is not set"),
        ("data: ${NONE\n", "KL-1008", "not closed"),
        ("data: ${A B}\n", "KL-1008", "does not name a variable"),
        ("data: ${NONE:+x}\n", "KL-1008", "cannot be read"),
        ("data: file:/no/such/file\n", "KL-1008", "/no/such/file cannot be read"),
    ] {
        let problem = problem(text);
        assert_eq!((problem.code.as_str(), problem.place), (code, at(1, 7)), "{text}");
        assert!(problem.what.contains(says), "{text}: {}", problem.what);
    }
    assert_eq!(problem("data: ${NONE:?ask ops}\n").help, "ask ops");
}

/// SEC-5.
#[test]
fn a_value_from_outside_never_shows_in_an_error() {
    let environment = Environment::of([("S", "hunter2"), ("KEYLANE_SERVER__DRAIN", "hunter3")]);
    let text = "server:\n  tokens: [{ name: ops, role: read, sha256: \"${S}\" }]\n  connections: ${S}\n";
    let error = Config::parse("k.yaml", text, &environment).expect_err("not a hash");
    assert_eq!(error.problems.len(), 3, "{error}");
    assert!(!error.to_string().contains("hunter"), "{error}");
}

/// ADM-9.
#[test]
fn variables_override_what_the_file_says() {
    let text = "server: { listen: 127.0.0.1:1 }\npipelines:\n  my-orders: { handler: { log: {} } }\n";
    let environment = Environment::of([
        ("KEYLANE_SERVER__LISTEN", "127.0.0.1:2"),
        ("KEYLANE_PIPELINES__MY_ORDERS__CONCURRENCY", "7"),
        ("KEYLANE_PIPELINES__MY_ORDERS__LANE__IDLE", "9s"),
        ("KEYLANE_TOPICS", "ignored: one level, as KEYLANE_TOKEN"),
        ("KEYLANE_TOPICS__T", "{ partitions: 3 }"),
        ("KEYLANE_PIPELINES__MY_ORDERS__TOPIC", "t"),
        ("KEYLANE_DATA", "/elsewhere"),
        ("KEYLANE_TOKEN", "not a setting"),
        ("OTHER__THING", "1"),
    ]);
    let config = Config::parse("k.yaml", text, &environment).expect("valid");
    assert_eq!(config.server.listen.port(), 2);
    assert_eq!(config.pipelines["my-orders"].settings.concurrency, 7);
    assert_eq!(config.pipelines["my-orders"].settings.lane_idle, Duration::from_secs(9));
    assert_eq!(config.topics["t"].spec.partitions, 3);
    assert_eq!(config.data, PathBuf::from("/elsewhere"));

    let wrong = Environment::of([("KEYLANE_SERVER__LISEN", "x")]);
    let error = Config::parse("k.yaml", "", &wrong).expect_err("misspelt");
    assert_eq!(error.problems[0].place, Place::Variable("KEYLANE_SERVER__LISEN".to_owned()));
    assert!(error.to_string().contains("did you mean `listen`?"), "{error}");
}

/// ADM-9: what is left out is what the library does by default.
#[test]
fn defaults_are_those_of_the_library() {
    let config = Config::default();
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:7400");
    assert_eq!(config.data, PathBuf::from("./keylane-data"));
    assert_eq!((config.topics.len(), config.pipelines.len()), (0, 0));
    let config =
        parse("topics: { t: {} }\npipelines: { t: { handler: { http: { url: \"http://x/\" } } } }\n")
            .expect("valid");
    assert_eq!(config.topics["t"].spec, TopicSpec::default());
    let pipeline = &config.pipelines["t"];
    assert_eq!((pipeline.topic.as_str(), pipeline.group.as_str()), ("t", "t"));
    let mut settings = Settings::default();
    settings.timeout += Duration::from_secs(1);
    settings.concurrency = 256;
    assert_eq!(pipeline.settings, settings);
    let prints = parse("topics: { t: {} }\npipelines: { t: { handler: { log: {} } } }\n").expect("valid");
    assert_eq!(prints.pipelines["t"].settings, Settings::default());
    let library = keylane::handlers::HttpSettings::new("http://x/");
    let HandlerConfig::Http(http) = &pipeline.handler else { panic!("it is http") };
    assert_eq!(**http, library);
}

/// ADM-9. Set KEYLANE_WRITE in the environment of this test to write the file anew.
#[test]
fn the_reference_file_has_every_setting_at_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/keylane.reference.yaml");
    if Environment::process().is_set("KEYLANE_WRITE") {
        std::fs::write(path, Config::reference()).expect("written");
    }
    let committed = std::fs::read_to_string(path).expect("it is committed");
    assert_eq!(committed, Config::reference(), "run this test with KEYLANE_WRITE=1");
    let mut config = parse(&committed).expect("it is valid");
    let example = "topics: { orders: {} }\npipelines: { orders: { handler: { http: { url: \"https://orders.example.com/push\" } } } }\noutbox: { shop: { url: \"postgres://shop@db.example.com/shop\" } }\n";
    let mut small = parse(example).expect("valid");
    // The reference file writes the settings that the other config leaves to the defaults.
    let spec = |config: &mut Config| std::mem::take(&mut config.topics)["orders"].spec.clone();
    // A written codec becomes the topic's own; otherwise messages are kept as producers send them.
    let compression = keylane::Compression::Lz4;
    assert_eq!(spec(&mut config), TopicSpec { compression, ..spec(&mut small) });
    assert_eq!(config, small);
    config.pipelines.clear();
    config.outbox.clear();
    assert_eq!(config, Config::default());
}

/// ADM-9: what the reference shows in comments is valid too.
#[test]
fn the_examples_in_the_reference_files_comments_are_valid() {
    let reference = Config::reference();
    let token = reference.lines().find_map(|line| line.trim().strip_prefix("#   - ")).expect("a token");
    let copied = parse(&format!("server: {{ tokens: [{token}] }}\n")).expect_err("nobody's hash");
    assert!(copied.to_string().contains("keylane token hash"), "{copied}");
    let hash = "<64 hex digits: what `keylane token hash` prints>";
    let token = token.replace(hash, &crate::hash_token("mine"));
    let config = parse(&format!("server: {{ tokens: [{token}] }}\n")).expect("valid");
    assert_eq!(config.server.tokens[0].name, "ops");
    assert!(reference.contains("\n      # log: {}\n"), "{reference}");
}

#[test]
fn the_schema_knows_every_setting_that_is_read() {
    let schema = Config::schema();
    let pipeline = &schema["properties"]["pipelines"]["additionalProperties"];
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(pipeline["required"], serde_json::json!(["handler"]));
    assert_eq!(pipeline["properties"]["lane"]["properties"]["idle"]["default"], "5m");
    assert_eq!(pipeline["properties"]["blocking"]["default"], 512);
    assert_eq!(schema["properties"]["server"]["properties"]["listen"]["default"], "127.0.0.1:7400");
}

/// MSG-4: topics by environment, declared or made by first use; what is written wins.
#[test]
fn topics_get_the_figures_of_the_profile() {
    let figures = |spec: &TopicSpec| (spec.partitions, spec.replicas, spec.min_insync);
    let kafka =
        "broker: { kind: kafka }\ntopics: { t: {}, own: { partitions: 5, replicas: 2, min_insync: 1 } }\n";
    for (profile, expected) in [
        ("", (4, 1, 1)),
        ("profile: production\n", (12, 3, 2)),
        ("profile: staging\n", (12, 3, 2)),
        ("profile: development\n", (4, 1, 1)),
    ] {
        let config = parse(&format!("{profile}{kafka}")).expect("valid");
        assert_eq!(figures(&config.topics["t"].spec), expected, "{profile}");
        assert_eq!(figures(&config.new_topic), expected, "{profile}");
        assert_eq!(figures(&config.topics["own"].spec), (5, 2, 1), "{profile}");
        let spec = &config.topics["t"].spec;
        assert_eq!((spec.retention_ms, spec.message_bytes_max), (Some(7 * 86_400_000), 1 << 20), "{profile}");
        // Messages are kept as Keylane's producer sends them (lz4): the config did not ask for a codec of the topic.
        assert_eq!(spec.compression, keylane::Compression::AsProduced, "{profile}");
    }
    // The embedded broker has one copy, whatever the profile's default is; and a written single replica stays one.
    let embedded = parse("profile: production\ntopics: { t: {} }\n").expect("valid");
    assert_eq!(figures(&embedded.topics["t"].spec), (12, 1, 1));
    let one = "profile: production\nbroker: { kind: kafka }\ntopics: { t: { replicas: 1 } }\n";
    assert_eq!(figures(&parse(one).expect("valid").topics["t"].spec), (12, 1, 1));
    let environment = Environment::of([("KEYLANE_PROFILE", "production")]);
    let config = Config::parse("k.yaml", kafka, &environment).expect("valid");
    assert_eq!((config.profile.name(), config.topics["t"].spec.replicas), (Some("production"), 3));
}

/// MSG-4, P1: a topic that is there gets what is written, and nothing that is only a default.
#[test]
fn a_topic_that_is_there_gets_only_what_is_written() {
    let there = TopicSpec {
        partitions: 4,
        replicas: 3,
        min_insync: 2,
        retention_ms: None,
        retention_bytes: None,
        message_bytes_max: 500_000,
        compression: keylane::Compression::AsProduced,
        ids: keylane::Ids::All,
    };
    let over = |written: &str| {
        let config = parse(&format!("broker: {{ kind: kafka }}\ntopics: {{ t: {{ {written} }} }}\n"));
        config.expect("valid").topics["t"].over(&there)
    };
    let copies = |spec: TopicSpec| TopicSpec { replicas: 3, ..spec };
    assert_eq!(copies(over("")), there);
    assert_eq!(copies(over("min_insync: 1")), TopicSpec { min_insync: 1, ..there.clone() });
    assert_eq!(copies(over("retention: 1h")), TopicSpec { retention_ms: Some(3_600_000), ..there.clone() });
    assert_eq!(
        copies(over("retention_bytes: 1GiB")),
        TopicSpec { retention_bytes: Some(1 << 30), ..there.clone() }
    );
    assert_eq!(copies(over("max_message: 2MiB")), TopicSpec { message_bytes_max: 2 << 20, ..there.clone() });
    let zstd = keylane::Compression::Zstd;
    assert_eq!(copies(over("compression: zstd")), TopicSpec { compression: zstd, ..there.clone() });
    // Which messages get ids is a setting of Keylane, so an existing topic has no say in it.
    let caller = keylane::Ids::Caller;
    assert_eq!(copies(over("ids: caller")), TopicSpec { ids: caller, ..there.clone() });
}

/// ADM-9: what else the profile of development has; what is written wins.
#[test]
fn a_profile_stands_for_what_is_left_out() {
    let pipeline = |profile: &str, more: &str| {
        let text = format!("{profile}pipelines: {{ a: {{ handler: {{ log: {{}} }}{more} }} }}\n");
        parse(&text).expect("valid").pipelines["a"].settings.clone()
    };
    let plain = pipeline("", "");
    assert_eq!(pipeline("profile: production\n", ""), plain);
    let development = pipeline("profile: development\n", "");
    assert_eq!((development.lane_capacity, development.retries), (100, 2));
    let waits = (development.retry_base, development.retry_max);
    assert_eq!(waits, (Duration::from_millis(50), Duration::from_secs(5)));
    assert!((development.pause_at - 0.7).abs() < 1e-9);
    let own =
        pipeline("profile: development\n", ", lane: { capacity: 7 }, retry: { retries: 9 }, shards: 100");
    assert_eq!((own.lane_capacity, own.retries, own.shards), (7, 9, Some(100)));
    assert_eq!(read::shards(None, Profile::Development, 128), Some(64));
    assert_eq!(read::shards(None, Profile::Development, 8), None);
    assert_eq!(read::shards(None, Profile::Production, 128), None);
    let wrong = problem("profile: prod\n");
    assert_eq!((wrong.code.as_str(), wrong.place), ("KL-1005", at(1, 10)));
}

/// MSG-4: what could never work is told before anything is made.
#[test]
fn more_in_sync_than_replicas_is_refused() {
    let problem = problem("broker: { kind: kafka }\ntopics:\n  t: { replicas: 2, min_insync: 3 }\n");
    assert_eq!((problem.code.as_str(), problem.place), ("KL-1007", at(3, 33)));
    assert!(problem.what.contains("topics.t.min_insync is 3"), "{}", problem.what);
}

/// BRK-6: names of topics that stand beside a source are checked with the config, where their lines are known.
#[test]
fn names_that_kafka_does_not_take_are_refused_with_their_line() {
    let long = "g".repeat(240);
    let text = |topic: &str| {
        format!(
            "broker: {{ kind: KIND }}\npipelines:\n  a:\n    topic: {topic}\n    handler: {{ log: {{}} }}\n"
        )
    };
    let kafka = |text: String| text.replace("KIND", "kafka");
    let problem = problem(&kafka(text(&long)));
    assert_eq!((problem.code.as_str(), &problem.place), ("KL-1007", &at(3, 3)));
    assert!(problem.what.contains("249") && problem.help.contains("shorter"), "{problem:?}");
    assert!(parse(&text(&long).replace("KIND", "embedded")).is_ok());
    assert!(parse(&kafka(text(&"g".repeat(230)))).is_ok(), "with its journal it has 249");
    assert!(parse(&kafka(text(&"g".repeat(231)))).is_err(), "with its journal it has 250");
    for (topics, pipelines, says) in [
        ("{ a.b: {}, a_b: {} }", "{}", "not apart"),
        ("{ __offsets: {} }", "{}", "Kafka's own"),
        ("{ _keylane.journal.g.t: {} }", "{}", "Keylane's"),
    ] {
        let text = format!("broker: {{ kind: kafka }}\ntopics: {topics}\npipelines: {pipelines}\n");
        let problem = self::problem(&text);
        assert!(problem.what.contains(says), "{text}: {}", problem.what);
    }
    // Each pair of group and topic has journals of its own, even if group and topic joined give the same text.
    let alike = "broker: { kind: kafka }\ntopics: { b.c: {}, c: {} }\npipelines: { x: { group: a, topic: b.c, handler: { log: {} } }, y: { group: a.b, topic: c, handler: { log: {} } } }\n";
    assert!(parse(alike).is_ok());
}

/// BRK-2, BRK-6: the topics of Keylane's own state, on clusters that have rules of their own.
#[test]
fn journals_have_a_prefix_and_settings() {
    let with = |journals: &str| format!("broker: {{ kind: kafka, kafka: {{ journals: {journals} }} }}\n");
    let options = |journals: &str| match parse(&with(journals)).expect("valid").broker {
        BrokerChoice::Kafka(options) => options.journals,
        BrokerChoice::Embedded => panic!("it is Kafka"),
    };
    assert_eq!(options("{}"), keylane::KafkaJournals::default());
    let own = options("{ prefix: team.k, create: false, settings: { segment.bytes: 52428800 } }");
    assert_eq!((own.prefix.as_str(), own.create), ("team.k", false));
    assert_eq!(own.settings.get("segment.bytes").map(String::as_str), Some("52428800"));
    let wrong = problem(&with("{ settings: { cleanup.policy: compact } }"));
    assert_eq!(wrong.code.as_str(), "KL-1007");
    assert!(wrong.what.contains("broker.kafka.journals.settings.cleanup.policy"), "{}", wrong.what);
    let taken = problem(&format!("{}topics: {{ team.k.x: {{}} }}\n", with("{ prefix: team.k }")));
    assert!(taken.what.contains("Keylane's"), "{}", taken.what);
}

/// PRD-5, SEC-5: what is wrong with an outbox is told with its place and without its URL.
#[test]
fn an_outbox_is_refused_without_showing_its_url() {
    for (yaml, setting) in [
        ("outbox: { shop: { url: \"oracle://shop:secret@db/shop\" } }\n", "outbox.shop.url"),
        ("outbox: { shop: { url: \"mysql://shop:secret@db/shop\", table: \"a b\" } }\n", "outbox.shop.table"),
        ("outbox: { shop: { url: \"mysql://shop:secret@db/shop\", batch: 0 } }\n", "outbox.shop.batch"),
    ] {
        let error = parse(yaml).expect_err("refused").to_string();
        assert!(error.contains(setting) && !error.contains("secret"), "{error}");
    }
    assert!(parse("outbox: { shop: {} }\n").expect_err("refused").to_string().contains("url"));
    let config = parse("outbox: { shop: { url: \"mysql://shop:secret@db/shop\" } }\n").expect("valid");
    assert!(!format!("{config:?}").contains("secret"));
}

/// ING-5, SEC-5: what a handler needs to know Keylane by, from files and variables; what is wrong has its line, and no
/// secret is shown.
#[test]
fn a_push_handler_can_be_given_secrets_and_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let token = file("token", "Bearer hunter2\n");
    let with = |http: &str| {
        let http = format!("url: \"https://example.com/\", {http}");
        parse(&format!(
            "topics: {{ t: {{}} }}\npipelines: {{ t: {{ handler: {{ http: {{ {http} }} }} }} }}\n"
        ))
    };
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let config =
        with(&format!("headers: {{ Authorization: \"file:{token}\" }}, sign: {secret}, content_type: a/b"));
    let config = config.expect("valid");
    let HandlerConfig::Http(http) = &config.pipelines["t"].handler else { panic!("it is http") };
    assert_eq!(http.headers, [("Authorization".to_owned(), "Bearer hunter2".to_owned())]);
    assert_eq!((http.sign.as_deref(), http.content_type.as_deref()), (Some(secret), Some("a/b")));
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains(secret), "{shown}");
    let (empty, text) = (file("empty", "\n"), file("text", "hunter2"));
    for (http, says) in [
        (format!("headers: {{ A: \"file:{empty}\" }}"), "it is empty"),
        ("headers: { A: \"file:/no/such/file\" }".to_owned(), "cannot be read"),
        ("headers: { Keylane-Id: a }".to_owned(), "sets itself"),
        ("sign: hunter2".to_owned(), "openssl rand"),
        (format!("ca: {text}"), "it holds no PEM"),
        ("ca: /no/such/file".to_owned(), "No such file"),
        (format!("cert: {text}"), "it holds no PEM"),
        ("key: \"-----BEGIN PRIVATE KEY-----\"".to_owned(), "given without cert"),
        ("content_type: json".to_owned(), "not a content type"),
    ] {
        let error = with(&http).expect_err("wrong").to_string();
        assert!(error.contains(says) && error.contains("k.yaml:2:"), "{http}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// ING-5, SEC-5: whatever stands where a path, a content type or a header should, no error repeats it.
#[test]
fn a_secret_in_the_wrong_setting_of_a_handler_never_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "hunter2\n").expect("written");
    let file = format!("file:{}", file.display());
    let environment = Environment::of([("S", "hunter2"), ("E", "")]);
    for (http, code, says) in [
        ("key: \"${S}\"".to_owned(), "KL-1008", "handler.http.key cannot be used: No such file"),
        (format!("key: \"{file}\""), "KL-1008", "handler.http.key cannot be used"),
        (format!("cert: \"{file}\""), "KL-1008", "handler.http.cert cannot be used"),
        ("ca: \"${S}\"".to_owned(), "KL-1008", "handler.http.ca cannot be used"),
        ("content_type: \"${S}\"".to_owned(), "KL-1005", "not a content type"),
        (format!("content_type: \"{file}\""), "KL-1005", "not a content type"),
        ("sign: \"${S}\"".to_owned(), "KL-1005", "openssl rand"),
        (format!("headers: {{ Authorization: \"Bearer {file}\" }}"), "KL-1005", "must hold the whole value"),
        (
            "headers: { Authorization: \"Bearer file:/no/such/file\" }".to_owned(),
            "KL-1005",
            "headers.Authorization names a file behind other text",
        ),
        (
            "headers: { Authorization: \"Bearer ${E}\" }".to_owned(),
            "KL-1008",
            "headers.Authorization: the environment variable E is set, but empty",
        ),
        ("headers: { A: \"${S}${E}\" }".to_owned(), "KL-1008", "E is set, but empty"),
    ] {
        let text = format!(
            "pipelines:\n  a:\n    handler:\n      http:\n        url: \"https://example.com/\"\n        {http}\n"
        );
        let error = Config::parse("k.yaml", &text, &environment).expect_err("wrong");
        let shown = error.to_string();
        assert_eq!(error.problems[0].code.as_str(), code, "{http}: {shown}");
        assert!(shown.contains(says) && shown.contains("k.yaml:6:"), "{http}: {shown}");
        assert!(!shown.contains("hunter2"), "{http}: {shown}");
    }
    for fine in ["X-A: \"profile:/a\"", "X-A: \"a${E:-}\"", "X-A: \"Bearer ${S}\""] {
        let text = format!(
            "pipelines: {{ a: {{ handler: {{ http: {{ url: \"https://example.com/\", headers: {{ {fine} }} }} }} }} }}\n"
        );
        Config::parse("k.yaml", &text, &environment).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
}

/// ADM-9: what would be ignored is refused.
#[test]
fn what_would_be_ignored_is_refused() {
    let kafka = parse("broker: { kind: embedded, kafka: { brokers: \"a:1\" } }\n").expect_err("two brokers");
    assert!(kafka.to_string().contains("kind: kafka"), "{kafka}");
    let hash = crate::hash_token("mine");
    let token = |role: &str| format!("{{ name: a, role: {role}, sha256: \"{hash}\" }}");
    let twice = format!("server: {{ tokens: [{}, {}] }}\n", token("read"), token("admin"));
    let twice = parse(&twice).expect_err("one hash, two roles").to_string();
    assert!(twice.contains("one hash"), "{twice}");
    let pasted = "server: { tokens: [{ name: a, role: read, sha256: hunter2 }] }\n";
    let pasted = parse(pasted).expect_err("a token instead of its hash").to_string();
    assert!(pasted.contains("keylane token hash") && !pasted.contains("hunter2"), "{pasted}");
    let example = crate::hash_token("foo");
    let example =
        parse(&format!("server: {{ tokens: [{{ name: a, role: read, sha256: \"{example}\" }}] }}\n"));
    assert!(example.expect_err("an example").to_string().contains("anybody can guess"));
    let environment = Environment::of([
        ("KEYLANE_LISTEN", "a"),
        ("KEYLANE_CONFIG", "a"),
        ("KEYLANE_SERVICE_HOST", "a"),
        ("KEYLANE_SERVER__LISTEN", "a"),
        ("OTHER", "a"),
    ]);
    assert_eq!(environment.without_effect(), ["KEYLANE_LISTEN"]);
}
