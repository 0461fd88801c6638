//! Tells the program its sources: one number for the text of everything that decides what a run of
//! an engine does and reports. Programs of peers are built apart from `gabion bench`, which refuses
//! one with another number. A commit would say less, as it leaves out later changes.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "how a build script speaks to cargo, and what it reads"
)]

use std::io;
use std::path::{Path, PathBuf};

/// The sources, from this package's directory: the instrument, and the programs of peers with their
/// settings and versions. A missing one (a copy without peers) does not count.
const SOURCES: [&str; 11] = [
    "Cargo.toml",
    "src",
    "../gabion-base/src",
    "../gabion-proc/src",
    "../../baseline/src",
    "../../peers/.cargo",
    "../../peers/Cargo.lock",
    "../../peers/Cargo.toml",
    "../../peers/fjall",
    "../../peers/rocksdb",
    "../../peers/rocksdb-replica",
];

/// Files at or below a path, in the order of their names.
fn files(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        let entries = path.read_dir()?.map(|entry| entry.map(|entry| entry.path()));
        let mut entries: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
        entries.sort();
        return entries.iter().try_for_each(|entry| files(entry, found));
    }
    found.push(path.to_path_buf());
    Ok(())
}

/// FNV-1a of 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>), further on.
fn hash(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for source in SOURCES.map(Path::new).into_iter().filter(|source| source.exists()) {
        println!("cargo::rerun-if-changed={}", source.display());
        let mut found = Vec::new();
        files(source, &mut found)?;
        for file in found {
            let text = std::fs::read(&file)?;
            // Names and lengths too, so that no text can move from one file to the next unseen.
            sum = hash(sum, file.to_string_lossy().as_bytes());
            sum = hash(sum, &(text.len() as u64).to_le_bytes());
            sum = hash(sum, &text);
        }
    }
    println!("cargo::rustc-env=GABION_WORKLOAD_SOURCES={sum:016x}");
    Ok(())
}
