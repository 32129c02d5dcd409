//! What librdkafka's clients tell about themselves every few seconds, added up for metrics.

use std::collections::{BTreeMap, HashMap};

use rdkafka::Statistics;

use crate::contract::{ClientBroker, ClientFigures};

/// Reports after which one that was not renewed belongs to a client that is gone.
const STALE_REPORTS: i64 = 3;
/// For so long a client that was silent is remembered, in seconds: on a machine without time it reports late, and what it
/// has sent since it began must not be counted a second time.
const REMEMBERED_S: i64 = 600;

/// The last report of each client.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    clients: HashMap<String, (i64, ClientFigures)>,
    /// Reports from before this second are of clients that are gone.
    fresh_since: i64,
    /// Requests of all clients, also of those that are gone.
    sent: u64,
}

impl Reported {
    /// Takes in a report. `interval_ms` is how often each client makes one.
    pub(crate) fn take(&mut self, told: &Statistics, interval_ms: i64) {
        let stale_s = (STALE_REPORTS * interval_ms / 1_000).max(2);
        self.fresh_since = self.fresh_since.max(told.time - stale_s);
        self.clients.retain(|_, (at, _)| *at >= told.time - stale_s.max(REMEMBERED_S));
        let figures = figures(told);
        let before = self.clients.get(&told.name).map_or(0, |(_, before)| before.sent);
        self.sent += figures.sent.saturating_sub(before);
        self.clients.insert(told.name.clone(), (told.time, figures));
    }

    /// All of them together.
    pub(crate) fn all(&self) -> ClientFigures {
        let mut all = ClientFigures { sent: self.sent, ..ClientFigures::default() };
        let mut brokers = BTreeMap::<u32, ClientBroker>::new();
        for (_, one) in self.clients.values().filter(|(at, _)| *at >= self.fresh_since) {
            all.queued_messages += one.queued_messages;
            all.queued_bytes += one.queued_bytes;
            all.ahead_messages += one.ahead_messages;
            all.ahead_bytes += one.ahead_bytes;
            all.behind.extend(one.behind.iter().cloned());
            for broker in &one.brokers {
                let sum = brokers.entry(broker.id).or_default();
                sum.id = broker.id;
                sum.round_trip_us = sum.round_trip_us.max(broker.round_trip_us);
                sum.throttled_ms = sum.throttled_ms.max(broker.throttled_ms);
                sum.requests += broker.requests;
            }
        }
        // A partition that two clients read is as far as the one that is farther.
        all.behind.sort();
        all.behind.dedup_by(|next, kept| next.0 == kept.0 && next.1 == kept.1);
        all.brokers = brokers.into_values().collect();
        all
    }
}

fn figures(told: &Statistics) -> ClientFigures {
    let positive = |number: i64| u64::try_from(number).unwrap_or(0);
    let mut figures = ClientFigures {
        sent: positive(told.tx),
        queued_messages: told.msg_cnt,
        queued_bytes: told.msg_size,
        ..ClientFigures::default()
    };
    for broker in told.brokers.values() {
        // Those that were only named at the beginning, and the group's, have no number of their own.
        let Ok(id) = u32::try_from(broker.nodeid) else { continue };
        figures.brokers.push(ClientBroker {
            id,
            round_trip_us: broker.rtt.as_ref().map_or(0, |window| positive(window.avg)),
            throttled_ms: broker.throttle.as_ref().map_or(0, |window| positive(window.avg)),
            requests: positive(broker.outbuf_cnt) + positive(broker.waitresp_cnt),
        });
    }
    for topic in told.topics.values() {
        for (number, partition) in &topic.partitions {
            let Ok(number) = u32::try_from(*number) else { continue };
            figures.ahead_messages += positive(partition.fetchq_cnt);
            figures.ahead_bytes += partition.fetchq_size;
            if partition.fetch_state == "active" && partition.ls_offset >= 0 {
                let next = partition.app_offset.max(partition.query_offset).max(0);
                figures.behind.push((topic.topic.clone(), number, positive(partition.ls_offset - next)));
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, time: i64, throttled_ms: i64, ahead_bytes: u64) -> Statistics {
        let mut told = Statistics { name: name.to_owned(), time, ..Statistics::default() };
        (told.msg_cnt, told.msg_size, told.tx) = (2, 20, time);
        let mut broker = rdkafka::statistics::Broker { nodeid: 1, ..Default::default() };
        broker.throttle = Some(rdkafka::statistics::Window { avg: throttled_ms, ..Default::default() });
        broker.outbuf_cnt = 3;
        told.brokers.insert("b".to_owned(), broker);
        let mut topic = rdkafka::statistics::Topic { topic: "t".to_owned(), ..Default::default() };
        let mut partition = rdkafka::statistics::Partition { fetchq_size: ahead_bytes, ..Default::default() };
        partition.fetch_state = "active".to_owned();
        (partition.ls_offset, partition.app_offset) = (100, 90);
        topic.partitions.insert(0, partition);
        told.topics.insert("t".to_owned(), topic);
        told
    }

    /// ADM-3, P5: figures of all clients are added up, and those of a client that is gone are forgotten.
    #[test]
    fn figures_of_all_clients_are_added_up() {
        let mut reported = Reported::default();
        reported.take(&told("one", 100, 7, 1000), 1_000);
        reported.take(&told("other", 100, 40, 500), 1_000);
        let all = reported.all();
        assert_eq!((all.queued_messages, all.queued_bytes, all.ahead_bytes), (4, 40, 1500));
        assert_eq!(all.sent, 200);
        assert_eq!(all.behind, [("t".to_owned(), 0, 10)]);
        let [broker] = &all.brokers[..] else { panic!("{all:?}") };
        assert_eq!((broker.id, broker.throttled_ms, broker.requests), (1, 40, 6));
        reported.take(&told("one", 110, 7, 1000), 1_000);
        assert_eq!(reported.all().ahead_bytes, 1000, "the other has not reported for long");
        assert!(reported.all().sent >= 210, "what was sent stays counted");
    }

    /// ADM-3: on a busy machine a client reports late. What it sent before is not counted again.
    #[test]
    fn what_a_client_sent_is_counted_once_however_late_it_reports() {
        let mut reported = Reported::default();
        reported.take(&told("late", 100, 0, 1000), 1_000);
        reported.take(&told("other", 110, 0, 0), 1_000);
        assert_eq!((reported.all().sent, reported.all().ahead_bytes), (210, 0), "it is taken for gone");
        reported.take(&told("late", 111, 0, 1000), 1_000);
        assert_eq!((reported.all().sent, reported.all().ahead_bytes), (221, 1000));
    }
}
