//! The messages about replicas that differ; and nothing unread or not compared counts as equal.

use super::*;
use gabion_base::LogPosition;

const fn at(position: u64) -> Frontier {
    Frontier::of(LogPosition(position))
}

fn file(number: u64, checksum: &str) -> LiveFile {
    LiveFile { level: 1, number, len: 4096, checksum: checksum.to_owned() }
}

fn replica(number: u32) -> Found {
    Found {
        replica: number,
        log_end: at(1000),
        edit: 7,
        files: vec![file(1, "aa"), file(2, "bb")],
        files_read: [1, 2].into(),
        records: Some((10, "cc".to_owned())),
        ..Found::default()
    }
}

fn told(found: &[Found]) -> Vec<String> {
    compare(found).differences.iter().map(|(r, d)| describe(*r, d)).collect()
}

#[test]
fn replicas_that_hold_the_same_have_no_difference() {
    let found = [replica(1), replica(2), replica(3)];
    let verdict = compare(&found);
    assert!(verdict.differences.is_empty());
    assert_eq!(verdict.not_compared, None);
    assert_eq!(
        what_is_same(&found),
        "3 replicas: the same 10 records and the same 2 files, byte for byte"
    );
}

#[test]
fn files_that_were_replaced_before_they_were_read_are_counted() {
    let mut other = replica(2);
    other.files_read = [1].into();
    let found = [replica(1), other];
    let said = to_text(&found, &compare(&found));
    assert!(said.contains("2 files, 0 B read (1 were replaced before their turn)"), "{said}");
    assert!(said.contains("2 files, byte for byte but for 1 that were replaced"), "{said}");
    let json = to_json(&found, &compare(&found));
    assert_eq!(json["replicas"][0]["files_not_read"], 0);
    assert_eq!(json["replicas"][1]["files_not_read"], 1);
}

#[test]
fn logs_that_have_another_record_at_the_same_place_differ() {
    let (mut first, mut other) = (replica(1), replica(2));
    (first.log_crc, other.log_crc) = (Some("11".to_owned()), Some("22".to_owned()));
    let told = told(&[first, other]);
    let expected =
        "replica 2: the record that ends at log position 1000 has checksum 22; replica 1 has 11";
    assert_eq!(told, [expected]);
}

#[test]
fn a_damaged_file_is_named_with_replica_and_offset() {
    let mut other = replica(2);
    other.damage =
        vec![Damage { file: Some(2), offset: Some(1 << 20), message: "checksum 1".into() }];
    other.records = None;
    let told = told(&[replica(1), other]);
    assert_eq!(told, ["replica 2, file 000002.sst, offset 1048576: checksum 1"]);
}

#[test]
fn records_that_could_not_be_read_are_no_success() {
    let mut other = replica(2);
    other.records = None;
    let told = told(&[replica(1), other]);
    assert_eq!(told, ["replica 2: its records could not be read, though no file is damaged"]);
}

/// docs/faults.md: E13, H10
#[test]
fn files_that_are_missing_extra_or_other_are_named_at_the_replica_that_deviates() {
    let mut other = replica(3);
    other.files = vec![file(2, "xx"), file(9, "yy")];
    let told = told(&[replica(1), replica(2), other]);
    assert_eq!(told.len(), 3);
    assert!(told[0].starts_with("replica 3, file 000001.sst: is missing"), "{told:?}");
    assert!(told[1].starts_with("replica 3, file 000002.sst: level 1"), "{told:?}");
    assert!(told[2].starts_with("replica 3, file 000009.sst: is there"), "{told:?}");
}

#[test]
fn records_that_differ_are_a_difference() {
    let mut other = replica(2);
    other.records = Some((11, "dd".to_owned()));
    let told = told(&[replica(1), other]);
    assert_eq!(told, ["replica 2: 11 records with digest dd; replica 1 has 10 with digest cc"]);
}

#[test]
fn replicas_at_different_positions_are_not_said_to_be_the_same() {
    let mut other = replica(2);
    other.log_end = at(2000);
    other.records = Some((11, "dd".to_owned()));
    let verdict = compare(&[replica(1), other]);
    assert!(verdict.differences.is_empty());
    let reason = verdict.not_compared.unwrap();
    assert!(reason.starts_with("records were not compared: replica 1 is at log position 1000"));
}

#[test]
fn files_are_compared_at_one_edit_whatever_the_log_position_and_else_said_not_to_be() {
    let mut other = replica(2);
    other.log_end = at(2000);
    other.files = vec![file(1, "aa")];
    let same_edit = told(&[replica(1), other.clone()]);
    assert_eq!(same_edit, ["replica 2, file 000002.sst: is missing; replica 1 has it"]);
    other.edit = 8;
    let verdict = compare(&[replica(1), other]);
    assert!(verdict.differences.is_empty());
    assert!(verdict.not_compared.unwrap().starts_with("records and files were not compared: "));
}

#[test]
fn files_of_replicas_that_compact_for_themselves_are_not_compared() {
    let mut found = [replica(1), replica(2)];
    found[1].files.clear();
    found[1].edit = 3;
    for replica in &mut found {
        replica.has_own_files = true;
    }
    let verdict = compare(&found);
    assert!(verdict.differences.is_empty());
    assert_eq!(verdict.not_compared, None);
}
