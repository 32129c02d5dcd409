//! Tests of damage that is hard to explain: a segment without its header, copies of long-lived records, batches of a
//! newer version, unreadable sectors, and a folder that cannot be written.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used)]

mod folder;
mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use folder::*;
use keylane_broker::embedded::OpenError;
use keylane_broker::embedded::data::{Damage, check, repair};
use keylane_broker::{Broker, BrokerError, JournalName, LogKind, TopicSpec};
use rig::Rig;

/// BRK-1: a log may be larger than the machine's memory, and can be checked all the same.
#[tokio::test]
async fn a_check_holds_one_segment_in_memory_and_not_a_whole_log() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 1000, 900).await;
    let segments = std::fs::read_dir(dir.path().join("topics/orders")).unwrap();
    let segments = segments.map(|entry| entry.unwrap().path());
    let segments: Vec<_> = segments.filter(|path| path.extension().is_some_and(|of| of == "seg")).collect();
    assert!(segments.len() > 40, "{}", segments.len());
    // Lengthens the files: the added bytes take memory when they are read, and no space on the disk.
    for path in &segments {
        cut(path, 8 << 20);
    }
    assert!(found(dir.path()).is_whole());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 200 << 10, "{most} KiB were in use, and all segments together have 320 MiB and more");
}

/// BRK-1, P10: an operator who gives up a whole segment is told what may have been in it.
#[tokio::test]
async fn an_oldest_segment_without_a_header_is_not_called_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sent = filled(dir.path(), 150, 400).await;
    flip(&segment(dir.path(), "topics/orders", 1), 20);
    let report = found(dir.path());
    let damage = only(&report).clone();
    assert_eq!(damage.lost.len(), PARTITIONS as usize, "{damage:?}");
    let done = repair(dir.path(), &options(), std::slice::from_ref(&damage.word)).unwrap();
    assert_eq!(done[0].lost, damage.lost);
    let noted = std::fs::read_to_string(dir.path().join("repaired/log")).unwrap();
    assert!(!noted.contains("lost nothing"), "{noted}");
    let broker = open(dir.path());
    for (partition, sent) in sent.iter().enumerate() {
        let of = format!("partition {partition}");
        let lost = damage.lost.iter().find(|lost| lost.of == of).unwrap();
        assert!(lost.at_most && lost.from == 0, "{lost:?}");
        assert_eq!(read(&broker, partition as u32).await.unwrap(), sent[lost.to as usize..]);
    }
}

/// Skips all damage. Then every log opens, and only the journal `broken` lacks a record.
async fn skipped(dir: &Path, broken: &JournalName, whole: &[(JournalName, usize)]) -> Vec<Damage> {
    let damages: Vec<_> = found(dir).damages().cloned().collect();
    let words: Vec<_> = damages.iter().map(|damage| damage.word.clone()).collect();
    assert!(damages.iter().any(|damage| !damage.lost.is_empty()), "{damages:?}");
    skip_all(dir, &words);
    let broker = open(dir);
    assert_eq!(broker.troubles().await, [], "{damages:?}");
    let journal = broker.journal(broken).await.unwrap();
    let refused = journal.read(0, 1 << 20).await.unwrap_err().to_string();
    assert!(refused.contains("forget-group"), "{refused}");
    let end = journal.append("goes on".into(), None).await.unwrap();
    journal.cut(end).await.unwrap();
    assert_eq!(journal.read(0, 1 << 20).await.unwrap().records.len(), 1);
    for (name, count) in whole {
        let journal = broker.journal(name).await.unwrap();
        assert_eq!(journal.read(0, 1 << 20).await.unwrap().records.len(), *count, "{damages:?}");
    }
    drop((broker, journal));
    assert!(found(dir).is_whole());
    damages
}

/// BRK-6, P10: the same in the journals' log, where the segment held records that are still needed; also if the
/// newest segment has no room for the `Lost` batches.
#[tokio::test]
async fn an_oldest_segment_of_journals_without_a_header_is_told_by_what_it_held() {
    for is_full in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (name_of("one", LogKind::Journal), name_of("two", LogKind::Journal));
        {
            let broker = open(dir.path());
            broker
                .create_topic("orders", &TopicSpec { partitions: 1, ..TopicSpec::default() })
                .await
                .unwrap();
            let journal = broker.journal(&one).await.unwrap();
            for _ in 0..40 {
                journal.append(vec![7; 4000].into(), None).await.unwrap();
            }
            broker.journal(&two).await.unwrap().append("two".into(), None).await.unwrap();
        }
        if is_full {
            let newest = found(dir.path()).logs[0].segments.last().unwrap().clone();
            let (header, length, left) = (64, 4, 16);
            let bytes = newest.file_bytes - newest.used_bytes - header - length - left;
            let broker = open(dir.path());
            let journal = broker.journal(&two).await.unwrap();
            journal.append(vec![7; bytes as usize].into(), None).await.unwrap();
            drop((journal, broker));
            let last = found(dir.path()).logs[0].segments.last().unwrap().clone();
            assert_eq!((last.number, last.file_bytes - last.used_bytes), (newest.number, left));
        }
        flip(&segment(dir.path(), "journals", 1), 20);
        let damages = skipped(dir.path(), &one, &[(two, 1 + usize::from(is_full))]).await;
        assert_eq!((damages.len(), damages[0].lost.len()), (1, 1), "{damages:?}");
        let lost = &damages[0].lost[0];
        assert!(lost.from == 0 && lost.to > 5 && lost.to < 40 && !lost.at_most, "{lost:?}");
    }
}

/// Three journals: the first has an old record that was copied to the end again and again, the second was often cut.
async fn with_copies(dir: &Path) -> [JournalName; 3] {
    let names = ["old", "busy", "other"].map(|group| name_of(group, LogKind::Journal));
    let broker = open(dir);
    broker.create_topic("orders", &TopicSpec { partitions: 1, ..TopicSpec::default() }).await.unwrap();
    for index in [0, 2] {
        let journal = broker.journal(&names[index]).await.unwrap();
        journal.append(format!("old record of {index}").into(), None).await.unwrap();
    }
    let busy = broker.journal(&names[1]).await.unwrap();
    let mut at = 0;
    while segment(dir, "journals", 1).exists() || segment(dir, "journals", 2).exists() || at < 100 {
        at = busy.append(vec![7; 2000].into(), None).await.unwrap();
        busy.cut(at).await.unwrap();
    }
    // Appended behind all cuts, so that nothing at the end is in doubt.
    for name in &names {
        broker.journal(name).await.unwrap().append("the last one".into(), None).await.unwrap();
    }
    names
}

/// The last batch of this kind and stream in the journals' log: its file and its offset.
fn last_of(dir: &Path, kind: u8, stream: u8) -> (std::path::PathBuf, usize) {
    let files = std::fs::read_dir(dir.join("journals")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|of| of == "seg")).collect();
    files.sort();
    let places = files.iter().rev().flat_map(|path| {
        let bytes = std::fs::read(path).unwrap();
        // Compares the generation, since the file may have been another segment before.
        let is_it = move |at: &usize| {
            bytes[at + 60] == kind && bytes[at + 36] == stream && bytes[at + 8..at + 16] == bytes[8..16]
        };
        let at = batches(&std::fs::read(path).unwrap()).into_iter().rfind(is_it);
        at.map(|at| (path.clone(), at))
    });
    places.into_iter().next().expect("one of that kind")
}

/// BRK-6, P10: a damaged copy of a long-lived record is reported by its group, and can be skipped.
#[tokio::test]
async fn a_damaged_copy_of_a_record_can_be_skipped() {
    let whole = tempfile::tempdir().unwrap();
    let [old, busy, other] = with_copies(whole.path()).await;
    for at in [20, 70] {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(whole.path(), dir.path());
        let (path, start) = last_of(dir.path(), 3, 0);
        flip(&path, start + at);
        let damages = skipped(dir.path(), &old, &[(busy.clone(), 2), (other.clone(), 2)]).await;
        let said: Vec<_> = damages.iter().flat_map(|damage| &damage.lost).map(ToString::to_string).collect();
        assert!(
            said.contains(&"the journal of group old, topic orders, partition 0: position 0".to_owned()),
            "{said:?}"
        );
    }
}

/// BRK-6, P10: the last cut of a journal is damaged, and the segments below the cut are already gone.
#[tokio::test]
async fn a_damaged_cut_can_be_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (busy, other) = (name_of("busy", LogKind::Journal), name_of("other", LogKind::Journal));
    let mut count = 0;
    {
        let broker = open(dir.path());
        broker.create_topic("orders", &TopicSpec { partitions: 1, ..TopicSpec::default() }).await.unwrap();
        let (journal, beside) = (broker.journal(&busy).await.unwrap(), broker.journal(&other).await.unwrap());
        for _ in 0..40 {
            journal.append(vec![7; 4000].into(), None).await.unwrap();
        }
        journal.cut(40).await.unwrap();
        while [1, 2].iter().any(|number| segment(dir.path(), "journals", *number).exists()) {
            beside.append("beside".into(), None).await.unwrap();
            count += 1;
        }
        for journal in [journal, beside] {
            journal.append("the last one".into(), None).await.unwrap();
        }
    }
    let (path, start) = last_of(dir.path(), 4, 0);
    flip(&path, start + 20);
    let damages = skipped(dir.path(), &busy, &[(other, count + 1)]).await;
    assert_eq!((damages.len(), damages[0].lost.len()), (1, 1), "{damages:?}");
    assert_eq!(damages[0].lost[0].from, 0);
}

/// A topic whose messages are larger than a sector, on a disk that cannot read one sector in the first message of
/// partition 0.
fn with_a_bad_sector(seed: u64) -> Rig {
    let mut rig = Rig::new(seed);
    rig.options.tail_bytes = 0;
    rig.open().unwrap();
    rig.create("orders", &rig::spec(2));
    for index in 0..10 {
        for partition in 0..2 {
            rig.produce("orders", &[(partition, &index.to_string(), 10_000)]);
        }
    }
    let path = rig.segments("topics/orders").remove(0);
    let first = batches(&rig.disk.contents(&path).unwrap())[0] as u64;
    rig.disk.spoil(&path, (first + 200).next_multiple_of(4096), 512);
    rig
}

/// P10, BRK-1: an unreadable sector affects only the partition whose message lies there.
#[test]
fn a_sector_that_cannot_be_read_concerns_its_own_partition_alone() {
    let rig = with_a_bad_sector(1);
    assert_eq!(rig.read("orders", 1).unwrap().len(), 10);
    let refused = rig.read("orders", 0).unwrap_err();
    assert!(matches!(refused, BrokerError::Damaged(_)), "{refused}");
}

/// P10, BRK-1: `check` reports an unreadable sector as damage, `repair` skips it, and the scrubber finds it.
#[test]
fn a_sector_that_cannot_be_read_is_told_as_damage_and_can_be_skipped() {
    let mut rig = with_a_bad_sector(2);
    rig.broker().scrub_once();
    assert_eq!(rig.broker().scrubbed().damaged, 1);
    rig.close();
    let report = check(Path::new("data"), &rig.options).unwrap();
    let damage = only(&report).clone();
    assert_eq!(damage.lost[0].to_string(), "partition 0: position 0");
    repair(Path::new("data"), &rig.options, &[damage.word]).unwrap();
    assert!(check(Path::new("data"), &rig.options).unwrap().is_whole());
    rig.open().unwrap();
    let read: Vec<_> = rig.read("orders", 0).unwrap().into_iter().map(|(position, _)| position).collect();
    assert_eq!(read, (1..10).collect::<Vec<_>>());
    assert_eq!(rig.read("orders", 1).unwrap().len(), 10);
}

/// Damages the oldest segment of the journals, which has a live record; another segment must still be emptied.
fn other_journals_are_emptied_beside(harm: impl Fn(&Rig, &Path)) -> (Rig, PathBuf) {
    let mut rig = Rig::new(3);
    rig.open().unwrap();
    let journal = |group: &str| {
        let broker = Arc::clone(rig.broker());
        rig.run(broker.journal(&name_of(group, LogKind::Journal))).unwrap()
    };
    let (old, kept, busy) = (journal("old"), journal("kept"), journal("busy"));
    let mut at = 0;
    let mut work = |rounds| {
        for _ in 0..rounds {
            assert_eq!(rig.run(busy.append(vec![2; 2000].into(), None)), Ok(at));
            rig.run(busy.cut(at)).unwrap();
            at += 1;
        }
    };
    rig.run(old.append(vec![1; 9000].into(), None)).unwrap();
    let spoiled = rig.segments("journals").remove(0);
    harm(&rig, &spoiled);
    work(20);
    rig.run(kept.append(vec![3; 12_000].into(), None)).unwrap();
    let beside = rig.segments("journals").pop().unwrap();
    work(400);
    let segments = rig.segments("journals");
    assert!(!segments.contains(&beside), "{segments:?}");
    assert_eq!(rig.run(rig.broker().troubles()), []);
    assert_eq!(rig.run(kept.read(0, 1 << 20)).unwrap().records.len(), 1);
    let refused = rig.run(old.read(0, 1 << 20)).unwrap_err();
    assert!(matches!(refused, BrokerError::Damaged(_)), "{refused}");
    drop((old, kept, busy));
    (rig, spoiled)
}

/// P10, BRK-6: an unreadable record stops its own journal, and does not keep other segments from being emptied.
#[test]
fn a_sector_that_cannot_be_read_keeps_no_other_segment_of_the_journals() {
    let (rig, spoiled) = other_journals_are_emptied_beside(|rig, path| {
        let first = batches(&rig.disk.contents(path).unwrap())[0] as u64;
        rig.disk.spoil(path, (first + 200).next_multiple_of(4096), 512);
    });
    assert!(rig.segments("journals").contains(&spoiled));
}

/// P10, BRK-6: the same for a file that was cut or removed.
#[test]
fn a_file_that_is_cut_or_gone_keeps_no_other_segment_of_the_journals() {
    other_journals_are_emptied_beside(|rig, path| rig.disk.lose(path));
    other_journals_are_emptied_beside(|rig, path| {
        let bytes = rig.disk.contents(path).unwrap();
        rig.disk.set_contents(path, bytes[..5000].to_vec());
    });
}

/// P10: batches of a newer version are neither damage nor a torn tail, wherever they lie.
#[test]
fn a_check_calls_what_a_newer_version_wrote_by_its_name() {
    for behind_damage in [false, true] {
        let mut rig = Rig::new(4);
        rig.open().unwrap();
        rig.create("orders", &rig::spec(1));
        for index in 0..3 {
            rig.produce("orders", &[(0, &index.to_string(), 100)]);
        }
        rig.close();
        let path = rig.segments("topics/orders").remove(0);
        let mut bytes = rig.disk.contents(&path).unwrap();
        let places = batches(&bytes);
        // The last batch is of a kind that this version does not know.
        let last = &mut bytes[places[2]..places[2] + 64];
        last[60..62].copy_from_slice(&99u16.to_le_bytes());
        let crc = crc32c::crc32c(&last[4..]);
        last[..4].copy_from_slice(&crc.to_le_bytes());
        bytes[places[1] + 20] ^= u8::from(behind_damage);
        rig.disk.set_contents(&path, bytes.clone());
        let report = check(Path::new("data"), &rig.options).unwrap();
        assert_eq!(report.damages().count(), 0, "{report:?}");
        assert!(report.troubles.iter().any(|trouble| trouble.contains("newer version")), "{report:?}");
        assert_eq!(rig.disk.contents(&path), Some(bytes));
    }
}

/// BRK-1: a copy on a read-only file system can be checked; a folder that a server uses cannot.
#[test]
fn a_folder_that_nobody_can_write_to_can_be_checked() {
    let mut rig = Rig::new(5);
    rig.open().unwrap();
    rig.create("orders", &rig::spec(1));
    rig.produce("orders", &[(0, "a", 100)]);
    rig.disk.set_read_only(true);
    let in_use = check(Path::new("data"), &rig.options);
    assert!(matches!(in_use, Err(OpenError::Locked(_))), "{in_use:?}");
    rig.kill();
    rig.disk.set_read_only(true);
    let report = check(Path::new("data"), &rig.options).unwrap();
    assert!(report.is_whole() && report.logs.len() == 3, "{report:?}");
    assert!(repair(Path::new("data"), &rig.options, &["topics/orders:end:0".to_owned()]).is_err());
}
