//! The bytes of edits, recipes, options and snapshots, pinned. A change here changes a format: it
//! needs a new version number in the module that owns it.
//!
//! docs/faults.md: R15

use gabion_base::codec::Reader;
use gabion_base::{
    FileId, FileKind, Frontier, GroupId, LogPosition, MemTableId, SequenceNumber, Term,
};
use gabion_engine::*;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TERM: Term = Term(3);
/// First of the numbers that every recipe here reserves.
const FIRST: u64 = FileId::first_number(TERM) + 500;

fn meta(number: u64) -> FileMeta {
    FileMeta {
        len: 5000,
        checksum: 0x1122_3344,
        chunk_crcs: vec![0x1122_3344],
        smallest: b"\x01a".to_vec(),
        largest: b"\x01q".to_vec(),
        smallest_sequence: SequenceNumber(10),
        largest_sequence: SequenceNumber(20),
        entries: 9,
        deletes: 2,
        raw_key_bytes: 18,
        raw_value_bytes: 4000,
        ..FileMeta::new(FileId::sst(number), TERM)
    }
}

fn recipe(kind: JobKind) -> Recipe {
    let (flush, load) = (kind == JobKind::Flush, kind == JobKind::Load);
    Recipe {
        kind,
        term: TERM,
        memtables: if flush { vec![MemTableId(4)] } else { Vec::new() },
        inputs: match flush || load {
            true => Vec::new(),
            false => vec![(0, FileId::sst(7)), (1, FileId::sst(300))],
        },
        output_level: u8::from(!flush),
        output_first: FIRST,
        output_count: u32::from(kind.makes_files()) * 8,
        output_len: 16 << 20,
        cuts: if flush { Vec::new() } else { vec![b"\x01cut".to_vec()] },
        bottommost: !flush,
        now_ms: 1_700_000_000_000,
        floor: SequenceNumber(5),
        sst: SstOptions::default(),
        merging: None,
        parted_from: 0,
        large_from: 0,
        emptied: Vec::new(),
        kept: Vec::new(),
        kept_from: 0,
    }
}

fn edit(kind: JobKind) -> Edit {
    let mut recipe = recipe(kind);
    let mut added = vec![(recipe.output_level, meta(FIRST))];
    match kind {
        JobKind::Flush | JobKind::Compaction => {}
        JobKind::TrivialMove => {
            recipe.inputs = vec![(0, FileId::sst(7))];
            added = vec![(1, meta(7))];
        }
        JobKind::Drop => added.clear(),
        JobKind::Load => {
            let sequence = SequenceNumber(21);
            let (smallest_sequence, largest_sequence) = (sequence, sequence);
            let loaded = |n| FileMeta { smallest_sequence, largest_sequence, ..meta(n) };
            added = vec![(6, loaded(FIRST)), (0, loaded(FIRST + 2))];
        }
    }
    Edit {
        number: 42,
        kind,
        term: TERM,
        removed: recipe.inputs.clone(),
        added,
        values: Vec::new(),
        flushed: (kind == JobKind::Flush).then_some(Flushed {
            memtable: MemTableId(4),
            frontier: Frontier::of(LogPosition(0x10_0000)),
            sequence: SequenceNumber(20),
        }),
        next_file: FIRST + 8,
        floor: Some(SequenceNumber(5)),
        recipe: Some(recipe),
    }
}

const KINDS: [JobKind; 5] =
    [JobKind::Flush, JobKind::Compaction, JobKind::TrivialMove, JobKind::Drop, JobKind::Load];

/// The pinned bytes, in `tests/golden`, 64 to a line.
macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("golden/", $name, ".hex")).split_whitespace().collect::<String>()
    };
}

/// docs/faults.md: P10
#[test]
fn golden_bytes_of_an_edit_of_each_kind() {
    let golden = [
        golden!("edit_flush"),
        golden!("edit_compaction"),
        golden!("edit_trivial_move"),
        golden!("edit_drop"),
        golden!("edit_load"),
    ];
    for (kind, golden) in KINDS.into_iter().zip(golden) {
        let bytes = edit(kind).encode().unwrap();
        assert_eq!(hex(&bytes), golden, "{kind:?}");
        assert_eq!(Edit::decode(&bytes).unwrap(), edit(kind));
    }
}

#[test]
fn golden_bytes_of_a_recipe() {
    let recipe = recipe(JobKind::Compaction);
    let mut bytes = Vec::new();
    recipe.encode(&mut bytes);
    assert_eq!(hex(&bytes), golden!("recipe"));
    assert_eq!(Recipe::decode(&bytes).unwrap(), recipe);
}

/// docs/faults.md: P13
#[test]
fn golden_bytes_of_a_recipe_that_folds_operands() {
    let expiries = Some(ExpirySpan { first_ms: 0x0102_0304_0506, last_ms: 0x0102_0304_0708 });
    let full = Merging { expiries, above_from_ms: Some(0x0102_0304_0405) };
    for merging in [full, Merging::default()] {
        let recipe = Recipe { merging: Some(merging), ..recipe(JobKind::Compaction) };
        let mut bytes = Vec::new();
        recipe.encode(&mut bytes);
        assert_eq!(Recipe::decode(&bytes).unwrap(), recipe);
        let field = bytes.len() - 26;
        if merging == full {
            assert_eq!(hex(&bytes), golden!("recipe_merging"));
        }
        let mut other = bytes.clone();
        other[field] = 2;
        let error = Recipe::decode(&other).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported);
        assert!(format!("{error}").contains("merge operator 2 in version 1"), "{error}");
        // The first expiry after the last.
        other.clone_from(&bytes);
        other[field + 2..field + 10].copy_from_slice(&(1u64 << 60).to_le_bytes());
        let error = Recipe::decode(&other).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
    }
}

fn tree() -> Tree {
    let mut tree = Tree::create(TreeConfig::default(), GroupId(7)).unwrap();
    let mut flush = edit(JobKind::Flush);
    flush.number = 1;
    tree.apply_edit(&flush).unwrap();
    tree
}

/// docs/faults.md: P12
#[test]
fn golden_bytes_of_a_recipe_with_zstd() {
    let sst = SstOptions { compression: Compression::ZSTD, ..SstOptions::default() };
    let recipe = Recipe { sst, ..recipe(JobKind::Compaction) };
    let mut bytes = Vec::new();
    recipe.encode(&mut bytes);
    assert_eq!(hex(&bytes), golden!("recipe_zstd"));
    assert_eq!(Recipe::decode(&bytes).unwrap(), recipe);
    let at = bytes.windows(4).position(|name| name == b"zstd").unwrap();
    // The version of the encoder's output, its level, its name.
    for (at, byte) in [(at - 4, 2), (at - 2, 0), (at - 2, 20), (at, b'x')] {
        let mut other = bytes.clone();
        other[at] = byte;
        let error = Recipe::decode(&other).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported, "{error}");
    }
}

/// docs/faults.md: P12
#[test]
fn golden_bytes_of_options_and_of_a_snapshot() {
    let bottom = Some(Compression::Zstd { level: 7 });
    // The first two are what builds wrote that knew of no bits besides: their trees go on without.
    let cases = [
        (None, 0, golden!("tree_config")),
        (bottom, 0, golden!("tree_config_bottom")),
        (None, 6, golden!("tree_config_filters")),
        (bottom, 22, golden!("tree_config_filters_bottom")),
    ];
    for (bottom_compression, upper_filter_bits_extra, golden) in cases {
        let default = TreeConfig::default();
        let config = TreeConfig { bottom_compression, upper_filter_bits_extra, ..default };
        let mut bytes = Vec::new();
        config.encode(&mut bytes);
        assert_eq!(hex(&bytes), golden);
        let decoded = TreeConfig::decode(&mut Reader::new(&bytes, "tree options")).unwrap();
        assert_eq!(decoded, config);
    }
    let snapshot = tree().snapshot();
    assert_eq!(hex(&snapshot), golden!("tree_snapshot"));
    let again = Tree::open(TreeConfig::default(), GroupId(7), &snapshot).unwrap();
    assert_eq!(again.snapshot(), snapshot);
    assert_eq!((again.last_edit(), again.last_sequence()), (1, SequenceNumber(20)));
}

/// Data of the version before is refused by name, not taken for damage.
#[test]
fn edits_recipes_and_snapshots_of_version_1_are_refused_by_name() {
    let refused = |mut bytes: Vec<u8>, decode: &dyn Fn(&[u8]) -> gabion_base::Error| {
        bytes[..2].copy_from_slice(&[1, 0]);
        let error = decode(&bytes);
        assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("has version 1, this build knows 2"), "{error}");
    };
    let mut bytes = Vec::new();
    recipe(JobKind::Compaction).encode(&mut bytes);
    refused(bytes, &|bytes| Recipe::decode(bytes).unwrap_err());
    let bytes = edit(JobKind::Compaction).encode().unwrap();
    refused(bytes, &|bytes| Edit::decode(bytes).unwrap_err());
    let mut bytes = tree().snapshot();
    bytes.truncate(bytes.len() - 4);
    refused(bytes, &|bytes| {
        let mut sealed = bytes.to_vec();
        sealed.extend(gabion_base::crc::crc32c(bytes).to_le_bytes());
        Tree::open(TreeConfig::default(), GroupId(7), &sealed).err().unwrap()
    });
}

#[test]
fn a_file_of_an_unknown_kind_is_refused_in_an_edit_and_in_a_recipe() {
    let edit = edit(JobKind::Compaction);
    let bytes = edit.encode().unwrap();
    // Level 0, an SST, number 7; level 1, an SST, number 300: in the edit, and in its recipe.
    let named = [0, 1, 7, 1, 1, 0xac, 2];
    let places = bytes.windows(named.len()).enumerate().filter(|(_, found)| *found == named);
    let places: Vec<_> = places.map(|(at, _)| at).collect();
    assert_eq!(places.len(), 2);
    for at in places {
        let mut other = bytes.clone();
        other[at + 1] = 9;
        let error = Edit::decode(&other).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("unknown file kind 9"), "{error}");
    }
    // One that is known, and that no tree has: neither that of the recipe nor another.
    let mut wrong = edit;
    wrong.removed[0].1.kind = FileKind::Values;
    let error = Edit::decode(&wrong.encode().unwrap()).unwrap_err();
    assert!(error.message().contains("a removed file is no SST"), "{error}");
}

/// An edit lies in a record whose checksum covers it, so a flipped bit never gets here. Should one,
/// it must not panic, and what it decodes to must be an edit that stands by itself.
#[test]
fn every_flipped_bit_of_an_edit_is_refused_or_decodes_to_a_valid_edit() {
    for kind in KINDS {
        let bytes = edit(kind).encode().unwrap();
        let mut refused = 0;
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(decoded) = Edit::decode(&flipped) else {
                refused += 1;
                continue;
            };
            decoded.validate().unwrap();
            // The tree it is applied to checks it against what is there; it must not panic either.
            let _ = tree().apply_edit(&decoded);
            assert_eq!(Edit::decode(&decoded.encode().unwrap()).unwrap(), decoded);
        }
        assert!(refused > bytes.len() * 2, "{kind:?}: only {refused} flips were refused");
    }
}

#[test]
fn every_cut_off_edit_and_every_added_byte_is_refused() {
    for kind in KINDS {
        let bytes = edit(kind).encode().unwrap();
        // A cut after a whole field leaves an edit without what followed: it must differ or be
        // refused.
        for len in 0..bytes.len() {
            if let Ok(decoded) = Edit::decode(&bytes[..len]) {
                assert_ne!(decoded, edit(kind));
            }
        }
        Edit::decode(&[&bytes[..], &[0]].concat()).unwrap_err();
    }
}

/// docs/faults.md: E5
#[test]
fn every_flipped_bit_of_a_snapshot_is_refused() {
    let bytes = tree().snapshot();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Tree::open(TreeConfig::default(), GroupId(7), &flipped).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Tree::open(TreeConfig::default(), GroupId(7), &bytes[..len]).is_err());
    }
}

#[test]
fn an_edit_that_contradicts_itself_is_refused_by_name() {
    type Change = fn(&mut Edit);
    let changes: [(JobKind, Change, &str); 20] = [
        (JobKind::Flush, |e| e.number = 0, "number is 0"),
        (JobKind::Flush, |e| e.flushed = None, "do not fit the kind"),
        (JobKind::Flush, |e| e.removed.push((0, FileId::sst(1))), "more than add"),
        (JobKind::Flush, |e| e.next_file = FIRST, "not below next_file"),
        (JobKind::Flush, |e| e.next_file = FileId::first_number(Term(4)), "of a later term"),
        (JobKind::Flush, |e| e.term = Term(1 << 32), "term is over the limit"),
        (JobKind::Flush, |e| e.added[0].1.smallest = vec![1; 65_538], "longer than any key"),
        (JobKind::Flush, |e| e.added[0].1.largest = vec![2; 65_538], "longer than any key"),
        (JobKind::Flush, |e| e.added[0].0 = 1, "more than add"),
        (JobKind::Flush, |e| e.added[0].1.id = FileId::sst(3), "not one of its recipe's"),
        (
            JobKind::Flush,
            |e| e.added[0].1.id = FileId::log_segment(gabion_base::ShardId::ZERO, 500),
            "no SST",
        ),
        (JobKind::Compaction, |e| e.removed.clear(), "nothing is removed"),
        (JobKind::Compaction, |e| e.added[0].0 = 200, "over the limit"),
        (JobKind::Compaction, |e| e.removed.truncate(1), "other files than its recipe"),
        (JobKind::TrivialMove, |e| e.added[0].1.id = FileId::sst(8), "does not add what"),
        (JobKind::Drop, |e| e.added.push((1, meta(FIRST))), "drop adds"),
        (JobKind::Load, |e| e.added.clear(), "does more than add"),
        (JobKind::Load, |e| e.added[1].1 = meta(FIRST + 2), "one sequence number"),
        (JobKind::Load, |e| e.removed.push((0, FileId::sst(7))), "does more than add"),
        (JobKind::Load, |e| e.added[1].1.id = FileId::sst(8), "not one of its recipe's"),
    ];
    for (kind, change, message) in changes {
        let mut edit = edit(kind);
        change(&mut edit);
        let error = edit.validate().unwrap_err();
        assert!(error.message().contains(message), "{message:?} expected, {error}");
        let bytes = edit.encode().unwrap();
        assert!(Edit::decode(&bytes).is_err());
    }
}

#[test]
fn a_recipe_that_leaves_the_numbers_of_its_term_is_refused() {
    let base = FileId::first_number(TERM);
    let end = FileId::first_number(Term(4));
    let told = |term, output_first, output_count| {
        let recipe = Recipe { term, output_first, output_count, ..recipe(JobKind::Flush) };
        recipe.validate().map_err(|error| error.message().to_owned())
    };
    told(TERM, base, 8).unwrap();
    told(TERM, base, u32::MAX).unwrap();
    told(TERM, end - 9, 8).unwrap();
    for (first, count) in [(base - 1, 8), (end - 8, 8), (base + 1, u32::MAX), (end, 1), (0, 8)] {
        let message = told(TERM, first, count).unwrap_err();
        assert!(message.contains("number space of its term"), "{first} {count}: {message}");
    }
    let message = told(Term(1 << 32), base, 8).unwrap_err();
    assert!(message.contains("term is over the limit"), "{message}");
}

#[test]
fn an_edit_over_the_limit_is_refused_when_it_is_made() {
    let mut edit = edit(JobKind::Compaction);
    edit.added = (0..8000).map(|at| (1, meta(FIRST + at))).collect();
    let error = edit.encode().unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::LimitExceeded);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = Edit::decode(&bytes);
        let _ = Recipe::decode(&bytes);
        let _ = Tree::open(TreeConfig::default(), GroupId(7), &bytes);
    }

    /// Bytes that look like the real thing get further before they are refused.
    #[test]
    fn mangled_bytes_never_panic(
        kind in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut: prop::sample::Index,
    ) {
        let mut bytes = edit(KINDS[kind]).encode().unwrap();
        let mut recipe_bytes = Vec::new();
        recipe(KINDS[kind]).encode(&mut recipe_bytes);
        let mut snapshot = tree().snapshot();
        for target in [&mut bytes, &mut recipe_bytes, &mut snapshot] {
            for (at, value) in &changes {
                let at = at.index(target.len());
                target[at] = *value;
            }
            let len = cut.index(target.len()) + 1;
            if changes.len() % 2 == 0 {
                target.truncate(len);
            }
        }
        let _ = Edit::decode(&bytes).map(|edit| tree().apply_edit(&edit));
        let _ = Recipe::decode(&recipe_bytes);
        // Past the checksum, which would hide everything behind it.
        if snapshot.len() > 4 {
            let body = snapshot.len() - 4;
            let crc = gabion_base::crc::crc32c(&snapshot[..body]);
            snapshot[body..].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = Tree::open(TreeConfig::default(), GroupId(7), &snapshot);
    }
}

/// Tombstones that get files of their own, which the recipe of a flush says so that every replica
/// makes the same.
#[test]
fn golden_bytes_of_a_recipe_that_parts_tombstones() {
    let recipe = Recipe { parted_from: 5_000, ..recipe(JobKind::Flush) };
    let mut bytes = Vec::new();
    recipe.encode(&mut bytes);
    assert_eq!(Recipe::decode(&bytes).unwrap(), recipe);
    assert_eq!(hex(&bytes), golden!("recipe_parted"));
    // None in a row is no number of them, and the field cannot be passed over.
    let field = bytes.len() - 4;
    bytes[field..].fill(0);
    let error = Recipe::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
}

/// An edit that brings a values file, by a recipe that has one emptied, or values of a flush.
fn with_values(kind: JobKind) -> Edit {
    let values = FileMeta {
        id: FileId { kind: FileKind::Values, number: FIRST + 4 },
        deletes: 0,
        ..meta(FIRST)
    };
    let mut edit = edit(kind);
    let recipe = edit.recipe.as_mut().unwrap();
    match kind {
        JobKind::Flush => recipe.large_from = 512,
        _ => recipe.emptied = vec![FileId { kind: FileKind::Values, number: 8 }],
    }
    let reference = FileReference { file: values.id, live_bytes: 3000 };
    edit.added[0].1.references = vec![reference];
    edit.values = vec![values];
    edit
}

#[test]
fn golden_bytes_of_edits_with_values_files() {
    let golden = [golden!("edit_flush_values"), golden!("edit_compaction_values")];
    for (kind, golden) in [JobKind::Flush, JobKind::Compaction].into_iter().zip(golden) {
        let edit = with_values(kind);
        let bytes = edit.encode().unwrap();
        assert_eq!(Edit::decode(&bytes).unwrap(), edit);
        assert_eq!(hex(&bytes), golden, "{kind:?}");
    }
}

/// The edit of a flush that leaves values in a segment of the log.
fn with_segment() -> Edit {
    let segment = FileMeta {
        id: FileId::log_segment(gabion_base::ShardId::ZERO, 500),
        deletes: 0,
        ..meta(FIRST)
    };
    let mut edit = edit(JobKind::Flush);
    let recipe = edit.recipe.as_mut().unwrap();
    (recipe.kept, recipe.kept_from) = (vec![segment.id], 512);
    edit.added[0].1.references = vec![FileReference { file: segment.id, live_bytes: 3000 }];
    edit.values = vec![segment];
    edit
}

#[test]
fn golden_bytes_of_an_edit_that_leaves_values_in_the_log() {
    let edit = with_segment();
    let bytes = edit.encode().unwrap();
    assert_eq!(Edit::decode(&bytes).unwrap(), edit);
    assert_eq!(hex(&bytes), golden!("edit_flush_kept"));
}

#[test]
fn edits_whose_segments_do_not_fit_are_refused() {
    let refused = |text: &str, change: &dyn Fn(&mut Edit)| {
        let mut edit = with_segment();
        change(&mut edit);
        let error = edit.validate().unwrap_err();
        assert!(error.message().contains(text), "{error}");
    };
    refused("no added file references", &|edit| edit.added[0].1.references.clear());
    refused("its recipe does not leave there", &|edit| {
        let recipe = edit.recipe.as_mut().unwrap();
        recipe.kept = vec![FileId::log_segment(gabion_base::ShardId::ZERO, 501)];
    });
    refused("of no length, or in no segment", &|edit| edit.recipe.as_mut().unwrap().kept_from = 0);
    refused("in what is no segment", &|edit| {
        edit.recipe.as_mut().unwrap().kept = vec![FileId::sst(1)];
    });
    refused("are not ascending", &|edit| {
        let kept = &mut edit.recipe.as_mut().unwrap().kept;
        kept.push(kept[0]);
    });
}

#[test]
fn edits_whose_values_files_do_not_fit_are_refused() {
    let refused = |text: &str, change: &dyn Fn(&mut Edit)| {
        let mut edit = with_values(JobKind::Compaction);
        change(&mut edit);
        let error = edit.validate().unwrap_err();
        assert!(error.message().contains(text), "{error}");
    };
    refused("no added file references", &|edit| edit.added[0].1.references.clear());
    refused("a values file is none", &|edit| edit.values[0].id.kind = FileKind::Sst);
    refused("do not ascend", &|edit| edit.values.push(edit.values[0].clone()));
    refused("is not below next_file", &|edit| edit.next_file = FIRST + 3);
    refused("references another", &|edit| {
        edit.values[0].references = edit.added[0].1.references.clone();
    });
    refused("of a recipe that makes none", &|edit| {
        edit.recipe.as_mut().unwrap().emptied.clear();
    });
    refused("and it is no flush", &|edit| edit.recipe.as_mut().unwrap().large_from = 100);
    refused("not ascending", &|edit| {
        let emptied = &mut edit.recipe.as_mut().unwrap().emptied;
        emptied.push(emptied[0]);
    });
    refused("an SST is to be emptied", &|edit| {
        edit.recipe.as_mut().unwrap().emptied = vec![FileId::sst(1)];
    });
    refused("no numbers are left for values files", &|edit| {
        edit.recipe.as_mut().unwrap().output_count = 1;
    });
}

/// Options and snapshots of trees with large values apart have versions of their own.
#[test]
fn golden_bytes_of_options_and_of_a_snapshot_with_values_files() {
    let config = TreeConfig { large_values: 512, ..TreeConfig::default() };
    let mut bytes = Vec::new();
    config.encode(&mut bytes);
    assert_eq!(TreeConfig::decode(&mut Reader::new(&bytes, "tree options")).unwrap(), config);
    assert_eq!(hex(&bytes), golden!("tree_config_values"));
    let config = TreeConfig { value_compression: Compression::ZSTD, ..config };
    let mut bytes = Vec::new();
    config.encode(&mut bytes);
    assert_eq!(TreeConfig::decode(&mut Reader::new(&bytes, "tree options")).unwrap(), config);
    assert_eq!(hex(&bytes), golden!("tree_config_packed"));
    let mut tree = tree();
    let mut edit = with_values(JobKind::Compaction);
    edit.number = tree.last_edit() + 1;
    edit.removed = tree.version().files().map(|(level, meta)| (level, meta.id)).collect();
    edit.added[0].1.id = FileId::sst(FIRST + 1);
    edit.recipe = None;
    tree.apply_edit(&edit).unwrap();
    let snapshot = tree.snapshot();
    let again = Tree::open(TreeConfig::default(), GroupId(7), &snapshot).unwrap();
    assert_eq!(again.snapshot(), snapshot);
    assert_eq!(again.version().values_stats().live_bytes, 3000);
    assert_eq!(hex(&snapshot), golden!("tree_snapshot_values"));
}
