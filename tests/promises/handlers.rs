//! ING-5: the example push handlers in `examples/handlers`, each as the handler of the real server.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use keylane_tests::{Acked, PipelineView, Program, Server, Setup, client, until};
use serde_json::{Value, json};
use sha2::Sha256;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The most lines of an example, without comments, imports and empty lines.
const LINES_MAX: usize = 29;

fn setup(secret: &str) -> Setup {
    Setup {
        push: format!(", sign: \"{secret}\""),
        ..Setup::pipeline(&["retry: { retries: 1000, base: 5ms, max: 20ms }"])
    }
}

/// Produces one message; returns its place.
async fn produce(server: &Server, message: Value) -> Acked {
    let request = client().post(server.topic_url()).header("content-type", "application/json");
    let answer = request.body(message.to_string()).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 202);
    let answer: Value = serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON");
    let accepted = &answer["accepted"][0];
    Acked {
        key: None,
        id: accepted["id"].as_str().expect("an id").to_owned(),
        n: 0,
        partition: accepted["partition"].as_u64().expect("a partition") as u32,
        offset: accepted["offset"].as_u64(),
    }
}

fn order(key: &str, item: &str, count: u32) -> Value {
    json!({ "key": key, "payload": { "item": item, "count": count } })
}

async fn fails(server: &Server, times: u64) {
    until(&format!("{times} failed attempts"), async || {
        let (_, body) = server.get("/admin/pipelines").await?;
        (body["pipelines"][0]["failed"].as_u64()? >= times).then_some(())
    })
    .await;
}

async fn becomes(server: &Server, what: &str, wanted: impl Fn(&PipelineView) -> bool) {
    until(what, async || PipelineView::of(server).await.filter(|view| wanted(view))).await;
}

/// Calls a handler as Keylane does; returns the status.
async fn call(program: &Program, headers: &[(&str, String)], body: &str) -> u16 {
    let mut call = client().post(program.url("/")).header("keylane-key", "user-1").body(body.to_owned());
    for (name, value) in headers {
        call = call.header(*name, value);
    }
    call.send().await.expect("an answer").status().as_u16()
}

/// The headers of a call as Standard Webhooks 1.0 describes them, at `skew` seconds from now.
fn signed(secret: &str, id: &str, skew: i64, body: &str) -> Vec<(&'static str, String)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let at = now + skew;
    let secret = STANDARD.decode(secret.trim_start_matches("whsec_")).expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).expect("any length");
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    vec![
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", at.to_string()),
        ("webhook-signature", signature),
    ]
}

async fn works_as_a_handler(name: &'static str) {
    let Some(mut program) = Program::start(name, &[("SECRET", SECRET)]).await else {
        return;
    };
    let mut server = Server::pushing_to(&setup(SECRET), &program.url("/orders"));
    server.start().await;

    // The handler cannot write yet: its first message fails, is pushed again, and is done once the handler can write.
    let first = produce(&server, order("user-1", "tea", 2)).await;
    fails(&server, 2).await;
    assert_eq!(program.count("user-1 orders 2 tea"), 0);
    std::fs::create_dir(program.folder().join("orders")).expect("the test's folder can be written");
    program.says("user-1 orders 2 tea").await;

    // Messages that the handler can never handle become dead letters, and the key goes on.
    produce(&server, json!({ "key": "user-2", "payload": { "count": "?" } })).await;
    produce(&server, json!({ "key": "user-2", "payload_base64": "AP8=" })).await;
    produce(&server, order("user-2", "cake", 1)).await;
    program.says("user-2 orders 1 cake").await;
    becomes(&server, "two dead letters and two handled", |view| view.dead == 2 && view.handled == 2).await;

    // A finished message is not handled again, even by the handler's next process.
    program.restart().await;
    let mut again = signed(SECRET, &first.id, 0, r#"{"item":"tea","count":2}"#);
    again.push(("keylane-topic", "t".to_owned()));
    again.push(("keylane-partition", first.partition.to_string()));
    again.push(("keylane-offset", first.position().to_string()));
    assert_eq!(call(&program, &again, r#"{"item":"tea","count":2}"#).await, 200);
    produce(&server, order("user-3", "milk", 3)).await;
    program.says("user-3 orders 3 milk").await;
    for line in ["user-1 orders 2 tea", "user-2 orders 1 cake", "user-3 orders 3 milk"] {
        assert_eq!(program.count(line), 1, "{line}\n{}", program.output());
    }
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_python_handles_what_is_pushed() {
    works_as_a_handler("python").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_typescript_handles_what_is_pushed() {
    works_as_a_handler("typescript").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_go_handles_what_is_pushed() {
    works_as_a_handler("go").await;
}

/// ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_java_handles_what_is_pushed() {
    works_as_a_handler("java").await;
}

/// ING-5: the example in Python accepts only calls that Keylane has signed, and no recording of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_python_refuses_what_is_forged_or_old() {
    let Some(program) = Program::start("python", &[("SECRET", SECRET)]).await else {
        return;
    };
    std::fs::create_dir(program.folder().join("orders")).expect("the test's folder can be written");
    let body = r#"{"item":"tea","count":2}"#;
    let replaced = |at: usize, value: &str| {
        let mut headers = signed(SECRET, "m", 0, body);
        headers[at].1 = value.to_owned();
        headers
    };
    let without = |at: usize| {
        let mut headers = signed(SECRET, "m", 0, body);
        headers.remove(at);
        headers
    };
    for (what, headers) in [
        ("nothing", Vec::new()),
        ("another secret", signed(OTHER_SECRET, "m", 0, body)),
        ("another body", signed(SECRET, "m", 0, r#"{"item":"tea","count":3}"#)),
        ("another id", replaced(0, "n")),
        ("another time", replaced(1, "1")),
        ("no time", replaced(1, "soon")),
        ("no signature", replaced(2, "v1,")),
        ("a signature of Latin letters", replaced(2, "v1,ä")),
        ("no id", without(0)),
        ("no time at all", without(1)),
        ("no signature at all", without(2)),
        ("a time too long ago", signed(SECRET, "m", -400, body)),
        ("a time too far ahead", signed(SECRET, "m", 400, body)),
    ] {
        assert_eq!(call(&program, &headers, body).await, 401, "{what}\n{}", program.output());
    }
    assert_eq!(program.count("user-1 orders 2 tea"), 0, "{}", program.output());

    // While a secret is replaced, a call carries two signatures.
    let mut both = signed(SECRET, "m", 0, body);
    both[2].1 = format!("{} {}", signed(OTHER_SECRET, "m", 0, body)[2].1, both[2].1);
    assert_eq!(call(&program, &both, body).await, 200, "{}", program.output());
    program.says("user-1 orders 2 tea").await;

    // The handler does not believe a server with another secret; none of its messages is lost.
    let mut server = Server::pushing_to(&setup(OTHER_SECRET), &program.url("/orders"));
    server.start().await;
    produce(&server, order("user-9", "tea", 9)).await;
    fails(&server, 2).await;
    assert_eq!(program.count("user-9 orders 9 tea"), 0, "{}", program.output());
    assert_eq!(PipelineView::of(&server).await.expect("it answers").dead, 0);
    server.stop().await;
}

/// ING-5: the compiler of TypeScript accepts the example's types.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_in_typescript_is_typed() {
    let Some(program) = Program::start("typescript", &[]).await else {
        return;
    };
    let checked = tokio::process::Command::new("node")
        .arg(program.made().join("node_modules/typescript/bin/tsc"))
        .args(["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "handler.ts"])
        .current_dir(program.made())
        .output()
        .await
        .expect("node starts");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// ING-5: a handler is little work.
#[test]
fn no_example_is_long() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/handlers");
    for file in ["python/handler.py", "typescript/handler.ts", "go/handler.go", "java/Handler.java"] {
        let text = std::fs::read_to_string(folder.join(file)).expect("it is there");
        let is_code = |line: &&str| {
            let is_comment = ["//", "#"].iter().any(|start| line.trim_start().starts_with(start));
            // Go lists its imports, a name a line.
            let is_import =
                ["import ", "from ", "package ", "\t\"", ")"].iter().any(|start| line.starts_with(start));
            !line.trim().is_empty() && !is_comment && !is_import
        };
        let lines = text.lines().filter(is_code).count();
        assert!((10..=LINES_MAX).contains(&lines), "{file} has {lines} lines");
        assert!(text.starts_with("// A push handler") || text.starts_with("# A push handler"), "{file}");
    }
}
