//! The protocol's rules as a value, so that a test can leave one out and see what goes wrong.
//!
//! Without the feature `flaws` there is nothing to leave out: every question below is a constant `true`, and the value
//! takes no room. Some rules are a driver's to keep: the explorer's driver leaves those out.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)+; of the driver: $($(#[$its_doc:meta])* $its:ident,)+) => {
        /// Which rules hold. A test leaves one out; nothing else does.
        #[cfg(feature = "flaws")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Rules {
            $($(#[$doc])* pub $name: bool,)+
            $($(#[$its_doc])* pub $its: bool,)+
        }

        #[cfg(feature = "flaws")]
        impl Rules {
            /// All of them.
            pub const ALL: Rules = Rules { $($name: true,)+ $($its: true,)+ };

            $(pub(crate) fn $name(self) -> bool { self.$name })+
        }

        /// Which rules hold: all.
        #[cfg(not(feature = "flaws"))]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) struct Rules;

        #[cfg(not(feature = "flaws"))]
        impl Rules {
            pub(crate) const ALL: Rules = Rules;

            $(pub(crate) const fn $name(self) -> bool { true })+
        }
    };
}

rules! {
    /// A record counts when its writer reads it back; the acknowledgement alone proves nothing.
    read_back,
    /// Facts of another epoch than the current one do not count.
    epoch_check,
    /// A claimant waits until the running epoch is released.
    wait_for_released,
    /// A fence counts only if its claim is the newest.
    newest_claim,
    /// A fence counts only if it names its claim's position.
    claim_position,
    /// The journal is cut only when the snapshot's writer has read it back as counting.
    cut_after_read_back,
    /// A snapshot is the state as of what its writer had read, not as of where it lands.
    as_of,
    /// An upgrade counts only if the owner and the newest claimant read the format.
    upgrade_when_readable,
    /// Completions that do not fit into one record go on record in ascending position.
    ascending,
    /// A drain is written in as few records as it fits into.
    few_records,
    /// Facts count only in their order, so that a repeat counts once.
    seq,
    /// A snapshot whose `as_of` lies below the journal's start is ignored.
    not_below_start,
    /// Whoever has claimed in vain waits before claiming again.
    wait_before_claiming,
    /// The key's hash stands on record beside what is held or dead.
    key_hash_on_record,
    /// Nothing of a key runs past a message whose copy does not count yet.
    copy_counts_first,
    /// Nothing of a key runs past a message whose dead letter does not count yet, even if that will be passed.
    dead_counts_first,
    /// What lies in hold waits for the reader to have come to its position.
    wait_for_reader,
    /// A dead letter that is not tried any more holds its key on.
    escalated_holds,
    /// What is settled and not held or dead does not become a dead letter.
    commands_by_state,
    /// A dead letter answers a retry only if its attempt had seen the newest command.
    answers_newest,
    /// A move counts only if it names what the state names.
    moved_names_from,
    /// `low` never rises above what the state names, and an edit below it is refused.
    low_is_capped,
    /// `hold.p` is cut only below a `low` that counts.
    cut_by_counted_low,
    /// `low` stays below where a copy that is under way may land, and a copy that landed below it is stored again.
    low_waits_for_copies,
    ; of the driver:
    /// What is settled is read from the journal, and not from the broker's commit.
    journal_is_truth,
    /// Each position is settled by itself, and not with a later one of its key.
    one_by_one,
    /// A body is named only after its acknowledgement.
    name_after_acknowledgement,
    /// A copy means something only if the journal names it.
    named_by_journal,
    /// An owner obeys a command when it reads it, and not when it is called.
    commands_by_journal,
}

impl Rules {
    /// Whether a failed attempt that had seen `seen` answers a retry, the newest command of which is `newest`.
    pub(crate) fn answers(self, seen: Option<u64>, newest: u64) -> bool {
        seen == Some(newest) || !self.answers_newest()
    }
}
