//! Measures PRF-8: consuming from Kafka, with keys in order and safe commits.
//!
//! Keylane: a whole pipeline on a topic that was filled before, with a handler that is ready at once; membership,
//! journals, lanes, ledger, records and commits included. Raw limit: a bare loop of `rd_kafka_consumer_poll` over the
//! same topic, which keeps no order and commits nothing; once with the same client settings and once with the defaults,
//! and the faster counts. All threads of both sides run on one core.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use keylane::{Attempt, Handler, Ids, Outcome, Settings};
use rdkafka::ClientConfig;
use tokio::sync::Notify;

use super::{AHEAD_BYTES, Cluster, Deck, Slice, bare, produce};
use crate::machine::{OneCore, Took, Watch, runtime_of};
use crate::source::Draw;
use crate::{Error, Figure, Options, Target};

const KEYS: u32 = 10_000;
const MESSAGES: u64 = 2_000_000;
const ROUNDS: usize = 5;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    super::on_cluster(options, |cluster| {
        let deck = Deck::new(KEYS, Draw::Uniform);
        let foreign = cluster.topic("foreign")?;
        cluster.fill(&foreign, &deck, MESSAGES)?;
        measure(cluster, &foreign, "Kafka consume, records of others", report)?;
        let own = cluster.topic("own")?;
        produce::Ours::start(cluster, &own, Arc::new(deck), Ids::All)?.produce(MESSAGES)?;
        measure(cluster, &own, "Kafka consume, Keylane's own", report)
    })
}

fn measure(cluster: &Cluster, topic: &str, what: &str, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let _one_core = OneCore::bind()?;
    let slice = Slice::of(MESSAGES);
    let (mut raw_ns, mut ours_ns) = (f64::INFINITY, f64::INFINITY);
    let (mut raw_rate, mut ours_rate) = (0f64, 0f64);
    for round in 0..ROUNDS {
        let took = raw(cluster, topic, slice, round % 2 == 0)?;
        raw_ns = raw_ns.min(took.cpu_ns(slice.messages()));
        raw_rate = raw_rate.max(took.rate(slice.messages()));
        let took = ours(cluster, topic, slice)?;
        ours_ns = ours_ns.min(took.cpu_ns(slice.messages()));
        ours_rate = ours_rate.max(took.rate(slice.messages()));
    }
    let (ours, raw) = (1e9 / ours_ns, 1e9 / raw_ns);
    let unit = "messages a second of CPU";
    report(Figure::beside("PRF-8", what, unit, ours, raw, Target::RatioAtLeast(0.8)).note(format!(
        "{ours_ns:.0} ns, raw {raw_ns:.0}; by the clock {:.0}k/s, raw {:.0}k/s",
        ours_rate / 1e3,
        raw_rate / 1e3
    )));
    Ok(())
}

fn raw(cluster: &Cluster, topic: &str, slice: Slice, our_settings: bool) -> Result<Took, Error> {
    let mut config = match our_settings {
        true => cluster.options().reader(AHEAD_BYTES),
        false => ClientConfig::new(),
    };
    config.set("bootstrap.servers", &cluster.options().brokers);
    config.set("group.id", cluster.group()).set("enable.auto.commit", "false");
    // The bare loop only counts messages, and would count the ends of partitions as messages.
    config.set("enable.partition.eof", "false");
    bare::consume(&config, topic, slice)
}

/// Counts messages, and reads the clocks at both ends of the slice.
struct Counting {
    seen: AtomicU64,
    slice: Slice,
    watch: OnceLock<Watch>,
    took: OnceLock<Took>,
    done: Notify,
}

struct Counts(Arc<Counting>);

impl Handler for Counts {
    async fn handle(&self, _attempt: Attempt<'_>) -> Outcome {
        let counting = &*self.0;
        let seen = counting.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen == counting.slice.from {
            counting.watch.get_or_init(Watch::start);
        } else if seen == counting.slice.to {
            let watch = counting.watch.get().expect("its start was seen before");
            counting.took.get_or_init(|| watch.took());
            counting.done.notify_one();
        }
        Outcome::Done
    }
}

fn ours(cluster: &Cluster, topic: &str, slice: Slice) -> Result<Took, Error> {
    let counting = Arc::new(Counting {
        seen: AtomicU64::new(0),
        slice,
        watch: OnceLock::new(),
        took: OnceLock::new(),
        done: Notify::new(),
    });
    let mut settings = Settings::default();
    settings.shards = Some(1);
    runtime_of(1, "ours")?.block_on(async {
        let keylane = cluster.open().await?;
        let group = cluster.group();
        let pipeline = keylane.pipeline(topic).group(&group).settings(settings);
        let pipeline = pipeline.handle(Counts(Arc::clone(&counting))).start().await?;
        counting.done.notified().await;
        pipeline.drain().await?;
        Ok(*counting.took.get().expect("set before it was notified"))
    })
}
