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
    /// A sentence or two.
    pub(super) about: &'static str,
}

/// What a setting is when it is left out.
pub(super) enum Absent {
    /// This, as it would be written.
    Is(&'static str),
    /// Not one fixed value; this is an example.
    Example(&'static str),
    /// An example, and it cannot be left out.
    Required(&'static str),
}

impl Absent {
    /// What the reference file shows.
    pub(super) fn shown(&self) -> &'static str {
        match self {
            Absent::Is(text) | Absent::Example(text) | Absent::Required(text) => text,
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
