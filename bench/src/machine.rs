//! Reads CPU time and resident memory of the process, and makes runtimes of a known size.
#![allow(unsafe_code, reason = "getrusage and affinity have no safe form in std")]

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// Worker threads of every runtime that is measured: the targets are for 2 cores.
pub(crate) const WORKERS: usize = 2;

/// A runtime as programs have it, on [`WORKERS`] threads; a profile shows its name.
pub(crate) fn runtime(name: &str) -> std::io::Result<Runtime> {
    runtime_of(WORKERS, name)
}

/// A runtime as [`runtime`], on another number of threads.
pub(crate) fn runtime_of(workers: usize, name: &str) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).thread_name(name).enable_all().build()
}

/// While this lives, the thread that made it and all threads that it starts run on one core.
pub(crate) struct OneCore(libc::cpu_set_t);

impl OneCore {
    pub(crate) fn bind() -> std::io::Result<OneCore> {
        // SAFETY: all zeros are a valid set; the kernel reads and writes our own sets, and knows their size.
        unsafe {
            let mut all = std::mem::zeroed::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size_of_val(&all), &raw mut all) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The last core: interrupts tend to go to the first.
            let last = (0..libc::CPU_SETSIZE as usize).rev().find(|core| libc::CPU_ISSET(*core, &all));
            let mut one = std::mem::zeroed::<libc::cpu_set_t>();
            libc::CPU_SET(last.unwrap_or(0), &mut one);
            if libc::sched_setaffinity(0, size_of_val(&one), &raw const one) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(OneCore(all))
        }
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // SAFETY: as above. If this fails, later figures are bound to one core too: slow, but not wrong.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
    }
}

/// CPU time of all threads so far.
pub(crate) fn cpu() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills what the pointer names, and all zeros are a valid rusage if it does not.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Bytes of memory that are resident now.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    // SAFETY: reads a constant of the system.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(0) as u64
}

/// The most bytes of memory that were ever resident.
pub(crate) fn resident_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = most.and_then(|most| most.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// The time that some work took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

impl Took {
    /// CPU nanoseconds for each of `count`.
    pub(crate) fn cpu_ns(&self, count: u64) -> f64 {
        self.cpu.as_nanos() as f64 / count as f64
    }

    /// How many of `count` in a second of wall time.
    pub(crate) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64()
    }
}

/// Measures wall time and CPU time from its start on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    cpu: Duration,
    wall: Instant,
}

impl Watch {
    pub(crate) fn start() -> Watch {
        Watch { cpu: cpu(), wall: Instant::now() }
    }

    pub(crate) fn took(&self) -> Took {
        Took { cpu: cpu() - self.cpu, wall: self.wall.elapsed() }
    }
}
