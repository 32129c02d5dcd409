//! The only file that starts threads: for the embedded broker one for each log, one that makes the next segment, and
//! reads that may wait for the disk; for Kafka those that serve its client library. Closing a broker ends them all.
#![allow(clippy::disallowed_methods, reason = "this is the place")]

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Runs `work` on a thread of its own.
pub(crate) fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // Linux shows 15 bytes of a thread's name.
    let name: String = name.chars().take(15).collect();
    std::thread::Builder::new().name(name).spawn(work)
}

/// Runs what may wait for a disk or a network, away from the caller's thread.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Does `work` for each item, on at most `at_once` threads, and returns when all is done. In the order of the items.
pub(crate) fn all<T: Send, R: Send>(at_once: usize, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if at_once.min(items.len()) <= 1 {
        return items.into_iter().map(work).collect();
    }
    let mut done: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let queue = Mutex::new(items.into_iter().zip(&mut done));
    let one_after_another = || {
        loop {
            // Held only while the next is taken.
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((item, place)) = next else { break };
            *place = Some(work(item));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..at_once {
            // One that cannot be started is not needed: this thread does what is left.
            let _ =
                std::thread::Builder::new().name("log-open".into()).spawn_scoped(scope, one_after_another);
        }
        one_after_another();
    });
    drop(queue);
    done.into_iter().flatten().collect()
}

/// Runs a future on a thread of its own, to its end: for what must not wait behind others, and has no runtime around it.
#[cfg(feature = "kafka")]
pub(crate) fn thread_with_runtime(
    name: &str,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread(name, move || runtime.block_on(work))
}
