//! The status page: one static document whose script calls the admin API and shows the answers.
//!
//! The document contains no data and loads nothing from other hosts. Its policy allows exactly its own script and
//! style, by hash (SEC-3). The script puts answers into text nodes only, because a key can contain markup.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, header};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const FRAME: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| FRAME.replace("{style}", STYLE).replace("{script}", SCRIPT));

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::from_str(&policy).expect("letters, digits and punctuation only")
});

/// `GET /`
pub(crate) async fn page() -> Response<Body> {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, DOCUMENT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-3: the hashes in the policy are those of what a browser finds between the tags.
    #[test]
    fn the_policy_allows_the_pages_own_script_and_style_and_nothing_else() {
        let policy = POLICY.to_str().expect("text");
        for (open, close) in [("<script>", "</script>"), ("<style>", "</style>")] {
            let begin = DOCUMENT.find(open).expect("it has one") + open.len();
            let end = begin + DOCUMENT[begin..].find(close).expect("it is closed");
            let hash = STANDARD.encode(Sha256::digest(&DOCUMENT.as_bytes()[begin..end]));
            assert!(policy.contains(&hash), "{open}");
            assert_eq!(DOCUMENT.matches(open).count(), 1);
        }
        assert!(!DOCUMENT.contains("http://") && !DOCUMENT.contains("https://"), "nothing from other hosts");
        for unsafe_way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", " style=", "onclick="]
        {
            assert!(!DOCUMENT.contains(unsafe_way), "{unsafe_way}");
        }
    }
}
