//! Measures PRF-9: producing to Kafka, with a result for each message.
//!
//! Keylane: several calls of a producer at a time, each of which waits until all its messages have a receipt. Raw
//! limit: a bare loop of `rd_kafka_produce` whose callback counts, with the same client settings and as many messages
//! in flight. If the caller gives ids, messages carry them in a header, and so do the messages of the raw limit beside
//! them. In a topic with `ids: caller`, messages without an id have no header, on both sides. All threads of both sides
//! run on one core.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keylane::raw::Draft;
use keylane::{Ids, KafkaOptions, Keylane, TopicSpec};
use rdkafka::ClientConfig;
use tokio::runtime::Runtime;

use super::bare::BareProducer;
use super::{Cluster, Deck, IN_FLIGHT, PARTITIONS};
use crate::machine::{OneCore, Watch, runtime_of};
use crate::source::Draw;
use crate::{Error, Figure, Options, Target};

const KEYS: u32 = 10_000;
const MESSAGES: u64 = 1_000_000;
const ROUNDS: usize = 5;
/// Messages of a call.
const CALL: usize = 1_000;
const CALLERS: usize = IN_FLIGHT / CALL;
/// The header that Keylane's messages carry.
const HEADERS: [(&CStr, &[u8]); 1] = [(c"keylane-id", b"00000000-0000-0000-0000-000000000000")];

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    super::on_cluster(options, |cluster| {
        let deck = Arc::new(Deck::new(KEYS, Draw::Uniform));
        let (topic, nameless) = (cluster.topic("produced")?, cluster.topic("nameless")?);
        let _one_core = OneCore::bind()?;
        let ours = Ours::start(cluster, &topic, Arc::clone(&deck), Ids::All)?;
        let without = Ours::start(cluster, &nameless, Arc::clone(&deck), Ids::Caller)?;
        let raw = BareProducer::new(&settings(cluster.options()), &topic)?;
        let mut cards = deck.endless();
        let mut bare = |headers: &[(&CStr, &[u8])]| {
            raw.produce(MESSAGES, headers, || {
                let card = cards.next().expect("endless");
                (card.partition, &card.key, &card.payload)
            })
        };
        let [mut plain, mut with_header, mut named, mut unnamed] = [Best::default(); 4];
        for round in 0..=ROUNDS {
            // The first round sets up connections and producer ids.
            let counts = round > 0;
            plain.take(counts, || bare(&[]))?;
            with_header.take(counts, || bare(&HEADERS))?;
            named.take(counts, || ours.produce(MESSAGES))?;
            unnamed.take(counts, || without.produce(MESSAGES))?;
        }
        report(named.beside(&with_header, "Kafka produce, a result each, raw with the same header", 0.8));
        report(unnamed.beside(&plain, "Kafka produce, ids: caller, raw without headers", 1.2));
        Ok(())
    })
}

/// The best of several rounds.
#[derive(Clone, Copy)]
struct Best {
    cpu_ns: f64,
    rate: f64,
}

impl Default for Best {
    fn default() -> Best {
        Best { cpu_ns: f64::INFINITY, rate: 0.0 }
    }
}

impl Best {
    fn take(&mut self, counts: bool, round: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let watch = Watch::start();
        round()?;
        let took = watch.took();
        if counts {
            self.cpu_ns = self.cpu_ns.min(took.cpu_ns(MESSAGES));
            self.rate = self.rate.max(took.rate(MESSAGES));
        }
        Ok(())
    }

    fn beside(&self, raw: &Best, what: &str, target: f64) -> Figure {
        let (value, limit) = (1e9 / self.cpu_ns, 1e9 / raw.cpu_ns);
        let unit = "messages a second of CPU";
        Figure::beside("PRF-9", what, unit, value, limit, Target::RatioAtLeast(target)).note(format!(
            "calls of {CALL}; {:.0} ns, raw {:.0}; by the clock {:.0}k/s, raw {:.0}k/s",
            self.cpu_ns,
            raw.cpu_ns,
            self.rate / 1e3,
            raw.rate / 1e3
        ))
    }
}

/// The settings of a bare producer: Keylane's, and a bound on messages in flight, which Keylane has by its callers.
pub(crate) fn settings(options: &KafkaOptions) -> ClientConfig {
    let mut config = options.producer();
    config.set("queue.buffering.max.messages", IN_FLIGHT.to_string());
    config
}

/// Keylane's producer, with callers that take turns.
pub(crate) struct Ours {
    runtime: Runtime,
    keylane: Keylane,
    topic: String,
    deck: Arc<Deck>,
    ids: Ids,
}

impl Ours {
    pub(crate) fn start(cluster: &Cluster, topic: &str, deck: Arc<Deck>, ids: Ids) -> Result<Ours, Error> {
        let runtime = runtime_of(1, "ours")?;
        let keylane = runtime.block_on(cluster.open())?;
        let spec = TopicSpec { partitions: PARTITIONS, ids, ..TopicSpec::default() };
        runtime.block_on(keylane.ensure_topic(topic, &spec))?;
        Ok(Ours { runtime, keylane, topic: topic.to_owned(), deck, ids })
    }

    /// Sends this many messages, and waits for a receipt of each.
    pub(crate) fn produce(&self, messages: u64) -> Result<(), Error> {
        let left = Arc::new(AtomicU64::new(messages / CALL as u64));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (keylane, topic) = (self.keylane.clone(), self.topic.clone());
                let (deck, left) = (Arc::clone(&self.deck), Arc::clone(&left));
                self.runtime.spawn(call_again_and_again(keylane, topic, deck, left, caller, self.ids))
            })
            .collect();
        callers.into_iter().try_for_each(|caller| self.runtime.block_on(caller).expect("no caller panics"))
    }
}

async fn call_again_and_again(
    keylane: Keylane,
    topic: String,
    deck: Arc<Deck>,
    left: Arc<AtomicU64>,
    caller: usize,
    ids: Ids,
) -> Result<(), Error> {
    let producer = keylane.producer();
    // Like the ids of a caller: as long as a UUID, and all different.
    let mut id = format!("{caller:08}-0000-0000-0000-000000000000");
    let mut cards = deck.endless().skip(caller * CALL);
    let mut sent = 0u64;
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let mut call = producer.call(&topic).await?;
        let produced_ms = producer.wall_ms();
        for card in cards.by_ref().take(CALL) {
            sent += 1;
            id.truncate(24);
            push_digits(&mut id, sent);
            let (key, payload) = (Some(&card.key[..]), Some(&card.payload[..]));
            let draft = Draft { id: &id, key, payload, produced_ms, ..Draft::default() };
            match ids {
                Ids::Caller => call.push_without_id(&draft),
                _ => call.push(&draft),
            }
        }
        for result in call.send().await? {
            result.map_err(|error| Error::Broker(error.to_string()))?;
        }
    }
    Ok(())
}

/// Twelve digits, without the cost of formatting, which is not to be measured.
fn push_digits(id: &mut String, number: u64) {
    let mut unit = 100_000_000_000;
    while unit > 0 {
        id.push(char::from(b'0' + (number / unit % 10) as u8));
        unit /= 10;
    }
}
