//! A push handler that misbehaves, with raw bytes on a socket. The beginning of a message's key says how it answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The size of a huge answer: far more than fits into memory a few hundred times.
const HUGE: u64 = 1 << 30;
/// The size of one piece of it.
const PIECE: usize = 64 * 1024;
/// The time between two bytes of an answer that never ends.
const DAWDLE: Duration = Duration::from_millis(20);

/// The push handler of a test. Ends when dropped.
pub struct Rude {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepts: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    mended: AtomicBool,
    calls: AtomicU64,
    /// Bytes of answers that the system accepted.
    sent: AtomicU64,
}

impl Rude {
    /// Listens.
    pub async fn start() -> Rude {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::<Shared>::default();
        let of_all = Arc::clone(&shared);
        let accepts = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&of_all);
                tokio::spawn(async move {
                    // Keylane hangs up on most of these answers.
                    let _broke_off = shared.serve(stream).await;
                });
            }
        });
        Rude { address, shared, accepts }
    }

    /// The address to which messages are pushed.
    pub fn url(&self) -> String {
        format!("http://{}/push", self.address)
    }

    /// From now on it answers 200 and nothing else.
    pub fn mend(&self) {
        self.shared.mended.store(true, Ordering::SeqCst);
    }

    /// How often it was called.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Bytes of answers that the system accepted.
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let Some(key) = read_call(&mut stream, &mut buffer).await? else { return Ok(()) };
            self.calls.fetch_add(1, Ordering::SeqCst);
            if self.mended.load(Ordering::SeqCst) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
                continue;
            }
            self.misbehave(&mut stream, &key).await?;
        }
    }

    /// `huge-200-7`: the kind of answer, and its status.
    async fn misbehave(&self, stream: &mut TcpStream, key: &str) -> std::io::Result<()> {
        let mut parts = key.split('-');
        let (how, status) = (parts.next().unwrap_or_default(), parts.next().unwrap_or("200"));
        let chunked = format!("HTTP/1.1 {status} So\r\nTransfer-Encoding: chunked\r\n\r\n");
        match how {
            "huge" => {
                stream.write_all(chunked.as_bytes()).await?;
                let piece = format!("{PIECE:x}\r\n{}\r\n", "x".repeat(PIECE));
                for _ in 0..HUGE / PIECE as u64 {
                    stream.write_all(piece.as_bytes()).await?;
                    self.sent.fetch_add(PIECE as u64, Ordering::SeqCst);
                }
                stream.write_all(b"0\r\n\r\n").await
            }
            "long" => {
                let head = format!("HTTP/1.1 {status} So\r\nContent-Length: {HUGE}\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
                let piece = vec![b'x'; PIECE];
                for _ in 0..HUGE / PIECE as u64 {
                    stream.write_all(&piece).await?;
                    self.sent.fetch_add(PIECE as u64, Ordering::SeqCst);
                }
                Ok(())
            }
            "endless" => {
                stream.write_all(chunked.as_bytes()).await?;
                loop {
                    stream.write_all(b"1\r\nx\r\n").await?;
                    tokio::time::sleep(DAWDLE).await;
                }
            }
            "broken" => {
                let head = format!("HTTP/1.1 {status} So\r\nContent-Length: 100\r\n\r\nhalf");
                stream.write_all(head.as_bytes()).await?;
                stream.shutdown().await
            }
            "latin" => {
                let head = format!(
                    "HTTP/1.1 {status} So\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Length: 5\r\n\r\n"
                );
                stream.write_all(&[head.as_bytes(), b"ferm\xe9"].concat()).await
            }
            "itself" => {
                let head = format!(
                    "HTTP/1.1 {status} So\r\nLocation: http://{}/push\r\nContent-Length: 0\r\n\r\n",
                    stream.local_addr()?
                );
                stream.write_all(head.as_bytes()).await
            }
            "head" => {
                stream.write_all(format!("HTTP/1.1 {status} So\r\nX: ").as_bytes()).await?;
                loop {
                    stream.write_all(&[b'x'; 1024]).await?;
                }
            }
            "silent" => std::future::pending().await,
            _ => {
                let head = format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(head.as_bytes()).await
            }
        }
    }
}

/// Reads one call to its end; returns its key. None: no further call comes.
async fn read_call(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<String>> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let length: usize = header("content-length:").map_or(0, |length| length.parse().expect("a number"));
    let key = header("keylane-key:").unwrap_or_default().to_owned();
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    buffer.drain(..end + length);
    Ok(Some(key))
}
