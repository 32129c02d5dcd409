//! Keeps a pipeline in its group: if following the assignment ends as nobody asked, the group is joined anew.

use std::sync::Arc;

use keylane_broker::{BrokerError, Ends, Membership, Topic};
use tokio::sync::watch;

use crate::assign::{Assign, ShardDoor, Stopping, join_after_pause, reached};
use crate::spawn::{TaskKind, Tasks};
use crate::status::PartitionState;
use crate::subscription::Subscription;
use crate::view::{Views, all};

/// Follows the assignment, and anew if that ends as nobody asked.
pub(crate) struct Follow {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) topic: Topic,
    pub(crate) ends: Vec<Ends>,
    pub(crate) shards: Vec<ShardDoor>,
    pub(crate) views: Views,
    pub(crate) tasks: Tasks,
    pub(crate) stop: watch::Receiver<Stopping>,
}

impl Follow {
    pub(crate) async fn run(mut self, membership: Box<dyn Membership>) {
        let mut joined = Some(membership);
        while let Some(membership) = joined.take() {
            let assign = Assign {
                subscription: Arc::clone(&self.subscription),
                membership,
                topic: self.topic.clone(),
                ends: self.ends.clone(),
                shards: self.shards.clone(),
                views: Arc::clone(&self.views),
                tasks: self.tasks.clone(),
                stop: self.stop.clone(),
                left: false,
                gates: Arc::default(),
            };
            if let Err(why) = self.tasks.supervise(TaskKind::Group, assign.run()).await {
                // Its owners have lost their teller, and give their partitions up.
                for view in all(&self.views) {
                    view.set(PartitionState::Claiming, Some(why.clone()));
                }
                joined = self.join_anew().await;
            }
        }
    }

    /// Joins the group until that succeeds; `None`: told to stop.
    async fn join_anew(&mut self) -> Option<Box<dyn Membership>> {
        loop {
            let joining = join_after_pause(&self.subscription, &self.topic);
            let joined = tokio::select! {
                biased;
                () = reached(&mut self.stop, Stopping::Drain) => return None,
                joined = joining => joined,
            };
            match joined {
                Ok(membership) => return Some(membership),
                Err(BrokerError::Closed) => return None,
                Err(error) => tracing::warn!(%error, "the group was not joined; trying again"),
            }
        }
    }
}
