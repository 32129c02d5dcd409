//! The protocol's rules as a value, so that a test can leave one out and see what goes wrong.
//!
//! Without the feature `flaws` there is nothing to leave out: every question below is a constant `true`, and the value
//! takes no room.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Which rules hold. A test leaves one out; nothing else does.
        #[cfg(feature = "flaws")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Rules {
            $($(#[$doc])* pub $name: bool,)+
        }

        #[cfg(feature = "flaws")]
        impl Rules {
            /// All of them.
            pub const ALL: Rules = Rules { $($name: true,)+ };

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
}
