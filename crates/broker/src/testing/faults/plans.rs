//! What befalls calls: the dice, the rates, outages, and what is still on its way.
//!
//! Every call asks for a [`Plan`] before it does anything; every open line (a reader, a membership, a wait) asks
//! whether it was cut. Kept: with the same seed and the same calls in the same order the plans are the same; once calm,
//! every plan is to carry the call at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::{FaultCounts, Hang, Rates};
use crate::contract::BrokerError;
use crate::testing::random::Dice;
use crate::testing::waiters::Bell;

/// Appends that wait to land. A late one beyond that is lost instead, so that a test that only sends cannot grow.
const LATE_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Asks for something; repeating it changes nothing.
    Ask,
    /// Leaves something behind, so it can also land twice, or late.
    Append,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Carry,
    DropRequest,
    DropAnswer,
    /// Carried, and once more after this time.
    Duplicate(Duration),
    /// The caller hears that its fate is unknown; it lands after this time.
    Late(Duration),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) fate: Fate,
}

const FAIR: Plan = Plan { there: Duration::ZERO, back: Duration::ZERO, fate: Fate::Carry };

pub(super) struct Weather {
    sky: Mutex<Sky>,
}

struct Sky {
    dice: Dice,
    rates: Rates,
    calm: bool,
    outage_until: Option<Instant>,
    /// Lines opened under an older generation are cut.
    generation: u64,
    tickets: u64,
    lines: Bell,
    late: usize,
    landed: Bell,
    hanging: BTreeSet<Hang>,
    answers: Bell,
    counts: FaultCounts,
}

impl Weather {
    pub(super) fn new(seed: u64, rates: Rates) -> Weather {
        rates.check();
        Weather {
            sky: Mutex::new(Sky {
                dice: Dice::new(seed),
                rates,
                calm: false,
                outage_until: None,
                generation: 0,
                tickets: 0,
                lines: Bell::default(),
                late: 0,
                landed: Bell::default(),
                hanging: BTreeSet::new(),
                answers: Bell::default(),
                counts: FaultCounts::default(),
            }),
        }
    }

    /// Decides what befalls one call. Counts a late or repeated append as on its way: see [`Weather::landed`].
    pub(super) fn plan(&self, call: Call) -> Plan {
        let mut ringing = Vec::new();
        let plan = self.sky().plan(call, &mut ringing);
        wake(ringing);
        plan
    }

    /// When news of an assignment arrives that is on its way now; `None`: at once.
    pub(super) fn news_arrives(&self) -> Option<Instant> {
        let mut sky = self.sky();
        let rates = sky.rates;
        if sky.calm || !sky.dice.hits(rates.news) {
            return None;
        }
        sky.counts.delayed += 1;
        let longest = rates.late_max.as_nanos() as u64;
        Some(Instant::now() + Duration::from_nanos(sky.dice.up_to(longest)))
    }

    pub(super) fn landed(&self) {
        let mut ringing = Vec::new();
        {
            let mut sky = self.sky();
            sky.late -= 1;
            if sky.late == 0 {
                sky.landed.ring(&mut ringing);
            }
        }
        wake(ringing);
    }

    pub(super) fn poll_landed(&self, ticket: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut sky = self.sky();
        if sky.late == 0 {
            return Poll::Ready(());
        }
        sky.landed.listen(ticket, cx.waker());
        Poll::Pending
    }

    pub(super) fn ticket(&self) -> u64 {
        let mut sky = self.sky();
        sky.tickets += 1;
        sky.tickets
    }

    pub(super) fn set_calm(&self, calm: bool) {
        let mut sky = self.sky();
        (sky.calm, sky.outage_until) = (calm, None);
        drop(sky);
        self.set_hanging(&[]);
    }

    /// Which calls do not answer.
    pub(super) fn set_hanging(&self, kinds: &[Hang]) {
        let mut ringing = Vec::new();
        let mut sky = self.sky();
        sky.hanging = kinds.iter().copied().collect();
        sky.answers.ring(&mut ringing);
        drop(sky);
        wake(ringing);
    }

    /// True if such a call hangs; `waker` is woken when that may have changed.
    pub(super) fn is_hanging(&self, kind: Hang, ticket: u64, waker: &Waker) -> bool {
        let mut sky = self.sky();
        let hanging = sky.hanging.contains(&kind);
        if hanging {
            sky.answers.listen(ticket, waker);
        }
        hanging
    }

    pub(super) fn forget_hanging(&self, ticket: u64) {
        self.sky().answers.forget(ticket);
    }

    pub(super) fn set_rates(&self, rates: Rates) {
        rates.check();
        self.sky().rates = rates;
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.sky().counts
    }

    pub(super) fn cut_lines(&self) {
        let mut ringing = Vec::new();
        self.sky().cut_lines(&mut ringing);
        wake(ringing);
    }

    pub(super) fn begin_outage(&self, duration: Duration) {
        let mut ringing = Vec::new();
        self.sky().begin_outage(duration, &mut ringing);
        wake(ringing);
    }

    /// Opens a line, which lives until it is cut.
    pub(super) fn line(self: &Arc<Self>) -> Line {
        Line { ticket: self.ticket(), generation: self.sky().generation, weather: self.clone(), cut: false }
    }

    fn sky(&self) -> MutexGuard<'_, Sky> {
        self.sky.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sky {
    fn plan(&mut self, call: Call, ringing: &mut Vec<Waker>) -> Plan {
        if self.calm {
            return FAIR;
        }
        let rates = self.rates;
        if self.dice.hits(rates.outage) {
            let longest = rates.outage_max.as_nanos() as u64;
            let duration = Duration::from_nanos(self.dice.up_to(longest));
            self.begin_outage(duration, ringing);
        }
        if self.outage_until.is_some_and(|until| Instant::now() < until) {
            self.counts.requests_dropped += 1;
            return Plan { fate: Fate::DropRequest, ..FAIR };
        }
        Plan { there: self.delay(), back: self.delay(), fate: self.fate(call) }
    }

    fn delay(&mut self) -> Duration {
        if !self.dice.hits(self.rates.delay) {
            return Duration::ZERO;
        }
        self.counts.delayed += 1;
        let longest = self.rates.delay_max.as_nanos() as u64;
        Duration::from_nanos(self.dice.up_to(longest))
    }

    fn fate(&mut self, call: Call) -> Fate {
        let rates = self.rates;
        let mut drawn = self.dice.up_to(999) as u32;
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
        let after = Duration::from_nanos(self.dice.up_to(rates.late_max.as_nanos() as u64));
        if duplicate {
            self.counts.duplicated += 1;
            Fate::Duplicate(after)
        } else {
            self.counts.late += 1;
            Fate::Late(after)
        }
    }

    fn cut_lines(&mut self, ringing: &mut Vec<Waker>) {
        self.generation += 1;
        self.lines.ring(ringing);
    }

    fn begin_outage(&mut self, duration: Duration, ringing: &mut Vec<Waker>) {
        self.counts.outages += 1;
        self.outage_until = Some(Instant::now() + duration);
        self.cut_lines(ringing);
    }
}

/// Something that stays open: a reader, a membership, a wait. Once cut it stays cut.
pub(super) struct Line {
    weather: Arc<Weather>,
    ticket: u64,
    generation: u64,
    cut: bool,
}

impl Line {
    /// An error if it was cut; else it is woken when it is.
    pub(super) fn check(&mut self, cx: &mut Context<'_>) -> Result<(), BrokerError> {
        let mut sky = self.weather.sky();
        if !self.cut && sky.generation != self.generation {
            self.cut = true;
            sky.counts.disconnects += 1;
        }
        if self.cut {
            return Err(disconnected());
        }
        sky.lines.listen(self.ticket, cx.waker());
        Ok(())
    }

    /// Throws the dice for what just arrived: if it is cut, that is gone with it.
    pub(super) fn arrive(&mut self) -> Result<(), BrokerError> {
        let mut sky = self.weather.sky();
        let rate = sky.rates.disconnect;
        if !sky.calm && sky.dice.hits(rate) {
            self.cut = true;
            sky.counts.disconnects += 1;
            return Err(disconnected());
        }
        Ok(())
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut || self.weather.sky().generation != self.generation
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.weather.sky().lines.forget(self.ticket);
    }
}

pub(super) fn disconnected() -> BrokerError {
    BrokerError::Unavailable("a fault was injected: disconnected".to_owned())
}

fn wake(ringing: Vec<Waker>) {
    for waker in ringing {
        waker.wake();
    }
}
