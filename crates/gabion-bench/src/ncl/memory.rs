//! Memory of a peer beyond what it lends, and of an interposed program beyond its log.

use super::house::{COPIES, House, failed};
use super::programs::{Load, ProgramChoice, Stage};
use super::rows::{Disk, Key, Row, Side};
use super::{Bench, Part};
use gabion_base::units::MIB;
use gabion_base::{Error, Result, Term};
use gabion_fabric::remote::PeerLink;
use gabion_media::remote::message::{Parts, TRANSFER_LEN_MAX};
use gabion_media::remote::{Part as Piece, Reply, Request};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const REGION_LEN: u64 = 64 * MIB;
/// The interposer's own memory file.
const SHARED: &str = "gabion-ncl ";
/// A log takes so many turns of writing at most to get there.
const TURNS_MAX: usize = 200;

pub(super) fn measure(programs: &[ProgramChoice], bench: &mut Bench<'_>) -> Result<()> {
    lend(bench)?;
    if programs.contains(&ProgramChoice::Redis) {
        interposed(bench)?;
    }
    Ok(())
}

/// A peer that lends all that it has, each byte of which is written.
fn lend(bench: &mut Bench<'_>) -> Result<()> {
    let memory = bench.args.memory;
    bench.begin(&format!("memory of a peer that lends {} MiB", memory / MIB))?;
    let mut house = House::with_memory(bench, Side::Shared, 1, memory)?;
    let peer = &mut house.peers[0];
    let mut left = memory;
    while left > 0 {
        bench.check()?;
        let len = left.min(REGION_LEN);
        lend_one(&mut peer.link, len)?;
        left -= len;
    }
    let used = used_by(peer.process.id())?;
    let key = Key::library(Part::Memory, "lent", Side::Shared, memory);
    let figures = vec![("used_bytes", used as f64), ("ratio", used as f64 / memory as f64)];
    bench.keep(Row::new(key, 1, figures))
}

/// Bytes of memory that a process uses. Those of its memory files count whether it has them mapped
/// or not.
pub(crate) fn used_by(process: u32) -> Result<u64> {
    let own = resident(process)?;
    Ok(own.anon + own.file + MemoryFiles::of(process)?.blocks)
}

fn lend_one(link: &mut PeerLink, bytes: u64) -> Result<()> {
    let term = Term(1);
    let request = Request::Lend { owner: "bench", label: b"log", epoch: 1, term, bytes };
    let (region, key) = match link.call(&request)? {
        Reply::Lent { region, key, .. } => (region, key),
        other => return Err(refused(&other)),
    };
    let data = vec![1; TRANSFER_LEN_MAX];
    let mut offset = 0;
    while offset < bytes {
        let some = (bytes - offset).min(data.len() as u64);
        let parts = [Piece { region, key, offset, data: &data[..some as usize] }];
        match link.call(&Request::Write { term, parts: Parts::Given(&parts) })? {
            Reply::Written => offset += some,
            other => return Err(refused(&other)),
        }
    }
    Ok(())
}

fn refused(reply: &Reply) -> Error {
    match reply {
        Reply::Refused(refusal) => refusal.error(),
        other => Error::corruption(format!("the peer replies {other:?}")),
    }
}

/// Redis with a log at peers, and the same without the interposer.
fn interposed(bench: &mut Bench<'_>) -> Result<()> {
    bench.begin("memory of an interposed program")?;
    let mut house = House::start(bench, Side::Shared, COPIES)?;
    let redis = ProgramChoice::Redis;
    let stage = Stage::new(bench, "memory")?;
    let mut plain = redis.start(&stage, Side::Unsynced, None)?;
    let mut at_peers = redis.start(&stage, Side::Shared, Some(&mut house))?;
    let time = Duration::from_millis(500);
    let mut requests = 0;
    let child = child_of(at_peers.process().id())?;
    for _ in 0..TURNS_MAX {
        bench.check()?;
        requests += at_peers.drive(Load::WRITES, 16, time, bench.stop)?.count;
        if MemoryFiles::of(child)?.log >= bench.args.log_size {
            break;
        }
    }
    // The same data, so that the programs themselves use the same.
    let mut left = requests;
    while left > 0 {
        bench.check()?;
        left = left.saturating_sub(plain.drive(Load::WRITES, 16, time, bench.stop)?.count);
    }
    let MemoryFiles { log, blocks } = MemoryFiles::of(child)?;
    let owner = resident(at_peers.process().id())?;
    let (program, without) = (resident(child)?, resident(plain.process().id())?);
    // Regions that are mapped are the peers' memory, which is on other machines in use.
    let grown = (program.anon + program.file).saturating_sub(without.anon + without.file);
    let all = owner.anon + owner.file + blocks + grown;
    let key = Key {
        program: "redis",
        disk: Some(Disk::Local),
        ..Key::library(Part::Memory, "interposed", Side::Shared, log)
    };
    let figures = vec![
        ("owner_bytes", (owner.anon + owner.file) as f64),
        ("mirror_bytes", blocks as f64),
        ("program_bytes", grown as f64),
        ("above_log_bytes", all as f64 - log as f64),
    ];
    bench.keep(Row::new(key, 1, figures))
}

/// Resident bytes by kind. Those of memory files are not among them.
struct Resident {
    anon: u64,
    file: u64,
}

fn resident(id: u32) -> Result<Resident> {
    let path = format!("/proc/{id}/status");
    let text = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
    Ok(read_resident(&text))
}

fn read_resident(text: &str) -> Resident {
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0) * 1024
    };
    Resident { anon: line("RssAnon"), file: line("RssFile") }
}

/// The first child of a process.
fn child_of(id: u32) -> Result<u32> {
    let path = format!("/proc/{id}/task/{id}/children");
    let text = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| Error::unavailable(format!("process {id} has started nothing")))
}

/// The memory files of a process: the mirrors of an interposed one, the regions of a peer.
#[derive(Default)]
struct MemoryFiles {
    /// Bytes of them but those that the application's processes share.
    log: u64,
    /// Bytes that all of them take.
    blocks: u64,
}

impl MemoryFiles {
    fn of(id: u32) -> Result<Self> {
        let path = format!("/proc/{id}/fd");
        Self::read(Path::new(&path)).map_err(failed(Path::new(&path)))
    }

    fn read(descriptors: &Path) -> std::io::Result<Self> {
        let (mut found, mut seen) = (Self::default(), BTreeSet::new());
        for entry in std::fs::read_dir(descriptors)? {
            let path = entry?.path();
            // It may be closed by now.
            let Ok(target) = std::fs::read_link(&path) else { continue };
            let target = target.to_string_lossy();
            let Some(name) = target.strip_prefix("/memfd:") else { continue };
            let metadata = std::fs::metadata(&path)?;
            if seen.insert(metadata.ino()) {
                found.blocks += metadata.blocks() * 512;
                if !name.starts_with(SHARED) {
                    found.log += metadata.len();
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_are_read_by_kind_and_missing_lines_are_none() {
        let read = read_resident("VmRSS:\t 10 kB\nRssAnon:\t  4 kB\nRssFile:\t 5 kB\n");
        assert_eq!((read.anon, read.file), (4096, 5120));
        assert!(resident(std::process::id()).unwrap().anon > 0);
        assert_eq!(read_resident("RssFile:\t 5 kB\n").anon, 0);
        assert!(resident(u32::MAX).is_err());
    }
}
