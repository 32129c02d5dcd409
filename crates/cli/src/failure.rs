//! The ways in which a command can fail. Each failure has a sentence for standard error and an exit code for scripts.

use std::io;

use crate::show::harmless;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command was carried out and did not succeed, or only in part.
    #[error("{0}")]
    Failed(String),
    /// The command was used wrongly: an argument or a file is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The config is wrong. The text has a block for each mistake, which begins with file, line and column in the form
    /// that editors understand.
    #[error("{0}")]
    Config(String),
    /// The server did not answer.
    #[error("cannot reach {url}: {why}; is `keylane serve` running there?")]
    Unreachable {
        /// The address of the server, without secrets.
        url: String,
        /// The error that ended the connection.
        why: String,
    },
    /// The program that read the output has ended, as in `keylane tail orders | head`.
    #[error("nobody reads the output any more")]
    ReaderGone,
}

impl Failure {
    /// 0 reader gone, 1 failed, 2 wrong usage or config, 3 server not reachable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::ReaderGone => 0,
            Failure::Failed(_) => 1,
            Failure::Wrong(_) | Failure::Config(_) => 2,
            Failure::Unreachable { .. } => 3,
        }
    }

    /// Prints the failure to standard error.
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

    /// The failure for an error of writing to standard output. A closed pipe is not an error of the command.
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
