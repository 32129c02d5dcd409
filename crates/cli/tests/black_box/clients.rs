//! Tests of the commands that call a server: what they send, what they print, and their exit codes.

use crate::binary::{command, keylane, text};
use crate::canned::Canned;
use serde_json::{Value, json};

const PROBLEM: &str = r#"{"type":"/errors/KL-1201","title":"Unknown topic","status":404,"detail":"there is no topic orders; declare it under topics","code":"KL-1201"}"#;

fn topics() -> String {
    let topic = json!({"name": "or\u{1b}[2Jders", "partitions": 2, "messages": 12_345, "ends": [
        {"partition": 0, "start": 0, "end": 12_000}, {"partition": 1, "start": 5, "end": 350}]});
    json!({"topics": [topic]}).to_string()
}

fn pipelines() -> String {
    let pipeline = json!({"name": "orders", "topic": "orders", "group": "orders", "mode": "normal", "state": "running",
        "lag": {"messages": 7, "oldest_age_seconds": 1.5},
        "lanes": {"total": 9, "busy": 3, "held": 0, "retrying": 1, "stuck": 1},
        "handled": 1_000_000, "failed": 4, "dead": 2, "in_flight": 3, "buffered": 7, "buffered_bytes": 700,
        "partitions": [{"partition": 0, "state": "paused", "epoch": 3, "committed": 1, "end": 8, "why": "lane full"}]});
    json!({"pipelines": [pipeline]}).to_string()
}

fn lanes() -> String {
    let lane = json!({"pipeline": "orders", "key": "user-1", "partition": 0, "depth": 12, "state": "stuck",
        "attempt": 4, "waiting_seconds": 3_725.0, "last_tried_seconds": 3.25, "why": "connection refused"});
    json!({"lanes": [lane], "unanswered": [{"pipeline": "orders", "shard": 2}]}).to_string()
}

/// ADM-8.
#[test]
fn a_server_that_is_not_there_exits_with_3_and_says_where() {
    // No program listens on this port: its protocol has been out of use for decades.
    let url = "http://127.0.0.1:1";
    for arguments in [
        &["topics"][..],
        &["pipelines"],
        &["lanes"],
        &["tail", "orders"],
        &["tail", "orders", "--no-follow"],
        &["produce", "orders"],
    ] {
        let output = keylane(&[arguments, &["--url", url]].concat(), b"x\n");
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(url) && said.lines().count() == 1, "{said}");
    }
}

/// ADM-8, SEC-5.
#[test]
fn a_password_in_the_address_is_not_shown() {
    let output = keylane(&["topics", "--url", "http://me:secret@127.0.0.1:1"], b"");
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    assert!(said.contains("http://127.0.0.1:1/") && !said.contains("secret"), "{said}");
}

/// ADM-8.
#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [
        &["no-such-command"][..],
        &["topics", "--url", "localhost:7400"],
        &["produce", "orders", "--ndjson", "-k", "a"],
        &["produce", "orders", "no-such-file"],
        &["produce", "orders", "/"],
        &["tail", "orders", "--from", "yesterday"],
        &["tail", "orders", "--from", "5"],
        &["lanes", "--sort", "colour"],
        &["lanes", "--limit", "0"],
        &["completions", "no-such-shell"],
        &["token", "new", "--role", "king"],
        &["token", "new", "--name", "a b"],
        &["token", "new", "--name", ""],
        &["token", "hash", ""],
        &["token", "hash", " a"],
        &["token", "hash", "schlüssel"],
        &["demo", "--listen", "0.0.0.0:0"],
    ] {
        let output = keylane(arguments, b"");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// ADM-8, ADM-2: without a token, or with a wrong one, the error says where to give it, and does not show the token.
#[test]
fn whoever_needs_a_token_is_told_how_to_give_it() {
    let problem = r#"{"type":"/errors/KL-1501","title":"a token is needed","status":401,"detail":"this needs a token, and none was sent","code":"KL-1501"}"#;
    for arguments in [
        &["topics"][..],
        &["topics", "accept", "orders"],
        &["tail", "orders"],
        &["spill", "drain"],
        &["produce", "orders"],
        &["topics", "--token", "hunter2"],
    ] {
        let server = Canned::new(&[("401 Unauthorized", problem)]);
        let output = keylane(&[arguments, &["--url", &server.url]].concat(), b"x\n");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output.stderr);
        for part in ["--token", "KEYLANE_TOKEN", "KL-1501"] {
            assert!(said.contains(part), "{arguments:?}: {part} is not in: {said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }
}

/// ADM-8.
#[test]
fn json_is_what_the_server_said() {
    for (command, answer) in [("topics", topics()), ("pipelines", pipelines()), ("lanes", lanes())] {
        let server = Canned::new(&[("200 OK", &answer)]);
        let output = keylane(&[command, "--json", "--url", &server.url], b"");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(
            output.stdout.iter().filter(|byte| **byte == b'\n').count(),
            1,
            "one line, as all JSON is"
        );
        let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let said: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(printed, said);
    }
}

/// ADM-8, SEC-5.
#[test]
fn tables_show_what_matters_and_no_control_character() {
    for (command, answer, expected) in [
        ("topics", topics(), &["12,345", "0..12000", "ders"][..]),
        ("pipelines", pipelines(), &["1,000,000", "1.5s", "orders/0 is paused: lane full"]),
        (
            "lanes",
            lanes(),
            &[
                "user-1",
                "12",
                "stuck",
                "62m",
                "3.2s",
                "connection refused",
                "shard 2 of orders did not answer",
            ],
        ),
    ] {
        let server = Canned::new(&[("200 OK", &answer)]);
        let output = keylane(&[command, "--url", &server.url], b"");
        assert_eq!(output.status.code(), Some(0));
        let table = text(&output.stdout);
        for part in expected {
            assert!(table.contains(part), "{part} is not in:\n{table}");
        }
        assert!(!table.contains(|c: char| c.is_control() && c != '\n'), "{table:?}");
    }
}

/// ADM-8.
#[test]
fn lanes_asks_for_what_was_typed() {
    let server = Canned::new(&[("200 OK", &lanes())]);
    keylane(&["lanes", "--pipeline", "a b", "--sort", "waiting", "--limit", "3", "--url", &server.url], b"");
    assert_eq!(server.requests()[0].line, "GET /admin/lanes?sort=waiting&limit=3&pipeline=a+b HTTP/1.1");
}

/// ADM-8, ING-7.
#[test]
fn a_refusal_is_one_sentence_with_its_code() {
    let server = Canned::new(&[("404 Not Found", PROBLEM)]);
    for arguments in [&["topics"][..], &["tail", "orders"], &["produce", "orders"]] {
        let output = keylane(&[arguments, &["--url", &server.url]].concat(), b"x\n");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains("there is no topic orders; declare it under topics (KL-1201)"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// ADM-8.
#[test]
fn something_that_is_no_keylane_server_is_said_to_be_none() {
    let server = Canned::new(&[("200 OK", "<html>hello</html>")]);
    let output = keylane(&["topics", "--url", &server.url], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is it a Keylane server"));
}

/// SEC-4, ADM-2.
#[test]
fn a_token_is_sent_and_no_redirect_takes_it_elsewhere() {
    let server = Canned::new(&[("302 Found", "")]);
    let output = keylane(&["topics", "--url", &server.url, "--token", "secret"], b"");
    assert_eq!(output.status.code(), Some(1));
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].headers.contains("authorization: bearer secret"));
}

/// ADM-8, SEC-5.
#[test]
fn a_token_from_the_environment_is_used_and_never_shown() {
    let server = Canned::new(&[("200 OK", &topics())]);
    let output =
        command(&["topics", "--url", &server.url]).env("KEYLANE_TOKEN", "secret").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(server.requests()[0].headers.contains("authorization: bearer secret"));
    let help = command(&["topics", "--help"]).env("KEYLANE_TOKEN", "secret").output().expect("it runs");
    assert!(!text(&help.stdout).contains("secret"));
}

/// ADM-8, MSG-1.
#[test]
fn produce_sends_the_bytes_of_each_line_under_the_key() {
    let accepted = r#"{"accepted":[{"id":"a","partition":0,"offset":0},{"id":"b","partition":0,"offset":1}],"rejected":[]}"#;
    let server = Canned::new(&[("202 Accepted", accepted)]);
    let output = keylane(&["produce", "a/b", "-k", "user-1", "--url", &server.url], b"hi\n{\"n\": 1}\n");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "2 accepted, 0 rejected\n");
    let request = &server.requests()[0];
    assert_eq!(request.line, "POST /v1/topics/a%2Fb/messages HTTP/1.1");
    assert!(request.headers.contains("content-type: application/x-ndjson"));
    assert_eq!(
        request.body,
        "{\"key\":\"user-1\",\"payload_base64\":\"aGk=\"}\n{\"key\":\"user-1\",\"payload\":{\"n\": 1}}\n"
    );
}

/// ADM-8.
#[test]
fn a_refused_line_is_named_by_its_number_in_the_file_and_the_exit_code_is_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("messages.ndjson");
    std::fs::write(&file, "{\"payload\":1}\n\n{bad\n{\"payload\":2}\n").expect("it is written");
    let answer = r#"{"accepted":[{"id":"a"},{"id":"b"}],"rejected":[{"index":1,"error":"not JSON"}]}"#;
    let server = Canned::new(&[("202 Accepted", answer)]);
    let path = file.to_str().expect("text");
    let output = keylane(&["produce", "orders", path, "--ndjson", "--json", "--url", &server.url], b"");
    assert_eq!(output.status.code(), Some(1));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed, json!({"accepted": 2, "rejected": 1, "errors": [{"line": 3, "error": "not JSON"}]}));
    assert!(text(&output.stderr).contains("line 3: not JSON"));
    assert_eq!(server.requests()[0].body, "{\"payload\":1}\n{bad\n{\"payload\":2}\n");
}

/// ADM-8.
#[test]
fn lines_that_are_all_refused_are_named_too() {
    let answer = r#"{"title":"Bad request","status":400,"detail":"no message was taken","code":"KL-1202","rejected":[{"index":0,"error":"no"},{"index":1,"error":"no"}]}"#;
    let server = Canned::new(&[("400 Bad Request", answer)]);
    let output = keylane(&["produce", "orders", "--ndjson", "--url", &server.url], b"{\n{\n");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "0 accepted, 2 rejected\n");
    assert!(text(&output.stderr).contains("line 2: no"));
}

/// ADM-8, ORD-1.
#[test]
fn nothing_is_sent_behind_a_batch_that_was_refused() {
    let first: Vec<Value> = (0..1_000).map(|n| json!({"id": n.to_string()})).collect();
    let first = json!({"accepted": first, "rejected": []}).to_string();
    let busy = r#"{"title":"no room","status":503,"detail":"slow down","code":"KL-1204","rejected":[{"index":0,"error":"full"}]}"#;
    let server =
        Canned::new(&[("202 Accepted", &first), ("503 Service Unavailable", busy), ("202 Accepted", &first)]);
    let output = keylane(&["produce", "orders", "--url", &server.url], &b"m\n".repeat(3_000));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "1000 accepted, 0 rejected\n");
    let said = text(&output.stderr);
    assert!(said.contains("lines 1001 to 2000") && said.contains("slow down (KL-1204)"), "{said}");
    assert_eq!(server.requests().len(), 2);
}

/// ADM-8.
#[test]
fn tail_follows_and_stops_after_so_many() {
    let stream = "{\"partition\":0,\"offset\":3,\"key\":\"a\",\"appended_at\":0,\"payload\":1}\n\n{\"partition\":1,\"offset\":9,\"key\":null,\"payload_base64\":\"aGk=\"}\n{\"partition\":1,\"offset\":10}\n";
    let server = Canned::new(&[("200 OK", stream)]);
    let output = keylane(&["tail", "orders", "-n", "2", "--url", &server.url], b"");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "1970-01-01T00:00:00.000Z 0@3 a 1\n- 1@9 - hi\n");
    assert_eq!(
        server.requests()[0].line,
        "GET /admin/topics/orders/messages?from=latest&follow=true HTTP/1.1"
    );
}

/// ADM-8.
#[test]
fn a_stream_that_ends_by_itself_is_a_failure() {
    let server = Canned::new(&[("200 OK", "{\"partition\":0,\"offset\":3}\n")]);
    let output = keylane(&["tail", "orders", "--json", "--url", &server.url], b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "{\"partition\":0,\"offset\":3}\n");
}

/// ADM-8.
#[test]
fn tail_without_follow_reads_each_partition_page_by_page() {
    let page: Vec<Value> = (5..1_005).map(|n| json!({"partition": 1, "offset": n, "payload": n})).collect();
    let server = Canned::new(&[
        ("200 OK", &topics().replace("or\\u001b[2Jders", "orders")),
        ("200 OK", "[]"),
        ("200 OK", &Value::from(page).to_string()),
        // The page is short because its messages are large. It is not the end of the partition.
        ("200 OK", r#"[{"partition":1,"offset":1005,"payload":0}]"#),
        ("200 OK", r#"[{"partition":1,"offset":1006,"payload":0}]"#),
        ("200 OK", "[]"),
    ]);
    let output = keylane(&["tail", "orders", "--no-follow", "--json", "--url", &server.url], b"");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1_002);
    let asked: Vec<String> = server.requests()[1..].iter().map(|request| request.line.clone()).collect();
    let expected = [
        "partition=0&from=earliest",
        "partition=1&from=earliest",
        "partition=1&from=1005",
        "partition=1&from=1006",
        "partition=1&from=1007",
    ]
    .map(|query| format!("GET /admin/topics/orders/messages?{query}&limit=1000 HTTP/1.1"));
    assert_eq!(asked, expected);
}

/// ADM-8.
#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let lines = "{\"partition\":0,\"offset\":3}\n".repeat(10_000);
    let server = Canned::new(&[("200 OK", &lines)]);
    let mut child = command(&["tail", "orders", "-n", "10000", "--url", &server.url])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}

/// BRK-6: `topics upgrade` prints what was raised for each group, that there was nothing to do, or a refusal.
#[test]
fn an_upgrade_tells_what_was_raised() {
    let one = r#"{"pipeline":"p","group":"g","from":2,"to":3,"partitions":4}"#;
    let refused = r#"{"type":"/errors/KL-1313","title":"the journals cannot be upgraded","status":409,"detail":"node a owns it","code":"KL-1313"}"#;
    for (status, answer, exit, said) in [
        (
            "200 OK",
            format!(r#"{{"upgraded":[{one}]}}"#),
            0,
            "pipeline p, group g: journals use format 3 instead of 2 (4 partitions)\n",
        ),
        (
            "200 OK",
            r#"{"upgraded":[]}"#.to_owned(),
            0,
            "nothing to upgrade: its journals use the newest format that the server knows\n",
        ),
        ("409 Conflict", refused.to_owned(), 1, "node a owns it (KL-1313)"),
    ] {
        let server = Canned::new(&[(status, &answer)]);
        let output = keylane(&["topics", "upgrade", "a/b", "--url", &server.url], b"");
        assert_eq!(output.status.code(), Some(exit));
        let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(told.contains(said), "{told}");
        assert_eq!(server.requests()[0].line, "POST /admin/topics/a%2Fb/upgrade HTTP/1.1");
    }
}
