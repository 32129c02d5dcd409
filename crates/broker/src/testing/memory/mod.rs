//! A broker in memory, for tests and for deterministic simulation.
//!
//! One [`MemoryBroker`] is the cluster; [`MemoryBroker::node`] gives each simulated process its own handle. A test
//! holds the cluster and does to it what the world does to a broker: skips positions, deletes and recreates topics,
//! revokes partitions, cuts processes off. Invariants: the contract holds whatever the test does, and the same calls in
//! the same order give the same answers. Randomness comes from the seed, append times from the clock that is passed in,
//! and latencies from tokio's time, which a test can pause.
//!
//! The controls panic if a topic or node does not exist, because that is a mistake in the test.

mod group;
mod node;
mod state;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use self::node::Node;
pub use self::state::Landed;
use self::state::{PartitionState, Process, State, TopicState, journal_key};
use crate::contract::{Broker, Commit, JournalName, LogKind};

/// The cluster. Clones share the same cluster.
#[derive(Clone)]
pub struct MemoryBroker {
    cluster: Arc<Cluster>,
}

struct Cluster {
    state: Mutex<State>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Cluster {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Carries out one step, then wakes whoever waits for it, without holding the lock: a woken task may call back at
    /// once.
    fn with<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        // A step panics only because of a test's mistake. Handles that are dropped while that test unwinds must not
        // panic again.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = step(&mut state);
        let to_wake = std::mem::take(&mut state.to_wake);
        drop(state);
        for waker in to_wake {
            waker.wake();
        }
        done
    }
}

/// Which kind of broker the cluster plays, and the processes that use it.
impl MemoryBroker {
    /// An empty cluster. `clock` gives append times, in ms since 1970.
    pub fn new(seed: u64, clock: impl Fn() -> u64 + Send + Sync + 'static) -> MemoryBroker {
        let cluster = Cluster { state: Mutex::new(State::new(seed)), clock: Box::new(clock) };
        MemoryBroker { cluster: Arc::new(cluster) }
    }

    /// The handle of a new process with a random instance id of its own. A name can be used again: cutting off or
    /// crashing an earlier process of that name does not touch the new one.
    pub fn node(&self, name: &str) -> Arc<dyn Broker> {
        let instance = self.cluster.with(|state| {
            let instance = state.random.next_u128();
            let process = Process { name: name.to_owned(), alive: true, reachable: true };
            state.processes.insert(instance, process);
            instance
        });
        Arc::new(Node { cluster: self.cluster.clone(), instance })
    }

    /// Whether journals append on condition: true at first, as on embedded, NATS and Redis; false as on Kafka.
    pub fn set_conditional(&self, conditional: bool) {
        self.cluster.with(|state| state.conditional = conditional);
    }

    /// Calls `observer` with everything that becomes durable, in that order. The observer must not call the cluster.
    pub fn observe(&self, observer: impl FnMut(&Landed<'_>) + Send + 'static) {
        self.cluster.with(|state| state.observer = Some(Box::new(observer)));
    }

    /// Whether the broker proves crashed processes dead, as the embedded folder's lock does: false at first.
    pub fn set_proves_dead(&self, proves_dead: bool) {
        self.cluster.with(|state| state.proves_dead = proves_dead);
    }

    /// Whether commits keep their metadata: true at first. Some brokers drop it.
    pub fn set_keeps_metadata(&self, keeps: bool) {
        self.cluster.with(|state| state.keeps_metadata = keeps);
    }

    /// How long a call and its answer take each: between `least` and `most`, drawn from the seed. No time at first.
    pub fn set_latency(&self, least: Duration, most: Duration) {
        assert!(least <= most, "the least latency is at most the most");
        self.cluster.with(|state| state.latency = (least, most));
    }

    /// Cuts a node's processes off: their calls answer `Unavailable`, answers on the way are lost, readers end, and
    /// memberships get no changes. Their members stay in their groups until [`MemoryBroker::expire`].
    pub fn cut_off(&self, node: &str) {
        self.touch(node, |process| process.reachable = false);
    }

    /// Ends what [`MemoryBroker::cut_off`] began. Members whose session expired are in their groups again, and hear
    /// what they lost.
    pub fn reconnect(&self, node: &str) {
        let instances = self.touch(node, |process| process.reachable = true);
        self.cluster.with(|state| {
            for group in state.groups.values_mut() {
                group.come_back(&instances, &mut state.to_wake);
            }
        });
    }

    /// Ends the sessions of a node's processes: all their partitions are lost and go to others. Members whose processes
    /// are cut off or crashed leave their groups, too.
    pub fn expire(&self, node: &str) {
        self.cluster.with(|state| {
            let named = |process: &&Process| process.name == node;
            assert!(state.processes.values().any(|process| named(&process)), "there is no node {node}");
            for away in [true, false] {
                let instances: Vec<u128> = state
                    .processes
                    .iter()
                    .filter(|(_, process)| named(process) && (process.alive && process.reachable) != away)
                    .map(|(instance, _)| *instance)
                    .collect();
                for group in state.groups.values_mut() {
                    group.expire(&instances, away, &mut state.to_wake);
                }
            }
        });
    }

    /// Kills a node's processes: every handle to them answers `Closed`. The broker does not notice: their members stay
    /// in their groups until [`MemoryBroker::expire`].
    pub fn crash(&self, node: &str) {
        self.touch(node, |process| process.alive = false);
    }

    /// Changes the living processes of a node, and wakes everyone who waits.
    fn touch(&self, node: &str, change: impl Fn(&mut Process)) -> Vec<u128> {
        self.cluster.with(|state| {
            let mut touched = Vec::new();
            for (instance, process) in &mut state.processes {
                if process.name == node && process.alive {
                    change(process);
                    touched.push(*instance);
                }
            }
            assert!(!touched.is_empty(), "there is no living node {node}");
            state.wake_all();
            touched
        })
    }
}

/// What happens to topics and journals.
impl MemoryBroker {
    /// Skips `by` positions of a partition: the next message stands that much higher.
    pub fn skip_positions(&self, topic: &str, partition: u32, by: u64) {
        self.partition(topic, partition, |partition| partition.skip(by));
    }

    /// Leaves a gap of 0 to `most` positions, drawn from the seed, before each message of any topic from now on.
    pub fn set_gaps(&self, most: u64) {
        self.cluster.with(|state| state.gap_max = most);
    }

    /// Removes one message, as compaction does. False if the position has no message.
    pub fn remove(&self, topic: &str, partition: u32, position: u64) -> bool {
        self.partition(topic, partition, |partition| {
            let before = partition.entries.len();
            partition.entries.retain(|entry| entry.position != position);
            partition.entries.len() < before
        })
    }

    /// Deletes everything below `position`, as retention does: the partition starts there.
    pub fn delete_below(&self, topic: &str, partition: u32, position: u64) {
        self.partition(topic, partition, |partition| partition.delete_below(position));
        self.cluster.with(State::wake_all);
    }

    /// Loses all records of a partition's journal; with `keeps_end`, the next record still gets the next position.
    pub fn lose_journal(&self, group: &str, topic: &str, partition: u32, keeps_end: bool) {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        let name = JournalName { group, topic, partition, kind: LogKind::Journal };
        self.cluster.with(|state| state.journal(&journal_key(&name)).lose(keeps_end));
        self.cluster.with(State::wake_all);
    }

    /// Deletes a topic with its commits. Its journals stay, as on brokers where they are topics of their own.
    pub fn delete_topic(&self, topic: &str) {
        let deleted = self.cluster.with(|state| state.delete_topic(topic).is_some());
        assert!(deleted, "there is no topic {topic}");
    }

    /// Deletes a topic and makes it again: same name and partitions, another incarnation, positions from 0.
    pub fn recreate_topic(&self, topic: &str) {
        let made = self.cluster.with(|state| {
            let spec = state.delete_topic(topic)?;
            state.create_topic(topic, &spec).ok()
        });
        assert!(made.is_some(), "there is no topic {topic}");
    }

    /// Gives a topic more partitions, as an operator does; its keys move.
    pub fn grow_topic(&self, topic: &str, partitions: u32) {
        let grown = self.cluster.with(|state| state.grow_topic(topic, partitions));
        assert!(grown.is_some(), "there is no topic {topic}");
    }

    /// Makes a topic refuse messages as if full, or take them again.
    pub fn set_full(&self, topic: &str, full: bool) {
        self.topic(topic, |topic| topic.full = full);
    }

    /// Sets a group's commit as an operator does: without metadata (COM-3).
    pub fn reset_commit(&self, group: &str, topic: &str, partition: u32, position: u64) {
        self.partition(topic, partition, |_| ());
        let commit = Commit { position, metadata: Bytes::new() };
        self.cluster.with(|state| state.commit(group, topic, partition, commit));
    }

    fn topic<T>(&self, name: &str, act: impl FnOnce(&mut TopicState) -> T) -> T {
        self.cluster
            .with(|state| state.topics.get_mut(name).map(act))
            .unwrap_or_else(|| panic!("there is no topic {name}"))
    }

    fn partition<T>(&self, name: &str, partition: u32, act: impl FnOnce(&mut PartitionState) -> T) -> T {
        self.topic(name, |topic| topic.partitions.get_mut(partition as usize).map(act))
            .unwrap_or_else(|| panic!("topic {name} has no partition {partition}"))
    }
}

/// Which node owns which partition. Groups have fair shares until a test assigns by hand.
impl MemoryBroker {
    /// From now on only the test assigns partitions of this group.
    pub fn by_hand(&self, group: &str, topic: &str) {
        self.cluster.with(|state| state.group(group, topic).take_in_hand());
    }

    /// Assigns by hand: gives a partition to a node's newest member. Its owner, if any, is first asked to give it up
    /// (`Revoked`), and the member hears `Assigned` once the owner has.
    pub fn assign(&self, group: &str, topic: &str, partition: u32, node: &str) {
        let assigned = self.try_assign(group, topic, partition, node);
        assert!(assigned, "node {node} is no member of {group} on {topic}");
    }

    /// Like [`MemoryBroker::assign`]; false if the node has no member in the group now.
    pub fn try_assign(&self, group: &str, topic: &str, partition: u32, node: &str) -> bool {
        self.partition(topic, partition, |_| ());
        self.cluster.with(|state| {
            let (group, to_wake) = state.group_to_wake(&(group.to_owned(), topic.to_owned()));
            group.assign(partition, node, to_wake)
        })
    }

    /// Assigns by hand: asks the owner to give a partition up (`Revoked`).
    pub fn revoke(&self, group: &str, topic: &str, partition: u32) {
        self.partition(topic, partition, |_| ());
        self.cluster.with(|state| {
            let (group, to_wake) = state.group_to_wake(&(group.to_owned(), topic.to_owned()));
            group.revoke(partition, to_wake);
        });
    }

    /// Takes a partition from its owner at once (`Lost`). With fair shares the partition is then assigned anew; by hand
    /// it goes to the member that it was meant for, or to none.
    pub fn lose(&self, group: &str, topic: &str, partition: u32) {
        self.partition(topic, partition, |_| ());
        self.cluster.with(|state| {
            let (group, to_wake) = state.group_to_wake(&(group.to_owned(), topic.to_owned()));
            group.lose(partition, to_wake);
        });
    }

    /// The node that a partition is assigned to, if any. This includes a node that has not heard of the assignment yet,
    /// or that was asked to give the partition up and has not done so.
    pub fn owner(&self, group: &str, topic: &str, partition: u32) -> Option<String> {
        self.cluster.with(|state| {
            let owner = state.group(group, topic).owner(partition);
            owner.map(str::to_owned)
        })
    }
}
