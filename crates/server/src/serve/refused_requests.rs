//! Logs refused requests and admin calls (ADM-2), so that an operator finds the reason of an outage, and attempts of
//! strangers.
//!
//! In: each answer, with the caller's name and address. Out: a warning for each refused request, at most a few per
//! minute for each error, then one warning with the number of those left out; and a line for each admin call that
//! changed something. No line contains a token.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode};
use keylane::ErrorCode;
use keylane::raw::Seldom;

use super::app::App;
use crate::http::{Who, label};

/// Time between two checks for lines that were left out.
const REST_EVERY: Duration = Duration::from_secs(5);
/// Characters of a request's path and query that a line shows. The client chooses them, so they need a bound.
const ADDRESS_CHARS_MAX: usize = 200;
/// The path whose 503 is an ordinary answer (the server is not ready) and not a refusal.
const READINESS: &str = "/readyz";

/// Limits the lines by error, so that many refusals of one kind do not hide another kind. Errors are a closed set, so
/// the map is bounded.
#[derive(Default)]
pub(crate) struct RefusedRequests(Mutex<BTreeMap<ErrorCode, Seldom>>);

/// The parts of a request that its log line shows.
pub(super) struct Seen {
    pub(super) route: &'static str,
    peer: SocketAddr,
    /// Whether the request would change something.
    changes: bool,
    /// Method, path and query of an admin call that would change something.
    admin_call: Option<String>,
}

impl Seen {
    pub(super) fn of(head: &Parts, peer: SocketAddr) -> Seen {
        let route = label(head.uri.path());
        let changes = head.method != Method::GET && head.method != Method::HEAD;
        let admin_call = (changes && route.starts_with("/admin/")).then(|| {
            let address = head.uri.path_and_query().map_or("", |address| address.as_str());
            format!("{} {}", head.method, address.chars().take(ADDRESS_CHARS_MAX).collect::<String>())
        });
        Seen { route, peer, changes, admin_call }
    }
}

impl RefusedRequests {
    /// Logs an answer if it is a refusal, or a successful admin call that changed something. `allowed`: whether the
    /// access check let the request reach its route.
    pub(super) fn tell<B>(&self, app: &App, seen: &Seen, who: &Who, allowed: bool, answer: &Response<B>) {
        let status = answer.status();
        let Some(code) = answer.extensions().get::<ErrorCode>().copied() else {
            if let Some(call) = seen.admin_call.as_deref().filter(|_| status.is_success()) {
                tracing::info!(who = who.as_str(), peer = %seen.peer, call, "an admin call was carried out");
            }
            return;
        };
        let no_room = status == StatusCode::SERVICE_UNAVAILABLE && seen.route != READINESS;
        if allowed && !no_room && !(seen.changes && status.is_client_error()) {
            return;
        }
        app.metrics.refused(seen.route, code);
        let now_ms = app.clock.now_ms();
        let mut told = self.0.lock().expect("no holder panics");
        let seldom = told.entry(code).or_default();
        let (left_out, may_tell) = (seldom.left_out(now_ms), seldom.may_tell(now_ms));
        drop(told);
        tell_left_out(code, left_out);
        if may_tell {
            tracing::warn!(
                code = code.as_str(),
                route = seen.route,
                peer = %seen.peer,
                who = who.as_str(),
                status = status.as_u16(),
                "a request was refused; /errors/ and the code say why, and what to do"
            );
        }
    }

    /// Tells how many were left out, once a minute is over.
    fn tell_rest(&self, now_ms: u64) {
        self.tell_each(|seldom| seldom.left_out(now_ms));
    }

    /// Tells how many were left out, now: the server ends.
    pub(super) fn end(&self) {
        self.tell_each(Seldom::all_left_out);
    }

    fn tell_each(&self, left_out: impl Fn(&mut Seldom) -> Option<u64>) {
        let mut told = self.0.lock().expect("no holder panics");
        told.iter_mut().for_each(|(code, seldom)| tell_left_out(*code, left_out(seldom)));
    }
}

fn tell_left_out(code: ErrorCode, left_out: Option<u64>) {
    if let Some(left_out) = left_out {
        tracing::warn!(
            code = code.as_str(),
            left_out,
            "further requests were refused within a minute, and had no line of their own here; keylane_http_refused_total counts all"
        );
    }
}

/// Logs, until the task is ended, how many lines were left out.
pub(super) async fn watch(app: Arc<App>) {
    loop {
        tokio::time::sleep(REST_EVERY).await;
        app.refused.tell_rest(app.clock.now_ms());
    }
}
