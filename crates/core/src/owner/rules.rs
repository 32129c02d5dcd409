//! The protocol's rules as a value, so that a test can leave one out and see what goes wrong.
//!
//! Without the feature `flaws` no rule can be left out: each method is a constant `true`, and the value takes no room.
//! Some rules are kept by the driver; the explorer's driver leaves those out.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)+; of the driver: $($(#[$its_doc:meta])* $its:ident,)+) => {
        /// Which rules hold. All do, unless a test leaves one out.
        #[cfg(feature = "flaws")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Rules {
            $($(#[$doc])* pub $name: bool,)+
            $($(#[$its_doc])* pub $its: bool,)+
        }

        #[cfg(feature = "flaws")]
        impl Rules {
            /// All rules hold.
            pub const ALL: Rules = Rules { $($name: true,)+ $($its: true,)+ };

            $(pub(crate) fn $name(self) -> bool { self.$name })+
        }

        /// Which rules hold: always all.
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
    /// A record counts for its writer only when the writer reads it back; the acknowledgement alone proves nothing.
    read_back,
    /// Facts and snapshots of an epoch that is not the current one do not count.
    epoch_check,
    /// A claimant waits until the running epoch is released.
    wait_for_released,
    /// A fence counts only if its claim is the newest.
    newest_claim,
    /// A fence counts only if it names the position at which its claim counts.
    claim_position,
    /// The journal is cut only after the writer of the snapshot has read it back as counting.
    cut_after_read_back,
    /// A snapshot is the state as of what its writer had read, not as of the position where it lands.
    as_of,
    /// An upgrade counts only if the owner and the newest claimant can read the format.
    upgrade_when_readable,
    /// Completions that do not fit into one record go on record in ascending order of positions.
    ascending,
    /// A drain is written in as few records as possible.
    few_records,
    /// Facts count only in the order of their `seq`, so that a repeat counts once.
    seq,
    /// A snapshot whose `as_of` lies below the journal's start is ignored.
    not_below_start,
    /// A process that claimed in vain waits before it claims again.
    wait_before_claiming,
    /// The key's hash stands on record beside each held message and dead letter.
    key_hash_on_record,
    /// No message runs past one of its key whose copy does not count yet.
    copy_counts_first,
    /// No message runs past one of its key whose dead letter does not count yet, even if successors will pass the dead
    /// letter.
    dead_counts_first,
    /// A held message waits until the reader has come to its source position.
    wait_for_reader,
    /// A dead letter that is not retried by itself any more still holds its key.
    escalated_holds,
    /// A message that is done or discarded does not become a dead letter.
    commands_by_state,
    /// A dead letter answers a retry only if its attempt had seen the newest command.
    answers_newest,
    /// A move counts only if the position it names as `from` is the one that the state names.
    moved_names_from,
    /// `low` never rises above a position that the state names, and an edit whose body lies below `low` is refused.
    low_is_capped,
    /// `hold.p` is cut only below a `low` on a record that counts.
    cut_by_counted_low,
    /// `low` stays below the place where a copy that is under way may land; a copy that landed below `low` is stored
    /// again.
    low_waits_for_copies,
    ; of the driver:
    /// What is settled is read from the journal, not from the broker's commit.
    journal_is_truth,
    /// Each position is settled by itself, and not by a later one of its key.
    one_by_one,
    /// A body is named only after its append was acknowledged.
    name_after_acknowledgement,
    /// A copy in `hold.p` means something only if the journal names it.
    named_by_journal,
    /// An owner obeys a command when it reads it in the journal, not when it is called.
    commands_by_journal,
}

impl Rules {
    /// Whether a failed attempt whose newest seen command was `seen` answers a retry whose newest command is `newest`.
    pub(crate) fn answers(self, seen: Option<u64>, newest: u64) -> bool {
        seen == Some(newest) || !self.answers_newest()
    }
}
