//! One producing client of librdkafka: what is handed to it, and what it reports.
//!
//! librdkafka is called directly, for three things that its wrapper does not give: how long a broker throttles us, all
//! reports of a batch together, and handing over many messages of a partition at once. Nothing here waits for the
//! network: messages are queued, a purge is asked for, and reports are taken as they come.
#![allow(unsafe_code, reason = "calls librdkafka as a program in C would")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::bindings as rd;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::{RDKafkaRespErr, RDKafkaType};
use rdkafka::{ClientContext, Statistics};

use super::super::context::Context;
use super::super::lock;
use super::leaders::Leaders;

/// How a message that was handed over ended.
pub(super) struct Report {
    /// What it was handed over with.
    pub(super) number: u64,
    /// Its offset, which is negative if the cluster did not tell it; or why it was not taken.
    pub(super) result: Result<i64, RDKafkaErrorCode>,
    /// Where the client has the text of its error: an address to compare with those of its batch, and never to read.
    /// librdkafka 2.12 has freed what it points to.
    pub(super) text_at: usize,
    pub(super) partition: u32,
    /// The broker that answered; negative if none did.
    pub(super) broker: i32,
}

/// A record to be handed over.
pub(super) struct Outgoing<'a> {
    pub(super) partition: u32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) payload: Option<&'a [u8]>,
    pub(super) number: u64,
}

/// What the client tells beside its reports.
pub(super) struct ProducerContext {
    pub(super) context: Context,
    pub(super) leaders: Arc<Leaders>,
}

impl ClientContext for ProducerContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        self.context.stats(statistics);
    }
}

/// A client. Its fields are given back before it is ended.
pub(super) struct Native {
    topics: Mutex<HashMap<Arc<str>, TopicHandle>>,
    queue: Queue,
    client: Client<ProducerContext>,
}

struct Queue(*mut rd::rd_kafka_queue_t);

// SAFETY: librdkafka's queues may be used by any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it was taken once, by `Native::new`.
        unsafe { rd::rd_kafka_queue_destroy(self.0) };
    }
}

/// A topic of a client.
struct TopicHandle(*mut rd::rd_kafka_topic_t);

// SAFETY: librdkafka's topics may be used by any thread.
unsafe impl Send for TopicHandle {}

impl Drop for TopicHandle {
    fn drop(&mut self) {
        // SAFETY: it was made once, by `Native::topic`.
        unsafe { rd::rd_kafka_topic_destroy(self.0) };
    }
}

impl Native {
    pub(super) fn new(config: &ClientConfig, told: ProducerContext) -> Result<Native, KafkaError> {
        let native = config.create_native_config()?;
        // Not that a token is wanted: all clients get theirs unasked (`tokens.rs`), and an answer that there is none
        // would count as a log-in that the cluster refused.
        let events = rd::RD_KAFKA_EVENT_DR | rd::RD_KAFKA_EVENT_STATS | rd::RD_KAFKA_EVENT_ERROR;
        // SAFETY: the configuration lives; the callback's opaque is the context, which the client keeps.
        unsafe {
            rd::rd_kafka_conf_set_events(native.ptr(), events);
            rd::rd_kafka_conf_set_throttle_cb(native.ptr(), Some(throttled));
            #[cfg(feature = "testing")]
            rd::rd_kafka_conf_set_socket_cb(native.ptr(), Some(socket_unless_stuck));
        }
        let client = Client::new(config, native, RDKafkaType::RD_KAFKA_PRODUCER, told)?;
        // SAFETY: the client lives, and the queue is given back before it ends.
        let queue = Queue(unsafe { rd::rd_kafka_queue_get_main(client.native_ptr()) });
        Ok(Native { topics: Mutex::default(), queue, client })
    }

    pub(super) fn client(&self) -> &Client<ProducerContext> {
        &self.client
    }

    /// Why it cannot go on, if so.
    pub(super) fn fatal(&self) -> Option<RDKafkaErrorCode> {
        self.client.fatal_error().map(|(code, _)| code)
    }

    /// Queues a record with these headers. Never waits.
    pub(super) fn send<'a>(
        &self,
        topic: &Arc<str>,
        record: &Outgoing<'_>,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<(), RDKafkaErrorCode> {
        let topic = self.topic(topic)?;
        let mut list: *mut rd::rd_kafka_headers_t = ptr::null_mut();
        // SAFETY: names and values are as long as is said, and copied.
        unsafe {
            for (name, value) in headers {
                if list.is_null() {
                    list = rd::rd_kafka_headers_new(2);
                }
                let (name, name_bytes) = (name.as_ptr().cast::<c_char>(), name.len() as isize);
                let (value, bytes) = (value.as_ptr().cast::<c_void>(), value.len() as isize);
                rd::rd_kafka_header_add(list, name, name_bytes, value, bytes);
            }
        }
        use rd::rd_kafka_vtype_t as v;
        let ((key, key_bytes), (payload, bytes)) = (raw(record.key), raw(record.payload));
        // SAFETY: key and payload are as long as is said, and copied. Headers are the client's if this goes well.
        let sent = unsafe {
            rd::rd_kafka_producev(
                self.client.native_ptr(),
                v::RD_KAFKA_VTYPE_RKT,
                topic,
                v::RD_KAFKA_VTYPE_PARTITION,
                record.partition as i32,
                v::RD_KAFKA_VTYPE_MSGFLAGS,
                rd::RD_KAFKA_MSG_F_COPY,
                v::RD_KAFKA_VTYPE_VALUE,
                payload,
                bytes,
                v::RD_KAFKA_VTYPE_KEY,
                key,
                key_bytes,
                v::RD_KAFKA_VTYPE_OPAQUE,
                record.number as usize as *mut c_void,
                v::RD_KAFKA_VTYPE_HEADERS,
                list,
                v::RD_KAFKA_VTYPE_END,
            )
        };
        if sent == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Ok(());
        }
        if !list.is_null() {
            // SAFETY: it was not taken over.
            unsafe { rd::rd_kafka_headers_destroy(list) };
        }
        Err(sent.into())
    }

    /// Queues records of one partition that have no headers. Never waits. Tells of each that was not taken.
    pub(super) fn send_all(
        &self,
        topic: &Arc<str>,
        partition: u32,
        records: &mut [Bare],
        mut not_taken: impl FnMut(u64, RDKafkaErrorCode),
    ) {
        let handle = match self.topic(topic) {
            Ok(handle) => handle,
            Err(code) => {
                return records.iter().for_each(|record| not_taken(number_of(record), code));
            }
        };
        let (count, flags) = (records.len() as c_int, rd::RD_KAFKA_MSG_F_COPY);
        // SAFETY: `bare` made the records, of memory that lives; all of it is copied.
        let taken = unsafe {
            rd::rd_kafka_produce_batch(handle, partition as i32, flags, records.as_mut_ptr(), count)
        };
        if taken == count {
            return;
        }
        for record in records.iter().filter(|record| record.err != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR)
        {
            not_taken(number_of(record), record.err.into());
        }
    }

    /// Asks for everything back that is queued, or, with `in_flight`, for what is on its way too. The reports come
    /// when the client's threads get to it: one may be looking up a name, and nobody here waits for that.
    pub(super) fn purge(&self, in_flight: bool) {
        let mut flags = rd::RD_KAFKA_PURGE_F_QUEUE | rd::RD_KAFKA_PURGE_F_NON_BLOCKING;
        if in_flight {
            flags |= rd::RD_KAFKA_PURGE_F_INFLIGHT;
        }
        // SAFETY: the client lives.
        unsafe { rd::rd_kafka_purge(self.client.native_ptr(), flags) };
    }

    /// Waits for the client to tell something. Reports are those of one batch. False if nothing came.
    pub(super) fn poll(&self, wait: Duration, reports: &mut Vec<Report>) -> bool {
        // SAFETY: the queue lives; the event is given back below.
        let event = unsafe { rd::rd_kafka_queue_poll(self.queue.0, wait.as_millis() as c_int) };
        if event.is_null() {
            return false;
        }
        // SAFETY: the event lives until it is given back, and so does what it lends.
        unsafe {
            match rd::rd_kafka_event_type(event) {
                rd::RD_KAFKA_EVENT_DR => put_reports(event, reports),
                rd::RD_KAFKA_EVENT_LOG => self.tell_log(event),
                rd::RD_KAFKA_EVENT_ERROR => {
                    let code = RDKafkaErrorCode::from(rd::rd_kafka_event_error(event));
                    let reason = text(rd::rd_kafka_event_error_string(event));
                    self.client.context().error(KafkaError::Global(code), reason.trim());
                }
                rd::RD_KAFKA_EVENT_STATS => {
                    let json = CStr::from_ptr(rd::rd_kafka_event_stats(event));
                    self.client.context().stats_raw(json.to_bytes());
                }
                _ => {}
            }
            rd::rd_kafka_event_destroy(event);
        }
        true
    }

    /// The client's own handle of a topic, made once.
    fn topic(&self, name: &Arc<str>) -> Result<*mut rd::rd_kafka_topic_t, RDKafkaErrorCode> {
        let mut topics = lock(&self.topics);
        if let Some(there) = topics.get(name) {
            return Ok(there.0);
        }
        let text = CString::new(&**name).map_err(|_| RDKafkaErrorCode::InvalidArgument)?;
        // SAFETY: the client lives, and the name is copied.
        let made =
            unsafe { rd::rd_kafka_topic_new(self.client.native_ptr(), text.as_ptr(), ptr::null_mut()) };
        if made.is_null() {
            return Err(RDKafkaErrorCode::UnknownTopic);
        }
        Ok(topics.entry(Arc::clone(name)).or_insert(TopicHandle(made)).0)
    }

    /// # Safety
    /// The event is a log line.
    unsafe fn tell_log(&self, event: *mut rd::rd_kafka_event_t) {
        let (mut facility, mut line, mut level) = (ptr::null(), ptr::null(), 0);
        // SAFETY: what it points to is ours.
        let found =
            unsafe { rd::rd_kafka_event_log(event, &raw mut facility, &raw mut line, &raw mut level) };
        if found == 0 {
            let level = match level {
                ..=3 => RDKafkaLogLevel::Error,
                4 | 5 => RDKafkaLogLevel::Warning,
                _ => RDKafkaLogLevel::Info,
            };
            // SAFETY: both end with a zero, and live as long as the event.
            let (facility, line) = unsafe { (text(facility), text(line)) };
            self.client.context().log(level, facility.trim(), line.trim());
        }
    }
}

/// A record without headers, for [`Native::send_all`]: it points to what it was made of.
pub(super) type Bare = rd::rd_kafka_message_t;

/// Makes one. What it is made of must live until it is sent.
pub(super) fn bare(record: &Outgoing<'_>) -> Bare {
    let ((key, key_len), (payload, len)) = (raw(record.key), raw(record.payload));
    rd::rd_kafka_message_t {
        err: RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
        rkt: ptr::null_mut(),
        partition: record.partition as i32,
        payload,
        len,
        key,
        key_len,
        offset: 0,
        _private: record.number as usize as *mut c_void,
    }
}

/// What one was made with.
pub(super) fn number_of(record: &Bare) -> u64 {
    record._private as usize as u64
}

fn raw(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    bytes.map_or((ptr::null_mut(), 0), |bytes| (bytes.as_ptr().cast_mut().cast(), bytes.len()))
}

/// # Safety
/// It ends with a zero and lives.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// The event has the reports of a batch.
unsafe fn put_reports(event: *mut rd::rd_kafka_event_t, reports: &mut Vec<Report>) {
    // SAFETY: messages live as long as their event, and are the client's own.
    unsafe {
        loop {
            let message = rd::rd_kafka_event_message_next(event);
            if message.is_null() {
                return;
            }
            let code = match (*message).err {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => None,
                code => Some(RDKafkaErrorCode::from(code)),
            };
            let text_at = code.map_or(ptr::null(), |_| rd::rd_kafka_message_produce_errstr(message));
            reports.push(Report {
                number: (*message)._private as usize as u64,
                result: code.map_or(Ok((*message).offset), Err),
                text_at: text_at as usize,
                partition: (*message).partition.max(0) as u32,
                broker: rd::rd_kafka_message_broker_id(message),
            });
        }
    }
}

unsafe extern "C" fn throttled(
    _client: *mut rd::rd_kafka_t,
    _name: *const c_char,
    broker: i32,
    throttle_ms: c_int,
    told: *mut c_void,
) {
    // SAFETY: the client's opaque is its context, which it keeps.
    let told = unsafe { &*told.cast_const().cast::<ProducerContext>() };
    told.leaders.throttled(broker, Duration::from_millis(throttle_ms.max(0) as u64));
}

/// Makes a socket, but not while a test has the client's thread stuck.
#[cfg(feature = "testing")]
unsafe extern "C" fn socket_unless_stuck(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    told: *mut c_void,
) -> c_int {
    let mut name = [0; 16];
    // SAFETY: the client's opaque is its context, which it keeps; a thread's name has 16 bytes at most, and ends with a
    // zero; the rest is as `socket` takes it.
    unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        let (told, name) = (&*told.cast_const().cast::<ProducerContext>(), text(name.as_ptr()));
        if let Some(times) = lock(&told.context.stuck).get_mut(&name) {
            *times += 1;
            if *times == 1 {
                // It fails first, so that the thread takes along what waits for it before it is stuck.
                return -1;
            }
        }
        while lock(&told.context.stuck).contains_key(&name) {
            super::super::clock::sleep(Duration::from_millis(10));
        }
        libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol)
    }
}
