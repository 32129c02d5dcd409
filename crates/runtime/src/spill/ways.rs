//! Where a message may go: to the broker, onto this machine's disk, or nowhere.

use keylane_broker::ProduceError;
use tokio::sync::oneshot;

use super::Results;

/// What becomes of a message that the broker does not take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenAway {
    /// It is kept on this machine until the broker takes it (PRD-3).
    #[default]
    Keep,
    /// It fails, and so does what would overtake messages that are kept: for callers who keep it elsewhere.
    Fail,
}

/// Where a message is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// At the broker, at this position.
    At(u64),
    /// Here, until the broker takes it.
    Here,
}

/// How a call began: what of it went to the broker, what is to be kept, and which is which.
pub(super) struct Begun {
    pub(super) direct: Option<oneshot::Receiver<Results>>,
    pub(super) kept: Option<oneshot::Receiver<Results>>,
    /// For each message; empty if all went to the broker.
    pub(super) ways: Vec<Way>,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Kept,
    Refused {
        bytes: usize,
    },
    /// Nowhere: it may not be kept, and earlier ones of its partition are.
    Waits,
    /// Nowhere: it may not be kept, and an earlier one of its key was refused for good.
    Blocked,
}

/// Why [`Way::Waits`] is none.
pub(super) const BEHIND_KEPT: &str = "earlier messages of its partition wait in the spill of this machine";
/// Why [`Way::Blocked`] is none.
pub(super) const BEHIND_REFUSED: &str = "an earlier message of its key was refused by the broker and is in the spill of this machine (GET /admin/spill); this one is not sent before it";

/// The results of a part of a call, if it has that part.
pub(super) async fn answer_of(
    answer: Option<oneshot::Receiver<Results>>,
) -> std::vec::IntoIter<Result<Stored, ProduceError>> {
    match answer {
        Some(answer) => answer.await.unwrap_or_default().into_iter(),
        None => Vec::new().into_iter(),
    }
}
