//! What each codec makes of files, and what that costs: processor time of one thread (Linux), files in memory.
//!
//! `cargo bench -p gabion-engine --bench codecs -- [FILE]`: the lines of a file as values, or 100,000 rows of JSON. Building
//! and scanning a file that is not compressed is taken off, so that what is left is the codec's.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use gabion_base::{FileId, GroupId, Result, SequenceNumber, Term};
use gabion_engine::{
    Compression, EntryKind, FileSource, FinishedFile, SstBuilder, SstOptions, SstReader, SstScan,
    Trailer,
};
use gabion_media::Bytes;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const GROUP: GroupId = GroupId(1);
/// The shortest of so many runs.
const RUNS: u32 = 3;

struct Memory(FinishedFile);

impl FileSource for Memory {
    async fn read(&self, _: FileId, offset: u64, len: usize) -> Result<Bytes> {
        Ok(self.0.bytes.slice(offset as usize..offset as usize + len))
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("files in memory never wait"),
    }
}

/// Microseconds that this thread ran.
#[expect(clippy::disallowed_methods, reason = "the kernel tells the processor time in a file")]
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this is Linux");
    let first = stat.split(' ').next().and_then(|field| field.parse::<f64>().ok());
    first.expect("the first field is a number of nanoseconds") / 1e3
}

/// Rows as an application keeps them: names that repeat, numbers that do not, a few words.
fn rows() -> Vec<Vec<u8>> {
    const WORDS: [&str; 12] = [
        "order", "shipped", "to", "the", "address", "of", "a", "customer", "who", "asked", "for",
        "it",
    ];
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % n
    };
    let mut row = |n: u64| {
        let state = ["new", "paid", "sent", "done"][below(4) as usize];
        let note: Vec<&str> = (0..8).map(|_| WORDS[below(12) as usize]).collect();
        format!(
            "{{\"id\": {}, \"user\": \"user{:08}\", \"at\": {}, \"amount\": {}.{:02}, \"state\": \
             \"{state}\", \"note\": \"{}\"}}",
            n * 7_919,
            below(100_000_000),
            1_700_000_000_000 + below(10_000_000_000),
            below(1_000),
            below(100),
            note.join(" ")
        )
        .into_bytes()
    };
    (0..100_000).map(&mut row).collect()
}

/// The file, and microseconds for building and for scanning it.
fn measure(values: &[Vec<u8>], compression: Compression) -> (u64, f64, f64) {
    let options = SstOptions { compression, ..SstOptions::default() };
    let (mut len, mut build_us, mut scan_us) = (0, f64::MAX, f64::MAX);
    for _ in 0..RUNS {
        let started = cpu_us();
        let mut builder = SstBuilder::new(&options, GROUP, FileId::sst(1), Term(1));
        for (n, value) in values.iter().enumerate() {
            let key = format!("\u{1}row{n:013}");
            let trailer = Trailer::new(SequenceNumber(n as u64), EntryKind::Put);
            builder.add(key.as_bytes(), trailer, value);
        }
        let file = builder.finish();
        build_us = build_us.min(cpu_us() - started);
        len = file.meta.len;
        let source = Memory(file);
        let reader = now(SstReader::open(&source, GROUP, &source.0.meta)).expect("whole");
        let started = cpu_us();
        let mut scan = SstScan::new(Arc::new(reader), &source, b"", None, 1 << 20);
        let mut found = 0;
        while now(scan.advance()).expect("the file is whole") {
            found += 1;
        }
        assert_eq!(found, values.len());
        scan_us = scan_us.min(cpu_us() - started);
    }
    (len, build_us, scan_us)
}

#[expect(clippy::disallowed_methods, reason = "the values are a file's lines")]
fn main() {
    let values = match std::env::args().skip(1).find(|arg| arg != "--bench") {
        None => rows(),
        Some(file) => {
            let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
            text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
        }
    };
    let (plain, build_us, scan_us) = measure(&values, Compression::None);
    let kb = plain as f64 / 1e3;
    println!("{} values, {kb:.0} kB; blocks of 4 KiB", values.len());
    println!("codec      of the bytes   in, us/kB  out, us/kB");
    let levels = [1, 3, 6, 9, 19].map(|level| Compression::Zstd { level });
    for codec in [Compression::Lz4].into_iter().chain(levels) {
        let (len, build, scan) = measure(&values, codec);
        println!(
            "{codec:<10} {:12.3} {:11.2} {:11.2}",
            len as f64 / plain as f64,
            (build - build_us) / kb,
            (scan - scan_us) / kb
        );
    }
}
