//! Chooses which seeds are run, and prints what came of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keylane::testing::Flaws;

use crate::checker::Counts;
use crate::world::{Ended, run};
use crate::{PANIC, STRUCK};

/// Seeds that every test runs: about half a minute.
const SEEDS: u64 = 1_000;
/// One seed in this many is run twice.
const AGAIN_EVERY: u64 = 100;
/// Seeds that broke a promise once: an owner that slept behind its fence started on it; queued messages of a partition
/// that could no longer be read started after a pause; an owner that waited for an append, and then for a slow read,
/// did not hear of its successor; two drains that were written one range a record took longer than they had; an owner
/// that was to read the pieces of a snapshot did nothing else, and did not step back before its successor.
const FOUND: [u64; 7] = [
    1881970014421513,
    1881970243011327,
    1881970266079607,
    1882037337203674,
    1882037337223928,
    1882037337232389,
    1882336476009596,
];
/// How long `make chaos` runs new seeds.
const CHAOS: Duration = Duration::from_secs(900);
/// A run of minutes of simulated time takes well below a second; a run that takes this long polls without end.
const STUCK: Duration = Duration::from_secs(60);

/// P1, P2, P4, P9, ORD-4, ORD-9, ORD-10, ORD-12, BRK-6, BRK-7, COM-1, COM-3, RTY-1.
#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("KEYLANE_SIM_SEED") {
        let ended = run_watched(seed, Flaws::default(), true);
        println!("seed {seed}: {:?} {:?}", ended.violation, ended.counts);
        assert_eq!(ended.violation, None);
        return;
    }
    let count = number("KEYLANE_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number("KEYLANE_SIM_FIRST").unwrap_or(1);
    let mut seen = Seen::new();
    FOUND.into_iter().chain(first..first + count).for_each(|seed| seen.run(seed));
    seen.finish();
    // Fewer seeds than usual need not show everything.
    if count >= SEEDS {
        let never = seen.counts.never();
        assert!(never.is_empty(), "what never happened was not tested: {never:?}");
    }
}

/// The same for new seeds, as long as `make chaos` or `KEYLANE_SIM_SECONDS` says; a seed with a violation is printed.
#[test]
#[ignore = "runs for a quarter of an hour: make chaos"]
fn chaos_simulation() {
    run_fresh(number("KEYLANE_SIM_SECONDS").map_or(CHAOS, Duration::from_secs));
}

fn run_fresh(lasts: Duration) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let first = since_1970.as_secs() << 20;
    println!("fresh seeds from {first} on");
    let mut seen = Seen::new();
    let begin = Instant::now();
    let mut seed = first;
    while begin.elapsed() < lasts {
        seen.run(seed);
        seed += 1;
    }
    seen.finish();
}

/// What many runs came to.
struct Seen {
    begin: Instant,
    runs: u64,
    simulated_ms: u64,
    counts: Counts,
    broken: Vec<u64>,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            begin: Instant::now(),
            runs: 0,
            simulated_ms: 0,
            counts: Counts::default(),
            broken: Vec::new(),
        }
    }

    fn run(&mut self, seed: u64) {
        let ended = run_watched(seed, Flaws::default(), false);
        self.runs += 1;
        self.simulated_ms += ended.simulated_ms;
        self.counts.add(&ended.counts);
        if let Some(violation) = &ended.violation {
            println!("{}\nKEYLANE_SIM_SEED={seed} breaks {violation}", ended.tail);
            self.broken.push(seed);
        }
        if seed.is_multiple_of(AGAIN_EVERY) {
            let again = run_watched(seed, Flaws::default(), false);
            assert_eq!(ended.hash, again.hash, "KEYLANE_SIM_SEED={seed} does not repeat itself");
        }
    }

    fn finish(&self) {
        let real = self.begin.elapsed().as_secs_f64();
        let simulated = self.simulated_ms as f64 / 1000.0;
        println!(
            "{} seeds: {simulated:.0} simulated seconds in {real:.1} s, {:.0} a second; {:?}",
            self.runs,
            simulated / real,
            self.counts
        );
        assert!(
            self.broken.is_empty(),
            "these seeds break a promise; run one with KEYLANE_SIM_SEED=…: {:?}",
            self.broken
        );
    }
}

/// Runs one seed. A run that does not end by itself is printed, with its seed, and ends the test.
pub fn run_watched(seed: u64, flaws: Flaws, show: bool) -> Ended {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str().is_none_or(|said| said != PANIC && said != STRUCK) {
                before(panic);
            }
        }));
    });
    let running = Running::begin(seed);
    let ended = run(seed, flaws, show);
    drop(running);
    ended
}

/// Runs under way, and since when: tests run beside each other.
static RUNNING: Mutex<BTreeMap<u64, (u64, Instant)>> = Mutex::new(BTreeMap::new());

struct Running(u64);

impl Running {
    fn begin(seed: u64) -> Running {
        static WATCH: Once = Once::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        WATCH.call_once(|| {
            std::thread::spawn(|| {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                    let running = RUNNING.lock().expect("no holder panics");
                    if let Some((seed, _)) = running.values().find(|(_, since)| since.elapsed() > STUCK) {
                        eprintln!("time stands still: KEYLANE_SIM_SEED={seed}");
                        std::process::abort();
                    }
                }
            });
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        RUNNING.lock().expect("no holder panics").insert(number, (seed, Instant::now()));
        Running(number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.lock().expect("no holder panics").remove(&self.0);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
