//! Known flaws as a value, so that a test can put one back and show that the proofs find it.
//!
//! Without the feature `flaws` no flaw can be put back: the value is empty, and everything made here is without flaws.

use keylane_core::journal::FORMAT;
use keylane_core::{Engine, Ledger, Owner, Settled, Setup};

/// The flaws of a pipeline. Only tests set any.
#[cfg(feature = "flaws")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flaws {
    /// Flaws of the ledger.
    pub ledger: keylane_core::ledger::Flaws,
    /// Flaws of the lanes.
    pub engine: keylane_core::lanes::Flaws,
    /// Rules of the partition protocol that are left out.
    pub rules: keylane_core::Rules,
    /// The newest format of journals that the pipeline reads and writes: one higher plays the next version.
    pub format: u8,
    /// An owner does not read its journal while an append of its own is under way, however long that takes.
    pub deaf_while_appending: bool,
    /// An owner hears nothing while the body of a dead letter is being stored.
    pub deaf_while_storing: bool,
    /// A shard looks whether the process was paused only between two passes.
    pub blind_within_a_pass: bool,
}

#[cfg(feature = "flaws")]
impl Default for Flaws {
    fn default() -> Flaws {
        Flaws {
            ledger: Default::default(),
            engine: Default::default(),
            rules: keylane_core::Rules::ALL,
            format: FORMAT,
            deaf_while_appending: false,
            deaf_while_storing: false,
            blind_within_a_pass: false,
        }
    }
}

/// The flaws of a pipeline: none.
#[cfg(not(feature = "flaws"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flaws;

#[cfg(feature = "flaws")]
impl Flaws {
    pub(crate) fn engine(self, settings: keylane_core::Settings) -> Engine {
        Engine::with_flaws(settings, self.engine)
    }

    pub(crate) fn ledger(self, settled: &Settled) -> Ledger {
        Ledger::resume_with_flaws(settled, self.ledger)
    }

    pub(crate) fn owner(self, setup: Setup) -> Owner {
        Owner::with_rules(self.rules, Default::default(), std::sync::Arc::new(setup))
    }

    pub(crate) fn format(self) -> u8 {
        self.format
    }

    pub(crate) fn deaf_while_appending(self) -> bool {
        self.deaf_while_appending
    }

    pub(crate) fn deaf_while_storing(self) -> bool {
        self.deaf_while_storing
    }

    #[inline]
    pub(crate) fn blind_within_a_pass(self) -> bool {
        self.blind_within_a_pass
    }
}

#[cfg(not(feature = "flaws"))]
impl Flaws {
    pub(crate) fn engine(self, settings: keylane_core::Settings) -> Engine {
        Engine::new(settings)
    }

    pub(crate) fn ledger(self, settled: &Settled) -> Ledger {
        Ledger::resume(settled)
    }

    pub(crate) fn owner(self, setup: Setup) -> Owner {
        Owner::new(setup)
    }

    pub(crate) fn format(self) -> u8 {
        FORMAT
    }

    pub(crate) fn deaf_while_appending(self) -> bool {
        false
    }

    pub(crate) fn deaf_while_storing(self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn blind_within_a_pass(self) -> bool {
        false
    }
}
