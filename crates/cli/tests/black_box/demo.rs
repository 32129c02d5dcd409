//! Tests of `keylane demo`, as `make run` starts it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::binary::{command, keylane, signal, text};

/// ADM-8, ORD-3, ORD-10.
#[test]
fn the_demonstration_keeps_every_key_in_order_and_ends_with_0() {
    let output = keylane(&["demo", "--listen", "127.0.0.1:0", "--seconds", "3"], b"");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("Status page: http://127.0.0.1:"), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("in order yes")).count(), 3, "{said}");
    let summary = said.lines().last().expect("a summary");
    assert!(summary.ends_with("; 0 order violations"), "{said}");
    assert!(!summary.contains(" 0 handled"), "{said}");
}

/// ADM-8, ORD-10.
#[test]
fn an_interrupt_drains_the_demonstration_and_ends_it_with_0() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("text");
    // Run twice on one folder: the second run handles the messages that the first left behind, still in order.
    for _ in 0..2 {
        let mut child = command(&["demo", "--listen", "127.0.0.1:0", "--data", data])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut lines = stdout.lines().map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains("in order yes")));
        signal(&child, "-INT");
        let summary = lines.last().expect("a summary");
        assert!(summary.ends_with("; 0 order violations"), "{summary}");
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}

/// ADM-8.
#[test]
fn a_port_in_use_is_one_clear_sentence_for_the_demonstration_too() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let output = keylane(&["demo", "--listen", &address], b"");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains(&address) && said.contains("(KL-1401)"), "{said}");
}
