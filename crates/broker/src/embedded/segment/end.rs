//! The small file `end` of each log: how far the log is known to reach.
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
//!                    an empty line here: closed no, whatever it says above
//! ```
//!
//! A log cannot tell by itself that its end is missing: what is left ends somewhere, too. So the end is written down
//! apart from it. What the file says is a lower bound, and each step keeps it one; an exact place only if the log was closed:
//!
//! - It is written after what it speaks of is durable: at the open once the tail was synced, at a roll once the new
//!   segment has its name, at a close behind the last group. A crash before it leaves the older, lower bound.
//! - At a roll it is durable before any batch of the new segment is acknowledged. A new segment of which the file does
//!   not know yet holds nothing that anybody was promised.
//! - `closed yes` is taken back before anything else is written, since whoever mends a log believes it: then the end is
//!   exact, and nothing lay behind it. On a full disk one byte behind the file says so, for which there is room in its
//!   block; a disk that does not take that one takes no message either.
//! - It replaces its predecessor by a rename, so it is there whole. It is prepared (`end.new`) before the new segment
//!   gets its name, so that afterwards only a rename can fail; then the log stops, since it could neither go back to the
//!   old segment nor go on in the new one.
//! - No segment with a capacity in its header is made in a log without this file. So a log whose segments say no
//!   capacity is one from before the file existed, and is taken over as it is, once; where any says one, a missing file
//!   is damage.
//!
//! So a crash never leaves less than the file says, and a log that ends before it has lost something: it stops (P10).
//! What lies above the bound, in the last segment after a crash, is told from a torn tail by sync groups (`scan`) and
//! by the file's length (`segment`).

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
    /// What the file says, without its checksum.
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

    /// Writes it beside the one that counts, durably. Nothing has changed if that fails.
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

    /// Prepares and publishes it.
    pub fn write(&self, host: &Host, dir: &Path, handle: &dyn DiskDir) -> Result<(), Failure> {
        self.prepare(host, dir)?;
        publish(host, dir, handle)
    }

    /// Takes `closed yes` back in the file that is there, for a disk on which there is no room for another: by one byte
    /// behind its last line, which is there or not, whenever the power goes.
    pub fn reopen(host: &Host, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(NAME);
        let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
        let length = file.len().map_err(Failure::io(Action::Read, &path))?;
        file.write_at(b"\n", length).map_err(Failure::io(Action::Write, &path))?;
        file.sync_data().map_err(Failure::io(Action::Sync, &path))
    }

    /// Reads the file of a log; `None` if there is none.
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

/// Lets what was prepared count. After a failure it is open which of the two does.
pub(crate) fn publish(host: &Host, dir: &Path, handle: &dyn DiskDir) -> Result<(), Failure> {
    let (new, path) = (dir.join(NEW_NAME), dir.join(NAME));
    host.disk.rename(&new, &path).map_err(Failure::io(Action::Record, &path))?;
    handle.sync().map_err(Failure::io(Action::Sync, dir))
}
