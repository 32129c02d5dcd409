//! HTTP load: kept-alive connections, each of which sends its next request after the answer to the last.
//!
//! Written without an HTTP library: the client shares the machine with the server that it measures, and should use as
//! little of the CPU as possible.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::Error;
use crate::finished::Finished;

/// The bytes of a request.
pub(crate) fn post(path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Sends `request` over `connections` for `window`; returns the answers a second.
pub(crate) fn rate(
    client: &Runtime,
    address: SocketAddr,
    request: &Arc<[u8]>,
    connections: usize,
    window: Duration,
) -> Result<f64, Error> {
    let finished = Arc::<Finished>::default();
    let until = Instant::now() + window;
    let senders: Vec<_> = (0..connections)
        .map(|_| client.spawn(send(address, Arc::clone(request), Arc::clone(&finished), until)))
        .collect();
    let since = Instant::now();
    for sender in senders {
        client.block_on(sender).expect("a sender does not panic")?;
    }
    Ok(finished.count() as f64 / since.elapsed().as_secs_f64())
}

async fn send(
    address: SocketAddr,
    request: Arc<[u8]>,
    finished: Arc<Finished>,
    until: Instant,
) -> Result<(), Error> {
    let mut connection = Connection::open(address).await?;
    while Instant::now() < until {
        connection.exchange(&request).await?;
        finished.one();
    }
    Ok(())
}

/// A connection that is kept alive.
pub(crate) struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Connection, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, answer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a request and waits for its answer, which must be a success.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<(), Error> {
        self.stream.write_all(request).await?;
        self.answer.clear();
        while !is_whole(&self.answer)? {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err(Error::Answer("the server closed the connection".to_owned()));
            }
        }
        Ok(())
    }
}

/// True once head and body are complete.
fn is_whole(answer: &[u8]) -> Result<bool, Error> {
    let Some(head) = answer.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Ok(false);
    };
    let text = String::from_utf8_lossy(&answer[..head]);
    if !text.starts_with("HTTP/1.1 2") {
        let body = String::from_utf8_lossy(&answer[head..]);
        return Err(Error::Answer(format!("{} {body}", text.lines().next().unwrap_or_default())));
    }
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, length)| length.trim().parse::<usize>().ok());
    match length {
        Some(length) => Ok(answer.len() >= head + 4 + length),
        None => Err(Error::Answer("an answer without a length".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is_there() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        for end in 0..answer.len() {
            assert!(!is_whole(&answer[..end]).expect("well formed"));
        }
        assert!(is_whole(answer).expect("well formed"));
        assert!(is_whole(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
