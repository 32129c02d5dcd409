//! Measures PRF-14: starting with a log of 1 GB, after it was closed and after its process was killed.
//!
//! Another process fills the log, with a pipeline that reads it, and goes on until it is killed with SIGKILL, so that
//! there is a journal to recover too. The start is over once the broker is open and all partitions of the pipeline are
//! read. Raw limit: reading the same files from end to end. The page cache is warm for both.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use keylane::raw::{Clock, Tasks};
use keylane::{Keylane, Message};
use keylane_broker::embedded::{Embedded, Options as EmbeddedOptions};
use keylane_broker::{Broker, TopicSpec};

use crate::append::frames;
use crate::machine::runtime;
use crate::{Error, Figure, Options, Target};

const TOPIC: &str = "large";
const PARTITIONS: u32 = 12;
/// 5 M messages of 200 bytes.
const MESSAGES: u64 = 5_000_000;
const CALL: usize = 5_000;
const FULL: &str = "full";
/// Starts of the closed log.
const ROUNDS: usize = 3;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let folder = tempfile::tempdir_in(&options.folder)?;
    let log = folder.path().join("log");
    fill_and_kill(&options.filler, &log)?;
    let after_kill = start(&log)?;
    let (mut closed, mut raw) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        raw = raw.min(read_all(&log)?);
        closed = closed.min(start(&log)?);
    }
    for (what, seconds) in [
        ("start with a log of 1 GB, after kill -9", after_kill),
        ("start with a log of 1 GB, closed", closed),
    ] {
        let figure = Figure::beside("PRF-14", what, "s", seconds, raw, Target::AtMost(5.0));
        report(figure.note("raw reads all files once; page cache warm"));
    }
    Ok(())
}

/// Fills a log until this process is killed. Prints a line once the log has 1 GB.
pub fn fill(folder: &Path) -> Result<(), Error> {
    runtime("fill")?.block_on(async {
        let broker = Embedded::open(folder, EmbeddedOptions::default());
        let broker = Arc::new(broker.map_err(|error| Error::Broker(error.to_string()))?);
        let spec = TopicSpec { partitions: PARTITIONS, retention_bytes: None, ..TopicSpec::default() };
        let created = broker.create_topic(TOPIC, &spec).await;
        created.map_err(|error| Error::Broker(error.to_string()))?;
        let shared = Arc::clone(&broker) as Arc<dyn Broker>;
        let keylane = Keylane::with_broker(shared, Clock::system(), Tasks::default(), true);
        // The pipeline's name is the one in `start`, whose pipeline has to take over from this one.
        let _reading = keylane.pipeline(TOPIC).handle(|_: Message| async {}).start().await?;
        let mut messages = 0;
        loop {
            let placed = broker.produce(TOPIC, frames(PARTITIONS, CALL)).await;
            if let Some(error) = placed.into_iter().find_map(Result::err) {
                return Err(Error::Broker(error.to_string()));
            }
            let before = messages < MESSAGES;
            messages += CALL as u64;
            if before && messages >= MESSAGES {
                let mut out = std::io::stdout();
                writeln!(out, "{FULL}")?;
                out.flush()?;
            }
        }
    })
}

fn fill_and_kill(filler: &[String], log: &Path) -> Result<(), Error> {
    let [program, arguments @ ..] = filler else {
        return Err(Error::Broker("no program that fills a log".to_owned()));
    };
    let mut child = Command::new(program).args(arguments).arg(log).stdout(Stdio::piped()).spawn()?;
    let said = child.stdout.take().map(BufReader::new);
    let full = said.and_then(|said| said.lines().map_while(Result::ok).find(|line| line == FULL));
    child.kill()?;
    child.wait()?;
    match full {
        Some(_) => Ok(()),
        None => Err(Error::Broker("the program that fills a log ended early".to_owned())),
    }
}

/// Seconds until the log is open and all its partitions are read.
fn start(log: &Path) -> Result<f64, Error> {
    let runtime = runtime("ours")?;
    runtime.block_on(async {
        let since = Instant::now();
        let keylane = Keylane::open_embedded(log).await?;
        let pipeline = keylane.pipeline(TOPIC).handle(|_: Message| async {}).start().await?;
        crate::all_read(&pipeline).await?;
        let seconds = since.elapsed().as_secs_f64();
        pipeline.drain().await?;
        Ok(seconds)
    })
}

/// Seconds to read all files below a folder.
fn read_all(folder: &Path) -> Result<f64, Error> {
    let since = Instant::now();
    let mut folders = vec![folder.to_owned()];
    let mut buffer = vec![0; 1 << 20];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let mut file = File::open(entry.path())?;
            while file.read(&mut buffer)? > 0 {}
        }
    }
    Ok(since.elapsed().as_secs_f64())
}
