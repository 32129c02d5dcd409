//! Signs pushes (ING-5), as the specification Standard Webhooks 1.0 describes it.
//!
//! From the secrets, and for each call its id, time and payload, it makes the headers `webhook-id`, `webhook-timestamp`
//! and `webhook-signature`. The receiver makes the same signature of what it got, compares, and refuses old calls.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The beginning of a secret, by which people and scanners recognise one. A config may leave it out.
const PREFIX: &str = "whsec_";
/// Bytes of a secret: fewer can be guessed, more add nothing.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Signs calls.
pub(super) struct Signer {
    /// One for each secret, ready to take the content.
    keys: Vec<Hmac<Sha256>>,
}

impl Signer {
    /// Signs with each of `secrets`, which are separated by spaces. No error shows a secret (SEC-5).
    pub(super) fn new(secrets: &str) -> Result<Signer, String> {
        let keys: Vec<Hmac<Sha256>> = secrets.split_whitespace().map(key).collect::<Result<_, String>>()?;
        match keys.is_empty() {
            true => Err(format!("it is empty; {HOW}")),
            false => Ok(Signer { keys }),
        }
    }

    /// Adds the headers of one call. `id` is the message's, as HTTP carries it.
    ///
    /// The signed parts are separated by full stops, so the id must contain none. Otherwise a signature for the id
    /// `a.1`, the time 2 and the payload `x` would also be one for the id `a`, the time 1 and the payload `2.x`, and
    /// producers choose ids.
    pub(super) fn sign(
        &self,
        headers: &mut HeaderMap,
        id: &str,
        at_s: u64,
        payload: &[u8],
    ) -> Result<(), String> {
        let id = id.replace('.', "%2E");
        let mut signatures = String::new();
        for key in &self.keys {
            let mut mac = key.clone();
            for part in [id.as_bytes(), b".", at_s.to_string().as_bytes(), b".", payload] {
                mac.update(part);
            }
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            signatures.push_str("v1,");
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut signatures);
        }
        let value = |text: &str| HeaderValue::try_from(text).map_err(|error| error.to_string());
        headers.insert(ID, value(&id)?);
        headers.insert(TIMESTAMP, at_s.into());
        headers.insert(SIGNATURE, value(&signatures)?);
        Ok(())
    }
}

/// How to make a secret.
const HOW: &str = "make one with `echo whsec_$(openssl rand -base64 32)`";

fn key(secret: &str) -> Result<Hmac<Sha256>, String> {
    let bytes = STANDARD
        .decode(secret.strip_prefix(PREFIX).unwrap_or(secret))
        .map_err(|_| format!("a secret is {PREFIX} and base64; {HOW}"))?;
    if !SECRET_BYTES.contains(&bytes.len()) {
        let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
        return Err(format!("a secret has {least} to {most} bytes, this one {}; {HOW}", bytes.len()));
    }
    Hmac::new_from_slice(&bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn signature(secrets: &str) -> String {
        let mut headers = HeaderMap::new();
        let signer = Signer::new(secrets).expect("a secret");
        let payload = br#"{"test": 2432232314}"#;
        signer
            .sign(&mut headers, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, payload)
            .expect("it can be sent");
        assert_eq!(headers["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        headers["webhook-signature"].to_str().expect("visible").to_owned()
    }

    /// ING-5: the example that the authors of Standard Webhooks give.
    #[test]
    fn a_call_is_signed_as_the_specification_says() {
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signature(SECRET), expected);
        assert_eq!(signature("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), expected, "the prefix may be left out");
    }

    /// ING-5, SEC-1: the signature of one message does not fit another.
    #[test]
    fn an_id_with_full_stops_cannot_pass_for_another_time() {
        let signer = Signer::new(SECRET).expect("a secret");
        let signed = |id: &str, at_s: u64, payload: &[u8]| {
            let mut headers = HeaderMap::new();
            signer.sign(&mut headers, id, at_s, payload).expect("it can be sent");
            (headers["webhook-id"].clone(), headers["webhook-signature"].clone())
        };
        let (id, signature) = signed("a.1", 2, b"x");
        assert_eq!(id, "a%2E1");
        assert_ne!(signature, signed("a", 1, b"2.x").1);
    }

    /// ING-5: while a secret is replaced, receivers that know either one accept.
    #[test]
    fn each_of_several_secrets_has_its_signature() {
        let other = format!("whsec_{}", STANDARD.encode([7; 32]));
        let both = signature(&format!("{other} {SECRET}"));
        let parts: Vec<&str> = both.split(' ').collect();
        assert_eq!(parts, [signature(&other), signature(SECRET)]);
    }

    /// ING-5, SEC-5.
    #[test]
    fn what_is_no_secret_is_refused_and_not_shown() {
        for (secret, says) in [
            ("", "it is empty"),
            ("  ", "it is empty"),
            ("whsec_???hunter2", "whsec_ and base64"),
            ("whsec_aHVudGVyMg==", "24 to 64 bytes, this one 7"),
        ] {
            let error = Signer::new(secret).err().expect("no secret");
            assert!(error.contains(says) && error.contains("openssl rand"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("aHVudGVyMg"), "{error}");
        }
    }
}
