//! Each key in order, all keys in parallel: a hundred keys with a slow handler take as long as one.
//!
//! `cargo run --example 02_keys_in_parallel`

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Keylane, Message};

const KEYS: usize = 100;
const PER_KEY: usize = 20;

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let keylane = Keylane::open_embedded(folder.path()).await?;
    for n in 0..PER_KEY {
        for key in 0..KEYS {
            // `send` waits only for room, and returns a ticket, which may be forgotten; messages keep their order.
            keylane.producer().send(Message::to("work").key(format!("key-{key}")).json(&n)?).await?;
        }
    }

    let seen: Arc<Mutex<HashMap<String, Vec<usize>>>> = Arc::default();
    let count = Arc::new(AtomicUsize::new(0));
    let (log, counter) = (Arc::clone(&seen), Arc::clone(&count));
    keylane
        .pipeline("work")
        .handle(move |message: Message| {
            let (log, counter) = (Arc::clone(&log), Arc::clone(&counter));
            async move {
                let n: usize = message.parse()?;
                tokio::time::sleep(Duration::from_millis(10)).await;
                log.lock()
                    .expect("no holder panics")
                    .entry(message.key_text().into_owned())
                    .or_default()
                    .push(n);
                counter.fetch_add(1, Ordering::SeqCst);
                Ok::<(), serde_json::Error>(())
            }
        })
        .run_until(async {
            while count.load(Ordering::SeqCst) < KEYS * PER_KEY {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await?;

    let in_order = seen.lock().expect("no holder panics").values().all(|numbers| numbers.is_sorted());
    println!("{} messages of {KEYS} keys handled; in order: {in_order}", KEYS * PER_KEY);
    assert!(in_order);
    Ok(())
}
