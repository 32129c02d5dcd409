//! `keylane completions`: prints a script that makes a shell complete the commands and arguments of `keylane`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;
use crate::show;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell that will read the completions
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "keylane", &mut script);
    let script = String::from_utf8_lossy(&script);
    show::line(script.trim_end())
}
