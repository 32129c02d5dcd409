//! What the leaders of partitions are asked: where their logs begin and end, and to cut them.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use super::AskingClient;
use super::errors::{broker_error, lacking};
use super::topics::{ASK, Admin, blocking, options};
use crate::contract::{BrokerError, Ends};

/// How long until a partition without a leader is asked about again.
const LEADER_WAIT: Duration = Duration::from_millis(100);
/// How long a leader may take to say where its partitions end. One that was killed never does, and the client goes on
/// waiting for it though there is another by then.
const LEADER_ASK: Duration = Duration::from_secs(3);

impl Admin {
    /// Where partitions of a topic begin and end.
    pub(crate) async fn ends(&self, topic: &str, partitions: Vec<u32>) -> Result<Vec<Ends>, BrokerError> {
        self.patiently(topic, partitions, true).await
    }

    /// Where partitions of a topic end.
    pub(crate) async fn tails(&self, topic: &str, partitions: Vec<u32>) -> Result<Vec<u64>, BrokerError> {
        let ends = self.patiently(topic, partitions, false).await?;
        Ok(ends.iter().map(|ends| ends.end).collect())
    }

    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    async fn patiently(
        &self,
        topic: &str,
        partitions: Vec<u32>,
        with_starts: bool,
    ) -> Result<Vec<Ends>, BrokerError> {
        let patiently = async {
            loop {
                match self.ends_now(topic, &partitions, with_starts).await {
                    // A partition that was just made, or whose leader has just changed, has no leader for a moment.
                    Err(BrokerError::Unavailable(_)) => {}
                    // The client may have forgotten it with the broker that led it.
                    Err(BrokerError::UnknownTopic(_)) if self.topic(topic).await?.is_some() => {}
                    other => return other,
                }
                self.find_leaders(topic).await?;
                tokio::time::sleep(LEADER_WAIT).await;
            }
        };
        let none = |_| BrokerError::Unavailable(format!("no leader of {topic} says where it ends"));
        tokio::time::timeout(ASK, patiently).await.map_err(none)?
    }

    /// Whether a partition has a leader that answers.
    pub(crate) async fn takes(&self, topic: &str, partition: u32) -> Result<(), BrokerError> {
        // Who led it before may be gone, and would be waited for.
        self.find_leaders(topic).await?;
        self.ask(&self.asker, topic, vec![partition], Offset::End).await.map(drop)
    }

    /// Has the client ask who leads a topic's partitions now: by itself it would ask again in some minutes.
    async fn find_leaders(&self, topic: &str) -> Result<(), BrokerError> {
        let (asker, name) = (Arc::clone(&self.asker), topic.to_owned());
        let look = self.context.noting(move || asker.fetch_metadata(Some(&name), LEADER_ASK));
        match blocking(look).await? {
            Ok(_) => Ok(()),
            // The cluster as a whole is away, or does not let us in; otherwise the next question says what is wrong.
            Err(_) => self.context.trouble().map_or(Ok(()), Err),
        }
    }

    /// Without starts, these are 0.
    async fn ends_now(
        &self,
        topic: &str,
        partitions: &[u32],
        with_starts: bool,
    ) -> Result<Vec<Ends>, BrokerError> {
        let starts = match with_starts {
            true => self.ask(&self.asker, topic, partitions.to_vec(), Offset::Beginning).await?,
            false => vec![0; partitions.len()],
        };
        let ends = self.ask(&self.asker, topic, partitions.to_vec(), Offset::End).await?;
        Ok(starts.into_iter().zip(ends).map(|(start, end)| Ends { start, end }).collect())
    }

    /// Where partitions begin or end as this client sees it, asked once.
    pub(super) async fn ask(
        &self,
        asker: &Arc<AskingClient>,
        topic: &str,
        partitions: Vec<u32>,
        offset: Offset,
    ) -> Result<Vec<u64>, BrokerError> {
        let (asker, name) = (Arc::clone(asker), topic.to_owned());
        let asked = blocking(self.context.noting(move || {
            // It never reads; what it has to say is its log lines.
            while asker.poll(Duration::ZERO).is_some() {}
            let mut list = TopicPartitionList::with_capacity(partitions.len());
            for partition in &partitions {
                list.add_partition_offset(&name, *partition as i32, offset)?;
            }
            let told = asker.offsets_for_times(list, LEADER_ASK)?;
            let at = |partition: &u32| -> Result<u64, KafkaError> {
                let element = told.find_partition(&name, *partition as i32);
                let element = element.ok_or(KafkaError::OffsetFetch(RDKafkaErrorCode::UnknownPartition))?;
                element.error()?;
                Ok(element.offset().to_raw().and_then(|raw| u64::try_from(raw).ok()).unwrap_or(0))
            };
            partitions.iter().map(at).collect::<Result<Vec<u64>, KafkaError>>()
        }));
        let told = self.context.answer(asked).await?;
        told.map_err(|error| self.told(broker_error(topic, &error)))
    }

    /// Forgets everything of a partition below an offset.
    pub(crate) async fn cut(&self, topic: &str, partition: u32, below: u64) -> Result<(), BrokerError> {
        let failed = |error: KafkaError| broker_error(topic, &error);
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition as i32, Offset::Offset(below as i64)).map_err(failed)?;
        // It goes to the leader of this moment, and waits for it even if it is gone. The next cut takes it along.
        let cutting = options().request_timeout(Some(LEADER_ASK));
        let cut = self.asked(self.client.delete_records(&list, &cutting), topic).await?;
        let cut = cut.elements().iter().try_for_each(|element| element.error()).map_err(failed);
        cut.map_err(|error| lacking(error, "DELETE on the topic"))
    }
}
