//! What a row means: a message, or why it cannot be one.

use bytes::Bytes;
use keylane_core::Draft;
use serde::de::{Deserializer, MapAccess, Visitor};
use sqlx::Row as _;
use sqlx::any::AnyRow;

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

impl Row {
    /// Reads a row of [`super::table::Table::read`].
    pub(super) fn of(row: &AnyRow) -> Result<Row, sqlx::Error> {
        let topic: Option<String> = row.try_get(2)?;
        let (id, headers): (Option<String>, Option<String>) = (row.try_get(1)?, row.try_get(5)?);
        let (version, created): (Option<i64>, Option<i64>) = (row.try_get(6)?, row.try_get(8)?);
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
            seq: row.try_get(0)?,
            topic: topic.unwrap_or_default(),
            key: bytes(row, 3)?,
            was_refused: row.try_get::<i64, _>(7)? > 0,
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
            appended_ms: None,
        }))
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

/// Bytes, or text as bytes: a caller may have made the column, or SQLite's cell, either.
fn bytes(row: &AnyRow, column: usize) -> Result<Option<Bytes>, sqlx::Error> {
    match row.try_get::<Option<Vec<u8>>, _>(column) {
        Ok(bytes) => Ok(bytes.map(Bytes::from)),
        Err(_) => Ok(row.try_get::<Option<String>, _>(column)?.map(Bytes::from)),
    }
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
