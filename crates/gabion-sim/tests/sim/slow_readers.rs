//! Readers that never end: past their pin budget they are ended, and the pool gets its slots back
//! while they are still there. And slow reads under a budget smaller than they need, while
//! everything else breaks.
//!
//! docs/faults.md: P1

use crate::times;
use gabion_base::ErrorKind;
use gabion_engine::{Compression, PinBudget, ReadView};
use gabion_sim::{Faults, Options, World};

/// No fault but that readers stay.
fn options(seed: u64, replicas: u32, pin_budget: PinBudget) -> Options {
    let (faults, compression) = (Faults::default(), Compression::None);
    Options { replicas, faults, compression, pin_budget, ..Options::of_seed(seed) }
}

/// Views of every replica, taken again and again and kept to the end. The group must come to rest
/// with them.
fn keep_views(seed: u64, options: Options) -> (World, Vec<ReadView>, Result<(), String>) {
    let mut world = World::new(seed, options);
    let mut views = Vec::new();
    for _ in 0..20 {
        world.advance(200).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let nodes = (0..world.len()).filter_map(|index| world.node(index));
        views.extend(nodes.map(|node| node.read_view()));
    }
    let result = world.finish();
    (world, views, result)
}

#[test]
fn readers_that_are_never_done_end_and_the_pool_gets_its_slots_back() {
    for (seed, replicas) in [(1, 1), (2, 3)] {
        let budget = PinBudget { age_ms_max: 200, states_max: 1_000 };
        let (world, views, result) = keep_views(seed, options(seed, replicas, budget));
        // All at rest is checked with the views in hand, no retired slot among them.
        assert_eq!(result, Ok(()), "seed {seed}");
        let mut ended = 0;
        for view in &views {
            if let Err(error) = view.pin() {
                assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "seed {seed}: {error}");
                assert!(error.message().contains("readers may keep it for 200 ms"), "{error}");
                ended += 1;
            }
        }
        assert!(ended * 2 > views.len(), "seed {seed}: {ended} of {} ended", views.len());
        assert!(world.outcome().readers_ended >= ended as u64);

        // The same with an unlimited budget: the views do keep slots.
        let (_, _, result) = keep_views(seed, options(seed, replicas, PinBudget::default()));
        let error = result.expect_err("nothing ended the views");
        assert!(error.contains("slots that nobody owns at rest"), "seed {seed}: {error}");
    }
}

#[test]
fn the_oldest_of_too_many_states_ends() {
    let budget = PinBudget { age_ms_max: u64::MAX, states_max: 3 };
    let (world, views, _) = keep_views(4, options(4, 1, budget));
    let node = world.node(0).expect("nothing kills it");
    let stats = node.readers();
    assert!((1..=3).contains(&stats.states_kept), "{stats:?}");
    let ended = views.iter().take_while(|view| view.pin().is_err()).count();
    assert!(ended > 5, "{ended} of {} ended", views.len());
    assert!(views[ended..].iter().all(|view| view.pin().is_ok()), "not the oldest ended");
}

#[test]
fn slow_reads_past_their_budget_end_and_say_nothing_wrong_while_all_else_breaks() {
    let mut ended = 0;
    for seed in 1..=6 * times() {
        let mut options = Options::of_seed(seed);
        options.pin_budget = PinBudget { age_ms_max: seed * 4, states_max: 1 + seed as usize % 4 };
        options.faults.slow = 300;
        let outcome = World::run(seed, options).unwrap_or_else(|error| panic!("{error}"));
        ended += outcome.readers_ended;
    }
    assert!(ended > 45 * times(), "{ended} readers were ended");
}
