//! What a handler may answer: done, failed (tried again, in its place), or rejected (void; the key goes on).
//!
//! `cargo run --example 03_failures`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Attempt, Handler, Keylane, Message, Outcome};

/// A handler as a type borrows each message instead of owning it.
struct Shop {
    log: Arc<Mutex<Vec<String>>>,
}

impl Handler for Shop {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let order = String::from_utf8_lossy(attempt.payload().unwrap_or_default()).into_owned();
        self.log.lock().expect("no holder panics").push(format!("{order} (attempt {})", attempt.number()));
        match order.as_str() {
            "busy" if attempt.number() < 3 => Outcome::failed("the warehouse does not answer"),
            "nonsense" => Outcome::rejected("there is no such thing"),
            _ => Outcome::Done,
        }
    }
}

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let keylane = Keylane::open_embedded(folder.path()).await?;
    for order in ["apples", "busy", "nonsense", "pears"] {
        keylane.produce(Message::to("orders").key("ada").payload(order)).await?;
    }
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let pipeline = keylane.pipeline("orders").handle(Shop { log: Arc::clone(&log) }).start().await?;
    while !log.lock().expect("no holder panics").iter().any(|line| line.starts_with("pears")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pipeline.drain().await?;

    let log = log.lock().expect("no holder panics").clone();
    println!("{}", log.join("\n"));
    assert_eq!(
        log,
        [
            "apples (attempt 1)",
            "busy (attempt 1)",
            "busy (attempt 2)",
            "busy (attempt 3)",
            "nonsense (attempt 1)",
            "pears (attempt 1)",
        ]
    );
    Ok(())
}
