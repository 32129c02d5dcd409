//! Keeps what the broker does not take, in the order of its calls, a sync for all that came meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use keylane_broker::ProduceError;
use keylane_core::Frames;

use super::job::Job;
use super::store::{Kind, Place};
use super::way::Way;
use super::{Notifies, Results, Spill, Stored, lock};

/// Bytes that are written at once: enough to make a sync cheap, little beside what may be in flight.
const WRITE_BYTES: usize = 4 << 20;

/// Keeps what is queued, for as long as somebody produces.
pub(super) async fn write(spill: Weak<Spill>, notifies: Arc<Notifies>) {
    loop {
        let Some(here) = spill.upgrade() else { return };
        let jobs = here.next_jobs();
        if jobs.is_empty() {
            drop(here);
            notifies.to_write.notified().await;
            continue;
        }
        here.keep(jobs).await;
        notifies.to_drain.notify_one();
    }
}

/// Messages that go to one log together.
struct Together {
    frames: Frames,
    jobs: Vec<Job>,
}

/// What is taken of the spill's bounds.
struct Taken {
    bytes: u64,
    bytes_max: u64,
    /// What was refused for good, or stands or will stand behind it.
    behind: u64,
}

impl Taken {
    /// Takes room for a job, or says why there is none. Keys that are blocked, perhaps for long, leave half of the room
    /// to others.
    fn take(&mut self, job: &Job) -> Result<(), ProduceError> {
        let (bytes, bytes_max) = (job.frames.bytes() as u64, self.bytes_max / 2);
        let behind = matches!(job.way, Way::Behind | Way::Aside);
        if behind && self.behind + bytes > bytes_max {
            return Err(ProduceError::BehindFull { bytes: self.behind, bytes_max });
        }
        if self.bytes + bytes > self.bytes_max {
            return Err(ProduceError::SpillFull { bytes: self.bytes, bytes_max: self.bytes_max });
        }
        self.bytes += bytes;
        self.behind += if behind { bytes } else { 0 };
        Ok(())
    }
}

fn kind_of(job: &Job) -> Kind {
    match job.way {
        Way::Aside => Kind::Refused,
        _ => Kind::Waiting,
    }
}

impl Spill {
    fn next_jobs(&self) -> Vec<Job> {
        let mut calls = lock(&self.calls);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        // What failed at once has not come back yet, and goes before what is queued.
        while bytes < WRITE_BYTES && !self.failing.load(Ordering::SeqCst) {
            let Some(job) = calls.next_job() else { break };
            bytes += job.frames.bytes();
            jobs.push(job);
        }
        jobs
    }

    async fn keep(&self, jobs: Vec<Job>) {
        let mut taken = self.taken();
        // What goes aside is written first: what waits is put behind it as soon as it is found.
        let (aside, waiting): (Vec<_>, _) = jobs.into_iter().partition(|job| kind_of(job) == Kind::Refused);
        for jobs in [aside, waiting] {
            let mut logs: Vec<Together> = Vec::new();
            for job in jobs {
                if let Err(full) = taken.take(&job) {
                    let refused = vec![Err(full); job.frames.len()];
                    self.kept(job, refused);
                    continue;
                }
                let log = |job: &Job| (Arc::clone(&job.target.name), job.target.partitions);
                match logs.iter_mut().find(|together| log(&together.jobs[0]) == log(&job)) {
                    Some(together) => {
                        job.frames
                            .iter()
                            .for_each(|(partition, frame)| together.frames.push_frame(partition, frame));
                        together.jobs.push(job);
                    }
                    None => logs.push(Together { frames: job.frames.clone(), jobs: vec![job] }),
                }
            }
            self.write(logs).await;
        }
    }

    fn taken(&self) -> Taken {
        let (bytes, bytes_max) = self.store.bytes();
        let waiting = self.parts.read().expect("no holder panics").behind_bytes();
        Taken { bytes, bytes_max, behind: self.store.bytes_of(Kind::Refused) + waiting }
    }

    /// Writes to several logs at once, and answers.
    async fn write(&self, logs: Vec<Together>) {
        let written = join_all(logs.into_iter().map(|Together { frames, jobs }| async {
            let (target, kind) = (&jobs[0].target, kind_of(&jobs[0]));
            let results = self.store.append(kind, &target.name, target.partitions, frames).await;
            (jobs, results)
        }));
        for (jobs, results) in written.await {
            let mut results = results.into_iter();
            for job in jobs {
                let own = results.by_ref().take(job.frames.len()).collect();
                self.kept(job, own);
            }
        }
    }

    /// Answers one caller.
    fn kept(&self, job: Job, positions: Vec<Result<u64, ProduceError>>) {
        match job.way {
            Way::Aside => self.put_aside(&job, &positions),
            way => self.put_in_line(&job, &positions, way),
        }
        let results: Results = positions.into_iter().map(|kept| kept.map(|_| Stored::Here)).collect();
        let mut recent = lock(&self.recent);
        for message in job.frames.messages().flatten() {
            message.key().into_iter().for_each(|key| recent.key(key));
        }
        drop(recent);
        let spilled = results.iter().filter(|result| result.is_ok()).count() as u64;
        if spilled > 0 {
            self.counters.spilled.fetch_add(spilled, Ordering::Relaxed);
            self.counters.last_ms.store(self.clock.wall_ms(), Ordering::Relaxed);
        }
        self.counters.refusing.store(results.iter().any(Result::is_err), Ordering::Relaxed);
        job.answer.answer(results);
    }

    fn put_in_line(&self, job: &Job, positions: &[Result<u64, ProduceError>], way: Way) {
        let parts = self.parts.read().expect("no holder panics");
        for ((partition, frame), position) in job.frames.iter().zip(positions) {
            let part = parts.get(&job.target, partition).expect("it waits");
            if way == Way::Behind && position.is_ok() {
                part.add_behind(frame.len());
            }
            part.unqueue(position.as_ref().ok().copied());
        }
    }

    fn put_aside(&self, job: &Job, positions: &[Result<u64, ProduceError>]) {
        let mut parts = self.parts.write().expect("no holder panics");
        for ((partition, frame), position) in job.frames.iter().zip(positions) {
            let place = Place::of(&job.target, partition);
            if parts.is_aside(&place, frame, position.as_ref().ok().copied()) {
                self.counters.asked.store(true, Ordering::Relaxed);
            }
        }
    }
}
