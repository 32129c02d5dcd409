//! Handlers that misbehave: each of their answers has a defined meaning, takes little memory, and delays no other key.

use std::collections::BTreeMap;

use keylane_tests::{PipelineView, Rude, Server, Setup, client, run_binary, until};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

async fn produce(server: &Server, keys: &[String]) {
    let lines: String =
        keys.iter().map(|key| format!("{}\n", json!({ "key": key, "payload": { "n": 1 } }))).collect();
    let request = client().post(server.topic_url()).header("content-type", "application/x-ndjson");
    let answer = request.body(lines).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 202);
}

async fn handled(server: &Server, count: u64) {
    until(&format!("{count} handled messages"), async || {
        PipelineView::of(server).await.filter(|view| view.handled == count && view.lag == 0)
    })
    .await;
}

/// The reason why each key waits, as the lanes show it.
async fn reasons(server: &Server) -> BTreeMap<String, String> {
    let (_, body) = server.get("/admin/lanes?limit=1000").await.expect("it answers");
    let lanes = body["lanes"].as_array().cloned().unwrap_or_default();
    let text = |lane: &Value, name: &str| lane[name].as_str().unwrap_or_default().to_owned();
    lanes.iter().map(|lane| (text(lane, "key"), text(lane, "why"))).collect()
}

/// ING-5, P5: a status of success is success, whatever follows it; and no answer fills the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_a_gigabyte_and_without_end_are_done_and_take_no_memory() {
    const KEYS: u64 = 100;
    /// The memory that a hundred calls at once take: the HTTP client reads an answer in pieces that grow to 408 KiB,
    /// and holds one while it hands over another; in addition, the allocator keeps some. Measured, this comes to 130
    /// MiB. One whole answer is four times the bound.
    const GROWTH_MAX: u64 = 256 * MIB;
    let handler = Rude::start().await;
    let mut server = Server::pushing_to(&Setup::default(), &handler.url());
    server.start().await;
    let keys = |how: &str| -> Vec<String> { (0..KEYS).map(|n| format!("{how}-200-{n}")).collect() };
    produce(&server, &keys("plain")).await;
    handled(&server, KEYS).await;
    let before = server.memory_bytes();
    let mut most = 0;
    for (round, how) in (2..).zip(["huge", "long", "endless", "broken", "latin"]) {
        produce(&server, &keys(how)).await;
        until(&format!("the answers called {how}"), async || {
            most = most.max(server.memory_bytes().saturating_sub(before));
            PipelineView::of(&server).await.filter(|view| view.handled == round * KEYS)
        })
        .await;
    }
    assert!(most < GROWTH_MAX, "memory grew by {} MiB", most / MIB);
    // The system's own buffers take some of each answer, and Keylane little more: answers are not read to their ends.
    let taken = handler.sent_bytes() / KEYS / 2;
    assert!(taken < 64 * MIB, "{} MiB of each answer were read", taken / MIB);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ING-5, P1, P3, SEC-4: any other status, and an answer without a whole head, is a failure that says what came; other
/// keys go on, and once the handler is mended nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_never_end_break_off_or_lead_in_circles_are_told_and_tried_again() {
    let handler = Rude::start().await;
    let setup =
        Setup { timeout: "2s", ..Setup::pipeline(&["retry: { retries: 1, base: 10ms, max: 200ms }"]) };
    let mut server = Server::pushing_to(&setup, &handler.url());
    server.start().await;
    let expected = [
        ("huge-500-0", "answered 500 Internal Server Error: xxx"),
        ("long-500-0", "answered 500 Internal Server Error: xxx"),
        ("endless-500-0", "answered 500 Internal Server Error: x"),
        ("broken-500-0", "answered 500 Internal Server Error: half"),
        ("latin-500-0", "answered 500 Internal Server Error: ferm\u{fffd}"),
        ("itself-307-0", "answered 307 Temporary Redirect"),
        ("head-200-0", "no answer from http://127.0.0.1:"),
        ("silent-200-0", "process_timeout: the handler had not answered"),
        ("unknown-299-0", ""),
        ("unknown-999-0", "answered 999"),
    ];
    let keys: Vec<String> = expected.iter().map(|(key, _)| (*key).to_owned()).collect();
    produce(&server, &keys).await;
    let failing = expected.iter().filter(|(_, why)| !why.is_empty());
    for (key, why) in failing.clone() {
        until(&format!("{key} to be told"), async || {
            reasons(&server).await.get(*key).is_some_and(|found| found.contains(why)).then_some(())
        })
        .await;
    }
    // The key with good answers is not kept waiting, and redirects in circles are not followed: each call is an
    // attempt.
    assert_eq!(PipelineView::of(&server).await.expect("it answers").handled, 1);
    assert!(reasons(&server).await.values().all(|why| why.len() < 4_096));
    handler.mend();
    handled(&server, keys.len() as u64).await;
    let (_, body) = server.get("/admin/pipelines").await.expect("it answers");
    let attempts = body["pipelines"][0]["failed"].as_u64().expect("a count") + keys.len() as u64;
    assert_eq!(handler.calls(), attempts, "calls and attempts");
    assert_eq!(PipelineView::of(&server).await.expect("it answers").dead, 0);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ING-5, SEC-5, ADM-9: a secret or a certificate that is missing or empty is found before anything is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_certificates_that_are_missing_or_empty_are_refused_with_their_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("empty"), "\n").expect("written");
    std::fs::write(path("text"), "hunter2\n").expect("written");
    std::fs::create_dir(path("folder")).expect("made");
    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    for (setting, says) in [
        (format!("headers: {{ A: \"file:{}\" }}", path("missing")), "No such file"),
        (format!("headers: {{ A: \"file:{}\" }}", path("empty")), "it is empty"),
        (format!("headers: {{ A: \"file:{}\" }}", path("folder")), "not a regular file"),
        (format!("headers: {{ A: \"file:{}\" }}", path("pipe")), "not a regular file"),
        ("sign: \"file:/dev/zero\"".to_owned(), "not a regular file"),
        (format!("sign: \"file:{}\"", path("missing")), "No such file"),
        (format!("sign: \"file:{}\"", path("empty")), "it is empty"),
        (format!("sign: \"file:{}\"", path("text")), "openssl rand"),
        ("sign: \"\"".to_owned(), "empty"),
        (format!("ca: {}", path("missing")), "No such file"),
        (format!("ca: {}", path("empty")), "no PEM"),
        (format!("cert: {0}, key: {0}", path("text")), "no PEM"),
        (format!("cert: {0}, key: {0}", path("folder")), "not a regular file"),
        (format!("ca: {}", path("pipe")), "not a regular file"),
    ] {
        let config = path("keylane.yaml");
        let text = format!(
            "pipelines:\n  t:\n    handler:\n      http: {{ url: \"https://example.com/\", {setting} }}\n"
        );
        std::fs::write(&config, text).expect("written");
        for command in ["check", "serve"] {
            let (code, said) = run_binary(&[command, "-c", &config]).await;
            assert_eq!(code, Some(2), "{setting}: {said}");
            assert!(said.contains(says) && said.contains("keylane.yaml:4:"), "{setting}: {said}");
            assert!(!said.contains("hunter2"), "{setting}: {said}");
        }
    }
}
