//! Changes the settings of a topic, and waits until the brokers show them.
//!
//! In: a topic, and settings that it is to have. Out: the topic with these settings. The broker that is asked answers from
//! what it has heard so far, and may not have heard yet of a change that the cluster has accepted; whoever asked for it
//! would go on with the old limits.

use std::time::Duration;

use rdkafka::admin::{ConfigEntry, ConfigResource, ConfigSource};

use super::admin::{ASK, Admin, refused};
use super::native;
use super::spec::value;
use crate::contract::{BrokerError, Topic};
use crate::kafka::errors::lacking;

/// How often it is looked, and how long between: a cluster that is well shows a change within milliseconds.
const TRIES: u32 = 100;
const WAIT: Duration = Duration::from_millis(20);

impl Admin {
    /// Gives a topic these settings; false if it has them. All others stay as they are.
    pub(crate) async fn alter(&self, name: &str, settings: &[(String, String)]) -> Result<bool, BrokerError> {
        let there = self.with_settings(vec![name.to_owned()]).await?.pop();
        let (_, config) = there.ok_or_else(|| BrokerError::UnknownTopic(name.to_owned()))?;
        let config = config?;
        let mut changes = settings.to_vec();
        changes.retain(|(setting, wanted)| value(&config, setting).as_ref() != Some(wanted));
        if changes.is_empty() {
            return Ok(false);
        }
        for (setting, wanted) in &changes {
            let before = value(&config, setting);
            tracing::warn!(topic = name, setting, before, wanted, "kafka: a topic gets the config's setting");
        }
        let topic = name.to_owned();
        let changed = self.natively(move |client| native::alter(client, &topic, &changes, ASK)).await?;
        match changed {
            Ok(()) => Ok(true),
            Err(refusal) => Err(lacking(refused(name, refusal), "ALTER_CONFIGS on the topic")),
        }
    }

    /// A topic with settings that were accepted. A broker that does not show them in time is believed to lag.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    pub(super) async fn altered(
        &self,
        name: &str,
        accepted: &[(String, String)],
    ) -> Result<Topic, BrokerError> {
        let mut tries = 0;
        loop {
            tries += 1;
            if let Some((topic, config)) = self.with_settings(vec![name.to_owned()]).await?.pop() {
                let mut config = config?;
                let missing = put(&mut config, accepted);
                if missing.is_empty() || tries >= TRIES {
                    if !missing.is_empty() {
                        tracing::warn!(
                            topic = name,
                            ?missing,
                            "kafka: a broker lags, and does not show settings that were accepted; they are taken for set"
                        );
                    }
                    let known = self.know([(topic, Ok(config))].into_iter()).await?.pop();
                    return known.ok_or_else(|| BrokerError::UnknownTopic(name.to_owned()));
                }
            } else if tries >= TRIES {
                return Err(BrokerError::UnknownTopic(name.to_owned()));
            }
            tokio::time::sleep(WAIT).await;
        }
    }
}

/// Puts settings into what was described. Answers with the names of those that it did not have.
fn put(config: &mut ConfigResource, accepted: &[(String, String)]) -> Vec<String> {
    let mut missing = Vec::new();
    for (name, wanted) in accepted {
        if value(config, name).as_ref() == Some(wanted) {
            continue;
        }
        missing.push(name.clone());
        config.entries.retain(|entry| entry.name != *name);
        config.entries.push(ConfigEntry {
            name: name.clone(),
            value: Some(wanted.clone()),
            source: ConfigSource::DynamicTopic,
            is_read_only: false,
            is_default: false,
            is_sensitive: false,
        });
    }
    missing
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::OwnedResourceSpecifier;

    use super::*;

    /// MSG-4: a broker that lags is told from one that has heard of a change, setting by setting.
    #[test]
    fn what_a_broker_does_not_show_yet_is_named_and_taken_for_set() {
        let specifier = OwnedResourceSpecifier::Topic("orders".to_owned());
        let mut config = ConfigResource { specifier, entries: Vec::new() };
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        put(&mut config, &[setting("retention.ms", "1000"), setting("segment.bytes", "7")]);
        let accepted = [setting("retention.ms", "2000"), setting("segment.bytes", "7")];
        assert_eq!(put(&mut config, &accepted), ["retention.ms"]);
        assert_eq!(value(&config, "retention.ms").as_deref(), Some("2000"));
        assert_eq!(put(&mut config, &accepted), [] as [&str; 0]);
    }
}
