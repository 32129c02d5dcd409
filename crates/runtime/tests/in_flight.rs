//! P5, PRD-2: messages in flight stay within their bounds, whatever callers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use async_trait::async_trait;
use futures_util::poll;
use keylane::raw::{Clock, Tasks};
use keylane::{Keylane, Message, WhenFull};
use keylane_broker::{
    Broker, BrokerError, Commit, Ends, Journal, JournalName, Membership, MemoryBroker, ProduceError, Reader,
    Topic, TopicSpec,
};
use keylane_core::Frames;
use tokio::sync::Semaphore;

/// The bound of bytes in flight, as in PRD-2.
const BYTES_MAX: usize = 64 << 20;

/// A broker that takes messages and answers only when the test says so, even if no caller waits any more.
struct Silent {
    inner: Arc<dyn Broker>,
    answers: Arc<Semaphore>,
    holds: Arc<AtomicUsize>,
}

#[async_trait]
impl Broker for Silent {
    fn kind(&self) -> &'static str {
        "silent"
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let (inner, answers, holds) =
            (Arc::clone(&self.inner), Arc::clone(&self.answers), Arc::clone(&self.holds));
        let (topic, bytes) = (topic.to_owned(), frames.bytes());
        holds.fetch_add(bytes, Ordering::SeqCst);
        let call = tokio::spawn(async move {
            answers.acquire().await.expect("never closed").forget();
            let results = inner.produce(&topic, frames).await;
            holds.fetch_sub(bytes, Ordering::SeqCst);
            results
        });
        call.await.expect("it does not panic")
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        self.inner.create_topic(name, spec).await
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        self.inner.topic(name).await
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.inner.topics().await
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.inner.reader(topic, partition, from).await
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        self.inner.ends(topic).await
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        self.inner.commit_all(group, topic, commits).await
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        self.inner.committed(group, topic, partition).await
    }

    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        self.inner.join(group, topic, node).await
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        self.inner.journal(name).await
    }
}

/// P5, PRD-2: callers that give up leave their messages with the broker, and these go on counting until the broker has
/// let go of them; a caller that comes then is told that there is no room.
#[tokio::test]
async fn callers_who_give_up_do_not_make_room_for_what_the_broker_still_holds() {
    let (answers, holds) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let inner = MemoryBroker::new(1, || 0).node("n");
    let broker = Arc::new(Silent { inner, answers: Arc::clone(&answers), holds: Arc::clone(&holds) });
    let keylane = Keylane::with_broker(broker, Clock::system(), Tasks::default(), true);
    let producer = keylane.producer().when_full(WhenFull::Fail);
    let payload = vec![b'x'; 900 << 10];
    let mut refused = 0;
    for _ in 0..200 {
        let before = holds.load(Ordering::SeqCst);
        let mut call = Box::pin(producer.produce(Message::to("orders").key("k").payload(payload.clone())));
        // Until the broker has the message, or it is refused.
        loop {
            match poll!(&mut call) {
                Poll::Ready(result) => {
                    result.expect_err("the broker does not answer");
                    refused += 1;
                    break;
                }
                Poll::Pending if holds.load(Ordering::SeqCst) > before => break,
                Poll::Pending => tokio::task::yield_now().await,
            }
        }
        drop(call);
        assert!(holds.load(Ordering::SeqCst) <= BYTES_MAX, "the broker holds too much");
    }
    assert!(refused > 0, "there was room for all");
    assert!(producer.backlog().bytes >= holds.load(Ordering::SeqCst), "what it holds counts");
    answers.add_permits(1_000);
    while producer.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((holds.load(Ordering::SeqCst), producer.backlog().bytes), (0, 0), "all is given back");
    keylane.produce(Message::to("orders").key("k").payload("after")).await.expect("there is room");
}
