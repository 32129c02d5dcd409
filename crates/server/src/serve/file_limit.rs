//! Raises the limit of file descriptors, and reserves some of them for the broker.
//!
//! A process without a free descriptor cannot open the next segment of its log, which is far worse than refusing a
//! client. So connections get at most half of the descriptors that the broker does not need; the other half is for the
//! calls of handlers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that every server needs: wakers of threads, the log, standard streams, a few readers.
const RESERVE: usize = 256;
/// Connections past the bound that get one answer each, so that monitoring still reaches a full server.
pub(super) const KEPT_BACK: usize = 64;
/// Descriptors that a partition needs at most: its log, its journals, and their readers.
const PER_PARTITION: usize = 4;

/// Raises the soft limit to the hard limit, which any process may do, and returns the number of descriptors.
pub(super) fn raise() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, "the limit of file descriptors cannot be raised"),
        }
    }
    limit.current.map_or(usize::MAX, |limit| limit as usize)
}

/// How many of the `wanted` connections the limit leaves room for.
pub(crate) fn connections(wanted: usize, limit: usize, partitions: usize) -> usize {
    let reserve = RESERVE + KEPT_BACK + PER_PARTITION * partitions;
    let room = (limit.saturating_sub(reserve) / 2).max(1);
    if wanted > room {
        tracing::warn!(
            wanted,
            connections = room,
            limit,
            "fewer connections are taken than server.connections says: the limit of file descriptors (ulimit -n) leaves no more"
        );
    }
    wanted.min(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-2.
    #[test]
    fn connections_leave_the_broker_its_descriptors() {
        assert_eq!(connections(4096, 1024, 32), 288);
        assert_eq!(connections(100, 1024, 32), 100);
        assert_eq!(connections(4096, 1 << 20, 1000), 4096);
        assert_eq!(connections(4096, 64, 0), 1);
        assert_eq!(connections(4096, usize::MAX, 4), 4096);
    }

    /// SEC-2.
    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let limit = raise();
        let after = getrlimit(Resource::Nofile);
        assert_eq!((after.current, after.maximum), (before.maximum, before.maximum));
        assert_eq!(after.current.map_or(usize::MAX, |limit| limit as usize), limit);
    }
}
