//! Reads the config file, and files that the config names, up to a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The text of a file of at most `bytes_max` bytes. Without the bound, a device such as `/dev/zero` would be read until
/// the memory is full.
pub(super) fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    match text.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("it has more than {bytes_max} bytes"))),
        false => Ok(text),
    }
}

/// Like [`text`], but only for a regular file: opening a pipe would wait, perhaps for ever, for a program that writes.
pub(super) fn regular(path: &Path, bytes_max: u64) -> io::Result<String> {
    match std::fs::metadata(path)?.is_file() {
        true => text(path, bytes_max),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ADM-9, SEC-2.
    #[test]
    fn a_file_without_an_end_is_given_up() {
        let error = text(Path::new("/dev/zero"), 1000).expect_err("it never ends");
        assert_eq!(error.to_string(), "it has more than 1000 bytes");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "x".repeat(1000)).expect("written");
        assert_eq!(text(file.path(), 1000).map(|text| text.len()).ok(), Some(1000));
        assert!(text(file.path(), 999).is_err());
    }
}
