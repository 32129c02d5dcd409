//! The folder belongs to one process.

use keylane_tests::{PipelineView, Reply, Server, Setup, Sink, check, fill, items, until};

/// P9, BRK-1: the folder's lock keeps a second process out, so there is one owner and one epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_on_the_same_folder_gets_no_epoch() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Status(200));
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let mut second = Server::on(&Setup::default(), &sink, server.data());
    second.spawn();
    assert_eq!(second.ended().await, Some(1), "{}", second.output());
    let acked = fill(&server, &items("k", 0, 10)).await;
    sink.wait_settled(10).await;
    check(&acked, &sink.calls()).assert_once();
    let view = until("it answers", async || PipelineView::of(&server).await).await;
    let epochs: Vec<u64> = sink.calls().iter().map(|call| call.epoch).collect();
    assert!(epochs.iter().all(|epoch| *epoch == view.partitions[acked[0].partition as usize].epoch));
}
