//! Faults of the machine, made for real: system calls that fail, a disk that is full, bytes that change.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::server::Server;

/// Makes system calls of a running server fail, by strace, until it is detached or dropped.
pub struct Tracer {
    strace: Child,
    _trace: TempDir,
}

impl Tracer {
    /// From now on `calls` (names, separated by commas) of `server` fail with `error`. None, with a loud note, where
    /// strace is missing or may not attach.
    pub async fn attach(server: &Server, calls: &str, error: &str) -> Option<Tracer> {
        let trace = TempDir::new().expect("a folder for the trace");
        let spawned = Command::new("strace")
            .args(["-f", "-o"])
            .arg(trace.path().join("trace"))
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:error={error}")])
            .args(["-p", &server.pid().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut strace) = spawned else {
            return not_here("strace, which makes system calls fail (apt-get install strace)");
        };
        let stderr = strace.stderr.take().expect("asked for above");
        let mut lines = BufReader::new(stderr).lines();
        let mut said = String::new();
        while let Some(line) = lines.next_line().await.expect("strace writes text") {
            if line.contains("attached") {
                // The rest of strace's output must not fill the pipe.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Some(Tracer { strace, _trace: trace });
            }
            said.push_str(&line);
        }
        not_here(&format!("permission to trace a process: {said}"))
    }

    /// System calls work again.
    pub async fn detach(mut self) {
        let pid = self.strace.id().expect("it runs").to_string();
        let status = Command::new("kill").args(["-INT", &pid]).status().await;
        assert!(status.expect("kill is there").success(), "strace was not told to end");
        self.strace.wait().await.expect("a child can be waited for");
    }
}

/// A file system of a few MiB, in memory. Unmounted when dropped.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts the file system. None, with a loud note, where that is not allowed.
    pub async fn mount(mebibytes: u32) -> Option<SmallDisk> {
        let folder = TempDir::new().expect("a folder for the test");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "keylane-test"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status()
            .await;
        if status.is_ok_and(|status| status.success()) {
            Some(SmallDisk { folder })
        } else {
            not_here("the right to mount a small disk (run as root)")
        }
    }

    /// The folder where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the disk up except for `left_kib`. Removing the returned file makes room again.
    pub fn fill(&self, left_kib: u64) -> PathBuf {
        use std::io::Write;
        let path = self.path().join("ballast");
        let mut file = std::fs::File::create(&path).expect("the disk can be written");
        let block = [1; 4096];
        let mut written = 0;
        while file.write_all(&block).is_ok() {
            written += block.len() as u64;
        }
        file.set_len(written.saturating_sub(left_kib * 1024)).expect("a file can be cut");
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that was just killed may still hold files there.
        let _left_to_the_system = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// All files below a folder, with their paths.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The place of `wanted` in `bytes`.
pub fn find_bytes(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Notes what this machine does not have, where the test runner shows it at the end. With `CI=true` it is a failure.
pub fn not_here<T>(what: &str) -> Option<T> {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this machine lacks {what}");
    eprintln!("NOT TESTED HERE: {what}");
    let test = std::env::current_exe().expect("a test has a path");
    if let Some(target) = test.ancestors().nth(3) {
        use std::io::Write;
        let list = std::fs::OpenOptions::new().create(true).append(true).open(target.join("missing-tools"));
        let _a_list_that_cannot_be_written_was_printed = list.and_then(|mut list| writeln!(list, "{what}"));
    }
    None
}
