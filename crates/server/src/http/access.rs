//! Decides which caller may call which route (ADM-2, SEC-1).
//!
//! One function decides for every route, so that none can be forgotten. A few routes are open; a request that only
//! reads needs `read`; one that can lose messages or copies all of them needs `admin`; every other request needs
//! `operate`. Tokens are stored as SHA-256 and compared in constant time. Without tokens, only this machine is served,
//! and only if the request names an address or localhost: a foreign DNS name may point at 127.0.0.1. Requests that a
//! proxy passes on are refused, because they come from other machines.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use keylane::ErrorCode;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::config::TokenConfig;

/// What a token permits. Each role includes the roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May read.
    Read,
    /// May also produce and change things.
    Operate,
    /// May do everything.
    Admin,
}

impl Role {
    pub(crate) fn named(name: &str) -> Role {
        match name {
            "admin" => Role::Admin,
            "operate" => Role::Operate,
            _ => Role::Read,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

/// Headers that proxies add to requests that they pass on.
const PASSED_ON: [&str; 3] = ["forwarded", "x-forwarded-for", "via"];

/// Makes a random token.
pub fn new_token() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system gives random bytes, or nothing here is safe");
    let text = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, bytes);
    format!("kl_{text}")
}

/// The SHA-256 of a token as hex digits, as the config takes it.
pub fn hash_token(token: &str) -> String {
    hash(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

/// Whether a header can carry the token: visible ASCII characters, with spaces only between them.
pub fn is_token(token: &str) -> bool {
    !token.is_empty()
        && token.trim_ascii() == token
        && token.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// A token whose hash stood in an example of an earlier version, from which users copied it.
const EXAMPLE: &str = "foo";

/// The token behind the hash, if it is one that anybody can guess.
pub(crate) fn known_to_everybody(hashed: &[u8; 32]) -> Option<String> {
    if *hashed == hash("") {
        return Some("an empty token".to_owned());
    }
    (*hashed == hash(EXAMPLE)).then(|| format!("the token `{EXAMPLE}`"))
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Who sent a request: the name of the token, `local` on a server without tokens, or `unknown`. The log shows it with
/// refused requests and admin calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who(Arc<str>);

impl Who {
    /// A caller who has not shown a token of this server.
    pub(crate) fn unknown() -> Who {
        Who("unknown".into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Decides about requests by the tokens of the config.
pub(crate) struct Access {
    tokens: Vec<TokenConfig>,
}

impl Access {
    pub(crate) fn new(tokens: Vec<TokenConfig>) -> Access {
        Access { tokens }
    }

    /// Returns the caller, and whether the request may reach its route.
    pub(crate) fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> (Who, Result<(), Problem>) {
        let refused = |problem| (Who::unknown(), Err(problem));
        let Some(needed) = needed(method, uri.path()) else {
            return (Who::unknown(), Ok(()));
        };
        if !reads(method) && is_from_another_page(headers) {
            return refused(Problem::new(
                StatusCode::FORBIDDEN,
                ErrorCode::OtherSite,
                "a web page of another site asked for this",
                "a browser sent this for a page that does not come from this server (Origin or Sec-Fetch-Site says so); \
                 send it from a program, or from a page of this server",
            ));
        }
        if self.tokens.is_empty() {
            return match only_this_machine(uri, headers, peer) {
                Ok(()) => (Who("local".into()), Ok(())),
                Err(problem) => refused(problem),
            };
        }
        let Some(presented) = presented(headers) else {
            return refused(unauthorized("this needs a token, and none was sent"));
        };
        let Some(token) = self.token(presented) else {
            return refused(unauthorized("the token is not one of this server's"));
        };
        let may = if token.role >= needed { Ok(()) } else { Err(role_needed(needed, token.role)) };
        (Who(token.name.as_str().into()), may)
    }

    /// Finds the token. Compares with every token, so that the time of the answer does not show which token was near.
    fn token(&self, presented: &str) -> Option<&TokenConfig> {
        let presented = hash(presented);
        let mut found: Option<&TokenConfig> = None;
        for token in &self.tokens {
            let is_it = bool::from(token.sha256.ct_eq(&presented));
            if is_it && found.is_none_or(|found| found.role < token.role) {
                found = Some(token);
            }
        }
        found
    }
}

/// The role that a request needs; none if the route is open. The status page is open because it contains no data: its
/// script calls routes that need a role.
fn needed(method: &Method, path: &str) -> Option<Role> {
    let open = matches!(path, "/healthz" | "/readyz" | "/version" | "/openapi.json" | "/")
        || path.starts_with("/errors/");
    match (reads(method), open) {
        (true, true) => None,
        (true, false) => Some(Role::Read),
        (false, _) if path.ends_with("/forget-group") || path.starts_with("/admin/data/") => {
            Some(Role::Admin)
        }
        (false, _) => Some(Role::Operate),
    }
}

fn reads(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// Whether a browser sent the request for a page of another site. Such a page can make a visitor's browser post to any
/// address that the visitor can reach, and a server without tokens would obey. Programs send neither header.
fn is_from_another_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return true;
    }
    let host = text(header::HOST).unwrap_or_default();
    let is_own = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
    };
    text(header::ORIGIN).is_some_and(|origin| !is_own(origin))
}

fn presented<'a>(headers: &'a HeaderMap) -> Option<&'a str> {
    // An empty token counts as no token.
    let sent = |token: &'a str| Some(token.trim()).filter(|token| !token.is_empty());
    if let Some(token) = headers.get("x-admin-token").and_then(|token| sent(token.to_str().ok()?)) {
        return Some(token);
    }
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { sent(token) } else { None }
}

fn only_this_machine(uri: &Uri, headers: &HeaderMap, peer: SocketAddr) -> Result<(), Problem> {
    let refused = |why: String| {
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            ErrorCode::ThisMachineOnly,
            "only this machine may do this",
            format!("{why}; make a token with `keylane token new` and put it under server.tokens"),
        ))
    };
    if !peer.ip().to_canonical().is_loopback() {
        return refused(format!("there are no tokens, so only this machine is served, not {}", peer.ip()));
    }
    // A request that a proxy on this machine passes on has this machine's address, whoever sent it.
    if let Some(name) = PASSED_ON.into_iter().find(|name| headers.contains_key(*name)) {
        return refused(format!(
            "there are no tokens, so only this machine is served, and the header {name} says that a proxy passes on what others ask"
        ));
    }
    // DNS rebinding: a foreign page can use a DNS name of its own that points at this machine, and the browser then
    // lets the page read the answers. With an address or localhost as the host, the browser does not.
    let host = match headers.get(header::HOST) {
        Some(host) => host.to_str().unwrap_or("?"),
        None => uri.authority().map_or("", |authority| authority.as_str()),
    };
    if is_local_name(host) {
        Ok(())
    } else {
        refused("there are no tokens, so this server answers only to an address or to localhost".to_owned())
    }
}

fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn role_needed(needed: Role, role: Role) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        ErrorCode::RoleNeeded,
        "this needs another role",
        format!("this needs the role `{}`; the token has `{}`", needed.name(), role.name()),
    )
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        ErrorCode::TokenNeeded,
        "a token is needed",
        format!("{detail}; send it as `Authorization: Bearer …` or `X-Admin-Token: …`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(role: Role, text: &str) -> TokenConfig {
        TokenConfig { name: "t".to_owned(), role, sha256: hash(text) }
    }

    fn asks(access: &Access, method: Method, path: &str, name: &str, value: &str, peer: &str) -> u16 {
        let mut headers = HeaderMap::new();
        if !name.is_empty() {
            headers.insert(
                axum::http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
                value.parse().expect("a value"),
            );
        }
        let uri: Uri = path.parse().expect("a path");
        match access.check(&method, &uri, &headers, peer.parse().expect("an address")) {
            (_, Ok(())) => 200,
            (_, Err(problem)) => problem.status.as_u16(),
        }
    }

    /// ADM-2.
    #[test]
    fn each_role_may_do_what_it_says_and_no_more() {
        let access =
            Access::new(vec![token(Role::Read, "r"), token(Role::Operate, "o"), token(Role::Admin, "a")]);
        let far = "10.1.2.3:5";
        for (method, path, want) in [
            (Method::GET, "/healthz", [200, 200, 200, 200, 200]),
            (Method::GET, "/readyz", [200, 200, 200, 200, 200]),
            (Method::GET, "/version", [200, 200, 200, 200, 200]),
            (Method::GET, "/metrics", [401, 401, 200, 200, 200]),
            (Method::GET, "/admin/lanes", [401, 401, 200, 200, 200]),
            (Method::GET, "/no/such/path", [401, 401, 200, 200, 200]),
            (Method::POST, "/v1/topics/t/messages", [401, 401, 403, 200, 200]),
            (Method::DELETE, "/admin/anything", [401, 401, 403, 200, 200]),
            (Method::POST, "/healthz", [401, 401, 403, 200, 200]),
        ] {
            for (sent, want) in ["", "x", "r", "o", "a"].into_iter().zip(want) {
                let got = if sent.is_empty() {
                    asks(&access, method.clone(), path, "", "", far)
                } else {
                    asks(&access, method.clone(), path, "x-admin-token", sent, far)
                };
                assert_eq!(got, want, "{method} {path} with {sent:?}");
            }
        }
        assert_eq!(asks(&access, Method::GET, "/metrics", "authorization", "Bearer r", far), 200);
        assert_eq!(asks(&access, Method::GET, "/metrics", "authorization", "bearer  r", far), 200);
        assert_eq!(asks(&access, Method::GET, "/metrics", "authorization", "Basic r", far), 401);
    }

    /// ADM-2: the log can name the caller of each admin call and each refusal, and never shows a token.
    #[test]
    fn a_request_is_known_by_the_name_of_its_token() {
        let with = Access::new(vec![token(Role::Read, "r")]);
        let without = Access::new(Vec::new());
        for (access, method, sent, who, may) in [
            (&with, Method::GET, "r", "t", true),
            (&with, Method::POST, "r", "t", false),
            (&with, Method::GET, "wrong", "unknown", false),
            (&with, Method::GET, "", "unknown", false),
            (&without, Method::POST, "", "local", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-admin-token", sent.parse().expect("a value"));
            let path = "/admin/spill/drain".parse().expect("a path");
            let peer = "127.0.0.1:1".parse().expect("an address");
            let (found, allowed) = access.check(&method, &path, &headers, peer);
            assert_eq!((found.as_str(), allowed.is_ok()), (who, may), "{method} with {sent:?}");
        }
    }

    /// ADM-2: an empty token counts as no token, even if the config has the hash of an empty text.
    #[test]
    fn an_empty_token_is_none() {
        let access = Access::new(vec![token(Role::Admin, ""), token(Role::Read, "r")]);
        for (name, value) in [
            ("x-admin-token", ""),
            ("x-admin-token", " "),
            ("authorization", "Bearer "),
            ("authorization", "Bearer"),
        ] {
            assert_eq!(
                asks(&access, Method::GET, "/metrics", name, value, "10.1.2.3:5"),
                401,
                "{name}: {value:?}"
            );
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-admin-token", "".parse().expect("a value"));
        headers.insert(header::AUTHORIZATION, "Bearer r".parse().expect("a value"));
        assert_eq!(presented(&headers), Some("r"));
    }

    /// ADM-2.
    #[test]
    fn a_token_is_what_a_header_can_carry() {
        for (text, want) in [
            ("a", true),
            ("my token", true),
            ("", false),
            (" a", false),
            ("a\t", false),
            ("a\nb", false),
            ("é", false),
        ] {
            assert_eq!(is_token(text), want, "{text:?}");
        }
        assert!(is_token(&new_token()));
    }

    /// ADM-2, SEC-1.
    #[test]
    fn without_tokens_only_this_machine_is_served() {
        let access = Access::new(Vec::new());
        let get = |name, value, peer| asks(&access, Method::GET, "/metrics", name, value, peer);
        assert_eq!(get("", "", "127.0.0.1:1"), 200);
        assert_eq!(get("", "", "[::1]:1"), 200);
        assert_eq!(get("", "", "[::ffff:127.0.0.1]:1"), 200);
        assert_eq!(get("", "", "10.0.0.1:1"), 403);
        assert_eq!(asks(&access, Method::GET, "/healthz", "", "", "10.0.0.1:1"), 200);
        for (proxys, value) in
            [("forwarded", "for=10.0.0.1"), ("x-forwarded-for", "10.0.0.1"), ("via", "1.1 proxy")]
        {
            assert_eq!(get(proxys, value, "127.0.0.1:1"), 403, "{proxys}");
            assert_eq!(asks(&access, Method::GET, "/healthz", proxys, value, "127.0.0.1:1"), 200);
            let with = Access::new(vec![token(Role::Read, "r")]);
            assert_eq!(asks(&with, Method::GET, "/metrics", proxys, value, "127.0.0.1:1"), 401);
        }
        for (host, want) in [
            ("127.0.0.1:7400", 200),
            ("localhost:7400", 200),
            ("[::1]:7400", 200),
            ("evil.example:7400", 403),
            ("localhost.evil.example", 403),
        ] {
            assert_eq!(get("host", host, "127.0.0.1:1"), want, "{host}");
        }
    }

    /// SEC-1: a page of another site cannot make a visitor's browser change something on this server.
    #[test]
    fn a_web_page_of_another_site_can_change_nothing() {
        let open = Access::new(Vec::new());
        let path = "/v1/topics/t/messages";
        let post = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().expect("a value"));
            }
            let (_, asked) = open.check(
                &Method::POST,
                &path.parse().expect("a path"),
                &headers,
                "127.0.0.1:1".parse().expect("an address"),
            );
            asked.map_or_else(|problem| problem.code.as_str(), |()| "taken")
        };
        let host = ("host", "127.0.0.1:7400");
        assert_eq!(post(&[host]), "taken");
        assert_eq!(post(&[host, ("origin", "http://127.0.0.1:7400")]), "taken");
        assert_eq!(post(&[host, ("sec-fetch-site", "same-origin")]), "taken");
        assert_eq!(post(&[host, ("sec-fetch-site", "none")]), "taken");
        for origin in ["http://evil.example", "null", "http://127.0.0.1:7401", "http://localhost:7400", "?"] {
            assert_eq!(post(&[host, ("origin", origin)]), "KL-1505", "{origin}");
        }
        for site in ["cross-site", "same-site", "?"] {
            assert_eq!(post(&[host, ("sec-fetch-site", site)]), "KL-1505", "{site}");
        }
        let headers = [("origin", "http://evil.example")];
        let status = asks(&open, Method::GET, "/metrics", headers[0].0, headers[0].1, "127.0.0.1:1");
        assert_eq!(status, 200, "what only reads shows a page of another site nothing");
    }

    #[test]
    fn a_new_token_matches_its_hash_and_no_other() {
        let one = new_token();
        assert_ne!(one, new_token());
        let hashed = hash_token(&one);
        assert_eq!(parse_hash(&hashed), Some(hash(&one)));
        assert_eq!(parse_hash(&hashed.to_uppercase()), Some(hash(&one)));
        assert_eq!(parse_hash("zz"), None);
        assert_eq!(parse_hash(&"é".repeat(32)), None);
    }
}
