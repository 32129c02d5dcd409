//! Runs the real binary, on a folder and a port of its own; a test starts, stops and kills it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::cluster::Cluster;
use crate::load::{Acked, client};
use crate::sink::Sink;
use crate::status::PipelineView;
use crate::wait::until;

/// The config of a test's server: one topic, one pipeline `t` on it, pushing to a sink.
#[derive(Clone)]
pub struct Setup {
    /// The topic, and the group that reads it: tests that share a cluster have one each.
    pub topic: String,
    /// Partitions of the topic; 0 if another client has made the topic.
    pub partitions: u32,
    /// Further settings of the pipeline, as lines of YAML without indentation.
    pub pipeline: String,
    /// A path behind the sink's address, which calls then show.
    pub path: String,
    /// The time-out of a push.
    pub timeout: &'static str,
    /// Further settings of the push, as they follow others within braces.
    pub push: String,
    /// How long handlers may take to end when the server is told to stop.
    pub drain: &'static str,
    /// The value of `broker:`.
    pub broker: String,
    /// The replicas of the topic, and how many must have a message before it is acknowledged.
    pub replicas: (u32, u32),
    /// The value of `topics:`, instead of the topic `t`.
    pub topics: Option<String>,
    /// Further settings of the server, as they follow others within braces.
    pub server: String,
    /// Lines at the top of the config.
    pub top: String,
    /// Further topics, as they follow `t`, and lines of further pipelines.
    pub more: (String, String),
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            topic: "t".to_owned(),
            partitions: 4,
            pipeline: String::new(),
            path: String::new(),
            timeout: "60s",
            push: String::new(),
            drain: "30s",
            broker: "{ kind: embedded }".to_owned(),
            replicas: (1, 1),
            topics: None,
            server: String::new(),
            top: String::new(),
            more: Default::default(),
        }
    }
}

impl Setup {
    /// With these settings of the pipeline, a line each.
    pub fn pipeline(lines: &[&str]) -> Setup {
        Setup { pipeline: lines.join("\n"), ..Setup::default() }
    }

    /// With this many partitions.
    pub fn partitions(mut self, partitions: u32) -> Setup {
        self.partitions = partitions;
        self
    }

    /// With a topic of this name.
    pub fn topic(mut self, topic: &str) -> Setup {
        topic.clone_into(&mut self.topic);
        self
    }

    /// On a Kafka cluster, with these further settings of its clients.
    pub fn on_kafka(self, cluster: &Cluster, settings: &str) -> Setup {
        self.on_kafka_at(&cluster.bootstrap, settings)
    }

    /// On a Kafka cluster at these addresses.
    pub fn on_kafka_at(mut self, brokers: &str, settings: &str) -> Setup {
        self.broker =
            format!("{{ kind: kafka, kafka: {{ brokers: \"{brokers}\", settings: {{ {settings} }} }} }}");
        self
    }

    fn yaml(&self, handler: &str, port: u16, data: &Path) -> String {
        let (more_topics, more_pipelines) = &self.more;
        let topics = self.topics.clone().unwrap_or_else(|| {
            let (replicas, min_insync) = self.replicas;
            match self.partitions {
                0 => "{}".to_owned(),
                partitions => format!(
                    "{{ {}: {{ partitions: {partitions}, replicas: {replicas}, min_insync: {min_insync} }}{more_topics} }}",
                    self.topic
                ),
            }
        });
        let mut text = format!(
            "{}\n\
             server: {{ listen: \"127.0.0.1:{port}\", drain: {}{} }}\n\
             data: \"{}\"\n\
             broker: {}\n\
             topics: {topics}\n\
             pipelines:\n  t:\n    topic: {topic}\n    group: {topic}\n    \
             handler: {{ http: {{ url: \"{}{}\", timeout: {}, allow_private: true{} }} }}\n",
            self.top,
            self.drain,
            self.server,
            data.display(),
            self.broker,
            handler,
            self.path,
            self.timeout,
            self.push,
            topic = self.topic,
        );
        for line in self.pipeline.lines() {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str(more_pipelines);
        text
    }
}

/// The server of a test. Killed when dropped.
pub struct Server {
    folder: TempDir,
    data: PathBuf,
    port: u16,
    topic: String,
    /// The server's last answer, shown if the test fails.
    answered: Mutex<String>,
    child: Option<Child>,
    client: reqwest::Client,
}

impl Server {
    /// A server that is configured and not started yet.
    pub fn new(setup: &Setup, sink: &Sink) -> Server {
        Server::pushing_to(setup, &sink.url())
    }

    /// As [`Server::new`], pushing to another handler than a sink.
    pub fn pushing_to(setup: &Setup, url: &str) -> Server {
        let folder = TempDir::new().expect("a folder for the test");
        let data = folder.path().join("data");
        Server::with_data(setup, url, folder, data)
    }

    /// As [`Server::new`], with its data in another folder.
    pub fn on(setup: &Setup, sink: &Sink, data: &Path) -> Server {
        let folder = TempDir::new().expect("a folder for the test");
        Server::with_data(setup, &sink.url(), folder, data.to_owned())
    }

    fn with_data(setup: &Setup, handler: &str, folder: TempDir, data: PathBuf) -> Server {
        let topic = setup.topic.clone();
        let (port, answered) = (free_port(), Mutex::default());
        let server = Server { folder, data, port, topic, answered, child: None, client: client() };
        server.write_config(setup, handler);
        server
    }

    /// Changes the config, for the next start.
    pub fn configure(&self, setup: &Setup, sink: &Sink) {
        self.write_config(setup, &sink.url());
    }

    fn write_config(&self, setup: &Setup, handler: &str) {
        let text = setup.yaml(handler, self.port, &self.data);
        std::fs::write(self.config(), text).expect("the test's folder can be written");
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("keylane.yaml")
    }

    /// The folder of the embedded broker.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The address of a path on the server.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The address to which messages of its topic are posted.
    pub fn topic_url(&self) -> String {
        self.url(&format!("/v1/topics/{}/messages", self.topic))
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts the binary and does not wait for it.
    pub fn spawn(&mut self) {
        let output = || -> File {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.folder.path().join("output"))
                .expect("the test's folder can be written")
        };
        let child = Command::new(binary())
            .args(["serve", "-c"])
            .arg(self.config())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
    }

    /// Starts the binary and waits until it is ready.
    pub async fn start(&mut self) {
        self.spawn();
        self.answers("/healthz").await;
        self.answers("/readyz").await;
    }

    async fn answers(&mut self, path: &str) {
        let url = self.url(path);
        let what = format!("{url} to answer 200");
        loop {
            let answered = until(&what, async || match self.client.get(&url).send().await {
                Ok(answer) => (answer.status().as_u16() == 200).then_some(true),
                Err(_) => self.has_ended().then_some(false),
            })
            .await;
            if answered {
                return;
            }
            assert!(!self.has_ended(), "the server ended at its start:\n{}", self.output());
        }
    }

    fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("it was started");
        child.try_wait().expect("a child can be asked").is_some()
    }

    /// The number of the server's process.
    pub fn pid(&self) -> u32 {
        let child = self.child.as_ref().expect("it was started");
        child.id().expect("it runs")
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && !self.has_ended()
    }

    /// Kill -9, and waits until the process is gone.
    pub async fn kill9(&mut self) {
        let mut child = self.child.take().expect("it was started");
        child.kill().await.expect("one's own child can be killed");
    }

    /// SIGTERM; returns the exit code.
    pub async fn stop(&mut self) -> Option<i32> {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Waits for the process to end by itself; returns the exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        until("the server to end", async || self.has_ended().then_some(())).await;
        let mut child = self.child.take().expect("it was started");
        child.wait().await.expect("a child can be waited for").code()
    }

    /// Sends a signal by its name.
    pub async fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.pid().to_string())
            .status()
            .await
            .expect("kill is there");
        assert!(status.success(), "SIG{name} was not sent");
    }

    /// Everything that the server has printed, over all its starts.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.output_bytes()).into_owned()
    }

    fn output_bytes(&self) -> Vec<u8> {
        std::fs::read(self.folder.path().join("output")).unwrap_or_default()
    }

    /// GET; status and body. None if the server does not answer.
    pub async fn get(&self, path: &str) -> Option<(u16, Value)> {
        let answer = self.client.get(self.url(path)).send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        *self.answered.lock().expect("no holder panics") = format!("{path}: {status} {text}");
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Waits until all acknowledged messages are settled. If they never are, the failure shows the server's status.
    pub async fn settles(&self, sink: &Sink, acked: &[Acked]) {
        let waited = sink.waits(|sink| sink.settled() >= acked.len() as u64 && sink.has_settled(acked));
        if waited.await {
            return;
        }
        let missing: Vec<String> = acked
            .iter()
            .filter(|acked| !sink.has_settled(std::slice::from_ref(acked)))
            .map(Acked::told)
            .collect();
        let said = self.output_bytes();
        panic!(
            "{} of {} acknowledged messages are not settled: {}\npipelines: {:?}\nlanes: {:?}\n{}",
            missing.len(),
            acked.len(),
            missing[..missing.len().min(20)].join(", "),
            self.get("/admin/pipelines").await,
            self.get("/admin/lanes").await,
            String::from_utf8_lossy(&said[said.len().saturating_sub(4_000)..]),
        );
    }

    /// Waits until everything in the log is on record as settled.
    pub async fn recorded(&self) -> PipelineView {
        until("all to be on record", async || PipelineView::of(self).await.filter(PipelineView::is_settled))
            .await
    }

    /// Bytes of anonymous memory that the process holds; the kernel can take file pages back.
    pub fn memory_bytes(&self) -> u64 {
        self.kernel_says("RssAnon:") * 1024
    }

    /// The most memory that the process ever held, file pages included.
    pub fn memory_peak_bytes(&self) -> u64 {
        self.kernel_says("VmHWM:") * 1024
    }

    /// Threads of the process.
    pub fn threads(&self) -> u64 {
        self.kernel_says("Threads:")
    }

    /// How many threads of each name the process has; the number at the end of a name is left out.
    pub fn threads_by_name(&self) -> BTreeMap<String, usize> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let mut named = BTreeMap::new();
        // A thread may end meanwhile.
        for name in tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()) {
            let name = name.trim_end().trim_end_matches(|last: char| last.is_ascii_digit());
            *named.entry(name.to_owned()).or_default() += 1;
        }
        named
    }

    fn kernel_says(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.expect("the kernel says so").parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.output_bytes();
            let tail = &said[said.len().saturating_sub(12_000)..];
            let answered = self.answered.lock().map(|text| text.clone()).unwrap_or_default();
            let tail = String::from_utf8_lossy(tail);
            // Not with our own client: this function cannot wait.
            let url = self.url("/admin/pipelines");
            let now = std::process::Command::new("curl").args(["-s", "--max-time", "5", &url]).output();
            let now = now.map(|now| String::from_utf8_lossy(&now.stdout).into_owned()).unwrap_or_default();
            eprintln!("the server on port {} says now: {now}", self.port);
            eprintln!("the server on port {} answered at last: {answered}\nand said:\n{tail}", self.port);
        }
    }
}

/// Runs the binary with `arguments` to its end. Returns the exit code, and what it printed.
pub async fn run_binary(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .expect("the binary starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

/// `KEYLANE_BIN`, or the binary that was built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("KEYLANE_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let beside = test.ancestors().map(|folder| folder.join("keylane")).find(|path| path.is_file());
    beside.unwrap_or_else(|| {
        panic!(
            "there is no `keylane` beside {}: build it first (cargo build -p keylane-cli), or set KEYLANE_BIN",
            test.display()
        )
    })
}

/// A port on which nothing listens. It lies below the range from which outgoing connections take theirs: a server that
/// is killed and started again must find its port free each time.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    let own = (std::process::id() % u32::from(COUNT)) as u16;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (u32::from(own) * 37 + u32::from(step)).rem_euclid(u32::from(COUNT)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
