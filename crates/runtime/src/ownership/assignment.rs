//! What an owner hears about its assignment from whoever follows the group.
//!
//! Only the worst counts, and telling never waits: an owner that is busy, or still waits for the one before it, hears
//! it when it looks.

use tokio::sync::watch;

/// How the assignment of a partition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Assignment {
    /// It may be owned.
    Yours,
    /// To be drained.
    Revoked,
    /// To be dropped.
    Lost,
}

/// Tells one owner how its assignment stands.
pub(crate) struct AssignmentSender(watch::Sender<Assignment>);

/// Hears how one owner's assignment stands.
pub(crate) struct AssignmentReceiver {
    told: watch::Receiver<Assignment>,
    heard: Assignment,
}

/// The two ends: one for whoever follows the group, one for the owner.
pub(crate) fn assignment() -> (AssignmentSender, AssignmentReceiver) {
    let (sender, told) = watch::channel(Assignment::Yours);
    let heard = Assignment::Yours;
    (AssignmentSender(sender), AssignmentReceiver { told, heard })
}

impl AssignmentSender {
    /// Tells what is worse than what was told before; the rest is known.
    pub(crate) fn tell(&self, told: Assignment) {
        self.0.send_if_modified(|before| {
            let worse = told > *before;
            *before = told.max(*before);
            worse
        });
    }
}

impl AssignmentReceiver {
    /// What comes next: revoked or lost. Cancel safe. If the sender is gone it is revoked; that is said once, so that a
    /// loop that waits for other things too does not turn without end.
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

    /// True once it was heard that the partition is to be given up: it must not be claimed again.
    pub(crate) fn given_up(&self) -> bool {
        self.heard > Assignment::Yours
    }

    /// True if the partition may be owned, as far as was told.
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
