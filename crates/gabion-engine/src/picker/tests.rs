//! Which job is picked for which files on which levels, as one line of text for each pick.

use super::pick::OutputLen;
use super::*;
use crate::config::TreeConfig;
use crate::edit::Edit;
use crate::expiry::ExpirySpan;
use crate::file::{FileMeta, FileReference};
use crate::job::{Estimate, Room};
use crate::range_delete::{Deleted, RangeDeletes};
use crate::recipe::JobKind;
use crate::sst::{Compression, SstOptions};
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use alloc::{format, string::ToString};
use core::ops::Range;
use gabion_base::units::{GIB, KIB, MIB};
use gabion_base::{FileId, FileKind, Term};

/// Files as `level:number[from-to]`, 16 MiB each unless `=MiB` follows.
pub(super) fn version(files: &[&str]) -> Version {
    let parse = |text: &&str| {
        let (level, rest) = text.split_once(':').unwrap();
        let (number, rest) = rest.split_once('[').unwrap();
        let (range, len) = rest.split_once(']').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let len = len.strip_prefix('=').map_or(16, |mib| mib.parse().unwrap());
        (level.parse().unwrap(), meta(number.parse().unwrap(), from, to, len * MIB))
    };
    Version::of(7, files.iter().map(parse).collect())
}

pub(crate) fn meta(number: u64, from: &str, to: &str, len: u64) -> FileMeta {
    let bound = |text: &str| [&[1u8], text.as_bytes()].concat();
    FileMeta {
        len,
        smallest: bound(from),
        largest: bound(to),
        smallest_sequence: SequenceNumber(number * 10),
        largest_sequence: SequenceNumber(number * 10 + 9),
        entries: 1,
        ..FileMeta::new(FileId::sst(number), Term(1))
    }
}

fn picked(files: &[&str], busy: &[u64]) -> String {
    let version = version(files);
    let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
    let config = TreeConfig { level1_len: 32 * MIB, ..TreeConfig::default() };
    let picker = Picker::new(&config, &version, &busy);
    picker.pick().map_or("nothing".to_string(), |pick| describe(&pick))
}

pub(super) fn describe(pick: &Pick) -> String {
    let inputs: Vec<_> =
        pick.inputs.iter().map(|(level, file)| format!("{level}:{}", file.id.number)).collect();
    let bottom = if pick.bottommost { " bottommost" } else { "" };
    format!("{:?} {} to {}{bottom}", pick.kind, inputs.join(" "), pick.output_level)
}

#[test]
fn nothing_is_picked_while_every_level_is_within_its_aim() {
    assert_eq!(picked(&[], &[]), "nothing");
    assert_eq!(picked(&["0:1[a-z]=1", "0:2[a-z]=1", "0:3[a-z]=1"], &[]), "nothing");
    assert_eq!(picked(&["1:1[a-k]=15", "1:2[l-z]=15"], &[]), "nothing");
}

#[test]
fn l0_goes_down_with_all_it_overlaps_newest_first() {
    let l0 = ["0:4[a-z]=1", "0:5[b-c]=1", "0:6[d-k]=1", "0:7[a-z]=1"];
    assert_eq!(picked(&l0, &[]), "Compaction 0:7 0:6 0:5 0:4 to 1 bottommost");
    let with_l1 = [&l0[..], &["1:1[a-c]=1", "1:2[m-p]=1", "3:3[q-q]=1"]].concat();
    assert_eq!(picked(&with_l1, &[]), "Compaction 0:7 0:6 0:5 0:4 1:1 1:2 to 1");
}

#[test]
fn the_oldest_file_of_l0_moves_down_alone_when_nothing_overlaps_it() {
    let l0 = ["0:4[a-b]=1", "0:5[c-d]=1", "0:6[e-f]=1", "0:7[g-h]=1"];
    assert_eq!(picked(&l0, &[]), "TrivialMove 0:4 to 1 bottommost");
    let reached_through_another = ["0:4[a-b]=1", "0:5[k-z]=1", "0:6[b-k]=1", "0:7[zz-zz]=1"];
    assert_eq!(picked(&reached_through_another, &[]), "Compaction 0:6 0:5 0:4 to 1 bottommost");
}

/// As [`picked`], where the upper codec is LZ4, the bottom's zstd, and so is that of the files
/// `packed`.
fn picked_with_codecs(files: &[&str], packed: &[u64], slots_free: u64) -> String {
    let all = version(files);
    let files = all.files().map(|(level, file)| {
        let is_packed = packed.contains(&file.id.number);
        let compression = if is_packed { Compression::ZSTD } else { Compression::Lz4 };
        (level, FileMeta { compression, ..(**file).clone() })
    });
    let (version, busy) = (Version::of(7, files.collect()), BTreeSet::new());
    let sst = SstOptions { compression: Compression::Lz4, ..SstOptions::default() };
    let bottom_compression = Some(Compression::ZSTD);
    let config =
        TreeConfig { level1_len: 32 * MIB, sst, bottom_compression, ..TreeConfig::default() };
    let picker = Picker::new(&config, &version, &busy).within(Room {
        free: slots_free,
        kept: 0,
        for_collection: 0,
        estimate: Estimate::Usual,
    });
    picker.pick().map_or("nothing".to_string(), |pick| describe(&pick))
}

/// docs/faults.md: P12
#[test]
fn a_file_without_the_bottoms_codec_is_written_anew_where_it_would_move_to_the_bottom() {
    let l0 = ["0:4[a-b]=1", "0:5[c-d]=1", "0:6[e-f]=1", "0:7[g-h]=1"];
    assert_eq!(picked_with_codecs(&l0, &[], u64::MAX), "Compaction 0:4 to 1 bottommost");
    assert_eq!(picked_with_codecs(&l0, &[4], u64::MAX), "TrivialMove 0:4 to 1 bottommost");
    // Something lies deeper down, so it is not the bottom yet.
    let above = [&l0[..], &["1:9[x-z]=1", "2:1[a-c]=1"]].concat();
    assert_eq!(picked_with_codecs(&above, &[1, 9], u64::MAX), "TrivialMove 0:4 to 1");
    // A move needs no room.
    assert_eq!(picked_with_codecs(&l0, &[], 0), "TrivialMove 0:4 to 1 bottommost");
    let l1 = ["1:1[a-c]=48", "1:2[x-z]=48", "2:3[m-m]=1"];
    assert_eq!(picked_with_codecs(&l1, &[3], u64::MAX), "Compaction 1:1 to 2 bottommost");
    assert_eq!(picked_with_codecs(&l1, &[1, 3], u64::MAX), "TrivialMove 1:1 to 2 bottommost");
}

#[test]
fn one_job_at_a_time_leaves_l0_and_none_touches_a_busy_file() {
    let l0 = ["0:4[a-b]=1", "0:5[c-d]=1", "0:6[e-f]=1", "0:7[g-h]=1", "0:8[g-h]=1"];
    assert_eq!(picked(&l0, &[8]), "nothing");
    let with_l1 = [&l0[..], &["1:1[a-b]=1", "1:2[m-p]=1"]].concat();
    assert_eq!(picked(&with_l1, &[1]), "nothing");
    assert_eq!(picked(&with_l1, &[2]), "Compaction 0:4 1:1 to 1 bottommost");
}

#[test]
fn below_l0_the_file_with_the_least_overlap_per_byte_goes_first() {
    let files = ["1:1[a-c]", "1:2[d-f]", "1:3[g-i]", "2:4[a-b]", "2:5[g-g]=4", "2:6[d-e]=8"];
    assert_eq!(picked(&files, &[]), "Compaction 1:3 2:5 to 2 bottommost");
    assert_eq!(
        picked(&[&files[..], &["1:7[x-z]"]].concat(), &[]),
        "TrivialMove 1:7 to 2 bottommost"
    );
    assert_eq!(
        picked(&[&files[..], &["1:8[k-l]"]].concat(), &[3]),
        "TrivialMove 1:8 to 2 bottommost"
    );
    let busy_below = [&files[..], &["1:8[k-l]"]].concat();
    assert_eq!(picked(&busy_below, &[8]), "Compaction 1:3 2:5 to 2 bottommost");
    assert_eq!(picked(&busy_below, &[8, 5]), "Compaction 1:2 2:6 to 2 bottommost");
}

/// As [`picked`], where values take 10 KiB and these files have so many entries, and so many
/// tombstones among them.
fn picked_with_deletes(files: &[&str], entries: &[(u64, u64, u64)]) -> String {
    let all = version(files);
    let files = all.files().map(|(level, file)| {
        let of = entries.iter().find(|(number, ..)| *number == file.id.number);
        let (_, entries, deletes) = of.copied().unwrap_or((0, 1024, 0));
        let raw_value_bytes = (entries - deletes) * 10 * KIB;
        let raw_key_bytes = file.len.saturating_sub(raw_value_bytes);
        (level, FileMeta { entries, deletes, raw_key_bytes, raw_value_bytes, ..(**file).clone() })
    });
    picked_of(files.collect(), &TreeConfig { level1_len: 32 * MIB, ..TreeConfig::default() })
}

/// docs/faults.md: P14
#[test]
fn tombstones_that_are_more_than_puts_count_for_what_they_may_delete() {
    // L1 aims at 16 MiB.
    let files = ["1:1[a-c]=2", "1:2[e-g]=4", "2:3[a-c]=10", "2:4[e-g]=10", "2:5[p-z]=10"];
    let goes = |entries: &[_]| picked_with_deletes(&files, entries);
    assert_eq!(goes(&[(1, 1000, 0), (2, 0, 0)]), "nothing");
    assert_eq!(goes(&[(1, 900, 900), (2, 0, 0)]), "nothing");
    // The one whose tombstones give back more goes first, though it is the shorter.
    assert_eq!(goes(&[(1, 1100, 1100), (2, 0, 0)]), "Compaction 1:1 2:3 to 2 bottommost");
    assert_eq!(goes(&[(1, 1200, 1150), (2, 0, 0)]), "Compaction 1:1 2:3 to 2 bottommost");
    // Where as many are put as are deleted, nothing changes.
    assert_eq!(goes(&[(1, 4000, 2000), (2, 4000, 2000)]), "nothing");
}

/// docs/faults.md: P14
#[test]
fn tombstones_below_which_nothing_lies_count_for_no_more_than_they_take() {
    let files = ["1:1[a-c]=2", "1:2[e-g]=4", "2:3[a-z]=10"];
    let many = [(1, 9000, 9000)];
    assert_eq!(picked_with_deletes(&files, &many), "Compaction 1:1 2:3 to 2 bottommost");
    assert_eq!(picked_with_deletes(&files[..2], &many), "nothing");
}

/// docs/faults.md: P14
#[test]
fn a_file_whose_tombstones_were_too_much_is_moved_alone() {
    let files = ["1:1[a-b]=2", "1:2[c-d]=2", "1:3[e-f]=2", "2:9[x-z]=100"];
    let moved = picked_with_deletes(&files, &[(1, 9000, 9000), (9, 9000, 0)]);
    assert_eq!(moved, "TrivialMove 1:1 to 2 bottommost");
}

/// docs/faults.md: P14
#[test]
fn while_writers_are_slowed_down_what_deletes_give_back_waits() {
    let next = |l0: u64| {
        let others = ["1:101[a-c]=2", "2:103[a-c]=100"];
        let l0 = wide(l0);
        let files: Vec<&str> = l0.iter().map(String::as_str).chain(others).collect();
        picked_with_deletes(&files, &[(101, 90_000, 90_000), (103, 9000, 0)])
    };
    assert_eq!(next(19), "Compaction 1:101 2:103 to 2 bottommost");
    assert!(next(20).starts_with("Compaction 0:20 0:19"), "{}", next(20));
}

/// docs/faults.md: P14
#[test]
fn of_a_tree_of_tombstones_alone_none_counts_for_more_than_it_takes() {
    let files = ["1:1[a-c]=2", "2:3[a-c]=2"];
    assert_eq!(picked_with_deletes(&files, &[(1, 9000, 9000), (3, 9000, 9000)]), "nothing");
    // What descriptions say may be anything.
    let files = version(&files);
    let odd = files.files().map(|(level, file)| {
        let (entries, deletes) = (u64::MAX, u64::MAX - u64::from(level));
        let raw_value_bytes = u64::MAX;
        (level, FileMeta { entries, deletes, raw_value_bytes, ..(**file).clone() })
    });
    let (version, busy) = (Version::of(7, odd.collect()), BTreeSet::new());
    // As much again as lies below, of an aim of 16 MiB.
    assert_eq!(Picker::new(&TreeConfig::default(), &version, &busy).score(1), 250);
}

#[test]
fn the_level_that_is_furthest_over_its_aim_goes_first() {
    let files =
        ["0:9[a-z]=2", "0:8[a-z]=2", "0:7[a-z]=2", "0:6[a-z]=2", "1:1[a-c]=48", "1:2[x-z]=48"];
    assert_eq!(picked(&files, &[]), "TrivialMove 1:1 1:2 to 2 bottommost");
    let more = [&files[..], &["0:5[b-c]=2", "0:4[b-c]=2", "0:3[b-c]=2", "0:2[b-c]=2"]].concat();
    let more: Vec<_> = more.into_iter().filter(|file| *file != "1:2[x-z]=48").collect();
    let pick = picked(&more, &[]);
    assert!(pick.starts_with("Compaction 0:9"), "{pick}");
}

/// Files of 160 MiB, so many on each level from L1 on, and what each of these levels then aims at,
/// in MiB.
fn aims(files: &[usize]) -> Vec<u64> {
    let mut all = Vec::new();
    for (level, count) in (1..).zip(files) {
        let range = |at: usize| format!("{level}:{}[{at:03}-{at:03}]=160", level * 1000 + at);
        all.extend((0..*count).map(range));
    }
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let (version, config, busy) = (version(&all), TreeConfig::default(), BTreeSet::new());
    let picker = Picker::new(&config, &version, &busy);
    (1..=4).map(|level| picker.level_target(level) / MIB).collect()
}

/// docs/faults.md: P29
#[test]
fn a_level_aims_at_its_part_of_the_tree_and_never_at_more_than_it_may_hold() {
    assert_eq!(aims(&[]), [64, 640, 6400, 64_000]);
    assert_eq!(aims(&[1]), [64, 640, 6400, 64_000], "the deepest level may be full");
    // 16, the length of a file, where a hundredth of 800 would be less.
    assert_eq!(aims(&[0, 1, 4]), [16, 80, 6400, 64_000]);
    assert_eq!(aims(&[1, 2, 17]), [32, 320, 6400, 64_000]);
    assert_eq!(aims(&[1, 4, 75]), [64, 640, 6400, 64_000]);
    // The third level was full, and its first file has moved on.
    assert_eq!(aims(&[0, 4, 40, 1]), [16, 72, 720, 64_000]);
}

/// docs/faults.md: P29
#[test]
fn a_full_deepest_level_goes_a_level_down_unread_in_few_edits() {
    let mut files: Vec<_> = (10..60).map(|n| format!("2:{n}[{n}-{n}]")).collect();
    let next = |files: &[String], busy: &[u64]| {
        let files: Vec<_> = files.iter().map(String::as_str).collect();
        picked(&files, busy)
    };
    let moved = |numbers: Range<u64>| {
        let moved: Vec<_> = numbers.map(|n| format!("2:{n}")).collect();
        format!("TrivialMove {} to 3 bottommost", moved.join(" "))
    };
    assert_eq!(next(&files, &[13]), moved(10..13), "up to a file of a job under way");
    // What is over 320 MiB, and then what is over a tenth of 800.
    for numbers in [10..41, 41..56] {
        assert_eq!(next(&files, &[]), moved(numbers.clone()));
        numbers.for_each(|n| files[n as usize - 10].replace_range(..1, "3"));
    }
    assert_eq!(next(&files, &[]), "nothing", "64 MiB are less than a tenth of 800");
    let many: Vec<_> = (1000..1200).map(|n| format!("2:{n}[{n}-{n}]")).collect();
    assert_eq!(next(&many, &[]), moved(1000..1064), "an edit names no more");
}

/// docs/faults.md: P29
#[test]
fn files_are_moved_together_up_to_one_that_has_others_below_it() {
    let l1 = ["1:1[a-b]", "1:2[c-d]", "1:3[e-f]", "1:4[g-h]", "1:5[i-j]"];
    let with = |below: &[&str]| picked(&[&l1[..], below].concat(), &[]);
    assert_eq!(with(&["2:9[x-z]"]), "TrivialMove 1:1 1:2 1:3 1:4 1:5 to 2 bottommost");
    assert_eq!(with(&["2:9[e-e]"]), "TrivialMove 1:1 1:2 to 2 bottommost");
    assert_eq!(with(&["2:9[c-c]", "3:8[e-e]"]), "TrivialMove 1:1 to 2 bottommost");
    assert_eq!(with(&["2:9[a-a]", "3:8[e-e]"]), "TrivialMove 1:2 1:3 1:4 1:5 to 2");
    let below: Vec<String> = (10..21).map(|n| format!("3:{}[c{n}-c{n}]", 100 + n)).collect();
    let below: Vec<&str> = below.iter().map(String::as_str).chain(["2:9[x-z]"]).collect();
    assert_eq!(with(&below), "TrivialMove 1:1 to 2 bottommost", "the next overlaps eleven files");
}

/// Files of L0 that span everything, as many as are written.
fn wide(files: u64) -> Vec<String> {
    (1..=files).rev().map(|n| format!("0:{n}[a-z]=1")).collect()
}

/// docs/faults.md: P27
#[test]
fn while_writers_wait_for_l0_it_goes_before_levels_that_are_further_over_their_aims() {
    let next = |l0: u64, others: &[&str], busy: &[u64]| {
        let l0 = wide(l0);
        let files: Vec<&str> =
            l0.iter().map(String::as_str).chain(others.iter().copied()).collect();
        picked(&files, busy)
    };
    // 20 times over its aim, a move each.
    let full: Vec<String> = (100..140).map(|n| format!("1:{n}[k{n}-k{n}]")).collect();
    let full: Vec<&str> = full.iter().map(String::as_str).chain(["2:9[x-z]=1"]).collect();
    assert!(next(35, &full, &[]).starts_with("TrivialMove 1:100 1:101"));
    assert!(next(36, &full, &[]).starts_with("Compaction 0:36 0:35"));
    // A job of that level is under way: no other begins there, so that L0's turn comes.
    assert!(next(35, &full, &[101]).starts_with("TrivialMove 1:100 to 2"));
    assert_eq!(next(36, &full, &[101]), "nothing");
    let deeper: Vec<String> = (200..230).map(|n| format!("2:{n}[y{n}-y{n}]")).collect();
    let all = [&full[..40], &deeper.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    assert!(next(36, &all, &[101]).starts_with("TrivialMove 2:200"), "others may begin");
    // One of L0 is: others of the level go on.
    assert!(next(36, &full, &[1, 101]).starts_with("TrivialMove 1:100 to 2"));
}

/// docs/faults.md: P29
#[test]
fn l0_passes_levels_that_would_be_empty_again() {
    let l0 = ["0:4[a-z]=2", "0:5[a-z]=2", "0:6[a-z]=2", "0:7[a-z]=2"];
    let goes_to = |deeper: &[&str]| {
        let pick = picked(&[&l0[..], deeper].concat(), &[]);
        pick.split(" to ").nth(1).map(String::from)
    };
    assert_eq!(goes_to(&[]).as_deref(), Some("1 bottommost"));
    assert_eq!(goes_to(&["6:1[a-b]=32"]).as_deref(), Some("6 bottommost"));
    assert_eq!(goes_to(&["6:1[a-b]=33"]).as_deref(), Some("5"), "a tenth is over 3.2 MiB");
    assert_eq!(goes_to(&["6:1[a-b]=320"]).as_deref(), Some("5"));
    assert_eq!(goes_to(&["6:1[a-b]=3200"]).as_deref(), Some("4"));
    assert_eq!(goes_to(&["6:1[a-b]=3300"]).as_deref(), Some("3"));
    assert_eq!(goes_to(&["2:2[zz-zz]=1", "6:1[a-b]=320"]).as_deref(), Some("2"), "it is in use");
    assert_eq!(picked(&["0:4[a-b]=40", "6:1[c-d]"], &[]), "TrivialMove 0:4 to 6 bottommost");
}

/// docs/faults.md: P29
#[test]
fn runs_of_little_wait_where_all_of_a_longer_level_would_be_rewritten_for_them() {
    // With so many MiB of values behind each file.
    let file = |level, number, len, values| {
        let id = FileId { kind: FileKind::Values, number };
        let references = match values {
            0 => Vec::new(),
            _ => vec![FileReference { file: id, live_bytes: values * MIB }],
        };
        (level, FileMeta { references, ..meta(number, "a", "z", len * MIB) })
    };
    let goes = |runs: u64, (len, values): (u64, u64), (below, level): (u64, u8)| {
        let l0 = (1..=runs).map(|number| file(0, number, len, values));
        let files = l0.chain([file(level, 90, below, 900)]).collect();
        let (version, busy) = (Version::of(7, files), BTreeSet::new());
        let config = TreeConfig { level1_len: 64 * MIB, ..TreeConfig::default() };
        let picker = Picker::new(&config, &version, &busy);
        let pick = picker.pick();
        assert_eq!(picker.debt() > 0, pick.is_ok(), "{runs} runs of {len} MiB");
        pick.is_ok()
    };
    assert!(!goes(11, (1, 16), (60, 1)) && goes(12, (1, 16), (60, 1)));
    assert!(!goes(3, (1, 0), (60, 1)) && goes(4, (1, 0), (60, 1)), "no pointers");
    assert!(!goes(3, (2, 16), (60, 1)) && goes(4, (2, 16), (60, 1)), "an eighth of a MemTable");
    assert!(!goes(6, (1, 16), (28, 1)) && goes(7, (1, 16), (28, 1)), "a quarter of it");
    assert!(!goes(4, (1, 70), (60, 1)) && goes(5, (1, 70), (60, 1)), "a quarter of all values");
    assert!(goes(4, (1, 16), (320, 6)), "nothing is rewritten in a level of their own");
}

/// Files of one load, which all have the sequence number 1,000.
fn loaded(numbers: Range<u64>, len: u64) -> Vec<(u8, FileMeta)> {
    let sequence = SequenceNumber(1_000);
    let file = |n: u64| {
        let key = format!("{n:05}");
        let file = meta(n, &key, &key, len);
        (0, FileMeta { smallest_sequence: sequence, largest_sequence: sequence, ..file })
    };
    numbers.map(file).collect()
}

fn picked_of(files: Vec<(u8, FileMeta)>, config: &TreeConfig) -> String {
    let (version, busy) = (Version::of(7, files), BTreeSet::new());
    let pick = Picker::new(config, &version, &busy).pick();
    pick.map_or("nothing".to_string(), |pick| describe(&pick))
}

/// docs/faults.md: P10
#[test]
fn files_of_a_load_count_as_one_and_go_down_together() {
    let config = TreeConfig { level1_len: 16 * MIB, ..TreeConfig::default() };
    let flushed = |n: u64| (0, meta(n, "0", "9", 1));
    let below = |from: &str, to: &str| (1, meta(50_000, from, to, MIB));
    let with = |load: Vec<_>, others: Vec<_>| picked_of([load, others].concat(), &config);
    let load = |len| loaded(500..1_000, len);
    assert_eq!(with(load(1), vec![flushed(200), flushed(201)]), "nothing", "three runs");
    // 25 lengths of a file, and what the oldest of all spans.
    let down = with(load(16 * MIB), vec![flushed(99), below("0", "9")]);
    let names: Vec<_> = (500..524).map(|n| format!("0:{n}")).collect();
    assert_eq!(down, format!("Compaction {} 0:99 1:50000 to 1 bottommost", names.join(" ")));
    let names: Vec<_> = (500..525).map(|n| format!("0:{n}")).collect();
    let down = with(load(16 * MIB), vec![flushed(200), below("0", "9")]);
    assert_eq!(down, format!("Compaction {} 1:50000 to 1 bottommost", names.join(" ")));
    // Only those that are to be merged; what has nothing below it is moved when its turn comes.
    let down = with(load(16 * MIB), vec![flushed(200), below("0", "00502")]);
    assert_eq!(down, "Compaction 0:500 0:501 0:502 1:50000 to 1 bottommost");
    let down = with(load(16 * MIB), vec![flushed(200), below("00503", "9")]);
    assert_eq!(down, "TrivialMove 0:500 0:501 0:502 to 1 bottommost");
    let down = with(load(16 * MIB), vec![flushed(200)]);
    assert_eq!(down.split(' ').count(), 1 + 64 + 3, "{down}");
}

/// Files of L0 that span so many files of so many bytes each on L1.
fn wide_over(count: u64, len: u64) -> Vec<(u8, FileMeta)> {
    let below = |n: u64| (1, meta(1_000 + n, &format!("{n:05}"), &format!("{n:05}"), len));
    let flushed = (1..=36).map(|n| (0, meta(n, "0", "9", MIB)));
    flushed.chain((0..count).map(below)).collect()
}

/// docs/faults.md: P10
#[test]
fn files_of_a_job_are_longer_where_its_edit_could_not_name_them_all() {
    let next = |files: &[(u8, FileMeta)], level1_len| {
        let (version, busy) = (Version::of(7, files.to_vec()), BTreeSet::new());
        let config = TreeConfig { level1_len, ..TreeConfig::default() };
        let pick = Picker::new(&config, &version, &busy).pick();
        pick.map(|pick| (describe(&pick), pick.output_len / MIB))
    };
    let (pick, len) = next(&wide_over(3_000, 16 * MIB), GIB << 7).unwrap();
    assert!(pick.starts_with("Compaction 0:36") && len == 16, "{len}");
    let wide = wide_over(7_000, 16 * MIB);
    let (pick, len) = next(&wide, GIB << 7).unwrap();
    assert!(pick.starts_with("Compaction 0:36") && len == 64, "{len}");
    // Also before writers wait for it, if nothing else is to be done.
    let (pick, len) = next(&wide[20..], GIB << 7).unwrap();
    assert!(pick.ends_with("to 1 bottommost") && len == 64, "{len}");
    // A level below that is too full has fewer first.
    let (pick, len) = next(&wide, GIB).unwrap();
    assert!(pick.starts_with("TrivialMove 1:1000") && len == 16, "{len}");
    assert_eq!(
        next(&wide_over(7_000, 64 * MIB), GIB << 9),
        Err(NoPick::EditTooLong),
        "checksums alone are too many"
    );
    // What the limit is for.
    let edit = |count: usize| {
        let added: Vec<_> = wide.iter().rev().take(count).cloned().collect();
        let removed = added.iter().map(|(level, file)| (*level, file.id)).collect();
        let (number, kind, term, next_file) = (1, JobKind::Compaction, Term(1), 9_000);
        let (flushed, floor, recipe) = (None, None, None);
        let values = Vec::new();
        Edit { number, kind, term, removed, added, values, flushed, next_file, floor, recipe }
            .encode()
    };
    assert!(edit(3_036).is_ok() && edit(7_036).is_err());
}

#[test]
fn however_many_small_files_lie_below_a_wide_one_they_are_merged() {
    let (version, busy) = (Version::of(7, wide_over(6_000, 4096)), BTreeSet::new());
    let config = TreeConfig::default();
    let picker = Picker::new(&config, &version, &busy);
    let pick = picker.pick().unwrap();
    assert_eq!((pick.inputs.len(), pick.output_len), (6_036, config.sst_len));
    // As many as a recipe may name, and no more.
    let output_len = |count| {
        let files = core::iter::repeat_n(&version.level(1)[0], count);
        picker.output_len(files, count as u64 * 4096, &mut Vec::new(), OutputLen::Usual)
    };
    assert_eq!(output_len(65_536), Some(config.sst_len));
    assert_eq!(output_len(65_537), None);
}

#[test]
fn outputs_are_cut_where_they_would_overlap_too_much_of_the_level_below() {
    let letters = "abcdefghijklmnopqrstuvwxyz";
    let below: Vec<String> =
        letters.chars().enumerate().map(|(at, c)| format!("3:{}[{c}-{c}z]", 100 + at)).collect();
    let mut files = vec!["1:1[a-z]", "1:2[zz-zzz]", "2:3[a-k]", "2:4[l-z]"];
    files.extend(below.iter().map(String::as_str));
    let version = version(&files);
    let config = TreeConfig { level1_len: 16 * MIB, ..TreeConfig::default() };
    let busy = BTreeSet::from([FileId::sst(2)]);
    let pick = Picker::new(&config, &version, &busy).pick().unwrap();
    assert_eq!(describe(&pick), "Compaction 1:1 2:3 2:4 to 2");
    assert_eq!(pick.cuts, [b"\x01k".to_vec(), b"\x01u".to_vec()], "ten files each");
}

#[test]
fn a_move_that_would_overlap_too_much_of_the_level_after_next_is_a_merge() {
    let below: Vec<String> = (10..21).map(|n| format!("3:{}[k{n}-k{n}]", 100 + n)).collect();
    let mut files = vec!["1:1[k-l]=40"];
    files.extend(below.iter().map(String::as_str));
    assert_eq!(picked(&files, &[]), "Compaction 1:1 to 2");
    files.pop();
    assert_eq!(picked(&files, &[]), "TrivialMove 1:1 to 2");
}

#[test]
fn what_lies_below_the_floor_is_dropped_unless_a_job_holds_it() {
    let version = version(&["0:4[a-b]", "1:2[a-b]", "2:1[c-d]"]);
    let config = TreeConfig::default();
    let drop = |floor, busy: &[u64]| {
        let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
        let picker = Picker::new(&config, &version, &busy);
        let pick = picker.pick_drop(SequenceNumber(floor));
        pick.map_or("nothing".to_string(), |pick| describe(&pick))
    };
    assert_eq!(drop(0, &[]), "nothing");
    assert_eq!(drop(30, &[]), "Drop 1:2 2:1 to 0");
    assert_eq!(drop(29, &[]), "Drop 2:1 to 0");
    assert_eq!(drop(50, &[2]), "Drop 0:4 2:1 to 0");
}

/// A file of range deletes over `from..to` with sequence numbers like its own.
pub(super) fn with_ranges(number: u64, from: &str, to: &str, len: u64) -> FileMeta {
    let file = meta(number, from, to, len);
    let (sequence, seen_from) = (file.smallest_sequence, file.largest_sequence);
    let widest =
        Deleted { start: file.smallest.clone(), end: file.largest.clone(), sequence, seen_from };
    let ranges = RangeDeletes {
        fragments: 1,
        sequences: 1,
        key_bytes: 4,
        first_sequence: sequence,
        widest: vec![widest],
    };
    FileMeta { ranges: Some(ranges), ..file }
}

/// docs/faults.md: P16
#[test]
fn what_a_range_delete_above_covers_is_dropped_unless_a_job_holds_it() {
    let files = vec![
        // Newer, and as new in parts.
        (0, meta(9, "b", "c", MIB)),
        (0, with_ranges(5, "b", "p", MIB)),
        (0, meta(4, "c", "d", MIB)),
        (0, meta(3, "a", "b", MIB)),
        (1, meta(2, "b", "h", MIB)),
        // Its last key may be the first that is not deleted.
        (1, meta(1, "i", "p", MIB)),
        (3, meta(6, "c", "f", MIB)),
        (3, with_ranges(0, "g", "k", MIB)),
    ];
    let (version, config) = (Version::of(7, files), TreeConfig::default());
    let drop = |busy: &[u64]| {
        let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
        let picker = Picker::new(&config, &version, &busy);
        let pick = picker.pick_drop(SequenceNumber(0));
        pick.map_or("nothing".to_string(), |pick| describe(&pick))
    };
    assert_eq!(drop(&[]), "Drop 0:4 1:2 3:0 to 0");
    assert_eq!(drop(&[5, 2]), "Drop 0:4 3:0 to 0");
}

/// docs/faults.md: P16
#[test]
fn a_file_of_range_deletes_sinks_and_vanishes_where_nothing_is_left_that_it_could_hide() {
    let slim = |level, number| (level, with_ranges(number, "c", "f", MIB));
    let picked = |files: Vec<(u8, FileMeta)>, urgent| {
        let (version, busy) = (Version::of(7, files), BTreeSet::new());
        let config = TreeConfig::default();
        let picker = Picker::new(&config, &version, &busy).urgent(urgent);
        let pick = picker.pick_ranges();
        pick.map_or("nothing".to_string(), |pick| describe(&pick))
    };
    let below = || vec![(3, meta(1, "a", "d", MIB)), (3, meta(2, "f", "g", MIB))];
    let with = |file| [below(), vec![file]].concat();
    assert_eq!(picked(below(), false), "nothing");
    let in_use = vec![slim(0, 9), (1, meta(3, "x", "y", MIB))];
    assert_eq!(picked([below(), in_use].concat(), false), "TrivialMove 0:9 to 1");
    let past_empty = picked(with(slim(0, 9)), false);
    assert_eq!(past_empty, "Compaction 0:9 3:1 3:2 to 3 bottommost");
    assert_eq!(picked(with(slim(1, 9)), false), "TrivialMove 1:9 to 2");
    let merged = picked(with(slim(2, 9)), false);
    assert!(merged.starts_with("Compaction 2:9 3:1 3:2 to 3"), "{merged}");
    let last = picked(vec![slim(3, 9)], false);
    assert!(last.starts_with("Compaction 3:9 to 3"), "{last}");
    let full = || with((2, with_ranges(9, "c", "f", 16 * MIB)));
    assert_eq!(picked(full(), false), "nothing", "it waits for its level");
    assert!(picked(full(), true).starts_with("Compaction 2:9"), "room is short");
}

#[test]
fn debt_is_what_every_level_has_over_its_aim_and_hands_on() {
    let version = version(&["1:1[a-c]=40", "2:2[a-z]=320"]);
    let config = TreeConfig { level1_len: 32 * MIB, ..TreeConfig::default() };
    let busy = BTreeSet::new();
    // L1 is 8 MiB over its 32; L2 then 8 over its 320.
    assert_eq!(Picker::new(&config, &version, &busy).debt(), 16 * MIB);
}

/// docs/faults.md: P14
#[test]
fn what_is_due_for_its_tombstones_is_debt_of_no_more_bytes_than_it_has() {
    let debt = |deletes: u64| {
        let files = version(&["0:1[a-c]=2", "2:3[a-c]=64"]);
        let files = files.files().map(|(level, file)| {
            let (entries, deletes) = if level == 0 { (deletes, deletes) } else { (1024, 0) };
            let raw_value_bytes = (entries - deletes) * 16 * KIB;
            (level, FileMeta { entries, deletes, raw_value_bytes, ..(**file).clone() })
        });
        let (version, busy) = (Version::of(7, files.collect()), BTreeSet::new());
        let config = TreeConfig { level1_len: 32 * MIB, ..TreeConfig::default() };
        let picker = Picker::new(&config, &version, &busy);
        (picker.debt(), picker.pick().is_ok())
    };
    assert_eq!(debt(100), (0, false));
    assert_eq!(debt(9_000), (2 * MIB, true));
}

#[test]
fn what_has_half_expired_is_written_anew_where_nothing_lies_below_it_when_room_is_short() {
    let mut files = vec![(6, meta(1, "a", "c", MIB)), (5, meta(2, "b", "d", MIB))];
    files.extend([(6, meta(3, "e", "g", MIB)), (0, meta(4, "x", "z", MIB))]);
    for (_, file) in &mut files {
        file.expiry = Some(ExpirySpan { first_ms: 100, last_ms: 300 });
    }
    let (version, config) = (Version::of(7, files), TreeConfig::default());
    let picked = |urgent: bool, busy: &[u64], now_ms: u64| {
        let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
        let picker = Picker::new(&config, &version, &busy).urgent(urgent);
        let pick = picker.pick_expired(now_ms);
        (pick.ok().map(|pick| describe(&pick)), picker.more_expired_ms(now_ms))
    };
    let rewritten = |number| Some(format!("Compaction 6:{number} to 6 bottommost"));
    assert_eq!(picked(false, &[], 1_000), (None, None));
    assert_eq!(picked(true, &[], 199), (None, Some(200)));
    assert_eq!(picked(true, &[], 200), (rewritten(1), None));
    assert_eq!(picked(true, &[1], 200), (rewritten(3), None));
    assert_eq!(picked(true, &[1, 3], 200), (None, None));
    assert_eq!(picked(true, &[1, 3], 100), (None, None));
}

#[test]
fn fewer_files_are_moved_at_once_and_cuts_are_short_where_bounds_are_long() {
    let key = |len: usize, n: u64| format!("{}{n:05}", "p".repeat(len));
    let files = |len: usize| {
        let above = (0..100)
            .map(move |n| (1, meta(1_000 + n, &key(len, 2 * n), &key(len, 2 * n + 1), 512 * MIB)));
        above.collect::<Vec<_>>()
    };
    let moved = |len| picked_of(files(len), &TreeConfig::default()).matches("1:1").count();
    assert_eq!(moved(200), 64);
    // Two bounds of 60,006 bytes each in an edit of 1 MiB, half of which they may have.
    assert_eq!(moved(60_000), 4);
    let config = TreeConfig::default();
    let below = files(60_000).into_iter().map(|(_, file)| (2, file));
    let all = meta(1, &key(60_000, 0), &key(60_000, 999), 512 * MIB);
    let version = Version::of(4, below.chain([(1, all.clone())]).collect());
    let busy = BTreeSet::new();
    let picker = Picker::new(&config, &version, &busy);
    let cuts = picker.cuts(1, &all.smallest, &all.largest);
    assert_eq!(cuts.iter().map(Vec::len).collect::<Vec<_>>(), [256]);
}

#[test]
fn a_job_over_files_with_long_bounds_is_picked_if_its_edit_can_name_so_few() {
    let key = |n: u64| format!("{}{n:05}", "p".repeat(60_000));
    let next = |below: u64, above: Vec<(u8, FileMeta)>| {
        let config =
            TreeConfig { level1_len: 500 * MIB, level_multiplier: 100, ..TreeConfig::default() };
        let level = above[0].0 + 1;
        let below =
            (0..below).map(|n| (level, meta(100 + n, &key(2 * n), &key(2 * n + 1), 512 * MIB)));
        let (version, busy) =
            (Version::of(4, above.into_iter().chain(below).collect()), BTreeSet::new());
        let pick = Picker::new(&config, &version, &busy).pick();
        pick.map(|pick| (pick.inputs.len(), pick.output_len / MIB))
    };
    let above = |count| (0..count).map(|n| (1, meta(1 + n, &key(0), &key(99), 512 * MIB)));
    assert_eq!(next(3, above(1).collect()), Ok((4, 16)), "seven bounds at most");
    assert_eq!(next(8, above(1).collect()), Ok((9, 768)));
    assert_eq!(next(20, above(1).collect()), Err(NoPick::EditTooLong), "nobody could be told");
    let flushed = |from: &str| (1..=36).map(|n| (0, meta(n, from, "z", MIB))).collect();
    assert_eq!(next(7, flushed("0")), Ok((4, 16)), "four are moved out of its way first");
    // A few among thousands of others count for themselves.
    let (files, busy) = (wide_over(3_000, 16 * MIB), BTreeSet::new());
    let long = (1, meta(9_000, &key(0), &key(1), 512 * MIB));
    let version = Version::of(4, files.into_iter().chain([long]).collect());
    let config = TreeConfig { level1_len: GIB << 7, ..TreeConfig::default() };
    assert_eq!(Picker::new(&config, &version, &busy).pick().unwrap().output_len, config.sst_len);
}

/// The reasons of all strategies, for files of which these are busy, with so many slots free.
fn reasons(files: Vec<(u8, FileMeta)>, busy: &[u64], slots_free: u64, urgent: bool) -> String {
    let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
    let (version, config) = (Version::of(7, files), TreeConfig::default());
    let room = Room { free: slots_free, kept: 0, for_collection: 0, estimate: Estimate::Usual };
    let picker = Picker::new(&config, &version, &busy).within(room).urgent(urgent);
    let moment = Moment { floor: SequenceNumber::ZERO, now_ms: 200 };
    let why = match picker.pick_by_order(moment) {
        Ok(pick) => return describe(&pick),
        Err(why) => Strategy::ORDER.into_iter().zip(why),
    };
    let told = why.filter(|(_, reason)| *reason != NoPick::NothingDue);
    let told = told.map(|(strategy, reason)| format!("{} {}", strategy.name(), reason.name()));
    told.collect::<Vec<_>>().join(", ")
}

#[test]
fn each_strategy_says_why_it_has_no_job() {
    assert_eq!(reasons(vec![], &[], u64::MAX, true), "");
    let runs = |count: u64| (1..=count).map(|n| (0, meta(n, "a", "c", MIB)));
    let full = || runs(4).chain([(1, meta(9, "a", "b", MIB))]).collect();
    assert_eq!(
        reasons(full(), &[], u64::MAX, false),
        "Compaction 0:4 0:3 0:2 0:1 1:9 to 1 bottommost"
    );
    assert_eq!(reasons(full(), &[9], u64::MAX, false), "levels busy");
    assert_eq!(reasons(full(), &[], 0, false), "levels no_room");
    let slow = || runs(20).chain([(1, meta(90, "a", "b", MIB))]).collect();
    assert_eq!(reasons(slow(), &[90], u64::MAX, false), "tombstones yields_to_l0, levels busy");
    let dense = |number| FileMeta { entries: 4_000, deletes: 2_000, ..meta(number, "a", "c", MIB) };
    assert_eq!(reasons(vec![(6, dense(2))], &[], 0, false), "tombstones no_room");
    assert_eq!(reasons(vec![(6, with_ranges(2, "a", "c", MIB))], &[2], 0, false), "ranges busy");
    assert_eq!(reasons(vec![(6, with_ranges(2, "a", "c", MIB))], &[], 0, false), "ranges no_room");
    let count = 2 * crate::recipe::RECIPE_ITEMS_MAX as u64;
    let key = |n: u64| format!("{n:06}");
    let below = (0..count).map(|n| (2, meta(10 + n, &key(n), &key(n), 4096)));
    let wide = (1, meta(1, &key(0), &key(count), GIB));
    assert_eq!(
        reasons(below.chain([wide]).collect(), &[], u64::MAX, false),
        "levels edit_too_long"
    );
}
