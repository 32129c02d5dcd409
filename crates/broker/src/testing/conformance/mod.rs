//! The conformance suite that every broker must pass (BRK-5): as it is, and through [`super::faults::Faulty`].
//!
//! A case is an async function over a [`Rig`], which knows how to open the broker under test. [`crate::conformance!`]
//! makes a test of each case, so that a failure names the case:
//!
//! ```ignore
//! conformance!(memory, MemoryRig::new(1), can delete skip recreate share wait);
//! conformance!(embedded, EmbeddedRig::default(), can delete recreate close kill);
//! ```
//!
//! Some cases need what only some brokers can be made to do. They form groups that a rig asks for with `can`, so no
//! case passes without having run. `share` is for brokers whose groups can have members in several processes, `wait`
//! for those that assign a revoked partition only after it was given up.
//!
//! Cases share nothing: each has its own rig, and topics with names from [`Rig::name`]. They rely on the contract only:
//! positions have gaps, and calls fail only in the ways that the contract names. No case has a time limit: a missed
//! wake-up hangs, and the name of the hanging test is on the last line of output.

pub mod asked;
pub mod client;
pub mod commits;
pub mod ended;
pub mod faulted;
pub mod journals;
pub mod members;
pub mod messages;
pub mod produce;
pub mod read;
pub mod reopen;
pub mod rig;
pub mod topics;

pub use rig::{MemoryRig, Rig};

/// Makes a module with a test for each case of the suite: `conformance!(module_name, rig, can …)`. `rig` is an
/// expression that makes a new [`Rig`]; each test evaluates it anew.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $rig:expr, can $($what:ident)*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::conformance_cases! { $rig;
                topics::a_created_topic_is_described_and_listed_by_name
                topics::a_topic_that_is_there_is_returned_as_it_is
                topics::every_topic_has_an_incarnation_of_its_own
                topics::another_partition_count_is_refused
                topics::an_unknown_topic_is_an_error_everywhere
                produce::every_message_has_its_own_result_and_positions_rise
                produce::messages_keep_their_order_within_and_across_calls
                produce::partitions_do_not_mix
                produce::a_message_that_is_too_large_is_refused_alone
                produce::a_message_for_an_unknown_partition_is_refused_alone
                produce::a_call_without_messages_answers_at_once
                produce::concurrent_producers_lose_nothing_and_each_keeps_its_order
                produce::ends_follow_what_was_produced
                read::reading_starts_at_any_position
                read::a_batch_says_where_to_go_on
                read::batches_keep_to_their_size_but_hold_at_least_one_message
                read::readers_do_not_disturb_each_other
                read::a_reader_at_the_tail_is_woken
                read::a_wait_for_a_batch_can_be_cancelled
                read::a_position_above_the_end_is_an_error
                messages::a_null_payload_is_not_an_empty_one
                messages::an_empty_key_is_a_key_and_the_longest_key_fits
                messages::headers_keep_their_order_and_their_bytes
                messages::ids_versions_and_times_are_kept
                messages::a_message_as_large_as_the_limit_is_taken
                messages::every_byte_of_a_payload_is_kept
                commits::a_commit_is_read_back_with_its_metadata
                commits::commits_are_apart_by_group_and_partition
                commits::the_last_commit_stands_even_if_it_goes_back
                commits::one_call_commits_many_partitions
                members::the_only_member_gets_every_partition
                members::groups_do_not_know_of_each_other
                members::a_wait_for_changes_can_be_cancelled
                members::who_comes_after_a_member_left_gets_everything
                members::a_process_never_proves_itself_dead
                journals::a_journal_is_empty_before_its_first_append
                journals::positions_are_dense_from_zero
                journals::pages_are_bounded_and_say_where_the_journal_begins_and_ends
                journals::journals_of_other_names_are_other_journals
                journals::waiting_beyond_the_end_is_woken
                journals::a_wait_beyond_the_end_can_be_cancelled
                journals::a_condition_that_does_not_hold_appends_nothing
                journals::of_two_appends_on_the_same_condition_one_lands
                journals::a_cut_forgets_what_is_below_and_nothing_else
                journals::a_journal_that_was_cut_whole_goes_on_counting
                journals::a_reader_under_which_a_journal_was_cut_is_told_so
                journals::appends_of_two_handles_stand_in_one_order
                journals::a_record_of_twice_the_message_limit_is_kept
                reopen::what_was_acknowledged_is_there_after_reopening
                reopen::journals_and_their_cuts_survive_reopening
                reopen::commits_survive_reopening
                asked::a_broker_that_works_is_healthy_and_takes_messages
                asked::warnings_are_of_the_topics_asked_for
                asked::tails_are_where_partitions_end
                asked::journals_are_made_for_as_many_partitions_as_were_accepted
                asked::a_topic_that_is_there_gets_new_limits
                asked::a_call_takes_its_place_when_it_is_first_polled
                asked::a_call_that_was_dropped_spoils_nothing
                asked::a_recall_ends_what_is_under_way_in_order
            }
            $crate::conformance_cases_with_faults! { $rig;
                a_message_sent_again_until_acknowledged_is_there_in_order
                a_reader_opened_again_where_it_stood_misses_and_repeats_nothing
                a_record_sent_again_until_read_back_is_there_in_order
                an_append_on_condition_lands_only_where_it_was_meant_to
                a_journal_is_followed_through_disconnects
                a_cut_sent_again_takes_what_was_asked_and_no_more
                a_commit_sent_again_is_kept
                a_group_joined_again_gives_its_partitions_back
            }
            $( $crate::conformance_cases_if! { $what, $rig } )*
        }
    };
}

/// A part of [`crate::conformance!`]: the groups of cases that only some rigs can run.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases_if {
    (delete, $rig:expr) => {
        $crate::conformance_cases! { $rig;
            read::a_position_below_the_start_is_an_error
            ended::an_open_reader_that_retention_overtakes_never_skips
        }
    };
    (skip, $rig:expr) => {
        $crate::conformance_cases! { $rig; read::positions_may_have_gaps }
    };
    (recreate, $rig:expr) => {
        $crate::conformance_cases! { $rig; topics::a_recreated_topic_has_another_incarnation }
    };
    (close, $rig:expr) => {
        $crate::conformance_cases! { $rig; ended::whoever_waits_hears_that_the_broker_was_closed }
    };
    (kill, $rig:expr) => {
        $crate::conformance_cases! { $rig; ended::what_was_acknowledged_is_there_after_a_kill }
    };
    (begin_far, $rig:expr) => {
        $crate::conformance_cases! { $rig; ended::positions_near_the_highest_are_exact }
    };
    (grow, $rig:expr) => {
        $crate::conformance_cases! { $rig; ended::a_member_of_a_topic_that_got_more_partitions_is_told }
    };
    (swap, $rig:expr) => {
        $crate::conformance_cases! { $rig; ended::a_member_of_a_topic_that_was_made_again_is_told }
    };
    (wait, $rig:expr) => {
        $crate::conformance_cases! { $rig; members::a_partition_goes_on_only_after_it_was_given_up }
    };
    (share, $rig:expr) => {
        $crate::conformance_cases! { $rig;
            members::members_share_and_never_own_the_same_partition
            members::a_process_that_lives_is_not_proven_dead_by_another
        }
    };
}

/// A part of [`crate::conformance!`]: a test for each case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($rig:expr; $($topic:ident::$case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::testing::conformance::$topic::$case(&mut $rig).await;
            }
        )*
    };
}

/// A part of [`crate::conformance!`]: a test for each case with faults, which runs all seeds.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases_with_faults {
    ($rig:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                for seed in $crate::testing::conformance::faulted::SEEDS {
                    // The test runner shows this line only if the case fails.
                    println!("seed {seed}");
                    $crate::testing::conformance::faulted::$case(&mut $rig, seed).await;
                }
            }
        )*
    };
}
