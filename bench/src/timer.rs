//! A timer that is as exact as the clock.
//!
//! Tokio's timer has ticks of a millisecond and rounds up: a sleep of 10 ms takes 11 to 12 ms, and a figure about
//! handlers of 10 ms would mostly show that. Here one thread sleeps until the next deadline and wakes all sleeps that
//! are due.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The timer. Ends its thread when it is dropped.
pub(crate) struct Timer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Earliest first. All sleeps of a timer are equally long, so a new one goes to the end.
    sleeping: VecDeque<(Instant, Waker)>,
    closed: bool,
}

impl Timer {
    pub(crate) fn start() -> std::io::Result<Timer> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("timer".to_owned()).spawn(move || of_thread.run())?;
        Ok(Timer(shared))
    }

    /// A sleep that ends `length` after this call. All calls must give the same length.
    pub(crate) fn sleep(&self, length: Duration) -> Sleep<'_> {
        Sleep { shared: &self.0, due: Instant::now() + length }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.state.lock().expect("no holder panics").closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut due = Vec::new();
        let mut state = self.state.lock().expect("no holder panics");
        while !state.closed {
            let Some(next) = state.sleeping.front().map(|(next, _)| *next) else {
                state = self.changed.wait(state).expect("no holder panics");
                continue;
            };
            let now = Instant::now();
            if next > now {
                drop(state);
                // A sleep that is added meanwhile is not due earlier.
                std::thread::sleep(next - now);
                state = self.state.lock().expect("no holder panics");
                continue;
            }
            let count = state.sleeping.partition_point(|(at, _)| *at <= now);
            due.extend(state.sleeping.drain(..count).map(|(_, waker)| waker));
            drop(state);
            due.drain(..).for_each(Waker::wake);
            state = self.state.lock().expect("no holder panics");
        }
    }
}

/// A sleep, see [`Timer::sleep`].
pub(crate) struct Sleep<'a> {
    shared: &'a Shared,
    due: Instant,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            return Poll::Ready(());
        }
        let mut state = self.shared.state.lock().expect("no holder panics");
        // Two threads may get the lock in another order than they read the clock.
        let at = state.sleeping.partition_point(|(at, _)| *at <= self.due);
        state.sleeping.insert(at, (self.due, cx.waker().clone()));
        let was_idle = state.sleeping.len() == 1;
        drop(state);
        if was_idle {
            self.shared.changed.notify_one();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sleep_ends_and_none_too_early() {
        const LENGTH: Duration = Duration::from_millis(3);
        let timer = Arc::new(Timer::start().expect("a thread"));
        let runtime = crate::machine::runtime("test").expect("a runtime");
        let sleepers: Vec<_> = (0..100)
            .map(|_| {
                let timer = Arc::clone(&timer);
                runtime.spawn(async move {
                    for _ in 0..5 {
                        let since = Instant::now();
                        timer.sleep(LENGTH).await;
                        assert!(since.elapsed() >= LENGTH);
                    }
                })
            })
            .collect();
        for sleeper in sleepers {
            runtime.block_on(sleeper).expect("no sleep ends too early");
        }
    }
}
