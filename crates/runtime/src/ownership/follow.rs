//! Keeps a pipeline in its group: if the task that follows the group's assignment ends unasked, joins the group anew.

use std::convert::Infallible;
use std::sync::Arc;

use async_trait::async_trait;
use keylane_broker::{BrokerError, Change, Ends, Membership, Topic};
use tokio::sync::{mpsc, watch};

use super::group::{Assign, ShardDoor, Stopping, reached};
use crate::pipeline::{Subscription, Views, all};
use crate::status::PartitionState;
use crate::tasks::{TaskKind, Tasks};

/// Follows the group's assignment, and starts again if that ends unasked.
pub(crate) struct Follow {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) topic: Topic,
    pub(crate) ends: Vec<Ends>,
    pub(crate) shards: Vec<ShardDoor>,
    pub(crate) views: Views,
    pub(crate) tasks: Tasks,
    pub(crate) stop: watch::Receiver<Stopping>,
}

/// Nothing is ever sent: the receiver only waits until all senders are dropped. A channel takes at least one.
const NOTHING_MAX: usize = 1;

/// Held by each owner while it runs.
pub(crate) type OwnerRuns = mpsc::Sender<Infallible>;

impl Follow {
    pub(crate) async fn run(mut self, membership: Box<dyn Membership>) {
        let (mut membership, mut left) = (membership, false);
        loop {
            let (owner_runs, mut owners) = mpsc::channel(NOTHING_MAX);
            let assign = Assign {
                subscription: Arc::clone(&self.subscription),
                membership,
                topic: self.topic.clone(),
                ends: self.ends.clone(),
                shards: self.shards.clone(),
                views: Arc::clone(&self.views),
                tasks: self.tasks.clone(),
                stop: self.stop.clone(),
                left,
                limits: Arc::default(),
                owner_runs,
            };
            let ended = self.tasks.supervise(TaskKind::Group, assign.run()).await;
            if let Err(why) = &ended {
                for view in all(&self.views) {
                    view.set(PartitionState::Claiming, Some(why.clone()));
                }
            }
            // The assignment's senders are gone, so the owners give their partitions up. Wait for all of them: a second
            // owner of the same process beside one of them would take its claims for its own. And the caller of `drain`
            // may open the folder again at once, which a remaining owner would still keep locked.
            tokio::select! {
                biased;
                _ = owners.recv() => {}
                () = reached(&mut self.stop, Stopping::Drop) => return,
            }
            if ended.is_ok() {
                return;
            }
            (membership, left) = (Box::new(NotJoined), true);
        }
    }
}

/// Stands for a membership until the group is joined.
struct NotJoined;

#[async_trait]
impl Membership for NotJoined {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        Err(BrokerError::Unavailable("the group is not joined yet".to_owned()))
    }

    async fn confirm(&mut self, _: u32) -> Result<bool, BrokerError> {
        Ok(false)
    }

    async fn gave_up(&mut self, _: u32) {}

    fn proves_dead(&self, _: u128) -> bool {
        false
    }

    fn instance(&self) -> u128 {
        0
    }

    async fn leave(&mut self) {}
}
