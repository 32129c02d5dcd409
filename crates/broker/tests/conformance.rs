//! The suite, for each broker of this crate. A line each.

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
// Its positions have no gaps, its folder belongs to one process, and so nobody else can give a topic more partitions or
// make it again while it is read.
conformance!(embedded, EmbeddedRig::default(), can delete recreate close kill begin_far);

/// Copies all files of a folder.
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

/// The embedded broker on a folder of its own.
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

    /// With a bound of one byte all that is settled goes when the next message comes.
    async fn delete_below(&mut self, topic: &str, _partition: u32, _position: u64) {
        let broker = self.open();
        let there = broker.topic(topic).await.expect("asked").expect("it is there");
        let spec = TopicSpec { retention_bytes: Some(1), ..there.spec };
        broker.create_topic(topic, &spec).await.expect("a topic can be given other bounds");
    }

    async fn close(&mut self) {
        self.open().close();
    }

    /// What a kill leaves is what is in the files now: a copy of them, made while the broker still runs.
    async fn reopen_after_kill(&mut self) -> Arc<dyn Broker> {
        self.open();
        let left = tempfile::tempdir().expect("a folder");
        copy(self.folder.path(), left.path());
        self.opened = None;
        self.folder = left;
        self.open()
    }

    /// Nobody waits for so many messages: the table in the header of its first segment says where partitions are.
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

    /// Somebody deletes its files, and it is made by its next use.
    async fn recreate_topic(&mut self, topic: &str) {
        let spec = self.open().topic(topic).await.expect("asked").expect("it is there").spec;
        EmbeddedRig::close(self);
        let files = self.folder.path().join("topics").join(topic);
        std::fs::remove_dir_all(files).expect("a topic has a folder");
        self.open().create_topic(topic, &spec).await.expect("a new topic is made");
    }
}
