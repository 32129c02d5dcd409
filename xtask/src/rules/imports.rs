//! The rule about what each part of the code may import.
//!
//! The core is pure; a broker adapter knows no other adapter; the runtime names an adapter only where it opens it; a
//! route uses the runtime, never the core or the broker contract; most commands use only the admin API.
//! [`super::manifests`] checks which crates a crate may depend on at all.

use crate::source::Source;
use crate::tidy::Report;
use crate::tree::{Tree, is_module};

const ADAPTERS: [&str; 5] = ["embedded", "kafka", "nats", "redis", "memory"];
const ADAPTER_FOLDER: &str = "crates/broker/src/";

/// I/O, clocks, threads and locks of the standard library.
const IMPURE: [&str; 13] = [
    "std::fs",
    "std::net",
    "std::io",
    "std::thread",
    "std::env",
    "std::process",
    "std::os",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Condvar",
    "std::sync::mpsc",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// The places outside of the broker crate that may name an adapter, with the reason.
const OPENERS: [(&str, &str); 3] = [
    ("crates/runtime/src/client/open", "opens the broker that the config names"),
    ("crates/runtime/src/data", "looks at the embedded log's files while no broker is open"),
    ("crates/cli/src/commands/bench", "measures the embedded log against the raw file"),
];

/// The files and folders of routes: each route calls one function of the runtime.
const ROUTES: [&str; 3] =
    ["crates/server/src/ingest", "crates/server/src/admin", "crates/server/src/http/routes"];

/// Commands that do their work in their own process; all others are clients of the admin API.
const LOCAL_COMMANDS: [&str; 10] =
    ["main", "lib", "serve", "check", "data", "doctor", "bench", "demo", "token", "completions"];
const COMMANDS_FOLDER: &str = "crates/cli/src/";
/// What those may use all the same: it knows nothing but text, and what a terminal obeys must have one list.
const OF_TEXT_ONLY: &str = "keylane::raw::harmless";

pub fn check(tree: &Tree, report: &mut Report) {
    for source in tree.rust.iter().filter(|source| !source.all_test) {
        core(source, report);
        for path in source.paths() {
            if source.is_test(path.line) {
                continue;
            }
            let path_parts: Vec<&str> = path.text.split("::").collect();
            if let Some((found, remedy)) = foreign(&source.path, &path.text, &path_parts) {
                report.find(&source.path, path.line, "imports", found, remedy);
            }
        }
    }
}

fn core(source: &Source, report: &mut Report) {
    if !source.path.starts_with("crates/core/src/") {
        return;
    }
    for word in ["async", "await"] {
        for line in source.find_code(&[word]) {
            let remedy = "the core is asked and answers; what waits belongs to the runtime";
            report.find(&source.path, line, "imports", format!("`{word}` in the core"), remedy);
        }
    }
}

fn foreign(file: &str, path: &str, parts: &[&str]) -> Option<(String, &'static str)> {
    let root = parts.first().copied().unwrap_or_default();
    let named = |remedy| Some((format!("`{path}`"), remedy));
    if file.starts_with("crates/core/src/") && IMPURE.iter().any(|impure| is_below(path, impure)) {
        return named(
            "the core has no I/O, clock, threads or locks: time arrives as `now`, the rest belongs to the runtime",
        );
    }
    if let Some(own) = adapter_of(file)
        && other_adapter(parts).is_some_and(|other| other != own)
    {
        return named("a broker adapter knows the contract and its own client, never another adapter");
    }
    let outside = file.starts_with("crates/runtime/src/") || file.starts_with("crates/server/src/");
    let outside = outside || file.starts_with(COMMANDS_FOLDER) || file.starts_with("apps/");
    let opens = OPENERS.iter().any(|(opener, _)| is_module(file, opener));
    if outside && !opens && root == "keylane_broker" && parts[1..].iter().any(|part| names_adapter(part)) {
        return named("use the contract; only the place that opens a broker names its adapter");
    }
    let inner = matches!(root, "keylane_broker" | "keylane_core");
    if inner && ROUTES.iter().any(|route| is_module(file, route)) {
        return named("a route calls one function of the runtime and decides nothing");
    }
    let inner = inner || matches!(root, "keylane" | "keylane_server");
    let inner = inner && !is_below(path, OF_TEXT_ONLY);
    if inner && file.starts_with(COMMANDS_FOLDER) && !is_local_command(file) {
        return named("this command speaks the admin API, as the console does");
    }
    None
}

fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn adapter_of(file: &str) -> Option<&str> {
    let below = file.strip_prefix(ADAPTER_FOLDER)?;
    let name = below.strip_prefix("testing/").unwrap_or(below).split(['/', '.']).next()?;
    ADAPTERS.contains(&name).then_some(name)
}

/// The adapter that a path within the broker crate names, if it names one.
fn other_adapter<'a>(parts: &[&'a str]) -> Option<&'a str> {
    let mut rest = parts.iter();
    if !matches!(*rest.next()?, "crate" | "super" | "keylane_broker") {
        return None;
    }
    let name = rest.find(|part| !matches!(**part, "super" | "testing"))?;
    ADAPTERS.contains(name).then_some(*name)
}

/// True for `embedded`, `EmbeddedBroker` and the like.
fn names_adapter(part: &str) -> bool {
    let lower = part.to_lowercase();
    ADAPTERS.iter().any(|adapter| lower.starts_with(adapter))
}

fn is_local_command(file: &str) -> bool {
    let name = file
        .strip_prefix(COMMANDS_FOLDER)
        .map(|rest| rest.strip_prefix("commands/").unwrap_or(rest))
        .and_then(|rest| rest.split(['/', '.']).next());
    name.is_some_and(|name| LOCAL_COMMANDS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    fn found_in(path: &str, text: &str) -> Vec<usize> {
        let lines = found(check, &[(path, text)]);
        lines.iter().map(|at| at.rsplit(':').next().and_then(|n| n.parse().ok()).expect("a line")).collect()
    }

    #[test]
    fn the_core_is_pure() {
        let text = "use std::time::{Duration, Instant};\nuse std::fs;\nasync fn a() {}\nuse std::fmt;\n";
        assert_eq!(found_in("crates/core/src/a.rs", text), [1, 2, 3]);
        let test = "#[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        assert!(found_in("crates/core/src/a.rs", test).is_empty());
    }

    #[test]
    fn adapters_do_not_know_each_other() {
        let text = "use crate::contract::Broker;\nuse crate::{kafka::Client, embedded::Log};\nuse super::super::redis;\n";
        assert_eq!(found_in("crates/broker/src/embedded/log.rs", text), [2, 3]);
        assert_eq!(found_in("crates/broker/src/testing/memory/node.rs", text), [2, 2, 3]);
        let other = "use crate::testing::memory::MemoryBroker;\n";
        assert_eq!(found_in("crates/broker/src/embedded/log.rs", other), [1]);
        assert!(found_in("crates/broker/src/testing/conformance/rig.rs", text).is_empty());
    }

    #[test]
    fn the_runtime_names_an_adapter_in_one_place() {
        let text = "use keylane_broker::{Broker, EmbeddedBroker};\nlet a = keylane_broker::testing::memory::open();\n";
        assert_eq!(found_in("crates/runtime/src/shard/partition.rs", text), [1, 2]);
        assert_eq!(found_in("crates/server/src/serve/app.rs", text), [1, 2]);
        assert!(found_in("crates/runtime/src/client/open.rs", text).is_empty());
    }

    #[test]
    fn routes_and_clients_stay_outside() {
        let text = "use keylane::Keylane;\nuse keylane_core::Frames;\nuse keylane::raw::harmless;\n";
        assert_eq!(found_in("crates/server/src/admin/pipelines.rs", text), [2]);
        assert_eq!(found_in("crates/cli/src/commands/tail.rs", text), [1, 2]);
        assert!(found_in("crates/cli/src/commands/serve.rs", text).is_empty());
    }
}
