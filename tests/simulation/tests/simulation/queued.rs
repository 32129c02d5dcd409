//! A batch of which nothing can run at once: the reader is asked for more, or later messages would wait for a tick.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Tasks};
use keylane::{Attempt, Handler, Keylane, Message, Outcome, Settings};
use keylane_broker::{Broker, MemoryBroker, TopicSpec};
use keylane_core::partition_of;
use tokio::time::{Instant, sleep};

use crate::{GROUP, TOPIC};

const PARTITIONS: u32 = 4;
/// Far below the half second between two looks of an idle shard.
const SOON: Duration = Duration::from_millis(100);

/// A handler that keeps its first key busy for ever, and notes all other messages.
struct Worker(Arc<Mutex<Vec<String>>>);

impl Handler for Worker {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        if attempt.payload() == Some(b"busy") {
            std::future::pending::<()>().await;
        }
        self.0.lock().expect("no holder panics").push(attempt.id().to_owned());
        Outcome::Done
    }
}

/// ORD-2, P3: a message that is only queued does not keep the next message of its partition waiting.
#[tokio::test(start_paused = true)]
async fn a_free_key_behind_a_queued_one_starts_at_once() {
    let cluster = MemoryBroker::new(1, || 0);
    let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
    cluster.node("any").create_topic(TOPIC, &spec).await.expect("a new topic");
    let broker: Arc<dyn Broker> = cluster.node("one");
    let keylane = Keylane::with_broker(broker, Clock::simulated(0).seeded(7), Tasks::default(), false);
    let started = Arc::<Mutex<Vec<String>>>::default();
    let mut settings = Settings::default();
    (settings.shards, settings.timeout) = (Some(1), Duration::from_secs(3600));
    let builder =
        keylane.pipeline(GROUP).topic(TOPIC).settings(settings).handle(Worker(Arc::clone(&started)));
    let _pipeline = builder.start().await.expect("starts");
    for partition in 0..PARTITIONS {
        let mut keys = (0..)
            .map(|n| format!("k{n}"))
            .filter(|key| partition_of(key.as_bytes(), PARTITIONS) == partition);
        let (busy, free) = (keys.next().expect("there is one"), keys.next().expect("and another"));
        let produce = async |key: &str, payload: &'static str, id: &str| {
            let message = Message::to(TOPIC).key(key).payload(payload).id(id);
            keylane.produce(message).await.expect("durable");
        };
        produce(&busy, "busy", "busy").await;
        sleep(Duration::from_secs(2)).await;
        for round in 0..20 {
            produce(&busy, "queued", "queued").await;
            sleep(Duration::from_millis(7)).await;
            let (id, since) = (format!("{partition}-{round}"), Instant::now());
            produce(&free, "free", &id).await;
            while !started.lock().expect("no holder panics").contains(&id) {
                sleep(Duration::from_millis(1)).await;
                assert!(since.elapsed() < SOON, "{id} waits though nothing stands in its way");
            }
        }
    }
}
