//! The HTTP push handler (ING-5): a `POST` of the payload for each attempt; the status decides.
//!
//! A message comes in, one request goes out, and what is answered becomes an outcome (`answer.rs`). No redirect is
//! followed, no proxy of the environment is used, and a private address is reached only if that is allowed (SEC-4): a
//! message goes where the config says, or nowhere. Whoever calls [`Handler::handle`] sets the time limit (ORD-7) by
//! dropping the attempt; here only connecting has one, so that a dead address is told from a slow handler.

use std::error::Error as _;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use keylane_core::Outcome;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Request, Url};

mod address;
mod answer;
mod trace;

use crate::clock::Clock;
use crate::percent::{encode, encode_token};
use crate::{Attempt, Handler};
use address::{PublicOnly, is_private};
use trace::{TRACEPARENT, traceparent};

/// Connecting takes at most this long, or the time limit of a call if that is shorter. A host that drops packets
/// would otherwise use up the whole limit, and look like a slow handler.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Idle connections kept: as many as handlers run at once by default, so that a full pipeline reuses all of its own.
const POOL_IDLE_MAX: usize = 10_000;
/// How long they are kept: shorter than the minute after which common servers close them, since a push that meets a
/// closing connection is a failed attempt.
const POOL_IDLE_FOR: Duration = Duration::from_secs(30);

const ID: HeaderName = HeaderName::from_static("keylane-id");
const KEY: HeaderName = HeaderName::from_static("keylane-key");
const TOPIC: HeaderName = HeaderName::from_static("keylane-topic");
const PARTITION: HeaderName = HeaderName::from_static("keylane-partition");
const OFFSET: HeaderName = HeaderName::from_static("keylane-offset");
const ATTEMPT: HeaderName = HeaderName::from_static("keylane-attempt");
const EPOCH: HeaderName = HeaderName::from_static("keylane-epoch");
const VERSION: HeaderName = HeaderName::from_static("keylane-version");
const TRACE: HeaderName = HeaderName::from_static(TRACEPARENT);
const HEADER_PREFIX: &str = "keylane-header-";

/// How messages are pushed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Where to.
    pub url: String,
    /// Statuses that reject a message (400, 413, 415, 422).
    pub reject: Vec<u16>,
    /// Whether private and loopback addresses may be called.
    pub allow_private: bool,
    /// A call that takes longer has failed.
    pub timeout: Duration,
}

impl HttpSettings {
    /// Pushes to `url`, public addresses only.
    pub fn new(url: impl Into<String>) -> HttpSettings {
        HttpSettings {
            url: url.into(),
            reject: vec![400, 413, 415, 422],
            allow_private: false,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Pushes each message to a URL.
pub struct HttpHandler {
    client: Client,
    url: Url,
    /// The URL as errors show it.
    shown: String,
    reject: Vec<u16>,
    clock: Clock,
}

impl HttpHandler {
    /// A handler that pushes as `settings` say; an error names what is wrong with the URL.
    pub fn new(settings: HttpSettings) -> Result<HttpHandler, String> {
        let url = checked_url(&settings)?;
        let mut builder = Client::builder()
            .user_agent(concat!("keylane/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .connect_timeout(settings.timeout.min(CONNECT_MAX))
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .pool_idle_timeout(POOL_IDLE_FOR)
            .tcp_nodelay(true);
        if !settings.allow_private {
            builder = builder.dns_resolver(PublicOnly);
        }
        if url.scheme() == "http" {
            // Plain pushes must work on a machine that has no certificates at all.
            builder = builder.tls_certs_only([]);
        }
        let shown = without_query(&url);
        let client =
            builder.build().map_err(|error| format!("cannot push to {shown}: {}", with_causes(&error)))?;
        Ok(HttpHandler { client, url, shown, reject: settings.reject, clock: Clock::system() })
    }
}

impl Handler for HttpHandler {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let mut request = Request::new(Method::POST, self.url.clone());
        match headers(&attempt) {
            Ok(headers) => *request.headers_mut() = headers,
            // Nothing at the other end could change this, so it is decided.
            Err(what) => return Outcome::rejected(format!("cannot be sent as HTTP: {what}")),
        }
        *request.body_mut() = Some(attempt.payload_bytes().into());
        match self.client.execute(request).await {
            Ok(answer) => answer::outcome(answer, &self.reject, self.clock.wall_ms()).await,
            Err(error) => Outcome::failed(format!(
                "no answer from {}: {}",
                self.shown,
                with_causes(&error.without_url())
            )),
        }
    }
}

/// The URL of `settings`, if pushes can go there. No error repeats it: it may hold a secret (SEC-5), and the caller
/// knows which one it gave.
fn checked_url(settings: &HttpSettings) -> Result<Url, String> {
    let url = Url::parse(&settings.url).map_err(|error| format!("this is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the URL begins with neither http:// nor https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not carry a user name or a password".to_owned());
    }
    let host = url.host_str().ok_or("the URL names no host")?;
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if literal.is_ok_and(is_private) && !settings.allow_private {
        return Err("the URL leads to a private address; set `allow_private: true` to push there".to_owned());
    }
    Ok(url)
}

/// What of a URL everybody may see who may read: a query can carry a secret (SEC-5).
fn without_query(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    shown.to_string()
}

/// All headers of a push. An error says which one HTTP cannot carry.
fn headers(attempt: &Attempt<'_>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(16);
    // Said even of an empty payload: some servers answer 411 to a POST without it.
    headers.insert(CONTENT_LENGTH, attempt.payload().map_or(0, <[u8]>::len).into());
    headers.insert(ID, text(attempt.id().as_bytes())?);
    if let Some(key) = attempt.key() {
        headers.insert(KEY, text(key)?);
    }
    headers.insert(TOPIC, text(attempt.topic().as_bytes())?);
    headers.insert(PARTITION, attempt.partition().into());
    headers.insert(OFFSET, attempt.position().into());
    headers.insert(ATTEMPT, attempt.number().into());
    headers.insert(EPOCH, attempt.epoch().into());
    if let Some(version) = attempt.version() {
        headers.insert(VERSION, version.into());
    }
    for (name, value) in attempt.headers() {
        let full = format!("{HEADER_PREFIX}{}", encode_token(name.as_bytes()));
        let full = HeaderName::try_from(full)
            .map_err(|error| format!("a header of {} bytes: {error}", name.len()))?;
        headers.try_append(full, text(value)?).map_err(|error| error.to_string())?;
    }
    headers.insert(TRACE, text(traceparent(attempt).as_bytes())?);
    Ok(headers)
}

fn text(bytes: &[u8]) -> Result<HeaderValue, String> {
    HeaderValue::try_from(encode(bytes).as_ref()).map_err(|error| error.to_string())
}

/// An error with what caused it: reqwest's own text stops at "error sending request".
fn with_causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        push_cause(&mut text, error);
        cause = error.source();
    }
    text
}

fn push_cause(text: &mut String, cause: &dyn Display) {
    let cause = cause.to_string();
    // Some layers repeat the one below.
    if !text.ends_with(&cause) {
        text.push_str(": ");
        text.push_str(&cause);
    }
}

#[cfg(test)]
mod tests;
