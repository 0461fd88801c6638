//! Which files of tombstones are dropped.

use super::super::tests::{describe, meta, with_ranges};
use super::*;
use crate::config::TreeConfig;
use crate::version::Version;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;
use gabion_base::units::MIB;

/// A file of so many entries, of which so many are tombstones.
fn of(number: u64, from: &str, to: &str, (entries, deletes): (u64, u64)) -> FileMeta {
    FileMeta { entries, deletes, ..meta(number, from, to, MIB) }
}

fn tombstones(number: u64, from: &str, to: &str) -> FileMeta {
    of(number, from, to, (100, 100))
}

fn puts(number: u64, from: &str, to: &str) -> FileMeta {
    of(number, from, to, (100, 0))
}

fn dropped(files: Vec<(u8, FileMeta)>, floor: u64, snapshot: u64, busy: &[u64]) -> String {
    let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
    let (version, config) = (Version::of(7, files), TreeConfig::default());
    let picker = Picker::new(&config, &version, &busy);
    let pick = picker.pick_drop(SequenceNumber(floor), SequenceNumber(snapshot));
    pick.map_or("nothing".to_string(), |pick| describe(&pick))
}

#[test]
fn files_of_tombstones_alone_are_dropped_where_nothing_older_of_their_range_stays() {
    let drop = |files: Vec<_>| dropped(files, 0, 0, &[]);
    assert_eq!(drop(vec![(6, tombstones(1, "a", "c"))]), "Drop 6:1 to 0");
    assert_eq!(drop(vec![(6, of(1, "a", "c", (100, 99)))]), "nothing");
    assert_eq!(drop(vec![(6, of(1, "a", "c", (0, 0)))]), "nothing");
    // Whatever lies beside it, or above.
    let beside = vec![(6, puts(2, "d", "f")), (5, puts(3, "a", "z")), (6, tombstones(1, "a", "c"))];
    assert_eq!(drop(beside), "Drop 6:1 to 0");
    assert_eq!(drop(vec![(6, puts(2, "c", "f")), (5, tombstones(3, "a", "c"))]), "nothing");
    // Of L0 all that is older lies below.
    let of_l0 = |older| vec![(0, tombstones(5, "a", "c")), (0, puts(older, "b", "d"))];
    assert_eq!(drop(of_l0(4)), "nothing");
    assert_eq!(drop(of_l0(6)), "Drop 0:5 to 0");
}

#[test]
fn tombstones_upon_tombstones_go_together_and_never_before_what_they_hide() {
    let stack = |lowest: FileMeta| {
        vec![
            (0, tombstones(9, "a", "c")),
            (0, tombstones(8, "b", "d")),
            (1, tombstones(7, "a", "e")),
            (6, lowest),
        ]
    };
    let all = "Drop 0:9 0:8 1:7 6:1 to 0";
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, 0, &[]), all);
    assert_eq!(dropped(stack(puts(1, "a", "z")), 0, 0, &[]), "nothing");
    assert_eq!(dropped(stack(puts(1, "d", "z")), 0, 0, &[]), "nothing", "the oldest keeps others");
    // What was cleared, or is deleted by a range, hides no more than it has.
    assert_eq!(dropped(stack(puts(1, "a", "z")), 20, 1000, &[]), all);
    assert_eq!(dropped(stack(puts(1, "a", "z")), 20, 19, &[]), "nothing", "a snapshot sees it");
    // A job may be making something else of what they hide.
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, 0, &[1]), "nothing");
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, 0, &[8]), "Drop 1:7 6:1 to 0");
}

#[test]
fn range_deletes_are_tombstones_too_and_go_with_what_they_hide() {
    let alone = |level| FileMeta { entries: 0, ..with_ranges(level, "c", "f", MIB) };
    assert_eq!(dropped(vec![(3, alone(9))], 0, 0, &[]), "Drop 3:9 to 0");
    let hidden = |snapshot| dropped(vec![(3, alone(9)), (6, puts(1, "c", "e"))], 0, snapshot, &[]);
    assert_eq!(hidden(1000), "Drop 3:9 6:1 to 0");
    assert_eq!(hidden(98), "nothing", "a snapshot does not see all of the deletes");
    let more = vec![(3, with_ranges(9, "c", "f", MIB)), (6, puts(1, "c", "e"))];
    assert_eq!(dropped(more, 0, 1000, &[]), "Drop 6:1 to 0", "it holds a put");
}
