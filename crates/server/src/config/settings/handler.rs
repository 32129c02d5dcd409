//! Lists the settings of a pipeline's handler.

use super::super::schema::{Absent, Kind, Shape};
use super::{DAY, field, is};

pub(super) static HANDLER: Shape = Shape {
    fields: &[
        field("http", Kind::Section(&HTTP), Absent::Example(""), "Pushes each message to a URL over HTTP."),
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
            "The URL to which each message is sent with `POST`.",
        ),
        field(
            "timeout",
            Kind::Duration { min_ms: 1, max_ms: DAY },
            is("30s"),
            "How long a call may take. A call that takes longer is a failure and is retried.",
        ),
        field(
            "allow_private",
            Kind::Flag,
            is("false"),
            "Whether the URL may lead to a loopback or private address. Allow it only if the handler runs on this machine or in this network.",
        ),
        field(
            "reject",
            Kind::Statuses,
            is("[400, 413, 422]"),
            "Statuses that reject a message: it becomes a dead letter, and its key continues. Any other status but 2xx is a failure and is retried.",
        ),
        field(
            "headers",
            Kind::PassedOn,
            Absent::Nothing("{ Authorization: \"${ORDERS_TOKEN}\" }"),
            "Headers of every call. Take secrets from files (`file:/run/secrets/orders`) or variables.",
        ),
        field(
            "content_type",
            Kind::Text,
            Absent::Nothing("application/json"),
            "Content type for messages that have none among their headers. If left out, JSON is sent as application/json, and anything else as application/octet-stream.",
        ),
        field(
            "sign",
            Kind::Text,
            Absent::Nothing("\"${ORDERS_SECRET}\""),
            "Secret that signs every call, in the form of Standard Webhooks: `whsec_` and base64. To replace a secret, give both, separated by a space.",
        ),
        field(
            "ca",
            Kind::Text,
            Absent::Nothing("/etc/keylane/ca.pem"),
            "PEM file with certificate authorities to trust in addition to those of the system.",
        ),
        field(
            "cert",
            Kind::Text,
            Absent::Nothing("/etc/keylane/client.pem"),
            "PEM file with the client certificate that Keylane shows to the handler; needs `key`.",
        ),
        field(
            "key",
            Kind::Text,
            Absent::Nothing("/etc/keylane/client.key"),
            "PEM file with the private key of `cert`.",
        ),
    ],
    later: &["batch"],
};

static LOG: Shape = Shape { fields: &[], later: &[] };
