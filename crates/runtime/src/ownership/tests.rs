//! Runs one owner on a cluster in memory; the test plays the owner's shard.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_broker::testing::memory::Landed;
use keylane_broker::{
    Broker, BrokerError, Faulty, Hang, JournalName, LogKind, MemoryBroker, Rates, TopicSpec,
};
use keylane_core::journal::Record;
use keylane_core::owner::Bounds;
use keylane_core::{Draft, Frames, Order, Ranges};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::assignment::{Assignment, AssignmentSender, assignment};
use super::committer::{Committer, keep_committing};
use super::group::Asks;
use super::task::{Ended, Own, ended, passes};
use crate::clock::Clock;
use crate::pipeline::{CommitCounters, PartitionView, Rejections, Subscription};
use crate::settings::Settings;
use crate::shard::{COMMANDS_MAX, Rejection, ShardCommand, Start};
use crate::status::{PartitionState, PartitionStatus};
use crate::tasks::Tasks;

struct Shard {
    commands: mpsc::Receiver<ShardCommand>,
    view: Arc<PartitionView>,
    sender: AssignmentSender,
}

impl Shard {
    /// The shard of a running owner, on a new topic.
    async fn of_an_owner() -> Shard {
        Shard::of_an_owner_on(MemoryBroker::new(1, || 0).node("n")).await
    }

    async fn of_an_owner_on(broker: Arc<dyn Broker>) -> Shard {
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        broker.create_topic("t", &spec).await.expect("a new topic");
        Shard::of_owner(broker, 1, Settings::default().bounds()).await
    }

    /// The shard of an owner with this number, on a topic that exists.
    async fn of_owner(broker: Arc<dyn Broker>, instance: u128, bounds: Bounds) -> Shard {
        let topic = broker.topic("t").await.expect("it answers").expect("it is there");
        let (clock, settings) = (Clock::simulated(0).seeded(instance as u64), Settings::default());
        let subscription = Arc::new(Subscription {
            ahead_bytes: 0,
            broker,
            clock,
            tasks: Tasks::default(),
            pipeline: "t".into(),
            topic: "t".into(),
            group: "t".to_owned(),
            node: "n".to_owned(),
            timeout_ms: settings.timeout_ms(),
            bounds,
            order: Order::Key,
            flaws: settings.flaws(),
            counters: CommitCounters::default(),
            committer: Committer::default(),
            rejections: Rejections::default(),
            pace: Arc::default(),
            seed: Some(AtomicU64::new(instance as u64)),
        });
        let (shard, commands) = mpsc::channel(COMMANDS_MAX);
        let (sender, assignment) = assignment();
        let view = Arc::new(PartitionView::new(0, 0));
        let own = Own {
            subscription,
            topic,
            partition: 0,
            instance,
            start: 0,
            shard,
            wakes: Arc::default(),
            pauses: Arc::default(),
            assignment,
            asks: Asks::nobody(),
            view: Arc::clone(&view),
            limits: Arc::default(),
        };
        tokio::spawn(keep_committing(Arc::clone(&own.subscription)));
        tokio::spawn(own.run());
        Shard { commands, view, sender }
    }

    /// The owner's next command. Time is simulated, so this ends at once or never.
    async fn hears(&mut self) -> ShardCommand {
        let says = tokio::time::timeout(Duration::from_secs(3_600), self.commands.recv()).await;
        says.expect("it says something").expect("the owner is there")
    }

    async fn started(&mut self) -> Box<Start> {
        loop {
            if let ShardCommand::Start(start) = self.hears().await {
                return start;
            }
        }
    }

    /// Waits until the owner says that the partition is to be drained.
    async fn drains(&mut self) {
        while !matches!(self.hears().await, ShardCommand::Drain { .. }) {}
    }

    fn shown(&self) -> PartitionStatus {
        self.view.status(None)
    }
}

/// ORD-12, P10: a shard that stands still loses its partitions, whose status says so; once it moves it regains them.
#[tokio::test(start_paused = true)]
async fn a_partition_whose_shard_stood_still_is_owned_again_once_that_moves() {
    let mut shard = Shard::of_an_owner().await;
    let first = shard.started().await.epoch;
    let asks = loop {
        match shard.hears().await {
            ShardCommand::Lanes { reply, .. } => break reply,
            ShardCommand::Drop { epoch, .. } => assert_eq!(epoch, first),
            _ => {}
        }
    };
    sleep(Duration::from_secs(600)).await;
    let shown = shard.shown();
    assert!(shown.state == PartitionState::Stopped && shown.why.is_some(), "{shown:?}");
    assert!(shard.commands.try_recv().is_err(), "nothing is claimed for a shard that stands still");
    asks.send(Vec::new()).expect("the owner waits for it");
    let start = shard.started().await;
    assert!(start.epoch > first);
    assert_eq!(shard.shown().state, PartitionState::Running);
}

/// BRK-8, P10: a partition whose broker refused a log-in once is tried again, and its status says why it waits.
#[test]
fn a_log_in_that_was_refused_does_not_stop_a_partition_for_good() {
    let refused = BrokerError::Credentials("a token came late".to_owned());
    assert!(passes(&refused), "an owner keeps what runs");
    let Ended::Again(why) = ended(refused) else { panic!("it is not tried again") };
    assert!(why.contains("KL-1109") && why.contains("a token came late"), "{why}");
}

/// P6, P10: a partition that failed here says why until it is given up. Then another process has it, and its status
/// here shows no fault.
#[tokio::test(start_paused = true)]
async fn a_partition_that_failed_here_is_not_shown_as_stopped_once_another_has_it() {
    let cluster = MemoryBroker::new(1, || 0).node("n");
    // The broker has no journal for any partition, so the owner stops and asks for an operator.
    cluster.grow_journals("t", "t", 0).await.expect("answers");
    let shard = Shard::of_an_owner_on(cluster).await;
    sleep(Duration::from_secs(60)).await;
    let shown = shard.shown();
    assert!(shown.state == PartitionState::Stopped && shown.why.is_some(), "{shown:?}");
    shard.sender.tell(Assignment::Revoked);
    sleep(Duration::from_secs(1)).await;
    let shown = shard.shown();
    assert!(shown.state == PartitionState::Idle && shown.why.is_none(), "{shown:?}");
}

/// When records of a journal landed, and whether they release the partition.
#[derive(Clone, Default)]
struct Landings(Arc<Mutex<Vec<(Instant, bool)>>>);

impl Landings {
    fn of(cluster: &MemoryBroker) -> Landings {
        let landings = Landings::default();
        let seen = Arc::clone(&landings.0);
        cluster.observe(move |landed| {
            if let Landed::Record { kind: LogKind::Journal, record, .. } = landed {
                let record = Record::decode(record).expect("an owner wrote it");
                let released = matches!(record, Record::Facts(facts) if facts.released);
                seen.lock().expect("free").push((Instant::now(), released));
            }
        });
        landings
    }

    /// The longest silence from `since` to the record that releases the partition.
    fn longest_silence(&self, since: Instant) -> Duration {
        let landed = self.0.lock().expect("free").clone();
        assert!(landed.last().is_some_and(|(_, released)| *released), "it is released: {landed:?}");
        let times = landed.iter().map(|(at, _)| *at).filter(|at| *at > since);
        let times: Vec<Instant> = std::iter::once(since).chain(times).collect();
        times.windows(2).map(|two| two[1] - two[0]).max().expect("it was released after that")
    }
}

/// After this long without a record of the owner a claimant takes the owner for dead (BRK-7).
const SILENCE: Duration = Duration::from_millis(3_000);

fn rejection(epoch: u64) -> Rejection {
    rejection_at(1, epoch)
}

fn rejection_at(position: u64, epoch: u64) -> Rejection {
    let mut frames = Frames::default();
    frames.push(0, &Draft { id: "m", ..Draft::default() }).expect("a valid draft");
    let batch = keylane_core::Batch {
        partition: 0,
        base: position,
        next: position + 1,
        appended_ms: 0,
        count: 1,
        frames: frames.messages().next().expect("just pushed").expect("just encoded").frame().clone(),
    };
    let delivery = batch.cursor(epoch).next().expect("one").expect("just encoded");
    Rejection::new(delivery, 1, "void")
}

/// BRK-7, ORD-9: as long as its journal answers each call within 600 ms, an owner that drains is never silent for the 3
/// s after which a claimant takes it for dead: not while handlers run, nor while a body is not stored, nor while the
/// broker's commit does not answer, nor while it writes a snapshot and `released`.
#[tokio::test(start_paused = true)]
async fn a_draining_owner_is_not_silent_whatever_it_waits_for() {
    for conditional in [true, false] {
        let cluster = MemoryBroker::new(1, || 0);
        cluster.set_conditional(conditional);
        let broker = Faulty::new(cluster.node("n"), 1, Rates::none());
        let mut shard = Shard::of_an_owner_on(Arc::clone(&broker) as Arc<dyn Broker>).await;
        let start = shard.started().await;
        // So that there is enough state for a snapshot.
        for lot in 0..20 {
            let done: Ranges =
                (0..1_000).map(|at| lot * 4_000 + 4 * at + 2..lot * 4_000 + 4 * at + 3).collect();
            start.link.leave(|mail| mail.done = done);
            sleep(Duration::from_millis(1_100)).await;
        }
        let landings = Landings::of(&cluster);
        broker.hang(&[Hang::HoldAppend, Hang::Commit]);
        cluster.set_latency(Duration::from_millis(300), Duration::from_millis(300));
        start.link.leave(|mail| mail.rejected.push(rejection(start.epoch)));
        let since = Instant::now();
        shard.sender.tell(Assignment::Revoked);
        shard.drains().await;
        sleep(Duration::from_secs(8)).await;
        // The lowest position of all, so that the broker's commit has to follow.
        let done = std::iter::once(0..1).collect();
        start.link.leave(|mail| (mail.done, mail.quiet) = (done, true));
        sleep(Duration::from_secs(20)).await;
        let silence = landings.longest_silence(since);
        assert!(silence < SILENCE, "silent for {silence:?}, conditional: {conditional}");
        let (released, _) = *landings.0.lock().expect("free").last().expect("just seen");
        assert!(released - since > Duration::from_secs(13), "the body was waited for");
    }
}

/// BRK-7, ORD-9: a journal that did not answer for a while is read again as soon as it does. So a draining owner writes
/// before a claimant, which reads that journal too, takes it for dead.
#[tokio::test(start_paused = true)]
async fn a_draining_owner_is_heard_soon_after_its_journal_answers_again() {
    for (conditional, away_ms) in [true, false]
        .into_iter()
        .flat_map(|conditional| (500..20_000).step_by(900).map(move |away_ms| (conditional, away_ms)))
    {
        let cluster = MemoryBroker::new(1, || 0);
        cluster.set_conditional(conditional);
        let mut shard = Shard::of_an_owner_on(cluster.node("n")).await;
        let start = shard.started().await;
        cluster.set_latency(Duration::from_millis(100), Duration::from_millis(100));
        let landings = Landings::of(&cluster);
        shard.sender.tell(Assignment::Revoked);
        shard.drains().await;
        sleep(Duration::from_secs(1)).await;
        cluster.cut_off("n");
        sleep(Duration::from_millis(away_ms)).await;
        cluster.reconnect("n");
        let since = Instant::now();
        sleep(Duration::from_secs(6)).await;
        start.link.leave(|mail| mail.quiet = true);
        sleep(Duration::from_secs(6)).await;
        let silence = landings.longest_silence(since);
        assert!(
            silence < SILENCE,
            "silent for {silence:?}: away for {away_ms} ms, conditional: {conditional}"
        );
    }
}

/// More dead letters than fit into a snapshot of one record.
const DEAD: u64 = 300;

/// Small bounds, so that the state of some hundred dead letters is large.
fn small_snapshots() -> Bounds {
    let (snapshot_after_bytes, snapshot_bytes_max, chunk_bytes_max) = (1_000, 200, 300);
    Bounds { snapshot_after_bytes, snapshot_bytes_max, chunk_bytes_max, ..Bounds::default() }
}

/// The lowest positions that are kept of a partition's journal and of its hold.
async fn starts(broker: &Arc<dyn Broker>) -> (u64, u64) {
    let start = async |kind| {
        let name = JournalName { group: "t".to_owned(), topic: "t".to_owned(), partition: 0, kind };
        let journal = broker.journal(&name).await.expect("it is there");
        journal.read(0, 1).await.expect("it can be read").start
    };
    (start(LogKind::Journal).await, start(LogKind::Hold).await)
}

/// Rejects these messages, and waits until the owner has dealt with them.
async fn rejects(start: &Start, positions: std::ops::Range<u64>) {
    let rejected: Vec<Rejection> = positions.map(|at| rejection_at(at, start.epoch)).collect();
    start.link.leave(|mail| mail.rejected.extend(rejected));
    sleep(Duration::from_secs(10)).await;
}

/// BRK-6: a state of any size has a snapshot, so that its journal is cut, and the next owner starts from it.
#[tokio::test(start_paused = true)]
async fn a_journal_with_many_dead_letters_is_cut_and_read_by_the_next_owner() {
    for conditional in [true, false] {
        let cluster = MemoryBroker::new(1, || 0);
        cluster.set_conditional(conditional);
        let broker: Arc<dyn Broker> = cluster.node("n");
        broker.create_topic("t", &TopicSpec { partitions: 1, ..TopicSpec::default() }).await.expect("made");
        let mut shard = Shard::of_owner(Arc::clone(&broker), 1, small_snapshots()).await;
        let start = shard.started().await;
        rejects(&start, 1..DEAD).await;
        rejects(&start, DEAD..2 * DEAD).await;
        let (journal, hold) = starts(&broker).await;
        assert!(journal > 0, "a snapshot in pieces lets the journal be cut");
        assert_eq!(hold, 0, "bodies are named, so that nothing of the hold may be cut");
        shard.sender.tell(Assignment::Lost);
        let mut next = Shard::of_owner(Arc::clone(&broker), 2, small_snapshots()).await;
        let start = next.started().await;
        assert_eq!(start.settled.low(), 0, "the first message is not settled");
        assert!((1..2 * DEAD).all(|at| start.settled.contains(at)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(next.shown().dead, 2 * DEAD - 1);
    }
}

/// BRK-6, ORD-9: while the pieces of a snapshot cannot be stored, their owner does everything else: completions go on
/// record, and it hears that its partition is to be given up.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_stored_keeps_nobody_waiting() {
    let cluster = MemoryBroker::new(1, || 0);
    let broker = Faulty::new(cluster.node("n"), 1, Rates::none());
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("t", &spec).await.expect("made");
    let mut shard = Shard::of_owner(Arc::clone(&broker) as Arc<dyn Broker>, 1, small_snapshots()).await;
    let start = shard.started().await;
    rejects(&start, 1..DEAD).await;
    broker.hang(&[Hang::HoldAppend]);
    let clean = Arc::clone(&broker) as Arc<dyn Broker>;
    let (cut, _) = starts(&clean).await;
    // The journal grows until the next snapshot is due, and well beyond.
    for lot in 0..30 {
        let done = (0..500).map(|at| 1_000 * (lot + 1) + 2 * at).map(|at| at..at + 1).collect();
        start.link.leave(|mail| mail.done = done);
        sleep(Duration::from_millis(1_100)).await;
    }
    assert_eq!(starts(&clean).await.0, cut, "no snapshot can be stored");
    let shown = shard.shown();
    assert_eq!(shown.settled_above, DEAD - 1 + 15_000, "what is done goes on record meanwhile");
    let landings = Landings::of(&cluster);
    shard.sender.tell(Assignment::Revoked);
    shard.drains().await;
    start.link.leave(|mail| mail.quiet = true);
    sleep(Duration::from_secs(1)).await;
    let released = landings.0.lock().expect("free").last().map(|(_, released)| *released);
    assert_eq!(released, Some(true), "a drain does not wait for a snapshot");
    // The next owner writes the snapshot that is missing.
    broker.hang(&[]);
    let mut next = Shard::of_owner(Arc::clone(&clean), 2, small_snapshots()).await;
    let start = next.started().await;
    rejects(&start, 50_000..50_300).await;
    assert!(starts(&clean).await.0 > cut, "{:?}", starts(&clean).await);
}
