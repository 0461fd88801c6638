//! Tables of medians, the paper's numbers below them, and what is aimed at.

mod aims;

use super::library::{SIZES, THREADS};
use super::programs::ProgramChoice;
use super::replacement::STEPS;
use super::rows::{Disk, Key, Rows, Side};
use super::{Part, paper};
use crate::text::{Style, Table, grouped, line};
use clap::ValueEnum;

pub(super) fn tables(rows: &Rows, style: Style) -> String {
    let mut out = String::new();
    let mut part = |table: Table, note: &str| {
        if !table.is_empty() {
            table.write(style, &mut out);
            line(&mut out, note);
            line(&mut out, "");
        }
    };
    part(latency(rows), paper::LATENCY);
    part(threads(rows), "Each record waits until two of three peers have it.");
    for program in ProgramChoice::value_variants() {
        for disk in [Disk::Local, Disk::Slow] {
            part(of_program(rows, *program, disk), &paper::of_program(*program));
            part(split(rows, *program, disk), "Both by shared memory. Mirrored: as above.");
        }
    }
    part(recovery(rows), paper::RECOVERY);
    part(reads(rows), "With a part of the time that the whole log took to be there.");
    part(replacement(rows), &in_one_line());
    part(failures(rows), paper::FAILURES);
    part(memory(rows), "Above the log: without the owner. Mapped regions count for their peers.");
    part(unmatched(rows), "By one thread, on a local file. Medians.");
    part(
        aims::table(rows),
        "Peers and clients had this machine's processors together with all else.",
    );
    out
}

fn in_one_line() -> String {
    let steps = paper::REPLACEMENT_MS.map(|(step, ms)| format!("{step} {ms}"));
    format!("Paper, Table 3, ms by RDMA: {}.", steps.join(", "))
}

/// A figure with as many digits as tell something, or nothing.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| match value.abs() {
        v if v >= 999.5 => signed(value.round()),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    })
}

fn percent_below(value: Option<f64>, other: Option<f64>) -> Option<f64> {
    let (value, other) = value.zip(other)?;
    (other > 0.0).then(|| 100.0 * (1.0 - value / other))
}

fn ratio(value: Option<f64>, other: Option<f64>) -> Option<f64> {
    let (value, other) = value.zip(other)?;
    (other > 0.0).then(|| value / other)
}

/// The columns of the latency's table.
pub(super) const WAYS: [(Side, Option<Disk>, &str); 6] = [
    (Side::Unsynced, Some(Disk::Local), "file"),
    (Side::Shared, None, "peers, shared memory"),
    (Side::Tcp, None, "peers, TCP"),
    (Side::Synced, Some(Disk::Local), "file, fdatasync"),
    (Side::Unsynced, Some(Disk::Slow), "slow syncs: file"),
    (Side::Synced, Some(Disk::Slow), "slow syncs: fdatasync"),
];

pub(super) fn latency_key((side, disk): (Side, Option<Disk>), size: usize) -> Key {
    Key { disk, ..Key::library(Part::Latency, "write", side, size as u64) }
}

fn latency(rows: &Rows) -> Table {
    let measured = rows.each(Part::Latency, |key| (key.side, key.disk));
    let ways = WAYS.iter().filter(|(side, disk, _)| measured.contains(&(*side, *disk)));
    let header = std::iter::once("bytes").chain(ways.clone().map(|(_, _, name)| *name));
    let header: Vec<&str> = header.collect();
    let mut table = Table::new("Figure 8: a write by one thread, mean µs", &header);
    if measured.is_empty() {
        return table;
    }
    let mut add = |name: String, size: usize, figure: &str| {
        let cells = ways
            .clone()
            .map(|(side, disk, _)| shown(rows.figure(&latency_key((*side, *disk), size), figure)));
        table.row(std::iter::once(name).chain(cells).collect());
    };
    SIZES.iter().for_each(|size| add(size.to_string(), *size, "mean_us"));
    add("128, p50".to_owned(), SIZES[0], "p50_us");
    add("128, p99".to_owned(), SIZES[0], "p99_us");
    table
}

fn threads_key(side: Side, clients: u64) -> Key {
    let bytes = super::library::RECORD as u64;
    Key { clients, ..Key::library(Part::Threads, "write", side, bytes) }
}

fn threads(rows: &Rows) -> Table {
    let counts = THREADS.map(|count| count.to_string());
    let header: Vec<&str> =
        std::iter::once("threads, records/s").chain(counts.iter().map(String::as_str)).collect();
    let mut table = Table::new("Synced records of 128 bytes by threads", &header);
    for side in rows.each(Part::Threads, |key| key.side) {
        let cells =
            THREADS.map(|count| shown(rows.figure(&threads_key(side, count), "per_second")));
        table.row(std::iter::once(side.as_str().to_owned()).chain(cells).collect());
    }
    table
}

/// The load and its clients that a program had on a disk.
pub(super) fn cells(
    rows: &Rows,
    program: ProgramChoice,
    disk: Disk,
) -> Vec<(&'static str, u64, u64)> {
    let is_of = |key: &Key| key.program == program.as_str() && key.disk == Some(disk);
    let all =
        rows.each(Part::Programs, |key| is_of(key).then_some((key.load, key.clients, key.bytes)));
    all.into_iter().flatten().collect()
}

/// A figure of each side.
pub(super) fn of_sides(
    rows: &Rows,
    (program, disk): (ProgramChoice, Disk),
    (load, clients, bytes): (&'static str, u64, u64),
    figure: &str,
) -> [Option<f64>; 4] {
    Side::ALL.map(|side| of_side(rows, (program, disk), (load, clients, bytes), side, figure))
}

fn of_side(
    rows: &Rows,
    (program, disk): (ProgramChoice, Disk),
    (load, clients, bytes): (&'static str, u64, u64),
    side: Side,
    figure: &str,
) -> Option<f64> {
    let (part, program, disk) = (Part::Programs, program.as_str(), Some(disk));
    rows.figure(&Key { part, program, load, side, disk, clients, bytes }, figure)
}

fn of_program(rows: &Rows, program: ProgramChoice, disk: Disk) -> Table {
    let header = [
        "load, clients",
        "unsynced/s",
        "shared/s",
        "TCP/s",
        "synced/s",
        "shared loss %",
        "TCP loss %",
        "shared ÷ synced",
        "µs: unsynced",
        "shared",
        "TCP",
        "synced",
    ];
    let what = match program {
        ProgramChoice::Postgresql => "pgbench",
        _ => "Figures 9 and 10",
    };
    let title = format!("{what}: {}, disk: {}", program.as_str(), disk.as_str());
    let mut table = Table::new(title, &header);
    for cell in cells(rows, program, disk) {
        let rates = of_sides(rows, (program, disk), cell, "per_second");
        let times = of_sides(rows, (program, disk), cell, "mean_us");
        let [unsynced, shared, tcp, synced] = rates;
        let derived =
            [percent_below(shared, unsynced), percent_below(tcp, unsynced), ratio(shared, synced)];
        let all = rates.into_iter().chain(derived).chain(times).map(shown);
        table.row(std::iter::once(format!("{}, {}", cell.0, cell.1)).chain(all).collect());
    }
    table
}

/// Split files beside mirrored ones; no row where none were measured.
fn split(rows: &Rows, program: ProgramChoice, disk: Disk) -> Table {
    let header = [
        "load, clients",
        "mirrored/s",
        "split/s",
        "split loss %",
        "split ÷ synced",
        "p99 µs: mirrored",
        "split",
    ];
    let title = format!("Split files: {}, disk: {}", program.as_str(), disk.as_str());
    let mut table = Table::new(title, &header);
    for cell in cells(rows, program, disk) {
        let of = |side, figure| of_side(rows, (program, disk), cell, side, figure);
        let rate = |side| of(side, "per_second");
        let split = rate(Side::Split);
        if split.is_none() {
            continue;
        }
        let loss = percent_below(split, rate(Side::Unsynced));
        let gain = ratio(split, rate(Side::Synced));
        let p99 = [Side::Shared, Side::Split].map(|side| of(side, "p99_us"));
        let all = [rate(Side::Shared), split, loss, gain].into_iter().chain(p99).map(shown);
        table.row(std::iter::once(format!("{}, {}", cell.0, cell.1)).chain(all).collect());
    }
    table
}

fn recovery(rows: &Rows) -> Table {
    let header = ["a log that is read", "ms", "÷ local file"];
    let mut table = Table::new("Figure 11: recovery, medians", &header);
    let keys = rows.each(Part::Recovery, Key::clone);
    for key in keys.iter().filter(|key| key.load != "read by size") {
        let total = rows.figure(key, "total_ms");
        let local = Key { side: Side::Unsynced, disk: Some(Disk::Local), ..key.clone() };
        let ratio = ratio(total, rows.figure(&local, "total_ms"));
        let side = match key.side {
            Side::Unsynced => "local file, not cached",
            side => side.as_str(),
        };
        let name = format!("{}, {} bytes, {side}", key.program, grouped(key.bytes));
        table.row(vec![name, shown(total), shown(ratio)]);
    }
    table
}

/// The sides of reads by their size.
pub(super) const READERS: [(Side, Option<Disk>, &str); 3] = [
    (Side::Unsynced, Some(Disk::Local), "local file, not cached"),
    (Side::Shared, None, "peers, shared memory"),
    (Side::Tcp, None, "peers, TCP"),
];

pub(super) fn read_key((side, disk): (Side, Option<Disk>), size: usize) -> Key {
    Key { disk, ..Key::library(Part::Recovery, "read by size", side, size as u64) }
}

fn reads(rows: &Rows) -> Table {
    let names = READERS.map(|(_, _, name)| name);
    let header: Vec<&str> = std::iter::once("bytes").chain(names).collect();
    let mut table = Table::new("Figure 11: a read of a whole log in pieces, mean µs", &header);
    if rows.of(Part::Recovery).next().is_none() {
        return table;
    }
    for size in SIZES {
        let cell = |(side, disk, _)| shown(rows.figure(&read_key((side, disk), size), "mean_us"));
        table.row(std::iter::once(size.to_string()).chain(READERS.map(cell)).collect());
    }
    table
}

fn replacement(rows: &Rows) -> Table {
    let names = STEPS.map(|(_, name)| name);
    let header: Vec<&str> = ["a log of", "total ms"].into_iter().chain(names).collect();
    let mut table = Table::new("Table 3: a killed peer is replaced, medians in ms", &header);
    for key in rows.each(Part::Replacement, Key::clone) {
        let name = format!("{} bytes, {}", grouped(key.bytes), key.side.as_str());
        let figures = std::iter::once("total_ms").chain(STEPS.map(|(figure, _)| figure));
        let cells = figures.map(|figure| shown(rows.figure(&key, figure)));
        table.row(std::iter::once(name).chain(cells).collect());
    }
    table
}

fn failures(rows: &Rows) -> Table {
    let header = [
        "4 threads, f = 1",
        "records/s",
        "one killed: stall ms",
        "half the rate back",
        "two killed: stall ms",
        "half the rate back",
    ];
    let mut table = Table::new("Figure 12: peers are killed under load, slices of 10 ms", &header);
    for key in rows.each(Part::Failures, Key::clone) {
        let names = ["per_second", "one_stall_ms", "one_half_ms", "two_stall_ms", "two_half_ms"];
        let cells = names.map(|name| shown(rows.figure(&key, name)));
        table.row(std::iter::once(key.side.as_str().to_owned()).chain(cells).collect());
    }
    table
}

fn memory(rows: &Rows) -> Table {
    let header = ["", "bytes", "used", "÷", "owner", "mirrors", "program grown", "above log"];
    let mut table = Table::new("Memory, resident bytes", &header);
    for key in rows.each(Part::Memory, Key::clone) {
        let figure = |name: &str| rows.figure(&key, name);
        let name = match key.load {
            "lent" => "a peer that lends all of it".to_owned(),
            _ => format!("{} with a log at peers", key.program),
        };
        let names = ["owner_bytes", "mirror_bytes", "program_bytes", "above_log_bytes"];
        let whole = |value: Option<f64>| value.map_or_else(String::new, signed);
        let ratio = figure("ratio").map_or_else(String::new, |ratio| format!("{ratio:.4}"));
        let bytes = figure("log_bytes").unwrap_or(key.bytes as f64);
        let first = vec![name, signed(bytes), whole(figure("used_bytes")), ratio];
        table.row(first.into_iter().chain(names.map(|name| whole(figure(name)))).collect());
    }
    table
}

fn unmatched(rows: &Rows) -> Table {
    let header = ["a call, ns", "without gabion ncl run", "with it", "more"];
    let mut table = Table::new("Files that are not matched", &header);
    for key in rows.each(Part::Unmatched, Key::clone) {
        let cells = ["without_ns", "with_ns", "more_ns"].map(|name| shown(rows.figure(&key, name)));
        table.row(std::iter::once(key.load.to_owned()).chain(cells).collect());
    }
    table
}

/// A whole number, which may be below zero.
fn signed(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", grouped(value.abs() as u64))
}
