//! Keeps what the broker does not take, in the order of its calls, a sync for all that came meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use keylane_broker::ProduceError;
use keylane_core::Frames;

use super::calls::Job;
use super::store::Kind;
use super::{Bells, Results, Spill, Stored, lock};

/// Bytes that are written at once: enough to make a sync cheap, little beside what may be in flight.
const WRITE_BYTES: usize = 4 << 20;

/// Keeps what is queued, for as long as somebody produces.
pub(super) async fn write(spill: Weak<Spill>, bells: Arc<Bells>) {
    loop {
        let Some(here) = spill.upgrade() else { return };
        let jobs = here.next_jobs();
        if jobs.is_empty() {
            drop(here);
            bells.to_write.notified().await;
            continue;
        }
        here.keep(jobs).await;
        bells.to_drain.notify_one();
    }
}

/// Messages of one topic that are written together.
struct Together {
    frames: Frames,
    jobs: Vec<Job>,
}

impl Spill {
    fn next_jobs(&self) -> Vec<Job> {
        let mut calls = lock(&self.calls);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while bytes < WRITE_BYTES {
            let Some(job) = calls.next_job() else { break };
            bytes += job.frames.bytes();
            jobs.push(job);
        }
        jobs
    }

    async fn keep(&self, jobs: Vec<Job>) {
        let (mut kept, bytes_max) = self.store.bytes();
        let mut topics: Vec<Together> = Vec::new();
        for job in jobs {
            let bytes = job.frames.bytes() as u64;
            if kept + bytes > bytes_max {
                let full = ProduceError::SpillFull { bytes: kept, bytes_max };
                let refused = vec![Err(full); job.frames.len()];
                self.kept(job, refused);
                continue;
            }
            kept += bytes;
            let log = |job: &Job| (Arc::clone(&job.target.name), job.target.partitions);
            let same = topics.iter_mut().find(|together| log(&together.jobs[0]) == log(&job));
            match same {
                Some(together) => {
                    job.frames
                        .iter()
                        .for_each(|(partition, frame)| together.frames.push_frame(partition, frame));
                    together.jobs.push(job);
                }
                None => topics.push(Together { frames: job.frames.clone(), jobs: vec![job] }),
            }
        }
        let written = join_all(topics.into_iter().map(|Together { frames, jobs }| async {
            let target = &jobs[0].target;
            let results = self.store.append(Kind::Waiting, &target.name, target.partitions, frames).await;
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
        let lines = self.lines.read().expect("no holder panics");
        let mut results: Results = Vec::with_capacity(positions.len());
        for ((partition, _), position) in job.frames.iter().zip(positions) {
            let line = lines.get(&job.target, partition).expect("it waits");
            line.unqueue(position.as_ref().ok().copied());
            results.push(position.map(|_| Stored::Here));
        }
        drop(lines);
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
}
