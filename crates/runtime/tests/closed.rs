//! Opens and closes pipelines again and again, and proves that they leave nothing behind.

mod wait;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use keylane::raw::{Clock, Tasks};
use keylane::{Keylane, Message, Outcome};
use keylane_broker::{Broker, MemoryBroker};
use wait::until;

/// Pipelines of each kind.
const PIPELINES: usize = 500;
/// The bytes that the allocator may keep: far less than so many pipelines take.
const KEPT_BYTES: u64 = 32 << 20;

/// Opens, runs and closes one pipeline. Returns a weak reference to its broker, which is gone once nothing keeps it.
async fn open_and_close(drains: bool) -> Weak<dyn Broker> {
    let broker = MemoryBroker::new(1, || 0).node("n");
    let kept = Arc::downgrade(&broker);
    let keylane = Keylane::with_broker(broker, Clock::system(), Tasks::default(), true);
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let builder = keylane.pipeline("orders").handle(move |_: Message| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Outcome::Done }
    });
    let pipeline = builder.start().await.expect("starts");
    keylane.produce(Message::to("orders").key("k").payload("x")).await.expect("produced");
    until("it was handled", || handled.load(Ordering::SeqCst) == 1).await;
    if drains {
        pipeline.drain().await.expect("drained");
    }
    kept
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}

/// P5: a thousand pipelines, drained or just dropped, keep neither memory nor threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_that_are_closed_leave_nothing_behind() {
    for drains in [true, false] {
        let mut before = None;
        for round in 0..PIPELINES {
            let kept = open_and_close(drains).await;
            until("nothing keeps its broker", || kept.upgrade().is_none()).await;
            if round == PIPELINES / 10 {
                before = Some((resident_bytes(), threads()));
            }
        }
        let (bytes, count) = before.expect("long past");
        let grown = resident_bytes().saturating_sub(bytes);
        assert!(grown < KEPT_BYTES, "drained: {drains}, and {grown} bytes more than at the beginning");
        until("no thread is left", || threads() <= count + 4).await;
    }
}
