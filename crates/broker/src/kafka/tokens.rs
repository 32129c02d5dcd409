//! OAUTHBEARER with OIDC: tokens from an endpoint, by the grant `client_credentials`, given to every client (BRK-2).
//!
//! librdkafka's own way needs a library that is not built in, and asks for a token where a client happens to be polled;
//! so it is done here, with the HTTP client that Keylane has. One thread fetches a token for all clients, gives it to
//! each, and fetches the next when most of its life is over. A fetch that fails is tried again, in doubling waits, long
//! before the token ends; meanwhile the old one is used. Clients do not connect before they have one.
#![allow(unsafe_code, reason = "gives tokens to librdkafka; see above")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rdkafka::admin::AdminClient;
use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaRespErr;
use serde::Deserialize;
use tokio::sync::Notify;

use super::clients::Client;
use super::context::Context;
use super::member::Member;
use super::{clock, lock};
use crate::contract::BrokerError;
use crate::threads::{Apart, Threads};

/// Settings of librdkafka's that are ours here, by the same names.
const METHOD: &str = "sasl.oauthbearer.method";
const ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
const CLIENT_ID: &str = "sasl.oauthbearer.client.id";
const CLIENT_SECRET: &str = "sasl.oauthbearer.client.secret";
const SCOPE: &str = "sasl.oauthbearer.scope";
const EXTENSIONS: &str = "sasl.oauthbearer.extensions";
const AUTHORITY: &str = "https.ca.location";
/// All of them: they are not passed on.
pub(crate) const OURS: [&str; 7] = [METHOD, ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, EXTENSIONS, AUTHORITY];

/// The thread that fetches tokens.
const SERVING: &str = "kafka-tokens";
/// How long the endpoint may take.
const FETCH: Duration = Duration::from_secs(10);
/// The first wait behind a fetch that failed; doubles up to the longest.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// The largest answer that is read: a token has some kilobytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Of a token's life, the part after which the next one is fetched.
const RENEW_AT: f64 = 0.6;
/// No token is used for longer, whatever it says: one without a foreseeable end would never be renewed, and the client
/// counts in microseconds.
const LIFE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a token without an end of its own is used.
const LIFE: Duration = Duration::from_secs(300);

/// Where tokens come from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    url: String,
    client_id: String,
    client_secret: String,
    scope: Option<String>,
    extensions: Vec<(String, String)>,
    authority: Option<String>,
}

/// Without the secret, and what may be one (SEC-5).
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.shown()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The URL as it may be shown: a user and a query may be secrets (SEC-5).
    fn shown(&self) -> String {
        let Ok(mut url) = reqwest::Url::parse(&self.url) else { return ENDPOINT.to_owned() };
        url.set_query(None);
        url.set_fragment(None);
        // A URL of http takes both.
        let _taken = (url.set_username(""), url.set_password(None));
        url.into()
    }

    /// What the settings say; none if tokens are not fetched.
    pub(crate) fn of(settings: &BTreeMap<String, String>) -> Result<Option<Endpoint>, BrokerError> {
        let set = |name: &str| settings.get(name).filter(|value| !value.is_empty()).cloned();
        let invalid = |text: String| Err(BrokerError::Invalid(text));
        let bearer = ["sasl.mechanism", "sasl.mechanisms"]
            .iter()
            .any(|name| set(name).is_some_and(|mechanism| mechanism.eq_ignore_ascii_case("OAUTHBEARER")));
        match set(METHOD).map(|method| method.to_lowercase()).as_deref() {
            Some("oidc") if !bearer => {
                return invalid(format!(
                    "broker.kafka.settings.{METHOD} is oidc, but sasl.mechanism is not OAUTHBEARER; set it too"
                ));
            }
            Some("oidc") => {}
            Some("default") | None => {
                let alone = OURS.iter().find(|name| **name != METHOD && settings.contains_key(**name));
                return match alone {
                    Some(name) => invalid(format!(
                        "broker.kafka.settings.{name} is set, but {METHOD} is not oidc; set it too"
                    )),
                    None => Ok(None),
                };
            }
            Some(_) => return invalid(format!("broker.kafka.settings.{METHOD} takes oidc or default")),
        }
        let needed = |name: &str| match set(name) {
            Some(value) => Ok(value),
            None => Err(BrokerError::Invalid(format!(
                "broker.kafka.settings.{name} is missing: {METHOD} oidc needs it"
            ))),
        };
        let url = needed(ENDPOINT)?;
        let is_url = reqwest::Url::parse(&url).is_ok_and(|url| ["http", "https"].contains(&url.scheme()));
        if !is_url {
            return invalid(format!(
                "broker.kafka.settings.{ENDPOINT} is not a URL that begins with https://"
            ));
        }
        let pair =
            |one: &str| one.trim().split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let extensions: Option<Vec<_>> =
            set(EXTENSIONS).map_or(Some(Vec::new()), |all| all.split(',').map(pair).collect());
        let Some(extensions) = extensions else {
            return invalid(format!(
                "broker.kafka.settings.{EXTENSIONS} takes name=value, separated by commas"
            ));
        };
        Ok(Some(Endpoint {
            url,
            client_id: needed(CLIENT_ID)?,
            client_secret: needed(CLIENT_SECRET)?,
            scope: set(SCOPE),
            extensions,
            authority: set(AUTHORITY),
        }))
    }
}

/// A client that tokens are given to.
pub(crate) trait Bearer: Send + Sync {
    /// Its native handle, which lives as long as it does.
    fn native(&self) -> *mut rd::rd_kafka_t;
}

impl Bearer for AdminClient<Context> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.inner().native_ptr()
    }
}

impl<T: Bearer + 'static> Bearer for Apart<T> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        (**self).native()
    }
}

impl Bearer for BaseConsumer<Context> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.client().native_ptr()
    }
}

impl Bearer for Client {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.consumer.client().native_ptr()
    }
}

impl Bearer for Member {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.consumer.client().native_ptr()
    }
}

/// Fetches tokens, and gives them to all clients.
pub(crate) struct Tokens {
    endpoint: Endpoint,
    state: Mutex<State>,
    /// Told when nobody needs tokens any more.
    ended: Notify,
    /// Where its thread stands, with those of the clients.
    threads: Threads,
}

#[derive(Default)]
struct State {
    clients: Vec<Weak<dyn Bearer>>,
    token: Option<Token>,
    /// Why the last fetch failed, or no client takes what was fetched.
    failed: Option<String>,
}

#[derive(Debug, Clone)]
struct Token {
    value: CString,
    principal: CString,
    ends_ms: i64,
}

impl Tokens {
    /// Begins to fetch tokens. Nothing is fetched for longer than the returned handle lives.
    pub(crate) fn start(endpoint: Endpoint) -> Result<Arc<TokenKeeper>, BrokerError> {
        let client = client(&endpoint)?;
        let threads = Threads::default();
        let tokens = Arc::new(Tokens { endpoint, state: Mutex::default(), ended: Notify::new(), threads });
        let (fetching, ended) = (Arc::clone(&tokens), Arc::clone(&tokens));
        let fetch = move || {
            let (fetching, client) = (Arc::clone(&fetching), client.clone());
            async move { fetching.run(&client).await }
        };
        let ended = move |why: &str| ended.failed(why.to_owned());
        let started = tokens.threads.keep_with_runtime(SERVING, fetch, ended);
        started.map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        Ok(Arc::new(TokenKeeper(tokens)))
    }

    #[allow(clippy::disallowed_methods, reason = "waits for an endpoint, whose time cannot be simulated")]
    async fn run(&self, client: &reqwest::Client) {
        let mut again = AGAIN;
        loop {
            self.threads.may_be_struck(SERVING);
            let fetched = self.fetch(client).await;
            let given = fetched.and_then(|(token, life)| self.give(token).map(|()| life));
            let wait = match given {
                Ok(life) => {
                    again = AGAIN;
                    life.mul_f64(RENEW_AT)
                }
                Err(why) => {
                    self.failed(why);
                    let wait = again;
                    again = (2 * again).min(AGAIN_MAX);
                    wait
                }
            };
            if tokio::time::timeout(wait, self.ended.notified()).await.is_ok() {
                return;
            }
        }
    }

    fn failed(&self, why: String) {
        let mut state = lock(&self.state);
        let left_ms = state.token.as_ref().map(|token| token.ends_ms - now_ms());
        tracing::warn!(why, left_ms, "kafka: no token was fetched; it is tried again");
        state.failed = Some(why);
    }

    async fn fetch(&self, client: &reqwest::Client) -> Result<(Token, Duration), String> {
        let Endpoint { client_id, client_secret, scope, .. } = &self.endpoint;
        let url = self.endpoint.shown();
        let asked = client
            .post(&self.endpoint.url)
            .basic_auth(client_id, Some(client_secret))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form(scope.as_deref()))
            .send();
        let mut answer =
            asked.await.map_err(|error| format!("{url} does not answer: {}", root(&error.without_url())))?;
        let (status, mut body) = (answer.status(), Vec::new());
        while let Some(more) = answer
            .chunk()
            .await
            .map_err(|error| format!("{url} breaks off: {}", root(&error.without_url())))?
        {
            body.extend_from_slice(&more);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(format!("{url} answers with more than {ANSWER_BYTES_MAX} bytes"));
            }
        }
        if !status.is_success() {
            // Not what it says: an echo of the request would have the secret.
            return Err(format!("{url} answers {status}"));
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| format!("{url} answers with no access_token"))?;
        token(&answer, now_ms()).map_err(|why| format!("{url} answers with a token that {why}"))
    }

    /// All clients get the token; those that are gone are forgotten.
    fn give(&self, token: Token) -> Result<(), String> {
        let mut state = lock(&self.state);
        state.clients.retain(|client| client.strong_count() > 0);
        let clients: Vec<Arc<dyn Bearer>> = state.clients.iter().filter_map(Weak::upgrade).collect();
        // Held all the while: who serves a new client must not give it an older one behind this.
        let mut set: Vec<_> = clients.iter().map(|client| self.set(&**client, &token)).collect();
        // One that nobody takes changes nothing: the last one is used for as long as it lives.
        if set.iter().all(Result::is_err) {
            set.pop().unwrap_or(Ok(()))?;
        }
        state.token = Some(token);
        state.failed = None;
        drop(state);
        Ok(())
    }

    /// Waits for nobody. The caller holds the state. The error says why the client does not take it.
    fn set(&self, client: &dyn Bearer, token: &Token) -> Result<(), String> {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let extensions: Vec<CString> =
            self.endpoint.extensions.iter().flat_map(|(name, value)| [text(name), text(value)]).collect();
        let mut pointers: Vec<_> = extensions.iter().map(|text| text.as_ptr()).collect();
        let mut error = [0; 256];
        // SAFETY: the client lives, and everything that is pointed to outlives the call, which copies it.
        let set = unsafe {
            rd::rd_kafka_oauthbearer_set_token(
                client.native(),
                token.value.as_ptr(),
                token.ends_ms,
                token.principal.as_ptr(),
                if pointers.is_empty() { ptr::null_mut() } else { pointers.as_mut_ptr() },
                pointers.len(),
                error.as_mut_ptr(),
                error.len(),
            )
        };
        if set == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Ok(());
        }
        // SAFETY: the client ends it with a zero, within the room that it was given.
        let why = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
        // Behind it is what is wrong, which may be the token (SEC-5).
        let why = why.split(": ").next().unwrap_or_default();
        tracing::warn!(?set, why, "kafka: a client does not take the token that was fetched");
        let url = self.endpoint.shown();
        Err(format!("{url} answers with a token that no client takes with {EXTENSIONS}: {why}"))
    }
}

/// Ends the fetching when it is dropped.
pub(crate) struct TokenKeeper(Arc<Tokens>);

impl TokenKeeper {
    pub(crate) fn threads(&self) -> &Threads {
        &self.0.threads
    }

    /// From now on the client gets tokens.
    pub(crate) fn serve(&self, client: &Arc<dyn Bearer>) {
        let mut state = lock(&self.0.state);
        state.clients.push(Arc::downgrade(client));
        // With the state held: a newer one may come any moment, and must not be replaced by this.
        if let Some(token) = &state.token {
            // What is wrong is logged, and told once no client takes the next one either.
            let _taken = self.0.set(&**client, token);
        }
    }

    /// Why there is no token, if so: the last one has ended, or there was none yet.
    pub(crate) fn trouble(&self) -> Option<String> {
        let state = lock(&self.0.state);
        let why = state.failed.as_ref()?;
        let left = state.token.as_ref().is_some_and(|token| token.ends_ms > now_ms());
        (!left).then(|| format!("there is no token to log in with: {why}; look at sasl.oauthbearer.* under broker.kafka.settings, and at the endpoint; it is tried again"))
    }
}

impl Drop for TokenKeeper {
    fn drop(&mut self) {
        self.0.ended.notify_one();
    }
}

#[derive(Debug, Deserialize)]
struct Answer {
    access_token: String,
    expires_in: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    sub: Option<String>,
    exp: Option<f64>,
}

/// The token of an answer, and how long it lives from now on.
fn token(answer: &Answer, now_ms: i64) -> Result<(Token, Duration), &'static str> {
    let claims = answer.access_token.split('.').nth(1).and_then(|part| {
        let bytes = base64(part)?;
        serde_json::from_slice::<Claims>(&bytes).ok()
    });
    let claims = claims.unwrap_or(Claims { sub: None, exp: None });
    let told = answer.expires_in.map(|seconds| now_ms.saturating_add_unsigned(seconds.saturating_mul(1_000)));
    let ends_ms = claims.exp.map(|seconds| (seconds * 1_000.0) as i64).or(told);
    let ends_ms = ends_ms.unwrap_or(now_ms + LIFE.as_millis() as i64);
    let ends_ms = ends_ms.min(now_ms + LIFE_MAX.as_millis() as i64);
    let life = u64::try_from(ends_ms.saturating_sub(now_ms)).map_err(|_| "has ended already")?;
    let c_text = |text: &str| CString::new(text).map_err(|_| "has a zero byte");
    let principal = claims.sub.as_deref().unwrap_or("keylane");
    let token = Token { value: c_text(&answer.access_token)?, principal: c_text(principal)?, ends_ms };
    Ok((token, Duration::from_millis(life.max(1_000))))
}

/// Decodes base64 as tokens have it: for URLs, without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' | b'+' => 62,
            b'_' | b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// What is asked for, as a form.
fn form(scope: Option<&str>) -> String {
    let mut url = reqwest::Url::parse("http://form").expect("a constant");
    let mut pairs = url.query_pairs_mut();
    pairs.append_pair("grant_type", "client_credentials");
    if let Some(scope) = scope {
        pairs.append_pair("scope", scope);
    }
    drop(pairs);
    url.query().unwrap_or_default().to_owned()
}

fn client(endpoint: &Endpoint) -> Result<reqwest::Client, BrokerError> {
    let invalid = |text: String| BrokerError::Invalid(text);
    crate::tls::provide_cryptography();
    let mut builder = reqwest::Client::builder().timeout(FETCH).redirect(reqwest::redirect::Policy::none());
    if let Some(path) = &endpoint.authority {
        let pem = std::fs::read(path)
            .map_err(|error| invalid(format!("broker.kafka.settings.{AUTHORITY}: {path}: {error}")))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|error| invalid(format!("broker.kafka.settings.{AUTHORITY}: {path}: {error}")))?;
        builder = certificates.into_iter().fold(builder, |builder, one| builder.add_root_certificate(one));
    }
    builder.build().map_err(|error| invalid(format!("the client of {ENDPOINT} cannot be made: {error}")))
}

/// The innermost reason: the outer ones only say that a request failed.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

/// Tokens end by the system's clock.
fn now_ms() -> i64 {
    clock::wall_ms() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const FULL: [(&str, &str); 5] = [
        ("sasl.mechanism", "OAUTHBEARER"),
        (METHOD, "oidc"),
        (ENDPOINT, "https://id.example.com/token"),
        (CLIENT_ID, "keylane"),
        (CLIENT_SECRET, "secret"),
    ];

    /// BRK-2, SEC-5: what is missing is named, and a secret is not shown.
    #[test]
    fn settings_of_tokens_are_checked_before_anything_is_fetched() {
        assert_eq!(Endpoint::of(&settings(&[])), Ok(None));
        assert!(matches!(Endpoint::of(&settings(&FULL)), Ok(Some(_))));
        for left_out in [ENDPOINT, CLIENT_ID, CLIENT_SECRET, METHOD, "sasl.mechanism"] {
            let mut some = settings(&FULL);
            some.remove(left_out);
            let refused = Endpoint::of(&some).expect_err("something is missing").to_string();
            assert!(refused.contains(left_out) && !refused.contains("secret\""), "{refused}");
        }
        for (name, value) in [(ENDPOINT, "id.example.com"), (METHOD, "magic"), (EXTENSIONS, "a")] {
            let mut wrong = settings(&FULL);
            wrong.insert(name.to_owned(), value.to_owned());
            let refused = Endpoint::of(&wrong).expect_err("it is wrong").to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }

    /// SEC-5: of an endpoint's URL only scheme, host and path are ever shown, in logs, in `/readyz` and in debug output.
    #[tokio::test]
    async fn what_is_secret_of_an_endpoint_is_not_shown() {
        let mut set = settings(&FULL);
        // Nobody listens there.
        let url = "http://user:hush1@127.0.0.1:1/token?key=hush2#hush3";
        set.insert(ENDPOINT.to_owned(), url.to_owned());
        set.insert(CLIENT_SECRET.to_owned(), "hush4".to_owned());
        let endpoint = Endpoint::of(&set).expect("it is well formed").expect("it is set");
        let debug = format!("{endpoint:?}");
        let http = client(&endpoint).expect("it is made");
        let (state, ended, threads) = (Mutex::default(), Notify::new(), Threads::default());
        let tokens = Tokens { endpoint, state, ended, threads };
        let told = tokens.fetch(&http).await.expect_err("nobody listens");
        for shown in [debug, told] {
            assert!(shown.contains("http://127.0.0.1:1/token"), "{shown}");
            assert!(!shown.contains("hush") && !shown.contains("user"), "{shown}");
        }
    }

    /// A client that says whether the tokens were held while it was given one.
    struct Watched {
        consumer: BaseConsumer<Context>,
        tokens: Weak<Tokens>,
        held: Mutex<Vec<bool>>,
    }

    impl Bearer for Watched {
        fn native(&self) -> *mut rd::rd_kafka_t {
            let tokens = self.tokens.upgrade().expect("they are there");
            lock(&self.held).push(tokens.state.try_lock().is_err());
            self.consumer.client().native_ptr()
        }
    }

    /// A client like ours.
    fn consumer() -> BaseConsumer<Context> {
        let mut config = rdkafka::ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1").set("security.protocol", "SASL_PLAINTEXT");
        config.set("sasl.mechanism", "OAUTHBEARER").create_with_context(Context::default()).expect("one")
    }

    fn keeper() -> TokenKeeper {
        let endpoint = Endpoint::of(&settings(&FULL)).expect("it is well formed").expect("it is set");
        let (state, ended, threads) = (Mutex::default(), Notify::new(), Threads::default());
        TokenKeeper(Arc::new(Tokens { endpoint, state, ended, threads }))
    }

    fn made(value: &str) -> Token {
        let answer = Answer { access_token: value.to_owned(), expires_in: Some(60) };
        token(&answer, now_ms()).expect("a token").0
    }

    /// BRK-8, SEC-5: a token that no client takes is no token, and `/readyz` says why; it is not shown.
    #[test]
    fn a_token_that_is_not_taken_is_told() {
        let keeper = keeper();
        let client: Arc<dyn Bearer> = Arc::new(consumer());
        keeper.serve(&client);
        let why = keeper.0.give(made("not\u{1}good")).expect_err("it is none");
        keeper.0.failed(why);
        let trouble = keeper.trouble().expect("there is no other");
        assert!(trouble.contains("no client takes") && !trouble.contains("good"), "{trouble}");
        keeper.0.give(made("good")).expect("it is taken");
        assert_eq!(keeper.trouble(), None);
        let why = keeper.0.give(made("not\u{1}good")).expect_err("it is none");
        keeper.0.failed(why);
        assert_eq!(keeper.trouble(), None, "the last one lives");
    }

    /// BRK-2, BRK-8: two who give tokens to one client do it one behind the other, so that no older one replaces a newer.
    #[test]
    fn no_older_token_replaces_a_newer_one() {
        let keeper = keeper();
        let tokens = Arc::downgrade(&keeper.0);
        let watched = Arc::new(Watched { consumer: consumer(), tokens, held: Mutex::default() });
        let client: Arc<dyn Bearer> = watched.clone();
        keeper.0.give(made("first")).expect("nobody has to take it");
        keeper.serve(&client);
        keeper.0.give(made("second")).expect("it is taken");
        assert_eq!(*lock(&watched.held), [true, true]);
    }

    /// BRK-2: a token says whose it is and when it ends; where it does not, the answer does.
    #[test]
    fn a_token_ends_when_it_says() {
        // {"sub":"pipeline","exp":2000}
        let jwt = "e30.eyJzdWIiOiJwaXBlbGluZSIsImV4cCI6MjAwMH0.c2ln";
        let answer = |token: &str, expires_in| Answer { access_token: token.to_owned(), expires_in };
        let (read, life) = token(&answer(jwt, Some(5)), 1_000_000).expect("a token");
        assert_eq!((read.principal.as_c_str(), read.ends_ms), (c"pipeline", 2_000_000));
        assert_eq!(life, Duration::from_secs(1_000));
        let (opaque, life) = token(&answer("opaque", Some(60)), 1_000_000).expect("a token");
        assert_eq!((opaque.ends_ms, life), (1_060_000, Duration::from_secs(60)));
        assert!(token(&answer(jwt, None), 3_000_000).is_err(), "it has ended");
        let (endless, life) = token(&answer("opaque", Some(u64::MAX)), 1_000_000).expect("a token");
        assert_eq!((endless.ends_ms, life), (1_000_000 + LIFE_MAX.as_millis() as i64, LIFE_MAX));
        // {"exp":-1e300}
        let long_ago = "e30.eyJleHAiOi0xZTMwMH0.c2ln";
        assert!(token(&answer(long_ago, None), 1_000_000).is_err(), "it has ended");
    }
}
