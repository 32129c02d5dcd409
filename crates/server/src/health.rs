//! Is it alive, is it ready, what is it (ING-8).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use keylane::status::{PartitionState, PartitionStatus, PipelineStatus};
use serde_json::json;

use crate::app::{App, Phase};
use crate::ingest;
use crate::problem::Problem;

/// Touches nothing: it answers as long as the process can.
pub(crate) async fn alive() -> Response<Body> {
    ingest::json(StatusCode::OK, br#"{"status":"ok"}"#.to_vec())
}

/// 200 when messages are taken and pipelines run, else 503 with every reason.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response<Body> {
    let reasons = reasons(&app).await;
    if reasons.is_empty() {
        return ingest::json(StatusCode::OK, br#"{"status":"ready"}"#.to_vec());
    }
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "KL-1218", "not ready", reasons.join("; "))
        .with("reasons", reasons)
        .into_response()
}

async fn reasons(app: &App) -> Vec<String> {
    let mut reasons = Vec::new();
    match app.phase() {
        Phase::Opening | Phase::Starting if !app.waiting.borrow().is_empty() => {
            reasons.extend(app.waiting.borrow().iter().cloned());
            // Asking the broker would only take longer to say the same.
            return reasons;
        }
        Phase::Opening => reasons.push("topics are being made".to_owned()),
        Phase::Starting => reasons.push("pipelines are being started".to_owned()),
        Phase::Draining | Phase::Closing => reasons.push("the server is shutting down".to_owned()),
        Phase::Ready => {}
    }
    if let Err(error) = app.keylane.health().await {
        reasons.push(format!("{}: {error}", error.code()));
        // Whoever does not answer would not say more about pipelines.
        if error.code() == "KL-1102" {
            return reasons;
        }
    }
    match app.keylane.pipelines().await {
        Ok(pipelines) => pipelines.iter().for_each(|pipeline| pipeline_reasons(pipeline, &mut reasons)),
        Err(error) => reasons.push(error.to_string()),
    }
    reasons.dedup();
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
        "stopped" if reasons.len() == before => reasons.push(format!("pipeline {name} has stopped")),
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
    ingest::json(StatusCode::OK, version.to_string().into_bytes())
}
