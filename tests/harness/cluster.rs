//! A real Kafka cluster for a test, started by `dev/kafka`; it ends with the test's process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

/// A running cluster.
pub struct Cluster {
    /// The address to connect to.
    pub bootstrap: String,
    /// What clients need besides the address, as settings of librdkafka without user and password; none without log-in.
    pub security: Option<String>,
    /// The certificate authority that signed the cluster's certificate; none without log-in.
    pub ca: Option<String>,
    /// The address to connect to through the test's own proxies, if the test asked for proxies.
    pub proxied: Option<String>,
    /// The port on which each proxy listens, and the port to which it passes on.
    pub proxies: Vec<(u16, u16)>,
    dir: String,
    /// The process, which ends when our end of its standard input is closed.
    process: Child,
}

impl Cluster {
    /// One broker, which all tests of this process share. The broker allows short sessions and compacts at once.
    pub fn shared() -> Arc<Cluster> {
        static SHARED: OnceLock<Arc<Cluster>> = OnceLock::new();
        let options = ["--set", "group.min.session.timeout.ms=1000", "--set", "log.cleaner.backoff.ms=200"];
        Arc::clone(SHARED.get_or_init(|| Arc::new(Cluster::with(&options))))
    }

    /// A cluster of this many brokers.
    pub fn start(brokers: u32) -> Cluster {
        Cluster::with(&["--brokers", &brokers.to_string()])
    }

    /// A cluster with options of `dev/kafka run`: `--sasl`, `--user`, `--acls`, `--set` and more.
    pub fn with(options: &[&str]) -> Cluster {
        let mut process = Command::new(script())
            .arg("run")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("dev/kafka starts");
        let mut told = String::new();
        let output = process.stdout.take().expect("it was asked for");
        BufReader::new(output).read_line(&mut told).expect("it says where it is");
        let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("dev/kafka said {told:?}"));
        let text = |name: &str| told[name].as_str().expect("it says so").to_owned();
        let ca = told["security"]["ca"].as_str();
        let security = ca.map(|ca| {
            format!("security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512, ssl.ca.location: \"{ca}\"")
        });
        let brokers = told["brokers"].as_array().expect("it says which").iter();
        let port =
            |proxied: &Value, name: &str| Some(u16::try_from(proxied[name].as_u64()?).expect("a port"));
        let proxy =
            |broker: &Value| Some((port(&broker["proxied"], "listen")?, port(&broker["proxied"], "to")?));
        Cluster {
            bootstrap: text("bootstrap"),
            security,
            ca: ca.map(str::to_owned),
            proxied: told["proxied"].as_str().map(str::to_owned),
            proxies: brokers.filter_map(proxy).collect(),
            dir: text("dir"),
            process,
        }
    }

    /// Settings of clients that log in as this user.
    pub fn user(&self, name: &str, password: &str) -> String {
        let security = self.security.as_deref().expect("the cluster asks for a log-in");
        format!("{security}, sasl.username: {name}, sasl.password: {password}")
    }

    /// Allows a user these operations on something (`--topic t`, `--group g`, `--cluster`).
    pub fn allow(&self, user: &str, operations: &[&str], on: &[&str]) {
        self.acl("--add", user, operations, on);
    }

    /// Takes such a right away.
    pub fn forbid(&self, user: &str, operations: &[&str], on: &[&str]) {
        self.acl("--remove", user, operations, on);
    }

    fn acl(&self, change: &str, user: &str, operations: &[&str], on: &[&str]) {
        let principal = format!("User:{user}");
        let mut arguments = vec!["AclCommand", change, "--force", "--allow-principal", &principal];
        operations.iter().for_each(|operation| arguments.extend(["--operation", operation]));
        arguments.extend(on);
        self.tool(&arguments);
    }

    /// Kill -9 of one broker.
    pub fn kill(&self, broker: u32) {
        self.tell(&["kill", &broker.to_string()]);
    }

    /// Starts a killed broker again, and waits until it serves.
    pub fn restart(&self, broker: u32) {
        self.tell(&["restart", &broker.to_string()]);
    }

    /// Waits until every partition has all its replicas.
    pub fn in_sync(&self) {
        self.tell(&["in-sync"]);
    }

    /// Runs a command class of Kafka's own, as an operator would; returns what it printed.
    pub fn tool(&self, arguments: &[&str]) -> String {
        self.tool_fed(arguments, "")
    }

    /// As [`Cluster::tool`], with `input` on its standard input.
    pub fn tool_fed(&self, arguments: &[&str], input: &str) -> String {
        let mut command = Command::new(script());
        command.args(["tool", "--dir", &self.dir]).args(arguments);
        fed(command, input)
    }

    /// Sets a setting of a topic, as an operator would.
    pub fn set(&self, topic: &str, setting: &str) {
        let change = ["kafka.admin.ConfigCommand", "--alter", "--entity-type", "topics"];
        self.tool(&[&change[..], &["--entity-name", topic, "--add-config", setting]].concat());
    }

    /// The first position of each partition of a topic.
    pub fn starts(&self, topic: &str) -> Vec<u64> {
        let told = self.tool(&["GetOffsetShell", "--topic", topic, "--time", "earliest"]);
        let starts = told.lines().map(|line| line.rsplit(':').next().and_then(|start| start.parse().ok()));
        starts.map(|start| start.unwrap_or_else(|| panic!("not a position: {told}"))).collect()
    }

    /// Runs kcat, an independent client; returns what it printed.
    pub fn kcat(&self, arguments: &[&str], input: &str) -> String {
        let mut command = Command::new("kcat");
        command.args(["-b", &self.bootstrap]).args(arguments);
        fed(command, input)
    }

    fn tell(&self, words: &[&str]) {
        let output = Command::new(script()).args(words).args(["--dir", &self.dir]).output();
        let output = output.expect("dev/kafka runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs a command to its end, with `input` to read; returns what it printed.
fn fed(mut command: Command, input: &str) -> String {
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = streams.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let mut pipe = process.stdin.take().expect("asked for above");
    // The input is small, so it fits into the pipe before the command prints anything.
    pipe.write_all(input.as_bytes()).expect("it reads");
    drop(pipe);
    let output = process.wait_with_output().expect("a child can be waited for");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/kafka")
}
