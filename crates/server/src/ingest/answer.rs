//! What a producing request is answered: which messages are durable and where, which were refused and why.

use std::io::Write;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use keylane::error::produce_code;
use keylane::{ProduceError, Receipt};

use crate::problem::{Problem, Rejected, produce_status};

/// Bytes an accepted message takes in an answer, about: a UUID, a partition, a position and the names.
const ACCEPTED_BYTES: usize = 96;

/// Answers with a result for each message that was sent, and with what was refused before, by index.
pub(super) fn answer(
    results: Vec<Result<Receipt, ProduceError>>,
    refused_before: Vec<Rejected>,
) -> Result<Response<Body>, Problem> {
    let alone = results.len() + refused_before.len() == 1;
    let mut body = Vec::with_capacity(32 + ACCEPTED_BYTES * results.len());
    body.extend_from_slice(b"{\"accepted\":[");
    let mut rejected = Vec::new();
    let mut worst: Option<ProduceError> = None;
    let mut accepted = 0usize;
    let mut before = refused_before.into_iter().peekable();
    let mut index = 0;
    for result in results {
        while let Some(refused) = before.next_if(|refused| refused.index == index) {
            rejected.push(refused);
            index += 1;
        }
        match result {
            Ok(receipt) => {
                put_receipt(&mut body, &receipt, accepted == 0);
                accepted += 1;
            }
            Err(error) => {
                rejected.push(Rejected { index, error: error.to_string() });
                // One that may succeed later decides over one that never will.
                if worst.as_ref().is_none_or(|worst| !is_passing(worst)) {
                    worst = Some(error);
                }
            }
        }
        index += 1;
    }
    rejected.extend(before);
    if accepted == 0 {
        return Err(none_accepted(alone, worst, rejected));
    }
    body.extend_from_slice(b"],\"rejected\":");
    serde_json::to_writer(&mut body, &rejected).expect("writing to memory does not fail");
    body.push(b'}');
    Ok(json(StatusCode::ACCEPTED, body))
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn none_accepted(alone: bool, worst: Option<ProduceError>, mut rejected: Vec<Rejected>) -> Problem {
    match worst {
        Some(error) if alone || is_passing(&error) => {
            let (status, title) = produce_status(&error);
            let problem = Problem::new(status, produce_code(&error), title, error.to_string());
            if alone { problem } else { problem.with("rejected", rejected) }
        }
        _ if alone => {
            let detail = rejected.pop().map_or_else(String::new, |rejected| rejected.error);
            Problem::new(StatusCode::BAD_REQUEST, "KL-1202", "the message cannot be taken", detail)
        }
        _ => Problem::new(
            StatusCode::BAD_REQUEST,
            "KL-1208",
            "no message was taken",
            format!("all {} messages were refused; `rejected` says why", rejected.len()),
        )
        .with("rejected", rejected),
    }
}

/// True if the same message may be taken later.
fn is_passing(error: &ProduceError) -> bool {
    produce_status(error).0 == StatusCode::SERVICE_UNAVAILABLE
}

fn put_receipt(body: &mut Vec<u8>, receipt: &Receipt, is_first: bool) {
    body.extend_from_slice(if is_first { b"{\"id\":" } else { b",{\"id\":" });
    put_text(body, &receipt.id);
    let mut digits = itoa::Buffer::new();
    body.extend_from_slice(b",\"partition\":");
    body.extend_from_slice(digits.format(receipt.partition).as_bytes());
    body.extend_from_slice(b",\"offset\":");
    body.extend_from_slice(digits.format(receipt.offset).as_bytes());
    body.push(b'}');
}

fn put_text(body: &mut Vec<u8>, text: &str) {
    let plain = text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if plain {
        body.push(b'"');
        body.extend_from_slice(text.as_bytes());
        body.push(b'"');
    } else {
        write!(body, "{}", serde_json::Value::from(text)).expect("writing to memory does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(index: usize) -> Rejected {
        Rejected { index, error: format!("bad {index}") }
    }

    fn too_large() -> ProduceError {
        ProduceError::TooLarge { topic: "t".to_owned(), bytes: 2, bytes_max: 1 }
    }

    fn full() -> ProduceError {
        ProduceError::Full { topic: "t".to_owned(), bytes: 2, bytes_max: 1 }
    }

    fn problem(results: Vec<Result<Receipt, ProduceError>>, before: Vec<Rejected>) -> Problem {
        answer(results, before).expect_err("nothing was accepted")
    }

    /// ING-1: each refused line keeps its own index, whoever refused it.
    #[test]
    fn indexes_count_all_messages() {
        let got = problem(
            vec![Err(too_large()), Err(too_large()), Err(too_large())],
            vec![refused(0), refused(2), refused(3), refused(6)],
        );
        assert_eq!((got.status.as_u16(), got.code), (400, "KL-1208"));
        let rejected = got.more["rejected"].as_array().expect("a list").clone();
        let indexes: Vec<_> = rejected.iter().map(|r| r["index"].as_u64().expect("a number")).collect();
        assert_eq!(indexes, [0, 1, 2, 3, 4, 5, 6]);
        let ours: Vec<_> = rejected
            .iter()
            .filter(|r| r["error"].as_str().expect("text").starts_with("bad"))
            .map(|r| r["index"].as_u64().expect("a number"))
            .collect();
        assert_eq!(ours, [0, 2, 3, 6]);
    }

    #[test]
    fn alone_a_message_decides_the_status_and_lack_of_room_always_does() {
        assert_eq!(problem(vec![Err(too_large())], vec![]).status.as_u16(), 413);
        assert_eq!(problem(vec![], vec![refused(0)]).status.as_u16(), 400);
        assert_eq!(problem(vec![Err(too_large()), Err(too_large())], vec![]).status.as_u16(), 400);
        assert_eq!(problem(vec![Err(full())], vec![]).status.as_u16(), 503);
        assert_eq!(problem(vec![Err(too_large()), Err(full())], vec![refused(2)]).status.as_u16(), 503);
        assert_eq!(problem(vec![Err(full()), Err(too_large())], vec![]).status.as_u16(), 503);
    }

    #[test]
    fn ids_are_escaped() {
        let mut body = Vec::new();
        put_text(&mut body, "a\"b\\c\nd");
        assert_eq!(body, br#""a\"b\\c\nd""#);
    }
}
