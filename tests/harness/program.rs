//! Runs push handlers that are programs of their own: the examples in other languages, and handlers of frameworks.
//!
//! `dev/frameworks` makes them runnable. Each is started in a folder of its own, on a free port, and ends with the
//! test. A test knows from what the program prints which messages it got.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::faults::not_here;
use crate::server::free_port;
use crate::wait::until;

/// A running handler. Killed when dropped.
pub struct Program {
    name: &'static str,
    /// The folder that `dev/frameworks` made.
    made: PathBuf,
    /// The folder in which the program runs and writes.
    folder: TempDir,
    port: u16,
    variables: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl Program {
    /// Starts the handler of this name, and waits until it listens. None, and a note, if this machine cannot run it.
    pub async fn start(name: &'static str, variables: &[(&'static str, &str)]) -> Option<Program> {
        let made = made(name).await?;
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let folder = TempDir::new().expect("a folder for the test");
        let mut program = Program { name, made, folder, port: free_port(), variables, child: None };
        program.run().await;
        Some(program)
    }

    /// Kill -9 and another start, in the same folder and on the same port.
    pub async fn restart(&mut self) {
        let mut child = self.child.take().expect("it was started");
        child.kill().await.expect("one's own child can be killed");
        self.run().await;
    }

    async fn run(&mut self) {
        let output = || {
            let output = File::options().create(true).append(true).open(self.folder.path().join("output"));
            output.expect("the test's folder can be written")
        };
        let mut command = self.command();
        command.current_dir(self.folder.path()).env("PORT", self.port.to_string());
        command.env("PYTHONPATH", self.made.join("lib")).env("PYTHONDONTWRITEBYTECODE", "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(output()).stderr(output()).kill_on_drop(true);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name)));
        until(&format!("{} to listen on port {}", self.name, self.port), async || {
            let ended = self.child.as_mut().expect("it was started").try_wait().expect("one's own child");
            assert!(ended.is_none(), "{} ended at its start: {ended:?}\n{}", self.name, self.output());
            TcpStream::connect(("127.0.0.1", self.port)).await.ok()
        })
        .await;
    }

    /// The command with which its tutorial, or its first lines, tell people to start it.
    fn command(&self) -> Command {
        let (made, port) = (|file: &str| self.made.join(file), self.port.to_string());
        let mut command = Command::new(match self.name {
            "python" | "flask" | "fastapi" => PathBuf::from("python3"),
            "typescript" | "express" | "fastify" => PathBuf::from("node"),
            "java" | "spring" => PathBuf::from("java"),
            _ => made("handler"),
        });
        match self.name {
            "python" => command.arg(made("handler.py")),
            "flask" => {
                command.args(["-m", "flask", "--app"]).arg(made("app.py")).args(["run", "--port", &port])
            }
            "fastapi" => {
                command.args(["-m", "uvicorn", "main:app", "--port", &port, "--app-dir"]).arg(&self.made)
            }
            "typescript" => {
                // Not the command `tsx`: it starts a process of its own, which would outlive a kill.
                let modules = self.folder.path().join("node_modules");
                let _is_there_after_a_restart = std::os::unix::fs::symlink(made("node_modules"), modules);
                command.args(["--import", "tsx"]).arg(made("handler.ts"))
            }
            "express" => command.arg(made("app.js")),
            "fastify" => command.arg(made("server.js")),
            "java" => command.arg(made("Handler.java")),
            "spring" => {
                command.env("SERVER_ADDRESS", "127.0.0.1").env("SERVER_PORT", &port);
                command.arg("-jar").arg(made("target/handler.jar"))
            }
            _ => &mut command,
        };
        command
    }

    /// The address to which messages are pushed.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The folder in which the program runs; it writes its files there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder that `dev/frameworks` made, with the program's dependencies.
    pub fn made(&self) -> &Path {
        &self.made
    }

    /// Everything that the program has printed, over all its starts.
    pub fn output(&self) -> String {
        let said = std::fs::read(self.folder.path().join("output")).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// How often the program has printed a line.
    pub fn count(&self, line: &str) -> usize {
        self.output().lines().filter(|said| *said == line).count()
    }

    /// Waits until the program has printed a line.
    pub async fn says(&self, line: &str) {
        until(&format!("{} to print {line:?}", self.name), async || (self.count(line) > 0).then_some(()))
            .await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.output());
        }
    }
}

/// The folder of a handler, made so that it can run.
async fn made(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a test has a path");
    let target = test.ancestors().nth(3).expect("tests lie in target/PROFILE/deps");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/frameworks");
    let done = Command::new(script).arg(target).arg(name).stdin(Stdio::null()).output().await;
    let done = done.expect("dev/frameworks starts");
    if !done.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&done.stderr));
        return not_here(&format!("{name}, for tests of handlers; dev/frameworks target {name} says why"));
    }
    Some(PathBuf::from(String::from_utf8_lossy(&done.stdout).trim_end()))
}
