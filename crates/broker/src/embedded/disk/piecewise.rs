//! Reads a file of which the disk no longer returns every sector.
//!
//! A sector that cannot be read (EIO) damages only what lies in it. So if a large read fails, [`Piecewise`] repeats
//! it in small pieces, and an unreadable piece becomes zeros: then the checksum of its batch is wrong, and all other
//! batches are intact. The same holds for a file that was cut, because its missing bytes do not return by waiting. A
//! log is opened without `Piecewise`, because a failing disk must not look like a torn tail.

use std::io;

use super::DiskFile;

/// The block of a file system: the smallest unit that a disk returns or loses.
const PIECE: u64 = 4096;

/// A file whose unreadable pieces are read as zeros.
#[derive(Debug)]
pub(crate) struct Piecewise<'f>(pub &'f dyn DiskFile);

fn is_unreadable(error: &io::Error) -> bool {
    let is_bad = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    is_bad || error.kind() == io::ErrorKind::UnexpectedEof
}

impl DiskFile for Piecewise<'_> {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self.0.read_at(out, offset) {
            Err(error) if is_unreadable(&error) => {}
            read => return read,
        }
        // The file may end within the range; the bytes behind its end are zeros.
        let there = self.0.len()?.saturating_sub(offset).min(out.len() as u64);
        let (out, behind) = out.split_at_mut(there as usize);
        behind.fill(0);
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let length = (PIECE - at % PIECE).min(rest.len() as u64);
            let (piece, behind) = rest.split_at_mut(length as usize);
            match self.0.read_at(piece, at) {
                Err(error) if is_unreadable(&error) => piece.fill(0),
                read => read?,
            }
            (at, rest) = (at + length, behind);
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}
