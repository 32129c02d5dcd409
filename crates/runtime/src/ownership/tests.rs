//! An owner alone, on a cluster in memory; the test plays its shard.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use keylane_broker::{BrokerError, MemoryBroker, TopicSpec};
use keylane_core::Order;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::assignment::{AssignmentSender, assignment};
use super::committer::Committer;
use super::group::Asks;
use super::task::{Ended, Own, ended, passes};
use crate::clock::Clock;
use crate::pipeline::{CommitCounters, PartitionView, Rejections, Subscription};
use crate::settings::Settings;
use crate::shard::{COMMANDS_MAX, ShardCommand, Start};
use crate::status::{PartitionState, PartitionStatus};
use crate::tasks::Tasks;

struct Shard {
    commands: mpsc::Receiver<ShardCommand>,
    view: Arc<PartitionView>,
    _sender: AssignmentSender,
}

impl Shard {
    /// The shard of an owner that runs.
    async fn of_an_owner() -> Shard {
        let broker = MemoryBroker::new(1, || 0).node("n");
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
        tokio::spawn(own.run());
        Shard { commands, view, _sender: sender }
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
