//! ING-5: handlers as in the tutorials of common frameworks read what Keylane pushes, without further settings.

use keylane_tests::{PipelineView, Program, Server, Setup, client, until};
use serde_json::{Value, json};

async fn produce(server: &Server, topic: &str, message: Value) {
    let url = server.url(&format!("/v1/topics/{topic}/messages"));
    let request = client().post(url).header("content-type", "application/json");
    let answer = request.body(message.to_string()).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 202);
}

/// All 256 bytes, as base64 ("AAEC…/w==") and as hexadecimal.
fn bytes() -> (String, String) {
    use base64::Engine as _;
    let all: Vec<u8> = (0..=255).collect();
    let hex = all.iter().map(|byte| format!("{byte:02x}")).collect();
    (base64::engine::general_purpose::STANDARD.encode(all), hex)
}

async fn reads_what_is_pushed(name: &'static str) {
    let Some(program) = Program::start(name, &[]).await else {
        return;
    };
    let files = format!(
        "  files:\n    topic: files\n    handler: {{ http: {{ url: \"{}\", allow_private: true }} }}\n",
        program.url("/files")
    );
    let setup = Setup { more: (", files: { partitions: 1 }".to_owned(), files), ..Setup::default() };
    let mut server = Server::pushing_to(&setup, &program.url("/orders"));
    server.start().await;

    produce(&server, "t", json!({ "key": "user-1", "payload": { "item": "tea", "count": 2 } })).await;
    program.says("user-1 2 tea").await;

    // Each language has a word of its own for a key that is not there.
    produce(&server, "t", json!({ "payload": { "item": "milk", "count": 3 } })).await;
    until(&format!("{name} to handle a message without a key"), async || {
        program.output().lines().any(|line| line.ends_with(" 3 milk")).then_some(())
    })
    .await;

    let (base64, hex) = bytes();
    produce(&server, "files", json!({ "key": "file-1", "payload_base64": base64 })).await;
    program.says(&format!("application/octet-stream {hex}")).await;

    // Bytes that happen to be JSON are pushed as bytes all the same.
    produce(&server, "files", json!({ "key": "file-1", "payload_base64": "WzEsIDJd" })).await;
    program.says("application/octet-stream 5b312c20325d").await;

    let view = until("the orders to be settled", async || {
        PipelineView::of(&server).await.filter(|view| view.handled + view.dead == 2)
    })
    .await;
    assert_eq!((view.handled, view.dead), (2, 0));
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// Pushes a message that the framework refuses by itself, and a good one behind it.
async fn rejects(name: &'static str, payload: Value) {
    let Some(program) = Program::start(name, &[]).await else {
        return;
    };
    let mut server = Server::pushing_to(&Setup::default(), &program.url("/orders"));
    server.start().await;
    produce(&server, "t", json!({ "key": "user-1", "payload": payload })).await;
    produce(&server, "t", json!({ "key": "user-1", "payload": { "item": "tea", "count": 2 } })).await;
    program.says("user-1 2 tea").await;
    until("one dead letter and one handled", async || {
        PipelineView::of(&server).await.filter(|view| (view.dead, view.handled) == (1, 1))
    })
    .await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ING-5: a message that the framework says cannot be handled is rejected, and its key goes on (docs/handlers.md).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fastapi_finds_no_order_is_rejected() {
    rejects("fastapi", json!({ "item": "tea", "count": "many" })).await;
}

/// ING-5: a framework answers a body beyond its limit before it has read the body, and that answer arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_long_for_express_is_rejected() {
    rejects("express", json!({ "item": "x".repeat(900_000), "count": 1 })).await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_in_flask_reads_json_and_bytes() {
    reads_what_is_pushed("flask").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_in_fastapi_reads_json_and_bytes() {
    reads_what_is_pushed("fastapi").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_in_express_reads_json_and_bytes() {
    reads_what_is_pushed("express").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_in_fastify_reads_json_and_bytes() {
    reads_what_is_pushed("fastify").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "chaos: Spring Boot is fetched from Maven at first, and takes long to start"]
async fn chaos_a_handler_in_spring_boot_reads_json_and_bytes() {
    reads_what_is_pushed("spring").await;
}
