//! Whole clusters under chosen faults, all in one program: less to link, and the tests of all share the
//! machine's cores. A module each: `cargo test -p gabion-sim --test sim power::`.

mod crash_points;
mod damaged_files;
mod edits_again;
mod lost_files;
mod marks;
mod no_space;
mod no_target;
mod power;
mod rotten_log;
mod slow_readers;
