//! The HTTP client with which commands call a running server's API.
//!
//! In: the path of a route and the body to send. Out: the server's answer, or a failure in one sentence. A server that
//! cannot be reached and a server that refuses the request are different failures, because their exit codes differ.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// If no connection is established within this time, the command reports the server as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The command gives up a request that takes longer. After a given-up batch nobody knows whether the server accepted
/// the messages; the error says so.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The server that a command calls, and the token that the command shows to the server.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address of the server
    #[arg(long, env = "KEYLANE_URL", default_value = "http://127.0.0.1:7400")]
    pub url: String,
    /// Token, if the server has tokens. Prefer the variable: other users can see arguments in the list of processes
    #[arg(long, env = "KEYLANE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// A client of one server.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: Option<HeaderValue>,
}

/// The body of an error answer of the server (RFC 9457, ING-7).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: String,
    code: String,
}

impl Client {
    /// Makes a client for `args` without connecting.
    pub fn new(args: &ServerArgs) -> Result<Client, Failure> {
        // The error does not repeat the address, because the address may contain a password.
        let wrong = |why: &str| Failure::Wrong(format!("--url: {why}"));
        let base = Url::parse(&args.url).map_err(|error| wrong(&format!("this is no address: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong("an http:// or https:// address is needed"));
        }
        let token = args.token.as_deref().filter(|token| !token.trim().is_empty());
        let authorization = token.map(bearer).transpose()?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            // A proxy that the environment names would see the token, and could not reach this machine's loopback.
            .no_proxy()
            .user_agent(concat!("keylane/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::Failed(format!("cannot set up HTTP: {}", root_cause(&error))))?;
        Ok(Client { http, base, authorization })
    }

    /// Sends a GET request and reads the JSON answer.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let request = self.request(Method::GET, path).query(query).timeout(ANSWER_TIMEOUT);
        let (status, body) = self.answer(request).await?;
        if !status.is_success() {
            return Err(Failure::Failed(refusal(status, &body)));
        }
        serde_json::from_slice(&body).map_err(|error| self.not_understood(&error))
    }

    /// Parses an answer, or a part of one, that the caller kept as raw JSON.
    pub fn read<'a, T: Deserialize<'a>>(&self, answer: &'a RawValue) -> Result<T, Failure> {
        serde_json::from_str(answer.get()).map_err(|error| self.not_understood(&error))
    }

    /// Sends a body and returns status and body of the answer. A refusal is returned too, and is not a failure here.
    pub async fn post(
        &self,
        path: &[&str],
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let request = self
            .request(Method::POST, path)
            .header(CONTENT_TYPE, content_type)
            .body(body)
            .timeout(ANSWER_TIMEOUT);
        self.answer(request).await
    }

    /// Sends a POST request without a body and reads the JSON answer.
    pub async fn order<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        self.order_within(path, ANSWER_TIMEOUT).await
    }

    /// Like [`Client::order`], with a query.
    pub async fn order_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        self.done(self.request(Method::POST, path).query(query).timeout(ANSWER_TIMEOUT)).await
    }

    /// Like [`Client::order`], with a time-out of the caller's choice, for work that takes long.
    pub async fn order_within<T: DeserializeOwned>(
        &self,
        path: &[&str],
        timeout: Duration,
    ) -> Result<T, Failure> {
        self.done(self.request(Method::POST, path).timeout(timeout)).await
    }

    /// Like [`Client::order_within`], with a JSON body.
    pub async fn order_about<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &serde_json::Value,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let json = HeaderValue::from_static("application/json");
        let request = self.request(Method::POST, path).header(CONTENT_TYPE, json).body(body.to_string());
        self.done(request.timeout(timeout)).await
    }

    async fn done<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let (status, body) = self.answer(request).await?;
        if !status.is_success() {
            return Err(Failure::Failed(refusal(status, &body)));
        }
        serde_json::from_slice(&body).map_err(|error| self.not_understood(&error))
    }

    /// Sends a GET request whose answer may never end. The caller reads the body in pieces, so there is no time-out.
    pub async fn stream(&self, path: &[&str], query: &[(&str, String)]) -> Result<Response, Failure> {
        let request = self.request(Method::GET, path).query(query);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Err(Failure::Failed(refusal(status, &body)))
    }

    /// The failure for a connection that could not be made, or that broke before the answer was complete.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let why = if error.is_timeout() && !error.is_connect() {
            "no answer in time".to_owned()
        } else {
            root_cause(error)
        };
        Failure::Unreachable { url: without_secrets(&self.base), why }
    }

    /// The failure for an answer that is not the JSON that a Keylane server of this version sends.
    pub fn not_understood(&self, error: &serde_json::Error) -> Failure {
        Failure::Failed(format!(
            "{} answered with something else than expected ({error}); is it a Keylane server of this version?",
            without_secrets(&self.base)
        ))
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .expect("checked when the client was made: the address can have a path")
            .pop_if_empty()
            .extend(path);
        let request = self.http.request(method, url);
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok((status, body.to_vec()))
    }
}

/// The address without the parts that may hold a secret: user, password, query and fragment (SEC-5).
pub fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These calls fail only for addresses without a host, and such addresses have neither user nor password.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.to_string()
}

/// Turns an error answer into one sentence.
pub fn refusal(status: StatusCode, body: &[u8]) -> String {
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let said = match (problem.detail.is_empty(), problem.title.is_empty()) {
        (false, _) => problem.detail,
        (true, false) => problem.title,
        (true, true) => format!("the server answered {status}"),
    };
    let said = match status {
        StatusCode::UNAUTHORIZED => format!("{said}. Give it as --token, or in the variable KEYLANE_TOKEN"),
        _ => said,
    };
    if problem.code.is_empty() { said } else { format!("{said} ({})", problem.code) }
}

fn bearer(token: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| Failure::Wrong("--token: it has characters that cannot be in a token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The text of the innermost error, which the system gave, without the layers that libraries put around it.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ING-7, ADM-8.
    #[test]
    fn a_problem_becomes_one_sentence_with_its_code() {
        let body = br#"{"type":"about:blank","title":"Unknown topic","status":404,"detail":"there is no topic x","code":"KL-1201"}"#;
        assert_eq!(refusal(StatusCode::NOT_FOUND, body), "there is no topic x (KL-1201)");
    }

    /// SEC-5.
    #[test]
    fn a_password_in_an_address_is_not_shown() {
        let url = Url::parse("https://me:secret@example.com:9000/orders?token=secret#secret").expect("a URL");
        assert_eq!(without_secrets(&url), "https://example.com:9000/orders");
    }

    /// ADM-8.
    #[test]
    fn an_answer_that_is_no_problem_names_its_status() {
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"<html>"), "the server answered 502 Bad Gateway");
    }

    /// ADM-8, SEC-5.
    #[test]
    fn an_address_without_http_is_wrong_usage_and_no_password_is_shown() {
        for url in
            ["localhost:7400", "ftp://x", "not an address", "ftp://me:secret@x/", "http://me:secret@[/"]
        {
            let args = ServerArgs { url: url.to_owned(), token: None };
            let failure = Client::new(&args).err().expect("it is refused");
            assert_eq!(failure.exit_code(), 2, "{url}");
            assert!(!failure.to_string().contains("secret"), "{failure}");
        }
    }
}
