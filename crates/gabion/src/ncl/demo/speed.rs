//! The same program by one client: at the log peers, synced to the disk, and not synced.

use super::super::files::at;
use super::Demo;
use super::load::{key, locked, value};
use super::program::Durability;
use crate::units::size;
use gabion_base::{Error, Result};
use gabion_bench::grouped;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes ahead of those that are measured.
const WARM: u64 = 50;
/// The number of `tmpfs` in `statfs`.
const TMPFS: i64 = 0x0102_1994;

/// One row of the table.
struct Speed {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

const ROWS: [(Durability, &str, &str); 3] = [
    (Durability::Unsynced, "no sync", "no"),
    (Durability::AtPeers, "near-compute log", "yes, at its peers"),
    (Durability::Synced, "fsync", "yes, with its disk"),
];

pub(super) fn table(demo: &mut Demo<'_>) -> Result<String> {
    let size = size(u64::from(demo.options.size));
    let head = format!("one client, writes of {size}");
    let mut out = format!(
        "\n  {head:<30} {:>9} {:>9} {:>9}   survives the machine\n",
        "writes/s", "p50 µs", "p99 µs"
    );
    let mut speeds = Vec::new();
    for (durability, name, survives) in ROWS {
        let Speed { per_second, p50_us, p99_us } = measure(demo, durability)?;
        let number = grouped(per_second as u64);
        // A string takes all.
        let _ = writeln!(out, "  {name:<30} {number:>9} {p50_us:>9.0} {p99_us:>9.0}   {survives}");
        speeds.push(per_second);
    }
    let [unsynced, at_peers, synced] = speeds[..] else { unreachable!("three rows") };
    let _ = writeln!(
        out,
        "\n  The near-compute log has {:.0} % of the speed without syncs, and {:.1} times that of \
         fsync.\n  Its peers stand on this machine here; in use they stand on others.",
        100.0 * at_peers / unsynced,
        at_peers / synced
    );
    if is_memory(&demo.house.dir) {
        let _ = writeln!(
            out,
            "  {} is a file system of memory, whose syncs cost nothing: --directory takes another.",
            demo.house.dir.display()
        );
    }
    Ok(out)
}

fn is_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == TMPFS)
}

fn measure(demo: &mut Demo<'_>, durability: Durability) -> Result<Speed> {
    let place = demo.house.directory("speed")?;
    let running = demo.program.start(&mut demo.house, &place, "speed", durability)?;
    let session = running.sessions.first().ok_or_else(|| Error::unavailable("nobody connected"))?;
    let mut session = locked(session)?;
    let size = demo.options.size;
    let mut write = |number| {
        let key = key(0, number);
        session.write(key, &value(key, size))
    };
    (0..WARM).try_for_each(&mut write)?;
    let (limit, begun) = (Duration::from_secs(demo.options.seconds), Instant::now());
    let mut times_us = Vec::new();
    let mut last = begun;
    while last.duration_since(begun) < limit {
        write(WARM + times_us.len() as u64)?;
        let now = Instant::now();
        times_us.push(now.duration_since(last).as_secs_f64() * 1e6);
        last = now;
    }
    let per_second = times_us.len() as f64 / last.duration_since(begun).as_secs_f64();
    times_us.sort_by(f64::total_cmp);
    let at_share = |share: f64| times_us[(share * (times_us.len() - 1) as f64) as usize];
    let speed = Speed { per_second, p50_us: at_share(0.5), p99_us: at_share(0.99) };
    drop(session);
    drop(running);
    std::fs::remove_dir_all(&place).map_err(at(&place))?;
    Ok(speed)
}
