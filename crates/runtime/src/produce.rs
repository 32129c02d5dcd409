//! Producing: from a message to an acknowledgement that it is durable (PRD-1, PRD-2).
//!
//! Three ways: wait for the acknowledgement, take a ticket for it, or forget the ticket. All are calls of one message
//! (`call.rs`), and none stops the broker from batching. Messages of one caller keep their order: a call takes its
//! place when it is sent, not when it is acknowledged.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll, Waker};

use keylane_broker::{Broker, BrokerError, ProduceError, Topic, TopicSpec};
use tokio::sync::oneshot;

use crate::call::{Call, InFlight, Target};
use crate::clock::{Clock, Ids};
use crate::spawn::Tasks;
use crate::{Error, Message};

/// What a caller does when too much is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// Wait until there is room.
    #[default]
    Wait,
    /// Fail at once: "producer in-flight limit reached".
    Fail,
}

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Its id: the caller's, or the one made for it.
    pub id: String,
    /// The partition.
    pub partition: u32,
    /// The position.
    pub offset: u64,
}

/// Sends messages to topics. Cheap to clone.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<Shared>,
    when_full: WhenFull,
}

struct Shared {
    broker: Arc<dyn Broker>,
    clock: Clock,
    ids: Ids,
    tasks: Tasks,
    create_topics: bool,
    topics: RwLock<HashMap<String, Arc<Target>>>,
    in_flight: InFlight,
    counters: ProducerCounters,
}

/// What a producer has done, for metrics.
#[derive(Debug, Default)]
pub struct ProducerCounters {
    /// Messages acknowledged.
    pub succeeded: AtomicU64,
    /// Messages refused or failed.
    pub failed: AtomicU64,
}

impl Producer {
    pub(crate) fn new(broker: Arc<dyn Broker>, clock: Clock, tasks: Tasks, create_topics: bool) -> Producer {
        let shared = Shared {
            broker,
            clock,
            ids: Ids::of(clock),
            tasks,
            create_topics,
            topics: RwLock::default(),
            in_flight: InFlight::default(),
            counters: ProducerCounters::default(),
        };
        Producer { shared: Arc::new(shared), when_full: WhenFull::default() }
    }

    /// The same producer with another answer to too much in flight.
    pub fn when_full(&self, when_full: WhenFull) -> Producer {
        Producer { shared: Arc::clone(&self.shared), when_full }
    }

    /// Sends a message and waits until it is durable.
    pub async fn produce(&self, message: Message) -> Result<Receipt, Error> {
        let call = self.call_of(&message).await?;
        first(call.send().await?)
    }

    /// Sends a message and goes on: the ticket tells how it ended, and may be dropped (fire and forget). Waits only
    /// for room, never for the acknowledgement.
    pub async fn send(&self, message: Message) -> Result<Ticket, Error> {
        let call = self.call_of(&message).await?;
        let room = call.room().await?;
        // The first poll takes the message's place in its partition; only the rest may run beside others. It must not
        // be put off because the caller's task has used up its budget, or a later message would overtake.
        let mut sending = Box::pin(tokio::task::unconstrained(call.send_within(room)));
        let (done, ticket) = oneshot::channel();
        match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(results) => {
                let _ = done.send(first(results));
            }
            Poll::Pending => {
                self.shared.tasks.spawn(async move {
                    let _ = done.send(first(sending.await));
                });
            }
        }
        Ok(Ticket(ticket))
    }

    /// Sends a message and calls `then` when it is durable or refused. Waits only for room.
    pub async fn send_with(
        &self,
        message: Message,
        then: impl FnOnce(Result<Receipt, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let ticket = self.send(message).await?;
        self.shared.tasks.spawn(async move { then(ticket.await) });
        Ok(())
    }

    /// Begins a call for `topic`: many messages, one batch, a result each.
    pub async fn call(&self, topic: &str) -> Result<Call, Error> {
        Ok(Call::new(self.clone(), self.target(topic).await?))
    }

    /// What was acknowledged and what failed.
    pub fn counters(&self) -> &ProducerCounters {
        &self.shared.counters
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.calls()
    }

    pub(crate) fn in_flight_bounds(&self) -> &InFlight {
        &self.shared.in_flight
    }

    pub(crate) fn when_full_setting(&self) -> WhenFull {
        self.when_full
    }

    pub(crate) fn broker(&self) -> &dyn Broker {
        &*self.shared.broker
    }

    async fn call_of(&self, message: &Message) -> Result<Call, Error> {
        let mut call = self.call(message.get_topic()).await?;
        let now_ms = self.shared.clock.wall_ms();
        match message.get_id() {
            Some(id) => message.with_draft(id, now_ms, |draft| call.push(draft)),
            None => message.with_draft(&self.new_id(), now_ms, |draft| call.push_without_id(draft)),
        }
        Ok(call)
    }

    /// A fresh id for a message that came without one.
    pub fn new_id(&self) -> String {
        self.shared.ids.next()
    }

    /// Milliseconds since 1970, for `produced_at`.
    pub fn wall_ms(&self) -> u64 {
        self.shared.clock.wall_ms()
    }

    /// The topic, created by this first use if that is allowed.
    pub(crate) async fn ensure(&self, topic: &str) -> Result<Topic, Error> {
        match self.broker().topic(topic).await? {
            Some(found) => Ok(found),
            None if self.shared.create_topics => {
                Ok(self.broker().create_topic(topic, &TopicSpec::default()).await?)
            }
            None => Err(BrokerError::UnknownTopic(topic.to_owned()).into()),
        }
    }

    async fn target(&self, topic: &str) -> Result<Arc<Target>, Error> {
        let known = self.shared.topics.read().expect("no holder panics").get(topic).cloned();
        if let Some(target) = known {
            return Ok(target);
        }
        let found = self.ensure(topic).await?;
        let target =
            Arc::new(Target { name: topic.into(), partitions: found.partitions, next: AtomicU32::new(0) });
        let mut topics = self.shared.topics.write().expect("no holder panics");
        Ok(Arc::clone(topics.entry(topic.to_owned()).or_insert(target)))
    }
}

fn first(mut results: Vec<Result<Receipt, ProduceError>>) -> Result<Receipt, Error> {
    Ok(results.remove(0)?)
}

/// How a message that was sent ended, or will.
pub struct Ticket(oneshot::Receiver<Result<Receipt, Error>>);

impl Future for Ticket {
    type Output = Result<Receipt, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.unwrap_or(Err(BrokerError::Closed.into())))
    }
}
