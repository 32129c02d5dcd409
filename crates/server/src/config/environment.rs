//! The only file that reads the environment.

use std::collections::BTreeMap;

/// Begins the name of every variable that overrides a setting: `KEYLANE_SERVER__LISTEN` is `server.listen`.
const PREFIX: &str = "KEYLANE_";
/// Parts the levels of a setting. A name without it is not an override (`KEYLANE_TOKEN` is the command line's) ...
const LEVELS: &str = "__";
/// ... but for those that stand at the top.
const TOP: [&str; 2] = ["KEYLANE_DATA", "KEYLANE_PROFILE"];

/// Those of the command line itself.
const COMMAND_LINE: [&str; 3] = ["KEYLANE_CONFIG", "KEYLANE_TOKEN", "KEYLANE_URL"];
/// Kubernetes puts these into every container beside a service called `keylane`.
const OF_KUBERNETES: [&str; 2] = ["KEYLANE_PORT", "KEYLANE_SERVICE_"];

/// Environment variables, as a config sees them.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Those of this process. One that is not UTF-8 cannot be named in a config and is left out.
    #[allow(clippy::disallowed_methods, reason = "this is the file that reads the environment")]
    pub fn process() -> Environment {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Environment { variables }
    }

    /// None at all.
    pub fn empty() -> Environment {
        Environment::default()
    }

    /// These.
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

    /// Variables that look as if they changed something, and do not.
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
