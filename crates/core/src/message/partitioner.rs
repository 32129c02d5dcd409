//! Decides which partition a key belongs to: murmur2, computed like the Java Kafka client, on every broker (MSG-3).

const SEED: u32 = 0x9747_b28c;
const MIX: u32 = 0x5bd1_e995;
const SHIFT: u32 = 24;

/// The partition of `key` in a topic of `partitions` partitions.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    assert!(partitions > 0, "a topic has at least one partition");
    // Like the Java client, this clears the sign bit; taking the absolute value would give other partitions.
    (murmur2(key) & 0x7fff_ffff) % partitions
}

fn murmur2(key: &[u8]) -> u32 {
    let mut hash = SEED ^ (key.len() as u32);
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        k = k.wrapping_mul(MIX);
        k ^= k >> SHIFT;
        k = k.wrapping_mul(MIX);
        hash = hash.wrapping_mul(MIX) ^ k;
    }
    let tail = words.remainder();
    if tail.len() >= 3 {
        hash ^= u32::from(tail[2]) << 16;
    }
    if tail.len() >= 2 {
        hash ^= u32::from(tail[1]) << 8;
    }
    if let Some(first) = tail.first() {
        hash = (hash ^ u32::from(*first)).wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MSG-3. The six pairs come from the Java client's own tests of its murmur2.
    #[test]
    fn hashes_agree_with_the_java_client() {
        for (key, want) in [
            ("21", -973932308i32),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, want, "{key}");
        }
    }

    #[test]
    fn an_empty_key_is_a_key() {
        assert_eq!(partition_of(b"", 12), (murmur2(b"") & 0x7fff_ffff) % 12);
    }
}
