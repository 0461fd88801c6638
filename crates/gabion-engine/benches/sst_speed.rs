//! What it costs to build, scan and read files and to fill MemTables: processor time of one thread (Linux),
//! files in memory.
//!
//! `cargo bench -p gabion-engine --bench sst_speed -- [MiB] [files]`; with `files` no look-ups and
//! no MemTables.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use gabion_base::{FileId, GroupId, MemTableId, Result, SequenceNumber, Term};
use gabion_engine::{
    Compression, EntryKind, FileMeta, FileSource, FinishedFile, LocalCache, MemTable, SstBuilder,
    SstOptions, SstReader, SstScan, Trailer,
};
use gabion_media::{AlignedBuf, Bytes};
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const GROUP: GroupId = GroupId(1);
const FILE_LEN: u64 = 16 << 20;

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("files in memory never wait"),
    }
}

struct Memory(Vec<FinishedFile>);

impl FileSource for Memory {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        // A copy stands for the read from a disk.
        let bytes = &self.0[file.number as usize].bytes;
        Ok(Bytes::copy_from_slice(&bytes[offset as usize..offset as usize + len]))
    }
}

fn key(n: u64) -> [u8; 20] {
    let mut key = *b"\x01user000000000000000";
    let mut n = n;
    for digit in key[5..].iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

fn value(n: u64, len: usize, into: &mut Vec<u8>) {
    // Text-like: half of it repeats.
    into.clear();
    let mut random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while into.len() < len {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        into.extend_from_slice(&random.to_le_bytes());
        into.extend_from_slice(b"the same");
    }
    into.truncate(len);
}

/// Nanoseconds that this thread ran: what other programs do counts for little.
#[expect(clippy::disallowed_methods, reason = "the kernel tells the processor time in a file")]
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this is Linux");
    let first = stat.split(' ').next().and_then(|field| field.parse().ok());
    first.expect("the first field is a number of nanoseconds")
}

fn report(what: &str, started: u64, entries: u64, bytes: u64) {
    let us = (cpu_ns() - started) as f64 / 1e3;
    println!(
        "  {what:<34} {:7.3} us/kB {:8.1} ns/entry {:8.0} MB/s",
        us / (bytes as f64 / 1e3),
        us * 1e3 / entries as f64,
        bytes as f64 / us
    );
}

fn builder(options: &SstOptions, number: usize) -> SstBuilder {
    let id = FileId::sst(number as u64);
    let buffer = AlignedBuf::with_capacity(FILE_LEN as usize + (1 << 20));
    SstBuilder::in_buffer(options, GROUP, id, Term(1), buffer)
}

fn build(options: &SstOptions, values: &[Vec<u8>], entries: u64) -> Vec<FinishedFile> {
    let mut files = Vec::new();
    let mut open = builder(options, 0);
    for n in 0..entries {
        let trailer = Trailer::new(SequenceNumber(n), EntryKind::Put);
        open.add(&key(n), trailer, &values[(n % values.len() as u64) as usize]);
        if open.estimated_len() >= FILE_LEN {
            files.push(open.finish());
            open = builder(options, files.len());
        }
    }
    if !open.is_empty() {
        files.push(open.finish());
    }
    files
}

fn rebuild(options: &SstOptions, source: &Memory, readers: &[Arc<SstReader>]) -> usize {
    let mut made = 0;
    let mut open = builder(options, 0);
    for reader in readers {
        let mut scan = SstScan::new(reader.clone(), source, b"", None, 1 << 20);
        while now(scan.advance()).expect("the file is whole") {
            let entry = scan.entry().expect("the scan is at an entry");
            open.add(entry.key, entry.trailer, entry.value);
            if open.estimated_len() >= FILE_LEN {
                made += black_box(open.finish()).bytes.len();
                open = builder(options, 0);
            }
        }
    }
    if !open.is_empty() {
        made += black_box(open.finish()).bytes.len();
    }
    made
}

fn scan(source: &Memory, readers: &[Arc<SstReader>]) -> u64 {
    let mut sum = 0;
    for reader in readers {
        let mut scan = SstScan::new(reader.clone(), source, b"", None, 1 << 20);
        while now(scan.advance()).expect("the file is whole") {
            sum += black_box(scan.entry()).expect("the scan is at an entry").value.len() as u64;
        }
    }
    sum
}

fn gets(source: &Memory, readers: &[Arc<SstReader>], metas: &[FileMeta], entries: u64, what: &str) {
    let cache = LocalCache::new(1 << 30);
    let count = 300_000u64;
    let pick = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % entries;
    let get = |n: u64| {
        let key = key(n);
        let at = metas.partition_point(|meta| meta.largest[..] < key[..]);
        now(readers[at].get(source, &cache, &key, SequenceNumber::MAX)).expect("the file is whole")
    };
    (0..count).for_each(|i| assert!(get(pick(i)).is_some()));
    let started = cpu_ns();
    (0..count).for_each(|i| assert!(get(pick(i)).is_some()));
    report(what, started, count, count * 1000);
}

fn memtable(values: &[Vec<u8>], len: usize) {
    let entries = (64 << 20) / len as u64;
    let pick = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    // As in a tree: every table but the first knows what keys begin with.
    let before = MemTable::new(MemTableId(1));
    for n in 0..1000 {
        before.insert(&key(pick(n)), SequenceNumber(n), EntryKind::Put, b"");
    }
    let table = before.successor();
    let started = cpu_ns();
    for n in 0..entries {
        let value = &values[(n % values.len() as u64) as usize];
        table.insert(&key(pick(n)), SequenceNumber(n), EntryKind::Put, value);
    }
    report("MemTable insert, random keys", started, entries, entries * len as u64);
    let started = cpu_ns();
    for n in 0..entries {
        assert!(table.get(&key(pick(n)), SequenceNumber::MAX).is_some());
    }
    report("MemTable get, random keys", started, entries, entries * len as u64);
    let started = cpu_ns();
    let mut iter = table.iter();
    iter.seek_to_first();
    while black_box(iter.entry()).is_some() {
        iter.advance();
    }
    report("MemTable iterate", started, entries, entries * len as u64);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let total = args.first().and_then(|mib| mib.parse().ok()).unwrap_or(256u64) << 20;
    for (len, compression) in
        [(1000, Compression::None), (100, Compression::None), (1000, Compression::Lz4)]
    {
        let options = SstOptions { compression, ..SstOptions::default() };
        let entries = total / len as u64;
        println!("values of {len} bytes, {compression:?}, {} MiB", total >> 20);
        let values: Vec<Vec<u8>> = (0..1000)
            .map(|n| {
                let mut out = Vec::new();
                value(n, len, &mut out);
                out
            })
            .collect();
        let started = cpu_ns();
        let files = build(&options, &values, entries);
        report("build", started, entries, total);
        let source = Memory(files);
        let metas: Vec<FileMeta> = source.0.iter().map(|file| file.meta.clone()).collect();
        let open = |meta| Arc::new(now(SstReader::open(&source, GROUP, meta)).expect("whole"));
        let readers: Vec<Arc<SstReader>> = metas.iter().map(open).collect();
        let started = cpu_ns();
        assert_eq!(scan(&source, &readers), entries * len as u64);
        report("scan, 1 MiB reads", started, entries, total);
        let started = cpu_ns();
        black_box(rebuild(&options, &source, &readers));
        report("scan and build", started, entries, total);
        if args.len() > 1 {
            continue;
        }
        gets(&source, &readers, &metas, entries, "get, cached (per kB: n/a)");
        memtable(&values, len);
    }
}
