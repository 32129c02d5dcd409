//! A partition's owner: claim, wait, fence, own, drain, release.
//!
//! [`Owner::step`] takes what happened (time included) and answers with the next thing to do; a driver does it and says
//! how it went. `says.rs` has both, `input.rs` takes in, `decide.rs` decides, `holds.rs` knows what is held. Works on
//! brokers that append on condition, where success is its own read-back, and on brokers where only reading proves
//! anything.
//!
//! Kept: nothing starts before this owner's fence was read as counting; at most one record is under way; what was sent
//! counts only once it was read back; `released` is the last record, and never written while a handler runs; behind
//! another's fence nothing is written any more.

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

/// One process's part in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    setup: Arc<Setup>,
    rules: Rules,
    now_ms: u64,
    replay: Replay,
    phase: Phase,
    /// The id of the claim that was made last.
    claim: u128,
    claims: u32,
    step_backs: u32,
    /// The one record under way, or to be sent again.
    flight: Option<Flight>,
    /// An append whose result is not known yet.
    appending: bool,
    /// The journal must be read behind this position.
    read_past: Option<u64>,
    /// The journal must be read to its end.
    read_end: bool,
    /// How often that was asked: a read that began before does not answer it.
    asked: u64,
    committed: Option<Committed>,
    ready: Ready,
    holds: Holds,
    /// ms since 1970, as it was told last.
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
    /// Where it was acknowledged, which proves that it landed and nothing else.
    landed: Option<u64>,
}

/// Where an owner is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// The claim is under way, or read and the end not yet reached.
    Claiming,
    /// The claim stands at `position`; the running epoch is not released.
    Waiting { position: u64, since_ms: u64, heard_ms: u64, heard: bool, patience: Patience },
    /// The fence is under way.
    Fencing,
    /// The fence counts; where the group starts is being put on record, if it must be.
    Opening { epoch: u64, recorded: bool },
    /// Handlers run.
    Owning { epoch: u64, since_ms: u64 },
    /// Handlers end.
    Draining { epoch: u64, since_ms: u64, quiet: bool, parted: bool },
    /// Another claimed later.
    SteppedBack { until_ms: u64, confirmed: bool },
    /// For good.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Patience {
    /// The time is not up.
    Left,
    /// The time is up; the end is read once more, in case this process was the one that slept.
    LastLook,
    /// The time is up, and nothing was heard.
    Gone,
}

impl Owner {
    /// An owner that may claim: the broker has assigned the partition.
    pub fn new(setup: Setup) -> Owner {
        Owner::under(Rules::ALL, Replay::default(), Arc::new(setup))
    }

    /// An owner that may leave rules out, and knows a part of the journal already. For tests.
    #[cfg(feature = "flaws")]
    pub fn with_rules(rules: Rules, replay: Replay, setup: Arc<Setup>) -> Owner {
        Owner::under(rules, replay, setup)
    }

    /// Does what a command says before it is in the journal: what the protocol forbids. For tests.
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

    /// What time it is, before an input that does not say so. Without it, what begins with that input would seem to have
    /// begun at the last tick: a drain after a quiet minute would be over before it began.
    pub fn tell_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// What time it is by the clock on the wall, ms since 1970: that is how due times are given. To be told before each
    /// step, where something is held or dead.
    pub fn tell_wall(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// Takes in what happened, and says what to do next.
    pub fn step(&mut self, input: Input<'_>) -> Action {
        if self.phase != Phase::Stopped {
            self.take(input);
        }
        self.decide()
    }

    /// The state of everything read; `None` while a cut journal's snapshot was not read yet.
    pub fn state(&self) -> Option<&State> {
        self.replay.state()
    }

    /// The bytes of a record that this owner appends, in the format in use.
    pub fn encode(&self, record: &Record) -> Bytes {
        record.encode_as(self.state().map_or(FORMAT_FIRST, State::format))
    }

    /// Reads a record, if it is of a format that this owner reads.
    pub fn decode(&self, bytes: &[u8]) -> Result<Record, RecordError> {
        Record::decode_up_to(self.setup.format, bytes)
    }

    /// The next journal position to read.
    pub fn next(&self) -> u64 {
        self.replay.next()
    }

    /// How often the journal's end was asked for. A driver that hears other things while it reads compares: only a read
    /// that began at the present count is [`Input::CaughtUp`].
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// When a drain is given up, whatever is being waited for: tick then. `u64::MAX`: never.
    pub fn gives_up_ms(&self) -> u64 {
        self.drained_by_ms()
    }

    /// The epoch, from `Start` until `StepBack` or `Stop`.
    pub fn epoch(&self) -> Option<u64> {
        match self.phase {
            Phase::Owning { epoch, .. } | Phase::Draining { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// The number of the record that an owner has under way, if it does not count yet.
    pub fn under_way(&self) -> Option<u64> {
        self.flight.as_ref().filter(|_| self.epoch().is_some()).map(|_| self.next_seq())
    }

    /// The process that this one waits for: a broker may prove it dead.
    pub fn predecessor(&self) -> Option<u128> {
        match (&self.phase, self.state()?.epoch.as_ref()) {
            (Phase::Waiting { .. }, Some(epoch)) if !epoch.released => Some(epoch.instance),
            _ => None,
        }
    }

    fn newest_is_mine(&self) -> bool {
        self.state().and_then(|state| state.claim.as_ref()).is_some_and(|newest| newest.id == self.claim)
    }

    /// The topic has more partitions than this owner goes by.
    fn outgrown(&self) -> bool {
        self.state().is_some_and(|state| state.widened > self.setup.source.partitions)
    }

    /// The format in use, if this owner does not read it.
    fn newer_format(&self) -> Option<u8> {
        self.state().map(State::format).filter(|in_use| *in_use > self.setup.format)
    }

    /// The epoch of this owner's counting fence.
    fn running(&self) -> Option<u64> {
        match self.phase {
            Phase::Opening { epoch, .. } => Some(epoch),
            _ => self.epoch(),
        }
    }

    /// Nothing more is decided until the journal was read to its end, by a read that begins now or later.
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

    /// Whoever owned for a while without being displaced does not have to wait long before it claims again.
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
