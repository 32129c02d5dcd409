//! Which way each message of a call goes: to the broker, or to the disk.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use keylane_broker::ProduceError;
use keylane_core::Frames;
use tokio::sync::oneshot;

use super::job::{Answer, Caller, Job};
use super::partitions::SpillPartitions;
use super::store::Place;
use super::{Results, Spill, lock};
use crate::produce::call::Target;

/// How a call began: what of it went which way, and where its answers come from.
struct Begun {
    answers: Vec<(Way, oneshot::Receiver<Results>)>,
    /// For each message; empty if all went to the broker.
    ways: Vec<Way>,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// To the broker.
    Direct,
    /// Its partition waits: it does, too.
    Kept,
    /// As kept, and its key is blocked by a message that was refused for good: it will be put aside in its turn.
    Behind,
    /// To what was refused for good, of which one blocks its key. Its partition does not wait.
    Aside,
    /// Nowhere: it would be kept, and only refused later.
    Refused { bytes: usize },
    /// Nowhere: it may not be kept, and earlier ones of its partition are.
    Waits,
    /// Nowhere: it may not be kept, and an earlier one of its key was refused for good.
    Blocked,
}

impl Way {
    /// The way of a message that may not be kept.
    fn unkept(self, held_back: bool) -> Way {
        match self {
            Way::Direct if held_back => Way::Waits,
            Way::Kept => Way::Waits,
            Way::Behind | Way::Aside => Way::Blocked,
            way => way,
        }
    }
}

/// What becomes of a message that the broker does not take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenAway {
    /// It is kept on this machine until the broker takes it (PRD-3).
    #[default]
    Keep,
    /// It fails, and so does what would overtake messages that are kept: for callers who keep it elsewhere.
    Fail,
}

/// Why [`Way::Waits`] is none.
const BEHIND_KEPT: &str = "earlier messages of its partition wait in the spill of this machine";
/// Why [`Way::Blocked`] is none.
const BEHIND_REFUSED: &str = "an earlier message of its key was refused by the broker and is in the spill of this machine (GET /admin/spill); this one is not sent before it";

impl Spill {
    /// Sends messages to the broker, or keeps them: a result each, in the order given. Its first poll takes their
    /// place, and from then on they are sent or kept, and take their room, also if nobody waits for it any more.
    pub(crate) async fn produce(
        self: &Arc<Self>,
        target: &Arc<Target>,
        frames: Frames,
        caller: Caller,
    ) -> Results {
        let count = frames.len();
        let mut call = Some((frames, Arc::new(caller)));
        let begun = poll_fn(|cx| {
            let (frames, caller) = call.take().expect("it is ready when it is first polled");
            Poll::Ready(self.begin(cx, target, frames, &caller))
        });
        let Begun { answers, ways } = begun.await;
        let mut answered = HashMap::new();
        for (way, answer) in answers {
            answered.insert(way, answer.await.unwrap_or_default().into_iter());
        }
        let not_answered = || Err(ProduceError::Unavailable("the producer ended".to_owned()));
        let (topic, bytes_max) = (&*target.name, target.message_bytes_max);
        (0..count)
            .map(|index| match ways.get(index).copied().unwrap_or(Way::Direct) {
                Way::Refused { bytes } => {
                    Err(ProduceError::TooLarge { topic: topic.to_owned(), bytes, bytes_max })
                }
                Way::Waits => Err(ProduceError::Unavailable(BEHIND_KEPT.to_owned())),
                Way::Blocked => Err(ProduceError::Invalid(BEHIND_REFUSED.to_owned())),
                way => answered.get_mut(&way).and_then(Iterator::next).unwrap_or_else(not_answered),
            })
            .collect()
    }

    fn begin(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        target: &Arc<Target>,
        frames: Frames,
        caller: &Arc<Caller>,
    ) -> Begun {
        let parts = self.parts.read().expect("no holder panics");
        if parts.is_quiet() && !self.failing.load(Ordering::SeqCst) {
            let answers = vec![(Way::Direct, self.hand_over(cx, target, frames, caller))];
            return Begun { answers, ways: Vec::new() };
        }
        if caller.when_away == WhenAway::Fail {
            let held_back = self.holds_back() || parts.waits_by_other(&target.name, target.partitions);
            let ways = parts.ways(target, &frames).into_iter().map(|way| way.unkept(held_back)).collect();
            return self.split(cx, &parts, target, &frames, ways, caller);
        }
        let outgrown = parts.waits_by_other(&target.name, target.partitions);
        if !outgrown && !self.holds_back() && !parts.blocks_any(&target.name, &frames) {
            let ways = parts.ways(target, &frames);
            return self.split(cx, &parts, target, &frames, ways, caller);
        }
        drop(parts);
        let mut parts = self.parts.write().expect("no holder panics");
        // What is handed over now may be called back with the rest, and what follows could overtake it before that is
        // known. What waits since the topic had another number of partitions may be of the same keys.
        if self.holds_back() || parts.waits_by_other(&target.name, target.partitions) {
            frames.iter().for_each(|(partition, _)| parts.spill(&Place::of(target, partition)));
        }
        let ways = parts.ways(target, &frames);
        for ((partition, frame), way) in frames.iter().zip(&ways) {
            if *way == Way::Aside {
                parts.put_aside(&Place::of(target, partition), frame);
            }
        }
        self.split(cx, &parts, target, &frames, ways, caller)
    }

    /// True while what is handed over could overtake what is about to come back.
    fn holds_back(&self) -> bool {
        self.failing.load(Ordering::SeqCst) || lock(&self.calls).is_recalling()
    }

    /// Hands over what may go to the broker, and queues what is to be kept.
    fn split(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        parts: &SpillPartitions,
        target: &Arc<Target>,
        frames: &Frames,
        ways: Vec<Way>,
        caller: &Arc<Caller>,
    ) -> Begun {
        let mut answers = Vec::new();
        for which in [Way::Direct, Way::Kept, Way::Behind, Way::Aside] {
            let mut part = Frames::default();
            if frames.stops_at_refused() {
                part.stop_at_refused();
            }
            for ((partition, frame), way) in frames.iter().zip(&ways) {
                if *way == which {
                    part.push_frame(partition, frame);
                }
            }
            if part.is_empty() {
                continue;
            }
            let answered = match which {
                Way::Direct => self.hand_over(cx, target, part, caller),
                way => self.queue(parts, target, part, way, caller),
            };
            answers.push((which, answered));
        }
        Begun { answers, ways }
    }

    fn queue(
        &self,
        parts: &SpillPartitions,
        target: &Arc<Target>,
        frames: Frames,
        way: Way,
        caller: &Arc<Caller>,
    ) -> oneshot::Receiver<Results> {
        let (answer, answered) = Answer::of_all(frames.len(), caller);
        if way != Way::Aside {
            parts.queued(target, &frames);
        }
        lock(&self.calls).queue(Job { target: Arc::clone(target), frames, answer, way });
        self.notifies.to_write.notify_one();
        answered
    }
}
