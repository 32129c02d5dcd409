//! The small text files that describe a folder (`topic`, `broker`), readable for people, with a checksum in the last
//! line.
//!
//! ```text
//! keylane topic 1
//! incarnation 5f0c…        32 hex digits
//! partitions 4
//! …
//! crc 1a2b3c4d             CRC32C of all lines above
//! ```
//!
//! Such a file is written under another name, synced, and then renamed, so that it is either complete or absent. The
//! file `topic` is the last step of making a topic: without it, the topic was never made.

use std::path::Path;

use super::failure::{Action, Failure};
use super::options::Host;
use super::segment::make::sync_dir;
use crate::contract::{Compression, Ids, Topic, TopicSpec};

const TOPIC: &str = "keylane topic 1";
const BROKER: &str = "keylane embedded 1";

/// The name of a topic becomes the name of a folder, and may be as long. The logs of the spill are named after topics
/// with a short prefix.
pub(crate) fn is_topic_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=255).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(valid)
}

/// Writes the file `topic`.
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

/// Reads the file `topic`; `None` if there is none.
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
                // Not stored, because this broker never compresses messages.
                compression: Compression::default(),
                // Not stored, because every message of this broker has an id.
                ids: Ids::default(),
            },
        })
    };
    let damaged = || Failure::damaged(&dir.join("topic"), 0, "a field is missing or wrong");
    parse().ok_or_else(damaged).map(Some)
}

/// Writes the file `broker`, which has the identities of the two logs.
pub(crate) fn write_broker(host: &Host, dir: &Path, journals: u128, holds: u128) -> Result<(), Failure> {
    let text = format!("{BROKER}\njournals {journals:032x}\nholds {holds:032x}\n");
    write(host, dir, "broker", &text)
}

/// Reads the file `broker`; `None` if there is none.
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

/// Appends the line with the checksum.
pub(super) fn checksummed(text: &str) -> String {
    format!("{text}crc {:08x}\n", crc32c::crc32c(text.as_bytes()))
}

/// Reads such a file, if it exists, and returns its lines without the checksum. `first` is the expected first line.
pub(super) fn read(host: &Host, dir: &Path, name: &str, first: &str) -> Result<Option<String>, Failure> {
    let path = dir.join(name);
    let failed = || Failure::io(Action::Read, &path);
    let file = match host.disk.open_to_read(&path) {
        Ok(file) => file,
        // A file among the folders of topics is not a topic.
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
    // The number at the end of the line is the version. An unknown number is a later version, as there was none
    // before.
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

/// The value of the line that begins with `key`.
pub(super) fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
}
