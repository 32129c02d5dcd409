//! A proxy in front of a broker that can lose the broker's answers: requests are carried out, but not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Passes connections on. Ends when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    accepts: JoinHandle<()>,
}

struct Shared {
    /// While true, answers are swallowed.
    losing: watch::Sender<bool>,
    lost: AtomicU64,
}

impl Proxy {
    /// Listens on a port, and passes on to another.
    pub async fn start((listen, to): (u16, u16)) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", listen)).await.expect("the port was kept for it");
        let shared = Arc::new(Shared { losing: watch::Sender::new(false), lost: AtomicU64::new(0) });
        let accepting = Arc::clone(&shared);
        let accepts = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to, Arc::clone(&accepting)));
            }
        });
        Proxy { shared, accepts }
    }

    /// From now on requests are passed on, and no answer comes back.
    pub fn lose_answers(&self) {
        self.shared.losing.send_replace(true);
    }

    /// Ends the connections whose answers were lost; requests after that are answered.
    pub fn pass_answers(&self) {
        self.shared.losing.send_replace(false);
    }

    /// Pieces of answers that were lost so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

async fn pass(client: TcpStream, to: u16, shared: Arc<Shared>) {
    let Ok(broker) = TcpStream::connect(("127.0.0.1", to)).await else {
        return;
    };
    let _slow_start_costs_40_ms = (client.set_nodelay(true), broker.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_broker, to_broker) = broker.into_split();
    // Whichever direction ends first also ends the other: both are dropped with this future.
    tokio::select! {
        () = requests(from_client, to_broker) => {}
        () = answers(from_broker, to_client, &shared) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ended = tokio::io::copy(&mut from, &mut to).await;
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut buffer = vec![0; 64 * 1024];
    let mut losing = shared.losing.subscribe();
    let mut broken = false;
    loop {
        tokio::select! {
            // A connection that misses a part of its answers is of no use any more.
            () = async { drop(losing.wait_for(|losing| !*losing).await) }, if broken => return,
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) if broken || *shared.losing.borrow() => {
                    broken = true;
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                }
                Ok(count) => {
                    if to.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            },
        }
    }
}
