//! Whether a thread may still poll an attempt that it was given a while ago.
//!
//! In: how its partition stands, and when the shard chose the attempt. Out: yes or no, decided on that thread, which may
//! have waited for a core: the partition may be given up by then, or the process may have been stopped meanwhile.

use std::sync::Arc;

use super::partition::Standing;
use super::pause::PAUSE_MS;
use crate::clock::Clock;

/// What a thread may rely on that comes to an attempt late.
pub(super) struct Leave {
    pub(super) standing: Arc<Standing>,
    pub(super) clock: Clock,
    /// When the shard chose the attempt, on the clock that goes on while the process is stopped.
    pub(super) given_ms: u64,
}

impl Leave {
    /// True if the attempt may be polled now. After a pause of the process nothing begins until the journal was read
    /// (ORD-12); the shard, which sees to that, may not have had a core yet.
    pub(super) fn allows(&self, begun: bool) -> bool {
        let paused = self.clock.passed_ms().saturating_sub(self.given_ms) > PAUSE_MS;
        self.standing.allows(begun) && (begun || !paused)
    }
}
