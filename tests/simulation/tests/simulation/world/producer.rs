//! A producer: calls of a few messages, each awaited.

use keylane::{Keylane, Message};
use keylane_simulation::Random;

use crate::TOPIC;
use crate::handler::Eye;
use crate::scenario::Scenario;

/// Produces until the scenario has had enough, and tells the checker what was acknowledged.
pub(super) async fn produce(keylane: Keylane, client: u64, scenario: Scenario, mut random: Random, eye: Eye) {
    let mut sent = 0u64;
    while eye.now_ms() < scenario.busy_ms && sent < scenario.messages_max {
        tokio::time::sleep(random.time(1, scenario.produce_ms)).await;
        let mut tickets = Vec::new();
        for _ in 0..random.between(1, scenario.burst) {
            sent += 1;
            let mut message = Message::to(TOPIC).id(format!("c{client}-{sent}")).payload("x");
            if !random.percent(scenario.keyless) {
                message = message.key(format!("k{}", random.between(1, scenario.keys)));
            }
            if let Ok(ticket) = keylane.producer().send(message).await {
                tickets.push(ticket);
            }
        }
        for ticket in tickets {
            if let Ok(receipt) = ticket.await {
                eye.tell(|checker, now_ms| {
                    let offset = receipt.offset.expect("nothing is spilled here");
                    checker.acknowledged(now_ms, receipt.partition, offset, &receipt.id);
                });
            }
        }
    }
}
