//! Whole clusters under chosen faults, all in one program: less to link, and the tests of all share the
//! machine's cores. A module each: `cargo test -p gabion-sim --test sim power::`.

mod crash_points;
mod damaged_files;
mod edits_again;
mod foreign_targets;
mod full_pools;
mod io_failures;
mod lost_files;
mod marks;
mod no_space;
mod no_target;
mod power;
mod rig;
mod rotten_log;
mod slow_readers;
mod workloads;

// What a test covered is a line that begins with `coverage: `: `cargo xtask seeds`, and so `.ci/run`, shows
// these and no others.

/// How many times as many seeds as `cargo test` takes are run: `.ci/run` takes twice as many.
fn times() -> u64 {
    std::env::var("GABION_TIMES").map_or(1, |text| text.parse().expect("GABION_TIMES is a number"))
}
