//! Pipelines on the memory broker: order, retries, rejection, drain, restart.

mod wait;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Draft, Tasks};
use keylane::{Keylane, Message, Outcome, Producer, Ticket, WhenFull};
use keylane_broker::embedded::Options;
use keylane_broker::embedded::disk::SimDisk;
use keylane_broker::{Embedded, Faulty, MemoryBroker, Rates, TopicSpec};
use wait::until;

fn open(cluster: &MemoryBroker) -> Keylane {
    Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true)
}

/// ORD-2, MSG-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_handled_in_order_and_once() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = open(&cluster);
    let seen: Arc<Mutex<HashMap<String, Vec<u64>>>> = Arc::default();
    let count = Arc::new(AtomicUsize::new(0));
    let (log, counter) = (Arc::clone(&seen), Arc::clone(&count));
    let pipeline = keylane
        .pipeline("orders")
        .handle(move |message: Message| {
            let (log, counter) = (Arc::clone(&log), Arc::clone(&counter));
            async move {
                let n: u64 = message.parse()?;
                if n.is_multiple_of(3) {
                    tokio::task::yield_now().await;
                }
                if n.is_multiple_of(7) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                log.lock().expect("free").entry(message.key_text().into_owned()).or_default().push(n);
                counter.fetch_add(1, Ordering::SeqCst);
                Ok::<(), serde_json::Error>(())
            }
        })
        .start()
        .await
        .expect("starts");
    for n in 0..200u64 {
        for key in 0..50 {
            let message = Message::to("orders").key(format!("k{key}")).json(&n).expect("a number");
            keylane.producer().send(message).await.expect("sent");
        }
    }
    until("all handled", || count.load(Ordering::SeqCst) == 10_000).await;
    pipeline.drain().await.expect("drained");
    for (key, numbers) in seen.lock().expect("free").iter() {
        assert_eq!(*numbers, (0..200).collect::<Vec<_>>(), "{key}");
    }
    let status = pipeline.status().await.expect("answers");
    assert_eq!(status.lag.messages, 0, "{status:?}");
    assert_eq!(status.handled, 10_000);
    drop((keylane, pipeline));

    // Messages on record as done are not run again (COM-3).
    let keylane = open(&cluster);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    let pipeline = keylane
        .pipeline("orders")
        .handle(move |message: Message| {
            log.lock().expect("free").push(String::from_utf8_lossy(message.payload()).into_owned());
            async { Outcome::Done }
        })
        .start()
        .await
        .expect("starts");
    keylane.produce(Message::to("orders").key("k1").json(&"last").expect("text")).await.expect("produced");
    until("the last handled", || seen.lock().expect("free").iter().any(|payload| payload == "\"last\""))
        .await;
    pipeline.drain().await.expect("drained");
    assert_eq!(*seen.lock().expect("free"), ["\"last\""]);
    let status = pipeline.status().await.expect("answers");
    assert_eq!((status.handled, status.failed, status.lag.messages), (1, 0, 0), "{status:?}");
}

/// RTY-1, RTY-2: a failed message is retried in its place; a rejected one is passed once that is on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_waits_in_its_lane_and_a_rejection_passes() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = open(&cluster);
    let seen: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let log = Arc::clone(&seen);
    let pipeline = keylane
        .pipeline("t")
        .handle(move |message: Message| {
            let payload = String::from_utf8(message.payload().to_vec()).expect("text");
            log.lock().expect("free").push((payload.clone(), message.attempt()));
            async move {
                match (payload.as_str(), message.attempt()) {
                    ("b", 1..3) => Outcome::failed("not yet"),
                    ("c", _) => Outcome::rejected("never"),
                    ("d", 1) => panic!("once"),
                    _ => Outcome::Done,
                }
            }
        })
        .start()
        .await
        .expect("starts");
    for payload in ["a", "b", "c", "d", "e"] {
        keylane.produce(Message::to("t").key("k").payload(payload)).await.expect("produced");
    }
    until("e", || seen.lock().expect("free").iter().any(|(payload, _)| payload == "e")).await;
    let want = [("a", 1), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("d", 1), ("d", 2), ("e", 1)];
    assert_eq!(*seen.lock().expect("free"), want.map(|(payload, attempt)| (payload.to_owned(), attempt)));
    pipeline.drain().await.expect("drained");
    let status = pipeline.status().await.expect("answers");
    assert_eq!((status.dead, status.rejected, status.failed, status.lag.messages), (1, 1, 3, 0));
}

/// BRK-1, COM-3: the same on files, over a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_pipeline_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let seen: Arc<Mutex<BTreeMap<(u32, u64), u32>>> = Arc::default();
    for round in 1..=3 {
        let keylane = Keylane::open_embedded(folder.path()).await.expect("opens");
        let log = Arc::clone(&seen);
        let pipeline = keylane
            .pipeline("t")
            .handle(move |message: Message| {
                let at = message.delivery();
                *log.lock().expect("free").entry((at.partition(), at.position())).or_default() += 1;
                async {}
            })
            .start()
            .await
            .expect("starts");
        for n in 0..500 {
            let message = Message::to("t").key(format!("k{}", n % 7)).payload("x");
            keylane.producer().send(message).await.expect("sent");
        }
        until("handled", || seen.lock().expect("free").len() == 500 * round).await;
        pipeline.drain().await.expect("drained");
        let repeated: Vec<_> =
            seen.lock().expect("free").iter().filter(|(_, times)| **times > 1).map(|(at, _)| *at).collect();
        assert!(repeated.is_empty(), "handled again after restart {round}: {repeated:?}");
    }
}

/// PRD-1: a caller may wait for the acknowledgement, take a ticket, forget it, or be called; each message is durable,
/// in the order sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_of_producing_keeps_the_order_of_its_caller() {
    let cluster = MemoryBroker::new(1, || 0);
    cluster.set_latency(Duration::from_micros(100), Duration::from_millis(2));
    let keylane = open(&cluster);
    let called = Arc::new(AtomicUsize::new(0));
    let mut tickets = Vec::new();
    for n in 0..200u64 {
        let message = Message::to("t").key("k").json(&n).expect("a number");
        match n % 4 {
            0 => drop(keylane.produce(message).await.expect("durable")),
            1 => tickets.push(keylane.producer().send(message).await.expect("sent")),
            2 => drop(keylane.producer().send(message).await.expect("sent")),
            _ => {
                let count = Arc::clone(&called);
                let then = move |receipt: Result<keylane::Receipt, keylane::Error>| {
                    receipt.expect("durable");
                    count.fetch_add(1, Ordering::SeqCst);
                };
                keylane.producer().send_with(message, then).await.expect("sent");
            }
        }
    }
    for ticket in tickets {
        ticket.await.expect("durable");
    }
    until("all callbacks", || called.load(Ordering::SeqCst) == 50).await;
    let partition = keylane::raw::Delivery::partition;
    let topics = keylane.topics().await.expect("answers");
    let at = topics[0].ends.iter().find(|ends| ends.end > 0).expect("one partition has the key").partition;
    let kept = keylane.peek("t", at, 0, 1000).await.expect("answers");
    let numbers: Vec<u64> =
        kept.iter().map(|d| serde_json::from_slice(d.payload().expect("there")).expect("a number")).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    assert!(kept.iter().all(|delivery| partition(delivery) == at));
}

/// PRD-1: callers that each wait for their own acknowledgement still share the broker's syncs.
#[tokio::test]
async fn callers_that_wait_one_by_one_share_a_sync() {
    const CALLERS: usize = 500;
    let options = Options::simulated(Arc::new(SimDisk::new(1)), Arc::new(|| 1), 1);
    let broker = Arc::new(Embedded::open("data", options).expect("opens"));
    let keylane = Keylane::with_broker(Arc::clone(&broker) as _, Clock::system(), Tasks::default(), true);
    let first = {
        let keylane = keylane.clone();
        tokio::spawn(async move { keylane.produce(Message::to("t").payload("first")).await })
    };
    commits_until(&broker, || first.is_finished()).await;
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let keylane = keylane.clone();
            let message = Message::to("t").key(format!("k{n}")).payload("x");
            tokio::spawn(async move { keylane.produce(message).await })
        })
        .collect();
    while keylane.producer().in_flight() < CALLERS {
        tokio::task::yield_now().await;
    }
    let commits = commits_until(&broker, || callers.iter().all(tokio::task::JoinHandle::is_finished)).await;
    for caller in callers {
        caller.await.expect("does not panic").expect("durable");
    }
    assert!(commits <= 3, "{commits} commits for {CALLERS} callers");
}

/// Lets the broker write and sync what waits, until `done`. Returns how often it did.
async fn commits_until(broker: &Embedded, done: impl Fn() -> bool) -> usize {
    for commits in 0..10_000 {
        // Callers that were answered go on before the next sync.
        for _ in 0..1_000 {
            if done() {
                return commits;
            }
            tokio::task::yield_now().await;
        }
        broker.commit_once();
    }
    panic!("never answered");
}

/// A broker that answers only when no other task can run: time is simulated.
async fn slow_to_answer() -> Keylane {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = open(&cluster);
    keylane.produce(Message::to("t").payload("first")).await.expect("durable");
    cluster.set_latency(Duration::from_secs(1), Duration::from_secs(1));
    keylane
}

async fn sent_until_refused(producer: &Producer, payload: &[u8]) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    loop {
        match producer.send(Message::to("t").payload(payload.to_vec())).await {
            Ok(ticket) => tickets.push(ticket),
            Err(refused) => {
                assert!(refused.to_string().contains("producer in-flight limit reached"), "{refused}");
                return tickets;
            }
        }
    }
}

/// PRD-2: past the bound a caller fails at once, or waits, as it chose; nothing is lost by either.
#[tokio::test(start_paused = true)]
async fn too_much_in_flight_fails_at_once_or_waits() {
    let keylane = slow_to_answer().await;
    let hasty = keylane.producer().when_full(WhenFull::Fail);
    let tickets = sent_until_refused(&hasty, b"x").await;
    assert_eq!(tickets.len(), 1_000);
    keylane.produce(Message::to("t").payload("patient")).await.expect("waits for room, then durable");
    for ticket in tickets {
        ticket.await.expect("durable");
    }
    assert_eq!(keylane.topics().await.expect("answers")[0].messages, 1_002);
}

/// PRD-2: bytes have a bound of their own, 64 MiB.
#[tokio::test(start_paused = true)]
async fn bytes_in_flight_are_bounded_as_calls_are() {
    let keylane = slow_to_answer().await;
    let hasty = keylane.producer().when_full(WhenFull::Fail);
    let payload = vec![b'x'; 1_000_000];
    let tickets = sent_until_refused(&hasty, &payload).await;
    assert_eq!(tickets.len(), 67, "of 1 MB each, and a little for its frame");
    hasty.send(Message::to("t").payload("x")).await.expect("a small one has room");
    let patient = Message::to("t").payload(payload);
    keylane.produce(patient).await.expect("waits for room, then durable");
    for ticket in tickets {
        ticket.await.expect("durable");
    }
    assert_eq!(keylane.producer().in_flight(), 0);
    assert_eq!(keylane.topics().await.expect("answers")[0].messages, 70);
}

/// PRD-2: a batch is one call, however many messages it has.
#[tokio::test(start_paused = true)]
async fn a_batch_in_flight_is_one_call() {
    let keylane = slow_to_answer().await;
    let hasty = keylane.producer().when_full(WhenFull::Fail);
    let mut batch = hasty.call("t").await.expect("a topic");
    for n in 0..5_000 {
        let id = n.to_string();
        batch.push(&Draft { id: &id, payload: Some(b"x"), ..Draft::default() });
    }
    let batch = tokio::spawn(batch.send());
    while keylane.producer().in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(keylane.producer().in_flight(), 1);
    assert_eq!(sent_until_refused(&hasty, b"x").await.len(), 999);
    assert!(batch.await.expect("ends").expect("sent").iter().all(Result::is_ok));
}

/// BRK-10, P10: a group that joins again does not join another topic of the same name, with other positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_anew_while_the_group_was_not_joined_stops_the_pipeline() {
    let cluster = MemoryBroker::new(1, || 0);
    let faulty = Faulty::new(cluster.node("n"), 1, Rates::none());
    let keylane = Keylane::with_broker(faulty.clone(), Clock::system(), Tasks::default(), true);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let counting = move |_: Message| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), serde_json::Error>(()) }
    };
    let pipeline = keylane.pipeline("orders").handle(counting).start().await.expect("starts");
    let send = async |count: usize| {
        for _ in 0..count {
            keylane.producer().send(Message::to("orders").key("k").payload("1")).await.expect("sent");
        }
    };
    send(10).await;
    until("all handled", || count.load(Ordering::SeqCst) == 10).await;
    faulty.disconnect();
    cluster.recreate_topic("orders");
    send(20).await;
    let stopped = async || {
        let partitions = pipeline.status().await.expect("it answers").partitions;
        partitions.iter().all(|at| at.why.as_ref().is_some_and(|why| why.contains("made again")))
    };
    while !stopped().await {
        assert_eq!(count.load(Ordering::SeqCst), 10, "nothing of the other topic is handled");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pipeline.drain().await.expect("drained");
}

/// MSG-3, P7: a header name that is reserved for brokers is refused, on every broker and before acknowledgement.
#[tokio::test]
async fn a_header_of_ours_is_refused() {
    let keylane = open(&MemoryBroker::new(1, || 0));
    for name in ["keylane-id", "Keylane-X", "nul\0"] {
        let sent = keylane.produce(Message::to("orders").payload("1").header(name, "x")).await;
        let error = sent.expect_err("it is refused").to_string();
        assert!(error.contains("keylane- are taken"), "{error}");
    }
    keylane.produce(Message::to("orders").payload("1").header("keylanes", "x")).await.expect("another name");
}

/// BRK-10, P1: a topic that grows while a pipeline starts on it is read as a whole.
#[tokio::test(start_paused = true)]
async fn a_topic_that_grows_while_a_pipeline_starts_is_read_whole() {
    let cluster = MemoryBroker::new(1, || 0);
    let clock = Clock::simulated(0).seeded(1);
    let keylane = Keylane::with_broker(cluster.node("n"), clock, Tasks::behind(Arc::default()), true);
    let partitions = 2;
    let spec = TopicSpec { partitions, ..TopicSpec::default() };
    cluster.node("makes").create_topic("t", &spec).await.expect("made");
    // Each call is carried out after 10 ms and answered after 20: the first asks for the topic, the second joins.
    cluster.set_latency(Duration::from_millis(10), Duration::from_millis(10));
    let grows = cluster.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(25)).await;
        grows.grow_topic("t", partitions + 1);
    });
    let count = Arc::new(AtomicUsize::new(0));
    // Also when it starts once more, since its journals then say how many partitions there were.
    for round in 1..=2 {
        let counter = Arc::clone(&count);
        let pipeline = keylane
            .pipeline("t")
            .handle(move |_: Message| {
                counter.fetch_add(1, Ordering::SeqCst);
                async { Outcome::Done }
            })
            .start()
            .await
            .expect("starts");
        let writer = Keylane::with_broker(cluster.node("w"), clock, Tasks::behind(Arc::default()), true);
        for n in 0..100 {
            writer.produce(Message::to("t").key(format!("k{n}")).payload("x")).await.expect("produced");
        }
        tokio::time::timeout(Duration::from_secs(60), async {
            while count.load(Ordering::SeqCst) < 100 * round {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{} were handled in round {round}", count.load(Ordering::SeqCst)));
        let shown = pipeline.status().await.expect("answers").partitions;
        assert_eq!(shown.len(), partitions as usize + 1);
        assert!(shown.iter().all(|partition| partition.why.is_none()), "{shown:?}");
        pipeline.drain().await.expect("drained");
    }
}
