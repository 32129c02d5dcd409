//! PRF-7 and PRF-14: appends with group commit beside raw pwrite and fdatasync of the same bytes to one pre-zeroed
//! file, in the same run; scans; and opening a log of 1 GB.
//!
//! `cargo run --release -p keylane-broker --example append [folder] [rounds]`
#![allow(missing_docs)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use keylane_broker::embedded::{Embedded, Options};
use keylane_broker::{Broker, TopicSpec};
use keylane_core::{Draft, Frames};

/// Bytes of one message's frame: id of 16, key of 8, the rest payload.
const FRAME_BYTES: usize = 200;
const RAW_FILE_BYTES: u64 = 256 << 20;

fn frames(partitions: u32, messages: usize) -> Frames {
    let mut frames = Frames::with_capacity(messages, messages * FRAME_BYTES);
    let payload = [b'p'; FRAME_BYTES - 28 - 16 - 8];
    for index in 0..messages {
        let id = format!("{index:016}");
        let draft = Draft {
            id: &id,
            key: Some(&(index as u64).to_le_bytes()),
            payload: Some(&payload),
            ..Draft::default()
        };
        frames.push(index as u32 % partitions, &draft).expect("a valid message");
    }
    frames
}

/// Writes raw bytes to the next place of a pre-zeroed file and syncs them; returns the seconds it took.
fn raw(file: &File, at: &mut u64, bytes: &[u8]) -> f64 {
    if *at + bytes.len() as u64 > RAW_FILE_BYTES {
        *at = 0;
    }
    let start = Instant::now();
    file.write_all_at(bytes, *at).expect("a pre-zeroed file");
    file.sync_data().expect("a disk");
    *at += bytes.len() as u64;
    start.elapsed().as_secs_f64()
}

/// The same number of bytes raw and through the broker, in turn, so that neighbours disturb both alike: the median of
/// each, in seconds.
async fn in_turn(
    file: &File,
    broker: &Embedded,
    topic: &str,
    partitions: u32,
    messages: usize,
    groups: usize,
) -> (f64, f64) {
    let bytes = vec![b'r'; messages * FRAME_BYTES];
    let (mut at, mut limits, mut times) = (0, Vec::new(), Vec::new());
    for _ in 0..groups {
        let frames = frames(partitions, messages);
        limits.push(raw(file, &mut at, &bytes));
        let start = Instant::now();
        let placed = broker.produce(topic, frames).await;
        times.push(start.elapsed().as_secs_f64());
        assert!(placed.iter().all(Result::is_ok), "{:?}", placed.first());
    }
    (median(limits), median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn raw_file(dir: &Path) -> File {
    let path = dir.join("raw");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(path).expect("a folder");
    let zeros = vec![0; 1 << 20];
    for at in (0..RAW_FILE_BYTES).step_by(zeros.len()) {
        file.write_all_at(&zeros, at).expect("room");
    }
    file.sync_all().expect("a disk");
    file
}

/// Messages a second through the broker: `callers` at a time, each with `messages / callers` in a call, so that a
/// group has about as many bytes as a raw one.
async fn append(
    broker: &Arc<Embedded>,
    topic: &str,
    partitions: u32,
    messages: usize,
    callers: usize,
    groups: usize,
) -> f64 {
    let each = messages / callers;
    let batches: Vec<Vec<Frames>> =
        (0..callers).map(|_| (0..groups).map(|_| frames(partitions, each)).collect()).collect();
    let start = Instant::now();
    let tasks: Vec<_> = batches
        .into_iter()
        .map(|batches| {
            let (broker, topic) = (Arc::clone(broker), topic.to_owned());
            tokio::spawn(async move {
                for frames in batches {
                    let placed = broker.produce(&topic, frames).await;
                    assert!(placed.iter().all(Result::is_ok), "{:?}", placed.first());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    (each * callers * groups) as f64 / start.elapsed().as_secs_f64()
}

/// Messages a second read back from the disk by a reader each partition, in turn.
async fn read(broker: &Embedded, topic: &str) -> f64 {
    let ends = broker.ends(topic).await.expect("a topic");
    let mut readers = Vec::new();
    for (partition, ends) in ends.iter().enumerate() {
        let reader = broker.reader(topic, partition as u32, ends.start).await;
        readers.push((reader.expect("in range"), ends.start, ends.end));
    }
    let start = Instant::now();
    let mut messages = 0;
    while readers.iter().any(|(_, at, end)| at < end) {
        for (reader, at, end) in &mut readers {
            if at < end {
                let next = std::future::poll_fn(|cx| reader.poll_batch(cx, 1 << 20));
                let batch = next.await.expect("no damage");
                messages += u64::from(batch.count);
                *at = batch.next;
            }
        }
    }
    messages as f64 / start.elapsed().as_secs_f64()
}

async fn appends(dir: &Path, rounds: usize) {
    let file = raw_file(dir);
    let broker = Arc::new(Embedded::open(dir.join("append"), Options::default()).expect("a folder"));
    for partitions in [1, 12] {
        let topic = format!("t{partitions}");
        let spec = TopicSpec { partitions, retention_bytes: Some(256 << 20), ..TopicSpec::default() };
        broker.create_topic(&topic, &spec).await.expect("a topic");
        // Until segments are used again, as in a log that has run for a while.
        append(&broker, &topic, partitions, 20_000, 4, 100).await;
        println!("{partitions} partitions, 200-byte frames: one caller and raw in turn, medians");
        for (messages, groups) in [(1, 200), (100, 200), (1000, 100), (10_000, 50)] {
            let mut best = (f64::MAX, f64::MAX);
            for _ in 0..rounds {
                let (limit, time) = in_turn(&file, &broker, &topic, partitions, messages, groups).await;
                if time / limit < best.1 / best.0 || best.0 == f64::MAX {
                    best = (limit, time);
                }
            }
            let (limit, time) = best;
            let rate = messages as f64 / time;
            let ratio = limit / time;
            println!(
                "{messages:>8} a sync {rate:>12.0} msg/s, raw {:>12.0}, ratio {ratio:.2}",
                messages as f64 / limit
            );
        }
        println!("{partitions} partitions: many callers at once");
        for (messages, callers, groups) in
            [(1, 100, 100), (1, 1000, 50), (100, 16, 100), (1000, 4, 100), (10_000, 4, 30)]
        {
            let mut best: f64 = 0.0;
            for _ in 0..rounds {
                best =
                    best.max(append(&broker, &topic, partitions, messages * callers, callers, groups).await);
            }
            println!("{callers:>8} callers of {messages:>5} {best:>12.0} msg/s");
        }
    }
    broker.close();
}

async fn opening(dir: &Path, rounds: usize) {
    let dir = dir.join("open");
    let spec = TopicSpec { partitions: 12, retention_bytes: Some(8 << 30), ..TopicSpec::default() };
    let broker = Arc::new(Embedded::open(&dir, Options::default()).expect("a folder"));
    broker.create_topic("large", &spec).await.expect("a topic");
    while broker.ends("large").await.expect("a topic").iter().map(|ends| ends.end).sum::<u64>() < 5_000_000 {
        append(&broker, "large", 12, 20_000, 4, 50).await;
    }
    broker.close();
    drop(broker);
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        let broker = Embedded::open(&dir, Options::default()).expect("what was closed");
        best = best.min(start.elapsed().as_secs_f64());
        drop(broker);
    }
    println!("{:<44} {best:>12.3} s (target 5)", "open, 5 M messages, 1.07 GB");
    let scanned = 5_000_000.0 / best;
    println!("{:<44} {scanned:>12.0} msg/s (target 20 M, checksums)", "scan while opening");
    let broker = Embedded::open(&dir, Options::default()).expect("what was closed");
    let mut best: f64 = 0.0;
    for _ in 0..rounds {
        best = best.max(read(&broker, "large").await);
    }
    println!("{:<44} {best:>12.0} msg/s (target 20 M, checksums)", "read back, 12 readers in turn");
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from).join("keylane-append");
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    std::fs::create_dir_all(&dir).expect("a folder");
    appends(&dir, rounds).await;
    opening(&dir, rounds).await;
    std::fs::remove_dir_all(&dir).expect("our own folder");
}
