//! Membership in groups, all within this process: a member gets all partitions at once, and no second member may join
//! (BRK-7).
//!
//! No other process can be alive in the group, because this process holds the lock of the folder.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::watch;

use super::lock;
use crate::contract::{BrokerError, Change, Membership};

/// The groups that have a member, as (group, topic).
#[derive(Debug, Default)]
pub(crate) struct Members {
    joined: Mutex<HashSet<(String, String)>>,
}

impl Members {
    /// True if the group has a member.
    pub fn has(&self, pair: &(String, String)) -> bool {
        lock(&self.joined).contains(pair)
    }

    /// Keeps members out of an empty group until the returned guard is dropped. An error if the group has a member.
    pub fn keep_out(self: &Arc<Self>, group: &str, topic: &str) -> Result<KeptOut, BrokerError> {
        let name = (group.to_owned(), topic.to_owned());
        match lock(&self.joined).insert(name.clone()) {
            true => Ok(KeptOut { members: Arc::clone(self), name }),
            false => Err(BrokerError::Invalid(format!(
                "a pipeline reads topic {topic} in group {group}, or the group is being forgotten"
            ))),
        }
    }
}

/// A guard: while it exists, no member can join the group.
pub(crate) struct KeptOut {
    members: Arc<Members>,
    name: (String, String),
}

impl Drop for KeptOut {
    fn drop(&mut self) {
        lock(&self.members.joined).remove(&self.name);
    }
}

/// The one member of a group.
pub(crate) struct Member {
    members: Arc<Members>,
    name: (String, String),
    partitions: u32,
    announced: u32,
    left: bool,
    instance: u128,
    closed: watch::Receiver<bool>,
}

impl Member {
    /// Joins the group. An error if the group has a member: two members would each run every message.
    pub fn join(
        members: &Arc<Members>,
        group: &str,
        topic: &str,
        partitions: u32,
        instance: u128,
        closed: watch::Receiver<bool>,
    ) -> Result<Member, BrokerError> {
        let name = (group.to_owned(), topic.to_owned());
        if !lock(&members.joined).insert(name.clone()) {
            let text = format!(
                "group {group} reads topic {topic} in this process already; give one of the pipelines another group"
            );
            return Err(BrokerError::Invalid(text));
        }
        Ok(Member {
            members: Arc::clone(members),
            name,
            partitions,
            announced: 0,
            left: false,
            instance,
            closed,
        })
    }

    fn part(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            lock(&self.members.joined).remove(&self.name);
        }
    }
}

#[async_trait]
impl Membership for Member {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        if self.left || *self.closed.borrow() {
            return Err(BrokerError::Closed);
        }
        if self.announced < self.partitions {
            self.announced += 1;
            return Ok(Change::Assigned(self.announced - 1));
        }
        // Assignments never change again; only the closing of the folder ends the wait.
        let _sender_gone = self.closed.wait_for(|closed| *closed).await;
        Err(BrokerError::Closed)
    }

    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError> {
        match *self.closed.borrow() {
            true => Err(BrokerError::Closed),
            false => Ok(!self.left && partition < self.partitions),
        }
    }

    async fn gave_up(&mut self, _partition: u32) {}

    fn proves_dead(&self, instance: u128) -> bool {
        instance != self.instance
    }

    fn instance(&self) -> u128 {
        self.instance
    }

    async fn leave(&mut self) {
        self.part();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.part();
    }
}
