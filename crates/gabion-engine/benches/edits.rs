//! What it costs to install an edit in a large tree: processor time of one thread (Linux).
//!
//! `cargo bench -p gabion-engine --bench edits`
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]

use gabion_base::codec::{Put, Reader};
use gabion_base::{FileId, Frontier, LogPosition, MemTableId, SequenceNumber, Term, crc};
use gabion_engine::{Edit, FileMeta, Flushed, JobKind, Version, Versions};

const LEVELS: u8 = 7;

/// Nanoseconds that this thread has spent on a processor.
#[expect(clippy::disallowed_methods, reason = "the kernel tells the processor time in a file")]
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default()
}

fn key(n: u64) -> Vec<u8> {
    format!("\u{1}user{n:016}").into_bytes()
}

/// A file from one key to another.
fn file(number: u64, from: u64, to: u64) -> FileMeta {
    let chunk = crc::crc32c(&[0; 4096]);
    FileMeta {
        len: 4096,
        checksum: chunk,
        chunk_crcs: vec![chunk],
        smallest: key(from),
        largest: key(to),
        smallest_sequence: SequenceNumber(number),
        largest_sequence: SequenceNumber(number),
        entries: 1,
        ..FileMeta::new(FileId::sst(number), Term(1))
    }
}

/// A tree with so many files, a tenth of them in the level above the last, numbered as they come.
fn tree(files: u64) -> Version {
    let mut out = Vec::new();
    out.put_u8(LEVELS);
    for level in 0..LEVELS {
        let above = files / 10;
        let (first, count, width) = match level {
            5 => (1, above, 1000),
            6 => (1 + above, files - above, 100),
            _ => (0, 0, 0),
        };
        out.put_varint(count);
        for n in 0..count {
            let mut meta = Vec::new();
            file(first + n, n * width, n * width + width / 2).encode(&mut meta);
            out.put_prefixed(&meta);
        }
    }
    Version::decode(&mut Reader::new(&out, "tree")).expect("is in order")
}

fn edit(kind: JobKind, removed: Vec<(u8, FileId)>, added: Vec<(u8, FileMeta)>) -> Edit {
    let (memtable, frontier) = (MemTableId(1), Frontier::of(LogPosition(8)));
    let flushed = Flushed { memtable, frontier, sequence: SequenceNumber(1) };
    Edit {
        number: 1,
        kind,
        term: Term(1),
        removed,
        added,
        values: Vec::new(),
        flushed: (kind == JobKind::Flush).then_some(flushed),
        next_file: 1 << 40,
        floor: None,
        recipe: None,
    }
}

/// The mean of several, as the kernel counts in steps; the end of the version that is replaced is a
/// part of it.
fn measure(what: &str, tree: &Version, edit: &Edit, times: u32) {
    let begun = cpu_ns();
    for _ in 0..times {
        let mut versions = Versions::new(tree.clone());
        versions.apply(edit).expect("the edit fits");
    }
    println!("{what}: {} µs", (cpu_ns() - begun) / u64::from(times) / 1000);
}

fn main() {
    for files in [20_000, 60_000] {
        let tree = tree(files);
        let all: Vec<_> = tree.files().map(|(level, file)| (level, file.id)).collect();
        let some = all.iter().copied().step_by(all.len() / 10_000).take(10_000).collect();
        measure(
            &format!("10,000 of {files} files dropped"),
            &tree,
            &edit(JobKind::Drop, some, Vec::new()),
            20,
        );
        let fresh = file(1 << 30, 5, 6);
        let flush = edit(JobKind::Flush, Vec::new(), vec![(0, fresh)]);
        measure(&format!("a flush, {files} files"), &tree, &flush, 500);
        let one = all.iter().copied().skip(all.len() / 2).take(1).collect();
        let middle = tree.level(6)[all.len() / 2 - all.len() / 10].clone();
        let fresh = FileMeta { id: FileId::sst(1 << 30), ..(*middle).clone() };
        let compaction = edit(JobKind::Compaction, one, vec![(6, fresh)]);
        measure(&format!("a file replaced, {files} files"), &tree, &compaction, 500);
    }
}
