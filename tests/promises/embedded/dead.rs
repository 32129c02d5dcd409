//! Rejected messages lie in the folder, in the hold of their partition.

use keylane_tests::{Reply, Server, Setup, Sink, files_below, find_bytes, storm};

/// P1, RTY-1: a rejected message is kept as a dead letter, and is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_messages_are_dead_letters_and_their_successors_run_through_kills() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.n.is_some_and(|n| n % 3 == 0) { 422 } else { 200 }));
    let mut server = Server::new(&Setup::default(), &sink);
    let storm = storm(&mut server, &sink, 20, 10).await;
    storm.check().assert_kept();
    server.recorded().await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let holds: Vec<Vec<u8>> = files_below(&server.data().join("holds"))
        .iter()
        .map(|path| std::fs::read(path).expect("it can be read"))
        .collect();
    let rejected: Vec<_> = storm.acked.iter().filter(|acked| acked.n % 3 == 0).collect();
    assert!(rejected.len() > 100, "only {} were rejected", rejected.len());
    for message in rejected.iter().step_by(rejected.len() / 50) {
        // A body is the message as it lay in the log: its id, and a little further on its payload.
        let payload = format!("{{\"n\":{}}}", message.n);
        let kept = holds.iter().any(|hold| {
            let Some(at) = find_bytes(hold, message.id.as_bytes()) else { return false };
            find_bytes(&hold[at..(at + 200).min(hold.len())], payload.as_bytes()).is_some()
        });
        assert!(kept, "{} was rejected, and is in no hold", message.id);
    }
}
