//! Storing what is dead: body and report go to `hold.p` and are acknowledged before a journal record names them (BRK-6).
//!
//! An entry of `hold.p` is a format byte (1), a kind (1 body, 2 report), the source position as u64 little endian, and
//! the bytes: the message's frame as it was read, or a JSON object.

use bytes::{BufMut, Bytes, BytesMut};
use keylane_broker::{AppendError, BrokerError, Journal};
use keylane_core::{DeadEffect, DeadEntry, DeadReason, key_hash};
use serde::Serialize;

use crate::link::Rejection;
use crate::subscription::Subscription;

const FORMAT: u8 = 1;
const BODY: u8 = 1;
const REPORT: u8 = 2;
/// How often a copy is sent again before the partition starts over: each time is a new copy, and only one is named.
const TRIES_MAX: u32 = 5;
/// The priority of a dead letter (DLQ-3).
const PRIORITY: u8 = 5;

/// What is known about a message that was rejected.
#[derive(Debug, Serialize)]
struct Report<'a> {
    dead_letter_id: String,
    message_id: &'a str,
    failure_reason: &'static str,
    failure_details: &'a str,
    failure_time: u64,
    node_id: &'a str,
    retry_count: u32,
    source_topic: &'a str,
    source_partition: u32,
    source_offset: u64,
    source_timestamp: u64,
}

/// Stores a rejected message and what is known about it; answers with the entry that names them.
pub(crate) async fn store(
    hold: &dyn Journal,
    subscription: &Subscription,
    journal: u128,
    rejection: &Rejection,
) -> Result<DeadEntry, BrokerError> {
    let delivery = &rejection.delivery;
    let position = delivery.position();
    let report = Report {
        dead_letter_id: format!(
            "{}/{}/{}/{position}",
            subscription.pipeline,
            subscription.topic,
            delivery.partition()
        ),
        message_id: delivery.id(),
        failure_reason: "rejected",
        failure_details: &rejection.error,
        failure_time: subscription.clock.wall_ms(),
        node_id: &subscription.node,
        retry_count: rejection.attempt - 1,
        source_topic: &subscription.topic,
        source_partition: delivery.partition(),
        source_offset: position,
        source_timestamp: delivery.appended_ms(),
    };
    let report = serde_json::to_vec(&report).expect("numbers and text are JSON");
    let body = append(hold, entry(BODY, position, delivery.frame())).await?;
    let report = append(hold, entry(REPORT, position, &report)).await?;
    Ok(DeadEntry {
        position,
        key_hash: delivery.key().map(|key| key_hash(journal, key)),
        effect: DeadEffect::Passed,
        reason: DeadReason::Rejected,
        body,
        report: Some(report),
        tries: rejection.attempt,
        due_ms: None,
        priority: PRIORITY,
        command: None,
    })
}

fn entry(kind: u8, position: u64, bytes: &[u8]) -> Bytes {
    let mut entry = BytesMut::with_capacity(10 + bytes.len());
    entry.put_u8(FORMAT);
    entry.put_u8(kind);
    entry.put_u64_le(position);
    entry.put_slice(bytes);
    entry.freeze()
}

async fn append(hold: &dyn Journal, entry: Bytes) -> Result<u64, BrokerError> {
    let mut why = String::new();
    for _ in 0..TRIES_MAX {
        match hold.append(entry.clone(), None).await {
            Ok(position) => return Ok(position),
            Err(AppendError::Stopped(why)) => return Err(BrokerError::Stopped(why)),
            Err(error) => why = error.to_string(),
        }
    }
    Err(BrokerError::Unavailable(why))
}
