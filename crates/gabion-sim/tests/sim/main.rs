//! Whole clusters under chosen faults, all in one program: less to link, and the tests of all share
//! the machine's cores. A module each: `cargo test -p gabion-sim --test sim power::`.

mod crash_points;
mod damaged_files;
mod edits_again;
mod filling;
mod flipped_memory;
mod foreign_targets;
mod full_pools;
mod held_jobs;
mod io_failures;
mod kept_segments;
mod loads;
mod lost_files;
mod marks;
mod member_crash_points;
mod member_failing_calls;
mod metamorphic;
mod networks;
mod new_pool_failing_calls;
mod no_space;
mod no_target;
#[cfg(feature = "planted")]
mod planted;
mod power;
mod recovery_crash_points;
mod reopening;
mod rig;
mod rings;
mod rotten_log;
mod slow_readers;
mod small_rings;
mod workloads;

use gabion_node::CompactionMode;
use gabion_sim::{Faults, Options, World};

// A line that begins with `coverage: ` shows what a test covered: `cargo xtask seeds`, and so
// `.ci/run`, shows these and no others.

/// The multiple of `cargo test`'s seeds to run: `.ci/run` takes four times as many.
fn times() -> u64 {
    std::env::var("GABION_TIMES").map_or(1, |text| text.parse().expect("GABION_TIMES is a number"))
}

/// Whether to take every crash point and every failing call.
fn is_full() -> bool {
    std::env::var_os("GABION_CRASH_FULL").is_some()
}

/// A group of three with no faults but the test's own, with some data.
fn calm_world(seed: u64) -> World {
    let compaction =
        if seed % 2 == 1 { CompactionMode::EveryReplica } else { CompactionMode::Primary };
    let options = Options { replicas: 3, compaction, ..Options::of_seed(seed) };
    let mut world = World::new(seed, Options { faults: Faults::default(), ..options });
    world.advance(1_000).expect("nothing happens to it");
    world
}

/// Does a part of something long in each of as many threads as there are cores: `work` gets its
/// part and the number of parts. In a sample all of it is one part, as other tests run beside it.
#[expect(clippy::disallowed_methods, reason = "each part is a world of its own, with one thread")]
fn in_parts<T: Send>(work: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    let parts = match std::thread::available_parallelism() {
        Ok(cores) if is_full() => cores.get(),
        _ => 1,
    };
    std::thread::scope(|scope| {
        let work = &work;
        let begun: Vec<_> = (0..parts).map(|part| scope.spawn(move || work(part, parts))).collect();
        begun.into_iter().map(|part| part.join().expect("a part ends")).collect()
    })
}
