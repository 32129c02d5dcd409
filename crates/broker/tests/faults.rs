//! Each fault really happens, and stays within the contract.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_broker::testing::conformance::client::*;
use keylane_broker::{
    AppendError, Broker, BrokerError, Change, Commit, FaultCounts, Faulty, Journal, LogKind, MemoryBroker,
    ProduceError, Rates,
};
use tokio::time::Instant;

const TOPIC: &str = "orders";
const GROUP: &str = "billing";
const ALWAYS: u32 = 1000;
const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    cluster: MemoryBroker,
    /// Sees everything, without faults.
    plain: Arc<dyn Broker>,
    faulty: Arc<Faulty>,
    journal: Arc<dyn Journal>,
    watched: Arc<dyn Journal>,
}

/// A topic and a journal, opened before the faults begin.
async fn bench(rates: Rates) -> Bench {
    let cluster = MemoryBroker::new(1, || 5);
    let plain = cluster.node("plain");
    plain.create_topic(TOPIC, &spec(1)).await.expect("a new topic");
    let faulty = Faulty::with_carrier(cluster.node("faulty"), plain.clone(), 3, Rates::none());
    let name = journal_name(GROUP, TOPIC, LogKind::Journal);
    let journal = faulty.journal(&name).await.expect("no fault yet");
    let watched = plain.journal(&name).await.expect("a journal");
    faulty.set_rates(rates);
    Bench { cluster, plain, faulty, journal, watched }
}

impl Bench {
    async fn produce(&self) -> Result<u64, ProduceError> {
        let mut results = self.faulty.produce(TOPIC, frames(0, &["a"])).await;
        assert_eq!(results.len(), 1);
        results.remove(0)
    }

    async fn append(&self) -> Result<u64, AppendError> {
        self.journal.append(Bytes::from_static(b"r"), None).await
    }

    /// How many messages and records there are.
    async fn landed(&self) -> (u64, u64) {
        let ends = self.plain.ends(TOPIC).await.expect("no faults here");
        let page = self.watched.read(0, PLENTY).await.expect("no faults here");
        (ends[0].end, page.end)
    }
}

#[tokio::test]
async fn a_dropped_request_does_nothing_and_says_that_nothing_is_known() {
    let rates = Rates { drop_request: ALWAYS, ..Rates::none() };
    let bench = bench(rates).await;
    assert!(matches!(bench.produce().await, Err(ProduceError::Unavailable(_))));
    assert!(matches!(bench.append().await, Err(AppendError::Unknown(_))));
    assert_eq!(bench.landed().await, (0, 0));
    let asked = bench.faulty.ends(TOPIC).await;
    assert!(matches!(asked, Err(BrokerError::Unavailable(_))));
    assert_eq!(bench.faulty.counts().requests_dropped, 3);
}

#[tokio::test]
async fn a_dropped_answer_leaves_what_landed() {
    let rates = Rates { drop_answer: ALWAYS, ..Rates::none() };
    let bench = bench(rates).await;
    assert!(matches!(bench.produce().await, Err(ProduceError::Unavailable(_))));
    assert!(matches!(bench.append().await, Err(AppendError::Unknown(_))));
    assert_eq!(bench.landed().await, (1, 1));
    let asked = bench.faulty.ends(TOPIC).await;
    assert!(matches!(asked, Err(BrokerError::Unavailable(_))));
    assert_eq!(bench.faulty.counts().answers_dropped, 3);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_lands_twice_and_its_caller_hears_of_the_first() {
    let rates = Rates { duplicate: ALWAYS, late_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    assert_eq!(bench.produce().await, Ok(0));
    assert_eq!(bench.append().await, Ok(0));
    bench.faulty.quiet().await;
    assert_eq!(bench.landed().await, (2, 2));
    assert_eq!(bench.faulty.counts().duplicated, 2);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_on_condition_lands_once_and_never_looks_refused() {
    let rates = Rates { duplicate: ALWAYS, late_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    for end in 0..20 {
        let record = Bytes::from_static(b"r");
        assert_eq!(bench.journal.append(record, Some(end)).await, Ok(end));
    }
    bench.faulty.quiet().await;
    assert_eq!(bench.landed().await, (0, 20));
}

#[tokio::test(start_paused = true)]
async fn a_late_append_lands_after_its_caller_gave_up() {
    let rates = Rates { late: ALWAYS, late_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    assert!(matches!(bench.produce().await, Err(ProduceError::Unavailable(_))));
    assert!(matches!(bench.append().await, Err(AppendError::Unknown(_))));
    assert_eq!(bench.landed().await, (0, 0));
    bench.faulty.quiet().await;
    assert_eq!(bench.landed().await, (1, 1));
    assert_eq!(bench.faulty.counts().late, 2);
}

#[tokio::test(start_paused = true)]
async fn a_late_append_lands_even_if_its_sender_is_dead() {
    let rates = Rates { late: ALWAYS, late_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    assert!(bench.append().await.is_err());
    bench.cluster.crash("faulty");
    let (faulty, watched) = (bench.faulty.clone(), bench.watched.clone());
    drop(bench);
    watched.beyond(0).await.expect("it lands");
    faulty.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn commits_and_cuts_come_late_too() {
    let bench = bench(Rates::none()).await;
    for _ in 0..4 {
        bench.append().await.expect("no faults yet");
    }
    bench.faulty.set_rates(Rates { late: ALWAYS, late_max: SECOND, ..Rates::none() });
    let commit = Commit { position: 0, metadata: Bytes::new() };
    assert!(bench.faulty.commit(GROUP, TOPIC, 0, commit.clone()).await.is_err());
    assert!(bench.journal.cut(3).await.is_err());
    assert_eq!(bench.plain.committed(GROUP, TOPIC, 0).await, Ok(None));
    bench.faulty.quiet().await;
    assert_eq!(bench.plain.committed(GROUP, TOPIC, 0).await, Ok(Some(commit)));
    let page = bench.watched.read(0, PLENTY).await.expect("no faults here");
    assert_eq!((page.start, page.end), (3, 4));
}

#[tokio::test]
async fn a_cut_reader_stays_cut_and_a_new_one_goes_on() {
    let rates = Rates { disconnect: ALWAYS, ..Rates::none() };
    let bench = bench(rates).await;
    assert_eq!(bench.produce().await, Ok(0));
    let mut reader = bench.faulty.reader(TOPIC, 0, 0).await.expect("it opens");
    assert!(next_batch(&mut *reader, PLENTY).await.is_err());
    bench.faulty.calm();
    assert!(next_batch(&mut *reader, PLENTY).await.is_err(), "it stays cut");
    assert_eq!(texts(&read_from(&*bench.faulty, TOPIC, 0, 0, 1).await), ["a"]);
    assert_eq!(bench.faulty.counts().disconnects, 1);
}

#[tokio::test]
async fn lines_that_wait_are_cut_and_woken() {
    let bench = bench(Rates::none()).await;
    let mut reader = bench.faulty.reader(TOPIC, 0, 0).await.expect("it opens");
    let mut member = bench.faulty.join(GROUP, TOPIC, "a").await.expect("it joins");
    assert_eq!(changes(&mut *member, 1).await, [Change::Assigned(0)]);
    let journal = bench.journal.clone();
    let waiting = tokio::spawn(async move {
        let waited = tokio::join!(next_batch(&mut *reader, PLENTY), member.changed(), journal.beyond(0));
        assert!(member.confirm(0).await.is_err(), "it stays cut");
        (waited.0.is_err(), waited.1.is_err(), waited.2.is_err())
    });
    tokio::task::yield_now().await;
    bench.faulty.disconnect();
    assert_eq!(waiting.await.expect("no panic"), (true, true, true));
    assert_eq!(bench.faulty.counts().disconnects, 3);
    assert_eq!(bench.cluster.owner(GROUP, TOPIC, 0), None, "the cut member was dropped");
}

#[tokio::test]
async fn memberships_and_waits_are_cut_when_something_arrives() {
    let rates = Rates { disconnect: ALWAYS, ..Rates::none() };
    let bench = bench(rates).await;
    let mut member = bench.faulty.join(GROUP, TOPIC, "a").await.expect("it joins");
    assert!(member.changed().await.is_err());
    assert_eq!(bench.append().await, Ok(0));
    assert!(bench.journal.beyond(0).await.is_err());
    assert_eq!(bench.faulty.counts().disconnects, 2);
}

#[tokio::test(start_paused = true)]
async fn an_outage_fails_everything_and_passes() {
    let bench = bench(Rates::none()).await;
    let mut reader = bench.faulty.reader(TOPIC, 0, 0).await.expect("it opens");
    bench.faulty.outage(SECOND);
    assert!(next_batch(&mut *reader, PLENTY).await.is_err());
    assert!(bench.produce().await.is_err());
    assert!(bench.faulty.topics().await.is_err());
    tokio::time::advance(SECOND).await;
    assert_eq!(bench.produce().await, Ok(0));
    assert_eq!(bench.landed().await, (1, 0));

    let rates = Rates { outage: ALWAYS, outage_max: SECOND, ..Rates::none() };
    bench.faulty.set_rates(rates);
    assert!(bench.produce().await.is_err());
    assert_eq!(bench.faulty.counts().outages, 2);
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_time_and_nothing_else() {
    let rates = Rates { delay: ALWAYS, delay_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    let started = Instant::now();
    assert_eq!(bench.produce().await, Ok(0));
    assert!(started.elapsed() > Duration::ZERO && started.elapsed() <= 2 * SECOND);
    assert_eq!(bench.faulty.counts().delayed, 2);
}

#[tokio::test]
async fn nothing_happens_once_calm_and_again_when_resumed() {
    let rates = Rates { drop_request: ALWAYS, disconnect: ALWAYS, delay: ALWAYS, ..Rates::none() };
    let bench = bench(rates).await;
    bench.faulty.outage(SECOND);
    bench.faulty.calm();
    assert_eq!(bench.produce().await, Ok(0));
    assert_eq!(texts(&read_from(&*bench.faulty, TOPIC, 0, 0, 1).await), ["a"]);
    let expected = FaultCounts { outages: 1, ..FaultCounts::default() };
    assert_eq!(bench.faulty.counts(), expected);
    bench.faulty.resume();
    assert!(bench.produce().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_not_waited_for() {
    let rates = Rates { duplicate: ALWAYS, delay: ALWAYS, delay_max: SECOND, ..Rates::none() };
    let bench = bench(rates).await;
    assert!(poll_once(bench.produce()).await.is_none(), "it is on its way");
    bench.faulty.quiet().await;
    assert_eq!(bench.landed().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let bench = bench(Rates::rough()).await;
        let mut answers = Vec::new();
        for _ in 0..500 {
            answers.push((bench.produce().await, bench.append().await));
        }
        bench.faulty.quiet().await;
        runs.push((answers, bench.faulty.counts(), bench.landed().await));
    }
    assert_eq!(runs[0], runs[1]);
    let counts = runs[0].1;
    let each = [counts.delayed, counts.requests_dropped, counts.answers_dropped, counts.duplicated];
    assert!(each.iter().chain(&[counts.late, counts.outages]).all(|count| *count > 0), "{counts:?}");
}

/// A broker that is asked about itself, and nothing else.
struct Oracle {
    recalled: std::sync::atomic::AtomicU32,
}

#[async_trait::async_trait]
impl Broker for Oracle {
    fn kind(&self) -> &'static str {
        "oracle"
    }
    async fn health(&self) -> Result<(), BrokerError> {
        Err(BrokerError::DiskFull("health".to_owned()))
    }
    async fn troubles(&self) -> Vec<BrokerError> {
        vec![BrokerError::Closed]
    }
    async fn warnings(&self, topics: &[String]) -> Result<Vec<keylane_broker::Warning>, BrokerError> {
        Err(BrokerError::UnknownTopic(topics[0].clone()))
    }
    async fn recall(&self) {
        self.recalled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    async fn takes(&self, topic: &str, partition: u32) -> Result<(), BrokerError> {
        Err(BrokerError::UnknownTopic(format!("{topic}/{partition}")))
    }
    async fn tails(&self, _topic: &str) -> Result<Vec<u64>, BrokerError> {
        Ok(vec![7])
    }
    async fn journals(&self, _group: &str, _topic: &str) -> Result<Option<u32>, BrokerError> {
        Ok(Some(9))
    }
    async fn create_topic(
        &self,
        _name: &str,
        _spec: &keylane_broker::TopicSpec,
    ) -> Result<keylane_broker::Topic, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn topic(&self, _name: &str) -> Result<Option<keylane_broker::Topic>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn topics(&self) -> Result<Vec<keylane_broker::Topic>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn produce(&self, _topic: &str, _frames: keylane_core::Frames) -> Vec<Result<u64, ProduceError>> {
        Vec::new()
    }
    async fn reader(
        &self,
        _topic: &str,
        _partition: u32,
        _from: u64,
    ) -> Result<Box<dyn keylane_broker::Reader>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn ends(&self, _topic: &str) -> Result<Vec<keylane_broker::Ends>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn commit_all(
        &self,
        _group: &str,
        _topic: &str,
        commits: Vec<(u32, keylane_broker::Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        vec![Err(BrokerError::Closed); commits.len()]
    }
    async fn committed(&self, _: &str, _: &str, _: u32) -> Result<Option<Commit>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn join(
        &self,
        _: &str,
        _: &str,
        _: &str,
    ) -> Result<Box<dyn keylane_broker::Membership>, BrokerError> {
        Err(BrokerError::Closed)
    }
    async fn journal(&self, _: &keylane_broker::JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        Err(BrokerError::Closed)
    }
}

/// BRK-5: what a broker says of itself comes through, and is not replaced by what the contract says for those that are
/// silent.
#[tokio::test]
async fn what_a_broker_says_of_itself_comes_through() {
    let oracle = Arc::new(Oracle { recalled: 0.into() });
    let faulty = Faulty::new(oracle.clone(), 1, Rates::none());
    assert_eq!(faulty.health().await, Err(BrokerError::DiskFull("health".to_owned())));
    assert_eq!(faulty.troubles().await, [BrokerError::Closed]);
    assert_eq!(faulty.warnings(&["w".to_owned()]).await, Err(BrokerError::UnknownTopic("w".to_owned())));
    assert_eq!(faulty.takes("t", 3).await, Err(BrokerError::UnknownTopic("t/3".to_owned())));
    assert_eq!(faulty.tails("t").await, Ok(vec![7]));
    assert_eq!(faulty.journals("g", "t").await, Ok(Some(9)));
    faulty.recall().await;
    assert_eq!(oracle.recalled.load(std::sync::atomic::Ordering::Relaxed), 1);
}
