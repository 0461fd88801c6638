//! Every bit of images of files is flipped, and the file opened, scanned and searched: what does
//! not fail is right, and something fails for every bit (docs/faults.md E5). Seven shapes of file,
//! each longer than 80 KiB.
//!
//! `cargo test` takes one bit in [`SAMPLE`]; the tests that are ignored take all of them.

use crate::support::{Random, block_on};
use gabion_base::{FileId, GroupId, Result, SequenceNumber, Term};
use gabion_engine::counter::Step;
use gabion_engine::range_delete::Fragment;
use gabion_engine::*;
use gabion_media::Bytes;
use std::cell::RefCell;
use std::sync::Arc;

const GROUP: GroupId = GroupId(7);
/// Bytes of an image at least.
const LEN_MIN: usize = 80 << 10;
/// A prime, so that all bits of a byte and all parts of an entry have their turn.
const SAMPLE: usize = 4_001;
/// The number of the load.
const LOADED_AT: u64 = 777;

/// A file in memory, whose bits flip.
struct Image(RefCell<Vec<u8>>);

impl FileSource for Image {
    async fn read(&self, _: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let offset = offset as usize;
        Ok(Bytes::copy_from_slice(&self.0.borrow()[offset..offset + len]))
    }
}

type Row = (Vec<u8>, Trailer, Vec<u8>);

struct Case {
    name: &'static str,
    rows: Vec<Row>,
    file: FinishedFile,
}

fn trailer(sequence: u64, kind: EntryKind) -> Trailer {
    Trailer::new(SequenceNumber(sequence), kind)
}

/// Half noise, half what compresses.
fn value(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|i| if i % 32 < 16 { random.next() as u8 } else { b'-' }).collect()
}

/// Entries of all kinds, until the file is long enough; and range deletes beside them.
fn case(name: &'static str, options: &SstOptions, value_len_max: u64, ranges: u64) -> Case {
    let mut random = Random::new(value_len_max);
    let mut rows = vec![(vec![1], trailer(1, EntryKind::Clear), Vec::new())];
    let mut bytes = 0;
    for n in 0.. {
        let key = format!("\u{1}{:08}/field", n * 7).into_bytes();
        let sequence = 1_000_000 - 3 * n;
        match random.below(6) {
            0 => {
                let expires_ms = random.next() >> 20;
                let stored = [&expires_ms.to_le_bytes()[..], &value(&mut random, 40)].concat();
                rows.push((key.clone(), trailer(sequence, EntryKind::ExpiringPut), stored));
            }
            1 => rows.push((key.clone(), trailer(sequence, EntryKind::Delete), Vec::new())),
            _ => {}
        }
        let len = random.below(value_len_max) as usize;
        rows.push((key, trailer(sequence - 1, EntryKind::Put), value(&mut random, len)));
        bytes += len + 24;
        // What is compressed may be half as long.
        if bytes > LEN_MIN * if options.compression == Compression::None { 1 } else { 2 } {
            break;
        }
    }
    let mut builder = SstBuilder::new(options, GROUP, FileId::sst(9), Term(2));
    for (key, trailer, value) in &rows {
        builder.add(key, *trailer, value);
    }
    for n in 0..ranges {
        let [start, end] = [n, n + 1].map(|n| format!("\u{1}{:08}/field", n * 7).as_bytes().into());
        let sequences = vec![SequenceNumber(2_000_000 - n), SequenceNumber(n)];
        builder.add_range(Fragment { start, end, sequences });
    }
    Case { name, rows, file: builder.finish() }
}

fn plain() -> Case {
    case("blocks of 4 KiB", &SstOptions::default(), 400, 0)
}

fn compressed() -> Case {
    let compression = Compression::Lz4;
    case("LZ4", &SstOptions { compression, ..SstOptions::default() }, 600, 0)
}

fn packed() -> Case {
    let compression = Compression::ZSTD;
    case("zstd", &SstOptions { compression, ..SstOptions::default() }, 600, 0)
}

fn tiny_blocks() -> Case {
    let options = SstOptions {
        block_len: 512,
        restart_interval: 1,
        index_restart_interval: 1,
        filter_bits_per_key: 0,
        ..SstOptions::default()
    };
    case("blocks of 512 bytes, no filter", &options, 60, 0)
}

fn long_values() -> Case {
    let options =
        SstOptions { restart_interval: 1024, filter_bits_per_key: 20, ..SstOptions::default() };
    case("values over blocks, and range deletes", &options, 12_000, 300)
}

/// Counters: operands over values, over each other and over nothing, single ones and several in one.
fn operands() -> Case {
    let several = Step::add(5).then(Step::add(-3));
    let mut rows = Vec::new();
    for n in 0..2_000u64 {
        let key = format!("\u{1}{:08}/count", n * 7).into_bytes();
        let sequence = 1_000_000 - 3 * n;
        let one = Operand::add(n as i64 - 1_000, n << 20).encode();
        rows.push((key.clone(), trailer(sequence, EntryKind::Merge), one));
        if n % 2 == 0 {
            let operand = Operand { at_ms: n, step: several };
            rows.push((key.clone(), trailer(sequence - 1, EntryKind::Merge), operand.encode()));
        }
        if n % 3 == 0 {
            rows.push((key, trailer(sequence - 2, EntryKind::Put), n.to_string().into_bytes()));
        }
    }
    let mut builder = SstBuilder::new(&SstOptions::default(), GROUP, FileId::sst(9), Term(2));
    for (key, trailer, value) in &rows {
        builder.add(key, *trailer, value);
    }
    Case { name: "operands", rows, file: builder.finish() }
}

/// Of a load: entries have no numbers, and are read as of that in the edit.
fn loaded() -> Case {
    let mut random = Random::new(5);
    let mut builder = LoadBuilder::new(GROUP, Term(2), SstOptions::default(), 1 << 20);
    let mut rows = Vec::new();
    for n in 0..600u64 {
        let name = format!("{:08}/field", n * 7).into_bytes();
        let value = value(&mut random, 100 + n as usize % 100);
        let expires_ms = (n % 6 == 0).then_some(n << 20);
        let ended = builder.put(&name, &value, expires_ms, || Ok(FileId::sst(9))).unwrap();
        assert!(ended.is_none(), "it is one file");
        let key = [&[Keyspace::User as u8], &name[..]].concat();
        rows.push(match expires_ms {
            None => (key, trailer(LOADED_AT, EntryKind::Put), value),
            Some(at_ms) => {
                let stored = [&at_ms.to_le_bytes()[..], &value].concat();
                (key, trailer(LOADED_AT, EntryKind::ExpiringPut), stored)
            }
        });
    }
    let mut file = builder.finish().unwrap();
    let at = SequenceNumber(LOADED_AT);
    (file.meta.smallest_sequence, file.meta.largest_sequence) = (at, at);
    Case { name: "a load", rows, file }
}

impl Case {
    /// Reads everything in one go, and some by key. What is found must be right; returns whether anything failed.
    fn errs_or_is_right(&self, image: &Image, near: usize) -> bool {
        let Ok(reader) = block_on(SstReader::open(image, GROUP, &self.file.meta)) else {
            return true;
        };
        let (reader, mut errs) = (Arc::new(reader), false);
        let mut scan = SstScan::new(reader.clone(), image, b"", None, 1 << 20);
        let mut wanted = self.rows.iter();
        loop {
            match block_on(scan.advance()) {
                Ok(true) => {
                    let (found, row) = (scan.entry().unwrap(), wanted.next().expect("as many"));
                    assert_eq!((found.key, found.trailer), (&row.0[..], row.1), "{}", self.name);
                    assert_eq!(found.value, &row.2[..], "{}", self.name);
                }
                Ok(false) => {
                    assert!(wanted.next().is_none(), "{}: entries are missing", self.name);
                    break;
                }
                Err(_) => {
                    errs = true;
                    break;
                }
            }
        }
        let cache = LocalCache::new(0);
        for (key, trailer, value) in self.rows.iter().skip(near.saturating_sub(2)).take(5) {
            match block_on(reader.get(image, &cache, key, trailer.sequence())) {
                Ok(found) => {
                    let found = found.map(|(trailer, value)| (trailer, value.to_vec()));
                    assert_eq!(found, Some((*trailer, value.clone())), "{}", self.name);
                }
                Err(_) => errs = true,
            }
            let absent = [&key[..], b"!"].concat();
            match block_on(reader.get(image, &cache, &absent, trailer.sequence())) {
                Ok(found) => assert!(found.is_none(), "{}: what was never written", self.name),
                Err(_) => errs = true,
            }
        }
        errs
    }

    /// Flips one bit in `step`, each by itself.
    fn flip(&self, step: usize) {
        let bytes = self.file.bytes.to_vec();
        assert!(bytes.len() >= LEN_MIN, "{}: only {} bytes", self.name, bytes.len());
        let bits = bytes.len() * 8;
        let image = Image(RefCell::new(bytes));
        assert!(!self.errs_or_is_right(&image, 0), "{}: it is whole", self.name);
        let mut flipped = 0;
        for bit in (step / 2..bits).step_by(step) {
            image.0.borrow_mut()[bit / 8] ^= 1 << (bit % 8);
            let near = bit * self.rows.len() / bits;
            assert!(self.errs_or_is_right(&image, near), "{}: bit {bit} is inert", self.name);
            image.0.borrow_mut()[bit / 8] ^= 1 << (bit % 8);
            flipped += 1;
        }
        assert!(!self.errs_or_is_right(&image, 0), "{}: every bit was put back", self.name);
        eprintln!("coverage: flipped bits, file of {}: {flipped} of {bits}", self.name);
    }
}

/// docs/faults.md: E5, P12, P16
#[test]
fn a_flipped_bit_of_a_file_is_an_error_and_never_a_wrong_answer() {
    let files = [plain(), compressed(), packed(), tiny_blocks(), long_values()];
    files.iter().chain(&[operands(), loaded()]).for_each(|case| case.flip(SAMPLE));
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_file() {
    plain().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_compressed_file() {
    compressed().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_packed_file() {
    packed().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_file_of_tiny_blocks() {
    tiny_blocks().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_file_of_long_values() {
    long_values().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_file_of_operands() {
    operands().flip(1);
}

#[test]
#[ignore = "hundreds of thousands of scans: minutes, for the soak"]
fn every_bit_of_a_file_of_a_load() {
    loaded().flip(1);
}
