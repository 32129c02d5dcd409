//! Producers that remember which of their messages were acknowledged.
//!
//! If the fate of a batch is unknown because the server died, the batch is sent again with the same ids until it is
//! acknowledged, as any careful producer would do. The log may then hold it twice, at two positions; checks go by
//! positions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::server::Server;
use crate::sink::Sink;

/// A message to be produced, with the key's number `n` in its payload.
#[derive(Debug, Clone)]
pub struct Item {
    /// The key.
    pub key: Option<String>,
    /// The id.
    pub id: String,
    /// Counts up for each key.
    pub n: u64,
    /// Bytes that are added to the payload.
    pub padding: usize,
}

/// A message that was acknowledged, and its place.
#[derive(Debug, Clone)]
pub struct Acked {
    /// The key.
    pub key: Option<String>,
    /// The id.
    pub id: String,
    /// Counts up for each key.
    pub n: u64,
    /// Its partition.
    pub partition: u32,
    /// Its position; none while it waits in the spill, where only its id identifies it.
    pub offset: Option<u64>,
}

impl Acked {
    /// Its position, in tests where nothing is spilled.
    pub fn position(&self) -> u64 {
        self.offset.expect("the broker has it")
    }

    /// The message's name in reports.
    pub fn told(&self) -> String {
        match self.offset {
            Some(offset) => format!("{} at {}/{offset}", self.id, self.partition),
            None => format!("{}, spilled for partition {}", self.id, self.partition),
        }
    }
}

/// Why a batch was not acknowledged.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The status of the answer; none if there was no answer.
    pub status: Option<u16>,
    /// The text of the answer, or the fault of the connection.
    pub text: String,
}

/// `count` messages of one key, from `from` on.
pub fn items(key: &str, from: u64, count: u64) -> Vec<Item> {
    (from..from + count)
        .map(|n| Item { key: Some(key.to_owned()), id: format!("{key}-{n}"), n, padding: 0 })
        .collect()
}

/// Sends `items` in one request to a topic's address. Either all of them are acknowledged, or the result is a refusal.
pub async fn produce(client: &reqwest::Client, url: &str, items: &[Item]) -> Result<Vec<Acked>, Refusal> {
    let gone = |error: reqwest::Error| Refusal { status: None, text: error.to_string() };
    let request = client.post(url).header("content-type", "application/x-ndjson").body(lines(items));
    let answer = request.send().await.map_err(gone)?;
    let status = answer.status().as_u16();
    let text = answer.text().await.map_err(gone)?;
    let refused = || Refusal { status: Some(status), text: text.clone() };
    if status != 202 {
        return Err(refused());
    }
    let body: Value = serde_json::from_str(&text).map_err(|_| refused())?;
    let accepted = body["accepted"].as_array().ok_or_else(refused)?;
    if accepted.len() != items.len() {
        return Err(refused());
    }
    let pairs = items.iter().zip(accepted);
    Ok(pairs.map(|(item, place)| acked(item, place)).collect())
}

fn lines(items: &[Item]) -> String {
    let mut body = String::new();
    for item in items {
        let mut message = json!({ "id": item.id, "payload": { "n": item.n } });
        if let Some(key) = &item.key {
            message["key"] = json!(key);
        }
        if item.padding > 0 {
            message["payload"]["padding"] = json!("x".repeat(item.padding));
        }
        body.push_str(&message.to_string());
        body.push('\n');
    }
    body
}

fn acked(item: &Item, place: &Value) -> Acked {
    assert_eq!(place["id"], item.id.as_str(), "answers stand in the order of the messages");
    Acked {
        key: item.key.clone(),
        id: item.id.clone(),
        n: item.n,
        partition: place["partition"].as_u64().expect("a partition") as u32,
        offset: match place["spilled"].as_bool() {
            Some(true) => None,
            _ => Some(place["offset"].as_u64().expect("an offset")),
        },
    }
}

/// Produces `items` in requests of at most 1,000, all of which must be acknowledged.
pub async fn fill(server: &Server, items: &[Item]) -> Vec<Acked> {
    let client = client();
    let mut all = Vec::with_capacity(items.len());
    for chunk in items.chunks(1_000) {
        match produce(&client, &server.topic_url(), chunk).await {
            Ok(acked) => all.extend(acked),
            Err(refusal) => panic!("not acknowledged: {refusal:?}\n{}", server.output()),
        }
    }
    all
}

/// The HTTP client of every test. Its limit only serves to fail a hang.
pub fn client() -> reqwest::Client {
    keylane::raw::provide_cryptography();
    let builder = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
    builder.build().expect("a client")
}

/// Steady traffic in the background, through every death of the server.
pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Acked>>>,
}

/// Producers that work side by side, each with keys of its own: only one producer's messages of a key have an order.
const PRODUCERS: u64 = 2;

/// How much is sent at once.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Messages in one request.
    pub batch: u64,
    /// The most messages acknowledged and not handled: those left at the end must be handled before a test can end.
    pub ahead: u64,
    /// Messages a second of all producers together; none: as many as the server takes.
    pub per_second: Option<u64>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { batch: 20, ahead: 1_500, per_second: None }
    }
}

/// The wait between two tries while the server does not answer.
const PAUSE: Duration = Duration::from_millis(5);

impl Load {
    /// Produces to `keys` keys until it is stopped.
    pub fn start(server: &Server, sink: &Sink, keys: u64) -> Load {
        Load::paced(server, sink, keys, Pace::default())
    }

    /// As [`Load::start`], at another pace.
    pub fn paced(server: &Server, sink: &Sink, keys: u64, pace: Pace) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..PRODUCERS)
            .map(|producer| {
                let own: Vec<u64> = (0..keys).filter(|key| key % PRODUCERS == producer).collect();
                let (url, stop) = (server.topic_url(), Arc::clone(&stop));
                tokio::spawn(run(url, own, pace, stop, sink.settled_reader()))
            })
            .collect();
        Load { stop, tasks }
    }

    /// Ends the load once each producer's last batch is acknowledged; the server must run. Returns what was
    /// acknowledged.
    pub async fn stop(self) -> Vec<Acked> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("a producer does not panic"));
        }
        all
    }
}

async fn run(
    url: String,
    keys: Vec<u64>,
    pace: Pace,
    stop: Arc<AtomicBool>,
    settled: impl Fn() -> u64,
) -> Vec<Acked> {
    let client = client();
    let mut next = vec![0; keys.len()];
    let mut acknowledged: Vec<Acked> = Vec::new();
    let mut at = 0;
    let mut ticks = pace.per_second.map(|rate| {
        let mut ticks =
            tokio::time::interval(Duration::from_secs(1) * (pace.batch * PRODUCERS) as u32 / rate as u32);
        // While the server took nothing, no request was due; missed ones are not made up for.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    });
    while !stop.load(Ordering::Relaxed) {
        if acknowledged.len() as u64 * PRODUCERS > settled() + pace.ahead {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let mut batch = Vec::new();
        for _ in 0..pace.batch {
            // A stride that is prime to most sizes: every key comes again and again, in changing company.
            at = (at + 7) % keys.len();
            let (key, n) = (format!("k{}", keys[at]), next[at]);
            next[at] += 1;
            batch.extend(items(&key, n, 1));
        }
        loop {
            match produce(&client, &url, &batch).await {
                Ok(acked) => break acknowledged.extend(acked),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    acknowledged
}
