//! A process that is stopped at one exact moment and goes on later (ORD-12): what random seeds seldom hit.
//!
//! Two processes on one partition; the first is stopped, the partition goes to the second, and news of that reaches the
//! first late. What it starts after it went on must be its own.

use std::sync::Arc;
use std::time::Duration;

use keylane_broker::Rates;
use keylane_core::Record;
use tokio::time::sleep;

use crate::rig::{Rig, SLEEPER, SUCCESSOR, late_news};
use crate::{GROUP, TOPIC};

fn slow_answers() -> Rates {
    Rates { delay: 1000, delay_max: Duration::from_secs(100), ..Rates::none() }
}

/// ORD-12: behind the fence that an owner reads stands another's, both in one page: it starts nothing. The answer to its
/// fence comes at different times after the pause: its shard must have noticed that before, or it would start nothing
/// for that reason.
#[tokio::test(start_paused = true)]
async fn an_owner_that_slept_behind_its_fence_starts_nothing_on_it() {
    for seed in 1..=10 {
        sleep_behind_a_fence(seed).await;
    }
}

async fn sleep_behind_a_fence(seed: u64) {
    let rig = Rig::new().await;
    rig.produce("k", "quick").await;
    let sleeper = rig.process(SLEEPER, Duration::from_secs(1), seed).await;
    let _successor = rig.process(SUCCESSOR, Duration::from_secs(1), 100 + seed).await;
    // The first owner of all puts more on record before it starts anything.
    rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
    rig.started_so_many(SUCCESSOR, 1).await;
    sleep(Duration::from_secs(10)).await;
    let (gate, faulty) = (Arc::clone(&sleeper.gate), Arc::clone(&sleeper.faulty));
    let mut asleep = false;
    let fenced = rig.on_record(move |record| {
        match record {
            Record::Claim(_) if !asleep => faulty.set_rates(slow_answers()),
            Record::Fence(_) if !asleep => {
                gate.freeze();
                asleep = true;
                return true;
            }
            _ => {}
        }
        false
    });
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    fenced.notified().await;
    rig.produce("k", "never done").await;
    rig.hand_over(&sleeper);
    rig.started_so_many(SUCCESSOR, 2).await;
    assert!(rig.started(SLEEPER).is_empty(), "it never had the partition");
    sleeper.gate.thaw();
    sleep(Duration::from_secs(2_000)).await;
    assert!(rig.started(SLEEPER).is_empty(), "it slept past the successor's fence");
}

/// ORD-12: after a long pause nothing starts until the assignment is confirmed, though nobody has fenced it.
#[tokio::test(start_paused = true)]
async fn after_a_long_pause_nothing_starts_before_the_assignment_is_confirmed() {
    let rig = Rig::new().await;
    for payload in ["slow", "queued"] {
        rig.produce("k", payload).await;
    }
    let sleeper = rig.process(SLEEPER, Duration::from_secs(600), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.started_so_many(SLEEPER, 1).await;
    sleeper.gate.freeze();
    sleep(Duration::from_secs(30)).await;
    rig.cluster.lose(GROUP, TOPIC, 0);
    sleeper.faulty.set_rates(late_news());
    sleeper.gate.thaw();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(rig.started(SLEEPER), [0], "the broker would have said that it is not its own");
}
