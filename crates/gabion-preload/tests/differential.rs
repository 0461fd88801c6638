//! Generated call scripts give the same results with the interposer as without it, and what they
//! leave is there again when a new owner starts from the store, in another directory.
//!
//! `GABION_SEEDS` scripts from `GABION_FIRST_SEED` on; a failure prints the seed and the first line
//! that differs.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;

use common::{Rng, Run, script};
use gabion_mirror::owner::Splits;
use gabion_mirror::split::Counts;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Scripts that share an owner: it takes them into one store, in a directory each.
const BATCH: u64 = 20;

const NAMES: [&str; 6] = ["a.log", "b.log", "d/e.log", "c.txt", "g/h.log", "l.log"];

struct Generator {
    rng: Rng,
    text: String,
}

impl Generator {
    fn script(seed: u64) -> String {
        let mut generator = Self { rng: Rng::new(seed), text: "mkdir d\n".to_owned() };
        for _ in 0..10 + generator.rng.below(50) {
            let line = generator.line();
            let _ = writeln!(generator.text, "{line}");
        }
        let tail = ["list .", "list d", "list g", "same a.log", "same b.log", "lowest 0"];
        for line in tail {
            let _ = writeln!(generator.text, "{line}");
        }
        generator.text
    }

    fn name(&mut self) -> &'static str {
        NAMES[[0, 0, 0, 1, 1, 2, 2, 3, 4, 5][self.rng.below(10) as usize]]
    }

    fn offset(&mut self) -> u64 {
        [0, 1, 100, 4096, 5000, 70_000][self.rng.below(6) as usize] + self.rng.below(3)
    }

    fn len(&mut self) -> u64 {
        [0, 1, 7, 100, 4096, 9000, 300_000][self.rng.below(7) as usize]
    }

    fn open_flags(&mut self) -> i32 {
        let ways = [libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY];
        let mut flags = ways[self.rng.below(4) as usize];
        for (flag, one_in) in [
            (libc::O_CREAT, 2),
            (libc::O_TRUNC, 5),
            (libc::O_APPEND, 4),
            (libc::O_EXCL, 8),
            (libc::O_DSYNC, 8),
            (libc::O_SYNC, 16),
            (libc::O_CLOEXEC, 4),
            (libc::O_NOFOLLOW, 12),
            (libc::O_DIRECTORY, 30),
        ] {
            if self.rng.below(one_in) == 0 {
                flags |= flag;
            }
        }
        // The kernel changed its mind about the two together.
        if flags & libc::O_DIRECTORY != 0 { flags & !libc::O_CREAT } else { flags }
    }

    fn line(&mut self) -> String {
        match self.rng.below(10) {
            0 | 1 => self.line_of_descriptors(),
            2..=4 => self.line_of_changes(),
            5 => self.line_of_reading(),
            6 | 7 => self.line_of_names(),
            8 => self.line_of_streams(),
            _ => self.line_of_processes(),
        }
    }

    fn line_of_descriptors(&mut self) -> String {
        let (one, other) = (self.rng.below(4), self.rng.below(4));
        match self.rng.below(12) {
            0..=5 => {
                let (name, flags) = (self.name(), self.open_flags());
                let mode = ["600", "644", "400", "666"][self.rng.below(4) as usize];
                format!("open {one} {name} {flags} {mode}")
            }
            6 => format!("open {one} . {} 600", libc::O_TMPFILE | libc::O_RDWR),
            7 => format!("close {one}"),
            8 => format!("dup {one} {other}"),
            9 => format!("dup2 {one} {other}"),
            10 => format!("getfl {one}"),
            _ => format!("setfl {one} {}", [0, libc::O_APPEND][self.rng.below(2) as usize]),
        }
    }

    fn line_of_changes(&mut self) -> String {
        let (one, other, seed) = (self.rng.below(4), self.rng.below(4), self.rng.below(1000));
        let (len, offset, second) = (self.len(), self.offset(), self.offset());
        match self.rng.below(16) {
            0..=4 => format!("write {one} {seed} {len}"),
            5 | 6 => format!("pwrite {one} {seed} {len} {offset}"),
            7 => format!("writev {one} {seed} {len}"),
            8 => format!("pwritev {one} {seed} {len} {offset}"),
            9 => format!("ftruncate {one} {offset}"),
            10 => {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let modes = [0, libc::FALLOC_FL_KEEP_SIZE, punch];
                format!("fallocate {one} {} {offset} {len}", modes[self.rng.below(3) as usize])
            }
            11 => format!("pallocate {one} {offset} {len}"),
            12 => format!("{} {one}", ["fsync", "fdatasync"][self.rng.below(2) as usize]),
            13 => format!("sendfile {one} {other} {offset} {len}"),
            14 => format!("copy {one} {other} {offset} {second} {len}"),
            _ => format!("splice {one} {seed} {}", len.clamp(1, 4096)),
        }
    }

    fn line_of_reading(&mut self) -> String {
        let (one, len, offset) = (self.rng.below(4), self.len(), self.offset());
        match self.rng.below(7) {
            0 => format!("read {one} {len}"),
            1 => format!("pread {one} {len} {offset}"),
            2 => format!("seek {one} {offset} {}", self.rng.below(3)),
            3 => format!("fstat {one}"),
            4 => format!("fstatx {one}"),
            _ => format!("map {one} {}", 1 + self.rng.below(2)),
        }
    }

    fn line_of_names(&mut self) -> String {
        let (one, other) = (self.name(), self.name());
        match self.rng.below(18) {
            0..=2 => {
                format!("rename {one} {other} {}", [0, 0, 0, 1, 2][self.rng.below(5) as usize])
            }
            3 => ["rename d g 0", "rename g d 0", "mkdir g"][self.rng.below(3) as usize].into(),
            4 => format!("link {one} {other}"),
            5 => format!("symlink {} l.log", one.rsplit('/').next().unwrap_or(one)),
            6 => format!("unlink {one}"),
            7 => ["remove d", "rmdir d", "remove a.log", "rmdir g"][self.rng.below(4) as usize]
                .into(),
            8..=10 => format!("stat {one}"),
            11 => format!("lstat {one}"),
            12 => format!("access {one} {}", [0, 2, 4, 6][self.rng.below(4) as usize]),
            13 => format!("chmod {one} {}", [0o600, 0o644, 0o444][self.rng.below(3) as usize]),
            14 => format!("truncate {one} {}", self.offset()),
            15 => format!("utimes {one} {}", 1000 + self.rng.below(1000)),
            16 => format!("same {one}"),
            _ => ["list .", "list d", "stat .", "stat d"][self.rng.below(4) as usize].into(),
        }
    }

    fn line_of_streams(&mut self) -> String {
        let (one, seed, len, name) =
            (self.rng.below(2), self.rng.below(1000), self.len(), self.name());
        let mode = ["r", "w", "a", "r+", "w+", "a+", "wx"][self.rng.below(7) as usize];
        match self.rng.below(12) {
            0..=2 => format!("fopen {one} {name} {mode}"),
            3 => format!("fdopen {one} {} {mode}", self.rng.below(4)),
            4 | 5 => format!("fwrite {one} {seed} {len}"),
            6 => format!("fprintf {one} {seed}"),
            7 => format!("fflush {one}"),
            // Between writing and reading a stream must be flushed or sought.
            8 => format!("fseek {one} {} {}\nfread {one} {len}", self.offset(), self.rng.below(3)),
            9 => format!("fseek {one} {} {}", self.offset(), self.rng.below(3)),
            10 => format!("fflush {one}\nftell {one}\nfileno {one}"),
            _ => format!("fclose {one}"),
        }
    }

    fn line_of_processes(&mut self) -> String {
        match self.rng.below(6) {
            0..=2 => {
                let count = 1 + self.rng.below(5);
                // A child would write the buffers of its parent's streams once more.
                let lines: Vec<String> = (0..count)
                    .map(|_| match self.rng.below(4) {
                        0 => self.line_of_descriptors(),
                        1 | 2 => self.line_of_changes(),
                        _ => self.line_of_names(),
                    })
                    .collect();
                format!("fork {count}\n{}", lines.join("\n"))
            }
            3 => {
                format!("flock {} {}", self.rng.below(4), [1, 2, 8][self.rng.below(3) as usize] | 4)
            }
            4 => format!(
                "lock {} {} {} {}",
                self.rng.below(4),
                self.rng.below(2),
                self.rng.below(3),
                self.rng.below(20)
            ),
            _ => {
                let name = NAMES[self.rng.below(3) as usize];
                format!("append2 {name} {} {}", 1 + self.rng.below(10), 1 + self.rng.below(600))
            }
        }
    }
}

/// `append2` must find nothing in its way, and says so otherwise by its result in both runs.
fn scripts(seeds: std::ops::Range<u64>) -> Vec<(u64, String)> {
    seeds.map(|seed| (seed, Generator::script(seed))).collect()
}

fn differs(one: &str, other: &str) -> String {
    let pair = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    match pair {
        Some((one, other)) => format!("the kernel alone: {one}\n with the interposer: {other}"),
        None => format!("{} lines and {}", one.lines().count(), other.lines().count()),
    }
}

/// The way in which an owner keeps `*.log`.
#[derive(Clone, Copy, Debug)]
enum Way {
    Mirrored,
    /// Split, with writes on both sides of the bound, and a journal that is full soon.
    Split,
}

impl Way {
    fn start(self, home: &Path, root: &Path, every_write: bool) -> Run {
        let globs = vec![("*.log".to_owned(), 5_000)];
        let splits = Splits { globs, journal_len: 1 << 20 };
        match self {
            Self::Mirrored => Run::start(home, root, "*.log", false),
            Self::Split => Run::start_split(home, root, splits, every_write),
        }
    }
}

fn run_batch(way: Way, seeds: std::ops::Range<u64>) -> Counts {
    let home = common::directory(&format!("differential-{way:?}-{}", seeds.start));
    let (seeds_begin, scripts) = (seeds.start, scripts(seeds));
    let (plain, mirrored, moved) = (home.join("plain"), home.join("mirrored"), home.join("moved"));
    let place = |root: &Path, seed: u64| -> PathBuf {
        let place = root.join(seed.to_string());
        std::fs::create_dir_all(&place).unwrap();
        place
    };
    for root in [&plain, &mirrored, &moved] {
        std::fs::create_dir_all(root).unwrap();
    }
    let mut dumps = Vec::new();
    // Scripts sync little, and a split file's write is a frame only once all before are synced.
    let every_write = (seeds_begin / BATCH).is_multiple_of(2);
    let run = way.start(&home, &mirrored, every_write);
    for (seed, text) in &scripts {
        let path = home.join(format!("{seed}.script"));
        std::fs::write(&path, text).unwrap();
        let alone = script(None, &place(&plain, *seed), &path);
        let with = script(Some(&run), &place(&mirrored, *seed), &path);
        assert!(alone == with, "seed {seed}: {}\n{}", differs(&alone, &with), path.display());
        let dump = home.join("dump");
        std::fs::write(&dump, "dump .\n").unwrap();
        let alone = script(None, &plain.join(seed.to_string()), &dump);
        let with = script(Some(&run), &mirrored.join(seed.to_string()), &dump);
        assert!(alone == with, "seed {seed}, what is left: {}", differs(&alone, &with));
        dumps.push(with);
    }
    let counts = run.owner.shared().split_counts();
    run.stop();
    // Files that are not mirrored are copied as they lie; all else comes from the store.
    common::copy_plain(&mirrored, &moved);
    let run = way.start(&home, &moved, every_write);
    for ((seed, _), dump) in scripts.iter().zip(dumps) {
        let path = home.join("dump");
        let with = script(Some(&run), &place(&moved, *seed), &path);
        assert!(dump == with, "seed {seed}, recovered: {}", differs(&dump, &with));
    }
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
    counts
}

fn run_scripts(way: Way) {
    let number = |name: &str, usual: u64| {
        std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
    };
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", 60));
    let mut all = Counts::default();
    for begin in (first..first + count).step_by(BATCH as usize) {
        let counts = run_batch(way, begin..(begin + BATCH).min(first + count));
        (all.frames, all.large) = (all.frames + counts.frames, all.large + counts.large);
        all.emptied += counts.emptied;
    }
    eprintln!("coverage: {count} scripts of calls from seed {first}, {way:?}, {all:?}");
    if count >= BATCH {
        let is_split = all.frames > 0 && all.large > 0 && all.emptied > 0;
        assert_eq!(is_split, matches!(way, Way::Split), "{all:?}");
    }
}

/// docs/faults.md: N11
#[test]
fn scripts_of_calls_give_the_same_results_with_and_without_the_interposer() {
    run_scripts(Way::Mirrored);
}

/// docs/faults.md: N11
#[test]
fn scripts_of_calls_give_the_same_results_where_files_are_split() {
    run_scripts(Way::Split);
}
