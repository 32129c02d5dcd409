//! Drives a real browser, Chromium, over two pipes (the DevTools protocol), so that tests see pages as people do.

use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::faults::not_here;
use crate::wait::{WAIT_MAX, until};

/// The program that `dev/tools` installs.
const PROGRAM: &str = "chromium";

/// A browser with one page. Killed when dropped.
pub struct Browser {
    _child: Child,
    _folder: TempDir,
    to: pipe::Sender,
    from: BufReader<pipe::Receiver>,
    session: Option<String>,
    count: u64,
    /// Faults of the page: errors of its script, and everything that its policy forbade.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser. None, and a note, if this machine does not have it.
    pub async fn start() -> Option<Browser> {
        if Command::new(PROGRAM).arg("--version").output().await.is_err() {
            return not_here("chromium, for tests of the status page; sudo apt-get install chromium");
        }
        let folder = TempDir::new().expect("a folder for the test");
        let (to, theirs_in) = pipes();
        let (from, theirs_out) = pipes_back();
        // Chromium reads its third file descriptor and writes to the fourth.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0 4>&1 && exec \"$@\" </dev/null >/dev/null 2>&1", "sh", PROGRAM])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .stdin(theirs_in)
            .stdout(theirs_out)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a shell starts");
        assert!(child.try_wait().expect("one's own child").is_none(), "chromium ended at its start");
        let (session, complaints) = (None, Vec::new());
        let from = BufReader::new(from);
        let mut browser = Browser { _child: child, _folder: folder, to, from, session, count: 0, complaints };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({})).await;
        }
        Some(browser)
    }

    /// Sets the width of the window, and whether the person prefers dark colours.
    pub async fn looks(&mut self, width: u32, dark: bool) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Goes to an address.
    pub async fn open(&mut self, url: &str) {
        let went = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(went["errorText"].is_null(), "{url}: {went}");
    }

    /// The value of an expression in the page.
    pub async fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let said = self.call("Runtime.evaluate", asked).await;
        assert!(said["exceptionDetails"].is_null(), "{expression}: {said}");
        said["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub async fn shows(&mut self, expression: &str) {
        let guarded =
            format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        until(expression, async || (self.eval(&guarded).await == true).then_some(())).await;
    }

    /// Fails if the page's script had an error, or its policy forbade something.
    pub fn assert_content(&self) {
        assert!(self.complaints.is_empty(), "the page complains: {:#?}", self.complaints);
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.count += 1;
        let mut asked = json!({ "id": self.count, "method": method, "params": params });
        if let Some(session) = &self.session {
            asked["sessionId"] = json!(session);
        }
        let mut bytes = asked.to_string().into_bytes();
        bytes.push(0);
        let answer = async {
            self.to.write_all(&bytes).await.expect("chromium reads");
            loop {
                let mut bytes = Vec::new();
                let length = self.from.read_until(0, &mut bytes).await.expect("chromium writes");
                assert!(length > 0, "chromium ended");
                let said: Value = serde_json::from_slice(&bytes[..length - 1]).expect("JSON");
                if said["id"] == self.count {
                    assert!(said["error"].is_null(), "{method}: {said}");
                    return said["result"].clone();
                }
                self.complaints.extend(complaint(&said));
            }
        };
        let answered = tokio::time::timeout(WAIT_MAX, answer).await;
        answered.unwrap_or_else(|_| panic!("chromium did not answer {method}"))
    }
}

/// The fault that an event reports, if it reports one. An answer that is not 2xx is no fault: the page asks and sees.
fn complaint(event: &Value) -> Option<String> {
    let entry = &event["params"]["entry"];
    let is_error = entry["level"] == "error" && entry["source"] != "network";
    (event["method"] == "Runtime.exceptionThrown" || is_error).then(|| event["params"].to_string())
}

fn pipes() -> (pipe::Sender, Stdio) {
    let (to, theirs) = pipe::pipe().expect("a pipe");
    (to, theirs.into_blocking_fd().expect("a pipe of one's own").into())
}

fn pipes_back() -> (pipe::Receiver, Stdio) {
    let (theirs, from) = pipe::pipe().expect("a pipe");
    (from, theirs.into_blocking_fd().expect("a pipe of one's own").into())
}
