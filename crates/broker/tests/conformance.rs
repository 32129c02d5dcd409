//! Runs the conformance suite for the brokers of this crate that need no cluster: one line for each.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use keylane_broker::embedded::Options;
use keylane_broker::testing::conformance::{MemoryRig, Rig};
use keylane_broker::{Broker, Embedded, TopicSpec, conformance};
use tempfile::TempDir;

conformance!(memory, MemoryRig::new(1), can delete skip recreate share wait close kill begin_far grow swap);
conformance!(memory_with_gaps, MemoryRig::new(2).with_gaps(9), can delete skip recreate share wait close kill begin_far grow swap);
conformance!(memory_without_conditions, MemoryRig::new(3).unconditional(), can delete skip recreate share wait close kill begin_far grow swap);
// The embedded broker has no gaps between positions, and its folder belongs to one process; so no other process can
// add partitions to a topic, or make it anew while it is read.
conformance!(embedded, EmbeddedRig::default(), can delete recreate close kill begin_far);

/// Copies a folder with all its files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder is made");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("a file");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("a file").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("a file is copied")),
        }
    }
}

/// An embedded broker in a folder of its own.
struct EmbeddedRig {
    folder: TempDir,
    opened: Option<Arc<Embedded>>,
}

impl Default for EmbeddedRig {
    fn default() -> EmbeddedRig {
        EmbeddedRig { folder: tempfile::tempdir().expect("a folder"), opened: None }
    }
}

impl EmbeddedRig {
    fn open(&mut self) -> Arc<Embedded> {
        let path = self.folder.path();
        let open = || Arc::new(Embedded::open(path, Options::default()).expect("it opens"));
        Arc::clone(self.opened.get_or_insert_with(open))
    }

    fn close(&mut self) {
        if let Some(opened) = self.opened.take() {
            assert_eq!(Arc::strong_count(&opened), 1, "a case drops its handles before");
        }
    }
}

#[async_trait]
impl Rig for EmbeddedRig {
    async fn broker(&mut self) -> Arc<dyn Broker> {
        self.open()
    }

    async fn reopen(&mut self) -> Arc<dyn Broker> {
        EmbeddedRig::close(self);
        self.open()
    }

    /// With a bound of one byte, everything settled is deleted when the next message comes.
    async fn delete_below(&mut self, topic: &str, _partition: u32, _position: u64) {
        let broker = self.open();
        let there = broker.topic(topic).await.expect("asked").expect("it is there");
        let spec = TopicSpec { retention_bytes: Some(1), ..there.spec };
        broker.create_topic(topic, &spec).await.expect("a topic can be given other bounds");
    }

    async fn close(&mut self) {
        self.open().close();
    }

    /// A kill leaves what the files contain at this moment: the broker is reopened on a copy made while it still
    /// runs.
    async fn reopen_after_kill(&mut self) -> Arc<dyn Broker> {
        self.open();
        let left = tempfile::tempdir().expect("a folder");
        copy(self.folder.path(), left.path());
        self.opened = None;
        self.folder = left;
        self.open()
    }

    /// Producing that many messages would take too long, so the header of the first segment is changed: its table
    /// says where the partition begins and ends.
    async fn begin_at(&mut self, topic: &str, position: u64) {
        EmbeddedRig::close(self);
        let path = self.folder.path().join("topics").join(topic).join("0000000000000001.seg");
        let mut bytes = std::fs::read(&path).expect("a topic has a segment");
        for at in [72, 80] {
            bytes[at..at + 8].copy_from_slice(&position.to_le_bytes());
        }
        let length = u32::from_le_bytes(bytes[52..56].try_into().expect("four bytes")) as usize;
        let crc = crc32c::crc32c(&bytes[4..length]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&path, bytes).expect("it is written");
    }

    /// Deletes the topic's folder while the broker is closed, and makes the topic anew.
    async fn recreate_topic(&mut self, topic: &str) {
        let spec = self.open().topic(topic).await.expect("asked").expect("it is there").spec;
        EmbeddedRig::close(self);
        let files = self.folder.path().join("topics").join(topic);
        std::fs::remove_dir_all(files).expect("a topic has a folder");
        self.open().create_topic(topic, &spec).await.expect("a new topic is made");
    }
}
