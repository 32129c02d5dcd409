//! The scenario of one run: everything that is drawn from the seed before the run begins.

use std::time::Duration;

use keylane::testing::Flaws;
use keylane::{Order, Settings};
use keylane_broker::Rates;
use keylane_simulation::Random;

/// Separates the numbers of scenarios in which calls hang from those of all others.
const HANGING: u64 = 0x6861_6e67;
/// Separates the numbers of scenarios with large snapshots from those of all others.
const PIECES: u64 = 0x5eed_0000_0000_0002;

/// The scenario of one run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub partitions: u32,
    pub keys: u64,
    /// Messages without a key, in 100.
    pub keyless: u64,
    /// Processes at the beginning, and at most.
    pub processes: usize,
    pub processes_max: usize,
    /// How long producers send; then all becomes quiet.
    pub busy_ms: u64,
    /// The most time between two calls of a producer.
    pub produce_ms: u64,
    /// The most messages of one producer: a backlog that is never worked off shows nothing.
    pub messages_max: u64,
    /// The most messages of one call.
    pub burst: u64,
    /// The most time between two troubles.
    pub trouble_ms: u64,
    pub trouble: Trouble,
    /// Take-overs, in 100, whose owner is stopped or killed in the middle.
    pub pounce: u64,
    pub conditional: bool,
    pub proves_dead: bool,
    pub latency_ms: (u64, u64),
    /// The most positions before a message that are given to no message.
    pub gaps: u64,
    pub by_hand: bool,
    pub rates: Rates,
    pub work: Work,
    pub settings: Settings,
}

/// How often each trouble happens to processes and partitions: weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trouble {
    pub start: u64,
    pub drain: u64,
    pub hand_over: u64,
    pub kill: u64,
    pub freeze: u64,
    pub cut_off: u64,
    pub expire: u64,
    pub lose: u64,
    pub outage: u64,
    pub disconnect: u64,
    pub reset: u64,
    /// A kind of call is not answered for a while.
    pub hang: u64,
    /// A task ends unasked.
    pub strike: u64,
}

/// How handlers behave, each in 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Attempts that are ready at once.
    pub quick: u64,
    /// Attempts that fail, panic, or hang until their time-out; only a message's first few.
    pub fails: u64,
    pub panics: u64,
    pub hangs: u64,
    /// Messages that are rejected.
    pub rejects: u64,
    /// The most time that the other attempts take.
    pub takes_ms: u64,
}

impl Trouble {
    /// Planned troubles only: processes come and go, partitions are handed over.
    const PLANNED: Trouble = Trouble {
        start: 3,
        drain: 2,
        hand_over: 3,
        kill: 0,
        freeze: 0,
        cut_off: 0,
        expire: 0,
        lose: 0,
        outage: 0,
        disconnect: 0,
        reset: 0,
        hang: 0,
        strike: 0,
    };

    fn any(random: &mut Random) -> Trouble {
        let mut weight = |percent| {
            if random.percent(percent) { random.between(1, 5) } else { 0 }
        };
        Trouble {
            start: 4 + weight(50),
            drain: weight(50),
            hand_over: weight(50),
            kill: weight(60),
            freeze: weight(60),
            cut_off: weight(50),
            expire: weight(30),
            lose: weight(30),
            outage: weight(40),
            disconnect: weight(40),
            reset: weight(15),
            hang: weight(40),
            strike: weight(20),
        }
    }

    /// True if nothing may run twice in such a scenario.
    pub fn is_planned(&self) -> bool {
        *self == Trouble::PLANNED
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn new(random: &mut Random, flaws: Flaws) -> Scenario {
        // Numbers of their own, so that what other seeds draw stays as it was.
        let mut beside = Random::new(random.clone().number() ^ HANGING);
        let mut pieces = Random::new(random.clone().number() ^ PIECES);
        let planned = random.percent(25);
        let trouble = if planned { Trouble::PLANNED } else { Trouble::any(random) };
        let latency = *random.one_of(&[(0, 0), (0, 2), (1, 20), (10, 200)]);
        let processes = random.between(1, 3) as usize;
        let mut settings = settings(random, planned);
        settings.flaws = flaws;
        let scenario = Scenario {
            partitions: random.between(1, 4) as u32,
            keys: *random.one_of(&[1, 2, 3, 8, 40]),
            keyless: *random.one_of(&[0, 0, 10]),
            processes,
            processes_max: processes.max(random.between(2, 4) as usize),
            busy_ms: random.between(60, 400) * 1000,
            produce_ms: *random.one_of(&[500, 2_000, 10_000]),
            messages_max: random.between(20, 300),
            burst: *random.one_of(&[1, 3, 20]),
            trouble_ms: *random.one_of(&[2_000, 10_000, 40_000]),
            trouble,
            pounce: match trouble.freeze + trouble.kill {
                0 => 0,
                _ => *random.one_of(&[0, 3, 10, 30]),
            },
            conditional: random.percent(50),
            proves_dead: random.percent(20),
            latency_ms: latency,
            gaps: *random.one_of(&[0, 0, 3, 1000]),
            by_hand: random.percent(25),
            rates: match (planned, random.between(0, 9)) {
                (true, _) => Rates::none(),
                (false, 0..2) => slow(random),
                (false, 2..6) => rates(random),
                (false, _) => Rates::none(),
            },
            work: work(random, planned, &settings),
            settings,
        };
        let scenario = match !planned && beside.percent(12) {
            true => scenario.hanging(&mut beside),
            false => scenario,
        };
        match pieces.percent(30) {
            true => scenario.in_pieces(&mut pieces),
            false => scenario,
        }
    }

    /// Snapshots that do not fit into a record, and holds that are cut as soon as they may be.
    fn in_pieces(mut self, random: &mut Random) -> Scenario {
        let bounds = &mut self.settings.bounds;
        bounds.snapshot_after_bytes = bounds.snapshot_after_bytes.min(2_000);
        bounds.snapshot_bytes_max = *random.one_of(&[40, 100]);
        bounds.chunk_bytes_max = *random.one_of(&[64, 300]);
        bounds.low_step = 1;
        (bounds.move_slack, bounds.move_factor) = *random.one_of(&[(0, 0), (5, 1), (10_000, 3)]);
        self
    }

    /// Nothing goes wrong except calls that are not answered, while there is always something to start: an owner that
    /// waits for such a call without listening goes on with messages that are another process's.
    fn hanging(mut self, random: &mut Random) -> Scenario {
        self.trouble = Trouble { start: 1, drain: 0, hand_over: 0, hang: 4, ..Trouble::PLANNED };
        (self.rates, self.pounce, self.by_hand) = (Rates::none(), 0, false);
        (self.processes, self.processes_max) = (2, 3);
        (self.trouble_ms, self.busy_ms) = (20_000, 120_000);
        (self.produce_ms, self.burst, self.messages_max) = (2_000, 3, 300);
        self.keys = 40;
        self.work = Work { quick: 50, fails: 0, panics: 0, hangs: 0, rejects: 20, takes_ms: 300 };
        let settings = &mut self.settings;
        (settings.order, settings.concurrency) = (Order::Key, 10_000);
        (settings.lane_capacity, settings.buffer_messages) = (1_000, 100_000);
        settings.timeout = Duration::from_secs(*random.one_of(&[10, 30]));
        self
    }
}

fn settings(random: &mut Random, planned: bool) -> Settings {
    let mut settings = Settings::default();
    settings.order =
        *random.one_of(&[Order::Key, Order::Key, Order::Key, Order::Key, Order::Partition, Order::None]);
    settings.shards = Some(random.between(1, 2) as usize);
    settings.concurrency = *random.one_of(&[1, 2, 10, 10_000]);
    settings.lane_capacity = *random.one_of(&[1, 3, 1_000]);
    settings.lane_idle = Duration::from_secs(*random.one_of(&[1, 10, 300]));
    settings.buffer_messages = *random.one_of(&[2, 10, 100_000]);
    settings.timeout = match planned {
        true => Duration::from_secs(30),
        false => Duration::from_secs(*random.one_of(&[2, 10, 30])),
    };
    settings.retries = random.between(0, 3) as u32;
    settings.retry_base = Duration::from_millis(*random.one_of(&[100, 1_000]));
    settings.retry_max = Duration::from_secs(*random.one_of(&[2, 30]));
    settings.drain = Duration::from_secs(40);
    let bounds = &mut settings.bounds;
    bounds.snapshot_after_bytes = *random.one_of(&[200, 2_000, 256 << 10, u64::MAX]);
    bounds.ranges_per_record = *random.one_of(&[1, 3, 2_000]);
    bounds.dead_per_record = *random.one_of(&[1, 200]);
    settings
}

fn work(random: &mut Random, planned: bool, settings: &Settings) -> Work {
    let timeout_ms = settings.timeout.as_millis() as u64;
    Work {
        quick: *random.one_of(&[0, 50, 95]),
        fails: *random.one_of(&[0, 5, 30]),
        panics: *random.one_of(&[0, 5]),
        hangs: if planned { 0 } else { *random.one_of(&[0, 0, 5]) },
        rejects: *random.one_of(&[0, 0, 5, 20]),
        // In a planned hand-over every attempt ends before the owner must stop without it.
        takes_ms: (*random.one_of(&[10, 300, 4_000, 15_000])).min(timeout_ms * 3 / 4),
    }
}

/// Answers and news come so late that owners long believe what is no longer true.
fn slow(random: &mut Random) -> Rates {
    Rates {
        delay: random.between(50, 400) as u32,
        delay_max: Duration::from_millis(*random.one_of(&[4_000, 10_000])),
        news: random.between(300, 1_000) as u32,
        late: random.between(0, 100) as u32,
        late_max: Duration::from_secs(20),
        ..Rates::none()
    }
}

fn rates(random: &mut Random) -> Rates {
    let ms = Duration::from_millis;
    let mut rate = |most| {
        if random.percent(60) { random.between(1, most) as u32 } else { 0 }
    };
    Rates {
        delay: rate(200),
        drop_request: rate(80),
        drop_answer: rate(80),
        duplicate: rate(100),
        late: rate(80),
        news: rate(400),
        disconnect: rate(40),
        outage: rate(3),
        delay_max: ms(*random.one_of(&[20, 1_000, 4_000])),
        late_max: ms(*random.one_of(&[100, 5_000, 20_000])),
        outage_max: ms(*random.one_of(&[1_000, 20_000])),
    }
}
