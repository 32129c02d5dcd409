//! What all routes share: the opened broker, the bounds, who may do what, and which phase of its life the server is in.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use keylane::clock::Clock;
use keylane::{Keylane, Producer, TopicSpec, WhenFull};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::Access;
use crate::config::Config;
use crate::ingest::{Bodies, FirstUse};
use crate::look::Seen;
use crate::metrics::Metrics;
use crate::outbox::Outboxes;
use crate::problem::Problem;

/// A stream is never silent for longer: shorter than the time after which common proxies close a silent connection.
const BLANK_EVERY_MAX: Duration = Duration::from_secs(15);

/// How long, and how many times, a message waits for the topics of a server that starts: half a minute in all.
const TOPICS_LOOK: Duration = Duration::from_millis(200);
const TOPICS_LOOKS: u32 = 150;

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
    /// How the broker was when it was last looked at.
    pub(crate) seen: Seen,
    pub(crate) clock: Clock,
    pub(crate) phase: watch::Sender<Phase>,
    /// What a server that comes up waits for.
    pub(crate) waiting: watch::Sender<Vec<String>>,
    /// How often a stream without messages says that it is there.
    pub(crate) blank_every: Duration,
    producing: Arc<Semaphore>,
    producing_max: usize,
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
            seen: Seen::default(),
            clock: Clock::system(),
            phase: watch::Sender::new(Phase::Opening),
            waiting: watch::Sender::default(),
            blank_every: BLANK_EVERY_MAX.min(config.server.idle_timeout / 2),
            producing: Arc::new(Semaphore::new(config.ingest.in_flight)),
            producing_max: config.ingest.in_flight,
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

    /// Says so if no more messages are taken.
    pub(crate) fn takes_messages(&self) -> Result<(), Problem> {
        if self.phase() >= Phase::Draining {
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "KL-1212",
                "the server is shutting down",
                "the server is shutting down and takes no more messages; send it again, to another server or later",
            ));
        }
        Ok(())
    }

    /// Waits until topics are made, and says so if that takes too long. While the broker is away, messages are taken
    /// all the same: they are kept here.
    pub(crate) async fn has_topics(&self) -> Result<(), Problem> {
        let mut phase = self.phase.subscribe();
        for _ in 0..TOPICS_LOOKS {
            if self.phase() != Phase::Opening || self.keylane.health().await.is_err() {
                return Ok(());
            }
            let _made =
                tokio::time::timeout(TOPICS_LOOK, phase.wait_for(|phase| *phase > Phase::Opening)).await;
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "KL-1221",
            "the server is starting",
            "the server is still making sure of its topics; send it again in a moment",
        ))
    }

    /// A place among the requests that produce, or why there is none.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.takes_messages()?;
        Arc::clone(&self.producing).try_acquire_owned().map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "KL-1205",
                "there is no room now",
                format!(
                    "{} requests are producing already (ingest.in_flight); slow down, or send more messages in each",
                    self.producing_max
                ),
            )
        })
    }
}
