//! One partition's records from an offset on: the client's own queue of that partition, emptied in batches.
//!
//! The queue is the client's fetch queue, so nothing is handed from thread to thread; not emptying it is how reading
//! stops. This file, `headers.rs` beside it and `topics/native.rs` are the ones that call librdkafka itself: its Rust wrapper
//! has no batches from a partition's queue. Records are copied and given back at once, because one that is kept pins
//! its whole fetch.
#![allow(unsafe_code, reason = "calls librdkafka; see above")]

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::task::{self, Poll};

use futures_util::task::AtomicWaker;
use rdkafka::bindings as rd;
use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;

use super::headers::Headers;
use crate::contract::BrokerError;
use crate::kafka::clients::{Client, Clients};
use crate::kafka::errors::broker_error_of;

/// Records taken from the queue at a time.
const TAKEN_MAX: usize = 1024;

/// Reads one partition.
pub(crate) struct Feed {
    clients: Arc<Clients>,
    started: Option<Stopping>,
    taken: Vec<Taken>,
    /// Those of `taken` that were looked at.
    seen: usize,
}

/// A partition that a client reads, until this is dropped.
pub(crate) struct Stopping {
    client: Arc<Client>,
    topic: String,
    partition: u32,
    handle: *mut rd::rd_kafka_topic_t,
    queue: *mut rd::rd_kafka_queue_t,
    bell: Arc<AtomicWaker>,
}

// SAFETY: librdkafka's handles may be used from any thread, and these by one at a time.
unsafe impl Send for Stopping {}

/// What came out of a queue.
pub(crate) enum Item<'a> {
    /// A record.
    Record(Raw<'a>),
    /// All below this offset was read, also what has no record: aborted, compacted, or a marker.
    End(u64),
}

/// A record as the client has it.
pub(crate) struct Raw<'a>(&'a rd::rd_kafka_message_t);

impl Feed {
    /// Starts reading at `from`.
    pub(crate) fn start(
        clients: &Arc<Clients>,
        topic: &str,
        partition: u32,
        from: u64,
    ) -> Result<Feed, BrokerError> {
        let name = CString::new(topic).map_err(|_| BrokerError::UnknownTopic(topic.to_owned()))?;
        let client = clients.client_for(topic, partition)?;
        let native = client.consumer.client().native_ptr();
        let bell = Arc::<AtomicWaker>::default();
        // SAFETY: the client outlives both handles, which `Stopping` gives back; the queue keeps one count of the bell
        // until then.
        let (handle, queue) = unsafe {
            let handle = rd::rd_kafka_topic_new(native, name.as_ptr(), ptr::null_mut());
            let queue = rd::rd_kafka_queue_new(native);
            let kept = Arc::into_raw(Arc::clone(&bell)).cast_mut().cast::<c_void>();
            rd::rd_kafka_queue_cb_event_enable(queue, Some(ring), kept);
            (handle, queue)
        };
        let topic = topic.to_owned();
        let started = Stopping { client, topic, partition, handle, queue, bell };
        if handle.is_null() {
            return Err(BrokerError::Invalid("Kafka's client does not take the topic's name".to_owned()));
        }
        // SAFETY: as above; a negative answer leaves nothing started.
        let refused =
            unsafe { rd::rd_kafka_consume_start_queue(handle, partition as i32, from as i64, queue) != 0 };
        let feed = Feed { clients: Arc::clone(clients), started: Some(started), taken: Vec::new(), seen: 0 };
        if refused {
            let text = format!("Kafka's client does not read partition {partition} from {from}");
            return Err(BrokerError::Invalid(text));
        }
        Ok(feed)
    }

    /// What wakes whoever waits for it.
    #[cfg(test)]
    pub(in crate::kafka) fn bell(&self) -> std::sync::Weak<AtomicWaker> {
        Arc::downgrade(&self.started.as_ref().expect("it runs until it is dropped").bell)
    }

    /// The next item that is there, or an error after which nothing comes.
    pub(crate) fn poll_next(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Item<'_>, BrokerError>> {
        if self.seen == self.taken.len() && !self.refill(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.next_taken())
    }

    /// The next item, if it needs no waiting.
    pub(crate) fn next_now(&mut self) -> Option<Result<Item<'_>, BrokerError>> {
        if self.seen == self.taken.len() && !self.take_more() {
            return None;
        }
        Some(self.next_taken())
    }

    /// Items that are at hand, without another look into the queue.
    pub(crate) fn ready(&self) -> usize {
        self.taken.len() - self.seen
    }

    /// The last item is given once more.
    pub(crate) fn unread(&mut self) {
        self.seen -= 1;
    }

    /// True if something was taken from the queue; else the waker is kept.
    fn refill(&mut self, cx: &mut task::Context<'_>) -> bool {
        let started = self.started.as_ref().expect("it runs until it is dropped");
        // Before the look: what comes behind it rings.
        started.bell.register(cx.waker());
        self.take_more()
    }

    fn take_more(&mut self) -> bool {
        let started = self.started.as_ref().expect("it runs until it is dropped");
        self.taken.clear();
        self.seen = 0;
        let mut taken = [ptr::null_mut(); TAKEN_MAX];
        // SAFETY: the queue is ours; it writes at most as many pointers as there are.
        let count =
            unsafe { rd::rd_kafka_consume_batch_queue(started.queue, 0, taken.as_mut_ptr(), TAKEN_MAX) };
        let count = usize::try_from(count).unwrap_or(0);
        self.taken.extend(taken[..count].iter().map(|message| Taken(*message)));
        count > 0
    }

    fn next_taken(&mut self) -> Result<Item<'_>, BrokerError> {
        let started = self.started.as_ref().expect("it runs until it is dropped");
        // While it is in the core's cache. The one before the next may be asked for once more.
        if let Some(done) = self.seen.checked_sub(1) {
            self.taken[done].give_back();
        }
        let taken = &self.taken[self.seen];
        self.seen += 1;
        // SAFETY: a message that the queue gave out lives until it is given back, which only happens behind it.
        let message = unsafe { &*taken.0 };
        match message.err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(Item::Record(Raw(message))),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTITION_EOF => Ok(Item::End(message.offset as u64)),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE => Err(BrokerError::OutOfRange {
                topic: started.topic.clone(),
                partition: started.partition,
                position: message.offset.max(0) as u64,
                start: 0,
                end: 0,
            }),
            other => Err(broker_error_of(&started.topic, RDKafkaErrorCode::from(other))),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.taken.clear();
        if let Some(started) = self.started.take() {
            self.clients.stop(started);
        }
    }
}

/// Ends the reading, and gives everything back. May wait for the client's threads.
impl Drop for Stopping {
    fn drop(&mut self) {
        // SAFETY: each handle is given back once. The callback is taken away, under the queue's lock, before the count
        // of the bell that it used.
        unsafe {
            if !self.handle.is_null() {
                rd::rd_kafka_consume_stop(self.handle, self.partition as i32);
            }
            rd::rd_kafka_queue_cb_event_enable(self.queue, None, ptr::null_mut());
            rd::rd_kafka_queue_destroy(self.queue);
            if !self.handle.is_null() {
                rd::rd_kafka_topic_destroy(self.handle);
            }
            drop(Arc::from_raw(Arc::as_ptr(&self.bell)));
        }
        self.client.free(&self.topic, self.partition);
    }
}

/// A message that is given back when it is dropped, if not before; then it is null.
struct Taken(*mut rd::rd_kafka_message_t);

// SAFETY: a message may be read and given back by any thread, one at a time.
unsafe impl Send for Taken {}

impl Taken {
    fn give_back(&mut self) {
        let message = std::mem::replace(&mut self.0, ptr::null_mut());
        if !message.is_null() {
            // SAFETY: the queue gave it to us, once.
            unsafe { rd::rd_kafka_message_destroy(message) };
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back();
    }
}

unsafe extern "C" fn ring(_client: *mut rd::rd_kafka_t, bell: *mut c_void) {
    // SAFETY: the queue keeps a count of the bell while this is set.
    unsafe { &*bell.cast_const().cast::<AtomicWaker>() }.wake();
}

impl<'a> Raw<'a> {
    pub(crate) fn offset(&self) -> u64 {
        self.0.offset as u64
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        // SAFETY: the client says how long it is; it lives as long as the message.
        unsafe { bytes(self.0.key.cast_const(), self.0.key_len) }
    }

    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        // SAFETY: as above.
        unsafe { bytes(self.0.payload.cast_const(), self.0.len) }
    }

    /// When it was appended or made, in ms since 1970, and whether the broker said so.
    pub(crate) fn time(&self) -> (u64, bool) {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message lives, and `kind` is ours.
        let ms = unsafe { rd::rd_kafka_message_timestamp(self.0, &raw mut kind) };
        let appended = kind == rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME;
        (u64::try_from(ms).unwrap_or(0), appended)
    }

    /// Headers in order.
    pub(crate) fn headers(&self) -> Headers<'a> {
        // SAFETY: it came as a record, and lives as long as what borrows it.
        unsafe { Headers::of(self.0) }
    }
}

/// # Safety
/// `start` is null, or the beginning of `length` bytes that live long enough.
pub(super) unsafe fn bytes<'a>(start: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: as above.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start.cast(), length) })
}
