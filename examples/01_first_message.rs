//! The first message: open a folder, produce, handle.
//!
//! `cargo run --example 01_first_message`

use keylane::{Keylane, Message};

#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let keylane = Keylane::open_embedded(folder.path()).await?;

    // When this returns, the message is durable: it is on disk.
    let receipt = keylane.produce(Message::to("greetings").key("ada").payload("hello")).await?;
    println!("stored in partition {} at {}", receipt.partition, receipt.offset.unwrap_or_default());

    // A pipeline reads the topic of its name and runs until the given future is ready; then it drains.
    let (done, handled) = tokio::sync::oneshot::channel();
    let done = std::sync::Mutex::new(Some(done));
    keylane
        .pipeline("greetings")
        .handle(move |message: Message| {
            println!("{} says {}", message.key_text(), String::from_utf8_lossy(message.payload()));
            if let Some(done) = done.lock().expect("no holder panics").take() {
                let _ = done.send(());
            }
            async {}
        })
        .run_until(async {
            let _ = handled.await;
        })
        .await?;
    Ok(())
}
