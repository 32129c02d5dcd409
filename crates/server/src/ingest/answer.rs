//! Makes the answer to a producing request: which messages are durable, with partition and position, and which were
//! refused, with the reason.

use std::io::Write;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use keylane::raw::{ProduceError, produce_code};
use keylane::{ErrorCode, Receipt};

use crate::http::{Problem, Rejected, json, produce_status};

/// Bytes that an accepted message takes in an answer, roughly: a UUID, a partition, a position and the field names.
const ACCEPTED_BYTES: usize = 96;

/// Refusals that an answer lists; the others are only counted. A thousand refused messages mostly have one cause.
const LISTED_MAX: usize = 1_000;

/// The refused messages by index, in rising order.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    listed: Vec<Rejected>,
    indexes: Vec<u32>,
}

impl Refusals {
    /// Adds a refused message.
    pub(super) fn push(&mut self, index: usize, error: String) {
        if self.indexes.len() < LISTED_MAX {
            self.listed.push(Rejected { index, error });
        }
        self.indexes.push(index as u32);
    }

    fn count(&self) -> usize {
        self.indexes.len()
    }
}

/// Makes the answer. `results` has the result of each message that was given to the producer, and `before` the messages
/// that were refused before that. `warning` is something that the client should know although messages were accepted.
pub(super) fn answer(
    results: Vec<Result<Receipt, ProduceError>>,
    before: Refusals,
    warning: Option<String>,
) -> Result<Response<Body>, Problem> {
    let alone = results.len() + before.count() == 1;
    let mut body = Vec::with_capacity(32 + ACCEPTED_BYTES * results.len());
    body.extend_from_slice(b"{\"accepted\":[");
    let mut refused = Refusals::default();
    let mut worst: Option<ProduceError> = None;
    let mut accepted = 0usize;
    let mut listed = before.listed.into_iter();
    let mut earlier = before.indexes.into_iter().peekable();
    // Refusals beyond the listed ones are only counted, so they have no text.
    let mut said = || listed.next().map_or_else(String::new, |rejected| rejected.error);
    let mut index = 0;
    for result in results {
        while earlier.next_if(|earlier| *earlier as usize == index).is_some() {
            refused.push(index, said());
            index += 1;
        }
        match result {
            Ok(receipt) => {
                put_receipt(&mut body, &receipt, accepted == 0);
                accepted += 1;
            }
            Err(error) => {
                refused.push(index, error.to_string());
                // A temporary error decides the status: the client should send the request again.
                if worst.as_ref().is_none_or(|worst| !is_passing(worst)) {
                    worst = Some(error);
                }
            }
        }
        index += 1;
    }
    for index in earlier {
        refused.push(index as usize, said());
    }
    if accepted == 0 {
        return Err(none_accepted(alone, worst, refused));
    }
    body.extend_from_slice(b"],\"rejected\":");
    serde_json::to_writer(&mut body, &refused.listed).expect("writing to memory does not fail");
    if refused.count() > LISTED_MAX {
        write!(body, ",\"rejected_count\":{}", refused.count()).expect("writing to memory does not fail");
    }
    if let Some(warning) = warning {
        body.extend_from_slice(b",\"warnings\":");
        serde_json::to_writer(&mut body, &[warning]).expect("writing to memory does not fail");
    }
    body.push(b'}');
    Ok(json(StatusCode::ACCEPTED, body))
}

fn none_accepted(alone: bool, worst: Option<ProduceError>, mut refused: Refusals) -> Problem {
    let problem = match worst {
        Some(error) if alone || is_passing(&error) => {
            let (status, title) = produce_status(&error);
            Problem::new(status, produce_code(&error), title, error.to_string())
        }
        _ if alone => {
            let detail = refused.listed.pop().map_or_else(String::new, |rejected| rejected.error);
            Problem::new(
                StatusCode::BAD_REQUEST,
                ErrorCode::InvalidMessage,
                "the message cannot be taken",
                detail,
            )
        }
        _ => Problem::new(
            StatusCode::BAD_REQUEST,
            ErrorCode::NoMessageTaken,
            "no message was taken",
            format!("all {} messages were refused; `rejected` says why", refused.count()),
        ),
    };
    match (alone, refused.count()) {
        (true, _) => problem,
        (false, count) if count > LISTED_MAX => {
            problem.with("rejected", &refused.listed).with("rejected_count", count)
        }
        (false, _) => problem.with("rejected", &refused.listed),
    }
}

/// True if the error is temporary: the same message may be accepted later.
fn is_passing(error: &ProduceError) -> bool {
    produce_status(error).0 == StatusCode::SERVICE_UNAVAILABLE
}

fn put_receipt(body: &mut Vec<u8>, receipt: &Receipt, is_first: bool) {
    body.extend_from_slice(if is_first { b"{\"id\":" } else { b",{\"id\":" });
    put_text(body, &receipt.id);
    let mut digits = itoa::Buffer::new();
    body.extend_from_slice(b",\"partition\":");
    body.extend_from_slice(digits.format(receipt.partition).as_bytes());
    match receipt.offset {
        Some(offset) => {
            body.extend_from_slice(b",\"offset\":");
            body.extend_from_slice(digits.format(offset).as_bytes());
        }
        None if receipt.is_spilled() => body.extend_from_slice(b",\"spilled\":true"),
        None => {}
    }
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

    fn refused(indexes: &[usize]) -> Refusals {
        let mut refused = Refusals::default();
        indexes.iter().for_each(|index| refused.push(*index, format!("bad {index}")));
        refused
    }

    fn too_large() -> ProduceError {
        ProduceError::TooLarge { topic: "t".to_owned(), bytes: 2, bytes_max: 1 }
    }

    fn full() -> ProduceError {
        ProduceError::Full { topic: "t".to_owned(), bytes: 2, bytes_max: 1 }
    }

    fn problem(results: Vec<Result<Receipt, ProduceError>>, before: &[usize]) -> Problem {
        answer(results, refused(before), None).expect_err("nothing was accepted")
    }

    fn rejected(problem: &Problem) -> Vec<serde_json::Value> {
        let (_, text) = problem.more.iter().find(|(name, _)| *name == "rejected").expect("a list");
        serde_json::from_str(text.get()).expect("JSON")
    }

    /// SEC-2: the first thousand refusals are listed, whether reading or the producer refused them; all are counted.
    #[test]
    fn many_refusals_are_counted_and_the_first_are_listed() {
        let odd: Vec<usize> = (0..100_000).filter(|index| index % 2 == 1).collect();
        let got = problem((0..50_000).map(|_| Err(too_large())).collect(), &odd);
        let rejected = rejected(&got);
        let indexes: Vec<_> = rejected.iter().map(|r| r["index"].as_u64().expect("a number")).collect();
        assert_eq!(indexes, (0..1_000).collect::<Vec<_>>());
        assert_eq!((&rejected[1]["error"], &rejected[999]["error"]), (&"bad 1".into(), &"bad 999".into()));
        assert!(got.more.iter().any(|(name, count)| *name == "rejected_count" && count.get() == "100000"));
    }

    /// ING-1: each refused message keeps its own index, whether reading or the producer refused it.
    #[test]
    fn indexes_count_all_messages() {
        let got = problem(vec![Err(too_large()), Err(too_large()), Err(too_large())], &[0, 2, 3, 6]);
        assert_eq!((got.status.as_u16(), got.code.as_str()), (400, "KL-1208"));
        let rejected = rejected(&got);
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
        assert_eq!(problem(vec![Err(too_large())], &[]).status.as_u16(), 413);
        assert_eq!(problem(vec![], &[0]).status.as_u16(), 400);
        assert_eq!(problem(vec![Err(too_large()), Err(too_large())], &[]).status.as_u16(), 400);
        assert_eq!(problem(vec![Err(full())], &[]).status.as_u16(), 503);
        assert_eq!(problem(vec![Err(too_large()), Err(full())], &[2]).status.as_u16(), 503);
        assert_eq!(problem(vec![Err(full()), Err(too_large())], &[]).status.as_u16(), 503);
    }

    #[test]
    fn ids_are_escaped() {
        let mut body = Vec::new();
        put_text(&mut body, "a\"b\\c\nd");
        assert_eq!(body, br#""a\"b\\c\nd""#);
    }
}
