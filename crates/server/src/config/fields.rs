//! Reads single settings from a tree by the rules of `settings`, and collects all mistakes.
//!
//! Every read returns a usable value. After a mistake it returns the default, which never takes effect, because a
//! config with mistakes is refused.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use keylane::ErrorCode;

use super::error::{ConfigProblem, Place, nearest};
use super::schema::{self, Absent, Field, Kind, Profile, Shape};
use super::tree::{Key, Node, Value};
use super::units;

/// A section of the tree with the shape it should have.
#[derive(Clone)]
pub(super) struct Section<'a> {
    pub(super) path: String,
    pub(super) place: Place,
    shape: &'static Shape,
    entries: &'a [(Key, Node)],
}

/// Reads settings and collects the mistakes.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<ConfigProblem>,
    /// Decides the defaults of some settings that the file leaves out.
    pub(super) profile: Profile,
}

impl<'a> Section<'a> {
    /// The value that the file has for a setting; none if it is absent or null.
    pub(super) fn node(&self, name: &str) -> Option<&'a Node> {
        let (_, node) = self.entries.iter().find(|(key, _)| key.name == name)?;
        (node.value != Value::Null).then_some(node)
    }

    /// True if the file names the setting, even without a value.
    pub(super) fn names(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key.name == name)
    }

    /// The place of a setting's value, or of the section if the setting is absent.
    pub(super) fn place_of(&self, name: &str) -> Place {
        self.node(name).map_or_else(|| self.place.clone(), |node| node.place.clone())
    }

    fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

impl Reader {
    /// Reads `node` as a section of `shape`, and reports every setting that the shape does not have.
    pub(super) fn section<'a>(
        &mut self,
        node: Option<&'a Node>,
        shape: &'static Shape,
        path: String,
        place: Place,
    ) -> Section<'a> {
        let entries = match node.map(|node| &node.value) {
            Some(Value::Map(entries)) => entries.as_slice(),
            None | Some(Value::Null) => &[],
            Some(_) => {
                self.expected(
                    node.expect("matched just above"),
                    if path.is_empty() { "the config" } else { &path },
                    "a section",
                    &section_example(shape),
                );
                &[]
            }
        };
        for (key, _) in entries {
            self.known(key, shape, &path);
        }
        Section { path, place: node.map_or(place, |node| node.place.clone()), shape, entries }
    }

    /// The section called `name` inside a section.
    pub(super) fn inner<'a>(&mut self, section: &Section<'a>, name: &str) -> Section<'a> {
        match section.shape.field(name).kind {
            Kind::Section(shape) | Kind::OneOf(shape) => {
                self.section(section.node(name), shape, section.at(name), section.place.clone())
            }
            _ => unreachable!("{name} is a section in the table"),
        }
    }

    /// The sections of a map whose names the user chose, or of a list.
    pub(super) fn many<'a>(&mut self, section: &Section<'a>, name: &str) -> Vec<(String, Section<'a>)> {
        let path = section.at(name);
        let (node, field) = (section.node(name), section.shape.field(name));
        match (&field.kind, node.map(|node| &node.value)) {
            (_, None) => Vec::new(),
            (Kind::Named(shape), Some(Value::Map(entries))) => entries
                .iter()
                .map(|(key, node)| {
                    if !schema::is_name(&key.name) {
                        self.not_a_name(&key.name, &key.place, &path);
                    }
                    let inner = format!("{path}.{}", key.name);
                    let section = self.section(Some(node), shape, inner, key.place.clone());
                    (key.name.clone(), section)
                })
                .collect(),
            (Kind::List(shape), Some(Value::List(items))) => items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    let inner = format!("{path}[{index}]");
                    (index.to_string(), self.section(Some(item), shape, inner, item.place.clone()))
                })
                .collect(),
            (kind, Some(_)) => {
                let (what, example) = match kind {
                    Kind::List(_) => ("a list", format!("{name}: []")),
                    _ => ("a section", format!("{name}: {{ orders: {{}} }}")),
                };
                self.expected(node.expect("matched just above"), &path, what, &example);
                Vec::new()
            }
        }
    }

    /// The names that the user chose for sections, each with its place.
    pub(super) fn sections(&self, section: &Section<'_>, name: &str) -> Vec<(String, Place)> {
        match section.node(name).map(|node| &node.value) {
            Some(Value::Map(entries)) => {
                entries.iter().map(|(key, _)| (key.name.clone(), key.place.clone())).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn text(&mut self, section: &Section<'_>, name: &str) -> String {
        match section.shape.field(name).kind {
            Kind::Name => self.read(section, name, &name_rule(), |_, node| match &node.value {
                Value::Text(text) => schema::is_name(text).then(|| text.clone()),
                _ => None,
            }),
            _ => self.read(section, name, "text, and not empty", |_, node| match &node.value {
                Value::Text(text) => (!text.is_empty()).then(|| text.clone()),
                _ => None,
            }),
        }
    }

    pub(super) fn address(&mut self, section: &Section<'_>, name: &str) -> Option<SocketAddr> {
        self.read(section, name, "an address and a port", |_, node| {
            let Value::Text(text) = &node.value else {
                return None;
            };
            let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
            port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                .or_else(|| text.parse().ok())
                .map(Some)
        })
    }

    pub(super) fn hash(&mut self, section: &Section<'_>, name: &str) -> [u8; 32] {
        let before = self.problems.len();
        let hash = self.read(section, name, "64 hex digits, in quotes", |_, node| match &node.value {
            Value::Text(text) => crate::http::parse_hash(text),
            _ => None,
        });
        if let Some(found) = self.problems.get_mut(before).filter(|_| section.node(name).is_some()) {
            // The user may have pasted the token itself here, so the message must not show the value (SEC-5).
            found.what = format!("{} must be 64 hex digits, in quotes", section.at(name));
            found.help =
                "`keylane token hash` prints the hash of a token; the token itself stays out of the config"
                    .to_owned();
        } else if let Some(token) = crate::http::known_to_everybody(&hash) {
            self.problems.push(ConfigProblem {
                code: ErrorCode::WrongValue,
                place: section.place_of(name),
                what: format!("{} is the hash of {token}, which anybody can guess", section.at(name)),
                help: "make a token with `keylane token new`".to_owned(),
            });
        }
        hash
    }

    pub(super) fn flag(&mut self, section: &Section<'_>, name: &str) -> bool {
        self.read(section, name, "`true` or `false`", |_, node| match &node.value {
            Value::Bool(flag) => Some(*flag),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    pub(super) fn whole(&mut self, section: &Section<'_>, name: &str) -> u64 {
        let Kind::Whole { min, max } = section.shape.field(name).kind else {
            unreachable!("{name} is a whole number in the table")
        };
        let expected = format!("a whole number from {min} to {max}");
        self.read(section, name, &expected, |_, node| whole(node).filter(|value| (min..=max).contains(value)))
    }

    /// Reads a whole number, or `auto`, for which the answer is none.
    pub(super) fn auto(&mut self, section: &Section<'_>, name: &str) -> Option<u64> {
        let Kind::Auto { max } = section.shape.field(name).kind else {
            unreachable!("{name} may be auto in the table")
        };
        let expected = format!("`auto`, or a whole number from 1 to {max}");
        self.read(section, name, &expected, |_, node| match &node.value {
            Value::Text(text) if text == "auto" => Some(None),
            _ => whole(node).filter(|value| (1..=max).contains(value)).map(Some),
        })
    }

    pub(super) fn share(&mut self, section: &Section<'_>, name: &str) -> f64 {
        self.read(section, name, "a number above 0 and up to 1", |_, node| {
            let share = match &node.value {
                Value::Number(number) => Some(*number),
                Value::Whole(number) => Some(*number as f64),
                Value::Text(text) => text.parse().ok(),
                _ => None,
            };
            share.filter(|share| *share > 0.0 && *share <= 1.0)
        })
    }

    pub(super) fn duration(&mut self, section: &Section<'_>, name: &str) -> Duration {
        let Kind::Duration { min_ms, max_ms } = section.shape.field(name).kind else {
            unreachable!("{name} is a duration in the table")
        };
        let expected = format!(
            "a duration with its unit (ms, s, m, h, d) from {} to {}",
            units::show_duration(min_ms),
            units::show_duration(max_ms)
        );
        let range = Duration::from_millis(min_ms)..=Duration::from_millis(max_ms);
        self.read(section, name, &expected, |_, node| match &node.value {
            Value::Text(text) => units::duration(text).filter(|duration| range.contains(duration)),
            _ => None,
        })
    }

    pub(super) fn size(&mut self, section: &Section<'_>, name: &str) -> u64 {
        let Kind::Size { min, max } = section.shape.field(name).kind else {
            unreachable!("{name} is a size in the table")
        };
        let expected = format!(
            "a size (KB, KiB, MB, MiB, GB, GiB) from {} to {}",
            units::show_size(min),
            units::show_size(max)
        );
        self.read(section, name, &expected, |_, node| {
            let size = match &node.value {
                Value::Text(text) => units::size(text),
                _ => whole(node),
            };
            size.filter(|size| (min..=max).contains(size))
        })
    }

    pub(super) fn choice(&mut self, section: &Section<'_>, name: &str) -> &'static str {
        let Kind::Choice { of, later } = section.shape.field(name).kind else {
            unreachable!("{name} is a choice in the table")
        };
        let expected = format!("one of {}", listed(of));
        if let Some(node) = section.node(name)
            && let Value::Text(text) = &node.value
            && later.contains(&text.as_str())
        {
            let help = format!("this version takes {expected}");
            self.not_yet(&format!("`{}: {text}`", section.at(name)), &node.place, &help);
            return of[0];
        }
        self.read(section, name, &expected, |_, node| match &node.value {
            Value::Text(text) => of.iter().find(|choice| *choice == text).copied(),
            _ => None,
        })
    }

    pub(super) fn statuses(&mut self, section: &Section<'_>, name: &str) -> Vec<u16> {
        self.read(section, name, "a list of HTTP statuses from 400 to 599", |_, node| {
            let Value::List(items) = &node.value else {
                return None;
            };
            items
                .iter()
                .map(|item| {
                    whole(item).filter(|status| (400..=599).contains(status)).map(|status| status as u16)
                })
                .collect()
        })
    }

    /// Reads settings that Keylane passes on to other software by name. Numbers and flags become text.
    pub(super) fn passed_on(&mut self, section: &Section<'_>, name: &str) -> BTreeMap<String, String> {
        self.read(section, name, "a section of names and values", |_, node| {
            let Value::Map(entries) = &node.value else {
                return None;
            };
            let text = |(key, node): &(Key, Node)| {
                let value = match &node.value {
                    Value::Text(text) => text.clone(),
                    Value::Whole(number) => number.to_string(),
                    Value::Number(number) => number.to_string(),
                    Value::Bool(flag) => flag.to_string(),
                    Value::Null | Value::List(_) | Value::Map(_) => return None,
                };
                Some((key.name.clone(), value))
            };
            entries.iter().map(text).collect()
        })
    }

    /// Reads a setting: its value from the file, otherwise its default, otherwise (if it has none) an empty value.
    fn read<T: Default>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        expected: &str,
        parse: impl Fn(&'static Field, &Node) -> Option<T>,
    ) -> T {
        let field = section.shape.field(name);
        let path = section.at(name);
        if let Some(node) = section.node(name) {
            if let Some(value) = parse(field, node) {
                return value;
            }
            let example = format!("{name}: {}", field.absent.shown());
            self.expected(node, &path, expected, &example);
        } else if let Absent::Required(example) = field.absent {
            self.problems.push(ConfigProblem {
                code: ErrorCode::MissingSetting,
                place: section.place.clone(),
                what: format!("{path} is missing"),
                help: format!("add it, for example `{name}: {example}`"),
            });
        }
        let profiled = field.profiled.of(self.profile).map(Absent::Is);
        match profiled.as_ref().unwrap_or(&field.absent) {
            Absent::Is(text) => {
                let node =
                    Node::parse(name, text).expect("the table's defaults are YAML; a test reads every one");
                parse(field, &node).expect("the table's defaults are valid; a test reads every one")
            }
            Absent::Example(_) | Absent::Nothing(_) | Absent::Required(_) => T::default(),
        }
    }

    fn expected(&mut self, node: &Node, path: &str, expected: &str, example: &str) {
        self.problems.push(ConfigProblem {
            code: ErrorCode::WrongValue,
            place: node.place.clone(),
            what: format!("{path} must be {expected}; it is {}", node.shown()),
            help: format!("write it like this: `{example}`"),
        });
    }

    fn known(&mut self, key: &Key, shape: &'static Shape, path: &str) {
        let names = || shape.fields.iter().map(|field| field.name);
        if names().any(|name| name == key.name) {
            return;
        }
        let within = if path.is_empty() { String::new() } else { format!(" in {path}") };
        if shape.later.contains(&key.name.as_str()) {
            self.not_yet(
                &format!("`{}`{within}", key.name),
                &key.place,
                "remove it; a later version brings it",
            );
            return;
        }
        let all = listed(&names().collect::<Vec<_>>());
        let help = match nearest(&key.name, names()) {
            Some(near) => format!("did you mean `{near}`? Known here: {all}"),
            None if shape.fields.is_empty() => "nothing can be set here: remove it".to_owned(),
            None => format!("remove it; known here: {all}"),
        };
        self.problems.push(ConfigProblem {
            code: ErrorCode::UnknownSetting,
            place: key.place.clone(),
            what: format!("unknown setting `{}`{within}", key.name.escape_debug()),
            help,
        });
    }

    fn not_yet(&mut self, what: &str, place: &Place, help: &str) {
        self.problems.push(ConfigProblem {
            code: ErrorCode::SettingNotYet,
            place: place.clone(),
            what: format!("{what} is not in this version"),
            help: help.to_owned(),
        });
    }

    fn not_a_name(&mut self, name: &str, place: &Place, path: &str) {
        self.problems.push(ConfigProblem {
            code: ErrorCode::WrongValue,
            place: place.clone(),
            what: format!("`{}` in {path} cannot be a name", name.escape_debug()),
            help: format!("it must be {}", name_rule()),
        });
    }
}

fn name_rule() -> String {
    format!("a name of letters, digits, `.`, `_` and `-`, at most {}", schema::NAME_BYTES_MAX)
}

fn whole(node: &Node) -> Option<u64> {
    match &node.value {
        Value::Whole(number) => u64::try_from(*number).ok(),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// An example of a section for an error message: its first setting that is not a section itself.
fn section_example(shape: &Shape) -> String {
    let simple = |field: &&Field| {
        !matches!(field.kind, Kind::Section(_) | Kind::OneOf(_) | Kind::Named(_) | Kind::List(_))
    };
    let has_default = |field: &&Field| matches!(field.absent, Absent::Is(_));
    let first = shape.fields.iter().filter(simple).find(has_default);
    match first.or_else(|| shape.fields.iter().find(simple)) {
        Some(field) => format!("{{ {}: {} }}", field.name, field.absent.shown()),
        None => "{}".to_owned(),
    }
}
