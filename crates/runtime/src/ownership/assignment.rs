//! Tells one partition's owner how its assignment stands; the sender is the task that follows the group.
//!
//! Only the worst news counts, and a sender never waits: an owner that is busy, or that waits for its predecessor to
//! end, hears the news when it looks.

use tokio::sync::watch;

/// How the assignment of a partition stands, from good to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Assignment {
    /// This process may own the partition.
    Yours,
    /// The partition is to be drained.
    Revoked,
    /// The partition is to be dropped at once.
    Lost,
}

/// Tells one owner how its assignment stands.
pub(crate) struct AssignmentSender(watch::Sender<Assignment>);

/// Hears how one owner's assignment stands.
pub(crate) struct AssignmentReceiver {
    told: watch::Receiver<Assignment>,
    heard: Assignment,
}

/// The two ends: one for the task that follows the group, one for the owner.
pub(crate) fn assignment() -> (AssignmentSender, AssignmentReceiver) {
    let (sender, told) = watch::channel(Assignment::Yours);
    let heard = Assignment::Yours;
    (AssignmentSender(sender), AssignmentReceiver { told, heard })
}

impl AssignmentSender {
    /// Tells the owner, unless it was told the same or worse before.
    pub(crate) fn tell(&self, told: Assignment) {
        self.0.send_if_modified(|before| {
            let worse = told > *before;
            *before = told.max(*before);
            worse
        });
    }
}

impl AssignmentReceiver {
    /// The next change for the worse: revoked or lost. Cancel safe. If the sender is gone, that counts as revoked; it
    /// is returned once, so that a loop that waits for other things too does not spin.
    pub(crate) async fn next(&mut self) -> Assignment {
        let heard = self.heard;
        let told = self.told.wait_for(|told| *told > heard).await.map(|told| *told);
        let told = match told {
            Ok(told) => told,
            Err(_) if heard == Assignment::Yours => Assignment::Revoked,
            Err(_) => std::future::pending().await,
        };
        self.heard = told;
        told
    }

    /// True once `next` has returned revoked or lost: the partition must not be claimed again.
    pub(crate) fn given_up(&self) -> bool {
        self.heard > Assignment::Yours
    }

    /// True if the partition may be owned, as far as the sender has said.
    pub(crate) fn is_yours(&self) -> bool {
        *self.told.borrow() == Assignment::Yours && self.heard == Assignment::Yours
    }

    /// Returns once the partition is lost. Cancel safe.
    pub(crate) async fn lost(&mut self) {
        let lost = self.told.wait_for(|told| *told == Assignment::Lost).await.is_ok();
        if !lost {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// ORD-9.
    #[test]
    fn the_worst_counts_and_is_heard_once() {
        let (sender, mut assignment) = assignment();
        assert!(assignment.is_yours() && assignment.next().now_or_never().is_none());
        for told in [Assignment::Revoked, Assignment::Lost, Assignment::Revoked] {
            sender.tell(told);
        }
        assert!(!assignment.is_yours() && !assignment.given_up());
        assert_eq!(assignment.next().now_or_never(), Some(Assignment::Lost));
        assert!(assignment.given_up() && assignment.next().now_or_never().is_none());
    }

    /// ORD-9.
    #[test]
    fn a_sender_that_is_gone_is_heard_once() {
        let (sender, mut assignment) = assignment();
        drop(sender);
        assert_eq!(assignment.next().now_or_never(), Some(Assignment::Revoked));
        assert!(assignment.next().now_or_never().is_none());
    }
}
