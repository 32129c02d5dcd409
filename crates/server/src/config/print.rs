//! Writes the list of settings as a JSON schema, and as the reference file.

use serde_json::{Map, Value, json};

use super::schema::{Absent, Field, Kind, Profiled, Shape};
use super::settings::ROOT;

/// The schema of a whole config.
pub(super) fn schema() -> Value {
    let mut schema = shape_schema(&ROOT);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Keylane config");
    schema["$defs"] = json!({
        "outside": {
            "description": "A value from the environment or from a file.",
            "type": "string",
            "pattern": r"\$\{|^file:/",
        }
    });
    schema
}

fn shape_schema(shape: &Shape) -> Value {
    let mut properties = Map::new();
    for field in shape.fields {
        properties.insert(field.name.to_owned(), field_schema(field));
    }
    let required: Vec<_> = shape
        .fields
        .iter()
        .filter(|field| matches!(field.absent, Absent::Required(_)))
        .map(|field| field.name)
        .collect();
    json!({
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    })
}

fn field_schema(field: &Field) -> Value {
    let mut schema = match field.kind {
        Kind::Section(shape) => shape_schema(shape),
        Kind::OneOf(shape) => {
            let mut schema = shape_schema(shape);
            schema["minProperties"] = json!(1);
            schema["maxProperties"] = json!(1);
            schema
        }
        Kind::Named(shape) => json!({
            "type": ["object", "null"],
            "propertyNames": { "pattern": "^[A-Za-z0-9._-]{1,249}$" },
            "additionalProperties": shape_schema(shape),
        }),
        Kind::List(shape) => json!({ "type": ["array", "null"], "items": shape_schema(shape) }),
        _ => json!({ "anyOf": [scalar_schema(&field.kind), { "$ref": "#/$defs/outside" }] }),
    };
    schema["description"] = json!(about(field));
    if let Absent::Is(text) = field.absent
        && !text.is_empty()
    {
        schema["default"] = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    }
    schema
}

fn scalar_schema(kind: &Kind) -> Value {
    match kind {
        Kind::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$" }),
        Kind::Address => json!({ "type": "string", "pattern": ":[0-9]+$" }),
        Kind::Hash => json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Whole { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Auto { max } => {
            json!({ "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": max }] })
        }
        Kind::Share => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        Kind::Duration { .. } => json!({ "type": "string", "pattern": "^[0-9]+ *(ms|s|m|h|d)$" }),
        Kind::Size { .. } => json!({ "anyOf": [
            { "type": "integer" },
            { "type": "string", "pattern": "^[0-9]+ *([KMGT]i?B|B)?$" },
        ] }),
        Kind::Choice { of, .. } => json!({ "enum": of }),
        Kind::Statuses => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": 400, "maximum": 599 } })
        }
        Kind::PassedOn => {
            let value = json!({ "type": ["string", "number", "boolean"] });
            json!({ "type": "object", "additionalProperties": value })
        }
        Kind::Text | Kind::Section(_) | Kind::OneOf(_) | Kind::Named(_) | Kind::List(_) => {
            json!({ "type": "string" })
        }
    }
}

/// The description of a setting, with the defaults of profiles.
fn about(field: &Field) -> String {
    let Profiled { production, development } = field.profiled;
    let told: Vec<_> = [("production", production), ("development", development)]
        .into_iter()
        .filter_map(|(profile, value)| Some(format!("in {profile} {}", value?)))
        .collect();
    if told.is_empty() {
        field.about.to_owned()
    } else {
        format!("{} By profile: {}.", field.about, told.join(", "))
    }
}

/// The reference file.
pub(super) fn reference() -> String {
    let mut out = String::from(
        "# Every setting of this version, with its default. All of it may be left out.\n\
         # The topic and the pipeline called `orders`, the outbox called `shop` and the token are examples: there are none by\n\
         # default.\n\
         # `${NAME}`, `${NAME:-default}` and `${NAME:?message}` in a value come from the environment, `file:/path` from a\n\
         # file; the variable KEYLANE_SERVER__LISTEN overrides server.listen, and so on.\n",
    );
    fields(&ROOT, 0, "", &mut out);
    out
}

fn fields(shape: &Shape, depth: usize, comment: &str, out: &mut String) {
    for field in shape.fields {
        let indent = "  ".repeat(depth);
        if depth == 0 {
            out.push('\n');
        }
        out.push_str(&format!("{indent}# {}\n", about(field)));
        let comment = if matches!(field.absent, Absent::Nothing(_)) { "# " } else { comment };
        match field.kind {
            Kind::Section(inner) if inner.fields.is_empty() => {
                out.push_str(&format!("{indent}{comment}{}: {{}}\n", field.name));
            }
            Kind::Section(inner) => {
                out.push_str(&format!("{indent}{comment}{}:\n", field.name));
                fields(inner, depth + 1, comment, out);
            }
            Kind::OneOf(inner) => {
                out.push_str(&format!("{indent}{comment}{}:\n", field.name));
                for (index, one) in inner.fields.chunks(1).enumerate() {
                    // A config may have only one of these settings, so the others are shown as comments.
                    let shown = Shape { fields: one, later: &[] };
                    fields(&shown, depth + 1, if index == 0 { comment } else { "# " }, out);
                }
            }
            Kind::Named(inner) => {
                out.push_str(&format!("{indent}{comment}{}:\n", field.name));
                out.push_str(&format!("{indent}{comment}  {}:\n", field.absent.shown()));
                fields(inner, depth + 2, comment, out);
            }
            Kind::List(inner) => {
                out.push_str(&format!("{indent}{comment}{}: []\n", field.name));
                let item: Vec<_> = inner
                    .fields
                    .iter()
                    .map(|field| format!("{}: {}", field.name, field.absent.shown()))
                    .collect();
                out.push_str(&format!("{indent}#   - {{ {} }}\n", item.join(", ")));
            }
            _ => out.push_str(&format!("{indent}{comment}{}: {}\n", field.name, field.absent.shown())),
        }
    }
}
