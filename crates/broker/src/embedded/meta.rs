//! Small files that say what a folder is: text, for people too, with a checksum in the last line.
//!
//! ```text
//! keylane topic 1
//! incarnation 5f0c…        32 hex digits
//! partitions 4
//! …
//! crc 1a2b3c4d             CRC32C of all lines above
//! ```
//!
//! Such a file is written under another name, synced, and then renamed: it is there whole, or not at all. It is the
//! last step of making a topic, so that a topic without it was never made.

use std::path::Path;

use super::failure::{Action, Failure};
use super::options::Host;
use super::segment::make::sync_dir;
use crate::contract::{Compression, Ids, Topic, TopicSpec};

const TOPIC: &str = "keylane topic 1";
const BROKER: &str = "keylane embedded 1";

/// A topic's name becomes that of a folder, and may be as long: the spill's logs have the names of topics, and a little
/// before them.
pub(crate) fn is_topic_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=255).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(valid)
}

/// Writes a topic's file.
pub(crate) fn write_topic(host: &Host, dir: &Path, topic: &Topic) -> Result<(), Failure> {
    let spec = &topic.spec;
    let optional = |value: Option<u64>| value.map_or("none".to_owned(), |value| value.to_string());
    let text = format!(
        "{TOPIC}\nincarnation {:032x}\npartitions {}\nreplicas {}\nmin_insync {}\nretention_ms {}\nretention_bytes {}\nmessage_bytes_max {}\n",
        topic.incarnation,
        topic.partitions,
        spec.replicas,
        spec.min_insync,
        optional(spec.retention_ms),
        optional(spec.retention_bytes),
        spec.message_bytes_max,
    );
    write(host, dir, "topic", &text)
}

/// Reads a topic's file; `None` if there is none.
pub(crate) fn read_topic(host: &Host, dir: &Path, name: &str) -> Result<Option<Topic>, Failure> {
    let Some(text) = read(host, dir, "topic", TOPIC)? else {
        return Ok(None);
    };
    let parse = || {
        let number = |key| field(&text, key)?.parse::<u64>().ok();
        let optional = |key| match field(&text, key)? {
            "none" => Some(None),
            value => value.parse().ok().map(Some),
        };
        let partitions = number("partitions")? as u32;
        Some(Topic {
            name: name.to_owned(),
            partitions,
            incarnation: u128::from_str_radix(field(&text, "incarnation")?, 16).ok()?,
            spec: TopicSpec {
                partitions,
                replicas: number("replicas")? as u32,
                min_insync: number("min_insync")? as u32,
                retention_ms: optional("retention_ms")?,
                retention_bytes: optional("retention_bytes")?,
                message_bytes_max: number("message_bytes_max")? as usize,
                // Messages are kept as they are, so that it is not.
                compression: Compression::default(),
                // Each has one, for the same reason.
                ids: Ids::default(),
            },
        })
    };
    let damaged = || Failure::damaged(&dir.join("topic"), 0, "a field is missing or wrong");
    parse().ok_or_else(damaged).map(Some)
}

/// Writes the broker's own file: the identities of its two logs.
pub(crate) fn write_broker(host: &Host, dir: &Path, journals: u128, holds: u128) -> Result<(), Failure> {
    let text = format!("{BROKER}\njournals {journals:032x}\nholds {holds:032x}\n");
    write(host, dir, "broker", &text)
}

/// Reads the broker's own file; `None` if there is none.
pub(crate) fn read_broker(host: &Host, dir: &Path) -> Result<Option<(u128, u128)>, Failure> {
    let Some(text) = read(host, dir, "broker", BROKER)? else {
        return Ok(None);
    };
    let identity = |key| u128::from_str_radix(field(&text, key)?, 16).ok();
    match (identity("journals"), identity("holds")) {
        (Some(journals), Some(holds)) => Ok(Some((journals, holds))),
        _ => Err(Failure::damaged(&dir.join("broker"), 0, "a field is missing or wrong")),
    }
}

fn write(host: &Host, dir: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let (new, path) = (dir.join(format!("{name}.new")), dir.join(name));
    let failed = || Failure::io(Action::Write, &new);
    let text = checksummed(text);
    match host.disk.remove(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    let file = host.disk.create(&new).map_err(failed())?;
    file.write_at(text.as_bytes(), 0).map_err(failed())?;
    file.sync_data().map_err(Failure::io(Action::Sync, &new))?;
    host.disk.rename(&new, &path).map_err(Failure::io(Action::Rename, &new))?;
    sync_dir(host, dir)
}

/// The text with the line that proves it whole.
pub(super) fn checksummed(text: &str) -> String {
    format!("{text}crc {:08x}\n", crc32c::crc32c(text.as_bytes()))
}

/// Reads such a file, if it is there: its lines without the last. `first` is the line that it must begin with.
pub(super) fn read(host: &Host, dir: &Path, name: &str, first: &str) -> Result<Option<String>, Failure> {
    let path = dir.join(name);
    let failed = || Failure::io(Action::Read, &path);
    let file = match host.disk.open_to_read(&path) {
        Ok(file) => file,
        // Something else may lie among the topics: it is none.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed()(error)),
    };
    let mut bytes = vec![0; file.len().map_err(failed())? as usize];
    file.read_at(&mut bytes, 0).map_err(failed())?;
    let checked = || {
        let text = String::from_utf8(bytes).ok()?;
        let (body, crc) = text.trim_end().rsplit_once("crc ")?;
        let good = u32::from_str_radix(crc, 16).ok()? == crc32c::crc32c(body.as_bytes());
        good.then(|| body.to_owned())
    };
    let Some(text) = checked() else {
        return Err(Failure::damaged(&path, 0, "the checksum is wrong"));
    };
    // The number at the line's end is the version: one that is not known is a later one, since there was none before.
    let (kind, found) =
        (|line: &str| line.rsplit_once(' ').map(|(kind, _)| kind.to_owned()), text.lines().next());
    match found {
        Some(line) if line == first => Ok(Some(text)),
        Some(line) if kind(line) == kind(first) => {
            Err(Failure::newer(&path, format!("it begins with '{line}', and this version knows '{first}'")))
        }
        _ => Err(Failure::damaged(&path, 0, format!("it does not begin with '{first}'"))),
    }
}

/// The value of a line.
pub(super) fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}
