//! Takes a client's reports, and replaces a client that is over.
//!
//! Both are done by a thread of their own: nobody waits for it but those whose messages the client has. A
//! client is over when it cannot go on, when it gave back something that is to be sent again, or when all was called back.
//! From then on it gets nothing more. What it has queued is asked back; what is on its way is waited for, for a while,
//! since it may well be acknowledged. Then a new client is given all that did not end, in order.
//!
//! A client of which a thread does not come back, because it looks up a name, is given up with what it has: nobody takes
//! its reports any more, so that no message can end twice. It was told to forget all that before, and it is being
//! ended, so that the thread sends nothing when it does come back.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;

use super::super::errors::produce_error;
use super::super::{clock, lock, read_lock, write_lock};
use super::client::Report;
use super::send::hand_next;
use super::under_way::{Answer, Place, Progress};
use super::{Running, Shared};
use crate::contract::ProduceError;

/// How long the thread waits for a report before it looks whether it is still needed.
const WAIT: Duration = Duration::from_millis(100);
/// How long answers to what is on its way are waited for at least: much longer than a cluster that is there takes. What
/// is given up then is sent again, and may be there twice, the second time behind what is newer.
const ANSWERS: Duration = Duration::from_secs(2);
/// And for as long as one of the leaders is not silent for so long: one that throttles us answers late.
const SILENT: Duration = Duration::from_secs(5);
/// How long a client may take to give back what is on its way, until it is given up: it waits for nobody then.
const GIVE_UP: Duration = Duration::from_secs(3);
/// How often what is queued is asked back: what is on its way may be queued again.
const ASK_MIN: Duration = Duration::from_millis(5);
const ASK_MAX: Duration = Duration::from_millis(500);
/// The first and the longest wait before a new client, while nothing is acknowledged.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(2);

/// Takes the reports of clients for as long as somebody produces.
pub(super) fn serve(shared: &Weak<Shared>) {
    let mut reports = Vec::new();
    let mut rest = Duration::ZERO;
    let Some(mut client) = shared.upgrade().map(|here| Arc::clone(&read_lock(&here.client))) else { return };
    loop {
        let told = client.native.poll(WAIT, &mut reports);
        let Some(here) = shared.upgrade() else { return };
        here.context.threads.may_be_struck(here.name);
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
    let mut late = None;
    loop {
        let here = shared.upgrade()?;
        let called_back = old.called_back.load(Ordering::SeqCst);
        if late.is_none() && (called_back || since.elapsed() > ANSWERS && !here.may_answer()) {
            late = Some(clock::now());
        }
        old.native.purge(late.is_some());
        while old.native.poll(Duration::ZERO, &mut reports) {
            here.take(old, &mut reports);
        }
        if lock(&here.under_way).handed == 0 {
            break;
        }
        if late.is_some_and(|late| late.elapsed() > GIVE_UP) {
            here.give_up();
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
            Progress::Made => Duration::ZERO,
            Progress::Refused => REST_MIN,
            Progress::None => (*rest * 2).clamp(REST_MIN, REST_MAX),
        };
        if let Some(error) = old.native.fatal().and_then(denied) {
            answers.extend(under_way.end_backs(&error));
        }
        answers.extend(under_way.end_denied());
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
    /// Whether an answer to what is on its way may well come: one of its leaders acknowledged something a moment ago, or
    /// throttles us.
    fn may_answer(&self) -> bool {
        let places = lock(&self.under_way).handed_to();
        let silence = |(topic, partition): &Place| self.leaders.silence(topic, *partition);
        places.iter().filter_map(silence).any(|silence| silence < SILENT)
    }

    /// Gives up the client that is over, with what it has: nobody takes its reports any more.
    fn give_up(&self) {
        // Nobody is in the middle of handing something over.
        let client = write_lock(&self.client);
        let (given_up, answers) = lock(&self.under_way).give_up();
        drop(client);
        tracing::warn!(given_up, "kafka: a producer does not give back what it has, and is given up");
        answers.into_iter().for_each(Answer::give);
    }

    /// Takes reports of one batch.
    fn take(&self, client: &Running, reports: &mut Vec<Report>) {
        if reports.is_empty() {
            return;
        }
        let mut answers = Vec::new();
        let acknowledged = reports.iter().find(|report| report.result.is_ok()).map(|report| report.broker);
        let mut under_way = lock(&self.under_way);
        let (places, came_back) = under_way.report(reports, &mut answers);
        if came_back {
            client.is_over.store(true, Ordering::SeqCst);
        }
        places.iter().for_each(|place| hand_next(client, &mut under_way, place, &mut answers));
        drop(under_way);
        reports.clear();
        if let (Some(broker), Some((topic, partition))) = (acknowledged, places.first()) {
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
        let places = under_way.hold_all();
        tracing::debug!(partitions = places.len(), "kafka: a producer was replaced");
        let mut answers = Vec::new();
        places.iter().for_each(|place| hand_next(new, &mut under_way, place, &mut answers));
        drop((under_way, client));
        answers.into_iter().for_each(Answer::give);
    }
}
