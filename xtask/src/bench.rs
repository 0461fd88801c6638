//! The figures of docs/benchmarks.md, in parts that can be chosen: `gabion bench` with the page's
//! commands, then the page of everything in the directory.
//!
//! ```text
//!   LINES ─► gabion bench engine, replication ─► DIRECTORY/*.json ─► gabion bench report ─►
//!     │                                                              report.html, report.md
//!     └────► gabion bench ncl ─► DIRECTORY/ncl-N.json, DIRECTORY/ncl-N/*.svg
//! ```
//!
//! The machine must do nothing else, and the peers must be built. The results of a command stay
//! when a later one fails, and earlier measurements are on the page too: a command that is run
//! again adds rounds.

use crate::steps::{Step, head_commit, run, target_directory};
use std::path::{Path, PathBuf};

/// A command: its part, the name of the file that it writes, its words behind `gabion bench`.
type Line = (&'static str, &'static str, &'static str);

/// Medians of three rounds for ratios with a target, one round for the rest.
const LINES: [Line; 11] = [
    (
        "engine",
        "engine-rocksdb",
        "engine --vs rocksdb --value-sizes 100,1000 --log on --rounds 3 --quick",
    ),
    ("engine", "engine-fjall", "engine --vs fjall --value-sizes 1000 --log on --rounds 1 --quick"),
    (
        "engine",
        "engine-no-log",
        "engine --vs rocksdb --value-sizes 100,1000 --log off --rounds 1 --quick --workloads \
         fillseq,fillrandom,overwrite,deleterandom",
    ),
    (
        "engine",
        "engine-synced",
        // MemTables of 1 MiB give a run a dozen of them and more, so that RocksDB's logs come
        // around, as in a long run. A MemTable of 16 MiB would not fill with values of 100 bytes.
        "engine --vs rocksdb --value-sizes 100,1000 --log synced --rounds 3 --quick --workloads fillrandom \
         --memtable-size 1MiB",
    ),
    (
        "engine",
        "engine-values",
        "engine --vs rocksdb,blobdb --value-sizes 1000 --log on --rounds 1 --quick \
         --compressibility 0 --large-values 512 --workloads \
         fillrandom,readrandom,readrandom-uncached,seekrandom",
    ),
    (
        "replication",
        "replication-values",
        "replication --systems rocksdb,primary --replicas 3,4 --records 2000000 --large-values 512 \
         --workloads load --rounds 3",
    ),
    (
        "replication",
        "replication-3",
        "replication --systems rocksdb,primary --replicas 3 --records 2500000 --operations 1500000 --workloads \
         load,a,c --offered 80 --rounds 3",
    ),
    (
        "replication",
        "replication-4",
        "replication --systems rocksdb,primary --replicas 4 --records 3000000 --workloads load --rounds 3",
    ),
    (
        "replication",
        "replication-groups",
        "replication --systems rocksdb,primary --replicas 2 --co-location 2 --records 2000000 --workloads load",
    ),
    (NCL, NCL, "ncl --slow-sync 2 --seconds 1 --rounds 2"),
    (
        NCL,
        "ncl-split",
        // PostgreSQL's log is none to split.
        "ncl --only programs --programs redis,sqlite,rocksdb --split --clients 1,16 --slow-sync 2 \
         --seconds 1 --rounds 2",
    ),
];

/// The part of near-compute logs, which draws its own pictures and is not on the page.
const NCL: &str = "ncl";

/// Programs of the peers' workspace, by part.
const PEERS: [(&str, &str); 5] = [
    ("engine", "engine-rocksdb"),
    ("engine", "engine-fjall"),
    ("replication", "replica-rocksdb"),
    (NCL, "replica-rocksdb"),
    (NCL, "slow-syncs"),
];

/// Runs a part, or `all`, and then draws the page of `directory`. Without one, a directory below
/// the system's for temporary files, named by the commit.
pub(crate) fn bench(part: &str, directory: Option<&str>) -> Step {
    let lines = lines(part)?;
    let directory = match directory {
        Some(directory) => PathBuf::from(directory),
        None => std::env::temp_dir().join(format!("gabion-bench-{}", head_commit()?)),
    };
    let target = target_directory()?;
    let release = |directory: &str| Path::new(directory).join("release");
    let lacking = lacking(part, &[release(&target), release("peers/target")]);
    if !lacking.is_empty() {
        let packages: Vec<String> = lacking.iter().map(|name| format!(" -p {name}")).collect();
        return Err(format!(
            "not built: {}; `(cd peers && cargo build --release{})` builds them, RocksDB in half \
             an hour",
            lacking.join(", "),
            packages.concat()
        ));
    }
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    for (part, file, words) in lines {
        let file = free(&directory, file);
        let words: Vec<&str> = words.split_whitespace().collect();
        let draw = ["--draw", file.trim_end_matches(".json")];
        let draw = if part == NCL { &draw[..] } else { &[] };
        gabion(&[&words[..], &["--json", &file], draw].concat())?;
    }
    let files = measured(&directory)?;
    if files.is_empty() {
        return Ok(());
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let [html, markdown] = ["html", "md"].map(|ending| path(&directory, "report", ending));
    let report = [&["report"], &files[..], &["--html", &html, "--markdown", &markdown]].concat();
    gabion(&report)?;
    println!("\nthe page is {html}");
    Ok(())
}

fn path(directory: &Path, name: &str, ending: &str) -> String {
    directory.join(format!("{name}.{ending}")).display().to_string()
}

/// The name of a new file for a command: an earlier measurement is another round.
fn free(directory: &Path, name: &str) -> String {
    let mut number = 1;
    loop {
        let file = path(directory, &format!("{name}-{number}"), "json");
        if !Path::new(&file).exists() {
            return file;
        }
        number += 1;
    }
}

/// All measurements for the page, from now and before.
fn measured(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_of_ncl = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{NCL}-")));
        let file = path.display().to_string();
        files.extend(Some(file).filter(|file| file.ends_with(".json") && !is_of_ncl));
    }
    files.sort();
    Ok(files)
}

fn gabion(words: &[&str]) -> Step {
    let gabion = ["run", "--release", "-p", "gabion", "--", "bench"];
    run("cargo", &[&gabion, words].concat(), &[])
}

/// The commands of a part.
fn lines(part: &str) -> Result<Vec<Line>, String> {
    let lines: Vec<Line> =
        LINES.into_iter().filter(|line| ["all", line.0].contains(&part)).collect();
    match lines.is_empty() {
        true => {
            Err(format!("'{part}' is no part of the benchmarks: engine, replication, ncl or all"))
        }
        false => Ok(lines),
    }
}

/// The programs that a part needs and that none of these directories has.
fn lacking(part: &str, directories: &[PathBuf]) -> Vec<&'static str> {
    let needed = PEERS.into_iter().filter(|peer| ["all", peer.0].contains(&part));
    let is_there = |name: &str| directories.iter().any(|directory| directory.join(name).is_file());
    let mut names: Vec<_> = needed.map(|(_, name)| name).filter(|name| !is_there(name)).collect();
    // Two parts may want the same; it is listed for both in turn.
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_own_commands_and_all_has_those_of_every_part() {
        assert_eq!(lines("all").unwrap().len(), LINES.len());
        let count = |part| lines(part).unwrap().len();
        assert_eq!(count("engine") + count("replication") + count(NCL), LINES.len());
        assert!(lines("engine").unwrap().iter().all(|line| line.2.starts_with("engine ")));
        assert!(lines("engines").unwrap_err().contains("'engines' is no part"));
    }

    #[test]
    fn peers_that_are_not_built_are_named_before_anything_runs() {
        let directory = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("engine-fjall"), b"").unwrap();
        let places = [PathBuf::from("/nowhere"), directory.clone()];
        assert_eq!(lacking("engine", &places), ["engine-rocksdb"]);
        assert_eq!(lacking(NCL, &places), ["replica-rocksdb", "slow-syncs"]);
        assert_eq!(lacking("all", &places), ["engine-rocksdb", "replica-rocksdb", "slow-syncs"]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_was_measured_before_stays_beside_what_comes() {
        let directory = std::env::temp_dir().join(format!("xtask-rounds-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let names = [(); 2].map(|()| {
            let file = free(&directory, "engine-fjall");
            std::fs::write(&file, b"{}").unwrap();
            file
        });
        std::fs::write(directory.join("report.md"), b"").unwrap();
        std::fs::write(free(&directory, NCL), b"{}").unwrap();
        assert!(names[0].ends_with("/engine-fjall-1.json") && names[1].ends_with("-2.json"));
        assert_eq!(measured(&directory).unwrap(), names);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// The runs in the document are the runs made here.
    #[test]
    fn the_commands_stand_in_the_document() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
        let document = std::fs::read_to_string(document).unwrap();
        // A command may go over several lines.
        let document = document.split_whitespace().collect::<Vec<_>>().join(" ");
        for (_, file, words) in LINES {
            let line = format!("`{file}-N.json`: `gabion bench {words}`");
            assert!(document.contains(&line), "{line}\nis not in docs/benchmarks.md");
        }
    }
}
