//! Waiting for a condition.

use std::time::Duration;

/// Waits until `condition` holds. A minute is the limit of a hang, not of the machine.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
