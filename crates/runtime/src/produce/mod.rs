//! Producing: from a message to an acknowledgement that it is durable (PRD-1, PRD-2).
//!
//! Three ways: wait for the acknowledgement, take a ticket for it, or forget the ticket. All are calls of one message
//! (`call.rs`), and none stops the broker from batching. Messages of one caller keep their order: a call takes its
//! place when it is sent, not when it is acknowledged.

mod backlog;
mod call;
mod in_flight;
pub mod spill;
mod ticket;
mod topics;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use keylane_broker::{Broker, BrokerError, ProduceError, Topic, TopicSpec};
use keylane_core::Frames;
use tokio::sync::oneshot;

use crate::clock::{Clock, Ids};
use crate::tasks::Tasks;
use crate::{Error, NewMessage};
use backlog::Watch;
use in_flight::{InFlight, Room, ToItsEnd};
use spill::{Caller, Spill, Stored, WhenAway};
use topics::Targets;

pub use backlog::{Backlog, Severity};
pub use call::Call;
pub(crate) use call::Target;
pub use in_flight::WhenFull;
pub use ticket::{Receipt, Ticket};
pub(crate) use topics::KNOWN_MS;

/// How long closing waits for what is on its way (BRK-2).
const FLUSH: Duration = Duration::from_secs(10);

/// Sends messages to topics. Cheap to clone.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<Shared>,
    when_full: WhenFull,
    when_away: WhenAway,
}

struct Shared {
    broker: Arc<dyn Broker>,
    spill: Option<Arc<Spill>>,
    clock: Clock,
    ids: Ids,
    tasks: Tasks,
    /// As what a topic is created by its first use; none if it is not.
    new_topic: Option<TopicSpec>,
    targets: Arc<Targets>,
    in_flight: InFlight,
    watch: Watch,
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
    pub(crate) fn new(
        broker: Arc<dyn Broker>,
        spill: Option<Arc<Spill>>,
        clock: Clock,
        tasks: Tasks,
        new_topic: Option<TopicSpec>,
    ) -> Producer {
        let shared = Shared {
            targets: Targets::new(Arc::clone(&broker), clock, tasks.clone()),
            broker,
            spill,
            clock,
            ids: Ids::of(clock),
            tasks,
            new_topic,
            in_flight: InFlight::default(),
            watch: Watch::default(),
            counters: ProducerCounters::default(),
        };
        Producer { shared: Arc::new(shared), when_full: WhenFull::default(), when_away: WhenAway::default() }
    }

    /// The same producer with another answer to too much in flight.
    pub fn when_full(&self, when_full: WhenFull) -> Producer {
        Producer { when_full, ..self.clone() }
    }

    /// The same producer with another answer to a broker that is away. With [`WhenAway::Fail`] every receipt says that
    /// the broker itself has the message.
    pub fn when_away(&self, when_away: WhenAway) -> Producer {
        Producer { when_away, ..self.clone() }
    }

    /// Sends a message and waits until it is durable.
    pub async fn produce(&self, message: NewMessage) -> Result<Receipt, Error> {
        let call = self.call_of(&message).await?;
        first(call.send().await?)
    }

    /// Sends a message and goes on: the ticket tells how it ended, and may be dropped (fire and forget). Waits only
    /// for room, never for the acknowledgement.
    pub async fn send(&self, message: NewMessage) -> Result<Ticket, Error> {
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
        message: NewMessage,
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

    /// Waits until all that was sent is durable or refused, at most `FLUSH`. False if something is still on its way.
    pub(crate) async fn flush(&self) -> bool {
        tokio::time::timeout(FLUSH, self.shared.in_flight.idle()).await.is_ok()
    }

    /// What producers wait for, and how bad that is (REC-6).
    pub fn backlog(&self) -> Backlog {
        let Shared { clock, in_flight, watch, counters, .. } = &*self.shared;
        let share = self.share();
        Backlog {
            calls: in_flight.calls(),
            bytes: in_flight.bytes(),
            spilled: self.spill().map_or(0, |spill| spill.messages()),
            oldest_ms: watch.oldest_ms(*clock),
            rate: watch.rate(*clock, counters.succeeded.load(Ordering::Relaxed)),
            share,
            severity: Severity::of(share),
        }
    }

    /// Calls `told` whenever the severity of the backlog has changed: to slow down before the bound is hit. It is
    /// called where a call begins or ends, and must not wait.
    pub fn on_backlog(&self, told: impl Fn(&Backlog) + Send + Sync + 'static) {
        self.shared.watch.tell(told);
    }

    /// Waits for room, or fails at once.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Room, Error> {
        let permits = self.shared.in_flight.room(self.when_full, bytes).await?;
        let number = self.shared.watch.begin(self.shared.clock.now_ms());
        self.look();
        Ok(Room::new(self.clone(), number, permits))
    }

    pub(crate) fn call_ended(&self, number: u64) {
        self.shared.watch.end(number);
        self.look();
    }

    fn look(&self) {
        self.shared.watch.look(self.share(), || self.backlog());
    }

    /// The largest share of a bound that is used.
    fn share(&self) -> f64 {
        self.shared.in_flight.share().max(self.spill().map_or(0.0, |spill| spill.share()))
    }

    pub(crate) fn broker(&self) -> &dyn Broker {
        &*self.shared.broker
    }

    pub(crate) fn spill(&self) -> Option<&Arc<Spill>> {
        self.shared.spill.as_ref()
    }

    /// Sends messages to the broker, by way of the spill where there is one. Its first poll takes their place.
    pub(crate) async fn hand_over(
        &self,
        target: &Arc<Target>,
        frames: Frames,
        room: Room,
    ) -> Vec<Result<Stored, ProduceError>> {
        match self.spill() {
            Some(spill) => {
                spill.produce(target, frames, Caller { _room: room, when_away: self.when_away }).await
            }
            None => {
                let (broker, topic) = (Arc::clone(&self.shared.broker), Arc::clone(&target.name));
                let call = Box::pin(async move { broker.produce(&topic, frames).await });
                let results = ToItsEnd::new(call, room, &self.shared.tasks).await;
                results.into_iter().map(|result| result.map(Stored::At)).collect()
            }
        }
    }

    async fn call_of(&self, message: &NewMessage) -> Result<Call, Error> {
        let mut call = self.call(message.topic()).await?;
        let now_ms = self.shared.clock.wall_ms();
        match message.own_id() {
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
        match (self.broker().topic(topic).await?, &self.shared.new_topic) {
            (Some(found), _) => Ok(found),
            (None, Some(spec)) => Ok(self.broker().create_topic(topic, spec).await?),
            (None, None) => Err(BrokerError::UnknownTopic(topic.to_owned()).into()),
        }
    }

    /// Topics that are known here.
    pub(crate) fn targets(&self) -> &Arc<Targets> {
        &self.shared.targets
    }

    async fn target(&self, topic: &str) -> Result<Arc<Target>, Error> {
        if let Some(target) = self.targets().find(topic).await {
            return Ok(target);
        }
        let asked_ms = self.shared.clock.now_ms();
        let target = match self.spill() {
            None => Target::of(&self.ensure(topic).await?),
            Some(spill) => spill.ask_or_know(topic, self.ensure(topic)).await?,
        };
        Ok(self.targets().know(target, asked_ms))
    }
}

fn first(mut results: Vec<Result<Receipt, ProduceError>>) -> Result<Receipt, Error> {
    Ok(results.remove(0)?)
}
