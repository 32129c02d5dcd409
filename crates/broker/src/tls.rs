//! The cryptography of TLS connections that Rust code makes: the push handler, token endpoints, the command line.
//!
//! `rustls` needs to be told once a process which implementation it uses. Kafka's client library is C and brings its
//! own.

/// Chooses `ring`, unless the program that uses this library has chosen another implementation already. To be called
/// before an HTTP client is made; calling it again changes nothing.
pub fn provide_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
