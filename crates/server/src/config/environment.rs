//! Reads the environment variables of the process. No other file of this crate may do so.

use std::collections::BTreeMap;

/// Prefix of every variable that overrides a setting: `KEYLANE_SERVER__LISTEN` overrides `server.listen`.
const PREFIX: &str = "KEYLANE_";
/// Separates the levels of a setting's path. A variable without it overrides nothing (`KEYLANE_TOKEN` belongs to the
/// command line), except those in [`TOP`].
const LEVELS: &str = "__";
/// Variables of settings at the top level, whose names have no separator.
const TOP: [&str; 2] = ["KEYLANE_DATA", "KEYLANE_PROFILE"];

/// Variables that the command line reads.
const COMMAND_LINE: [&str; 3] = ["KEYLANE_CONFIG", "KEYLANE_TOKEN", "KEYLANE_URL"];
/// Prefixes of variables that Kubernetes sets in containers if there is a service called `keylane`.
const OF_KUBERNETES: [&str; 2] = ["KEYLANE_PORT", "KEYLANE_SERVICE_"];

/// The environment variables that a config may use.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process. A variable that is not UTF-8 is left out, because a config cannot name it.
    #[allow(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    pub fn process() -> Environment {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Environment { variables }
    }

    /// No variables.
    pub fn empty() -> Environment {
        Environment::default()
    }

    /// Exactly the given variables.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Environment {
        Environment {
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    /// Whether a variable is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Variables that begin with `KEYLANE_` but change nothing, probably because their names are mistyped.
    pub fn without_effect(&self) -> Vec<String> {
        let is_known = |name: &str| {
            TOP.contains(&name)
                || COMMAND_LINE.contains(&name)
                || OF_KUBERNETES.iter().any(|prefix| name.starts_with(prefix))
                || name.contains(LEVELS)
        };
        let names = self.variables.keys().filter(|name| name.starts_with(PREFIX));
        names.filter(|name| !is_known(name)).cloned().collect()
    }

    /// Variables that override settings: name, path, value.
    pub(super) fn overrides(&self) -> impl Iterator<Item = (&str, Vec<&str>, &str)> {
        self.variables.iter().filter_map(|(name, value)| {
            let path = name.strip_prefix(PREFIX)?;
            let is_one = TOP.contains(&name.as_str()) || path.contains(LEVELS);
            is_one.then(|| (name.as_str(), path.split(LEVELS).collect(), value.as_str()))
        })
    }
}
