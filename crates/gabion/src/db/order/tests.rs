//! Each rule, broken on purpose.

use super::*;
use gabion_base::codec::{Put, Reader};
use gabion_base::{FileId, GroupId, Term};
use gabion_engine::range_delete::Fragments;
use gabion_engine::{RangeDelete, SstBuilder, TreeConfig};

fn meta(number: u64, (from, to): (&str, &str), (low, high): (u64, u64)) -> FileMeta {
    FileMeta {
        len: 4096,
        chunk_crcs: vec![0],
        smallest: from.into(),
        largest: to.into(),
        smallest_sequence: SequenceNumber(low),
        largest_sequence: SequenceNumber(high),
        entries: 1,
        raw_key_bytes: 1,
        raw_value_bytes: 1,
        ..FileMeta::new(FileId::sst(number), Term(1))
    }
}

fn index(offset: u32, separator: &str) -> IndexEntry {
    IndexEntry { separator: separator.into(), trailer: None, offset, stored_len: 100 }
}

fn entry(key: &str, sequence: u64) -> Entry<'_> {
    let trailer = Trailer::new(SequenceNumber(sequence), EntryKind::Put);
    Entry { key: key.as_bytes(), trailer, value: b"v" }
}

fn properties() -> Properties {
    Properties {
        entries: 2,
        deletes: 0,
        raw_key_bytes: 2,
        raw_value_bytes: 2,
        smallest_sequence: SequenceNumber(5),
        largest_sequence: SequenceNumber(7),
        smallest: b"a".to_vec(),
        largest: b"b".to_vec(),
        options: TreeConfig::default().sst,
        clears: Vec::new(),
        ranges: Fragments::default(),
    }
}

#[test]
fn a_file_that_keeps_every_rule_is_passed() {
    let meta = meta(1, ("a", "c"), (5, 7));
    let mut order = Order::new(&meta);
    let blocks = [index(0, "a"), index(100, "c")];
    order.block(&blocks[0]).unwrap();
    order.entry(&entry("a", 7), true).unwrap();
    order.block_end(&blocks[0]).unwrap();
    order.block(&blocks[1]).unwrap();
    order.separated(&blocks[0], b"b").unwrap();
    order.entry(&entry("b", 5), true).unwrap();
    order.block_end(&blocks[1]).unwrap();
    assert_eq!((order.finish(&properties()), order.entries()), (Vec::new(), 2));
}

/// docs/faults.md: P35
#[test]
fn every_rule_that_a_file_breaks_is_named_with_its_values() {
    let meta = meta(1, ("a", "c"), (5, 7));
    let wrong = |check: &dyn Fn(&mut Order<'_>) -> Result<(), String>, part: &str| {
        let mut order = Order::new(&meta);
        order.block(&index(0, "b")).unwrap();
        order.entry(&entry("b", 6), true).unwrap();
        let said = check(&mut order).unwrap_err();
        assert!(said.contains(part), "{said}");
    };
    wrong(&|o| o.entry(&entry("a", 7), true), "\"a\" #7 follows \"b\" #6");
    wrong(&|o| o.entry(&entry("b", 7), true), "not in order");
    wrong(&|o| o.entry(&entry("b", 6), true), "not in order");
    wrong(&|o| o.entry(&entry("d", 7), true), "outside of the bounds");
    wrong(&|o| o.entry(&entry("c", 7), false), "the filter denies key \"c\"");
    wrong(&|o| o.block_end(&index(0, "a")), "ends with \"a\", it ends with \"b\"");
    wrong(&|o| o.block(&index(90, "c")), "a block at 90, the one before ends at 100");
    wrong(&|o| o.separated(&index(0, "c"), b"bb"), "begins with \"bb\"");
    let said = Order::new(&meta).finish(&properties()).join("; ");
    for part in ["0 entries, its properties say 2", "say 7", "\"\" as first key"] {
        assert!(said.contains(part), "{said}");
    }
}

/// A tree whose L0 holds these, newest first: the result of a flush that came too late.
fn l0(files: &[FileMeta]) -> Version {
    let mut bytes = vec![2];
    bytes.put_varint(files.len() as u64);
    for file in files {
        let mut meta = Vec::new();
        file.encode(&mut meta);
        bytes.put_prefixed(&meta);
    }
    bytes.put_varint(0);
    Version::decode(&mut Reader::new(&bytes, "a version")).unwrap()
}

/// docs/faults.md: P35
#[test]
fn files_of_l0_that_overlap_are_as_new_as_their_places_say() {
    let bounds = ("\u{1}a", "\u{1}c");
    let files = [meta(9, bounds, (20, 29)), meta(8, bounds, (10, 19)), meta(7, bounds, (1, 10))];
    assert_eq!(of_l0(&l0(&files[..2])), Vec::<String>::new());
    let said = of_l0(&l0(&files)).join("; ");
    assert!(said.contains("000008.sst lies before 000007.sst in L0"), "{said}");
    // The files of one flush do not overlap, and share its sequence numbers.
    let apart = [files[1].clone(), meta(7, ("\u{1}d", "\u{1}e"), (1, 15))];
    assert_eq!(of_l0(&l0(&apart)), Vec::<String>::new());
}

/// docs/faults.md: P16
#[test]
fn range_deletes_count_for_bounds_and_sequence_numbers() {
    let mut builder =
        SstBuilder::new(&TreeConfig::default().sst, GroupId(1), FileId::sst(1), Term(1));
    builder.add(b"\x01k", Trailer::new(SequenceNumber(5), EntryKind::Put), b"v");
    let ranges = Fragments::of(&[RangeDelete {
        start: b"\x01a"[..].into(),
        end: b"\x01z"[..].into(),
        sequence: SequenceNumber(9),
    }]);
    builder.add_range(ranges.as_slice()[0].clone());
    let meta = builder.finish().meta;
    let properties = Properties {
        entries: 1,
        raw_value_bytes: 1,
        smallest_sequence: SequenceNumber(5),
        largest_sequence: SequenceNumber(9),
        smallest: b"\x01a".to_vec(),
        largest: b"\x01z".to_vec(),
        ranges,
        ..properties()
    };
    let mut order = Order::new(&meta);
    order.entry(&entry("\u{1}k", 5), true).unwrap();
    assert_eq!(order.finish(&properties), Vec::<String>::new());
    let alone = Properties {
        entries: 0,
        raw_key_bytes: 0,
        raw_value_bytes: 0,
        smallest_sequence: SequenceNumber(9),
        ..properties.clone()
    };
    assert_eq!(Order::new(&meta).finish(&alone), Vec::<String>::new());
    let without = Properties { ranges: Fragments::default(), ..properties };
    let said = order.finish(&without).join("; ");
    for part in ["holds 5 as largest", "\"\\x01k\" as last key", "has other range deletes"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn expiries_and_operands_are_held_against_the_spans_in_the_edit() {
    let expiring = |at_ms: u64| [&at_ms.to_le_bytes()[..], b"v"].concat();
    let stored = [
        ("\u{1}a", EntryKind::ExpiringPut, expiring(70)),
        ("\u{1}b", EntryKind::ExpiringPut, expiring(50)),
        ("\u{1}c", EntryKind::Merge, Operand::add(1, 9).encode()),
        ("\u{1}d", EntryKind::Merge, Operand::add(-1, 4).encode()),
        ("\u{1}e", EntryKind::Put, b"v".to_vec()),
    ];
    let trailer = |kind| Trailer::new(SequenceNumber(7), kind);
    let options = TreeConfig::default().sst;
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(1), Term(1));
    stored.iter().for_each(|(key, kind, value)| builder.add(key.as_bytes(), trailer(*kind), value));
    let meta = builder.finish().meta;
    let properties = Properties {
        entries: 5,
        raw_key_bytes: meta.raw_key_bytes,
        raw_value_bytes: meta.raw_value_bytes,
        smallest_sequence: SequenceNumber(7),
        smallest: b"\x01a".to_vec(),
        largest: b"\x01e".to_vec(),
        ..properties()
    };
    let look = |meta: &FileMeta| {
        let mut order = Order::new(meta);
        for (key, kind, value) in &stored {
            let entry = Entry { key: key.as_bytes(), trailer: trailer(*kind), value };
            order.entry(&entry, true).unwrap();
        }
        order.finish(&properties).join("; ")
    };
    assert_eq!(look(&meta), "");
    let expiry = Some(ExpirySpan { first_ms: 50, last_ms: 69 });
    let said = look(&FileMeta { expiry, ..meta.clone() });
    assert_eq!(said, "holds expiries from 50 to 70 ms, its edit says expiries from 50 to 69 ms");
    let said = look(&FileMeta { expiry: None, ..meta.clone() });
    assert_eq!(said, "holds expiries from 50 to 70 ms, its edit says nothing that expires");
    let operands = Some(Operands { count: 2, first_ms: 5 });
    let said = look(&FileMeta { operands, ..meta.clone() });
    assert_eq!(said, "holds 2 operands from 4 ms on, its edit says 2 operands from 5 ms on");
    let said = look(&FileMeta { operands: None, ..meta.clone() });
    assert_eq!(said, "holds 2 operands from 4 ms on, its edit says no operands");

    let mut order = Order::new(&meta);
    let mut wrong = |kind, value: &'static [u8]| {
        let entry = Entry { key: b"\x01a", trailer: trailer(kind), value };
        order.entry(&entry, true).unwrap_err()
    };
    let said = wrong(EntryKind::ExpiringPut, b"1234567");
    assert!(said.contains("7 bytes are stored, its expiry alone has 8"), "{said}");
    let said = wrong(EntryKind::Merge, b"1");
    assert!(said.contains("key \"\\x01a\" #7"), "{said}");
}
