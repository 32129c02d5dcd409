//! Calls that are with the broker, and what of them comes back.
//!
//! A call is numbered when it is handed over. When the broker is found to be away, all that is under way is called
//! back; what was not acknowledged is kept in the order of those numbers, before anything that came later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};

use keylane_broker::ProduceError;
use keylane_core::Frames;
use tokio::sync::oneshot;

use super::job::{Answer, Caller, Job};
use super::store::Place;
use super::way::Way;
use super::{Results, Spill, Stored, lock};
use crate::produce::call::Target;
use crate::tasks::TaskKind;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is under way.
#[derive(Default)]
pub(crate) struct Calls {
    next: u64,
    pub(super) open: BTreeMap<u64, Open>,
    /// What came back, by the number of its call.
    returned: BTreeMap<u64, Job>,
    /// What came for partitions that wait.
    queue: VecDeque<Job>,
    /// How often something was called back.
    recalls: u64,
    /// True until all that was called back has ended.
    recalling: bool,
}

/// A call that is with the broker.
pub(super) struct Open {
    pub(super) target: Arc<Target>,
    pub(super) partitions: BTreeSet<u32>,
    /// When the broker counts as away if it has not answered.
    pub(super) due_ms: u64,
    pub(super) called_back: bool,
    /// It was called back because it took too long itself.
    pub(super) overdue: bool,
}

/// A call that is with the broker, for as long as this is held: a recall waits for the end of all calls, also of one
/// whose task panics.
struct UnderWay {
    spill: Arc<Spill>,
    number: u64,
}

impl UnderWay {
    /// The call has ended. `None` if that was said before.
    fn end(&self) -> Option<Open> {
        // It runs also in a panic, where a second one would end the process.
        let mut calls = self.spill.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let open = calls.open.remove(&self.number)?;
        drop(calls);
        if open.called_back {
            self.spill.notifies.ended.notify_one();
        }
        Some(open)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end();
    }
}

impl Calls {
    fn begin(&mut self, target: &Arc<Target>, frames: &Frames, due_ms: u64) -> u64 {
        let partitions = frames.iter().map(|(partition, _)| partition).collect();
        self.next += 1;
        let open =
            Open { target: Arc::clone(target), partitions, due_ms, called_back: false, overdue: false };
        self.open.insert(self.next, open);
        self.next
    }

    pub(crate) fn queue(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// True while it is not known what comes back: nothing may be kept before that.
    pub(crate) fn is_recalling(&self) -> bool {
        self.recalling
    }

    /// The next that is to be kept: first what came back.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        match self.recalling {
            true => None,
            false => self.returned.pop_first().map(|(_, job)| job).or_else(|| self.queue.pop_front()),
        }
    }
}

impl Spill {
    /// Hands messages to the broker. The caller holds the parts.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        target: &Arc<Target>,
        mut frames: Frames,
        caller: &Arc<Caller>,
    ) -> oneshot::Receiver<Results> {
        frames.share();
        let (answer, answered) = Answer::of_all(frames.len(), caller);
        let (under_way, mut call) = self.call(target, frames.clone(), self.options.after.as_millis() as u64);
        let first = call.as_mut().poll(cx);
        if let Poll::Ready(results) = &first
            && !results.iter().any(is_unknown)
        {
            drop(under_way);
            answer.answer(stored(results.clone()));
            return answered;
        }
        // Who holds the parts cannot change them; until that is done nothing may overtake.
        self.failing.fetch_or(first.is_ready(), Ordering::SeqCst);
        let (spill, target) = (Arc::clone(self), Arc::clone(target));
        self.tasks.spawn(async move {
            let results = match first {
                Poll::Ready(results) => results,
                Poll::Pending => {
                    let ended = spill.tasks.supervise(TaskKind::SpillCall, call).await;
                    // Nobody knows what became of the messages.
                    let unknown = |why| vec![Err(ProduceError::Unavailable(why)); frames.len()];
                    ended.unwrap_or_else(unknown)
                }
            };
            let ending = || spill.ended(under_way, &target, &frames, results, answer);
            if let Err(why) = spill.tasks.supervise_now(TaskKind::SpillCall, ending) {
                // If the call failed at once, nothing is written before the broker counts as away.
                spill.away(&why);
            }
        });
        answered
    }

    fn call(
        self: &Arc<Self>,
        target: &Arc<Target>,
        frames: Frames,
        patience_ms: u64,
    ) -> (UnderWay, Boxed<Vec<Result<u64, ProduceError>>>) {
        let number = lock(&self.calls).begin(target, &frames, self.clock.now_ms() + patience_ms);
        let under_way = UnderWay { spill: Arc::clone(self), number };
        self.notifies.handed.notify_one();
        let (broker, topic) = (Arc::clone(&self.broker), Arc::clone(&target.name));
        (under_way, Box::pin(async move { broker.produce(&topic, frames).await }))
    }

    /// Offers what waits to the broker; nothing of it is kept anew. Says whether it was called back for taking longer
    /// than `patience_ms`.
    pub(super) async fn offer(
        self: &Arc<Self>,
        target: &Arc<Target>,
        frames: Frames,
        patience_ms: u64,
    ) -> (Vec<Result<u64, ProduceError>>, bool) {
        let (under_way, call) = self.call(target, frames, patience_ms);
        let results = call.await;
        let ended = under_way.end().expect("a call ends once");
        let unknown = results.iter().find(|result| is_unknown(result)).cloned();
        if let (Some(Err(error)), false) = (unknown, ended.called_back) {
            self.away(&error.to_string());
        }
        (results, ended.overdue)
    }

    fn ended(
        self: &Arc<Self>,
        under_way: UnderWay,
        target: &Arc<Target>,
        frames: &Frames,
        results: Vec<Result<u64, ProduceError>>,
        answer: Answer,
    ) {
        let open: Vec<usize> = (0..results.len()).filter(|index| is_unknown(&results[*index])).collect();
        if let Some(Err(error)) = open.first().map(|index| &results[*index]) {
            self.away(&error.to_string());
        }
        if !open.is_empty() && answer.may_be_kept() {
            let mut back = Frames::default();
            for ((partition, frame), result) in frames.iter().zip(&results) {
                if is_unknown(result) {
                    back.push_frame(partition, frame);
                }
            }
            self.parts.read().expect("no holder panics").queued(target, &back);
            let answer = answer.of_some(stored(results), open);
            let job = Job { target: Arc::clone(target), frames: back, answer, way: Way::Kept };
            lock(&self.calls).returned.insert(under_way.number, job);
        } else {
            answer.answer(stored(results));
        }
        // Last: a recall that has ended must find what came back.
        drop(under_way);
    }

    /// The broker is away: all that is under way is called back, and its partitions wait from now on.
    pub(super) fn away(self: &Arc<Self>, why: &str) {
        let mut parts = self.parts.write().expect("no holder panics");
        let mut calls = lock(&self.calls);
        self.failing.store(false, Ordering::SeqCst);
        let was_quiet = parts.is_quiet();
        let mut any = false;
        for open in calls.open.values_mut().filter(|open| !open.called_back) {
            open.called_back = true;
            any = true;
            for partition in &open.partitions {
                parts.spill(&Place::of(&open.target, *partition));
            }
        }
        if !any {
            return;
        }
        if was_quiet {
            lock(&self.recent).forget_keys();
        }
        calls.recalls += 1;
        if std::mem::replace(&mut calls.recalling, true) {
            return;
        }
        drop((parts, calls));
        tracing::warn!(why, "the broker does not take messages; they are kept here until it does");
        // Begun anew if it panics: nothing is written and nothing brought to the broker before it has ended.
        let spill = Arc::downgrade(self);
        self.tasks.keep(TaskKind::SpillRecall, move || recall(spill.clone()));
    }
}

/// Calls back what is under way, and returns once all of it has ended.
async fn recall(spill: Weak<Spill>) {
    let Some(spill) = spill.upgrade() else { return };
    let mut done = 0;
    loop {
        let wanted = lock(&spill.calls).recalls;
        if wanted > done {
            done = wanted;
            spill.broker.recall().await;
        }
        {
            let mut calls = lock(&spill.calls);
            if !calls.open.values().any(|open| open.called_back) {
                calls.recalling = false;
                break;
            }
            if calls.recalls > done {
                continue;
            }
        }
        spill.notifies.ended.notified().await;
    }
    spill.notifies.to_write.notify_one();
    spill.notifies.to_drain.notify_one();
}

fn is_unknown<T>(result: &Result<T, ProduceError>) -> bool {
    matches!(result, Err(ProduceError::Unavailable(_)))
}

fn stored(results: Vec<Result<u64, ProduceError>>) -> Results {
    results.into_iter().map(|result| result.map(Stored::At)).collect()
}
