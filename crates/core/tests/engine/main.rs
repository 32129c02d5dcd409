//! One shard's lanes compared with a naive model, in random runs; and single rules by example (`examples.rs`).

mod examples;
mod world;

use keylane_core::Order;
use proptest::prelude::*;
use world::{End, Step, World, small};

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        5 => Just(End::Done),
        6 => Just(End::Pending),
        2 => Just(End::Failed(None)),
        1 => (0u64..300).prop_map(|after| End::Failed(Some(after))),
        1 => Just(End::Rejected),
        2 => Just(End::NotBegun),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        40 => (0usize..9, ends(), any::<bool>()).prop_map(|(key, end, permit)| Step::Arrive { key, end, permit }),
        20 => ends().prop_map(|end| Step::Turn { end }),
        20 => (any::<usize>(), ends()).prop_map(|(which, end)| Step::End { which, end }),
        5 => any::<usize>().prop_map(|which| Step::Buried { which }),
        8 => (1u64..60).prop_map(Step::Time),
        5 => (1usize..6).prop_map(Step::Sweep),
        1 => (0u32..2).prop_map(Step::Drop),
        1 => (0u32..2).prop_map(Step::Drain),
        3 => (0u32..2).prop_map(Step::Hold),
        4 => (0u32..2).prop_map(Step::Release),
        3 => any::<usize>().prop_map(|which| Step::Stale { which }),
    ];
    proptest::collection::vec(one, 0..300)
}

fn run(mut world: World, steps: &[Step]) -> Result<(), String> {
    for step in steps {
        world.step(step).map_err(|how| format!("{how}, at {step:?}"))?;
    }
    world.quiesce()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// ORD-1, ORD-2, ORD-3, ORD-5, ORD-6, ORD-9, ORD-12, MSG-2, RTY-1, RTY-2: of each key one message runs at a time
    /// and in order, no message is lost or handed out twice, and capacity and the keyless share are kept. All this
    /// holds whatever arrives, ends, fails, is rejected, becomes idle, is swept, is held or is lost, and whenever.
    #[test]
    fn lanes_behave_as_a_naive_model(steps in steps()) {
        run(World::new(small(Order::Key)), &steps).map_err(TestCaseError::fail)?;
    }

    /// ORD-3: order `partition` runs all messages of a partition one after another, those without a key too.
    #[test]
    fn a_partition_in_order_behaves_as_a_naive_model(steps in steps()) {
        run(World::new(small(Order::Partition)), &steps).map_err(TestCaseError::fail)?;
    }

    /// ORD-3: in order `none` no message waits for another.
    #[test]
    fn without_order_the_model_holds_too(steps in steps()) {
        run(World::new(small(Order::None)), &steps).map_err(TestCaseError::fail)?;
    }
}

#[cfg(feature = "flaws")]
fn caught(flaws: keylane_core::lanes::Flaws) -> String {
    use proptest::test_runner::{TestError, TestRunner};
    let mut runner = TestRunner::deterministic();
    let found = runner.run(&steps(), |steps| {
        run(World::with_flaws(small(Order::Key), flaws), &steps).map_err(TestCaseError::fail)
    });
    match found {
        Err(TestError::Fail(why, _)) => why.message().to_string(),
        other => panic!("not caught: {other:?}"),
    }
}

/// ORD-2, RTY-2: the model notices a retry that goes behind later messages of its key.
#[cfg(feature = "flaws")]
#[test]
fn a_retry_at_the_tail_is_caught() {
    let flaws = keylane_core::lanes::Flaws { retry_at_tail: true, ..Default::default() };
    let why = caught(flaws);
    assert!(why.contains(" ran before "), "{why}");
}

/// ORD-5: the model notices a lane that is removed together with its queue.
#[cfg(feature = "flaws")]
#[test]
fn an_idle_lane_that_drops_its_queue_is_caught() {
    let flaws = keylane_core::lanes::Flaws { idle_drops_queue: true, ..Default::default() };
    let why = caught(flaws);
    assert!(why.contains("is lost") || why.contains(" ran before "), "{why}");
}
