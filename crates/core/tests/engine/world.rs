//! A test shard that drives an engine as the runtime does, beside a model that is too simple to be wrong (`model.rs`).
//!
//! Time moves on by at least 1 ms with every step, so that only one lane at a time can be the longest idle.

mod model;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use keylane_core::{
    Candidate, Counts, Delivery, Draft, Engine, LaneId, LaneKey, Order, Ready, RetryPolicy, Settings, Verdict,
};

/// How an attempt ends, or that it has not ended yet.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Done,
    Pending,
    Failed(Option<u64>),
    Rejected,
    /// The attempt did not begin after all.
    NotBegun,
}

#[derive(Debug, Clone)]
pub enum Step {
    /// The next message of a key is read (the first few keys stand for none); without a permit it is queued instead of
    /// run.
    Arrive {
        key: usize,
        end: End,
        permit: bool,
    },
    /// The next ready message is taken and its attempt begins.
    Turn {
        end: End,
    },
    /// One of the attempts under way ends.
    End {
        which: usize,
        end: End,
    },
    /// A dead letter goes on record, and counts.
    Buried {
        which: usize,
    },
    Time(u64),
    Sweep(usize),
    Drop(u32),
    Drain(u32),
    /// Nothing of a partition starts until it is released.
    Hold(u32),
    Release(u32),
    /// A call uses the id of a lane that is gone.
    Stale {
        which: usize,
    },
}

pub fn small(order: Order) -> Settings {
    Settings {
        order,
        lane_capacity: 3,
        lane_idle_ms: 50,
        lanes_max: 4,
        keyless_max: 2,
        retry: RetryPolicy { retries: 2, base_ms: 10, max_ms: 100 },
        seed: 7,
    }
}

const KEYLESS: usize = 2;

/// A delivery of a key; the first few keys stand for none. Keys are spread over two partitions.
pub fn delivery(key: usize, partition: u32, position: u64) -> Delivery {
    let name = key.to_string();
    let draft = Draft {
        id: "id",
        key: (key >= KEYLESS).then_some(name.as_bytes()),
        payload: Some(b"payload"),
        ..Draft::default()
    };
    let mut arena = BytesMut::new();
    draft.encode(&mut arena).expect("within bounds");
    Delivery::parse(arena.freeze(), position, partition, 1, 0).expect("just encoded")
}

/// What orders a message: a key of a partition, the whole partition, or nothing (`None`).
type Lane = Option<(u32, usize)>;

#[derive(Debug, Clone)]
struct Message {
    lane: Lane,
    delivery: Delivery,
    failures: u32,
    due: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Idle(u64),
    Ready,
    Busy,
    Waiting,
    Burying,
}

struct Flight {
    id: LaneId,
    message: Message,
    draining: bool,
}

pub struct World {
    engine: Engine,
    /// Checks only the promises, not every count and view: shows which promise a flaw breaks.
    promises_only: bool,
    settings: Settings,
    now: u64,
    positions: [u64; 2],
    lanes: BTreeMap<(u32, usize), (State, VecDeque<Message>)>,
    keyless: VecDeque<Message>,
    keyless_failed: Vec<(State, Message)>,
    flights: Vec<Flight>,
    burying: Vec<Flight>,
    stale: Vec<Flight>,
    /// The message that was read last and found no room. Its partition is not read meanwhile.
    kept: BTreeMap<u32, Message>,
    held: BTreeSet<u32>,
    /// Every message that was taken in and is not decided yet.
    undecided: BTreeSet<(Lane, u32, u64)>,
}

impl World {
    pub fn new(settings: Settings) -> World {
        World::around(Engine::new(settings), settings)
    }

    #[cfg(feature = "flaws")]
    pub fn with_flaws(settings: Settings, flaws: keylane_core::lanes::Flaws) -> World {
        World { promises_only: true, ..World::around(Engine::with_flaws(settings, flaws), settings) }
    }

    fn around(engine: Engine, settings: Settings) -> World {
        World {
            engine,
            promises_only: false,
            settings,
            now: 1000,
            positions: [0; 2],
            lanes: BTreeMap::new(),
            keyless: VecDeque::new(),
            keyless_failed: Vec::new(),
            flights: Vec::new(),
            burying: Vec::new(),
            stale: Vec::new(),
            kept: BTreeMap::new(),
            held: BTreeSet::new(),
            undecided: BTreeSet::new(),
        }
    }

    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        self.now += 1;
        match *step {
            Step::Arrive { key, end, permit } => self.arrive(key, end, permit)?,
            Step::Turn { end } => {
                self.turn(end)?;
            }
            Step::End { which, end } => {
                if !self.flights.is_empty() {
                    let flight = self.flights.swap_remove(which % self.flights.len());
                    self.end(flight, end)?;
                }
            }
            Step::Buried { which } => {
                if !self.burying.is_empty() {
                    let flight = self.burying.swap_remove(which % self.burying.len());
                    check(self.engine.buried(flight.id, self.now), "buried was refused")?;
                    self.decided(&flight.message)?;
                    self.rests(flight.message.lane);
                }
            }
            Step::Time(ms) => self.pass(ms)?,
            Step::Sweep(max) => self.sweep(max)?,
            Step::Drop(partition) => self.leave(partition, false)?,
            Step::Drain(partition) => self.leave(partition, true)?,
            Step::Hold(partition) => self.hold(partition),
            Step::Release(partition) => self.release(partition),
            Step::Stale { which } => self.use_stale(which)?,
        }
        self.compare()
    }

    /// Ends everything that can end: then no message may be left, and all lanes must go.
    pub fn quiesce(&mut self) -> Result<(), String> {
        (0..2).for_each(|partition| self.release(partition));
        for _ in 0..10_000 {
            self.now += 1;
            if let Some(flight) = self.flights.pop() {
                self.end(flight, End::Done)?;
            } else if !self.burying.is_empty() {
                self.step(&Step::Buried { which: 0 })?;
            } else if !self.turn(End::Done)? {
                self.pass(50)?;
                self.retry_kept(End::Done, true)?;
                if self.undecided.is_empty() {
                    break;
                }
            }
            self.compare()?;
        }
        if let Some(lost) = self.undecided.first() {
            return Err(format!("{lost:?} is lost"));
        }
        self.pass(self.settings.lane_idle_ms)?;
        while self.engine.sweep(self.now, 100) > 0 {}
        let counts = self.engine.counts();
        if counts == Counts::default() { Ok(()) } else { Err(format!("not empty in the end: {counts:?}")) }
    }

    fn arrive(&mut self, key: usize, end: End, permit: bool) -> Result<(), String> {
        let partition = (key % 2) as u32;
        self.retry_kept(end, permit)?;
        if self.kept.contains_key(&partition) || self.held.contains(&partition) {
            return Ok(());
        }
        let position = &mut self.positions[partition as usize];
        *position += 1;
        let lane = match self.settings.order {
            Order::Key if key >= KEYLESS => Some((partition, key)),
            Order::Partition => Some((partition, 0)),
            Order::Key | Order::None => None,
        };
        let message = Message { lane, delivery: delivery(key, partition, *position), failures: 0, due: 0 };
        self.undecided.insert((lane, partition, *position));
        self.take_in(message, end, permit)
    }

    fn retry_kept(&mut self, end: End, permit: bool) -> Result<(), String> {
        for partition in 0..2 {
            let Some(message) = self.kept.get(&partition).filter(|_| !self.held.contains(&partition)) else {
                continue;
            };
            let hash = self.engine.lane_key(message.delivery.partition(), message.delivery.key());
            if self.engine.has_room(hash) {
                self.detail(self.engine.judge(Candidate::Read(hash)) != Verdict::Full, "room was promised")?;
                let message = self.kept.remove(&partition).expect("just seen");
                self.take_in(message, end, permit)?;
                self.compare()?;
            } else {
                self.detail(!self.idle_to_half(message.lane), "half empty, and no room")?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, message: Message, end: End, permit: bool) -> Result<(), String> {
        let hash = self.engine.lane_key(message.delivery.partition(), message.delivery.key());
        check((hash != LaneKey::Unordered) == message.lane.is_some(), "who has a lane")?;
        let (real, want) = (self.engine.judge(Candidate::Read(hash)), self.verdict(message.lane));
        self.detail(real == want, &format!("verdict {real:?}, should be {want:?}"))?;
        match real {
            Verdict::Full | Verdict::Wait => {
                self.kept.insert(message.delivery.partition(), message);
            }
            Verdict::Run if permit => return self.run_at_once(hash, message, end),
            Verdict::Run | Verdict::Queue => {
                self.engine.queue(hash, message.delivery.clone(), self.now);
                match message.lane {
                    None => self.keyless.push_back(message),
                    Some(lane) => {
                        let (state, queue) = self.lane(lane);
                        queue.push_back(message);
                        if matches!(state, State::Idle(_)) {
                            *state = State::Ready;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Polls the attempt at once, as a shard does. A message that is done at its first poll leaves no trace in the
    /// engine.
    fn run_at_once(&mut self, hash: LaneKey, message: Message, end: End) -> Result<(), String> {
        self.starts(&message)?;
        if matches!(end, End::Done) {
            return self.decided(&message);
        }
        let id = self.engine.began(hash, message.delivery.partition(), self.now);
        if let Some(lane) = message.lane {
            self.lane(lane).0 = State::Busy;
        }
        self.end(Flight { id, message, draining: false }, end)
    }

    /// Takes the next ready message; false if there was none.
    fn turn(&mut self, end: End) -> Result<bool, String> {
        let Some(Ready { lane: id, delivery, attempt }) = self.engine.next_ready(self.now) else {
            return self.nothing_was_passed_over();
        };
        check(!self.held.contains(&delivery.partition()), "ran though its partition is held")?;
        let message = self.take_ready(&delivery)?;
        self.detail(
            attempt == message.failures + 1,
            &format!("attempt {attempt} after {} failures", message.failures),
        )?;
        self.starts(&message)?;
        self.end(Flight { id, message, draining: false }, end)?;
        Ok(true)
    }

    /// Takes the message that the engine handed out from where the model has it.
    fn take_ready(&mut self, delivery: &Delivery) -> Result<Message, String> {
        let is = |message: &Message| {
            (message.delivery.partition(), message.delivery.position())
                == (delivery.partition(), delivery.position())
        };
        if let Some(at) = self.keyless.iter().position(is) {
            return Ok(self.keyless.remove(at).expect("just found"));
        }
        if let Some(at) = self.keyless_failed.iter().position(|(_, message)| is(message)) {
            let (state, message) = self.keyless_failed.remove(at);
            check(state == State::Ready, "ran before it was due")?;
            return Ok(message);
        }
        for (state, queue) in self.lanes.values_mut() {
            if *state == State::Ready
                && let Some(at) = queue.iter().position(is)
            {
                *state = State::Busy;
                return Ok(queue.remove(at).expect("just found"));
            }
        }
        Err(format!("{} of {} ran before its turn", delivery.position(), delivery.partition()))
    }

    /// Checks, as an attempt begins, that it is this message's turn.
    fn starts(&mut self, message: &Message) -> Result<(), String> {
        check(message.due <= self.now, "ran before it was due")?;
        if message.lane.is_none() {
            return check(self.keyless_running() < self.keyless_max(), "too many keyless");
        }
        let mut busy = self.flights.iter().chain(&self.burying);
        check(!busy.any(|flight| flight.message.lane == message.lane), "two of a key at once")?;
        let position = message.delivery.position();
        let first = self.undecided.iter().find(|(lane, ..)| *lane == message.lane).map(|(.., first)| *first);
        check(first == Some(position), &format!("{position} ran before {first:?}"))
    }

    fn end(&mut self, flight: Flight, end: End) -> Result<(), String> {
        let lane = flight.message.lane;
        match end {
            End::Pending => self.flights.push(flight),
            End::Done => {
                check(self.engine.done(flight.id, self.now), "done was refused")?;
                self.decided(&flight.message)?;
                self.rests(lane);
            }
            End::Rejected => {
                check(self.engine.rejected(flight.id, self.now), "rejected was refused")?;
                if let Some(lane) = lane {
                    self.lane(lane).0 = State::Burying;
                }
                self.burying.push(flight);
            }
            End::Failed(after) => self.failed(flight, after)?,
            End::NotBegun => self.not_begun(flight)?,
        }
        Ok(())
    }

    fn not_begun(&mut self, flight: Flight) -> Result<(), String> {
        let Flight { id, message, draining } = flight;
        let kept = self.engine.not_begun(id, message.delivery.clone(), self.now);
        check(kept != draining, "put back though it is given up, or not put back")?;
        if draining {
            self.decided(&message)?;
            self.rests(message.lane);
            return Ok(());
        }
        match message.lane {
            None => self.keyless_failed.push((State::Ready, message)),
            Some(lane) => {
                let (state, queue) = self.lane(lane);
                *state = State::Ready;
                queue.push_front(message);
            }
        }
        Ok(())
    }

    fn failed(&mut self, flight: Flight, after: Option<u64>) -> Result<(), String> {
        let Flight { id, mut message, draining } = flight;
        let delivery = message.delivery.clone();
        let retry = self.engine.failed(id, delivery, "broken".into(), after, self.now);
        if draining {
            check(retry.is_none(), "retried though it is given up")?;
            self.decided(&message)?;
            self.rests(message.lane);
            return Ok(());
        }
        let retry = retry.ok_or("failed was refused")?;
        message.failures += 1;
        let at_least = if message.failures > 2 { 100 } else { 10 }.max(after.unwrap_or(0));
        self.detail(retry.at_ms >= self.now + at_least, "retried too early")?;
        self.detail(retry.stuck == (message.failures > 2), "stuck")?;
        self.detail(retry.attempt == message.failures + 1, "attempts counted")?;
        message.due = retry.at_ms;
        match message.lane {
            None => self.keyless_failed.push((State::Waiting, message)),
            Some(lane) => {
                let (state, queue) = self.lane(lane);
                *state = State::Waiting;
                queue.push_front(message);
            }
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) -> Result<(), String> {
        self.now += ms;
        let now = self.now;
        let mut due = 0;
        let failed = self.keyless_failed.iter_mut().map(|(state, message)| (state, &*message));
        let lanes = self.lanes.values_mut().filter_map(|(state, queue)| Some((state, queue.front()?)));
        for (state, head) in failed.chain(lanes) {
            if *state == State::Waiting && head.due <= now {
                *state = State::Ready;
                due += 1;
            }
        }
        let woken = self.engine.wake_due(now);
        self.detail(woken == due, "woken")?;
        let failed = self.keyless_failed.iter().map(|(state, message)| (state, message));
        let lanes = self.lanes.values().filter_map(|(state, queue)| Some((state, queue.front()?)));
        let next = failed
            .chain(lanes)
            .filter(|(state, _)| **state == State::Waiting)
            .map(|(_, head)| head.due)
            .min();
        self.detail(self.engine.next_due() == next, "next due")
    }

    /// Sweeps, which looks at no more than `max` entries, so several calls may be needed; the longest idle lanes go
    /// first.
    fn sweep(&mut self, max: usize) -> Result<(), String> {
        let gone = self.engine.sweep(self.now, max);
        check(gone <= max, "swept more than asked")?;
        for _ in 0..gone {
            let (since, lane) = match self.longest_idle() {
                Some(longest) => longest,
                None if self.promises_only => break,
                None => return Err("swept a lane that was not idle".into()),
            };
            self.detail(self.now - since >= self.settings.lane_idle_ms, "swept too early")?;
            self.lanes.remove(&lane);
        }
        Ok(())
    }

    fn leave(&mut self, partition: u32, drain: bool) -> Result<(), String> {
        let left = if drain {
            self.engine.drain_partition(partition)
        } else {
            self.engine.drop_partition(partition)
        };
        let mut gone: Vec<Message> = Vec::new();
        let here = |message: &Message| message.delivery.partition() == partition;
        gone.extend(self.keyless.extract_if_here(here));
        let (failed, others) =
            std::mem::take(&mut self.keyless_failed).into_iter().partition(|(_, m)| here(m));
        self.keyless_failed = others;
        let failed: Vec<(State, Message)> = failed;
        gone.extend(failed.into_iter().map(|(_, message)| message));
        let mut running = 0;
        for ((_, _), (_, queue)) in self.lanes.iter_mut().filter(|((of, _), _)| *of == partition) {
            gone.extend(queue.drain(..));
        }
        self.lanes.retain(|(of, _), (state, _)| {
            *of != partition || (drain && matches!(state, State::Busy | State::Burying))
        });
        for flights in [&mut self.flights, &mut self.burying] {
            for mut flight in std::mem::take(flights) {
                let of_it = here(&flight.message);
                running += usize::from(of_it);
                if of_it && !drain {
                    gone.push(flight.message.clone());
                    self.stale.push(flight);
                } else {
                    flight.draining |= of_it;
                    flights.push(flight);
                }
            }
        }
        let queued = gone.len() - if drain { 0 } else { running };
        let bytes: usize = gone.iter().take(queued).map(|message| message.delivery.size()).sum();
        self.detail(
            (left.messages, left.bytes, left.running) == (queued, bytes, running),
            &format!("{left:?}"),
        )?;
        gone.extend(self.kept.remove(&partition));
        self.held.remove(&partition);
        gone.iter().try_for_each(|message| self.decided(message))
    }

    fn use_stale(&mut self, which: usize) -> Result<(), String> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let Flight { id, message, .. } = &self.stale[which % self.stale.len()];
        let delivery = message.delivery.clone();
        check(!self.engine.done(*id, self.now), "done by a stale id")?;
        check(!self.engine.rejected(*id, self.now), "rejected by a stale id")?;
        check(!self.engine.buried(*id, self.now), "buried by a stale id")?;
        let failed = self.engine.failed(*id, delivery, "late".into(), None, self.now);
        check(failed.is_none(), "failed by a stale id")
    }
}

fn check(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_string()) }
}

trait ExtractHere {
    fn extract_if_here(&mut self, here: impl Fn(&Message) -> bool) -> Vec<Message>;
}

impl ExtractHere for VecDeque<Message> {
    fn extract_if_here(&mut self, here: impl Fn(&Message) -> bool) -> Vec<Message> {
        let (gone, rest) = self.drain(..).partition(|message| here(message));
        *self = rest;
        let gone: VecDeque<Message> = gone;
        gone.into()
    }
}
