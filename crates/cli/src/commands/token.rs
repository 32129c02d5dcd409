//! `keylane token`: makes tokens and hashes them. The config stores only the hash of a token (ADM-2).

use std::io::Read;

use clap::{Subcommand, ValueEnum};
use keylane_server::{hash_token, is_name, is_token, new_token};
use serde::Serialize;

use crate::failure::Failure;
use crate::show;

/// Bytes of a token on standard input at most. If there are more, the caller probably named the wrong file.
const INPUT_BYTES_MAX: u64 = 4_096;

/// Arguments of `token`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a random token, and print it with its line for the config
    New(Grant),
    /// Hash a token that you already have, and print its line for the config
    Hash {
        /// The token; if left out or `-`, it is read from standard input, so that no list of processes shows it
        token: Option<String>,
        #[command(flatten)]
        grant: Grant,
    },
}

#[derive(Debug, clap::Args)]
struct Grant {
    /// Name of the token, by which the server's diagnostics say who made a call
    #[arg(long, default_value = "ops", value_parser = name)]
    name: String,
    /// What calls with the token may do
    #[arg(long, value_enum, default_value = "admin")]
    role: Role,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    /// Look, and change nothing
    Read,
    /// Also produce messages and change things
    Operate,
    /// Everything
    Admin,
}

/// The output of the command as JSON.
#[derive(Debug, Serialize)]
struct ShownToken<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    sha256: String,
    config: String,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::New(grant) => {
            let token = new_token();
            print(Some(&token), &token, &grant)
        }
        Action::Hash { token, grant } => {
            let token = match token {
                Some(token) if token != "-" => token,
                _ => read_token()?,
            };
            if !is_token(&token) {
                return Err(Failure::Wrong(
                    "this cannot be a token: no header carries it as it is; use visible ASCII characters, at least one"
                        .to_owned(),
                ));
            }
            print(None, &token, &grant)
        }
    }
}

fn print(shown: Option<&str>, token: &str, grant: &Grant) -> Result<(), Failure> {
    let sha256 = hash_token(token);
    let config = config_line(grant, &sha256);
    if grant.json {
        return show::json(&ShownToken { token: shown, sha256, config });
    }
    if let Some(token) = shown {
        show::line(token)?;
        eprintln!("Keep it: it is not stored anywhere. In the config, under server.tokens:");
    }
    show::line(&config)
}

fn read_token() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(INPUT_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::Wrong(format!("cannot read a token from standard input: {error}")))?;
    if text.len() as u64 > INPUT_BYTES_MAX {
        return Err(Failure::Wrong(format!(
            "standard input has more than {INPUT_BYTES_MAX} bytes, which no token has; is it the right file?"
        )));
    }
    match text.trim() {
        "" => Err(Failure::Wrong("there is no token on standard input".to_owned())),
        token => Ok(token.to_owned()),
    }
}

fn config_line(grant: &Grant, sha256: &str) -> String {
    let role = match grant.role {
        Role::Read => "read",
        Role::Operate => "operate",
        Role::Admin => "admin",
    };
    format!("- {{ name: \"{}\", role: {role}, sha256: \"{sha256}\" }}", grant.name)
}

/// Parses `--name`. The config accepts only names of these characters.
fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a name has letters, digits, `.`, `_` and `-`, at least one and at most 249".to_owned()),
    }
}
