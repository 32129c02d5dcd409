//! What an owner hears about its assignment from whoever follows the group.
//!
//! Only the worst counts, and telling never waits: an owner that is busy, or still waits for the one before it, hears
//! it when it looks.

use tokio::sync::watch;

/// How the assignment of a partition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    /// It may be owned.
    Yours,
    /// To be drained.
    Revoked,
    /// To be dropped.
    Lost,
}

/// Tells one owner.
pub(crate) struct Teller(watch::Sender<Told>);

/// What one owner hears.
pub(crate) struct News {
    told: watch::Receiver<Told>,
    heard: Told,
}

/// A teller and its owner's ear.
pub(crate) fn news() -> (Teller, News) {
    let (teller, told) = watch::channel(Told::Yours);
    let heard = Told::Yours;
    (Teller(teller), News { told, heard })
}

impl Teller {
    /// Tells what is worse than what was told before; the rest is known.
    pub(crate) fn tell(&self, told: Told) {
        self.0.send_if_modified(|before| {
            let worse = told > *before;
            *before = told.max(*before);
            worse
        });
    }
}

impl News {
    /// The next news: revoked or lost. Cancel safe. If the teller is gone it is revoked; that is said once, so that a
    /// loop that waits for other things too does not turn without end.
    pub(crate) async fn next(&mut self) -> Told {
        let heard = self.heard;
        let told = self.told.wait_for(|told| *told > heard).await.map(|told| *told);
        let told = match told {
            Ok(told) => told,
            Err(_) if heard == Told::Yours => Told::Revoked,
            Err(_) => std::future::pending().await,
        };
        self.heard = told;
        told
    }

    /// True once it was heard that the partition is to be given up: it must not be claimed again.
    pub(crate) fn given_up(&self) -> bool {
        self.heard > Told::Yours
    }

    /// True if the partition may be owned, as far as was told.
    pub(crate) fn is_yours(&self) -> bool {
        *self.told.borrow() == Told::Yours && self.heard == Told::Yours
    }

    /// Returns once the partition is lost. Cancel safe.
    pub(crate) async fn lost(&mut self) {
        let lost = self.told.wait_for(|told| *told == Told::Lost).await.is_ok();
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
        let (teller, mut news) = news();
        assert!(news.is_yours() && news.next().now_or_never().is_none());
        for told in [Told::Revoked, Told::Lost, Told::Revoked] {
            teller.tell(told);
        }
        assert!(!news.is_yours() && !news.given_up());
        assert_eq!(news.next().now_or_never(), Some(Told::Lost));
        assert!(news.given_up() && news.next().now_or_never().is_none());
    }

    /// ORD-9.
    #[test]
    fn a_teller_that_is_gone_is_heard_once() {
        let (teller, mut news) = news();
        drop(teller);
        assert_eq!(news.next().now_or_never(), Some(Told::Revoked));
        assert!(news.next().now_or_never().is_none());
    }
}
