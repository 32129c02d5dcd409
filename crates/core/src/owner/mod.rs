//! The owner of one partition: the state machine that claims, waits, fences, owns, drains and releases.
//!
//! [`Owner::step`] takes one [`Input`], which says what happened, and answers with one [`Action`], which a driver
//! carries out and reports back. `says.rs` has both types, `input.rs` takes inputs in, `decide.rs` chooses the action,
//! `unrecorded.rs` collects what goes on record, and `holds.rs` follows what is held. It works on brokers that append
//! on condition, where success is its own read-back, and on brokers where only reading proves anything.
//!
//! Invariants: nothing starts before this owner has read that its fence counts; at most one record is under way; a
//! record counts only once it was read back; `released` is the last record, and is never written while a handler runs;
//! behind another process's fence, this owner writes nothing more.

mod decide;
mod holds;
mod input;
mod rules;
mod says;
mod setup;
mod stop;
mod stored;
mod unrecorded;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use siphasher::sip::SipHasher24;

use crate::journal::{Claim, FORMAT_FIRST, Record, RecordError, Replay, State};
use holds::Holds;
use unrecorded::Ready;

#[cfg(feature = "flaws")]
pub use rules::Rules;
#[cfg(not(feature = "flaws"))]
pub(crate) use rules::Rules;
pub use says::{Action, Appended, Input};
pub use setup::{
    Bounds, Committed, DEAD_BYTES_MAX, DEAD_PER_RECORD_MAX, HELD_BYTES_MAX, HELD_PER_RECORD_MAX, Mirror,
    RANGES_PER_RECORD_MAX, RECORD_BYTES_MAX, Setup, commit_metadata, parse_commit_metadata,
};
pub use stop::{StepBack, Stop};
pub use stored::{Copied, Death, Stored, StoredChunks, Storing};

/// One process's attempt to own one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    setup: Arc<Setup>,
    rules: Rules,
    now_ms: u64,
    replay: Replay,
    phase: Phase,
    /// The id of the newest claim that this process made.
    claim: u128,
    claims: u32,
    step_backs: u32,
    /// The one record that is under way, or is to be sent again.
    flight: Option<Flight>,
    /// True while the result of an append is not known.
    appending: bool,
    /// The journal must be read to behind this position.
    read_past: Option<u64>,
    /// True while the journal must be read to its end.
    read_end: bool,
    /// How often reading to the end was asked for. A read that began before the last time is no answer.
    asked: u64,
    committed: Option<Committed>,
    ready: Ready,
    holds: Holds,
    /// The wall clock as it was last told, ms since 1970.
    wall_ms: u64,
    said: VecDeque<Action>,
    revoked: bool,
    paused: bool,
    written_ms: u64,
    proven_dead: Option<u128>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Flight {
    record: Arc<Record>,
    sent: bool,
    /// The position at which the append was acknowledged. This proves that the record landed, not that it counts.
    landed: Option<u64>,
}

/// The phase of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// The claim is under way, or was read while the journal's end was not reached yet.
    Claiming,
    /// The claim stands at `position` and is the newest; the running epoch is not released.
    Waiting { position: u64, since_ms: u64, heard_ms: u64, heard: bool, patience: Patience },
    /// The fence is under way.
    Fencing,
    /// The fence counts; if the group's start or an operator's reset must go on record, that comes first.
    Opening { epoch: u64, recorded: bool },
    /// Handlers may run.
    Owning { epoch: u64, since_ms: u64 },
    /// Nothing more is started; running handlers end.
    Draining { epoch: u64, since_ms: u64, quiet: bool, parted: bool },
    /// Another process claimed later: wait, confirm the assignment anew, then claim again.
    SteppedBack { until_ms: u64, confirmed: bool },
    /// Over, for good.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Patience {
    /// There is time left.
    Left,
    /// The time is up: the journal is read to its end once more, since this process may be the one that slept.
    LastLook,
    /// The time is up, and the owner was not heard in that last read.
    Gone,
}

impl Owner {
    /// An owner that may claim at once: the broker has assigned the partition to this process.
    pub fn new(setup: Setup) -> Owner {
        Owner::under(Rules::ALL, Replay::default(), Arc::new(setup))
    }

    /// An owner that may leave rules out and has read a part of the journal already. For tests.
    #[cfg(feature = "flaws")]
    pub fn with_rules(rules: Rules, replay: Replay, setup: Arc<Setup>) -> Owner {
        Owner::under(rules, replay, setup)
    }

    /// Obeys a command before it is in the journal: the flaw that the rule `commands_by_journal` forbids. For tests.
    #[cfg(feature = "flaws")]
    pub fn obey(&mut self, command: &Record) {
        self.replay.trust(self.rules, command);
    }

    fn under(rules: Rules, replay: Replay, setup: Arc<Setup>) -> Owner {
        let mut owner = Owner {
            setup,
            rules,
            now_ms: 0,
            replay,
            phase: Phase::Claiming,
            claim: 0,
            claims: 0,
            step_backs: 0,
            flight: None,
            appending: false,
            read_past: None,
            read_end: false,
            asked: 0,
            committed: None,
            ready: Ready::default(),
            holds: Holds::default(),
            wall_ms: 0,
            said: VecDeque::new(),
            revoked: false,
            paused: false,
            written_ms: 0,
            proven_dead: None,
        };
        owner.claim_anew();
        owner
    }

    /// Tells the time before an input that does not carry it. Otherwise whatever the input begins would seem to have
    /// begun at the last tick: a drain after a quiet minute would be over before it began.
    pub fn tell_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// Tells the time by the wall clock, ms since 1970, in which due times are given. To be called before each step
    /// while something is held or dead.
    pub fn tell_wall(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// Takes in what happened, and returns the next thing to do.
    pub fn step(&mut self, input: Input<'_>) -> Action {
        if self.phase != Phase::Stopped {
            self.take(input);
        }
        self.decide()
    }

    /// The state of every record read; `None` while the journal's beginning is cut and no snapshot that counts was
    /// read.
    pub fn state(&self) -> Option<&State> {
        self.replay.state()
    }

    /// The bytes of a record to append, in the journal's format in use.
    pub fn encode(&self, record: &Record) -> Bytes {
        record.encode_as(self.state().map_or(FORMAT_FIRST, State::format))
    }

    /// Reads a record, unless its format is newer than this owner reads.
    pub fn decode(&self, bytes: &[u8]) -> Result<Record, RecordError> {
        Record::decode_up_to(self.setup.format, bytes)
    }

    /// The next journal position to read.
    pub fn next(&self) -> u64 {
        self.replay.next()
    }

    /// How often reading to the end was asked for. A driver that receives other inputs while it reads must compare:
    /// only a read that began at the present count may be reported as [`Input::CaughtUp`].
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// When a running drain is given up, whatever the owner waits for: the driver must tick then. `u64::MAX` if never.
    pub fn gives_up_ms(&self) -> u64 {
        self.drained_by_ms()
    }

    /// The owner's epoch, from `Start` until `StepBack` or `Stop`.
    pub fn epoch(&self) -> Option<u64> {
        match self.phase {
            Phase::Owning { epoch, .. } | Phase::Draining { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// The `seq` of the record that the owner has under way, if there is one.
    pub fn under_way(&self) -> Option<u64> {
        self.flight.as_ref().filter(|_| self.epoch().is_some()).map(|_| self.next_seq())
    }

    /// The instance id of the process whose `released` this one waits for: a broker may be able to prove that process
    /// dead.
    pub fn predecessor(&self) -> Option<u128> {
        match (&self.phase, self.state()?.epoch.as_ref()) {
            (Phase::Waiting { .. }, Some(epoch)) if !epoch.released => Some(epoch.instance),
            _ => None,
        }
    }

    fn newest_is_mine(&self) -> bool {
        self.state().and_then(|state| state.claim.as_ref()).is_some_and(|newest| newest.id == self.claim)
    }

    /// True if the topic has more partitions than this owner goes by.
    fn outgrown(&self) -> bool {
        self.state().is_some_and(|state| state.widened > self.setup.source.partitions)
    }

    /// The format in use, if this owner cannot read it.
    fn newer_format(&self) -> Option<u8> {
        self.state().map(State::format).filter(|in_use| *in_use > self.setup.format)
    }

    /// The epoch of this owner's counting fence, also before `Start`.
    fn running(&self) -> Option<u64> {
        match self.phase {
            Phase::Opening { epoch, .. } => Some(epoch),
            _ => self.epoch(),
        }
    }

    /// Decides nothing more until the journal was read to its end by a read that begins now or later.
    fn ask_for_end(&mut self) {
        self.read_end = true;
        self.asked += 1;
    }

    fn claim_anew(&mut self) {
        self.claim = self.random_id(u64::from(self.claims));
        self.claims += 1;
        self.committed = None;
        self.phase = Phase::Claiming;
        self.fly(Record::Claim(Claim {
            id: self.claim,
            instance: self.setup.instance,
            node: self.setup.node.clone(),
            format: self.setup.format,
        }));
    }

    fn fly(&mut self, record: Record) {
        self.flight = Some(Flight { record: Arc::new(record), sent: false, landed: None });
    }

    fn random(&self, what: u64) -> u64 {
        let seed = self.setup.seed;
        SipHasher24::new_with_keys(seed as u64, (seed >> 64) as u64).hash(&what.to_le_bytes())
    }

    fn random_id(&self, what: u64) -> u128 {
        u128::from(self.random(2 * what)) << 64 | u128::from(self.random(2 * what + 1))
    }

    fn step_back(&mut self, why: StepBack) {
        if self.revoked {
            return self.stop(if why == StepBack::DrainTimedOut {
                Stop::DrainTimedOut
            } else {
                Stop::Revoked
            });
        }
        self.note_calm();
        let bounds = &self.setup.bounds;
        if !self.rules.wait_before_claiming() {
            self.leave(Phase::SteppedBack { until_ms: 0, confirmed: true });
            return self.said.push_back(Action::StepBack(why));
        }
        let span_ms = (bounds.step_back_ms << self.step_backs.min(20)).min(bounds.step_back_ms_max).max(1);
        let wait_ms = span_ms / 2 + self.random(u64::MAX - u64::from(self.claims)) % span_ms.div_ceil(2);
        self.step_backs += 1;
        self.leave(Phase::SteppedBack { until_ms: self.now_ms + wait_ms, confirmed: false });
        self.said.push_back(Action::StepBack(why));
    }

    /// Shortens the next wait before claiming for a process that owned long enough without being displaced.
    fn note_calm(&mut self) {
        if let Phase::Owning { since_ms, .. } = self.phase
            && self.now_ms - since_ms > self.setup.bounds.step_back_ms_max
        {
            self.step_backs = 0;
        }
    }

    fn stop(&mut self, why: Stop) {
        self.leave(Phase::Stopped);
        self.said.push_back(Action::Stop(why));
    }

    fn leave(&mut self, phase: Phase) {
        self.phase = phase;
        self.flight = None;
        self.ready = Ready::default();
        self.holds = Holds::default();
        self.paused = false;
    }
}
