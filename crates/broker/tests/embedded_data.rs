//! Tests of the operators' commands on a data folder: check, repair, back up, restore.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used)]

mod folder;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use folder::*;
use keylane_broker::embedded::data::{RestoreError, check, repair, restore};
use keylane_broker::embedded::{Embedded, OpenError};
use keylane_broker::{Broker, BrokerError, Commit, LogKind, TopicSpec};
use keylane_core::{Draft, Frames};

/// BRK-1: a whole folder is reported as whole, with its contents; files that are not Keylane's are named and stay.
#[tokio::test]
async fn a_whole_folder_is_called_whole_and_what_is_not_ours_is_named() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 100, 500).await;
    for foreign in ["notes.txt", "topics/notes.txt", "journals/notes.txt", "topics/orders/notes.txt"] {
        std::fs::write(dir.path().join(foreign), "somebody else's").unwrap();
    }
    let report = found(dir.path());
    assert!(report.is_whole(), "{report:?}");
    let orders = report.logs.iter().find(|log| log.name == "topics/orders").unwrap();
    assert_eq!(orders.ends, [(0, 100); PARTITIONS as usize]);
    assert!(orders.segments.len() >= 2 && orders.segments.iter().map(|s| s.batches).sum::<u64>() == 300);
    assert_eq!(report.foreign.len(), 4, "{:?}", report.foreign);
    let broker = open(dir.path());
    let locked = check(dir.path(), &options());
    assert!(matches!(locked, Err(OpenError::Locked(_))), "a server uses it");
    drop(broker);
    assert!(dir.path().join("topics/orders/notes.txt").exists());
}

/// BRK-1, P10: whichever batch is damaged, and wherever, exactly its positions are reported as lost. After the repair
/// the log opens, readers skip these positions, everything else is there, and no position is given out twice.
#[tokio::test]
async fn each_damaged_batch_is_named_with_its_positions_and_can_be_skipped() {
    let whole = tempfile::tempdir().unwrap();
    let sent = filled(whole.path(), 5, 40).await;
    let path = segment(whole.path(), "topics/orders", 1);
    let starts = batches(&std::fs::read(&path).unwrap());
    assert_eq!(starts.len(), 15);
    for (index, start) in starts.iter().enumerate() {
        // A byte in the header, and a byte in the payload.
        for at in [20, 70] {
            let dir = tempfile::tempdir().unwrap();
            copy_folder(whole.path(), dir.path());
            let path = segment(dir.path(), "topics/orders", 1);
            let before = std::fs::read(&path).unwrap();
            flip(&path, start + at);
            let report = found(dir.path());
            let damage = only(&report);
            assert_eq!(damage.word, format!("topics/orders:1:{start}"));
            let (partition, position) = (index as u32 % PARTITIONS, index as u64 / u64::from(PARTITIONS));
            let exact = damage.lost.iter().find(|lost| lost.of == format!("partition {partition}")).unwrap();
            assert_eq!(exact.from, position, "{damage:?}");
            // Behind the last header of a partition, nothing says which positions a batch held.
            let in_doubt = at == 20 && index >= starts.len() - PARTITIONS as usize;
            assert_eq!(exact.at_most, in_doubt, "{index} {damage:?}");
            assert!(in_doubt || damage.lost.len() == 1, "{damage:?}");

            assert!(open(dir.path()).topic("orders").await.is_err(), "nothing is skipped without a word");
            skip(dir.path(), &damage.word.clone());
            let kept: Vec<_> = std::fs::read_dir(dir.path().join("repaired")).unwrap().collect();
            assert_eq!(kept.len(), 2, "the bytes, and what was done");
            let noted = std::fs::read_to_string(dir.path().join("repaired/log")).unwrap();
            assert!(noted.contains(&damage.word) && noted.contains(&exact.to_string()), "{noted}");

            let broker = open(dir.path());
            for other in 0..PARTITIONS {
                let mut want = sent[other as usize].clone();
                want.retain(|(lost, _)| other != partition || *lost != position);
                assert_eq!(read(&broker, other).await.unwrap(), want, "{index} {at}");
                let next = produce(&broker, other, "next", 40).await;
                assert!(next >= 5 && (in_doubt || next == 5), "{next}");
            }
            drop(broker);
            assert!(found(dir.path()).is_whole());
            assert_ne!(std::fs::read(&path).unwrap(), before);
        }
    }
}

/// Damages a folder; the second argument is the number of the topic's segments.
type Harm = fn(&Path, u64);

/// The damages by name, each with whether positions are lost by it if the log was closed before.
const HARMS: [(&str, Harm, bool); 8] = [
    ("missing in the middle", |dir, _| std::fs::remove_file(segment(dir, "topics/orders", 2)).unwrap(), true),
    ("missing at the end", |dir, n| std::fs::remove_file(segment(dir, "topics/orders", n)).unwrap(), true),
    ("no header at the end", |dir, n| flip(&segment(dir, "topics/orders", n), 20), true),
    ("no header", |dir, _| flip(&segment(dir, "topics/orders", 2), 20), true),
    ("cut in the middle", |dir, _| cut(&segment(dir, "topics/orders", 2), 10_000), true),
    ("cut at the end", |dir, n| cut(&segment(dir, "topics/orders", n), 300), true),
    ("cut behind the end", |dir, n| cut(&segment(dir, "topics/orders", n), 60_000), false),
    ("no end", |dir, _| std::fs::remove_file(dir.join("topics/orders/end")).unwrap(), false),
];

/// BRK-1: segments that are missing, cut, or without a header are reported, and a repair can skip them.
#[tokio::test]
async fn missing_cut_and_headless_segments_are_told_and_can_be_skipped() {
    let whole = tempfile::tempdir().unwrap();
    let sent = filled(whole.path(), 150, 400).await;
    let count =
        found(whole.path()).logs.iter().find(|log| log.name == "topics/orders").unwrap().segments.len();
    assert!(count >= 4, "{count}");
    for (what, harm, loses) in HARMS {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        harm(dir.path(), count as u64);
        let report = found(dir.path());
        assert!(report.troubles.is_empty(), "{what}: {report:?}");
        // If the file was cut within a batch, that batch's header still says what it held.
        let damages: Vec<_> = report.damages().cloned().collect();
        assert!((1..3).contains(&damages.len()), "{what}: {damages:?}");
        assert_eq!(damages.iter().all(|damage| damage.lost.is_empty()), !loses, "{what}: {damages:?}");
        assert!(open(dir.path()).topic("orders").await.is_err(), "{what}");
        let words: Vec<_> = damages.iter().map(|damage| damage.word.clone()).collect();
        skip_all(dir.path(), &words);
        let broker = open(dir.path());
        for partition in 0..PARTITIONS {
            let of = format!("partition {partition}");
            let lost = damages.iter().flat_map(|damage| &damage.lost);
            let lost: Vec<_> = lost.filter(|lost| lost.of == of).collect();
            let mut want = sent[partition as usize].clone();
            want.retain(|(position, _)| !lost.iter().any(|lost| (lost.from..lost.to).contains(position)));
            assert_eq!(read(&broker, partition).await.unwrap(), want, "{what}");
            assert!(produce(&broker, partition, "next", 40).await >= 150, "{what}");
        }
    }
}

/// P1, P10, BRK-1: after a kill it is not known how far the log reached. If its end is missing, cut, or without a
/// header, everything that may have been there is reported as lost, and no position is given out twice.
#[tokio::test]
async fn after_a_kill_whatever_had_room_at_a_lost_end_is_in_doubt_and_no_position_comes_twice() {
    let whole = tempfile::tempdir().unwrap();
    let sent = filled_and_killed(whole.path(), 150, 400).await;
    let report = found(whole.path());
    let segments = &report.logs.iter().find(|log| log.name == "topics/orders").unwrap().segments;
    let (count, last) = (segments.len(), segments.last().unwrap());
    assert!(report.is_whole() && count >= 4, "{report:?}");
    assert!(last.batches > 20 && last.used_bytes < 60_000, "{last:?}");
    for (what, harm, loses) in HARMS {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        harm(dir.path(), count as u64);
        let damages: Vec<_> = found(dir.path()).damages().cloned().collect();
        assert!(open(dir.path()).topic("orders").await.is_err(), "{what}");
        let in_doubt = what.contains("the end");
        assert_eq!(damages.iter().any(|damage| !damage.lost.is_empty()), loses || in_doubt, "{what}");
        // One after the other, each as if the operator had checked again in between.
        for damage in &damages {
            let done = repair(dir.path(), &options(), std::slice::from_ref(&damage.word)).unwrap();
            assert_eq!(done[0].lost, damage.lost, "{what}");
        }
        assert!(found(dir.path()).is_whole(), "{what}");
        let broker = open(dir.path());
        for (partition, sent) in (0..).zip(&sent) {
            let of = format!("partition {partition}");
            let lost = damages.iter().flat_map(|damage| &damage.lost).filter(|lost| lost.of == of);
            let lost: Vec<_> = lost.collect();
            assert_eq!(lost.iter().any(|lost| lost.at_most), in_doubt, "{what}: {lost:?}");
            let mut want = sent.clone();
            want.retain(|(position, _)| !lost.iter().any(|lost| (lost.from..lost.to).contains(position)));
            assert_eq!(read(&broker, partition).await.unwrap(), want, "{what}");
            assert!(produce(&broker, partition, "next", 40).await >= sent.len() as u64, "{what}");
        }
    }
}

/// P1, P10, BRK-1: a segment before a lost end may lack its own end, which nothing shows any more. Whichever place is
/// repaired first, no position is given out twice.
#[tokio::test]
async fn damage_before_a_lost_end_makes_the_doubt_no_smaller() {
    let whole = tempfile::tempdir().unwrap();
    let sent = filled_and_killed(whole.path(), 150, 400).await;
    let report = found(whole.path());
    let count = report.logs.iter().find(|log| log.name == "topics/orders").unwrap().segments.len() as u64;
    for order in [[0, 1], [1, 0]] {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        // The last segment but one loses all but its first batches; the last segment is removed.
        let path = segment(dir.path(), "topics/orders", count - 1);
        let starts = batches(&std::fs::read(&path).unwrap());
        cut(&path, starts[3] as u64 + 100);
        std::fs::remove_file(segment(dir.path(), "topics/orders", count)).unwrap();
        let damages: Vec<_> = found(dir.path()).damages().cloned().collect();
        assert_eq!(damages.len(), 2, "{damages:?}");
        for word in order.map(|index| &damages[index].word) {
            // After the last segment was made anew, the check no longer misses what was cut off the one before.
            if found(dir.path()).damages().any(|damage| damage.word == *word) {
                repair(dir.path(), &options(), std::slice::from_ref(word)).unwrap();
            }
        }
        assert!(found(dir.path()).is_whole(), "{order:?}");
        let broker = open(dir.path());
        for (partition, sent) in (0..).zip(&sent) {
            assert!(produce(&broker, partition, "next", 40).await >= sent.len() as u64, "{order:?}");
        }
    }
}

/// P1, BRK-1: several places are damaged, and nothing behind them says what they held. Whichever is repaired first,
/// and also if the file was cut, no position is given out twice.
#[tokio::test]
async fn several_damaged_places_at_the_end_are_skipped_in_any_order() {
    const LARGE: u64 = 200;
    let (running, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let broker = open(running.path());
    fill(&broker, 2, 40).await;
    let mut many = Frames::default();
    for _ in 0..LARGE {
        many.push(0, &Draft { id: "i", ..Draft::default() }).unwrap();
    }
    assert!(broker.produce("orders", many).await.iter().all(Result::is_ok));
    for partition in [1, 0, 1] {
        produce(&broker, partition, "i", 40).await;
    }
    copy_folder(running.path(), whole.path());
    let starts = batches(&std::fs::read(segment(whole.path(), "topics/orders", 1)).unwrap());
    let count = starts.len();
    for is_cut in [false, true] {
        for order in [[0, 1], [1, 0]] {
            let dir = tempfile::tempdir().unwrap();
            copy_folder(whole.path(), dir.path());
            let path = segment(dir.path(), "topics/orders", 1);
            // Both batches are of partition 0, which has no batch behind the second.
            for start in [starts[count - 4], starts[count - 2]] {
                flip(&path, start + 20);
            }
            if is_cut {
                cut(&path, starts[count - 1] as u64 + 100);
            }
            let damages: Vec<_> = found(dir.path()).damages().cloned().collect();
            assert_eq!(damages.len(), 2, "{damages:?}");
            let words = order.map(|index| damages[index].word.clone());
            skip_all(dir.path(), &words);
            let broker = open(dir.path());
            for (partition, sent) in [(0, 2 + LARGE + 1), (1, 4)] {
                let next = produce(&broker, partition, "next", 40).await;
                assert!(next >= sent, "{is_cut} {order:?}: {next} of {partition}");
            }
        }
    }
}

/// BRK-1, P10: a small damaged batch has room to report only its own loss, and a place before it reports the others.
#[tokio::test]
async fn damaged_batches_of_different_partitions_leave_room_to_say_what_each_lost() {
    let whole = tempfile::tempdir().unwrap();
    filled(whole.path(), 5, 400).await;
    let broker = open(whole.path());
    for partition in [1, 2, 0, 1, 2] {
        produce(&broker, partition, "i", 0).await;
    }
    drop(broker);
    let path = segment(whole.path(), "topics/orders", 1);
    let starts = batches(&std::fs::read(&path).unwrap());
    // The last large batch of partition 0 and a small one of partition 2: each is followed by a batch of that
    // partition.
    for start in [starts[12], starts[16]] {
        flip(&path, start + 20);
    }
    let damages: Vec<_> = found(whole.path()).damages().cloned().collect();
    let lost: Vec<Vec<_>> =
        damages.iter().map(|damage| damage.lost.iter().map(|lost| &lost.of).collect()).collect();
    assert_eq!(lost, [["partition 0"], ["partition 2"]]);
    let words: Vec<_> = damages.iter().map(|damage| damage.word.clone()).collect();
    skip_all(whole.path(), &words);
    assert_eq!(open(whole.path()).troubles().await, []);
}

/// BRK-1: a server's start demands a batch that ends where the file `end` says, also after a repair of damage around
/// it.
#[tokio::test]
async fn damage_on_both_sides_of_the_recorded_end_can_be_skipped() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2, 40).await;
    let copy = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    for _ in 0..3 {
        produce(&broker, 0, "behind the recorded end", 40).await;
    }
    copy_folder(dir.path(), copy.path());
    let path = segment(copy.path(), "topics/orders", 1);
    let starts = batches(&std::fs::read(&path).unwrap());
    for start in [starts[5], starts[6]] {
        flip(&path, start + 20);
    }
    let words: Vec<_> = found(copy.path()).damages().map(|damage| damage.word.clone()).collect();
    skip_all(copy.path(), &words);
    let broker = open(copy.path());
    assert_eq!(broker.troubles().await, []);
    assert!(produce(&broker, 0, "next", 40).await >= 5);
}

/// BRK-6, P10: damage in the journals' log is reported by group. After the repair only the journal that lost a record
/// cannot be read, and its group can be forgotten.
#[tokio::test]
async fn a_damaged_journal_is_told_by_its_group_and_stops_only_its_own() {
    let whole = tempfile::tempdir().unwrap();
    filled(whole.path(), 1, 40).await;
    let bytes = std::fs::read(segment(whole.path(), "journals", 1)).unwrap();
    let mine =
        |start: &&usize| String::from_utf8_lossy(&bytes[**start..**start + 120]).contains("record 2 of one");
    let start = *batches(&bytes).iter().find(mine).unwrap();
    for at in [20, 70] {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        flip(&segment(dir.path(), "journals", 1), start + at);
        let report = found(dir.path());
        let damage = only(&report).clone();
        let said: Vec<String> = damage.lost.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["the journal of group one, topic orders, partition 0: position 2"]);
        skip(dir.path(), &damage.word);

        let broker = open(dir.path());
        let one = broker.journal(&name_of("one", LogKind::Journal)).await.unwrap();
        let refused = one.read(0, 10_000).await.unwrap_err();
        assert!(refused.to_string().contains("forget-group"), "{refused}");
        let two = broker.journal(&name_of("two", LogKind::Journal)).await.unwrap();
        assert_eq!(two.read(0, 10_000).await.unwrap().records.len(), 4);
        assert_eq!(broker.committed("one", "orders", 0).await.unwrap().unwrap().position, 1);
        // After a cut behind the lost record, nothing is missing any more.
        one.cut(3).await.unwrap();
        assert_eq!(one.read(0, 10_000).await.unwrap().records.len(), 1);
        drop((one, two));
        assert_eq!(broker.forget_group("one", "orders").await, Ok(true));
        drop(broker);
        assert!(found(dir.path()).is_whole());
        drop(open(dir.path()));
    }
}

/// BRK-1: half a folder is not taken for a whole one, and a repair does nothing with names it does not know.
#[tokio::test]
async fn a_half_copied_folder_and_unknown_words_are_told() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 5, 40).await;
    let unknown = repair(dir.path(), &options(), &["topics/orders:1:64".to_owned()]);
    assert!(matches!(unknown, Err(OpenError::Unknown(_))), "{unknown:?}");
    let outside = repair(dir.path(), &options(), &["../orders:1:64".to_owned()]);
    assert!(matches!(outside, Err(OpenError::Unknown(_))), "{outside:?}");
    for file in ["topics/orders/topic", "broker"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
        let report = found(dir.path());
        assert!(
            !report.is_whole() && report.troubles.iter().any(|trouble| trouble.contains(file)),
            "{report:?}"
        );
    }
    let empty = tempfile::tempdir().unwrap();
    let report = found(empty.path());
    assert!(report.troubles[0].contains("there is no Keylane data here"), "{report:?}");
}

/// P1: a backup under load contains everything that was acknowledged before it began. Each of its logs is whole, no
/// journal mentions a message that the topics lack, and the server's later work does not change the backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_has_all_that_was_acknowledged_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, target) = (folder.path().join("data"), folder.path().join("backup"));
    let broker = Arc::new(open(&data));
    let small = TopicSpec { partitions: 1, retention_bytes: Some(256 << 10), ..TopicSpec::default() };
    broker.create_topic("orders", &small).await.unwrap();
    let journal = broker.journal(&name_of("one", LogKind::Journal)).await.unwrap();
    drop(broker.join("one", "orders", "node").await.unwrap());
    // Produces, records the settlement, commits and cuts, so that old segments are freed all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let (writer, stopping) = (Arc::clone(&broker), Arc::clone(&stop));
    let (sender, mut reached) = tokio::sync::watch::channel(0);
    let writing = tokio::spawn(async move {
        while !stopping.load(Ordering::Relaxed) {
            let position = produce(&writer, 0, "id", 2000).await;
            let at = journal.append(position.to_string().into(), None).await.unwrap();
            let commit = Commit { position, metadata: "m".into() };
            writer.commit("one", "orders", 0, commit).await.unwrap();
            let _waits_for_the_backup = journal.cut(at.saturating_sub(5)).await;
            sender.send_replace(position);
        }
    });
    reached.wait_for(|position| *position > 200).await.unwrap();
    let before = *reached.borrow();
    let made = broker.backup(&target).await.unwrap();
    assert!(made.files > 5 && made.shared_bytes > 0, "{made:?}");
    // Runs until every segment that the backup shares was freed or recycled.
    let end = *reached.borrow();
    reached.wait_for(|position| *position > end + 250).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();

    let again = folder.path().join("restored");
    let restored = restore(&target, &again).unwrap();
    assert_eq!((restored.files, restored.bytes), (made.files, made.bytes));
    let report = found(&again);
    assert!(report.is_whole(), "{report:?}");
    let copy = open(&again);
    let ends = copy.ends("orders").await.unwrap()[0];
    assert!(ends.end > before, "{ends:?} {before}");
    assert_eq!(read(&copy, 0).await.unwrap().len() as u64, ends.end - ends.start);
    let journal = copy.journal(&name_of("one", LogKind::Journal)).await.unwrap();
    let page = journal.read(0, 1 << 20).await.unwrap();
    let (_, last) = page.records.last().unwrap();
    let settled: u64 = std::str::from_utf8(last).unwrap().parse().unwrap();
    assert!(settled >= before && settled < ends.end, "{settled} of {ends:?}");
    let committed = copy.committed("one", "orders", 0).await.unwrap().unwrap();
    assert!(committed.position >= ends.start, "{committed:?} {ends:?}");
    produce(&copy, 0, "goes on", 40).await;
}

/// Bad input: a backup that is refused leaves nothing behind.
#[tokio::test]
async fn a_backup_goes_only_into_an_empty_folder_outside_of_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    filled(&data, 3, 40).await;
    let broker = open(&data);
    let used = folder.path().join("used");
    std::fs::create_dir(&used).unwrap();
    std::fs::write(used.join("file"), "somebody else's").unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    for (target, why) in [
        (used.clone(), "not empty"),
        (used.join("file/below"), "file/below"),
        (data.join("backup"), "in the data folder"),
        (link.join("a/b"), "in the data folder"),
        (data.clone(), "in the data folder"),
        (PathBuf::from("relative"), "from the root on"),
    ] {
        let refused = broker.backup(&target).await.unwrap_err();
        assert!(matches!(&refused, BrokerError::Backup(said) if said.contains(why)), "{target:?}: {refused}");
        assert!(!target.join("manifest").exists());
    }
    assert_eq!(std::fs::read(used.join("file")).unwrap(), b"somebody else's");
    assert!(!data.join("backup").exists());
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    broker.backup(&empty).await.expect("an empty folder is fine");
    drop(broker);
    assert!(found(&data).is_whole());
    assert!(found(folder.path()).troubles[0].contains("no Keylane data"));
    assert!(!folder.path().join("lock").exists(), "nothing is made in a folder that is not ours");

    // A topic that cannot be read is left out of the backup, and the answer names it.
    std::fs::write(data.join("topics/orders/topic"), "damaged").unwrap();
    let made = open(&data).backup(&folder.path().join("rest")).await.unwrap();
    assert_eq!(made.left_out, ["orders"]);
}

/// Bad input: a backup that was changed is refused before anything is made from it.
#[tokio::test]
async fn a_tampered_backup_is_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    filled(&data, 3, 40).await;
    open(&data).backup(&backup).await.unwrap();
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 6] = [
        ("checksum", |dir| flip(&segment(dir, "topics/orders", 1), 5000)),
        ("bytes", |dir| cut(&segment(dir, "journals", 1), 5000)),
        ("missing", |dir| std::fs::remove_file(dir.join("topics/orders/topic")).unwrap()),
        ("missing", |dir| std::fs::remove_file(dir.join("manifest")).unwrap()),
        ("checksum", |dir| flip(&dir.join("manifest"), 40)),
        ("makes no sense", |dir| {
            let text =
                std::fs::read_to_string(dir.join("manifest")).unwrap().replace(" broker\n", " ../broker\n");
            let (body, _) = text.rsplit_once("crc ").unwrap();
            let text = format!("{body}crc {:08x}\n", crc32c::crc32c(body.as_bytes()));
            std::fs::write(dir.join("manifest"), text).unwrap();
        }),
    ];
    for (index, (why, harm)) in harms.into_iter().enumerate() {
        let tampered = folder.path().join(format!("tampered-{index}"));
        copy_folder(&backup, &tampered);
        harm(&tampered);
        let target = folder.path().join(format!("restored-{index}"));
        let refused = restore(&tampered, &target).unwrap_err().to_string();
        assert!(refused.contains(why), "{index}: {refused}");
        assert!(!target.exists());
    }
    let refused = restore(&backup, &data).unwrap_err().to_string();
    assert!(refused.contains("not empty"), "{refused}");
    let target = folder.path().join("restored");
    std::fs::create_dir(&target).unwrap();
    restore(&backup, &target).expect("an empty folder is fine");
    assert!(found(&target).is_whole());
}

/// Bad input, P1: a restore writes into an existing folder, which may be a mount point or a link to another disk, and
/// touches nothing beside it.
#[tokio::test]
async fn a_restore_goes_into_a_folder_that_is_there_and_leaves_its_neighbours_alone() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    filled(&data, 3, 40).await;
    let made = open(&data).backup(&backup).await.unwrap();

    let (there, elsewhere, link) =
        (folder.path().join("there"), folder.path().join("elsewhere"), folder.path().join("link"));
    std::fs::create_dir(&there).unwrap();
    // A folder that file systems make at their root is nobody's data.
    std::fs::create_dir(there.join("lost+found")).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let neighbour = folder.path().join("there.restoring");
    std::fs::create_dir(&neighbour).unwrap();
    std::fs::write(neighbour.join("notes.txt"), "somebody else's").unwrap();
    let before = std::fs::metadata(&there).unwrap().ino();
    for target in [&there, &link] {
        assert_eq!(restore(&backup, target).unwrap().files, made.files);
        assert!(found(target).is_whole());
        assert!(!target.join("restoring").exists(), "what says that a restore is under way is gone");
    }
    assert_eq!(std::fs::metadata(&there).unwrap().ino(), before, "the folder that was there");
    assert!(link.is_symlink() && elsewhere.join("broker").exists());
    assert!(neighbour.join("notes.txt").exists());

    // A folder that does not exist yet is first made beside its place, under a name that may be in use.
    let new = folder.path().join("new");
    let neighbour = folder.path().join("new.restoring");
    std::fs::create_dir(&neighbour).unwrap();
    std::fs::write(neighbour.join("notes.txt"), "somebody else's").unwrap();
    let refused = restore(&backup, &new).unwrap_err().to_string();
    assert!(refused.contains("new.restoring"), "{refused}");
    assert!(neighbour.join("notes.txt").exists() && !new.exists());
    // What an interrupted restore left has the mark, and is removed.
    std::fs::write(neighbour.join("restoring"), "").unwrap();
    restore(&backup, &new).unwrap();
    assert!(found(&new).is_whole() && !neighbour.exists());
}

/// Bad input: a failed restore leaves an existing folder as it was, and an interrupted one can be repeated.
#[tokio::test]
async fn a_restore_that_fails_leaves_an_empty_folder_and_one_that_was_cut_off_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    filled(&data, 3, 40).await;
    open(&data).backup(&backup).await.unwrap();
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let foreign = target.join("journals");
    std::fs::write(&foreign, "in the way").unwrap();
    assert!(restore(&backup, &target).is_err());
    assert_eq!(std::fs::read(&foreign).unwrap(), b"in the way");
    std::fs::remove_file(&foreign).unwrap();
    // The power went in the middle of a restore.
    std::fs::write(target.join("restoring"), "").unwrap();
    std::fs::create_dir(target.join("journals")).unwrap();
    std::fs::write(target.join("journals/0000000000000001.seg"), "half a file").unwrap();
    restore(&backup, &target).unwrap();
    assert!(found(&target).is_whole());
}

/// P1, BRK-1: while a restore into a folder is unfinished, no server opens the folder and no command changes it.
#[tokio::test]
async fn a_folder_whose_restore_is_not_finished_is_neither_opened_nor_mended() {
    let folder = tempfile::tempdir().unwrap();
    let [data, backup, target] = ["data", "backup", "target"].map(|name| folder.path().join(name));
    let sent = filled(&data, 300, 900).await;
    open(&data).backup(&backup).await.unwrap();
    std::fs::create_dir(&target).unwrap();
    let restoring = std::thread::spawn({
        let (backup, target) = (backup.clone(), target.clone());
        move || restore(&backup, &target)
    });
    while !target.join("restoring").exists() && !restoring.is_finished() {
        std::hint::spin_loop();
    }
    // Again and again, as an impatient supervisor starts a server.
    let broker = loop {
        match Embedded::open(&target, options()) {
            Ok(broker) => break broker,
            Err(OpenError::Locked(_) | OpenError::Restoring(_)) => {}
            Err(other) => panic!("{other}"),
        }
    };
    restoring.join().unwrap().unwrap();
    for (partition, sent) in (0..).zip(sent) {
        assert_eq!(read(&broker, partition).await.unwrap(), sent);
    }
    drop(broker);

    std::fs::write(target.join("restoring"), "").unwrap();
    let refused = Embedded::open(&target, options()).err().unwrap();
    assert!(refused.to_string().contains("keylane data restore"), "{refused}");
    let word = ["topics/orders:1:64".to_owned()];
    assert!(matches!(repair(&target, &options(), &word), Err(OpenError::Restoring(_))));
    assert!(matches!(check(&target, &options()), Err(OpenError::Restoring(_))));
}

/// P1, BRK-1: a repeated restore removes nothing from a folder that a process uses, whatever lies in it.
#[tokio::test]
async fn a_restore_leaves_a_folder_alone_that_is_in_use() {
    use keylane_broker::embedded::disk::{Disk, RealDisk};
    let folder = tempfile::tempdir().unwrap();
    let [data, backup, new] = ["data", "backup", "new"].map(|name| folder.path().join(name));
    filled(&data, 3, 40).await;
    open(&data).backup(&backup).await.unwrap();
    let beside = folder.path().join("new.restoring");
    for (target, used) in [(&data, &data), (&new, &beside)] {
        if !used.exists() {
            std::fs::create_dir(used).unwrap();
            std::fs::write(used.join("broker"), "half of it").unwrap();
        }
        std::fs::write(used.join("restoring"), "").unwrap();
        let in_use = RealDisk.lock(&used.join("lock")).unwrap();
        let refused = restore(&backup, target).unwrap_err();
        assert!(matches!(&refused, RestoreError::InUse(folder) if folder == used), "{refused}");
        assert!(used.join("broker").exists() && used.join("restoring").exists());
        drop(in_use);
        restore(&backup, target).unwrap();
        assert!(found(target).is_whole());
    }
}

/// BRK-1: a backup and a restored folder are readable for their owner only, as the data folder is.
#[tokio::test]
async fn a_backup_and_what_is_restored_of_it_are_the_owners_alone() {
    fn modes(dir: &Path, wrong: &mut Vec<(PathBuf, u32)>) {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let want = if path.is_dir() { 0o700 } else { 0o600 };
            if mode(&path) != want {
                wrong.push((path.clone(), mode(&path)));
            }
            if path.is_dir() {
                modes(&path, wrong);
            }
        }
        if mode(dir) != 0o700 {
            wrong.push((dir.to_owned(), mode(dir)));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let [data, backup, restored] = ["data", "backup", "restored"].map(|name| folder.path().join(name));
    filled(&data, 100, 900).await;
    open(&data).backup(&backup).await.unwrap();
    restore(&backup, &restored).unwrap();
    for dir in [backup, restored] {
        let mut wrong = Vec::new();
        modes(&dir, &mut wrong);
        assert_eq!(wrong, [], "{}", dir.display());
    }
}
