//! Shows a shard's lanes to people who look into a pipeline: the deepest lanes, or those that wait longest.

use keylane_core::{Delivery, LaneState, LaneView};

use super::attempts::SeatState;
use super::pass::Shard;
use crate::status::{LaneSort, LaneStatus};

impl<F> Shard<F> {
    /// The first `limit` lanes in that order. They are selected before any text is made, since the shard does no other
    /// work meanwhile.
    pub(super) fn lanes(&self, sort: LaneSort, limit: usize) -> Vec<LaneStatus> {
        let mut views: Vec<LaneView<'_>> = self.engine.views().collect();
        let by_lane = self.attempts.by_lane();
        // The message that is being handled is older than those queued behind it.
        let appended_ms = |view: &LaneView<'_>| {
            let running = by_lane.get(&view.lane).map(|(delivery, _)| delivery.appended_ms());
            running.or(view.appended_ms).unwrap_or(u64::MAX)
        };
        let last = |view: &LaneView<'_>| match sort {
            LaneSort::Depth => (u64::from(u32::MAX - view.depth), view.since_ms),
            LaneSort::Waiting => (appended_ms(view), view.since_ms),
        };
        if limit < views.len() {
            views.select_nth_unstable_by_key(limit, last);
            views.truncate(limit);
        }
        let mut lanes: Vec<LaneStatus> =
            views.iter().map(|view| self.lane(view, by_lane.get(&view.lane))).collect();
        crate::pipeline::sort_lanes(&mut lanes, sort, limit);
        lanes
    }

    fn lane(&self, view: &LaneView<'_>, running: Option<&(&Delivery, SeatState)>) -> LaneStatus {
        let key = running.and_then(|(delivery, _)| delivery.key()).or(view.key);
        let appended_ms = running.map(|(delivery, _)| delivery.appended_ms()).or(view.appended_ms);
        let contained = matches!(running, Some((_, SeatState::Elsewhere { .. })));
        LaneStatus {
            pipeline: self.pipeline.to_string(),
            key: key.map(|key| crate::percent::encode(key).into_owned()),
            partition: view.partition,
            depth: view.depth as usize + usize::from(running.is_some()),
            state: state_name(view.state, view.stuck),
            attempt: view.attempt,
            waiting_seconds: appended_ms
                .map_or(0.0, |ms| self.clock.wall_ms().saturating_sub(ms) as f64 / 1000.0),
            last_tried_seconds: self.now_ms.saturating_sub(view.since_ms) as f64 / 1000.0,
            why: match view.why {
                None if contained => Some("its call keeps a thread to itself".to_owned()),
                why => why.map(str::to_owned),
            },
        }
    }
}

fn state_name(state: LaneState, stuck: bool) -> &'static str {
    match state {
        _ if stuck => "stuck",
        LaneState::Idle => "idle",
        LaneState::Ready => "ready",
        LaneState::Busy => "running",
        LaneState::Waiting => "retrying",
        LaneState::Burying => "burying",
        _ => "unknown",
    }
}
