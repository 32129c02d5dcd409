//! Reads files of a disk that does not give all of them any more.
//!
//! A sector that cannot be read (EIO) is damage of what lies there, and of nothing else. So whoever reads much at once
//! reads it again in small pieces, and a piece that does not come is zeros: the checksum of a batch in which it lies is
//! wrong then, and all others are whole. The same goes for a file that somebody has cut: what it does not have any more
//! does not come back by waiting. A log that is being opened is read without this: a disk that fails must not
//! pass for a torn tail.

use std::io;

use super::DiskFile;

/// What a disk gives at least, and what it loses at once: the block of a file system.
const PIECE: u64 = 4096;

/// A file whose unreadable pieces are zeros.
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
        // A piece at the end of the file has what is there.
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
