//! The routes for monitoring (ING-8): whether the server is alive, whether it is ready, and which version it is.

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

/// `GET /healthz`: uses no shared state, so it answers as long as the process runs.
pub(crate) async fn alive() -> Response<Body> {
    json(StatusCode::OK, br#"{"status":"ok"}"#.to_vec())
}

/// `GET /readyz`: 200 if this process can accept messages or own partitions, otherwise 503. Both answers list
/// everything that needs an operator's attention. Answers from memory (ING-8).
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

/// The reasons that `/readyz` lists.
#[derive(Default)]
struct Reasons {
    /// Why load balancers should send no requests to this server.
    not_ready: Vec<String>,
    /// Troubles that an operator should look at, although the server can take requests.
    besides: Vec<String>,
}

fn reasons(app: &App) -> Reasons {
    let mut reasons = Reasons::default();
    match app.phase() {
        Phase::Opening if !app.waiting.borrow().is_empty() => {
            reasons.not_ready.extend(app.waiting.borrow().iter().cloned());
            return reasons;
        }
        // The server accepts messages and other pipelines run, so a pipeline that waits does not make it unready.
        Phase::Starting if !app.waiting.borrow().is_empty() => {
            reasons.besides.extend(app.waiting.borrow().iter().cloned());
        }
        Phase::Opening => reasons.not_ready.push("topics are being made".to_owned()),
        Phase::Starting => reasons.not_ready.push("pipelines are being started".to_owned()),
        Phase::Draining | Phase::Closing => reasons.not_ready.push("the server is shutting down".to_owned()),
        Phase::Ready => {}
    }
    // While the spill has room, the server accepts messages even if the broker is away, so it stays ready.
    let kept = matches!(app.keylane.spill().state, SpillState::Healthy | SpillState::Spilling);
    let of_broker = if kept { &mut reasons.besides } else { &mut reasons.not_ready };
    of_broker.extend(app.broker_health.trouble());
    reasons.besides.extend(app.broker_health.besides());
    for pipeline in app.keylane.pipelines_seen() {
        pipeline_reasons(&pipeline, &mut reasons.besides);
    }
    reasons
}

/// Adds the reasons why parts of a pipeline do not run. A server that shuts down has one reason for all pipelines
/// already, so draining pipelines add none.
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

/// `GET /version`: name, version and kind of broker.
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response<Body> {
    let version = json!({
        "name": "keylane",
        "version": env!("CARGO_PKG_VERSION"),
        "broker": app.keylane.broker_kind(),
    });
    json(StatusCode::OK, version.to_string().into_bytes())
}
