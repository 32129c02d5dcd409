//! A server's life: open, start, serve, drain, end (ORD-10).
//!
//! It binds before it opens anything, so that a port in use costs nothing; it says that it is alive while the broker is
//! opened, and answers all else from then on; it is ready when all pipelines have started. On the way out it says so first (not ready, no intake), drains
//! the pipelines while it still answers, and closes connections last.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{BrokerChoice, Config as OpenConfig, ErrorCode, Keylane, Pipeline, Severity};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::app::{App, Phase};
use super::broker_health;
use super::file_limit;
use super::listen;
use super::opening;
use super::refused_requests;
use super::start::{self, Coming};
use super::tasks::{self, ServerTask};
use crate::config::{Config, ServerConfig};

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
    /// What brings the server up panicked.
    #[error(
        "the server cannot come up: {0}; start it again, and report it with the lines of the log before this one"
    )]
    Ended(String),
}

impl ServeError {
    /// The code under which `docs/errors/` explains it.
    pub fn code(&self) -> ErrorCode {
        match self {
            ServeError::AddressInUse(_) => ErrorCode::AddressInUse,
            ServeError::NoTokens(_) => ErrorCode::OpenToAll,
            ServeError::Listen { .. } => ErrorCode::CannotListen,
            ServeError::Keylane(error) => error.code(),
            ServeError::Handler { .. } => ErrorCode::HandlerNotMade,
            ServeError::Drain(_) => ErrorCode::NotDrained,
            ServeError::Ended(_) => ErrorCode::TaskEnded,
        }
    }
}

/// Serves as `config` says until `shutdown` is ready, then drains.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let server = Server::start(config).await?;
    tokio::select! {
        () = shutdown => server.stop().await,
        error = server.failed() => {
            let _ = server.stop().await;
            Err(error)
        }
    }
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    pipelines: Arc<Mutex<Vec<Pipeline>>>,
    accepting: JoinHandle<listen::Connections>,
    looking: JoinHandle<()>,
    telling: JoinHandle<()>,
    /// What still comes up, if not all did at once.
    coming: tokio::sync::Mutex<Option<JoinHandle<Result<(), ServeError>>>>,
    drain: Duration,
}

impl Server {
    /// Opens the broker and serves.
    pub async fn start(config: Config) -> Result<Server, ServeError> {
        let listener = bind(&config.server).await?;
        // Before anything is opened.
        file_limit::raise();
        let open = OpenConfig::on(config.broker.clone(), &config.data)
            .spill(config.spill.clone())
            .create_topics(config.topics.is_empty())
            .new_topic(config.new_topic.clone());
        let keylane = opening::meanwhile(&listener, Keylane::open(open)).await?;
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
        // Files of partitions are the embedded broker's alone.
        let partitions = match &config.broker {
            BrokerChoice::Kafka(_) => 0,
            BrokerChoice::Embedded => {
                let there = keylane.topics().await?.into_iter().map(|topic| (topic.name, topic.partitions));
                let asked = config.topics.iter().map(|(name, topic)| (name.clone(), topic.spec.partitions));
                let all: BTreeMap<String, u32> = there.chain(asked).collect();
                all.values().map(|partitions| *partitions as usize).sum()
            }
        };
        config.server.connections =
            file_limit::connections(config.server.connections, file_limit::raise(), partitions);
        keylane.producer().on_backlog(|backlog| match backlog.severity {
            Severity::None | Severity::Low => tracing::info!(?backlog, "producing"),
            _ => tracing::warn!(?backlog, "messages are produced faster than the broker takes them"),
        });
        let app = Arc::new(App::new(&config, keylane));
        let accepting = tasks::spawn(listen::accept(listener, Arc::clone(&app), config.server.clone()));
        let (drain, pipelines, outboxes) = (config.server.drain, Arc::default(), config.outbox.clone());
        let left = config.pipelines.keys().cloned().collect();
        let no_room = BTreeMap::new();
        let mut coming =
            Coming { config, app: Arc::clone(&app), pipelines: Arc::clone(&pipelines), left, no_room };
        let coming_up = tokio::sync::Mutex::default();
        let looking = tasks::spawn(broker_health::watch(Arc::clone(&app)));
        let telling = tasks::spawn(refused_requests::watch(Arc::clone(&app)));
        let server =
            Server { address, app, pipelines, accepting, looking, telling, coming: coming_up, drain };
        tracing::info!(address = %server.address, "listening");
        match coming.step().await {
            Ok(true) => {}
            Ok(false) => *server.coming.lock().await = Some(tasks::spawn(come_up(coming))),
            Err(error) => {
                // What did start holds partitions; the error that stopped us is the one worth telling.
                drop(coming);
                let _ = server.stop().await;
                return Err(error);
            }
        }
        for (name, options) in &outboxes {
            server.app.outboxes.start(&server.app, name, options);
        }
        Ok(server)
    }

    /// Ready when the server cannot come up after all: its broker, once it could be reached, refused what the config
    /// asks for, or what brings it up panicked. Pending for ever otherwise. Cancel safe.
    pub async fn failed(&self) -> ServeError {
        let mut coming = self.coming.lock().await;
        if let Some(task) = coming.as_mut() {
            let ended = task.await;
            *coming = None;
            if let Ok(Err(error)) = ended {
                return error;
            }
        }
        drop(coming);
        std::future::pending().await
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
        self.looking.abort();
        self.app.phase.send_replace(Phase::Draining);
        if let Some(coming) = self.coming.into_inner() {
            coming.abort();
            let _aborted = coming.await;
        }
        let pipelines = std::mem::take(&mut *self.pipelines.lock().expect("no holder panics"));
        let deadline = self.drain + DRAIN_MARGIN;
        let drain = async { tokio::join!(start::drain(&pipelines), self.app.outboxes.stopped()).0 };
        let drained = tokio::time::timeout(deadline, drain).await;
        self.app.phase.send_replace(Phase::Closing);
        if let Ok(connections) = self.accepting.await {
            connections.close(CLOSE_MAX.min(self.drain)).await;
        }
        // Waited for: until it is gone it has the data folder open.
        self.telling.abort();
        let _aborted = self.telling.await;
        self.app.refused.end();
        if !self.app.keylane.close().await {
            tracing::warn!("messages that were not acknowledged were on their way when the server stopped");
        }
        tracing::info!("stopped");
        match drained {
            Err(_) => Err(ServeError::Drain(deadline)),
            Ok(results) => Ok(results.into_iter().collect::<Result<(), _>>()?),
        }
    }
}

/// Brings the server up. One that would never become ready, and that nobody tells of, is worse than one that ends.
async fn come_up(coming: Coming) -> Result<(), ServeError> {
    let app = Arc::clone(&coming.app);
    let up = app.ended_tasks.supervise(ServerTask::ComingUp, coming.up()).await;
    up.unwrap_or_else(|why| Err(ServeError::Ended(why)))
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

#[cfg(test)]
mod tests {
    use keylane::raw::{Clock, Tasks};
    use keylane_broker::{Faulty, MemoryBroker, Rates};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::config::Environment;

    fn broker() -> Arc<Faulty> {
        Faulty::new(MemoryBroker::new(1, || 0).node("n"), 1, Rates::none())
    }

    async fn started(broker: &Arc<Faulty>, text: &str) -> Server {
        let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
        // One that may be away when the server starts.
        let text = format!("broker: {{ kind: kafka }}\n{text}");
        let config = Config::parse("test", &text, &environment).expect("a valid config");
        let keylane = Keylane::with_broker(broker.clone(), Clock::system(), Tasks::default(), true);
        Server::start_on(config, keylane).await.expect("it starts, or waits for its broker")
    }

    fn ended(server: &Server, task: &str) -> u64 {
        server.app.ended_tasks.all().find(|(name, _)| *name == task).expect("it is counted").1
    }

    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::task::yield_now().await;
        }
    }

    /// Whether the server answers on this connection.
    async fn is_answered(stream: &mut TcpStream) -> bool {
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut status = [0; 12];
        stream.write_all(request).await.is_ok()
            && stream.read_exact(&mut status).await.is_ok()
            && status == *b"HTTP/1.1 200"
    }

    /// P10: a server whose accept loop panics accepts connections again, and those that are there go on.
    #[tokio::test]
    async fn accepting_begins_anew() {
        let server = started(&broker(), "").await;
        let mut there = TcpStream::connect(server.address()).await.expect("it listens");
        server.app.ended_tasks.strike(ServerTask::Accept);
        let mut next = TcpStream::connect(server.address()).await.expect("it listens");
        until(|| ended(&server, "accept") == 1).await;
        let mut last = TcpStream::connect(server.address()).await.expect("it listens");
        assert!(
            is_answered(&mut last).await && is_answered(&mut there).await && is_answered(&mut next).await
        );
        let shown = server.app.metrics.text(&server.app);
        assert!(shown.contains("keylane_tasks_ended_unexpectedly_total{task=\"accept\"} 1"), "{shown}");
        server.stop().await.expect("it stops");
    }

    /// ING-8: a server goes on looking at its broker after a panic: what it shows is not what was once.
    #[tokio::test]
    async fn looking_at_the_broker_begins_anew() {
        let broker = broker();
        let server = started(&broker, "").await;
        server.app.ended_tasks.strike(ServerTask::BrokerHealth);
        until(|| ended(&server, "broker_health") == 1).await;
        broker.outage(Duration::from_secs(3600));
        until(|| server.app.broker_health.trouble().is_some()).await;
        broker.calm();
        until(|| server.app.broker_health.trouble().is_none()).await;
        server.stop().await.expect("it stops");
    }

    /// P10: a server that nobody brings up any more ends with the cause, and does not wait for ever.
    #[tokio::test]
    async fn a_server_whose_coming_up_panics_fails() {
        let broker = broker();
        broker.outage(Duration::from_secs(3600));
        let server = started(&broker, "topics: { t: { partitions: 1 } }").await;
        server.app.ended_tasks.strike(ServerTask::ComingUp);
        let error = server.failed().await;
        assert_eq!(error.code(), ErrorCode::TaskEnded);
        assert!(error.to_string().contains("a test ended it"), "{error}");
        assert_eq!(ended(&server, "coming_up"), 1);
        let _stopped = server.stop().await;
    }
}
