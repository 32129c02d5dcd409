//! Makes the metrics; no other file names one (ADM-3). Metrics with established names keep them on every broker; all
//! others begin with `keylane_`. No label has a key or an id.
//!
//! HTTP requests are counted as they happen. All other figures exist elsewhere in memory and are collected at each
//! scrape: a scrape never asks the broker (ING-8).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;

use keylane::ErrorCode;
use keylane::outbox::OutboxState;
use keylane::raw::ClientFigures;
use keylane::spill::{SpillState, SpillStatus};
use keylane::status::{PartitionState, PipelineStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::serve::App;

/// Buckets of HTTP latency: 100 µs, doubling, to 26 s.
const LATENCY_BUCKETS: u16 = 19;

/// The metrics that are counted as requests happen.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    latency: Family<Route, Histogram>,
    refused: Family<Refusal, Counter>,
    connections_refused: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    route: &'static str,
    error: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let requests = Family::<Request, Counter>::default();
        let latency = Family::<Route, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.0001, 2.0, LATENCY_BUCKETS))
        });
        let mut registry = Registry::default();
        registry.register(
            "keylane_http_requests",
            "HTTP requests answered, by route and status",
            requests.clone(),
        );
        registry.register(
            "keylane_http_request_seconds",
            "Time from a request's head to its answer, by route",
            latency.clone(),
        );
        let refused = Family::<Refusal, Counter>::default();
        registry.register(
            "keylane_http_refused",
            "HTTP requests that may not be done, cannot be done now, or would have changed something and are wrong, by route and error code",
            refused.clone(),
        );
        let connections_refused = Counter::default();
        registry.register(
            "keylane_http_connections_refused",
            "Connections beyond server.connections",
            connections_refused.clone(),
        );
        Metrics { registry, requests, latency, refused, connections_refused }
    }

    /// Counts a connection that was refused because the server had reached its limit of connections.
    pub(crate) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// Counts a request that was refused.
    pub(crate) fn refused(&self, route: &'static str, code: ErrorCode) {
        self.refused.get_or_create(&Refusal { route, error: code.as_str() }).inc();
    }

    /// Counts a request that was answered.
    pub(crate) fn answered(&self, route: &'static str, code: u16, took_us: u64) {
        self.requests.get_or_create(&Request { route, code }).inc();
        self.latency.get_or_create(&Route { route }).observe(took_us as f64 / 1e6);
    }

    /// All metrics in the text format that Prometheus reads.
    pub(crate) fn text(&self, app: &App) -> String {
        let pipelines = app.keylane.pipelines_seen();
        let mut scrape = Scrape::default();
        producer(&mut scrape, app);
        let up = app.broker_health.trouble().is_none();
        scrape.gauge(
            "keylane_broker_up",
            "1 if the broker takes and gives messages, else 0",
            vec![],
            up.into(),
        );
        for (task, ended) in app.keylane.tasks_ended().into_iter().chain(app.ended_tasks.all()) {
            scrape.counter(
                "keylane_tasks_ended_unexpectedly",
                "Background tasks that ended as nobody asked, by what they are",
                vec![("task", task.to_owned())],
                ended,
            );
        }
        scrub(&mut scrape, app);
        for pipeline in &pipelines {
            of_pipeline(&mut scrape, pipeline);
        }
        outboxes(&mut scrape, app);
        if let Some(figures) = app.keylane.client_figures() {
            client(&mut scrape, &figures);
        }
        let (pipelines, http) = (scrape.registry(), &self.registry);
        let mut text = String::new();
        let written: fmt::Result = encode(&mut text, &pipelines);
        written.expect("writing to memory does not fail");
        // The page is made from two registries, and only the last one may write the end mark.
        text.truncate(text.trim_end().trim_end_matches("# EOF").len());
        encode(&mut text, http).expect("writing to memory does not fail");
        text
    }
}

fn scrub(scrape: &mut Scrape, app: &App) {
    let scrubbed = app.keylane.scrubbed();
    scrape.counter(
        "keylane_scrub_bytes",
        "Bytes of the embedded log that were read again and found whole",
        vec![],
        scrubbed.bytes,
    );
    scrape.gauge(
        "keylane_scrub_damaged",
        "Files of the embedded log in which reading again found damage",
        vec![],
        scrubbed.damaged,
    );
}

fn producer(scrape: &mut Scrape, app: &App) {
    let counters = app.keylane.producer().counters();
    scrape.gauge(
        "kafka_producer_inflight_current",
        "Producing calls not acknowledged yet, on any broker",
        vec![],
        app.keylane.producer().in_flight() as u64,
    );
    let (success, failures) =
        (counters.succeeded.load(Ordering::Relaxed), counters.failed.load(Ordering::Relaxed));
    scrape.counter("kafka_producer_success", "Messages acknowledged, on any broker", vec![], success);
    scrape.counter("kafka_producer_failures", "Messages refused or failed, on any broker", vec![], failures);
    scrape.counter("keylane_produced", "Messages acknowledged", vec![], success);
    let backlog = app.keylane.producer().backlog();
    let gauges = [
        ("keylane_producer_inflight_bytes", "Bytes of calls not acknowledged yet", backlog.bytes as u64),
        (
            "keylane_producer_oldest_ms",
            "Age of the oldest call not acknowledged yet",
            backlog.oldest_ms.unwrap_or(0),
        ),
        ("keylane_producer_rate", "Messages acknowledged a second, lately", backlog.rate as u64),
        (
            "keylane_producer_severity",
            "Backlog: 0 none, 1 low, 2 medium, 3 high, 4 critical",
            backlog.severity as u64,
        ),
    ];
    for (name, about, value) in gauges {
        scrape.gauge(name, about, vec![], value);
    }
    spill(scrape, &app.keylane.spill());
}

fn spill(scrape: &mut Scrape, spill: &SpillStatus) {
    let gauges = [
        ("keylane_spill_messages", "Messages that wait on this machine for the broker", spill.messages),
        (
            "keylane_spill_failed",
            "Messages refused for good, and those of their keys behind them",
            spill.failed,
        ),
        (
            "keylane_spill_blocked_keys",
            "Keys that wait behind a message refused for good",
            spill.blocked_keys,
        ),
        (
            "keylane_spill_keys",
            "Keys with messages in the spill since it was empty last",
            spill.degraded_keys,
        ),
        ("keylane_spill_bytes", "Bytes that wait on this machine for the broker", spill.bytes),
        ("keylane_spill_bytes_max", "Bytes that may wait", spill.bytes_max),
        ("keylane_spill_lines", "Partitions whose messages are spilled now", spill.lines.len() as u64),
        (
            "keylane_spill_refusing",
            "1 while the spill takes no more",
            u64::from(spill.state == SpillState::Refusing),
        ),
    ];
    for (name, about, value) in gauges {
        scrape.gauge(name, about, vec![], value);
    }
    let counters = [
        ("keylane_spilled", "Messages kept because the broker did not take them", spill.degraded_messages),
        (
            "keylane_spill_drained",
            "Messages of the spill that were brought to the broker",
            spill.drained_messages,
        ),
        (
            "keylane_spill_refused",
            "Messages of the spill that the broker refused for good",
            spill.refused_messages,
        ),
    ];
    for (name, about, value) in counters {
        scrape.counter(name, about, vec![], value);
    }
}

/// Adds the figures of the client library of a broker on another machine.
fn client(scrape: &mut Scrape, figures: &ClientFigures) {
    for broker in &figures.brokers {
        let id = || vec![("broker", broker.id.to_string())];
        scrape.gauge(
            "keylane_client_round_trip_us",
            "Mean time of a broker's answers, of the client for which it was longest",
            id(),
            broker.round_trip_us,
        );
        scrape.gauge(
            "keylane_client_throttled_ms",
            "How long a broker made clients wait because of a quota, of the client for which it was longest",
            id(),
            broker.throttled_ms,
        );
        scrape.gauge(
            "keylane_client_requests",
            "Requests that wait to be sent, or for a broker's answer",
            id(),
            broker.requests,
        );
    }
    let gauges = [
        ("keylane_client_queued_messages", "Messages not acknowledged yet", figures.queued_messages),
        ("keylane_client_queued_bytes", "Their bytes", figures.queued_bytes),
        ("keylane_client_ahead_messages", "Messages read ahead of pipelines", figures.ahead_messages),
        ("keylane_client_ahead_bytes", "Their bytes", figures.ahead_bytes),
    ];
    for (name, about, value) in gauges {
        scrape.gauge(name, about, vec![], value);
    }
    scrape.counter("keylane_client_sent_requests", "Requests sent to the cluster", vec![], figures.sent);
    let mut topics = BTreeMap::<&str, u64>::new();
    for (topic, _, behind) in &figures.behind {
        *topics.entry(topic).or_default() += behind;
    }
    for (topic, behind) in topics {
        scrape.gauge(
            "keylane_client_behind",
            "Messages of the partitions read here that the client has not handed over yet",
            vec![("topic", topic.to_owned())],
            behind,
        );
    }
}

fn outboxes(scrape: &mut Scrape, app: &App) {
    for outbox in app.outboxes.shown() {
        let name = || vec![("outbox", outbox.name.clone())];
        let status = &outbox.status;
        scrape.counter("keylane_outbox_relayed", "Rows relayed and removed", name(), status.relayed);
        scrape.gauge("keylane_outbox_pending", "Rows not relayed yet", name(), status.pending);
        scrape.gauge("keylane_outbox_failed", "Rows that could not be produced", name(), status.failed);
        let relaying = u64::from(status.state == OutboxState::Relaying);
        scrape.gauge("keylane_outbox_relaying", "1 if this process relays the table", name(), relaying);
    }
}

fn of_pipeline(scrape: &mut Scrape, pipeline: &PipelineStatus) {
    let by_group = || vec![("topic", pipeline.topic.clone()), ("group", pipeline.group.clone())];
    scrape.gauge(
        "kafka_consumer_lag",
        "Messages of the topic that are not on record as settled, on any broker",
        by_group(),
        pipeline.lag.messages,
    );
    // This metric's established name has no `_total`. A counter would get that ending, so it is a gauge.
    scrape.gauge(
        "kafka_consumer_processing_errors",
        "Attempts that failed since the start, on any broker",
        by_group(),
        pipeline.failed,
    );
    let handled = [
        ("keylane_handled", "Messages handled", pipeline.handled),
        ("keylane_failed", "Attempts that failed", pipeline.failed),
        ("keylane_dead", "Messages rejected and kept as dead letters, since the start", pipeline.rejected),
    ];
    for (name, help, count) in handled {
        scrape.counter(name, help, vec![("pipeline", pipeline.name.clone())], count);
    }
    let now = [
        ("keylane_dead_letters", "Dead letters on record, in partitions owned here", pipeline.dead),
        ("keylane_handlers_in_flight", "Handlers running", pipeline.in_flight),
        ("keylane_blocking_threads", "Threads that handlers block, or may", pipeline.blocking.threads),
        (
            "keylane_blocking_waiting",
            "Attempts that wait for such a thread; not 0 if all are blocked",
            pipeline.blocking.waiting,
        ),
        ("keylane_buffered_messages", "Messages read and not settled", pipeline.buffered),
        ("keylane_buffered_bytes", "Their bytes", pipeline.buffered_bytes),
        (
            "keylane_lag_oldest_seconds",
            "Age of the oldest message not settled, whole seconds",
            pipeline.lag.oldest_age_seconds.unwrap_or(0.0) as u64,
        ),
    ];
    for (name, help, value) in now {
        scrape.gauge(name, help, vec![("pipeline", pipeline.name.clone())], value);
    }
    by_state(scrape, pipeline);
    by_partition(scrape, pipeline);
}

fn by_state(scrape: &mut Scrape, pipeline: &PipelineStatus) {
    let labels =
        |name: &'static str, value: &str| vec![("pipeline", pipeline.name.clone()), (name, value.to_owned())];
    let lanes = &pipeline.lanes;
    for (state, count) in [
        ("all", lanes.total),
        ("busy", lanes.busy),
        ("held", lanes.held),
        ("retrying", lanes.retrying),
        ("stuck", lanes.stuck),
    ] {
        scrape.gauge("keylane_lanes", "Lanes by what they do", labels("state", state), count);
    }
    for (outcome, count) in [("done", pipeline.commits.done), ("failed", pipeline.commits.failed)] {
        scrape.counter(
            "keylane_commits",
            "Commits mirrored to the broker",
            labels("outcome", outcome),
            count,
        );
    }
    for (name, state) in [("paused", PartitionState::Paused), ("stopped", PartitionState::Stopped)] {
        let count = pipeline.partitions.iter().filter(|p| p.state == state).count() as u64;
        scrape.gauge(
            "keylane_partitions",
            "Partitions that are paused or stopped",
            labels("state", name),
            count,
        );
    }
}

fn by_partition(scrape: &mut Scrape, pipeline: &PipelineStatus) {
    for partition in &pipeline.partitions {
        for (name, help, value) in [
            ("keylane_committed_position", "The lowest position not settled", partition.committed),
            ("keylane_end_position", "The next position to be given out", partition.end),
            (
                "keylane_partition_epoch",
                "The epoch a partition is owned under; 0 if it is not",
                partition.epoch,
            ),
        ] {
            let labels =
                vec![("pipeline", pipeline.name.clone()), ("partition", partition.partition.to_string())];
            scrape.gauge(name, help, labels, value);
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// The figures of one scrape, by name.
#[derive(Default)]
struct Scrape {
    gauges: Vec<(&'static str, &'static str, Family<Labels, Gauge>)>,
    counters: Vec<(&'static str, &'static str, Family<Labels, Counter>)>,
}

impl Scrape {
    fn gauge(&mut self, name: &'static str, help: &'static str, labels: Labels, value: u64) {
        family(&mut self.gauges, name, help)
            .get_or_create(&labels)
            .set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn counter(&mut self, name: &'static str, help: &'static str, labels: Labels, value: u64) {
        family(&mut self.counters, name, help).get_or_create(&labels).inc_by(value);
    }

    fn registry(self) -> Registry {
        let mut registry = Registry::default();
        for (name, help, gauge) in self.gauges {
            register(&mut registry, name, help, gauge);
        }
        for (name, help, counter) in self.counters {
            register(&mut registry, name, help, counter);
        }
        registry
    }
}

/// Registers a figure. One without labels is registered without its family, which would write empty braces.
fn register<M>(registry: &mut Registry, name: &str, help: &str, family: Family<Labels, M>)
where
    M: Clone + EncodeMetric + TypedMetric + fmt::Debug + Send + Sync + 'static,
{
    let alone = family.get(&Vec::new()).map(|metric| metric.clone());
    match alone {
        Some(metric) => registry.register(name, help, metric),
        None => registry.register(name, help, family),
    }
}

fn family<'a, M: Default>(
    families: &'a mut Vec<(&'static str, &'static str, Family<Labels, M>)>,
    name: &'static str,
    help: &'static str,
) -> &'a Family<Labels, M> {
    let at = families.iter().position(|(known, _, _)| *known == name);
    let at = at.unwrap_or_else(|| {
        families.push((name, help, Family::default()));
        families.len() - 1
    });
    &families[at].2
}
