//! What a row means: a message, or why it cannot be one.

use bytes::Bytes;
use keylane_core::Draft;
use serde::de::{Deserializer, MapAccess, Visitor};
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type, TypeInfo as _, ValueRef as _};

/// A row as it was read.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Its place in the table's order.
    pub(super) seq: i64,
    pub(super) topic: String,
    pub(super) key: Option<Bytes>,
    /// It was tried before, and refused.
    pub(super) was_refused: bool,
    body: Result<Body, String>,
}

#[derive(Debug, Clone)]
struct Body {
    id: String,
    payload: Option<Bytes>,
    headers: Vec<(String, String)>,
    version: Option<u64>,
    created_ms: Option<u64>,
}

/// What [`super::table::Table::read`] reads.
const COLUMNS: [&str; 9] =
    ["seq", "id", "topic", "key", "payload", "headers", "version", "attempts", "created_at"];

impl Row {
    /// Reads a row of [`super::table::Table::read`], or says what in it cannot be read: SQLite takes anything in any
    /// column.
    pub(super) fn of(row: &AnyRow) -> Result<Row, String> {
        let topic: Option<String> = cell(row, 2, "a text")?;
        let (id, headers): (Option<String>, Option<String>) =
            (cell(row, 1, "a text")?, cell(row, 5, "a text")?);
        let (version, created): (Option<i64>, Option<i64>) =
            (cell(row, 6, "a whole number")?, cell(row, 8, "a time")?);
        let attempts: Option<i64> = cell(row, 7, "a whole number")?;
        let payload = bytes(row, 4)?;
        let body = move || {
            Ok(Body {
                id: id.ok_or("the row has no id")?,
                payload,
                headers: headers.map_or(Ok(Vec::new()), |text| parse_headers(&text))?,
                version: version
                    .map(|version| {
                        u64::try_from(version)
                            .map_err(|_| format!("version is {version}; it must not be negative"))
                    })
                    .transpose()?,
                created_ms: created.and_then(|created| u64::try_from(created).ok()),
            })
        };
        Ok(Row {
            seq: cell(row, 0, "a whole number")?,
            topic: topic.unwrap_or_default(),
            key: bytes(row, 3)?,
            was_refused: attempts.is_some_and(|attempts| attempts > 0),
            body: body(),
        })
    }

    /// Lends the row as a draft, or says why it is none.
    pub(super) fn with_draft<T>(
        &self,
        now_ms: u64,
        use_it: impl FnOnce(&Draft<'_>) -> T,
    ) -> Result<T, String> {
        let body = self.body.as_ref().map_err(String::clone)?;
        let headers: Vec<(&str, &[u8])> =
            body.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        Ok(use_it(&Draft {
            id: &body.id,
            key: self.key.as_deref(),
            payload: body.payload.as_deref(),
            headers: &headers,
            version: body.version,
            produced_ms: body.created_ms.unwrap_or(now_ms),
            ..Draft::default()
        }))
    }

    /// Its id, if it can be a message.
    pub(super) fn id(&self) -> Option<&str> {
        self.body.as_ref().ok().map(|body| body.id.as_str())
    }

    /// True if a header's name is one that a broker may keep for itself.
    pub(super) fn has_reserved_header(&self) -> bool {
        let reserved = |name: &str| name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("keylane-"));
        self.body.as_ref().is_ok_and(|body| body.headers.iter().any(|(name, _)| reserved(name)))
    }

    /// About what it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.payload.as_ref().map_or(0, Bytes::len));
        body + self.key.as_ref().map_or(0, Bytes::len) + self.topic.len()
    }
}

/// What a cell holds, or what is wrong with it.
fn cell<'r, T>(row: &'r AnyRow, column: usize, wanted: &str) -> Result<T, String>
where
    T: Decode<'r, Any> + Type<Any>,
{
    row.try_get(column).map_err(|error| {
        let held = row.try_get_raw(column).map(|value| value.type_info().name().to_owned());
        let held = held.unwrap_or_else(|_| error.to_string());
        format!("its column {} holds {held}; {wanted} is wanted", COLUMNS[column])
    })
}

/// Bytes, or text as bytes: a caller may have made the column, or SQLite's cell, either. A whole number in a cell of
/// SQLite's is read as MySQL keeps it, as its digits.
fn bytes(row: &AnyRow, column: usize) -> Result<Option<Bytes>, String> {
    if let Ok(bytes) = row.try_get::<Option<Vec<u8>>, _>(column) {
        return Ok(bytes.map(Bytes::from));
    }
    if let Ok(number) = row.try_get::<i64, _>(column) {
        return Ok(Some(Bytes::from(number.to_string())));
    }
    Ok(cell::<Option<String>>(row, column, "bytes or a text")?.map(Bytes::from))
}

/// A JSON object of texts, in its order.
fn parse_headers(text: &str) -> Result<Vec<(String, String)>, String> {
    struct Headers;
    impl<'de> Visitor<'de> for Headers {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object whose values are texts")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut headers = Vec::new();
            while let Some(header) = map.next_entry()? {
                headers.push(header);
            }
            Ok(headers)
        }
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let headers = json.deserialize_map(Headers).and_then(|headers| json.end().map(|()| headers));
    headers.map_err(|error| {
        format!("headers must be a JSON object whose values are texts, such as {{\"a\":\"b\"}}: {error}")
    })
}
