//! The state that all routes share: the opened broker, the bounds, the access rules, and the phase of the server's
//! life.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane::raw::Clock;
use keylane::{Keylane, Producer, TopicSpec, WhenFull};
use tokio::sync::watch;

use super::broker_health::BrokerHealth;
use super::outboxes::Outboxes;
use super::refused_requests::RefusedRequests;
use super::tasks::EndedTasks;
use crate::admin::Pages;
use crate::config::Config;
use crate::http::{Access, Metrics};
use crate::ingest::{Admission, Bodies, FirstUse};

/// The longest time without a byte in a streamed answer: shorter than the time after which common proxies close a
/// silent connection.
const BLANK_EVERY_MAX: Duration = Duration::from_secs(15);

/// The phases of a server's life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The broker is not reached yet, or topics are being created.
    Opening,
    /// Pipelines are being started. The server already accepts messages, because producing needs only the broker.
    Starting,
    Ready,
    /// The server is shutting down and accepts no more messages.
    Draining,
    /// Pipelines are drained, and the server accepts no more connections.
    Closing,
}

/// The state that all routes share.
pub(crate) struct App {
    pub(crate) keylane: Keylane,
    /// Fails at once when too much is in flight, instead of waiting: a client that gets an error can slow down.
    pub(crate) producer: Producer,
    /// Topics that the config declares. If there are none, the first message for a new name creates its topic.
    pub(crate) topics: Vec<String>,
    /// Topics that pipelines of the config read.
    pub(crate) read_topics: BTreeSet<String>,
    /// The settings of a topic that is created by its first message.
    pub(crate) new_topic: TopicSpec,
    pub(crate) access: Access,
    pub(crate) bodies: Bodies,
    pub(crate) first_use: FirstUse,
    pub(crate) metrics: Metrics,
    pub(crate) refused: RefusedRequests,
    pub(crate) pages: Pages,
    pub(crate) outboxes: Outboxes,
    /// How often tasks of the server itself panicked.
    pub(crate) ended_tasks: EndedTasks,
    /// The state of the broker when it was last checked.
    pub(crate) broker_health: BrokerHealth,
    pub(crate) clock: Clock,
    pub(crate) phase: watch::Sender<Phase>,
    /// While the server starts: the reasons why it is not ready yet.
    pub(crate) waiting: watch::Sender<Vec<String>>,
    /// How often a stream without messages sends a blank line.
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
            refused: RefusedRequests::default(),
            pages: Pages::default(),
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

    /// Moves on to a phase. A server never returns to an earlier phase: a start that ends late cannot undo a drain.
    pub(crate) fn go(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let further = to > *phase;
            *phase = to.max(*phase);
            further
        });
    }
}
