//! Waits for something that another process does.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: far beyond what a busy machine needs.
pub const WAIT_MAX: Duration = Duration::from_secs(90);

/// The time between two looks; short, since the duration of the tests consists of these.
const CONDITION_EVERY: Duration = Duration::from_millis(5);

/// Looks until `look` finds something. Fails the test, naming `what`, if it never does.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        tokio::time::sleep(CONDITION_EVERY).await;
    }
}
