//! Writes a set of positions in few bytes: the form of `done` in records and snapshots (COM-3, PRF-6).
//!
//! A [`Ranges`] comes in and its bytes go out, or the other way round. The bytes are the set's first position, its
//! span, and, unless the set is one range, Rice-coded numbers in the cheapest of three readings: the missing positions,
//! the present positions, or the lengths of the runs. For scattered positions one of the first two is close to entropy;
//! for positions in runs the third is far smaller.
//!
//! Invariants: each set has one form; bytes that do not describe a set exactly are refused; reading takes memory in
//! proportion to the number of bytes, whatever the bytes say.

use std::ops::Range;

use super::ranges::Ranges;
use crate::journal::{Malformed, put_varint, take_varint};

/// A quotient of this length or more is replaced by the number in full: coded in unary, an outlier would cost its size
/// in bits.
const QUOTIENT_MAX: u64 = 24;
/// The scattered readings are tried only if they need at most this many numbers for each range of the set.
const NUMBERS_PER_RANGE: u64 = 8;
/// The most bytes that a range takes: two numbers with an escaped quotient and 64 bits each, and a share of the fixed
/// part.
pub(crate) const RANGE_BYTES_MAX: usize = 22;

const MISSING: u8 = 0;
const PRESENT: u8 = 1;
const RUNS: u8 = 2;

/// Appends the form of `set` to `out`; nothing for the empty set.
pub fn put_ranges(out: &mut Vec<u8>, set: &Ranges) {
    let (Some(first), Some(last)) = (set.iter().next(), set.iter().next_back()) else {
        return;
    };
    put_varint(out, first.start);
    put_varint(out, last.end - first.start);
    if set.len() > 1 {
        put_scattered(out, set, last.end - first.start);
    }
}

/// Reads a form that fills `bytes` exactly.
pub fn read_ranges(mut bytes: &[u8]) -> Result<Ranges, Malformed> {
    if bytes.is_empty() {
        return Ok(Ranges::new());
    }
    let start = take_varint(&mut bytes)?;
    let span = take_varint(&mut bytes)?;
    let end = start.checked_add(span).ok_or(Malformed("a range beyond 2^64"))?;
    if span == 0 {
        return Err(Malformed("an empty range"));
    }
    let Some((&head, rest)) = bytes.split_first() else {
        return Ok(one(start..end));
    };
    match head >> 6 {
        MISSING => read_missing(start, end, Numbers::new(rest, head & 63)),
        PRESENT => read_present(start, end, Numbers::new(rest, head & 63)),
        RUNS => {
            let (&second, rest) = rest.split_first().ok_or(Malformed("runs without a second parameter"))?;
            if second > 63 {
                return Err(Malformed("a parameter over 63"));
            }
            read_runs(start, end, Numbers::new(rest, head & 63), second)
        }
        _ => Err(Malformed("an unknown reading of a set")),
    }
}

fn put_scattered(out: &mut Vec<u8>, set: &Ranges, span: u64) {
    let few = NUMBERS_PER_RANGE.saturating_mul(set.len() as u64);
    let present = set.positions();
    let lengths: Vec<u64> = set.iter().map(|range| range.end - range.start - 1).collect();
    let holes: Vec<u64> = holes(set).map(|hole| hole.end - hole.start - 1).collect();
    let (of_lengths, of_holes) = (parameter(&lengths), parameter(&holes));
    let mut best = (of_lengths.1 + of_holes.1 + 8, RUNS, of_lengths.0, Vec::new());
    for (reading, count) in [(MISSING, span - present), (PRESENT, present)] {
        if count <= few {
            let gaps = if reading == MISSING { missing_gaps(set) } else { present_gaps(set) };
            let (k, bits) = parameter(&gaps);
            if bits < best.0 {
                best = (bits, reading, k, gaps);
            }
        }
    }
    let (_, reading, k, gaps) = best;
    out.push(reading << 6 | k);
    let mut bits = BitWriter::new(out);
    if reading == RUNS {
        bits.out.push(of_holes.0);
        bits.put(lengths[0], k);
        for (hole, length) in holes.iter().zip(&lengths[1..]) {
            bits.put(*hole, of_holes.0);
            bits.put(*length, k);
        }
    } else {
        gaps.iter().for_each(|gap| bits.put(*gap, k));
    }
}

fn holes(set: &Ranges) -> impl Iterator<Item = Range<u64>> + '_ {
    set.iter().zip(set.iter().skip(1)).map(|(left, right)| left.end..right.start)
}

/// For each missing position, how far it lies behind the one before. The set's end is coded as a missing position, too,
/// which ends the list.
fn missing_gaps(set: &Ranges) -> Vec<u64> {
    let mut gaps = Vec::new();
    let mut next = set.iter().next().map_or(0, |range| range.start);
    let end = set.iter().next_back().map_or(0, |range| range.end);
    for position in holes(set).flatten() {
        gaps.push(position - next);
        next = position + 1;
    }
    gaps.push(end - next);
    gaps
}

/// For each present position except the first, which is known, how far it lies behind the one before.
fn present_gaps(set: &Ranges) -> Vec<u64> {
    let mut gaps = Vec::new();
    let mut next = set.iter().next().map_or(0, |range| range.start + 1);
    for position in set.iter().flatten().skip(1) {
        gaps.push(position - next);
        next = position + 1;
    }
    gaps
}

/// The Rice parameter with which `numbers` take the fewest bits, and that number of bits.
fn parameter(numbers: &[u64]) -> (u8, u64) {
    let widest = numbers.iter().max().map_or(0, |max| 64 - max.leading_zeros()) as u8;
    let cost = |k: u8| -> u64 {
        let bits = |number: &u64| match number >> k {
            quotient if quotient < QUOTIENT_MAX => quotient + 1 + u64::from(k),
            _ => QUOTIENT_MAX + 64,
        };
        numbers.iter().map(bits).sum()
    };
    let best = (0..=widest.min(63)).map(|k| (cost(k), k)).min().unwrap_or((0, 0));
    (best.1, best.0)
}

fn read_missing(start: u64, end: u64, mut numbers: Numbers<'_>) -> Result<Ranges, Malformed> {
    let mut set = Ranges::new();
    let mut next = start;
    loop {
        let missing = numbers.behind(next, end)?;
        set.insert(next..missing);
        if missing == end {
            break;
        }
        next = missing + 1;
    }
    numbers.finish()?;
    Ok(set)
}

fn read_present(start: u64, end: u64, mut numbers: Numbers<'_>) -> Result<Ranges, Malformed> {
    let mut set = one(start..start + 1);
    let mut next = start + 1;
    while next < end {
        let position = numbers.behind(next, end - 1)?;
        set.insert(position..position + 1);
        next = position + 1;
    }
    numbers.finish()?;
    Ok(set)
}

fn read_runs(start: u64, end: u64, mut numbers: Numbers<'_>, of_holes: u8) -> Result<Ranges, Malformed> {
    let of_lengths = numbers.k;
    let mut set = Ranges::new();
    let mut next = start;
    loop {
        numbers.k = of_lengths;
        let last = numbers.behind(next, end - 1)?;
        set.insert(next..last + 1);
        if last + 1 == end {
            break;
        }
        numbers.k = of_holes;
        next = numbers.behind(last + 1, end - 1)? + 1;
        if next == end {
            return Err(Malformed("a set that ends with a hole"));
        }
    }
    numbers.finish()?;
    Ok(set)
}

fn one(range: Range<u64>) -> Ranges {
    let mut set = Ranges::new();
    set.insert(range);
    set
}

struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    /// How many bits of the last byte are used; 0 if a new byte must be begun.
    used: u32,
}

impl BitWriter<'_> {
    fn new(out: &mut Vec<u8>) -> BitWriter<'_> {
        BitWriter { out, used: 0 }
    }

    fn bit(&mut self, bit: bool) {
        if self.used == 0 {
            self.out.push(0);
        }
        if let Some(last) = self.out.last_mut() {
            *last |= u8::from(bit) << self.used;
        }
        self.used = (self.used + 1) % 8;
    }

    fn bits(&mut self, value: u64, count: u32) {
        (0..count).for_each(|at| self.bit(value >> at & 1 == 1));
    }

    fn put(&mut self, number: u64, k: u8) {
        let quotient = number >> k;
        (0..quotient.min(QUOTIENT_MAX)).for_each(|_| self.bit(true));
        if quotient < QUOTIENT_MAX {
            self.bit(false);
            self.bits(number, u32::from(k));
        } else {
            self.bits(number, 64);
        }
    }
}

struct Numbers<'a> {
    bytes: &'a [u8],
    at: usize,
    k: u8,
}

impl Numbers<'_> {
    fn new(bytes: &[u8], k: u8) -> Numbers<'_> {
        Numbers { bytes, at: 0, k }
    }

    fn bit(&mut self) -> Result<bool, Malformed> {
        let byte = self.bytes.get(self.at / 8).ok_or(Malformed("a set that is cut off"))?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Ok(bit == 1)
    }

    fn bits(&mut self, count: u32) -> Result<u64, Malformed> {
        (0..count).try_fold(0, |value, at| Ok(value | u64::from(self.bit()?) << at))
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let mut quotient = 0;
        while quotient < QUOTIENT_MAX && self.bit()? {
            quotient += 1;
        }
        if quotient == QUOTIENT_MAX {
            return self.bits(64);
        }
        let high = u128::from(quotient) << self.k;
        let number = high | u128::from(self.bits(u32::from(self.k))?);
        u64::try_from(number).map_err(|_| Malformed("a number over 64 bits"))
    }

    /// Reads a number and adds it to `from`; an error if the resulting position is above `last`.
    fn behind(&mut self, from: u64, last: u64) -> Result<u64, Malformed> {
        match from.checked_add(self.number()?) {
            Some(position) if position <= last => Ok(position),
            _ => Err(Malformed("a set beyond its span")),
        }
    }

    /// Ends reading: only the zero bits that fill the last byte may be left.
    fn finish(mut self) -> Result<(), Malformed> {
        if self.at.div_ceil(8) != self.bytes.len() {
            return Err(Malformed("bytes behind a set"));
        }
        while !self.at.is_multiple_of(8) {
            if self.bit()? {
                return Err(Malformed("bits behind a set"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(set: &Ranges) -> Vec<u8> {
        let mut out = Vec::new();
        put_ranges(&mut out, set);
        out
    }

    /// Well mixed numbers in a fixed sequence.
    fn mixed(seed: u64) -> impl FnMut() -> u64 {
        let mut at = seed;
        move || crate::random::next(&mut at)
    }

    /// PRF-6: from 1 % incomplete upwards, and as close to all incomplete, a set takes at most 1.05 times its entropy.
    #[test]
    fn a_scattered_set_takes_at_most_1_05_of_its_entropy() {
        const WINDOW: u64 = 100_000;
        let mut random = mixed(6);
        for permille in [10u64, 20, 30, 50, 100, 200, 300, 382, 450, 500, 550, 618, 700, 800, 900, 950, 990] {
            let done: Ranges = (0..WINDOW)
                .filter(|_| random() % 1000 >= permille)
                .map(|p| 5_000_000 + p..5_000_001 + p)
                .collect();
            let share = done.positions() as f64 / WINDOW as f64;
            let entropy =
                -(share * share.log2() + (1.0 - share) * (1.0 - share).log2()) * WINDOW as f64 / 8.0;
            let ratio = bytes_of(&done).len() as f64 / entropy;
            println!("{permille} ‰ incomplete: {} bytes, {ratio:.3} × entropy", bytes_of(&done).len());
            assert!(ratio <= 1.05, "{permille} ‰ incomplete: {ratio:.4} × entropy");
            assert_eq!(read_ranges(&bytes_of(&done)), Ok(done));
        }
    }

    /// PRF-6: positions in runs take far less than a bit each.
    #[test]
    fn runs_are_coded_as_runs() {
        let done: Ranges = (0..100u64).map(|i| i * 10_000..i * 10_000 + 9_000 + i).collect();
        assert!(bytes_of(&done).len() < 500, "{}", bytes_of(&done).len());
        assert_eq!(read_ranges(&bytes_of(&done)), Ok(done));
    }

    proptest! {
        /// COM-3: nothing is lost, up to the highest position there is.
        #[test]
        fn a_set_is_read_back_as_it_was(
            ranges in proptest::collection::vec((any::<u64>(), 0u32..64, 1u64..50), 0..60), shift in 0u32..64,
        ) {
            let set: Ranges = ranges.into_iter().map(|(start, narrow, length)| {
                let start = (start >> shift) >> (narrow % 4);
                start..start.saturating_add(length)
            }).collect();
            let bytes = bytes_of(&set);
            prop_assert!(bytes.len() <= RANGE_BYTES_MAX * (set.len() + 1), "{} for {}", bytes.len(), set.len());
            prop_assert_eq!(read_ranges(&bytes), Ok(set));
        }

        /// Reading any bytes ends with an answer, and a set that was read has one form.
        #[test]
        fn bytes_from_anywhere_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(set) = read_ranges(&bytes) {
                prop_assert_eq!(read_ranges(&bytes_of(&set)), Ok(set));
            }
        }
    }
}
