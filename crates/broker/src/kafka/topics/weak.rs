//! Settings of a cluster's topics that weaken a promise (BRK-9), and those under which our own state would be lost.

use std::sync::Arc;

use super::admin::Admin;
use super::journals::Journals;
use super::native::Described;
use super::spec::value;
use crate::contract::{BrokerError, Warning, Weakness};

/// A pipeline may be away for this long, over a night or a failed deployment, without losing what waits for it.
const KEPT_MS_MIN: i64 = 24 * 3600 * 1000;

/// What of these topics weakens a promise.
pub(crate) async fn warnings(admin: &Admin, topics: &[String]) -> Result<Vec<Warning>, BrokerError> {
    let described = admin.with_settings(topics.to_vec()).await?;
    let mut warnings = Vec::new();
    for (topic, config) in described {
        let config = config?;
        warnings.extend(found(&topic, |name| value(&config, name)));
    }
    Ok(warnings)
}

fn found(topic: &Described, setting: impl Fn(&str) -> Option<String>) -> Vec<Warning> {
    let (name, replicas) = (&topic.name, topic.replicas);
    let number = |name: &str| setting(name).and_then(|value| value.parse::<i64>().ok());
    let is = |name: &str, value: &str| setting(name).as_deref() == Some(value);
    let mut warnings = Vec::new();
    let mut warn = |weakness, what: String, remedy: String| {
        warnings.push(Warning { weakness, topic: name.clone(), what, remedy });
    };
    if replicas < 2 {
        warn(
            Weakness::OneCopy,
            format!("topic {name} has one replica: what its broker's disk loses is lost"),
            format!("give it more with kafka-reassign-partitions, and set topics.{name}.replicas"),
        );
    } else if let Some(in_sync @ ..2) = number("min.insync.replicas") {
        warn(
            Weakness::InSync,
            format!(
                "topic {name} has min.insync.replicas={in_sync}: a message that one broker has is acknowledged, and is lost with it"
            ),
            format!("set topics.{name}.min_insync to 2 (or min.insync.replicas on the topic)"),
        );
    }
    if is("unclean.leader.election.enable", "true") {
        warn(
            Weakness::UncleanElection,
            format!(
                "topic {name} has unclean.leader.election.enable=true, by itself or from its brokers: a replica that lacks acknowledged messages may become leader, and they are lost"
            ),
            "set unclean.leader.election.enable=false on the topic or on all brokers".to_owned(),
        );
    }
    if is("message.timestamp.type", "CreateTime") {
        warn(
            Weakness::ProducersTime,
            format!(
                "topic {name} has message.timestamp.type=CreateTime: the age of its messages is what producers say"
            ),
            format!(
                "set message.timestamp.type=LogAppendTime on the topic; topics.{name} in the config does so"
            ),
        );
    }
    if let Some(kept @ 0..KEPT_MS_MIN) = number("retention.ms") {
        warn(
            Weakness::ShortRetention,
            format!(
                "topic {name} has retention.ms={kept}: Kafka deletes messages that old, also those that no pipeline has settled"
            ),
            format!("set topics.{name}.retention to longer than your longest stop"),
        );
    }
    warnings
}

/// An error if one of the topics that keep a group's state would forget any of it: what was not cut by us is needed
/// (`keylane_core::journal`). Those that are not there yet are made as they should be.
pub(crate) async fn kept_whole(
    journals: &Arc<Journals>,
    group: &str,
    topic: &str,
) -> Result<(), BrokerError> {
    let names = journals.topics_of(group, topic).await?;
    for (topic, config) in journals.admin.with_settings(names.to_vec()).await? {
        let config = config?;
        for (name, wanted) in
            [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")]
        {
            let is = value(&config, name).unwrap_or_default();
            if is != wanted {
                return Err(BrokerError::NotKept { topic: topic.name, what: format!("{name} is {is}") });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weaknesses(replicas: u32, settings: &[(&str, &str)]) -> Vec<Weakness> {
        let topic = Described { name: "t".to_owned(), id: 1, partitions: 1, replicas };
        let setting =
            |name: &str| settings.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned());
        found(&topic, setting).iter().map(|warning| warning.weakness).collect()
    }

    /// BRK-9.
    #[test]
    fn each_setting_that_weakens_a_promise_is_named() {
        let good = [
            ("min.insync.replicas", "2"),
            ("unclean.leader.election.enable", "false"),
            ("message.timestamp.type", "LogAppendTime"),
            ("retention.ms", "604800000"),
        ];
        assert_eq!(weaknesses(3, &good), []);
        assert_eq!(weaknesses(1, &good), [Weakness::OneCopy]);
        let mut bad = good;
        bad[0].1 = "1";
        assert_eq!(weaknesses(3, &bad), [Weakness::InSync]);
        bad[1].1 = "true";
        bad[2].1 = "CreateTime";
        bad[3].1 = "3600000";
        let all =
            [Weakness::InSync, Weakness::UncleanElection, Weakness::ProducersTime, Weakness::ShortRetention];
        assert_eq!(weaknesses(3, &bad), all);
        bad[3].1 = "-1";
        assert_eq!(weaknesses(3, &bad), all[..3], "-1 is for ever");
    }
}
