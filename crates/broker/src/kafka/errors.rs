//! What Kafka's errors mean here: gone for now, not allowed, or wrong.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::contract::{BrokerError, ProduceError};

/// What a topic's reader and writer need, where it is not known which of it was asked for.
const TOPIC_RIGHTS: &str = "DESCRIBE, READ or WRITE on the topic";

/// What an error means for what was asked of `topic`.
pub(crate) fn broker_error(topic: &str, error: &KafkaError) -> BrokerError {
    let code = match error {
        // The wrapper tells its code to nobody.
        KafkaError::AdminOp(code) => Some(*code),
        error => error.rdkafka_error_code(),
    };
    match code {
        Some(code) => broker_error_of(topic, code),
        None => BrokerError::Invalid(format!("the Kafka client cannot be made: {}", not_made(error))),
    }
}

/// Why a client cannot be made. A value is never shown: it may be a secret (SEC-5).
pub(crate) fn not_made(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, what, name, _) if what.starts_with("No such configuration") => {
            format!("librdkafka has no setting {name:?}; look for a slip in broker.kafka.settings")
        }
        KafkaError::ClientConfig(_, _, name, _) => {
            format!("librdkafka does not take the value of {name:?} in broker.kafka.settings")
        }
        error => error.to_string(),
    }
}

/// As [`broker_error`], of a code.
pub(crate) fn broker_error_of(topic: &str, code: RDKafkaErrorCode) -> BrokerError {
    let denied = |on: String, rights: &str| BrokerError::Denied { on, rights: rights.to_owned() };
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition
        | RDKafkaErrorCode::UnknownTopic
        | RDKafkaErrorCode::UnknownPartition => BrokerError::UnknownTopic(topic.to_owned()),
        RDKafkaErrorCode::TopicAuthorizationFailed => denied(format!("topic {topic}"), TOPIC_RIGHTS),
        RDKafkaErrorCode::GroupAuthorizationFailed => {
            denied(format!("its group for topic {topic}"), "READ on the group")
        }
        RDKafkaErrorCode::ClusterAuthorizationFailed => {
            denied("the cluster".to_owned(), "IDEMPOTENT_WRITE on the cluster, or WRITE on any topic")
        }
        RDKafkaErrorCode::SaslAuthenticationFailed
        | RDKafkaErrorCode::Authentication
        | RDKafkaErrorCode::UnsupportedSASLMechanism => BrokerError::Credentials(code.to_string()),
        code if passes(code) => BrokerError::Unavailable(code.to_string()),
        code => BrokerError::Invalid(format!("Kafka refuses what was asked of {topic}: {code}")),
    }
}

/// The same, where it is known which right was needed.
pub(crate) fn lacking(error: BrokerError, right: &str) -> BrokerError {
    match error {
        BrokerError::Denied { on, .. } => BrokerError::Denied { on, rights: right.to_owned() },
        other => other,
    }
}

/// Why a message was not taken.
pub(crate) fn produce_error(topic: &str, code: RDKafkaErrorCode) -> ProduceError {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize => {
            ProduceError::TooLargeThere(topic.to_owned())
        }
        code => not_produced(lacking_write(broker_error_of(topic, code))),
    }
}

/// True for what says nothing about a message: only that the client's numbers and the cluster's do not match.
pub(crate) fn is_of_sequence(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::OutOfOrderSequenceNumber
            | RDKafkaErrorCode::DuplicateSequenceNumber
            | RDKafkaErrorCode::UnknownProducerId
            | RDKafkaErrorCode::InvalidProducerEpoch
            | RDKafkaErrorCode::InvalidProducerIdMapping
            | RDKafkaErrorCode::GaplessGuarantee
            | RDKafkaErrorCode::Inconsistent
            | RDKafkaErrorCode::Fenced
            | RDKafkaErrorCode::State
    )
}

/// Why messages were not taken, if their topic could not be looked up.
pub(crate) fn not_produced(error: BrokerError) -> ProduceError {
    match error {
        BrokerError::UnknownTopic(topic) => ProduceError::UnknownTopic(topic),
        BrokerError::Denied { .. } => ProduceError::Denied(error.to_string()),
        // Whoever is not let in tries again, and what waits meanwhile is not to blame.
        BrokerError::Credentials(_) => ProduceError::Unavailable(error.to_string()),
        BrokerError::Unavailable(why) => ProduceError::Unavailable(why),
        BrokerError::Invalid(why) => ProduceError::Invalid(why),
        other => ProduceError::Unavailable(other.to_string()),
    }
}

fn lacking_write(error: BrokerError) -> BrokerError {
    match &error {
        BrokerError::Denied { on, .. } if on.starts_with("topic ") => lacking(error, "WRITE on the topic"),
        _ => error,
    }
}

/// True for what may be over when it is tried again.
fn passes(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::AllBrokersDown
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::SSL
            | RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::TimedOutQueue
            | RDKafkaErrorCode::MessageTimedOut
            | RDKafkaErrorCode::RequestTimedOut
            | RDKafkaErrorCode::NetworkException
            | RDKafkaErrorCode::LeaderNotAvailable
            | RDKafkaErrorCode::NotLeaderForPartition
            | RDKafkaErrorCode::BrokerNotAvailable
            | RDKafkaErrorCode::ReplicaNotAvailable
            | RDKafkaErrorCode::CoordinatorLoadInProgress
            | RDKafkaErrorCode::CoordinatorNotAvailable
            | RDKafkaErrorCode::NotCoordinator
            | RDKafkaErrorCode::WaitingForCoordinator
            | RDKafkaErrorCode::NotController
            | RDKafkaErrorCode::NotEnoughReplicas
            | RDKafkaErrorCode::NotEnoughReplicasAfterAppend
            | RDKafkaErrorCode::UnknownMemberId
            | RDKafkaErrorCode::IllegalGeneration
            | RDKafkaErrorCode::RebalanceInProgress
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::KafkaStorageError
            | RDKafkaErrorCode::Fatal
            // A leader was just elected, and whoever was asked has not heard of it, or we have not.
            | RDKafkaErrorCode::FencedLeaderEpoch
            | RDKafkaErrorCode::UnknownLeaderEpoch
            | RDKafkaErrorCode::OffsetNotAvailable
            | RDKafkaErrorCode::ListenerNotFound
            | RDKafkaErrorCode::PreferredLeaderNotAvailable
            | RDKafkaErrorCode::EligibleLeadersNotAvailable
            | RDKafkaErrorCode::StaleBrokerEpoch
            | RDKafkaErrorCode::StaleControllerEpoch
            | RDKafkaErrorCode::UnknownBroker
            // The client forgets a broker that has left the cluster, with what was asked of it.
            | RDKafkaErrorCode::DestroyBroker
            | RDKafkaErrorCode::BrokerDestroy
            | RDKafkaErrorCode::FetchSessionIdNotFound
            | RDKafkaErrorCode::InvalidFetchSessionEpoch
            | RDKafkaErrorCode::UnstableOffsetCommit
            | RDKafkaErrorCode::ThrottlingQuotaExceeded
            | RDKafkaErrorCode::ReassignmentInProgress
            | RDKafkaErrorCode::PurgeQueue
            | RDKafkaErrorCode::PurgeInflight
            | RDKafkaErrorCode::Retry
            // Whatever it was, it was not what was asked.
            | RDKafkaErrorCode::Unknown
            | RDKafkaErrorCode::QueueFull
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRK-8: an election is no reason to stop a partition.
    #[test]
    fn what_a_cluster_says_while_leaders_change_passes() {
        for code in [
            RDKafkaErrorCode::FencedLeaderEpoch,
            RDKafkaErrorCode::UnknownLeaderEpoch,
            RDKafkaErrorCode::NotLeaderForPartition,
            RDKafkaErrorCode::OffsetNotAvailable,
            RDKafkaErrorCode::NotCoordinator,
            RDKafkaErrorCode::DestroyBroker,
        ] {
            let error = broker_error_of("orders", code);
            assert!(matches!(error, BrokerError::Unavailable(_)), "{code}: {error}");
        }
    }

    /// BRK-8, P10: a log-in that fails while messages are under way is no refusal of them: it is tried again.
    #[test]
    fn messages_are_not_refused_for_a_log_in_that_failed() {
        for code in [RDKafkaErrorCode::Authentication, RDKafkaErrorCode::SaslAuthenticationFailed] {
            let error = produce_error("orders", code);
            assert!(matches!(error, ProduceError::Unavailable(_)), "{code}: {error}");
        }
    }

    /// BRK-8: a controller that does not answer in time is asked again; it is no wrong setting.
    #[test]
    fn a_question_to_the_controller_that_times_out_passes() {
        let late = broker_error("orders", &KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
        assert!(matches!(late, BrokerError::Unavailable(_)), "{late}");
    }
}
