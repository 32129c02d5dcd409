//! The handler of simulated messages: it takes its time, fails, panics, hangs, rejects, and tells the checker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Attempt, Handler, Outcome};
use keylane_simulation::Random;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::checker::{Checker, End};
use crate::scenario::Work;

/// From this attempt on a message is handled or rejected: a simulation must end.
const GIVES_IN: u32 = 5;

#[derive(Default)]
struct TakeOvers {
    partitions: Mutex<Vec<u32>>,
    notify: Notify,
}

/// What all parts of a run share.
#[derive(Clone)]
pub struct Eye {
    checker: Arc<Mutex<Checker>>,
    calm: Arc<AtomicBool>,
    take_overs: Arc<TakeOvers>,
    start: Instant,
}

impl Eye {
    pub fn new(checker: Checker) -> Eye {
        Eye {
            checker: Arc::new(Mutex::new(checker)),
            calm: Arc::default(),
            take_overs: Arc::default(),
            start: Instant::now(),
        }
    }

    /// A partition is being taken over.
    pub fn take_over(&self, partition: u32) {
        self.take_overs.partitions.lock().expect("no holder panics").push(partition);
        self.take_overs.notify.notify_one();
    }

    /// Waits until partitions are being taken over, and returns them.
    pub async fn taken_over(&self) -> Vec<u32> {
        loop {
            let partitions =
                std::mem::take(&mut *self.take_overs.partitions.lock().expect("no holder panics"));
            if !partitions.is_empty() {
                return partitions;
            }
            self.take_overs.notify.notified().await;
        }
    }

    /// Simulated time.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// From now on handlers succeed at once, or reject: what is left must come to an end.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Tells the checker something, at the present time.
    pub fn tell<T>(&self, tell: impl FnOnce(&mut Checker, u64) -> T) -> T {
        let now_ms = self.now_ms();
        tell(&mut self.checker.lock().expect("no holder panics"), now_ms)
    }
}

/// The handler of one process.
pub struct Worker {
    pub process: String,
    pub seed: u64,
    pub work: Work,
    pub eye: Eye,
}

/// The fate of an attempt.
enum Fate {
    Done,
    Fail,
    Panic,
    Hang,
    Reject,
}

impl Worker {
    /// The fate of an attempt; the same attempt of the same message has the same fate in every process.
    fn fate(&self, partition: u32, position: u64, nth: u32) -> (Fate, Option<Duration>) {
        let mut message = Random::new(self.seed ^ position ^ u64::from(partition).rotate_left(40));
        let rejected = message.percent(self.work.rejects);
        let mut random = Random::new(message.number() ^ u64::from(nth));
        let takes = (!random.percent(self.work.quick)).then(|| random.time(1, self.work.takes_ms.max(1)));
        let Work { fails, panics, hangs, .. } = self.work;
        let calm = self.eye.calm.load(Ordering::Relaxed);
        let gives_in = nth >= GIVES_IN || calm;
        let drawn = random.between(0, 99);
        let fate = match drawn {
            _ if gives_in && rejected => Fate::Reject,
            _ if gives_in => Fate::Done,
            _ if drawn < fails => Fate::Fail,
            _ if drawn < fails + panics => Fate::Panic,
            _ if drawn < fails + panics + hangs => Fate::Hang,
            _ if rejected => Fate::Reject,
            _ => Fate::Done,
        };
        (fate, takes.filter(|_| !calm))
    }
}

impl Handler for Worker {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let (number, nth) = self.eye.tell(|checker, now_ms| checker.began(now_ms, &self.process, &attempt));
        let mut running = Running { eye: &self.eye, number, end: End::Abandoned };
        let (fate, takes) = self.fate(attempt.partition(), attempt.position(), nth);
        if let Some(takes) = takes {
            tokio::time::sleep(takes).await;
        }
        let outcome = match fate {
            Fate::Done => Outcome::Done,
            Fate::Fail => Outcome::failed("not this time"),
            Fate::Reject => Outcome::rejected("never"),
            Fate::Panic => panic!("{}", crate::PANIC),
            Fate::Hang => std::future::pending().await,
        };
        running.end = match &outcome {
            Outcome::Done => End::Done,
            Outcome::Rejected { .. } => End::Rejected,
            _ => End::Failed,
        };
        outcome
    }
}

/// Tells the checker how an attempt ended, whatever becomes of it.
struct Running<'a> {
    eye: &'a Eye,
    number: u64,
    end: End,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.eye.tell(|checker, now_ms| checker.ended(now_ms, self.number, self.end));
    }
}
