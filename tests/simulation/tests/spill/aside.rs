//! Messages that a broker refuses for good, and messages that wait while their topic grows.

use keylane::Outcome;

use super::*;

/// PRD-3: a message that the broker refuses for good stays, and blocks its key and no other, across a restart, until
/// the topic accepts it.
#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_blocks_only_its_key() {
    let mut world = World::new(7).await;
    let mut process = world.start().await;
    let send = async |process: &Process, id: &str, key: &str, bytes: usize| {
        let message = Message::to(TOPIC).id(id).key(key).payload(vec![b'x'; bytes]);
        process.keylane.produce(message).await.expect("it is taken")
    };
    world.leave();
    for (id, key, bytes) in [("a-0", "a", 10), ("a-1", "a", 5_000), ("a-2", "a", 10), ("b-0", "b", 10)] {
        assert!(send(&process, id, key, bytes).await.is_spilled(), "{id} is kept");
    }
    world.limit(1_000).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(ids(&world).await, ["a-0", "b-0"]);
    world.kill(process).await;
    process = world.start().await;
    assert!(send(&process, "a-3", "a", 10).await.is_spilled(), "it stands behind what was refused");
    assert!(!send(&process, "b-1", "b", 10).await.is_spilled(), "another key goes straight to the broker");
    tokio::time::sleep(LONG).await;
    assert_eq!(ids(&world).await, ["a-0", "b-0", "b-1"]);
    let failed = process.keylane.spill_entries(Some(SpillEntryState::Failed), 10).await.expect("it is read");
    let shown: Vec<_> = failed.iter().map(|entry| (entry.id.as_str(), entry.last_error.is_some())).collect();
    assert_eq!(shown, [("a-1", true), ("a-2", false), ("a-3", false)]);
    world.limit(1 << 20).await;
    process.keylane.drain_spill();
    tokio::time::sleep(LONG).await;
    assert_eq!(ids(&world).await, ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1"]);
    assert!(!send(&process, "a-4", "a", 10).await.is_spilled(), "its key is free again");
    let status = process.keylane.spill();
    assert_eq!((status.state, status.failed, status.bytes), (SpillState::Healthy, 0, 0));
}

/// PRD-3, P5: a key that is blocked for long takes neither its partition nor the spill from other keys: past half of
/// the spill only its own messages are refused, and all accepted messages reach the broker in order at last.
#[tokio::test(start_paused = true)]
async fn a_busy_blocked_key_leaves_room_to_others() {
    let mut world = World::new(12).await;
    world.options.bytes_max = 20_000;
    let mut process = world.start().await;
    let other = (b'b'..=b'z').find(|key| partition_of(&[*key], PARTITIONS) == partition_of(b"a", PARTITIONS));
    let other = char::from(other.expect("one of them")).to_string();
    let send = async |process: &Process, id: String, bytes: usize| {
        let message = Message::to(TOPIC).id(&id).key(&id[..1]).payload(vec![b'x'; bytes]);
        process.keylane.produce(message).await
    };
    world.leave();
    for (id, bytes) in [("a-0", 10), ("a-1", 3_000)] {
        send(&process, id.to_owned(), bytes).await.expect("it is kept");
    }
    world.limit(1_000).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    let (mut taken, mut landed) = (vec!["a-0".to_owned(), "a-1".to_owned()], vec!["a-0".to_owned()]);
    for round in 0..4 {
        if round == 1 {
            world.kill(process).await;
            process = world.start().await;
        }
        let away = round > 1;
        if away {
            world.leave();
        }
        for number in 0..20 {
            let id = format!("a-{}", 2 + 20 * round + number);
            match send(&process, id.clone(), 500).await {
                Ok(receipt) => {
                    assert!(receipt.is_spilled(), "{id} stands behind what was refused");
                    taken.push(id);
                }
                Err(error) => {
                    assert_eq!(error.code().as_str(), "KL-1220", "{error}");
                    assert!(error.to_string().contains("keylane spill drain"), "{error}");
                }
            }
        }
        for number in 0..3 {
            let id = format!("{other}-{}", 3 * round + number);
            let receipt = send(&process, id.clone(), 500).await.expect("there is room for others");
            assert_eq!(receipt.is_spilled(), away, "{id}, in round {round}");
            landed.push(id);
        }
        world.come_back();
        tokio::time::sleep(LONG).await;
        assert_eq!(ids(&world).await, landed, "in round {round}");
    }
    assert!(taken.len() > 10, "{taken:?}");
    let status = process.keylane.spill();
    assert!(status.bytes <= world.options.bytes_max / 2, "{status:?}");
    world.limit(1 << 20).await;
    process.keylane.drain_spill();
    tokio::time::sleep(LONG).await;
    taken.extend(landed.split_off(1));
    assert_eq!(ids(&world).await, taken);
    let status = process.keylane.spill();
    assert_eq!((status.state, status.failed, status.bytes), (SpillState::Healthy, 0, 0));
}

/// PRD-3, BRK-10, P2: a topic that was spilled, and has more partitions since, can be spilled again; messages that wait
/// since before the growth go to the partition that they were meant for, and no later message goes before them.
#[tokio::test(start_paused = true)]
async fn a_topic_that_grew_can_be_spilled_again() {
    let mut world = World::new(11).await;
    let mut process = world.start().await;
    let send = async |process: &Process, id: &str| {
        let message = Message::to(TOPIC).id(id).key(&id[..1]).payload("x");
        process.keylane.produce(message).await.expect("it is taken").is_spilled()
    };
    world.leave();
    assert!(send(&process, "a-0").await);
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(process.keylane.spill().state, SpillState::Healthy);
    world.kill(process).await;
    world.grow(PARTITIONS + 2).await;
    process = world.start().await;
    world.leave();
    for id in ["a-1", "b-0", "c-0"] {
        assert!(send(&process, id).await, "{id}");
    }
    world.kill(process).await;
    process = world.start().await;
    assert!(send(&process, "a-2").await);
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(ids(&world).await, ["a-1", "a-2", "b-0", "c-0"]);
    assert_eq!(process.keylane.spill().state, SpillState::Healthy);
    world.leave();
    assert!(send(&process, "a-3").await);
    world.kill(process).await;
    world.grow(PARTITIONS + 4).await;
    let (old, new) = (partition_of(b"a", PARTITIONS + 2), partition_of(b"a", PARTITIONS + 4));
    assert_ne!(old, new, "its key has moved");
    world.cluster.leave(old);
    process = world.start().await;
    assert!(send(&process, "a-4").await, "it waits behind what went by the old number");
    tokio::time::sleep(LONG).await;
    assert_eq!(ids(&world).await, [] as [&str; 0], "though its own partition is there");
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(ids_of(&world, old).await, ["a-3"]);
    assert_eq!(ids_of(&world, new).await, ["a-4"]);
    assert_eq!(process.keylane.spill().state, SpillState::Healthy);
    assert!(!send(&process, "a-5").await, "it goes straight to the broker");
}

/// PRD-3, BRK-10, P2: messages that were refused before a topic got more partitions are tried before those that stand
/// behind them since, even if these came when only the config could say how many partitions there are, and said too
/// few. A message that is refused again keeps back its own key only.
#[tokio::test(start_paused = true)]
async fn refused_messages_keep_their_order_when_the_topic_grows() {
    let mut world = World::new(13).await;
    let mut process = world.start().await;
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let send = async |process: &Process, number: u64, bytes: usize| {
        for key in keys {
            let message = Message::to(TOPIC).id(format!("{key}-{number}")).key(key);
            let bytes = if key == "h" { 2 * bytes } else { bytes };
            let sent = process.keylane.produce(message.payload(vec![b'x'; bytes])).await;
            assert!(sent.expect("it is taken").is_spilled(), "{key}-{number}");
        }
    };
    world.leave();
    send(&process, 0, 5_000).await;
    world.limit(1_000).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(process.keylane.spill().failed, 8);
    world.kill(process).await;
    world.grow(PARTITIONS + 4).await;
    world.limit(1_000).await;
    process = world.start().await;
    send(&process, 1, 10).await;
    world.kill(process).await;
    world.leave();
    let grown = std::mem::replace(&mut world.partitions, PARTITIONS);
    process = world.start().await;
    world.partitions = grown;
    send(&process, 2, 10).await;
    world.come_back();
    world.limit(7_000).await;
    process.keylane.drain_spill();
    tokio::time::sleep(LONG).await;
    for key in keys {
        let mut partitions =
            [PARTITIONS, PARTITIONS + 4].map(|number| partition_of(key.as_bytes(), number)).to_vec();
        partitions.dedup();
        let mut found = Vec::new();
        for partition in partitions {
            found.extend(ids_of(&world, partition).await);
        }
        found.retain(|id| id.starts_with(key));
        match key {
            "h" => assert_eq!(found, [] as [&str; 0], "its first is too large still"),
            _ => assert_eq!(found, [0, 1, 2].map(|number| format!("{key}-{number}"))),
        }
    }
    assert_eq!(process.keylane.spill().failed, 3);
}

/// PRD-3, BRK-10, P2: added partitions are not accepted while a message that went by the old number is on this machine,
/// waiting or refused: sent afterwards, it would come behind newer ones of its key.
#[tokio::test(start_paused = true)]
async fn partitions_are_accepted_when_nothing_that_went_by_the_old_number_is_left() {
    let mut world = World::new(15).await;
    let process = world.start().await;
    let keylane = &process.keylane;
    let pipeline = keylane.pipeline(TOPIC).group("g").handle(|_: Message| async { Outcome::Done });
    let pipeline = pipeline.start().await.expect("it starts");
    let message = Message::to(TOPIC).id("a-0").key("a").payload(vec![b'x'; 5_000]);
    world.leave();
    assert!(keylane.produce(message).await.expect("it is kept").is_spilled());
    world.partitions = 2 * PARTITIONS;
    world.topics.grow_topic(TOPIC, world.partitions);
    tokio::time::sleep(LONG).await;
    let refused = keylane.accept(TOPIC, "test").await.expect_err("it waits").to_string();
    assert!(refused.contains("spill"), "{refused}");
    world.limit(1_000).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(keylane.spill().failed, 1);
    let refused = keylane.accept(TOPIC, "test").await.expect_err("it was refused").to_string();
    assert!(refused.contains("spill drain"), "{refused}");
    world.limit(1 << 20).await;
    keylane.drain_spill();
    tokio::time::sleep(LONG).await;
    let accepted = keylane.accept(TOPIC, "test").await.expect("nothing is left");
    assert_eq!((accepted[0].from, accepted[0].to), (PARTITIONS, 2 * PARTITIONS));
    pipeline.drain().await.expect("it ends");
}

/// PRD-3: one drain frees a key that is busy all the while, though other keys of its topic are tried with it: one with
/// many messages behind it, and one whose message is still too large.
#[tokio::test(start_paused = true)]
async fn one_drain_frees_a_busy_key() {
    for seed in 1..=20 {
        let mut world = World::new(seed).await;
        world.disk.set_latency(Duration::from_millis(1), Duration::from_millis(60));
        let process = world.start().await;
        let produce = |key: &str, bytes: usize| {
            let (keylane, message) = (process.keylane.clone(), Message::to(TOPIC).key(key));
            let message = message.payload(vec![b'x'; bytes]);
            tokio::spawn(async move { keylane.produce(message).await.expect("it is taken").is_spilled() })
        };
        world.leave();
        for (key, bytes, count) in [("a", 5_000, 1), ("b", 5_000, 1), ("b", 10, 200), ("c", 9_000, 1)] {
            for _ in 0..count {
                assert!(produce(key, bytes).await.expect("it ends"), "seed {seed}: it is kept");
            }
        }
        world.limit(1_000).await;
        world.come_back();
        tokio::time::sleep(LONG).await;
        assert_eq!(process.keylane.spill().failed, 203, "seed {seed}");
        let mut sent = Vec::new();
        for number in 0..1_000 {
            sent.push(produce("a", 10));
            tokio::time::sleep(Duration::from_millis(world.random.between(1, 600))).await;
            match number {
                100 => world.limit(7_000).await,
                110 => process.keylane.drain_spill(),
                _ => {}
            }
        }
        assert!(!sent.pop().expect("the last").await.expect("it ends"), "seed {seed}: its key is free");
        assert_eq!(process.keylane.spill().failed, 1, "seed {seed}: all but what is too large was sent");
    }
}

/// PRD-3: a message that is put aside just when the message before it was sent is tried as well.
#[tokio::test(start_paused = true)]
async fn what_is_put_aside_too_late_is_tried_as_well() {
    for seed in 1..=60 {
        let mut world = World::new(seed).await;
        let process = world.start().await;
        let send = async |key: &str, bytes: usize| {
            let message = Message::to(TOPIC).key(key).payload(vec![b'x'; bytes]);
            assert!(process.keylane.produce(message).await.expect("it is kept").is_spilled(), "seed {seed}");
        };
        let is_beside =
            |key: &String| partition_of(key.as_bytes(), PARTITIONS) == partition_of(b"a", PARTITIONS);
        let beside = (0..).map(|number| number.to_string()).find(is_beside).expect("endless");
        world.leave();
        send("a", 5_000).await;
        world.limit(1_000).await;
        world.come_back();
        tokio::time::sleep(LONG).await;
        world.leave();
        for key in [beside.as_str(), "a", &beside] {
            send(key, 10).await;
        }
        world.limit(1 << 20).await;
        world.come_back();
        process.keylane.drain_spill();
        tokio::time::sleep(LONG).await;
        assert_eq!(process.keylane.spill().failed, 0, "seed {seed}");
    }
}

/// PRD-3: a key that is still refused and busy does not keep a drain going.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_though_a_refused_key_is_busy() {
    let mut world = World::new(16).await;
    world.disk.set_latency(Duration::from_millis(1), Duration::from_millis(60));
    let process = world.start().await;
    let produce = |key: &str, bytes: usize| {
        let (keylane, message) = (process.keylane.clone(), Message::to(TOPIC).key(key));
        let message = message.payload(vec![b'x'; bytes]);
        tokio::spawn(async move { keylane.produce(message).await.expect("it is taken").is_spilled() })
    };
    world.leave();
    for (key, bytes) in [("a", 5_000), ("c", 9_000)] {
        assert!(produce(key, bytes).await.expect("it ends"), "it is kept");
    }
    world.limit(1_000).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    let mut asked = 0;
    for number in 0..3_000 {
        produce("c", 10);
        match number {
            100 => world.limit(7_000).await,
            110 => {
                asked = process.remote.asked();
                process.keylane.drain_spill();
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asked = process.remote.asked() - asked;
    assert!((1..10).contains(&asked), "asked {asked} times");
    assert!(!produce("a", 10).await.expect("it ends"), "the other key is free");
}
