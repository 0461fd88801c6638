//! `gabion ncl demo`: a program's machine is lost under load, and nothing that it acknowledged.
//!
//! ```text
//!  controller, 3 peers ─ ncl run ─ program in before/ ◄── clients: each acknowledgement is counted
//!                          │ half of the writes: the log is compacted, its file synced ─► disk/
//!                          ╳ SIGKILL, amid writes; before/ is removed
//!  controller, 3 peers ─ ncl run ─ program in after/, which has the files of disk/ alone
//!                          └ every acknowledged write is read
//! ```
//!
//! **What a lost machine leaves.** Without a file system of its own nobody can drop pages that were
//! not synced. The demo knows them otherwise: programs sync a compacted log's file as a whole, so
//! it copies that file when its program says so, and takes along nothing else. All that the program
//! wrote to files later, synced or not, is lost but for what lies at the peers.
//!
//! - [`house`]: processes and the directory. [`program`]: redis-server and sqlite3 as clients.
//! - [`load`]: writes, counted. [`speed`]: the table.

mod house;
mod load;
mod program;
mod speed;

use super::files::at;
use crate::screen;
use crate::units::{count, size};
use clap::Args;
use gabion_base::{Error, ErrorKind, Result};
use gabion_bench::grouped;
use house::{House, PEERS};
use load::{Load, Read};
use program::{Durability, Program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    /// The program that is run [default: redis-server, or else sqlite3]
    #[arg(long)]
    program: Option<Program>,
    /// Writes until it is killed, 100 to 10000000
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    writes: u64,
    /// Bytes of a value, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size: u32,
    /// Seconds for which each speed is measured, 1 to 60
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// The temporary directory is made here. A file system of memory has syncs that cost nothing
    /// [default: the system's place for such]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Claim a write that was never made: the demo must find it lost
    #[arg(long, hide = true)]
    plant_loss: bool,
}

/// The place of loads, and their program.
struct Demo<'a> {
    options: &'a DemoOptions,
    program: Program,
    house: House,
}

pub(super) fn run(options: &DemoOptions) -> Result<u8> {
    let program = choose(options.program)?;
    house::watch_signals()?;
    let ended = start(options, program);
    match (house::signal(), ended) {
        (Some(signal), _) => Ok(128 + signal as u8),
        (None, ended) => ended,
    }
}

fn start(options: &DemoOptions, program: Program) -> Result<u8> {
    let name = version(program);
    screen::put(&format!(
        "gabion ncl demo: {name}, {}, under `gabion ncl run`\n\n",
        program.synced()
    ));
    let parent = options.directory.clone().unwrap_or_else(std::env::temp_dir);
    let house = House::new(&parent)?;
    say("peers", &format!("{PEERS} log peers and a controller, in {}", house.dir.display()));
    say("files", &format!("{} lie at the peers, all others in the directory", program.globs()));
    let mut demo = Demo { options, program, house };
    let is_lost = demo.lose_the_machine()?;
    let table = speed::table(&mut demo)?;
    screen::put(&table);
    Ok(u8::from(is_lost))
}

/// A step that was taken.
fn say(step: &str, text: &str) {
    screen::put(&format!("  {step:<9} {text}\n"));
}

/// The program that is installed.
fn choose(wanted: Option<Program>) -> Result<Program> {
    let candidates = wanted.map_or(vec![Program::Redis, Program::Sqlite], |one| vec![one]);
    let is_there = |one: &&Program| gabion_mirror::program::find(Path::new(one.binary())).is_ok();
    if let Some(found) = candidates.iter().find(is_there) {
        return Ok(*found);
    }
    let names: Vec<&str> = candidates.iter().map(|one| one.binary()).collect();
    let text = format!(
        "{} is needed. Debian, Ubuntu: apt install redis-server, or sqlite3. Fedora: dnf install \
         redis, or sqlite. Arch: pacman -S redis, or sqlite",
        names.join(" or ")
    );
    Err(Error::new(ErrorKind::NotFound, text))
}

/// Its name and version, as it says itself.
fn version(program: Program) -> String {
    let output = Command::new(program.binary()).arg("--version").output();
    let said =
        output.map_or_else(|_| String::new(), |it| String::from_utf8_lossy(&it.stdout).into());
    let mut words = said.split_whitespace();
    let version = match program {
        Program::Redis => words.find_map(|word| word.strip_prefix("v=")),
        Program::Sqlite => words.next(),
    };
    format!("{} {}", program.binary(), version.unwrap_or("of an unknown version"))
}

impl Demo<'_> {
    /// Whether something that was acknowledged is lost.
    fn lose_the_machine(&mut self) -> Result<bool> {
        let Self { options, program, house } = self;
        let (before, disk) = (house.directory("before")?, house.directory("disk")?);
        let mut running = program.start(house, &before, "demo", Durability::AtPeers)?;
        let load = Load::start(&running, program.clients(), options.size)?;
        load.wait_for(options.writes / 2)?;
        load.compact(&running)?;
        let kept = copy(&before, &disk, *program)?;
        load.wait_for(options.writes)?;
        running.process.kill();
        let mut written = load.end()?;
        drop(running);
        say(
            "load",
            &format!(
                "{} writes of {} acknowledged to {}, with {} at half of them",
                grouped(written.iter().sum()),
                size(u64::from(options.size)),
                count(written.len() as u64, "client"),
                program.compaction()
            ),
        );
        say(
            "kill",
            &format!("SIGKILL to {} and gabion ncl run, amid the writes", program.binary()),
        );
        std::fs::remove_dir_all(&before).map_err(at(&before))?;
        let after = house.dir.join("after");
        std::fs::rename(&disk, &after).map_err(at(&disk))?;
        say(
            "move",
            &format!(
                "before/ is gone; after/ has what {} had synced: {kept}",
                program.compaction()
            ),
        );
        let begun = Instant::now();
        let running = program.start(house, &after, "demo", Durability::AtPeers)?;
        say("recover", &format!("it serves again after {} ms", begun.elapsed().as_millis()));
        if options.plant_loss {
            written[0] += 5;
        }
        let read = load::read(&running, &written, options.size)?;
        Ok(tell(&read))
    }
}

/// Says what is lost, and whether anything is.
fn tell(read: &Read) -> bool {
    let acknowledged = read.acknowledged;
    say(
        "read",
        &format!(
            "{} of {} acknowledged writes are there as they were written; {} more, whose answers \
             the kill took",
            grouped(acknowledged - read.missing - read.different),
            grouped(acknowledged),
            read.unacknowledged
        ),
    );
    let is_lost = read.missing + read.different > 0;
    screen::put(&match is_lost {
        false => "\n  Nothing that was acknowledged is lost.\n".to_owned(),
        true => format!("\n  LOST: {} are missing, {} differ.\n", read.missing, read.different),
    });
    is_lost
}

/// Copies what the program has synced, and says how much it is.
fn copy(from: &Path, to: &Path, program: Program) -> Result<String> {
    let (mut files, mut bytes, mut left) = (0, 0, vec![from.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).map_err(at(&next))? {
            let path = entry.map_err(at(&next))?.path();
            if path.is_dir() {
                left.push(path);
            } else if program.is_on_disk(&path) {
                let target = to.join(path.strip_prefix(from).unwrap_or(&path));
                let parent = target.parent().unwrap_or(to);
                std::fs::create_dir_all(parent).map_err(at(parent))?;
                bytes += std::fs::copy(&path, &target).map_err(at(&path))?;
                files += 1;
            }
        }
    }
    if files == 0 {
        return Err(Error::io(format!("{}: nothing was synced there", from.display())));
    }
    Ok(format!("{}, {}", count(files, "file"), size(bytes)))
}
