//! Tests of the diagnostics that an operator finds afterwards: rejected messages, stuck keys, ignored signals and
//! variables.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::binary::{command, keylane, signal, text};
use crate::canned::Canned;
use crate::serve::{Running, config};

/// Log lines of one kind per minute at most.
const LINES_MAX: usize = 10;

fn pipeline(handler: &Canned, more: &str) -> String {
    format!(
        "topics: {{ orders: {{ partitions: 1 }} }}\npipelines:\n  orders:\n    handler: {{ http: {{ url: \"{}/\", allow_private: true }} }}\n{more}",
        handler.url
    )
}

/// Waits until the status of the pipeline is as `wanted`, and returns it.
fn shows(server: &Running, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let output = server.run(&["pipelines", "--json"], b"");
        if output.status.success() {
            let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            if wanted(&all["pipelines"][0]) {
                return all["pipelines"][0].clone();
            }
        }
        std::thread::yield_now();
    }
}

/// Ends the server and returns everything that it wrote to standard error.
fn log_of(mut server: Running) -> Vec<String> {
    signal(&server.child, "-TERM");
    let events = BufReader::new(server.child.stderr.take().expect("it is piped"));
    let lines = events.lines().map(|line| line.expect("text")).collect();
    assert_eq!(server.exit_code(), Some(0));
    lines
}

/// ING-5: the log shows for a rejected message its place, the status and the handler's answer; a flood of rejections
/// does not fill the log; and their number is known after a restart.
#[test]
fn a_rejected_message_leaves_a_trace_that_outlives_the_process() {
    let handler = Canned::new(&[("422 Unprocessable Entity", "{\"error\":\"total\nis missing\"}")]);
    let folder = config("127.0.0.1:0", &pipeline(&handler, ""));
    let path = folder.path().join("keylane.yaml");
    let server = Running::start_with(&path, Stdio::piped());
    let produced = server.run(&["produce", "orders", "-k", "user-1"], "{}\n".repeat(25).as_bytes());
    assert_eq!(produced.status.code(), Some(0), "{}", text(&produced.stderr));
    let shown = shows(&server, |shown| shown["dead"] == 25);
    assert_eq!((&shown["rejected"], &shown["failed"]), (&25.into(), &0.into()), "{shown}");
    let log = log_of(server);
    let told: Vec<&String> = log.iter().filter(|line| line.contains("a message was rejected")).collect();
    assert_eq!(told.len(), LINES_MAX, "{log:#?}");
    for part in [
        "WARN",
        "pipeline=\"orders\"",
        "partition=0",
        "offset=0",
        "key=\"user-1\"",
        "attempt=1",
        "answered 422 Unprocessable Entity: {\\\"error\\\":\\\"total is missing",
    ] {
        assert!(told[0].contains(part), "{part} is not in {}", told[0]);
    }
    assert!(
        log.iter()
            .any(|line| line.contains("further messages were rejected") && line.contains("left_out=15"))
    );

    let again = Running::start(&path);
    let shown = shows(&again, |shown| shown["dead"] == 25);
    assert_eq!((&shown["rejected"], &shown["handled"]), (&0.into(), &0.into()), "{shown}");
    let table = text(&again.run(&["pipelines"], b"").stdout);
    assert!(table.lines().nth(1).is_some_and(|row| row.ends_with("25")), "{table}");
}

/// RTY-2: the warning about a stuck key names the key and the reason.
#[test]
fn the_warning_of_a_stuck_message_names_its_key_and_the_reason() {
    let handler = Canned::new(&[("500 Internal Server Error", "no database")]);
    let more = "    retry: { retries: 1, base: 1ms, max: 2ms }\n";
    let folder = config("127.0.0.1:0", &pipeline(&handler, more));
    let server = Running::start_with(&folder.path().join("keylane.yaml"), Stdio::piped());
    server.run(&["produce", "orders", "-k", "user 1"], b"{}\n");
    shows(&server, |shown| shown["lanes"]["stuck"] == 1 && shown["failed"].as_u64() > Some(50));
    let log = log_of(server);
    assert_eq!(
        log.iter().filter(|line| line.contains("a message is stuck")).count(),
        1,
        "told once: {log:#?}"
    );
    let told = log.iter().find(|line| line.contains("a message is stuck")).expect("a warning");
    for part in ["pipeline=\"orders\"", "offset=0", "key=\"user%201\"", "answered 500", "no database"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

/// ADM-9: this version does not read its config again while it runs, so SIGHUP changes nothing and the log says so.
#[test]
fn a_hang_up_does_not_end_the_server() {
    let folder = config("127.0.0.1:0", "");
    let mut server = Running::start_with(&folder.path().join("keylane.yaml"), Stdio::piped());
    signal(&server.child, "-HUP");
    let events = BufReader::new(server.child.stderr.take().expect("it is piped"));
    let mut events = events.lines().map(|line| line.expect("text"));
    assert!(events.any(|event| event.contains("SIGHUP is ignored")), "it ended without a word");
    assert_eq!(server.run(&["topics"], b"").status.code(), Some(0));
    signal(&server.child, "-TERM");
    assert!(events.any(|event| event.contains("draining")));
    signal(&server.child, "-HUP");
    assert_eq!(server.exit_code(), Some(0), "nor does it cut a drain short");
}

/// ADM-8, ADM-9: mistyped arguments and variables are reported, and never silently ignored.
#[test]
fn what_would_have_no_effect_is_told() {
    let folder = config("127.0.0.1:0", "");
    let path = folder.path().join("keylane.yaml");
    let path = path.to_str().expect("text");
    let wrong = keylane(&["serve", "-c", path, "--log", "foo bar"], b"");
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(text(&wrong.stderr).contains("\"foo bar\" is neither a level"), "{}", text(&wrong.stderr));

    // KEYLANE_CONFIG names the config as `-c` does. A variable that is no setting changes nothing, and is reported.
    let mut child = command(&["serve"])
        .env("KEYLANE_CONFIG", path)
        .env("KEYLANE_LISTEN", "127.0.0.1:1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut first).expect("a line");
    signal(&child, "-TERM");
    let events = BufReader::new(child.stderr.take().expect("it is piped"));
    let log: Vec<String> = events.lines().map(|line| line.expect("text")).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(first.starts_with("listening on http://127.0.0.1:"), "{first}");
    assert!(folder.path().join("data").exists(), "the config that the variable names was not read");
    let told = |name: &str| log.iter().any(|line| line.contains("changes nothing") && line.contains(name));
    assert!(told("KEYLANE_LISTEN") && !told("KEYLANE_CONFIG"), "{log:#?}");
}

/// ADM-9, SEC-2: a file without an end is refused as a config.
#[test]
fn a_config_without_an_end_is_refused() {
    for name in ["/dev/zero", "/dev/urandom"] {
        let output = keylane(&["check", "-c", name], b"");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("KL-1001"), "{}", text(&output.stderr));
    }
    assert!(!Path::new("keylane-data").exists(), "check opens nothing");
}
