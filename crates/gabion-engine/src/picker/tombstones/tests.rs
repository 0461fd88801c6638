//! Which files of tombstones are dropped.

use super::super::tests::{describe, meta, with_ranges};
use super::*;
use crate::config::TreeConfig;
use crate::version::Version;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::SequenceNumber;
use gabion_base::units::{KIB, MIB};

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

fn dropped(files: Vec<(u8, FileMeta)>, floor: u64, busy: &[u64]) -> String {
    let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
    let (version, config) = (Version::of(7, files), TreeConfig::default());
    let picker = Picker::new(&config, &version, &busy);
    let pick = picker.pick_drop(SequenceNumber(floor));
    pick.map_or("nothing".to_string(), |pick| describe(&pick))
}

#[test]
fn files_of_tombstones_alone_are_dropped_where_nothing_older_of_their_range_stays() {
    let drop = |files: Vec<_>| dropped(files, 0, &[]);
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
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, &[]), all);
    assert_eq!(dropped(stack(puts(1, "a", "z")), 0, &[]), "nothing");
    assert_eq!(dropped(stack(puts(1, "d", "z")), 0, &[]), "nothing", "the oldest keeps others");
    // What was cleared, or is deleted by a range, hides no more than it has.
    assert_eq!(dropped(stack(puts(1, "a", "z")), 20, &[]), all);
    // A job may be making something else of what they hide.
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, &[1]), "nothing");
    assert_eq!(dropped(stack(tombstones(1, "a", "z")), 0, &[8]), "Drop 1:7 6:1 to 0");
}

/// What is picked for tombstones, where 100 are worth it, and how long its files are in KiB.
fn merged(files: Vec<(u8, FileMeta)>, urgent: bool) -> String {
    let (version, busy) = (Version::of(7, files), BTreeSet::new());
    let config = TreeConfig { memtable_len: 1600 * KIB, ..TreeConfig::default() };
    let picker = Picker::new(&config, &version, &busy).urgent(urgent);
    let pick = picker.pick_tombstones();
    pick.map_or("nothing".to_string(), |pick| {
        alloc::format!("{}, {} KiB", describe(&pick), pick.output_len / KIB)
    })
}

/// Of 64 KiB.
fn small(number: u64, from: &str, to: &str, counts: (u64, u64)) -> FileMeta {
    FileMeta { len: 64 * KIB, ..of(number, from, to, counts) }
}

#[test]
fn a_file_at_the_bottom_that_is_dense_in_tombstones_is_written_anew_without_them() {
    let alone = |entries, deletes| vec![(6, of(5, "a", "c", (entries, deletes)))];
    let merged_now = |files: Vec<_>| merged(files, false);
    let anew = "Compaction 6:5 to 6 bottommost, 16384 KiB";
    assert_eq!(merged_now(alone(400, 100)), anew);
    assert_eq!(merged_now(alone(401, 100)), "nothing", "a quarter of it");
    assert_eq!(merged_now(alone(100, 99)), "nothing", "hundred of them");
    let of_l0 = vec![(0, of(5, "a", "c", (400, 100))), (6, puts(1, "d", "f"))];
    assert_eq!(merged_now(of_l0), "Compaction 0:5 to 6 bottommost, 16384 KiB");
    // Where room is short.
    assert_eq!(merged(alone(160, 10), true), anew);
    assert_eq!(merged(alone(161, 10), true), "nothing");
}

#[test]
fn tombstones_go_down_to_what_they_delete_if_they_may_delete_most_of_it() {
    let over = |dense: FileMeta, below: (u64, u64)| {
        let files = vec![(5, dense), (6, small(1, "k0000", "k0999", below))];
        merged(files, false)
    };
    let all = |deletes| small(9, "k0000", "k0999", (deletes, deletes));
    let goes = "Compaction 5:9 6:1 to 6 bottommost, 2048 KiB";
    assert_eq!(over(all(100), (125, 0)), goes);
    assert_eq!(over(all(100), (126, 0)), "nothing");
    assert_eq!(over(all(100), (250, 49)), "nothing");
    assert_eq!(over(all(100), (200, 49)), goes, "those below count too");
    // The front tenth, as of a queue, in whatever digits.
    let front = |to| small(9, "k0000", to, (100, 100));
    assert_eq!(over(front("k0099"), (1000, 0)), goes);
    assert_eq!(over(front("k0199"), (1000, 0)), "nothing");
    // Nothing of it on the next level: it is moved on.
    let files = vec![(4, all(100)), (6, small(1, "k0000", "k0999", (100, 0)))];
    assert_eq!(merged(files, false), "TrivialMove 4:9 to 5, 16384 KiB");
}

#[test]
fn no_more_is_written_anew_than_tombstones_are_worth() {
    let over = |len| {
        let below = FileMeta { len, ..of(1, "a", "c", (100, 0)) };
        merged(vec![(5, small(9, "a", "c", (100, 100))), (6, below)], false)
    };
    assert!(over(336 * KIB).starts_with("Compaction 5:9 6:1"), "4 KiB each");
    assert_eq!(over(337 * KIB), "nothing");
}

#[test]
fn tombstones_leave_l0_with_all_older_files_that_they_touch_and_no_newer_ones() {
    let files = |deleted: u64| {
        vec![
            (0, small(9, "a", "z", (10, 0))),
            (0, small(8, "b", "d", (100, deleted))),
            (0, small(7, "d", "f", (10, 0))),
            (0, small(6, "e", "g", (10, 0))),
            (0, small(5, "x", "z", (10, 0))),
            (6, small(1, "a", "c", (40, 0))),
            (6, small(2, "y", "z", (40, 0))),
        ]
    };
    let goes = "Compaction 0:8 0:7 0:6 6:1 to 6 bottommost, 2048 KiB";
    assert_eq!(merged(files(100), false), goes);
    assert_eq!(merged(files(99), false), "nothing");
    let busy = BTreeSet::from([FileId::sst(9)]);
    let (version, config) = (Version::of(7, files(100)), TreeConfig::default());
    let picker = Picker::new(&config, &version, &busy).urgent(true);
    let picked = picker.pick_tombstones();
    assert_eq!(picked, Err(NoPick::Busy), "one job at a time leaves L0");
}

#[test]
fn the_part_of_a_file_between_two_keys_is_guessed_from_its_bounds() {
    let part = |from: &str, to: &str, first: &str, last: &str| {
        let key = |text: &str| [&[1_u8], text.as_bytes()].concat();
        per_mille_within(&meta(1, from, to, MIB), &key(first), &key(last))
    };
    assert_eq!(part("q:0000000", "q:1000000", "q:0250000", "q:0500000"), 250);
    assert_eq!(part("q:0000000", "q:1000000", "a", "z"), 1000);
    assert_eq!(part("q:0000000", "q:1000000", "a", "q:0100000"), 100);
    assert_eq!(part("q:0000000", "q:1000000", "a", "b"), 0);
    assert_eq!(part("q:0000000", "q:1000000", "q:0500000", "q:0500000"), 1);
    assert_eq!(part("a", "a", "a", "a"), 1, "one key");
    let half = part("user\0\0\0\0", "user\0\u{1}\0\0", "user", "user\0\0\u{7f}\0");
    assert!((480..=500).contains(&half), "{half}");
}

#[test]
fn range_deletes_are_tombstones_too_and_go_with_what_they_hide() {
    let alone = |level| FileMeta { entries: 0, ..with_ranges(level, "c", "f", MIB) };
    assert_eq!(dropped(vec![(3, alone(9))], 0, &[]), "Drop 3:9 to 0");
    let hidden = vec![(3, alone(9)), (6, puts(1, "c", "e"))];
    assert_eq!(dropped(hidden, 0, &[]), "Drop 3:9 6:1 to 0");
    let more = vec![(3, with_ranges(9, "c", "f", MIB)), (6, puts(1, "c", "e"))];
    assert_eq!(dropped(more, 0, &[]), "Drop 6:1 to 0", "it holds a put");
}
