//! The types in which `settings` lists all settings. Reading a config, the JSON schema and the reference file all use
//! that list, so that they cannot disagree.

/// A section: its settings, and the names of settings that only a later version has.
pub(super) struct Shape {
    pub(super) fields: &'static [Field],
    pub(super) later: &'static [&'static str],
}

/// One setting.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) absent: Absent,
    /// Defaults of profiles that differ from `absent` (ADM-9).
    pub(super) profiled: Profiled,
    /// A description of one or two sentences, for the schema and the reference file.
    pub(super) about: &'static str,
}

/// Defaults of a setting by profile, as YAML. None means the same default as without a profile.
#[derive(Clone, Copy, Default)]
pub(super) struct Profiled {
    pub(super) production: Option<&'static str>,
    pub(super) development: Option<&'static str>,
}

impl Profiled {
    /// The profile's default, if it differs from the default without a profile. Staging has the defaults of production.
    pub(super) fn of(&self, profile: Profile) -> Option<&'static str> {
        match profile {
            Profile::None => None,
            Profile::Production | Profile::Staging => self.production,
            Profile::Development => self.development,
        }
    }
}

impl Field {
    /// The same setting with another default in production.
    pub(super) const fn production(mut self, text: &'static str) -> Field {
        self.profiled.production = Some(text);
        self
    }

    /// The same setting with another default in development.
    pub(super) const fn development(mut self, text: &'static str) -> Field {
        self.profiled.development = Some(text);
        self
    }
}

/// Where a server runs. The profile decides the defaults of some settings (MSG-4, ADM-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// No profile is chosen: topics suit a single broker, and all other defaults are those of production.
    #[default]
    None,
    /// Topics suit a cluster of three brokers.
    Production,
    /// The same defaults as production.
    Staging,
    /// One broker, small bounds, quick retries.
    Development,
}

impl Profile {
    /// The names that the config accepts.
    pub(super) const NAMES: &'static [&'static str] = &["production", "staging", "development"];

    /// The profile of that name; [`Profile::None`] for any other text.
    pub(super) fn named(name: &str) -> Profile {
        match name {
            "production" => Profile::Production,
            "staging" => Profile::Staging,
            "development" => Profile::Development,
            _ => Profile::None,
        }
    }

    /// The profile's name in a config; none if no profile was chosen.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Profile::None => None,
            Profile::Production => Some("production"),
            Profile::Staging => Some("staging"),
            Profile::Development => Some("development"),
        }
    }
}

/// The value of a setting that a config leaves out.
pub(super) enum Absent {
    /// This default, as YAML.
    Is(&'static str),
    /// The default depends on other things; the text is an example.
    Example(&'static str),
    /// No value. The text is an example, which the reference file shows as a comment.
    Nothing(&'static str),
    /// The setting cannot be left out; the text is an example.
    Required(&'static str),
}

impl Absent {
    /// The value that the reference file shows.
    pub(super) fn shown(&self) -> &'static str {
        match self {
            Absent::Is(text) | Absent::Example(text) | Absent::Nothing(text) | Absent::Required(text) => text,
        }
    }
}

/// What a setting takes. Bounds include both ends.
pub(super) enum Kind {
    /// Any text.
    Text,
    /// What a topic, group or pipeline may be called.
    Name,
    /// An address and a port.
    Address,
    /// SHA-256 as 64 hex digits.
    Hash,
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
    /// A whole number, or `auto`.
    Auto {
        max: u64,
    },
    /// Between 0 and 1.
    Share,
    Duration {
        min_ms: u64,
        max_ms: u64,
    },
    Size {
        min: u64,
        max: u64,
    },
    Choice {
        of: &'static [&'static str],
        later: &'static [&'static str],
    },
    /// A list of HTTP statuses.
    Statuses,
    /// Settings of other software, which Keylane passes on by name.
    PassedOn,
    /// A section.
    Section(&'static Shape),
    /// A section of which exactly one setting is given.
    OneOf(&'static Shape),
    /// Sections by names that the user chooses.
    Named(&'static Shape),
    /// A list of sections.
    List(&'static Shape),
}

impl Shape {
    /// The setting of that name. The list must have it.
    pub(super) fn field(&self, name: &str) -> &'static Field {
        let fields: &'static [Field] = self.fields;
        fields
            .iter()
            .find(|field| field.name == name)
            .expect("settings are read by names of the table; a test reads every one")
    }
}

/// Characters of a name at most. It is Kafka's bound for topics, so that a config can move to any broker.
pub(crate) const NAME_BYTES_MAX: usize = 249;

/// Whether `name` can be the name of a topic, group or pipeline. The rule is Kafka's for topics; such names are also
/// safe in paths, URLs and metrics.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
