//! Is it alive, is it ready, what is it (ING-8).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use keylane::ErrorCode;
use keylane::spill::SpillState;
use keylane::status::{PartitionState, PartitionStatus, PipelineStatus};
use serde_json::json;

use super::json::json;
use super::problem::Problem;
use crate::serve::{App, Phase};

/// Touches nothing: it answers as long as the process can.
pub(crate) async fn alive() -> Response<Body> {
    json(StatusCode::OK, br#"{"status":"ok"}"#.to_vec())
}

/// 200 if this process can take messages or own partitions, else 503; either way with every reason why not all is well.
/// Answers from memory (ING-8).
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response<Body> {
    let Reasons { not_ready, besides } = reasons(&app);
    if not_ready.is_empty() {
        let mut ready = json!({ "status": "ready" });
        if !besides.is_empty() {
            ready["reasons"] = json!(besides);
        }
        return json(StatusCode::OK, ready.to_string().into_bytes());
    }
    let reasons: Vec<String> = not_ready.into_iter().chain(besides).collect();
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady, "not ready", reasons.join("; "))
        .with("reasons", reasons)
        .into_response()
}

/// Why not all is well.
#[derive(Default)]
struct Reasons {
    /// Why no work should be sent here.
    not_ready: Vec<String>,
    /// What somebody should look at, though work can be sent here.
    besides: Vec<String>,
}

fn reasons(app: &App) -> Reasons {
    let mut reasons = Reasons::default();
    match app.phase() {
        Phase::Opening if !app.waiting.borrow().is_empty() => {
            reasons.not_ready.extend(app.waiting.borrow().iter().cloned());
            return reasons;
        }
        // Messages are taken and other pipelines run: one that waits for somebody's action is not all there is.
        Phase::Starting if !app.waiting.borrow().is_empty() => {
            reasons.besides.extend(app.waiting.borrow().iter().cloned());
        }
        Phase::Opening => reasons.not_ready.push("topics are being made".to_owned()),
        Phase::Starting => reasons.not_ready.push("pipelines are being started".to_owned()),
        Phase::Draining | Phase::Closing => reasons.not_ready.push("the server is shutting down".to_owned()),
        Phase::Ready => {}
    }
    // What a broker on another machine does not take is kept here meanwhile, until there is no room.
    let kept = matches!(app.keylane.spill().state, SpillState::Healthy | SpillState::Spilling);
    let of_broker = if kept { &mut reasons.besides } else { &mut reasons.not_ready };
    of_broker.extend(app.broker_health.trouble());
    reasons.besides.extend(app.broker_health.besides());
    for pipeline in app.keylane.pipelines_seen() {
        pipeline_reasons(&pipeline, &mut reasons.besides);
    }
    reasons
}

/// Whatever of a pipeline does not run, and why. On the way out that is said once, for all of them.
fn pipeline_reasons(pipeline: &PipelineStatus, reasons: &mut Vec<String>) {
    let name = &pipeline.name;
    let stopped = |partition: &&PartitionStatus| partition.state == PartitionState::Stopped;
    let before = reasons.len();
    for partition in pipeline.partitions.iter().filter(stopped) {
        let why = partition.why.as_deref().unwrap_or("it does not say why");
        reasons.push(format!("partition {} of pipeline {name} has stopped: {why}", partition.partition));
    }
    match pipeline.state {
        "starting" => reasons.push(format!("pipeline {name} is starting")),
        "stopped" if reasons.len() == before => reasons.push(match &pipeline.why {
            Some(why) => format!("pipeline {name} has stopped: {why}"),
            None => format!("pipeline {name} has stopped"),
        }),
        _ => {}
    }
}

/// Name and version.
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response<Body> {
    let version = json!({
        "name": "keylane",
        "version": env!("CARGO_PKG_VERSION"),
        "broker": app.keylane.broker_kind(),
    });
    json(StatusCode::OK, version.to_string().into_bytes())
}
