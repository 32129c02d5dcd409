//! Runs the numbered examples.

#[path = "../../../examples/03_failures.rs"]
mod failures;
#[path = "../../../examples/01_first_message.rs"]
mod first_message;
#[path = "../../../examples/02_keys_in_parallel.rs"]
mod keys_in_parallel;

#[test]
fn every_example_runs_to_its_end() {
    first_message::main().expect("01_first_message");
    keys_in_parallel::main().expect("02_keys_in_parallel");
    failures::main().expect("03_failures");
}
