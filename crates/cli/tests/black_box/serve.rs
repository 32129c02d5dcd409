//! Tests of `keylane serve`: start, signals, drain, and the errors of a server that cannot start.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};

use crate::binary::{command, keylane, signal, text};
use serde_json::Value;
use tempfile::TempDir;

/// A running server. Dropping it kills the process, so that a failed test leaves none behind.
pub struct Running {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    pub url: String,
}

impl Running {
    pub fn start(config: &Path) -> Running {
        Running::start_with(config, Stdio::null())
    }

    pub fn start_with(config: &Path, stderr: Stdio) -> Running {
        let mut child = command(&["serve", "-c", config.to_str().expect("text")])
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it says where it listens");
        let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Running { child, stdout, url }
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        let code = self.child.wait().expect("it ends").code();
        let mut rest = String::new();
        self.stdout.read_line(&mut rest).expect("its output ends");
        code
    }

    pub fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        keylane(&[arguments, &["--url", &self.url]].concat(), input)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a config that listens on `listen` and adds `more`.
pub fn config(listen: &str, more: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let text = format!("server:\n  listen: {listen}\ndata: {}\n{more}", data.display());
    std::fs::write(folder.path().join("keylane.yaml"), text).expect("it is written");
    folder
}

fn serve(config: &Path) -> Output {
    keylane(&["serve", "-c", config.to_str().expect("text")], b"")
}

fn one_sentence(output: &Output) -> String {
    let said = text(&output.stderr);
    let sentences: Vec<&str> = said.lines().filter(|line| line.starts_with("keylane: ")).collect();
    assert_eq!(sentences.len(), 1, "{said}");
    sentences[0].to_owned()
}

/// ADM-8, ORD-10.
#[test]
fn a_signal_drains_and_ends_the_server_with_0() {
    for name in ["-TERM", "-INT"] {
        let folder = config("127.0.0.1:0", "");
        let mut server = Running::start(&folder.path().join("keylane.yaml"));
        signal(&server.child, name);
        assert_eq!(server.exit_code(), Some(0), "{name}");
    }
}

/// ADM-8, ORD-10.
#[test]
fn a_second_signal_cuts_the_drain_short_with_1() {
    // The handler accepts the call and never answers.
    let handler = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", handler.local_addr().expect("it is bound"));
    let folder = config(
        "127.0.0.1:0",
        &format!(
            "pipelines:\n  orders:\n    handler: {{ http: {{ url: \"{url}\", allow_private: true }} }}\n"
        ),
    );
    let path = folder.path().join("keylane.yaml");
    let mut server = Running::start_with(&path, Stdio::piped());
    let produced = server.run(&["produce", "orders"], b"hello\n");
    assert_eq!(produced.status.code(), Some(0), "{}", text(&produced.stderr));
    let _taken = handler.accept().expect("the handler is called");
    signal(&server.child, "-TERM");
    let events = BufReader::new(server.child.stderr.take().expect("it is piped"));
    let mut events = events.lines().map(|line| line.expect("text"));
    // Send the second signal only after the server has seen the first: the system may merge two pending signals.
    assert!(events.any(|event| event.contains("draining")));
    signal(&server.child, "-TERM");
    assert_eq!(server.exit_code(), Some(1));
    assert!(events.any(|event| event.starts_with("keylane: a second signal")));
}

/// ADM-8, ING-1.
#[test]
fn what_was_produced_is_there_to_be_read_byte_for_byte() {
    let folder = config("127.0.0.1:0", "");
    let server = Running::start(&folder.path().join("keylane.yaml"));
    let produced = server.run(&["produce", "orders", "-k", "user-1"], b"one\n{\"n\": 1e400}\n\xff\xfe\n");
    assert_eq!(produced.status.code(), Some(0), "{}", text(&produced.stderr));
    let read = server.run(&["tail", "orders", "--no-follow", "--json"], b"");
    assert_eq!(read.status.code(), Some(0), "{}", text(&read.stderr));
    let messages: Vec<Value> = text(&read.stdout)
        .lines()
        .map(|line| {
            // A number that no double can hold must pass through unchanged; here only the shape is checked.
            serde_json::from_str(&line.replace("1e400", "1")).expect("JSON")
        })
        .collect();
    assert_eq!(messages.len(), 3);
    assert!(messages.iter().all(|message| message["key"] == "user-1"));
    assert!(text(&read.stdout).contains("//4="));
    let shown = server.run(&["tail", "orders", "--from", "earliest", "-n", "2"], b"");
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).lines().next().is_some_and(|line| line.ends_with(" user-1 one")));
    let topics: Value = serde_json::from_slice(&server.run(&["topics", "--json"], b"").stdout).expect("JSON");
    assert_eq!(topics["topics"][0]["messages"], 3);
    for command in ["pipelines", "lanes"] {
        let output = server.run(&[command, "--json"], b"");
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON");
    }
}

/// ADM-8, ING-1.
#[test]
fn a_bad_line_of_a_file_is_named_and_the_others_are_kept() {
    let folder = config("127.0.0.1:0", "");
    let server = Running::start(&folder.path().join("keylane.yaml"));
    let file = folder.path().join("messages.ndjson");
    std::fs::write(&file, "{\"payload\":1}\n\n{bad\n{\"key\":\"a\"}\n{\"payload\":2}\n")
        .expect("it is written");
    let output = server.run(&["produce", "orders", file.to_str().expect("text"), "--ndjson", "--json"], b"");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&printed["accepted"], &printed["rejected"]), (&2.into(), &2.into()));
    let lines: Vec<&Value> =
        printed["errors"].as_array().expect("a list").iter().map(|error| &error["line"]).collect();
    assert_eq!(lines, [3, 4]);
    let alone = server.run(&["produce", "orders", "--ndjson"], b"{bad\n");
    assert_eq!(alone.status.code(), Some(1));
    assert!(text(&alone.stderr).contains("line 1: "), "{}", text(&alone.stderr));
}

/// ADM-8.
#[test]
fn a_port_in_use_is_one_clear_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let folder = config(&address, "");
    let output = serve(&folder.path().join("keylane.yaml"));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = one_sentence(&output);
    assert!(said.contains(&address) && said.ends_with("(KL-1401)"), "{said}");
}

/// ADM-8, ORD-10: a signal during the start drains the server too.
#[test]
fn a_signal_while_it_starts_drains_as_well() {
    // The start has so much to do that the signal arrives before it ends.
    let pipelines: String =
        (0..300).map(|n| format!("  p{n}: {{ topic: t, handler: {{ log: {{}} }} }}\n")).collect();
    let more = format!("topics: {{ t: {{ partitions: 32 }} }}\npipelines:\n{pipelines}");
    let folder = config("127.0.0.1:0", &more);
    let path = folder.path().join("keylane.yaml");
    let mut child = command(&["serve", "-c", path.to_str().expect("text")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    while !folder.path().join("data").exists() {
        std::thread::yield_now();
    }
    signal(&child, "-TERM");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let events = BufReader::new(child.stderr.take().expect("it is piped"));
    let stopped = events.lines().any(|event| event.expect("text").contains("stopped"));
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(stopped, "it ended without a drain");
    assert_eq!(stdout.lines().count(), 0, "the signal came too late to show anything");
}

/// ADM-8, SEC-2.
#[test]
fn fewer_connections_are_taken_where_the_system_gives_few_descriptors() {
    let folder = config("127.0.0.1:0", "topics: { t: { partitions: 1 } }\n");
    let path = folder.path().join("keylane.yaml");
    let mut child = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 400 && exec \"$0\" serve -c \"$1\"", env!("CARGO_BIN_EXE_keylane")])
        .arg(&path)
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut events = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let warned = events.any(|event| event.expect("text").contains("connections=38"));
    signal(&child, "-TERM");
    drop(events);
    child.wait().expect("it ends");
    assert!(warned, "(400 - 256 - 64 - 4) / 2 is not said");
}

/// ADM-8, BRK-1.
#[test]
fn a_second_process_on_the_folder_is_one_clear_sentence() {
    let folder = config("127.0.0.1:0", "");
    let config = folder.path().join("keylane.yaml");
    let first = Running::start(&config);
    let output = serve(&config);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(one_sentence(&output).contains("data"));
    let still_there = first.run(&["topics"], b"");
    assert_eq!(still_there.status.code(), Some(0));
}

/// ADM-8, BRK-1.
#[test]
fn a_folder_that_cannot_be_made_is_one_clear_sentence() {
    let folder = config("127.0.0.1:0", "");
    // A file is in the way, so not even root can make the folder.
    std::fs::write(folder.path().join("data"), "in the way").expect("it is written");
    let output = serve(&folder.path().join("keylane.yaml"));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(one_sentence(&output).contains("data"));
}

/// ADM-8, ADM-9.
#[test]
fn a_wrong_config_is_told_with_its_place_and_the_nearest_name() {
    let folder = config("127.0.0.1:0", "topics:\n  orders: { partitoins: 4 }\n");
    let config = folder.path().join("keylane.yaml");
    let path = config.to_str().expect("text");
    for command in ["serve", "check"] {
        let output = keylane(&[command, "-c", path], b"");
        assert_eq!(output.status.code(), Some(2), "{command}");
        let said = text(&output.stderr);
        assert!(said.contains(&format!("{path}:5:")) && said.contains("partitions"), "{said}");
    }
    let missing = keylane(&["check", "-c", "no-such-file.yaml"], b"");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("no-such-file.yaml"));
}

/// ADM-8, ADM-9.
#[test]
fn check_says_what_would_run() {
    let more = "topics:\n  orders: { partitions: 6 }\npipelines:\n  orders:\n    topic: orders\n    handler: { log: {} }\n";
    let folder = config("127.0.0.1:7499", more);
    let path = folder.path().join("keylane.yaml");
    let path = path.to_str().expect("text");
    let shown = keylane(&["check", "-c", path], b"");
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let table = text(&shown.stdout);
    assert!(table.contains("127.0.0.1:7499") && table.contains("orders") && table.contains("log"), "{table}");
    let printed = keylane(&["check", "-c", path, "--json"], b"").stdout;
    assert_eq!(text(&printed).lines().count(), 1, "one line, as all JSON is");
    let plan: Value = serde_json::from_slice(&printed).expect("JSON");
    assert_eq!(plan["topics"][0]["partitions"], 6);
    assert_eq!(plan["pipelines"][0]["handler"], "log");
    assert!(!folder.path().join("data").exists(), "check opens nothing");
    let schema = keylane(&["check", "--schema"], b"");
    let schema: Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    assert!(schema["properties"]["pipelines"].is_object());
}

/// ADM-2: the log shows who was refused and who changed something, by the name of the token and never by the token.
#[test]
fn refusals_and_changes_are_in_the_log_with_who_asked() {
    let tokens: String = [("ops", "operate"), ("viewer", "read")]
        .map(|(name, role)| {
            let hash = keylane_server::hash_token(&format!("hunter2-{name}"));
            format!("    - {{ name: {name}, role: {role}, sha256: \"{hash}\" }}\n")
        })
        .concat();
    let folder = config("127.0.0.1:0", "topics: { orders: { partitions: 1 } }\n");
    let path = folder.path().join("keylane.yaml");
    let text_of_config = std::fs::read_to_string(&path).expect("it was written");
    let more = "pipelines:\n  orders: { topic: orders, handler: { log: {} } }\n";
    let with_tokens = text_of_config.replacen("\ndata:", &format!("\n  tokens:\n{tokens}data:"), 1);
    std::fs::write(&path, with_tokens + more).expect("it is written");
    let mut server = Running::start_with(&path, Stdio::piped());
    for _ in 0..25 {
        let refused = server.run(&["produce", "orders", "--token", "hunter2-wrong"], b"x\n");
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    }
    let refused = server.run(&["spill", "drain", "--token", "hunter2-viewer"], b"");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    for change in [&["topics", "accept", "orders"][..], &["spill", "drain"]] {
        let done = server.run(&[change, &["--token", "hunter2-ops"]].concat(), b"");
        assert_eq!(done.status.code(), Some(0), "{change:?}: {}", text(&done.stderr));
    }
    signal(&server.child, "-TERM");
    let events = BufReader::new(server.child.stderr.take().expect("it is piped"));
    let events: Vec<String> = events.lines().map(|line| line.expect("text")).collect();
    assert_eq!(server.exit_code(), Some(0));
    let all = events.join("\n");
    let with =
        |parts: &[&str]| events.iter().filter(|event| parts.iter().all(|part| event.contains(part))).count();
    let refused = ["WARN", "a request was refused", "peer=127.0.0.1:"];
    let strangers = ["KL-1501", "route=\"/v1/topics/{topic}/messages\"", "who=\"unknown\""];
    assert_eq!(with(&[&refused[..], &strangers].concat()), 10, "{all}");
    assert_eq!(with(&["WARN", "KL-1501", "left_out=15"]), 1, "{all}");
    assert_eq!(with(&[&refused[..], &["KL-1502", "who=\"viewer\""]].concat()), 1, "{all}");
    for call in ["POST /admin/topics/orders/accept", "POST /admin/spill/drain"] {
        let done = ["INFO", "an admin call was carried out", "peer=127.0.0.1:", "who=\"ops\"", call];
        assert_eq!(with(&done), 1, "{call}: {all}");
    }
    assert!(!all.contains("hunter2"), "{all}");
}

/// ADM-2, ADM-8.
#[test]
fn a_new_token_lets_its_holder_in_and_nobody_else() {
    let made: Value =
        serde_json::from_slice(&keylane(&["token", "new", "--json"], b"").stdout).expect("JSON");
    let line = made["config"].as_str().expect("a config line");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keylane.yaml");
    let data = folder.path().join("data");
    let config = format!("server:\n  listen: 127.0.0.1:0\n  tokens:\n    {line}\ndata: {}\n", data.display());
    std::fs::write(&path, config).expect("it is written");
    let server = Running::start(&path);
    let token = made["token"].as_str().expect("a token");
    assert_eq!(server.run(&["topics", "--token", token], b"").status.code(), Some(0));
    for stranger in [&["topics"][..], &["topics", "--token", "wrong"]] {
        let refused = server.run(stranger, b"");
        assert_eq!(refused.status.code(), Some(1));
        let said = one_sentence(&refused);
        assert!(
            said.contains("--token") && said.contains("KEYLANE_TOKEN") && said.ends_with("(KL-1501)"),
            "{said}"
        );
    }
}
