//! The only file that starts threads: for the embedded broker one for each log, one that makes the next segment, and
//! reads that may wait for the disk; for Kafka those that serve its client library. Closing a broker ends them all.
#![allow(clippy::disallowed_methods, reason = "this is the place")]

use std::io;
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
