//! Tests of `keylane data` on a folder that a server has written.

use std::path::Path;

use serde_json::Value;

use crate::binary::{keylane, signal, text};
use crate::serve::{Running, config};

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = keylane(arguments, b"");
    (output.status.code().expect("it ends by itself"), text(&output.stdout), text(&output.stderr))
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Flips a bit in the payload of a topic's second batch.
fn damage(data: &Path) {
    let segment = data.join("topics/orders/0000000000000001.seg");
    let mut bytes = std::fs::read(&segment).expect("a segment");
    let mut starts = (0..bytes.len() - 64).step_by(8).filter(|at| &bytes[at + 4..at + 8] == b"KLB1");
    let second = starts.nth(1).expect("two batches");
    bytes[second + 70] ^= 1;
    std::fs::write(&segment, bytes).expect("ours to break");
}

/// ADM-8, BRK-1, P10: a backup is made and restored, a damaged folder is repaired and served again, and each command
/// ends with the exit code that scripts rely on.
#[test]
fn a_folder_is_backed_up_checked_repaired_and_restored() {
    let folder = config("127.0.0.1:0", "topics:\n  orders: { partitions: 1 }\n");
    let (file, data) = (folder.path().join("keylane.yaml"), folder.path().join("data"));
    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    let mut server = Running::start(&file);
    for message in ["first", "second", "third"] {
        assert!(server.run(&["produce", "orders", "-"], message.as_bytes()).status.success());
    }
    let (code, _, said) = run(&["data", "check", path(&data)]);
    assert!(code == 1 && said.contains("in use by a server"), "{code} {said}");
    let made = server.run(&["data", "backup", path(&backup)], b"");
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("files with"), "{}", text(&made.stdout));
    let twice = server.run(&["data", "backup", path(&backup)], b"");
    assert_eq!(twice.status.code(), Some(1));
    assert!(text(&twice.stderr).contains("not empty"), "{}", text(&twice.stderr));
    signal(&server.child, "-TERM");
    assert_eq!(server.exit_code(), Some(0));

    let (code, out, said) = run(&["data", "check", path(&data)]);
    assert_eq!(code, 0, "{out}{said}");
    assert!(out.contains("topics/orders") && out.contains("0: 0..3"), "{out}");
    assert_eq!(run(&["data", "check", path(&folder.path().join("nothing"))]).0, 2);
    damage(&data);
    let (code, out, _) = run(&["data", "check", path(&data)]);
    assert!(code == 1 && out.contains("gone: partition 0: position 1"), "{code} {out}");
    let (code, json, _) = run(&["data", "check", path(&data), "--json"]);
    let found: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((code, &found["whole"]), (1, &Value::Bool(false)));
    let logs = found["logs"].as_array().expect("logs");
    let damaged = logs.iter().flat_map(|log| log["damages"].as_array().expect("a list")).collect::<Vec<_>>();
    let place = damaged[0]["place"].as_str().expect("a place");
    assert_eq!((damaged.len(), &damaged[0]["lost"][0]["from"]), (1, &Value::from(1)));

    let before = std::fs::read(data.join("topics/orders/0000000000000001.seg")).expect("a segment");
    let (code, out, _) = run(&["data", "repair", path(&data)]);
    let typed = format!("keylane data repair {} --skip {place}", data.display());
    assert!(code == 1 && out.contains(&typed), "{code} {out}");
    assert_eq!(std::fs::read(data.join("topics/orders/0000000000000001.seg")).expect("it"), before);
    let (code, _, said) = run(&["data", "repair", path(&data), "--skip", "topics/orders:9:9"]);
    assert!(code == 1 && said.contains("there is no damage called"), "{code} {said}");
    let (code, out, said) = run(&["data", "repair", path(&data), "--skip", place]);
    assert!(code == 0 && out.contains("gone for good: partition 0: position 1"), "{code} {out}{said}");
    assert!(out.contains("the folder can be used"), "{out}");
    let (code, out, _) = run(&["data", "check", path(&data)]);
    let given_up = format!("skipped {place} lost partition 0: position 1");
    assert!(
        code == 0 && out.contains(&given_up) && out.contains("but for what earlier repairs gave up"),
        "{out}"
    );
    let mut server = Running::start(&file);
    let tail = text(&server.run(&["tail", "orders", "--from", "earliest", "--limit", "2"], b"").stdout);
    assert!(tail.contains("first") && !tail.contains("second") && tail.contains("third"), "{tail}");
    signal(&server.child, "-TERM");
    assert_eq!(server.exit_code(), Some(0));

    let (code, _, said) = run(&["data", "restore", path(&backup), path(&data)]);
    assert!(code == 1 && said.contains("not empty"), "{code} {said}");
    let (code, out, said) = run(&["data", "restore", path(&backup), path(&restored)]);
    assert!(code == 0 && out.contains("were verified"), "{code} {out}{said}");
    let (code, out, _) = run(&["data", "check", path(&restored)]);
    assert!(code == 0 && out.contains("0: 0..3"), "{code} {out}");
}
