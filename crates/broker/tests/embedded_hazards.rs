//! Two things that happen in one breath, and things that fail at a bad moment: a roll that fails twice, a group that is
//! forgotten while it commits, a disk that is full of what is dead (P1, P10, BRK-1, BRK-6).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::Arc;

use keylane_broker::embedded::sim_disk::Fault;
use keylane_broker::{Broker, ProduceError};
use rig::{Rig, frames};

fn produce(rig: &Rig, id: &str, bytes: usize) -> Result<u64, ProduceError> {
    let broker = Arc::clone(rig.broker());
    rig.run(broker.produce("orders", frames(&[(0, id, bytes)]))).remove(0)
}

/// A log that begins the next segment in the middle of a call, so that no file for it is there, and whose record of the
/// new end cannot be made: the file waits for the next time.
fn with_a_file_that_got_no_name() -> Rig {
    let mut rig = Rig::new(1);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(2));
    // The first file that is made is the segment, the next one says that it is there.
    rig.disk.fail_after(Fault::Create, 1, 1);
    let broker = Arc::clone(rig.broker());
    let placed = rig.run(broker.produce("orders", frames(&[(0, "0", 50_000), (1, "1", 50_000)])));
    assert!(placed[0].is_ok() && placed[1].is_err(), "{placed:?}");
    rig
}

/// P1: two files that got no name, of different sizes, are two files.
#[test]
fn what_is_acknowledged_after_two_rolls_that_failed_is_there_after_a_restart() {
    let mut rig = with_a_file_that_got_no_name();
    // Too large for the file that waits, and again the new segment does not get its name.
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

/// P10: a larger file that is made meanwhile leaves the one that waits alone, so that the log goes on.
#[test]
fn a_file_that_got_no_name_is_used_later_though_a_larger_one_was_made_meanwhile() {
    let rig = with_a_file_that_got_no_name();
    assert!(produce(&rig, "large", 150_000).is_ok());
    for index in 0..4 {
        let placed = produce(&rig, &index.to_string(), 50_000);
        assert!(placed.is_ok(), "{placed:?}");
    }
}
