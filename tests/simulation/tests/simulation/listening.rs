//! An owner always listens: whichever call is not answered, it hears that another process has its partition (ORD-9).
//!
//! Two processes share one partition. One kind of call of the first process hangs, and the partition goes to the
//! second, by plan or unheard. From the moment when the second has it, the first starts nothing; a drain of the first
//! ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keylane::Settings;
use keylane::status::{PartitionState, PartitionStatus};
use keylane::testing::Flaws;
use keylane_broker::{Hang, Rates};
use keylane_core::{Record, Rules, partition_of};
use tokio::time::{Instant, sleep};

use crate::rig::{Process, Rig, SLEEPER, SUCCESSOR};
use crate::{GROUP, TOPIC};

/// Messages produced while the successor has the partition.
const LATER: usize = 10;
/// The most that two hand-overs and the silence that a successor waits for take: far below a handler's time-out.
const SOON: Duration = Duration::from_secs(20);

struct Case {
    hang: Hang,
    conditional: bool,
    /// News of the assignment does not reach the first owner.
    unheard: bool,
    flaws: Flaws,
}

impl Case {
    fn of(hang: Hang) -> Case {
        Case { hang, conditional: true, unheard: false, flaws: Flaws::default() }
    }

    fn settings(&self) -> impl FnOnce(&mut Settings) {
        let flaws = self.flaws;
        move |settings: &mut Settings| {
            settings.flaws = flaws;
            // A snapshot behind each record, and a cut behind each snapshot.
            settings.bounds.snapshot_after_bytes = 1;
        }
    }

    /// How many messages the first owner began though the second had the partition.
    async fn overlap(self) -> usize {
        let rig = Rig::new().await;
        rig.cluster.set_conditional(self.conditional);
        rig.produce("k", "quick").await;
        let first = rig.process_with(SLEEPER, 1, self.settings()).await;
        let _second = rig.process(SUCCESSOR, Duration::from_secs(30), 2).await;
        rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
        if self.hang == Hang::Reader {
            first.faulty.hang(&[self.hang]);
            sleep(Duration::from_secs(10)).await;
        } else {
            rig.started_so_many(SLEEPER, 1).await;
            sleep(Duration::from_secs(5)).await;
            first.faulty.hang(&[self.hang]);
        }
        for payload in ["rejected", "quick"] {
            rig.produce(payload, payload).await;
        }
        sleep(Duration::from_secs(3)).await;
        let since = Instant::now();
        match self.unheard {
            true => rig.hand_over(&first),
            false => rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR),
        }
        let mut last = 2;
        while rig.started(SUCCESSOR).is_empty() {
            assert!(since.elapsed() < SOON, "{:?}: not taken over", self.hang);
            rig.produce("k", "quick").await;
            last += 1;
            sleep(Duration::from_millis(500)).await;
        }
        let before = rig.started(SLEEPER).len();
        for _ in 0..LATER {
            rig.produce("k", "quick").await;
            last += 1;
        }
        sleep(Duration::from_secs(30)).await;
        let newest = rig.started(SUCCESSOR).into_iter().max();
        assert_eq!(newest, Some(last), "{:?}: the successor handles all", self.hang);
        rig.started(SLEEPER).len() - before
    }
}

/// ORD-9, P9: whatever is not answered, a revocation is heard, and the next owner has the partition soon.
#[tokio::test(start_paused = true)]
async fn a_revocation_is_heard_whatever_does_not_answer() {
    let all =
        [Hang::HoldAppend, Hang::JournalAppend, Hang::JournalRead, Hang::Cut, Hang::Reader, Hang::Commit];
    for hang in all {
        for conditional in [true, false] {
            let case = Case { conditional, ..Case::of(hang) };
            assert_eq!(case.overlap().await, 0, "{hang:?}, conditional: {conditional}");
        }
    }
}

/// ORD-9, P2, P9: an owner that no news reaches finds its successor in the journal, though its own append, or the body
/// of a dead letter, does not land.
#[tokio::test(start_paused = true)]
async fn a_successor_is_heard_in_the_journal_whatever_does_not_answer() {
    for hang in [Hang::JournalAppend, Hang::HoldAppend, Hang::Cut, Hang::Commit] {
        for conditional in [true, false] {
            let case = Case { conditional, unheard: true, ..Case::of(hang) };
            assert_eq!(case.overlap().await, 0, "{hang:?}, conditional: {conditional}");
        }
    }
}

/// ORD-9: the tests above can fail.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_deaf_is_found() {
    let flaws = Flaws { deaf_while_appending: true, ..Flaws::default() };
    let case = Case { unheard: true, flaws, ..Case::of(Hang::JournalAppend) };
    assert_ne!(case.overlap().await, 0, "an owner that does not read while it appends");
    let flaws = Flaws { deaf_while_storing: true, ..Flaws::default() };
    let case = Case { flaws, ..Case::of(Hang::HoldAppend) };
    assert_ne!(case.overlap().await, 0, "an owner that does not listen while it stores");
}

async fn owning(rig: &Rig, hang: Hang) -> Process {
    let process = rig.process(SLEEPER, Duration::from_secs(30), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.produce("k", "quick").await;
    rig.started_so_many(SLEEPER, 1).await;
    sleep(Duration::from_secs(5)).await;
    process.faulty.hang(&[hang]);
    for payload in ["rejected", "quick"] {
        rig.produce(payload, payload).await;
    }
    rig.started_so_many(SLEEPER, 3).await;
    process
}

/// ORD-10, DLQ-4: a drain does not wait for a hold that never answers.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_though_a_dead_letter_is_not_stored() {
    let rig = Rig::new().await;
    let process = owning(&rig, Hang::HoldAppend).await;
    let since = Instant::now();
    process.pipeline.drain().await.expect("it drains");
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    // A message whose body was not stored is not settled: the next owner handles it again.
    let _next = rig.process(SUCCESSOR, Duration::from_secs(30), 2).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
    rig.started_so_many(SUCCESSOR, 1).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.started(SUCCESSOR), [1], "the rejected one alone");
}

/// ORD-10: at its deadline a drain ends without `released`, whatever is not answered.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_its_deadline_though_a_journal_does_not_answer() {
    for hang in [Hang::JournalAppend, Hang::JournalRead] {
        for conditional in [true, false] {
            let rig = Rig::new().await;
            rig.cluster.set_conditional(conditional);
            let process = owning(&rig, hang).await;
            let since = Instant::now();
            process.pipeline.drain().await.expect("it drains");
            let deadline = Settings::default().drain + Duration::from_secs(5);
            assert!(since.elapsed() < deadline, "{hang:?}: {:?}", since.elapsed());
        }
    }
}

/// DLQ-4, P3: a dead letter that cannot be stored keeps only its own key waiting.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_stored_stops_only_its_key() {
    let rig = Rig::new().await;
    let process = owning(&rig, Hang::HoldAppend).await;
    rig.produce("rejected", "behind it").await;
    for _ in 0..LATER {
        rig.produce("k", "quick").await;
    }
    rig.started_so_many(SLEEPER, 3 + LATER).await;
    sleep(Duration::from_secs(300)).await;
    assert!(!rig.started(SLEEPER).contains(&3), "it waits until the dead letter is on record");
    process.faulty.answer();
    rig.started_so_many(SLEEPER, 4 + LATER).await;
    assert!(rig.started(SLEEPER).contains(&3));
}

async fn shown(process: &Process) -> PartitionStatus {
    process.pipeline.status().await.expect("answers").partitions.remove(0)
}

/// COM-2, P5, P10: while its journal takes no record, or cannot be read, an owner starts nothing more, since it would
/// only run again, and says so; then it goes on.
#[tokio::test(start_paused = true)]
async fn while_a_journal_does_not_answer_nothing_more_starts_and_that_is_shown() {
    for (hang, conditional, why) in [
        (Hang::JournalAppend, true, "takes no record"),
        (Hang::JournalAppend, false, "takes no record"),
        (Hang::JournalRead, false, "cannot be read"),
    ] {
        let rig = Rig::new().await;
        rig.cluster.set_conditional(conditional);
        let process = owning(&rig, hang).await;
        sleep(Duration::from_secs(20)).await;
        let before = rig.started(SLEEPER).len();
        for _ in 0..LATER {
            rig.produce("k", "quick").await;
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(rig.started(SLEEPER).len(), before, "{hang:?}, conditional: {conditional}");
        let now = shown(&process).await;
        assert_eq!(now.state, PartitionState::Paused, "{hang:?}: {now:?}");
        assert!(now.why.as_ref().is_some_and(|said| said.contains(why)), "{hang:?}: {now:?}");
        process.faulty.answer();
        rig.started_so_many(SLEEPER, before + LATER).await;
        sleep(Duration::from_secs(10)).await;
        let now = shown(&process).await;
        assert_eq!((now.state, now.committed), (PartitionState::Running, 3 + LATER as u64), "{now:?}");
    }
}

/// ORD-12, P10: after a pause nothing starts until the journal was read, and the status says so meanwhile.
#[tokio::test(start_paused = true)]
async fn a_partition_that_is_verified_says_so() {
    let rig = Rig::new().await;
    let process = rig.process(SLEEPER, Duration::from_secs(30), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.produce("k", "quick").await;
    rig.started_so_many(SLEEPER, 1).await;
    sleep(Duration::from_secs(5)).await;
    process.faulty.hang(&[Hang::JournalRead]);
    process.gate.freeze();
    sleep(Duration::from_secs(5)).await;
    process.gate.thaw();
    sleep(Duration::from_millis(900)).await;
    let now = shown(&process).await;
    assert!(now.state == PartitionState::Paused && now.why.is_some(), "{now:?}");
    process.faulty.answer();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(shown(&process).await.state, PartitionState::Running);
}

/// ORD-12, P3: where each read of a journal takes over a second, a partition starts, and goes on after a pause.
#[tokio::test(start_paused = true)]
async fn a_journal_that_is_read_slowly_stops_nobody_for_good() {
    for conditional in [true, false] {
        let rig = Rig::new().await;
        rig.cluster.set_conditional(conditional);
        rig.cluster.set_latency(Duration::from_millis(700), Duration::from_millis(700));
        let process = rig.process(SLEEPER, Duration::from_secs(30), 1).await;
        rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
        rig.produce("k", "quick").await;
        rig.started_so_many(SLEEPER, 1).await;
        process.gate.freeze();
        sleep(Duration::from_secs(5)).await;
        process.gate.thaw();
        rig.produce("k", "quick").await;
        rig.started_so_many(SLEEPER, 2).await;
    }
}

/// ORD-9, ORD-12: a drain while the assignment is being confirmed still drains: finished work goes on record.
#[tokio::test(start_paused = true)]
async fn a_drain_while_the_assignment_is_being_confirmed_drains() {
    let rig = Rig::new().await;
    let process = rig.process(SLEEPER, Duration::from_secs(600), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.produce("k", "slow").await;
    rig.started_so_many(SLEEPER, 1).await;
    process.gate.freeze();
    sleep(Duration::from_secs(30)).await;
    // The task that would answer the question for the assignment ends before it is asked.
    let goes_on = async {
        sleep(Duration::from_millis(100)).await;
        process.gate.thaw();
    };
    let (drained, ()) = tokio::join!(process.pipeline.drain(), goes_on);
    drained.expect("it drains");
    let _next = rig.process(SUCCESSOR, Duration::from_secs(30), 2).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
    rig.produce("k", "quick").await;
    rig.started_so_many(SUCCESSOR, 1).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.started(SUCCESSOR), [1], "what the first did is on record");
}

/// ORD-9, P3: owners that ask for their assignment again and again do not keep the group's task from hearing that a
/// partition goes elsewhere.
#[tokio::test(start_paused = true)]
async fn questions_for_the_assignment_do_not_keep_it_from_being_followed() {
    const PARTITIONS: u32 = 8;
    let rig = Rig::with_partitions(PARTITIONS).await;
    let first = rig.process(SLEEPER, Duration::from_secs(30), 1).await;
    let _second = rig.process(SUCCESSOR, Duration::from_secs(30), 2).await;
    for partition in 0..PARTITIONS {
        rig.cluster.assign(GROUP, TOPIC, partition, SLEEPER);
    }
    for _ in 0..2 {
        rig.produce("k", "quick").await;
    }
    rig.started_so_many(SLEEPER, 2).await;
    sleep(Duration::from_secs(10)).await;
    first.gate.freeze();
    sleep(Duration::from_secs(30)).await;
    first.faulty.hang(&[Hang::Confirm]);
    first.gate.thaw();
    sleep(Duration::from_secs(10)).await;
    rig.produce("k", "quick").await;
    rig.cluster.assign(GROUP, TOPIC, partition_of(b"k", PARTITIONS), SUCCESSOR);
    rig.started_so_many(SUCCESSOR, 1).await;
}

/// BRK-7, ORD-12: a journal that does not answer for a moment is read again, and nothing is claimed anew for it.
#[tokio::test(start_paused = true)]
async fn a_reading_that_fails_for_a_moment_costs_nothing() {
    let rig = Rig::new().await;
    rig.cluster.set_conditional(false);
    let process = rig.process(SLEEPER, Duration::from_secs(30), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.produce("k", "quick").await;
    rig.started_so_many(SLEEPER, 1).await;
    sleep(Duration::from_secs(5)).await;
    let claims = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&claims);
    rig.on_record(move |record| {
        count.fetch_add(usize::from(matches!(record, Record::Claim(_))), Ordering::SeqCst);
        false
    });
    let epoch = shown(&process).await.epoch;
    process.faulty.set_rates(Rates { drop_request: 1000, ..Rates::none() });
    rig.produce("k", "quick").await;
    rig.started_so_many(SLEEPER, 2).await;
    sleep(Duration::from_secs(3)).await;
    assert!(process.faulty.counts() != Default::default(), "something failed");
    process.faulty.calm();
    rig.produce("k", "quick").await;
    rig.started_so_many(SLEEPER, 3).await;
    sleep(Duration::from_secs(10)).await;
    let now = shown(&process).await;
    assert_eq!((now.state, now.epoch, now.committed), (PartitionState::Running, epoch, 3), "{now:?}");
    assert_eq!(claims.load(Ordering::SeqCst), 0);
}

/// How many messages finished before a drain a successor runs again, if the journal takes most of a second for each
/// record and a record holds one range.
async fn runs_again_after_a_drain(rules: Rules) -> usize {
    const MESSAGES: u64 = 40;
    let rig = Rig::new().await;
    // Every other message is done, so that each done one is a range of its own.
    for number in 0..MESSAGES {
        let payload = if number % 2 == 0 { "never done" } else { "quick" };
        rig.produce(&number.to_string(), payload).await;
    }
    let settings = |settings: &mut Settings| {
        settings.flaws = Flaws { rules, ..Flaws::default() };
        settings.timeout = Duration::from_secs(3);
        settings.bounds.ranges_per_record = 1;
    };
    let process = rig.process_with(SLEEPER, 1, settings).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.started_so_many(SLEEPER, MESSAGES as usize).await;
    process.pipeline.drain().await.expect("it drains");
    let _next = rig.process(SUCCESSOR, Duration::from_secs(30), 2).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
    rig.started_so_many(SUCCESSOR, MESSAGES as usize / 2).await;
    sleep(Duration::from_secs(10)).await;
    rig.started(SUCCESSOR).iter().filter(|position| *position % 2 == 1).count()
}

/// ORD-9, W: a drain is written in as few records as possible, or it would not end in time where a journal is slow, and
/// finished messages would run again. A drain in many records is found.
#[tokio::test(start_paused = true)]
async fn a_drain_is_on_record_in_time_since_it_takes_few_records() {
    assert_eq!(runs_again_after_a_drain(Rules::ALL).await, 0);
    assert_ne!(runs_again_after_a_drain(Rules { few_records: false, ..Rules::ALL }).await, 0);
}
