//! Makes the shards of one pipeline, and starts, watches, asks and stops them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use keylane_broker::Topic;
use keylane_core::lanes::Bounds;
use keylane_core::{Engine, Intake, Outcome, RetryPolicy};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::stats::{Figures, ShardStats};
use super::subscription::Subscription;
use crate::clock::Clock;
use crate::handlers::{Attempt, Handler};
use crate::ownership::ShardDoor;
use crate::settings::Settings;
use crate::shard::{
    AllWatched, BATCH_BYTES, Blocked, COMMANDS_MAX, Pace, Pauses, Permits, Setup, Shard, ShardCommand,
    ShardTask, Successor, ThreadPool, Wakes, Watched, lend, watch,
};
use crate::status::{BlockingThreads, LaneSort, LaneStatus, Lanes, Unanswered};
use crate::tasks::Tasks;

/// The most lanes of a pipeline (ORD-5).
const LANES_MAX: usize = 1_000_000;

/// How long a query for lanes waits for a shard.
const LANES_WAIT: Duration = Duration::from_secs(3);

/// A pipeline's shards.
pub(crate) struct Shards {
    pub(crate) doors: Vec<ShardDoor>,
    pipeline: Arc<str>,
    /// For each shard, the turn to ask it for lanes: one query at a time.
    looks: Vec<Arc<Semaphore>>,
    stats: Vec<Arc<ShardStats>>,
    threads: Threads,
    stop: Arc<AtomicBool>,
    tasks: Tasks,
}

/// The threads that a pipeline's handlers block.
#[derive(Clone)]
struct Threads {
    blocked: Arc<Blocked>,
    pool: Arc<ThreadPool>,
}

impl Shards {
    /// Starts one shard for each core, or as many as the settings say; see [`shard_count`].
    pub(crate) fn start<H: Handler>(
        subscription: &Arc<Subscription>,
        settings: &Settings,
        topic: &Topic,
        handler: H,
        tasks: &Tasks,
    ) -> Shards {
        let count = shard_count(settings, topic.partitions);
        let wakes: Vec<Arc<Wakes>> = (0..count).map(|_| Arc::default()).collect();
        let permits = Permits::new(settings.concurrency, wakes.clone());
        let pool = ThreadPool::new(&subscription.pipeline, settings.blocking, handler.may_block());
        let blocked = Arc::new(Blocked::new(handler.may_block()));
        let threads = Threads { blocked, pool: Arc::new(pool) };
        let stop = Arc::new(AtomicBool::new(false));
        let handler = Arc::new(handler);
        let watched = AllWatched::default();
        let (mut doors, mut stats) = (Vec::new(), Vec::new());
        for (number, wakes) in wakes.into_iter().enumerate() {
            let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
            let place = Arc::new(Place {
                number,
                pipeline: Arc::clone(&subscription.pipeline),
                topic: Arc::clone(&subscription.topic),
                clock: subscription.clock,
                pace: Arc::clone(&subscription.pace),
                seed: subscription.random() as u64,
                settings: settings.clone(),
                shards: count,
                partitions: topic.partitions,
                permits: Arc::clone(&permits),
                stats: Arc::default(),
                wakes: Arc::clone(&wakes),
                pauses: Arc::default(),
                handler: Arc::clone(&handler),
                tasks: tasks.clone(),
                threads: threads.clone(),
                watched: Arc::clone(&watched),
            });
            stats.push(Arc::clone(&place.stats));
            doors.push(ShardDoor { commands, wakes, pauses: Arc::clone(&place.pauses) });
            place.succeed(receiver);
        }
        watch(tasks, &subscription.pipeline, watched, Arc::clone(&stop));
        let (pipeline, looks) = (Arc::clone(&subscription.pipeline), one_look_each(count));
        Shards { doors, pipeline, looks, stats, threads, stop, tasks: tasks.clone() }
    }

    /// The figures of all shards together.
    pub(crate) fn figures(&self) -> Figures {
        let mut sum = Figures::default();
        self.stats.iter().for_each(|stats| stats.add_to(&mut sum));
        sum
    }

    /// The threads that the pipeline's handlers block now.
    pub(crate) fn blocking(&self) -> BlockingThreads {
        let (at_work, waiting, max) = self.threads.pool.figures();
        let threads = at_work as u64 + u64::from(self.threads.blocked.contained());
        BlockingThreads { threads, waiting: waiting as u64, max: max as u64 }
    }

    /// Lanes of all shards, the first `limit` by `sort`, and which shards did not answer.
    pub(crate) async fn lanes(&self, sort: LaneSort, limit: usize) -> Lanes {
        let asked = self.doors.iter().zip(&self.looks).enumerate().map(async |(shard, (door, look))| {
            match tokio::time::timeout(LANES_WAIT, lanes_of(door, look, sort, limit)).await {
                Ok(lanes) => Lanes { lanes, unanswered: Vec::new() },
                Err(_) => {
                    let pipeline = self.pipeline.to_string();
                    Lanes { lanes: Vec::new(), unanswered: vec![Unanswered { pipeline, shard }] }
                }
            }
        });
        Lanes::of(join_all(asked).await, sort, limit)
    }

    /// Ends the shards. Attempts and messages that they still have are dropped.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        for door in &self.doors {
            match door.commands.try_send(ShardCommand::End) {
                // A shard that never heard this would run for ever; a task waits until its channel has room.
                Err(TrySendError::Full(end)) => {
                    let (commands, wakes) = (door.commands.clone(), Arc::clone(&door.wakes));
                    self.tasks.spawn_if_runs(async move {
                        let _ = commands.send(end).await;
                        wakes.wake();
                    });
                }
                Ok(()) | Err(TrySendError::Closed(_)) => {}
            }
            door.wakes.wake();
        }
    }
}

fn one_look_each(shards: usize) -> Vec<Arc<Semaphore>> {
    (0..shards).map(|_| Arc::new(Semaphore::new(1))).collect()
}

/// Asks a shard for its lanes, after all earlier queries were answered: so a shard that stands still has at most one
/// query in its channel, and room for its owners' commands.
async fn lanes_of(door: &ShardDoor, look: &Arc<Semaphore>, sort: LaneSort, limit: usize) -> Vec<LaneStatus> {
    let turn = Some(Arc::clone(look).acquire_owned().await.expect("never closed"));
    let (reply, answer) = oneshot::channel();
    let _ = door.commands.send(ShardCommand::Lanes { sort, limit, reply, turn }).await;
    door.wakes.wake();
    // A shard that has ended has no lanes.
    answer.await.unwrap_or_default()
}

/// Not more shards than partitions, since a shard owns whole partitions. Not more than half of the concurrency, since
/// each shard may have a message without a key in flight, and these together take at most half of it (MSG-2).
fn shard_count(settings: &Settings, partitions: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (settings.concurrency / 2).clamp(1, partitions.max(1) as usize);
    settings.shards.unwrap_or(cores).clamp(1, most)
}

/// A shard's place in its pipeline, which stays if the shard in it ends. It does not hold the broker: the broker must
/// close when its last user goes, not when the last shard notices that.
struct Place<H> {
    number: usize,
    pipeline: Arc<str>,
    topic: Arc<str>,
    clock: Clock,
    pace: Arc<Pace>,
    seed: u64,
    settings: Settings,
    shards: usize,
    partitions: u32,
    permits: Arc<Permits>,
    stats: Arc<ShardStats>,
    wakes: Arc<Wakes>,
    pauses: Arc<Pauses>,
    handler: Arc<H>,
    tasks: Tasks,
    threads: Threads,
    watched: AllWatched,
}

impl<H: Handler> Successor for Place<H> {
    #[allow(unsafe_code, reason = "the handler lives as long as the closure that lends it")]
    fn succeed(self: Arc<Self>, commands: mpsc::Receiver<ShardCommand>) {
        let shard = Shard::new(Setup {
            pipeline: Arc::clone(&self.pipeline),
            engine: engine(self.seed, &self.settings, self.shards),
            intake: intake(&self.settings, self.shards),
            partitions: self.partitions,
            permits: Arc::clone(&self.permits),
            stats: Arc::clone(&self.stats),
            commands,
            wakes: Arc::clone(&self.wakes),
            pauses: Arc::clone(&self.pauses),
            clock: self.clock,
            pace: Arc::clone(&self.pace),
            tasks: self.tasks.clone(),
            timeout_ms: self.settings.timeout_ms(),
            flaws: self.settings.flaws(),
        });
        // SAFETY: the closure keeps the Arc, and the shard's task drops the shard's futures before the closure.
        let lent: &'static H = unsafe { lend(&self.handler) };
        let kept = Arc::clone(&self.handler);
        let begin = move |attempt: Attempt<'static>| {
            let _ = &kept;
            lent.handle(attempt)
        };
        let watched = spawn(shard, begin, &self, Arc::clone(&self) as _);
        let mut all = self.watched.lock().expect("no holder panics");
        match all.get_mut(self.number) {
            Some(before) => *before = watched,
            None => all.push(watched),
        }
    }
}

fn spawn<F, B, H>(
    shard: Shard<F>,
    begin: B,
    place: &Place<H>,
    successor: Arc<dyn Successor>,
) -> std::sync::Weak<dyn Watched>
where
    F: Future<Output = Outcome> + Send + 'static,
    B: Fn(Attempt<'static>) -> F + Send + Sync + 'static,
{
    let Threads { blocked, pool } = place.threads.clone();
    let topic = Arc::clone(&place.topic);
    let task = ShardTask::new(shard, begin, topic, place.tasks.clone(), blocked, pool, successor);
    let watched: Arc<dyn Watched> = Arc::clone(&task) as _;
    task.go();
    Arc::downgrade(&watched)
}

/// How many messages without a key one shard may have in flight.
fn keyless_share(settings: &Settings, shards: usize) -> usize {
    (settings.concurrency / 2 / shards).max(1)
}

fn engine(seed: u64, settings: &Settings, shards: usize) -> Engine {
    settings.flaws().engine(keylane_core::Settings {
        order: settings.order,
        lane_capacity: settings.lane_capacity.min(u32::MAX as usize) as u32,
        lane_idle_ms: settings.lane_idle.as_millis() as u64,
        lanes_max: LANES_MAX / shards,
        keyless_max: keyless_share(settings, shards),
        retry: RetryPolicy {
            retries: settings.retries,
            base_ms: settings.retry_base.as_millis() as u64,
            max_ms: settings.retry_max.as_millis() as u64,
        },
        seed,
    })
}

fn intake(settings: &Settings, shards: usize) -> Intake {
    Intake::new(&Bounds {
        messages: (settings.buffer_messages / shards).max(1),
        bytes: settings.buffer_bytes / shards,
        pause_at: settings.pause_at,
        resume_at: settings.resume_at,
        read_bytes_max: BATCH_BYTES,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(commands: Vec<mpsc::Sender<ShardCommand>>) -> Shards {
        let looks = one_look_each(commands.len());
        let door = |commands| ShardDoor { commands, wakes: Arc::default(), pauses: Arc::default() };
        let pool = Arc::new(ThreadPool::new(&"t".into(), 1, true));
        Shards {
            doors: commands.into_iter().map(door).collect(),
            pipeline: "t".into(),
            looks,
            stats: Vec::new(),
            threads: Threads { blocked: Arc::default(), pool },
            stop: Arc::default(),
            tasks: Tasks::default(),
        }
    }

    /// ADM-1, P10: a shard that stands still delays no query for lanes, is named, and has one query in its channel,
    /// however often it was asked.
    #[tokio::test(start_paused = true)]
    async fn a_shard_that_stands_still_is_named_and_the_others_show_their_lanes() {
        let (stands, mut still) = mpsc::channel(COMMANDS_MAX);
        let (moves, mut moving) = mpsc::channel(COMMANDS_MAX);
        let shards = Arc::new(shards(vec![stands, moves]));
        tokio::spawn(async move {
            while let Some(ShardCommand::Lanes { reply, .. }) = moving.recv().await {
                let _ = reply.send(vec![lane()]);
            }
        });
        let asking: Vec<_> = (0..1_000)
            .map(|_| {
                let shards = Arc::clone(&shards);
                tokio::spawn(async move { shards.lanes(LaneSort::Depth, 5).await })
            })
            .collect();
        let all = tokio::time::timeout(Duration::from_secs(60), join_all(asking)).await;
        for lanes in all.expect("nobody waits for ever") {
            let lanes = lanes.expect("it answers");
            assert_eq!(lanes.lanes.len(), 1);
            assert_eq!(lanes.unanswered, [Unanswered { pipeline: "t".to_owned(), shard: 0 }]);
        }
        assert_eq!(still.len(), 1);
        // The shard moves again.
        tokio::spawn(async move { while still.recv().await.is_some() {} });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(shards.lanes(LaneSort::Depth, 5).await.unanswered, []);
    }

    fn lane() -> LaneStatus {
        LaneStatus {
            pipeline: "t".to_owned(),
            key: None,
            partition: 1,
            depth: 1,
            state: "running",
            attempt: 1,
            waiting_seconds: 0.0,
            last_tried_seconds: 0.0,
            why: None,
        }
    }

    /// ORD-9: a shard with a full channel still hears that it ends.
    #[tokio::test]
    async fn a_shard_that_is_behind_hears_that_it_ends() {
        let (commands, mut shard) = mpsc::channel(1);
        let shards = shards(vec![commands]);
        shards.doors[0]
            .commands
            .try_send(ShardCommand::Forget { partition: 0 })
            .expect("there is room for one");
        shards.stop();
        drop(shards);
        assert!(matches!(shard.recv().await, Some(ShardCommand::Forget { .. })));
        assert!(matches!(shard.recv().await, Some(ShardCommand::End)));
    }

    /// MSG-2, ORD-1.
    #[test]
    fn keyless_messages_of_all_shards_take_at_most_half_of_the_concurrency() {
        for concurrency in [1, 2, 3, 7, 8, 10_000] {
            for shards in [None, Some(1), Some(3), Some(1_024)] {
                let settings = Settings { concurrency, shards, ..Settings::default() };
                let count = shard_count(&settings, 12);
                assert!((1..=12).contains(&count), "{count} shards");
                let keyless = keyless_share(&settings, count) * count;
                assert!((1..=(concurrency / 2).max(1)).contains(&keyless), "{keyless} of {concurrency}");
            }
        }
    }
}
