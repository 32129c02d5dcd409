//! The only file that starts threads: for the embedded broker one for each log, one that makes the next segment, and
//! reads that may wait for the disk, and what must not stop half-way though its caller goes away; for Kafka those that serve its
//! client library. Closing a broker ends them all.
//!
//! Nobody waits for these threads, so that a panic would pass unseen, and what they did would not be done any more:
//! [`Threads`] sees it.
#![allow(clippy::disallowed_methods, reason = "this is the place")]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use keylane_core::ErrorCode;

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

/// Does what must not stop half-way, whoever waits for it. It waits for a log alone, which answers at the latest when it is
/// closed.
pub(crate) fn task<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
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

/// Something that waits for threads when it is dropped, and is therefore dropped by one of its own.
#[cfg(feature = "kafka")]
pub(crate) struct Apart<T: Send + 'static>(Option<T>);

#[cfg(feature = "kafka")]
impl<T: Send + 'static> Apart<T> {
    pub(crate) fn new(it: T) -> Apart<T> {
        Apart(Some(it))
    }
}

#[cfg(feature = "kafka")]
impl<T: Send + 'static> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken when it is dropped")
    }
}

#[cfg(feature = "kafka")]
impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        let it = self.0.take();
        // Where no thread can be started it is dropped here, and waited for.
        let _ended = thread("kafka-ending", move || drop(it));
    }
}

/// Before a thread that panicked begins anew: it must not keep a core busy, nor fill the log.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// What becomes of a thread that panicked, for the log.
pub(crate) const BEGUN_ANEW: &str = "it is begun anew";

/// Threads of one broker: a panic of one is told, and counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threads {
    ended: Arc<AtomicU64>,
    /// Those that a test has panic.
    #[cfg(feature = "testing")]
    struck: Arc<Mutex<std::collections::HashSet<String>>>,
}

impl Threads {
    /// Does `work` on this thread. A panic is counted and logged, with what becomes of the thread `then`; what it said
    /// is the error.
    pub(crate) fn watch<T>(&self, name: &str, then: &str, work: impl FnOnce() -> T) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| self.note(name, then, &*panic))
    }

    fn note(&self, name: &str, then: &str, panic: &(dyn Any + Send)) -> String {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let said = (panic.downcast_ref::<&str>().copied())
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("it does not say why");
        let why = format!("{}: {name} ended unexpectedly: {said}", ErrorCode::TaskEnded);
        tracing::error!(task = name, why, "something ended that should not; {then}");
        why
    }

    /// Runs `work` on a thread of its own until it returns. If it panics, `ended` is told what it said, and `work` is
    /// begun anew.
    #[cfg(feature = "kafka")]
    pub(crate) fn keep(
        &self,
        name: &'static str,
        mut work: impl FnMut() + Send + 'static,
        mut ended: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<()> {
        let threads = self.clone();
        let kept = move || {
            while let Err(why) = threads.watch(name, BEGUN_ANEW, &mut work) {
                ended(&why);
                std::thread::sleep(AGAIN);
            }
        };
        thread(name, kept).map(drop)
    }

    /// As [`Threads::keep`], for what waits for several things at once: it has a runtime of its own, and so never waits
    /// behind others.
    #[cfg(feature = "kafka")]
    pub(crate) fn keep_with_runtime<F: Future<Output = ()>>(
        &self,
        name: &'static str,
        mut work: impl FnMut() -> F + Send + 'static,
        ended: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        self.keep(name, move || runtime.block_on(work()), ended)
    }

    /// How often one of them panicked.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Has the next thread of that name panic that gets to where it may.
    #[cfg(feature = "testing")]
    pub(crate) fn strike(&self, name: &str) {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    /// Here a test may have a thread panic.
    pub(crate) fn may_be_struck(&self, name: &str) {
        #[cfg(feature = "testing")]
        let struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        #[cfg(feature = "testing")]
        assert!(!struck, "a test has it panic");
        #[cfg(not(feature = "testing"))]
        let _ = name;
    }
}

#[cfg(all(test, feature = "kafka"))]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::*;

    struct Tells(mpsc::SyncSender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).expect("it is waited for");
        }
    }

    /// BPR-1: whoever drops a client waits for none of its threads.
    #[test]
    fn what_is_kept_apart_is_dropped_by_another_thread() {
        let (sender, told) = mpsc::sync_channel(1);
        drop(Apart::new(Tells(sender)));
        assert_ne!(told.recv().expect("it is dropped"), std::thread::current().id());
    }

    /// OBS-1, P10: a thread that panics is counted, what it said is told, and it goes on.
    #[test]
    fn a_thread_that_panics_is_told_of_and_begun_anew() {
        let threads = Threads::default();
        let (sender, told) = mpsc::sync_channel(2);
        let (again, mut times) = (sender.clone(), 0);
        let work = move || {
            times += 1;
            assert!(times > 1, "the first time");
            again.send("it runs again".to_owned()).expect("it is waited for");
        };
        let ended = move |why: &str| sender.send(why.to_owned()).expect("it is waited for");
        threads.keep("kafka-test", work, ended).expect("it starts");
        let why = told.recv().expect("it panics");
        assert!(why.contains("KL-1321") && why.contains("the first time"), "{why}");
        assert_eq!(told.recv().expect("it goes on"), "it runs again");
        assert_eq!(threads.ended(), 1);
    }
}
