//! A broker that accepts requests and does not answer, while the other brokers do.

use std::collections::BTreeSet;

use keylane_tests::{Acked, Cluster, Item, PipelineView, Proxy, Server, Setup, Sink, check, fill, until};

use crate::{JOURNAL, SOON, many, owns};

const PARTITIONS: usize = 6;
/// The leader of each partition, of the topic and of its journal.
const LEADERS: [u32; PARTITIONS] = [1, 2, 3, 1, 2, 3];

/// Makes a topic, or a journal, with these leaders.
fn create(cluster: &Cluster, topic: &str, settings: &[&str]) {
    let leaders = LEADERS.map(|leader| leader.to_string()).join(",");
    let mut arguments = vec!["TopicCommand", "--create", "--topic", topic, "--replica-assignment", &leaders];
    settings.iter().for_each(|setting| arguments.extend(["--config", setting]));
    cluster.tool(&arguments);
}

/// The broker that coordinates a group.
fn coordinator(cluster: &Cluster, group: &str) -> u32 {
    let class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
    let told = cluster.tool(&[class, "--describe", "--state", "--group", group]);
    // The tool prints the broker's address, and its number in parentheses.
    let number = told.rsplit('(').next().and_then(|rest| rest.split(')').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no coordinator: {told}"))
}

/// The items whose keys lie in these partitions, as earlier messages showed.
fn within(items: Vec<Item>, acked: &[Acked], partitions: &BTreeSet<u32>) -> Vec<Item> {
    let lies = |item: &Item| {
        acked.iter().any(|acked| acked.key == item.key && partitions.contains(&acked.partition))
    };
    items.into_iter().filter(lies).collect()
}

/// P3, BRK-5, BRK-8, ORD-9: while a broker does not answer, status queries are answered, and partitions of other
/// brokers are taken over from a member that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_does_not_answer_holds_up_no_look_and_no_other_partition() {
    let options = ["--brokers", "3", "--proxied", "--set", "group.min.session.timeout.ms=1000"];
    let (cluster, sink) = (Cluster::with(&options), Sink::start().await);
    let mut proxies = Vec::new();
    for proxy in &cluster.proxies {
        proxies.push(Proxy::start(*proxy).await);
    }
    create(&cluster, "t", &[]);
    create(&cluster, "_keylane.journal.t.t", &JOURNAL);
    let brokers = cluster.proxied.clone().expect("asked for above");
    let setup = Setup::default().partitions(PARTITIONS as u32).on_kafka_at(&brokers, SOON);
    let mut first = Server::new(&setup, &sink);
    first.start().await;
    let mut second = Server::new(&setup, &sink);
    second.start().await;
    owns(&first, PARTITIONS / 2).await;
    owns(&second, PARTITIONS / 2).await;
    let mut acked = fill(&first, &many(0, 2, 0)).await;
    first.settles(&sink, &acked).await;
    first.recorded().await;
    second.recorded().await;
    let mute = (1..=3).find(|broker| *broker != coordinator(&cluster, "t")).expect("there are three");
    let others: BTreeSet<u32> = (0..).zip(LEADERS).filter(|(_, at)| *at != mute).map(|(at, _)| at).collect();
    proxies[mute as usize - 1].lose_answers();
    second.kill9().await;
    until("the other brokers' partitions to be taken over", async || {
        let view = PipelineView::of(&first).await.expect("a look is answered");
        let runs = |at: &u32| view.partitions[*at as usize].state == "running";
        others.iter().all(runs).then_some(())
    })
    .await;
    // A take-over asks the leaders of its partition and the group's coordinator; no other broker's silence ends it.
    let said = first.output();
    for partition in &others {
        let over = format!("a partition starts over partition={partition} ");
        let late = said.lines().find(|line| line.contains(&over) && line.contains("Timed out"));
        assert_eq!(late, None);
    }
    for look in ["/metrics", "/admin/lanes", "/readyz"] {
        first.get(look).await.unwrap_or_else(|| panic!("{look} is not answered"));
    }
    assert!(proxies[mute as usize - 1].lost() > 0, "the broker was asked");
    let more = within(many(2, 2, 0), &acked, &others);
    let more = fill(&first, &more).await;
    first.settles(&sink, &more).await;
    proxies[mute as usize - 1].pass_answers();
    owns(&first, PARTITIONS).await;
    acked.extend(more);
    acked.extend(fill(&first, &many(4, 2, 0)).await);
    first.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(first.stop().await, Some(0), "{}", first.output());
}
