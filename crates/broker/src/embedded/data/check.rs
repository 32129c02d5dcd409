//! Checks a data folder that no server uses: verifies every checksum of every log, and reports what is missing.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::failure::{Action, Failure, OpenError};
use super::super::meta;
use super::super::options::{Host, Options};
use super::report::{Damage, LogReport, Lost, Report};
use super::restore::{MARK, refuse_restoring};
use super::walk::{LostRange, Mend, Region, Walked, ends_of, walk};
use crate::embedded::journals::{Role, parse_name};
use crate::embedded::segment::make::SPARE;
use crate::embedded::segment::{end, segment_number, segment_path};

/// All names that Keylane uses in a data folder, including those of other parts of Keylane. Other names are foreign.
const ROOT_NAMES: [&str; 10] =
    ["lock", "broker", "broker.new", "topics", "journals", "holds", "spill", "emergency", REPAIRED, MARK];
/// The folder in which `repair` keeps the bytes that it overwrote.
pub(super) const REPAIRED: &str = "repaired";
/// The file in that folder that has a line for each repair.
pub(super) const REPAIR_LOG: &str = "log";
/// At most this much of the file is shown, which is enough for thousands of repairs.
const REPAIR_LOG_BYTES_MAX: u64 = 1024 * 1024;
/// The last part of the name of a damage that concerns the file `end` of a log.
pub(super) const END_WORD: &str = "end:0";

/// Checks the folder. An error if this is impossible: the folder does not exist, or a server uses it.
pub fn check(root: &Path, options: &Options) -> Result<Report, OpenError> {
    let host = &options.host;
    let _locked = lock(host, root, false)?;
    Ok(look(host, root)?.report)
}

/// The report, and the findings that `repair` works from.
pub(super) struct Looked {
    pub report: Report,
    pub logs: BTreeMap<String, (u128, Walked)>,
}

/// Locks the folder, so that no server opens it meanwhile.
pub(super) fn lock(
    host: &Host,
    root: &Path,
    writes: bool,
) -> Result<Option<Box<dyn Any + Send + Sync>>, OpenError> {
    let names = host.disk.list(root).map_err(Failure::io(Action::List, root))?;
    // In a folder without any of Keylane's files nothing is made, not even the file `lock`.
    if !writes && !names.iter().any(|name| ROOT_NAMES.contains(&name.as_str())) {
        return Ok(None);
    }
    let path = root.join("lock");
    // A check only reads, and must also work on a read-only file system.
    let locked = if writes { host.disk.lock(&path) } else { host.disk.lock_to_read(&path) };
    match locked {
        // Asked under the lock: a restore holds it while it runs, and removes its mark before it unlocks.
        Ok(locked) => refuse_restoring(host, root).map(|()| Some(locked)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(OpenError::Locked(root.to_owned()))
        }
        Err(error) => Err(Failure::io(Action::Lock, root)(error).into()),
    }
}

/// Checks all logs of a folder, and the logs of the spill in it.
pub(super) fn look(host: &Host, root: &Path) -> Result<Looked, Failure> {
    let mut looked = Looked { report: Report::default(), logs: BTreeMap::new() };
    look_into(host, root, "", &mut looked)?;
    if host.disk.list(&root.join("spill")).is_ok() {
        look_into(host, root, "spill/", &mut looked)?;
    }
    looked.report.given_up = given_up(host, root)?;
    Ok(looked)
}

/// The lines of the log of repairs, if there is one.
fn given_up(host: &Host, root: &Path) -> Result<Vec<String>, Failure> {
    let path = root.join(REPAIRED).join(REPAIR_LOG);
    let failed = || Failure::io(Action::Read, &path);
    let file = match host.disk.open_to_read(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed()(error)),
    };
    let length = file.len().map_err(failed())?.min(REPAIR_LOG_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_at(&mut bytes, 0).map_err(failed())?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(ToOwned::to_owned).collect())
}

fn look_into(host: &Host, root: &Path, prefix: &str, looked: &mut Looked) -> Result<(), Failure> {
    let base = root.join(prefix);
    let names = host.disk.list(&base).map_err(Failure::io(Action::List, &base))?;
    let foreign = names.iter().filter(|name| !ROOT_NAMES.contains(&name.as_str()));
    looked.report.foreign.extend(foreign.map(|name| base.join(name)));
    let topics = host.disk.list(&base.join("topics")).unwrap_or_default();
    match meta::read_broker(host, &base) {
        Ok(Some((journals, holds))) => {
            for (name, log) in [("journals", journals), ("holds", holds)] {
                looked.log(host, root, format!("{prefix}{name}"), log, true);
            }
        }
        Ok(None) if topics.is_empty() && !names.iter().any(|name| name == "journals") => {
            let what = "there is no Keylane data here";
            looked.report.troubles.push(format!("{}: {what}", base.display()));
        }
        Ok(None) => {
            let what = "the file is missing, and with it the way to the journals; restore it from a backup";
            looked.report.troubles.push(format!("{}: {what}", base.join("broker").display()));
        }
        Err(failure) => looked.report.troubles.push(failure.to_string()),
    }
    for topic in topics {
        let dir = base.join("topics").join(&topic);
        let files = host.disk.list(&dir);
        match meta::read_topic(host, &dir, &topic) {
            Ok(Some(found)) => {
                looked.log(host, root, format!("{prefix}topics/{topic}"), found.incarnation, false);
            }
            Ok(None) if files.is_ok_and(|files| files.iter().any(|name| segment_number(name).is_some())) => {
                let what =
                    "the file is missing, though there are segments beside it; restore it from a backup";
                looked.report.troubles.push(format!("{}: {what}", dir.join("topic").display()));
            }
            Ok(None) => looked.report.foreign.push(dir),
            Err(failure) => looked.report.troubles.push(failure.to_string()),
        }
    }
    Ok(())
}

impl Looked {
    fn log(&mut self, host: &Host, root: &Path, name: String, log: u128, journals: bool) {
        let dir = root.join(&name);
        let walked = match walk(host, &dir, log, journals) {
            Ok(walked) => walked,
            Err(failure) => return self.report.troubles.push(failure.to_string()),
        };
        let mut report =
            LogReport { name: name.clone(), segments: walked.segments.clone(), ..LogReport::default() };
        if !journals {
            report.ends = ends_of(&walked.table, &walked.starts);
        }
        for region in &walked.regions {
            report.damages.push(damage(&dir, &name, region, &walked, journals));
        }
        if let Some(what) = &walked.no_end {
            report.damages.push(no_end(&dir, &name, what));
        }
        let of = |(stream, from, to): &(u32, u64, u64)| {
            format!("{name}: a segment is missing: {}", lost(&walked, &name, &range(*stream, *from, *to)))
        };
        self.report.troubles.extend(walked.missing.iter().map(of));
        self.report.foreign.extend(foreign(host, &dir));
        self.report.logs.push(report);
        self.logs.insert(name, (log, walked));
    }
}

fn range(stream: u32, from: u64, to: u64) -> LostRange {
    LostRange { stream, from, to, at_most: false }
}

fn damage(dir: &Path, name: &str, region: &Region, walked: &Walked, journals: bool) -> Damage {
    let what = match region.behind {
        0 => region.what.clone(),
        _ => {
            format!("{}; the log was not closed before, so that more may have been written here", region.what)
        }
    };
    Damage {
        word: format!("{name}:{}:{}", region.segment, region.from),
        file: segment_path(dir, region.segment),
        offset: region.from,
        bytes: region.to - region.from,
        what,
        lost: all_lost(walked, name, region, journals),
        can_be_skipped: !matches!(region.mend, Mend::Nothing),
    }
}

/// What a region held, in words. Of a journals' log only records that are still needed count as lost: most of what
/// lay there has been replaced.
pub(super) fn all_lost(walked: &Walked, name: &str, region: &Region, journals: bool) -> Vec<Lost> {
    let gaps = walked.streams.gaps();
    let needed = |range: &&LostRange| {
        let within = |gap: &(u32, u64, u64)| gap.0 == range.stream && gap.1 < range.to && range.from < gap.2;
        range.at_most || !journals || gaps.iter().any(within)
    };
    let all = region.lost.iter().filter(needed).chain(&region.gaps);
    all.map(|range| lost(walked, name, range)).collect()
}

fn no_end(dir: &Path, name: &str, what: &str) -> Damage {
    Damage {
        word: format!("{name}:{END_WORD}"),
        file: dir.join(end::NAME),
        offset: 0,
        bytes: 0,
        what: format!("{what}: nobody can say whether the end of the log is still there"),
        lost: Vec::new(),
        can_be_skipped: true,
    }
}

/// Names the stream of a range in words.
fn lost(walked: &Walked, name: &str, range: &LostRange) -> Lost {
    let LostRange { stream, from, to, at_most } = *range;
    let of = match walked.table.get(&stream).and_then(|ends| parse_name(&ends.name)) {
        _ if name.contains("topics/") => format!("partition {stream}"),
        Some((Role::Journal, group, topic, partition)) => {
            let kind = if name.ends_with("holds") { "hold" } else { "journal" };
            format!("the {kind} of group {group}, topic {topic}, partition {partition}")
        }
        Some((Role::Commit, group, topic, partition)) => {
            format!("the commit of group {group}, topic {topic}, partition {partition}")
        }
        Some((Role::Known, group, topic, _)) => format!("what is known of group {group} and topic {topic}"),
        None => format!("stream {stream}"),
    };
    Lost { of, from, to, at_most }
}

/// The files in a log's folder that are not Keylane's.
fn foreign(host: &Host, dir: &Path) -> Vec<PathBuf> {
    let ours = |name: &str| {
        segment_number(name).is_some()
            || name.starts_with(SPARE)
            || [end::NAME, end::NEW_NAME, "topic", "topic.new"].contains(&name)
    };
    let names = host.disk.list(dir).unwrap_or_default();
    names.into_iter().filter(|name| !ours(name)).map(|name| dir.join(name)).collect()
}
