//! The naive model of the engine: the same rules, written plainly over the model's own lanes.

use std::collections::VecDeque;

use keylane_core::{Counts, LaneState, Order, Verdict};

use super::{Lane, Message, State, World, check};

impl World {
    pub(super) fn decided(&mut self, message: &Message) -> Result<(), String> {
        let what = (message.lane, message.delivery.partition(), message.delivery.position());
        check(self.undecided.remove(&what), "decided twice")
    }

    pub(super) fn rests(&mut self, lane: Lane) {
        let now = self.now;
        if let Some(lane) = lane {
            let (state, queue) = self.lane(lane);
            *state = if queue.is_empty() { State::Idle(now) } else { State::Ready };
        }
    }

    /// The model's lane, made if it does not exist; the longest idle lane makes room for it.
    pub(super) fn lane(&mut self, lane: (u32, usize)) -> &mut (State, VecDeque<Message>) {
        if !self.lanes.contains_key(&lane) && self.lanes.len() >= self.settings.lanes_max {
            let oldest = self.longest_idle().map(|(_, oldest)| oldest);
            assert!(oldest.is_some() || self.promises_only, "the verdict was not Full");
            oldest.map(|oldest| self.lanes.remove(&oldest));
        }
        let now = self.now;
        self.lanes.entry(lane).or_insert_with(|| (State::Idle(now), VecDeque::new()))
    }

    pub(super) fn longest_idle(&self) -> Option<(u64, (u32, usize))> {
        let idle = self.lanes.iter().filter_map(|(lane, (state, _))| match state {
            State::Idle(since) => Some((*since, *lane)),
            _ => None,
        });
        idle.min()
    }

    pub(super) fn verdict(&self, lane: Lane) -> Verdict {
        let capacity = self.settings.lane_capacity as usize;
        let Some(lane) = lane else {
            let free = self.keyless_running() < self.keyless_max() && !self.keyless_waits();
            return if free { Verdict::Run } else { Verdict::Queue };
        };
        match self.lanes.get(&lane) {
            Some((State::Idle(_), _)) => Verdict::Run,
            Some((_, queue)) if queue.len() < capacity => Verdict::Queue,
            None if self.lanes.len() < self.settings.lanes_max || self.longest_idle().is_some() => {
                Verdict::Run
            }
            _ => Verdict::Full,
        }
    }

    pub(super) fn idle_to_half(&self, lane: Lane) -> bool {
        let half = self.settings.lane_capacity as usize / 2;
        match lane {
            None => true,
            Some(lane) => self.lanes.get(&lane).is_some_and(|(_, queue)| queue.len() <= half),
        }
    }

    pub(super) fn hold(&mut self, partition: u32) {
        self.engine.hold_partition(partition);
        self.held.insert(partition);
    }

    pub(super) fn release(&mut self, partition: u32) {
        self.engine.release_partition(partition);
        self.held.remove(&partition);
    }

    /// True if a message without a key waits for a place in flight.
    fn keyless_waits(&self) -> bool {
        self.keyless.iter().any(|message| !self.held.contains(&message.delivery.partition()))
    }

    /// The engine has nothing to start: checks that the model has nothing either. Returns false, because nothing was
    /// started.
    pub(super) fn nothing_was_passed_over(&self) -> Result<bool, String> {
        let free = |partition: u32| !self.held.contains(&partition);
        let ready = |((of, _), (state, _)): (&(u32, usize), &(State, _))| free(*of) && *state == State::Ready;
        self.detail(!self.lanes.iter().any(ready), "a ready lane was passed over")?;
        let mut failed = self.keyless_failed.iter();
        let due = failed.any(|(state, m)| free(m.delivery.partition()) && *state == State::Ready);
        let place = self.keyless_running() < self.keyless_max();
        check(!(place && (due || self.keyless_waits())), "a keyless message was passed over")?;
        Ok(false)
    }

    pub(super) fn keyless_running(&self) -> usize {
        self.flights.iter().filter(|flight| flight.message.lane.is_none()).count()
    }

    pub(super) fn keyless_max(&self) -> usize {
        if self.settings.order == Order::None { usize::MAX } else { self.settings.keyless_max }
    }

    /// Checks something that the model knows beyond the promises.
    pub(super) fn detail(&self, holds: bool, what: &str) -> Result<(), String> {
        check(holds || self.promises_only, what)
    }

    pub(super) fn compare(&self) -> Result<(), String> {
        if self.promises_only {
            return Ok(());
        }
        let in_state = |wanted: fn(&State) -> bool| {
            let failed = self.keyless_failed.iter().filter(|(state, _)| wanted(state)).count();
            self.lanes.values().filter(|(state, _)| wanted(state)).count() + failed
        };
        let queued = || {
            let failed = self.keyless_failed.iter().map(|(_, message)| message);
            self.lanes.values().flat_map(|(_, queue)| queue).chain(&self.keyless).chain(failed)
        };
        let flights = self.flights.iter().map(|flight| &flight.message);
        let want = Counts {
            lanes: self.lanes.len(),
            idle: in_state(|state| matches!(state, State::Idle(_))),
            ready: in_state(|state| *state == State::Ready),
            busy: self.flights.len(),
            queued: queued().count(),
            queued_bytes: queued().map(|message| message.delivery.size()).sum(),
            waiting_retry: in_state(|state| *state == State::Waiting),
            stuck: queued().chain(flights).filter(|message| message.failures > 2).count(),
            burying: self.burying.len(),
            keyless: self.keyless_running(),
            keyless_queued: self.keyless.len(),
        };
        let real = self.engine.counts();
        check(real == want, &format!("counts {real:?}, should be {want:?}"))?;
        for view in self.engine.views().filter(|view| view.depth > 0) {
            let shown = (view.position, view.depth as usize, view.why.is_some() == (view.attempt > 1));
            let at_head = |(_, queue): &(State, VecDeque<Message>)| {
                let head = queue.front().expect("only lanes that queue");
                head.delivery.partition() == view.partition
                    && head.delivery.key() == view.key
                    && (Some(head.delivery.position()), queue.len(), true) == shown
            };
            let keyed = self.lanes.values().filter(|(_, queue)| !queue.is_empty()).any(at_head);
            let keyless =
                self.keyless_failed.iter().any(|(_, m)| Some(m.delivery.position()) == view.position);
            check(keyed || keyless, &format!("view {view:?}"))?;
            check(view.state != LaneState::Idle, "idle lanes are not shown")?;
        }
        Ok(())
    }
}
