//! `keylane produce`: sends a file or standard input to a topic, a message a line.
//!
//! Batches go one after another, so that lines keep their order. Nothing is tried again behind the caller's back: what
//! was not taken is named by line, and the exit code says so. After a refusal of a whole batch nothing more is sent,
//! since what comes later must not overtake it.

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

/// Refused lines that `--json` lists; all are counted, and a file of nothing but refusals must not fill the memory.
const ERRORS_LISTED_MAX: usize = 10_000;

/// Arguments of `produce`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Where the messages go
    topic: String,
    /// A payload a line; `-` is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Key of all the messages
    #[arg(short, long, conflicts_with = "ndjson")]
    key: Option<String>,
    /// Lines are message objects as over HTTP: {"key":"user-1","payload":{"n":1}}
    #[arg(long)]
    ndjson: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// What became of the lines so far.
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

/// What the server says of a batch.
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
    // Reading blocks this thread; nothing else runs on it, and the connection has its own.
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
        // Other refusals may pass, and lines that are sent later must not overtake these.
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
            // Alone in its batch, a bad line is refused as a request; it is no worse than among others.
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

/// Says which lines a failure is about: those before it were taken, those behind it were not sent.
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

/// Drawn on a terminal only; elsewhere it stays silent by itself.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => (ProgressBar::no_length(), "{spinner} {bytes} {bytes_per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is well formed"))
}
