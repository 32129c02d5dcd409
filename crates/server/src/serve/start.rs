//! Brings a server with an open broker to the phase `Ready`: creates topics, then starts pipelines.
//!
//! If the broker cannot be reached, the start is retried until it can; meanwhile `/healthz` answers, and `/readyz` says
//! what the server waits for (BRK-8). If the broker denies one pipeline its rights, or the files of a topic or a
//! journal are damaged, only the pipelines concerned wait or are shown as stopped, and all others run (P10). An error
//! that waiting cannot cure ends the start: refused credentials, or topics that cannot be created as the config asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use keylane::handlers::{HttpHandler, HttpSettings, LogHandler};
use keylane::{Error, ErrorCode, Keylane, Pipeline};

use super::app::{App, Phase};
use super::server::ServeError;
use super::tasks;
use crate::config::{Config, HandlerConfig, PipelineConfig, Profile};

/// The first wait between two attempts to start, and the longest one.
const WAIT_FIRST: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The start of a server while it is under way.
pub(super) struct Coming {
    pub(crate) config: Config,
    pub(crate) app: Arc<App>,
    /// The pipelines that run.
    pub(crate) pipelines: Arc<Mutex<Vec<Pipeline>>>,
    /// Names of the pipelines that are not started yet.
    pub(crate) left: Vec<String>,
    /// Topics that could not be created because the disk is full, each with the error.
    pub(super) no_room: BTreeMap<String, String>,
}

impl Coming {
    /// Repeats [`Coming::step`] until everything runs, or until an error that waiting cannot cure.
    pub(crate) async fn up(mut self) -> Result<(), ServeError> {
        let mut wait = WAIT_FIRST;
        while !self.step().await? {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
        Ok(())
    }

    /// Starts what can be started now. True if everything runs.
    pub(crate) async fn step(&mut self) -> Result<bool, ServeError> {
        let is_opening = self.app.phase() == Phase::Opening;
        if is_opening || !self.no_room.is_empty() {
            match ensure_topics(&self.config, &self.app.keylane).await {
                Ok(no_room) => self.no_room = no_room,
                Err(error) => {
                    self.wait_for(vec![reason(&error)]);
                    return if error.code() == ErrorCode::BrokerUnreachable {
                        Ok(false)
                    } else {
                        Err(error.into())
                    };
                }
            }
        }
        if is_opening {
            self.say_which_groups().await;
            self.app.go(Phase::Starting);
            self.warn().await;
        }
        let mut waiting: Vec<String> = self.no_room.values().cloned().collect();
        for name in std::mem::take(&mut self.left) {
            if self.no_room.contains_key(&self.config.pipelines[&name].topic) {
                self.left.push(name);
                continue;
            }
            match start_pipeline(&self.app.keylane, &name, &self.config.pipelines[&name]).await {
                Ok(pipeline) => self.pipelines.lock().expect("no holder panics").push(pipeline),
                Err(ServeError::Keylane(error)) if COMES.contains(&error.code()) => {
                    waiting.push(format!("pipeline {name} cannot start: {}", reason(&error)));
                    self.left.push(name);
                }
                Err(ServeError::Keylane(error)) if APART.contains(&error.code()) => {
                    self.stopped(&name, &error)
                }
                Err(error) => return Err(error),
            }
        }
        self.wait_for(waiting);
        let all_run = self.left.is_empty() && self.no_room.is_empty();
        if all_run {
            self.app.go(Phase::Ready);
            tracing::info!(pipelines = self.config.pipelines.len(), "ready");
        }
        Ok(all_run)
    }

    /// Tells the broker which groups the config has. A group without a pipeline must not hold back its topic's messages
    /// for ever (BRK-1).
    async fn say_which_groups(&self) {
        let of = |pipeline: &PipelineConfig| (pipeline.group.clone(), pipeline.topic.clone());
        let groups: Vec<_> = self.config.pipelines.values().map(of).collect();
        if let Err(error) = self.app.keylane.configured(&groups).await {
            // No message is deleted because of this error, and the next start tells the broker again.
            tracing::warn!("groups that are not configured go on holding messages back: {}", reason(&error));
        }
    }

    /// Shows a pipeline as stopped that cannot start, for example because its topic or its journals are damaged.
    fn stopped(&self, name: &str, error: &Error) {
        let PipelineConfig { topic, group, .. } = &self.config.pipelines[name];
        let partitions = self.config.topics.get(topic).map_or(0, |topic| topic.spec.partitions);
        let why = reason(error);
        tracing::error!(pipeline = name, "a pipeline cannot start: {why}");
        self.app.keylane.show_stopped(name, topic, group, partitions, &why);
    }

    /// Stores what the server waits for, for `/readyz`, and logs each new reason.
    fn wait_for(&self, reasons: Vec<String>) {
        let before = self.app.waiting.send_replace(reasons.clone());
        for reason in reasons.iter().filter(|reason| !before.contains(reason)) {
            tracing::error!("{reason}");
        }
    }

    /// Logs which settings of the broker weaken a promise (BRK-9). If the server lacks the right to read these
    /// settings, the start continues.
    async fn warn(&self) {
        let declared = self.config.topics.keys();
        let mut topics: Vec<String> =
            declared.chain(self.config.pipelines.values().map(|pipeline| &pipeline.topic)).cloned().collect();
        topics.sort();
        topics.dedup();
        let production = matches!(self.config.profile, Profile::Production | Profile::Staging);
        match self.app.keylane.warnings(&topics).await {
            // Outside of production, a single copy is no warning: a cluster of one broker can have no more.
            Ok(warnings) => {
                for warning in warnings.iter().filter(|warning| production || !warning.is_one_copy()) {
                    tracing::warn!(code = %warning.code, "{}; {}", warning.what, warning.remedy);
                }
            }
            Err(error) => tracing::warn!("settings of the broker were not checked: {}", reason(&error)),
        }
    }
}

/// Errors after which a pipeline's start is retried: the broker may return, and an operator may grant the right.
const COMES: [ErrorCode; 2] = [ErrorCode::BrokerUnreachable, ErrorCode::RightMissing];
/// Errors that stop the whole start: the broker is away, or refuses the credentials.
const AWAY: [ErrorCode; 2] = [ErrorCode::BrokerUnreachable, ErrorCode::CredentialsRefused];
/// Errors that concern one topic or one log, which stays closed until an operator has looked at it: it stopped, it is
/// damaged, or a newer version wrote it.
const APART: [ErrorCode; 3] = [ErrorCode::BrokerStopped, ErrorCode::DamagedData, ErrorCode::WrittenByNewer];

fn reason(error: &Error) -> String {
    format!("{}: {error}", error.code())
}

/// Creates the declared topics, and changes existing ones to the limits that the file writes. If the config declares
/// none, creates those topics of the pipelines that do not exist. A damaged topic is skipped here: starting its
/// pipelines reports the damage. Returns the topics for which the disk has no room.
async fn ensure_topics(config: &Config, keylane: &Keylane) -> Result<BTreeMap<String, String>, Error> {
    let mut no_room = BTreeMap::new();
    for (name, topic) in &config.topics {
        keylane.declare_topic(name, &topic.spec);
    }
    for (name, topic) in &config.topics {
        let ensured = async {
            let there = keylane.topic_spec(name).await?;
            let spec = there.map_or_else(|| topic.spec.clone(), |there| topic.over(&there));
            keylane.ensure_topic(name, &spec).await
        };
        unless_apart(name, ensured.await, &mut no_room)?;
    }
    if config.topics.is_empty() {
        for pipeline in config.pipelines.values() {
            let ensured = async {
                match keylane.topic_spec(&pipeline.topic).await? {
                    None => keylane.ensure_topic(&pipeline.topic, &config.new_topic).await,
                    Some(_) => Ok(()),
                }
            };
            unless_apart(&pipeline.topic, ensured.await, &mut no_room)?;
        }
    }
    // If there was no topic to create, only this check notices a broker that is away or refuses the credentials. Any
    // other trouble does not keep the rest of the server from its work; `/readyz` reports it.
    match keylane.health().await {
        Err(error) if AWAY.contains(&error.code()) => Err(error),
        _ => Ok(no_room),
    }
}

fn unless_apart(
    topic: &str,
    ensured: Result<(), Error>,
    no_room: &mut BTreeMap<String, String>,
) -> Result<(), Error> {
    match ensured {
        Err(error) if APART.contains(&error.code()) => Ok(()),
        // An operator may make room. Meanwhile the topics that exist are used, so the start continues without this one.
        Err(error) if error.code() == ErrorCode::DiskFull => {
            no_room.insert(topic.to_owned(), format!("topic {topic} cannot be made: {}", reason(&error)));
            Ok(())
        }
        ensured => ensured,
    }
}

async fn start_pipeline(
    keylane: &Keylane,
    name: &str,
    config: &PipelineConfig,
) -> Result<Pipeline, ServeError> {
    let builder =
        keylane.pipeline(name).topic(&config.topic).group(&config.group).settings(config.settings.clone());
    let pipeline = match &config.handler {
        HandlerConfig::Http(http) => {
            let handler = HttpHandler::new((**http).clone())
                .map_err(|why| ServeError::Handler { pipeline: name.to_owned(), why: why.to_string() })?;
            warn_of_address(name, http);
            builder.handle(handler).start().await?
        }
        HandlerConfig::Log => builder.handle(LogHandler::default()).start().await?,
    };
    Ok(pipeline)
}

/// Warns if no push can reach the handler's address. This runs in the background: a slow name server must not keep a
/// pipeline from starting.
fn warn_of_address(pipeline: &str, http: &HttpSettings) {
    let (pipeline, http) = (pipeline.to_owned(), http.clone());
    let _ends_by_itself = tasks::spawn(async move {
        if let Some(what) = http.warning().await {
            tracing::warn!(pipeline, "{what}");
        }
    });
}

/// Drains all pipelines at the same time.
pub(crate) async fn drain(pipelines: &[Pipeline]) -> Vec<Result<(), Error>> {
    join_all(pipelines.iter().map(Pipeline::drain)).await
}
