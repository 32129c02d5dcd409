//! Test helpers: a server on a free port, and a client that sends raw bytes, so that it can also misbehave.

use std::net::SocketAddr;
use std::sync::Arc;

use keylane::Keylane;
use keylane::raw::{Clock, Tasks};
use keylane_broker::Broker;
use keylane_broker::testing::memory::MemoryBroker;
use keylane_server::{Config, Environment, Server};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A server whose broker is in memory.
pub struct Rig {
    pub server: Server,
    pub broker: MemoryBroker,
}

impl Rig {
    /// Starts a server with `config`, which must not set an address.
    pub async fn start(config: &str) -> Rig {
        Rig::start_through(config, |broker| broker).await
    }

    /// Like [`Rig::start`], but the server uses a broker that wraps the one in memory.
    pub async fn start_through(
        config: &str,
        through: impl FnOnce(Arc<dyn Broker>) -> Arc<dyn Broker>,
    ) -> Rig {
        let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
        let config = Config::parse("test", config, &environment).expect("a valid config");
        let clock = Clock::system();
        let broker = MemoryBroker::new(1, move || clock.wall_ms());
        let create_topics = config.topics.is_empty();
        let seen = through(broker.node("a"));
        let keylane = Keylane::with_broker(seen, clock, Tasks::default(), create_topics);
        let server = Server::start_on(config, keylane).await.expect("it starts");
        Rig { server, broker }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.ask("GET", path, &[], b"").await
    }

    /// Produces `body` with `kind` as Content-Type.
    pub async fn post(&self, topic: &str, kind: &str, body: impl AsRef<[u8]>) -> Answer {
        let path = format!("/v1/topics/{topic}/messages");
        let mut client = self.connect().await;
        client.ask("POST", &path, &[("Content-Type", kind)], body.as_ref()).await
    }

    pub async fn json(&self, topic: &str, body: &str) -> Answer {
        self.post(topic, "application/json", body).await
    }

    pub async fn lines(&self, topic: &str, body: &str) -> Answer {
        self.post(topic, "application/x-ndjson", body).await
    }

    /// The messages of a topic.
    pub async fn messages(&self, topic: &str) -> Vec<Value> {
        let answer = self.get(&format!("/admin/topics/{topic}/messages?limit=1000")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.value().as_array().expect("an array").clone()
    }
}

pub struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }

    /// Checks that the answer is a complete problem document with this status and code.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"));
        let problem = self.value();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["type"], format!("/errors/{code}"), "{problem}");
        for text in ["title", "detail"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        if status == 503 {
            assert!(self.header("retry-after").is_some(), "{}", self.head);
        }
        problem
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client { stream: TcpStream::connect(address).await.expect("it listens"), read: Vec::new() }
    }

    /// A connection with a small receive buffer, so that the server's answer does not fit into the system's buffers.
    pub async fn connect_narrow(address: SocketAddr) -> Client {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        Client { stream: socket.connect(address).await.expect("it listens"), read: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // A server that has already answered may have closed the connection; only its answer matters.
        let _ = self.stream.write_all(bytes).await;
    }

    pub async fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        self.send(&[head.as_bytes(), body].concat()).await;
        self.answer().await.expect("an answer")
    }

    /// The next answer; none if the server closes first.
    pub async fn answer(&mut self) -> Option<Answer> {
        let (status, head) = self.head().await?;
        let header = |name: &str| {
            head.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let length: usize = header("content-length").map_or(0, |length| length.parse().expect("a number"));
        while self.read.len() < length {
            self.more().await?;
        }
        let body = self.read.drain(..length).collect();
        Some(Answer { status, head, body })
    }

    /// Status and head of an answer whose body is a stream.
    pub async fn head(&mut self) -> Option<(u16, String)> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await?;
        };
        let head: Vec<u8> = self.read.drain(..end).collect();
        let head = String::from_utf8(head).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Some((status, head))
    }

    /// The data of the next chunk; none at the end.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.read.windows(2).position(|window| window == b"\r\n") {
                let size = std::str::from_utf8(&self.read[..at]).expect("text");
                let size = usize::from_str_radix(size, 16).expect("a size");
                if self.read.len() >= at + 2 + size + 2 {
                    let chunk = self.read[at + 2..at + 2 + size].to_vec();
                    self.read.drain(..at + 2 + size + 2);
                    return (size > 0).then_some(chunk);
                }
            }
            self.more().await?;
        }
    }

    /// True if the server closes the connection without sending more.
    pub async fn is_closed(&mut self) -> bool {
        while self.more().await.is_some() {}
        self.read.is_empty()
    }

    /// The bytes that arrive until the server closes the connection.
    pub async fn rest(&mut self) -> usize {
        while self.more().await.is_some() {}
        self.read.len()
    }

    async fn more(&mut self) -> Option<()> {
        let mut buffer = [0; 16 * 1024];
        let length = self.stream.read(&mut buffer).await.unwrap_or(0);
        self.read.extend_from_slice(&buffer[..length]);
        (length > 0).then_some(())
    }
}
