//! The raw limits on Kafka: librdkafka itself, as a C program would use it.
//!
//! A consumer polls one message after another and keeps nothing. A producer hands over one message after another and
//! counts what its callback reports. Neither keeps keys in order, records what was handled, or gives callers a result
//! to wait for.
#![allow(unsafe_code, reason = "calls librdkafka as a program in C would")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::ClientConfig;
use rdkafka::bindings as rd;
use rdkafka::types::RDKafkaRespErr;

use super::{PARTITIONS, Slice};
use crate::Error;
use crate::machine::{Took, Watch};

/// How long a poll waits, in ms.
const POLL_MS: c_int = 100;
/// Messages that are handed over between two looks at the reports.
const BETWEEN_POLLS: u64 = 1_000;
/// How long the last reports may take, in ms; only a hang takes longer.
const FLUSH_MS: c_int = 60_000;

/// A client of librdkafka, ended when it is dropped.
struct Client(*mut rd::rd_kafka_t);

impl Client {
    fn new(
        kind: rd::rd_kafka_type_t,
        config: &ClientConfig,
        reports: Option<&Arc<Reports>>,
    ) -> Result<Client, Error> {
        let mut said = [0 as c_char; 512];
        // SAFETY: all strings end with a zero and outlive their call; everything that librdkafka does not take over is
        // given back. The reports outlive the client, see `BareProducer`.
        unsafe {
            let conf = rd::rd_kafka_conf_new();
            for (name, value) in config.config_map() {
                let (name, value) = (c_string(name)?, c_string(value)?);
                let set =
                    rd::rd_kafka_conf_set(conf, name.as_ptr(), value.as_ptr(), said.as_mut_ptr(), said.len());
                if set != rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
                    rd::rd_kafka_conf_destroy(conf);
                    return Err(refused(&said));
                }
            }
            if let Some(reports) = reports {
                rd::rd_kafka_conf_set_opaque(conf, Arc::as_ptr(reports).cast_mut().cast());
                rd::rd_kafka_conf_set_dr_msg_cb(conf, Some(reported));
            }
            let client = rd::rd_kafka_new(kind, conf, said.as_mut_ptr(), said.len());
            if client.is_null() {
                rd::rd_kafka_conf_destroy(conf);
                return Err(refused(&said));
            }
            Ok(Client(client))
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the client was made by `new` and is destroyed once; everything that was made of it is gone.
        unsafe { rd::rd_kafka_destroy(self.0) };
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Broker(format!("{text:?} has a zero in it")))
}

fn refused(said: &[c_char]) -> Error {
    // SAFETY: librdkafka ends its text with a zero, within the buffer.
    Error::Broker(unsafe { CStr::from_ptr(said.as_ptr()) }.to_string_lossy().into_owned())
}

fn check(code: RDKafkaRespErr) -> Result<(), Error> {
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        // SAFETY: a text that lives for ever.
        code => Err(Error::Broker(
            unsafe { CStr::from_ptr(rd::rd_kafka_err2str(code)) }.to_string_lossy().into_owned(),
        )),
    }
}

/// Polls all of a topic's messages, one after another. Returns the time that the slice of them took.
pub(crate) fn consume(config: &ClientConfig, topic: &str, slice: Slice) -> Result<Took, Error> {
    let client = Client::new(rd::rd_kafka_type_t::RD_KAFKA_CONSUMER, config, None)?;
    let topic = c_string(topic)?;
    // SAFETY: the client lives until the end of this function; the list and each message are given back once.
    unsafe {
        check(rd::rd_kafka_poll_set_consumer(client.0))?;
        let wanted = rd::rd_kafka_topic_partition_list_new(PARTITIONS as c_int);
        for partition in 0..PARTITIONS as i32 {
            let added = rd::rd_kafka_topic_partition_list_add(wanted, topic.as_ptr(), partition);
            (*added).offset = i64::from(rd::RD_KAFKA_OFFSET_BEGINNING);
        }
        let assigned = rd::rd_kafka_assign(client.0, wanted);
        rd::rd_kafka_topic_partition_list_destroy(wanted);
        check(assigned)?;
        let (mut seen, mut bytes) = (0, 0);
        let mut watch = Watch::start();
        while seen < slice.to {
            let message = rd::rd_kafka_consumer_poll(client.0, POLL_MS);
            let Some(taken) = message.as_ref() else {
                continue;
            };
            let failed = taken.err;
            bytes += taken.len;
            rd::rd_kafka_message_destroy(message);
            check(failed)?;
            seen += 1;
            if seen == slice.from {
                watch = Watch::start();
            }
        }
        let took = watch.took();
        black_box(bytes);
        check(rd::rd_kafka_consumer_close(client.0))?;
        Ok(took)
    }
}

/// What the callback has counted.
#[derive(Default)]
struct Reports {
    durable: AtomicU64,
    failed: AtomicU64,
}

unsafe extern "C" fn reported(
    _client: *mut rd::rd_kafka_t,
    message: *const rd::rd_kafka_message_t,
    opaque: *mut c_void,
) {
    // SAFETY: the client passes the opaque that it was made with, which outlives the client, and a message that lives
    // during this call.
    let (reports, message) = unsafe { (&*opaque.cast::<Reports>(), &*message) };
    let counter = match message.err {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => &reports.durable,
        _ => &reports.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Produces to one topic.
pub(crate) struct BareProducer {
    handle: *mut rd::rd_kafka_topic_t,
    // Before the reports: fields are dropped in this order, and the client uses the reports to its end.
    client: Client,
    reports: Arc<Reports>,
}

impl BareProducer {
    pub(crate) fn new(config: &ClientConfig, topic: &str) -> Result<BareProducer, Error> {
        let reports = Arc::<Reports>::default();
        let client = Client::new(rd::rd_kafka_type_t::RD_KAFKA_PRODUCER, config, Some(&reports))?;
        let topic = c_string(topic)?;
        // SAFETY: the client lives, and the name outlives the call.
        let handle = unsafe { rd::rd_kafka_topic_new(client.0, topic.as_ptr(), ptr::null_mut()) };
        match handle.is_null() {
            true => Err(Error::Broker("librdkafka does not take the topic's name".to_owned())),
            false => Ok(BareProducer { handle, client, reports }),
        }
    }

    /// Hands over `count` messages and waits for all reports. `message` gives the partition, the key and the payload of
    /// each. All have the same headers.
    pub(crate) fn produce<'a>(
        &self,
        count: u64,
        headers: &[(&CStr, &[u8])],
        mut message: impl FnMut() -> (u32, &'a [u8], &'a [u8]),
    ) -> Result<(), Error> {
        let (durable, failed) = (self.durable(), self.failed());
        for index in 1..=count {
            let (partition, key, payload) = message();
            while !self.hand_over(partition, key, payload, headers)? {
                self.poll(POLL_MS);
            }
            if index % BETWEEN_POLLS == 0 {
                self.poll(0);
            }
        }
        // SAFETY: the client lives; this call runs its callbacks.
        check(unsafe { rd::rd_kafka_flush(self.client.0, FLUSH_MS) })?;
        match (self.durable() - durable, self.failed() - failed) {
            (all, 0) if all == count => Ok(()),
            (some, failed) => {
                Err(Error::Broker(format!("of {count} messages {some} became durable, {failed} failed")))
            }
        }
    }

    /// False if the client has no room for the message now.
    fn hand_over(
        &self,
        partition: u32,
        key: &[u8],
        payload: &[u8],
        headers: &[(&CStr, &[u8])],
    ) -> Result<bool, Error> {
        let refused = match headers {
            [] => self.hand_over_plain(partition, key, payload),
            headers => self.hand_over_with(partition, key, payload, headers),
        };
        match refused {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__QUEUE_FULL => Ok(false),
            code => check(code).map(|()| true),
        }
    }

    fn hand_over_plain(&self, partition: u32, key: &[u8], payload: &[u8]) -> RDKafkaRespErr {
        // SAFETY: topic and client live; key and payload are copied before this returns. The last error is that of this
        // thread's last call.
        unsafe {
            let refused = rd::rd_kafka_produce(
                self.handle,
                partition as i32,
                rd::RD_KAFKA_MSG_F_COPY,
                payload.as_ptr().cast_mut().cast(),
                payload.len(),
                key.as_ptr().cast(),
                key.len(),
                ptr::null_mut(),
            );
            match refused {
                0 => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
                _ => rd::rd_kafka_last_error(),
            }
        }
    }

    fn hand_over_with(
        &self,
        partition: u32,
        key: &[u8],
        payload: &[u8],
        headers: &[(&CStr, &[u8])],
    ) -> RDKafkaRespErr {
        use rd::rd_kafka_vtype_t as Kind;
        // SAFETY: as above; each value has the type that its kind requires. If the client takes the message it takes
        // the list too; otherwise the list is given back.
        unsafe {
            let list = rd::rd_kafka_headers_new(headers.len());
            for (name, value) in headers {
                let (length, size) = (name.to_bytes().len() as isize, value.len() as isize);
                rd::rd_kafka_header_add(list, name.as_ptr(), length, value.as_ptr().cast(), size);
            }
            let refused = rd::rd_kafka_producev(
                self.client.0,
                Kind::RD_KAFKA_VTYPE_RKT,
                self.handle,
                Kind::RD_KAFKA_VTYPE_PARTITION,
                partition as i32,
                Kind::RD_KAFKA_VTYPE_MSGFLAGS,
                rd::RD_KAFKA_MSG_F_COPY,
                Kind::RD_KAFKA_VTYPE_VALUE,
                payload.as_ptr(),
                payload.len(),
                Kind::RD_KAFKA_VTYPE_KEY,
                key.as_ptr(),
                key.len(),
                Kind::RD_KAFKA_VTYPE_HEADERS,
                list,
                Kind::RD_KAFKA_VTYPE_END,
            );
            if refused != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                rd::rd_kafka_headers_destroy(list);
            }
            refused
        }
    }

    fn poll(&self, ms: c_int) {
        // SAFETY: the client lives.
        unsafe { rd::rd_kafka_poll(self.client.0, ms) };
    }

    fn durable(&self) -> u64 {
        self.reports.durable.load(Ordering::Relaxed)
    }

    fn failed(&self) -> u64 {
        self.reports.failed.load(Ordering::Relaxed)
    }
}

impl Drop for BareProducer {
    fn drop(&mut self) {
        // SAFETY: the topic was made by `new` and is destroyed once; the client still lives.
        unsafe { rd::rd_kafka_topic_destroy(self.handle) };
    }
}
