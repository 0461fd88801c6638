//! Names that one process changes while two others write by them.
//!
//! ```text
//!  X, Z   a.db b.db c.db: renamed, exchanged, linked and unlinked, and now and then not split
//!  Y      in a directory that is moved, d or e
//! ```
//!
//! Each file has a mode of its own, by which the writers know what they have open. Each writer has
//! its own range in all files.

use crate::allowed::{Allowed, History};
use crate::bytes::bytes;
use crate::common::Rng;
use crate::split_house::{House, results};
use crate::writers::{ended, start_at_once};
use crate::{at_rest, house_with, lose_disk};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Names and modes at the beginning.
const FILES: [(&str, u32); 3] = [("a.db", 0o600), ("b.db", 0o640), ("d/a.db", 0o644)];
const NAMES: [&str; 3] = ["a.db", "b.db", "c.db"];
const RANGE: usize = 3_000;
const CELL: usize = 300;

/// The names as they are after the lines so far.
struct Renamer {
    rng: Rng,
    text: String,
    /// Of X and Z.
    names: [&'static str; 2],
    directory: &'static str,
    inner: &'static str,
    links: bool,
}

impl Renamer {
    fn script(seed: u64, lines: u64) -> String {
        let (names, rng, links) = (["a.db", "b.db"], Rng::new(seed), seed.is_multiple_of(3));
        let (directory, inner, text) = ("d", "a.db", String::new());
        let mut renamer = Self { rng, text, names, directory, inner, links };
        for _ in 0..lines {
            renamer.step();
            renamer.text.push_str("pause 4\n");
        }
        renamer.text.trim_end().to_owned()
    }

    fn step(&mut self) {
        let which = self.rng.below(2) as usize;
        let name = self.names[which];
        let free = NAMES.into_iter().find(|name| !self.names.contains(name)).expect("one of three");
        let [one, other] = self.names;
        // A file that has had two names, or another one, is split no more.
        let _ = match self.rng.below(if self.links { 32 } else { 24 }) {
            0..=8 => {
                self.names[which] = free;
                writeln!(self.text, "rename {name} {free} 0")
            }
            9..=14 => {
                self.names = [other, one];
                writeln!(self.text, "rename {one} {other} 2")
            }
            15..=18 => {
                let (directory, inner) = (self.directory, self.inner);
                self.inner = if inner == "a.db" { "b.db" } else { "a.db" };
                writeln!(self.text, "rename {directory}/{inner} {directory}/{} 0", self.inner)
            }
            19..=23 => {
                let from = std::mem::replace(&mut self.directory, "d");
                self.directory = if from == "d" { "e" } else { "d" };
                writeln!(self.text, "rename {from} {} 0", self.directory)
            }
            24..=29 => {
                self.names[which] = free;
                writeln!(self.text, "link {name} {free}\nunlink {name}")
            }
            _ => writeln!(self.text, "rename {name} x.txt 0\nrename x.txt {name} 0"),
        };
    }
}

/// Writes by names that may be there or not, and by two descriptors that stay open.
fn writer(number: u64, rng: &mut Rng, rounds: u64) -> String {
    let mut text = "open 1 a.db 2 600\nopen 2 d/a.db 2 600".to_owned();
    for round in 1..=rounds {
        let seed = 1_000 * number + round;
        let cell = rng.below((RANGE / CELL) as u64) * CELL as u64;
        let offset = number * RANGE as u64 + cell;
        // The second sync is of a frame, if the name has not changed.
        let syncs = rng.below(4);
        let write = |register: u64| {
            let write = |time: u64| {
                let seed = 10 * seed + time;
                let sync = if time < syncs { format!("\nfsync {register}") } else { String::new() };
                format!("\npwrite {register} {seed} {CELL} {offset}{sync}")
            };
            format!("fstat {register}{}", (0..3).map(write).collect::<String>())
        };
        let _ = match rng.below(3) {
            0 => write!(text, "\n{}", write(1 + rng.below(2))),
            _ => {
                let name = ["a.db", "b.db", "c.db", "d/a.db", "e/a.db", "d/b.db", "e/b.db"]
                    [rng.below(7) as usize];
                write!(text, "\nopen 0 {name} 2 600\n{}\nclose 0", write(0))
            }
        };
    }
    text
}

/// The changes of each file by a writer, by modes; offsets are those within its range.
fn files(number: usize, text: &str, said: &[String]) -> BTreeMap<u32, Allowed> {
    let mut files: BTreeMap<u32, Allowed> =
        FILES.iter().map(|(_, mode)| (*mode, Allowed::new(RANGE))).collect();
    let mut open = 0;
    for (line, said) in text.lines().zip(said) {
        let words: Vec<&str> = line.split(' ').collect();
        let is_open = open != 0;
        match words[..] {
            // Nothing has the name just now.
            ["open", ..] => assert!(said == "E2" || !said.starts_with('E'), "{line}: {said}"),
            ["fstat", _] => {
                let mode = said.strip_prefix("0 mode 100").map(|rest| &rest[..3]);
                open = mode.map_or(0, |mode| u32::from_str_radix(mode, 8).unwrap());
            }
            ["pwrite", _, seed, len, offset] if is_open => {
                assert_eq!(said, len, "{line}");
                let offset = offset.parse::<usize>().unwrap() - number * RANGE;
                let bytes = bytes(seed.parse().unwrap(), CELL);
                files.get_mut(&open).unwrap().write(offset, &bytes);
            }
            ["fsync", _] if is_open => {
                assert_eq!(said, "0", "{line}");
                files.get_mut(&open).unwrap().sync();
            }
            _ => assert!(said == "0" || said == "E9", "{line}: {said}"),
        }
    }
    files
}

/// All files below a directory, with their modes.
fn found(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let status = path.metadata().unwrap();
        match status.is_dir() {
            true => found.extend(self::found(&path)),
            false => found.push((path, status.permissions().mode() & 0o777)),
        }
    }
    found
}

fn check(house: &House, writers: &[BTreeMap<u32, Allowed>]) -> Result<(), String> {
    let found = found(&house.root);
    for (name, mode) in FILES {
        let mut paths = found.iter().filter(|(_, of)| *of == mode).peekable();
        paths.peek().ok_or_else(|| format!("{name} of the beginning is gone: {found:?}"))?;
        for (path, _) in paths {
            let bytes = std::fs::read(path).unwrap();
            for (number, files) in writers.iter().enumerate() {
                let part = &bytes[bytes.len().min(number * RANGE)..];
                let checked = files[&mode].check_part(&part[..part.len().min(RANGE)]);
                checked.map_err(|text| format!("{}, writer {number}: {text}", path.display()))?;
            }
        }
    }
    Ok(())
}

fn race(seed: u64) -> u64 {
    let mut house = house_with("split-races", &[]);
    std::fs::create_dir(house.root.join("d")).unwrap();
    for (name, mode) in FILES {
        house.put(name, b"");
        std::fs::set_permissions(house.root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    at_rest(&house);
    let run = house.start();
    let mut rng = Rng::new(seed);
    let texts = [0, 1].map(|number| writer(number, &mut rng, 30));
    let renames = Renamer::script(seed, 20);
    let all = [("first", &*texts[0]), ("second", &*texts[1]), ("renames", &*renames)];
    let said: Vec<_> = start_at_once(&house, &run, &all).into_iter().map(ended).collect();
    assert!(
        said[2].iter().all(|said| said == "0" || said == "over"),
        "seed {seed}: {renames}\n{:?}",
        said[2]
    );
    let frames = run.owner.shared().split_counts().frames;
    run.abandon();
    if seed.is_multiple_of(2) {
        lose_disk(&mut house);
    }
    house.start().stop();
    let writers = [0, 1].map(|number| files(number, &texts[number], &said[number]));
    check(&house, &writers).unwrap_or_else(|text| panic!("seed {seed}: {text}\n{renames}"));
    frames
}

/// docs/faults.md: N11, N13
#[test]
fn frames_follow_their_files_through_changes_of_names_amid_writes() {
    let frames: u64 = (1..=6).map(race).sum();
    assert!(frames > 50, "{frames} frames");
}

/// docs/faults.md: N13
#[test]
fn a_run_that_ends_amid_writes_of_a_program_loses_none_that_was_synced() {
    let mut text = "open 0 a.db 2 600\nfsync 0".to_owned();
    for seed in 1..=400 {
        let _ = write!(text, "\npwrite 0 {seed} 300 {}\nfsync 0", seed % 9 * 100);
    }
    for round in 0..10 {
        let mut house = house_with("split-ended", &["a.db"]);
        let run = house.start();
        let mut child = start_at_once(&house, &run, &[("writes", &text)]).remove(0);
        while run.owner.shared().split_counts().frames < 5 + round {
            std::thread::yield_now();
        }
        run.stop();
        child.kill().unwrap();
        let said = results(&child.wait_with_output().unwrap().stdout);
        let lines: Vec<&str> = text.lines().take(said.len()).collect();
        let history = History::of(&lines.join("\n"), &said);
        lose_disk(&mut house);
        house.start().stop();
        let checked = history.files["a.db"].check(&house.bytes("a.db"));
        assert_eq!(checked, Ok(()), "round {round}");
    }
}
