//! Files of a pool on a disk, with versions of a tree that has no bytes.

use super::*;
use alloc::string::ToString;
use alloc::vec;
use gabion_base::codec::Reader;
use gabion_base::units::MIB;
use gabion_base::{
    ErrorKind, Frontier, GroupId, LogPosition, MemTableId, SequenceNumber, ShardId, Term,
};
use gabion_engine::{Edit, FileReference, Flushed, JobKind, Versions};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::{Commit, PoolConfig, Trust};
use proptest::prelude::*;

/// Bytes of each file.
const LEN: u64 = 8_192;

fn segment(ordinal: u64) -> FileId {
    FileId::log_segment(ShardId::ZERO, ordinal)
}

/// What a restart goes by besides the pool.
#[derive(Clone)]
struct State {
    /// Encoded: the tree's own would count as read.
    version: Vec<u8>,
    log_begin: FileId,
}

/// A commit on its way: what it carries, and the files whose places it makes durable.
struct InFlight {
    number: u64,
    state: State,
    placed: Vec<FileId>,
    trims: Vec<FileId>,
}

struct Rig {
    disk: SimulatedDisk,
    handle: MediumHandle,
    pool: Pool,
    table: FileTable,
    versions: Versions,
    durable: State,
    in_flight: Option<InFlight>,
    placed: Vec<FileId>,
    trims: Vec<FileId>,
    readers: Vec<Arc<Version>>,
    orders: BTreeMap<u64, RangeInclusive<FileId>>,
    next_sst: u64,
    next_segment: u64,
    edits: u64,
}

impl Rig {
    fn new() -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(256 * MIB));
        let handle = disk.handle();
        let config =
            PoolConfig { pool_id: [1; 16], group: GroupId(1), len: 256 * MIB, region_id: 1 };
        disk.block_on(&handle, gabion_pool::create(&handle, &config, &[])).unwrap();
        let versions = Versions::new(Version::new(4));
        let state = State { version: encoded(versions.current()), log_begin: segment(0) };
        let pool = opened(&disk, &handle);
        let table = FileTable::new(segment(0));
        Self {
            disk,
            handle,
            pool,
            table,
            versions,
            durable: state,
            in_flight: None,
            placed: Vec::new(),
            trims: Vec::new(),
            readers: Vec::new(),
            orders: BTreeMap::new(),
            next_sst: 1,
            next_segment: 0,
            edits: 0,
        }
    }

    /// A place for the next SST or segment.
    fn place(&mut self, kind: FileKind) -> Option<FileId> {
        let file = match kind {
            FileKind::LogSegment => segment(self.next_segment),
            _ => FileId::sst(self.next_sst),
        };
        let slots = self.pool.allocate(1).ok()?;
        match kind {
            FileKind::LogSegment => self.next_segment += 1,
            _ => self.next_sst += 1,
        }
        let placement = FilePlacement { file, term: Term(1), len: LEN, checksum: 0, slots };
        self.table.add(&mut self.pool, placement).unwrap();
        self.placed.push(file);
        Some(file)
    }

    /// The next commit is on its way, if there is anything to commit.
    fn take(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        let version = encoded(self.versions.current());
        // Whoever trims has the beginning in the commit, and the segments after it.
        self.pool.stage_opaque(1, vec![1]);
        let Some(commit) = self.pool.take_commit() else { return };
        let number = commit.number;
        self.write(commit);
        let log_begin = self.trims.last().copied().unwrap_or(self.log_begin());
        let (placed, trims) = (core::mem::take(&mut self.placed), core::mem::take(&mut self.trims));
        let state = State { version, log_begin };
        self.in_flight = Some(InFlight { number, state, placed, trims });
    }

    fn write(&self, commit: Commit) {
        let written = gabion_pool::write_commit(&self.handle, commit);
        self.disk.block_on(&self.handle, written).unwrap();
    }

    /// Where the log begins by what is staged.
    fn log_begin(&self) -> FileId {
        let in_flight = self.in_flight.as_ref().map(|it| it.state.log_begin);
        in_flight.unwrap_or(self.durable.log_begin)
    }

    fn done(&mut self) {
        let Some(InFlight { number, state, placed, trims }) = self.in_flight.take() else { return };
        self.durable = state;
        self.pool.committed(number);
        for file in placed {
            self.table.placed(&self.pool, file);
        }
        for first in trims {
            self.table.begin_log(&mut self.pool, first).unwrap();
        }
    }

    fn commit(&mut self) {
        self.done();
        self.take();
        self.done();
    }

    /// The log is to begin there, with the next commit.
    fn trim(&mut self, first: FileId) {
        let staged = self.trims.last().copied().unwrap_or(self.log_begin());
        if first > staged && first.ordinal() <= self.next_segment {
            self.trims.push(first);
        }
    }

    /// Applies an edit that removes files and adds files, each with references to all `segments`.
    fn edit(&mut self, removed: &[FileId], added: &[FileId], segments: &[FileId]) -> Result<()> {
        let meta = |file: &FileId| {
            let key = vec![1, (file.number >> 8) as u8, file.number as u8];
            let reference = |file: &FileId| FileReference { file: *file, live_bytes: 10 };
            FileMeta {
                len: LEN,
                chunk_crcs: vec![0],
                smallest: key.clone(),
                largest: key,
                smallest_sequence: SequenceNumber(file.number),
                largest_sequence: SequenceNumber(file.number),
                entries: 1,
                references: segments.iter().map(reference).collect(),
                ..FileMeta::new(*file, Term(1))
            }
        };
        let level = |file: &FileId| {
            let version = self.versions.current();
            (0..2).find(|level| version.file(*level, *file).is_some()).expect("it is in the tree")
        };
        let kind = match (removed.is_empty(), added.is_empty()) {
            (true, _) => JobKind::Flush,
            (false, true) => JobKind::Drop,
            (false, false) => JobKind::Compaction,
        };
        let to = u8::from(kind == JobKind::Compaction);
        let flushed = (kind == JobKind::Flush).then_some(Flushed {
            memtable: MemTableId(self.edits + 1),
            frontier: Frontier::of(LogPosition(8)),
            sequence: SequenceNumber(self.edits + 1),
        });
        let version = self.versions.current().clone();
        let is_new = |file: &&FileId| !added.is_empty() && version.values_file(**file).is_none();
        let described =
            |file: &FileId| FileMeta { raw_value_bytes: LEN, references: Vec::new(), ..meta(file) };
        let edit = Edit {
            number: self.edits + 1,
            kind,
            term: Term(1),
            removed: removed.iter().map(|file| (level(file), *file)).collect(),
            added: added.iter().map(|file| (to, meta(file))).collect(),
            values: segments.iter().filter(is_new).map(described).collect(),
            flushed,
            next_file: self.next_sst,
            floor: None,
            recipe: None,
        };
        edit.added.iter().try_for_each(|(_, meta)| self.table.enter_tree(meta, &|_| false))?;
        for (_, file) in &edit.removed {
            self.table.leave_tree(&mut self.pool, *file)?;
        }
        self.versions.apply(&edit)?;
        self.edits += 1;
        Ok(())
    }

    fn reclaim(&mut self) -> Vec<FileId> {
        let gone = self.table.unread(self.versions.obsolete_files(), |_| false);
        for file in &gone {
            self.table.free_unread(&mut self.pool, *file).unwrap();
        }
        gone
    }

    fn begin_read(&mut self, ticket: u64, segments: RangeInclusive<FileId>) {
        if !self.orders.contains_key(&ticket) {
            let order = SegmentOrder::Read(ticket);
            self.table.begin_order(&self.pool, order, segments.clone());
            self.orders.insert(ticket, segments);
        }
    }

    fn end_read(&mut self, ticket: u64) {
        self.orders.remove(&ticket);
        self.table.end_order(&mut self.pool, SegmentOrder::Read(ticket)).unwrap();
    }

    /// A kill: the commit on its way may have been written whole.
    fn restart(&mut self) {
        if let Some(InFlight { state, .. }) = self.in_flight.take() {
            self.durable = state;
        }
        self.readers.clear();
        self.orders.clear();
        (self.placed, self.trims) = (Vec::new(), Vec::new());
        let State { version, log_begin } = self.durable.clone();
        let version = Version::decode(&mut Reader::new(&version, "version")).unwrap();
        self.pool = opened(&self.disk, &self.handle);
        self.table = FileTable::open(&mut self.pool, &version, log_begin, (false, false)).unwrap();
        self.versions = Versions::new(version);
        let last = self.table.entries.range(segment(0)..=LAST_SEGMENT).next_back();
        let next = last.map_or(0, |(file, _)| file.ordinal() + 1);
        self.next_segment = next.max(log_begin.ordinal());
    }

    fn is_in_pool(&self, file: FileId) -> bool {
        self.pool.placement(file).is_some()
    }

    fn is_live(&self, file: FileId) -> bool {
        self.pool.files().any(|placement| placement.file == file)
    }

    /// Segments that an edit may reference.
    fn referable(&self) -> Vec<FileId> {
        let segments = self.table.entries.range(segment(0)..=LAST_SEGMENT);
        let here = segments.filter(|(_, entry)| entry.is_durable && !entry.is_retired);
        here.map(|(file, _)| *file).collect()
    }

    /// Checks the places of all that is referred to, told from versions, orders and the log alone.
    fn check(&self) {
        self.table.invariants();
        self.table.check(&self.pool, self.versions.current());
        self.pool.invariants();
        for version in self.readers.iter().chain([self.versions.current()]) {
            let files = version.files().map(|(_, meta)| meta.id);
            for file in files.chain(version.referenced().keys().copied()) {
                assert!(self.is_in_pool(file), "{file} is read and in no slot");
            }
        }
        let current = self.versions.current();
        let named = current.files().map(|(_, meta)| meta.id);
        for file in named.chain(current.referenced().keys().copied()) {
            assert!(self.is_live(file), "{file} is in the tree, and no start would find it");
        }
        for placement in self.pool.files() {
            let file = placement.file;
            let of_log = file.kind == FileKind::LogSegment && file >= self.table.log_begin;
            let of_tree = current.referenced().contains_key(&file);
            let named = self.table.is_unnamed(file) || current.files().any(|(_, it)| it.id == file);
            assert!(of_log || of_tree || named, "{file} is kept, and nothing refers to it");
        }
    }
}

fn encoded(version: &Version) -> Vec<u8> {
    let mut bytes = Vec::new();
    version.encode(&mut bytes);
    bytes
}

fn opened(disk: &SimulatedDisk, handle: &MediumHandle) -> Pool {
    disk.block_on(handle, gabion_pool::open(handle, Trust::Readable)).unwrap().pool
}

/// A segment that the log begins behind is a file as long as a file of the tree references it, and
/// a start finds it as one.
/// docs/faults.md: E12
#[test]
fn a_segment_that_a_file_references_outlives_the_log_and_a_restart() {
    let mut rig = Rig::new();
    let free = rig.pool.counts().free;
    for _ in 0..3 {
        rig.place(FileKind::LogSegment).unwrap();
    }
    let (one, two) = (rig.place(FileKind::Sst).unwrap(), rig.place(FileKind::Sst).unwrap());
    rig.commit();
    rig.edit(&[], &[one], &[segment(0)]).unwrap();
    rig.edit(&[], &[two], &[segment(0), segment(1)]).unwrap();
    rig.trim(segment(3));
    rig.commit();
    rig.check();
    assert_eq!(rig.table.segments(), Segments { of_log: 0, referenced: 2 });
    assert!(rig.is_live(segment(0)) && rig.is_live(segment(1)));
    assert!(!rig.is_live(segment(2)), "nothing references it");
    rig.commit();
    rig.restart();
    rig.check();
    assert_eq!(rig.table.segments(), Segments { of_log: 0, referenced: 2 });
    let live: Vec<u64> = rig.versions.current().referenced().values().copied().collect();
    assert_eq!(live, [20, 10]);
    rig.edit(&[two], &[], &[]).unwrap();
    assert_eq!(rig.reclaim(), [two]);
    rig.commit();
    assert_eq!(rig.table.segments(), Segments { of_log: 0, referenced: 1 });
    assert!(rig.is_live(segment(0)) && !rig.is_in_pool(segment(1)));
    rig.edit(&[one], &[], &[]).unwrap();
    rig.reclaim();
    rig.commit();
    assert_eq!(rig.pool.counts().free, free);
    rig.check();
}

/// The edit retires both in one commit; the slots wait for whoever reads the file.
/// docs/faults.md: E12
#[test]
fn what_a_file_references_keeps_its_slots_as_long_as_the_file_is_read() {
    let mut rig = Rig::new();
    let free = rig.pool.counts().free;
    rig.place(FileKind::LogSegment).unwrap();
    let file = rig.place(FileKind::Sst).unwrap();
    rig.commit();
    rig.edit(&[], &[file], &[segment(0)]).unwrap();
    rig.trim(segment(1));
    rig.commit();
    rig.readers.push(rig.versions.current().clone());
    rig.edit(&[file], &[], &[]).unwrap();
    assert_eq!(rig.reclaim(), []);
    rig.commit();
    rig.check();
    assert!(!rig.is_live(file) && !rig.is_live(segment(0)), "a start would not find them");
    assert_eq!(rig.pool.counts().retired, 2);
    rig.readers.clear();
    assert_eq!(rig.reclaim(), [file]);
    assert_eq!(rig.pool.counts().free, free);
    rig.check();
}

#[test]
fn a_reference_moves_to_the_file_that_a_compaction_makes_and_its_segment_stays() {
    let mut rig = Rig::new();
    rig.place(FileKind::LogSegment).unwrap();
    let (old, new) = (rig.place(FileKind::Sst).unwrap(), rig.place(FileKind::Sst).unwrap());
    rig.commit();
    rig.edit(&[], &[old], &[segment(0)]).unwrap();
    rig.trim(segment(1));
    rig.commit();
    rig.edit(&[old], &[new], &[segment(0)]).unwrap();
    rig.reclaim();
    rig.commit();
    rig.check();
    assert!(!rig.is_in_pool(old) && rig.is_live(segment(0)));
}

#[test]
fn an_edit_that_references_what_is_not_here_is_refused_by_name() {
    let mut rig = Rig::new();
    let file = rig.place(FileKind::Sst).unwrap();
    rig.commit();
    let error = rig.edit(&[], &[file], &[segment(7)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let wanted = "000001.sst references 10 bytes of 000007.log, which has no place here";
    assert!(error.to_string().contains(wanted), "{error}");
    assert!(rig.table.is_unnamed(file));
    let error = rig.table.leave_tree(&mut rig.pool, FileId::sst(9)).unwrap_err();
    assert_eq!(error.to_string(), "000009.sst is not live in the pool");
    rig.check();
}

/// docs/faults.md: E12
#[test]
fn a_file_that_nothing_names_goes_once_and_is_no_file_to_read_when_its_place_is_durable_later() {
    let mut rig = Rig::new();
    let free = rig.pool.counts().free;
    let file = rig.place(FileKind::Sst).unwrap();
    rig.take();
    rig.table.forget(&mut rig.pool, file).unwrap();
    assert!(rig.table.forget(&mut rig.pool, file).is_err(), "it is gone");
    rig.done();
    assert!(rig.table.get(file).is_none(), "its slots are about to be another file's");
    rig.commit();
    assert_eq!(rig.pool.counts().free, free);
    rig.check();
}

/// A shipment reads a file that left the tree, and no reader has it.
#[test]
fn a_file_that_is_to_be_shipped_keeps_its_slots_until_it_is_read() {
    let mut rig = Rig::new();
    let file = rig.place(FileKind::Sst).unwrap();
    rig.commit();
    rig.edit(&[], &[file], &[]).unwrap();
    rig.edit(&[file], &[], &[]).unwrap();
    let unread = rig.versions.obsolete_files();
    assert_eq!(rig.table.unread(unread, |_| true), []);
    rig.commit();
    assert!(rig.table.get(file).is_some() && rig.is_in_pool(file));
    assert_eq!(rig.reclaim(), [file]);
    assert!(!rig.is_in_pool(file));
    rig.check();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Place(bool),
    Take,
    Done,
    /// Adds so many files with references to so many segments, and removes so many.
    Edit {
        added: usize,
        segments: usize,
        removed: usize,
        at: usize,
    },
    View,
    EndView(usize),
    Reclaim,
    Trim(u64),
    Read(u64, u64),
    EndRead(u64),
    Forget(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<bool>().prop_map(Step::Place),
        2 => Just(Step::Take),
        3 => Just(Step::Done),
        4 => (0..3_usize, 0..3_usize, 0..3_usize, 0..50_usize).prop_map(
            |(added, segments, removed, at)| Step::Edit { added, segments, removed, at }
        ),
        1 => Just(Step::View),
        1 => (0..8_usize).prop_map(Step::EndView),
        2 => Just(Step::Reclaim),
        2 => (0..4_u64).prop_map(Step::Trim),
        1 => (0..3_u64, 0..20_u64).prop_map(|(ticket, ordinal)| Step::Read(ticket, ordinal)),
        1 => (0..3_u64).prop_map(Step::EndRead),
        1 => (0..8_usize).prop_map(Step::Forget),
        1 => Just(Step::Restart),
    ]
}

fn take_step(rig: &mut Rig, step: Step) {
    match step {
        Step::Place(is_segment) => {
            let kind = if is_segment { FileKind::LogSegment } else { FileKind::Sst };
            rig.place(kind);
        }
        Step::Take => rig.take(),
        Step::Done => rig.done(),
        Step::Edit { added, segments, removed, at } => {
            // Files of a flush are newer than all before.
            let newest = rig.versions.current().files().map(|(_, meta)| meta.id).max();
            let is_next = |file: &FileId| newest.is_none_or(|newest| *file > newest);
            let unnamed = rig.table.unnamed().filter(|file| rig.table.get(*file).is_some());
            let added: Vec<FileId> = unnamed.filter(is_next).take(added).collect();
            let here = rig.referable();
            let mut segments: Vec<FileId> =
                here.iter().skip(at % (here.len() + 1)).take(segments).copied().collect();
            let files: Vec<FileId> =
                rig.versions.current().files().map(|(_, meta)| meta.id).collect();
            let removed: Vec<FileId> =
                files.iter().skip(at % (files.len() + 1)).take(removed).copied().collect();
            if !removed.is_empty() {
                // Flushes alone leave values in the log.
                let version = rig.versions.current();
                segments.retain(|file| version.values_file(*file).is_some());
            }
            if !added.is_empty() || !removed.is_empty() {
                rig.edit(&removed, &added, &segments).unwrap();
            }
        }
        Step::View => rig.readers.push(rig.versions.current().clone()),
        Step::EndView(at) if at < rig.readers.len() => _ = rig.readers.swap_remove(at),
        Step::EndView(_) => {}
        Step::Reclaim => _ = rig.reclaim(),
        Step::Trim(segments) => {
            rig.trim(segment(rig.log_begin().ordinal() + segments));
        }
        Step::Read(ticket, ordinal) => {
            rig.begin_read(ticket, segment(ordinal)..=segment(ordinal + 2));
        }
        Step::EndRead(ticket) => rig.end_read(ticket),
        Step::Forget(at) => {
            let unnamed = rig.table.unnamed().nth(at);
            if let Some(file) = unnamed {
                rig.table.forget(&mut rig.pool, file).unwrap();
            }
        }
        Step::Restart => rig.restart(),
    }
}

proptest! {
    /// docs/faults.md: E12
    #[test]
    fn a_file_goes_once_and_never_while_anything_refers_to_it(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut rig = Rig::new();
        let free = rig.pool.counts().free;
        for step in steps {
            let held: Vec<_> = rig.orders.values().cloned().collect();
            let here: Vec<FileId> = rig.table.entries.keys().copied().collect();
            take_step(&mut rig, step);
            rig.check();
            let is_held = |file: &&FileId| {
                let still = rig.orders.values().any(|segments| segments.contains(*file));
                still && held.iter().any(|segments| segments.contains(*file))
            };
            for file in here.iter().filter(is_held) {
                prop_assert!(rig.is_in_pool(*file), "{} is under an order", file);
            }
        }
        // Everything ends, and every slot is free again.
        rig.readers.clear();
        for ticket in 0..3 {
            rig.end_read(ticket);
        }
        let unnamed: Vec<FileId> = rig.table.unnamed().collect();
        for file in unnamed {
            rig.table.forget(&mut rig.pool, file).unwrap();
        }
        let files: Vec<FileId> = rig.versions.current().files().map(|(_, meta)| meta.id).collect();
        if !files.is_empty() {
            rig.edit(&files, &[], &[]).unwrap();
        }
        rig.reclaim();
        rig.trim(segment(rig.next_segment));
        for _ in 0..3 {
            rig.commit();
            rig.check();
        }
        prop_assert_eq!(rig.pool.counts().free, free);
        prop_assert!(rig.table.entries.is_empty());
    }
}
