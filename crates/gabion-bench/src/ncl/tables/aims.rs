//! The aims, and whether each is met.

use super::super::library::SIZES;
use super::super::programs::ProgramChoice;
use super::super::rows::{Disk, Key, Rows, Side};
use super::super::{Part, paper};
use super::{cells, latency_key, of_sides, percent_below, ratio, shown, threads_key};
use crate::text::Table;
use clap::ValueEnum;

/// A bar and what was measured.
struct Aim {
    what: String,
    bar: String,
    found: String,
    is_met: bool,
}

impl Aim {
    fn at_most(what: impl Into<String>, bar: f64, found: f64, unit: &str) -> Self {
        Self {
            what: what.into(),
            bar: format!("≤ {}{unit}", shown(Some(bar))),
            found: format!("{}{unit}", shown(Some(found))),
            is_met: found <= bar,
        }
    }

    fn at_least(what: impl Into<String>, bar: f64, found: f64, unit: &str) -> Self {
        Self {
            what: what.into(),
            bar: format!("≥ {}{unit}", shown(Some(bar))),
            found: format!("{}{unit}", shown(Some(found))),
            is_met: found >= bar,
        }
    }
}

pub(super) fn table(rows: &Rows) -> Table {
    let mut table = Table::new("Aims", &["aim", "bar", "measured", ""]);
    let mut aims = library(rows);
    for program in ProgramChoice::value_variants() {
        for disk in [Disk::Local, Disk::Slow] {
            aims.extend(loss(rows, *program, disk));
            aims.extend(gains(rows, *program, disk));
        }
    }
    aims.extend(recovered(rows));
    aims.extend(memory(rows));
    aims.extend(unmatched(rows));
    for Aim { what, bar, found, is_met } in aims {
        let met = if is_met { "met" } else { "MISSED" };
        table.row(vec![what, bar, found, met.to_owned()]);
    }
    table
}

fn library(rows: &Rows) -> Vec<Aim> {
    let write = |side| rows.figure(&latency_key((side, None), SIZES[0]), "mean_us");
    let shared = write(Side::Shared).map(|found| {
        Aim::at_most("128 bytes, shared memory", paper::SHARED_128_US_MAX, found, " µs")
    });
    let tcp = write(Side::Tcp)
        .map(|found| Aim::at_most("128 bytes, TCP", paper::TCP_128_US_MAX, found, " µs"));
    let threads = rows.figure(&threads_key(Side::Tcp, 64), "per_second").map(|found| {
        Aim::at_least("128 bytes, TCP, 64 threads", paper::TCP_64_THREADS_MIN, found, " /s")
    });
    [shared, tcp, threads].into_iter().flatten().collect()
}

/// The load that loses most against unsynced.
fn loss(rows: &Rows, program: ProgramChoice, disk: Disk) -> Option<Aim> {
    let bar = paper::loss_max(program)?;
    let losses = cells(rows, program, disk).into_iter().filter_map(|cell| {
        let [unsynced, shared, ..] = of_sides(rows, (program, disk), cell, "per_second");
        Some((percent_below(shared, unsynced)?, cell))
    });
    let (worst, (load, clients, _)) = losses.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let (name, disk) = (program.as_str(), disk.as_str());
    let what = format!("{name}, {disk}: worst loss ({load}, {clients})");
    Some(Aim::at_most(what, bar, worst, " %"))
}

/// One writer, where a sync is slow.
fn gains(rows: &Rows, program: ProgramChoice, disk: Disk) -> Vec<Aim> {
    let is_one = |cell: &(&'static str, u64, u64)| program.is_write(cell.0) && cell.1 == 1;
    let cells = cells(rows, program, disk).into_iter().filter(is_one);
    let gain = |cell: (&'static str, u64, u64)| {
        let [unsynced_us, .., synced_us] = of_sides(rows, (program, disk), cell, "mean_us");
        if synced_us? - unsynced_us? < paper::SLOW_SYNC_US {
            return None;
        }
        let [_, shared, _, synced] = of_sides(rows, (program, disk), cell, "per_second");
        let (name, disk) = (program.as_str(), disk.as_str());
        let what = format!("{name}, {disk}: one writer ÷ synced ({})", cell.0);
        Some(Aim::at_least(what, paper::GAIN_MIN, ratio(shared, synced)?, "×"))
    };
    cells.filter_map(gain).collect()
}

fn recovered(rows: &Rows) -> Vec<Aim> {
    let mut aims = Vec::new();
    for key in rows.each(Part::Replacement, Key::clone) {
        if let (Side::Shared, Some(found)) = (key.side, rows.figure(&key, "total_ms")) {
            let what = "a peer is replaced, shared memory";
            aims.push(Aim::at_most(what, paper::REPLACED_MS_MAX, found, " ms"));
        }
    }
    for key in rows.each(Part::Recovery, Key::clone) {
        let local = Key { side: Side::Unsynced, disk: Some(Disk::Local), ..key.clone() };
        let found = ratio(rows.figure(&key, "total_ms"), rows.figure(&local, "total_ms"));
        if let (Side::Shared, Some(found)) = (key.side, found) {
            let what = format!("{}: recovery ÷ local file", key.program);
            aims.push(Aim::at_most(what, paper::RECOVERY_RATIO_MAX, found, "×"));
        }
    }
    aims
}

fn memory(rows: &Rows) -> Vec<Aim> {
    let aim = |key: Key| {
        if let Some(ratio) = rows.figure(&key, "ratio") {
            // Two digits after the point would hide what is asked for.
            let percent = |ratio: f64| (ratio - 1.0) * 100.0;
            let (bar, found) = (percent(paper::PEER_RATIO_MAX), percent(ratio));
            return Some(Aim::at_most("a peer above what it lends", bar, found, " %"));
        }
        let above = rows.figure(&key, "above_log_bytes")?;
        let what = format!("{} above its log", key.program);
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        Some(Aim::at_most(what, mib(paper::ABOVE_LOG_BYTES_MAX), mib(above), " MiB"))
    };
    rows.each(Part::Memory, Key::clone).into_iter().filter_map(aim).collect()
}

/// The call that costs most.
fn unmatched(rows: &Rows) -> Option<Aim> {
    let keys = rows.each(Part::Unmatched, Key::clone);
    let costs = keys.iter().filter_map(|key| Some((rows.figure(key, "more_ns")?, key.load)));
    let (most, load) = costs.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let what = format!("a file that is not matched: {load}");
    Some(Aim::at_most(what, paper::UNMATCHED_NS_MAX, most, " ns"))
}
