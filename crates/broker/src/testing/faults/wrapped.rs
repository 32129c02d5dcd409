//! Readers, memberships and journals with faults.
//!
//! A connection that is cut ends with an error, and whatever just arrived is lost with it. Nothing is missed by that: a
//! reader is opened again where its owner stands, and a group is joined again. `gave_up` and `leave` have no answer
//! that could be lost, and are always carried out: if the first were lost, a hand-over would wait for ever.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use keylane_core::Batch;
use tokio::time::Instant;

use super::plans::{Connection, Plans, disconnected};
use super::{Hang, ask, send};
use crate::contract::{AppendError, BrokerError, Change, Journal, JournalPage, LogKind, Membership, Reader};

pub(super) struct FaultyReader {
    pub(super) connection: Connection,
    pub(super) inner: Box<dyn Reader>,
}

impl Reader for FaultyReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        self.connection.check(cx)?;
        let batch = ready!(self.inner.poll_batch(cx, bytes_max))?;
        Poll::Ready(self.connection.arrive().map(|()| batch))
    }
}

pub(super) struct FaultyMembership {
    pub(super) plans: Arc<Plans>,
    pub(super) connection: Connection,
    pub(super) inner: Box<dyn Membership>,
    /// News that is on its way, and when it arrives.
    pub(super) on_its_way: Option<(Result<Change, BrokerError>, Instant)>,
}

#[async_trait]
impl Membership for FaultyMembership {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        if self.on_its_way.is_none() {
            let (connection, inner) = (&mut self.connection, &mut self.inner);
            let mut changed = pin!(inner.changed());
            let news = poll_fn(|cx| {
                connection.check(cx)?;
                let news = match ready!(changed.as_mut().poll(cx)) {
                    // That the topic has changed is news, like an assignment.
                    news @ (Ok(_) | Err(BrokerError::Partitions { .. })) => news,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                Poll::Ready(connection.arrive().map(|()| news))
            })
            .await?;
            match self.plans.news_arrives() {
                None => return news,
                at => self.on_its_way = at.map(|at| (news, at)),
            }
        }
        let (news, at) = self.on_its_way.clone().expect("just found");
        let connection = &mut self.connection;
        let mut arrives = pin!(tokio::time::sleep_until(at));
        poll_fn(|cx| {
            connection.check(cx)?;
            arrives.as_mut().poll(cx).map(Ok::<(), BrokerError>)
        })
        .await?;
        self.on_its_way = None;
        news
    }

    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError> {
        if self.connection.is_cut() {
            return Err(disconnected());
        }
        self.plans.hangs(Hang::Confirm).await;
        ask(&self.plans, self.inner.confirm(partition)).await
    }

    async fn confirm_all(&mut self, partitions: &[u32]) -> Result<Vec<bool>, BrokerError> {
        if self.connection.is_cut() {
            return Err(disconnected());
        }
        self.plans.hangs(Hang::Confirm).await;
        ask(&self.plans, self.inner.confirm_all(partitions)).await
    }

    async fn gave_up(&mut self, partition: u32) {
        self.inner.gave_up(partition).await;
    }

    fn proves_dead(&self, instance: u128) -> bool {
        self.inner.proves_dead(instance)
    }

    fn instance(&self) -> u128 {
        self.inner.instance()
    }

    async fn leave(&mut self) {
        self.inner.leave().await;
    }
}

pub(super) struct FaultyJournal {
    pub(super) plans: Arc<Plans>,
    pub(super) kind: LogKind,
    pub(super) inner: Arc<dyn Journal>,
    /// The same journal through the carrier's handle, for appends that land late.
    pub(super) carrier: Arc<dyn Journal>,
}

#[async_trait]
impl Journal for FaultyJournal {
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError> {
        let carry = |journal: &Arc<dyn Journal>| {
            let (journal, record) = (journal.clone(), record.clone());
            async move { journal.append(record, expect_end).await }
        };
        let lost = |what: &str| Err(AppendError::Unknown(what.to_owned()));
        self.plans.hangs(Hang::append(self.kind)).await;
        send(&self.plans, || carry(&self.inner), || carry(&self.carrier), lost).await
    }

    fn conditional(&self) -> bool {
        self.inner.conditional()
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        self.plans.hangs(Hang::JournalRead).await;
        ask(&self.plans, self.inner.read(from, bytes_max)).await
    }

    async fn beyond(&self, end: u64) -> Result<(), BrokerError> {
        let mut connection = self.plans.connection();
        let mut beyond = pin!(self.inner.beyond(end));
        poll_fn(|cx| {
            connection.check(cx)?;
            ready!(beyond.as_mut().poll(cx))?;
            Poll::Ready(connection.arrive())
        })
        .await
    }

    async fn cut(&self, below: u64) -> Result<(), BrokerError> {
        let carry = |journal: &Arc<dyn Journal>| {
            let journal = journal.clone();
            async move { journal.cut(below).await }
        };
        let lost = |what: &str| Err(BrokerError::Unavailable(what.to_owned()));
        self.plans.hangs(Hang::Cut).await;
        send(&self.plans, || carry(&self.inner), || carry(&self.carrier), lost).await
    }
}
