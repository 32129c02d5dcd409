//! Messages become records: which are taken, which wait, and what goes beside each on the wire.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keylane_core::{Delivery, Frames};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::oneshot;

use super::super::clock;
use super::super::errors::produce_error;
use super::super::lock;
use super::super::wire::{Headers, reserved};
use super::client::{Bare, Native, Outgoing, bare};
use super::under_way::{Answer, Open, Place, UnderWay, number};
use super::{Results, Rules, Running, Shared};
use crate::contract::{ProduceError, Topic};

/// What a look at a call's messages found.
#[derive(Default)]
struct Looked {
    refused: Vec<(u64, ProduceError)>,
    /// Not handed over: the client is being replaced, or the partition is held back.
    back: Vec<(u64, u32)>,
    /// Not taken by the client.
    failed: Vec<(u64, u32, RDKafkaErrorCode)>,
}

impl Shared {
    /// Hands a call's messages to the client. The caller holds it.
    pub(super) fn hand_over(
        &self,
        client: &Running,
        topic: &Topic,
        rules: Rules,
        call: u64,
        frames: &Frames,
        done: oneshot::Sender<Results>,
    ) {
        let name: Arc<str> = topic.name.as_str().into();
        let held = {
            let mut under_way = lock(&self.under_way);
            under_way.begin(call, Open::new(Arc::clone(&name), Some(frames.clone()), frames.len(), done));
            under_way.held_of(&name)
        };
        let is_over = client.is_over.load(Ordering::SeqCst);
        let mut looked = Looked::default();
        let mut refused_keys = HashSet::new();
        let mut batches = HashMap::<u32, Vec<_>>::new();
        let now_ms = clock::wall_ms();
        for (index, message) in frames.messages().enumerate() {
            let number = number(call, index);
            let checked = message.map_err(|error| ProduceError::Invalid(error.to_string()));
            let message = match checked.and_then(|message| checked_by(topic, rules, message)) {
                Ok(message) => message,
                Err(error) => {
                    if frames.stops_at_refused() {
                        let message = frames.message(index).and_then(Result::ok);
                        refused_keys.extend(message.and_then(|message| message.key().map(<[u8]>::to_vec)));
                    }
                    looked.refused.push((number, error));
                    continue;
                }
            };
            if !refused_keys.is_empty() && message.key().is_some_and(|key| refused_keys.contains(key)) {
                looked.refused.push((number, ProduceError::Behind));
                continue;
            }
            let partition = message.partition();
            if is_over || held.contains(&partition) {
                looked.back.push((number, partition));
                continue;
            }
            let headers = Headers::of(&message, frames.has_id(index), now_ms);
            // Many at once is much quicker, and takes no headers.
            if headers.is_empty() {
                batches.entry(partition).or_default().push(bare(&outgoing(&message, number)));
            } else {
                // What was before it in its partition goes first.
                flush(&client.native, &name, partition, &mut batches, &mut looked);
                send(&client.native, &name, &message, number, &headers, &mut looked);
            }
        }
        let partitions: Vec<u32> = batches.keys().copied().collect();
        for partition in partitions {
            flush(&client.native, &name, partition, &mut batches, &mut looked);
        }
        self.note(client, topic, &name, looked);
    }

    fn note(&self, client: &Running, topic: &Topic, name: &Arc<str>, looked: Looked) {
        let Looked { refused, back, failed } = looked;
        if refused.is_empty() && back.is_empty() && failed.is_empty() {
            return;
        }
        let mut under_way = lock(&self.under_way);
        let mut answers = Vec::new();
        answers.extend(refused.into_iter().filter_map(|(number, error)| under_way.refuse(number, error)));
        for (number, partition) in back {
            let place = (Arc::clone(name), partition);
            if under_way.hold(&place, number) {
                continue;
            }
            under_way.put_back(number);
            // It was held back, and is not any more: all that was before it has been handed over.
            if !client.is_over.load(Ordering::SeqCst) {
                hand_again(client, &mut under_way, &[number]);
            }
        }
        for (number, partition, code) in failed {
            match code {
                // It cannot go on since a moment ago, and is replaced.
                RDKafkaErrorCode::Fatal => under_way.put_back(number),
                // It is there: the client has not heard of it.
                RDKafkaErrorCode::UnknownPartition => {
                    let text = format!("the client does not know {}/{partition} yet", topic.name);
                    answers.extend(under_way.refuse(number, ProduceError::Unavailable(text)));
                }
                code => answers.extend(under_way.refuse(number, produce_error(&topic.name, code))),
            }
        }
        drop(under_way);
        answers.into_iter().for_each(Answer::give);
    }
}

/// Hands over messages of one partition that are open and with nobody, in this order.
pub(super) fn hand_again(client: &Running, under_way: &mut UnderWay, numbers: &[u64]) {
    let now_ms = clock::wall_ms();
    for number in numbers {
        let Some(((name, _), message)) = under_way.message(*number) else { continue };
        let headers = Headers::of(&message, under_way.has_id(*number), now_ms);
        if client.native.send(&name, &outgoing(&message, *number), headers.iter()).is_err() {
            // The next client is given it, and all behind it.
            client.is_over.store(true, Ordering::SeqCst);
            return;
        }
        under_way.hand(*number);
    }
}

/// Hands over the next part of a partition that is held back, if its turn has come.
pub(super) fn hand_next(client: &Running, under_way: &mut UnderWay, place: &Place) {
    let part = under_way.next_part(place);
    hand_again(client, under_way, &part);
}

fn outgoing(message: &Delivery, number: u64) -> Outgoing<'_> {
    Outgoing { partition: message.partition(), key: message.key(), payload: message.payload(), number }
}

fn send(
    native: &Native,
    topic: &Arc<str>,
    message: &Delivery,
    number: u64,
    headers: &Headers<'_>,
    looked: &mut Looked,
) {
    if let Err(code) = native.send(topic, &outgoing(message, number), headers.iter()) {
        looked.failed.push((number, message.partition(), code));
    }
}

/// Hands over what was gathered of a partition.
fn flush(
    native: &Native,
    topic: &Arc<str>,
    partition: u32,
    batches: &mut HashMap<u32, Vec<Bare>>,
    looked: &mut Looked,
) {
    if let Some(mut batch) = batches.remove(&partition) {
        native.send_all(topic, partition, &mut batch, |number, code| {
            looked.failed.push((number, partition, code));
        });
    }
}

/// A message, if its topic takes it as far as is known here.
fn checked_by(topic: &Topic, rules: Rules, message: Delivery) -> Result<Delivery, ProduceError> {
    let (name, partition, bytes) = (&topic.name, message.partition(), message.size());
    if partition >= topic.partitions {
        return Err(ProduceError::UnknownTopic(format!("{name}/{partition}")));
    }
    let bytes_max = topic.spec.message_bytes_max;
    if bytes > bytes_max {
        return Err(ProduceError::TooLarge { topic: name.clone(), bytes, bytes_max });
    }
    if rules.compacted && message.key().is_none() {
        return Err(ProduceError::Keyless(name.clone()));
    }
    if let Some(header) = reserved(&message) {
        return Err(ProduceError::Invalid(format!(
            "the header {header:?} cannot be used: names that begin with keylane- are taken"
        )));
    }
    Ok(message)
}
