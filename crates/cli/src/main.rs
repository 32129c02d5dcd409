//! The binary `keylane`. This file is its table of contents: a line a command, a file each under `commands/`.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or config, 3 server not reachable.

mod client;
mod commands;
mod failure;
mod lines;
mod show;
mod signals;
mod telemetry;

use std::io::{self, Write};

use clap::{Parser, Subcommand};
use keylane_bench::Allocator;
use tokio::runtime::Runtime;

use crate::commands::{
    bench, check, completions, data, demo, lanes, pipelines, produce, serve, spill, tail, token, topics,
};
use crate::failure::Failure;

/// Messages cross threads, where it saves a quarter of the CPU.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Takes messages in, keeps them in a log, and handles them: each key in order, all keys in parallel, nothing lost.
#[derive(Debug, Parser)]
#[command(name = "keylane", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server
    Serve(serve::Args),
    /// Checks a config, and says what would run
    Check(check::Args),
    /// Sends messages to a topic
    Produce(produce::Args),
    /// Shows the messages of a topic
    Tail(tail::Args),
    /// Lists topics
    Topics(topics::Args),
    /// Lists pipelines, with what they do and how far behind they are
    Pipelines(pipelines::Args),
    /// Lists lanes: the keys that have messages waiting
    Lanes(lanes::Args),
    /// Shows and drains what waits on the server's machine for the broker
    Spill(spill::Args),
    /// Checks, repairs, backs up and restores the data folder of the embedded broker
    Data(data::Args),
    /// Measures, each figure beside its raw limit
    Bench(bench::Args),
    /// Runs a live demonstration on this machine, with nothing else installed
    Demo(demo::Args),
    /// Makes tokens and their hashes
    Token(token::Args),
    /// Prints completions for a shell
    Completions(completions::Args),
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(args).await,
        Command::Check(args) => check::run(args).await,
        Command::Produce(args) => produce::run(args).await,
        Command::Tail(args) => tail::run(args).await,
        Command::Topics(args) => topics::run(args).await,
        Command::Pipelines(args) => pipelines::run(args).await,
        Command::Lanes(args) => lanes::run(args).await,
        Command::Spill(args) => spill::run(args).await,
        Command::Data(args) => data::run(args).await,
        Command::Bench(args) => bench::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Token(args) => token::run(args).await,
        Command::Completions(args) => completions::run(args).await,
    }
}

fn main() -> ! {
    let command = Cli::parse().command;
    keylane::raw::provide_cryptography();
    let ended = match Runtime::new() {
        Ok(runtime) => {
            let ended = runtime.block_on(run(command));
            // A handler that blocks its thread must not keep a process that has ended.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::Failed(format!("cannot start threads: {error}"))),
    };
    match ended {
        Ok(()) => leave(0),
        Err(failure) => {
            failure.tell();
            leave(failure.exit_code())
        }
    }
}

/// Ends the process without running the exit handlers of the C libraries in it.
///
/// Threads of librdkafka may still be closing their connections here. OpenSSL's exit handler frees what these
/// threads use, and then a server that had stopped in order died with "double free or corruption".
#[allow(unsafe_code, reason = "the standard library always runs the exit handlers")]
fn leave(code: u8) -> ! {
    // Nobody is left to be told that standard output is closed.
    let _ = io::stdout().flush();
    // SAFETY: `_exit` takes any status and returns to nobody.
    unsafe { libc::_exit(i32::from(code)) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// ADM-8.
    #[test]
    fn the_arguments_of_all_commands_fit_together() {
        super::Cli::command().debug_assert();
    }
}
