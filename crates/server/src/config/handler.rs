//! Reads the handler of a pipeline from the config, and checks that such a handler can be made.

use std::path::Path;

use keylane::ErrorCode;
use keylane::handlers::{HttpHandler, HttpSettings};

use super::error::ConfigProblem;
use super::fields::{Reader, Section};
use super::tree::Value;
use super::{HandlerConfig, file};

/// The remedy for a wrong URL.
const URL_HELP: &str =
    "write it like this: `url: \"http://127.0.0.1:9000/orders\"`, without user or password";
/// Bytes of a file with certificates at most. All certificate authorities of a system take a fifth of this.
const PEM_BYTES_MAX: u64 = 1024 * 1024;
/// Text that every PEM file contains.
const PEM_BEGINS: &str = "-----BEGIN";

/// Reads `handler` of a pipeline.
pub(super) fn handler(reader: &mut Reader, pipeline: &Section<'_>) -> HandlerConfig {
    let before = reader.problems.len();
    let section = reader.inner(pipeline, "handler");
    let (http, log) = (section.names("http"), section.names("log"));
    if http == log && reader.problems.len() == before {
        reader.problems.push(ConfigProblem {
            code: if http { ErrorCode::ContradictorySettings } else { ErrorCode::MissingSetting },
            place: section.place.clone(),
            what: format!(
                "{} {}",
                section.path,
                if http { "has both `http` and `log`" } else { "is missing" }
            ),
            help: "give exactly one: `handler: { http: { url: \"http://127.0.0.1:9000/\", allow_private: true } }` or `handler: { log: {} }`"
                .to_owned(),
        });
    }
    if !http {
        if log {
            reader.inner(&section, "log");
        }
        return HandlerConfig::Log;
    }
    let http = reader.inner(&section, "http");
    let settings = http_settings(reader, &http);
    // Make the handler once, only to find a mistake now, while its line in the file is known.
    if reader.problems.len() == before
        && let Err(error) = HttpHandler::new(settings.clone())
    {
        let mut elsewhere = settings.clone();
        elsewhere.allow_private = true;
        let help = match error.setting {
            "url" if HttpHandler::new(elsewhere).is_ok() => {
                "a public address needs nothing; for one of your own machine or network set `allow_private: true` beside it"
            }
            "url" => URL_HELP,
            _ => "see docs/handlers.md for what a handler takes",
        };
        reader.problems.push(ConfigProblem {
            code: ErrorCode::WrongValue,
            place: http.place_of(error.setting),
            what: format!("{}.{error}", http.path),
            help: help.to_owned(),
        });
    }
    HandlerConfig::Http(Box::new(settings))
}

fn http_settings(reader: &mut Reader, http: &Section<'_>) -> HttpSettings {
    let url = reader.text(http, "url");
    if http.node("url").is_some() && !(url.starts_with("http://") || url.starts_with("https://")) {
        reader.problems.push(ConfigProblem {
            code: ErrorCode::WrongValue,
            place: http.place_of("url"),
            what: format!("{}.url must be a URL that begins with http:// or https://", http.path),
            help: URL_HELP.to_owned(),
        });
    }
    let mut settings = HttpSettings::new(url);
    settings.timeout = reader.duration(http, "timeout");
    settings.allow_private = reader.flag(http, "allow_private");
    settings.reject = reader.statuses(http, "reject");
    settings.headers = headers(reader, http);
    settings.content_type = text(reader, http, "content_type");
    settings.sign = text(reader, http, "sign");
    settings.ca = pem(reader, http, "ca");
    settings.identity = match (pem(reader, http, "cert"), pem(reader, http, "key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (certificate, _) => {
            let (has, lacks) = if certificate.is_some() { ("cert", "key") } else { ("key", "cert") };
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
                place: http.place_of(has),
                what: format!("{}.{has} is given without {lacks}", http.path),
                help: "a client certificate needs both: `cert: /etc/keylane/client.pem, key: /etc/keylane/client.key`"
                    .to_owned(),
            });
            None
        }
    };
    settings
}

/// Reads the headers. A value that would be sent differently from what the user meant is reported; the report does not
/// show the value, because it may be a secret (SEC-5).
fn headers(reader: &mut Reader, http: &Section<'_>) -> Vec<(String, String)> {
    if let Some(Value::Map(entries)) = http.node("headers").map(|node| &node.value) {
        for (key, node) in entries {
            let name = format!("{}.headers.{}", http.path, key.name.escape_debug());
            if let Some(variable) = &node.empty_variable {
                reader.problems.push(ConfigProblem {
                    code: ErrorCode::MissingOutsideValue,
                    place: node.place.clone(),
                    what: format!("{name}: the environment variable {variable} is set, but empty"),
                    help: format!("give {variable} its value, or leave the header out"),
                });
            }
            if matches!(&node.value, Value::Text(text) if names_a_file_within(text)) {
                reader.problems.push(ConfigProblem {
                    code: ErrorCode::WrongValue,
                    place: node.place.clone(),
                    what: format!("{name} names a file behind other text, so that the file would not be read"),
                    help: "write nothing but `file:/run/secrets/orders`; the file must hold the whole value, with `Bearer ` if that belongs to it"
                        .to_owned(),
                });
            }
        }
    }
    reader.passed_on(http, "headers").into_iter().collect()
}

/// Whether the text contains `file:/` as a word of its own behind other text. `file:` at the beginning has already been
/// replaced by the file's content.
fn names_a_file_within(text: &str) -> bool {
    let is_word = |at: usize| at > 0 && !text[..at].ends_with(|before: char| before.is_alphanumeric());
    text.match_indices("file:/").any(|(at, _)| is_word(at))
}

/// Reads a text that may be left out.
fn text(reader: &mut Reader, section: &Section<'_>, name: &str) -> Option<String> {
    let text = reader.text(section, name);
    section.node(name).is_some().then_some(text)
}

/// Reads a setting that holds PEM, or the path of a PEM file.
fn pem(reader: &mut Reader, section: &Section<'_>, name: &str) -> Option<String> {
    let text = text(reader, section, name)?;
    if text.contains(PEM_BEGINS) {
        return Some(text);
    }
    match file::regular(Path::new(&text), PEM_BYTES_MAX) {
        Ok(content) if content.contains(PEM_BEGINS) => Some(content),
        read => {
            let why = read.err().map_or("it holds no PEM".to_owned(), |error| error.to_string());
            reader.problems.push(ConfigProblem {
                code: ErrorCode::MissingOutsideValue,
                place: section.place_of(name),
                // The message does not show the text: a variable may have put the secret itself here (SEC-5). The place
                // says which setting it is.
                what: format!("{}.{name} cannot be used: {why}", section.path),
                help: "give the path of a PEM file that this user may read; it has a line that begins with -----BEGIN"
                    .to_owned(),
            });
            Some(String::new())
        }
    }
}
