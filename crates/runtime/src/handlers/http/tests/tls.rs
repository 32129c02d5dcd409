//! Tests pushes over TLS: which servers Keylane trusts, and how a server recognises Keylane.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{Acceptor, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::*;

/// An authority of the test's own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, as PEM.
struct Papers {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate for `localhost`, as server and as client, valid from 2020 to the first day of `until_year`.
    fn signs(&self, until_year: i32) -> Papers {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until_year, 1, 1));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Papers { certificate, key: key.serialize_pem() }
    }
}

/// A server with this certificate. If `clients` is given, only clients with its certificates may call.
async fn secure(papers: &Papers, clients: Option<&Authority>) -> Server {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            let der = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).expect("PEM");
            roots.add(der).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("roots"))
        }
    };
    let certificate = CertificateDer::from_pem_slice(papers.certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(papers.key.as_bytes()).expect("PEM");
    let config = Arc::new(builder.with_single_cert(vec![certificate], key).expect("they belong together"));

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let recorded = Arc::clone(&seen);
    #[allow(clippy::disallowed_methods, reason = "the server of a test is not one of Keylane's tasks")]
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (config, seen) = (Arc::clone(&config), Arc::clone(&recorded));
            tokio::spawn(async move {
                let Ok(hello) = LazyConfigAcceptor::new(Acceptor::default(), stream).await else { return };
                match hello.into_stream(config).into_fallible().await {
                    Ok(stream) => serve(stream, 0, Answer::Keep(OK), seen).await,
                    // The rest of the client's bytes must be read, or the alert would be lost with the connection.
                    Err((_refused, mut stream)) => {
                        let _until_the_client_is_gone =
                            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                    }
                }
            });
        }
    });
    Server { port, seen }
}

fn settings(server: &Server) -> HttpSettings {
    HttpSettings {
        allow_private: true,
        ..HttpSettings::new(format!("https://localhost:{}/push", server.port))
    }
}

async fn pushed(settings: HttpSettings) -> Outcome {
    push(&HttpHandler::new(settings).expect("good settings"), &plain(), 1).await
}

/// Expects a failure with this in its text.
async fn fails(settings: HttpSettings, says: &str) {
    match pushed(settings).await {
        Outcome::Failed { error, .. } => {
            assert!(error.to_lowercase().contains(says), "{error}");
        }
        outcome => panic!("{outcome:?}"),
    }
}

const LATER: i32 = 2090;
const LONG_AGO: i32 = 2021;

/// ING-5, SEC-1: a server whose certificate comes from no public authority is trusted if the config names its
/// authority, and not otherwise; no message is lost by that.
#[tokio::test]
async fn an_authority_of_ones_own_is_believed_where_the_config_names_it() {
    let authority = Authority::new();
    let server = secure(&authority.signs(LATER), None).await;
    fails(settings(&server), "unknownissuer").await;
    fails(HttpSettings { ca: Some(Authority::new().certificate), ..settings(&server) }, "certificate").await;
    assert_eq!(server.seen().len(), 0, "nothing was sent to a stranger");
    let both = format!("{}{}", Authority::new().certificate, authority.certificate);
    assert_eq!(pushed(HttpSettings { ca: Some(both), ..settings(&server) }).await, Outcome::Done);
    assert_eq!(server.seen().len(), 1);
}

/// ING-5, SEC-1: an expired certificate of either side is a failure that says so.
#[tokio::test]
async fn a_certificate_that_has_expired_is_a_failure_that_says_so() {
    let authority = Authority::new();
    let server = secure(&authority.signs(LONG_AGO), None).await;
    let ca = || Some(authority.certificate.clone());
    fails(HttpSettings { ca: ca(), ..settings(&server) }, "expired").await;
    assert_eq!(server.seen().len(), 0);

    let server = secure(&authority.signs(LATER), Some(&authority)).await;
    let own = authority.signs(LONG_AGO);
    let identity = Some((own.certificate, own.key));
    fails(HttpSettings { ca: ca(), identity, ..settings(&server) }, "expired").await;
    assert_eq!(server.seen().len(), 0);
}

/// ING-5, SEC-1: a server can ask for Keylane's certificate.
#[tokio::test]
async fn a_client_certificate_shows_who_calls() {
    let authority = Authority::new();
    let server = secure(&authority.signs(LATER), Some(&authority)).await;
    let ca = || Some(authority.certificate.clone());
    fails(HttpSettings { ca: ca(), ..settings(&server) }, "certificaterequired").await;
    let stranger = Authority::new().signs(LATER);
    let identity = Some((stranger.certificate, stranger.key));
    fails(HttpSettings { ca: ca(), identity, ..settings(&server) }, "alert").await;
    assert_eq!(server.seen().len(), 0);
    let own = authority.signs(LATER);
    let identity = Some((own.certificate, own.key));
    assert_eq!(pushed(HttpSettings { ca: ca(), identity, ..settings(&server) }).await, Outcome::Done);
}

/// ING-5, SEC-5: the error comes at the start and names the setting, and shows no key.
#[test]
fn a_key_that_does_not_belong_to_its_certificate_is_refused() {
    let authority = Authority::new();
    let (one, other) = (authority.signs(LATER), authority.signs(LATER));
    for (certificate, key) in [
        (one.certificate.clone(), other.key.clone()),
        (one.certificate.clone(), one.certificate.clone()),
        (one.certificate.clone(), one.key.replace("MI", "!!")),
    ] {
        let identity = Some((certificate, key.clone()));
        let settings = HttpSettings { identity, ..HttpSettings::new("https://example.com/") };
        let error = HttpHandler::new(settings).err().expect("they do not belong together");
        assert_eq!(error.setting, "key", "{error}");
        let secret = key.lines().nth(1).expect("a line of the key");
        assert!(!error.what.contains(secret), "{error}");
    }
    let no_key = Some((one.key.clone(), one.key));
    let settings = HttpSettings { identity: no_key, ..HttpSettings::new("https://example.com/") };
    assert_eq!(HttpHandler::new(settings).err().expect("no certificate").setting, "cert");
}
