//! Conformance cases: a message is read back as it was produced, byte for byte.

use keylane_core::message::KEY_BYTES_MAX;
use keylane_core::{Delivery, Draft, Frames};

use super::client::read_from;
use super::rig::{Rig, with_spec, with_topic};
use crate::contract::{Broker, TopicSpec};

/// Produces the drafts to partition 0 in one call, and reads them back.
async fn round_trip(broker: &dyn Broker, topic: &str, drafts: &[Draft<'_>]) -> Vec<Delivery> {
    let mut frames = Frames::default();
    for draft in drafts {
        frames.push(0, draft).expect("a valid draft");
    }
    let results = broker.produce(topic, frames).await;
    let first = *results[0].as_ref().expect("taken");
    let read = read_from(broker, topic, 0, first, drafts.len()).await;
    assert_eq!(read.len(), drafts.len());
    for (draft, delivery) in drafts.iter().zip(&read) {
        assert_eq!(delivery.id(), draft.id);
        assert_eq!(delivery.key(), draft.key);
        assert_eq!(delivery.payload(), draft.payload);
        assert!(delivery.headers().eq(draft.headers.iter().copied()));
        assert_eq!(delivery.version(), draft.version);
        assert_eq!(delivery.produced_ms(), draft.produced_ms);
    }
    read
}

/// MSG-1.
pub async fn a_null_payload_is_not_an_empty_one(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let draft = |payload| Draft { id: "id", payload, ..Draft::default() };
    let drafts = [draft(None), draft(Some(b"")), draft(Some(b"\0"))];
    let read = round_trip(&*broker, &topic, &drafts).await;
    assert_eq!((read[0].payload(), read[1].payload()), (None, Some(&b""[..])));
}

/// MSG-3.
pub async fn an_empty_key_is_a_key_and_the_longest_key_fits(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let longest: Vec<u8> = (0..KEY_BYTES_MAX).map(|index| index as u8).collect();
    let draft = |key| Draft { id: "id", key, ..Draft::default() };
    let drafts = [draft(None), draft(Some(b"")), draft(Some(&longest))];
    let read = round_trip(&*broker, &topic, &drafts).await;
    assert_eq!((read[0].key(), read[1].key()), (None, Some(&b""[..])));
}

/// MSG-3: headers are an ordered list, in which names may repeat.
pub async fn headers_keep_their_order_and_their_bytes(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let headers: [(&str, &[u8]); 6] =
        [("z", b"1"), ("a", b""), ("z", b"2"), ("Größe", &all_bytes), ("", b"no name"), ("a", b"\xff\x00")];
    let draft = Draft { id: "id", headers: &headers, ..Draft::default() };
    round_trip(&*broker, &topic, &[draft]).await;
}

/// MSG-1, BRK-5: ids, versions and times are kept, the append time included.
pub async fn ids_versions_and_times_are_kept(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let draft = |id, version, produced_ms| Draft { id, version, produced_ms, ..Draft::default() };
    let long = "i".repeat(1024);
    let drafts = [
        draft("a", None, 0),
        draft("urn:x/ü", Some(0), 1_700_000_000_000),
        draft(&long, Some(u64::MAX), u64::MAX),
    ];
    let mut times: Vec<u64> = Vec::new();
    for _ in 0..3 {
        let read = round_trip(&*broker, &topic, &drafts).await;
        times.extend(read.iter().map(Delivery::appended_ms));
    }
    assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    let own = Draft { id: "foreign", appended_ms: Some(77), ..Draft::default() };
    assert_eq!(round_trip(&*broker, &topic, &[own]).await[0].appended_ms(), 77);
}

/// MSG-1.
pub async fn a_message_as_large_as_the_limit_is_taken(rig: &mut dyn Rig) {
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    let (broker, topic) = with_spec(rig, &spec).await;
    let mut empty = Frames::default();
    let draft = Draft { id: "id", payload: Some(b""), ..Draft::default() };
    empty.push(0, &draft).expect("a valid draft");
    let payload = vec![7; spec.message_bytes_max - empty.bytes()];
    let largest = Draft { payload: Some(&payload), ..draft };
    round_trip(&*broker, &topic.name, &[largest, draft, largest]).await;
}

/// MSG-3.
pub async fn every_byte_of_a_payload_is_kept(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let payloads: Vec<&[u8]> = vec![b"{\"a\" : 1.0e0 ,\n \"a\":2}", &bytes[..256], &bytes, b"\r\n\0"];
    let drafts: Vec<Draft<'_>> = payloads
        .into_iter()
        .map(|payload| Draft { id: "id", key: Some(b"k"), payload: Some(payload), ..Draft::default() })
        .collect();
    round_trip(&*broker, &topic, &drafts).await;
}
