//! Random runs of the embedded broker on a simulated disk, compared with a model: kills, power cuts at any write,
//! closes, failing operations, lack of space and of descriptors, files that are cut or lost between two runs.
//!
//! The model knows what was sent, what was acknowledged, and what readers saw. After every restart it demands:
//! everything acknowledged is there, at its position; what a reader saw stays the same for ever; messages lie in the
//! order in which they were sent; nothing is there that was not sent. Whatever failed, a restart on a working disk
//! opens every log. After a file was cut or lost, either its log reports damage, or everything is there all the same.
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use keylane_broker::embedded::disk::Fault;
use keylane_broker::{
    AppendError, Broker, BrokerError, Commit, Journal, JournalName, LogKind, ProduceError, TopicSpec,
};
use rig::{Call, Random, Rig, frames, poll};

const PARTITIONS: u32 = 3;
const JOURNALS: u32 = 3;
const RETENTION_BYTES: u64 = 300 << 10;

#[derive(Default)]
struct Model {
    next_id: u64,
    /// For each partition, the ids by position: of messages that were acknowledged or seen by a reader.
    messages: Vec<BTreeMap<u64, u64>>,
    /// The same for each journal, with the highest cut that was asked for, and the highest that was answered.
    journals: Vec<JournalModel>,
    commits: Vec<(u64, Vec<u64>)>,
}

#[derive(Default, Clone)]
struct JournalModel {
    records: BTreeMap<u64, u64>,
    cut_asked: u64,
    cut_done: u64,
}

type Produced = Vec<Result<u64, ProduceError>>;

enum Under {
    Produce(Call<Produced>, Vec<(u32, u64)>),
    Append(Call<Result<u64, AppendError>>, usize, u64),
    Cut(Call<Result<(), BrokerError>>, usize, u64),
    Commit(Call<Result<(), BrokerError>>, u32, u64),
}

struct Run {
    rig: Rig,
    random: Random,
    model: Model,
    under_way: Vec<Under>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let model = Model {
            messages: vec![BTreeMap::new(); PARTITIONS as usize],
            journals: vec![JournalModel::default(); JOURNALS as usize * 2],
            commits: vec![(0, vec![0]); PARTITIONS as usize],
            ..Model::default()
        };
        Run { rig: Rig::new(seed), random: Random(seed), model, under_way: Vec::new() }
    }

    fn open(&mut self) {
        let broker = self.rig.open().expect("what a crash leaves can be opened");
        let troubles = self.rig.run(broker.troubles());
        assert_eq!(troubles, [], "what a crash or a fault leaves can be opened");
        let spec = TopicSpec { retention_bytes: Some(RETENTION_BYTES), ..rig::spec(PARTITIONS) };
        self.rig.create("orders", &spec);
    }

    fn id(&mut self) -> u64 {
        self.model.next_id += 1;
        self.model.next_id
    }

    fn journal(&self, index: usize) -> Arc<dyn Journal> {
        let name = JournalName {
            group: "group".into(),
            topic: "orders".into(),
            partition: index as u32 / 2,
            kind: [LogKind::Journal, LogKind::Hold][index % 2],
        };
        let broker = Arc::clone(self.rig.broker());
        self.rig.run(broker.journal(&name)).expect("a journal")
    }

    fn start_produce(&mut self) {
        let sent = self.random.below(5);
        let size = [0, 100, 3000][self.random.below(3) as usize];
        self.produce(1 + sent, size, size);
    }

    /// Produces a message of this size, which may need a larger segment than the next one, and perhaps a small one.
    fn produce_first(&mut self, bytes: usize) {
        let behind = self.random.below(2);
        self.produce(1 + behind, bytes, 100);
    }

    fn produce(&mut self, count: u64, first: usize, others: usize) {
        let sent: Vec<(u32, u64)> =
            (0..count).map(|_| (self.random.below(u64::from(PARTITIONS)) as u32, self.id())).collect();
        let named: Vec<_> = sent.iter().map(|(p, id)| (*p, format!("{id:08}"))).collect();
        let mut messages: Vec<_> = named.iter().map(|(p, id)| (*p, id.as_str(), others)).collect();
        messages[0].2 = first;
        let frames = frames(&messages);
        let broker = Arc::clone(self.rig.broker());
        let call = Box::pin(async move { broker.produce("orders", frames).await });
        self.begin(Under::Produce(call, sent));
    }

    fn start_append(&mut self) {
        let index = self.random.below(u64::from(JOURNALS) * 2) as usize;
        let id = self.id();
        let size = [8, 8, 200, 200, 2000, 2000, 2000, 40_000][self.random.below(8) as usize];
        let mut record = id.to_le_bytes().to_vec();
        record.resize(size, 7);
        let end = self.model.journals[index].records.keys().next_back().map_or(0, |last| last + 1);
        let expect_end = [None, Some(end), Some(end + 1)][self.random.below(3) as usize];
        let journal = self.journal(index);
        let call = Box::pin(async move { journal.append(record.into(), expect_end).await });
        self.begin(Under::Append(call, index, id));
    }

    fn start_cut(&mut self) {
        let index = self.random.below(u64::from(JOURNALS) * 2) as usize;
        let model = &mut self.model.journals[index];
        let end = model.records.keys().next_back().map_or(0, |last| last + 1);
        let below = end.saturating_sub(self.random.below(4));
        model.cut_asked = model.cut_asked.max(below);
        let journal = self.journal(index);
        let call = Box::pin(async move { journal.cut(below).await });
        self.begin(Under::Cut(call, index, below));
    }

    fn start_commit(&mut self) {
        let partition = self.random.below(u64::from(PARTITIONS)) as u32;
        let known = &self.model.messages[partition as usize];
        let end = known.keys().next_back().map_or(0, |last| last + 1);
        let (low, asked) = &mut self.model.commits[partition as usize];
        let position = (*low).max(end.saturating_sub(self.random.below(20)));
        asked.push(position);
        let metadata = Bytes::from_static(b"ours");
        let commit = Commit { position, metadata };
        let broker = Arc::clone(self.rig.broker());
        let call = Box::pin(async move { broker.commit("group", "orders", partition, commit).await });
        self.begin(Under::Commit(call, partition, position));
    }

    fn begin(&mut self, mut under: Under) {
        if !self.model.settle(&mut under) {
            self.under_way.push(under);
        }
    }

    fn answers(&mut self) {
        let model = &mut self.model;
        self.under_way.retain_mut(|under| !model.settle(under));
    }

    /// Does one random thing.
    fn step(&mut self) {
        match self.random.below(107) {
            0..35 => self.start_produce(),
            35..55 => self.start_append(),
            55..60 => self.start_cut(),
            60..66 => self.start_commit(),
            66..90 => {
                self.rig.broker().commit_once();
                self.answers();
            }
            90..92 => self.check(),
            92..94 => {
                self.rig.now_ms.fetch_add(1000, Ordering::Relaxed);
            }
            94..96 => {
                // The power goes in the middle of a group commit, or while a segment is made.
                self.rig.disk.stop_after(self.random.below(12));
                self.rig.broker().commit_once();
                self.answers();
                self.restart(Rig::cut_power);
            }
            96..97 => {
                self.rig.disk.stop_after(self.random.below(12));
                self.rig.broker().commit_once();
                self.answers();
                self.restart(Rig::kill);
            }
            97..98 => self.restart(Rig::cut_power),
            98..99 => self.restart(Rig::kill),
            99..100 => self.restart(Rig::close),
            100..103 => self.break_something(),
            103..104 => self.run_short(),
            104..106 => self.roll_short(),
            _ => self.tamper(),
        }
    }

    /// Makes the next operations of some kind fail.
    fn break_something(&mut self) {
        let fault = Fault::ALL[self.random.below(Fault::ALL.len() as u64) as usize];
        let (skipped, count) = (self.random.below(6) as u32, 1 + self.random.below(2) as u32);
        self.rig.disk.fail_after(fault, skipped, count);
    }

    /// Takes space or descriptors away, or gives them back.
    fn run_short(&mut self) {
        let disk = &self.rig.disk;
        match self.random.below(3) {
            0 => disk.set_space(Some(disk.used() + self.random.below(300 << 10))),
            1 => disk.set_descriptors(Some(disk.descriptors() + self.random.below(3))),
            _ => disk.heal(),
        }
    }

    /// Produces messages that need larger segments while descriptors run out in the middle of making one.
    fn roll_short(&mut self) {
        let disk = self.rig.disk.clone();
        for _ in 0..3 {
            disk.set_descriptors(Some(disk.descriptors() + self.random.below(3)));
            let bytes = [70_000, 90_000][self.random.below(2) as usize];
            self.produce_first(bytes);
            self.rig.broker().commit_once();
            self.answers();
        }
        disk.set_descriptors(None);
    }

    /// Cuts or removes a file while no process runs: its log must stop, or lack nothing.
    fn tamper(&mut self) {
        let how = [Rig::kill, Rig::cut_power, Rig::close][self.random.below(3) as usize];
        self.stop(how);
        let mut paths = self.rig.disk.paths();
        paths.retain(|path| {
            path.file_name().is_some_and(|name| name == "end")
                || path.extension().is_some_and(|of| of == "seg")
        });
        let path = paths.swap_remove(self.random.below(paths.len() as u64) as usize);
        let whole = self.rig.disk.contents(&path).expect("a file");
        // A topic without its oldest segment looks like one after retention; its groups are told when they read
        // (BRK-10).
        let oldest = self.rig.segments("topics/orders").first() == Some(&path)
            && self.rig.segments("topics/orders").len() > 1;
        if self.random.below(3) == 0 && !oldest {
            self.rig.disk.lose(&path);
        } else {
            let left = self.random.below(whole.len() as u64) as usize;
            self.rig.disk.set_contents(&path, whole[..left].to_vec());
        }
        let broker = self.rig.open().expect("one log that cannot be read keeps no other from starting");
        if self.rig.run(broker.troubles()).is_empty() {
            self.check();
        }
        drop(broker);
        self.rig.kill();
        self.rig.disk.put_file(&path, whole);
        self.open();
        self.check();
    }

    /// Ends the broker in one way or another; afterwards the disk works again.
    fn stop(&mut self, how: fn(&mut Rig)) {
        how(&mut self.rig);
        self.answers();
        self.under_way.clear();
        self.rig.disk.heal();
    }

    fn restart(&mut self, how: fn(&mut Rig)) {
        self.stop(how);
        // The power may go again, or an operation may fail, while the log is being opened.
        match self.random.below(8) {
            0 | 1 => {
                self.rig.disk.stop_after(self.random.below(8));
                let opened = self.rig.open();
                drop(opened);
                self.stop(Rig::cut_power);
            }
            2 => {
                self.break_something();
                let opened = self.rig.open();
                drop(opened);
                let how = [Rig::kill, Rig::cut_power][self.random.below(2) as usize];
                self.stop(how);
            }
            _ => {}
        }
        self.open();
        self.check();
    }

    fn check(&mut self) {
        self.rig.disk.heal();
        let ends = self.rig.ends("orders");
        for partition in 0..PARTITIONS {
            let read = self.rig.read("orders", partition).expect("nothing is damaged");
            let read: Vec<(u64, u64)> =
                read.into_iter().map(|(position, id)| (position, id.parse().expect("one of ours"))).collect();
            let start = ends[partition as usize].start;
            let low = self.model.commits[partition as usize].1.iter().max();
            assert!(Some(&start) <= low, "what the group has not settled is deleted: {start} {low:?}");
            check_log(&mut self.model.messages[partition as usize], start, &read);
            let broker = Arc::clone(self.rig.broker());
            let commit = self.rig.run(broker.committed("group", "orders", partition)).expect("a topic");
            let (done, asked) = &self.model.commits[partition as usize];
            let position = commit.map_or(0, |commit| commit.position);
            assert!(position >= *done && asked.contains(&position));
        }
        for index in 0..self.model.journals.len() {
            let journal = self.journal(index);
            let page = self.rig.run(journal.read(0, usize::MAX)).expect("nothing is damaged");
            let read: Vec<(u64, u64)> = page
                .records
                .iter()
                .map(|(position, record)| {
                    let id: [u8; 8] = record[..8].try_into().expect("as it was written");
                    (*position, u64::from_le_bytes(id))
                })
                .collect();
            let model = &mut self.model.journals[index];
            assert!((model.cut_done..=model.cut_asked).contains(&page.start));
            assert_eq!(page.end, page.start + read.len() as u64);
            check_log(&mut model.records, page.start, &read);
        }
    }
}

/// Compares what a log holds with what the model knows, and remembers what was seen.
fn check_log(known: &mut BTreeMap<u64, u64>, start: u64, read: &[(u64, u64)]) {
    for (index, (position, _)) in read.iter().enumerate() {
        assert_eq!(*position, start + index as u64, "positions have no gaps");
    }
    assert!(read.windows(2).all(|two| two[0].1 < two[1].1), "in the order they were sent: {read:?}");
    let there: BTreeMap<u64, u64> = read.iter().copied().collect();
    for (position, id) in known.range(start..) {
        assert_eq!(there.get(position), Some(id), "position {position} is lost, or somebody else's");
    }
    known.extend(there);
}

impl Model {
    /// Takes an answer into the model; false if there is none yet.
    fn settle(&mut self, under: &mut Under) -> bool {
        match under {
            Under::Produce(call, sent) => {
                let Poll::Ready(placed) = poll(call.as_mut()) else {
                    return false;
                };
                for ((partition, id), place) in sent.iter().zip(placed) {
                    if let Ok(position) = place {
                        let before = self.messages[*partition as usize].insert(position, *id);
                        assert!(before.is_none_or(|before| before == *id), "a position is given twice");
                    }
                }
            }
            Under::Append(call, index, id) => {
                let Poll::Ready(placed) = poll(call.as_mut()) else {
                    return false;
                };
                if let Ok(position) = placed {
                    let before = self.journals[*index].records.insert(position, *id);
                    assert!(before.is_none_or(|before| before == *id), "a position is given twice");
                }
            }
            Under::Cut(call, index, below) => {
                let Poll::Ready(cut) = poll(call.as_mut()) else {
                    return false;
                };
                if cut.is_ok() {
                    let journal = &mut self.journals[*index];
                    journal.cut_done = journal.cut_done.max(*below);
                }
            }
            Under::Commit(call, partition, position) => {
                let Poll::Ready(done) = poll(call.as_mut()) else {
                    return false;
                };
                if done.is_ok() {
                    self.commits[*partition as usize].0 = *position;
                }
            }
        }
        true
    }
}

fn run(seed: u64, change: fn(&mut Rig)) -> std::thread::Result<()> {
    std::panic::catch_unwind(|| {
        let mut run = Run::new(seed);
        change(&mut run.rig);
        run.open();
        // From here on the group is known, and messages that it has not settled may not be deleted.
        let broker = Arc::clone(run.rig.broker());
        drop(run.rig.run(broker.join("group", "orders", "node")).expect("a topic"));
        drop(broker);
        for _ in 0..1500 {
            run.step();
        }
    })
}

/// P1, P10, BRK-1, BRK-6, COM-3: all promises of the model hold, whatever is cut or killed, and whenever.
#[test]
fn what_is_acknowledged_survives_every_crash_and_nothing_is_invented() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SEED").unwrap_or(0);
    let count = number("SEEDS").unwrap_or(60);
    for seed in first..first + count {
        assert!(run(seed, |_| ()).is_ok(), "seed {seed}");
    }
}

/// The runs find each flaw that is put back (docs/decisions/0005).
#[cfg(feature = "flaws")]
mod flaws {
    use keylane_broker::embedded::Flaws;

    use super::*;

    /// The first seed whose run finds the flaw.
    fn finds(put_back: fn(&mut Rig)) -> Option<u64> {
        (0..60).find(|seed| run(*seed, put_back).is_err())
    }

    fn with(rig: &mut Rig, flaws: Flaws) {
        rig.options = rig.options.clone().with_flaws(flaws);
    }

    /// P1.
    #[test]
    fn acknowledgement_before_the_sync_is_found() {
        let found = finds(|rig| with(rig, Flaws { acknowledge_before_sync: true, ..Flaws::default() }));
        assert!(found.is_some(), "no seed finds it");
    }

    /// P1, P10.
    #[test]
    fn trust_in_the_cache_after_a_failed_sync_is_found() {
        let found = finds(|rig| with(rig, Flaws { trust_the_cache: true, ..Flaws::default() }));
        assert!(found.is_some(), "no seed finds it");
    }

    /// P1, BRK-1.
    #[test]
    fn a_segment_forgotten_before_it_is_freed_is_found() {
        let found = finds(|rig| with(rig, Flaws { forget_before_freeing: true, ..Flaws::default() }));
        assert!(found.is_some(), "no seed finds it");
    }

    /// P10, BRK-1.
    #[test]
    fn a_lost_end_that_is_taken_for_the_end_is_found() {
        let found = finds(|rig| with(rig, Flaws { ignore_the_recorded_end: true, ..Flaws::default() }));
        assert!(found.is_some(), "no seed finds it");
    }

    /// P1, P10.
    #[test]
    fn one_name_for_all_files_that_wait_is_found() {
        let found = finds(|rig| with(rig, Flaws { one_name_for_spares: true, ..Flaws::default() }));
        assert!(found.is_some(), "no seed finds it");
    }
}
