//! Tests of making a log where something lies already: remains of an earlier try, other people's files, or a log that
//! lost the file naming it (BRK-1). Also tests of a process that runs out of descriptors.
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::any::Any;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keylane_broker::embedded::Options;
use keylane_broker::embedded::disk::{Disk, DiskDir, DiskFile, Fault, SimDisk};
use keylane_broker::{Broker, BrokerError, Ends, JournalName, LogKind, TopicSpec};
use rig::Rig;

/// P1, BRK-1: half of a folder was restored, without the file that makes it a topic.
#[test]
fn a_topic_whose_file_is_missing_is_not_made_anew_over_its_messages() {
    a_half_restored_topic_is_kept(|_| ());
}

/// P1: the test above finds the flaw that is put back here.
#[cfg(feature = "flaws")]
#[test]
fn clearing_the_folder_of_a_log_that_is_to_be_made_is_found() {
    let flawed = |rig: &mut Rig| {
        let flaws = keylane_broker::embedded::Flaws { clear_the_folder: true, ..Default::default() };
        rig.options = rig.options.clone().with_flaws(flaws);
    };
    assert!(std::panic::catch_unwind(|| a_half_restored_topic_is_kept(flawed)).is_err());
}

fn a_half_restored_topic_is_kept(change: fn(&mut Rig)) {
    let mut rig = Rig::new(1);
    change(&mut rig);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    for index in 0..40 {
        rig.produce("orders", &[(0, &index.to_string(), 4000)]);
    }
    rig.close();
    let path = Path::new("data/topics/orders/topic");
    let file = rig.disk.contents(path).expect("the topic's file");
    rig.disk.lose(path);
    let before = rig.segments("topics/orders");
    for _ in 0..2 {
        let broker = rig.open().expect("the others go on");
        let made = rig.run(broker.create_topic("orders", &rig::spec(1)));
        let Err(BrokerError::Damaged(text)) = made else { panic!("{made:?}") };
        assert!(text.contains("`topic` beside it") && text.contains("is missing"), "{text}");
        drop(broker);
        rig.close();
        assert_eq!(rig.segments("topics/orders"), before, "nothing was removed");
    }
    rig.disk.put_file(path, file);
    rig.open().expect("whole again");
    assert_eq!(rig.read("orders", 0).expect("whole again").len(), 40);
}

/// P1, BRK-6: the same for journals and holds, whose identities are in the file `broker`.
#[test]
fn journals_without_the_folders_file_are_not_made_anew() {
    for kind in [LogKind::Journal, LogKind::Hold] {
        let mut rig = Rig::new(2);
        let broker = rig.open().expect("an empty disk");
        let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
        let journal = rig.run(broker.journal(&name)).expect("a journal");
        rig.run(journal.append("kept".into(), None)).expect("room");
        drop((broker, journal));
        rig.close();
        let path = Path::new("data/broker");
        let file = rig.disk.contents(path).expect("the folder's file");
        rig.disk.lose(path);
        for _ in 0..2 {
            let broker = rig.open().expect("topics go on");
            let asked = rig.run(broker.journal(&name)).err();
            assert!(matches!(asked, Some(BrokerError::Damaged(_))), "{asked:?}");
            drop(broker);
            rig.kill();
        }
        rig.disk.put_file(path, file);
        let broker = rig.open().expect("whole again");
        let journal = rig.run(broker.journal(&name)).expect("a journal");
        assert_eq!(rig.run(journal.read(0, 100)).expect("whole again").records.len(), 1);
    }
}

/// BRK-1: files that are not Keylane's stay, wherever they are.
#[test]
fn files_of_somebody_else_are_left_alone() {
    let mut rig = Rig::new(3);
    let foreign =
        ["journals/notes.txt", "holds/0001.seg", "topics/orders/README", "topics/other.txt", "notes"]
            .map(|path| Path::new("data").join(path));
    rig.open().expect("an empty disk");
    rig.close();
    // The folders exist and are empty, as if an operator had made them.
    for path in rig.disk.paths() {
        rig.disk.lose(&path);
    }
    for path in &foreign {
        rig.disk.put_file(path, b"mine".to_vec());
    }
    for _ in 0..3 {
        rig.open().expect("what is not ours is no reason to stop");
        rig.create("orders", &rig::spec(1));
        rig.produce("orders", &[(0, "a", 100)]);
        rig.close();
        for path in &foreign {
            assert_eq!(rig.disk.contents(path), Some(b"mine".to_vec()), "{}", path.display());
        }
    }
}

/// BRK-1: the remains of an interrupted try are removed, at whatever step it ended.
#[test]
fn a_topic_is_made_after_a_try_that_was_cut_off_at_any_step() {
    let mut whole = Rig::new(4);
    whole.open().expect("an empty disk");
    let first = whole.disk.operations();
    whole.create("orders", &rig::spec(2));
    let steps = whole.disk.operations() - first;
    for step in 0..steps {
        for leave in [Rig::kill as fn(&mut Rig), Rig::cut_power] {
            let mut rig = Rig::new(step);
            let broker = rig.open().expect("an empty disk");
            rig.disk.stop_after(step);
            assert!(rig.run(broker.create_topic("orders", &rig::spec(2))).is_err());
            drop(broker);
            leave(&mut rig);
            rig.open().expect("what a crash leaves can be opened");
            rig.create("orders", &rig::spec(2));
            assert_eq!(rig.produce("orders", &[(1, "a", 10)]), [0]);
        }
    }
}

/// BRK-1, P10: if a step fails while the process lives, the next try makes the topic, whatever the first one left.
#[test]
fn a_topic_whose_making_failed_at_any_step_is_made_by_the_next_try() {
    let mut failed = 0;
    for fault in Fault::ALL {
        for skipped in 0..8 {
            let mut rig = Rig::new(9);
            let broker = rig.open().expect("an empty disk");
            rig.disk.fail_after(fault, skipped, 1);
            failed += u32::from(rig.run(broker.create_topic("orders", &rig::spec(2))).is_err());
            rig.disk.heal();
            let made = rig.run(broker.create_topic("orders", &rig::spec(2)));
            assert!(made.is_ok(), "{fault:?} after {skipped}: {made:?}");
            drop(broker);
            assert_eq!(rig.produce("orders", &[(1, "a", 10)]), [0]);
            rig.cut_power();
            rig.open().expect("no damage");
            assert_eq!(rig.read("orders", 1), Ok(vec![(0, "a".to_owned())]), "{fault:?} after {skipped}");
        }
    }
    assert!(failed > 10, "{failed}");
}

fn bounded() -> TopicSpec {
    TopicSpec { retention_bytes: Some(512 << 10), ..rig::spec(1) }
}

/// P1, BRK-1: a failed step of freeing a segment is tried again, and no newer segment is freed before.
#[test]
fn an_old_segment_that_cannot_be_freed_leaves_no_hole() {
    for fault in [Fault::Open, Fault::Rename, Fault::Remove] {
        for skipped in 0..8 {
            let mut rig = Rig::new(5);
            rig.open().expect("an empty disk");
            rig.create("orders", &bounded());
            for index in 0..400 {
                rig.disk.fail_after(fault, skipped, u32::from(index % 20 == 0));
                let broker = Arc::clone(rig.broker());
                // Calls may be refused meanwhile; only acknowledged messages count.
                rig.run(broker.produce("orders", rig::frames(&[(0, &index.to_string(), 4000)])));
            }
            let Ends { end, .. } = rig.ends("orders")[0];
            rig.kill();
            rig.open().expect("the others go on");
            let broker = Arc::clone(rig.broker());
            let there = rig.run(broker.topic("orders"));
            assert!(there.is_ok(), "{fault:?} after {skipped}: {there:?}");
            assert_eq!(rig.ends("orders")[0].end, end);
            assert!(rig.disk.used() < 3 << 20, "{} bytes are in use", rig.disk.used());
        }
    }
}

/// BRK-1, P10: without descriptors a log refuses for now; it loses nothing and does not stop.
#[test]
fn without_descriptors_a_log_goes_on_where_it_can_and_stops_nowhere() {
    let mut rig = Rig::new(6);
    rig.open().expect("an empty disk");
    rig.create("orders", &bounded());
    let mut acknowledged = 0;
    for round in 0..300 {
        match round % 30 {
            10 => rig.disk.set_descriptors(Some(rig.disk.descriptors())),
            20 => rig.disk.set_descriptors(None),
            _ => {}
        }
        let broker = Arc::clone(rig.broker());
        let frames = rig::frames(&[(0, &round.to_string(), 4000)]);
        acknowledged += u64::from(rig.run(broker.produce("orders", frames)).remove(0).is_ok());
        let health = rig.run(broker.health());
        assert!(!matches!(health, Err(BrokerError::Stopped(_))), "round {round}: {health:?}");
    }
    assert!(rig.disk.faults_met() > 0, "descriptors ran out");
    assert!(acknowledged > 200, "{acknowledged}");
    assert_eq!(rig.ends("orders")[0].end, acknowledged);
}

/// BRK-1: a log may have more segments than a process may have descriptors.
#[test]
fn a_log_of_many_segments_opens_with_few_descriptors() {
    let mut rig = Rig::new(7);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    for index in 0..600 {
        rig.produce("orders", &[(0, &index.to_string(), 4000)]);
    }
    let open = rig.disk.descriptors();
    rig.kill();
    assert!(rig.segments("topics/orders").len() > 30);
    rig.disk.set_descriptors(Some(open + 4));
    rig.open().expect("no more are needed than to run");
    assert_eq!(rig.ends("orders")[0].end, 600);
    assert_eq!(rig.read("orders", 0).expect("no damage").len(), 600);
}

/// A file system that preserves the case of names but ignores it when it looks them up.
#[derive(Debug)]
struct AnyCase(SimDisk);

impl AnyCase {
    /// The path as it is stored on the disk.
    fn there(&self, path: &Path) -> PathBuf {
        path.iter().fold(PathBuf::new(), |above, name| {
            let names = self.0.list(&above).unwrap_or_default();
            let same = names.into_iter().find(|other| name.eq_ignore_ascii_case(other.as_str()));
            above.join(same.map_or(name.to_owned(), OsString::from))
        })
    }
}

impl Disk for AnyCase {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.create_dir(&self.there(dir))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(&self.there(dir))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(&self.there(path))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(&self.there(path))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(&self.there(from), &self.there(to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(&self.there(path))
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>> {
        self.0.open_dir(&self.there(dir))
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_bytes(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.0.lock(path)
    }
}

/// P1, BRK-1: where `orders` and `Orders` are the same folder, the second topic is refused, and the first stays.
#[test]
fn a_topic_with_other_capitals_is_refused_where_it_would_be_the_same_folder() {
    let mut rig = Rig::new(8);
    let clock = Arc::clone(&rig.now_ms);
    let clock = Arc::new(move || clock.load(Ordering::Relaxed));
    rig.options = Options::simulated(Arc::new(AnyCase(rig.disk.clone())), clock, 8);
    rig.open().expect("an empty disk");
    rig.create("Orders", &rig::spec(1));
    assert_eq!(rig.produce("Orders", &[(0, "kept", 100)]), [0]);
    for crash in [Rig::kill as fn(&mut Rig), Rig::cut_power, Rig::close] {
        let broker = Arc::clone(rig.broker());
        let made = rig.run(broker.create_topic("orders", &rig::spec(1)));
        assert!(matches!(&made, Err(BrokerError::Damaged(text)) if text.contains("capitals")), "{made:?}");
        drop(broker);
        crash(&mut rig);
        rig.open().expect("no damage");
        assert_eq!(rig.read("Orders", 0), Ok(vec![(0, "kept".to_owned())]));
    }
}
