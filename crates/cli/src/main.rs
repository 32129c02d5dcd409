//! The entry point of the binary `keylane`: it lists the commands and runs the chosen one. Each command has a file in
//! `commands/`.
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

/// This allocator saves a quarter of the CPU when one thread allocates a message and another frees it.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Accept messages, keep them in a log, and run handlers on them: each key in order, different keys in parallel
#[derive(Debug, Parser)]
#[command(name = "keylane", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::Args),
    /// Check a config file, and show what the server would run with it
    Check(check::Args),
    /// Send messages to a topic
    Produce(produce::Args),
    /// Print the messages of a topic
    Tail(tail::Args),
    /// List topics; accept added partitions, forget a group, upgrade journals
    Topics(topics::Args),
    /// List pipelines with their state, their lag and their counts
    Pipelines(pipelines::Args),
    /// List lanes: the keys that have messages waiting or being handled
    Lanes(lanes::Args),
    /// List or drain the spill: messages that the server keeps locally while the broker is away
    Spill(spill::Args),
    /// Check, repair, back up or restore the data folder of the embedded broker
    Data(data::Args),
    /// Measure this machine, and show each figure beside the raw limit from the same run
    Bench(bench::Args),
    /// Run a live demonstration on this machine; nothing else needs to be installed
    Demo(demo::Args),
    /// Make access tokens, and the hashes of tokens for the config
    Token(token::Args),
    /// Print completions for a shell
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
            // A plain drop would wait for a handler that blocks its thread, and the process would never end.
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
/// Threads of librdkafka may still be closing their connections at this point. OpenSSL's exit handler frees memory that
/// these threads use: a server that had drained cleanly then died with "double free or corruption".
#[allow(unsafe_code, reason = "the standard library always runs the exit handlers")]
fn leave(code: u8) -> ! {
    // If standard output is closed, no other place remains where the error could be reported.
    let _ = io::stdout().flush();
    // SAFETY: `_exit` accepts any status and never returns.
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
