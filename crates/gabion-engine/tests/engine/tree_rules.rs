//! Rules of the tree, one at a time: what it refuses, what it must not forget, what it must not
//! free.

use crate::support::*;
use gabion_base::{ErrorKind, FileId, Frontier, LogPosition, MemTableId, SequenceNumber};
use gabion_engine::*;

/// A replica whose jobs are run and applied as they come.
pub(crate) struct Driven {
    pub(crate) replica: Replica,
    position: u64,
}

impl Driven {
    pub(crate) fn new(config: TreeConfig) -> Self {
        Self { replica: Replica::new(config), position: 0 }
    }

    pub(crate) fn write(&mut self, fill: impl FnOnce(&mut BatchBuilder)) {
        let mut batch = BatchBuilder::new();
        fill(&mut batch);
        let first = self.replica.tree.last_sequence().next();
        self.replica.tree.apply_batch(first, batch.as_bytes()).unwrap();
    }

    pub(crate) fn put(&mut self, name: &str, value: &[u8]) {
        self.write(|batch| batch.put(Keyspace::User, name.as_bytes(), value).unwrap());
    }

    fn delete(&mut self, name: &str) {
        self.write(|batch| batch.delete(Keyspace::User, name.as_bytes()).unwrap());
    }

    pub(crate) fn clear(&mut self) {
        self.write(|batch| batch.clear(Keyspace::User).unwrap());
    }

    pub(crate) fn seal(&mut self) {
        self.position += 1;
        let active = self.replica.tree.active_id();
        self.replica.tree.seal(active, Frontier::of(LogPosition(self.position))).unwrap();
    }

    pub(crate) fn edit(&self, job: &JobInputs) -> Edit {
        let files = &self.replica.files;
        let output = block_on(run_job(job, GROUP, files, &mut files.clone())).unwrap();
        self.replica.tree.finish_job(output, self.replica.tree.last_edit() + 1).unwrap()
    }

    fn next(&mut self) -> Option<Edit> {
        let job = self.replica.tree.next_job(&context())?;
        Some(self.edit(&job))
    }

    pub(crate) fn edit_of_next_compaction(&mut self) -> Edit {
        let job = self.replica.tree.next_compaction(&context()).unwrap();
        self.edit(&job)
    }

    pub(crate) fn flush(&mut self) -> Edit {
        self.seal();
        let job = self.replica.tree.next_flush(&context()).unwrap();
        let edit = self.edit(&job);
        self.replica.tree.apply_edit(&edit).unwrap();
        edit
    }

    pub(crate) fn settle(&mut self) -> Vec<JobKind> {
        let mut kinds = Vec::new();
        while let Some(edit) = self.next() {
            self.replica.tree.apply_edit(&edit).unwrap();
            kinds.push(edit.kind);
        }
        kinds
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.replica.get(name.as_bytes()).map(|value| value.to_vec())
    }
}

pub(crate) fn eager() -> TreeConfig {
    TreeConfig { l0_trigger: 1, ..small_config() }
}

/// docs/faults.md: H3
#[test]
fn a_gap_or_a_repetition_in_edit_numbers_is_corruption_and_changes_nothing() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"1");
    driven.seal();
    let mut edit = driven.next().unwrap();
    let before = driven.replica.tree.snapshot();
    for number in [0, 2, 3] {
        edit.number = number;
        let error = driven.replica.tree.apply_edit(&edit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(driven.replica.tree.snapshot(), before);
    }
    edit.number = 1;
    driven.replica.tree.apply_edit(&edit).unwrap();
    driven.replica.tree.apply_edit(&edit).unwrap_err();
    assert_eq!(driven.get("a"), Some(b"1".to_vec()));
}

#[test]
fn an_edit_that_removes_a_file_that_is_not_there_is_corruption() {
    let mut driven = Driven::new(eager());
    driven.put("a", &[1; 3000]);
    driven.flush();
    let job = driven.replica.tree.next_compaction(&context()).unwrap();
    let mut edit = driven.edit(&job);
    assert_eq!(edit.kind, JobKind::TrivialMove);
    edit.recipe = None;
    let good = edit.clone();
    edit.kind = JobKind::Drop;
    edit.added.clear();
    edit.removed = vec![(0, FileId::sst(99))];
    let error = driven.replica.tree.apply_edit(&edit).unwrap_err();
    assert!(error.message().contains("not there: 000099.sst at level 0"), "{error}");
    edit.removed = vec![(1, good.removed[0].1)];
    driven.replica.tree.apply_edit(&edit).unwrap_err();
    driven.replica.tree.apply_edit(&good).unwrap();
    assert_eq!(driven.get("a"), Some(vec![1; 3000]));
}

#[test]
fn the_estimate_of_keys_follows_puts_deletes_flushes_and_clears() {
    let mut driven = Driven::new(eager());
    let estimate = |driven: &Driven| driven.replica.tree.key_estimate();
    let none = KeyEstimate::default();
    assert_eq!(estimate(&driven), none);
    for name in ["a", "b", "c"] {
        driven.put(name, b"1");
    }
    assert_eq!(estimate(&driven), KeyEstimate { keys: 3, expiring: 0 });
    driven.flush();
    assert_eq!(estimate(&driven), KeyEstimate { keys: 3, expiring: 0 });
    let expiring = |batch: &mut BatchBuilder| {
        batch.put_expiring(Keyspace::User, b"d", b"1", 1 << 40).unwrap();
    };
    driven.write(expiring);
    assert_eq!(estimate(&driven), KeyEstimate { keys: 4, expiring: 1 });
    driven.delete("a");
    driven.flush();
    driven.settle();
    // The delete hides one of the older file, and the file of the expiring key holds no other.
    assert_eq!(estimate(&driven).keys, 3);
    driven.put("e", b"1");
    driven.clear();
    assert_eq!(estimate(&driven), none, "also what lies in the MemTable still");
    driven.put("f", b"1");
    assert_eq!(estimate(&driven).keys, 1);
}

#[test]
fn an_edit_that_makes_files_of_a_level_overlap_is_corruption() {
    let mut driven = Driven::new(eager());
    driven.put("b", &[1; 3000]);
    driven.put("d", &[1; 3000]);
    driven.flush();
    driven.settle();
    assert_eq!(driven.replica.tree.level_stats()[1].files, 1);
    driven.put("c", &[2; 3000]);
    driven.flush();
    let job = driven.replica.tree.next_compaction(&context()).unwrap();
    let mut edit = driven.edit(&job);
    assert_eq!((edit.kind, edit.removed.len()), (JobKind::Compaction, 2));
    let good = edit.clone();
    // The file in L1 stays although the new one covers its range.
    edit.recipe = None;
    edit.removed.retain(|(level, _)| *level == 0);
    let error = driven.replica.tree.apply_edit(&edit).unwrap_err();
    assert!(format!("{error}").contains("overlap at level 1"), "{error}");
    // A file that is already there is added once more.
    edit.removed = good.removed.clone();
    edit.added.push(edit.added[0].clone());
    let error = driven.replica.tree.apply_edit(&edit).unwrap_err();
    assert!(format!("{error}").contains("already there"), "{error}");
    driven.replica.tree.apply_edit(&good).unwrap();
}

#[test]
fn a_flush_of_older_entries_than_l0_holds_is_corruption() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"1");
    driven.seal();
    driven.put("a", b"2");
    driven.seal();
    let mut late = driven.next().unwrap();
    driven.replica.tree.apply_edit(&late).unwrap();
    // The same entries once more, as the flush of the second MemTable.
    late.number = 2;
    late.recipe = None;
    late.added[0].1.id = FileId::sst(late.next_file);
    late.next_file += 1;
    late.flushed = Some(Flushed {
        memtable: MemTableId(2),
        frontier: Frontier::of(LogPosition(2)),
        sequence: SequenceNumber(2),
    });
    let error = driven.replica.tree.apply_edit(&late).unwrap_err();
    assert!(format!("{error}").contains("holds entries up to"), "{error}");
    assert_eq!(driven.get("a"), Some(b"2".to_vec()));
}

#[test]
fn a_flush_that_was_sealed_elsewhere_or_not_at_all_is_corruption() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"1");
    driven.seal();
    let good = driven.next().unwrap();
    let flushed = good.flushed.unwrap();
    for wrong in [
        Flushed { frontier: Frontier::of(LogPosition(7)), ..flushed },
        Flushed { sequence: SequenceNumber(2), ..flushed },
        Flushed { memtable: MemTableId(2), ..flushed },
        Flushed { memtable: MemTableId(0), ..flushed },
    ] {
        let edit = Edit { flushed: Some(wrong), recipe: None, ..good.clone() };
        driven.replica.tree.apply_edit(&edit).unwrap_err();
    }
    driven.replica.tree.apply_edit(&good).unwrap();
}

#[test]
fn a_seal_of_another_memtable_than_the_active_one_is_corruption() {
    let mut driven = Driven::new(small_config());
    let tree = &mut driven.replica.tree;
    assert_eq!(tree.active_id(), MemTableId(1));
    let at = |position| Frontier::of(LogPosition(position));
    tree.seal(MemTableId(2), at(1)).unwrap_err();
    assert_eq!(tree.seal(MemTableId(1), at(9)).unwrap(), MemTableId(2));
    tree.seal(MemTableId(2), at(8)).unwrap_err();
    assert_eq!(tree.sealed_count(), 1);
}

#[test]
fn a_tombstone_outlives_compactions_until_nothing_older_can_come_to_light() {
    let mut driven = Driven::new(TreeConfig { levels: 4, ..eager() });
    driven.put("k", &[1; 9000]);
    driven.flush();
    driven.settle();
    driven.delete("k");
    driven.put("a", b"");
    driven.put("z", b"");
    driven.flush();
    driven.settle();
    assert_eq!(driven.get("k"), None);
    driven.put("k2", &[1; 9000]);
    driven.flush();
    driven.settle();
    assert_eq!(driven.get("k"), None);
    let entries: u64 = driven.replica.tree.version().files().map(|(_, file)| file.deletes).sum();
    let puts = scan(&driven.replica.tree.view(), &driven.replica.tables, &[], None).len();
    assert_eq!(puts, 3);
    assert!(entries <= 1, "at the bottom the tombstone is gone, above it one may wait");
}

/// docs/faults.md: E12
#[test]
fn files_are_obsolete_only_when_the_last_view_iterator_and_job_let_go() {
    let mut driven = Driven::new(eager());
    driven.put("k", b"old");
    let first = driven.flush().added[0].1.id;
    let view = driven.replica.tree.view();
    let mut iterator = view.scan(&driven.replica.tables, &[], None);
    driven.put("k", b"new");
    driven.flush();
    let job = driven.replica.tree.next_compaction(&context()).unwrap();
    let edit = driven.edit(&job);
    driven.replica.tree.apply_edit(&edit).unwrap();
    let second = FileId::sst(first.number.max(edit.removed[0].1.number));
    assert_eq!(driven.replica.tree.leaving_files().len(), 2);
    assert_eq!(driven.replica.tree.obsolete_files(), [], "the job holds both");
    drop(job);
    let obsolete = driven.replica.tree.obsolete_files();
    assert!(!obsolete.contains(&first), "view and iterator hold the first: {obsolete:?}");
    assert_eq!(obsolete.len(), 1);
    assert_ne!(second, first);
    drop(view);
    assert_eq!(driven.replica.tree.obsolete_files(), [], "the iterator holds it still");
    let (_, value) = block_on(iterator.next()).unwrap().unwrap();
    assert_eq!(&value[..], b"old");
    drop(iterator);
    assert_eq!(driven.replica.tree.obsolete_files(), [first]);
    assert_eq!(driven.replica.tree.obsolete_files(), [], "each is reported once");
}

#[test]
fn a_move_keeps_the_file_and_reports_nothing_obsolete() {
    let mut driven = Driven::new(eager());
    driven.put("k", b"v");
    let id = driven.flush().added[0].1.id;
    assert!(driven.settle().iter().all(|kind| *kind == JobKind::TrivialMove));
    assert_eq!(driven.replica.tree.obsolete_files(), []);
    assert!(driven.replica.tree.version().file(1, id).is_some());
    assert_eq!(driven.get("k"), Some(b"v".to_vec()));
}

#[test]
fn a_clear_hides_everything_before_it_and_frees_whole_files_without_reading_them() {
    let mut driven = Driven::new(eager());
    for round in 0..6 {
        for n in 0..10 {
            driven.put(&format!("k{n}{round}"), &[7; 900]);
        }
        driven.flush();
        driven.settle();
    }
    driven.write(|batch| batch.put(Keyspace::System, b"session", b"1").unwrap());
    let before = driven.replica.tree.view();
    driven.clear();
    driven.put("after", b"x");
    assert_eq!(driven.get("k05"), None);
    assert_eq!(driven.get("after"), Some(b"x".to_vec()));
    let tables = driven.replica.tables.clone();
    assert_eq!(scan(&driven.replica.tree.view(), &tables, &[1], None).len(), 1);
    assert_eq!(scan(&before, &tables, &[1], None).len(), 60, "an older view still sees all");
    assert!(driven.settle().contains(&JobKind::Drop));
    driven.flush();
    driven.settle();
    assert_eq!(scan(&before, &tables, &[1], None).len(), 60);
    drop(before);
    let left: u64 = driven.replica.tree.level_stats().iter().map(|level| level.bytes).sum();
    assert!(left < 10_000, "{left} bytes are left");
    driven.replica.collect();
    assert_eq!(scan(&driven.replica.tree.view(), &tables, &[], None).len(), 2);
}

#[test]
fn a_clear_lasts_through_a_restart_once_an_edit_carries_it_and_not_before() {
    let mut driven = Driven::new(small_config());
    driven.put("k", b"v");
    driven.flush();
    let config = driven.replica.tree.config().clone();
    driven.clear();
    // The clear's record may yet be cut off the log: the snapshot must not know of it.
    let tree = Tree::open(config.clone(), GROUP, &driven.replica.tree.snapshot()).unwrap();
    assert_eq!(tree.floor(), SequenceNumber(0));
    driven.flush();
    let tree = Tree::open(config, GROUP, &driven.replica.tree.snapshot()).unwrap();
    assert_eq!(tree.floor(), SequenceNumber(2));
    driven.replica.tree = tree;
    assert_eq!(driven.get("k"), None);
}

/// docs/faults.md: P15
#[test]
fn limits_change_while_a_tree_lives() {
    let mut driven = Driven::new(TreeConfig { l0_trigger: 9, l0_slowdown: 9, ..small_config() });
    let tree = |driven: &Driven| driven.replica.tree.config().write_limits();
    let before = tree(&driven);
    assert_eq!((before.memtable_len, before.l0_trigger), (small_config().memtable_len, 9));
    driven.put("a", &[1; 5_000]);
    assert!(!driven.replica.tree.needs_seal());
    for (wrong, named) in [
        (WriteLimits { memtable_len: 4_095, ..before }, "memtable_len is 4095"),
        (WriteLimits { l0_trigger: 0, ..before }, "l0_trigger is 0"),
        (WriteLimits { l0_slowdown: 8, ..before }, "l0_slowdown is 8, allowed are 9 to 1000"),
        (WriteLimits { l0_stop: 8, ..before }, "l0_stop is 8, allowed are 9 to 1000"),
    ] {
        let error = driven.replica.tree.set_write_limits(wrong).unwrap_err();
        assert!(error.message().contains(named), "{error}");
        assert_eq!(tree(&driven), before);
    }
    let limits = WriteLimits { memtable_len: 4 << 10, l0_trigger: 2, l0_slowdown: 2, l0_stop: 3 };
    driven.replica.tree.set_write_limits(limits).unwrap();
    assert_eq!(tree(&driven), limits);
    assert!(driven.replica.tree.needs_seal(), "what is in memory is too much now");
    driven.replica.tree.set_write_limits(before).unwrap();
    driven.flush();
    driven.put("a", &[2; 100]);
    driven.flush();
    assert!(driven.replica.tree.next_job(&context()).is_none());
    assert_eq!(driven.replica.tree.write_state(), WriteState::Ok);
    driven.replica.tree.set_write_limits(limits).unwrap();
    assert_eq!(driven.replica.tree.write_state(), WriteState::Slow(0));
    assert_eq!(driven.settle(), [JobKind::Compaction]);
    assert_eq!(driven.replica.tree.write_state(), WriteState::Ok);
    assert_eq!(driven.get("a"), Some(vec![2; 100]));

    // What was filled when MemTables might be longer is one run of L0 all the same, and room is
    // kept for it.
    let longer = WriteLimits { memtable_len: 1 << 20, ..limits };
    driven.replica.tree.set_write_limits(longer).unwrap();
    (0..60).for_each(|n| driven.put(&format!("b{n:02}"), &[n; 1_000]));
    driven.replica.tree.set_write_limits(limits).unwrap();
    let kept = driven.replica.tree.slots_needed();
    driven.flush();
    assert_eq!(driven.replica.tree.level_stats()[0].files, 1);
    assert!(driven.replica.tree.slots_needed() >= kept);
}

/// A flush of tombstones is a few kilobytes, which no level is too full with.
/// docs/faults.md: P14
#[test]
fn deletes_give_back_what_they_delete_though_no_write_follows() {
    let name = |n: u32| format!("key{:05}", n * 7919 % 1000);
    let mut driven = Driven::new(TreeConfig { level_multiplier: 10, ..small_config() });
    for round in 0..10 {
        (round * 100..round * 100 + 100).for_each(|n| driven.put(&name(n), &[7; 400]));
        driven.flush();
        driven.settle();
    }
    let len = |driven: &Driven| -> u64 {
        driven.replica.tree.version().files().map(|(_, file)| file.len).sum()
    };
    let before = len(&driven);
    (0..1000).filter(|n| n % 2 == 0).for_each(|n| driven.delete(&name(n)));
    let flushed = driven.flush();
    let tombstones: u64 = flushed.added.iter().map(|(_, file)| file.len).sum();
    assert!(tombstones < small_config().level1_len, "{tombstones}");
    driven.settle();
    assert!(len(&driven) * 10 <= before * 6, "{} of {before} bytes are left", len(&driven));
    for n in 0..1000 {
        assert_eq!(driven.get(&name(n)).is_some(), n % 2 == 1, "{n}");
    }
}

#[test]
fn only_the_user_keyspace_can_be_cleared_and_reserved_operations_are_refused() {
    let mut driven = Driven::new(small_config());
    let tree = &mut driven.replica.tree;
    let mut batch = BatchBuilder::new();
    batch.put(Keyspace::User, b"k", b"v").unwrap();
    batch.clear(Keyspace::System).unwrap();
    let error = tree.apply_batch(SequenceNumber(1), batch.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for kind in [EntryKind::Relocation, EntryKind::Pointer, EntryKind::SingleDelete] {
        let error = tree.apply_operation(SequenceNumber(1), kind, b"\x01k", b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let other = tree.apply_operation(SequenceNumber(1), EntryKind::Merge, b"\x01k", &[2; 18]);
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Unsupported, "another operator");
    let short = tree.apply_operation(SequenceNumber(1), EntryKind::Merge, b"\x01k", &[1; 17]);
    assert_eq!(short.unwrap_err().kind(), ErrorKind::Corruption);
    tree.apply_operation(SequenceNumber(1), EntryKind::Put, b"", b"").unwrap_err();
    tree.apply_operation(SequenceNumber(1), EntryKind::Clear, b"\x01k", b"").unwrap_err();
    assert_eq!(tree.last_sequence(), SequenceNumber(0));
    tree.apply_operation(SequenceNumber(1), EntryKind::Put, b"\x01k", b"v").unwrap();
    assert_eq!(driven.get("k"), Some(b"v".to_vec()));
}

/// Flushes that run side by side make the files that they make one after the other, in L0's order.
/// One compaction at a time, as by default: writers would stand still until all of the range is
/// compacted.
/// docs/faults.md: P31
#[test]
fn a_range_that_is_compacted_on_demand_and_an_l0_that_holds_writers_take_turns() {
    let config = TreeConfig { l0_trigger: 2, l0_slowdown: 3, l0_stop: 6, ..small_config() };
    let mut driven = Driven::new(config);
    let fill = |driven: &mut Driven, from: u32, value: u8| {
        (from..from + 40).for_each(|n| driven.put(&format!("key{n:05}"), &[value; 400]));
        driven.flush();
    };
    for from in (0..2_000).step_by(40) {
        fill(&mut driven, from, 1);
        driven.settle();
    }
    // So that there is something to do in each file.
    (0..2_000).step_by(10).for_each(|n| driven.delete(&format!("key{n:05}")));
    driven.flush();
    driven.replica.tree.compact_range(&[], None);
    let mut of_l0 = Vec::new();
    for n in 0..12 {
        // Not before the range has begun.
        if n > 0 {
            fill(&mut driven, 5_000, n);
        }
        if driven.replica.tree.version().runs().len() >= 3 {
            let edit = driven.edit_of_next_compaction();
            of_l0.push(edit.removed.iter().any(|(level, _)| *level == 0));
            driven.replica.tree.apply_edit(&edit).unwrap();
            assert!(!of_l0.ends_with(&[false, false]), "{of_l0:?}");
        } else {
            let edit = driven.edit_of_next_compaction();
            driven.replica.tree.apply_edit(&edit).unwrap();
        }
    }
    assert!(of_l0.contains(&true) && of_l0.contains(&false), "{of_l0:?}");
    driven.settle();
    assert_eq!(driven.get("key00010"), None);
}

#[test]
fn tombstones_above_nothing_are_not_flushed_and_those_of_flushes_side_by_side_are_dropped() {
    let mut driven = Driven::new(small_config());
    driven.put("m", b"v");
    driven.flush();
    for key in ["n", "o"] {
        driven.delete(key);
    }
    driven.flush();
    assert_eq!(driven.replica.tree.level_stats()[0].files, 1, "beside what is there");
    driven.delete("l");
    driven.delete("n");
    driven.flush();
    assert_eq!(driven.replica.tree.level_stats()[0].files, 2, "around what is there");
    // Of two flushes the later does not know what the earlier makes.
    let mut driven = Driven::new(small_config());
    for key in ["a", "b"] {
        driven.delete(key);
        driven.seal();
    }
    let begin = |driven: &mut Driven| driven.replica.tree.next_flush(&context());
    let jobs: Vec<_> = core::iter::from_fn(|| begin(&mut driven)).collect();
    for job in &jobs {
        let edit = driven.edit(job);
        driven.replica.tree.apply_edit(&edit).unwrap();
    }
    assert_eq!(driven.replica.tree.level_stats()[0].files, 1);
    driven.settle();
    assert_eq!(driven.replica.tree.version().files().count(), 0);
}

/// 64 are worth a compaction where MemTables have 1 MiB; at least a quarter of all deletes are a
/// stretch.
#[test]
fn a_flush_gives_a_stretch_of_tombstones_a_file_of_its_own() {
    let config = TreeConfig { memtable_len: 1 << 20, ..small_config() };
    let flushed = |count: u64| {
        let mut driven = Driven::new(config.clone());
        driven.put("a", b"v");
        driven.put("z", b"v");
        driven.flush();
        driven.put("b", b"v");
        for number in 0..count {
            driven.delete(&format!("m{number:04}"));
        }
        for key in ["n", "o", "y"] {
            driven.put(key, b"v");
        }
        driven.delete("z");
        driven.seal();
        let job = driven.replica.tree.next_flush(&context()).unwrap();
        let edit = driven.edit(&job);
        assert!(edit.added.len() as u64 <= u64::from(job.recipe.output_count));
        let counts = edit.added.iter().map(|(_, file)| (file.entries, file.deletes));
        (job.recipe.parted_from, counts.collect::<Vec<_>>())
    };
    assert_eq!(flushed(62), (0, vec![(67, 63)]));
    // The first of them follow a put.
    assert_eq!(flushed(99), (25, vec![(25, 24), (75, 75), (4, 1)]));
}

/// What a flush finds expired becomes tombstones, of which it is not known before how many they
/// are.
#[test]
fn a_flush_parts_no_more_files_than_its_recipe_has_numbers_for() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"v");
    driven.put("z", b"v");
    driven.flush();
    driven.delete("b");
    for number in 0..60 {
        driven.put(&format!("m{number:02}"), b"v");
        let key = [&[Keyspace::User as u8], format!("m{number:02}+").as_bytes()].concat();
        let stored = [&5_u64.to_le_bytes()[..], b"v"].concat();
        let sequence = driven.replica.tree.last_sequence().next();
        let tree = &mut driven.replica.tree;
        tree.apply_operation(sequence, EntryKind::ExpiringPut, &key, &stored).unwrap();
    }
    driven.replica.tree.pass_time(10);
    driven.seal();
    let job = driven.replica.tree.next_flush(&context()).unwrap();
    assert_eq!(job.recipe.parted_from, 1);
    let edit = driven.edit(&job);
    assert!((9..=u64::from(job.recipe.output_count)).contains(&(edit.added.len() as u64)));
    let deletes: u64 = edit.added.iter().map(|(_, file)| file.deletes).sum();
    assert_eq!(deletes, 61);
}

/// docs/faults.md: P17
#[test]
fn flushes_run_side_by_side_and_end_in_their_order() {
    let mut driven = Driven::new(small_config());
    for value in [b"1", b"2", b"3"] {
        driven.put("k", value);
        driven.put(core::str::from_utf8(value).unwrap(), b"x");
        driven.seal();
    }
    let begin = |driven: &mut Driven| driven.replica.tree.next_flush(&context());
    let jobs: Vec<_> = core::iter::from_fn(|| begin(&mut driven)).collect();
    assert_eq!(jobs.len(), 3);
    assert!(jobs.windows(2).all(|two| two[0].recipe.output_end() <= two[1].recipe.output_first));
    // Only what lies under nothing may leave out tombstones: files of older MemTables are on their
    // way.
    let bottommost: Vec<_> = jobs.iter().map(|job| job.recipe.bottommost).collect();
    assert_eq!(bottommost, [true, false, false]);

    let late = driven.edit(&jobs[1]);
    let before = driven.replica.tree.snapshot();
    let error = driven.replica.tree.apply_edit(&late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(driven.replica.tree.snapshot(), before);
    for (job, number) in jobs.iter().zip(1..) {
        let edit = driven.edit(job);
        driven.replica.tree.apply_edit(&edit).unwrap();
        assert_eq!(driven.replica.tree.level_stats()[0].files, number);
        assert_eq!(driven.get("k"), Some(b"3".to_vec()));
    }
    assert_eq!(driven.replica.tree.sealed_count(), 0);
    let numbers = driven.replica.tree.version().level(0).iter().map(|file| file.id.number);
    assert!(numbers.clone().is_sorted_by(|a, b| a > b), "newest first");
}

/// Its next try has greater file numbers than what was built of newer MemTables meanwhile, and
/// comes below it.
/// docs/faults.md: P17
#[test]
fn a_flush_that_fails_is_tried_again_beside_those_of_newer_memtables_and_comes_below_them() {
    let mut driven = Driven::new(small_config());
    for value in [b"1", b"2", b"3"] {
        driven.put("k", value);
        driven.seal();
    }
    let begin = |driven: &mut Driven| driven.replica.tree.next_flush(&context());
    let jobs: Vec<_> = core::iter::from_fn(|| begin(&mut driven)).collect();
    driven.replica.tree.job_failed(&jobs[0].recipe);
    let files = &driven.replica.files;
    let output = block_on(run_job(&jobs[0], GROUP, files, &mut files.clone())).unwrap();
    let error = driven.replica.tree.finish_job(output, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "nobody waits for it");
    let again = begin(&mut driven).unwrap();
    assert!(begin(&mut driven).is_none());
    assert_eq!(again.recipe.memtables, jobs[0].recipe.memtables);
    assert!(again.recipe.output_first >= jobs[2].recipe.output_end());
    assert!(again.recipe.bottommost);
    for (job, older) in [&again, &jobs[1], &jobs[2]].into_iter().zip(0..) {
        assert_eq!(driven.replica.tree.flush_position(&job.recipe), Some(0), "{older} are applied");
        let edit = driven.edit(job);
        driven.replica.tree.apply_edit(&edit).unwrap();
        assert_eq!(driven.get("k"), Some(b"3".to_vec()));
    }
    let reopened = driven.replica.tree.snapshot();
    let reopened = Tree::open(small_config(), GROUP, &reopened).unwrap();
    let order = |tree: &Tree| -> Vec<_> {
        tree.version().level(0).iter().map(|file| (file.largest_sequence, file.id)).collect()
    };
    assert_eq!(order(&reopened), order(&driven.replica.tree));
    assert!(order(&reopened).is_sorted_by(|a, b| a > b), "newest first");
}

/// docs/faults.md: P27
#[test]
fn sealed_memtables_stop_writers_and_l0_slows_and_stops_them() {
    let mut driven = Driven::new(TreeConfig { l0_trigger: 6, ..small_config() });
    let mut states = Vec::new();
    for _ in 0..5 {
        driven.put("k", b"v");
        driven.seal();
        states.push(driven.replica.tree.write_state());
    }
    use Pressure::{Level0Runs, SealedMemTables};
    assert_eq!(states[..3], [WriteState::Ok; 3]);
    assert_eq!(states[3], WriteState::Stop(SealedMemTables(4)));
    for number in 1..=12 {
        driven.put("k", b"v");
        driven.seal();
        let job = driven.replica.tree.next_flush(&context()).unwrap();
        let edit = driven.edit(&job);
        driven.replica.tree.apply_edit(&edit).unwrap();
        assert_eq!(driven.replica.tree.level_stats()[0].files, number);
    }
    assert!(matches!(driven.replica.tree.write_state(), WriteState::Stop(_)));
    while driven.replica.tree.sealed_count() > 0 {
        let job = driven.replica.tree.next_flush(&context()).unwrap();
        let edit = driven.edit(&job);
        driven.replica.tree.apply_edit(&edit).unwrap();
    }
    assert!(matches!(driven.replica.tree.write_state(), WriteState::Stop(Level0Runs(17))));
    let in_l0 = driven.replica.tree.level_stats()[0].bytes;
    assert!(driven.replica.tree.compaction_debt() >= in_l0);
    driven.settle();
    assert_eq!(driven.replica.tree.write_state(), WriteState::Ok);
    assert_eq!(driven.replica.tree.compaction_debt(), 0);
    // From l0_slowdown on, 6 files, by how far it is to l0_stop, 12.
    let states: Vec<_> = (1..=12)
        .map(|_| {
            driven.put("k", b"v");
            driven.flush();
            driven.replica.tree.write_state()
        })
        .collect();
    assert_eq!(states[..5], [WriteState::Ok; 5]);
    let slow = [0, 166, 333, 500, 666, 833].map(WriteState::Slow);
    assert_eq!(states[5..11], slow);
    assert_eq!(states[11], WriteState::Stop(Level0Runs(12)));
}

#[test]
fn a_job_that_may_not_fit_the_free_slots_is_not_begun() {
    let mut driven = Driven::new(small_config());
    driven.put("k", &[1; 4000]);
    driven.seal();
    let tree = &mut driven.replica.tree;
    let tight = JobContext { slots_free: 1, ..context() };
    assert!(tree.next_job(&tight).is_none());
    let job = tree.next_job(&context()).unwrap();
    assert!(tree.job_slots(&job, u64::MAX) > 1);
    assert!(tree.next_job(&context()).is_none(), "one flush at a time");
    tree.job_failed(&job.recipe);
    let again = tree.next_job(&context()).unwrap();
    assert!(again.recipe.output_first >= job.recipe.output_end(), "file numbers are not reused");
}

#[test]
fn an_empty_memtable_flushes_to_nothing_and_its_place_in_the_log_is_kept() {
    let mut driven = Driven::new(small_config());
    let edit = driven.flush();
    assert!(edit.added.is_empty());
    assert_eq!(driven.replica.tree.flushed().frontier, Frontier::of(LogPosition(1)));
    assert_eq!(driven.replica.tree.active_id(), MemTableId(2));
    driven.put("k", b"v");
    driven.flush();
    assert_eq!(driven.get("k"), Some(b"v".to_vec()));
}

#[test]
fn a_flush_keeps_the_newest_of_each_key_and_a_view_of_before_sees_what_it_saw() {
    let mut driven = Driven::new(small_config());
    let mut views = Vec::new();
    for value in [b"1", b"2", b"3", b"4"] {
        driven.put("k", value);
        views.push((driven.replica.tree.view(), value));
    }
    let edit = driven.flush();
    assert_eq!((edit.added[0].1.entries, edit.added[0].1.smallest_sequence.get()), (1, 4));
    for (view, value) in views {
        let found = block_on(view.get(&driven.replica.tables, &key(b"k"))).unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]));
    }
}

#[test]
fn the_head_applies_single_operations_with_the_same_result_as_a_batch() {
    let mut one_by_one = Driven::new(small_config());
    let mut batched = Driven::new(small_config());
    let tree = &mut one_by_one.replica.tree;
    tree.apply_operation(SequenceNumber(1), EntryKind::Put, b"\x01a", b"1").unwrap();
    tree.apply_operation(SequenceNumber(2), EntryKind::Clear, b"\x01", b"").unwrap();
    tree.apply_operation(SequenceNumber(3), EntryKind::Put, b"\x01b", b"2").unwrap();
    tree.apply_operation(SequenceNumber(4), EntryKind::Delete, b"\x01c", b"").unwrap();
    batched.write(|batch| {
        batch.put(Keyspace::User, b"a", b"1").unwrap();
        batch.clear(Keyspace::User).unwrap();
        batch.put(Keyspace::User, b"b", b"2").unwrap();
        batch.delete(Keyspace::User, b"c").unwrap();
    });
    one_by_one.flush();
    batched.flush();
    assert_eq!(one_by_one.replica.tree.snapshot(), batched.replica.tree.snapshot());
    assert_eq!(one_by_one.get("a"), None);
    assert_eq!(one_by_one.get("b"), Some(b"2".to_vec()));
}
