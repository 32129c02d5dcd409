//! Messages become records: which are taken, which wait, and what goes beside each on the wire.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keylane_core::{Delivery, Frames};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::oneshot;

use super::super::errors::produce_error;
use super::super::wire::{Headers, reserved};
use super::super::{clock, lock};
use super::client::{Bare, Native, Outgoing, bare, number_of};
use super::under_way::{Answer, Open, Place, UnderWay, not_heard_of, number};
use super::{Results, Rules, Running, Shared};
use crate::contract::{ProduceError, Topic};

/// What a look at a call's messages found.
#[derive(Default)]
struct Looked {
    refused: Vec<(u64, ProduceError)>,
    /// Not handed over: the partition is shut.
    turned_away: Vec<(u64, u32)>,
    /// Not handed over: the client is being replaced, or the partition is held back.
    back: Vec<(u64, u32)>,
    /// Not taken by the client.
    failed: Vec<(u64, u32, RDKafkaErrorCode)>,
    /// Partitions of which nothing more of the call is handed over, and why: the client may have heard of one by the time
    /// that the next message comes, which would overtake.
    stopped: HashMap<u32, RDKafkaErrorCode>,
}

impl Looked {
    fn not_taken(&mut self, number: u64, partition: u32, code: RDKafkaErrorCode) {
        if !is_alone(&produce_error("", code)) {
            self.stopped.insert(partition, code);
        }
        self.failed.push((number, partition, code));
    }
}

/// True for what a message, or its topic, is to blame for: no other try would end better.
fn is_alone(error: &ProduceError) -> bool {
    matches!(error, ProduceError::TooLargeThere(_) | ProduceError::Invalid(_) | ProduceError::Denied(_))
}

/// Partitions of a topic to which nothing is handed over now.
struct Closed {
    /// What comes waits.
    held: HashSet<u32>,
    /// What comes fails.
    shut: HashSet<u32>,
}

/// True for what says that the client does not know a topic or a partition.
fn is_unknown(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::UnknownPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownTopicOrPartition
    )
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
        let Some(Closed { held, shut }) = self.begin(topic, &name, call, frames, done) else { return };
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
            if shut.contains(&partition) {
                looked.turned_away.push((number, partition));
                continue;
            }
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

    /// The call is under way from now on, unless its topic takes nothing.
    fn begin(
        &self,
        topic: &Topic,
        name: &Arc<str>,
        call: u64,
        frames: &Frames,
        done: oneshot::Sender<Results>,
    ) -> Option<Closed> {
        let mut of_call = vec![false; topic.partitions as usize];
        for (partition, _) in frames.iter() {
            if let Some(is_of_call) = of_call.get_mut(partition as usize) {
                *is_of_call = true;
            }
        }
        let partitions = (0..topic.partitions).filter(|partition| of_call[*partition as usize]);
        let mut under_way = lock(&self.under_way);
        if let Some(why) = under_way.denied(name) {
            let _nobody_waits = done.send(vec![Err(why); frames.len()]);
            return None;
        }
        under_way.hold_unprimed(name, partitions);
        under_way.begin(call, Open::new(Arc::clone(name), Some(frames.clone()), frames.len(), done));
        Some(Closed { held: under_way.held_of(name), shut: under_way.shut_of(name) })
    }

    fn note(&self, client: &Running, topic: &Topic, name: &Arc<str>, looked: Looked) {
        let Looked { refused, turned_away, back, failed, .. } = looked;
        if refused.is_empty() && turned_away.is_empty() && back.is_empty() && failed.is_empty() {
            return;
        }
        let mut under_way = lock(&self.under_way);
        let mut answers = Vec::new();
        answers.extend(refused.into_iter().filter_map(|(number, error)| under_way.refuse(number, error)));
        for (number, partition) in turned_away {
            answers.extend(under_way.turn_away(number, &(Arc::clone(name), partition)));
        }
        let mut places = BTreeSet::new();
        for (number, partition) in back {
            let place = (Arc::clone(name), partition);
            if under_way.hold(&place, number) {
                places.insert(place);
                continue;
            }
            under_way.put_back(number);
            // It was held back, and is not any more: all that was before it has been handed over.
            if !client.is_over.load(Ordering::SeqCst) {
                hand_again(client, &mut under_way, &[number], &mut answers);
            }
        }
        places.iter().for_each(|place| hand_next(client, &mut under_way, place, &mut answers));
        for (number, partition, code) in failed {
            match code {
                // It cannot go on since a moment ago, and is replaced.
                RDKafkaErrorCode::Fatal => under_way.put_back(number),
                // It is there: the client has not heard of it, or was told otherwise by a broker that had not.
                code if is_unknown(code) => {
                    answers.extend(under_way.refuse(number, not_heard_of(&topic.name, partition)));
                }
                code => answers.extend(under_way.refuse(number, produce_error(&topic.name, code))),
            }
        }
        drop(under_way);
        answers.into_iter().for_each(Answer::give);
    }
}

/// Hands over messages of one partition that are open and with nobody, in this order. How many the client took.
fn hand_again(
    client: &Running,
    under_way: &mut UnderWay,
    numbers: &[u64],
    answers: &mut Vec<Answer>,
) -> usize {
    let (now_ms, mut handed) = (clock::wall_ms(), 0);
    for (at, number) in numbers.iter().enumerate() {
        if under_way.suspects(*number).is_none() {
            continue;
        }
        let Some((place, message)) = under_way.message(*number) else { continue };
        let headers = Headers::of(&message, under_way.has_id(*number), now_ms);
        let Err(code) = client.native.send(&place.0, &outgoing(&message, *number), headers.iter()) else {
            under_way.hand(*number);
            handed += 1;
            continue;
        };
        let error = produce_error(&place.0, code);
        if is_alone(&error) {
            // The next client would not take it either. What may not go behind it ends, too.
            answers.extend(under_way.end(*number, Err(error)));
            answers.extend(under_way.stop_behind());
            continue;
        }
        if is_unknown(code) {
            // The client may know the partition when the next message comes, which would overtake.
            answers.extend(under_way.end(*number, Err(not_heard_of(&place.0, place.1))));
            let behind = numbers[at..].iter().filter_map(|number| under_way.turn_back_away(*number, &place));
            answers.extend(behind);
        } else {
            // The next client is given it, and all behind it.
            client.is_over.store(true, Ordering::SeqCst);
        }
        break;
    }
    handed
}

/// Hands over the next part of a partition that is held back, if its turn has come, and the client goes on.
pub(super) fn hand_next(
    client: &Running,
    under_way: &mut UnderWay,
    place: &Place,
    answers: &mut Vec<Answer>,
) {
    while !client.is_over.load(Ordering::SeqCst) {
        if under_way.is_shut(place) {
            // What waits would overtake what failed.
            answers.extend(under_way.end_waiting(place));
            return;
        }
        let part = under_way.next_part(place);
        if part.is_empty() {
            return;
        }
        // Nobody reports a part of which the client took nothing: the next one goes at once.
        let handed = hand_again(client, under_way, &part, answers);
        under_way.went_out(place, handed);
    }
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
    let partition = message.partition();
    let sent = match looked.stopped.get(&partition) {
        Some(code) => Err(*code),
        None => native.send(topic, &outgoing(message, number), headers.iter()),
    };
    if let Err(code) = sent {
        looked.not_taken(number, partition, code);
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
    let Some(mut batch) = batches.remove(&partition) else { return };
    match looked.stopped.get(&partition) {
        Some(code) => {
            let code = *code;
            batch.iter().for_each(|record| looked.not_taken(number_of(record), partition, code));
        }
        None => native.send_all(topic, partition, &mut batch, |number, code| {
            looked.not_taken(number, partition, code);
        }),
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

#[cfg(test)]
mod tests {
    use keylane_core::Draft;
    use rdkafka::ClientConfig;

    use super::*;
    use crate::kafka::context::Context;
    use crate::kafka::produce::client::ProducerContext;

    /// PRD-3, P2: once a message of a partition was not taken, none behind it in its call is, though the client may have
    /// heard of the partition by then. Other partitions go on, and so does what a message alone is to blame for.
    #[test]
    fn nothing_of_a_call_goes_behind_a_message_whose_partition_the_client_did_not_know() {
        let told = ProducerContext { context: Context::default(), leaders: Arc::default() };
        // It takes whatever it is given, and waits for a cluster.
        let native = Native::new(ClientConfig::new().set("bootstrap.servers", "127.0.0.1:1"), told);
        let (native, topic) = (native.expect("it is made"), Arc::<str>::from("t"));
        let mut frames = Frames::default();
        for partition in [3, 4] {
            frames.push(partition, &Draft { id: "id", ..Draft::default() }).expect("a valid draft");
        }
        let at: Vec<Delivery> = frames.messages().map(|message| message.expect("a good frame")).collect();
        let not_taken_behind = |code| {
            let mut looked = Looked::default();
            looked.not_taken(0, 3, code);
            for (number, message) in [(1, &at[0]), (2, &at[1])] {
                let headers = Headers::of(message, true, 0);
                send(&native, &topic, message, number, &headers, &mut looked);
            }
            for (number, message) in [(3, &at[0]), (4, &at[1])] {
                let gathered = vec![bare(&outgoing(message, number))];
                flush(
                    &native,
                    &topic,
                    message.partition(),
                    &mut [(message.partition(), gathered)].into(),
                    &mut looked,
                );
            }
            looked.failed.iter().map(|(number, ..)| *number).collect::<Vec<u64>>()
        };
        for code in [
            RDKafkaErrorCode::UnknownPartition,
            RDKafkaErrorCode::UnknownTopic,
            RDKafkaErrorCode::QueueFull,
            RDKafkaErrorCode::Fatal,
        ] {
            assert_eq!(not_taken_behind(code), [0, 1, 3], "{code}");
        }
        assert_eq!(not_taken_behind(RDKafkaErrorCode::MessageSizeTooLarge), [0]);
    }
}
