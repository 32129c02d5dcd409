//! Tests of two things at the same moment, and of failures at a bad moment: a roll that fails twice, a group that
//! commits while it is forgotten, a disk that is full of dead records (P1, P10, BRK-1, BRK-6).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use keylane_broker::embedded::Embedded;
use keylane_broker::embedded::data::check;
use keylane_broker::embedded::disk::Fault;
use keylane_broker::{Broker, BrokerError, Commit, Journal, JournalName, LogKind, ProduceError, TopicSpec};
use rig::{Rig, frames, poll};

fn journal(rig: &Rig, kind: LogKind, partition: u32) -> Arc<dyn Journal> {
    let name = JournalName { group: "group".into(), topic: "orders".into(), partition, kind };
    let broker = Arc::clone(rig.broker());
    rig.run(broker.journal(&name)).expect("a journal")
}

fn produce(rig: &Rig, id: &str, bytes: usize) -> Result<u64, ProduceError> {
    let broker = Arc::clone(rig.broker());
    rig.run(broker.produce("orders", frames(&[(0, id, bytes)]))).remove(0)
}

/// A log that had to make its next segment within a call, and failed to write `end.new`: the new file got no
/// segment's name and waits as a spare.
fn with_a_file_that_got_no_name() -> Rig {
    let mut rig = Rig::new(1);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(2));
    // The first file that is made is the segment, the second is `end.new`.
    rig.disk.fail_after(Fault::Create, 1, 1);
    let broker = Arc::clone(rig.broker());
    let placed = rig.run(broker.produce("orders", frames(&[(0, "0", 50_000), (1, "1", 50_000)])));
    assert!(placed[0].is_ok() && placed[1].is_err(), "{placed:?}");
    rig
}

/// P1: two spares of different sizes, both without a segment's name, are two separate files.
#[test]
fn what_is_acknowledged_after_two_rolls_that_failed_is_there_after_a_restart() {
    let mut rig = with_a_file_that_got_no_name();
    // Too large for the spare that waits; and again the new segment does not get its name.
    rig.disk.fail_after(Fault::Create, 1, 1);
    assert!(produce(&rig, "large", 150_000).is_err());
    let mut want = vec![(0, "0".to_owned())];
    for id in ["small", "larger", "small again"] {
        let bytes = if id == "larger" { 150_000 } else { 50_000 };
        want.push((produce(&rig, id, bytes).expect("the disk works"), id.to_owned()));
    }
    for crash in [Rig::kill, Rig::cut_power, Rig::close] {
        crash(&mut rig);
        rig.open().expect("no damage");
        assert_eq!(rig.read("orders", 0), Ok(want.clone()));
    }
}

/// P10: making a larger file does not touch the spare that waits, and the log goes on.
#[test]
fn a_file_that_got_no_name_is_used_later_though_a_larger_one_was_made_meanwhile() {
    let rig = with_a_file_that_got_no_name();
    assert!(produce(&rig, "large", 150_000).is_ok());
    for index in 0..4 {
        let placed = produce(&rig, &index.to_string(), 50_000);
        assert!(placed.is_ok(), "{placed:?}");
    }
}

/// P10, BRK-6: whatever a group writes in the group commit that forgets it, the journals go on.
#[test]
fn a_group_that_commits_while_it_is_forgotten_stops_no_journal() {
    let mut rig = Rig::new(2);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    let commit = |position| Commit { position, metadata: Bytes::from_static(b"ours") };
    let broker = Arc::clone(rig.broker());
    rig.run(broker.commit("group", "orders", 0, commit(1))).expect("room");
    let held = journal(&rig, LogKind::Journal, 0);
    assert_eq!(rig.run(held.append("a".into(), None)), Ok(0));
    {
        let mut forgotten = broker.forget_group("group", "orders");
        assert!(poll(forgotten.as_mut()).is_pending());
        let mut appended = held.append("b".into(), None);
        let mut committed = broker.commit("group", "orders", 0, commit(2));
        let mut cut = held.cut(1);
        assert!(poll(appended.as_mut()).is_pending() && poll(committed.as_mut()).is_pending());
        assert!(poll(cut.as_mut()).is_pending());
        broker.commit_once();
        assert_eq!(poll(forgotten.as_mut()), Poll::Ready(Ok(true)));
        assert!(matches!(poll(appended.as_mut()), Poll::Ready(Err(_))));
        assert!(matches!(poll(committed.as_mut()), Poll::Ready(Err(_))));
        assert!(matches!(poll(cut.as_mut()), Poll::Ready(Err(_))));
    }
    assert_eq!(rig.run(broker.troubles()), []);
    drop((broker, held));
    for crash in [Rig::kill, Rig::cut_power, Rig::close] {
        crash(&mut rig);
        let broker = rig.open().expect("no damage");
        assert_eq!(rig.run(broker.troubles()), []);
        assert_eq!(rig.run(broker.committed("group", "orders", 0)), Ok(None));
    }
    let anew = journal(&rig, LogKind::Journal, 0);
    assert_eq!(rig.run(anew.append("anew".into(), Some(0))), Ok(0));
}

type Produced = BoxFuture<'static, Vec<Result<u64, ProduceError>>>;

/// A caller that produces again as soon as it is answered, in the thread that wakes it.
struct ComesBack {
    broker: Arc<Embedded>,
    calls: Mutex<Vec<Produced>>,
}

impl ComesBack {
    fn call(self: &Arc<Self>) {
        let broker = Arc::clone(&self.broker);
        let mut call = async move { broker.produce("orders", frames(&[(0, "again", 10)])).await }.boxed();
        let waker = Waker::from(Arc::clone(self));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        self.calls.lock().expect("no panic").push(call);
    }

    fn count(&self) -> usize {
        self.calls.lock().expect("no panic").len()
    }
}

impl Wake for ComesBack {
    fn wake(self: Arc<Self>) {
        // Bounded, because otherwise an error would make this test run for ever.
        if self.count() < 1000 {
            self.call();
        }
    }
}

/// P2, P10: calls under way when a group failed are refused, but not the next call of a caller that just heard of it.
#[test]
fn who_comes_back_at_once_after_a_refusal_is_written_once_there_is_room() {
    let mut rig = Rig::new(6);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    let calls = Mutex::default();
    let caller = Arc::new(ComesBack { broker: Arc::clone(rig.broker()), calls });
    caller.call();
    rig.disk.fail(Fault::RefusedWrite, 1);
    rig.broker().commit_once();
    assert_eq!(caller.count(), 2, "the first was refused, and the second waits");
    rig.broker().commit_once();
    let mut calls = std::mem::take(&mut *caller.calls.lock().expect("no panic"));
    let told: Vec<_> = calls.iter_mut().map(|call| poll(call.as_mut())).collect();
    assert!(matches!(&told[0], Poll::Ready(told) if told[0].is_err()), "{told:?}");
    assert!(matches!(&told[1], Poll::Ready(told) if told[0].is_ok()), "{told:?}");
}

/// P1, P10: a closed log that is opened on a full disk no longer counts as closed, because more may be written.
#[test]
fn a_log_that_is_opened_on_a_full_disk_no_longer_counts_as_closed() {
    let crashes = [Rig::kill as fn(&mut Rig), Rig::cut_power];
    let with = |crash| [(crash, Fault::Create), (crash, Fault::Rename)];
    for (crash, fault) in crashes.into_iter().flat_map(with) {
        let mut rig = Rig::new(7);
        rig.open().expect("an empty disk");
        rig.create("orders", &rig::spec(1));
        produce(&rig, "old", 10).expect("room");
        rig.close();
        let newest = rig.segments("topics/orders").remove(0);
        let cut = |rig: &Rig| {
            let whole = rig.disk.contents(&newest).expect("a segment");
            rig.disk.set_contents(&newest, whole[..whole.len() - 8].to_vec());
            let report = check(Path::new("data"), &rig.options).expect("nobody has it");
            rig.disk.set_contents(&newest, whole);
            report.damages().flat_map(|damage| damage.lost.clone()).collect::<Vec<_>>()
        };
        assert_eq!(cut(&rig), [], "it is known where it ended");
        rig.disk.fail(fault, 3);
        rig.open().expect("a full disk is no damage");
        produce(&rig, "new", 10).expect("room");
        crash(&mut rig);
        let lost = cut(&rig);
        assert!(lost.len() == 1 && lost[0].from == 2 && lost[0].at_most, "{lost:?}");
        rig.open().expect("no damage");
        assert_eq!(rig.read("orders", 0).expect("no damage").len(), 2);
    }
}

/// P10, BRK-6: on a disk full of dead records, journals and holds free their own space.
#[test]
fn journals_and_holds_on_a_full_disk_free_their_own_dead_segments() {
    for kind in [LogKind::Journal, LogKind::Hold] {
        let mut rig = Rig::new(3);
        rig.open().expect("an empty disk");
        rig.create("orders", &rig::spec(1));
        let full = journal(&rig, kind, 0);
        rig.disk.set_space(Some(rig.disk.used() + (150 << 10)));
        let mut end = 0;
        while rig.run(full.append(vec![7; 2000].into(), None)).is_ok() {
            end += 1;
            assert!(end < 1000, "the disk is full");
        }
        rig.run(full.cut(end)).expect("a cut needs little room");
        for _ in 0..10 {
            rig.broker().commit_once();
        }
        for index in 0..60 {
            let appended = rig.run(full.append(vec![7; 2000].into(), None));
            assert_eq!(appended, Ok(end + index), "{kind:?}");
            rig.run(full.cut(end + index)).expect("room");
        }
    }
}

/// P10, BRK-6: a caller that waits for a stopped log is told so, even if its journal was first opened afterwards.
#[test]
fn a_journal_that_is_first_opened_after_its_log_ended_says_so_to_whoever_waits() {
    let mut rig = Rig::new(4);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    rig.disk.fail(Fault::Sync, 1);
    let first = journal(&rig, LogKind::Journal, 0);
    assert!(rig.run(first.append("lost".into(), None)).is_err());
    let late = journal(&rig, LogKind::Journal, 1);
    let told = poll(late.beyond(0).as_mut());
    assert!(matches!(told, Poll::Ready(Err(BrokerError::Stopped(_)))), "{told:?}");

    let hold = journal(&rig, LogKind::Hold, 0);
    assert!(poll(hold.beyond(0).as_mut()).is_pending());
    rig.broker().close();
    let broker = Arc::clone(rig.broker());
    let name = JournalName { group: "g".into(), topic: "orders".into(), partition: 7, kind: LogKind::Hold };
    let late = rig.run(broker.journal(&name)).expect("a handle");
    assert_eq!(poll(late.beyond(0).as_mut()), Poll::Ready(Err(BrokerError::Closed)));
}

/// Makes a log look like one of a version without the file `end`.
fn make_old(rig: &Rig, log: &str) {
    for path in rig.segments(log) {
        let mut bytes = rig.disk.contents(&path).expect("a segment");
        bytes[56..64].fill(0);
        let length = u32::from_le_bytes(bytes[52..56].try_into().expect("four bytes")) as usize;
        let crc = crc32c::crc32c(&bytes[4..length]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        rig.disk.set_contents(&path, bytes);
    }
    rig.disk.lose(&Path::new("data").join(log).join("end"));
}

/// P1, BRK-1: the end of an older version's log could not be recorded at the first start; then a crash comes at any
/// step of the first roll.
#[test]
fn a_log_whose_end_was_never_recorded_survives_a_crash_in_its_first_roll() {
    for step in 0..14 {
        for crash in [Rig::kill as fn(&mut Rig), Rig::cut_power] {
            let mut rig = Rig::new(step);
            rig.open().expect("an empty disk");
            rig.create("orders", &rig::spec(1));
            let mut want = vec![(produce(&rig, "old", 50_000).expect("room"), "old".to_owned())];
            rig.close();
            make_old(&rig, "topics/orders");
            // The disk is full: three logs cannot write their file `end`, and are opened all the same.
            rig.disk.fail(Fault::Create, 3);
            rig.open().expect("a full disk is no damage");
            assert!(rig.disk.contents(Path::new("data/topics/orders/end")).is_none());
            rig.disk.stop_after(step);
            if let Ok(position) = produce(&rig, "new", 50_000) {
                want.push((position, "new".to_owned()));
            }
            crash(&mut rig);
            let broker = rig.open().expect("the others go on");
            assert_eq!(rig.run(broker.troubles()), [], "step {step}");
            let read = rig.read("orders", 0).expect("no damage");
            assert_eq!(read[..want.len()], want, "step {step}");
        }
    }
}

/// BRK-1: the more topics there are, the less memory each gets; other messages are read from the disk.
#[test]
fn topics_share_the_memory_for_their_newest_messages() {
    let mut rig = Rig::new(5);
    (rig.options.tail_bytes, rig.options.tails_bytes) = (64 << 10, 64 << 10);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    let want: Vec<_> = (0..4).map(|index| (index, index.to_string())).collect();
    for (position, id) in &want {
        assert_eq!(produce(&rig, id, 5000), Ok(*position));
    }
    // A disk that cannot be read shows what is in memory.
    rig.disk.fail(Fault::Read, u32::MAX);
    assert_eq!(rig.read("orders", 0), Ok(want.clone()));
    rig.create("other", &rig::spec(1));
    rig.broker().commit_once();
    assert!(rig.read("orders", 0).is_err(), "half of it must be read from the disk");
    let broker = Arc::clone(rig.broker());
    let mut reader = rig.run(broker.reader("orders", 0, 3)).expect("in range");
    let last = poll(std::pin::pin!(std::future::poll_fn(|cx| reader.poll_batch(cx, 10_000))));
    assert!(matches!(last, Poll::Ready(Ok(_))), "the newest is in memory");
    rig.disk.heal();
    assert_eq!(rig.read("orders", 0), Ok(want));
}

/// P1, BRK-1: a segment whose first write was refused, and that stayed empty, leaves no hole when the segments around
/// it are freed.
#[test]
fn a_segment_that_was_begun_and_holds_nothing_is_freed_in_its_turn() {
    let mut rig = Rig::new(8);
    rig.open().expect("an empty disk");
    rig.create("orders", &TopicSpec { retention_bytes: Some(400_000), ..rig::spec(1) });
    assert_eq!(produce(&rig, "first", 50_000), Ok(0));
    // The next segment's header and its last bytes, the file `end`; then the message itself.
    rig.disk.fail_after(Fault::RefusedWrite, 3, 1);
    assert!(produce(&rig, "refused", 50_000).is_err());
    // Too large for the segment, so that each message begins another one, and the oldest segment is freed.
    for position in 1..4 {
        assert_eq!(produce(&rig, "large", 150_000), Ok(position));
    }
    assert!(rig.ends("orders")[0].start > 0, "the first is gone");
    for crash in [Rig::kill, Rig::cut_power, Rig::close] {
        crash(&mut rig);
        let broker = rig.open().expect("no damage");
        assert_eq!(rig.run(broker.troubles()), []);
        let read = rig.read("orders", 0).expect("no damage");
        assert_eq!(read.last(), Some(&(3, "large".to_owned())));
    }
}

/// A topic with three segments, of which the first is damaged while the broker runs.
fn harmed(seed: u64, harm: fn(&Rig, &Path)) -> Rig {
    let mut rig = Rig::new(seed);
    rig.options.tail_bytes = 0;
    rig.open().expect("an empty disk");
    rig.create("orders", &TopicSpec { retention_bytes: Some(512 << 10), ..rig::spec(1) });
    for index in 0..40 {
        assert_eq!(produce(&rig, &index.to_string(), 4000), Ok(index));
    }
    harm(&rig, &rig.segments("topics/orders")[0]);
    rig
}

fn lose(rig: &Rig, path: &Path) {
    rig.disk.lose(path);
}

fn cut(rig: &Rig, path: &Path) {
    let bytes = rig.disk.contents(path).expect("a segment");
    rig.disk.set_contents(path, bytes[..10_000].to_vec());
}

/// P10: a file that was cut or removed counts as damage, because waiting does not bring its bytes back.
#[test]
fn a_file_that_is_cut_or_gone_while_it_is_in_use_is_damage() {
    for harm in [lose as fn(&Rig, &Path), cut] {
        let rig = harmed(9, harm);
        let refused = rig.read("orders", 0);
        assert!(matches!(refused, Err(BrokerError::Damaged(_))), "{refused:?}");
        rig.broker().scrub_once();
        assert_eq!(rig.broker().scrubbed().damaged, 1);
    }
}

/// P10, BRK-1: a file that is already gone when its segment is freed does not keep later segments.
#[test]
fn a_file_that_is_gone_already_keeps_nothing_else_from_being_freed() {
    for harm in [lose as fn(&Rig, &Path), cut] {
        let mut rig = harmed(10, harm);
        for index in 40..400 {
            assert_eq!(produce(&rig, &index.to_string(), 4000), Ok(index));
        }
        assert!(rig.segments("topics/orders").len() <= 10, "{:?}", rig.segments("topics/orders"));
        assert_eq!(rig.run(rig.broker().troubles()), []);
        rig.kill();
        rig.open().expect("no damage");
        assert_eq!(rig.read("orders", 0).expect("what was lost is gone").last().expect("some").0, 399);
    }
}

/// P10, BRK-8: damage is no longer reported after its segment was freed.
#[test]
fn damage_that_was_found_is_no_trouble_once_its_segment_is_freed() {
    let flip = |rig: &Rig, path: &Path| {
        let mut bytes = rig.disk.contents(path).expect("a segment");
        bytes[10_000] ^= 1;
        rig.disk.set_contents(path, bytes);
    };
    let rig = harmed(11, flip);
    rig.broker().scrub_once();
    assert_eq!(rig.run(rig.broker().troubles()).len(), 1);
    for index in 40..200 {
        assert_eq!(produce(&rig, &index.to_string(), 4000), Ok(index));
    }
    assert_eq!(rig.run(rig.broker().troubles()), []);
}
