//! The OpenAPI description of the API (ING-7), which `/openapi.json` serves and `docs/openapi.json` holds. A test
//! compares the two with each other and with the routes.

use serde_json::{Value, json};

/// The OpenAPI document.
pub(crate) fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Keylane",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Producing needs the role `operate`, reading `read`; what is open says so. Errors are RFC 9457 problems; `type` leads to a page about each code.",
        },
        "servers": [{ "url": "/", "description": "This server" }],
        "security": [{ "bearer": [] }, { "admin_token": [] }, {}],
        "paths": paths(),
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "admin_token": { "type": "apiKey", "in": "header", "name": "X-Admin-Token" },
            },
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what to do.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
            "schemas": schemas(),
        },
    })
}

fn paths() -> Value {
    let mut paths = public_paths();
    if let (Some(all), Value::Object(admin)) = (paths.as_object_mut(), admin_paths()) {
        all.extend(admin);
    }
    for (path, method, id) in OPERATIONS {
        paths[path][method]["operationId"] = json!(id);
    }
    paths
}

/// The id of each operation. Generated clients use it as the name of a function, so changing one breaks callers.
const OPERATIONS: [(&str, &str, &str); 19] = [
    ("/v1/topics/{topic}/messages", "post", "produce"),
    ("/healthz", "get", "health"),
    ("/readyz", "get", "readiness"),
    ("/version", "get", "version"),
    ("/metrics", "get", "metrics"),
    ("/openapi.json", "get", "describe"),
    ("/", "get", "statusPage"),
    ("/errors/{code}", "get", "explainError"),
    ("/admin/pipelines", "get", "listPipelines"),
    ("/admin/lanes", "get", "listLanes"),
    ("/admin/topics", "get", "listTopics"),
    ("/admin/outbox", "get", "listOutboxes"),
    ("/admin/topics/{topic}/messages", "get", "readTopic"),
    ("/admin/topics/{topic}/accept", "post", "acceptPartitions"),
    ("/admin/topics/{topic}/forget-group", "post", "forgetGroup"),
    ("/admin/topics/{topic}/upgrade", "post", "upgradeJournals"),
    ("/admin/spill", "get", "showSpill"),
    ("/admin/spill/drain", "post", "drainSpill"),
    ("/admin/data/backup", "post", "backUp"),
];

fn public_paths() -> Value {
    json!({
        "/v1/topics/{topic}/messages": { "post": produce() },
        "/healthz": { "get": open("Alive; touches nothing", object(json!({ "status": { "const": "ok" } }))) },
        "/readyz": { "get": open("Ready for work, with `reasons` where something needs a look; or 503 with `reasons`", ready()) },
        "/version": { "get": open("Name and version", object(json!({
            "name": text(), "version": text(), "broker": text(),
        }))) },
        "/metrics": { "get": get("Metrics for Prometheus", &[], "application/openmetrics-text", text()) },
        "/openapi.json": { "get": open("This document", json!({ "type": "object" })) },
        "/": { "get": {
            "summary": "The status page", "security": [{}],
            "responses": { "200": content("HTML", "text/html", text()), "default": problem() },
        } },
        "/errors/{code}": { "get": {
            "summary": "What an error code means, and what to do", "security": [{}],
            "parameters": [path_parameter("code")],
            "responses": { "200": content("Markdown", "text/markdown", text()), "default": problem() },
        } },
    })
}

fn admin_paths() -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    json!({
        "/admin/pipelines": { "get": get("Pipelines", &[], "application/json", list("pipelines", "Pipeline")) },
        "/admin/lanes": { "get": get("Lanes", &[
            query("pipeline", "Only this one's", text()),
            query("sort", "What comes first", json!({ "enum": ["depth", "waiting"], "default": "depth" })),
            query("limit", "At most so many", json!({ "type": "integer", "minimum": 0, "maximum": 1000, "default": 50 })),
        ], "application/json", lanes()) },
        "/admin/topics": { "get": get("Topics", &[], "application/json", list("topics", "Topic")) },
        "/admin/outbox": { "get": get("Outboxes", &[], "application/json", list("outbox", "Outbox")) },
        "/admin/topics/{topic}/messages": { "get": messages() },
        "/admin/topics/{topic}/accept": { "post": {
            "summary": "Goes on with a topic that got more partitions, for all pipelines here that read it",
            "description": "Answered when it is decided, after some seconds: what is newer than this moment is read once all that stood before it is settled. Empty if there is nothing to accept.",
            "parameters": [path_parameter("topic")],
            "responses": {
                "200": content("What was accepted", "application/json", list("accepted", "Accepted")),
                "401": problem(), "403": problem(), "404": problem(), "409": problem(), "503": problem(), "default": problem(),
            },
        } },
        "/admin/topics/{topic}/forget-group": { "post": {
            "summary": "Forgets a group's position and journals of a topic",
            "description": "What only this group has not settled may be deleted from then on; a pipeline that uses the group later begins anew. Needs the role `admin`. 409 while a pipeline uses the group.",
            "parameters": [path_parameter("topic"), {
                "name": "group", "in": "query", "required": true, "description": "The group", "schema": text(),
            }],
            "responses": {
                "200": content("What was forgotten", "application/json", object(json!({ "forgotten": text() }))),
                "400": problem(), "401": problem(), "403": problem(), "404": problem(), "409": problem(), "503": problem(), "default": problem(),
            },
        } },
        "/admin/data/backup": { "post": {
            "summary": "Copies all data of the embedded broker to a folder of the server's machine, while everything runs",
            "description": "Answered when it is done. The folder must be named from the root on, and be empty or not there yet. Needs the role `admin`. `keylane data restore` makes a data folder of it.",
            "requestBody": { "required": true, "content": { "application/json": { "schema": object(json!({ "folder": text() })) } } },
            "responses": {
                "200": content("What was copied; `shared_bytes` take no room of their own", "application/json", object(json!({
                    "backup": object(json!({
                        "files": number, "bytes": number, "shared_bytes": number,
                        "left_out": { "type": "array", "items": text(), "description": "Topics that cannot be read" },
                    })),
                }))),
                "400": problem(), "401": problem(), "403": problem(), "409": problem(), "503": problem(), "default": problem(),
            },
        } },
        "/admin/topics/{topic}/upgrade": { "post": {
            "summary": "Raises the format of the topic's journals to the newest one of this server, for all pipelines here that read it",
            "description": "To be asked for once every node runs this version. Refused while a node that does not read the format owns or has claimed a partition; the answer names it. Nodes of an older version cannot handle the topic afterwards. Empty if there is nothing to upgrade.",
            "parameters": [path_parameter("topic")],
            "responses": {
                "200": content("What was upgraded", "application/json", list("upgraded", "Upgraded")),
                "401": problem(), "403": problem(), "404": problem(), "409": problem(), "503": problem(), "default": problem(),
            },
        } },
        "/admin/spill": { "get": get("What waits on this machine for the broker", &[
            query("state", "Only entries in this state", json!({ "enum": ["pending", "retrying", "success", "failed"] })),
            query("limit", "At most so many entries", json!({ "type": "integer", "minimum": 0, "maximum": 1000, "default": 50 })),
        ], "application/json", json!({ "$ref": "#/components/schemas/Spill" })) },
        "/admin/spill/drain": { "post": {
            "summary": "Brings all that waits to the broker now, what it refused for good included",
            "responses": {
                "202": content("How it stands", "application/json", json!({ "$ref": "#/components/schemas/Spill" })),
                "401": problem(), "403": problem(), "default": problem(),
            },
        } },
    })
}

fn produce() -> Value {
    let message = json!({ "$ref": "#/components/schemas/Message" });
    json!({
        "summary": "Produce messages",
        "description": "Answered once each message is durable or refused. 202 if any was accepted. In NDJSON empty lines are skipped and not counted. At most 100,000 messages; at most 1,000 of `rejected` are listed, and then `rejected_count` says how many there are.",
        "parameters": [path_parameter("topic")],
        "requestBody": { "required": true, "content": {
            "application/json": { "schema": { "oneOf": [message, { "type": "array", "items": message, "minItems": 1, "maxItems": 100_000 }] } },
            "application/x-ndjson": { "schema": { "description": "A message a line.", "type": "string" } },
        } },
        "responses": {
            "202": content("At least one is durable", "application/json", json!({
                "type": "object",
                "required": ["accepted", "rejected"],
                "properties": {
                    "accepted": { "type": "array", "items": { "$ref": "#/components/schemas/Receipt" } },
                    "rejected": { "type": "array", "items": { "$ref": "#/components/schemas/Rejected" }, "maxItems": 1000 },
                    "rejected_count": { "type": "integer", "minimum": 1001 },
                    "warnings": { "type": "array", "items": text(), "description": "What the sender should know though all went well: that no pipeline reads the topic, for example. Each is said once." },
                },
            })),
            "400": problem(), "401": problem(), "403": problem(), "404": problem(), "408": problem(),
            "413": problem(), "415": problem(), "503": problem(), "default": problem(),
        },
    })
}

fn messages() -> Value {
    let shown = json!({ "$ref": "#/components/schemas/ShownMessage" });
    json!({
        "summary": "Look into a topic, without a group",
        "parameters": [
            path_parameter("topic"),
            query("partition", "Only this one", json!({ "type": "integer", "minimum": 0 })),
            query("from", "Where to begin: `earliest`, `latest`, or a position, which needs a partition. With follow the default is `latest`, else `earliest`", text()),
            query("limit", "At most so many: 100 unless told; with follow without end unless told. An answer also ends at about 16 MiB, so that only an empty one is the end", json!({ "type": "integer", "minimum": 0, "maximum": 1000 })),
            query("follow", "Go on as messages come, a line each; a blank line now and then while nothing comes", json!({ "type": "boolean", "default": false })),
        ],
        "responses": {
            "200": { "description": "Messages", "content": {
                "application/json": { "schema": { "type": "array", "items": shown } },
                "application/x-ndjson": { "schema": { "type": "string" } },
            } },
            "default": problem(),
        },
    })
}

fn receipt() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    json!({
        "type": "object",
        "description": "`offset` once the broker has it; `spilled` while it waits on this machine for the broker.",
        "required": ["id", "partition"],
        "properties": { "id": text(), "partition": count(), "offset": count(), "spilled": { "const": true } },
    })
}

fn upgraded() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    object(json!({
        "pipeline": text(), "group": text(), "from": count(), "to": count(), "partitions": count(),
    }))
}

fn schemas() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    let maybe_text = || json!({ "type": ["string", "null"] });
    json!({
        "Message": message(),
        "Receipt": receipt(),
        "Spill": spill(),
        "Accepted": object(json!({ "pipeline": text(), "group": text(), "from": count(), "to": count() })),
        "Upgraded": upgraded(),
        "Rejected": object(json!({ "index": count(), "error": text() })), "Outbox": outbox(),
        "Problem": {
            "type": "object",
            "required": ["type", "title", "status", "detail", "code"],
            "properties": {
                "type": { "type": "string", "format": "uri-reference" },
                "title": text(), "status": { "type": "integer" }, "detail": text(),
                "code": { "type": "string", "pattern": "^KL-[0-9]{4}$" },
                "rejected": { "type": "array", "items": { "$ref": "#/components/schemas/Rejected" }, "maxItems": 1000 },
                "rejected_count": { "type": "integer", "minimum": 1001 },
                "reasons": { "type": "array", "items": text() },
            },
        },
        "Pipeline": object(json!({
            "name": text(), "topic": text(), "group": text(), "mode": text(),
            "state": { "enum": ["starting", "running", "partly stopped", "draining", "stopped"] },
            "lag": object(json!({ "messages": count(), "oldest_age_seconds": { "type": ["number", "null"] } })),
            "lanes": object(json!({ "total": count(), "busy": count(), "held": count(), "retrying": count(), "stuck": count() })),
            "handled": count(), "failed": count(), "dead": count(), "rejected": count(),
            "commits": object(json!({ "done": count(), "failed": count() })),
            "blocking": object(json!({ "threads": count(), "waiting": count(), "max": count() })),
            "in_flight": count(), "buffered": count(), "buffered_bytes": count(),
            "partitions": { "type": "array", "items": { "$ref": "#/components/schemas/Partition" } },
            "why": maybe_text(),
        })),
        "Partition": {
            "type": "object",
            "required": ["partition", "state", "epoch", "committed", "settled_above", "dead", "end"],
            "properties": {
                "partition": count(), "state": text(), "epoch": count(), "committed": count(), "settled_above": count(),
                "dead": count(), "end": count(), "why": text(),
            },
        },
        "Lane": object(json!({
            "pipeline": text(), "key": maybe_text(), "partition": count(), "depth": count(), "state": text(),
            "attempt": count(), "waiting_seconds": { "type": "number", "description": "Age of its first message" },
            "last_tried_seconds": { "type": "number", "description": "Since its last attempt began or ended" },
            "why": maybe_text(),
        })),
        "Topic": object(json!({ "name": text(), "partitions": count(), "messages": count(),
            "ends": { "type": "array", "items": object(json!({ "partition": count(), "start": count(), "end": count() })) },
            "warnings": { "type": "array", "items": object(json!({ "code": text(), "what": text(), "remedy": text() })) },
            "held_back_by": { "type": "array", "items": object(json!({
                "group": text(), "configured": { "type": "boolean" }, "until": { "type": ["integer", "null"] },
            })) },
            "pipelines": { "type": "array", "items": text(), "description": "Pipelines of this server that read it" },
        })),
        "ShownMessage": {
            "type": "object",
            "description": "`payload` where it is JSON on one line, else `payload_base64`; neither for a null. `key_base64` for a key that is not text.",
            "required": ["topic", "partition", "offset", "id", "headers", "produced_at", "appended_at"],
            "properties": {
                "topic": text(), "partition": count(), "offset": count(), "id": text(),
                "key": maybe_text(), "key_base64": text(), "version": count(),
                "deliver_at": count(), "priority": count(), "ttl_ms": count(),
                "headers": { "type": "object", "additionalProperties": { "type": "string" } },
                "produced_at": count(), "appended_at": count(), "payload": {}, "payload_base64": text(),
            },
        },
    })
}

fn message() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "description": "Exactly one of `payload` and `payload_base64`.",
        "properties": {
            "payload": { "description": "Any JSON, kept byte for byte." },
            "payload_base64": { "type": "string", "contentEncoding": "base64", "description": "Bytes." },
            "key": { "type": ["string", "null"], "description": "Messages of one key are handled in order. At most 4 KiB." },
            "id": { "type": ["string", "null"], "minLength": 1, "description": "Made (UUIDv7) if left out. At most 1 KiB." },
            "version": { "type": ["integer", "null"], "minimum": 0 },
            "headers": { "type": ["object", "null"], "additionalProperties": { "type": "string" } },
            "deliver_at": { "type": ["string", "null"], "format": "date-time", "description": not_yet("When it is due.") },
            "priority": { "type": ["integer", "null"], "minimum": 1, "maximum": 10, "description": not_yet("Its priority among keys.") },
            "ttl": { "type": ["string", "null"], "pattern": "^[0-9]+ *(ms|s|m|h|d)$", "description": not_yet("How long it is of use.") },
        },
    })
}

fn not_yet(what: &str) -> String {
    format!("{what} Not carried out by this version: a message that has it is refused.")
}

fn outbox() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    object(json!({
        "name": text(), "table": text(),
        "state": { "enum": ["connecting", "standing_by", "relaying", "stopped"] },
        "relayed": count(), "pending": count(), "failed": count(), "last_error": { "type": ["string", "null"] },
    }))
}

fn spill() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    let maybe_text = || json!({ "type": ["string", "null"] });
    object(json!({
        "state": { "enum": ["off", "healthy", "spilling", "refusing"] },
        "messages": count(), "failed": count(), "blocked_keys": count(), "bytes": count(), "bytes_max": count(),
        "degraded_messages": count(), "degraded_keys": count(), "last_at": { "type": ["integer", "null"] },
        "drained_messages": count(), "refused_messages": count(),
        "lines": { "type": "array", "items": object(json!({
            "topic": text(), "partition": count(), "messages": count(), "retries": count(), "last_error": maybe_text(),
        })) },
        "entries": { "type": "array", "items": object(json!({
            "topic": text(), "partition": count(), "id": text(), "key": maybe_text(), "at": count(),
            "retries": count(), "last_error": maybe_text(),
            "state": { "enum": ["pending", "retrying", "success", "failed"] },
        })) },
    }))
}

fn text() -> Value {
    json!({ "type": "string" })
}

/// An object all of whose members are always there.
fn object(properties: Value) -> Value {
    let required: Vec<String> =
        properties.as_object().map(|members| members.keys().cloned().collect()).unwrap_or_default();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn ready() -> Value {
    let mut ready = object(json!({ "status": { "const": "ready" } }));
    ready["properties"]["reasons"] = json!({ "type": "array", "items": text() });
    ready
}

fn list(name: &str, of: &str) -> Value {
    let items = json!({ "$ref": format!("#/components/schemas/{of}") });
    object(json!({ name: { "type": "array", "items": items } }))
}

fn lanes() -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    object(json!({
        "lanes": { "type": "array", "items": { "$ref": "#/components/schemas/Lane" } },
        "unanswered": {
            "type": "array", "description": "Shards that did not answer in time: their lanes are missing.",
            "items": object(json!({ "pipeline": text(), "shard": number })),
        },
    }))
}

fn content(description: &str, kind: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { kind: { "schema": schema } } })
}

fn problem() -> Value {
    json!({ "$ref": "#/components/responses/Problem" })
}

fn get(summary: &str, parameters: &[Value], kind: &str, schema: Value) -> Value {
    json!({
        "summary": summary,
        "parameters": parameters,
        "responses": { "200": content(summary, kind, schema), "401": problem(), "403": problem(), "default": problem() },
    })
}

fn open(summary: &str, schema: Value) -> Value {
    json!({
        "summary": summary,
        "security": [{}],
        "responses": { "200": content(summary, "application/json", schema), "default": problem() },
    })
}

fn path_parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": text() })
}

fn query(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

#[cfg(test)]
mod tests {
    use super::super::routes;
    use super::*;
    use crate::config::Environment;

    /// ING-7. Set KEYLANE_WRITE in the environment of this test to write the file anew.
    #[test]
    fn the_committed_document_is_the_one_that_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).expect("JSON") + "\n";
        if Environment::process().is_set("KEYLANE_WRITE") {
            std::fs::write(path, &text).expect("written");
        }
        let committed = std::fs::read_to_string(path).expect("it is committed");
        assert_eq!(committed, text, "run this test with KEYLANE_WRITE=1");
    }

    /// ING-7.
    #[test]
    fn every_operation_has_a_name_of_its_own_and_what_is_open_says_so() {
        let document = document();
        assert_eq!(document["servers"][0]["url"], "/");
        let mut names = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("an object") {
            for (method, operation) in methods.as_object().expect("an object") {
                let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path}"));
                assert!(operation["responses"].is_object(), "{method} {path} is not described");
                names.push(name.to_owned());
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (OPERATIONS.len(), OPERATIONS.len()));
        for path in ["/healthz", "/readyz", "/version", "/openapi.json", "/", "/errors/{code}"] {
            assert_eq!(document["paths"][path]["get"]["security"], json!([{}]), "{path}");
        }
    }

    /// ING-7.
    #[test]
    fn the_document_has_exactly_the_paths_that_are_served() {
        let mut described: Vec<_> =
            document()["paths"].as_object().expect("an object").keys().cloned().collect();
        let mut served: Vec<_> = routes::PATHS.map(str::to_owned).to_vec();
        described.sort();
        served.sort();
        assert_eq!(described, served);
    }
}
