//! The small file `end` beside each log, which records how far the log reaches at least.
//!
//! ```text
//! keylane log 1
//! log 5f0c…          the log's identity, 32 hex digits
//! segment 7          the newest segment
//! capacity 67108864  bytes of that segment's file
//! end 20480          how far it was written and synced
//! group 912          the last sync group given out
//! closed no          yes: nothing was under way when this was written
//! crc 1a2b3c4d
//!                    an empty line here: closed no, whatever the line `closed` says
//! ```
//!
//! A log cannot detect that its own end is missing, because a shortened log ends somewhere too. So this file records
//! the end outside of the log. `end` is a lower bound; it is exact only if the log was closed. These rules keep the
//! bound true:
//!
//! - The file is written after the bytes that it names are durable: when the log is opened, after the tail was
//!   synced; when the log rolls, after the new segment has its name; when the log is closed, after the last group. A
//!   crash before the write leaves the older, lower bound.
//! - When the log rolls, the file is durable before any batch of the new segment is acknowledged. So a new segment
//!   that the file does not name holds nothing that was acknowledged.
//! - `closed yes` is taken back before anything else is written, because a repair relies on it: with `closed yes`
//!   nothing lay behind the end. On a full disk one byte appended to the file takes it back; the file's block has
//!   room for that byte. If even this write fails, no message could be written either.
//! - A rename replaces the old file, so the file is always complete. The new file (`end.new`) is written before the
//!   new segment gets its name, so that afterwards only the rename can fail. Then the log stops: it can neither
//!   return to the old segment nor go on in the new one.
//! - A segment with a capacity in its header is only made in a log that has this file. So a log in which no segment
//!   states a capacity is older than this file, and is accepted once as it is; if any segment states one, a missing
//!   file is damage.
//!
//! So a crash never leaves less than the file says. A log that ends earlier has lost data, and stops (P10). Above the
//! bound, in the last segment after a crash, sync groups (`scan`) and the file's length (`segment`) tell damage from
//! a torn tail.

use std::path::Path;

use crate::embedded::disk::DiskDir;
use crate::embedded::failure::{Action, Failure};
use crate::embedded::meta;
use crate::embedded::options::Host;

const FIRST_LINE: &str = "keylane log 1";
pub(crate) const NAME: &str = "end";
pub(crate) const NEW_NAME: &str = "end.new";

/// How far a log reaches at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub log: u128,
    pub segment: u64,
    pub capacity: u64,
    pub end: u64,
    pub group: u64,
    pub closed: bool,
}

impl End {
    /// The text of the file, without the line with the checksum.
    pub fn text(&self) -> String {
        format!(
            "{FIRST_LINE}\nlog {:032x}\nsegment {}\ncapacity {}\nend {}\ngroup {}\nclosed {}\n",
            self.log,
            self.segment,
            self.capacity,
            self.end,
            self.group,
            if self.closed { "yes" } else { "no" },
        )
    }

    /// Writes `end.new` durably. If that fails, the file `end` is as it was.
    pub fn prepare(&self, host: &Host, dir: &Path) -> Result<(), Failure> {
        let text = self.text();
        let new = dir.join(NEW_NAME);
        let failed = || Failure::io(Action::Make, &new);
        match host.disk.remove(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let file = host.disk.create(&new).map_err(failed())?;
        file.write_at(meta::checksummed(&text).as_bytes(), 0).map_err(failed())?;
        file.sync_data().map_err(failed())
    }

    /// Writes the file durably and lets it replace the old one.
    pub fn write(&self, host: &Host, dir: &Path, handle: &dyn DiskDir) -> Result<(), Failure> {
        self.prepare(host, dir)?;
        publish(host, dir, handle)
    }

    /// Takes `closed yes` back by appending one byte to the existing file, for a disk without room for a new file.
    /// Whether or not the byte survives a power cut, the file stays readable.
    pub fn reopen(host: &Host, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(NAME);
        let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
        let length = file.len().map_err(Failure::io(Action::Read, &path))?;
        file.write_at(b"\n", length).map_err(Failure::io(Action::Write, &path))?;
        file.sync_data().map_err(Failure::io(Action::Sync, &path))
    }

    /// Reads the file of a log; `None` if the log has no such file.
    pub fn read(host: &Host, dir: &Path, log: u128) -> Result<Option<End>, Failure> {
        let Some(text) = meta::read(host, dir, NAME, FIRST_LINE)? else {
            return Ok(None);
        };
        let path = dir.join(NAME);
        let file = host.disk.open_to_read(&path).map_err(Failure::io(Action::Open, &path))?;
        let length = file.len().map_err(Failure::io(Action::Read, &path))?;
        let is_reopened = length > meta::checksummed(&text).len() as u64;
        let number = |key| meta::field(&text, key)?.parse::<u64>().ok();
        let parse = || {
            Some(End {
                log: u128::from_str_radix(meta::field(&text, "log")?, 16).ok()?,
                segment: number("segment")?,
                capacity: number("capacity")?,
                end: number("end")?,
                group: number("group")?,
                closed: meta::field(&text, "closed")? == "yes" && !is_reopened,
            })
        };
        match parse() {
            None => Err(Failure::damaged(&path, 0, "a field is missing or wrong")),
            Some(end) if end.log != log => Err(Failure::damaged(&path, 0, "the file belongs to another log")),
            end => Ok(end),
        }
    }
}

/// Renames `end.new` to `end`, durably. After a failure either of the two files may be the one in force.
pub(crate) fn publish(host: &Host, dir: &Path, handle: &dyn DiskDir) -> Result<(), Failure> {
    let (new, path) = (dir.join(NEW_NAME), dir.join(NAME));
    host.disk.rename(&new, &path).map_err(Failure::io(Action::Record, &path))?;
    handle.sync().map_err(Failure::io(Action::Sync, dir))
}
