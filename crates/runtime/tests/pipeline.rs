//! Pipelines on the memory broker: order, retries, rejection, drain, restart.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::clock::Clock;
use keylane::spawn::Tasks;
use keylane::{Keylane, Message, Outcome};
use keylane_broker::MemoryBroker;

fn open(cluster: &MemoryBroker) -> Keylane {
    Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
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
            let message = Message::new("orders").key(format!("k{key}")).json(&n).expect("a number");
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

    // What is on record is not run again (COM-3).
    let keylane = open(&cluster);
    let counter = Arc::clone(&count);
    let pipeline = keylane
        .pipeline("orders")
        .handle(move |message: Message| {
            assert_eq!(message.get_payload(), b"\"last\"", "handled before");
            counter.fetch_add(1, Ordering::SeqCst);
            async { Outcome::Done }
        })
        .start()
        .await
        .expect("starts");
    keylane.produce(Message::new("orders").key("k1").json(&"last").expect("text")).await.expect("produced");
    until("the last handled", || count.load(Ordering::SeqCst) == 10_001).await;
    pipeline.drain().await.expect("drained");
}

/// RTY-1, RTY-2: a failure is retried in its place; a rejected message is passed once that is on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_waits_in_its_lane_and_a_rejection_passes() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = open(&cluster);
    let seen: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let log = Arc::clone(&seen);
    let pipeline = keylane
        .pipeline("t")
        .handle(move |message: Message| {
            let payload = String::from_utf8(message.get_payload().to_vec()).expect("text");
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
        keylane.produce(Message::new("t").key("k").payload(payload)).await.expect("produced");
    }
    until("e", || seen.lock().expect("free").iter().any(|(payload, _)| payload == "e")).await;
    let want = [("a", 1), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("d", 1), ("d", 2), ("e", 1)];
    assert_eq!(*seen.lock().expect("free"), want.map(|(payload, attempt)| (payload.to_owned(), attempt)));
    pipeline.drain().await.expect("drained");
    let status = pipeline.status().await.expect("answers");
    assert_eq!((status.dead, status.failed, status.lag.messages), (1, 3, 0));
}

/// BRK-1, COM-3: the same on files, over a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_pipeline_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = Arc::new(AtomicUsize::new(0));
    for round in 1..=3 {
        let keylane = Keylane::open_embedded(folder.path()).await.expect("opens");
        let counter = Arc::clone(&count);
        let pipeline = keylane
            .pipeline("t")
            .handle(move |_: Message| {
                counter.fetch_add(1, Ordering::SeqCst);
                async {}
            })
            .start()
            .await
            .expect("starts");
        for n in 0..500 {
            let message = Message::new("t").key(format!("k{}", n % 7)).payload("x");
            keylane.producer().send(message).await.expect("sent");
        }
        until("handled", || count.load(Ordering::SeqCst) == 500 * round).await;
        pipeline.drain().await.expect("drained");
    }
}

/// PRD-1: wait for the acknowledgement, take a ticket, forget it, or be called; each is durable, in the order sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_of_producing_keeps_the_order_of_its_caller() {
    let cluster = MemoryBroker::new(1, || 0);
    cluster.set_latency(Duration::from_micros(100), Duration::from_millis(2));
    let keylane = open(&cluster);
    let called = Arc::new(AtomicUsize::new(0));
    let mut tickets = Vec::new();
    for n in 0..200u64 {
        let message = Message::new("t").key("k").json(&n).expect("a number");
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
    let partition = keylane::Delivery::partition;
    let topics = keylane.topics().await.expect("answers");
    let at = topics[0].ends.iter().find(|ends| ends.end > 0).expect("one partition has the key").partition;
    let kept = keylane.peek("t", at, 0, 1000).await.expect("answers");
    let numbers: Vec<u64> =
        kept.iter().map(|d| serde_json::from_slice(d.payload().expect("there")).expect("a number")).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    assert!(kept.iter().all(|delivery| partition(delivery) == at));
}

/// PRD-2: past the bound a caller fails at once, or waits, as it chose; nothing is lost by either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_much_in_flight_fails_at_once_or_waits() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = open(&cluster);
    keylane.produce(Message::new("t").payload("first")).await.expect("durable");
    cluster.set_latency(Duration::from_millis(300), Duration::from_millis(300));
    let hasty = keylane.producer().when_full(keylane::WhenFull::Fail);
    let mut tickets = Vec::new();
    let refused = loop {
        match hasty.send(Message::new("t").payload("x")).await {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("producer in-flight limit reached"), "{refused}");
    assert_eq!(tickets.len(), 1_000);
    keylane.produce(Message::new("t").payload("patient")).await.expect("waits for room, then durable");
    for ticket in tickets {
        ticket.await.expect("durable");
    }
    assert_eq!(keylane.topics().await.expect("answers")[0].messages, 1_002);
}
