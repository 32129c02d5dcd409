//! Handlers that block their thread, take too long, or use all that there is: other keys go on.

mod wait;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Draft, Tasks};
use keylane::status::{LaneSort, PartitionState};
use keylane::{Keylane, Message, Outcome, Pipeline, Settings};
use keylane_broker::MemoryBroker;
use tokio::sync::Semaphore;
use wait::until;

/// A door: a thread that waits at it is blocked until the test opens it.
#[derive(Default)]
struct Door(Mutex<bool>, Condvar);

impl Door {
    fn wait(&self) {
        let mut open = self.0.lock().expect("free");
        while !*open {
            open = self.1.wait(open).expect("free");
        }
    }

    fn open(&self) {
        *self.0.lock().expect("free") = true;
        self.1.notify_all();
    }
}

fn one_shard() -> Settings {
    let mut settings = Settings::default();
    settings.shards = Some(1);
    settings
}

fn two_shards(concurrency: usize) -> Settings {
    let mut settings = Settings::default();
    (settings.shards, settings.concurrency) = (Some(2), concurrency);
    settings
}

/// Waits until every partition has an owner that reads it.
async fn owned(pipeline: &Pipeline) {
    while pipeline.status().await.expect("answers").partitions.iter().any(|part| part.epoch == 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// ORD-4: the thread of a handler that blocks is left alone, and its shard goes on elsewhere; its lane stays busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_stops_only_its_own_key() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (log, shut) = (Arc::clone(&seen), Arc::clone(&door));
    let pipeline = keylane
        .pipeline("t")
        .settings(one_shard())
        .handle(move |message: Message| {
            let (log, shut) = (Arc::clone(&log), Arc::clone(&shut));
            async move {
                let payload = String::from_utf8_lossy(message.payload()).into_owned();
                if payload.starts_with("block") {
                    shut.wait();
                }
                log.lock().expect("free").push(payload);
            }
        })
        .start()
        .await
        .expect("starts");
    // More than the three after which every attempt goes to a thread of its own.
    for n in 0..6 {
        let key = format!("blocked{n}");
        keylane.produce(Message::to("t").key(&key).payload(format!("block{n}"))).await.expect("produced");
        keylane.produce(Message::to("t").key(&key).payload(format!("next{n}"))).await.expect("produced");
        for m in 0..20 {
            let message = Message::to("t").key(format!("free{m}")).payload(format!("{n}-{m}"));
            keylane.produce(message).await.expect("produced");
        }
        until("the others", || seen.lock().expect("free").len() == 20 * (n + 1)).await;
    }
    assert!(
        seen.lock().expect("free").iter().all(|payload| !payload.contains("next")),
        "the lanes stay busy"
    );
    door.open();
    until("all", || seen.lock().expect("free").len() == 6 * 22).await;
    let seen = seen.lock().expect("free").clone();
    for n in 0..6 {
        let at = |what: String| seen.iter().position(|payload| *payload == what).expect("handled");
        assert!(at(format!("block{n}")) < at(format!("next{n}")));
    }
    pipeline.drain().await.expect("drained");
    assert_eq!(pipeline.status().await.expect("answers").lag.messages, 0);
}

/// A pipeline on `t` whose handler waits at a door for messages `block...`, and counts the others.
async fn blocks_at(door: &Arc<Door>, keylane: &Keylane, settings: Settings) -> (Pipeline, Arc<AtomicUsize>) {
    let handled = Arc::new(AtomicUsize::new(0));
    let (count, shut) = (Arc::clone(&handled), Arc::clone(door));
    let pipeline = keylane
        .pipeline("t")
        .settings(settings)
        .handle(move |message: Message| {
            let (count, shut) = (Arc::clone(&count), Arc::clone(&shut));
            async move {
                if message.payload().starts_with(b"block") {
                    shut.wait();
                }
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .start()
        .await
        .expect("starts");
    (pipeline, handled)
}

async fn produce(keylane: &Keylane, what: &str, count: usize) {
    for n in 0..count {
        let message = Message::to("t").key(format!("{what}{n}")).payload(what.to_owned());
        keylane.produce(message).await.expect("produced");
    }
}

/// ORD-4: with two workers and a hundred keys that block their thread, other keys and everything else that runs on the
/// runtime go on. A task beside the pipeline stands for a listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_blocked_keys_take_no_worker_from_anybody() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let (ask, mut asked) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>(1);
    tokio::spawn(async move {
        while let Some(answer) = asked.recv().await {
            let _ = answer.send(());
        }
    });
    let (pipeline, handled) = blocks_at(&door, &keylane, Settings::default()).await;
    produce(&keylane, "block", 100).await;
    for round in 1..=10 {
        produce(&keylane, "free", 100).await;
        until("the others", || handled.load(Ordering::SeqCst) == round * 100).await;
        let (answer, answered) = tokio::sync::oneshot::channel();
        ask.send(answer).await.expect("somebody listens");
        answered.await.expect("answered");
    }
    let blocking = pipeline.status().await.expect("answers").blocking;
    assert_eq!((blocking.threads, blocking.waiting), (100, 0), "each has a thread of its own");
    door.open();
    until("all", || handled.load(Ordering::SeqCst) == 1_100).await;
    pipeline.drain().await.expect("drained");
    assert_eq!(pipeline.status().await.expect("answers").blocking.threads, 0);
}

/// The 99th percentile of the time from producing to the handler's end, of 1,000 messages, 20 at a time.
async fn p99(keylane: &Keylane, handled: &AtomicUsize) -> Duration {
    let mut took = Vec::new();
    for _ in 0..50 {
        let (before, start) = (handled.load(Ordering::SeqCst), std::time::Instant::now());
        produce(keylane, "free", 20).await;
        while handled.load(Ordering::SeqCst) < before + 20 {
            tokio::task::yield_now().await;
        }
        took.push(start.elapsed());
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// ORD-4: with two workers and a hundred blocked keys, the p99 of other keys is at most twice what it is without.
/// Measures time: the best of several rounds counts, since the machine does other work too, with more rounds while it
/// is too slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "chaos: measures time"]
async fn chaos_a_hundred_blocked_keys_do_not_double_the_p99_of_others() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let (pipeline, handled) = blocks_at(&door, &keylane, Settings::default()).await;
    owned(&pipeline).await;
    let mut without = Duration::MAX;
    for _ in 0..5 {
        without = without.min(p99(&keylane, &handled).await);
    }
    produce(&keylane, "block", 100).await;
    while pipeline.status().await.expect("answers").blocking.threads < 100 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut with = Duration::MAX;
    for _ in 0..50 {
        with = with.min(p99(&keylane, &handled).await);
        if with <= 2 * without {
            break;
        }
    }
    println!("p99 of 20 at a time: {without:?} without, {with:?} with a hundred blocked keys");
    // Before anything may panic: a runtime does not end while threads are blocked.
    door.open();
    pipeline.drain().await.expect("drained");
    assert!(with <= 2 * without, "{with:?} is more than twice {without:?}");
}

/// ORD-4, P5: a setting bounds the threads that handlers block. Beyond it messages wait, which is shown; the process
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_handlers_block_are_bounded_and_reaching_the_bound_is_shown() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let mut settings = Settings::default();
    settings.blocking = 5;
    let (pipeline, handled) = blocks_at(&door, &keylane, settings).await;
    produce(&keylane, "block", 30).await;
    loop {
        let blocking = pipeline.status().await.expect("answers").blocking;
        assert!(blocking.max == 5 && blocking.threads <= 5 + 10, "{blocking:?}");
        if blocking.waiting > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    door.open();
    until("all", || handled.load(Ordering::SeqCst) == 30).await;
    pipeline.drain().await.expect("drained");
}

/// ORD-4: also while the runtime's blocking threads are all in use, so that none can replace a worker that a handler
/// blocks, two such handlers do not take both workers.
#[test]
fn handlers_that_block_leave_a_worker_though_the_blocking_threads_are_in_use() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(1).enable_all().build().expect("a runtime");
    let door = Arc::new(Door::default());
    let (shut, free) = (Arc::clone(&door), Arc::new(AtomicUsize::new(0)));
    runtime.spawn_blocking(move || shut.wait());
    let (keep, count, shut) = (Arc::new(AtomicBool::new(true)), Arc::clone(&free), Arc::clone(&door));
    let kept = Arc::clone(&keep);
    runtime.spawn(async move {
        let cluster = MemoryBroker::new(1, || 0);
        let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
        let (pipeline, handled) = blocks_at(&shut, &keylane, one_shard()).await;
        produce(&keylane, "block", 10).await;
        produce(&keylane, "free", 10).await;
        while kept.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            count.store(handled.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        drop(pipeline);
    });
    // Not on the runtime: its clock stands still while it has no worker.
    let goes_on = (0..6_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        free.load(Ordering::SeqCst) == 10
    });
    // Before anything may panic: a runtime does not end while threads are blocked.
    door.open();
    keep.store(false, Ordering::SeqCst);
    assert!(goes_on, "{} of 10 were handled", free.load(Ordering::SeqCst));
}

/// A pipeline whose threads are all blocked while more messages wait for one. Returns the count of attempts that began.
async fn short_of_threads(
    cluster: &MemoryBroker,
    door: &Arc<Door>,
) -> (Keylane, Arc<Pipeline>, Arc<AtomicUsize>) {
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let (begun, shut) = (Arc::<AtomicUsize>::default(), Arc::clone(door));
    let mut settings = one_shard();
    settings.blocking = 5;
    let count = Arc::clone(&begun);
    let pipeline = keylane
        .pipeline("t")
        .settings(settings)
        .handle(move |_: Message| {
            count.fetch_add(1, Ordering::SeqCst);
            shut.wait();
            async {}
        })
        .start()
        .await
        .expect("starts");
    produce(&keylane, "block", 100).await;
    loop {
        let blocking = pipeline.status().await.expect("answers").blocking;
        if blocking.waiting > 0 && begun.load(Ordering::SeqCst) as u64 == blocking.threads {
            return (keylane, Arc::new(pipeline), begun);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until every partition is in one of these states, and its shard knows it.
async fn shard_knows(pipeline: &Pipeline, states: &[PartitionState]) {
    loop {
        let partitions = pipeline.status().await.expect("answers").partitions;
        if partitions.iter().all(|partition| states.contains(&partition.state)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A shard answers a query for lanes only after the commands sent before it.
    while !pipeline.lanes(LaneSort::Depth, 1).await.unanswered.is_empty() {}
}

/// ORD-9, P2: a drain starts nothing, not even a message that only waited for a free thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_starts_nothing_that_waited_for_a_thread() {
    let (cluster, door) = (MemoryBroker::new(1, || 0), Arc::new(Door::default()));
    let (_keylane, pipeline, begun) = short_of_threads(&cluster, &door).await;
    let before = begun.load(Ordering::SeqCst);
    let draining = tokio::spawn({
        let pipeline = Arc::clone(&pipeline);
        async move { pipeline.drain().await }
    });
    shard_knows(&pipeline, &[PartitionState::Draining, PartitionState::Idle]).await;
    door.open();
    draining.await.expect("it ends").expect("drained");
    let lag = pipeline.status().await.expect("answers").lag.messages;
    assert_eq!((begun.load(Ordering::SeqCst), lag), (before, 100 - before as u64));
}

/// P9, ORD-12: nothing of a lost partition starts, not even a message that only waited for a free thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_waited_for_a_thread_starts_once_its_partition_is_lost() {
    let (cluster, door) = (MemoryBroker::new(1, || 0), Arc::new(Door::default()));
    let (_keylane, pipeline, begun) = short_of_threads(&cluster, &door).await;
    let before = begun.load(Ordering::SeqCst);
    cluster.by_hand("t", "t");
    for partition in 0..pipeline.status().await.expect("answers").partitions.len() {
        cluster.lose("t", "t", partition as u32);
    }
    shard_knows(&pipeline, &[PartitionState::Idle]).await;
    door.open();
    // The lost partitions come back and are handled anew, but only after the waiting attempts would have begun.
    while pipeline.status().await.expect("answers").blocking.threads > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(begun.load(Ordering::SeqCst), before);
}

/// A value whose drop waits at a door.
struct Guard(Arc<Door>, Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.wait();
    }
}

/// A pipeline of one shard on `t`. Its first attempts at messages `block...` wait for ever, and then at the door when
/// they are dropped. Returns how many are being dropped, and which other messages were handled.
async fn drops_at(
    door: &Arc<Door>,
    keylane: &Keylane,
    timeout: Duration,
) -> (Pipeline, Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>) {
    // Not on the runtime, which neither tells the time nor ends while all its threads are blocked.
    let opens = Arc::clone(door);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(120));
        opens.open();
    });
    let (dropping, handled) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
    let (count, log, shut) = (Arc::clone(&dropping), Arc::clone(&handled), Arc::clone(door));
    let pipeline = keylane
        .pipeline("t")
        .settings(one_shard())
        .timeout(timeout)
        .handle(move |message: Message| {
            let (log, guard) = (Arc::clone(&log), Guard(Arc::clone(&shut), Arc::clone(&count)));
            async move {
                let what = String::from_utf8_lossy(message.payload()).into_owned();
                match what.starts_with("block") && message.attempt() == 1 {
                    true => {
                        std::future::pending::<()>().await;
                        drop(guard);
                    }
                    false => std::mem::forget(guard),
                }
                log.lock().expect("free").push(what);
            }
        })
        .start()
        .await
        .expect("starts");
    (pipeline, dropping, handled)
}

/// ORD-4, ORD-7: dropping the future of a handler that took too long may block the thread: its key waits for that, and
/// no other key does. There are more such futures than workers, and more than the three after which threads of their
/// own drop them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_when_it_is_dropped_stops_only_its_own_key() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let (pipeline, dropping, handled) = drops_at(&door, &keylane, Duration::from_millis(100)).await;
    for n in 0..6 {
        let key = format!("blocked{n}");
        keylane.produce(Message::to("t").key(&key).payload(format!("block{n}"))).await.expect("produced");
        keylane.produce(Message::to("t").key(&key).payload(format!("next{n}"))).await.expect("produced");
        until("it is dropped", || dropping.load(Ordering::SeqCst) == n + 1).await;
        produce(&keylane, "free", 20).await;
        until("the others", || handled.lock().expect("free").len() == 20 * (n + 1)).await;
    }
    assert!(handled.lock().expect("free").iter().all(|what| what == "free"), "the keys wait");
    door.open();
    until("all", || handled.lock().expect("free").len() == 6 * 22).await;
    let handled = handled.lock().expect("free").clone();
    for n in 0..6 {
        let at = |what: String| handled.iter().position(|of| *of == what).expect("handled");
        assert!(at(format!("block{n}")) < at(format!("next{n}")));
    }
    pipeline.drain().await.expect("drained");
    let status = pipeline.status().await.expect("answers");
    assert_eq!((status.failed, status.lag.messages, status.blocking.threads), (6, 0, 0));
}

/// ORD-4, P3: nor do handlers of a partition that was lost stop the other partitions of its shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_of_a_lost_partition_that_block_when_they_are_dropped_stop_nobody() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let door = Arc::new(Door::default());
    let (pipeline, dropping, handled) = drops_at(&door, &keylane, Duration::from_secs(600)).await;
    let key = "block";
    let lost = keylane.produce(Message::to("t").key(key).payload("block")).await.expect("produced").partition;
    owned(&pipeline).await;
    until("it runs", || pipeline.seen().in_flight == 1).await;
    cluster.by_hand("t", "t");
    cluster.lose("t", "t", lost);
    until("it is dropped", || dropping.load(Ordering::SeqCst) == 1).await;
    let others = (0..).map(|n| format!("k{n}")).filter(|key| {
        keylane_core::partition_of(key.as_bytes(), pipeline.seen().partitions.len() as u32) != lost
    });
    for key in others.take(20) {
        keylane.produce(Message::to("t").key(key).payload("free")).await.expect("produced");
    }
    until("the others", || handled.lock().expect("free").len() == 20).await;
    door.open();
    until("its thread", || pipeline.seen().blocking.threads == 0 && pipeline.seen().in_flight == 0).await;
    pipeline.drain().await.expect("drained");
}

/// ORD-7: a handler that takes too long has failed, and is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_takes_too_long_is_dropped_and_tried_again() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let pipeline = keylane
        .pipeline("t")
        .timeout(Duration::from_millis(50))
        .handle(move |message: Message| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                if message.attempt() < 3 {
                    std::future::pending::<()>().await;
                }
                Outcome::Done
            }
        })
        .start()
        .await
        .expect("starts");
    keylane.produce(Message::to("t").key("k").payload("x")).await.expect("produced");
    until("three attempts", || attempts.load(Ordering::SeqCst) == 3).await;
    pipeline.drain().await.expect("drained");
    let status = pipeline.status().await.expect("answers");
    assert_eq!((status.handled, status.failed, status.lag.messages), (1, 2, 0));
}

/// ORD-4, MSG-2: no more handlers in flight than allowed, all used, and messages without a key take half at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrency_is_used_up_and_never_exceeded() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let released: Arc<Semaphore> = Arc::new(Semaphore::new(0));
    let keyless: Arc<Mutex<BTreeSet<usize>>> = Arc::default();
    let (now, max, gate, without) =
        (Arc::clone(&running), Arc::clone(&most), Arc::clone(&released), Arc::clone(&keyless));
    let pipeline = keylane
        .pipeline("t")
        // Each shard bounds its messages without a key by itself: with two shards, both together take half of eight.
        .settings(two_shards(8))
        .handle(move |message: Message| {
            let (now, max, gate, without) =
                (Arc::clone(&now), Arc::clone(&max), Arc::clone(&gate), Arc::clone(&without));
            async move {
                let at_once = now.fetch_add(1, Ordering::SeqCst) + 1;
                max.fetch_max(at_once, Ordering::SeqCst);
                if message.key().is_none() {
                    let n = String::from_utf8_lossy(message.payload()).parse().expect("a number");
                    without.lock().expect("free").insert(n);
                }
                gate.acquire().await.expect("open").forget();
                now.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .start()
        .await
        .expect("starts");
    for n in 0..40 {
        keylane.produce(Message::to("t").payload(n.to_string())).await.expect("produced");
    }
    until("half are keyless", || running.load(Ordering::SeqCst) == 4).await;
    for n in 0..40 {
        keylane.produce(Message::to("t").key(format!("k{n}")).payload("0")).await.expect("produced");
    }
    until("all are used", || running.load(Ordering::SeqCst) == 8).await;
    assert_eq!(keyless.lock().expect("free").len(), 4);
    released.add_permits(80);
    until("all are handled", || released.available_permits() == 0 && running.load(Ordering::SeqCst) == 0)
        .await;
    assert_eq!(most.load(Ordering::SeqCst), 8);
    pipeline.drain().await.expect("drained");
    assert_eq!(pipeline.status().await.expect("answers").handled, 80);
}

/// ORD-4: with fewer permits than shards, a shard that is always busy leaves some to the other shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_permit_goes_round_among_busy_shards() {
    /// A shard may keep the permit for a pass, which is 4,096 polls, so each shard has work for several.
    const MESSAGES: usize = 40_000;
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let gate = Arc::new(Semaphore::new(0));
    let (log, opens) = (Arc::clone(&seen), Arc::clone(&gate));
    for n in 0..MESSAGES {
        keylane.producer().send(Message::to("t").key(format!("k{n}")).payload("x")).await.expect("sent");
    }
    let pipeline = keylane
        .pipeline("t")
        .settings(two_shards(1))
        .handle(move |message: Message| {
            let (log, opens) = (Arc::clone(&log), Arc::clone(&opens));
            async move {
                drop(opens.acquire().await.expect("open"));
                tokio::task::yield_now().await;
                let partition = message.delivery().partition();
                // Partitions go to shards in turn.
                log.lock().expect("free").push(partition % 2);
            }
        })
        .start()
        .await
        .expect("starts");
    // Both shards have all their work before either begins.
    owned(&pipeline).await;
    gate.add_permits(1);
    until("all are handled", || seen.lock().expect("free").len() == MESSAGES).await;
    let seen = seen.lock().expect("free").clone();
    for shard in [0, 1] {
        let first = seen.iter().position(|of| *of == shard).expect("it handled some");
        let last_of_other = seen.iter().rposition(|of| *of != shard).expect("the other handled some");
        assert!(first < last_of_other, "shard {shard} began when the other had ended");
    }
    pipeline.drain().await.expect("drained");
}

/// P3: a partition that always has more does not keep the others of its shard waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooded_partition_leaves_the_others_their_turn() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    let flood = "flood";
    let flooded = keylane.produce(Message::to("t").key(flood).payload("x")).await.expect("durable").partition;
    let quiet = (0..)
        .map(|n| format!("quiet{n}"))
        .find(|key| keylane_core::partition_of(key.as_bytes(), 4) != flooded)
        .expect("keys spread");
    let before: Arc<AtomicUsize> = Arc::default();
    let at: Arc<Mutex<Option<usize>>> = Arc::default();
    // The thread that produces may lose its core between waking one partition's reader and the next one's, so only
    // messages that are handled after both were woken count.
    let both_woken: Arc<AtomicBool> = Arc::default();
    let (count, found, counts) = (Arc::clone(&before), Arc::clone(&at), Arc::clone(&both_woken));
    let pipeline = keylane
        .pipeline("t")
        .settings(one_shard())
        .handle(move |message: Message| {
            match message.key() == Some(flood.as_bytes()) {
                true if counts.load(Ordering::SeqCst) => drop(count.fetch_add(1, Ordering::SeqCst)),
                true => {}
                false => *found.lock().expect("free") = Some(count.load(Ordering::SeqCst)),
            }
            async {}
        })
        .start()
        .await
        .expect("starts");
    owned(&pipeline).await;
    // In one call, so that all messages are there at once.
    let payload = vec![b'x'; 1_000];
    let mut call = keylane.producer().call("t").await.expect("a topic");
    for n in 0..20_001 {
        let key = if n < 20_000 { flood.as_bytes() } else { quiet.as_bytes() };
        call.push(&Draft { id: "any", key: Some(key), payload: Some(&payload), ..Draft::default() });
    }
    assert!(call.send().await.expect("sent").iter().all(Result::is_ok));
    both_woken.store(true, Ordering::SeqCst);
    until("the quiet key", || at.lock().expect("free").is_some()).await;
    let waited_for = at.lock().expect("free").expect("just seen");
    assert!(waited_for < 5_000, "{waited_for} messages of the flood came first");
    pipeline.drain().await.expect("drained");
}

/// MSG-5: a drained pipeline may be started again; a name or group that is in use is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_pipeline_starts_again_and_a_running_one_is_not_started_twice() {
    let cluster = MemoryBroker::new(1, || 0);
    let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), Tasks::default(), true);
    for _ in 0..2 {
        let pipeline = keylane.pipeline("t").handle(|_: Message| async {}).start().await.expect("starts");
        let same_name = keylane.pipeline("t").group("other").handle(|_: Message| async {}).start().await;
        assert!(same_name.is_err_and(|error| error.to_string().contains("runs already")));
        let same_group =
            keylane.pipeline("u").topic("t").group("t").handle(|_: Message| async {}).start().await;
        assert!(same_group.is_err_and(|error| error.to_string().contains("another group")));
        assert_eq!(keylane.pipelines().await.expect("answers").len(), 1);
        pipeline.drain().await.expect("drained");
        assert_eq!(keylane.pipelines().await.expect("answers").len(), 0);
    }
}
