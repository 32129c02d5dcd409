//! Waits until a condition holds.

use std::time::Duration;

/// Waits until `condition` holds. A minute only serves to fail a test that hangs.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
