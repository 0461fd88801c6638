//! Programs whose files are split, on disks that lose whatever was not synced: SQLite with all of
//! its files, RocksDB with its WAL, of which some writes are frames and some are not.

use crate::common;
use crate::owner_calls;
use crate::rocksdb::{RocksDb, shadow, survive};
use crate::{House, Kind, Program, Sqlite3, every_point};
use gabion_mirror::owner::Splits;
use std::path::Path;

fn note_owner(house: &House) {
    owner_calls::note(&shadow(house), &house.root);
}

fn splits(globs: &[(&str, u64)]) -> Option<Splits> {
    let globs = globs.iter().map(|(glob, below)| ((*glob).to_owned(), *below)).collect();
    Some(Splits { globs, journal_len: 1 << 20 })
}

struct SplitSqlite;

impl Kind for SplitSqlite {
    const NAME: &'static str = "split-sqlite3";
    const GLOBS: &'static str = "";
    const WRITES: u64 = 25;

    fn splits() -> Option<Splits> {
        splits(&[("*-wal", 4_000), ("t.db", 8 << 10), ("*-journal", 8 << 10)])
    }

    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program> {
        note_owner(house);
        let mut command = house.command("sqlite3");
        common::note_syncs(&mut command, &shadow(house), &house.root);
        let mut program = Sqlite3::start_as(command, point, end_at)?;
        // Else a journal may be there again that was removed: its directory is not synced.
        (program.ask("pragma synchronous=extra; select 1;")? == "1").then_some(program)
    }

    fn write(program: &mut Program, number: u64) -> Option<()> {
        Sqlite3::write(program, number)
    }

    fn check(house: &House, point: u64) -> u64 {
        Sqlite3::check_all(&mut Self::start(house, point, None).expect("sqlite3 starts"))
    }

    fn survive(house: &House, point: u64, next: &Path) {
        survive(house, point / 2, next);
    }
}

struct SplitRocksDb;

impl Kind for SplitRocksDb {
    const NAME: &'static str = "split-rocksdb";
    const GLOBS: &'static str = "";
    const WRITES: u64 = RocksDb::WRITES;
    const CALLS: u64 = RocksDb::CALLS;

    fn splits() -> Option<Splits> {
        splits(&[("*.log", 1_500)])
    }

    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program> {
        note_owner(house);
        RocksDb::start(house, point, end_at)
    }

    fn write(program: &mut Program, number: u64) -> Option<()> {
        RocksDb::write(program, number)
    }

    fn check(house: &House, point: u64) -> u64 {
        note_owner(house);
        RocksDb::check(house, point)
    }

    fn survive(house: &House, point: u64, next: &Path) {
        survive(house, point, next);
    }
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn sqlite_whose_files_are_split_loses_no_commit_with_its_disk_at_any_call() {
    every_point::<SplitSqlite>();
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs RocksDB: cargo xtask ncl"]
fn rocksdb_whose_wal_is_split_loses_no_write_with_its_disk_at_any_call() {
    every_point::<SplitRocksDb>();
}
