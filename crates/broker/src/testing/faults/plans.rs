//! Decides what happens to each call, from the seed and the rates; also keeps outages and counts late appends.
//!
//! Every call asks for a [`Plan`] before it does anything; every open connection (a reader, a membership, a wait) asks
//! whether it was cut. Invariants: the same seed and the same calls in the same order give the same plans; once calm,
//! every plan carries the call out at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::{FaultCounts, Hang, Rates};
use crate::contract::BrokerError;
use crate::testing::random::Random;
use crate::testing::waiters::Waiters;

/// The most appends that wait to land late. Beyond that a late append is lost instead, so that a test that only sends
/// does not use more and more memory.
const LATE_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A question: repeating it changes nothing.
    Ask,
    /// Leaves something behind, so it can also land twice or late.
    Append,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Carry,
    DropRequest,
    DropAnswer,
    /// The append is carried out, and once more after this time.
    Duplicate(Duration),
    /// The caller hears that the outcome is not known; the append lands after this time.
    Late(Duration),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) fate: Fate,
}

const FAIR: Plan = Plan { there: Duration::ZERO, back: Duration::ZERO, fate: Fate::Carry };

pub(super) struct Plans {
    state: Mutex<PlansState>,
}

struct PlansState {
    random: Random,
    rates: Rates,
    calm: bool,
    outage_until: Option<Instant>,
    /// Connections that were opened under an older generation are cut.
    generation: u64,
    tickets: u64,
    connections: Waiters,
    late: usize,
    landed: Waiters,
    hanging: BTreeSet<Hang>,
    answers: Waiters,
    counts: FaultCounts,
}

impl Plans {
    pub(super) fn new(seed: u64, rates: Rates) -> Plans {
        rates.check();
        Plans {
            state: Mutex::new(PlansState {
                random: Random::new(seed),
                rates,
                calm: false,
                outage_until: None,
                generation: 0,
                tickets: 0,
                connections: Waiters::default(),
                late: 0,
                landed: Waiters::default(),
                hanging: BTreeSet::new(),
                answers: Waiters::default(),
                counts: FaultCounts::default(),
            }),
        }
    }

    /// Decides what happens to one call. A late or repeated append counts as on its way until [`Plans::landed`].
    pub(super) fn plan(&self, call: Call) -> Plan {
        let mut to_wake = Vec::new();
        let plan = self.state().plan(call, &mut to_wake);
        wake(to_wake);
        plan
    }

    /// When news of an assignment that is on its way arrives; `None` for at once.
    pub(super) fn news_arrives(&self) -> Option<Instant> {
        let mut state = self.state();
        let rates = state.rates;
        if state.calm || !state.random.hits(rates.news) {
            return None;
        }
        state.counts.delayed += 1;
        let longest = rates.late_max.as_nanos() as u64;
        Some(Instant::now() + Duration::from_nanos(state.random.up_to(longest)))
    }

    pub(super) fn landed(&self) {
        let mut to_wake = Vec::new();
        {
            let mut state = self.state();
            state.late -= 1;
            if state.late == 0 {
                state.landed.take_all(&mut to_wake);
            }
        }
        wake(to_wake);
    }

    pub(super) fn poll_landed(&self, ticket: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.late == 0 {
            return Poll::Ready(());
        }
        state.landed.listen(ticket, cx.waker());
        Poll::Pending
    }

    pub(super) fn ticket(&self) -> u64 {
        let mut state = self.state();
        state.tickets += 1;
        state.tickets
    }

    pub(super) fn set_calm(&self, calm: bool) {
        let mut state = self.state();
        (state.calm, state.outage_until) = (calm, None);
        drop(state);
        self.set_hanging(&[]);
    }

    /// Sets which kinds of calls hang.
    pub(super) fn set_hanging(&self, kinds: &[Hang]) {
        let mut to_wake = Vec::new();
        let mut state = self.state();
        state.hanging = kinds.iter().copied().collect();
        state.answers.take_all(&mut to_wake);
        drop(state);
        wake(to_wake);
    }

    /// True if calls of this kind hang; `waker` is then woken when that may have changed.
    pub(super) fn is_hanging(&self, kind: Hang, ticket: u64, waker: &Waker) -> bool {
        let mut state = self.state();
        let hanging = state.hanging.contains(&kind);
        if hanging {
            state.answers.listen(ticket, waker);
        }
        hanging
    }

    pub(super) fn forget_hanging(&self, ticket: u64) {
        self.state().answers.forget(ticket);
    }

    pub(super) fn set_rates(&self, rates: Rates) {
        rates.check();
        self.state().rates = rates;
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.state().counts
    }

    pub(super) fn cut_connections(&self) {
        let mut to_wake = Vec::new();
        self.state().cut_connections(&mut to_wake);
        wake(to_wake);
    }

    pub(super) fn begin_outage(&self, duration: Duration) {
        let mut to_wake = Vec::new();
        self.state().begin_outage(duration, &mut to_wake);
        wake(to_wake);
    }

    /// Opens a connection, which lives until it is cut.
    pub(super) fn connection(self: &Arc<Self>) -> Connection {
        Connection {
            ticket: self.ticket(),
            generation: self.state().generation,
            plans: self.clone(),
            cut: false,
        }
    }

    fn state(&self) -> MutexGuard<'_, PlansState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlansState {
    fn plan(&mut self, call: Call, to_wake: &mut Vec<Waker>) -> Plan {
        if self.calm {
            return FAIR;
        }
        let rates = self.rates;
        if self.random.hits(rates.outage) {
            let longest = rates.outage_max.as_nanos() as u64;
            let duration = Duration::from_nanos(self.random.up_to(longest));
            self.begin_outage(duration, to_wake);
        }
        if self.outage_until.is_some_and(|until| Instant::now() < until) {
            self.counts.requests_dropped += 1;
            return Plan { fate: Fate::DropRequest, ..FAIR };
        }
        Plan { there: self.delay(), back: self.delay(), fate: self.fate(call) }
    }

    fn delay(&mut self) -> Duration {
        if !self.random.hits(self.rates.delay) {
            return Duration::ZERO;
        }
        self.counts.delayed += 1;
        let longest = self.rates.delay_max.as_nanos() as u64;
        Duration::from_nanos(self.random.up_to(longest))
    }

    fn fate(&mut self, call: Call) -> Fate {
        let rates = self.rates;
        let mut drawn = self.random.up_to(999) as u32;
        let mut within = |rate: u32| {
            let hit = drawn < rate;
            drawn = if hit { u32::MAX } else { drawn - rate };
            hit
        };
        if within(rates.drop_request) {
            self.counts.requests_dropped += 1;
            return Fate::DropRequest;
        }
        if within(rates.drop_answer) {
            self.counts.answers_dropped += 1;
            return Fate::DropAnswer;
        }
        let (duplicate, late) = (within(rates.duplicate), within(rates.late));
        if call == Call::Ask || !(duplicate || late) {
            return Fate::Carry;
        }
        if self.late == LATE_MAX {
            self.counts.requests_dropped += 1;
            return Fate::DropRequest;
        }
        self.late += 1;
        let after = Duration::from_nanos(self.random.up_to(rates.late_max.as_nanos() as u64));
        if duplicate {
            self.counts.duplicated += 1;
            Fate::Duplicate(after)
        } else {
            self.counts.late += 1;
            Fate::Late(after)
        }
    }

    fn cut_connections(&mut self, to_wake: &mut Vec<Waker>) {
        self.generation += 1;
        self.connections.take_all(to_wake);
    }

    fn begin_outage(&mut self, duration: Duration, to_wake: &mut Vec<Waker>) {
        self.counts.outages += 1;
        self.outage_until = Some(Instant::now() + duration);
        self.cut_connections(to_wake);
    }
}

/// Something that stays open: a reader, a membership or a wait. Once cut, it stays cut.
pub(super) struct Connection {
    plans: Arc<Plans>,
    ticket: u64,
    generation: u64,
    cut: bool,
}

impl Connection {
    /// An error if the connection was cut; if not, `cx` is woken when it is cut.
    pub(super) fn check(&mut self, cx: &mut Context<'_>) -> Result<(), BrokerError> {
        let mut state = self.plans.state();
        if !self.cut && state.generation != self.generation {
            self.cut = true;
            state.counts.disconnects += 1;
        }
        if self.cut {
            return Err(disconnected());
        }
        state.connections.listen(self.ticket, cx.waker());
        Ok(())
    }

    /// Draws whether the connection is cut by what just arrives, which is then lost with it.
    pub(super) fn arrive(&mut self) -> Result<(), BrokerError> {
        let mut state = self.plans.state();
        let rate = state.rates.disconnect;
        if !state.calm && state.random.hits(rate) {
            self.cut = true;
            state.counts.disconnects += 1;
            return Err(disconnected());
        }
        Ok(())
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut || self.plans.state().generation != self.generation
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.plans.state().connections.forget(self.ticket);
    }
}

pub(super) fn disconnected() -> BrokerError {
    BrokerError::Unavailable("a fault was injected: disconnected".to_owned())
}

fn wake(to_wake: Vec<Waker>) {
    for waker in to_wake {
        waker.wake();
    }
}
