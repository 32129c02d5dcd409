//! Takes a client's reports, and replaces a client that is over.
//!
//! Both are done by a thread that the client has to itself: nobody waits for it but those whose messages it has. A
//! client is over when it cannot go on, when it gave back something that is to be sent again, or when all was called back.
//! From then on it gets nothing more. What it has queued is asked back; what is on its way is waited for, for a while,
//! since it may well be acknowledged. Then a new client is given all that did not end, in order.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;

use super::super::errors::produce_error;
use super::super::{clock, lock, write_lock};
use super::client::Report;
use super::send::{hand_again, hand_next};
use super::under_way::Answer;
use super::{Running, Shared};
use crate::contract::ProduceError;

/// How long the thread waits for a report before it looks whether it is still needed.
const WAIT: Duration = Duration::from_millis(100);
/// How long answers to what is on its way are waited for: much longer than a cluster that is there takes. What did not
/// come by then is sent again, and may be there twice.
const ANSWERS: Duration = Duration::from_secs(2);
/// How often what is queued is asked back: what is on its way may be queued again.
const ASK_MIN: Duration = Duration::from_millis(5);
const ASK_MAX: Duration = Duration::from_millis(500);
/// The first and the longest wait before a new client, while nothing is acknowledged.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(2);

/// Takes the reports of a client for as long as it is used.
pub(super) fn serve(shared: &Weak<Shared>, client: &Arc<Running>) {
    let mut reports = Vec::new();
    let mut client = Arc::clone(client);
    let mut rest = Duration::ZERO;
    loop {
        let told = client.native.poll(WAIT, &mut reports);
        let Some(here) = shared.upgrade() else { return };
        here.take(&client, &mut reports);
        if told && client.native.fatal().is_some() {
            client.is_over.store(true, Ordering::SeqCst);
        }
        if client.is_over.load(Ordering::SeqCst) {
            drop(here);
            let Some(new) = replace(shared, &client, &mut rest) else { return };
            client = new;
        }
    }
}

/// Takes back what a client has, and hands it to a new one, which is returned. None if nobody produces any more.
fn replace(shared: &Weak<Shared>, old: &Arc<Running>, rest: &mut Duration) -> Option<Arc<Running>> {
    let (mut reports, since, mut ask) = (Vec::new(), clock::now(), ASK_MIN);
    loop {
        let here = shared.upgrade()?;
        let late = since.elapsed() > ANSWERS || old.called_back.load(Ordering::SeqCst);
        old.native.purge(late);
        while old.native.poll(Duration::ZERO, &mut reports) {
            here.take(old, &mut reports);
        }
        if lock(&here.under_way).handed == 0 {
            break;
        }
        drop(here);
        if old.native.poll(ask, &mut reports) {
            shared.upgrade()?.take(old, &mut reports);
        } else {
            ask = (ask * 2).min(ASK_MAX);
        }
    }
    let mut answers = Vec::new();
    {
        let here = shared.upgrade()?;
        let mut under_way = lock(&here.under_way);
        // Whoever makes no progress takes more and more time.
        *rest = match std::mem::take(&mut under_way.progress) {
            true => Duration::ZERO,
            false => (*rest * 2).clamp(REST_MIN, REST_MAX),
        };
        if let Some(error) = old.native.fatal().and_then(denied) {
            answers.extend(under_way.end_backs(&error));
        }
        answers.extend(under_way.stop_behind());
    }
    answers.into_iter().for_each(Answer::give);
    loop {
        clock::sleep(*rest);
        let here = shared.upgrade()?;
        match Running::new(&here.config, &here.context, &here.leaders) {
            Ok(new) => {
                here.go_on(&new);
                return Some(new);
            }
            Err(error) => {
                tracing::error!(%error, "kafka: a producer could not be made; it is tried again");
                *rest = REST_MAX;
            }
        }
    }
}

/// What a client that cannot go on means for what it has, if another could not do better.
fn denied(code: RDKafkaErrorCode) -> Option<ProduceError> {
    let error = produce_error("the cluster", code);
    matches!(error, ProduceError::Denied(_)).then_some(error)
}

impl Shared {
    /// Takes reports of one batch.
    fn take(&self, client: &Running, reports: &mut Vec<Report>) {
        if reports.is_empty() {
            return;
        }
        let mut answers = Vec::new();
        let acknowledged = reports.iter().find(|report| report.result.is_ok()).map(|report| report.broker);
        let mut under_way = lock(&self.under_way);
        let (place, came_back) = under_way.report(reports, &mut answers);
        if came_back {
            client.is_over.store(true, Ordering::SeqCst);
        }
        if let Some(place) = &place
            && !client.is_over.load(Ordering::SeqCst)
        {
            hand_next(client, &mut under_way, place);
        }
        drop(under_way);
        reports.clear();
        if let (Some(broker), Some((topic, partition))) = (acknowledged, &place) {
            self.context.reached();
            self.leaders.acknowledged(topic, *partition, broker);
        }
        answers.into_iter().for_each(Answer::give);
    }

    /// Gives a new client all that did not end, in order, and lets it have what comes.
    fn go_on(&self, new: &Arc<Running>) {
        let mut client = write_lock(&self.client);
        *client = Arc::clone(new);
        let mut under_way = lock(&self.under_way);
        let (by_place, held) = under_way.sort();
        let (again, partitions) =
            (by_place.values().map(Vec::len).sum::<usize>(), by_place.len() + held.len());
        tracing::debug!(again, partitions, held = held.len(), "kafka: a producer was replaced");
        by_place.values().for_each(|numbers| hand_again(new, &mut under_way, numbers));
        held.iter().for_each(|place| hand_next(new, &mut under_way, place));
    }
}
