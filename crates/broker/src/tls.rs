//! Chooses the cryptography for the TLS connections that Rust code opens: of the push handler, to token endpoints, of
//! the command line.
//!
//! `rustls` must be told once per process which implementation to use. Kafka's client library is written in C and
//! brings its own.

/// Makes `rustls` use `ring`, unless the program that links this library has already chosen another implementation.
/// Call this function before any HTTP client is made; further calls change nothing.
pub fn provide_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
