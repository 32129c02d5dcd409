//! A push handler that records every call and answers as it is told.
//!
//! A call counts once its whole body has arrived: a sender that dies in the middle has not called. The sink records an
//! answer before it sends the answer, so it always knows what Keylane can know. Starts and ends of calls take their
//! numbers from one count, which is the only time that checks need.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::load::Acked;
use crate::wait::WAIT_MAX;

/// Connections that may wait to be accepted: a restart opens hundreds at once.
const BACKLOG: u32 = 4096;

/// The ways in which the sink treats a call.
#[derive(Debug, Clone, Copy)]
pub enum Reply {
    /// Answers at once.
    Status(u16),
    /// Answers after a while.
    After(Duration, u16),
    /// Answers when [`Sink::release`] was called, and not before.
    Held(u16),
}

/// One call of the push handler.
#[derive(Debug, Clone)]
pub struct Call {
    /// `Keylane-Key`.
    pub key: Option<String>,
    /// `Keylane-Id`.
    pub id: String,
    /// `n` of the payload, if that is JSON and has one.
    pub n: Option<u64>,
    /// `Keylane-Partition`.
    pub partition: u32,
    /// `Keylane-Offset`.
    pub offset: u64,
    /// `Keylane-Attempt`.
    pub attempt: u32,
    /// `Keylane-Epoch`.
    pub epoch: u64,
    /// The path of the call. Processes with different paths in their configs can be told apart by it.
    pub path: String,
    /// When the call came, in the sink's count.
    pub started: u64,
    /// When it was answered; none if it never was, or its caller went away.
    pub ended: Option<u64>,
    /// The status of the answer.
    pub status: Option<u16>,
}

impl Call {
    /// True if the answer settles the message: done or rejected.
    pub fn is_settled(&self) -> bool {
        self.status.is_some_and(|status| status < 300 || [400, 413, 422].contains(&status))
    }
}

type Behave = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

/// The push handler of a test.
pub struct Sink {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepts: JoinHandle<()>,
}

struct Shared {
    record: Mutex<Record>,
    behave: RwLock<Behave>,
    released: watch::Sender<bool>,
    /// Goes up with every record, for those who wait.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Record {
    calls: Vec<Call>,
    count: u64,
    running: u64,
    running_max: u64,
    answered: u64,
    settled: HashSet<(u32, u64)>,
    settled_ids: HashSet<String>,
    /// Whether calls of an older epoch are refused, and the newest epoch of each partition.
    fences: bool,
    newest: HashMap<u32, u64>,
}

impl Sink {
    /// Answers 200 until told otherwise.
    pub async fn start() -> Sink {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let listener = socket.listen(BACKLOG).expect("a socket of one's own listens");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            record: Mutex::default(),
            behave: RwLock::new(Arc::new(|_| Reply::Status(200))),
            released: watch::Sender::new(false),
            changed: watch::Sender::new(0),
        });
        let accepts = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Sink { address, shared, accepts }
    }

    /// The address on which the sink listens.
    pub fn url(&self) -> String {
        format!("http://{}/push", self.address)
    }

    /// Sets how the sink answers from now on.
    pub fn behave(&self, behave: impl Fn(&Call) -> Reply + Send + Sync + 'static) {
        *self.shared.behave.write().expect("no holder panics") = Arc::new(behave);
    }

    /// From now on a call takes effect only if no newer epoch of its partition was seen by the time it is answered;
    /// otherwise the answer is 409. So the outside can ignore an owner that has lost its partition (P9).
    pub fn refuse_older_epochs(&self) {
        self.shared.record.lock().expect("no holder panics").fences = true;
    }

    /// Answers all held calls, and holds no more.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Calls of one key so far.
    pub fn calls_of(&self, key: &str) -> Vec<Call> {
        let of_key = |call: &&Call| call.key.as_deref() == Some(key);
        self.record(|record| record.calls.iter().filter(of_key).cloned().collect())
    }

    /// How many of the calls so far `wanted` accepts.
    pub fn count_calls(&self, wanted: impl Fn(&Call) -> bool) -> u64 {
        self.record(|record| record.calls.iter().filter(|call| wanted(call)).count() as u64)
    }

    /// Every call so far, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        self.record(|record| record.calls.clone())
    }

    /// How many messages, by position, calls have settled so far.
    pub fn settled(&self) -> u64 {
        self.record(|record| record.settled.len() as u64)
    }

    /// True if all of these messages are settled.
    pub fn has_settled(&self, acked: &[Acked]) -> bool {
        self.record(|record| {
            acked.iter().all(|acked| match acked.offset {
                Some(offset) => record.settled.contains(&(acked.partition, offset)),
                None => record.settled_ids.contains(&acked.id),
            })
        })
    }

    /// Calls that were answered so far, repeats included.
    pub fn answered(&self) -> u64 {
        self.record(|record| record.answered)
    }

    /// How many calls came so far.
    pub fn len(&self) -> usize {
        self.record(|record| record.calls.len())
    }

    /// True if no call came.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most calls that were under way at once.
    pub fn running_max(&self) -> u64 {
        self.record(|record| record.running_max)
    }

    /// The count now: everything that is recorded later has a higher one.
    pub fn count(&self) -> u64 {
        self.record(|record| record.count)
    }

    /// A reader of [`Sink::count`] that another thread can use.
    pub fn count_reader(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.record.lock().expect("no holder panics").count
    }

    /// A reader of [`Sink::settled`] that another task can use.
    pub(crate) fn settled_reader(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.record.lock().expect("no holder panics").settled.len() as u64
    }

    fn record<T>(&self, read: impl FnOnce(&Record) -> T) -> T {
        read(&self.shared.record.lock().expect("no holder panics"))
    }

    /// Waits until `enough` is true of the sink, looking after each record.
    pub async fn wait(&self, what: &str, enough: impl FnMut(&Sink) -> bool) {
        assert!(
            self.waits(enough).await,
            "waited in vain for {what}; {} calls, {} messages settled",
            self.len(),
            self.settled()
        );
    }

    /// As [`Sink::wait`], for work that may take any time as long as some of it gets done.
    pub async fn wait_long(&self, what: &str, mut enough: impl FnMut(&Sink) -> bool) {
        while !enough(self) {
            let settled = self.settled();
            self.wait(what, |sink| enough(sink) || sink.settled() > settled + 1_000).await;
        }
    }

    /// As [`Sink::wait`]; false if it was in vain.
    pub(crate) async fn waits(&self, mut enough: impl FnMut(&Sink) -> bool) -> bool {
        let mut changed = self.shared.changed.subscribe();
        let waited = tokio::time::timeout(WAIT_MAX, async {
            while !enough(self) {
                changed.changed().await.expect("the sink lives");
            }
        });
        waited.await.is_ok()
    }

    /// Waits until this many messages are settled.
    pub async fn wait_settled(&self, count: u64) {
        self.wait(&format!("{count} to be settled"), |sink| sink.settled() >= count).await;
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, Arc::clone(&shared)));
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let _slow_start_costs_40_ms = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    // If the caller was killed, its connection ends in an error, as it should.
    let _ended = hyper::server::conn::http1::Builder::new()
        .max_headers(512)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let call = read_call(parts.uri.path(), &parts.headers, &body);
    let mut running = Running::begin(Arc::clone(&shared), call);
    let reply = (shared.behave.read().expect("no holder panics").clone())(&running.call);
    let status = match reply {
        Reply::Status(status) => status,
        Reply::After(wait, status) => {
            tokio::time::sleep(wait).await;
            status
        }
        Reply::Held(status) => {
            let mut released = shared.released.subscribe();
            released.wait_for(|released| *released).await.expect("the sink lives");
            status
        }
    };
    let status = running.end(status);
    let mut answer = Response::new(Empty::new());
    *answer.status_mut() = status.try_into().expect("a status");
    Ok(answer)
}

/// A call under way. When dropped, it counts as over, answered or not.
struct Running {
    shared: Arc<Shared>,
    index: usize,
    call: Call,
}

impl Running {
    fn begin(shared: Arc<Shared>, mut call: Call) -> Running {
        let index = {
            let mut record = shared.record.lock().expect("no holder panics");
            record.count += 1;
            call.started = record.count;
            record.running += 1;
            record.running_max = record.running_max.max(record.running);
            let newest = record.newest.entry(call.partition).or_default();
            *newest = call.epoch.max(*newest);
            record.calls.push(call.clone());
            record.calls.len() - 1
        };
        shared.changed.send_modify(|changes| *changes += 1);
        Running { shared, index, call }
    }

    /// Records the final answer, and returns its status.
    fn end(&mut self, status: u16) -> u16 {
        let mut record = self.shared.record.lock().expect("no holder panics");
        record.count += 1;
        let stale = record.fences && record.newest.get(&self.call.partition) > Some(&self.call.epoch);
        let status = if stale { 409 } else { status };
        let count = record.count;
        record.answered += 1;
        let call = &mut record.calls[self.index];
        (call.ended, call.status) = (Some(count), Some(status));
        if call.is_settled() {
            let (position, id) = ((call.partition, call.offset), call.id.clone());
            record.settled.insert(position);
            record.settled_ids.insert(id);
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.record.lock().expect("no holder panics").running -= 1;
        self.shared.changed.send_modify(|changes| *changes += 1);
    }
}

fn read_call(path: &str, headers: &HeaderMap, body: &[u8]) -> Call {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().expect("visible ASCII").to_owned());
    let number = |name: &str| -> u64 {
        let value = text(name).unwrap_or_else(|| panic!("a push without {name}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
    };
    let payload: Option<Value> = serde_json::from_slice(body).ok();
    Call {
        key: text("keylane-key"),
        id: text("keylane-id").expect("a push without Keylane-Id"),
        n: payload.and_then(|payload| payload.get("n")?.as_u64()),
        partition: number("keylane-partition") as u32,
        offset: number("keylane-offset"),
        attempt: number("keylane-attempt") as u32,
        epoch: number("keylane-epoch"),
        path: path.to_owned(),
        started: 0,
        ended: None,
        status: None,
    }
}
