//! Storms under load: kill -9 of a server again and again, and polite restarts.

use std::time::Duration;

use crate::check::{Report, check};
use crate::load::{Acked, Load};
use crate::server::Server;
use crate::sink::{Call, Reply, Sink};
use crate::status::{Committed, PipelineView};
use crate::wait::until;

/// Before every fifth kill the server lives until something more is committed; the other kills come earlier.
const COMMIT_EVERY: u64 = 5;
/// Every seventh kill comes while the server still starts.
const EARLY_EVERY: u64 = 7;

/// What a storm left behind.
pub struct Storm {
    /// All acknowledged messages.
    pub acked: Vec<Acked>,
    /// All calls.
    pub calls: Vec<Call>,
    /// Commits that were seen.
    pub committed: Vec<Committed>,
}

/// Starts `server`, kills it `kills` times under load on `keys` keys, lets it finish, and returns what happened.
pub async fn storm(server: &mut Server, sink: &Sink, keys: u64, kills: u64) -> Storm {
    server.start().await;
    let load = Load::start(server, sink, keys);
    let mut seen = Vec::new();
    for kill in 0..kills {
        if kill % EARLY_EVERY == EARLY_EVERY - 1 {
            // Not a wait: the moment of the kill, somewhere in the start.
            tokio::time::sleep(Duration::from_millis(kill * 13 % 40)).await;
        } else {
            let more = sink.answered() + 1 + kill * 37 % 150;
            sink.wait("work after a restart", |sink| sink.answered() >= more).await;
        }
        if kill % COMMIT_EVERY == COMMIT_EVERY - 1 {
            let before = committed_sum(seen.last());
            let now = until("something more to be committed", async || {
                let now = PipelineView::committed(server, sink).await?;
                (committed_sum(Some(&now)) > before).then_some(now)
            })
            .await;
            seen.push(now);
        }
        server.kill9().await;
        server.spawn();
    }
    let acked = load.stop().await;
    server.settles(sink, &acked).await;
    Storm { acked, calls: sink.calls(), committed: seen }
}

/// Starts `server`, stops and restarts it `times` times under load, lets it finish, and stops it. Returns the
/// acknowledged messages.
pub async fn restarts(server: &mut Server, sink: &Sink, times: u32) -> Vec<Acked> {
    sink.behave(|call| Reply::After(Duration::from_millis(call.offset % 8), 200));
    server.start().await;
    let load = Load::start(server, sink, 40);
    for _ in 0..times {
        let before = sink.settled();
        sink.wait("work after a restart", |sink| sink.settled() >= before + 200).await;
        assert_eq!(server.stop().await, Some(0), "{}", server.output());
        server.start().await;
    }
    let acked = load.stop().await;
    server.settles(sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    acked
}

fn committed_sum(seen: Option<&Committed>) -> u64 {
    seen.map_or(0, |seen| seen.partitions.iter().map(|(_, committed)| committed).sum())
}

impl Storm {
    /// The checker's report.
    pub fn check(&self) -> Report {
        check(&self.acked, &self.calls)
    }
}
