//! Makes a data folder of a backup. Every file is verified against the manifest before the first is written, and each
//! copy again while it is made; the folder gets its name last, so that it is there whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::backup::{new_file, sync};
use super::manifest::{self, Entry, Manifest};
use crate::contract::Backup;

/// Why a backup was not restored. Nothing was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The folder is in use for something.
    #[error("{} exists and is not empty; name a folder that is, or that is not there yet", .0.display())]
    NotEmpty(PathBuf),
    /// The backup is not whole.
    #[error("{}: {what}; the backup is not what was made, and nothing was restored", path.display())]
    Tampered {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file system refuses.
    #[error("{}: {error}", path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// What came of it.
        #[source]
        error: io::Error,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    move |error| RestoreError::Io { path: path.to_owned(), error }
}

/// Verifies the backup and copies it to `folder`.
pub fn restore(backup: &Path, folder: &Path) -> Result<Backup, RestoreError> {
    match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => return Err(RestoreError::NotEmpty(folder.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_at(folder)(error)),
    }
    let path = backup.join(manifest::NAME);
    let tampered =
        |path: &Path, what: &str| RestoreError::Tampered { path: path.to_owned(), what: what.to_owned() };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(tampered(&path, "the file is missing: the backup was not finished, or this is none"));
        }
        text => text.map_err(io_at(&path))?,
    };
    let manifest = Manifest::parse(&text).map_err(|what| tampered(&path, &what))?;
    for entry in &manifest.files {
        verify(&backup.join(&entry.path), entry)?;
    }
    // Beside it, so that it gets its name in one step.
    let name = folder.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy().into_owned());
    let making = folder.with_file_name(format!("{name}.restoring"));
    let made = copy(backup, &making, &manifest).and_then(|done| {
        fs::rename(&making, folder).map_err(io_at(folder))?;
        Ok(done)
    });
    if made.is_err() {
        let _gone_already = fs::remove_dir_all(&making);
    }
    let done = made?;
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        sync(above).map_err(|failure| io_at(above)(io::Error::other(failure)))?;
    }
    Ok(done)
}

fn verify(path: &Path, entry: &Entry) -> Result<(), RestoreError> {
    let tampered = |what: String| Err(RestoreError::Tampered { path: path.to_owned(), what });
    match manifest::sum(path) {
        Ok((bytes, _)) if bytes != entry.bytes => {
            tampered(format!("the file has {bytes} bytes, and the manifest says {}", entry.bytes))
        }
        Ok((_, crc)) if crc != entry.crc => tampered("the checksum is not the manifest's".to_owned()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => tampered("the file is missing".to_owned()),
        Err(error) => Err(io_at(path)(error)),
    }
}

fn copy(backup: &Path, making: &Path, manifest: &Manifest) -> Result<Backup, RestoreError> {
    use std::os::unix::fs::DirBuilderExt;
    let folder =
        |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_at(dir));
    // What an earlier try left.
    let _not_there = fs::remove_dir_all(making);
    folder(making)?;
    let mut done = Backup::default();
    for entry in &manifest.files {
        let (from, to) = (backup.join(&entry.path), making.join(&entry.path));
        if let Some(dir) = to.parent() {
            folder(dir)?;
        }
        let copied = || {
            let mut source = fs::File::open(&from)?;
            let mut copy = new_file(&to)?;
            io::copy(&mut source, &mut copy)?;
            copy.sync_all()
        };
        copied().map_err(io_at(&to))?;
        verify(&to, entry)?;
        done.files += 1;
        done.bytes += entry.bytes;
    }
    let mut dirs: Vec<PathBuf> = manifest
        .files
        .iter()
        .flat_map(|entry| {
            Path::new(&entry.path).ancestors().skip(1).map(|dir| making.join(dir)).collect::<Vec<_>>()
        })
        .collect();
    dirs.sort();
    dirs.dedup();
    for dir in dirs {
        sync(&dir).map_err(|failure| io_at(&dir)(io::Error::other(failure)))?;
    }
    Ok(done)
}
