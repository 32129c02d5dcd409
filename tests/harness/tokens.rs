//! A small token server, like an identity provider's: it signs tokens with its own key, and shows the public half.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Gives tokens to clients that know the secret. Ends when dropped.
pub struct TokenServer {
    shared: Arc<Shared>,
    accepts: JoinHandle<()>,
    port: u16,
}

struct Shared {
    folder: TempDir,
    /// How long a token lives, in seconds; 0: no token is given.
    life_s: AtomicU64,
    given: AtomicU64,
    refused: AtomicU64,
}

impl TokenServer {
    /// The only client, and its secret.
    pub const CLIENT: (&str, &str) = ("keylane-client", "open-sesame");

    /// Starts a token server whose tokens live for this long.
    pub async fn start(life_s: u64) -> TokenServer {
        let folder = TempDir::new().expect("a temporary folder");
        openssl(folder.path(), &["genrsa", "-out", "key.pem", "2048"], b"");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let (life_s, given, refused) = (AtomicU64::new(life_s), AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { folder, life_s, given, refused });
        let accepting = Arc::clone(&shared);
        let accepts = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(answer(client, Arc::clone(&accepting)));
            }
        });
        TokenServer { shared, accepts, port }
    }

    /// The address of its public keys.
    pub fn jwks(&self) -> String {
        format!("http://127.0.0.1:{}/jwks", self.port)
    }

    /// The address of its tokens.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/token", self.port)
    }

    /// From now on tokens live for this long; with 0 none is given.
    pub fn set_life(&self, life_s: u64) {
        self.shared.life_s.store(life_s, Ordering::SeqCst);
    }

    /// Tokens that were given.
    pub fn given(&self) -> u64 {
        self.shared.given.load(Ordering::SeqCst)
    }

    /// Requests that were refused.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

async fn answer(mut client: TcpStream, shared: Arc<Shared>) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    // Requests are small: headers, and a form whose end is where its length says.
    while !is_whole(&request) {
        match client.read(&mut piece).await {
            Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let (status, body) = match text.starts_with("GET /jwks ") {
        true => ("200 OK", jwks(shared.folder.path())),
        false => token(&text, &shared),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = client.write_all(answer.as_bytes()).await;
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}

fn token(request: &str, shared: &Shared) -> (&'static str, String) {
    let (id, secret) = TokenServer::CLIENT;
    let known = format!("Basic {}", base64(format!("{id}:{secret}").as_bytes(), true));
    let life_s = shared.life_s.load(Ordering::SeqCst);
    let refused = match () {
        () if !request.contains("grant_type=client_credentials") => Some("400 Bad Request"),
        () if !request.contains(&known) => Some("401 Unauthorized"),
        () if life_s == 0 => Some("503 Service Unavailable"),
        () => None,
    };
    if let Some(status) = refused {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        return (status, format!("{{\"error\":\"refused\",\"echo\":\"{secret}\"}}"));
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let head = base64(br#"{"alg":"RS256","typ":"JWT","kid":"one"}"#, false);
    let claims =
        format!(r#"{{"sub":"pipeline","aud":"kafka","scope":"all","iat":{now_s},"exp":{}}}"#, now_s + life_s);
    let signed = format!("{head}.{}", base64(claims.as_bytes(), false));
    let key = shared.folder.path();
    let signature = openssl(key, &["dgst", "-sha256", "-sign", "key.pem"], signed.as_bytes());
    shared.given.fetch_add(1, Ordering::SeqCst);
    let token = format!("{signed}.{}", base64(&signature, false));
    ("200 OK", format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{life_s}}}"#))
}

fn jwks(folder: &Path) -> String {
    let told = openssl(folder, &["rsa", "-in", "key.pem", "-noout", "-modulus"], b"");
    let told = String::from_utf8_lossy(&told).trim().to_owned();
    let hex = told.strip_prefix("Modulus=").expect("it says so");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    let modulus: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let modulus = base64(&modulus, false);
    format!(
        r#"{{"keys":[{{"kty":"RSA","use":"sig","alg":"RS256","kid":"one","n":"{modulus}","e":"AQAB"}}]}}"#
    )
}

/// Runs openssl in a folder; returns what it printed.
fn openssl(folder: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut command = Command::new("openssl");
    let streams = command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = streams.stderr(Stdio::null()).spawn().expect("openssl starts");
    process.stdin.take().expect("asked for").write_all(input).expect("it reads");
    let output = process.wait_with_output().expect("a child can be waited for");
    assert!(output.status.success(), "openssl {arguments:?}");
    output.stdout
}

/// Base64: for URLs and without padding, as in tokens; or, with `plain`, the plain form.
fn base64(bytes: &[u8], plain: bool) -> String {
    let letters = match plain {
        true => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        false => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
    };
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..=three.len() {
            text.push(char::from(letters[(bits >> (18 - 6 * at)) as usize & 63]));
        }
        if plain {
            (three.len()..3).for_each(|_| text.push('='));
        }
    }
    text
}
