//! The engine's formats: batches, edits, recipes, descriptions, options, snapshots, and SSTs.

use crate::Format;
use crate::samples::of_engine;
use gabion_base::codec::Reader;
use gabion_base::{Error, FileId, GroupId, Result, SequenceNumber, Term, crc};
use gabion_engine::counter::Step;
use gabion_engine::range_delete::{Fragment, end_of};
use gabion_engine::sst::inspect::Inspector;
use gabion_engine::*;
use gabion_media::Bytes;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The result of a future that never has to wait.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits"),
    }
}

/// The options of the golden snapshot's tree.
fn tree_config() -> TreeConfig {
    let bytes = of_engine!("tree_config").remove(0);
    TreeConfig::decode(&mut Reader::new(&bytes, "tree options")).unwrap()
}

fn tree_of(snapshot: &[u8]) -> Result<Tree> {
    // The group stands behind version and zeros.
    let mut group = [0; 8];
    group.copy_from_slice(&of_engine!("tree_snapshot")[0][8..16]);
    Tree::open(tree_config(), GroupId(u64::from_le_bytes(group)), snapshot)
}

/// Makes all of a node's queries to a tree.
fn ask(tree: &mut Tree) {
    let context = JobContext { term: Term(9), slots_free: u64::MAX, urgent: true, collects: true };
    let _ = (tree.level_stats(), tree.compaction_debt(), tree.write_state(), tree.time_due_ms());
    let _ = (tree.slots_needed(), tree.unflushed());
    for _ in 0..4 {
        let Some(job) = tree.next_job(&context) else { break };
        let _ = (tree.job_slots(&job, u64::MAX), job.slots_max());
    }
}

/// Additions that no single one equals.
fn several_operands() -> Operand {
    Operand { at_ms: 0x0304, step: Step::add(5).then(Step::add(-3)) }
}

fn batches() -> Vec<Vec<u8>> {
    let mut one = BatchBuilder::new();
    one.put(Keyspace::User, b"key", b"value").unwrap();
    one.delete(Keyspace::System, b"").unwrap();
    one.clear(Keyspace::User).unwrap();
    one.put_expiring(Keyspace::User, b"k", b"v", 0x0201).unwrap();
    one.delete_range(Keyspace::User, b"a", Some(b"k")).unwrap();
    one.delete_range(Keyspace::System, b"k", None).unwrap();
    one.merge(Keyspace::User, b"count", Operand::add(-7, 0x0201)).unwrap();
    one.merge(Keyspace::User, b"count", several_operands()).unwrap();
    let mut two = BatchBuilder::new();
    for n in 0..20u8 {
        two.put(Keyspace::User, &[n; 20], &vec![n; usize::from(n) * 30]).unwrap();
    }
    vec![one.finish(), two.finish()]
}

fn read_batch(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut again = BatchBuilder::new();
    for operation in BatchReader::new(bytes) {
        let Operation { kind, key, value } = operation?;
        let (keyspace, name) = (Keyspace::from_byte(key[0]).unwrap(), &key[1..]);
        match kind {
            EntryKind::Put => again.put(keyspace, name, value)?,
            EntryKind::ExpiringPut => {
                let (at, value) = value.split_first_chunk().unwrap();
                again.put_expiring(keyspace, name, value, u64::from_le_bytes(*at))?;
            }
            EntryKind::Delete => again.delete(keyspace, name)?,
            EntryKind::Clear => again.clear(keyspace)?,
            EntryKind::RangeDelete => {
                let to = (*value != end_of(keyspace)).then(|| &value[1..]);
                again.delete_range(keyspace, name, to)?;
            }
            EntryKind::Merge => {
                let operand = Operand::decode(value).expect("a reader gives whole operands");
                again.merge(keyspace, name, operand)?;
            }
            other => panic!("a reader gives no {other:?}"),
        }
    }
    Ok(Some(again.finish()))
}

fn apply_batch(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut tree = Tree::create(TreeConfig::default(), GroupId(1))?;
    tree.apply_batch(SequenceNumber(1), bytes)?;
    ask(&mut tree);
    Ok(None)
}

fn read_edit(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(Some(Edit::decode(bytes)?.encode()?))
}

/// An edit of the right number on the golden snapshot's tree.
fn apply_edit(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut edit = Edit::decode(bytes)?;
    let mut tree = tree_of(&of_engine!("tree_snapshot")[0])?;
    edit.number = tree.last_edit() + 1;
    if tree.apply_edit(&edit).is_ok() {
        ask(&mut tree);
        let snapshot = tree.snapshot();
        assert_eq!(tree_of(&snapshot)?.snapshot(), snapshot, "what was applied can be opened");
    }
    Ok(None)
}

fn read_snapshot(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut tree = tree_of(bytes)?;
    ask(&mut tree);
    Ok(Some(tree.snapshot()))
}

fn seal_snapshot(bytes: &mut [u8]) {
    if let Some((body, end)) = bytes.split_last_chunk_mut::<4>() {
        *end = crc::crc32c(body).to_le_bytes();
    }
}

/// The start of the typed fields of an edit and of a recipe.
const EDIT_FIELDS_AT: usize = 32;
const RECIPE_FIELDS_AT: usize = 56;

pub(crate) fn formats() -> Vec<Format> {
    [of_changes(), of_files(), of_trees(), ssts()].into_iter().flatten().collect()
}

/// The formats that change a tree.
fn of_changes() -> Vec<Format> {
    let edits = || {
        of_engine!("edit_flush", "edit_compaction", "edit_trivial_move", "edit_drop", "edit_load")
    };
    vec![
        Format::new("batch", batches(), read_batch),
        Format {
            // A MemTable has its first chunks at once.
            memory_max: 4 << 20,
            rare: 4,
            ..Format::new("batch, applied", batches(), apply_batch)
        },
        Format {
            fields_at: Some(EDIT_FIELDS_AT),
            is_canonical: false,
            ..Format::new("edit", edits(), read_edit)
        },
        Format {
            fields_at: Some(EDIT_FIELDS_AT),
            memory_max: 4 << 20,
            rare: 4,
            ..Format::new("edit, applied", edits(), apply_edit)
        },
    ]
}

/// The encoded bytes.
fn encoded(encode: &dyn Fn(&mut Vec<u8>)) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    Ok(Some(bytes))
}

/// The formats of jobs and files.
fn of_files() -> Vec<Format> {
    vec![
        Format {
            fields_at: Some(RECIPE_FIELDS_AT),
            is_canonical: false,
            ..Format::new(
                "recipe",
                of_engine!("recipe", "recipe_merging", "recipe_zstd"),
                move |bytes| {
                    let recipe = Recipe::decode(bytes)?;
                    encoded(&|out| recipe.encode(out))
                },
            )
        },
        Format {
            fields_at: Some(0),
            is_canonical: false,
            ..Format::new(
                "description of a file",
                of_engine!(
                    "file_meta",
                    "expiring_file_meta",
                    "zstd_file_meta",
                    "operands_file_meta",
                    "ranges_file_meta",
                    "ranges_alone_file_meta"
                ),
                move |bytes| {
                    let meta = FileMeta::decode(bytes)?;
                    encoded(&|out| meta.encode(out))
                },
            )
        },
    ]
}

/// The formats of a tree and of its configuration.
fn of_trees() -> Vec<Format> {
    let mut sst_options = Vec::new();
    for compression in [Compression::None, Compression::Lz4, Compression::ZSTD] {
        let mut bytes = Vec::new();
        SstOptions { compression, ..SstOptions::default() }.encode(&mut bytes);
        sst_options.push(bytes);
    }
    vec![
        Format {
            is_canonical: false,
            ..Format::new(
                "options of a tree",
                of_engine!(
                    "tree_config",
                    "tree_config_bottom",
                    "tree_config_filters",
                    "tree_config_filters_bottom"
                ),
                move |bytes| {
                    let mut reader = Reader::new(bytes, "tree options");
                    let config = TreeConfig::decode(&mut reader)?;
                    reader.finish()?;
                    encoded(&|out| config.encode(out))
                },
            )
        },
        Format {
            fields_at: Some(0),
            is_canonical: false,
            ..Format::new("options of a file", sst_options, move |bytes| {
                let options = SstOptions::decode(bytes)?;
                encoded(&|out| options.encode(out))
            })
        },
        Format {
            is_canonical: false,
            memory_max: 4 << 20,
            repair: Box::new(|bytes| seal_snapshot(bytes)),
            ..Format::new("snapshot of a tree", of_engine!("tree_snapshot"), read_snapshot)
        },
    ]
}

const GROUP: GroupId = GroupId(7);

/// A file in memory.
#[derive(Clone)]
struct Image(Bytes);

impl FileSource for Image {
    async fn read(&self, _: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.0.len() as u64);
        match end {
            Some(end) => Ok(self.0.slice(offset as usize..end as usize)),
            None => Err(Error::invalid(format!("{len} bytes at {offset} pass the end"))),
        }
    }
}

fn ssts() -> Vec<Format> {
    let plain = SstOptions { block_len: 512, ..SstOptions::default() };
    let lz4 = SstOptions { compression: Compression::Lz4, ..plain.clone() };
    let bare = SstOptions { filter_bits_per_key: 0, restart_interval: 1, ..plain.clone() };
    let with_ranges = sst("SST with range deletes", &plain, true);
    let mut formats = vec![with_ranges, nothing_but_ranges(), operands(&plain), loaded(&plain)];
    let zstd = SstOptions { compression: Compression::ZSTD, ..plain.clone() };
    let others = [
        ("SST", plain),
        ("SST with LZ4", lz4),
        ("SST with zstd", zstd),
        ("SST without a filter", bare),
    ];
    formats.extend(others.map(|(name, options)| sst(name, &options, false)));
    formats
}

fn fragment(start: &[u8], end: &[u8], sequences: &[u64]) -> Fragment {
    let sequences = sequences.iter().copied().map(SequenceNumber).collect();
    Fragment { start: start.into(), end: end.into(), sequences }
}

/// A file without entries.
fn nothing_but_ranges() -> Format {
    let options = SstOptions::default();
    let mut builder = SstBuilder::new(&options, GROUP, FileId::sst(9), Term(2));
    builder.add_range(fragment(b"\x01a", b"\x01b", &[9, 7]));
    builder.add_range(fragment(b"\x01b", b"\x02", &[9]));
    let keys = vec![b"\x01a".to_vec(), b"\x01z".to_vec()];
    file_of("SST of range deletes alone", builder.finish(), keys)
}

/// A file of counters: operands over values, over each other and over nothing, single ones and
/// several in one.
fn operands(options: &SstOptions) -> Format {
    let mut builder = SstBuilder::new(options, GROUP, FileId::sst(9), Term(2));
    let mut keys = Vec::new();
    for n in 0..60u64 {
        let key = format!("\u{1}count{n:04}").into_bytes();
        let one = Operand::add(n as i64 - 30, n << 20).encode();
        builder.add(&key, Trailer::new(SequenceNumber(300 + n), EntryKind::Merge), &one);
        if n % 2 == 0 {
            let several = several_operands().encode();
            builder.add(&key, Trailer::new(SequenceNumber(200 + n), EntryKind::Merge), &several);
        }
        if n % 3 == 0 {
            builder.add(&key, Trailer::new(SequenceNumber(100 + n), EntryKind::Put), b"-77");
        }
        keys.push(key);
    }
    file_of("SST with operands", builder.finish(), keys)
}

/// A file of a load, whose entries have no numbers; the edit has the one of all.
fn loaded(options: &SstOptions) -> Format {
    let mut builder = LoadBuilder::new(GROUP, Term(2), options.clone(), 1 << 20);
    let mut keys = Vec::new();
    for n in 0..40u64 {
        let name = format!("key{n:04}").into_bytes();
        let expires_ms = (n % 5 == 0).then_some(n << 30);
        let value = vec![n as u8; 20 + 3 * n as usize];
        let ended = builder.put(&name, &value, expires_ms, || Ok(FileId::sst(9))).unwrap();
        assert!(ended.is_none(), "it is one file");
        keys.push([&[Keyspace::User as u8], &name[..]].concat());
    }
    let mut file = builder.finish().unwrap();
    (file.meta.smallest_sequence, file.meta.largest_sequence) =
        (SequenceNumber(500), SequenceNumber(500));
    file_of("SST of a load", file, keys)
}

fn sst(name: &'static str, options: &SstOptions, with_ranges: bool) -> Format {
    let mut builder = SstBuilder::new(options, GROUP, FileId::sst(9), Term(2));
    let trailer = |n, kind| Trailer::new(SequenceNumber(n), kind);
    builder.add(&[1], trailer(5, EntryKind::Clear), b"");
    let mut keys = vec![vec![1]];
    for n in 0..40u64 {
        let key = format!("\u{1}key{n:04}").into_bytes();
        if n % 5 == 0 {
            builder.add(&key, trailer(200 + n, EntryKind::Delete), b"");
        }
        let value = vec![n as u8; 20 + 3 * n as usize];
        if n % 7 == 0 {
            let stored = [&(n << 30).to_le_bytes()[..], &value].concat();
            builder.add(&key, trailer(100 + n, EntryKind::ExpiringPut), &stored);
        } else {
            builder.add(&key, trailer(100 + n, EntryKind::Put), &value);
        }
        keys.push(key);
    }
    if with_ranges {
        builder.add_range(fragment(b"\x00", b"\x00a", &[77]));
        builder.add_range(fragment(b"\x01key0003", b"\x01key0009\0", &[300, 150, 2]));
        builder.add_range(fragment(b"\x01key0020", b"\x01m", &[150]));
    }
    file_of(name, builder.finish(), keys)
}

fn file_of(name: &'static str, file: FinishedFile, keys: Vec<Vec<u8>>) -> Format {
    let (meta, data) = (file.meta.clone(), data_blocks(&file));
    let footer_at = meta.len as usize - sst::FOOTER_LEN;
    let repair = {
        let id = meta.id;
        move |bytes: &mut Vec<u8>| seal_file(bytes, id, &data, footer_at)
    };
    Format {
        keeps_len: true,
        repair: Box::new(repair),
        // A compressed block states its length, up to 64 KiB at any compressed length.
        memory_max: 1 << 20,
        rare: 2,
        ..Format::new(name, vec![file.bytes.to_vec()], move |bytes| {
            read_file(bytes, &meta, &keys).map(|()| None)
        })
    }
}

/// The places of a whole file's data blocks.
fn data_blocks(file: &FinishedFile) -> Vec<(usize, usize)> {
    let source = Image(file.bytes.clone());
    let opening = Inspector::open(source, GROUP, file.meta.id, file.meta.rounded_len());
    let index = now(now(opening).unwrap().index()).unwrap();
    let place = |at: u32, len: u32| (at as usize, (at + len) as usize);
    index.iter().map(|entry| place(entry.offset, entry.stored_len)).collect()
}

/// Repairs the checksums of every block and of the footer, at the places that the footer names now.
fn seal_file(bytes: &mut [u8], id: FileId, data: &[(usize, usize)], footer_at: usize) {
    let place = |at: usize| {
        let bytes = &bytes[footer_at + at..footer_at + at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
    };
    let places = [12, 16, 20].map(place);
    let parts = [(places[0], places[1]), (places[1], places[2]), (places[2], footer_at)];
    for (start, end) in data.iter().copied().chain(parts) {
        if start + 5 > end || end > footer_at {
            continue;
        }
        let sum = crc::with_lineage(crc::crc32c(&bytes[start..end - 4]), GROUP, id, start as u64);
        bytes[end - 4..end].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = crc::crc32c(&bytes[footer_at..footer_at + 60]);
    let sum = crc::with_lineage(sum, GROUP, id, footer_at as u64);
    bytes[footer_at + 60..footer_at + 64].copy_from_slice(&sum.to_le_bytes());
    bytes[footer_at + 64..].fill(0);
}

/// Reads a file in every way. After an error a cursor is at no entry, and its loop ends.
fn read_file(bytes: &[u8], meta: &FileMeta, keys: &[Vec<u8>]) -> Result<()> {
    let source = Image(Bytes::copy_from_slice(bytes));
    let inspected = inspect(&source, meta);
    let reader = Arc::new(now(SstReader::open(&source, GROUP, meta))?);
    inspected?;
    let mut failed = Ok(());
    let mut scan = SstScan::new(reader.clone(), &source, b"", None, 1 << 16);
    let mut entries = 0;
    loop {
        match now(scan.advance()) {
            Ok(true) => entries += 1,
            Ok(false) => break,
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
        assert!(entries <= bytes.len(), "a scan runs in circles");
    }
    let cache = Rc::new(LocalCache::new(0));
    let mut iterator = SstIter::new(reader.clone(), &source, cache.clone());
    for key in keys {
        failed =
            failed.and(now(reader.get(&source, &*cache, key, SequenceNumber::MAX)).map(|_| ()));
        let mut moved = now(iterator.seek(key, SequenceNumber::MAX));
        for _ in 0..3 {
            if moved.is_err() || iterator.entry().is_none() {
                break;
            }
            moved = now(iterator.advance());
        }
        let back = now(iterator.seek_before(key));
        if back.is_ok() && iterator.entry().is_some() {
            let _ = now(iterator.retreat());
        }
    }
    failed
}

/// A tool's inspection of a file, part by part.
fn inspect(source: &Image, meta: &FileMeta) -> Result<()> {
    let inspector = now(Inspector::open(source.clone(), GROUP, meta.id, meta.rounded_len()))?;
    let _ = (now(inspector.filter_len()), now(inspector.properties()), now(inspector.index()));
    Ok(())
}
