//! One YAML file, with the environment in it and over it (ADM-9).
//!
//! `tree` reads YAML and keeps lines and columns; `expand` puts in what comes from outside; `settings` says which
//! there are, in the words of `schema`; `fields` and `read` make a [`Config`] of it all, or say everything that is wrong. The JSON
//! schema and `deploy/keylane.reference.yaml` are written from the same list.

mod environment;
mod error;
mod expand;
mod fields;
mod file;
mod handler;
mod print;
mod read;
mod schema;
mod settings;
mod topics;
mod tree;
mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use keylane::handlers::HttpSettings;
use keylane::outbox::OutboxOptions;
use keylane::{BrokerChoice, ErrorCode, Settings, SpillOptions, TopicSpec};

pub use environment::Environment;
pub(crate) use error::nearest;
pub use error::{ConfigError, ConfigProblem, Place};
pub(crate) use schema::NAME_BYTES_MAX;
pub use schema::{Profile, is_name};
pub use topics::TopicConfig;
pub(crate) use units::duration;

use crate::http::Role;
use tree::Node;

/// Bytes of a config: thousands of pipelines.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// All settings of a server. `Config::default()` is what runs without a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Whose values stand for what is left out.
    pub profile: Profile,
    /// How HTTP is served.
    pub server: ServerConfig,
    /// Folder of the embedded broker, and of the spill of any other.
    pub data: PathBuf,
    /// Where topics live.
    pub broker: BrokerChoice,
    /// Topics by name; without any, they are created by first use.
    pub topics: BTreeMap<String, TopicConfig>,
    /// What a topic gets that is created by its first use.
    pub new_topic: TopicSpec,
    /// Pipelines by name.
    pub pipelines: BTreeMap<String, PipelineConfig>,
    /// Bounds of producing over HTTP.
    pub ingest: IngestConfig,
    /// How a broker's absence is bridged.
    pub spill: SpillOptions,
    /// Outboxes by name.
    pub outbox: BTreeMap<String, OutboxOptions>,
}

/// How HTTP is served.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Who may do what; without any, only this machine may do anything.
    pub tokens: Vec<TokenConfig>,
    /// Connections at once.
    pub connections: usize,
    /// How long a connection may take to send a request head.
    pub idle_timeout: Duration,
    /// How long a body may stand still.
    pub body_timeout: Duration,
    /// How long handlers get to finish on shutdown.
    pub drain: Duration,
}

impl ServerConfig {
    /// True if other machines could do anything here: they can reach it, and need no token (SEC-1).
    pub(crate) fn is_open_to_all(&self) -> bool {
        !self.listen.ip().to_canonical().is_loopback() && self.tokens.is_empty()
    }
}

/// A token, hashed.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenConfig {
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

/// A pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineConfig {
    /// The topic it reads.
    pub topic: String,
    /// The group whose position it keeps.
    pub group: String,
    /// How it behaves.
    pub settings: Settings,
    /// What runs on each message.
    pub handler: HandlerConfig,
}

/// What runs on each message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HandlerConfig {
    /// Pushes it to a URL.
    Http(Box<HttpSettings>),
    /// Prints it.
    Log,
}

/// Bounds of producing over HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct IngestConfig {
    /// Requests at once.
    pub in_flight: usize,
    /// Bytes of one request's body.
    pub max_request: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config::parse("defaults", "", &Environment::empty())
            .expect("the table's defaults are valid; a test reads them")
    }
}

impl Config {
    /// Reads the file at `path` (none: all defaults) with this process's environment.
    pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
        let environment = Environment::process();
        let Some(path) = path else {
            return Config::parse("the environment", "", &environment);
        };
        let name = path.display().to_string();
        let unreadable = |why: String| {
            ConfigError::one(
                &name,
                ConfigProblem {
                    code: ErrorCode::ConfigUnreadable,
                    place: Place::Whole,
                    what: format!("the config cannot be read: {why}"),
                    help: "check the path given with -c, and that this user may read the file".to_owned(),
                },
            )
        };
        let text = file::text(path, CONFIG_BYTES_MAX).map_err(|error| unreadable(error.to_string()))?;
        Config::parse(&name, &text, &environment)
    }

    /// Reads `text`, which errors call `name`.
    pub fn parse(name: &str, text: &str, environment: &Environment) -> Result<Config, ConfigError> {
        let mut root = Node::parse(name, text)?;
        let mut problems = Vec::new();
        expand::expand(&mut root, environment, &mut problems);
        // A value that could not be expanded would only be reported a second time.
        if problems.is_empty() {
            let (config, found) = read::read(&root);
            if found.is_empty() {
                return Ok(config);
            }
            problems = found;
        }
        problems.sort_by_key(|problem| match problem.place {
            Place::File { line, column } => (line, column),
            Place::Variable(_) | Place::Whole => (u64::MAX, 0),
        });
        Err(ConfigError { name: name.to_owned(), problems })
    }

    /// The JSON schema of a config, for editors.
    pub fn schema() -> serde_json::Value {
        print::schema()
    }

    /// Every setting with its default and a sentence, as YAML: what `deploy/keylane.reference.yaml` holds.
    pub fn reference() -> String {
        print::reference()
    }
}

#[cfg(test)]
mod tests;
