//! A shard driven by hand: readers that say what they are told, attempts that end when the test says so.

use std::collections::VecDeque;
use std::future::Ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use futures_util::task::noop_waker;
use keylane_broker::{BrokerError, Reader};
use keylane_core::lanes::Bounds;
use keylane_core::{Batch, Draft, Engine, Intake, Outcome, Settings, Settled};
use tokio::sync::mpsc;

use super::blocking::ThreadPool;
use super::leave::Leave;
use super::mailbox::{COMMANDS_MAX, Link, Pauses, ShardCommand, Start};
use super::pass::{Next, Setup, Shard};
use super::permits::Permits;
use super::slot::{Late, Polled};
use super::task::{ShardTask, Successor};
use super::wake::Wakes;
use crate::clock::Clock;
use crate::handlers::Attempt;
use crate::pipeline::ShardStats;
use crate::tasks::Tasks;

/// One partition's log, of which a reader reads.
#[derive(Default)]
struct Log {
    batches: VecDeque<Batch>,
    next: u64,
    waker: Option<Waker>,
}

struct LogReader(Arc<Mutex<Log>>);

impl Reader for LogReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, _: usize) -> Poll<Result<Batch, BrokerError>> {
        let mut log = self.0.lock().expect("free");
        match log.batches.pop_front() {
            Some(batch) => Poll::Ready(Ok(batch)),
            None => {
                log.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A shard is driven outside of tasks, whose budget would end a pass early.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

struct World {
    shard: Shard<Ready<Outcome>>,
    commands: mpsc::Sender<ShardCommand>,
    logs: Vec<Arc<Mutex<Log>>>,
    links: Vec<Arc<Link>>,
    pauses: Arc<Pauses>,
    skipped_ms: &'static AtomicU64,
}

impl World {
    /// A shard that owns so many partitions.
    fn new(partitions: u32, bounds: &Bounds, settings: Settings) -> World {
        let skipped_ms: &'static AtomicU64 = Box::leak(Box::default());
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (wakes, pauses) = (Arc::<Wakes>::default(), Arc::<Pauses>::default());
        let shard = Shard::new(Setup {
            pipeline: "t".into(),
            engine: Engine::new(settings),
            intake: Intake::new(bounds),
            partitions,
            permits: Permits::new(10_000, vec![Arc::clone(&wakes)]),
            stats: Arc::<ShardStats>::default(),
            commands: receiver,
            wakes,
            pauses: Arc::clone(&pauses),
            clock: Clock::system().skipping(skipped_ms),
            pace: Arc::default(),
            tasks: Tasks::default(),
            timeout_ms: 30_000,
            flaws: Default::default(),
        });
        let mut world = World { shard, commands, logs: Vec::new(), links: Vec::new(), pauses, skipped_ms };
        for partition in 0..partitions {
            let (log, link) = (Arc::<Mutex<Log>>::default(), Arc::<Link>::default());
            let start = Start {
                partition,
                epoch: 1,
                settled: Settled::default(),
                reader: Box::new(LogReader(Arc::clone(&log))),
                link: Arc::clone(&link),
                pauses: 0,
            };
            world.tell(ShardCommand::Start(Box::new(start)));
            world.logs.push(log);
            world.links.push(link);
            world.pass(|_| {});
        }
        world
    }

    fn tell(&self, command: ShardCommand) {
        self.commands.try_send(command).unwrap_or_else(|_| panic!("the shard takes commands"));
    }

    /// Messages of a key arrive, all in one batch.
    fn arrive(&self, partition: u32, key: Option<&str>, messages: u64, payload: usize) {
        let mut log = self.logs[partition as usize].lock().expect("free");
        let (mut frames, base, payload) = (Vec::new(), log.next, vec![0; payload]);
        for at in 0..messages {
            let (key, mut frame) = (key.map(str::as_bytes), BytesMut::new());
            let draft = Draft { id: "id", key, payload: Some(&payload), ..Draft::default() };
            draft.encode(&mut frame).expect("within bounds");
            keylane_core::message::put_frame(&mut frames, &frame, at as u32);
        }
        log.next += messages;
        let (next, count) = (log.next, messages as u32);
        log.batches.push_back(Batch { partition, base, next, appended_ms: 0, count, frames: frames.into() });
        log.waker.take().into_iter().for_each(Waker::wake);
    }

    /// One pass; each attempt ends as done, once it was looked at. Returns where attempts began, in order.
    fn pass(&mut self, mut looks: impl FnMut(&mut World)) -> Vec<u32> {
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        assert!(self.shard.begin_pass(&mut cx));
        let mut started = Vec::new();
        while let Next::Poll(seat) = self.shard.next(&mut cx) {
            started.push(self.shard.attempts.delivery(seat).partition());
            looks(self);
            self.shard.polled(Polled::Done);
        }
        started
    }

    /// Passes until nothing more happens.
    fn run(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        loop {
            let started = self.pass(|_| {});
            if started.is_empty() {
                return all;
            }
            all.extend(started);
        }
    }

    /// The whole process stood still for so long. Its watchdog is the first to have a core again.
    fn sleep(&self, ms: u64) {
        self.sleep_before_its_watchdog(ms);
        self.pauses.beat();
    }

    fn sleep_before_its_watchdog(&self, ms: u64) {
        self.skipped_ms.fetch_add(ms, Ordering::SeqCst);
    }

    fn verified(&self, partition: u32) {
        self.tell(ShardCommand::Verified { partition, epoch: 1, pauses: self.pauses.count() });
    }
}

/// PRF-17, P3: a message costs the same whatever is owned beside its partition: only that is looked at.
#[test]
fn a_pass_looks_only_at_partitions_with_something_to_read() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut looks = Vec::new();
    for partitions in [4, 1_000] {
        let mut world = World::new(partitions, &Bounds::default(), Settings::default());
        let before = world.shard.looks;
        for round in 0..100 {
            world.arrive(round % 4, Some("k"), 1, 10);
            assert_eq!(world.run(), [round % 4]);
        }
        looks.push(world.shard.looks - before);
    }
    assert_eq!(looks[0], looks[1], "looks at 4 and at 1,000 partitions");
    assert!(looks[0] <= 300, "{} looks for 100 messages", looks[0]);
}

/// P3, BPR-2: whatever one partition holds, another of its shard that holds nothing is read.
#[test]
fn a_partition_that_fills_the_buffer_stops_only_itself() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let bounds = Bounds { bytes: 1 << 20, ..Bounds::default() };
    let mut world = World::new(2, &bounds, Settings::default());
    // One key that fails: its first message waits for a retry, the others behind it.
    for _ in 0..60 {
        world.arrive(0, Some("failing"), 1, 20_000);
    }
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    assert!(world.shard.begin_pass(&mut cx));
    while let Next::Poll(_) = world.shard.next(&mut cx) {
        world.shard.polled(Polled::Ended(Box::new(Outcome::failed("broken"))));
    }
    while !world.shard.partitions.get(0).is_some_and(|part| part.stopped) {
        assert!(world.pass(|_| {}).is_empty(), "the key waits for its retry");
    }
    assert!(world.shard.load.bytes >= (1 << 20) * 8 / 10);
    world.arrive(1, Some("other"), 12, 20_000);
    assert_eq!(world.run(), [1; 12]);
}

/// ORD-12: a pause in the middle of a pass: nothing starts after it until the journal was read to its end.
#[test]
fn a_pause_within_a_pass_starts_nothing_until_the_journal_was_read() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, None, 100, 10);
    let mut at = 0;
    let started = world.pass(|world| {
        at += 1;
        if at == 10 {
            world.sleep(5_000);
        }
    });
    assert_eq!(started.len(), 10, "what began before the pause");
    assert!(world.run().is_empty());
    assert_eq!(world.links[0].take().verify.map(|paused_ms| paused_ms >= 5_000), Some(true));
    world.verified(0);
    assert_eq!(world.run().len(), 90);
}

/// ORD-12: also where the watchdog gets no core, at most a few attempts start after a pause.
#[test]
fn a_pause_that_no_watchdog_sees_is_noticed_within_a_few_attempts() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, None, 100, 10);
    let mut at = 0;
    let started = world.pass(|world| {
        at += 1;
        if at == 10 {
            world.sleep_before_its_watchdog(5_000);
        }
    });
    assert!(
        (10..10 + super::pause::PAUSE_POLLS as usize).contains(&started.len()),
        "{} started",
        started.len()
    );
    assert!(world.run().is_empty());
}

/// ORD-12: a shard that looks for a pause only between two passes starts what may be another's: this test sees it.
#[cfg(feature = "flaws")]
#[test]
fn a_shard_that_does_not_look_within_a_pass_is_caught() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.shard.flaws.blind_within_a_pass = true;
    world.arrive(0, None, 100, 10);
    let started = world.pass(|world| world.sleep(5_000));
    assert_eq!(started.len(), 100, "all of them, though the process slept");
}

/// ORD-12: a pause after a journal was read makes what was read worthless.
#[test]
fn a_second_pause_makes_the_first_verification_worthless() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 3, 10);
    world.sleep(5_000);
    assert!(world.run().is_empty());
    world.verified(0);
    world.sleep(5_000);
    assert!(world.run().is_empty(), "read before the second pause");
    world.verified(0);
    assert_eq!(world.run().len(), 3);
}

/// ORD-12, P3: each partition waits for its own journal: one whose journal does not answer stops no other.
#[test]
fn a_partition_whose_journal_does_not_answer_stops_only_itself() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(2, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 5, 10);
    world.arrive(1, Some("k"), 5, 10);
    world.sleep(5_000);
    assert!(world.run().is_empty(), "neither may start");
    world.verified(1);
    assert_eq!(world.run(), [1; 5]);
    world.arrive(1, Some("k"), 5, 10);
    assert_eq!(world.run(), [1; 5]);
    world.verified(0);
    assert_eq!(world.run(), [0; 5]);
}

/// COM-2: while a lot does not count, nobody looks every millisecond whether it does.
#[test]
fn a_lot_that_waits_to_count_keeps_nobody_awake() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 1_000, 10);
    assert_eq!(world.run().len(), 1_000);
    assert_eq!(
        world.links[0].take().done.positions(),
        1_000,
        "the first lot is taken, and does not count yet"
    );
    world.arrive(0, Some("k"), 10, 10);
    assert_eq!(world.run().len(), 10);
    world.shard.now_ms += 10_000;
    world.shard.hand_over_due();
    assert_eq!(world.shard.hand_over.due_ms(), None, "there is nothing to do until the owner says so");
    world.tell(ShardCommand::Counted { partition: 0, epoch: 1, dead: Vec::new() });
    world.run();
    world.shard.now_ms += 10_000;
    world.shard.hand_over_due();
    assert_eq!(world.links[0].take().done.positions(), 10);
}

impl World {
    /// The next attempt of a pass goes to a thread that has no core yet. Its seat, and what that thread may do.
    fn goes_elsewhere(&mut self) -> (u32, Leave) {
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        assert!(self.shard.begin_pass(&mut cx));
        let Next::Poll(seat) = self.shard.next(&mut cx) else {
            panic!("there is something to poll");
        };
        let partition = self.shard.attempts.delivery(seat).partition();
        let part = self.shard.partitions.get(partition).expect("it is owned");
        let (standing, clock) = (Arc::clone(&part.standing), self.shard.clock);
        let leave = Leave { standing, clock, given_ms: clock.passed_ms() };
        self.shard.current_went_elsewhere();
        (seat, leave)
    }
}

/// ORD-12, P2: what waited for a thread while its partition starts nothing is the head of its lane again.
#[test]
fn an_attempt_that_did_not_begin_is_the_head_of_its_lane_again() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for pauses in [false, true] {
        let mut world = World::new(1, &Bounds::default(), Settings::default());
        world.arrive(0, Some("k"), 3, 10);
        let (seat, Leave { standing, .. }) = world.goes_elsewhere();
        assert!(standing.allows(false));
        match pauses {
            true => world.sleep(5_000),
            false => world.tell(ShardCommand::Suspend { partition: 0, epoch: 1 }),
        }
        assert!(world.run().is_empty());
        assert!(!standing.allows(false) && standing.allows(true), "what has begun goes on");
        world.shard.came_back(seat, Late::NotBegun);
        assert!(world.run().is_empty(), "it may start nothing");
        world.verified(0);
        let mut order = Vec::new();
        world.pass(|world| {
            order.push(world.shard.attempts.delivery(world.shard.current.seat).position());
        });
        assert_eq!(order, [0, 1, 2]);
        assert_eq!(world.shard.load.messages, 0);
    }
}

/// ORD-9, P9: of a partition that is drained, dropped or given up with its shard nothing begins that waited for a thread,
/// and nothing of it is waited for.
#[test]
fn an_attempt_that_did_not_begin_is_the_next_owners() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for what in ["drained", "dropped", "forgotten", "ended", "fallen"] {
        let mut world = World::new(1, &Bounds::default(), Settings::default());
        world.arrive(0, Some("k"), 3, 10);
        let (seat, Leave { standing, .. }) = world.goes_elsewhere();
        match what {
            "drained" => world.tell(ShardCommand::Drain { partition: 0, epoch: 1 }),
            "dropped" => world.tell(ShardCommand::Drop { partition: 0, epoch: 1 }),
            "forgotten" => world.tell(ShardCommand::Forget { partition: 0 }),
            "ended" => world.tell(ShardCommand::End),
            _ => world.shard.fall("a test ended it"),
        }
        if matches!(what, "ended" | "fallen") {
            let waker = noop_waker();
            assert!(what == "fallen" || !world.shard.begin_pass(&mut Context::from_waker(&waker)));
            assert!(!standing.allows(false) && !standing.allows(true), "{what}");
            continue;
        }
        assert!(world.run().is_empty());
        assert!(!standing.allows(false), "{what}");
        assert_eq!(standing.allows(true), what == "drained");
        world.shard.came_back(seat, Late::NotBegun);
        assert!(world.run().is_empty(), "{what}");
        assert_eq!((world.shard.load.messages, world.shard.attempts.in_flight()), (0, 0), "{what}");
        let mail = world.links[0].take();
        assert_eq!((mail.quiet, mail.done.positions()), (what == "drained", 0), "{what}");
    }
}

/// P9: a thread that comes to an attempt late asks its partition first.
#[test]
fn a_thread_begins_nothing_that_its_partition_does_not_allow() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 1, 10);
    let (seat, leave) = world.goes_elsewhere();
    let begun = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&begun);
    let begin = move |_: Attempt<'static>| {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::Done)
    };
    world.tell(ShardCommand::Suspend { partition: 0, epoch: 1 });
    world.run();
    let slot = world.shard.attempts.slot(seat);
    let pool = Arc::new(ThreadPool::new(&"t".into(), 1, true));
    let successor = Arc::<Succeeded>::default();
    let tasks = Tasks::default();
    let cell = ShardTask::new(world.shard, begin, "t".into(), tasks, Arc::default(), pool, successor);
    cell.poll_there(seat, slot, &leave);
    assert_eq!(begun.load(Ordering::SeqCst), 0);
}

/// ORD-12, P9: after a pause of the process a thread may have a core before its shard has, which notices pauses.
#[test]
fn a_thread_begins_nothing_after_a_pause_that_its_shard_has_not_noticed() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for (slept_ms, begins) in [(100, 1), (5_000, 0)] {
        let mut world = World::new(1, &Bounds::default(), Settings::default());
        world.arrive(0, Some("k"), 1, 10);
        let (seat, leave) = world.goes_elsewhere();
        let begun = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&begun);
        let begin = move |_: Attempt<'static>| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Outcome::Done)
        };
        world.sleep_before_its_watchdog(slept_ms);
        let slot = world.shard.attempts.slot(seat);
        let pool = Arc::new(ThreadPool::new(&"t".into(), 1, true));
        let successor = Arc::<Succeeded>::default();
        let cell =
            ShardTask::new(world.shard, begin, "t".into(), Tasks::default(), Arc::default(), pool, successor);
        cell.poll_there(seat, slot, &leave);
        assert_eq!(begun.load(Ordering::SeqCst), begins, "after {slept_ms} ms");
    }
}

/// ORD-2, ORD-4: a thread still runs an attempt on a message of a partition that was lost and is owned again. The message
/// comes once more, and neither it nor what is behind it runs beside that attempt.
#[test]
fn a_key_waits_for_an_attempt_that_began_before_its_partition_was_lost() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for how in ["done", "dropped", "not begun"] {
        let mut world = World::new(1, &Bounds::default(), Settings::default());
        world.arrive(0, Some("k"), 1, 10);
        let (seat, _) = world.goes_elsewhere();
        world.tell(ShardCommand::Drop { partition: 0, epoch: 1 });
        world.run();
        let start = Start {
            partition: 0,
            epoch: 2,
            settled: Settled::default(),
            reader: Box::new(LogReader(Arc::clone(&world.logs[0]))),
            link: Arc::clone(&world.links[0]),
            pauses: 0,
        };
        world.tell(ShardCommand::Start(Box::new(start)));
        world.logs[0].lock().expect("free").next = 0;
        world.arrive(0, Some("k"), 2, 10);
        world.arrive(0, Some("other"), 1, 10);
        // A pass that only queues starts nothing.
        let started = world.run().len() + world.run().len();
        assert_eq!(started, 1, "{how}: another key runs");
        let late = match how {
            "done" => Late::Polled(Polled::Done),
            "dropped" => Late::Dropped,
            _ => Late::NotBegun,
        };
        world.shard.came_back(seat, late);
        assert_eq!(world.run().len(), 2, "{how}: then both messages of the key run");
        assert_eq!((world.shard.load.messages, world.shard.attempts.in_flight()), (0, 0), "{how}");
    }
}

/// How often somebody took a shard's place.
#[derive(Default)]
struct Succeeded(AtomicU64);

impl Successor for Succeeded {
    fn succeed(self: Arc<Self>, _: mpsc::Receiver<ShardCommand>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A reader that cannot even be dropped.
struct Broken(LogReader);

impl Reader for Broken {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        self.0.poll_batch(cx, bytes_max)
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        panic!("a test broke it");
    }
}

/// P10: if what a fallen shard leaves behind panics too, its owners hear that it fell, and another takes its place.
#[test]
fn a_shard_has_a_successor_though_its_fall_panics() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(2, &Bounds::default(), Settings::default());
    let (log, link) = (Arc::clone(&world.logs[0]), Arc::<Link>::default());
    let reader = Box::new(Broken(LogReader(log)));
    let settled = Settled::default();
    let start = Start { partition: 0, epoch: 2, settled, reader, link: Arc::clone(&link), pauses: 0 };
    world.tell(ShardCommand::Start(Box::new(start)));
    world.run();
    let (successor, tasks) = (Arc::<Succeeded>::default(), Tasks::default());
    let cell = ShardTask::new(
        world.shard,
        |_: Attempt<'static>| std::future::ready(Outcome::Done),
        "t".into(),
        tasks.clone(),
        Arc::default(),
        Arc::new(ThreadPool::new(&"t".into(), 1, true)),
        Arc::clone(&successor) as _,
    );
    cell.fall("it fell");
    assert_eq!(successor.0.load(Ordering::SeqCst), 1);
    assert_eq!(tasks.ended().map(|(_, times)| times).sum::<u64>(), 1, "it is noted");
    for link in [&link, &world.links[1]] {
        assert_eq!(link.take().gone.as_deref(), Some("it fell"));
    }
}

/// ORD-9, COM-2: handlers that compute do not keep a shard from hearing what it is told, nor its owner from hearing what is
/// done: a pass is short, whatever it has to do.
#[test]
fn a_pass_of_handlers_that_compute_is_short() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, None, 100, 10);
    let started = world.pass(|world| world.sleep(4));
    assert!((1..10).contains(&started.len()), "{} computed 4 ms each", started.len());
    world.tell(ShardCommand::Drop { partition: 0, epoch: 1 });
    assert!(world.run().is_empty());
}

impl World {
    /// One pass, in which each poll computes for 7 ms: attempts of `waits` wait, and wake at once, the others are done.
    /// Returns positions that were polled.
    fn computes(&mut self, waits: std::ops::Range<u64>) -> Vec<u64> {
        let waker = noop_waker();
        let mut cx = Context::from_waker(&waker);
        let mut polled = Vec::new();
        assert!(self.shard.begin_pass(&mut cx));
        while let Next::Poll(seat) = self.shard.next(&mut cx) {
            let position = self.shard.attempts.delivery(seat).position();
            polled.push(position);
            self.sleep(7);
            if waits.contains(&position) {
                self.shard.polled(Polled::Waits);
                self.shard.woken.push_back(seat);
            } else {
                self.shard.polled(Polled::Done);
            }
        }
        polled
    }
}

/// ORD-4: though passes of handlers that compute are short, neither attempts that wake again and again nor a backlog of
/// messages keeps the other waiting.
#[test]
fn attempts_that_compute_leave_others_their_turn() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    for key in ["a", "b", "c", "d", "e", "f"] {
        world.arrive(0, Some(key), 1, 10);
    }
    let polled: Vec<u64> = (0..20).flat_map(|_| world.computes(0..6)).collect();
    assert!((0..6).all(|position| polled.contains(&position)), "{polled:?}");
    world.arrive(0, None, 1_000, 10);
    let polled: Vec<u64> = (0..40).flat_map(|_| world.computes(0..6)).collect();
    let woken = polled.iter().filter(|position| **position < 6).count();
    assert!(woken > 10 && polled.len() - woken > 10, "{woken} of {} had woken", polled.len());
}

/// P5, BPR-1: a message that was rejected waits until its body is stored, and keeps nothing but itself in memory until then.
#[test]
fn a_rejected_message_does_not_keep_its_batch_in_memory() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 2, 10_000);
    let batch = world.logs[0].lock().expect("free").batches[0].frames.clone();
    let (waker, mut first) = (noop_waker(), true);
    let mut cx = Context::from_waker(&waker);
    assert!(world.shard.begin_pass(&mut cx));
    while let Next::Poll(_) = world.shard.next(&mut cx) {
        let rejected = || Polled::Ended(Box::new(Outcome::rejected("void")));
        world.shard.polled(if std::mem::take(&mut first) { rejected() } else { Polled::Done });
    }
    world.tell(ShardCommand::Counted { partition: 0, epoch: 1, dead: Vec::new() });
    world.run();
    let mail = world.links[0].take();
    assert_eq!(mail.rejected.len(), 1, "it waits for its owner");
    assert!(batch.is_unique(), "the batch is in memory only because this test holds it");
}

/// P5: a lane that waits for its retry keeps the beginning of what its handler said, and says that it was cut.
#[test]
fn a_failure_of_many_megabytes_is_cut_and_says_so() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    world.arrive(0, Some("k"), 1, 10);
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    assert!(world.shard.begin_pass(&mut cx));
    let words = "é".repeat(3 << 20);
    while let Next::Poll(_) = world.shard.next(&mut cx) {
        world.shard.polled(Polled::Ended(Box::new(Outcome::failed(words.clone()))));
    }
    let lane = world.shard.engine.views().next().expect("it waits");
    let why = lane.why.expect("it failed");
    assert!(why.len() < (2 << 10) + 100, "{} bytes are kept", why.len());
    assert!(why.starts_with("éé") && why.ends_with(&format!("(cut, of {} bytes)", words.len())), "{why}");
}

/// P3: handlers of one partition that compute do not keep its turn until its batch ends: another's message is
/// read after a few of them.
#[test]
fn a_partition_whose_handlers_compute_leaves_others_their_turn() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(2, &Bounds::default(), Settings::default());
    world.arrive(0, None, 1_000, 10);
    world.pass(|world| world.sleep(2));
    world.arrive(1, None, 1, 10);
    let started: Vec<u32> = (0..10).flat_map(|_| world.pass(|world| world.sleep(2))).collect();
    let before = started.iter().position(|partition| *partition == 1);
    assert!(before.is_some_and(|before| before < 50), "after {before:?} of {}", started.len());
    assert!(started[before.expect("just seen")..].contains(&0), "it goes on where it was");
}

/// One message of each key under way, and so many behind it.
fn backlog(world: &mut World, keys: &[&str], behind: u64) -> Vec<u32> {
    for key in keys {
        world.arrive(0, Some(key), 1 + behind, 10);
    }
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    let mut waiting = Vec::new();
    while waiting.len() < keys.len() {
        assert!(world.shard.begin_pass(&mut cx));
        while let Next::Poll(seat) = world.shard.next(&mut cx) {
            waiting.push(seat);
            world.shard.polled(Polled::Waits);
        }
    }
    waiting
}

/// P3, ORD-4: nor does a backlog of lanes whose handlers compute keep what is to be read waiting.
#[test]
fn lanes_whose_handlers_compute_leave_what_is_read_its_turn() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(2, &Bounds::default(), Settings::default());
    let waiting = backlog(&mut world, &["a", "b", "c", "d"], 200);
    world.shard.woken.extend(waiting);
    world.arrive(1, None, 1, 10);
    let started: Vec<u32> = (0..20).flat_map(|_| world.pass(|world| world.sleep(2))).collect();
    let before = started.iter().position(|partition| *partition == 1);
    assert!(before.is_some_and(|before| before < 50), "after {before:?} of {}", started.len());
}

/// ORD-4: a key with a backlog whose handlers compute does not go on for a whole burst: the next pass begins with others.
#[test]
fn a_hot_key_whose_handlers_compute_leaves_others_their_turn() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut world = World::new(1, &Bounds::default(), Settings::default());
    let waiting = backlog(&mut world, &["hot", "other"], 300);
    world.shard.woken.extend(waiting);
    let mut keys = Vec::new();
    for _ in 0..12 {
        world.pass(|world| {
            let delivery = world.shard.attempts.delivery(world.shard.current.seat);
            keys.push(delivery.key() == Some(b"hot"));
            world.sleep(2);
        });
    }
    let longest = keys.chunk_by(|a, b| a == b).map(<[bool]>::len).max();
    assert!(longest < Some(30), "{longest:?} in a row of {}", keys.len());
}
