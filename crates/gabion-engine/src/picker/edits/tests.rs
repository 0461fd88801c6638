//! A wide file over so many others that the cuts between its outputs are more than one edit could
//! name.

use super::super::pick::Pick;
use super::super::range::{Gone, RangeStep};
use super::super::tests::{describe, meta, with_ranges};
use super::*;
use crate::config::TreeConfig;
use crate::expiry::ExpirySpan;
use crate::job::{Estimate, Room};
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use gabion_base::units::{GIB, KIB, MIB};
use gabion_base::{FileId, Term};

/// A key that is as long as bounds usually are at most.
fn key(n: u64) -> String {
    format!("{}{n:05}", "p".repeat(250))
}

/// A file of L4 that spans so many of L6, with nothing between on L5, and others of L4 beside it.
fn wide_over_l6(count: u64, others: &[(u8, FileMeta)]) -> Version {
    let l6 = (0..count).map(|n| (6, meta(1_000 + n, &key(n), &key(n), 16 * MIB)));
    let wide = (4, meta(1, &key(0), &key(count - 1), 16 * MIB));
    Version::of(7, l6.chain([wide]).chain(others.iter().cloned()).collect())
}

/// L4 may hold one file of 16 MiB.
fn config() -> TreeConfig {
    TreeConfig { level1_len: 16 * KIB, ..TreeConfig::default() }
}

/// How long the edit of a job is if a file of it begins at each of its cuts, without the recipe's
/// other fields.
fn edit_len(pick: &Pick) -> usize {
    let files = (90_000..).zip(&pick.cuts).map(|(number, cut)| {
        let (smallest, largest) = (cut.clone(), cut.clone());
        (pick.output_level, FileMeta { smallest, largest, ..meta(number, "", "", 16 * MIB) })
    });
    let (added, removed) =
        (files.collect(), pick.inputs.iter().map(|(level, file)| (*level, file.id)).collect());
    let (number, kind, term, next_file) = (1, pick.kind, Term(1), 200_000);
    let (flushed, floor, recipe) = (None, None, None);
    let values = Vec::new();
    let edit =
        Edit { number, kind, term, removed, added, values, flushed, next_file, floor, recipe };
    let cuts_len: usize = pick.cuts.iter().map(|cut| 4 + cut.len()).sum();
    edit.encode().unwrap().len() + cuts_len
}

/// docs/faults.md: P34
#[test]
fn a_job_is_cut_less_often_where_its_edit_could_not_name_all_cuts() {
    let (version, config, busy) = (wide_over_l6(25_600, &[]), config(), BTreeSet::new());
    let picker = Picker::new(&config, &version, &busy);
    let file = &version.level(4)[0];
    assert_eq!(picker.cuts(5, &file.smallest, &file.largest).len(), 2_559);
    let check = |pick: &Pick| {
        assert_eq!(describe(pick), "Compaction 4:1 to 5");
        assert_eq!((pick.cuts.len(), pick.output_len), (639, config.sst_len));
        assert!(pick.cuts.iter().zip(&pick.cuts[1..]).all(|(cut, next)| cut < next));
        assert!((400_000..EDIT_LEN_MAX).contains(&edit_len(pick)), "{}", edit_len(pick));
    };
    check(&picker.pick().unwrap());
    // On demand, it is the same job.
    let picker = Picker::new(&config, &version, &busy);
    let mut position = picker.begin_range(&[], None, 100_000).unwrap();
    let RangeStep::Job(pick) = picker.pick_range(&mut position, Gone::default()) else {
        panic!("it would wait for ever")
    };
    check(&pick);
}

#[test]
fn cuts_are_thinned_out_evenly_down_to_none() {
    let mut cuts: Vec<Vec<u8>> = (1..=7).map(|n| alloc::vec![n]).collect();
    let mut next = || {
        thin_out(&mut cuts);
        cuts.concat()
    };
    assert_eq!([next(), next(), next()], [alloc::vec![2, 4, 6], alloc::vec![4], Vec::new()]);
}

/// docs/faults.md: P34
#[test]
fn a_file_that_cannot_go_down_keeps_no_other_of_its_level_from_it() {
    let narrow = |n: u64| (4, meta(n, &key(30_000 + n), &key(30_000 + n), 16 * MIB));
    let config = config();
    let picked = |count: u64, busy: &[u64], slots_free| {
        let version = wide_over_l6(count, &[narrow(2), narrow(3)]);
        let busy = busy.iter().map(|number| FileId::sst(*number)).collect();
        let room = Room { free: slots_free, kept: 0, for_collection: 0, estimate: Estimate::Usual };
        let pick = Picker::new(&config, &version, &busy).within(room).pick();
        pick.map_or("nothing".into(), |pick| describe(&pick))
    };
    // The wide one comes first by key, and overlaps as little of L5.
    assert_eq!(picked(6_400, &[], 651), "Compaction 4:1 to 5");
    let others = "TrivialMove 4:2 4:3 to 5 bottommost";
    assert_eq!(picked(6_400, &[], 650), others, "a slot for each of 639 cuts");
    assert_eq!(picked(25_600, &[], u64::MAX), others, "more cuts than an edit can name");
    assert_eq!(picked(25_600, &[2], u64::MAX), "TrivialMove 4:3 to 5 bottommost");
}

/// docs/faults.md: P16
#[test]
fn what_deletes_a_range_sinks_and_what_has_expired_goes_also_where_files_have_to_be_longer() {
    let (config, busy) = (TreeConfig::default(), BTreeSet::new());
    let l2 =
        (0..7_000).map(|n| (2, meta(1_000 + n, &format!("{n:05}"), &format!("{n:05}"), 16 * MIB)));
    let version = Version::of(7, l2.chain([(1, with_ranges(9, "0", "9", MIB))]).collect());
    let pick = Picker::new(&config, &version, &busy).pick_ranges().unwrap();
    assert!(describe(&pick).starts_with("Compaction 1:9 2:1000 2:1001"));
    assert_eq!((pick.inputs.len(), pick.output_len), (7_001, 64 * MIB));
    // One file alone, from when files were longer.
    let expiry = Some(ExpirySpan { first_ms: 100, last_ms: 300 });
    let version = Version::of(7, alloc::vec![(6, FileMeta { expiry, ..meta(1, "a", "z", GIB) })]);
    let config = TreeConfig { sst_len: 64 * KIB, ..config };
    let picker = Picker::new(&config, &version, &busy).urgent(true);
    let pick = picker.pick_expired(200).unwrap();
    assert_eq!(describe(&pick), "Compaction 6:1 to 6 bottommost");
    assert_eq!(pick.output_len, 256 * KIB);
}
