//! Reads the server's config: one YAML file, environment variables inside its values, and environment variables that
//! override settings (ADM-9).
//!
//! `tree` parses YAML and keeps lines and columns; `expand` puts in values from the environment and from files;
//! `settings` lists every setting, in the types of `schema`; `fields` and `read` make a [`Config`] from the tree, or
//! report every mistake. `print` writes the JSON schema and `deploy/keylane.reference.yaml` from the same list.

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

/// Bytes of a config file at most: enough for thousands of pipelines.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// All settings of a server. `Config::default()` is what runs without a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Decides the defaults of some settings that the file leaves out.
    pub profile: Profile,
    /// How HTTP is served.
    pub server: ServerConfig,
    /// Folder of the embedded broker, and of the spill of any other.
    pub data: PathBuf,
    /// Where topics live.
    pub broker: BrokerChoice,
    /// Topics by name; without any, they are created by first use.
    pub topics: BTreeMap<String, TopicConfig>,
    /// The settings of a topic that is created by its first message.
    pub new_topic: TopicSpec,
    /// Pipelines by name.
    pub pipelines: BTreeMap<String, PipelineConfig>,
    /// Bounds of producing over HTTP.
    pub ingest: IngestConfig,
    /// How messages are kept locally while the broker is away.
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
    /// True if other machines could call every route: they can reach the address, and there are no tokens (SEC-1).
    pub(crate) fn is_open_to_all(&self) -> bool {
        !self.listen.ip().to_canonical().is_loopback() && self.tokens.is_empty()
    }
}

/// A token that clients may show. Only its hash is known.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenConfig {
    /// Name of the token's owner.
    pub name: String,
    /// What calls with the token may do.
    pub role: Role,
    /// The token's SHA-256.
    pub sha256: [u8; 32],
}

/// A pipeline of the config.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineConfig {
    /// The topic that the pipeline reads.
    pub topic: String,
    /// The group for which the pipeline reads and commits.
    pub group: String,
    /// The pipeline's settings.
    pub settings: Settings,
    /// What runs on each message.
    pub handler: HandlerConfig,
}

/// What runs on each message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HandlerConfig {
    /// Pushes the message to a URL.
    Http(Box<HttpSettings>),
    /// Prints the message to standard output.
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
    /// Reads the file at `path` with the environment of this process. Without a path, every setting has its default or
    /// its value from the environment.
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

    /// Reads `text` as a config. Error messages call the text `name`.
    pub fn parse(name: &str, text: &str, environment: &Environment) -> Result<Config, ConfigError> {
        let mut root = Node::parse(name, text)?;
        let mut problems = Vec::new();
        expand::expand(&mut root, environment, &mut problems);
        // Reading the settings now would report each value that could not be expanded a second time.
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

    /// Every setting with its default and its description, as YAML: the text of `deploy/keylane.reference.yaml`.
    pub fn reference() -> String {
        print::reference()
    }
}

#[cfg(test)]
mod tests;
