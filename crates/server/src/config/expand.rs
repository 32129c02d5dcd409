//! Puts values from outside into a config: `${NAME}` in values, secrets from `file:/path`, and variables that override
//! settings.
//!
//! This happens in the tree, after the YAML is parsed, so a value with a quote, a colon or a line break stays one value
//! and cannot add settings.

use std::path::Path;

use keylane::ErrorCode;

use super::environment::Environment;
use super::error::{ConfigError, ConfigProblem, Place};
use super::file;
use super::tree::{Key, Node, Value};

/// Bytes of a file with a secret at most. A token, a key or a URL is shorter; a data file named by mistake is longer.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Expands every value of `root`, then applies the overrides of `environment`.
pub(super) fn expand(root: &mut Node, environment: &Environment, problems: &mut Vec<ConfigProblem>) {
    values(root, environment, problems);
    for (variable, path, value) in environment.overrides() {
        match override_node(variable, value) {
            Ok(node) => set(root, &path, variable, node),
            Err(error) => problems.extend(
                error
                    .problems
                    .into_iter()
                    .map(|problem| ConfigProblem { place: Place::Variable(variable.to_owned()), ..problem }),
            ),
        }
    }
}

fn values(node: &mut Node, environment: &Environment, problems: &mut Vec<ConfigProblem>) {
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| values(item, environment, problems)),
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| values(value, environment, problems)),
        Value::Text(text) => {
            let mut empty = None;
            let outcome = variables(text, environment, &mut empty).and_then(|expanded| {
                let from_file = secret_file(expanded.as_deref().unwrap_or(text))?;
                Ok(from_file.or(expanded))
            });
            node.empty_variable = empty;
            match outcome {
                Ok(None) => {}
                Ok(Some(changed)) => {
                    *text = changed;
                    node.secret = true;
                }
                Err((what, help)) => problems.push(ConfigProblem {
                    code: ErrorCode::MissingOutsideValue,
                    place: node.place.clone(),
                    what,
                    help,
                }),
            }
        }
        Value::Null | Value::Bool(_) | Value::Whole(_) | Value::Number(_) => {}
    }
}

type Complaint = (String, String);

/// `text` with the values of its variables; none if it names no variable. `empty` becomes the name of a variable that
/// is set, but empty.
fn variables(
    text: &str,
    environment: &Environment,
    empty: &mut Option<String>,
) -> Result<Option<String>, Complaint> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        // `$${` stands for the characters `${`.
        if rest[..at].ends_with('$') {
            expanded.push_str(&rest[..at]);
            expanded.push('{');
            rest = &rest[at + 2..];
            continue;
        }
        let Some(end) = rest[at..].find('}') else {
            return Err((
                "`${` is not closed".to_owned(),
                "write `${NAME}`, or `$${` for the characters themselves".to_owned(),
            ));
        };
        expanded.push_str(&rest[..at]);
        let inside = &rest[at + 2..at + end];
        let value = variable(inside, environment)?;
        // An empty value from `${NAME:-}` is intended; an empty value of `${NAME}` may be a mistake.
        if value.is_empty() && !inside.contains(':') {
            *empty = Some(inside.to_owned());
        }
        expanded.push_str(&value);
        rest = &rest[at + end + 1..];
    }
    expanded.push_str(rest);
    Ok(Some(expanded))
}

fn variable(inside: &str, environment: &Environment) -> Result<String, Complaint> {
    let name_end = inside.find(':').unwrap_or(inside.len());
    let (name, rule) = inside.split_at(name_end);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err((
            format!("`${{{}}}` does not name a variable", inside.escape_debug()),
            "write `${NAME}`, `${NAME:-default}` or `${NAME:?message}`".to_owned(),
        ));
    }
    let found = environment.get(name);
    // As in a shell, the two forms with a colon treat an empty variable like a missing one.
    let filled = found.filter(|value| !value.is_empty());
    let missing = || format!("the environment variable {name} is not set");
    if rule.is_empty() {
        found
            .map(str::to_owned)
            .ok_or_else(|| (missing(), format!("set {name}, or give a default: `${{{name}:-default}}`")))
    } else if let Some(default) = rule.strip_prefix(":-") {
        Ok(filled.unwrap_or(default).to_owned())
    } else if let Some(message) = rule.strip_prefix(":?") {
        let help = if message.is_empty() { format!("set {name}") } else { message.to_owned() };
        filled.map(str::to_owned).ok_or_else(|| (missing(), help))
    } else {
        Err((
            format!("`${{{}}}` cannot be read", inside.escape_debug()),
            "write `${NAME}`, `${NAME:-default}` or `${NAME:?message}`".to_owned(),
        ))
    }
}

/// If `text` names a file, the file's content without the line break at its end.
fn secret_file(text: &str) -> Result<Option<String>, Complaint> {
    let Some(path) = text.strip_prefix("file:") else {
        return Ok(None);
    };
    if !path.starts_with('/') {
        return Err((
            "`file:` must be followed by an absolute path".to_owned(),
            "write it like this: `file:/run/secrets/token`".to_owned(),
        ));
    }
    let complain = |why: String| {
        (
            format!("{path} cannot be read: {why}"),
            "check that the file is there and that this user may read it".to_owned(),
        )
    };
    let content =
        file::regular(Path::new(path), SECRET_BYTES_MAX).map_err(|error| complain(error.to_string()))?;
    let content = content.trim_end_matches(['\r', '\n']);
    if content.is_empty() {
        return Err(complain("it is empty".to_owned()));
    }
    Ok(Some(content.to_owned()))
}

/// The value of an overriding variable. A value that begins like a YAML list or section is parsed; any other value is
/// text.
fn override_node(variable: &str, value: &str) -> Result<Node, ConfigError> {
    let place = Place::Variable(variable.to_owned());
    let mut node = if value.starts_with(['[', '{']) {
        Node::parse(variable, value)?
    } else {
        Node::new(place.clone(), Value::Text(value.to_owned()))
    };
    mark(&mut node, &place);
    Ok(node)
}

fn mark(node: &mut Node, place: &Place) {
    node.place = place.clone();
    node.secret = true;
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| mark(item, place)),
        Value::Map(entries) => entries.iter_mut().for_each(|(key, value)| {
            key.place = place.clone();
            mark(value, place);
        }),
        _ => {}
    }
}

fn set(node: &mut Node, path: &[&str], variable: &str, value: Node) {
    let Some((first, rest)) = path.split_first() else {
        *node = value;
        return;
    };
    let place = Place::Variable(variable.to_owned());
    if !matches!(node.value, Value::Map(_)) {
        *node = Node::new(place.clone(), Value::Map(Vec::new()));
    }
    let Value::Map(entries) = &mut node.value else { unreachable!("made a map just above") };
    // Names of topics and pipelines may have `-` and `.`, which names of variables cannot have.
    let same = |key: &Key| key.name.to_uppercase().replace(['-', '.'], "_") == *first;
    let at = entries.iter().position(|(key, _)| same(key)).unwrap_or_else(|| {
        let key = Key { name: first.to_lowercase(), place: place.clone() };
        entries.push((key, Node::new(place, Value::Null)));
        entries.len() - 1
    });
    set(&mut entries[at].1, rest, variable, value);
}
