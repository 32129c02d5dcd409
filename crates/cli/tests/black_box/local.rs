//! Tests of the commands that need no server: tokens and completions.

use crate::binary::{keylane, text};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn sha256(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// ADM-2, ADM-8.
#[test]
fn a_new_token_comes_with_the_config_line_that_lets_it_in() {
    let output = keylane(&["token", "new", "--name", "ci", "--role", "operate"], b"");
    assert_eq!(output.status.code(), Some(0));
    let printed = text(&output.stdout);
    let (token, config) = printed.trim_end().split_once('\n').expect("two lines");
    assert_eq!(config, format!("- {{ name: \"ci\", role: operate, sha256: \"{}\" }}", sha256(token)));
    let another = text(&keylane(&["token", "new"], b"").stdout);
    assert_ne!(another.lines().next(), Some(token));
}

/// ADM-2, ADM-8.
#[test]
fn a_token_is_hashed_from_an_argument_or_from_standard_input() {
    let from_input = keylane(&["token", "hash", "--json"], b"my token\n");
    let from_argument = keylane(&["token", "hash", "my token", "--json"], b"");
    for output in [from_input, from_argument] {
        assert_eq!(output.status.code(), Some(0));
        let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(printed["sha256"], sha256("my token"));
        assert_eq!(printed.get("token"), None);
    }
    assert_eq!(keylane(&["token", "hash"], b"\n").status.code(), Some(2));
    assert_eq!(keylane(&["token", "hash"], &[b'a'; 5_000]).status.code(), Some(2), "never cut short");
}

/// ADM-8.
#[test]
fn every_shell_gets_completions_for_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = keylane(&["completions", shell], b"");
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        for command in ["serve", "check", "produce", "tail", "topics", "pipelines", "lanes", "demo", "token"]
        {
            assert!(script.contains(command), "{command} is missing for {shell}");
        }
    }
}
