//! What all routes share: the opened broker, the bounds, who may do what, and which phase of its life the server is in.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane::raw::Clock;
use keylane::{Keylane, Producer, TopicSpec, WhenFull};
use tokio::sync::watch;

use super::broker_health::BrokerHealth;
use super::outboxes::Outboxes;
use super::tasks::EndedTasks;
use crate::config::Config;
use crate::http::{Access, Metrics};
use crate::ingest::{Admission, Bodies, FirstUse};

/// A stream is never silent for longer: shorter than the time after which common proxies close a silent connection.
const BLANK_EVERY_MAX: Duration = Duration::from_secs(15);

/// A server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The broker is not reached yet, or topics are being made.
    Opening,
    /// Pipelines are being started. Messages are taken: they need only the broker.
    Starting,
    Ready,
    /// On its way out: nothing more is taken.
    Draining,
    /// Drained: no connection is accepted any more.
    Closing,
}

/// Shared by all routes.
pub(crate) struct App {
    pub(crate) keylane: Keylane,
    /// Fails at once when too much is in flight: a client that is told can slow down, one that waits cannot.
    pub(crate) producer: Producer,
    /// Topics that the config declares; none: any may be created by first use.
    pub(crate) topics: Vec<String>,
    /// Topics that pipelines of the config read.
    pub(crate) read_topics: BTreeSet<String>,
    /// What a topic gets that is made by its first use.
    pub(crate) new_topic: TopicSpec,
    pub(crate) access: Access,
    pub(crate) bodies: Bodies,
    pub(crate) first_use: FirstUse,
    pub(crate) metrics: Metrics,
    pub(crate) outboxes: Outboxes,
    /// Tasks of the server itself that panicked.
    pub(crate) ended_tasks: EndedTasks,
    /// How the broker was when it was last looked at.
    pub(crate) broker_health: BrokerHealth,
    pub(crate) clock: Clock,
    pub(crate) phase: watch::Sender<Phase>,
    /// What a server that comes up waits for.
    pub(crate) waiting: watch::Sender<Vec<String>>,
    /// How often a stream without messages says that it is there.
    pub(crate) blank_every: Duration,
    pub(crate) admission: Admission,
}

impl App {
    pub(crate) fn new(config: &Config, keylane: Keylane) -> App {
        App {
            producer: keylane.producer().when_full(WhenFull::Fail),
            keylane,
            topics: config.topics.keys().cloned().collect(),
            read_topics: config.pipelines.values().map(|pipeline| pipeline.topic.clone()).collect(),
            new_topic: config.new_topic.clone(),
            access: Access::new(config.server.tokens.clone()),
            bodies: Bodies::new(config.ingest.max_request, config.server.body_timeout),
            first_use: FirstUse::default(),
            metrics: Metrics::new(),
            outboxes: Outboxes::default(),
            ended_tasks: EndedTasks::default(),
            broker_health: BrokerHealth::default(),
            clock: Clock::system(),
            phase: watch::Sender::new(Phase::Opening),
            waiting: watch::Sender::default(),
            blank_every: BLANK_EVERY_MAX.min(config.server.idle_timeout / 2),
            admission: Admission::new(config.ingest.in_flight),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on to a phase, unless it is on its way out already.
    pub(crate) fn go(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let further = to > *phase;
            *phase = to.max(*phase);
            further
        });
    }
}
