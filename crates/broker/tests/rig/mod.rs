//! An embedded broker on a simulated disk, driven by the test: no threads, a clock that the test sets, chance from a
//! seed.
#![allow(unused, reason = "each test file uses a part")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use keylane_broker::embedded::disk::SimDisk;
use keylane_broker::embedded::{Embedded, OpenError, Options};
use keylane_broker::{Broker, BrokerError, Ends, TopicSpec};
use keylane_core::{Draft, Frames};

/// A call that is under way.
pub type Call<T> = Pin<Box<dyn Future<Output = T>>>;

/// The broker with the disk, the clock and the options that it uses.
pub struct Rig {
    pub disk: SimDisk,
    pub now_ms: Arc<AtomicU64>,
    pub options: Options,
    pub broker: Option<Arc<Embedded>>,
}

impl Rig {
    pub fn new(seed: u64) -> Rig {
        let disk = SimDisk::new(seed);
        let now_ms = Arc::new(AtomicU64::new(1_000_000));
        let clock = Arc::clone(&now_ms);
        let mut options =
            Options::simulated(Arc::new(disk.clone()), Arc::new(move || clock.load(Ordering::Relaxed)), seed);
        options.segment_bytes = 64 << 10;
        options.journal_segment_bytes = 32 << 10;
        options.tail_bytes = 16 << 10;
        Rig { disk, now_ms, options, broker: None }
    }

    pub fn open(&mut self) -> Result<Arc<Embedded>, OpenError> {
        let broker = Arc::new(Embedded::open("data", self.options.clone())?);
        self.broker = Some(Arc::clone(&broker));
        Ok(broker)
    }

    pub fn broker(&self) -> &Arc<Embedded> {
        self.broker.as_ref().expect("open")
    }

    /// Ends the process at once. What it wrote stays, synced or not.
    pub fn kill(&mut self) {
        self.disk.stop();
        self.broker = None;
        self.disk.restart_after_kill();
    }

    /// Cuts the power. Of what was not synced, any part may be lost.
    pub fn cut_power(&mut self) {
        self.disk.stop();
        self.broker = None;
        self.disk.restart_after_power_cut();
    }

    /// Closes the broker, as a server does when it is told to stop.
    pub fn close(&mut self) {
        self.broker().close();
        self.broker = None;
        self.disk.restart_after_kill();
    }

    /// Runs a call to its end, with a group commit whenever it waits.
    pub fn run<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        for _ in 0..1000 {
            if let Poll::Ready(done) = poll(call.as_mut()) {
                return done;
            }
            self.broker().commit_once();
        }
        panic!("a call does not end");
    }

    pub fn create(&self, topic: &str, spec: &TopicSpec) {
        let broker = Arc::clone(self.broker());
        self.run(broker.create_topic(topic, spec)).expect("a new topic");
    }

    pub fn produce(&self, topic: &str, messages: &[(u32, &str, usize)]) -> Vec<u64> {
        let broker = Arc::clone(self.broker());
        let placed = self.run(broker.produce(topic, frames(messages)));
        placed.into_iter().map(|place| place.expect("room")).collect()
    }

    pub fn ends(&self, topic: &str) -> Vec<Ends> {
        let broker = Arc::clone(self.broker());
        self.run(broker.ends(topic)).expect("an open topic")
    }

    /// All messages of a partition: positions and ids.
    pub fn read(&self, topic: &str, partition: u32) -> Result<Vec<(u64, String)>, BrokerError> {
        let broker = Arc::clone(self.broker());
        let ends = self.run(broker.ends(topic))?[partition as usize];
        // A stopped log returns its error to a reader at its end, so nothing is read from an empty partition.
        if ends.start == ends.end {
            return Ok(Vec::new());
        }
        let mut reader = self.run(broker.reader(topic, partition, ends.start))?;
        let (mut read, mut at) = (Vec::new(), ends.start);
        while at < ends.end {
            let batch = poll(pin!(std::future::poll_fn(|cx| reader.poll_batch(cx, 2000))));
            let Poll::Ready(batch) = batch else {
                panic!("position {at} of {ends:?} is not there");
            };
            let batch = batch?;
            for delivery in batch.cursor(0) {
                let delivery = delivery.expect("a good frame");
                read.push((delivery.position(), delivery.id().to_owned()));
            }
            at = batch.next;
        }
        Ok(read)
    }

    pub fn segments(&self, folder: &str) -> Vec<PathBuf> {
        let dir = Path::new("data").join(folder);
        let mut paths = self.disk.paths();
        paths.retain(|path| path.starts_with(&dir) && path.extension().is_some_and(|ending| ending == "seg"));
        paths
    }
}

pub fn poll<T>(call: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Poll<T> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

/// Frames for messages that are given as (partition, id, payload bytes).
pub fn frames(messages: &[(u32, &str, usize)]) -> Frames {
    let mut frames = Frames::default();
    for (partition, id, bytes) in messages {
        let payload = vec![b'p'; *bytes];
        let draft = Draft { id, payload: Some(&payload), ..Draft::default() };
        frames.push(*partition, &draft).expect("a small message");
    }
    frames
}

pub fn spec(partitions: u32) -> TopicSpec {
    TopicSpec { partitions, ..TopicSpec::default() }
}

/// Random numbers from a seed: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        keylane_core::random::next(&mut self.0) % bound
    }
}

/// A `tracing` subscriber that keeps every event as text.
pub struct Lines(pub Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        let mut add = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!(" {}={value:?}", field.name());
        };
        event.record(&mut add);
        self.0.lock().expect("nobody panics").push(line);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
