//! The raw limit of handlers that wait: a bare `tokio::spawn` for each message, without order and without a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use keylane_core::Delivery;
use tokio::sync::Notify;

use crate::flow::{FlowReader, next_batch};

/// Spawns a task for each message, which sleeps and then calls `ended`. With `places`, at most that many at a time.
pub(crate) async fn spawn_each(
    mut readers: Vec<FlowReader>,
    sleep: Duration,
    places: Option<Arc<Places>>,
    ended: impl Fn(Delivery) + Clone + Send + 'static,
) {
    loop {
        let batch = next_batch(&mut readers).await;
        for delivery in batch.cursor(0) {
            let delivery = delivery.expect("made by the source");
            if let Some(places) = &places {
                places.take().await;
            }
            let (places, ended) = (places.clone(), ended.clone());
            tokio::spawn(async move {
                tokio::time::sleep(sleep).await;
                ended(delivery);
                if let Some(places) = places {
                    places.give();
                }
            });
        }
    }
}

/// Bounds the tasks in flight, as cheaply as possible.
pub(crate) struct Places {
    taken: AtomicUsize,
    most: usize,
    wanted: AtomicBool,
    free: Notify,
}

impl Places {
    pub(crate) fn new(most: usize) -> Places {
        Places { taken: AtomicUsize::new(0), most, wanted: AtomicBool::new(false), free: Notify::new() }
    }

    /// The number of tasks in flight.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    async fn take(&self) {
        while self.taken.load(Ordering::SeqCst) >= self.most {
            self.wanted.store(true, Ordering::SeqCst);
            if self.taken.load(Ordering::SeqCst) >= self.most {
                self.free.notified().await;
            }
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    fn give(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.wanted.load(Ordering::SeqCst) && self.wanted.swap(false, Ordering::SeqCst) {
            self.free.notify_one();
        }
    }
}
