//! A process that is stopped at one exact moment and goes on later (ORD-12): cases that random seeds seldom hit.
//!
//! Two processes share one partition. The first is stopped, the partition goes to the second, and the first hears of
//! that late. Whatever the first starts after it went on must be its own.

use std::sync::Arc;
use std::time::Duration;

use keylane_broker::{Hang, Rates};
use keylane_core::Record;
use tokio::time::sleep;

use crate::rig::{Rig, SLEEPER, SUCCESSOR, late_news};
use crate::{GROUP, TOPIC};

fn slow_answers() -> Rates {
    Rates { delay: 1000, delay_max: Duration::from_secs(100), ..Rates::none() }
}

/// ORD-12: behind the fence that an owner reads stands another process's fence, both in one page: the owner starts
/// nothing. The answer to its fence comes at different times after the pause, since its shard must have noticed the
/// pause before that, or it would start nothing for that reason alone.
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

/// ORD-12: after a long pause nothing starts until the assignment is confirmed, though no other process has fenced it.
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

/// ORD-12: also if the journal was being read when the pause began, which is another reason to read it to its end.
#[tokio::test(start_paused = true)]
async fn a_reading_that_a_long_pause_met_does_not_stand_for_the_confirmation() {
    for lost in [true, false] {
        let rig = Rig::new().await;
        rig.cluster.set_conditional(false);
        let sleeper = rig.process(SLEEPER, Duration::from_secs(600), 1).await;
        rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
        rig.produce("other", "quick").await;
        rig.started_so_many(SLEEPER, 1).await;
        sleep(Duration::from_secs(10)).await;
        for payload in ["slow", "queued"] {
            rig.produce("k", payload).await;
        }
        let landed = rig.on_record(|record| matches!(record, Record::Facts(_)));
        sleeper.faulty.hang(&[Hang::JournalRead]);
        rig.produce("other", "quick").await;
        landed.notified().await;
        sleep(Duration::from_millis(500)).await;
        let started = rig.started(SLEEPER);
        assert_eq!(started, [0, 1, 3], "one message is still queued");
        sleeper.gate.freeze();
        sleep(Duration::from_secs(60)).await;
        if lost {
            rig.cluster.lose(GROUP, TOPIC, 0);
            sleeper.faulty.set_rates(late_news());
        }
        sleeper.faulty.hang(&[Hang::JournalRead, Hang::Confirm]);
        sleeper.gate.thaw();
        sleep(Duration::from_millis(500)).await;
        sleeper.faulty.hang(&[Hang::Confirm]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(rig.started(SLEEPER), started, "nobody has said that it is its own");
        sleeper.faulty.answer();
        match lost {
            true => sleep(Duration::from_secs(60)).await,
            false => rig.started_so_many(SLEEPER, started.len() + 1).await,
        }
        assert_eq!(rig.started(SLEEPER).len(), started.len() + usize::from(!lost));
    }
}
