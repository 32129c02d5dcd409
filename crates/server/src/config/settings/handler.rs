//! The settings of what runs on each message.

use super::super::schema::{Absent, Kind, Shape};
use super::{DAY, field, is};

pub(super) static HANDLER: Shape = Shape {
    fields: &[
        field("http", Kind::Section(&HTTP), Absent::Example(""), "Pushes each message to a URL."),
        field("log", Kind::Section(&LOG), Absent::Example(""), "Prints each message to standard output."),
    ],
    later: &["sql"],
};

static HTTP: Shape = Shape {
    fields: &[
        field(
            "url",
            Kind::Text,
            Absent::Required("\"https://orders.example.com/push\""),
            "Where each message is sent with `POST`.",
        ),
        field(
            "timeout",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("30s"),
            "A call that takes longer has failed.",
        ),
        field(
            "allow_private",
            Kind::Flag,
            is("false"),
            "Whether loopback and private addresses may be called.",
        ),
        field(
            "reject",
            Kind::Statuses,
            is("[400, 413, 422]"),
            "Statuses that reject a message. Any other but 2xx is a failure, and is tried again.",
        ),
        field(
            "headers",
            Kind::PassedOn,
            Absent::Nothing("{ Authorization: \"${ORDERS_TOKEN}\" }"),
            "Headers that every call carries. Take secrets from files (`file:/run/secrets/orders`) or variables.",
        ),
        field(
            "content_type",
            Kind::Text,
            Absent::Nothing("application/json"),
            "The content type of messages that do not say their own. If left out, JSON is sent as application/json, all else as application/octet-stream.",
        ),
        field(
            "sign",
            Kind::Text,
            Absent::Nothing("\"${ORDERS_SECRET}\""),
            "The secret that every call is signed with, as Standard Webhooks describes it: `whsec_` and base64. Several, with spaces between them, while one is replaced.",
        ),
        field(
            "ca",
            Kind::Text,
            Absent::Nothing("/etc/keylane/ca.pem"),
            "A PEM file with authorities that are trusted besides those of the system.",
        ),
        field(
            "cert",
            Kind::Text,
            Absent::Nothing("/etc/keylane/client.pem"),
            "A PEM file with the certificate by which the other side knows Keylane; with `key`.",
        ),
        field(
            "key",
            Kind::Text,
            Absent::Nothing("/etc/keylane/client.key"),
            "The PEM file of its private key.",
        ),
    ],
    later: &["batch"],
};

static LOG: Shape = Shape { fields: &[], later: &[] };
