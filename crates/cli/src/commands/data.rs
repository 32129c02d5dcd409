//! `keylane data`: checks the data folder of the embedded broker, repairs it, makes backups and restores them.
//!
//! `check`, `repair` and `restore` work on the files of a folder that no server uses. `backup` asks the running server
//! to make the copy, because the server has the files open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use keylane::data::{self, Damage, DataError, LogReport, Report};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Where a server keeps its data unless its config says otherwise.
const FOLDER: &str = "./keylane-data";
/// The server answers only after it has copied everything, and copying a large folder to another disk takes long.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Arguments of `data`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read every byte of a data folder that no server uses, and list what is damaged or lost
    Check(Check),
    /// Skip damaged places of a data folder that no server uses; without --skip, only show the places
    Repair(Repair),
    /// Ask a running server to copy all its data to a folder on the server's machine
    Backup(BackupArgs),
    /// Verify every byte of a backup, then make a data folder from it
    Restore(Restore),
}

#[derive(Debug, clap::Args)]
struct Check {
    /// Data folder
    #[arg(default_value = FOLDER)]
    folder: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Repair {
    /// Data folder
    #[arg(default_value = FOLDER)]
    folder: PathBuf,
    /// Damaged place, as `check` prints it; the data there is lost for good. Can be given several times
    #[arg(long, value_name = "PLACE")]
    skip: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct BackupArgs {
    /// Absolute path of a folder on the server's machine; it must be empty or not exist yet
    folder: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Restore {
    /// Folder of the backup
    backup: PathBuf,
    /// Data folder to make; it must be empty or not exist yet
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Made {
    backup: Backup,
}

#[derive(Debug, Deserialize)]
struct Backup {
    files: u64,
    bytes: u64,
    shared_bytes: u64,
    left_out: Vec<String>,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Check(args) => check(&args),
        Action::Repair(args) => repair(&args),
        Action::Backup(args) => backup(args).await,
        Action::Restore(args) => restore(&args),
    }
}

fn failed(error: DataError) -> Failure {
    Failure::Failed(error.to_string())
}

/// Checks the folder. A folder that does not exist is reported as wrong usage: the path was probably mistyped.
fn look(folder: &Path) -> Result<Report, Failure> {
    if !folder.is_dir() {
        return Err(Failure::Wrong(format!("there is no folder {}", folder.display())));
    }
    data::check(folder).map_err(failed)
}

fn check(args: &Check) -> Result<(), Failure> {
    let report = look(&args.folder)?;
    match args.json {
        true => show::json(&as_json(&report))?,
        false => print(&args.folder, &report)?,
    }
    match report.is_whole() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("{} is not whole", args.folder.display()))),
    }
}

fn print(folder: &Path, report: &Report) -> Result<(), Failure> {
    let rows = report.logs.iter().map(row).collect();
    show::table(&["log", "segments", "bytes", "batches", "positions", "damaged"], rows, "no logs")?;
    for log in &report.logs {
        for damage in &log.damages {
            for line in in_words(folder, damage) {
                show::line(&show::harmless(&line))?;
            }
        }
    }
    for trouble in &report.troubles {
        show::line(&show::harmless(trouble))?;
    }
    for foreign in &report.foreign {
        show::line(&show::harmless(&format!("{} is not Keylane's, and is left alone", foreign.display())))?;
    }
    for repair in &report.given_up {
        show::line(&show::harmless(&format!("an earlier repair: {repair}")))?;
    }
    let said = if report.is_whole() && !report.given_up.is_empty() {
        "everything is as it was written, but for what earlier repairs gave up"
    } else if report.is_whole() {
        "everything is as it was written"
    } else {
        "not everything is as it was written"
    };
    show::line(said)
}

fn row(log: &LogReport) -> Vec<Cell> {
    let ends: Vec<String> = log
        .ends
        .iter()
        .enumerate()
        .map(|(partition, (start, end))| format!("{partition}: {start}..{end}"))
        .collect();
    vec![
        Cell::text(Some(&log.name)),
        Cell::number(log.segments.len() as u64),
        Cell::number(log.segments.iter().map(|segment| segment.used_bytes).sum()),
        Cell::number(log.segments.iter().map(|segment| segment.batches).sum()),
        Cell::text(Some(&ends.join("  "))),
        Cell::number(log.damages.len() as u64),
    ]
}

fn in_words(folder: &Path, damage: &Damage) -> Vec<String> {
    let Damage { word, file, offset, bytes, what, lost, can_be_skipped } = damage;
    let mut lines = vec![format!("{}, byte {offset}, {bytes} bytes: {what}", file.display())];
    lines.extend(lost.iter().map(|lost| format!("  gone: {lost}")));
    if lost.is_empty() {
        lines.push("  gone: nothing that is still needed, as far as can be told".to_owned());
    }
    lines.push(match can_be_skipped {
        true if folder == Path::new(FOLDER) => {
            format!("  to go on without it: keylane data repair --skip {word}")
        }
        true => format!("  to go on without it: keylane data repair {} --skip {word}", folder.display()),
        false => "  no repair is known; restore a backup".to_owned(),
    });
    lines
}

fn as_json(report: &Report) -> Value {
    let lost = |lost: &data::Lost| json!({ "of": lost.of, "from": lost.from, "to": lost.to, "at_most": lost.at_most });
    let damage = |damage: &Damage| {
        json!({
            "place": damage.word, "file": damage.file, "byte": damage.offset, "bytes": damage.bytes, "what": damage.what,
            "lost": damage.lost.iter().map(lost).collect::<Vec<_>>(), "can_be_skipped": damage.can_be_skipped,
        })
    };
    let segment = |segment: &data::SegmentReport| {
        json!({
            "segment": segment.number, "file_bytes": segment.file_bytes, "used_bytes": segment.used_bytes,
            "batches": segment.batches,
        })
    };
    let end = |(partition, (start, end)): (usize, &(u64, u64))| json!({ "partition": partition, "start": start, "end": end });
    let log = |log: &LogReport| {
        json!({
            "log": log.name, "segments": log.segments.iter().map(segment).collect::<Vec<_>>(),
            "ends": log.ends.iter().enumerate().map(end).collect::<Vec<_>>(),
            "damages": log.damages.iter().map(damage).collect::<Vec<_>>(),
        })
    };
    json!({
        "whole": report.is_whole(), "logs": report.logs.iter().map(log).collect::<Vec<_>>(),
        "troubles": report.troubles, "foreign": report.foreign, "given_up": report.given_up,
    })
}

fn repair(args: &Repair) -> Result<(), Failure> {
    if args.skip.is_empty() {
        return would(&args.folder, &look(&args.folder)?);
    }
    for repaired in data::repair(&args.folder, &args.skip).map_err(failed)? {
        show::line(&show::harmless(&format!("skipped {}", repaired.word)))?;
        for lost in &repaired.lost {
            show::line(&show::harmless(&format!("  gone for good: {lost}")))?;
        }
        if let Some(kept) = &repaired.kept {
            show::line(&show::harmless(&format!("  its bytes are kept in {}", kept.display())))?;
        }
    }
    let left = look(&args.folder)?;
    match left.is_whole() {
        true => show::line("the folder can be used"),
        false => would(&args.folder, &left),
    }
}

/// Prints the damaged places and how each can be skipped, and changes nothing.
fn would(folder: &Path, report: &Report) -> Result<(), Failure> {
    for damage in report.damages() {
        for line in in_words(folder, damage) {
            show::line(&show::harmless(&line))?;
        }
    }
    for trouble in &report.troubles {
        show::line(&show::harmless(trouble))?;
    }
    match report.is_whole() {
        true => show::line("there is nothing to repair"),
        false => Err(Failure::Failed("nothing was changed; name what is to be skipped".to_owned())),
    }
}

async fn backup(args: BackupArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let body = json!({ "folder": args.folder });
    let answer: Box<RawValue> =
        client.order_about(&["admin", "data", "backup"], &body, BACKUP_TIMEOUT).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let Made { backup } = client.read(&answer)?;
    for topic in &backup.left_out {
        show::line(&show::harmless(&format!("topic {topic} cannot be read, and is not in the backup")))?;
    }
    let (bytes, shared) = (show::thousands(backup.bytes), show::thousands(backup.shared_bytes));
    let mut said = format!("{} files with {bytes} bytes are in {}", backup.files, args.folder.display());
    if backup.shared_bytes > 0 {
        said += &format!("; the data folder shares {shared} of these bytes by hard links");
    }
    show::line(&show::harmless(&said))
}

fn restore(args: &Restore) -> Result<(), Failure> {
    let made = data::restore(&args.backup, &args.folder).map_err(failed)?;
    show::line(&show::harmless(&format!(
        "{} files with {} bytes were verified and are in {}",
        made.files,
        show::thousands(made.bytes),
        args.folder.display()
    )))
}
