//! A pipeline about to run: what it reads, its handler and its settings, and how it starts.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use keylane_broker::{BrokerError, Ends};
use keylane_core::Order;
use tokio::sync::watch;

use super::lag::Lagging;
use super::start::Shards;
use super::{CommitCounters, Ending, PartitionView, Pipeline, Rejections, Running, Subscription, Views};
use crate::handlers::IntoHandler;
use crate::ownership::{Committer, Follow, Stopping, keep_committing};
use crate::settings::Settings;
use crate::tasks::TaskKind;
use crate::{Error, Handler, Keylane};

/// Of a pipeline's bytes in memory, the part for what the broker's client reads ahead, where it does.
const AHEAD_SHARE: usize = 4;

/// A pipeline about to run. Every setting has a default.
pub struct PipelineBuilder<H = ()> {
    keylane: Keylane,
    name: String,
    topic: String,
    group: String,
    settings: Settings,
    handler: H,
}

impl PipelineBuilder {
    pub(crate) fn new(keylane: Keylane, name: &str) -> PipelineBuilder {
        PipelineBuilder {
            keylane,
            name: name.to_owned(),
            topic: name.to_owned(),
            group: name.to_owned(),
            settings: Settings::default(),
            handler: (),
        }
    }

    /// What runs on each message: a closure that takes a [`crate::Message`], or a [`Handler`].
    pub fn handle<M, T: IntoHandler<M>>(self, handler: T) -> PipelineBuilder<T::Handler> {
        PipelineBuilder {
            keylane: self.keylane,
            name: self.name,
            topic: self.topic,
            group: self.group,
            settings: self.settings,
            handler: handler.into_handler(),
        }
    }
}

impl<H> PipelineBuilder<H> {
    /// The topic to read, if it is not called like the pipeline.
    pub fn topic(mut self, topic: &str) -> Self {
        topic.clone_into(&mut self.topic);
        self
    }

    /// The group whose position is kept, if it is not called like the pipeline.
    pub fn group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.group);
        self
    }

    /// What keeps its order.
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// Handlers in flight at most.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// A handler that takes longer has failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// All settings at once.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }
}

impl<H: Handler> PipelineBuilder<H> {
    /// Starts the pipeline; it runs until it is drained.
    pub async fn start(self) -> Result<Pipeline, Error> {
        let PipelineBuilder { keylane, name, topic, group, settings, handler } = self;
        settings.check().map_err(|why| Error::Pipeline(name.clone(), why))?;
        let inner = &keylane.inner;
        let topic = keylane.producer().ensure(&topic).await?;
        let reads_ahead = |bytes| inner.broker.reads_ahead(bytes);
        let subscription = Subscription {
            ahead_bytes: 0,
            broker: Arc::clone(&inner.broker),
            clock: inner.clock,
            tasks: inner.tasks.clone(),
            pipeline: name.as_str().into(),
            topic: topic.name.as_str().into(),
            group,
            node: inner.node.clone(),
            timeout_ms: settings.timeout_ms(),
            bounds: settings.bounds(),
            order: settings.order,
            flaws: settings.flaws(),
            counters: CommitCounters::default(),
            committer: Committer::default(),
            rejections: Rejections::default(),
            pace: Arc::clone(&inner.pace),
            seed: inner.clock.seed().map(AtomicU64::new),
        };
        let claimed = inner.claim(&subscription)?;
        let membership =
            inner.broker.join(&subscription.group, &subscription.topic, &subscription.node).await?;
        // It may have grown before the group was joined, and who is in the group hears only of what comes later (BRK-10).
        let topic = subscription.topic_there().await?;
        let (settings, ahead_bytes) = with_ahead(settings, topic.partitions as usize, reads_ahead);
        let subscription = Arc::new(Subscription { ahead_bytes, ..subscription });
        // Read once the group is known: what it has not settled is kept from then on.
        let ends = inner.broker.ends(&topic.name).await?;
        let (stop, stopping) = watch::channel(Stopping::No);
        let views = views_of(&subscription, &ends).await?;
        let lagging = Lagging::new(&ends);
        // Nothing may fail from here on: shards and their watchdog would run for nobody.
        let shards = Shards::start(&subscription, &settings, &topic, handler, &inner.tasks);
        let follow = Follow {
            subscription: Arc::clone(&subscription),
            ends,
            shards: shards.doors.clone(),
            views: Arc::clone(&views),
            tasks: inner.tasks.clone(),
            topic,
            stop: stopping,
        };
        let ending = run_in_background(Arc::clone(&subscription), follow.run(membership));
        let drain = settings.drain;
        let running = Running {
            subscription,
            shards,
            views,
            stop,
            ended: ending,
            drain,
            lagging,
            claimed: Mutex::new(Some(claimed)),
        };
        let pipeline = Pipeline { inner: Arc::new(running) };
        inner.apart.lock().expect("no holder panics").remove(&name);
        inner.pipelines.lock().expect("no holder panics").insert(name, pipeline.clone());
        Ok(pipeline)
    }

    /// Runs the pipeline until `stop` is ready, then drains it.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let pipeline = self.start().await?;
        stop.await;
        pipeline.drain().await
    }
}

/// Takes what the broker's client reads ahead from the pipeline's bytes: one bound for both, since all of it is in memory
/// (P5). What counts is what the client keeps, which may be more than it is asked to for many partitions; half is left
/// for the pipeline in any case.
fn with_ahead(
    mut settings: Settings,
    partitions: usize,
    reads_ahead: impl Fn(usize) -> usize,
) -> (Settings, usize) {
    let ahead_bytes = settings.buffer_bytes / AHEAD_SHARE;
    let kept = reads_ahead(ahead_bytes / partitions.max(1)) * partitions;
    settings.buffer_bytes -= kept.min(settings.buffer_bytes / 2);
    (settings, if kept > 0 { ahead_bytes } else { 0 })
}

/// A view of each partition: as long as nobody owns it here, the broker's commit shows how far it is.
async fn views_of(at: &Subscription, ends: &[Ends]) -> Result<Views, BrokerError> {
    let mut views = Vec::new();
    for (partition, ends) in (0..).zip(ends) {
        let commit = at.broker.committed(&at.group, &at.topic, partition).await?;
        let committed = commit.map_or(ends.start, |commit| commit.position);
        views.push(Arc::new(PartitionView::new(partition, committed)));
    }
    Ok(Arc::new(RwLock::new(views)))
}

/// Follows the group, and commits for it until that ends; the answer says when, and whether anybody asked for it.
fn run_in_background(
    subscription: Arc<Subscription>,
    following: impl Future<Output = ()> + Send + 'static,
) -> watch::Receiver<Ending> {
    let (ended, ending) = watch::channel(None);
    let tasks = subscription.tasks.clone();
    tasks.clone().spawn(async move {
        let both = async {
            tokio::select! {
                biased;
                () = following => {}
                () = keep_committing(subscription) => {}
            }
        };
        // What goes with a panic gives its partitions up, and joins no group again: the status has to say so.
        let how = tasks.supervise(TaskKind::Pipeline, both).await;
        let _ = ended.send(Some(how));
    });
    ending
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P5, BPR-1: what the broker's client keeps counts, though it may be more than it is asked to; half is the
    /// pipeline's.
    #[test]
    fn what_is_read_ahead_is_taken_from_the_buffer() {
        let left = |partitions, reads_ahead: fn(usize) -> usize| {
            let settings = Settings { buffer_bytes: 1 << 20, ..Settings::default() };
            let (settings, ahead_bytes) = with_ahead(settings, partitions, reads_ahead);
            (settings.buffer_bytes, ahead_bytes)
        };
        let whole = 1 << 20;
        assert_eq!(left(4, |_| 0), (whole, 0), "nothing is read ahead");
        assert_eq!(left(4, |asked| asked), (whole - whole / 4, whole / 4), "as much as is asked for");
        assert_eq!(left(4, |asked| asked.max(96 << 10)), (whole - (384 << 10), whole / 4), "a batch each");
        assert_eq!(left(1_000, |asked| asked.max(96 << 10)), (whole / 2, whole / 4), "too many");
    }
}
