//! What clients of librdkafka report: their log lines go to ours, and whether the cluster can be reached, and accepts
//! us, is kept. Who asks something of the cluster learns of it from here long before the question times out.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientContext, Statistics};

use super::figures::Reported;
use super::lock;
use super::tokens::{Bearer, TokenKeeper};
use crate::contract::{BrokerError, ClientFigures};
use crate::threads::Threads;

/// How often it is looked whether a question is still worth waiting for.
const TICK: Duration = Duration::from_millis(100);
/// Ticks in a row without any broker, or with a log-in that was refused, after which a question is given up: an election,
/// a restart of one broker or a token that came a little late is over sooner, and whoever asked tries again.
const TICKS_MAX: u32 = 30;

/// Shared by the clients of one broker.
#[derive(Clone, Default)]
pub(crate) struct Context {
    brokers: String,
    reachability: Arc<Mutex<Reachability>>,
    reported: Arc<Mutex<Reported>>,
    /// How often each client tells its figures.
    interval_ms: i64,
    /// Who fetches tokens to log in with, if that is how it is done.
    tokens: Option<Arc<TokenKeeper>>,
    /// Threads that serve clients.
    pub(crate) threads: Threads,
    /// The client's threads that a test has stuck, and how many times one came there.
    #[cfg(feature = "testing")]
    pub(crate) stuck: Arc<Mutex<std::collections::HashMap<String, usize>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reachability {
    /// A broker has answered once.
    reached: bool,
    /// Why no broker can be reached.
    away: Option<String>,
    /// Why a broker does not accept our log-in.
    refused: Option<String>,
}

impl Context {
    pub(crate) fn new(brokers: &str, interval_ms: i64, tokens: Option<Arc<TokenKeeper>>) -> Context {
        let threads = tokens.as_ref().map(|tokens| tokens.threads().clone()).unwrap_or_default();
        Context { brokers: brokers.to_owned(), interval_ms, tokens, threads, ..Context::default() }
    }

    /// A client of this context that was just made: it may need tokens to log in with.
    pub(crate) fn serve(&self, client: Arc<dyn Bearer>) {
        if let Some(tokens) = &self.tokens {
            tokens.serve(&client);
        }
    }

    /// What all clients told of themselves.
    pub(crate) fn figures(&self) -> ClientFigures {
        ClientFigures { threads_ended: self.threads.ended(), ..lock(&self.reported).all() }
    }

    /// What is wrong with the cluster as a whole, as far as clients have told.
    pub(crate) fn trouble(&self) -> Option<BrokerError> {
        let Reachability { away, refused, .. } = lock(&self.reachability).clone();
        // Without a token every log-in is refused: what keeps the token away is the cause.
        let no_token = self.tokens.as_ref().and_then(|tokens| tokens.trouble());
        let cause = no_token.map(BrokerError::Unavailable).or(refused.map(BrokerError::Credentials));
        cause.or_else(|| Some(self.unreachable(&away?)))
    }

    fn unreachable(&self, why: &str) -> BrokerError {
        BrokerError::Unavailable(format!(
            "none of the brokers {} answers ({why}); check broker.kafka.brokers, that they run and that the network lets us through; it is tried again until they answer",
            self.brokers
        ))
    }

    /// Something was answered.
    pub(crate) fn reached(&self) {
        let mut now = lock(&self.reachability);
        (now.reached, now.away, now.refused) = (true, None, None);
    }

    /// A question that, once it is answered, says so by itself: whoever asked may have given it up by then, and what was
    /// told before would count for ever.
    pub(crate) fn noting<T, E, A>(&self, ask: A) -> impl FnOnce() -> Result<T, E> + use<T, E, A>
    where
        A: FnOnce() -> Result<T, E>,
    {
        let context = self.clone();
        move || ask().inspect(|_| context.reached())
    }

    /// True if nobody has asked with success yet.
    pub(crate) fn is_new(&self) -> bool {
        !lock(&self.reachability).reached
    }

    /// The answer to a question, or why there will be none: no broker has been reached for a while, or none accepts us.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    pub(crate) async fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        let given_up = async {
            let mut ticks = 0;
            loop {
                tokio::time::sleep(TICK).await;
                // One client that was refused says nothing of the one that was asked: that one may be answered yet.
                let Some(error) = self.trouble() else {
                    ticks = 0;
                    continue;
                };
                ticks += 1;
                if ticks >= TICKS_MAX {
                    return error;
                }
            }
        };
        let answered = tokio::select! {
            biased;
            answered = question => answered,
            error = given_up => Err(error),
        };
        match answered {
            // What the clients told says more than that there was no answer.
            Err(BrokerError::Unavailable(why)) => {
                Err(self.trouble().unwrap_or(BrokerError::Unavailable(why)))
            }
            answered => answered,
        }
    }
}

/// What is not worth a line each: settings reach every client, whether it knows them or not; and that a broker cannot
/// be reached is told once, when it is noticed.
const QUIET: [&str; 2] = ["CONFWARN", "FAIL"];

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            _ if QUIET.contains(&facility) => tracing::debug!(facility, "kafka: {message}"),
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => {
                tracing::error!(facility, "kafka: {message}");
            }
            RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
                tracing::warn!(facility, "kafka: {message}")
            }
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => tracing::debug!(facility, "kafka: {message}"),
        }
    }

    fn stats(&self, told: Statistics) {
        lock(&self.reported).take(&told, self.interval_ms);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let mut now = lock(&self.reachability);
        let before = now.clone();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => now.away = Some(reason.to_owned()),
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => {
                now.refused = Some(reason.to_owned());
            }
            _ => {}
        }
        let new = *now != before;
        drop(now);
        // Every client tries, and tries again: what is known already is not told each time.
        match new {
            true => tracing::warn!(%error, "kafka: {reason}"),
            false => tracing::debug!(%error, "kafka: {reason}"),
        }
    }
}

impl ConsumerContext for Context {}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(context: &Context, code: RDKafkaErrorCode) {
        context.error(KafkaError::Global(code), "because");
    }

    /// BRK-8: a question ends with what the clients told, not when it times out.
    #[tokio::test(start_paused = true)]
    async fn a_question_is_given_up_when_it_is_known_that_nobody_will_answer() {
        let context = Context::new("h:1", 1_000, None);
        let never = || std::future::pending::<Result<(), BrokerError>>();
        told(&context, RDKafkaErrorCode::AllBrokersDown);
        let error = context.answer(never()).await.expect_err("nobody answers");
        assert!(matches!(error, BrokerError::Unavailable(_)) && error.to_string().contains("h:1"), "{error}");
        told(&context, RDKafkaErrorCode::Authentication);
        let error = context.answer(never()).await.expect_err("nobody answers");
        assert_eq!(error, BrokerError::Credentials("because".to_owned()));
        context.reached();
        assert_eq!(context.trouble(), None);
        told(&context, RDKafkaErrorCode::AllBrokersDown);
        assert_eq!(context.answer(async { Ok(7) }).await, Ok(7));
    }

    /// BRK-8, P10: one log-in that was refused does not end questions that are answered a little later.
    #[tokio::test(start_paused = true)]
    async fn one_log_in_that_fails_does_not_end_questions_that_are_answered() {
        let context = Context::new("h:1", 1_000, None);
        told(&context, RDKafkaErrorCode::Authentication);
        let slow = async {
            tokio::time::sleep(5 * TICK).await;
            Ok(7)
        };
        assert_eq!(context.answer(slow).await, Ok(7));
    }

    /// BRK-8: an answer that comes after its question was given up still shows that the cluster lets us in.
    #[test]
    fn an_answer_that_nobody_waits_for_any_more_counts() {
        let context = Context::new("h:1", 1_000, None);
        told(&context, RDKafkaErrorCode::Authentication);
        let (refused, answered) = (context.noting(|| Err::<(), ()>(())), context.noting(|| Ok::<(), ()>(())));
        assert_eq!(refused(), Err(()));
        assert!(matches!(context.trouble(), Some(BrokerError::Credentials(_))));
        assert_eq!(answered(), Ok(()));
        assert_eq!(context.trouble(), None);
    }
}
