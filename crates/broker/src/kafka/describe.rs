//! Asks the cluster what a topic is: its id, which a topic that was deleted and made again does not keep (BRK-10), and
//! its partitions. The Rust wrapper has no call for it. It never creates a topic, as asking for metadata can.
#![allow(unsafe_code, reason = "calls librdkafka; see above")]

use std::ffi::{CStr, CString, c_int};
use std::time::Duration;

use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;

use super::errors::broker_error_of;
use crate::contract::BrokerError;

/// A topic as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    /// Its id.
    pub(crate) id: u128,
    pub(crate) partitions: u32,
    pub(crate) replicas: u32,
}

/// A client's native handle. Whoever has it keeps the client alive.
pub(crate) struct Native(pub(crate) *mut rd::rd_kafka_t);

// SAFETY: librdkafka's calls that are made here may be made from any thread.
unsafe impl Send for Native {}

/// Describes topics; those that are not there are left out. Blocks until it is answered.
pub(crate) fn describe(
    client: &Native,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<Described>, BrokerError> {
    let names: Vec<CString> = topics.iter().filter_map(|topic| CString::new(topic.as_str()).ok()).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as c_int;
    // SAFETY: everything that is made is destroyed here, after the answer was read; the answer's parts live as long as
    // its event.
    unsafe {
        let collection = rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let options = rd::rd_kafka_AdminOptions_new(
            client.0,
            rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        );
        let mut error = [0; 256];
        rd::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, error.as_mut_ptr(), error.len());
        let queue = rd::rd_kafka_queue_new(client.0);
        rd::rd_kafka_DescribeTopics(client.0, collection, options, queue);
        let event = rd::rd_kafka_queue_poll(queue, timeout_ms.saturating_add(1_000));
        let described = match event.is_null() {
            true => Err(BrokerError::Unavailable("it did not describe a topic in time".to_owned())),
            false => read(event),
        };
        rd::rd_kafka_event_destroy(event);
        rd::rd_kafka_queue_destroy(queue);
        rd::rd_kafka_AdminOptions_destroy(options);
        rd::rd_kafka_TopicCollection_destroy(collection);
        described
    }
}

/// # Safety
/// `event` is an event that answers a description.
unsafe fn read(event: *mut rd::rd_kafka_event_t) -> Result<Vec<Described>, BrokerError> {
    // SAFETY: by the caller; all that is read belongs to the event.
    unsafe {
        let failed = rd::rd_kafka_event_error(event);
        if failed != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(broker_error_of("the cluster", RDKafkaErrorCode::from(failed)));
        }
        let mut count = 0;
        let result = rd::rd_kafka_event_DescribeTopics_result(event);
        let topics = rd::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let mut described = Vec::with_capacity(count);
        for index in 0..count {
            described.extend(read_topic(*topics.add(index))?);
        }
        Ok(described)
    }
}

/// # Safety
/// `topic` is a description of an event that lives.
unsafe fn read_topic(
    topic: *const rd::rd_kafka_TopicDescription_t,
) -> Result<Option<Described>, BrokerError> {
    // SAFETY: by the caller.
    unsafe {
        let name = CStr::from_ptr(rd::rd_kafka_TopicDescription_name(topic)).to_string_lossy().into_owned();
        let error = rd::rd_kafka_TopicDescription_error(topic);
        if !error.is_null() {
            let code = RDKafkaErrorCode::from(rd::rd_kafka_error_code(error));
            return match broker_error_of(&name, code) {
                BrokerError::UnknownTopic(_) => Ok(None),
                other => Err(other),
            };
        }
        let id = rd::rd_kafka_TopicDescription_topic_id(topic);
        let half = |bits: i64| u128::from(bits.cast_unsigned());
        let id = half(rd::rd_kafka_Uuid_most_significant_bits(id)) << 64
            | half(rd::rd_kafka_Uuid_least_significant_bits(id));
        let (mut partitions, mut replicas) = (0, 0);
        let first = rd::rd_kafka_TopicDescription_partitions(topic, &raw mut partitions);
        if partitions > 0 {
            rd::rd_kafka_TopicPartitionInfo_replicas(*first, &raw mut replicas);
        }
        Ok(Some(Described { name, id, partitions: partitions as u32, replicas: replicas as u32 }))
    }
}
