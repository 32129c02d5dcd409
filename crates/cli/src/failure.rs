//! How a command ends when it does not succeed: one clear sentence, and the exit code that scripts rely on.

use std::io;

use crate::show::harmless;

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was tried and did not work, or not in full.
    #[error("{0}")]
    Failed(String),
    /// It was asked for wrongly: an argument, or a file.
    #[error("{0}")]
    Wrong(String),
    /// The config is wrong: a block for each mistake, beginning with its place as editors read it.
    #[error("{0}")]
    Config(String),
    /// The server did not answer.
    #[error("cannot reach {url}: {why}; is `keylane serve` running there?")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What the connection ended with.
        why: String,
    },
    /// Whoever read the output has had enough (`keylane tail orders | head`).
    #[error("nobody reads the output any more")]
    ReaderGone,
}

impl Failure {
    /// 1 failed, 2 wrong usage or config, 3 server not reachable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::ReaderGone => 0,
            Failure::Failed(_) => 1,
            Failure::Wrong(_) | Failure::Config(_) => 2,
            Failure::Unreachable { .. } => 3,
        }
    }

    /// Tells it on standard error.
    pub fn tell(&self) {
        let text = match self {
            Failure::ReaderGone => return,
            Failure::Config(text) => text.clone(),
            other => format!("keylane: {other}"),
        };
        for line in text.lines() {
            eprintln!("{}", harmless(line));
        }
    }

    /// A failure to write to standard output.
    pub fn output(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ADM-8.
    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is_one() {
        let gone = Failure::output(io::ErrorKind::BrokenPipe.into());
        let full = Failure::output(io::ErrorKind::StorageFull.into());
        assert_eq!((gone.exit_code(), full.exit_code()), (0, 1));
    }
}
