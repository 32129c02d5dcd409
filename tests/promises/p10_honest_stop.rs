//! P10: after a failed sync, a damaged file or another broken assumption, the part concerned stops with a clear error
//! and never guesses. A torn tail is only cut, and a full disk is only waited out.

use std::path::{Path, PathBuf};

use keylane_tests::{
    Acked, Item, PartitionView, PipelineView, Refusal, Reply, Server, Setup, Sink, SmallDisk, Tracer, check,
    client, files_below, fill, find_bytes, items, produce, until,
};

async fn refused(server: &Server, batch: &[Item]) -> Refusal {
    match produce(&client(), &server.topic_url(), batch).await {
        Ok(acked) => panic!("{} messages were acknowledged", acked.len()),
        Err(refusal) => refusal,
    }
}

/// P10, BRK-1: once a sync has failed the kernel may have dropped the pages, and a later sync that succeeds proves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_nothing_is_acknowledged_until_a_restart() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let mut acked = fill(&server, &items("a", 0, 100)).await;
    sink.wait_settled(100).await;
    // A sync that is under way when the tracer attaches would fail with another error.
    server.recorded().await;
    let Some(tracer) = Tracer::attach(&server, "fsync,fdatasync", "EIO").await else {
        return;
    };
    let refusal = refused(&server, &items("b", 0, 10)).await;
    assert!(refusal.status.is_some_and(|status| status >= 500), "{refusal:?}");
    tracer.detach().await;
    let refusal = refused(&server, &items("c", 0, 10)).await;
    assert!(refusal.status.is_some_and(|status| status >= 500), "{refusal:?}");
    assert!(refusal.text.contains("\"KL-"), "a code to look up: {}", refusal.text);
    let said = server.output().to_lowercase();
    assert!(said.contains("sync") && said.contains("input/output error"), "{said}");
    server.kill9().await;
    server.start().await;
    acked.extend(fill(&server, &items("d", 0, 10)).await);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_kept();
}

/// P10, ING-8: `/readyz` tells those who send traffic here that nothing is accepted any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_the_server_lives_but_is_not_ready() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let Some(tracer) = Tracer::attach(&server, "fsync,fdatasync", "EIO").await else {
        return;
    };
    refused(&server, &items("a", 0, 1)).await;
    tracer.detach().await;
    let (status, _) = server.get("/healthz").await.expect("it answers");
    assert_eq!(status, 200);
    until("the server not to be ready", async || {
        server.get("/readyz").await.filter(|(status, _)| *status == 503)
    })
    .await;
}

/// P10, P1: a server on a full disk refuses producers, loses nothing, and goes on when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_clearly_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(256).await else {
        return;
    };
    let sink = Sink::start().await;
    let mut server = Server::on(&Setup::default(), &sink, &disk.path().join("data"));
    server.start().await;
    let mut acked = fill(&server, &items("a", 0, 100)).await;
    sink.wait_settled(100).await;
    let ballast = disk.fill(0);
    let mut n = 0;
    let refusal = until("the disk to be full", async || {
        let batch: Vec<Item> =
            (n..n + 20).map(|n| Item { padding: 32 << 10, ..items("b", n, 1).remove(0) }).collect();
        n += 20;
        match produce(&client(), &server.topic_url(), &batch).await {
            Ok(more) => {
                acked.extend(more);
                None
            }
            Err(refusal) => Some(refusal),
        }
    })
    .await;
    assert!(refusal.status.is_some_and(|status| status >= 500), "{refusal:?}");
    assert!(refusal.text.contains("\"KL-"), "a code to look up: {}", refusal.text);
    let (status, _) = server.get("/healthz").await.expect("it lives on");
    assert_eq!(status, 200);
    std::fs::remove_file(ballast).expect("the ballast is there");
    let after = until("room to be found", async || {
        produce(&client(), &server.topic_url(), &items("c", 0, 10)).await.ok()
    })
    .await;
    acked.extend(after);
    server.settles(&sink, &acked).await;
    server.recorded().await;
    check(&acked, &sink.calls()).assert_once();
}

/// P10, BRK-1: a server whose disk has no room for a new topic lives, says so, and goes on once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_a_full_disk_waits_for_room_and_then_goes_on() {
    let Some(disk) = SmallDisk::mount(256).await else {
        return;
    };
    let sink = Sink::start().await;
    let mut server = Server::on(&Setup::default(), &sink, &disk.path().join("data"));
    // Enough for the journals, and not for a topic beside them.
    let ballast = disk.fill(90 << 10);
    server.spawn();
    until("the server to say what it waits for", async || {
        let (_, answer) = server.get("/readyz").await?;
        answer["reasons"].to_string().contains("KL-1115").then_some(())
    })
    .await;
    std::fs::remove_file(ballast).expect("the ballast is there");
    let acked = until("room to be found", async || {
        produce(&client(), &server.topic_url(), &items("a", 0, 10)).await.ok()
    })
    .await;
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// The end of a server whose files were changed.
#[derive(Debug)]
enum Ended {
    /// The server reported damage, in these words.
    Reported(String),
    /// The server handled everything that it was asked to.
    Went,
}

/// Starts a server on changed files, and waits until it has stopped, or has said why a partition did, or has handled
/// everything that was acknowledged.
async fn started(server: &mut Server, sink: &Sink, wanted: &[Acked]) -> Ended {
    server.spawn();
    until("a stop, a reason, or all to be handled", async || {
        if !server.is_running() {
            let code = server.ended().await;
            assert_eq!(code, Some(1), "{}", server.output());
            return Some(Ended::Reported(server.output()));
        }
        if sink.has_settled(wanted) {
            return Some(Ended::Went);
        }
        let view = PipelineView::of(server).await?;
        let stopped = view.partitions.iter().find(|partition| partition.state == "stopped")?;
        Some(Ended::Reported(stopped.why.clone().expect("a stopped partition says why")))
    })
    .await
}

/// A server that has accepted messages which no handler has finished, and was stopped.
async fn full_and_stopped(sink: &Sink, setup: &Setup, messages: u64) -> (Server, Vec<Acked>) {
    sink.behave(|_| Reply::Status(503));
    let mut server = Server::new(setup, sink);
    server.start().await;
    let mut acked = Vec::new();
    for n in (0..messages).step_by(10) {
        acked.extend(fill(&server, &items("k", n, 10)).await);
    }
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    (server, acked)
}

fn lazy() -> Setup {
    Setup::pipeline(&["retry: { retries: 0, base: 10ms, max: 100ms }"]).partitions(1)
}

/// The file that holds the payload of message `n`, and where.
fn place_of(folder: &Path, n: u64) -> (PathBuf, usize) {
    let text = format!("{{\"n\":{n}}}");
    let found = files_below(folder).into_iter().find_map(|path| {
        let bytes = std::fs::read(&path).expect("it can be read");
        find_bytes(&bytes, text.as_bytes()).map(|at| (path, at))
    });
    found.unwrap_or_else(|| panic!("{text} is in no file below {}", folder.display()))
}

fn flip_a_bit(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("it can be read");
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).expect("it can be written");
}

/// P10, BRK-1: damage in the middle is reported, never skipped, and never read as the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_middle_stops_the_partition_and_is_never_passed() {
    let sink = Sink::start().await;
    let (mut server, acked) = full_and_stopped(&sink, &lazy(), 300).await;
    let (path, at) = place_of(server.data(), 150);
    flip_a_bit(&path, at + 3);
    sink.behave(|_| Reply::Status(200));
    let Ended::Reported(said) = started(&mut server, &sink, &acked).await else {
        panic!("a damaged message was handled");
    };
    assert!(said.to_lowercase().contains("damage"), "{said}");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(said.contains(name), "it names the file {name}: {said}");
    let passed: Vec<_> =
        sink.calls().into_iter().filter(|call| call.is_settled() && call.n >= Some(150)).collect();
    assert!(passed.is_empty(), "handled behind the damage: {passed:?}");
    if server.is_running() {
        server.kill9().await;
    }
    flip_a_bit(&path, at + 3);
    server.start().await;
    sink.wait_settled(300).await;
    check(&acked, &sink.calls()).assert_kept();
}

/// P10, BRK-1: whichever bit is flipped, the damage is reported or does no harm; what is handled is what was produced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_anywhere_is_reported_or_harmless() {
    let sink = Sink::start().await;
    let (server, acked) = full_and_stopped(&sink, &lazy(), 200).await;
    let (path, _) = place_of(server.data(), 0);
    let bytes = std::fs::read(&path).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("it is not empty");
    let inside = path.strip_prefix(server.data()).expect("it lies there").to_owned();
    for place in 0..12 {
        let copy = tempfile::TempDir::new().expect("a folder for the copy");
        let data = copy.path().join("data");
        copy_folder(server.data(), &data);
        flip_a_bit(&data.join(&inside), end * place / 12);
        let own = Sink::start().await;
        let mut damaged = Server::on(&lazy(), &own, &data);
        let ended = started(&mut damaged, &own, &acked).await;
        if let Ended::Reported(said) = &ended {
            assert!(said.to_lowercase().contains("damage"), "{said}");
        }
        for call in own.calls() {
            assert_eq!(call.id, format!("k-{}", call.n.expect("a number")), "{ended:?}");
            assert_eq!((call.partition, Some(call.offset)), (0, call.n), "{ended:?}");
        }
        let numbers: Vec<u64> = own.calls().iter().filter_map(|call| call.n).collect();
        let in_order: Vec<u64> = (0..numbers.len() as u64).collect();
        assert_eq!(numbers, in_order, "nothing is skipped: {ended:?}");
    }
}

/// P10, P4: a journal whose bytes changed is never half believed: messages on record do not run again in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_journal_is_reported_or_harmless() {
    let sink = Sink::start().await;
    let mut server = Server::new(&lazy(), &sink);
    server.start().await;
    let acked = fill(&server, &items("k", 0, 500)).await;
    sink.wait_settled(500).await;
    server.recorded().await;
    server.kill9().await;
    check(&acked, &sink.calls()).assert_once();
    let (messages, _) = place_of(server.data(), 0);
    let others = files_below(server.data()).into_iter().filter(|path| *path != messages);
    for path in others {
        let bytes = std::fs::read(&path).expect("it can be read");
        let Some(end) = bytes.iter().rposition(|byte| *byte != 0) else {
            continue;
        };
        let inside = path.strip_prefix(server.data()).expect("it lies there").to_owned();
        for place in 0..4 {
            let copy = tempfile::TempDir::new().expect("a folder for the copy");
            let data = copy.path().join("data");
            copy_folder(server.data(), &data);
            flip_a_bit(&data.join(&inside), end * place / 4);
            harmless_or_reported(&data, &inside).await;
        }
    }
}

async fn harmless_or_reported(data: &Path, changed: &Path) {
    let own = Sink::start().await;
    let mut damaged = Server::on(&lazy(), &own, data);
    damaged.spawn();
    let mut taken = false;
    let reported = until("an end, a reason, or the new message", async || {
        if !damaged.is_running() {
            assert_eq!(damaged.ended().await, Some(1), "{}", damaged.output());
            return Some(true);
        }
        let view = PipelineView::of(&damaged).await?;
        // Messages can be accepted although the journals, or the holds, are closed.
        if view.partitions.iter().any(|partition| partition.state == "stopped") {
            return Some(true);
        }
        taken = taken || produce(&client(), &damaged.topic_url(), &items("k", 500, 1)).await.is_ok();
        (!own.is_empty()).then_some(false)
    })
    .await;
    if !reported {
        let numbers: Vec<_> = own.calls().iter().map(|call| call.n).collect();
        assert_eq!(numbers, [Some(500)], "run again after a change in {}", changed.display());
    }
}

/// P10, BRK-1: bytes that a kill left half written behind the end are cut; everything that was acknowledged is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_tail_is_cut_and_nothing_acknowledged_goes_with_it() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Status(503));
    let mut server = Server::new(&lazy(), &sink);
    let mut acked = Vec::new();
    let lengths = [1, 8, 63, 64, 65, 1_000, 20_000];
    for (round, length) in (0..).zip(lengths) {
        server.start().await;
        acked.extend(fill(&server, &items("k", round * 10, 10)).await);
        server.kill9().await;
        let (path, at) = place_of(server.data(), round * 10);
        tear(&path, at, length, round % 2 == 0);
    }
    sink.behave(|_| Reply::Status(200));
    server.start().await;
    acked.extend(fill(&server, &items("k", 70, 10)).await);
    server.settles(&sink, &acked).await;
    let report = check(&acked, &sink.calls());
    report.assert_once();
    assert_eq!(report.settled, acked.len(), "nothing came out of the tear");
}

/// Puts `length` bytes behind the end of what is written: noise, or an earlier part of the file, which is what a
/// recycled segment holds.
fn tear(path: &Path, inside: usize, length: usize, noise: bool) {
    let mut bytes = std::fs::read(path).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("it is not empty");
    let tail = (end + 8) / 8 * 8;
    let torn: Vec<u8> = match noise {
        true => (0..length).map(|n| (n * 151 + 17) as u8 | 1).collect(),
        false => bytes[inside.saturating_sub(length)..].iter().take(length).copied().collect(),
    };
    if bytes.len() < tail + torn.len() {
        bytes.resize(tail + torn.len(), 0);
    }
    bytes[tail..tail + torn.len()].copy_from_slice(&torn);
    std::fs::write(path, bytes).expect("it can be written");
}

fn copy_folder(from: &Path, to: &Path) {
    for path in files_below(from) {
        let target = to.join(path.strip_prefix(from).expect("it lies below"));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("it can be made");
        std::fs::copy(&path, target).expect("it can be copied");
    }
}

/// P10, BRK-1: one process per folder; the second ends, and the first does not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_on_the_same_folder_is_refused_in_one_sentence() {
    let sink = Sink::start().await;
    let mut first = Server::new(&Setup::default(), &sink);
    first.start().await;
    let mut second = Server::on(&Setup::default(), &sink, first.data());
    second.spawn();
    assert_eq!(second.ended().await, Some(1), "{}", second.output());
    let said = second.output();
    assert!(said.contains(&first.data().display().to_string()) && said.contains("in use"), "{said}");
    let acked = fill(&first, &items("k", 0, 10)).await;
    sink.wait_settled(10).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P10, BRK-10: with another partition count, keys would move to other partitions and lose their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_partition_count_is_an_error_at_start() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    fill(&server, &items("k", 0, 10)).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    server.configure(&Setup::default().partitions(6), &sink);
    server.spawn();
    assert_eq!(server.ended().await, Some(1), "{}", server.output());
    let said = server.output();
    assert!(said.contains("partition") && said.contains('4') && said.contains('6'), "{said}");
}

/// P10, BRK-10: positions on record belong to a topic that is gone; messages of the new topic do not run in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_was_made_anew_stops_its_partitions() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default().partitions(2), &sink);
    server.start().await;
    let all: Vec<Item> = (0..20).flat_map(|key| items(&format!("k{key}"), 0, 5)).collect();
    fill(&server, &all).await;
    sink.wait_settled(100).await;
    server.recorded().await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    std::fs::remove_dir_all(server.data().join("topics/t")).expect("the topic's folder is there");
    server.spawn();
    let view = until("both partitions to stop", async || {
        let view = PipelineView::of(&server).await?;
        view.partitions.iter().all(|partition| partition.state == "stopped").then_some(view)
    })
    .await;
    for partition in &view.partitions {
        assert!(partition.why.as_ref().is_some_and(|why| why.contains("KL-1303")), "{partition:?}");
    }
    // Whether such messages are accepted does not matter here; they must not run.
    let more: Vec<Item> = (0..20).flat_map(|key| items(&format!("k{key}"), 5, 1)).collect();
    let _taken_or_refused = produce(&client(), &server.topic_url(), &more).await;
    let view = PipelineView::of(&server).await.expect("it answers");
    assert_eq!((sink.len(), view.handled), (100, 0), "something ran: {view:?}");
}

/// P10, BRK-10: only the journals know what was settled; without them nothing runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_journals_runs_nothing() {
    let sink = Sink::start().await;
    let mut server = Server::new(&lazy(), &sink);
    server.start().await;
    fill(&server, &items("k", 0, 100)).await;
    sink.wait_settled(100).await;
    server.recorded().await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    std::fs::remove_dir_all(server.data().join("journals")).expect("the journals' folder is there");
    server.start().await;
    let view = until("all partitions to stop", async || {
        let view = PipelineView::of(&server).await?;
        let stopped = |partition: &PartitionView| partition.state == "stopped";
        (!view.partitions.is_empty() && view.partitions.iter().all(stopped)).then_some(view)
    })
    .await;
    for partition in &view.partitions {
        assert!(partition.why.as_ref().is_some_and(|why| why.contains("journals")), "{partition:?}");
    }
    let (_, answer) = server.get("/readyz").await.expect("it answers");
    assert!(answer["reasons"].to_string().contains("journals"), "{answer}");
    // Messages are accepted, since the topic is whole; nothing runs.
    fill(&server, &items("k", 100, 10)).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    assert_eq!(sink.len(), 100, "something ran again");
}

/// P10: a server that cannot start says why in a sentence, and ends with exit code 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_and_a_folder_that_cannot_be_made_are_named() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    let taken = std::net::TcpListener::bind(("127.0.0.1", server.port())).expect("it was free");
    server.spawn();
    assert_eq!(server.ended().await, Some(1), "{}", server.output());
    let said = server.output();
    assert!(said.contains(&server.port().to_string()) && said.contains("in use"), "{said}");
    drop(taken);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut nowhere = Server::on(&Setup::default(), &sink, &file.path().join("data"));
    nowhere.spawn();
    assert_eq!(nowhere.ended().await, Some(1), "{}", nowhere.output());
    let said = nowhere.output();
    assert!(said.contains(&file.path().display().to_string()), "{said}");
}
