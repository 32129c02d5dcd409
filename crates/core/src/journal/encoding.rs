//! The bytes that records are made of: numbers, and fields as (tag, length, bytes) in ascending order of tags.
//!
//! Values come in and bytes go out, or the other way round. A field whose tag the reader does not know is an error: a
//! newer version wrote it, and its value may decide what counts. Only unknown fields with tags of [`SKIPPABLE`] or
//! above are skipped: writers put there only what a reader can do without.

/// An error: the bytes are not a valid record. Carries what is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A reader skips unknown fields whose tags are this or higher.
pub const SKIPPABLE: u8 = 128;

/// Appends a number: seven bits a byte, the lowest first, the top bit set on all bytes but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front of `bytes`.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(bytes)?;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return Err(Malformed("a number over 64 bits"));
        }
        value |= part << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed("a number over 64 bits"))
}

/// Takes the first byte of `bytes`.
pub(super) fn take_byte(bytes: &mut &[u8]) -> Result<u8, Malformed> {
    let (&first, rest) = bytes.split_first().ok_or(Malformed("cut off"))?;
    *bytes = rest;
    Ok(first)
}

/// Takes a 128-bit id off the front of `bytes`.
pub(super) fn take_id(bytes: &mut &[u8]) -> Result<u128, Malformed> {
    let (id, rest) = bytes.split_first_chunk::<16>().ok_or(Malformed("an id that is cut off"))?;
    *bytes = rest;
    Ok(u128::from_le_bytes(*id))
}

/// Appends an optional number: a flag byte that says whether there is one, then the number.
pub(super) fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put_varint(out, value);
    }
}

/// Takes an optional number off the front of `bytes`.
pub(super) fn take_option(bytes: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    Ok(if take_flag(bytes)? { Some(take_varint(bytes)?) } else { None })
}

/// Takes a flag byte, 0 or 1, off the front of `bytes`.
pub(super) fn take_flag(bytes: &mut &[u8]) -> Result<bool, Malformed> {
    match take_byte(bytes)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("neither yes nor no")),
    }
}

/// Takes a number that must fit into 32 bits off the front of `bytes`.
pub(super) fn take_u32(bytes: &mut &[u8]) -> Result<u32, Malformed> {
    u32::try_from(take_varint(bytes)?).map_err(|_| Malformed("a number over 32 bits"))
}

/// Takes a number that must fit into 8 bits off the front of `bytes`.
pub(super) fn take_u8(bytes: &mut &[u8]) -> Result<u8, Malformed> {
    u8::try_from(take_varint(bytes)?).map_err(|_| Malformed("a number over 8 bits"))
}

/// Reads all of `bytes` as UTF-8 text.
pub(super) fn text(bytes: &[u8]) -> Result<String, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed("text that is not UTF-8"))?;
    Ok(text.to_owned())
}

/// Reads items one after another; together they must fill `bytes` exactly.
pub(super) fn list<T>(
    mut bytes: &[u8],
    item: impl Fn(&mut &[u8]) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        items.push(item(&mut bytes)?);
    }
    Ok(items)
}

/// Reads one value that must fill `bytes` exactly.
pub(super) fn whole<T>(
    mut bytes: &[u8],
    value: impl Fn(&mut &[u8]) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let value = value(&mut bytes)?;
    if bytes.is_empty() { Ok(value) } else { Err(Malformed("bytes behind a field's value")) }
}

/// Writes the fields of a record; the caller must write them in ascending order of tags.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    out: &'a mut Vec<u8>,
    last: u8,
}

impl<'a> Fields<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Fields<'a> {
        Fields { out, last: 0 }
    }

    /// Writes a field whose value is what `fill` appends.
    pub(super) fn put(&mut self, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        assert!(tag > self.last, "fields are written in ascending tags");
        self.last = tag;
        let mut value = Vec::new();
        fill(&mut value);
        self.out.push(tag);
        put_varint(self.out, value.len() as u64);
        self.out.extend_from_slice(&value);
    }

    pub(super) fn number(&mut self, tag: u8, value: u64) {
        self.put(tag, |out| put_varint(out, value));
    }

    pub(super) fn number_if(&mut self, tag: u8, value: Option<u64>) {
        if let Some(value) = value {
            self.number(tag, value);
        }
    }

    pub(super) fn id(&mut self, tag: u8, value: u128) {
        self.put(tag, |out| out.extend_from_slice(&value.to_le_bytes()));
    }

    pub(super) fn text(&mut self, tag: u8, value: &str) {
        self.put(tag, |out| out.extend_from_slice(value.as_bytes()));
    }

    pub(super) fn mark_if(&mut self, tag: u8, set: bool) {
        if set {
            self.put(tag, |_| {});
        }
    }

    pub(super) fn list<T>(&mut self, tag: u8, items: &[T], item: impl Fn(&mut Vec<u8>, &T)) {
        if !items.is_empty() {
            self.put(tag, |out| items.iter().for_each(|one| item(out, one)));
        }
    }
}

/// Reads the fields of a record one by one. The caller must ask for every tag below [`SKIPPABLE`] that may be present;
/// a field below it that was not asked for is an error.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
    ahead: Option<(u8, &'a [u8])>,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Result<FieldReader<'a>, Malformed> {
        let mut reader = FieldReader { rest, ahead: None };
        reader.advance(0)?;
        Ok(reader)
    }

    fn advance(&mut self, last: u8) -> Result<(), Malformed> {
        self.ahead = None;
        if self.rest.is_empty() {
            return Ok(());
        }
        let tag = take_byte(&mut self.rest)?;
        if tag <= last {
            return Err(Malformed("fields that do not ascend"));
        }
        let length = take_varint(&mut self.rest)?;
        if length > self.rest.len() as u64 {
            return Err(Malformed("a field that is cut off"));
        }
        let (value, rest) = self.rest.split_at(length as usize);
        (self.ahead, self.rest) = (Some((tag, value)), rest);
        Ok(())
    }

    /// The field with that tag, if present. The caller must ask for tags in ascending order.
    pub(super) fn maybe(&mut self, tag: u8) -> Result<Option<&'a [u8]>, Malformed> {
        self.pass(|there| there < tag)?;
        match self.ahead {
            Some((there, value)) if there == tag => {
                self.advance(tag)?;
                Ok(Some(value))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn needed(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        self.maybe(tag)?.ok_or(Malformed("a field is missing"))
    }

    pub(super) fn number(&mut self, tag: u8) -> Result<u64, Malformed> {
        whole(self.needed(tag)?, take_varint)
    }

    pub(super) fn number_if(&mut self, tag: u8) -> Result<Option<u64>, Malformed> {
        self.maybe(tag)?.map(|value| whole(value, take_varint)).transpose()
    }

    pub(super) fn id(&mut self, tag: u8) -> Result<u128, Malformed> {
        whole(self.needed(tag)?, take_id)
    }

    pub(super) fn text(&mut self, tag: u8) -> Result<String, Malformed> {
        text(self.needed(tag)?)
    }

    pub(super) fn mark(&mut self, tag: u8) -> Result<bool, Malformed> {
        match self.maybe(tag)? {
            None => Ok(false),
            Some([]) => Ok(true),
            Some(_) => Err(Malformed("a mark with a value")),
        }
    }

    pub(super) fn list<T>(
        &mut self,
        tag: u8,
        item: impl Fn(&mut &[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        list(self.maybe(tag)?.unwrap_or_default(), item)
    }

    /// Ends reading: an error if a field is left that must not be skipped.
    pub(super) fn finish(mut self) -> Result<(), Malformed> {
        self.pass(|_| true)
    }

    /// Passes over the next fields while `over` accepts their tags; an error if one of them must not be skipped.
    fn pass(&mut self, over: impl Fn(u8) -> bool) -> Result<(), Malformed> {
        while let Some((there, _)) = self.ahead.filter(|(there, _)| over(*there)) {
            if there < SKIPPABLE {
                return Err(Malformed("a field that this version does not know"));
            }
            self.advance(there)?;
        }
        Ok(())
    }
}
