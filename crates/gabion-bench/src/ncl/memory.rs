//! Memory of a peer beyond what it lends, and of an interposed program beyond its log.

use super::house::{COPIES, House, failed};
use super::programs::{ProgramChoice, Server, Stage};
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
/// Memory files of an interposed program: the one that its processes share, and mirrors.
const OWN: &str = "gabion-ncl";
const MIRROR: &str = "gabion-ncl-mirror ";
/// A turn of writing, and how many of them there are at most.
const TURN: Duration = Duration::from_millis(500);
const TURNS_MAX: usize = 200;
const CLIENTS: u64 = 4;
/// Before memory is looked at.
const REST: Duration = Duration::from_secs(1);

pub(super) fn measure(programs: &[ProgramChoice], bench: &mut Bench<'_>) -> Result<()> {
    lend(bench)?;
    for round in 1..=bench.args.rounds {
        for program in programs {
            interposed(*program, round, bench)?;
        }
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
    Ok(own.bytes() + MemoryFiles::of(process)?.blocks)
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

/// About as many writes as have a program write a log of a length.
const fn requests(program: ProgramChoice, len: u64) -> u64 {
    match program {
        // A command, with a key of 23 bytes and a value of 100.
        ProgramChoice::Redis => len / 151,
        // A page, with its head.
        ProgramChoice::Sqlite => len / 4120,
        // A batch of one, with its head.
        ProgramChoice::Rocksdb => len / 142,
        // The log of its tables is as long.
        ProgramChoice::Postgresql => 1,
    }
}

/// A program that has written so many bytes of logs at peers, and the same without the interposer.
fn interposed(program: ProgramChoice, round: u64, bench: &mut Bench<'_>) -> Result<()> {
    let name = program.as_str();
    bench.begin(&format!("memory of an interposed program: {name}, round {round}"))?;
    let mut house = House::start(bench, Side::Shared, COPIES)?;
    let requests = requests(program, bench.args.log_size);
    let stage = Stage::new(bench, "memory")?.of_records(requests).of_clients(CLIENTS);
    let mut plain = program.start(&stage, Side::Unsynced, None)?;
    let mut at_peers = program.start(&stage, Side::Shared, Some(&mut house))?;
    // The same data, so that the programs themselves use the same.
    for server in [&mut plain, &mut at_peers] {
        server.load(bench.stop)?;
        if !program.is_loaded_by_requests() {
            write(program, requests, server.as_mut(), bench)?;
        }
    }
    // Both write their tables in the background.
    std::thread::sleep(REST);
    let (owner, without) = (at_peers.process().id(), tree(plain.process().id())?);
    let child = tree(child_of(owner)?)?;
    let files = MemoryFiles::of_run(child.iter().chain([&owner]))?;
    let (program, without) = (together(&child)?, together(&without)?);
    let owner = resident(owner)?.bytes();
    // Regions that are mapped are the peers' memory, which is on other machines in use.
    let grown = program.saturating_sub(without);
    let key = Key {
        program: name,
        disk: Some(Disk::Local),
        ..Key::library(Part::Memory, "interposed", Side::Shared, bench.args.log_size)
    };
    let figures = vec![
        ("log_bytes", files.log as f64),
        ("owner_bytes", owner as f64),
        ("mirror_bytes", files.blocks as f64),
        ("program_bytes", grown as f64),
        // The owner is a process of ours.
        ("above_log_bytes", (files.blocks + grown) as f64 - files.log as f64),
    ];
    bench.keep(Row::new(key, round, figures))
}

/// So many requests, and some more of the last turn.
fn write(
    program: ProgramChoice,
    requests: u64,
    server: &mut dyn Server,
    bench: &Bench<'_>,
) -> Result<()> {
    let (mut left, mut turns) = (requests, 0);
    while left > 0 && turns < TURNS_MAX {
        bench.check()?;
        let drove = server.drive(program.writes()[0], CLIENTS, TURN, bench.stop)?;
        (left, turns) = (left.saturating_sub(drove.count), turns + 1);
    }
    Ok(())
}

/// Resident bytes by kind. Those of memory files are not among them.
struct Resident {
    anon: u64,
    file: u64,
}

impl Resident {
    const fn bytes(&self) -> u64 {
        self.anon + self.file
    }
}

/// Memory of all processes of one program.
fn together(processes: &[u32]) -> Result<u64> {
    let each = processes.iter().map(|process| {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
        // Memory that a fork left to several counts once, in parts.
        Ok(Resident { anon: kilobytes(&text, "Pss_Anon"), file: resident(*process)?.file })
    });
    Ok(sum(&each.collect::<Result<Vec<_>>>()?))
}

/// Files that processes map are those of the one that maps most.
fn sum(all: &[Resident]) -> u64 {
    let anon: u64 = all.iter().map(|one| one.anon).sum();
    anon + all.iter().map(|one| one.file).max().unwrap_or(0)
}

fn resident(id: u32) -> Result<Resident> {
    let path = format!("/proc/{id}/status");
    let text = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
    Ok(read_resident(&text))
}

fn read_resident(text: &str) -> Resident {
    Resident { anon: kilobytes(text, "RssAnon"), file: kilobytes(text, "RssFile") }
}

/// The bytes of a line, none if it is not there.
fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// A process and all that it started.
fn tree(id: u32) -> Result<Vec<u32>> {
    let mut all = vec![id];
    let mut at = 0;
    while let Some(process) = all.get(at) {
        all.extend(children(*process)?);
        at += 1;
    }
    Ok(all)
}

/// Those that its first thread started.
fn children(id: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{id}/task/{id}/children");
    let text = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
    Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

/// The first child of a process.
fn child_of(id: u32) -> Result<u32> {
    let missing = || Error::unavailable(format!("process {id} has started nothing"));
    children(id)?.first().copied().ok_or_else(missing)
}

/// Memory files of processes: the mirrors of an interposed program, the regions of a peer.
#[derive(Default)]
struct MemoryFiles {
    /// Bytes of mirrors.
    log: u64,
    /// Bytes that all of them take.
    blocks: u64,
    seen: BTreeSet<u64>,
}

impl MemoryFiles {
    fn of(id: u32) -> Result<Self> {
        let mut found = Self::default();
        found.add(id, &|_| true)?;
        Ok(found)
    }

    /// Those of processes under one `gabion ncl run`, but for the peers'.
    fn of_run<'a>(processes: impl Iterator<Item = &'a u32>) -> Result<Self> {
        let mut found = Self::default();
        for process in processes {
            found.add(*process, &|name| name.starts_with(OWN))?;
        }
        Ok(found)
    }

    fn add(&mut self, id: u32, is_wanted: &dyn Fn(&str) -> bool) -> Result<()> {
        let path = format!("/proc/{id}/fd");
        self.read(Path::new(&path), is_wanted).map_err(failed(Path::new(&path)))
    }

    fn read(
        &mut self,
        descriptors: &Path,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> std::io::Result<()> {
        for entry in std::fs::read_dir(descriptors)? {
            let path = entry?.path();
            // It may be closed by now.
            let Ok(target) = std::fs::read_link(&path) else { continue };
            let target = target.to_string_lossy();
            let Some(name) = target.strip_prefix("/memfd:") else { continue };
            let metadata = std::fs::metadata(&path)?;
            if is_wanted(name) && self.seen.insert(metadata.ino()) {
                self.blocks += metadata.blocks() * 512;
                if name.starts_with(MIRROR) {
                    self.log += metadata.len();
                }
            }
        }
        Ok(())
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

    #[test]
    fn processes_that_a_process_started_are_found_and_counted_with_it() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // The children of a thread are those that it started.
        let text = std::fs::read_to_string("/proc/thread-self/children").unwrap();
        let trees = (tree(child.id()).unwrap(), together(&[child.id()]).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(text.trim(), child.id().to_string());
        assert!(trees.0 == [child.id()] && trees.1 > 0, "{trees:?}");
        assert!(together(&[u32::MAX]).is_err() && tree(u32::MAX).is_err());
        let all = [(100, 30), (20, 40)].map(|(anon, file)| Resident { anon, file });
        assert_eq!((sum(&all), sum(&[])), (160, 0));
    }
}
