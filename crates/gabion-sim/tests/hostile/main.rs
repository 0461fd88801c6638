//! Parsers of the cores, for everything that comes from a disk or a wire, fed with nearly valid
//! inputs, as [`gabion_sim::hostile`] says. Parsers of the shells are fed likewise in their own
//! crates: the members' messages beside frames in `gabion-server`, lines of `load` and
//! `cluster.json` in `gabion`.
//!
//! docs/faults.md: E14
#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod control;
mod depth;
mod disk;
mod files;
mod logs;
mod memory;
mod samples;
mod whole_logs;
mod wire;

use depth::Deep;
use gabion_base::Error;
use gabion_sim::hostile::{Counting, Format, Parsed, Tally};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_that_a_disk_holds_of_a_pool_panics_or_reserves_much() {
    disk::formats().iter().for_each(Format::run);
}

#[test]
fn nothing_that_a_disk_holds_of_a_tree_panics_or_reserves_much() {
    files::formats().iter().for_each(Format::run);
}

#[test]
fn nothing_that_a_disk_holds_of_a_log_panics_or_reserves_much() {
    logs::formats().iter().for_each(Format::run);
}

/// docs/faults.md: E14
#[test]
fn whatever_ring_and_segments_hold_a_log_is_recovered_as_it_stands_there_and_drained_so() {
    whole_logs::recovered().run();
}

/// docs/faults.md: E14
#[test]
fn nothing_that_tools_scan_past_what_is_bad_panics_or_reserves_much() {
    [whole_logs::scanned(), disk::scanned()].iter().for_each(Deep::run);
}

#[test]
fn nothing_that_comes_over_a_wire_panics_or_reserves_much() {
    wire::formats().iter().for_each(Format::run);
}

/// docs/faults.md: E14
#[test]
fn nothing_that_controllers_stores_and_memory_peers_hear_panics_or_reserves_much() {
    control::formats().iter().for_each(Format::run);
    memory::formats().iter().for_each(Format::run);
}

/// A parser that breaks all rules is caught at each.
#[test]
fn a_parser_that_does_what_it_must_not_is_caught() {
    type Bad = fn(&[u8]) -> Parsed;
    let bad: [(Bad, &str); 4] = [
        (|bytes| Ok(Some(bytes[bytes[0] as usize..].to_vec())), "panicked"),
        (|bytes| Ok(Some(vec![0; 1 << 20].split_off(bytes.len()))), "reserved"),
        (|bytes| Ok(Some([bytes, b"!"].concat())), "encoded again it differs"),
        (|_| Err(Error::io("the parser did no I/O")), "of another kind"),
    ];
    for (read, what) in bad {
        let format = Format::new("a bad parser", Vec::new(), read);
        let error = format.check(&[200; 10], &mut Tally::default()).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}
