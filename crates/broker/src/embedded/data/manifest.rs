//! The file `manifest` of a backup: its files, with their lengths and checksums. The manifest is written last, so a
//! backup without it is unfinished.
//!
//! ```text
//! keylane backup 1
//! made 1794873600000
//! file 67108864 1a2b3c4d topics/orders/0000000000000001.seg
//! …
//! crc 5e6f7a8b             CRC32C of all lines above
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use super::super::meta::{checksummed, field};

/// The name of the file.
pub(super) const NAME: &str = "manifest";
const FIRST_LINE: &str = "keylane backup 1";
/// A file is read and summed in pieces of this size.
const PIECE: usize = 1 << 20;

/// The contents of a manifest.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    pub made_ms: u64,
    pub files: Vec<Entry>,
}

/// A file of the backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path within the backup.
    pub path: String,
    pub bytes: u64,
    pub crc: u32,
}

impl Manifest {
    pub fn encode(&self) -> String {
        let mut text = format!("{FIRST_LINE}\nmade {}\n", self.made_ms);
        for Entry { path, bytes, crc } in &self.files {
            text.push_str(&format!("file {bytes} {crc:08x} {path}\n"));
        }
        checksummed(&text)
    }

    /// Reads a manifest; an error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let (body, crc) = text.trim_end().rsplit_once("crc ").ok_or("it has no checksum")?;
        if u32::from_str_radix(crc, 16).ok() != Some(crc32c::crc32c(body.as_bytes())) {
            return Err("its checksum is wrong".to_owned());
        }
        match body.lines().next() {
            Some(FIRST_LINE) => {}
            Some(other) if other.starts_with("keylane backup ") => {
                return Err(format!("it begins with '{other}': a newer version of Keylane made the backup"));
            }
            _ => return Err(format!("it does not begin with '{FIRST_LINE}'")),
        }
        let made_ms = field(body, "made")
            .and_then(|made| made.parse().ok())
            .ok_or("it does not say when it was made")?;
        let mut files = Vec::new();
        for line in body.lines().filter_map(|line| line.strip_prefix("file ")) {
            let mut parts = line.splitn(3, ' ');
            let entry = (|| {
                let bytes = parts.next()?.parse().ok()?;
                let crc = u32::from_str_radix(parts.next()?, 16).ok()?;
                let path = parts.next()?.to_owned();
                // A path must stay inside the folder: a restore must never write outside of it.
                let plain = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_)));
                (plain && !path.is_empty()).then_some(Entry { path, bytes, crc })
            })();
            files.push(entry.ok_or_else(|| format!("a line makes no sense: file {line}"))?);
        }
        Ok(Manifest { made_ms, files })
    }
}

/// Length and checksum of a file.
pub(super) fn sum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let (mut bytes, mut crc, mut piece) = (0, 0, vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((bytes, crc)),
            read => {
                bytes += read as u64;
                crc = crc32c::crc32c_append(crc, &piece[..read]);
            }
        }
    }
}
