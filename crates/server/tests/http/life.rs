//! Tests of how a server starts, drains and ends.

use std::sync::Arc;

use keylane::{Message, Outcome};
use keylane_server::{Config, Environment, Server};
use tokio::sync::Semaphore;

use crate::client::{Client, Rig};

fn config(text: &str) -> Config {
    let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
    Config::parse("test", text, &environment).expect("a valid config")
}

/// A start that fails because of the port or the folder has an error of one clear sentence.
#[tokio::test]
async fn a_port_in_use_and_a_folder_in_use_are_told_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = config("");
    first.data = folder.path().to_owned();
    let mut second = first.clone();
    let server = Server::start(first).await.expect("it starts");

    second.server.listen = server.address();
    let error = Server::start(second.clone()).await.err().expect("the port is taken");
    assert_eq!(error.code().as_str(), "KL-1401");
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {}: the address is in use; stop the process that has it, or set server.listen to another port",
            server.address()
        )
    );
    second.server.listen.set_port(0);
    let error = Server::start(second).await.err().expect("the folder is taken");
    assert_eq!(error.code().as_str(), "KL-1101");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    server.stop().await.expect("it stops");
}

/// BRK-1, BRK-10: acknowledged messages exist after a restart; another number of partitions is refused.
#[tokio::test]
async fn messages_outlive_the_server_and_partitions_cannot_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |partitions: u32| {
        let mut config = config(&format!("topics: {{ t: {{ partitions: {partitions} }} }}"));
        config.data = folder.path().to_owned();
        config
    };
    let server = Server::start(with(2)).await.expect("it starts");
    let headers = [("Content-Type", "application/json")];
    let mut client = Client::connect(server.address()).await;
    let answer = client.ask("POST", "/v1/topics/t/messages", &headers, b"{\"payload\":[1, 2]}").await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    server.stop().await.expect("it stops");

    let error = Server::start(with(3)).await.err().expect("keys would move");
    assert_eq!(error.code().as_str(), "KL-1105");
    assert!(error.to_string().contains("set topics.t.partitions to 2"), "{error}");

    let server = Server::start(with(2)).await.expect("it starts again");
    let mut client = Client::connect(server.address()).await;
    let answer = client.ask("GET", "/admin/topics/t/messages", &[], b"").await;
    assert!(answer.text().contains("\"payload\":[1, 2]"), "{}", answer.text());
    server.stop().await.expect("it stops");
}

/// P10, ING-8: a damaged topic stops only its own pipeline, and the routes say why; the server serves all others.
#[tokio::test]
async fn a_damaged_topic_stops_its_own_pipeline_and_not_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = || {
        let mut config = config(
            "topics: { bad: { partitions: 2 }, good: { partitions: 1 } }\n\
             pipelines: { bad: { topic: bad, handler: { log: {} } }, good: { topic: good, handler: { log: {} } } }",
        );
        config.data = folder.path().to_owned();
        config
    };
    let produce = async |server: &Server, topic: &str| {
        let headers = [("Content-Type", "application/json")];
        let mut client = Client::connect(server.address()).await;
        client.ask("POST", &format!("/v1/topics/{topic}/messages"), &headers, b"{\"payload\":1}").await
    };
    let server = Server::start(with()).await.expect("it starts");
    assert_eq!(produce(&server, "bad").await.status, 202);
    server.stop().await.expect("it stops");
    let file = folder.path().join("topics/bad/topic");
    std::fs::write(&file, "not what was written").expect("ours to break");

    let server = Server::start(with()).await.expect("one damaged topic stops no server");
    assert_eq!(produce(&server, "good").await.status, 202);
    let refused = produce(&server, "bad").await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains(file.to_str().expect("text")), "{}", refused.text());
    let mut client = Client::connect(server.address()).await;
    let ready = client.ask("GET", "/readyz", &[], b"").await;
    assert_eq!(ready.status, 200, "it takes messages and runs pipelines: {}", ready.text());
    assert!(ready.text().contains("topics/bad/topic"), "{}", ready.text());
    let pipelines = client.ask("GET", "/admin/pipelines", &[], b"").await.value()["pipelines"].clone();
    assert_eq!((&pipelines[0]["name"], &pipelines[0]["state"]), (&"bad".into(), &"stopped".into()));
    for partition in 0..2 {
        let partition = &pipelines[0]["partitions"][partition];
        assert_eq!(partition["state"], "stopped");
        let why = partition["why"].as_str().expect("a reason");
        assert!(why.starts_with("KL-1107: ") && why.contains("topics/bad/topic"), "{why}");
    }
    assert_eq!(pipelines[1]["name"], "good");
    assert_ne!(pipelines[1]["state"], "stopped", "{pipelines}");
    assert_eq!(client.ask("GET", "/admin/lanes?pipeline=bad", &[], b"").await.status, 200);
    server.stop().await.expect("it stops");
}

/// P10: after an operator has skipped a damaged place, the pipeline passes over it and handles all other messages.
#[tokio::test]
async fn a_pipeline_passes_over_what_an_operator_has_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let with = |pipelines: &str| {
        let mut config = config(&format!("topics: {{ t: {{ partitions: 1 }} }}\n{pipelines}"));
        config.data = data.to_owned();
        config
    };
    let server = Server::start(with("")).await.expect("it starts");
    for _ in 0..3 {
        let headers = [("Content-Type", "application/json")];
        let mut client = Client::connect(server.address()).await;
        assert_eq!(
            client.ask("POST", "/v1/topics/t/messages", &headers, b"{\"payload\":1}").await.status,
            202
        );
    }
    server.stop().await.expect("it stops");
    let segment = data.join("topics/t/0000000000000001.seg");
    let mut bytes = std::fs::read(&segment).expect("a segment");
    let second = (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].get(4..8) == Some(b"KLB1")).nth(1);
    bytes[second.expect("three batches") + 70] ^= 1;
    std::fs::write(&segment, bytes).expect("ours to break");
    let found = keylane::data::check(data).expect("nobody uses it");
    let words: Vec<_> = found.damages().map(|damage| damage.word.clone()).collect();
    keylane::data::repair(data, &words).expect("it can be skipped");

    let server = Server::start(with("pipelines: { t: { handler: { log: {} } } }")).await.expect("it starts");
    let mut client = Client::connect(server.address()).await;
    loop {
        let pipeline = client.ask("GET", "/admin/pipelines", &[], b"").await.value()["pipelines"][0].clone();
        assert_ne!(pipeline["partitions"][0]["state"], "stopped", "{pipeline}");
        if pipeline["partitions"][0]["committed"] == 3 {
            assert_eq!(pipeline["handled"], 2, "{pipeline}");
            break;
        }
        tokio::task::yield_now().await;
    }
    server.stop().await.expect("it stops");
}

/// ORD-10: a draining server is not ready and accepts no messages, but running attempts finish and are settled.
#[tokio::test]
async fn a_drain_says_so_takes_nothing_more_and_finishes_what_runs() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (began, goes) = (Arc::clone(&begun), Arc::clone(&go));
    let pipeline = rig
        .server
        .keylane()
        .pipeline("t")
        .handle(move |_: Message| {
            let (began, goes) = (Arc::clone(&began), Arc::clone(&goes));
            async move {
                began.add_permits(1);
                let _ = goes.acquire().await;
                Outcome::Done
            }
        })
        .start()
        .await
        .expect("it starts");
    rig.server.drain_too(pipeline);
    let keylane = rig.server.keylane().clone();
    assert_eq!(rig.json("t", "{\"payload\":1,\"key\":\"a\"}").await.status, 202);
    begun.acquire().await.expect("open").forget();

    let address = rig.address();
    let watches = async {
        let mut client = Client::connect(address).await;
        while client.ask("GET", "/readyz", &[], b"").await.status == 200 {
            tokio::task::yield_now().await;
        }
        let ready = client.ask("GET", "/readyz", &[], b"").await;
        let reasons = ready.is_problem(503, "KL-1218")["reasons"].clone();
        assert!(reasons.to_string().contains("shutting down"), "{reasons}");
        assert_eq!(client.ask("GET", "/healthz", &[], b"").await.status, 200);
        let headers = [("Content-Type", "application/json")];
        let late = client.ask("POST", "/v1/topics/t/messages", &headers, b"{\"payload\":2}").await;
        late.is_problem(503, "KL-1212");
        go.add_permits(1);
    };
    let (stopped, ()) = tokio::join!(rig.server.stop(), watches);
    stopped.expect("it drained");
    let ends = keylane.topics().await.expect("the broker is there");
    assert_eq!(ends[0].messages, 1, "nothing was taken late");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens");
}

/// MSG-5: pipelines of the config run on topics that the start creates.
#[tokio::test]
async fn pipelines_of_the_config_run() {
    let rig = Rig::start(
        "pipelines: { a: { topic: t, handler: { log: {} } }, b: { topic: t, handler: { log: {} } } }",
    )
    .await;
    assert_eq!(rig.lines("t", &"{\"payload\":1}\n".repeat(10)).await.status, 202);
    loop {
        let shown = rig.get("/admin/pipelines").await.value()["pipelines"].clone();
        assert_eq!((&shown[0]["group"], &shown[1]["group"]), (&"a".into(), &"b".into()));
        if shown[0]["handled"] == 10 && shown[1]["handled"] == 10 {
            break;
        }
        tokio::task::yield_now().await;
    }
    rig.server.stop().await.expect("it drains");
}

/// SEC-1: a config that was made in code, and not read from a file, is checked too.
#[tokio::test]
async fn other_machines_are_not_served_without_tokens() {
    let mut open = config("");
    open.server.listen = "0.0.0.0:0".parse().expect("an address");
    let error = Server::start(open).await.err().expect("it is refused");
    assert_eq!(error.code().as_str(), "KL-1009");
}

/// ORD-10: an answer that its client does not read does not keep the server from ending.
#[tokio::test]
async fn connections_end_with_the_server() {
    let rig = Rig::start("server: { drain: 50ms }\ntopics: { t: { partitions: 1 } }").await;
    for _ in 0..17 {
        let message = Message::to("t").payload(vec![b'x'; 1_000_000]);
        rig.server.keylane().produce(message).await.expect("taken");
    }
    let mut deaf = Client::connect_narrow(rig.address()).await;
    deaf.send(b"GET /admin/topics/t/messages?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let (status, _) = deaf.head().await.expect("an answer begins");
    assert_eq!(status, 200);
    rig.server.stop().await.expect("it stops");
    assert!(deaf.rest().await < (16 << 20), "the answer went on after the end");
}
