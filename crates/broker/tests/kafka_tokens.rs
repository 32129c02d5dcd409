//! OAUTHBEARER with OIDC, against a real cluster that checks signatures and a token server of the test's own.
#![cfg(feature = "kafka")]

use std::time::Duration;

use keylane_broker::testing::conformance::client::produce;
use keylane_broker::{Broker, BrokerError, Kafka, KafkaOptions, TopicSpec};
use keylane_tests::{Cluster, TokenServer};

fn options(cluster: &Cluster, tokens: &TokenServer, secret: &str) -> KafkaOptions {
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    let ca = cluster.ca.as_deref().expect("it has TLS");
    for (name, value) in [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", ca),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.token.endpoint.url", &tokens.endpoint()),
        ("sasl.oauthbearer.client.id", TokenServer::CLIENT.0),
        ("sasl.oauthbearer.client.secret", secret),
        ("sasl.oauthbearer.scope", "all topics"),
    ] {
        options.settings.insert(name.to_owned(), value.to_owned());
    }
    options
}

/// Waits for a condition; the limit only fails a test that hangs.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// BRK-2, BRK-8: every client logs in with tokens that are fetched, goes on when they are renewed, and lives through an
/// endpoint that is away for a while.
#[tokio::test(flavor = "multi_thread")]
async fn clients_log_in_with_tokens_and_live_through_an_endpoint_that_is_away() {
    let tokens = TokenServer::start(20).await;
    let cluster =
        Cluster::with(&["--sasl", "--jwks", &tokens.jwks(), "--set", "connections.max.reauth.ms=5000"]);
    let broker = Kafka::open(options(&cluster, &tokens, TokenServer::CLIENT.1)).expect("it opens");
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("tokens", &spec).await.expect("the admin client logs in");
    produce(&broker, "tokens", 0, &["a"]).await;
    broker.join("g", "tokens", "n").await.expect("a member logs in").leave().await;
    assert_eq!(broker.health().await, Ok(()));
    // The endpoint is away, and the token that is there is used on.
    tokens.set_life(0);
    let before = tokens.refused();
    until("it is tried again", async || tokens.refused() >= before + 2).await;
    assert_eq!(broker.health().await, Ok(()), "there is a token");
    produce(&broker, "tokens", 0, &["b"]).await;
    // Until it has ended.
    until("the token has ended", async || broker.health().await.is_err()).await;
    let told = broker.health().await.expect_err("there is none").to_string();
    assert!(told.contains(&tokens.endpoint()) && told.contains("503"), "{told}");
    assert!(!told.contains(TokenServer::CLIENT.1), "{told}");
    tokens.set_life(20);
    let given = tokens.given();
    until("it is renewed", async || tokens.given() > given && broker.health().await.is_ok()).await;
    produce(&broker, "tokens", 0, &["c"]).await;
    let ends = broker.ends("tokens").await.expect("it answers");
    assert_eq!(ends[0].end, 3, "nothing was lost on the way");
}

/// BRK-2, SEC-5: an endpoint that refuses us, and a cluster that refuses the token, are told apart, without the secret.
#[tokio::test(flavor = "multi_thread")]
async fn who_refuses_a_log_in_by_token_is_told() {
    let tokens = TokenServer::start(60).await;
    let cluster = Cluster::with(&["--sasl", "--jwks", &tokens.jwks()]);
    let wrong = Kafka::open(options(&cluster, &tokens, "wrong-word")).expect("it opens");
    let told = wrong.topics().await.expect_err("there is no token");
    assert!(matches!(&told, BrokerError::Unavailable(why) if why.contains("401")), "{told}");
    assert!(!told.to_string().contains("wrong-word"), "{told}");
    // Another signs, whom the cluster does not know.
    let stranger = TokenServer::start(60).await;
    let foreign = Kafka::open(options(&cluster, &stranger, TokenServer::CLIENT.1)).expect("it opens");
    let told = foreign.topics().await.expect_err("nobody knows who signed it");
    assert!(matches!(told, BrokerError::Credentials(_)), "{told}");
}
