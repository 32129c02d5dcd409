//! Test helpers that run the binary as a user does.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

/// Runs the binary with `input` on its standard input.
pub fn keylane(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A command that does not read its input may have ended already.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// A command that runs the binary without the variables of the tests' own environment.
pub fn command(arguments: &[&str]) -> Command {
    // The binary that Cargo built for these tests may have the feature `flaws`.
    let built = || env!("CARGO_BIN_EXE_keylane").into();
    let mut command = Command::new(std::env::var_os("KEYLANE_BIN").unwrap_or_else(built));
    for name in ["KEYLANE_URL", "KEYLANE_TOKEN", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// Output of the binary as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Sends a signal to a running process.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}
