//! An owner alone, on a cluster in memory; the test plays its shard.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_broker::testing::memory::Landed;
use keylane_broker::{Broker, BrokerError, Faulty, Hang, LogKind, MemoryBroker, Rates, TopicSpec};
use keylane_core::journal::Record;
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
    /// The shard of an owner that runs.
    async fn of_an_owner() -> Shard {
        Shard::of_an_owner_on(MemoryBroker::new(1, || 0).node("n")).await
    }

    async fn of_an_owner_on(broker: Arc<dyn Broker>) -> Shard {
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        let topic = broker.create_topic("t", &spec).await.expect("a new topic");
        let (clock, settings) = (Clock::simulated(0).seeded(1), Settings::default());
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
            bounds: settings.bounds(),
            order: Order::Key,
            flaws: settings.flaws(),
            counters: CommitCounters::default(),
            committer: Committer::default(),
            rejections: Rejections::default(),
            pace: Arc::default(),
            seed: Some(AtomicU64::new(1)),
        });
        let (shard, commands) = mpsc::channel(COMMANDS_MAX);
        let (sender, assignment) = assignment();
        let view = Arc::new(PartitionView::new(0, 0));
        let own = Own {
            subscription,
            topic,
            partition: 0,
            instance: 1,
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

    /// What its owner says next. Time is simulated, so this ends at once or never.
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

    /// Its owner was told that the partition is to be given up.
    async fn drains(&mut self) {
        while !matches!(self.hears().await, ShardCommand::Drain { .. }) {}
    }

    fn shown(&self) -> PartitionStatus {
        self.view.status(None)
    }
}

/// ORD-12, P10: a shard that stands still loses its partitions, which say so; when it moves again it gets them back.
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

/// BRK-8, P10: a partition whose broker refused a log-in once is tried again, and says why it waits.
#[test]
fn a_log_in_that_was_refused_does_not_stop_a_partition_for_good() {
    let refused = BrokerError::Credentials("a token came late".to_owned());
    assert!(passes(&refused), "an owner keeps what runs");
    let Ended::Again(why) = ended(refused) else { panic!("it is not tried again") };
    assert!(why.contains("KL-1109") && why.contains("a token came late"), "{why}");
}

/// P6, P10: a partition that failed here says why until it is given up. Then it is another's, and nobody has to look at it
/// here.
#[tokio::test(start_paused = true)]
async fn a_partition_that_failed_here_is_not_shown_as_stopped_once_another_has_it() {
    let cluster = MemoryBroker::new(1, || 0).node("n");
    // It has no journal for any partition, which somebody must look at.
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

/// After so long without a word of the owner a claimant takes it for dead (BRK-7).
const SILENCE: Duration = Duration::from_millis(3_000);

fn rejection(epoch: u64) -> Rejection {
    let mut frames = Frames::default();
    frames.push(0, &Draft { id: "m", ..Draft::default() }).expect("a valid draft");
    let batch = keylane_core::Batch {
        partition: 0,
        base: 1,
        next: 2,
        appended_ms: 0,
        count: 1,
        frames: frames.messages().next().expect("just pushed").expect("just encoded").frame().clone(),
    };
    let delivery = batch.cursor(epoch).next().expect("one").expect("just encoded");
    Rejection::new(delivery, 1, "void")
}

/// BRK-7, ORD-9: as long as its journal answers each call within 600 ms, an owner that drains is never silent for the 3 s
/// after which a claimant takes it for dead: not while handlers run, nor while a body is not stored, nor while the broker's
/// commit does not answer, nor while it writes a snapshot and `released`.
#[tokio::test(start_paused = true)]
async fn a_draining_owner_is_not_silent_whatever_it_waits_for() {
    for conditional in [true, false] {
        let cluster = MemoryBroker::new(1, || 0);
        cluster.set_conditional(conditional);
        let broker = Faulty::new(cluster.node("n"), 1, Rates::none());
        let mut shard = Shard::of_an_owner_on(Arc::clone(&broker) as Arc<dyn Broker>).await;
        let start = shard.started().await;
        // So that there is something to write a snapshot of.
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
        // The lowest of all, so that the broker's commit is to follow.
        let done = std::iter::once(0..1).collect();
        start.link.leave(|mail| (mail.done, mail.quiet) = (done, true));
        sleep(Duration::from_secs(20)).await;
        let silence = landings.longest_silence(since);
        assert!(silence < SILENCE, "silent for {silence:?}, conditional: {conditional}");
        let (released, _) = *landings.0.lock().expect("free").last().expect("just seen");
        assert!(released - since > Duration::from_secs(13), "the body was waited for");
    }
}

/// BRK-7, ORD-9: a journal that did not answer for a while is read again as soon as it does: an owner that drains is heard
/// before a claimant, who hears that journal too, loses its patience.
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
