//! Calls that do not answer. A Kafka cluster with too few copies in sync, for example, can keep an append waiting for
//! hours.
//!
//! A call that hangs was not carried out. It goes on once its kind of call answers again; until then its caller gets
//! nothing.

use std::future::poll_fn;
use std::task::Poll;

use super::plans::Plans;
use crate::contract::LogKind;
use crate::testing::waiters::OnDrop;

/// A kind of call that a test can make hang.
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
    /// Opening a reader.
    Reader,
    /// Commits.
    Commit,
    /// Asking for a commit.
    Committed,
    /// Asking whether a partition is still a member's.
    Confirm,
}

impl Hang {
    /// The kind for an append to a log of this kind.
    pub(super) fn append(kind: LogKind) -> Hang {
        match kind {
            LogKind::Journal => Hang::JournalAppend,
            LogKind::Hold => Hang::HoldAppend,
        }
    }
}

impl Plans {
    /// Waits until calls of this kind answer. Cancel safe.
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
