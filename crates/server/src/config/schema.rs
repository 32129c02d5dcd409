//! The shape of a config as values: what `table.rs` is written in, and what reading, the JSON schema and the
//! reference file are all made from, so that they cannot disagree.

/// A section: its settings, and the names of settings that a later version has.
pub(super) struct Shape {
    pub(super) fields: &'static [Field],
    pub(super) later: &'static [&'static str],
}

/// One setting.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) absent: Absent,
    /// What it is when it is left out, in a profile that has another value (ADM-9).
    pub(super) profiled: Profiled,
    /// A sentence or two.
    pub(super) about: &'static str,
}

/// Values of a setting by profile, as they would be written; none: as without a profile.
#[derive(Clone, Copy, Default)]
pub(super) struct Profiled {
    pub(super) production: Option<&'static str>,
    pub(super) development: Option<&'static str>,
}

impl Profiled {
    /// What the profile has, if it is not what stands without one. Staging is as production.
    pub(super) fn of(&self, profile: Profile) -> Option<&'static str> {
        match profile {
            Profile::None => None,
            Profile::Production | Profile::Staging => self.production,
            Profile::Development => self.development,
        }
    }
}

impl Field {
    /// With another value in production.
    pub(super) const fn production(mut self, text: &'static str) -> Field {
        self.profiled.production = Some(text);
        self
    }

    /// With another value in development.
    pub(super) const fn development(mut self, text: &'static str) -> Field {
        self.profiled.development = Some(text);
        self
    }
}

/// Where a server runs: which values its settings have when they are left out (MSG-4, ADM-9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// None chosen: topics for one broker, and all else as in production.
    #[default]
    None,
    /// Topics for a cluster of three.
    Production,
    /// As production.
    Staging,
    /// One broker, small bounds, quick retries.
    Development,
}

impl Profile {
    /// What may be written.
    pub(super) const NAMES: &'static [&'static str] = &["production", "staging", "development"];

    /// The profile of that name; none, if it is none.
    pub(super) fn named(name: &str) -> Profile {
        match name {
            "production" => Profile::Production,
            "staging" => Profile::Staging,
            "development" => Profile::Development,
            _ => Profile::None,
        }
    }

    /// As it is written; none, if none was chosen.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Profile::None => None,
            Profile::Production => Some("production"),
            Profile::Staging => Some("staging"),
            Profile::Development => Some("development"),
        }
    }
}

/// What a setting is when it is left out.
pub(super) enum Absent {
    /// This, as it would be written.
    Is(&'static str),
    /// Not one fixed value; this is an example.
    Example(&'static str),
    /// Nothing; this is an example, which the reference file shows in a comment.
    Nothing(&'static str),
    /// An example, and it cannot be left out.
    Required(&'static str),
}

impl Absent {
    /// What the reference file shows.
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
    /// Settings of something else, passed on by their names.
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
    /// The setting of that name, which the table has.
    pub(super) fn field(&self, name: &str) -> &'static Field {
        let fields: &'static [Field] = self.fields;
        fields
            .iter()
            .find(|field| field.name == name)
            .expect("settings are read by names of the table; a test reads every one")
    }
}

/// How long a name may be: Kafka's bound for a topic, so that a config can move to any broker.
pub(crate) const NAME_BYTES_MAX: usize = 249;

/// Whether a topic, group or pipeline may be called so: Kafka's rule for topics. It keeps names out of trouble in
/// paths, URLs and metrics too.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
