//! The rule that some things are done in one place of each crate.
//!
//! One file of a crate reads the clock, one reads the environment, one names metrics, one starts tasks. So time can be
//! simulated, all settings are in one list, dashboards have one source, and no task outlives what it belongs to. The
//! tables below name the places, files or folders, each with its reason.

use crate::lex::At;
use crate::source::Source;
use crate::tidy::Report;
use crate::tree::{Tree, is_module};

struct Place {
    what: &'static str,
    /// The tokens that show that the thing is done.
    signs: &'static [&'static [&'static str]],
    /// The places where it may be done, with the reason.
    at: &'static [(&'static str, &'static str)],
    remedy: &'static str,
}

const CLOCK: Place = Place {
    what: "the clock is read",
    signs: &[
        &["Instant", "::", "now"],
        &["SystemTime", "::", "now"],
        &["Timestamp", "::", "now"],
        &["Zoned", "::", "now"],
        &["Uuid", "::", "now_v7"],
    ],
    at: &[
        (
            "crates/broker/src/embedded/options",
            "append times and retention, unless a test brings its own time",
        ),
        ("crates/broker/src/embedded/writer", "how long a thread of the log sleeps; it decides nothing"),
        (
            "crates/broker/src/kafka/clock",
            "how long a cluster is silent, and what its records are stamped with; its time cannot be simulated",
        ),
        ("crates/runtime/src/clock", "all time of the runtime, the server and the command line"),
    ],
    remedy: "take `now` from the caller, or ask the crate's clock.rs",
};

const ENVIRONMENT: Place = Place {
    what: "the environment is read",
    signs: &[
        &["env", "::", "var"],
        &["env", "::", "var_os"],
        &["env", "::", "vars"],
        &["env", "::", "vars_os"],
    ],
    at: &[("crates/server/src/config/environment", "settings and secrets come in with the config")],
    remedy: "make it a setting, which the config reads",
};

const TASKS: Place = Place {
    what: "a task or thread is started",
    signs: &[
        &["tokio", "::", "spawn"],
        &["task", "::", "spawn"],
        &["task", "::", "spawn_blocking"],
        &["task", "::", "spawn_local"],
        &["thread", "::", "spawn"],
        &["thread", "::", "Builder"],
        &["thread", "::", "scope"],
        &["JoinSet", "::", "new"],
        &["spawn_blocking", "("],
    ],
    at: &[
        (
            "crates/broker/src/threads",
            "a thread for each log, reads that may wait for the disk, and what outlives its caller; closing the broker ends them",
        ),
        ("crates/runtime/src/tasks", "shards, owners, commits; all are ended by the drain"),
        (
            "crates/cli/src/commands/bench",
            "benchmarks start runtimes of their own, outside of the command line's",
        ),
        ("crates/server/src/serve/tasks", "connections; all are ended by the drain"),
    ],
    remedy: "start it through the crate's tasks.rs (the broker's threads.rs), so that a drain ends it",
};

const METRICS: Place = Place {
    what: "metrics are named",
    signs: &[&["prometheus_client"]],
    at: &[("crates/server/src/http/metrics", "names, labels and help of all metrics")],
    remedy: "count in a field of your own; metrics.rs gives it its name",
};

const PLACES: [&Place; 4] = [&CLOCK, &ENVIRONMENT, &TASKS, &METRICS];

/// How the names of metrics end.
const METRIC_ENDINGS: [&str; 4] = ["_total", "_seconds", "_bytes", "_current"];

pub fn check(tree: &Tree, report: &mut Report) {
    for source in tree.rust.iter().filter(|source| is_shipped(source)) {
        for place in PLACES {
            if place.at.iter().any(|(stem, _)| is_module(&source.path, stem)) {
                continue;
            }
            for line in place.signs.iter().flat_map(|signs| source.find_code(signs)) {
                report.find(&source.path, line, "one place", format!("{} here", place.what), place.remedy);
            }
        }
        metric_names(source, report);
    }
    for place in PLACES {
        for (stem, _) in place.at.iter().filter(|(stem, _)| !is_there(tree, stem)) {
            report
                .notes
                .push(format!("{stem}.rs is listed as a place where {}, and is not there", place.what));
        }
    }
}

fn metric_names(source: &Source, report: &mut Report) {
    if METRICS.at.iter().any(|(stem, _)| is_module(&source.path, stem)) {
        return;
    }
    let is_name = |text: &At| {
        text.text.starts_with("keylane_")
            && text.text.chars().all(|sign| sign.is_ascii_lowercase() || sign == '_')
            && METRIC_ENDINGS.iter().any(|ending| text.text.ends_with(ending))
    };
    for name in source.strings.iter().filter(|name| is_name(name) && !source.is_test(name.line)) {
        let found = format!("the metric `{}` is named here", name.text);
        report.find(&source.path, name.line, "one place", found, METRICS.remedy);
    }
}

/// True for code that is part of a build for users.
fn is_shipped(source: &Source) -> bool {
    let shipped = source.path.starts_with("crates/") || source.path.starts_with("apps/");
    shipped && !source.for_tests
}

fn is_there(tree: &Tree, stem: &str) -> bool {
    tree.rust.iter().any(|source| is_module(&source.path, stem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn what_has_one_place_is_found_elsewhere() {
        let text = "\
let a = Instant::now();
let b = std::env::var(\"X\");
tokio::spawn(c);
use prometheus_client::Registry;
let d = \"keylane_handled_total\";
// Instant::now()
let e = handle.spawn_blocking(f);
";
        let want: Vec<_> =
            [1, 2, 3, 4, 5, 7].iter().map(|n| format!("crates/runtime/src/shard/partition.rs:{n}")).collect();
        assert_eq!(found(check, &[("crates/runtime/src/shard/partition.rs", text)]), want);
    }

    #[test]
    fn its_place_may_and_so_may_tests() {
        let test = "#[cfg(test)]\nmod tests {\n    fn a() { thread::spawn(b); Instant::now(); }\n}\n";
        let files = [
            ("crates/runtime/src/clock.rs", "fn now() { Instant::now(); }\n"),
            ("crates/runtime/src/shard/pass.rs", test),
            ("tests/promises/p1.rs", "fn a() { std::env::var(\"B\"); }\n"),
        ];
        assert!(found(check, &files).is_empty());
    }

    #[test]
    fn the_place_of_one_thing_is_not_that_of_another() {
        let files = [("crates/runtime/src/clock.rs", "fn a() { tokio::spawn(b); }\n")];
        assert_eq!(found(check, &files), ["crates/runtime/src/clock.rs:1"]);
    }
}
