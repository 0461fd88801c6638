//! Compactions on demand as lines of text: every job in its order, until nothing is left to do.

use super::super::tests::{describe, meta, version};
use super::*;
use crate::config::TreeConfig;
use crate::edit::Edit;
use crate::recipe::JobKind;
use crate::sst::Compression;
use crate::version::Version;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use gabion_base::Term;
use gabion_base::units::MIB;

fn config() -> TreeConfig {
    TreeConfig { level1_len: 32 * MIB, ..TreeConfig::default() }
}

fn key(text: &str) -> Vec<u8> {
    [&[1], text.as_bytes()].concat()
}

/// The version after a job: what it merged is one file, numbered on, without garbage.
fn after(config: &TreeConfig, version: &Version, pick: &Pick, number: u64) -> Version {
    let inputs = || pick.inputs.iter().map(|(_, file)| file);
    let smallest = inputs().map(|file| file.smallest.clone()).min().unwrap();
    let largest = inputs().map(|file| file.largest.clone()).max().unwrap();
    let compression = config.codecs().of_job(pick.kind, pick.bottommost);
    let merged = FileMeta { smallest, largest, compression, ..meta(number, "", "", 16 * MIB) };
    let added = match pick.kind {
        JobKind::TrivialMove => (*pick.inputs[0].1).clone(),
        _ => merged,
    };
    let edit = Edit {
        number: 1,
        kind: pick.kind,
        term: Term(1),
        removed: pick.inputs.iter().map(|(level, file)| (*level, file.id)).collect(),
        added: vec![(pick.output_level, added)],
        values: Vec::new(),
        flushed: None,
        next_file: number + 1,
        floor: None,
        recipe: None,
    };
    version.apply(&edit).unwrap()
}

/// All jobs of a range.
fn jobs(files: &[&str], dirty: &[u64], from: &str, to: Option<&str>) -> Vec<String> {
    let files = version(files);
    let with_deletes = files.files().map(|(level, file)| {
        let deletes = u64::from(dirty.contains(&file.id.number));
        (level, FileMeta { deletes, ..(**file).clone() })
    });
    jobs_of(&config(), Version::of(7, with_deletes.collect()), from, to)
}

fn jobs_of(config: &TreeConfig, mut version: Version, from: &str, to: Option<&str>) -> Vec<String> {
    let (to, busy) = (to.map(key), BTreeSet::new());
    let begun = Picker::new(config, &version, &busy).begin_range(&key(from), to.as_deref(), 100);
    let Some(mut position) = begun else { return Vec::new() };
    let mut said = Vec::new();
    for number in 100.. {
        let picker = Picker::new(config, &version, &busy);
        match picker.pick_range(&mut position, Gone::default()) {
            RangeStep::Done => return said,
            RangeStep::Wait => panic!("nothing is under way: {said:?}"),
            RangeStep::Job(pick) => {
                said.push(describe(&pick));
                version = after(config, &version, &pick, number);
            }
        }
        assert!(said.len() < 50, "it ends: {said:?}");
    }
    said
}

/// docs/faults.md: P34
#[test]
fn level_after_level_goes_down_to_where_it_rests() {
    // 64 MiB do not rest in L1, which aims at 32.
    let files = ["0:9[a-f]", "0:8[c-k]", "1:5[a-c]", "2:3[d-m]"];
    assert_eq!(
        jobs(&files, &[], "", None),
        ["Compaction 0:9 0:8 1:5 to 1", "Compaction 1:100 2:3 to 2 bottommost"]
    );
    // What lies deeper than it need stays there.
    let jobs_to_4 = |files| jobs(files, &[], "", None);
    assert_eq!(jobs_to_4(&["4:1[a-b]", "0:2[x-y]"]), ["TrivialMove 0:2 to 4 bottommost"]);
    assert_eq!(jobs_to_4(&["4:1[a-b]", "1:2[x-y]"]).len(), 3);
    assert_eq!(jobs(&["1:1[a-b]"], &[], "", None), Vec::<String>::new());
    assert_eq!(jobs(&[], &[], "", None), Vec::<String>::new());
}

#[test]
fn a_file_that_holds_deletes_is_written_anew_in_the_last_level_and_not_moved_there() {
    assert_eq!(jobs(&["1:1[a-b]"], &[1], "", None), ["Compaction 1:1 to 1 bottommost"]);
    let files = ["2:2[a-b]", "3:3[c-d]"];
    assert_eq!(jobs(&files, &[], "", None), ["TrivialMove 2:2 to 3 bottommost"]);
    assert_eq!(jobs(&files, &[2], "", None), ["Compaction 2:2 to 3 bottommost"]);
    assert_eq!(
        jobs(&files, &[2, 3], "", None),
        ["Compaction 2:2 to 3 bottommost", "Compaction 3:3 to 3 bottommost"]
    );
}

/// docs/faults.md: P12
#[test]
fn what_lies_at_the_bottom_with_another_codec_is_written_anew() {
    let said = |packed: &[u64]| {
        let files = version(&["2:2[a-b]", "3:3[c-d]", "3:4[e-f]", "4:5[e-e]"]);
        let files = files.files().map(|(level, file)| {
            let is_packed = packed.contains(&file.id.number);
            let compression = if is_packed { Compression::ZSTD } else { Compression::None };
            (level, FileMeta { compression, ..(**file).clone() })
        });
        let bottom_compression = Some(Compression::ZSTD);
        let config = TreeConfig { bottom_compression, ..config() };
        jobs_of(&config, Version::of(7, files.collect()), "", Some("d"))
    };
    let anew = ["Compaction 2:2 to 3 bottommost", "Compaction 3:3 to 3 bottommost"];
    assert_eq!(said(&[]), anew);
    assert_eq!(said(&[2]), ["TrivialMove 2:2 to 3 bottommost", anew[1]]);
    assert_eq!(said(&[3]), anew[..1]);
    assert_eq!(said(&[2, 3]), ["TrivialMove 2:2 to 3 bottommost"]);
}

#[test]
fn what_lies_outside_of_the_range_stays() {
    let files = ["1:1[a-b]", "1:2[d-e]", "1:3[g-h]", "2:4[a-z]"];
    assert_eq!(jobs(&files, &[], "c", Some("f")), ["Compaction 1:2 2:4 to 2 bottommost"]);
    assert_eq!(jobs(&files, &[], "zz", None), Vec::<String>::new());
    assert_eq!(jobs(&files, &[4], "x", None), ["Compaction 2:4 to 2 bottommost"]);
}

#[test]
fn a_file_that_is_busy_is_waited_for_and_one_whose_job_failed_is_taken_again() {
    let (config, version) = (config(), version(&["1:1[a-b]", "1:2[c-d]", "2:3[a-z]"]));
    let (idle, busy) = (BTreeSet::new(), BTreeSet::from([FileId::sst(1), FileId::sst(3)]));
    let picker = |busy| Picker::new(&config, &version, busy);
    let mut position = picker(&idle).begin_range(&key(""), None, 100).unwrap();
    let step = |busy, position: &mut _| match Picker::new(&config, &version, busy)
        .pick_range(position, Gone::default())
    {
        RangeStep::Job(pick) => describe(&pick),
        RangeStep::Wait => "wait".into(),
        RangeStep::Done => "done".into(),
    };
    assert_eq!(step(&idle, &mut position), "Compaction 1:1 2:3 to 2 bottommost");
    assert_eq!(step(&busy, &mut position), "wait");
    // No edit came of it.
    assert_eq!(step(&idle, &mut position), "Compaction 1:1 2:3 to 2 bottommost");
}
