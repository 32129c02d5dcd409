//! The HTTP push handler (ING-5): sends each attempt's payload as a `POST`, and lets the status decide.
//!
//! A message comes in, one request goes out, and the answer becomes an outcome (`answer.rs`). A message goes where the
//! config says, or nowhere: the handler follows no redirect, uses no proxy of the environment, and calls a private
//! address only if that is allowed (SEC-4). The caller of [`Handler::handle`] sets the time limit (ORD-7) by dropping
//! the attempt. Only connecting has a limit here, so that a dead address can be told from a slow handler.

use std::error::Error as _;
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::time::Duration;

use keylane_core::Outcome;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Method, Request, Url};

mod address;
mod answer;
mod content_type;
mod sign;
mod trace;

use crate::clock::Clock;
use crate::percent::{encode, encode_token};
use crate::{Attempt, Handler};
use address::{PublicOnly, is_private, is_private_name};
use content_type::{checked_content_type, content_type};
use sign::Signer;
use trace::{TRACEPARENT, traceparent};

pub use content_type::{CONTENT_TYPE as CONTENT_TYPE_HEADER, OCTET_STREAM, is_content_type};

/// Connecting takes at most this long, or the time limit of a call if that is shorter. A host that drops packets would
/// otherwise use up the whole limit, and look like a slow handler.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Idle connections kept: as many as a pipeline with the library's default concurrency uses, so that a pipeline at full
/// load reuses all its connections.
const POOL_IDLE_MAX: usize = 10_000;
/// How long idle connections are kept: shorter than the minute after which common servers close them, since a push on a
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

/// Headers that a config cannot set, because Keylane or HTTP itself sets them.
const OWN_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
    TRACEPARENT,
];
/// Prefixes of further headers that a config cannot set.
const OWN_PREFIXES: [&str; 2] = ["keylane-", "webhook-"];

/// How messages are pushed.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct HttpSettings {
    /// The URL that receives the messages.
    pub url: String,
    /// Statuses that reject a message (400, 413, 422).
    pub reject: Vec<u16>,
    /// Whether private and loopback addresses may be called.
    pub allow_private: bool,
    /// A call that takes longer has failed.
    pub timeout: Duration,
    /// Headers that every call carries besides Keylane's own, for example `Authorization`.
    pub headers: Vec<(String, String)>,
    /// The content type of messages that do not name one themselves. Without it, a payload that is JSON is sent as
    /// `application/json` and every other one as `application/octet-stream`.
    pub content_type: Option<String>,
    /// Secrets with which every call is signed as Standard Webhooks describes it: `whsec_` and base64. Several secrets,
    /// with spaces between them, give several signatures, so that a secret can be replaced without a gap.
    pub sign: Option<String>,
    /// Certificates of authorities, as PEM, that are trusted besides those of the system.
    pub ca: Option<String>,
    /// The certificate and the private key, as PEM, with which Keylane proves its identity.
    pub identity: Option<(String, String)>,
}

impl HttpSettings {
    /// Pushes to `url`, public addresses only.
    pub fn new(url: impl Into<String>) -> HttpSettings {
        HttpSettings {
            url: url.into(),
            reject: vec![400, 413, 422],
            allow_private: false,
            timeout: Duration::from_secs(30),
            headers: Vec::new(),
            content_type: None,
            sign: None,
            ca: None,
            identity: None,
        }
    }
}

impl HttpSettings {
    /// A warning before the first push: the URL's host resolves to private addresses only, and these are not allowed,
    /// so every push would fail. Looks the name up. None if all is well or nothing is known.
    pub async fn warning(&self) -> Option<String> {
        let url = Url::parse(&self.url).ok().filter(|_| !self.allow_private)?;
        let host = url.host_str()?;
        is_private_name(host).await.then(|| {
            format!(
                "{host} resolves to private addresses only, so that no push will get there; set `allow_private: true` to push there"
            )
        })
    }
}

/// Written by hand: headers, signing secrets and private keys are secret, and so may parts of the URL be (SEC-5).
impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpSettings")
            .field("reject", &self.reject)
            .field("allow_private", &self.allow_private)
            .field("timeout", &self.timeout)
            .field("headers", &names)
            .field("content_type", &self.content_type)
            .finish_non_exhaustive()
    }
}

/// A setting that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettingsError {
    /// The setting: `url`, `headers`, `content_type`, `sign`, `ca`, `cert` or `key`.
    pub setting: &'static str,
    /// Why the setting cannot be used. Never shows a secret.
    pub what: String,
}

impl fmt::Display for HttpSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.what)
    }
}

impl std::error::Error for HttpSettingsError {}

fn wrong(setting: &'static str) -> impl Fn(String) -> HttpSettingsError {
    move |what| HttpSettingsError { setting, what }
}

/// Pushes each message to a URL.
pub struct HttpHandler {
    client: Client,
    url: Url,
    /// The URL as errors show it.
    shown: String,
    reject: Vec<u16>,
    /// The config's headers, which every call carries.
    headers: HeaderMap,
    content_type: Option<HeaderValue>,
    signer: Option<Signer>,
    clock: Clock,
}

impl HttpHandler {
    /// A handler that pushes as `settings` say. An error names the setting and what is wrong with it.
    pub fn new(settings: HttpSettings) -> Result<HttpHandler, HttpSettingsError> {
        let url = checked_url(&settings).map_err(wrong("url"))?;
        let headers = own_headers(&settings.headers).map_err(wrong("headers"))?;
        let content_type = settings.content_type.as_deref().map(checked_content_type);
        let content_type = content_type.transpose().map_err(wrong("content_type"))?;
        let signer = settings.sign.as_deref().map(Signer::new).transpose().map_err(wrong("sign"))?;
        keylane_broker::tls::provide_cryptography();
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
        let builder = with_certificates(builder, &url, &settings)?;
        let shown = without_query(&url);
        let client = builder.build().map_err(|error| match settings.identity {
            // The client checks last whether certificate and key belong together.
            Some(_) => wrong("key")(format!("it cannot be used with `cert`: {}", with_causes(&error))),
            None => wrong("url")(format!("cannot push to {shown}: {}", with_causes(&error))),
        })?;
        let (reject, clock) = (settings.reject, Clock::system());
        Ok(HttpHandler { client, url, shown, reject, headers, content_type, signer, clock })
    }

    /// All headers of a call. An error names the one that HTTP cannot carry.
    fn headers(&self, attempt: &Attempt<'_>) -> Result<HeaderMap, String> {
        let mut headers = headers(attempt)?;
        if let Some(found) = content_type(attempt, self.content_type.as_ref()) {
            headers.insert(CONTENT_TYPE, found);
        }
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        if let Some(signer) = &self.signer {
            let id = encode(attempt.id().as_bytes());
            let payload = attempt.payload().unwrap_or_default();
            signer.sign(&mut headers, &id, self.clock.wall_ms() / 1000, payload)?;
        }
        Ok(headers)
    }
}

/// Applies the config's certificates: the authorities to trust, and Keylane's own identity.
fn with_certificates(
    mut builder: ClientBuilder,
    url: &Url,
    settings: &HttpSettings,
) -> Result<ClientBuilder, HttpSettingsError> {
    if url.scheme() == "http" {
        for (setting, given) in [("ca", settings.ca.is_some()), ("cert", settings.identity.is_some())] {
            if given {
                return Err(wrong(setting)(
                    "the URL begins with http://, so no certificate is used".to_owned(),
                ));
            }
        }
        // Plain pushes must work on a machine that has no certificates at all.
        return Ok(builder.tls_certs_only([]));
    }
    if let Some(ca) = &settings.ca {
        let certificates = Certificate::from_pem_bundle(ca.as_bytes());
        let certificates = certificates.map_err(|error| wrong("ca")(with_causes(&error)))?;
        if certificates.is_empty() {
            return Err(wrong("ca")("there is no certificate in it; PEM begins with -----BEGIN".to_owned()));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    if let Some((certificate, key)) = &settings.identity {
        if !certificate.contains("-----BEGIN CERTIFICATE-----") {
            return Err(wrong("cert")(
                "there is no certificate in it; PEM begins with -----BEGIN".to_owned(),
            ));
        }
        let identity = Identity::from_pem(format!("{certificate}\n{key}").as_bytes());
        builder = builder.identity(identity.map_err(|error| wrong("key")(with_causes(&error)))?);
    }
    Ok(builder)
}

/// The headers of the config. No error repeats a value, which may be a secret (SEC-5).
fn own_headers(pairs: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(pairs.len());
    for (name, value) in pairs {
        let lower = name.to_ascii_lowercase();
        if lower == CONTENT_TYPE.as_str() {
            return Err(format!("{name} is set by `content_type`"));
        }
        if OWN_HEADERS.contains(&lower.as_str()) || OWN_PREFIXES.iter().any(|own| lower.starts_with(own)) {
            return Err(format!("{name} is a header that Keylane sets itself"));
        }
        let found = HeaderName::try_from(name)
            .map_err(|_| format!("{:?} cannot be the name of a header", name.escape_debug().to_string()))?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("the value of {name} has a line break or another control character"))?;
        value.set_sensitive(true);
        headers.append(found, value);
    }
    Ok(headers)
}

impl Handler for HttpHandler {
    /// The handler waits only for the network, and asynchronously.
    fn may_block(&self) -> bool {
        false
    }

    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let mut request = Request::new(Method::POST, self.url.clone());
        match self.headers(&attempt) {
            Ok(headers) => *request.headers_mut() = headers,
            // The receiver could not change this, so another attempt would not help.
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

/// The URL of `settings`, if pushes can go there. No error repeats the URL: it may hold a secret (SEC-5), and the
/// caller knows which one it gave.
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
    if (is_this_machine(host) || literal.is_ok_and(is_private)) && !settings.allow_private {
        return Err("the URL leads to a private address; set `allow_private: true` to push there".to_owned());
    }
    Ok(url)
}

/// Whether a name means this machine on every system (RFC 6761), so that it need not be looked up.
fn is_this_machine(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host == "localhost" || host.ends_with(".localhost")
}

/// The part of a URL that may be shown: the query may carry a secret (SEC-5).
fn without_query(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    shown.to_string()
}

/// The headers that describe the message. An error names the one that HTTP cannot carry.
fn headers(attempt: &Attempt<'_>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(16);
    // Also for an empty payload: some servers answer 411 to a POST without it.
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

/// An error together with its causes: reqwest's own text stops at "error sending request".
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
    // Some layers repeat the text of the layer below.
    if !text.ends_with(&cause) {
        text.push_str(": ");
        text.push_str(&cause);
    }
}

#[cfg(test)]
mod tests;
