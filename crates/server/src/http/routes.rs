//! Maps each path to its route, and each path to its name in metrics. `access` decides who may call a route.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use keylane::ErrorCode;

use super::json::json;
use super::path::PathPart;
use super::problem::Problem;
use super::{error_pages, health, openapi, page};
use crate::serve::App;
use crate::{admin, ingest};

/// Every path, as metrics and the API's description name it. Metrics use only these names as labels: a label with text
/// from clients would let them create any number of series.
pub(super) const PATHS: [&str; 19] = [
    PRODUCE,
    "/healthz",
    "/readyz",
    "/version",
    "/metrics",
    "/openapi.json",
    "/",
    ERRORS,
    "/admin/pipelines",
    "/admin/lanes",
    "/admin/topics",
    "/admin/outbox",
    TAIL,
    ACCEPT,
    FORGET,
    UPGRADE,
    "/admin/spill",
    "/admin/spill/drain",
    "/admin/data/backup",
];
const PRODUCE: &str = "/v1/topics/{topic}/messages";
const TAIL: &str = "/admin/topics/{topic}/messages";
const ACCEPT: &str = "/admin/topics/{topic}/accept";
const FORGET: &str = "/admin/topics/{topic}/forget-group";
const UPGRADE: &str = "/admin/topics/{topic}/upgrade";
const ERRORS: &str = "/errors/{code}";

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(PRODUCE, post(ingest::produce))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi_json))
        .route("/", get(page::page))
        .route(ERRORS, get(error_page))
        .route("/admin/pipelines", get(admin::pipelines))
        .route("/admin/lanes", get(admin::lanes))
        .route("/admin/topics", get(admin::topics))
        .route("/admin/outbox", get(admin::outbox))
        .route(TAIL, get(admin::messages))
        .route(ACCEPT, post(admin::accept))
        .route(FORGET, post(admin::forget_group))
        .route(UPGRADE, post(admin::upgrade))
        .route("/admin/spill", get(admin::spill))
        .route("/admin/spill/drain", post(admin::drain_spill))
        .route("/admin/data/backup", post(admin::backup))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(app)
}

/// The name of a path in metrics.
pub(crate) fn label(path: &str) -> &'static str {
    if path.starts_with("/v1/topics/") {
        return PRODUCE;
    }
    if path.starts_with("/admin/topics/") {
        let ends = [("/accept", ACCEPT), ("/forget-group", FORGET), ("/upgrade", UPGRADE)];
        return ends.into_iter().find(|(end, _)| path.ends_with(end)).map_or(TAIL, |(_, label)| label);
    }
    if path.starts_with("/errors/") {
        return ERRORS;
    }
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], app.metrics.text(&app)).into_response()
}

async fn openapi_json() -> Response<Body> {
    json(StatusCode::OK, openapi::document().to_string().into_bytes())
}

async fn error_page(PathPart(code): PathPart) -> Response<Body> {
    match error_pages::page(&code) {
        Some(text) => {
            let kind = HeaderValue::from_static("text/markdown; charset=utf-8");
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        None => Problem::new(
            StatusCode::NOT_FOUND,
            ErrorCode::NoSuchPath,
            "there is no such page",
            "there is no error of that code",
        )
        .into_response(),
    }
}

async fn not_found(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(
        StatusCode::NOT_FOUND,
        ErrorCode::NoSuchPath,
        "there is no such path",
        format!("there is nothing at {path}; /openapi.json lists what there is"),
    )
}

async fn not_allowed(method: axum::http::Method, uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::MethodDoesNotFit,
        "the method does not fit",
        format!("{path} does not take {method}; the header Allow says what it takes"),
    )
}
