//! The way to a server: every command that is not one itself goes through here.
//!
//! In comes a path and what to send; out comes the answer, or one sentence that says what is wrong: a server that does
//! not answer is told apart from one that refuses, since their exit codes differ.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// A server that does not take a connection within this is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A read or a batch that takes longer is given up; whether a batch was taken is then not known, and said so.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Which server, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address of the server
    #[arg(long, env = "KEYLANE_URL", default_value = "http://127.0.0.1:7400")]
    pub url: String,
    /// Token, where the server asks for one; the variable keeps it out of the list of processes
    #[arg(long, env = "KEYLANE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// A client of one server.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: Option<HeaderValue>,
}

/// An error as the server tells it (RFC 9457, ING-7).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: String,
    code: String,
}

impl Client {
    /// A client for `args`; nothing is connected yet.
    pub fn new(args: &ServerArgs) -> Result<Client, Failure> {
        // The address is not repeated: it may hold a password, and whoever typed it knows it.
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
            // A proxy of the environment would see the token, and cannot reach this machine's loopback.
            .no_proxy()
            .user_agent(concat!("keylane/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::Failed(format!("cannot set up HTTP: {}", root_cause(&error))))?;
        Ok(Client { http, base, authorization })
    }

    /// Reads a JSON answer.
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

    /// Reads an answer, or a part of one, that was kept as it came.
    pub fn read<'a, T: Deserialize<'a>>(&self, answer: &'a RawValue) -> Result<T, Failure> {
        serde_json::from_str(answer.get()).map_err(|error| self.not_understood(&error))
    }

    /// Sends a body; the answer comes as it is, refusals included.
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

    /// Asks the server to do something, and reads its JSON answer.
    pub async fn order<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        self.order_within(path, ANSWER_TIMEOUT).await
    }

    /// The same, with a query.
    pub async fn order_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        self.done(self.request(Method::POST, path).query(query).timeout(ANSWER_TIMEOUT)).await
    }

    /// The same, for what takes its time.
    pub async fn order_within<T: DeserializeOwned>(
        &self,
        path: &[&str],
        timeout: Duration,
    ) -> Result<T, Failure> {
        self.done(self.request(Method::POST, path).timeout(timeout)).await
    }

    /// The same, with a JSON body.
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

    /// Begins to read an answer that may go on for ever.
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

    /// A connection that ended as no answer should.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let why = if error.is_timeout() && !error.is_connect() {
            "no answer in time".to_owned()
        } else {
            root_cause(error)
        };
        Failure::Unreachable { url: without_secrets(&self.base), why }
    }

    /// An answer that is not what a Keylane server of this version says.
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

/// An address without what may be a password: its user and its query (SEC-5).
pub fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Only addresses without a host refuse this, and they have no user.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.to_string()
}

/// One sentence for an answer that is a refusal.
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

/// The innermost error: what the system said, without the layers around it.
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
