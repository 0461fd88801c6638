//! Whole files: against a sorted map, with every bit flipped, with blocks in the wrong place.

use super::*;
use crate::cache::LocalCache;
use crate::entry::{EntryKind, Keyspace, Trailer, compare};
use crate::file::{FileMeta, FileSource, FinishedFile};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::cmp::Reverse;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::{ErrorKind, SequenceNumber};
use gabion_media::{AlignedBuf, Bytes};
use proptest::prelude::*;

mod ahead;

const GROUP: GroupId = GroupId(5);
const TERM: Term = Term(2);

/// The result of a future that never has to wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future had to wait"),
    }
}

/// Files in memory, with a record of what was read.
#[derive(Default)]
struct Memory {
    files: BTreeMap<FileId, Bytes>,
    reads: RefCell<Vec<(u64, usize)>>,
}

impl Memory {
    fn of(files: &[&FinishedFile]) -> Self {
        let files = files.iter().map(|file| (file.meta.id, file.bytes.clone())).collect();
        Self { files, reads: RefCell::default() }
    }

    fn image(id: FileId, bytes: Vec<u8>) -> Self {
        Self { files: BTreeMap::from([(id, Bytes::from(bytes))]), reads: RefCell::default() }
    }
}

impl FileSource for Memory {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.reads.borrow_mut().push((offset, len));
        let bytes = self.files.get(&file).ok_or_else(|| Error::not_found("no such file"))?;
        let range = offset as usize..offset as usize + len;
        if range.end > bytes.len() {
            return Err(Error::invalid("read past the end"));
        }
        Ok(bytes.slice(range))
    }
}

type Row = (Vec<u8>, Trailer, Vec<u8>);
type Sorted = BTreeMap<(Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>)>;

fn put(sequence: u64) -> Trailer {
    Trailer::new(SequenceNumber(sequence), EntryKind::Put)
}

fn build(options: &SstOptions, number: u64, rows: &[Row]) -> FinishedFile {
    let mut builder = SstBuilder::new(options, GROUP, FileId::sst(number), TERM);
    for (key, trailer, value) in rows {
        builder.add(key, *trailer, value);
    }
    let file = builder.finish();
    let crcs: Vec<u32> = file.bytes.chunks(1 << 20).map(crc::crc32c).collect();
    assert_eq!(file.meta.chunk_crcs, crcs);
    file
}

fn open(source: &Memory, meta: &FileMeta) -> Result<Arc<SstReader>> {
    now(SstReader::open(source, GROUP, meta)).map(Arc::new)
}

fn scan_all(source: &Memory, reader: &Arc<SstReader>) -> Result<Vec<Row>> {
    scan(source, reader, b"", None, 1 << 20)
}

fn scan(
    source: &Memory,
    reader: &Arc<SstReader>,
    from: &[u8],
    to: Option<&[u8]>,
    read_len: usize,
) -> Result<Vec<Row>> {
    let mut scan = SstScan::new(reader.clone(), source, from, to, read_len);
    let mut rows = Vec::new();
    while now(scan.advance())? {
        let entry = scan.entry().unwrap();
        rows.push((entry.key.to_vec(), entry.trailer, entry.value.to_vec()));
    }
    assert!(scan.entry().is_none());
    assert!(!now(scan.advance())?);
    Ok(rows)
}

fn row_of<S: FileSource>(iter: &SstIter<S>) -> Option<Row> {
    let row = iter.entry().map(|e| (e.key.to_vec(), e.trailer, e.value.to_vec()));
    assert_eq!(iter.value_bytes().map(|v| v.to_vec()), row.as_ref().map(|r| r.2.clone()));
    row
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(0u8..4, 0..5),
        4 => (0u32..500).prop_map(|n| alloc::format!("\u{1}user{n:08}").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (0usize..20, any::<u8>()).prop_map(|(n, b)| [&vec![3; 65_516][..], &vec![b; n]].concat()),
    ]
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        2 => (0usize..3_000, any::<u8>()).prop_map(|(n, byte)| vec![byte; n]),
        1 => prop::collection::vec(any::<u8>(), 4_000..12_000),
    ];
    prop::collection::vec((keys(), 0u64..40, any::<bool>(), value), 1..120).prop_map(|rows| {
        let sorted: Sorted = rows
            .into_iter()
            .map(|(key, sequence, is_put, value)| {
                let (kind, value) =
                    if is_put { (EntryKind::Put, value) } else { (EntryKind::Delete, Vec::new()) };
                ((key, Reverse(sequence)), (kind, value))
            })
            .collect();
        let row = |((key, Reverse(sequence)), (kind, value))| {
            (key, Trailer::new(SequenceNumber(sequence), kind), value)
        };
        sorted.into_iter().map(row).collect()
    })
}

fn codecs() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        (1..=7u8).prop_map(|level| Compression::Zstd { level }),
    ]
}

fn options() -> impl Strategy<Value = SstOptions> {
    (512u32..6_000, 1u32..20, 1u32..6, codecs(), 0u32..14).prop_map(
        |(
            block_len,
            restart_interval,
            index_restart_interval,
            compression,
            filter_bits_per_key,
        )| {
            SstOptions {
                block_len,
                restart_interval,
                index_restart_interval,
                compression,
                filter_bits_per_key,
                ..SstOptions::default()
            }
        },
    )
}

fn check_meta(file: &FinishedFile, rows: &[Row]) {
    let meta = &file.meta;
    assert_eq!(file.bytes.len() as u64, meta.rounded_len());
    assert_eq!(file.bytes.as_ptr() as usize % 4096, 0);
    meta.verify(&file.bytes).unwrap();
    assert_eq!(meta.checksum, crc::crc32c(&file.bytes));
    assert_eq!(meta.entries, rows.len() as u64);
    let deletes = rows.iter().filter(|r| r.1.kind() == EntryKind::Delete).count();
    assert_eq!(meta.deletes, deletes as u64);
    assert_eq!(meta.raw_key_bytes, rows.iter().map(|r| r.0.len() as u64).sum::<u64>());
    assert_eq!(meta.raw_value_bytes, rows.iter().map(|r| r.2.len() as u64).sum::<u64>());
    assert_eq!(Some(meta.smallest_sequence), rows.iter().map(|r| r.1.sequence()).min());
    assert_eq!(Some(meta.largest_sequence), rows.iter().map(|r| r.1.sequence()).max());
    assert!(rows.iter().all(|r| meta.may_hold(&r.0)));
    let mut encoded = Vec::new();
    meta.encode(&mut encoded);
    assert_eq!(&FileMeta::decode(&encoded).unwrap(), meta);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_answers_like_a_sorted_map(
        rows in rows(),
        options in options(),
        probes in prop::collection::vec((keys(), 0u64..42), 30),
        read_len in 1usize..70_000,
    ) {
        let file = build(&options, 9, &rows);
        check_meta(&file, &rows);
        let source = Memory::of(&[&file]);
        let reader = open(&source, &file.meta).unwrap();
        prop_assert_eq!(&scan_all(&source, &reader).unwrap(), &rows);

        let cache = Rc::new(LocalCache::new(100_000));
        let mut iter = SstIter::new(reader.clone(), &source, cache.clone());
        prop_assert!(iter.entry().is_none());
        now(iter.advance()).unwrap();
        prop_assert!(iter.entry().is_none());
        now(iter.seek_to_first()).unwrap();
        for row in &rows {
            prop_assert_eq!(row_of(&iter), Some(row.clone()));
            now(iter.advance()).unwrap();
        }
        prop_assert!(iter.entry().is_none());
        now(iter.advance()).unwrap();
        prop_assert!(iter.entry().is_none());

        now(iter.seek_to_last()).unwrap();
        for row in rows.iter().rev() {
            prop_assert_eq!(row_of(&iter), Some(row.clone()));
            now(iter.retreat()).unwrap();
        }
        prop_assert!(iter.entry().is_none());
        now(iter.retreat()).unwrap();
        prop_assert!(iter.entry().is_none());

        let known = rows.iter().map(|row| (row.0.clone(), row.1.sequence().get()));
        for (key, sequence) in probes.iter().cloned().chain(known) {
            let at = SequenceNumber(sequence);
            let after = |row: &&Row| compare(&row.0, row.1, &key, Trailer::seek(at)).is_ge();
            let expected = rows.iter().find(after);
            now(iter.seek(&key, at)).unwrap();
            prop_assert_eq!(row_of(&iter), expected.cloned());
            // The entry before one that was sought, and the last before a key.
            if expected.is_some() {
                now(iter.retreat()).unwrap();
                let before = |row: &&Row| compare(&row.0, row.1, &key, Trailer::seek(at)).is_lt();
                prop_assert_eq!(row_of(&iter), rows.iter().rfind(before).cloned());
            }
            now(iter.seek_before(&key)).unwrap();
            prop_assert_eq!(row_of(&iter), rows.iter().rfind(|row| row.0 < key).cloned());
            if let Some(row) = row_of(&iter) {
                now(iter.advance()).unwrap();
                let after = |other: &&Row| compare(&other.0, other.1, &row.0, row.1).is_gt();
                prop_assert_eq!(row_of(&iter), rows.iter().find(after).cloned());
            }
            let found = now(reader.get(&source, &cache, &key, at)).unwrap();
            let expected = expected.filter(|row| row.0 == key).map(|row| (row.1, row.2.clone()));
            prop_assert_eq!(found.map(|(t, v)| (t, v.to_vec())), expected);
            prop_assert!(reader.may_contain(&key) || rows.iter().all(|row| row.0 != key));
        }
        for pair in probes.windows(2) {
            let (from, to) = (&pair[0].0, &pair[1].0);
            let within = |row: &&Row| &row.0 >= from && &row.0 < to;
            let expected: Vec<Row> = rows.iter().filter(within).cloned().collect();
            prop_assert_eq!(scan(&source, &reader, from, Some(to), read_len).unwrap(), expected);
        }
    }

    /// docs/faults.md: P20
    #[test]
    fn bytes_depend_on_entries_and_options_alone(rows in rows(), options in options()) {
        let one = build(&options, 9, &rows);
        let mut used = AlignedBuf::zeroed(100_000);
        used.fill(0xa5);
        let mut builder = SstBuilder::in_buffer(&options, GROUP, FileId::sst(9), TERM, used);
        for (key, trailer, value) in &rows {
            builder.add(key, *trailer, value);
        }
        let estimate = builder.estimated_len();
        prop_assert_eq!(builder.last_key(), &rows.last().unwrap().0[..]);
        let two = builder.finish();
        prop_assert_eq!(&one.bytes, &two.bytes);
        prop_assert_eq!(&one.meta, &two.meta);
        prop_assert!(two.meta.len <= estimate, "{} is over {}", two.meta.len, estimate);
        if options.compression == Compression::None {
            let close = two.meta.len + 500 + rows.last().unwrap().0.len() as u64;
            prop_assert!(estimate <= close, "{} is far below {}", two.meta.len, estimate);
        }
    }

    /// Bodies are changed and their checksums made good again, as an attacker with the format at
    /// hand would: answers may be wrong then, but nothing panics or runs away.
    /// docs/faults.md: P2
    #[test]
    fn crafted_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        compression in codecs(),
    ) {
        let (file, rows) = canonical(compression, 9);
        let blocks = blocks_of(&file);
        let mut image = file.bytes.to_vec();
        for (at, byte) in changes {
            let at = at.index(file.meta.len as usize - FOOTER_LEN);
            image[at] = byte;
        }
        for &(start, end) in &blocks {
            let crc = block_crc(&image[start..end - 4], GROUP, file.meta.id, start as u64);
            image[end - 4..end].copy_from_slice(&crc.to_le_bytes());
        }
        let source = Memory::image(file.meta.id, image);
        if let Ok(reader) = open(&source, &file.meta) {
            let _ = scan_all(&source, &reader);
            let cache = Rc::new(LocalCache::new(0));
            let mut iter = SstIter::new(reader.clone(), &source, cache.clone());
            for (key, trailer, _) in &rows {
                let _ = now(reader.get(&source, &cache, key, trailer.sequence()));
                let mut moved = now(iter.seek(key, trailer.sequence()));
                while moved.is_ok() && iter.value_bytes().is_some() {
                    moved = now(iter.advance());
                }
                assert!(iter.entry().is_none(), "an error leaves the cursor at no entry");
                assert!(now(iter.advance()).is_err() || iter.entry().is_none());
                let mut moved = now(iter.seek_before(key));
                for _ in 0..2 * rows.len() {
                    if moved.is_err() || iter.value_bytes().is_none() {
                        break;
                    }
                    moved = now(iter.retreat());
                }
                assert!(moved.is_ok() || iter.entry().is_none());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_file(noise in prop::collection::vec(any::<u8>(), 0..9_000)) {
        let (file, _) = canonical(Compression::None, 9);
        let mut meta = file.meta;
        meta.len = noise.len() as u64;
        let mut image = noise;
        image.resize(meta.rounded_len() as usize, 0);
        prop_assert!(open(&Memory::image(meta.id, image), &meta).is_err());
    }
}

/// A small file with several blocks of each sort; the keys do not depend on the number.
fn canonical(compression: Compression, number: u64) -> (FinishedFile, Vec<Row>) {
    let options = SstOptions { block_len: 512, compression, ..SstOptions::default() };
    let mut rows = Vec::new();
    for n in 0..24u64 {
        let key = alloc::format!("\u{1}key{n:04}").into_bytes();
        // Half of each value compresses; the numbers tell two files apart.
        let noise = (0..30).map(|i| filter::hash(&[n as u8, i as u8, number as u8]) as u8);
        let value: Vec<u8> = noise.chain([n as u8; 40]).collect();
        if n % 5 == 0 {
            let delete = Trailer::new(SequenceNumber(100 + n), EntryKind::Delete);
            rows.push((key.clone(), delete, Vec::new()));
        }
        rows.push((key, put(10 + n), value));
    }
    (build(&options, number, &rows), rows)
}

/// A file whose data blocks are all of one length, with the same keys whatever the number.
fn uniform(number: u64) -> (FinishedFile, Vec<Row>) {
    let options = SstOptions { block_len: 512, restart_interval: 1, ..SstOptions::default() };
    let key = |n: u64| alloc::format!("\u{1}key{n:04}").into_bytes();
    let row = |n| (key(n), put(n), vec![(n + number) as u8; 150]);
    let rows: Vec<Row> = (0..24).map(row).collect();
    (build(&options, number, &rows), rows)
}

/// The place of every block: data, filter, index, properties.
fn blocks_of(file: &FinishedFile) -> Vec<(usize, usize)> {
    let source = Memory::of(&[file]);
    let reader = open(&source, &file.meta).unwrap();
    let mut blocks = Vec::new();
    while let Some(handle) = reader.block_at(blocks.len()) {
        blocks.push((handle.offset as usize, handle.end() as usize));
    }
    let footer_at = file.meta.len as usize - FOOTER_LEN;
    let footer = file.bytes[footer_at..].first_chunk::<FOOTER_LEN>().unwrap();
    let footer = Footer::decode(footer, GROUP, file.meta.id, footer_at as u64).unwrap();
    assert_eq!(footer.data_blocks as usize, blocks.len());
    let places = [footer.filter_at, footer.index_at, footer.properties_at, footer.footer_at];
    blocks.extend(places.windows(2).map(|w| (w[0] as usize, w[1] as usize)));
    blocks
}

/// The bytes of a file whose index names its blocks as `change` leaves their handles, with good
/// checksums.
fn with_other_index(file: &FinishedFile, change: impl FnOnce(&mut [[u8; 8]])) -> Vec<u8> {
    let mut image = file.bytes.to_vec();
    let blocks = blocks_of(file);
    let &(start, end) = &blocks[blocks.len() - 2];
    let handle = |&(start, end): &(usize, usize)| {
        let (offset, len) = (start as u32, (end - start) as u32);
        [offset.to_le_bytes(), len.to_le_bytes()].concat()
    };
    let data = &blocks[..blocks.len() - 3];
    let places: Vec<_> = data
        .iter()
        .map(|block| {
            let found = image[start..end].windows(8).position(|bytes| bytes == handle(block));
            start + found.unwrap()
        })
        .collect();
    let mut handles: Vec<[u8; 8]> =
        places.iter().map(|&at| image[at..at + 8].try_into().unwrap()).collect();
    change(&mut handles);
    for (at, handle) in places.into_iter().zip(handles) {
        image[at..at + 8].copy_from_slice(&handle);
    }
    let crc = block_crc(&image[start..end - 4], GROUP, file.meta.id, start as u64);
    image[end - 4..end].copy_from_slice(&crc.to_le_bytes());
    image
}

#[test]
fn an_index_whose_blocks_do_not_follow_each_other_or_are_not_all_is_corrupt() {
    let (file, _) = canonical(Compression::None, 9);
    let error = |image: Vec<u8>| {
        let opened = open(&Memory::image(file.meta.id, image), &file.meta);
        let error = opened.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        format!("{error}")
    };
    assert_eq!(with_other_index(&file, |_| ()), file.bytes.to_vec());
    let swapped = error(with_other_index(&file, |handles| handles.swap(0, 1)));
    assert!(swapped.contains("index: blocks are out of order"), "{swapped}");
    let twice = error(with_other_index(&file, |handles| handles[1] = handles[0]));
    assert!(twice.contains("index: blocks are out of order"), "{twice}");
    let mut image = file.bytes.to_vec();
    let at = file.meta.len as usize - FOOTER_LEN;
    let footer = image[at..].first_chunk::<FOOTER_LEN>().unwrap();
    let mut footer = Footer::decode(footer, GROUP, file.meta.id, at as u64).unwrap();
    footer.data_blocks += 1;
    image[at..at + FOOTER_LEN].copy_from_slice(&footer.encode());
    let missing = error(image);
    let named = footer.data_blocks - 1;
    assert!(
        missing.contains(&format!("index names {named} of {} data blocks", named + 1)),
        "{missing}"
    );
}

/// Reads everything in every way. Each answer must be right or an error; returns whether there was
/// an error.
fn errs_or_is_right(source: &Memory, meta: &FileMeta, rows: &[Row]) -> bool {
    let Ok(reader) = open(source, meta) else { return true };
    let mut erred = false;
    match scan_all(source, &reader) {
        Ok(found) => assert_eq!(found, rows),
        Err(_) => erred = true,
    }
    let cache = LocalCache::new(1 << 20);
    for (key, trailer, value) in rows {
        match now(reader.get(source, &cache, key, trailer.sequence())) {
            Ok(found) => assert_eq!(found, Some((*trailer, Bytes::copy_from_slice(value)))),
            Err(_) => erred = true,
        }
    }
    erred
}

/// docs/faults.md: E5
#[test]
fn every_flipped_bit_of_an_image_is_an_error_and_never_a_wrong_answer() {
    for compression in [Compression::None, Compression::Lz4, Compression::ZSTD] {
        let (file, rows) = canonical(compression, 9);
        assert!(blocks_of(&file).len() >= 6, "several blocks are wanted");
        assert!(!errs_or_is_right(&Memory::of(&[&file]), &file.meta, &rows));
        let mut image = file.bytes.to_vec();
        for bit in 0..image.len() * 8 {
            image[bit / 8] ^= 1 << (bit % 8);
            let source = Memory::image(file.meta.id, image);
            assert!(errs_or_is_right(&source, &file.meta, &rows), "bit {bit} is inert");
            image = source.files[&file.meta.id].to_vec();
            image[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// docs/faults.md: E6
#[test]
fn a_block_in_the_wrong_place_or_file_is_an_error() {
    let (one, rows) = uniform(9);
    let (two, _) = uniform(10);
    let (places, foreign) = (blocks_of(&one), blocks_of(&two));
    assert_eq!(places, foreign);
    let mut pairs = 0;
    for &(start, end) in &places {
        for (image, &(from, from_end)) in [&one, &two].iter().flat_map(|f| {
            let bytes = f.bytes.to_vec();
            foreign.iter().map(move |place| (bytes.clone(), place))
        }) {
            if end - start != from_end - from || image[from..from_end] == one.bytes[start..end] {
                continue;
            }
            let mut changed = one.bytes.to_vec();
            changed[start..end].copy_from_slice(&image[from..from_end]);
            let source = Memory::image(one.meta.id, changed);
            assert!(errs_or_is_right(&source, &one.meta, &rows), "{from} at {start}");
            pairs += 1;
        }
    }
    assert!(pairs > 20, "only {pairs} pairs of equal length");
}

#[test]
fn another_files_bytes_are_refused_whole() {
    let (one, _) = canonical(Compression::None, 9);
    let (two, _) = canonical(Compression::None, 10);
    let kind = |source: &Memory, group, meta: &FileMeta| {
        now(SstReader::open(source, group, meta)).map(|_| ()).unwrap_err().kind()
    };
    let swapped = Memory::image(one.meta.id, two.bytes.to_vec());
    assert_eq!(kind(&swapped, GROUP, &one.meta), ErrorKind::Corruption);
    let source = Memory::of(&[&one]);
    assert_eq!(kind(&source, GroupId(6), &one.meta), ErrorKind::Corruption);
    let other_term = FileMeta { term: Term(3), ..one.meta.clone() };
    assert_eq!(kind(&source, GROUP, &other_term), ErrorKind::Corruption);
    let stale = FileMeta { entries: 1, ..one.meta.clone() };
    assert_eq!(kind(&source, GROUP, &stale), ErrorKind::Corruption);
    let short = FileMeta { len: 63, ..one.meta.clone() };
    assert_eq!(kind(&source, GROUP, &short), ErrorKind::Corruption);
    assert_eq!(kind(&Memory::default(), GROUP, &one.meta), ErrorKind::NotFound);
}

#[test]
fn a_cached_read_completes_at_once_and_shares_the_blocks_memory() {
    /// Answers nothing, ever.
    struct Silent;
    impl FileSource for Silent {
        fn read(&self, _: FileId, _: u64, _: usize) -> impl Future<Output = Result<Bytes>> {
            core::future::pending()
        }
    }
    let (file, rows) = canonical(Compression::None, 9);
    let source = Memory::of(&[&file]);
    let reader = open(&source, &file.meta).unwrap();
    let cache = Rc::new(LocalCache::new(1 << 20));
    for (key, trailer, _) in &rows {
        now(reader.get(&source, &cache, key, trailer.sequence())).unwrap().unwrap();
    }
    let misses = cache.blocks.stats().misses;
    assert!(misses < rows.len() as u64);
    for (key, trailer, value) in &rows {
        let (_, one) = now(reader.get(&Silent, &cache, key, trailer.sequence())).unwrap().unwrap();
        let (_, two) = now(reader.get(&Silent, &cache, key, trailer.sequence())).unwrap().unwrap();
        assert_eq!((&one[..], one.as_ptr()), (&value[..], two.as_ptr()));
    }
    let mut iter = SstIter::new(reader, Silent, cache.clone());
    now(iter.seek_to_first()).unwrap();
    while iter.entry().is_some() {
        now(iter.advance()).unwrap();
    }
    assert_eq!(cache.blocks.stats().misses, misses);
}

#[test]
fn a_scan_reads_in_large_steps_and_nothing_beyond_its_range() {
    let options = SstOptions::default();
    let key = |n: u64| alloc::format!("\u{1}user{n:08}").into_bytes();
    let rows: Vec<Row> = (0..2_000).map(|n| (key(n), put(n), vec![n as u8; 1_000])).collect();
    let file = build(&options, 9, &rows);
    let source = Memory::of(&[&file]);
    let reader = open(&source, &file.meta).unwrap();
    source.reads.borrow_mut().clear();
    let found = scan(&source, &reader, &key(500), Some(&key(1_000)), 256 * 1024).unwrap();
    assert_eq!(found, rows[500..1_000]);
    let reads = source.reads.borrow();
    assert_eq!(reads.len(), 2);
    assert!(reads.iter().map(|&(_, len)| len).sum::<usize>() < 500 * 1_000 + 40_000);
}

/// docs/faults.md: E14
#[test]
fn the_largest_keys_and_values_survive() {
    for compression in [Compression::None, Compression::Lz4, Compression::ZSTD] {
        let options = SstOptions { compression, ..SstOptions::default() };
        let longest = crate::entry::ENGINE_KEY_LEN_MAX;
        let noise: Vec<u8> =
            (0..8u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let rows: Vec<Row> = vec![
            (b"".to_vec(), put(1), b"of the empty key".to_vec()),
            (vec![1; longest], put(3), noise),
            (vec![1; longest], put(2), vec![0; 8 << 20]),
            ([&vec![1; longest - 1][..], b"\x02"].concat(), put(5), vec![7; 3 << 20]),
            (vec![2], put(6), vec![0; 60_000]),
        ];
        let file = build(&options, 9, &rows);
        let source = Memory::of(&[&file]);
        let reader = open(&source, &file.meta).unwrap();
        assert!(scan_all(&source, &reader).unwrap() == rows);
        let cache = LocalCache::new(1 << 20);
        for (key, trailer, value) in &rows {
            let found = now(reader.get(&source, &cache, key, trailer.sequence())).unwrap();
            assert!(found.is_some_and(|(t, v)| t == *trailer && v == value));
        }
        assert!(file.meta.largest.len() <= 256);
        if compression != Compression::None {
            // The small block of zeros is compressed far beyond 1 : 64; what is over 4 MiB is not
            // at all.
            assert!(file.meta.len < (8 << 20) + (8 << 20) + (3 << 20) + 300_000);
        }
    }
}

#[test]
fn clears_are_told_by_properties_and_description() {
    let clear = |n| Trailer::new(SequenceNumber(n), EntryKind::Clear);
    let rows: Vec<Row> = vec![
        (vec![1], clear(9), vec![]),
        (vec![1], put(8), b"empty user key".to_vec()),
        (vec![1], clear(4), vec![]),
        (vec![1, b'a'], put(3), b"a".to_vec()),
    ];
    let file = build(&SstOptions::default(), 9, &rows);
    let expected = [(Keyspace::User, SequenceNumber(9)), (Keyspace::User, SequenceNumber(4))];
    assert_eq!(file.meta.clears, expected);
    assert_eq!(file.meta.deletes, 2);
    let reader = open(&Memory::of(&[&file]), &file.meta).unwrap();
    assert_eq!(reader.properties().clears, expected);
}

#[test]
#[should_panic(expected = "not after the one before it")]
fn entries_out_of_order_are_refused() {
    let _ = build(
        &SstOptions::default(),
        1,
        &[(b"\x01b".to_vec(), put(1), vec![]), (b"\x01a".to_vec(), put(2), vec![])],
    );
}

#[test]
#[should_panic(expected = "at least one entry")]
fn an_empty_file_is_refused() {
    let _ = SstBuilder::new(&SstOptions::default(), GROUP, FileId::sst(1), TERM).finish();
}

#[test]
fn the_checksums_of_chunks_are_those_of_the_finished_bytes() {
    for compression in [Compression::None, Compression::Lz4, Compression::ZSTD] {
        let options = SstOptions { compression, ..SstOptions::default() };
        let rows: Vec<Row> = (0..60u64)
            .map(|n| {
                let byte = |i: u64| (i * n).to_le_bytes()[usize::from(i.is_multiple_of(3))];
                (format!("\x01key{n:04}").into_bytes(), put(n), (0..70_000).map(byte).collect())
            })
            .collect();
        // `build` compares.
        let file = build(&options, 1, &rows);
        assert!(file.meta.chunk_crcs.len() > 1, "{compression:?}");
    }
}

#[test]
fn an_inspector_shows_every_part_and_passes_a_block_that_is_damaged() {
    use super::inspect::Inspector;
    let rows: Vec<Row> = (0..500_u64)
        .map(|i| (format!("\u{1}key{i:05}").into_bytes(), put(i + 1), vec![b'v'; 40]))
        .collect();
    let options = SstOptions { compression: Compression::ZSTD, ..SstOptions::default() };
    let file = build(&options, 9, &rows);
    let (id, len) = (file.meta.id, file.meta.rounded_len());
    let entries = |source: &Memory| -> (Vec<Row>, Vec<u32>) {
        let inspector = now(Inspector::open(source, GROUP, id, len)).unwrap();
        assert_eq!(now(inspector.properties()).unwrap().entries, 500);
        assert!(now(inspector.filter_len()).unwrap() > 500);
        let index = now(inspector.index()).unwrap();
        assert_eq!(index.len(), inspector.footer().data_blocks as usize);
        let (mut found, mut bad) = (Vec::new(), Vec::new());
        for entry in &index {
            let Ok(mut block) = now(inspector.block(entry)) else {
                bad.push(entry.offset);
                continue;
            };
            while let Some(entry) = block.next_entry().unwrap() {
                found.push((entry.key.to_vec(), entry.trailer, entry.value.to_vec()));
            }
        }
        (found, bad)
    };
    assert_eq!(entries(&Memory::of(&[&file])), (rows.clone(), vec![]));
    let mut bytes = file.bytes.to_vec();
    bytes[5] ^= 1;
    let (found, bad) = entries(&Memory::image(id, bytes.clone()));
    assert!(bad == [0] && !found.is_empty() && found[..] == rows[500 - found.len()..]);
    let footer = bytes.len() - bytes.iter().rev().position(|&byte| byte != 0).unwrap() - 8;
    bytes[footer] ^= 1;
    let error = now(Inspector::open(&Memory::image(id, bytes), GROUP, id, len)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}
