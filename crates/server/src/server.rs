//! A server's life: open, start, serve, drain, end (ORD-10).
//!
//! It binds before it opens anything, so that a port in use costs nothing; it answers from the moment the broker is
//! open; it is ready when all pipelines have started. On the way out it says so first (not ready, no intake), drains
//! the pipelines while it still answers, and closes connections last.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use keylane::handlers::LogHandler;
use keylane::{Config as OpenConfig, Keylane, Pipeline, TopicSpec};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::app::{App, Phase};
use crate::config::{Config, HandlerConfig, PipelineConfig, ServerConfig};
use crate::descriptors;
use crate::listen;
use crate::tasks;

/// How much longer than its own deadline a drain may take before it is given up.
const DRAIN_MARGIN: Duration = Duration::from_secs(5);
/// Requests under way get this long to end once pipelines are drained, or as long as handlers got if that is shorter.
/// Whoever does not take its answer by then never will.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Why a server did not start, or did not end well. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another process has the port.
    #[error(
        "cannot listen on {0}: the address is in use; stop the process that has it, or set server.listen to another port"
    )]
    AddressInUse(SocketAddr),
    /// Other machines could do anything (SEC-1).
    #[error(
        "cannot listen on {0}: other machines can reach it, and there are no tokens; make one with `keylane token new`, or listen on 127.0.0.1"
    )]
    NoTokens(SocketAddr),
    /// The address cannot be had for another reason.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        why: String,
    },
    /// The broker, a topic or a pipeline says no.
    #[error(transparent)]
    Keylane(#[from] keylane::Error),
    /// A pipeline's handler cannot be made.
    #[error("pipelines.{pipeline}.handler: {why}")]
    Handler {
        /// The pipeline.
        pipeline: String,
        /// What is wrong.
        why: String,
    },
    /// Pipelines were not drained in time; what they had not settled is handled again after the next start.
    #[error(
        "pipelines were not drained within {0:?}; what was not settled is handled again after the next start"
    )]
    Drain(Duration),
}

impl ServeError {
    /// The code under which `docs/errors/` explains it.
    pub fn code(&self) -> &'static str {
        match self {
            ServeError::AddressInUse(_) => "KL-1401",
            ServeError::NoTokens(_) => "KL-1009",
            ServeError::Listen { .. } => "KL-1402",
            ServeError::Keylane(error) => error.code(),
            ServeError::Handler { .. } => "KL-1403",
            ServeError::Drain(_) => "KL-1404",
        }
    }
}

/// Serves as `config` says until `shutdown` is ready, then drains.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let server = Server::start(config).await?;
    shutdown.await;
    server.stop().await
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    pipelines: Mutex<Vec<Pipeline>>,
    accepting: JoinHandle<listen::Connections>,
    drain: Duration,
}

impl Server {
    /// Opens the broker and serves.
    pub async fn start(config: Config) -> Result<Server, ServeError> {
        let listener = bind(&config.server).await?;
        // Before anything is opened.
        descriptors::raise();
        let open = OpenConfig::embedded(&config.data).create_topics(config.topics.is_empty());
        let keylane = Keylane::open(open).await?;
        Server::begin(config, keylane, listener).await
    }

    /// Serves on a broker that is open already.
    pub async fn start_on(config: Config, keylane: Keylane) -> Result<Server, ServeError> {
        let listener = bind(&config.server).await?;
        Server::begin(config, keylane, listener).await
    }

    async fn begin(
        mut config: Config,
        keylane: Keylane,
        listener: TcpListener,
    ) -> Result<Server, ServeError> {
        let address = listener
            .local_addr()
            .map_err(|error| ServeError::Listen { address: config.server.listen, why: error.to_string() })?;
        ensure_topics(&config, &keylane).await?;
        let partitions = keylane.topics().await?.iter().map(|topic| topic.partitions as usize).sum();
        config.server.connections =
            descriptors::connections(config.server.connections, descriptors::raise(), partitions);
        let app = Arc::new(App::new(&config, keylane));
        let accepting = tasks::spawn(listen::accept(listener, Arc::clone(&app), config.server.clone()));
        let server =
            Server { address, app, pipelines: Mutex::default(), accepting, drain: config.server.drain };
        for (name, pipeline) in &config.pipelines {
            match start_pipeline(&server.app.keylane, name, pipeline).await {
                Ok(pipeline) => server.drain_too(pipeline),
                Err(error) => {
                    // What did start holds partitions; the error that stopped us is the one worth telling.
                    let _ = server.stop().await;
                    return Err(error);
                }
            }
        }
        server.app.phase.send_replace(Phase::Ready);
        tracing::info!(address = %server.address, pipelines = config.pipelines.len(), "ready");
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The broker it serves, for pipelines of one's own.
    pub fn keylane(&self) -> &Keylane {
        &self.app.keylane
    }

    /// Drains a pipeline that was started elsewhere when the server stops.
    pub fn drain_too(&self, pipeline: Pipeline) {
        self.pipelines.lock().expect("no holder panics").push(pipeline);
    }

    /// Not ready, no intake; drains the pipelines within their deadline; closes connections.
    pub async fn stop(self) -> Result<(), ServeError> {
        tracing::info!("draining");
        self.app.phase.send_replace(Phase::Draining);
        let pipelines = std::mem::take(&mut *self.pipelines.lock().expect("no holder panics"));
        let deadline = self.drain + DRAIN_MARGIN;
        let drained = tokio::time::timeout(deadline, join_all(pipelines.iter().map(Pipeline::drain))).await;
        self.app.phase.send_replace(Phase::Closing);
        if let Ok(connections) = self.accepting.await {
            connections.close(CLOSE_MAX.min(self.drain)).await;
        }
        tracing::info!("stopped");
        match drained {
            Err(_) => Err(ServeError::Drain(deadline)),
            Ok(results) => Ok(results.into_iter().collect::<Result<(), _>>()?),
        }
    }
}

async fn bind(config: &ServerConfig) -> Result<TcpListener, ServeError> {
    let address = config.listen;
    if config.is_open_to_all() {
        return Err(ServeError::NoTokens(address));
    }
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => ServeError::AddressInUse(address),
        _ => ServeError::Listen { address, why: error.to_string() },
    })
}

/// Declared topics as declared; without any, those of the pipelines, as they are or as a first use makes them.
async fn ensure_topics(config: &Config, keylane: &Keylane) -> Result<(), ServeError> {
    for (name, spec) in &config.topics {
        keylane.ensure_topic(name, spec).await?;
    }
    if config.topics.is_empty() && !config.pipelines.is_empty() {
        let there = keylane.topics().await?;
        for pipeline in config.pipelines.values() {
            if !there.iter().any(|topic| topic.name == pipeline.topic) {
                keylane.ensure_topic(&pipeline.topic, &TopicSpec::default()).await?;
            }
        }
    }
    Ok(())
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
            let handler =
                http.handler().map_err(|why| ServeError::Handler { pipeline: name.to_owned(), why })?;
            builder.handle(handler).start().await?
        }
        HandlerConfig::Log => builder.handle(LogHandler::default()).start().await?,
    };
    Ok(pipeline)
}
