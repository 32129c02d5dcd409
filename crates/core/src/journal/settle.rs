//! Carries out an owner's facts: start and reset, done, held, moved and dead.
//!
//! Facts that count come in; out comes the state after them. Invariants: a held or dead message stays settled until it
//! is done or discarded; a discarded message never comes back; only an attempt that had seen the newest command answers
//! a retry that was asked for.

use super::apply::{Applied, NotCarriedOut};
use super::change::{Cause, Tell, changed};
use super::entries::{Entry, Fate};
use super::record::{DeadEffect, DeadEntry, Facts, Held, Moved};
use super::state::{State, entry_of};
use crate::owner::Rules;

/// Applies facts of the current epoch whose `seq` was already checked.
pub(super) fn settle(
    rules: Rules,
    state: &mut State,
    position: u64,
    facts: &Facts,
    tell: Tell<'_>,
) -> Applied {
    if let Some(what) = not_carried_out(state, facts) {
        return Applied::Stop(NotCarriedOut(what));
    }
    if let Some(start) = facts.start.or(facts.reset) {
        state.started = true;
        state.settled.reset(start);
        state.skip.remove(0..start);
        // Held and dead messages stay settled even at and above a reset. Otherwise the source's copy would run again
        // beside the copy in `hold.p`.
        for entry in state.entries.range(start..u64::MAX) {
            state.settled.settle(entry.position..entry.position.saturating_add(1));
        }
    }
    for range in facts.done.iter() {
        state.settled.settle(range.clone());
        state.skip.remove(range.clone());
        while let Some(entry) = state.next_entry(range.clone()) {
            state.entries.remove(entry.position);
            changed(tell, Cause::Done, Some(entry), None);
        }
    }
    facts.held.iter().for_each(|held| hold(rules, state, position, held, tell));
    facts.moved.iter().for_each(|moved| move_body(rules, state, moved, tell));
    facts.dead.iter().for_each(|dead| bury(rules, state, position, dead, tell));
    if let Some(low) = facts.low {
        // Caps `low` at what the state names: a body that is still named must never be cut away, whatever the owner
        // believed.
        let named = state.lowest_named().filter(|_| rules.low_is_capped());
        state.low = state.low.max(named.map_or(low, |named| named.min(low)));
    }
    if let (true, Some(epoch)) = (facts.released, &mut state.epoch) {
        epoch.released = true;
    }
    Applied::Counted
}

fn not_carried_out(state: &State, facts: &Facts) -> Option<&'static str> {
    let holds = facts.dead.iter().any(|dead| dead.effect != DeadEffect::Passed);
    let later = [
        (!facts.again.is_empty(), "a replay of history"),
        (!facts.versions.is_empty() || !facts.forgotten.is_empty(), "versions of keys"),
        (facts.published.is_some(), "a published cursor"),
        (facts.control.is_some_and(|cursor| cursor > 0), "a control cursor"),
        // Nodes that do not read the newer format stop here, so this node must stop too: all must agree on what counts.
        (!state.can_hold() && !facts.held.is_empty(), "a held message in a journal of an older format"),
        (!state.can_hold() && !facts.moved.is_empty(), "a moved copy in a journal of an older format"),
        (!state.can_hold() && holds, "a dead letter that holds its key in a journal of an older format"),
    ];
    later.into_iter().find(|(there, _)| *there).map(|(_, what)| what)
}

fn hold(rules: Rules, state: &mut State, position: u64, held: &Held, tell: Tell<'_>) {
    if state.settled.contains(held.position) {
        return;
    }
    state.settled.settle(held.position..held.position.saturating_add(1));
    let entry = Entry {
        position: held.position,
        key_hash: held.key_hash.filter(|_| rules.key_hash_on_record()),
        fate: Fate::Held { passes: held.passes, judged: held.judged },
        body: held.body,
        report: None,
        tries: held.tries,
        due_ms: held.due_ms,
        expires_ms: None,
        priority: held.priority,
        changed: position,
    };
    state.entries.insert(entry);
    changed(tell, Cause::Held, None, Some(entry));
}

/// Moves a body or report, but only if `from` is still what the state names: else the old body would replace an edited
/// one.
fn move_body(rules: Rules, state: &mut State, moved: &Moved, tell: Tell<'_>) {
    let Some(before) = state.entries.get(moved.position) else {
        return;
    };
    let mut after = before;
    if before.body == moved.from || !rules.moved_names_from() {
        after.body = moved.to;
    } else if before.report == Some(moved.from) {
        after.report = Some(moved.to);
    } else {
        return;
    }
    state.entries.insert(after);
    changed(tell, Cause::Moved, Some(before), Some(after));
}

fn bury(rules: Rules, state: &mut State, position: u64, dead: &DeadEntry, tell: Tell<'_>) {
    // Snapshots of formats before `FORMAT_HOLD` carry no position of the last change, so none is kept here: the state
    // must be the same whether it was folded or read from a snapshot.
    let position = if state.can_hold() { position } else { dead.command.unwrap_or(0) };
    let effect = if dead.key_hash.is_none() { DeadEffect::Passed } else { dead.effect };
    let mut after = Entry {
        fate: Fate::Dead { effect, reason: dead.reason, asked: false },
        key_hash: dead.key_hash.filter(|_| rules.key_hash_on_record()),
        ..entry_of(dead, position)
    };
    let settled = state.settled.contains(dead.position);
    let Some(before) = state.entries.get(dead.position) else {
        // The message was done or discarded meanwhile. That is final: the dead letter must not come back.
        if !settled || !rules.commands_by_state() {
            state.settled.settle(dead.position..dead.position.saturating_add(1));
            state.skip.remove(dead.position..dead.position.saturating_add(1));
            state.entries.insert(after);
            changed(tell, Cause::Died, None, Some(after));
        }
        return;
    };
    // The body is in `hold.p` already, and may be an edited one that the attempt did not have: keep the body that is
    // named.
    (after.body, after.key_hash) = (before.body, before.key_hash);
    let cause = match before.fate {
        Fate::Held { .. } => Cause::Died,
        Fate::Dead { effect: was, asked, .. } => {
            let answers = rules.answers(dead.command, before.changed);
            let effect = if was == DeadEffect::Passed || (asked && !answers) { was } else { effect };
            after.fate = Fate::Dead { effect, reason: dead.reason, asked: asked && !answers };
            if asked && !answers {
                after.changed = before.changed;
                Cause::FailedUnanswered
            } else {
                Cause::Failed
            }
        }
    };
    state.skip.remove(dead.position..dead.position.saturating_add(1));
    state.entries.insert(after);
    changed(tell, cause, Some(before), Some(after));
}
