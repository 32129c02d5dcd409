//! Questions to the cluster that the Rust wrapper has no call for, or whose reasons it does not tell: describing topics
//! with their ids, making them with the cluster's own words if it refuses, and changing single settings.
//!
//! Each call blocks until it is answered. Whatever is made for a question is given back before the call returns.
#![allow(unsafe_code, reason = "calls librdkafka; see above")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::time::Duration;

use rdkafka::bindings as rd;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;

use crate::contract::BrokerError;
use crate::kafka::errors::broker_error_of;

/// A client's native handle. Whoever has it keeps the client alive.
pub(crate) struct Native(pub(crate) *mut rd::rd_kafka_t);

// SAFETY: librdkafka's calls that are made here may be made from any thread.
unsafe impl Send for Native {}

/// Why the cluster did not do something, with its own words where it has any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: RDKafkaErrorCode,
    pub(crate) why: String,
}

/// Asks one question: `send` hands it to the client, `read` looks at the answer.
///
/// # Safety
/// `send` sends exactly one request of the kind `op` to the queue that it is given; `read` reads nothing of the event
/// after it returns.
unsafe fn ask<T>(
    client: &Native,
    op: rd::rd_kafka_admin_op_t,
    timeout: Duration,
    send: impl FnOnce(*mut rd::rd_kafka_AdminOptions_t, *mut rd::rd_kafka_queue_t),
    read: impl FnOnce(*mut rd::rd_kafka_event_t) -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as c_int;
    // SAFETY: everything that is made is destroyed here, after the answer was read; the answer's parts live as long as
    // its event.
    unsafe {
        let options = rd::rd_kafka_AdminOptions_new(client.0, op);
        let mut error = [0; 256];
        rd::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, error.as_mut_ptr(), error.len());
        let queue = rd::rd_kafka_queue_new(client.0);
        send(options, queue);
        let event = rd::rd_kafka_queue_poll(queue, timeout_ms.saturating_add(1_000));
        let answer = match event.is_null() {
            true => Err(BrokerError::Unavailable("the cluster did not answer in time".to_owned())),
            false => match rd::rd_kafka_event_error(event) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => read(event),
                failed => Err(broker_error_of("the cluster", RDKafkaErrorCode::from(failed))),
            },
        };
        rd::rd_kafka_event_destroy(event);
        rd::rd_kafka_queue_destroy(queue);
        rd::rd_kafka_AdminOptions_destroy(options);
        answer
    }
}

/// A topic as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    /// Its id, which a topic that was deleted and made again does not keep (BRK-10).
    pub(crate) id: u128,
    pub(crate) partitions: u32,
    pub(crate) replicas: u32,
}

/// Describes topics; those that are not there are left out. It never creates one, as asking for metadata can.
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
    // SAFETY: the names live until the answer was read, and the collection is destroyed behind that.
    unsafe {
        let collection = rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let described = ask(
            client,
            rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            timeout,
            |options, queue| rd::rd_kafka_DescribeTopics(client.0, collection, options, queue),
            |event| {
                let mut count = 0;
                let result = rd::rd_kafka_event_DescribeTopics_result(event);
                let topics = rd::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
                let mut described = Vec::with_capacity(count);
                for index in 0..count {
                    described.extend(read_topic(*topics.add(index))?);
                }
                Ok(described)
            },
        );
        rd::rd_kafka_TopicCollection_destroy(collection);
        described
    }
}

/// # Safety
/// `topic` is a description of an event that lives.
unsafe fn read_topic(
    topic: *const rd::rd_kafka_TopicDescription_t,
) -> Result<Option<Described>, BrokerError> {
    // SAFETY: by the caller.
    unsafe {
        let name = text(rd::rd_kafka_TopicDescription_name(topic));
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

/// Makes a topic; or the cluster's own reason why not, such as the words of a policy.
pub(crate) fn create(
    client: &Native,
    topic: &str,
    partitions: u32,
    replicas: u32,
    settings: &[(String, String)],
    timeout: Duration,
) -> Result<Result<(), Refusal>, BrokerError> {
    let (name, settings) = (c_text(topic)?, c_settings(settings)?);
    let mut error = [0; 256];
    // SAFETY: what is made is destroyed below; the names live until the request was handed over, which copies them.
    unsafe {
        let (count, copies) = (partitions as c_int, replicas as c_int);
        let mut new =
            rd::rd_kafka_NewTopic_new(name.as_ptr(), count, copies, error.as_mut_ptr(), error.len());
        if new.is_null() {
            return Err(BrokerError::Invalid(format!(
                "Kafka does not take {topic}: {}",
                text(error.as_ptr())
            )));
        }
        for (setting, value) in &settings {
            rd::rd_kafka_NewTopic_set_config(new, setting.as_ptr(), value.as_ptr());
        }
        let made = ask(
            client,
            rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATETOPICS,
            timeout,
            |options, queue| {
                // Until the cluster has it, not only until the controller has heard of it.
                let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as c_int;
                let mut error = [0; 256];
                rd::rd_kafka_AdminOptions_set_operation_timeout(
                    options,
                    timeout_ms,
                    error.as_mut_ptr(),
                    error.len(),
                );
                rd::rd_kafka_CreateTopics(client.0, &raw mut new, 1, options, queue);
            },
            |event| {
                let mut count = 0;
                let result = rd::rd_kafka_event_CreateTopics_result(event);
                let topics = rd::rd_kafka_CreateTopics_result_topics(result, &raw mut count);
                Ok(match count {
                    0 => Ok(()),
                    _ => refusal(
                        rd::rd_kafka_topic_result_error(*topics),
                        rd::rd_kafka_topic_result_error_string(*topics),
                    ),
                })
            },
        );
        rd::rd_kafka_NewTopic_destroy(new);
        made
    }
}

/// Gives a topic these settings and leaves all others as they are, also those that somebody sets at the same moment.
pub(crate) fn alter(
    client: &Native,
    topic: &str,
    settings: &[(String, String)],
    timeout: Duration,
) -> Result<Result<(), Refusal>, BrokerError> {
    let (name, settings) = (c_text(topic)?, c_settings(settings)?);
    // SAFETY: as in `create`.
    unsafe {
        let mut change = rd::rd_kafka_ConfigResource_new(
            rd::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
            name.as_ptr(),
        );
        for (setting, value) in &settings {
            let refused = rd::rd_kafka_ConfigResource_add_incremental_config(
                change,
                setting.as_ptr(),
                rd::rd_kafka_AlterConfigOpType_t::RD_KAFKA_ALTER_CONFIG_OP_TYPE_SET,
                value.as_ptr(),
            );
            if !refused.is_null() {
                rd::rd_kafka_error_destroy(refused);
            }
        }
        let changed = ask(
            client,
            rd::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_INCREMENTALALTERCONFIGS,
            timeout,
            |options, queue| {
                rd::rd_kafka_IncrementalAlterConfigs(client.0, &raw mut change, 1, options, queue)
            },
            |event| {
                let mut count = 0;
                let result = rd::rd_kafka_event_IncrementalAlterConfigs_result(event);
                let changed = rd::rd_kafka_IncrementalAlterConfigs_result_resources(result, &raw mut count);
                Ok(match count {
                    0 => Ok(()),
                    _ => refusal(
                        rd::rd_kafka_ConfigResource_error(*changed),
                        rd::rd_kafka_ConfigResource_error_string(*changed),
                    ),
                })
            },
        );
        rd::rd_kafka_ConfigResource_destroy(change);
        changed
    }
}

/// # Safety
/// `why` is null, or text of an event that lives.
unsafe fn refusal(code: RDKafkaRespErr, why: *const c_char) -> Result<(), Refusal> {
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    let code = RDKafkaErrorCode::from(code);
    // SAFETY: by the caller.
    let why = if why.is_null() { code.to_string() } else { unsafe { text(why) } };
    Err(Refusal { code, why })
}

/// # Safety
/// `from` points to text that ends with a zero.
unsafe fn text(from: *const c_char) -> String {
    // SAFETY: by the caller.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn c_settings(settings: &[(String, String)]) -> Result<Vec<(CString, CString)>, BrokerError> {
    settings.iter().map(|(name, value)| Ok((c_text(name)?, c_text(value)?))).collect()
}

fn c_text(from: &str) -> Result<CString, BrokerError> {
    let what =
        || BrokerError::Invalid(format!("{from:?} has a zero byte, which Kafka's client does not take"));
    CString::new(from).map_err(|_| what())
}
