//! Calls that are under way, and how each of their messages stands: with the client, back from it, or ended.
//!
//! A message that the client gave back without a verdict of its own is sent again, before all that came later for its
//! partition. Invariants: `handed` counts what the client has and will report; a call is answered once all its messages
//! have ended; what is held back is in the order of its calls.
//!
//! A topic that we may not write to costs a client each time that it is tried, and the messages of all topics wait until
//! the next client has them. So such a topic is refused here for a while, before anything is sent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_core::{Delivery, Frames};
use rdkafka::error::RDKafkaErrorCode;
use tokio::sync::oneshot;

use super::super::clock;
use super::super::errors::{is_of_sequence, produce_error};
use super::client::Report;
use super::held::Held;
use super::primed::Primed;
use super::shut::Shut;
use super::{Results, called_back};
use crate::contract::{NO_POSITION, ProduceError};

/// Bits of a number that say which message of its call it is about.
pub(super) const INDEX_BITS: u32 = 24;

/// For how long a topic that we may not write to is not tried again: long enough that others do not notice the tries, and
/// short enough for whoever has just granted the right.
const DENIED: Duration = Duration::from_secs(5);

/// The number of a message: of its call, and of its place there. Later calls have larger ones.
pub(super) fn number(call: u64, index: usize) -> u64 {
    call << INDEX_BITS | index as u64
}

fn call_of(number: u64) -> (u64, usize) {
    (number >> INDEX_BITS, (number & ((1 << INDEX_BITS) - 1)) as usize)
}

/// A partition of a topic.
pub(super) type Place = (Arc<str>, u32);

/// A call's answer, which is given when no lock is held.
pub(super) struct Answer(oneshot::Sender<Results>, Results);

impl Answer {
    pub(super) fn give(self) {
        let _nobody_waits = self.0.send(self.1);
    }
}

/// How a message stands.
#[derive(Debug, Clone)]
enum Slot {
    /// The client has it, or is about to.
    Handed,
    /// It is to be sent again. One that was refused together with others is suspected with all of them: their number,
    /// or 0 for one that is innocent.
    Back {
        suspects: usize,
    },
    Ended(Result<u64, ProduceError>),
}

/// A call of which not all has ended.
pub(super) struct Open {
    pub(super) topic: Arc<str>,
    /// What is sent again if the client gives it back; none if it is not.
    pub(super) frames: Option<Frames>,
    slots: Vec<Slot>,
    left: usize,
    done: oneshot::Sender<Results>,
    called_back: bool,
}

impl Open {
    pub(super) fn new(
        topic: Arc<str>,
        frames: Option<Frames>,
        messages: usize,
        done: oneshot::Sender<Results>,
    ) -> Open {
        let slots = vec![Slot::Handed; messages];
        Open { topic, frames, slots, left: messages, done, called_back: false }
    }

    fn message(&self, index: usize) -> Option<Delivery> {
        self.frames.as_ref()?.message(index)?.ok()
    }
}

/// All that is under way.
#[derive(Default)]
pub(super) struct UnderWay {
    open: HashMap<u64, Open>,
    /// Messages that the client has, or is about to have.
    pub(super) handed: usize,
    pub(super) held: HashMap<Place, Held>,
    pub(super) primed: Primed,
    shut: Shut,
    /// Topics that we may not write to, since when, and as it was told.
    denied: HashMap<Arc<str>, (Instant, ProduceError)>,
    /// What happened since this was last looked at.
    pub(super) progress: Progress,
}

/// What a client came to before it was replaced. The next is made the later, the less it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    #[default]
    None,
    /// Somebody was refused for good: whoever sends such messages again and again must not have us do nothing else than
    /// replace clients.
    Refused,
    /// Something was acknowledged, or fewer are suspected than before, which comes to an end.
    Made,
}

impl UnderWay {
    pub(super) fn begin(&mut self, call: u64, open: Open) {
        self.handed += open.slots.len();
        self.open.insert(call, open);
    }

    /// Why a topic takes nothing, if it was asked a moment ago.
    pub(super) fn denied(&mut self, topic: &str) -> Option<ProduceError> {
        self.denied.retain(|_, (since, _)| since.elapsed() < DENIED);
        self.denied.get(topic).map(|(_, why)| why.clone())
    }

    /// What is to be sent again to a topic that takes nothing ends like what was sent to it.
    pub(super) fn end_denied(&mut self) -> Vec<Answer> {
        let backs = self.backs().into_iter();
        let ended = backs.filter_map(|(number, _)| {
            let topic = Arc::clone(&self.open.get(&call_of(number).0)?.topic);
            let why = self.denied(&topic)?;
            self.end(number, Err(why))
        });
        ended.collect()
    }

    /// Which partitions of a topic take nothing, because of a call that is not answered yet.
    pub(super) fn shut_of(&mut self, topic: &str) -> HashSet<u32> {
        self.shut.of(topic, clock::now())
    }

    /// Whether one does.
    pub(super) fn is_shut(&mut self, place: &Place) -> bool {
        self.shut.has(place, clock::now())
    }

    /// A message was not handed over, for good.
    pub(super) fn refuse(&mut self, number: u64, error: ProduceError) -> Option<Answer> {
        self.handed -= 1;
        self.end(number, Err(error))
    }

    /// A message was not handed over, but will be.
    pub(super) fn put_back(&mut self, number: u64) {
        self.handed -= 1;
        let (call, index) = call_of(number);
        if let Some(open) = self.open.get_mut(&call) {
            open.slots[index] = Slot::Back { suspects: 0 };
        }
    }

    /// A message ends. One whose fate is not known keeps others from its partition until its call is answered.
    pub(super) fn end(&mut self, number: u64, result: Result<u64, ProduceError>) -> Option<Answer> {
        let (call, index) = call_of(number);
        let open = self.open.get_mut(&call)?;
        // Who asked for everything back keeps all of it.
        if matches!(result, Err(ProduceError::Unavailable(_))) && !open.called_back {
            let partition = open.message(index).map(|message| message.partition());
            let place = partition.map(|partition| (Arc::clone(&open.topic), partition));
            place.into_iter().for_each(|place| self.shut.shut(place, call));
        }
        self.finish(number, result)
    }

    /// A message is not handed over, since its partition is shut. That keeps nobody else from it: with calls that never
    /// stop coming it would never open.
    pub(super) fn turn_away(&mut self, number: u64, place: &Place) -> Option<Answer> {
        self.handed -= 1;
        self.finish(number, Err(not_heard_of(&place.0, place.1)))
    }

    /// The same, of a message that is to be sent again.
    pub(super) fn turn_back_away(&mut self, number: u64, place: &Place) -> Option<Answer> {
        self.suspects(number)?;
        self.finish(number, Err(not_heard_of(&place.0, place.1)))
    }

    fn finish(&mut self, number: u64, result: Result<u64, ProduceError>) -> Option<Answer> {
        let (call, index) = call_of(number);
        let open = self.open.get_mut(&call)?;
        open.slots[index] = Slot::Ended(result);
        open.left -= 1;
        if open.left > 0 {
            return None;
        }
        self.shut.answered(call, clock::now());
        let Open { slots, done, .. } = self.open.remove(&call)?;
        let unknown = || Err(ProduceError::Unavailable("it was not reported".to_owned()));
        let results = slots.into_iter().map(|slot| match slot {
            Slot::Ended(result) => result,
            Slot::Handed | Slot::Back { .. } => unknown(),
        });
        Some(Answer(done, results.collect()))
    }

    /// The reports of one batch. Says which partitions they are of, which is one if anything was acknowledged, and
    /// whether something came back that is to be sent again.
    pub(super) fn report(&mut self, reports: &[Report], answers: &mut Vec<Answer>) -> (Vec<Place>, bool) {
        let blame = Blame::of(reports);
        let (mut places, mut came_back, mut denied) = (Vec::<(Place, usize)>::new(), false, false);
        let told = self.prime(reports);
        for report in reports {
            self.handed -= 1;
            let (call, index) = call_of(report.number);
            let Some(open) = self.open.get_mut(&call) else { continue };
            let is_of = |(topic, partition): &Place| *partition == report.partition && *topic == open.topic;
            match places.iter_mut().find(|(place, _)| is_of(place)) {
                Some((_, messages)) => *messages += 1,
                None => places.push(((Arc::clone(&open.topic), report.partition), 1)),
            }
            let ended = match report.result {
                Ok(offset) => {
                    self.progress = Progress::Made;
                    // One that was acknowledged by an answer to a later one has no offset. It is there if the leader
                    // knows how this client numbers; else only that later one is.
                    let unknown = || ProduceError::Unavailable("it may not have been taken".to_owned());
                    let unplaced = told.then_some(NO_POSITION).ok_or_else(unknown);
                    Some(u64::try_from(offset).or(unplaced))
                }
                Err(code) => {
                    let found = judge(open, report, code, reports.len(), &blame);
                    let came_to = match &found {
                        Ok(_) => Progress::Refused,
                        Err(0) => Progress::None,
                        Err(_) => Progress::Made,
                    };
                    self.progress = self.progress.max(came_to);
                    if let Err(suspects) = found {
                        open.slots[index] = Slot::Back { suspects };
                        came_back = true;
                    }
                    if let (Ok(why @ ProduceError::Denied(_)), true) = (&found, open.frames.is_some()) {
                        self.denied.insert(Arc::clone(&open.topic), (clock::now(), why.clone()));
                        denied = true;
                    }
                    found.ok().map(Err)
                }
            };
            answers.extend(ended.and_then(|result| self.end(report.number, result)));
        }
        for (place, messages) in &places {
            self.came_out(place, *messages);
        }
        if denied {
            answers.extend(self.end_denied());
        }
        (places.into_iter().map(|(place, _)| place).collect(), came_back)
    }

    /// Whether the leader that sent these reports knows how the client numbers. If it told an offset it does from now on.
    fn prime(&mut self, reports: &[Report]) -> bool {
        let Some(report) = reports.iter().find(|report| report.result.is_ok()) else { return false };
        let Some(open) = self.open.get(&call_of(report.number).0) else { return false };
        let (place, now) = ((Arc::clone(&open.topic), report.partition), clock::now());
        if reports.iter().any(|report| report.result.is_ok_and(|offset| offset >= 0)) {
            self.primed.acknowledged(&place, now);
        }
        self.primed.is(&place.0, place.1, now)
    }

    /// Partitions of which the client has messages.
    pub(super) fn handed_to(&self) -> HashSet<Place> {
        let all = self.open.iter().flat_map(|(call, open)| {
            let handed = open.slots.iter().enumerate().filter(|(_, slot)| matches!(slot, Slot::Handed));
            handed.filter_map(|(index, _)| self.message(number(*call, index)))
        });
        all.map(|(place, _)| place).collect()
    }

    /// What the client has is to be sent again, without a report of it, or ends where it cannot be; how many those are.
    /// Whatever the client reports later must not come here.
    pub(super) fn give_up(&mut self) -> (usize, Vec<Answer>) {
        let (mut given_up, mut ended) = (0, Vec::new());
        for (call, open) in &mut self.open {
            let again = open.frames.is_some() && !open.called_back;
            for (index, slot) in open.slots.iter_mut().enumerate() {
                match slot {
                    Slot::Handed if again => *slot = Slot::Back { suspects: 0 },
                    Slot::Handed => ended.push(number(*call, index)),
                    _ => continue,
                }
                given_up += 1;
            }
        }
        self.handed = 0;
        let unknown =
            || Err(ProduceError::Unavailable("the client does not say what became of it".to_owned()));
        (given_up, ended.into_iter().filter_map(|number| self.end(number, unknown())).collect())
    }

    /// Everything that is open is given up: what is back ends now, and the rest when the client reports it.
    pub(super) fn call_back(&mut self) -> Vec<Answer> {
        self.held.clear();
        self.shut.open_all();
        self.open.values_mut().for_each(|open| open.called_back = true);
        let back = self.backs();
        back.into_iter().filter_map(|(number, _)| self.end(number, Err(called_back()))).collect()
    }

    /// All that is to be sent again ends like this.
    pub(super) fn end_backs(&mut self, error: &ProduceError) -> Vec<Answer> {
        let back = self.backs();
        back.into_iter().filter_map(|(number, _)| self.end(number, Err(error.clone()))).collect()
    }

    /// What is to be sent again, in order, and with how many others each is suspected.
    pub(super) fn backs(&self) -> Vec<(u64, usize)> {
        let mut backs = Vec::new();
        for (call, open) in &self.open {
            for (index, slot) in open.slots.iter().enumerate() {
                if let Slot::Back { suspects } = slot {
                    backs.push((number(*call, index), *suspects));
                }
            }
        }
        backs.sort_unstable();
        backs
    }

    /// In a call that asks for it, nothing goes behind a message of its key that was refused.
    pub(super) fn stop_behind(&mut self) -> Vec<Answer> {
        let mut behind = Vec::new();
        for (call, open) in &self.open {
            if !open.frames.as_ref().is_some_and(Frames::stops_at_refused) {
                continue;
            }
            let mut keys = HashSet::new();
            for (index, slot) in open.slots.iter().enumerate() {
                let key = || open.message(index).and_then(|message| message.key().map(<[u8]>::to_vec));
                match slot {
                    Slot::Ended(Err(_)) => keys.extend(key()),
                    Slot::Back { .. } if !keys.is_empty() && key().is_some_and(|key| keys.contains(&key)) => {
                        behind.push(number(*call, index));
                    }
                    _ => {}
                }
            }
        }
        behind.into_iter().filter_map(|number| self.end(number, Err(ProduceError::Behind))).collect()
    }

    /// With how many others a message is suspected that is to be sent again; none if it is not.
    pub(super) fn suspects(&self, number: u64) -> Option<usize> {
        let (call, index) = call_of(number);
        match self.open.get(&call)?.slots[index] {
            Slot::Back { suspects } => Some(suspects),
            Slot::Handed | Slot::Ended(_) => None,
        }
    }

    /// A message that is open, and where it goes.
    pub(super) fn message(&self, number: u64) -> Option<(Place, Delivery)> {
        let (call, index) = call_of(number);
        let open = self.open.get(&call)?;
        let message = open.message(index)?;
        Some(((Arc::clone(&open.topic), message.partition()), message))
    }

    /// Whether a message carries its id, or is called by its place once it has one.
    pub(super) fn has_id(&self, number: u64) -> bool {
        let (call, index) = call_of(number);
        let frames = self.open.get(&call).and_then(|open| open.frames.as_ref());
        frames.is_none_or(|frames| frames.has_id(index))
    }

    /// A message that was back is handed over again.
    pub(super) fn hand(&mut self, number: u64) {
        let (call, index) = call_of(number);
        if let Some(open) = self.open.get_mut(&call) {
            open.slots[index] = Slot::Handed;
            self.handed += 1;
        }
    }
}

/// Why a message was not taken of whose partition the client, or the broker that it asked, does not know.
pub(super) fn not_heard_of(topic: &str, partition: u32) -> ProduceError {
    ProduceError::Unavailable(format!("the client does not know {topic}/{partition} yet, or not any more"))
}

/// Who is to blame for a batch that was refused, as far as can be told.
///
/// A cluster refuses whole batches, and names the records that are bad. The client gives the others a code of their own
/// if several are named. If one is, all have its code; but then all others share one text, and it has another. If each
/// is named, each has a text of its own.
enum Blame {
    /// Those without the code that says so.
    Coded,
    /// The one whose text is here.
    One(usize),
    All,
    Unknown,
}

impl Blame {
    fn of(reports: &[Report]) -> Blame {
        if reports.iter().any(|report| report.result == Err(RDKafkaErrorCode::InvalidDifferentRecord)) {
            return Blame::Coded;
        }
        let mut texts = HashMap::<usize, usize>::new();
        reports.iter().for_each(|report| *texts.entry(report.text_at).or_default() += 1);
        match (reports.len(), texts.len()) {
            (1, _) => Blame::All,
            // Of two it cannot be told which is the text that others would share.
            (2, _) => Blame::Unknown,
            (all, different) if all == different => Blame::All,
            (_, 2) => {
                let alone = texts.iter().find(|(_, count)| **count == 1);
                alone.map_or(Blame::Unknown, |(text_at, _)| Blame::One(*text_at))
            }
            _ => Blame::Unknown,
        }
    }

    /// Whether a message of the batch is to blame; none if it may be.
    fn falls_on(&self, report: &Report) -> Option<bool> {
        match self {
            Blame::Coded => Some(report.result != Err(RDKafkaErrorCode::InvalidDifferentRecord)),
            Blame::One(text_at) => Some(report.text_at == *text_at),
            Blame::All => Some(true),
            Blame::Unknown => None,
        }
    }
}

/// What becomes of a message that was not taken: an end, or another try, with how many others it is suspected then.
fn judge(
    open: &Open,
    report: &Report,
    code: RDKafkaErrorCode,
    batch: usize,
    blame: &Blame,
) -> Result<ProduceError, usize> {
    let error = produce_error(&open.topic, code);
    if open.frames.is_none() {
        // What the client's numbering got wrong says nothing about the record: it may be there or not.
        return Ok(if is_of_sequence(code) { ProduceError::Unavailable(code.to_string()) } else { error });
    }
    let suspects = match &error {
        ProduceError::Denied(_) => return Ok(error),
        // It was there when it was looked up: whoever says so has not heard of it, or not yet again.
        ProduceError::UnknownTopic(_) => return Ok(not_heard_of(&open.topic, report.partition)),
        ProduceError::Invalid(_) | ProduceError::TooLargeThere(_) if !is_of_sequence(code) => {
            match blame.falls_on(report) {
                Some(true) => return Ok(error),
                Some(false) => 0,
                None => batch,
            }
        }
        _ => 0,
    };
    match open.called_back {
        true => Ok(ProduceError::Unavailable(code.to_string())),
        false => Err(suspects),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(of: &[(RDKafkaErrorCode, usize)]) -> Vec<Report> {
        let report = |(code, text_at): &(RDKafkaErrorCode, usize)| Report {
            number: 0,
            result: Err(*code),
            text_at: *text_at,
            partition: 0,
            broker: 1,
        };
        of.iter().map(report).collect()
    }

    fn blamed(of: &[(RDKafkaErrorCode, usize)]) -> Vec<Option<bool>> {
        let reports = reports(of);
        let blame = Blame::of(&reports);
        reports.iter().map(|report| blame.falls_on(report)).collect()
    }

    /// BRK-2: as librdkafka tells it, which depends on how many records of a batch are bad.
    #[test]
    fn who_is_to_blame_for_a_batch_is_told_by_codes_and_texts() {
        use RDKafkaErrorCode::{InvalidDifferentRecord as Other, InvalidRecord as Bad};
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(blamed(&[(Bad, 0)]), [yes], "alone");
        assert_eq!(blamed(&[(Bad, 1), (Bad, 2)]), [None, None]);
        assert_eq!(blamed(&[(Bad, 1), (Bad, 2), (Bad, 1), (Bad, 1)]), [no, yes, no, no], "one is named");
        assert_eq!(blamed(&[(Bad, 1), (Bad, 2), (Other, 3), (Other, 3)]), [yes, yes, no, no], "two are");
        assert_eq!(blamed(&[(Bad, 1), (Bad, 2), (Bad, 3)]), [yes, yes, yes], "all are");
        assert_eq!(blamed(&[(Bad, 1), (Bad, 1), (Bad, 1)]), [None; 3], "nobody is");
        assert_eq!(blamed(&[(Bad, 0), (Bad, 0), (Bad, 0)]), [None; 3], "and nothing is said");
    }

    /// A call with so many messages for partition 0 of a topic.
    fn begin(
        under_way: &mut UnderWay,
        call: u64,
        topic: &str,
        messages: usize,
    ) -> oneshot::Receiver<Results> {
        let (done, answer) = oneshot::channel();
        let mut frames = Frames::default();
        for _ in 0..messages {
            frames.push(0, &keylane_core::Draft { id: "id", ..Default::default() }).expect("a valid draft");
        }
        under_way.begin(call, Open::new(topic.into(), Some(frames), messages, done));
        answer
    }

    fn ended(number: u64, code: RDKafkaErrorCode) -> Report {
        Report { number, result: Err(code), text_at: 0, partition: 0, broker: 1 }
    }

    /// P3, BRK-2: a topic that we may not write to is refused before it costs a client, also what the last one gave back;
    /// others are sent on. That is no progress, by which the next client would be made at once.
    #[test]
    fn a_topic_that_was_denied_is_not_tried_again_at_once() {
        let mut under_way = UnderWay::default();
        let (shut, open) = (begin(&mut under_way, 1, "shut", 2), begin(&mut under_way, 2, "open", 1));
        let mut answers = Vec::new();
        under_way.report(&[ended(number(1, 0), RDKafkaErrorCode::TopicAuthorizationFailed)], &mut answers);
        under_way.report(&[ended(number(1, 1), RDKafkaErrorCode::PurgeQueue)], &mut answers);
        under_way.report(&[ended(number(2, 0), RDKafkaErrorCode::PurgeQueue)], &mut answers);
        assert_eq!(under_way.progress, Progress::Refused);
        assert!(matches!(under_way.denied("shut"), Some(ProduceError::Denied(_))));
        assert_eq!(under_way.denied("open"), None);
        answers.extend(under_way.end_denied());
        answers.into_iter().for_each(Answer::give);
        let results = shut.blocking_recv().expect("all of it has ended");
        assert!(results.iter().all(|result| matches!(result, Err(ProduceError::Denied(_)))), "{results:?}");
        assert_eq!(under_way.backs(), [(number(2, 0), 0)], "it is sent again");
        drop(open);
    }

    /// PRD-3, P2: what a client has that does not give it back is sent again, in order and once, and what cannot be ends.
    #[test]
    fn what_a_client_does_not_give_back_is_sent_again_or_ends() {
        let mut under_way = UnderWay::default();
        let mut answers = Vec::new();
        let first = begin(&mut under_way, 1, "orders", 3);
        under_way.report(&[ended(number(1, 1), RDKafkaErrorCode::PurgeQueue)], &mut answers);
        let (done, journal) = oneshot::channel();
        under_way.begin(2, Open::new("journal".into(), None, 1, done));
        let last = begin(&mut under_way, 3, "orders", 1);
        assert_eq!(under_way.handed_to(), [("orders".into(), 0)].into());
        let (given_up, answers) = under_way.give_up();
        answers.into_iter().for_each(Answer::give);
        assert_eq!((given_up, under_way.handed), (4, 0));
        let journal = journal.blocking_recv().expect("it has ended");
        assert!(matches!(journal[0], Err(ProduceError::Unavailable(_))), "{journal:?}");
        let again = [number(1, 0), number(1, 1), number(1, 2), number(3, 0)];
        assert_eq!(under_way.backs(), again.map(|number| (number, 0)));
        under_way.call_back().into_iter().for_each(Answer::give);
        for ended in [first, last] {
            let results = ended.blocking_recv().expect("all of it has ended");
            assert!(results.iter().all(Result::is_err), "{results:?}");
        }
    }

    /// BRK-6, P10: an error of a producer's numbering says nothing about a journal's record: whoever appended it looks
    /// whether it is there. Taken for a refusal, it would stop its partition for good.
    #[test]
    fn a_journals_record_that_met_an_error_of_the_sequence_is_of_unknown_fate() {
        use RDKafkaErrorCode::{
            DuplicateSequenceNumber, GaplessGuarantee, InvalidProducerEpoch, InvalidRecord,
            OutOfOrderSequenceNumber, UnknownProducerId,
        };
        for (code, is_unknown) in [
            (OutOfOrderSequenceNumber, true),
            (DuplicateSequenceNumber, true),
            (UnknownProducerId, true),
            (InvalidProducerEpoch, true),
            (GaplessGuarantee, true),
            (InvalidRecord, false),
        ] {
            let mut under_way = UnderWay::default();
            let (done, answer) = oneshot::channel();
            under_way.begin(1, Open::new("journal".into(), None, 1, done));
            let mut answers = Vec::new();
            under_way.report(&[ended(number(1, 0), code)], &mut answers);
            answers.into_iter().for_each(Answer::give);
            let results = answer.blocking_recv().expect("it has ended");
            let told = matches!(results[0], Err(ProduceError::Unavailable(_)));
            assert_eq!(told, is_unknown, "{code}: {results:?}");
        }
    }

    /// P1, BRK-2: an acknowledgement without an offset is one only where the leader knows how the client numbers, which
    /// it does once it has told an offset.
    #[test]
    fn what_was_acknowledged_only_by_what_came_behind_it_may_not_be_there() {
        let told =
            |offset| Report { number: number(1, 0), result: Ok(offset), text_at: 0, partition: 0, broker: 1 };
        let mut under_way = UnderWay::default();
        for (offset, is_known) in [(-1001, false), (7, true), (-1001, true)] {
            let answer = begin(&mut under_way, 1, "orders", 1);
            let mut answers = Vec::new();
            under_way.report(&[told(offset)], &mut answers);
            answers.into_iter().for_each(Answer::give);
            let results = answer.blocking_recv().expect("it has ended");
            assert_eq!(results[0].is_ok(), is_known, "{offset}: {results:?}");
            assert!(is_known || matches!(results[0], Err(ProduceError::Unavailable(_))), "{results:?}");
        }
        under_way.hold_all();
        assert!(!under_way.primed.was("orders", 0), "no leader knows the next client");
    }

    /// P2, PRD-3: what failed shuts its partition for as long as its call is open, unless everything was called back.
    #[test]
    fn a_partition_is_shut_while_a_call_is_open_whose_message_failed_there() {
        let mut under_way = UnderWay::default();
        let answer = begin(&mut under_way, 1, "orders", 2);
        let place: Place = ("orders".into(), 0);
        let mut answers = Vec::new();
        under_way.report(&[ended(number(1, 1), RDKafkaErrorCode::UnknownTopic)], &mut answers);
        assert!(under_way.is_shut(&place) && answers.is_empty());
        let turned_away = begin(&mut under_way, 2, "orders", 1);
        answers.extend(under_way.turn_away(number(2, 0), &place));
        answers.drain(..).for_each(Answer::give);
        assert!(turned_away.blocking_recv().expect("it has ended")[0].is_err());
        answers.extend(under_way.call_back());
        assert!(!under_way.is_shut(&place), "whoever calls back keeps what failed");
        under_way.report(&[ended(number(1, 0), RDKafkaErrorCode::PurgeQueue)], &mut answers);
        assert!(!under_way.is_shut(&place));
        answers.into_iter().for_each(Answer::give);
        assert!(answer.blocking_recv().expect("it has ended").iter().all(Result::is_err));
    }

    /// BRK-2, BRK-10: a topic that was there is not refused for good because one answer does not know it.
    #[test]
    fn a_topic_that_is_unknown_for_a_moment_is_away_and_not_gone() {
        for code in [RDKafkaErrorCode::UnknownTopic, RDKafkaErrorCode::UnknownTopicOrPartition] {
            let mut under_way = UnderWay::default();
            let answer = begin(&mut under_way, 1, "orders", 1);
            let mut answers = Vec::new();
            under_way.report(&[ended(number(1, 0), code)], &mut answers);
            answers.into_iter().for_each(Answer::give);
            let results = answer.blocking_recv().expect("it has ended");
            assert!(matches!(results[0], Err(ProduceError::Unavailable(_))), "{code}: {results:?}");
        }
    }
}
