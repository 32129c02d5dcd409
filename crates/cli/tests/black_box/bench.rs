//! Tests of the JSON that `keylane bench` prints. They judge no figure.

use crate::binary::{keylane, text};
use serde_json::Value;

/// ADM-8, PRF-6.
#[test]
fn every_figure_has_the_promised_fields() {
    let output = keylane(&["bench", "--json", "PRF-6"], b"");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let figures = printed.as_array().expect("an array");
    assert!(figures.len() > 1, "{printed}");
    for figure in figures {
        assert_eq!(figure["id"], "PRF-6");
        let value = figure["value"].as_f64().expect("a number");
        let raw = figure["raw"].as_f64().expect("all of PRF-6 have a raw limit");
        assert!(value > 0.0 && raw > 0.0, "{figure}");
        let ratio = figure["ratio"].as_f64().expect("a number");
        assert!((ratio - value / raw).abs() < 1e-9, "{figure}");
        assert!(figure["met"].is_boolean(), "{figure}");
        let target = figure["target"].as_str().expect("a text");
        if let Some(bound) = target.strip_prefix("≤ ").and_then(|target| target.strip_suffix('×')) {
            let bound: f64 = bound.parse().expect("a number");
            assert_eq!(figure["met"], ratio <= bound, "{figure}");
        }
    }
    let missing = keylane(&["bench", "--json", "PRF-0"], b"");
    assert_eq!(missing.status.code(), Some(2));
}
