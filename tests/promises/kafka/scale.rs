//! The cost of many pipelines of many partitions on one broker: threads, connections, memory, requests, CPU.

use std::fs;
use std::time::{Duration, Instant};

use keylane_tests::{Cluster, Server, Setup, Sink, until};
use serde_json::Value;

const PIPELINES: usize = 20;
const PARTITIONS: u32 = 60;
/// How long each state is measured.
const STATE_LASTS: Duration = Duration::from_secs(30);
/// Messages of one request; a busy topic gets one again and again.
const BATCH: usize = 100;

/// What a process has and has used. Only connections to the broker count, not those of handlers' calls.
#[derive(Debug, Clone, Copy)]
struct Costs {
    threads: u64,
    connections: u64,
    memory_mib: u64,
    requests: u64,
    cpu_ms: u64,
}

impl Costs {
    async fn of(server: &Server, broker: u16) -> Costs {
        let pid = server.pid();
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
        let status = read("status");
        let number = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells it");
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
        };
        let sockets = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").filter_map(|fd| {
            let to = fs::read_link(fd.ok()?.path()).ok()?.to_string_lossy().into_owned();
            Some(to.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        });
        let sockets: Vec<String> = sockets.collect();
        let tcp = read("net/tcp");
        let to_broker = format!(":{broker:04X}");
        let established = tcp.lines().filter(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(3) == Some(&"01")
                && fields.get(2).is_some_and(|remote| remote.ends_with(&to_broker))
                && fields.get(9).is_some_and(|inode| sockets.contains(&(*inode).to_owned()))
        });
        let stat = read("stat");
        let used: Vec<u64> = stat
            .rsplit(')')
            .next()
            .expect("a name in brackets")
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse().ok())
            .collect();
        let (_, metrics) = server.get("/metrics").await.expect("it answers");
        let Value::String(metrics) = metrics else { panic!("text") };
        let sent = metrics.lines().find_map(|line| line.strip_prefix("keylane_client_sent_requests_total "));
        Costs {
            threads: number("Threads:"),
            connections: established.count() as u64,
            memory_mib: number("VmRSS:") >> 10,
            requests: sent.and_then(|sent| sent.parse().ok()).expect("it is told"),
            // A tick is 10 ms on Linux.
            cpu_ms: used.iter().sum::<u64>() * 10,
        }
    }
}

/// Measures a server for a while; prints a line of the table.
async fn look(server: &Server, broker: u16, what: &str, busy: Option<&[String]>) -> (Costs, f64) {
    let (before, began) = (Costs::of(server, broker).await, Instant::now());
    let client = keylane_tests::client();
    let mut sent = 0u64;
    while began.elapsed() < STATE_LASTS {
        for topic in busy.unwrap_or_default() {
            let lines: String = (0..BATCH)
                .map(|number| format!("{{\"key\":\"k{}\",\"payload\":{number}}}\n", sent as usize + number))
                .collect();
            let asked = client.post(server.url(&format!("/v1/topics/{topic}/messages")));
            let asked = asked.header("content-type", "application/x-ndjson").body(lines).send().await;
            assert!(asked.expect("it answers").status().is_success());
            sent += BATCH as u64;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (after, took) = (Costs::of(server, broker).await, began.elapsed().as_secs_f64());
    let requests = (after.requests - before.requests) as f64 / took;
    println!(
        "| {what} | {} | {} | {} MiB | {requests:.0} | {:.0} % | {:.0} |",
        after.threads,
        after.connections,
        after.memory_mib,
        (after.cpu_ms - before.cpu_ms) as f64 / took / 10.0,
        sent as f64 / took,
    );
    (after, requests)
}

async fn running(server: &Server) -> usize {
    let Some((200, status)) = server.get("/admin/pipelines").await else { return 0 };
    let pipelines = status["pipelines"].as_array().expect("a list of pipelines");
    let partitions = pipelines.iter().filter_map(|pipeline| pipeline["partitions"].as_array()).flatten();
    partitions.filter(|partition| partition["state"] == "running").count()
}

/// P5, BRK-2: a process with many pipelines of many partitions has few threads, connections and requests for each.
/// Prints the table of docs/kafka.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: 20 pipelines of 60 partitions on one broker"]
async fn chaos_twenty_pipelines_of_sixty_partitions_are_affordable() {
    let (cluster, sink) = (Cluster::start(1), Sink::start().await);
    let topics: Vec<String> = (0..PIPELINES).map(|number| format!("t{number}")).collect();
    let mut setup = Setup::default().partitions(PARTITIONS).topic(&topics[0]);
    for topic in &topics[1..] {
        setup.more.0 += &format!(", {topic}: {{ partitions: {PARTITIONS} }}");
        setup.more.1 += &format!(
            "  {topic}:\n    topic: {topic}\n    handler: {{ http: {{ url: \"{}\", timeout: 60s, allow_private: true }} }}\n",
            sink.url()
        );
    }
    let mut server = Server::new(&setup.on_kafka(&cluster, "statistics.interval.ms: 1000"), &sink);
    let began = Instant::now();
    server.start().await;
    let all = PIPELINES * PARTITIONS as usize;
    until("all partitions to be owned", async || (running(&server).await == all).then_some(())).await;
    println!("{all} partitions were owned after {:.0} s", began.elapsed().as_secs_f64());
    println!(
        "| | threads | connections | memory | requests a second | CPU of one core | messages a second |"
    );
    println!("|---|---|---|---|---|---|---|");
    let port = cluster.bootstrap.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let (idle, idle_requests) = look(&server, port, "idle", None).await;
    let (busy, _) = look(&server, port, "busy", Some(&topics)).await;
    println!("threads by name: {:?}", server.threads_by_name());
    // Far above the usual values: the test fails if something is made for each partition.
    let pipelines = PIPELINES as u64;
    for costs in [idle, busy] {
        assert!(costs.threads < 100 + 10 * pipelines, "{costs:?}");
        assert!(costs.connections < 60 + 5 * pipelines, "{costs:?}");
    }
    assert!(idle_requests < 400.0, "{idle_requests} requests a second, and nothing happens");
    assert_eq!(running(&server).await, all, "all are owned as before");
    assert_eq!(server.stop().await, Some(0));
}
