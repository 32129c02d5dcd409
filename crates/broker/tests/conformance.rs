//! The suite, for each broker of this crate. A line each.

use std::sync::Arc;

use async_trait::async_trait;
use keylane_broker::conformance::{MemoryRig, Rig};
use keylane_broker::embedded::Options;
use keylane_broker::{Broker, Embedded, TopicSpec, conformance};
use tempfile::TempDir;

conformance!(memory, MemoryRig::new(1), can delete skip recreate share wait);
conformance!(memory_with_gaps, MemoryRig::new(2).with_gaps(9), can delete skip recreate share wait);
conformance!(memory_without_conditions, MemoryRig::new(3).unconditional(), can delete skip recreate share wait);
// Its positions have no gaps, and its folder belongs to one process.
conformance!(embedded, EmbeddedRig::default(), can delete recreate);

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
        self.close();
        self.open()
    }

    /// With a bound of one byte all that is settled goes when the next message comes.
    async fn delete_below(&mut self, topic: &str, _partition: u32, _position: u64) {
        let broker = self.open();
        let there = broker.topic(topic).await.expect("asked").expect("it is there");
        let spec = TopicSpec { retention_bytes: Some(1), ..there.spec };
        broker.create_topic(topic, &spec).await.expect("a topic can be given other bounds");
    }

    /// Somebody deletes its files, and it is made by its next use.
    async fn recreate_topic(&mut self, topic: &str) {
        let spec = self.open().topic(topic).await.expect("asked").expect("it is there").spec;
        self.close();
        let files = self.folder.path().join("topics").join(topic);
        std::fs::remove_dir_all(files).expect("a topic has a folder");
        self.open().create_topic(topic, &spec).await.expect("a new topic is made");
    }
}
