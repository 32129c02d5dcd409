//! What an operator reads in the telemetry before anything is refused (BRK-8). In a file of its own, because the
//! first thread that reaches a `tracing` line decides whether that line is recorded at all.
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use keylane_broker::Broker;
use rig::{Lines, Rig};

/// BRK-8: a log warns that the disk is nearly full while it still takes messages, and does not repeat it every
/// second.
#[test]
fn a_disk_without_room_for_the_next_segment_is_told_before_it_refuses_anything() {
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let told = || {
        let lines = lines.lock().expect("nobody panics");
        lines.iter().filter(|line| line.contains("nothing is refused yet")).count()
    };
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        let mut rig = Rig::new(10);
        rig.open().expect("an empty disk");
        rig.create("orders", &rig::spec(1));
        rig.disk.set_space(Some(rig.disk.used() + 1000));
        for index in 0..15 {
            assert_eq!(rig.produce("orders", &[(0, &index.to_string(), 3000)]), [index]);
        }
        assert_eq!(told(), 1);
        for _ in 0..100 {
            rig.now_ms.fetch_add(1000, Ordering::Relaxed);
            rig.broker().commit_once();
        }
        assert_eq!((told(), rig.run(rig.broker().health())), (1, Ok(())));
    });
}
