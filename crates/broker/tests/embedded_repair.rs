//! Damage that is hard to tell: a whole segment without its header, copies of records that live long, what a newer
//! version wrote, bytes that the disk does not give any more, a folder that nobody can write to.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used)]

mod folder;

use std::path::Path;

use folder::*;
use keylane_broker::embedded::data::{Damage, repair};
use keylane_broker::{Broker, JournalName, LogKind, TopicSpec};

/// BRK-1: a log may be larger than the machine's memory, and is checked all the same.
#[tokio::test]
async fn a_check_holds_one_segment_in_memory_and_not_a_whole_log() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 1000, 900).await;
    let segments = std::fs::read_dir(dir.path().join("topics/orders")).unwrap();
    let segments = segments.map(|entry| entry.unwrap().path());
    let segments: Vec<_> = segments.filter(|path| path.extension().is_some_and(|of| of == "seg")).collect();
    assert!(segments.len() > 40, "{}", segments.len());
    // Behind what was written: room that takes memory where it is read, and none on the disk.
    for path in &segments {
        cut(path, 8 << 20);
    }
    assert!(found(dir.path()).is_whole());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 200 << 10, "{most} KiB were in use, and all segments together have 320 MiB and more");
}

/// BRK-1, P10: whoever gives up a whole segment is told what may have been in it.
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

/// What is left once all damage is skipped: every log opens, and only `broken` lacks something.
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

/// BRK-6, P10: the same in the journals' log, where records that are still needed lay in that segment.
#[tokio::test]
async fn an_oldest_segment_of_journals_without_a_header_is_told_by_what_it_held() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (name_of("one", LogKind::Journal), name_of("two", LogKind::Journal));
    {
        let broker = open(dir.path());
        broker.create_topic("orders", &TopicSpec { partitions: 1, ..TopicSpec::default() }).await.unwrap();
        let journal = broker.journal(&one).await.unwrap();
        for _ in 0..40 {
            journal.append(vec![7; 4000].into(), None).await.unwrap();
        }
        broker.journal(&two).await.unwrap().append("two".into(), None).await.unwrap();
    }
    flip(&segment(dir.path(), "journals", 1), 20);
    let damages = skipped(dir.path(), &one, &[(two, 1)]).await;
    assert_eq!((damages.len(), damages[0].lost.len()), (1, 1), "{damages:?}");
    let lost = &damages[0].lost[0];
    assert!(lost.from == 0 && lost.to > 5 && lost.to < 40 && !lost.at_most, "{lost:?}");
}

/// Journals of which one has an old record that was copied to the end again and again, and one was cut all the time.
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
    // Behind all cuts, so that nothing there is in doubt.
    for name in &names {
        broker.journal(name).await.unwrap().append("the last one".into(), None).await.unwrap();
    }
    names
}

/// The last batch in the journals' log of that kind, and of that stream: its file and place.
fn last_of(dir: &Path, kind: u8, stream: u8) -> (std::path::PathBuf, usize) {
    let files = std::fs::read_dir(dir.join("journals")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|of| of == "seg")).collect();
    files.sort();
    let places = files.iter().rev().flat_map(|path| {
        let bytes = std::fs::read(path).unwrap();
        // Of this life of the file: it may have been another segment before.
        let is_it = move |at: &usize| {
            bytes[at + 60] == kind && bytes[at + 36] == stream && bytes[at + 8..at + 16] == bytes[8..16]
        };
        let at = batches(&std::fs::read(path).unwrap()).into_iter().filter(is_it).next_back();
        at.map(|at| (path.clone(), at))
    });
    places.into_iter().next().expect("one of that kind")
}

/// BRK-6, P10: a record that lives long lies in a copy; a damaged copy is told by its group, and can be skipped.
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

/// BRK-6, P10: the last cut of a journal is damaged, and what it had cut is gone with its segments.
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
