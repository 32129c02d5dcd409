//! Parses YAML into a tree in which every key and value knows its line and column.
//!
//! Settings are read from the tree in a second step. So a config can be checked as a whole: the user sees all mistakes
//! at once, each with its place, including settings that this version does not have.

use std::fmt;

use keylane::ErrorCode;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::{ConfigError, ConfigProblem, Place};

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
    /// The value came from the environment or a file. It may be a secret, so no message shows it (SEC-5).
    pub(super) secret: bool,
    /// Name of a variable in the value that is set, but empty.
    pub(super) empty_variable: Option<String>,
}

/// A key and its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) place: Place,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Whole(i128),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

impl Node {
    pub(super) fn new(place: Place, value: Value) -> Node {
        Node { place, value, secret: false, empty_variable: None }
    }

    /// Reads YAML. An empty document is a null.
    pub(super) fn parse(name: &str, text: &str) -> Result<Node, ConfigError> {
        if text.trim().is_empty() {
            return Ok(Node::new(Place::Whole, Value::Null));
        }
        serde_saphyr::from_str::<Node>(text).map_err(|error| {
            let place = error.location().map_or(Place::Whole, place);
            let (what, help) = complaint(&error);
            ConfigError::one(name, ConfigProblem { code: ErrorCode::ConfigNotYaml, place, what, help })
        })
    }

    /// The value as an error message shows it.
    pub(super) fn shown(&self) -> String {
        if self.secret {
            return "a value that is not shown, since it comes from outside of the file".to_owned();
        }
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Whole(value) => format!("`{value}`"),
            Value::Number(value) => format!("`{value}`"),
            Value::Text(value) => format!("`{}`", value.escape_debug()),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a section".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Node::new(place(spanned.referenced), spanned.value))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Whole(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, node)) = entries.next_entry::<Spanned<String>, Node>()? {
            let key = Key { name: key.value, place: place(key.referenced) };
            map.push((key, node));
        }
        Ok(Value::Map(map))
    }
}

/// What is wrong, and the remedy. Common mistakes have words of their own here, because the library's messages are
/// written for programmers.
fn complaint(error: &serde_saphyr::Error) -> (String, String) {
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_ref().map_or_else(String::new, |key| format!(" `{}`", key.escape_debug()));
            (format!("the setting{key} is given twice"), "remove one of the two".to_owned())
        }
        serde_saphyr::Error::MultipleDocuments { .. } => (
            "there is more than one document: `---` begins another".to_owned(),
            "remove the line `---`, or keep each config in a file of its own".to_owned(),
        ),
        other => {
            // The first line says what is wrong; further lines are the library's drawing of the place.
            let text = other.to_string();
            let text = text.lines().next().unwrap_or("not YAML");
            // Keylane's message already begins with the place.
            let text = text.split(" at line ").next().unwrap_or(text);
            (
                format!("this is not YAML that can be read: {text}"),
                "check the indentation and the quotes just before this place".to_owned(),
            )
        }
    }
}

fn place(location: Location) -> Place {
    if location.line() == 0 {
        return Place::Whole;
    }
    Place::File { line: location.line(), column: location.column() }
}
