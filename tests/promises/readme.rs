//! ADM-8: what README.md shows is true, and its commands work as a person types them, in that order, while the
//! demonstration runs. Only the ports differ, for tests that run side by side.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use keylane_tests::{Server, Setup, Sink, binary, free_port, not_here, until};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// The text between two fences.
struct Block {
    /// The words on the first fence: `sh`, `sh server`, `json`.
    kind: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All blocks of a document, in their order.
fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(kind), false) => found.push(Block { kind: kind.to_owned(), text: String::new() }),
            (None, true) => found.last_mut().expect("it was begun").text.push_str(&format!("{line}\n")),
            _ => {}
        }
        inside ^= line.starts_with("```");
    }
    found
}

/// A person who types what the README says, in a clone of their own.
struct Reader {
    clone: TempDir,
    /// The ports of the README, and those that stand for them here.
    ports: [(&'static str, u16); 3],
    /// Programs that run in terminals of their own.
    running: Vec<Child>,
    /// Lines that hold for the rest of the third terminal.
    exported: String,
}

impl Reader {
    fn new() -> Reader {
        let clone = TempDir::new().expect("a folder for the test");
        let reader = Reader {
            clone,
            ports: [("7400", free_port()), ("7401", free_port()), ("9000", free_port())],
            running: Vec::new(),
            exported: String::new(),
        };
        let (first, built) = (reader.path("examples/first"), reader.path("target/release"));
        std::fs::create_dir_all(&first).expect("made");
        std::fs::create_dir_all(&built).expect("made");
        std::os::unix::fs::symlink(binary(), built.join("keylane")).expect("linked");
        for file in std::fs::read_dir(root().join("examples/first")).expect("it is there") {
            let name = file.expect("it can be listed").file_name().into_string().expect("ASCII");
            let text = reader.here(&read(&format!("examples/first/{name}")));
            std::fs::write(first.join(name), text).expect("written");
        }
        reader
    }

    fn path(&self, of: &str) -> PathBuf {
        self.clone.path().join(of)
    }

    /// The text with this test's ports. Marks stand for the ports until all are found, since one port may contain
    /// another's digits.
    fn here(&self, text: &str) -> String {
        let marks = ["\u{1}", "\u{2}", "\u{3}"];
        let ports = || self.ports.iter().zip(marks);
        let marked = ports().fold(text.to_owned(), |text, ((port, _), mark)| text.replace(port, mark));
        ports().fold(marked, |text, ((_, here), mark)| text.replace(mark, &here.to_string()))
    }

    fn port(&self, of: &str) -> u16 {
        self.ports.iter().find(|(port, _)| *port == of).expect("a port of the README").1
    }

    fn shell(&self, text: &str) -> Command {
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", text]).current_dir(self.clone.path());
        shell.env_remove("KEYLANE_URL").env_remove("KEYLANE_TOKEN").env_remove("RUST_LOG");
        shell.stdin(Stdio::null()).kill_on_drop(true);
        shell
    }

    /// Types into a new terminal, and waits until the started program listens.
    async fn starts(&mut self, terminal: &str, text: &str, port: &str) {
        let said = std::fs::File::create(self.path(terminal)).expect("written");
        let again = said.try_clone().expect("one more descriptor");
        // As the only command of a shell the program takes the shell's place, so the end of one is the end of both.
        let mut command = self.shell(&format!("exec {}", self.here(text)));
        let child = command.stdout(said).stderr(again).spawn().expect("bash starts");
        self.running.push(child);
        let port = self.port(port);
        until(&format!("{text:?} to listen"), async || {
            let ended = self.running.last_mut().expect("just started").try_wait().expect("one's own child");
            assert!(ended.is_none(), "{text:?} ended:\n{}", self.said(terminal));
            TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
    }

    /// Types into the third terminal; returns the answer.
    async fn types(&mut self, text: &str) -> String {
        let typed = self.here(text);
        let Output { status, stdout, stderr } =
            self.shell(&format!("{}{typed}", self.exported)).output().await.expect("bash starts");
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{text}\n{stdout}{stderr}\n{}", self.said("server"));
        for line in typed.lines().filter(|line| line.starts_with("export ")) {
            self.exported.push_str(&format!("{line}\n"));
        }
        stdout.into_owned()
    }

    /// The text that a terminal shows.
    fn said(&self, terminal: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path(terminal)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for terminal in ["handler", "server"] {
                eprintln!("the terminal of the {terminal} shows:\n{}", self.said(terminal));
            }
        }
    }
}

/// ADM-8, ING-1, ING-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_works_as_typed_while_the_demonstration_runs() {
    let mut reader = Reader::new();
    // As `make run` starts it, with less traffic.
    reader.starts("demo", "target/release/keylane demo --rate 20 --listen 127.0.0.1:7400", "7400").await;
    let readme = read("README.md");
    let walk = &readme[readme.find("## Your first message").expect("it is there")..];
    let walk = &walk[..walk.find("## What a handler is sent").expect("it is there")];
    let mut answered = String::new();
    let mut printed: Vec<String> = Vec::new();
    for Block { kind, text } in blocks(walk) {
        match kind.as_str() {
            "sh build" => assert_eq!(text, "make build\n"),
            "sh handler" => reader.starts("handler", &text, "9000").await,
            "sh server" => {
                reader.starts("server", &text, "7401").await;
                until("the server to be ready", async || {
                    reader.said("server").contains("ready").then_some(())
                })
                .await;
            }
            "sh" => answered = reader.types(&text).await,
            "json" if text.contains("accepted") => {
                let (shown, got) = (json(&text), json(&answered));
                let names = |answer: &Value| {
                    answer["accepted"][0].as_object().map(|it| it.keys().cloned().collect::<Vec<_>>())
                };
                assert_eq!(names(&shown), names(&got), "{answered}");
                assert_eq!(shown["rejected"], got["rejected"], "{answered}");
            }
            "text" => {
                printed.extend(text.lines().map(str::to_owned));
                until(&format!("the handler to print {text}"), async || {
                    let mut said: Vec<String> = handled(&reader.said("handler"));
                    let mut all = printed.clone();
                    // With several keys, only each key's own order is certain.
                    let key = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
                    said.sort_by_key(key);
                    all.sort_by_key(key);
                    (said == all).then_some(())
                })
                .await;
            }
            "python" => assert_eq!(text, read("examples/first/handler.py")),
            "yaml" => assert_eq!(text, read("examples/first/keylane.yaml")),
            "json" => assert_eq!(text, read("examples/first/orders.ndjson")),
            other => panic!("nobody knows what to do with a block of {other:?}"),
        }
    }
    // The last block ends with the contents of the topic.
    assert_eq!(answered.lines().filter(|line| line.contains(" 0@")).count(), 5, "{answered}");
    assert!(!answered.contains("no pipeline"), "{answered}");
    until("all to be on record", async || {
        let pipelines = reader.types("target/release/keylane pipelines --json").await;
        let orders = &json(&pipelines)["pipelines"][0];
        ((&orders["handled"], &orders["dead"]) == (&4.into(), &1.into())).then_some(())
    })
    .await;
}

/// ADM-1, ADM-8: if a message goes to a topic without a pipeline, for example on the demonstration's server, the API
/// and the command line say so; and the list of topics shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_nobody_will_handle_is_not_taken_in_silence() {
    let mut reader = Reader::new();
    reader.starts("demo", "target/release/keylane demo --rate 20 --listen 127.0.0.1:7400", "7400").await;
    let curl = "curl -s http://127.0.0.1:7400/v1/topics/orders/messages -H 'Content-Type: application/json' \
                -d '{\"payload\": 1}'";
    let answer = until("the demonstration to take messages", async || {
        let answer = json(&reader.types(curl).await);
        answer["accepted"].is_array().then_some(answer)
    })
    .await;
    let warning = answer["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("no pipeline of this server reads the topic `orders`"), "{answer}");
    assert_eq!(json(&reader.types(curl).await).get("warnings"), None, "it is said once");

    reader.types("export KEYLANE_URL=http://127.0.0.1:7400\n").await;
    let said = reader.types("echo 1 | target/release/keylane produce bills 2>&1").await;
    assert!(said.contains("warning: no pipeline of this server reads the topic `bills`"), "{said}");
    let topics = reader.types("target/release/keylane topics").await;
    assert!(topics.contains("no pipeline of this server reads: bills, orders\n"), "{topics}");
    let read = |name: &str| {
        topics.lines().any(|line| line.split_whitespace().filter(|word| *word == name).count() == 2)
    };
    assert!(read("demo") && !read("orders"), "{topics}");
}

/// ADM-8: what a build needs and a machine lacks is said at once, with the command that installs it.
#[tokio::test]
async fn make_build_says_at_once_that_perl_is_missing() {
    let folder = TempDir::new().expect("a folder for the test");
    // A machine that has nothing but make; what stands for cargo says whether the build was begun.
    let typed = "make=$(command -v make) && exec env PATH=\"$0\" \"$make\" build CARGO='echo begun:'";
    let make = Command::new("sh").args(["-c", typed]).arg(folder.path()).current_dir(root()).output();
    let output = make.await.expect("there is a shell");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && !said.contains("begun"), "{said}");
    assert!(said.contains("perl") && said.contains("sudo apt-get install perl"), "{said}");
}

/// ING-5: code that the documents show is code that a test runs.
#[test]
fn the_handlers_that_are_shown_are_those_that_are_tested() {
    let shown: Vec<String> = blocks(&read("docs/handlers.md"))
        .into_iter()
        .filter(|block| ["python", "js"].contains(&block.kind.as_str()))
        .map(|block| block.text)
        .collect();
    assert_eq!(
        shown,
        ["flask/app.py", "fastapi/main.py", "express/app.js"]
            .map(|file| read(&format!("tests/frameworks/{file}")))
    );
}

/// ING-1: each program in the guide produces the message that it shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_the_guide_produce() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default().topic("orders"), &sink);
    server.start().await;
    let guide = read("docs/guide.md");
    let programs = &guide[guide.find("The same in a program").expect("it is there")..];
    let programs = blocks(&programs[..programs.find("## Handling").expect("it is there")]);
    let kinds: Vec<&str> = programs.iter().map(|block| block.kind.as_str()).collect();
    assert_eq!(kinds, ["sh", "python", "ts", "go", "java"]);
    let folder = TempDir::new().expect("a folder for the test");
    let mut produced = 0;
    for Block { kind, text } in &programs {
        let (tool, arguments, file, text) = program(kind, text);
        assert!(text.contains("127.0.0.1:7400"), "{kind}: {text}");
        assert!(text.contains("user-1") && text.lines().count() < 40, "{kind}: {text}");
        let text = text.replace("7400", &server.port().to_string());
        std::fs::write(folder.path().join(file), text).expect("written");
        let mut command = Command::new(tool);
        command.args(arguments).arg(file).current_dir(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        let ended = match command.output().await {
            Ok(ended) => ended,
            Err(error) => {
                not_here::<()>(&format!("{tool}, for tests of the guide: {error}"));
                continue;
            }
        };
        let (said, wrong) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.success(), "{kind}: {said}{wrong}");
        produced += 1;
        sink.wait(&format!("the message of {kind}"), |sink| sink.len() == produced).await;
    }
    assert!(sink.calls().iter().all(|call| call.key.as_deref() == Some("user-1")));
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// A runnable program around a block of the guide, which leaves out the usual beginning of a program. Returns the
/// command that runs it, its arguments, the name of its file, and its text.
fn program(kind: &str, text: &str) -> (&'static str, &'static [&'static str], &'static str, String) {
    match kind {
        "sh" => ("bash", &["-e"], "produce.sh", text.to_owned()),
        "python" => ("python3", &[], "produce.py", text.to_owned()),
        // Without a type in it, the block is JavaScript too.
        "ts" => ("node", &[], "produce.mjs", text.to_owned()),
        "go" => (
            "go",
            &["run"],
            "produce.go",
            format!("package main\nimport (\"log\"; \"net/http\"; \"strings\")\nfunc main() {{\n{text}}}\n"),
        ),
        _ => (
            "java",
            &[],
            "Produce.java",
            format!(
                "import java.io.IOException;\nimport java.net.URI;\nimport java.net.http.*;\n\
                 import java.net.http.HttpRequest.BodyPublishers;\nimport java.net.http.HttpResponse.BodyHandlers;\n\
                 class Produce {{ public static void main(String[] arguments) throws Exception {{\n{text}}} }}\n"
            ),
        ),
    }
}

/// The lines that the handler printed for messages; its other lines are its log of requests.
fn handled(said: &str) -> Vec<String> {
    said.lines().filter(|line| line.contains(" orders ")).map(str::to_owned).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
