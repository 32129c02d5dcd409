//! Decides what a command of an operator or a job does, by the state that the command meets (docs/protocol.md, "What
//! commands do").
//!
//! A command comes in; out come the state after it and the effect on each entry that the command names. A command whose
//! id is remembered was sent twice, and is ignored.

use std::ops::Range;

use super::apply::{Applied, Ignored, NotCarriedOut};
use super::change::{Cause, Effect, Refusal, Tell, changed};
use super::entries::{Entry, Fate};
use super::record::{Command, CommandKind, DeadEffect};
use super::state::{COMMANDS_MAX, State};
use crate::ledger::Ranges;
use crate::owner::Rules;

pub(super) fn apply_command(
    rules: Rules,
    state: &mut State,
    position: u64,
    command: &Command,
    tell: Tell<'_>,
) -> Applied {
    match (command.kind, &command.accept, command.partitions) {
        (CommandKind::Upgrade, ..) if command.format.is_some() => {
            apply_upgrade(rules, state, command.format.unwrap_or(0))
        }
        (CommandKind::Accept, Some(accept), _) if accept.follows(state) => {
            state.accepted.push(accept.clone());
            Applied::Counted
        }
        (CommandKind::Widen, _, Some(partitions)) if partitions > state.widened => {
            state.widened = partitions;
            Applied::Counted
        }
        (CommandKind::Open, _, Some(partitions)) if partitions > state.opened => {
            state.opened = partitions;
            Applied::Counted
        }
        (CommandKind::Accept | CommandKind::Widen | CommandKind::Open, ..) => {
            Applied::Ignored(Ignored::AcceptedBefore)
        }
        (
            CommandKind::Retry
            | CommandKind::Discard
            | CommandKind::Release
            | CommandKind::Edit
            | CommandKind::Expire
            | CommandKind::Skip,
            ..,
        ) => apply_to_entries(rules, state, position, command, tell),
        _ => Applied::Stop(NotCarriedOut("a command")),
    }
}

fn apply_upgrade(rules: Rules, state: &mut State, format: u8) -> Applied {
    if format <= state.format() {
        return Applied::Ignored(Ignored::UpgradedBefore);
    }
    // If this upgrade counted anyway, an owner that cannot read the new format would stop in the middle of its work,
    // and a claimant before it could begin. Behind an upgrade that counts, both are known to read the format, and any
    // later claimant has to read this record before it can own.
    if rules.upgrade_when_readable() && state.too_old_for(format).is_some() {
        return Applied::Ignored(Ignored::TooOld);
    }
    state.format = Some(format);
    Applied::Counted
}

fn apply_to_entries(
    rules: Rules,
    state: &mut State,
    position: u64,
    command: &Command,
    tell: Tell<'_>,
) -> Applied {
    if !state.can_hold() {
        return Applied::Ignored(Ignored::OlderFormat);
    }
    if state.commands.contains(&command.id) {
        return Applied::Ignored(Ignored::RepeatedCommand);
    }
    if state.commands.len() >= COMMANDS_MAX {
        state.commands.pop_front();
    }
    state.commands.push_back(command.id);
    for range in command.positions.iter() {
        let mut from = range.start;
        while let Some(entry) = state.next_entry(from..range.end) {
            if let Err(why) = apply_to_entry(rules, state, position, command, entry, tell) {
                tell(Effect::Refused { position: entry.position, why });
            }
            from = entry.position + 1;
        }
        if command.kind == CommandKind::Skip {
            for range in unsettled(state, range).iter() {
                state.skip.insert(range.clone());
                tell(Effect::Skip(range));
            }
        }
    }
    Applied::Counted
}

/// One row of the protocol's table: does to the entry what the command asks for, or says why not.
fn apply_to_entry(
    rules: Rules,
    state: &mut State,
    position: u64,
    command: &Command,
    before: Entry,
    tell: Tell<'_>,
) -> Result<(), Refusal> {
    if command.as_of.is_some_and(|as_of| before.changed >= as_of) {
        return Err(Refusal::ChangedSince);
    }
    let (effect, reason, asked) = match (before.fate, command.kind) {
        (Fate::Held { .. }, CommandKind::Skip) => {
            let range = before.position..before.position.saturating_add(1);
            state.skip.insert(range.clone());
            tell(Effect::Skip(range));
            return Ok(());
        }
        (Fate::Held { .. }, CommandKind::Discard) => {
            state.discard(before, Cause::Discarded, tell);
            return Ok(());
        }
        (Fate::Held { .. }, _) => return Err(Refusal::Held),
        (Fate::Dead { .. }, CommandKind::Skip) => return Err(Refusal::Dead),
        (Fate::Dead { effect, reason, asked }, _) => (effect, reason, asked),
    };
    let mut after = Entry { changed: position, ..before };
    let cause = match command.kind {
        CommandKind::Discard => {
            state.discard(before, Cause::Discarded, tell);
            return Ok(());
        }
        CommandKind::Expire if asked || effect == DeadEffect::Halting => return Err(Refusal::Wanted),
        CommandKind::Expire => {
            state.discard(before, Cause::Expired, tell);
            return Ok(());
        }
        CommandKind::Release if effect == DeadEffect::Passed => return Err(Refusal::NoChange),
        CommandKind::Release => {
            after.fate = Fate::Dead { effect: DeadEffect::Passed, reason, asked };
            Cause::Released
        }
        CommandKind::Edit => {
            let body = command.body.filter(|body| *body >= state.low || !rules.low_is_capped());
            after.body = body.ok_or(Refusal::BelowLow)?;
            after.fate = Fate::Dead { effect, reason, asked: true };
            Cause::Edited
        }
        _ => {
            after.fate = Fate::Dead { effect, reason, asked: true };
            Cause::Asked
        }
    };
    state.entries.insert(after);
    changed(tell, cause, Some(before), Some(after));
    Ok(())
}

impl State {
    /// The entry with the lowest position within `range`.
    pub(super) fn next_entry(&self, range: Range<u64>) -> Option<Entry> {
        if self.entries.is_empty() { None } else { self.entries.range(range).next() }
    }

    fn discard(&mut self, entry: Entry, cause: Cause, tell: Tell<'_>) {
        self.entries.remove(entry.position);
        self.skip.remove(entry.position..entry.position.saturating_add(1));
        changed(tell, cause, Some(entry), None);
    }
}

/// The positions of `range` that are not settled.
fn unsettled(state: &State, range: Range<u64>) -> Ranges {
    let start = range.start.max(state.settled.low());
    let mut open: Ranges = [start..range.end.max(start)].into_iter().collect();
    for settled in state.settled.above().iter().filter(|settled| settled.start < range.end) {
        open.remove(settled);
    }
    open
}
