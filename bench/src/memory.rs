//! Measures PRF-5: the memory of a million keys at once, and how much of it is left when they are idle.
//!
//! A million handlers wait, each with a key of its own. The memory of the messages and of the handlers' futures is not
//! counted. Then all handlers end, the lanes go idle and are removed, and memory should be back where it was at the
//! start.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Outcome, Settings};

use crate::broker::SourceBroker;
use crate::flow::Flow;
use crate::machine::{WORKERS, resident_bytes, runtime};
use crate::source::{Draw, PARTITIONS, Source};
use crate::{Error, Figure, Options, Target};

const KEYS: u32 = 1_000_000;
const LANE_IDLE: Duration = Duration::from_secs(1);
/// Lanes that are still there after this keep their memory, and the figure shows it.
const PATIENCE: Duration = Duration::from_secs(120);
/// The wait between the end of the last lane and the look at memory: an allocator gives memory back with a delay.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let runtime = runtime("ours")?;
    let source = Source::new(KEYS, Draw::InTurn);
    let flow = Arc::<Flow>::default();
    let broker = Arc::new(SourceBroker::new(&source, &flow));
    let latch = Arc::new(Latch::new());
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    settings.concurrency = KEYS as usize + 1_000;
    settings.buffer_messages = 2 * KEYS as usize;
    settings.buffer_bytes = 1 << 30;
    settings.lane_idle = LANE_IDLE;
    settings.timeout = Duration::from_secs(3600);
    runtime.block_on(async {
        let pipeline = crate::started(broker, settings, Parker(Arc::clone(&latch))).await?;
        let start = resident_bytes();
        flow.open(u64::from(KEYS / PARTITIONS), 0);
        while latch.hanging() < KEYS as usize {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let live = (resident_bytes().saturating_sub(start)) as f64 / f64::from(KEYS);
        let own = source.frame_bytes() + size_of::<Hanging<'static>>();
        report(
            Figure::alone(
                "PRF-5",
                "memory, 1 M live keys, each in flight",
                "bytes a key",
                live - own as f64,
                Target::AtMost(260.0),
            )
            .note(format!("and {own} of message and future")),
        );
        latch.open();
        let since = Instant::now();
        while since.elapsed() < PATIENCE && pipeline.status().await?.lanes.total > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let lanes = pipeline.status().await?.lanes.total;
        let seconds = since.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE).await;
        let left = (resident_bytes() as f64 - start as f64) / 1e6;
        report(
            Figure::alone(
                "PRF-5",
                "memory left once they are idle",
                "MB over the start",
                left,
                Target::AtMost(8.0),
            )
            .note(format!("{lanes} lanes after {seconds:.0} s")),
        );
        pipeline.drain().await?;
        Ok(())
    })
}

/// Where all handlers wait. Its own memory is taken before anything is measured.
struct Latch {
    open: AtomicBool,
    hanging: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl Latch {
    fn new() -> Latch {
        let mut waiting = vec![Waker::noop().clone(); KEYS as usize];
        waiting.clear();
        Latch { open: AtomicBool::new(false), hanging: AtomicUsize::new(0), waiting: Mutex::new(waiting) }
    }

    fn hanging(&self) -> usize {
        self.hanging.load(Ordering::Acquire)
    }

    fn open(&self) {
        self.open.store(true, Ordering::Release);
        let mut waiting = self.waiting.lock().expect("no holder panics");
        // The list keeps its room, which it had at the start too.
        waiting.drain(..).for_each(Waker::wake);
    }
}

struct Parker(Arc<Latch>);

impl Handler for Parker {
    fn handle<'a>(&'a self, _attempt: Attempt<'a>) -> impl Future<Output = Outcome> + Send + 'a {
        Hanging(&self.0)
    }
}

struct Hanging<'a>(&'a Latch);

impl Future for Hanging<'_> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut waiting = self.0.waiting.lock().expect("no holder panics");
        if self.0.open.load(Ordering::Acquire) {
            return Poll::Ready(Outcome::Done);
        }
        waiting.push(cx.waker().clone());
        self.0.hanging.fetch_add(1, Ordering::Release);
        Poll::Pending
    }
}
