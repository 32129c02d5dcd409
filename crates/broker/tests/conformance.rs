//! The suite, for each broker of this crate. A line each.

use std::path::PathBuf;
use std::sync::Arc;

use keylane_broker::conformance::{MemoryRig, OpenedBy};
use keylane_broker::embedded::Options;
use keylane_broker::{Broker, Embedded, conformance};

conformance!(memory, MemoryRig::new(1));
conformance!(memory_with_gaps, MemoryRig::new(2).with_gaps(9));
conformance!(memory_without_conditions, MemoryRig::new(3).unconditional());
conformance!(embedded, {
    let folder = tempfile::tempdir().expect("a folder");
    OpenedBy::new(move || open(folder.path().to_owned()))
});

async fn open(folder: PathBuf) -> Arc<dyn Broker> {
    Arc::new(Embedded::open(folder, Options::default()).expect("it opens"))
}
