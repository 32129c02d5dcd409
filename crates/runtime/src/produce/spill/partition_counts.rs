//! What is here of a topic that got more partitions: by which number it went, and what has to go first (BRK-10).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::partition::SpillPartition;
use super::partitions::SpillPartitions;
use super::store::Place;

impl SpillPartitions {
    /// True if messages of the topic wait that went by another number of partitions: its keys may be among them.
    pub(super) fn waits_by_other(&self, topic: &str, partitions: u32) -> bool {
        let parts = self.parts.get(topic).into_iter().flatten();
        parts.into_iter().any(|((_, by), part)| *by != partitions && part.is_waiting())
    }

    /// The most partitions by which something of the topic is here. What goes by fewer would be sent before it.
    pub(super) fn number_of(&self, topic: &str) -> Option<u32> {
        let waiting = self.parts.get(topic).into_iter().flat_map(BTreeMap::values);
        let waiting = waiting.filter(|part| part.is_waiting()).map(|part| part.place.partitions);
        let refused = self.refused.iter().filter(|(place, aside)| *place.topic == *topic && aside.is_left());
        waiting.chain(refused.map(|(place, _)| place.partitions)).max()
    }

    /// True if messages of the topic were refused that went by another number.
    pub(super) fn refused_by_other(&self, topic: &str, partitions: u32) -> bool {
        let is_other = |place: &Place| *place.topic == *topic && place.partitions != partitions;
        self.refused.iter().any(|(place, aside)| is_other(place) && (aside.is_left() || aside.queued > 0))
    }

    /// Partitions that wait and may be brought to the broker: of a topic that got more partitions, what went by fewer goes
    /// first.
    pub(super) fn in_turn(&self) -> Vec<Arc<SpillPartition>> {
        let mut first = Vec::new();
        for (topic, parts) in &self.parts {
            let fewest = self.fewest(topic);
            let waiting = parts.values().filter(|part| part.is_waiting());
            first.extend(waiting.filter(|part| Some(part.place.partitions) == fewest).cloned());
        }
        first
    }

    /// The fewest partitions by which something of the topic waits.
    pub(super) fn fewest(&self, topic: &str) -> Option<u32> {
        let parts = self.parts.get(topic)?.values().filter(|part| part.is_waiting());
        parts.map(|part| part.place.partitions).min()
    }
}
