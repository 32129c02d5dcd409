//! Reads and shows durations (`250ms`, `3m`, `24h`, `7d`) and sizes (`64KiB`, `10MB`).
//!
//! A duration must have a unit, because some readers would take a bare number for seconds and others for milliseconds.
//! A size without a unit is in bytes, which nobody misreads.

use std::time::Duration;

/// Units of a duration, the largest first, in milliseconds.
const DURATIONS: &[(&str, u64)] =
    &[("d", 24 * 3600 * 1000), ("h", 3600 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

/// Units of a size, the largest first of each kind, in bytes.
const SIZES: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Reads a duration such as `250ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let (_, ms) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*ms).map(Duration::from_millis)
}

/// Reads a size such as `64KiB`; a bare number is bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Some(number);
    }
    let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

/// A duration in the largest unit that shows it exactly.
pub(super) fn show_duration(ms: u64) -> String {
    let (unit, each) =
        DURATIONS.iter().find(|(_, each)| ms >= *each && ms.is_multiple_of(*each)).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / each)
}

/// A size in the largest binary unit that shows it exactly.
pub(super) fn show_size(bytes: u64) -> String {
    match SIZES[..4].iter().find(|(_, each)| bytes >= *each && bytes.is_multiple_of(*each)) {
        Some((unit, each)) => format!("{}{unit}", bytes / each),
        None => format!("{bytes}B"),
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("3m"), Some(Duration::from_secs(180)));
        assert_eq!(duration("7d"), Some(Duration::from_secs(7 * 86_400)));
        for wrong in ["30", "30sec", "", "s", "-1s", "1.5h", "99999999999999999999s", "999999999999999999d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_know_binary_and_decimal_units() {
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("10MB"), Some(10_000_000));
        assert_eq!(size("17"), Some(17));
        for wrong in ["64kb", "1Gi", "", "GiB", "99999999TiB"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for ms in [0, 1, 999, 1000, 90_000, 3_600_000, 7 * 86_400_000, 5_400_000] {
            assert_eq!(duration(&show_duration(ms)), Some(Duration::from_millis(ms)));
        }
        for bytes in [0, 1, 1023, 1024, 16 << 20, 10 << 30, 1_000_000] {
            assert_eq!(size(&show_size(bytes)), Some(bytes));
        }
    }
}
