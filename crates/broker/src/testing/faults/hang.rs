//! Calls that do not answer: a cluster with too few copies in sync keeps whoever appends waiting, for hours if need be.
//!
//! A call that hangs was not carried out. It goes on when its kind answers again; whoever waits for it only has what it
//! had before.

use std::future::poll_fn;
use std::task::Poll;

use super::plans::Plans;
use crate::contract::LogKind;
use crate::testing::waiters::OnDrop;

/// A kind of call that can be made to hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hang {
    /// Appends to `journal.p`.
    JournalAppend,
    /// Appends to `hold.p`.
    HoldAppend,
    /// Reads of a journal.
    JournalRead,
    /// Cuts of a journal.
    Cut,
    /// Openings of a reader.
    Reader,
    /// Commits.
    Commit,
    /// Questions for a commit.
    Committed,
    /// Questions whether a partition is still a member's.
    Confirm,
}

impl Hang {
    /// An append to a log of this kind.
    pub(super) fn append(kind: LogKind) -> Hang {
        match kind {
            LogKind::Journal => Hang::JournalAppend,
            LogKind::Hold => Hang::HoldAppend,
        }
    }
}

impl Plans {
    /// Returns once calls of this kind answer. Cancel safe.
    pub(super) async fn hangs(&self, kind: Hang) {
        let ticket = self.ticket();
        let _forget = OnDrop(|| self.forget_hanging(ticket));
        poll_fn(|cx| match self.is_hanging(kind, ticket, cx.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }
}
