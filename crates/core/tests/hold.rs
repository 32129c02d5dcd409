//! Tests of a key's head: a lane that is shown few entries at a time must run what the table of docs/protocol.md says,
//! read position by position.

use keylane_core::Entry;
use keylane_core::journal::{DeadEffect, DeadReason, Entries, Fate};
use keylane_core::lanes::{Arrival, HeldLane, HoldState, HoldView, Place, Turn, walk};
use proptest::prelude::*;

const KEY: Option<u64> = Some(7);
const NOW_MS: u64 = 100;

fn entry(position: u64, fate: Fate, due_ms: Option<u64>) -> Entry {
    Entry {
        position,
        key_hash: KEY,
        fate,
        body: position,
        report: None,
        tries: 1,
        due_ms,
        expires_ms: None,
        priority: 5,
        changed: 1,
    }
}

fn held(passes: bool) -> Fate {
    Fate::Held { passes, judged: false }
}

fn dead(effect: DeadEffect, asked: bool) -> Fate {
    Fate::Dead { effect, reason: DeadReason::DownstreamError, asked }
}

/// What has become of a position, whether or not the lane or its owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    /// A position of another key, or one that is done, skipped or discarded on record.
    Gone,
    Kept(Fate, Option<u64>),
    /// Held or dead on record, and something happened here that is not on record.
    KeptAnd(Fate, Option<u64>, Here),
    /// Not settled; read if the reader has passed it.
    Unsettled,
    /// Not settled, read, and something happened here.
    Read(Here),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Here {
    Running,
    Done,
    Dying,
    Copying { scheduled: bool },
}

/// The position that may run, by the rows of the table, one by one.
fn naive(truths: &[Truth], read_to: u64) -> Option<u64> {
    let running =
        |truth: &Truth| matches!(truth, Truth::Read(Here::Running) | Truth::KeptAnd(_, _, Here::Running));
    if truths.iter().any(running) {
        return None;
    }
    for (position, truth) in (0..).zip(truths) {
        // From the reader's position on, messages of this key may lie that nobody knows of. Only an entry right at that
        // position is known.
        let kept = matches!(truth, Truth::Kept(..));
        if position > read_to || (position == read_to && !kept) {
            return None;
        }
        match *truth {
            Truth::Gone => {}
            Truth::KeptAnd(_, _, Here::Done) | Truth::Read(Here::Done) => {}
            Truth::KeptAnd(..) | Truth::Read(Here::Dying | Here::Running) => return None,
            Truth::Read(Here::Copying { scheduled: true }) => {}
            Truth::Read(Here::Copying { scheduled: false }) => return None,
            Truth::Unsettled => return Some(position),
            Truth::Kept(Fate::Held { passes: true, .. }, due) if due > Some(NOW_MS) => {}
            Truth::Kept(Fate::Held { .. }, due) => return (due <= Some(NOW_MS)).then_some(position),
            Truth::Kept(Fate::Dead { asked: true, .. }, _) => return Some(position),
            Truth::Kept(Fate::Dead { effect, .. }, due) => {
                let is_due = due.is_some_and(|due| due <= NOW_MS);
                match effect {
                    DeadEffect::Passed if is_due => return Some(position),
                    DeadEffect::Passed => {}
                    DeadEffect::Holding if is_due => return Some(position),
                    DeadEffect::Holding | DeadEffect::Halting => return None,
                }
            }
        }
    }
    None
}

/// A lane that was shown the entries on record, at most `most` at a time, and to which happened what happened here.
fn lane(truths: &[Truth], most: usize) -> (HeldLane, Option<u64>, Vec<u64>) {
    let kept = (0..).zip(truths).filter_map(|(position, truth)| match *truth {
        Truth::Kept(fate, due_ms) | Truth::KeptAnd(fate, due_ms, _) => Some(entry(position, fate, due_ms)),
        _ => None,
    });
    let entries: Entries = kept.collect();
    let done: Vec<u64> = (0..)
        .zip(truths)
        .filter(|(_, truth)| matches!(truth, Truth::KeptAnd(_, _, Here::Done)))
        .map(|(position, _)| position)
        .collect();
    // The lane knows at once what was done here, its owner only once it has heard: here it has heard of the first half.
    let known = &done[..done.len() / 2];
    let due = entries.due(NOW_MS).map(|entry| entry.position);
    let mut lane = HeldLane::default();
    let view = HoldView::of(&entries, KEY, due, most, |entry| known.contains(&entry.position));
    let shown: Vec<u64> = view.heads.iter().chain(&view.asides).map(|entry| entry.position).collect();
    lane.told(view, |_| false);
    let mut memory = None;
    for (position, truth) in (0..).zip(truths) {
        match *truth {
            Truth::Unsettled => memory = memory.or(Some(position)),
            Truth::Read(here) | Truth::KeptAnd(_, _, here) => match here {
                Here::Running => lane.begins(position),
                Here::Done => lane.is_done(position),
                Here::Dying => lane.dies(position),
                Here::Copying { scheduled } => lane.copies(position, scheduled),
            },
            Truth::Gone | Truth::Kept(..) => {}
        }
    }
    (lane, memory, shown)
}

fn any_due() -> impl Strategy<Value = Option<u64>> {
    prop::sample::select(vec![None, Some(NOW_MS - 1), Some(NOW_MS), Some(NOW_MS + 1)])
}

fn any_fate() -> impl Strategy<Value = Fate> {
    let effects = vec![DeadEffect::Passed, DeadEffect::Passed, DeadEffect::Holding, DeadEffect::Halting];
    prop_oneof![
        any::<bool>().prop_map(held),
        (prop::sample::select(effects), any::<bool>()).prop_map(|(effect, asked)| dead(effect, asked)),
    ]
}

fn any_truth() -> impl Strategy<Value = Truth> {
    let here = prop::sample::select(vec![
        Here::Done,
        Here::Done,
        Here::Dying,
        Here::Copying { scheduled: true },
        Here::Copying { scheduled: false },
    ]);
    let after = prop::sample::select(vec![Here::Done, Here::Done, Here::Dying]);
    prop_oneof![
        4 => Just(Truth::Gone),
        4 => (any_fate(), any_due()).prop_map(|(fate, due)| Truth::Kept(fate, due)),
        2 => (any_fate(), any_due(), after).prop_map(|(fate, due, here)| Truth::KeptAnd(fate, due, here)),
        2 => Just(Truth::Unsettled),
        2 => here.prop_map(Truth::Read),
    ]
}

proptest! {
    /// DLQ-5, P2: whatever a key has, and however few of its entries the lane is shown, the lane's head is the table's.
    #[test]
    fn a_lanes_head_is_what_the_table_says(
        truths in prop::collection::vec(any_truth(), 0..14), read_to in 0u64..16, most in 1usize..4,
        runs in prop::option::of(0usize..14),
    ) {
        let mut truths = truths;
        // A settled position was read once, by some owner; what happened here was read here.
        let read_to = (0..).zip(&truths).filter(|(_, truth)| matches!(truth, Truth::Read(_) | Truth::KeptAnd(..)))
            .map(|(position, _)| position + 1).max().unwrap_or(0).max(read_to);
        if let Some(truth) = runs.and_then(|at| truths.get_mut(at)) {
            match *truth {
                Truth::Unsettled => *truth = Truth::Read(Here::Running),
                Truth::Kept(fate, due) => *truth = Truth::KeptAnd(fate, due, Here::Running),
                _ => {}
            }
        }
        let unread: Vec<Truth> = (0..).zip(&truths)
            .map(|(position, truth)| if position >= read_to && *truth == Truth::Unsettled { Truth::Gone } else { *truth })
            .collect();
        let (lane, memory, shown) = lane(&unread, most);
        let runs = match lane.next(memory, read_to, NOW_MS) {
            Turn::Run(position) => Some(position),
            Turn::Until(at_ms) => {
                prop_assert!(at_ms > NOW_MS);
                None
            }
            Turn::Stop(..) | Turn::Nothing => None,
        };
        let wanted = naive(&truths, read_to);
        if lane.wants_more() {
            // The lane has gone through what it was shown, and asks for more before it goes on: it may be later than
            // the table, but not otherwise different. Entries that no successor waits for and that it was not shown do
            // not keep it from going on.
            let mut known = truths.clone();
            let mut next = wanted;
            while let Some(position) = next.filter(|position| !shown.contains(position) && !matches!(known[*position as usize], Truth::Unsettled)) {
                known[position as usize] = Truth::Gone;
                next = naive(&known, read_to);
            }
            prop_assert!(runs.is_none() || runs == wanted || runs == next, "{:?} {:?}", runs, next);
        } else {
            prop_assert_eq!(runs, wanted, "shown {:?}", shown);
        }
    }
}

/// Each row of the table, by itself.
#[test]
fn the_walk_stops_goes_on_or_runs_by_the_table() {
    let next = (1, Place::Turn { at_ms: 0 });
    let rows = [
        (Place::Past, Turn::Run(1)),
        (Place::Running, Turn::Stop(0, Place::Running)),
        (Place::Dying, Turn::Stop(0, Place::Dying)),
        (Place::Copying, Turn::Stop(0, Place::Copying)),
        (Place::CopyingPassed, Turn::Run(1)),
        (Place::Stopped, Turn::Stop(0, Place::Stopped)),
        (Place::InHold, Turn::Stop(0, Place::InHold)),
        (Place::Unread, Turn::Stop(0, Place::Unread)),
        (Place::Turn { at_ms: NOW_MS }, Turn::Run(0)),
        (Place::Turn { at_ms: NOW_MS + 1 }, Turn::Until(NOW_MS + 1)),
        (Place::Aside { at_ms: NOW_MS }, Turn::Run(0)),
        (Place::Aside { at_ms: NOW_MS + 1 }, Turn::Run(1)),
    ];
    for (place, turn) in rows {
        assert_eq!(walk([(0, place), next], NOW_MS), turn, "{place:?}");
    }
    let later = (0, Place::Aside { at_ms: NOW_MS + 5 });
    assert_eq!(walk([later], NOW_MS), Turn::Until(NOW_MS + 5), "a scheduled message has its time");
    assert_eq!(walk([later, (1, Place::Stopped)], NOW_MS), Turn::Until(NOW_MS + 5));
    assert_eq!(walk([], NOW_MS), Turn::Nothing);
}

/// DLQ-5: a lane is live, then held while its head stops or it is too long, then draining once the cause has ended, and
/// live again.
#[test]
fn a_lane_is_held_then_drains_then_is_live_again() {
    let mut lane = HeldLane::default();
    let view = |entries: &[Entry]| {
        HoldView::of(&entries.iter().copied().collect(), KEY, std::iter::empty(), 8, |_| false)
    };
    assert_eq!((lane.state(NOW_MS), lane.arrives(true, NOW_MS)), (HoldState::Live, Arrival::Wait));
    // The lane overflows: arriving messages are copied until memory holds half of what it may.
    assert_eq!((lane.arrives(false, NOW_MS), lane.state(NOW_MS)), (Arrival::Copy, HoldState::Held));
    lane.copies(5, false);
    assert_eq!(lane.next(Some(3), 6, NOW_MS), Turn::Run(3), "what lies before the copy goes on");
    assert_eq!(lane.next(Some(6), 7, NOW_MS), Turn::Stop(5, Place::Copying), "nothing runs past it");
    lane.told(view(&[entry(5, held(false), None)]), |position| position == 5);
    lane.half_empty();
    assert_eq!((lane.state(NOW_MS), lane.arrives(true, NOW_MS)), (HoldState::Draining, Arrival::Wait));
    assert_eq!(lane.next(Some(6), 7, NOW_MS), Turn::Run(5));
    lane.begins(5);
    lane.is_done(5);
    assert_eq!(lane.next(Some(6), 7, NOW_MS), Turn::Run(6), "a success waits for no record");
    assert_eq!(lane.state(NOW_MS), HoldState::Draining, "it is on record as held until then");
    // A view that is older than the record of the success starts nothing twice.
    lane.told(view(&[entry(5, held(false), None)]), |_| false);
    assert_eq!(lane.next(Some(6), 7, NOW_MS), Turn::Run(6));
    lane.told(HoldView::default(), |position| position == 5);
    assert_eq!(lane.state(NOW_MS), HoldState::Live);
    // Now a dead letter that holds the key, and then a retry of it.
    lane.dies(6);
    lane.told(view(&[entry(6, dead(DeadEffect::Holding, false), None)]), |position| position == 6);
    assert_eq!((lane.state(NOW_MS), lane.arrives(true, NOW_MS)), (HoldState::Held, Arrival::Copy));
    lane.told(view(&[entry(6, dead(DeadEffect::Holding, true), None)]), |_| false);
    assert_eq!((lane.state(NOW_MS), lane.next(Some(7), 8, NOW_MS)), (HoldState::Draining, Turn::Run(6)));
}
