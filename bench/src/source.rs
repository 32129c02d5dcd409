//! Makes messages without I/O, as fast as a core can, for Keylane and for its raw limit alike.
//!
//! A message has an 8-byte id, a 16-byte key and 200 bytes of payload, of which the first 8 are free for a time stamp.
//! Keys belong to partitions. The order of keys is drawn beforehand, so that drawing costs nothing while measuring.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use keylane_core::{Batch, Draft};

/// Partitions of the synthetic topic.
pub(crate) const PARTITIONS: u32 = 16;
/// Messages of a batch.
pub(crate) const BATCH: u64 = 1024;

const KEY_BYTES: usize = 16;
const PAYLOAD_BYTES: usize = 200;
/// Keys drawn for each partition; they are used again and again.
const DRAWN: usize = 1 << 16;

/// How keys are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Draw {
    /// All keys equally often.
    Uniform,
    /// The n-th key 1/n as often as the first.
    Zipf,
    /// One after another.
    InTurn,
}

/// What messages look like.
pub(crate) struct Source {
    /// A frame in which delta, key and stamp are filled in.
    template: Vec<u8>,
    key_at: usize,
    payload_at: usize,
    /// By partition.
    keys: Vec<Vec<u32>>,
}

impl Source {
    /// Messages of `keys` keys.
    pub(crate) fn new(keys: u32, draw: Draw) -> Arc<Source> {
        let mut template = BytesMut::new();
        let draft = Draft {
            id: "01234567",
            key: Some(&[0; KEY_BYTES]),
            payload: Some(&[b'x'; PAYLOAD_BYTES]),
            ..Draft::default()
        };
        draft.encode(&mut template).expect("within all bounds");
        let payload_at = template.len() - PAYLOAD_BYTES;
        Arc::new(Source {
            key_at: payload_at - KEY_BYTES,
            payload_at,
            template: template.to_vec(),
            keys: (0..PARTITIONS)
                .map(|at| drawn(keys / PARTITIONS + u32::from(at < keys % PARTITIONS), draw, at))
                .collect(),
        })
    }

    /// Bytes of a frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.template.len()
    }

    /// Messages `from` to `to` of a partition, with a stamp.
    pub(crate) fn batch(&self, partition: u32, from: u64, to: u64, stamp: u64) -> Batch {
        let count = (to - from) as usize;
        let keys = &self.keys[partition as usize];
        let mut frames = Vec::with_capacity(count * self.template.len());
        for delta in 0..count {
            let at = frames.len();
            frames.extend_from_slice(&self.template);
            let frame = &mut frames[at..];
            let key = keys[(from as usize + delta) % DRAWN] * PARTITIONS + partition;
            frame[4..8].copy_from_slice(&(delta as u32).to_le_bytes());
            frame[self.key_at..self.key_at + 4].copy_from_slice(&key.to_le_bytes());
            frame[self.payload_at..self.payload_at + 8].copy_from_slice(&stamp.to_le_bytes());
        }
        Batch {
            partition,
            base: from,
            next: to,
            appended_ms: 0,
            count: count as u32,
            frames: Bytes::from(frames),
        }
    }
}

/// The stamp of a message.
pub(crate) fn stamp_of(payload: Option<&[u8]>) -> u64 {
    payload.and_then(|payload| payload.first_chunk::<8>()).map_or(0, |stamp| u64::from_le_bytes(*stamp))
}

/// The keys in the order in which they come.
pub(crate) fn drawn(keys: u32, draw: Draw, partition: u32) -> Vec<u32> {
    let mut random = Random(0x5eed + u64::from(partition));
    match draw {
        Draw::InTurn => (0..DRAWN as u32).map(|at| at % keys).collect(),
        Draw::Uniform => (0..DRAWN).map(|_| (random.share() * f64::from(keys)) as u32).collect(),
        Draw::Zipf => {
            let mut sum = 0.0;
            let below: Vec<f64> = (1..=keys)
                .map(|rank| {
                    sum += 1.0 / f64::from(rank);
                    sum
                })
                .collect();
            let draw = |_| {
                let at = random.share() * sum;
                below.partition_point(|below| *below <= at).min(keys as usize - 1) as u32
            };
            (0..DRAWN).map(draw).collect()
        }
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        keylane_core::random::next(&mut self.0)
    }

    /// From 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
