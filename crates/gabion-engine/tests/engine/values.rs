//! Large values apart from the tree: the format of their files, what reads cost, and what becomes
//! of a value that is replaced, deleted, cleared, or damaged.

use crate::support::*;
use gabion_base::{ErrorKind, FileId, FileKind, GroupId, Result, SequenceNumber, Term};
use gabion_engine::*;
use gabion_media::{AlignedBuf, Bytes};
use std::cell::Cell;
use std::rc::Rc;

/// Values from this length on go apart here.
pub(crate) const LARGE: u32 = 100;

pub(crate) fn config() -> TreeConfig {
    TreeConfig { large_values: LARGE, ..small_config() }
}

pub(crate) fn values_file(number: u64) -> FileId {
    FileId { kind: FileKind::Values, number }
}

pub(crate) fn large(n: u64) -> Vec<u8> {
    format!("value {n} ").into_bytes().repeat(20)
}

/// A replica with what a client does to it.
pub(crate) struct Store {
    pub(crate) replica: Replica,
    log: usize,
    edit: u64,
}

impl Store {
    pub(crate) fn new(config: TreeConfig) -> Self {
        Self { replica: Replica::new(config), log: 0, edit: 0 }
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        self.replica.apply(self.log, record).unwrap();
        self.log += 1;
    }

    pub(crate) fn write(&mut self, fill: impl FnOnce(&mut BatchBuilder)) {
        let mut batch = BatchBuilder::new();
        fill(&mut batch);
        let first = self.replica.tree.last_sequence().next();
        self.apply(&Record::Batch(first, batch.finish()));
    }

    pub(crate) fn put(&mut self, name: &str, value: &[u8]) {
        self.write(|batch| batch.put(Keyspace::User, name.as_bytes(), value).unwrap());
    }

    /// Has all that is in memory flushed.
    pub(crate) fn flush(&mut self) -> Recipe {
        self.apply(&Record::Seal(self.replica.tree.active_id()));
        let job = self.replica.tree.next_flush(&context()).unwrap();
        self.run(&job)
    }

    fn run(&mut self, job: &JobInputs) -> Recipe {
        let (source, mut sink) = (self.replica.files.clone(), self.replica.files.clone());
        let output = block_on(run_job(job, GROUP, &source, &mut sink)).unwrap();
        let recipe = output.recipe.clone();
        self.edit += 1;
        let edit = self.replica.tree.finish_job(output, self.edit).unwrap();
        self.apply(&Record::Edit(edit.encode().unwrap()));
        recipe
    }

    /// Compacts as long as there is anything to compact. Returns the recipes.
    pub(crate) fn compact(&mut self) -> Vec<Recipe> {
        let mut recipes = Vec::new();
        while let Some(job) = self.replica.tree.next_compaction(&context()) {
            recipes.push(self.run(&job));
            drop(job);
            self.replica.collect();
        }
        recipes
    }

    pub(crate) fn stats(&self) -> ValuesStats {
        self.replica.tree.version().values_stats()
    }

    pub(crate) fn values_files(&self) -> Vec<FileId> {
        self.replica.files.ids().into_iter().filter(|id| id.kind == FileKind::Values).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Bytes> {
        self.replica.get(name.as_bytes())
    }
}

/// A source that counts reads of values files.
#[derive(Clone)]
struct Counting {
    files: Files,
    reads: Rc<Cell<u64>>,
}

impl FileSource for Counting {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.reads.set(self.reads.get() + u64::from(file.kind == FileKind::Values));
        self.files.read(file, offset, len).await
    }
}

fn counting(files: &Files, cache_len: usize) -> Tables<Counting> {
    let source = Counting { files: files.clone(), reads: Rc::default() };
    Tables { source, cache: Rc::new(LocalCache::new(cache_len)), group: GROUP }
}

#[test]
fn a_flush_puts_large_values_apart_and_reads_find_them() {
    let mut store = Store::new(config());
    store.put("a", &large(1));
    store.put("b", b"small");
    store.write(|batch| {
        batch.put_expiring(Keyspace::User, b"c", &large(3), 50).unwrap();
        batch.put(Keyspace::User, b"d", &vec![b'x'; LARGE as usize - 1]).unwrap();
        batch.merge(Keyspace::User, b"a", Operand::add(3, 0)).unwrap();
    });
    // Until there are enough for a file.
    assert_eq!(store.stats().files, 0);
    for n in 0..4 {
        store.put(&format!("e{n}"), &large(n));
    }
    let recipe = store.flush();
    assert_eq!(recipe.large_from, LARGE);
    let stats = store.stats();
    assert_eq!((stats.files, stats.dead_bytes()), (1, 0));
    let wanted: usize = [1, 3, 0, 1, 2, 3].iter().map(|n| large(*n).len()).sum();
    assert_eq!(stats.live_bytes, wanted as u64);
    assert_eq!(store.get("a").as_deref(), Some(&large(1)[..]), "an addition to it is void");
    assert_eq!(store.get("b").as_deref(), Some(&b"small"[..]));
    assert_eq!(store.get("c").as_deref(), Some(&large(3)[..]));
    let view = store.replica.tree.view();
    let pairs = scan(&view, &store.replica.tables, &[], None);
    assert_eq!(pairs.len(), 8);
    assert_eq!(pairs[2], (key(b"c"), large(3)));
    let found = block_on(view.look_up(&store.replica.tables, &key(b"c"))).unwrap().unwrap();
    assert_eq!(found.expires_ms, Some(50));
    store.apply(&Record::Time(50));
    assert_eq!(store.get("c"), None);
}

#[test]
fn too_few_large_values_for_a_file_stay_where_they_are() {
    let mut store = Store::new(config());
    store.put("a", &large(1));
    let recipe = store.flush();
    assert_eq!((recipe.large_from, store.stats().files), (0, 0));
    assert_eq!(store.get("a").as_deref(), Some(&large(1)[..]));
}

#[test]
fn lengths_and_keys_cost_no_read_of_a_value_and_values_are_cached() {
    let mut store = Store::new(config());
    for n in 0..20 {
        store.put(&format!("k{n:02}"), &large(n));
    }
    store.flush();
    let view = store.replica.tree.view();
    let tables = counting(&store.replica.files, 1 << 20);
    let reads = tables.source.reads.clone();
    let found = block_on(view.look_up_len(&tables, &key(b"k07"))).unwrap().unwrap();
    assert_eq!((found.len, found.expires_ms), (large(7).len(), None));
    let mut keys = view.scan(&tables, &[], None).of_keys();
    let mut count = 0;
    while block_on(keys.go(Move::Next)).unwrap() {
        assert!(keys.key().is_some() && keys.value().is_none());
        count += 1;
    }
    assert_eq!((count, reads.get()), (20, 0), "nothing was read");
    let asked: Vec<_> = (0..22).map(|n| key(format!("k{n:02}").as_bytes())).collect();
    let mut lens = vec![None; asked.len()];
    let give = |at: usize, found: Result<Option<FoundLen>>| {
        lens[at] = found.unwrap().map(|found| found.len);
        Ok(())
    };
    block_on(view.look_up_len_many(&tables, &asked, give)).unwrap();
    let wanted: Vec<_> = (0..22).map(|n| (n < 20).then(|| large(n).len())).collect();
    assert_eq!((lens, reads.get()), (wanted, 0), "nor here");
    for _ in 0..2 {
        let value = block_on(view.get(&tables, &key(b"k07"))).unwrap().unwrap();
        assert_eq!(value, large(7));
    }
    assert_eq!(reads.get(), 1, "the second time it is in memory");
    let names: Vec<_> = (0..20).map(|n| key(format!("k{n:02}").as_bytes())).collect();
    let mut found = 0;
    let give = |at: usize, value: Result<Option<Found>>| {
        assert_eq!(value.unwrap().unwrap().value, large(at as u64));
        found += 1;
        Ok(())
    };
    block_on(view.look_up_many(&tables, &names, give)).unwrap();
    assert_eq!(found, 20);
    assert!(reads.get() <= 3, "{} reads of values that lie beside each other", reads.get());
}

/// docs/faults.md: E5
#[test]
fn a_damaged_value_is_told_and_never_returned() {
    let mut store = Store::new(config());
    for n in 0..10 {
        store.put(&format!("k{n}"), &large(n));
    }
    store.flush();
    let [file] = store.values_files()[..] else { panic!("one values file") };
    let whole = store.replica.files.bytes(file);
    let mut bytes = whole.to_vec();
    let at = bytes.windows(8).position(|part| part == b"value 4 ").unwrap();
    bytes[at] ^= 1;
    store.replica.files.insert(file, bytes.into());
    let view = store.replica.tree.view();
    let error = block_on(view.get(&store.replica.tables, &key(b"k4"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().starts_with(&format!("{file} at offset {at}: a value of")), "{error}");
    assert_eq!(store.replica.files.take_damaged(), [file]);
    assert_eq!(store.get("k5").as_deref(), Some(&large(5)[..]), "others are whole");
    let names = [key(b"k3"), key(b"k4")];
    let mut told = Vec::new();
    let give = |at: usize, found: Result<Option<Found>>| {
        told.push((at, found.is_ok()));
        Ok(())
    };
    block_on(view.look_up_many(&store.replica.tables, &names, give)).unwrap();
    told.sort_unstable();
    assert_eq!(told, [(0, true), (1, false)]);
    let mut iterator = view.scan(&store.replica.tables, &key(b"k4"), None);
    block_on(iterator.next()).unwrap_err();
    store.replica.files.insert(file, whole);
    assert_eq!(store.get("k4").as_deref(), Some(&large(4)[..]));
}

#[test]
fn room_of_overwritten_values_comes_back_and_live_ones_move_with_their_numbers() {
    let mut store = Store::new(config());
    let mut emptied = 0;
    for round in 0..12 {
        for n in 0..40 {
            if (n + round) % 3 > 0 {
                store.put(&format!("k{n:02}"), &large(100 * round + n));
            }
        }
        store.flush();
        emptied += store.compact().iter().filter(|recipe| !recipe.emptied.is_empty()).count();
        store.replica.collect();
    }
    assert!(emptied > 3, "{emptied} compactions emptied files");
    let stats = store.stats();
    let live: u64 = (0..40).map(|n| store.get(&format!("k{n:02}")).unwrap().len() as u64).sum();
    assert!(stats.live_bytes >= live, "{stats:?}, {live} bytes are there");
    assert!(stats.dead_bytes() * 4 <= stats.value_bytes, "{stats:?}");
    assert_eq!(store.values_files().len() as u64, stats.files, "no file is left");
    for n in 0..40 {
        let round = if (n + 11) % 3 > 0 { 11 } else { 10 };
        assert_eq!(store.get(&format!("k{n:02}")).unwrap(), large(100 * round + n));
    }
}

/// docs/faults.md: E12
#[test]
fn a_values_file_stays_while_a_view_reads_it_and_goes_with_the_last() {
    let mut store = Store::new(config());
    for n in 0..30 {
        store.put(&format!("k{n:02}"), &large(n));
    }
    store.flush();
    let before = store.values_files();
    let view = store.replica.tree.lasting_view();
    for round in 1..4 {
        for n in 0..30 {
            store.put(&format!("k{n:02}"), &large(1000 * round + n));
        }
        store.flush();
        store.compact();
    }
    assert!(before.iter().all(|file| store.values_files().contains(file)), "the view reads it");
    assert!(store.replica.tree.version().values_file(before[0]).is_none(), "no SST does");
    let pairs = scan(&view, &counting_none(&store), &[], None);
    assert_eq!(pairs[7], (key(b"k07"), large(7)));
    drop(view);
    store.replica.collect();
    assert!(before.iter().all(|file| !store.values_files().contains(file)));
}

/// Tables with nothing in memory.
fn counting_none(store: &Store) -> Tables<Files> {
    Tables { cache: Rc::new(LocalCache::new(0)), ..tables(&store.replica.files) }
}

#[test]
fn values_that_are_cleared_or_deleted_in_a_range_go_unread() {
    for is_cleared in [false, true] {
        let mut store = Store::new(config());
        for n in 0..60 {
            store.put(&format!("k{n:02}"), &large(n));
        }
        store.flush();
        store.compact();
        store.write(|batch| match is_cleared {
            true => batch.clear(Keyspace::User).unwrap(),
            false => _ = batch.delete_range(Keyspace::User, b"k", None).unwrap(),
        });
        store.put("other", b"small");
        store.flush();
        for file in store.values_files() {
            let len = store.replica.files.bytes(file).len();
            store.replica.files.insert(file, vec![0xee; len].into());
        }
        store.compact();
        store.replica.collect();
        assert_eq!((store.stats().files, store.values_files().len()), (0, 0), "{is_cleared}");
        assert_eq!(store.get("k07"), None);
    }
}

#[test]
fn a_tree_opens_from_its_snapshot_with_its_values() {
    let mut store = Store::new(config());
    let mut log = Vec::new();
    for n in 0..30 {
        store.put(&format!("k{n:02}"), &large(n));
    }
    store.flush();
    let snapshot = store.replica.tree.snapshot();
    log.resize(store.log, Record::Time(0));
    store.replica.reopen(&snapshot, &log);
    assert_eq!(store.replica.tree.snapshot(), snapshot);
    assert_eq!(store.get("k11").unwrap(), large(11));
    assert_eq!(store.stats().files, 1);
}

fn file() -> FinishedFile {
    let buffer = AlignedBuf::with_capacity(4096);
    let mut builder = ValuesBuilder::in_buffer(GroupId(1), values_file(7), Term(3), buffer);
    let put = |n, kind| Trailer::new(SequenceNumber(n), kind);
    builder.add(b"\x01apple", put(12, EntryKind::Put), &[b'a'; 70], 70);
    builder.add(b"\x01pear", put(11, EntryKind::ExpiringPointer), &[b'p'; 200], 200);
    builder.finish()
}

/// Lines of 32 bytes.
pub(crate) fn dump(bytes: &[u8]) -> String {
    let hex = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(32).map(|line| hex(line) + "\n").collect()
}

/// docs/faults.md: R15
#[test]
fn a_values_file_and_its_description_have_these_bytes() {
    let file = file();
    let (image, zeros) = file.bytes.split_at(file.meta.len as usize);
    assert!(zeros.iter().all(|&byte| byte == 0));
    assert_eq!(dump(image), include_str!("golden/values.hex"));
    let mut meta = Vec::new();
    file.meta.encode(&mut meta);
    assert_eq!(dump(&meta), include_str!("golden/values_file_meta.hex"));
    assert_eq!(FileMeta::decode(&meta).unwrap(), file.meta);
}

#[test]
fn a_checker_goes_through_the_records_of_a_values_file() {
    let file = file();
    let records = ValueRecords::new(&file.bytes, GroupId(1), &file.meta).unwrap();
    let records: Vec<_> = records.map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);
    let said = |at: usize| (records[at].key, records[at].value, records[at].trailer.kind());
    assert_eq!(said(0), (&b"\x01apple"[..], &[b'a'; 70][..], EntryKind::Put));
    assert_eq!(said(1), (&b"\x01pear"[..], &[b'p'; 200][..], EntryKind::ExpiringPut));
    for record in &records {
        record.pointer.check(record.value).unwrap();
        let at = record.pointer.offset as usize;
        assert_eq!(&file.bytes[at..at + record.value.len()], record.value);
    }
}

/// docs/faults.md: E5
#[test]
fn every_bit_that_flips_in_a_values_file_is_found() {
    let file = file();
    for bit in 0..file.bytes.len() * 8 {
        let mut bytes = file.bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let check = || {
            for record in ValueRecords::new(&bytes, GroupId(1), &file.meta)? {
                let record = record?;
                record.pointer.check(record.value)?;
            }
            Ok::<_, gabion_base::Error>(())
        };
        let error = check().expect_err("a bit flipped");
        assert!(error.message().contains("000007.val"), "bit {bit}: {error}");
    }
    let other = FileMeta { id: values_file(8), ..file.meta.clone() };
    assert!(ValueRecords::new(&file.bytes, GroupId(1), &other).is_err());
    assert!(ValueRecords::new(&file.bytes, GroupId(2), &file.meta).is_err());
    assert!(ValueRecords::new(&file.bytes[..64], GroupId(1), &file.meta).is_err());
}

/// docs/faults.md: E10
#[test]
fn values_that_have_expired_go_unread() {
    let mut store = Store::new(config());
    for n in 0..60 {
        store.write(|batch| {
            let name = format!("k{n:02}");
            batch.put_expiring(Keyspace::User, name.as_bytes(), &large(n), 500).map(drop).unwrap();
        });
    }
    store.flush();
    store.apply(&Record::Time(600));
    assert_eq!(store.get("k07"), None);
    for file in store.values_files() {
        let len = store.replica.files.bytes(file).len();
        store.replica.files.insert(file, vec![0xee; len].into());
    }
    for n in 0..4 {
        store.put(&format!("k{n}x"), b"small");
        store.flush();
    }
    store.compact();
    store.replica.collect();
    assert_eq!((store.stats().files, store.values_files().len()), (0, 0));
}

/// Over its pace nothing is copied, whoever compacts; what is dead as a whole goes all the same,
/// and want of room knows no pace. Since when there is garbage is told in group time.
#[test]
fn collection_keeps_to_its_pace_but_for_want_of_room() {
    let paced = JobContext { collects: false, ..context() };
    let mut store = Store::new(config());
    for round in 0..6 {
        for n in (0..400).filter(|n| round == 0 || n % 3 > 0) {
            store.put(&format!("k{n:03}"), &large(1_000 * round + n));
        }
        store.apply(&Record::Time(1_000 * (round + 1)));
        store.flush();
        while let Some(job) = store.replica.tree.next_compaction(&paced) {
            assert!(job.recipe.emptied.is_empty(), "round {round}");
            store.run(&job);
        }
    }
    store.replica.collect();
    let stats = store.stats();
    assert!(stats.dead_bytes() * 4 > stats.value_bytes, "{stats:?}");
    assert_eq!(store.replica.tree.why_idle().unwrap()[3], picker::NoPick::Paced);
    let since_ms = stats.garbage_since_ms.unwrap();
    assert!((2_000..=6_000).contains(&since_ms), "{stats:?}");
    assert_eq!(store.replica.tree.garbage_fill(), None, "little for so few files");
    let urgent = JobContext { urgent: true, ..paced };
    while let Some(job) = store.replica.tree.next_compaction(&urgent) {
        store.run(&job);
    }
    let left = store.stats();
    assert!(left.dead_bytes() < stats.dead_bytes() / 2, "{left:?} of {stats:?}");
    assert!(store.get("k003").is_some() && store.get("k004").is_some());
}

/// docs/faults.md: P27
#[test]
fn much_garbage_is_told_by_how_far_it_is_from_half_of_what_lives_to_all() {
    let paced = JobContext { collects: false, ..context() };
    let mut store = Store::new(TreeConfig { sst_len: 4 << 10, ..config() });
    let mut told = Vec::new();
    for round in 0..8 {
        let mixed = |n: &u64| (n * 7919 + round * 104_729) % 1009;
        let is_put = |n: &u64| round == 0 || mixed(n).is_multiple_of(3);
        for n in (0..800).filter(is_put) {
            store.put(&format!("k{n:03}"), &large(1_000 * round + n));
        }
        store.flush();
        while let Some(job) = store.replica.tree.next_compaction(&paced) {
            store.run(&job);
        }
        let stats = store.stats();
        let from = stats.live_bytes / 2 + 8 * (4 << 10);
        let over = stats.replaced_bytes.checked_sub(from);
        let fill = store.replica.tree.garbage_fill();
        assert_eq!(fill, over.map(|over| over * 1000 / from), "{stats:?}");
        told.extend(fill);
    }
    assert!(told.iter().max() > Some(&1_000), "{told:?}");
    while let Some(job) = store.replica.tree.next_compaction(&context()) {
        store.run(&job);
    }
    assert_eq!(store.replica.tree.garbage_fill(), None);
}
