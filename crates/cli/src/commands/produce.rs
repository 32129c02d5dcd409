//! `keylane produce`: sends the lines of a file, or of standard input, to a topic. Each line is a message.
//!
//! The command sends one batch after another, so that lines keep their order. It retries nothing: it names each line
//! that the server did not accept, and ends with exit code 1. After the server refuses a whole batch, the command
//! sends nothing more, because later lines would overtake the lines of that batch.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use reqwest::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::client::{Client, ServerArgs, refusal};
use crate::failure::Failure;
use crate::lines::{Format, LINE_BYTES_MAX, LineBatch, Lines};
use crate::show;

/// Refused lines that `--json` lists; all are counted. Without this bound, a large file whose every line is refused
/// would fill the memory.
const ERRORS_LISTED_MAX: usize = 10_000;

/// Arguments of `produce`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic that receives the messages
    topic: String,
    /// File with one payload on each line, JSON or any other bytes; `-` is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Key of all messages
    #[arg(short, long, conflicts_with = "ndjson")]
    key: Option<String>,
    /// Each line is a message object as in the HTTP API: {"key":"user-1","payload":{"n":1}}
    #[arg(long)]
    ndjson: bool,
    /// Print the counts and the refused lines as JSON
    #[arg(long)]
    json: bool,
}

/// How many lines were accepted and refused so far.
#[derive(Debug, Default, Serialize)]
struct Tally {
    accepted: u64,
    rejected: u64,
    errors: Vec<LineError>,
}

#[derive(Debug, Serialize)]
struct LineError {
    line: u64,
    error: String,
}

/// The server's answer to a batch.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    accepted: Vec<IgnoredAny>,
    #[serde(default)]
    rejected: Vec<Rejected>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Rejected {
    index: usize,
    error: String,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let (input, bytes) = open(&args.file)?;
    let format = match args.ndjson {
        true => Format::Message,
        false => Format::Payload { key: args.key },
    };
    let progress = progress_bar(bytes);
    let mut lines = Lines::new(input, format);
    let mut tally = Tally::default();
    let ended = send_all(&client, &args.topic, &mut lines, &mut tally, &progress).await;
    progress.finish_and_clear();
    match args.json {
        true => show::json(&tally)?,
        false => show::line(&format!("{} accepted, {} rejected", tally.accepted, tally.rejected))?,
    }
    ended?;
    match tally.rejected {
        0 => Ok(()),
        rejected => {
            Err(Failure::Failed(format!("{rejected} of {} lines were not taken", tally.accepted + rejected)))
        }
    }
}

async fn send_all(
    client: &Client,
    topic: &str,
    lines: &mut Lines<Box<dyn Read>>,
    tally: &mut Tally,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    // Reading blocks this thread. Only this task runs on it; the connection is driven by other threads.
    while let Some(batch) =
        lines.next_batch().map_err(|error| Failure::Failed(format!("cannot read the input: {error}")))?
    {
        for number in &batch.too_long {
            let error = format!("longer than {LINE_BYTES_MAX} bytes, which no request can carry");
            tally.reject(*number, error, progress);
        }
        let (number_first, number_last) = match (batch.numbers.first(), batch.numbers.last()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => continue,
        };
        let input_bytes = batch.input_bytes;
        send(client, topic, batch, tally, progress)
            .await
            .map_err(|failure| at_lines(failure, number_first, number_last))?;
        progress.inc(input_bytes);
    }
    Ok(())
}

async fn send(
    client: &Client,
    topic: &str,
    batch: LineBatch,
    tally: &mut Tally,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    let path = ["v1", "topics", topic, "messages"];
    let (status, body) = client.post(&path, "application/x-ndjson", batch.body).await?;
    let answer: Option<Answer> = serde_json::from_slice(&body).ok();
    match answer {
        // The server judged each line. Any other refusal concerns the whole batch and may be temporary: then no later
        // line may be sent, because it would overtake this batch.
        Some(answer)
            if status.is_success() || (status == StatusCode::BAD_REQUEST && !answer.rejected.is_empty()) =>
        {
            tally.accepted += answer.accepted.len() as u64;
            for warning in &answer.warnings {
                progress.suspend(|| eprintln!("warning: {}", show::harmless(warning)));
            }
            for refused in answer.rejected {
                let number = batch.numbers.get(refused.index).copied().unwrap_or_default();
                tally.reject(number, refused.error, progress);
            }
            Ok(())
        }
        None if status.is_success() => Err(Failure::Failed(format!(
            "the server answered {status} with something else than expected; is it a Keylane server of this version?"
        ))),
        _ => match (status, batch.numbers.as_slice()) {
            // If a bad line is alone in its batch, the server refuses the whole request. Count it as one refused line,
            // as if other lines had been in the batch, and continue.
            (StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE, [number]) => {
                tally.reject(*number, refusal(status, &body), progress);
                Ok(())
            }
            _ => Err(Failure::Failed(refusal(status, &body))),
        },
    }
}

impl Tally {
    fn reject(&mut self, line: u64, error: String, progress: &ProgressBar) {
        self.rejected += 1;
        progress.suspend(|| eprintln!("line {line}: {}", show::harmless(&error)));
        if self.errors.len() < ERRORS_LISTED_MAX {
            self.errors.push(LineError { line, error });
        }
    }
}

/// Adds to a failure the lines that it concerns. Earlier lines were sent before; later lines were not sent.
fn at_lines(failure: Failure, first: u64, last: u64) -> Failure {
    match failure {
        Failure::Failed(why) => Failure::Failed(format!(
            "lines {first} to {last} were refused, and nothing behind them was sent: {why}"
        )),
        Failure::Unreachable { url, why } => Failure::Unreachable {
            url,
            why: format!(
                "{why} (whether lines {first} to {last} were taken is not known; nothing behind them was sent)"
            ),
        },
        other => other,
    }
}

fn open(file: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    if file == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let wrong = |error| Failure::Wrong(format!("cannot read {}: {error}", file.display()));
    let opened = File::open(file).map_err(wrong)?;
    let metadata = opened.metadata().map_err(wrong)?;
    if metadata.is_dir() {
        return Err(Failure::Wrong(format!("{} is a folder", file.display())));
    }
    let bytes = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(opened), bytes))
}

/// The progress bar. The library draws it only if standard error is a terminal.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => (ProgressBar::no_length(), "{spinner} {bytes} {bytes_per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is well formed"))
}
