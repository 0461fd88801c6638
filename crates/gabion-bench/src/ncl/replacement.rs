//! Table 3: a peer that had a log is killed, and another one takes its place.
//!
//! The steps are those that can be seen from outside, by looks at the instance and at the new peer
//! in turn. Between two of them it sleeps: on a machine of few processors they would take the time
//! that they measure.

use super::house::{COPIES, House};
use super::rows::{Key, Row, Side};
use super::{Bench, Part};
use gabion_base::{Error, Result};
use gabion_ncl::Metadata;
use gabion_ncl_driver::Logs;
use std::time::{Duration, Instant};

/// The steps, in their order: names of figures, in ms.
pub(super) const STEPS: [(&str, &str); 5] = [
    ("noticed_ms", "noticed"),
    ("connected_ms", "found, connected"),
    ("lent_ms", "lent"),
    ("published_ms", "filled, published"),
    ("entered_ms", "in the map"),
];
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_micros(300);
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a new peer may take to zero memory ahead.
const ZEROED_IN: Duration = Duration::from_secs(3);

/// The bytes of a log that is lost or read.
pub(super) fn bytes(len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) >> 5) as u8).collect()
}

/// A file of them.
pub(super) fn fill(logs: &Logs, name: &str, len: u64) -> Result<()> {
    let file = logs.create(name, Metadata::default())?;
    logs.write(file, 0, &bytes(len))?;
    logs.sync()
}

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    for side in [Side::Shared, Side::Tcp] {
        bench.begin(&format!("replacement of a peer: {}", side.as_str()))?;
        let mut house = House::start(bench, side, COPIES + 1)?;
        let logs = house.open("replacement")?;
        fill(&logs, "large.log", bench.args.log_size)?;
        for round in 1..=bench.args.rounds {
            bench.check()?;
            let figures = replace(&mut house, &logs)?;
            let key = Key::library(Part::Replacement, "kill", side, bench.args.log_size);
            bench.keep(Row::new(key, round, figures))?;
            house.add_peer()?;
        }
    }
    Ok(())
}

/// Kills a peer of the map, and looks on until another one is there.
fn replace(house: &mut House, logs: &Logs) -> Result<Vec<(&'static str, f64)>> {
    let status = logs.status()?.0;
    let members: Vec<String> =
        status.map.members.iter().map(|member| member.peer.to_string()).collect();
    let is_member = |id: &String| members.contains(id);
    let missing = || Error::unavailable("no peer of the map runs here");
    let victim = house.peers.iter().position(|peer| is_member(&peer.id)).ok_or_else(missing)?;
    let spare = house.peers.iter().position(|peer| !is_member(&peer.id)).ok_or_else(missing)?;
    let begun = Instant::now();
    while house.peers[spare].usage()?.ready_bytes < 64 << 20 && begun.elapsed() < ZEROED_IN {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (before, replaced) = (logs.status()?.1, status.replaced);
    let begun = Instant::now();
    house.peers[victim].process.signal();
    let mut seen = [None::<f64>; STEPS.len()];
    while seen[STEPS.len() - 1].is_none() {
        let now = begun.elapsed();
        if now > PATIENCE {
            return Err(Error::unavailable(format!(
                "the peer was not replaced in {} s",
                PATIENCE.as_secs()
            )));
        }
        std::thread::sleep(LOOK_EVERY);
        let (status, counts) = logs.status()?;
        let usage = house.peers[spare].usage()?;
        let is_done = status.copies == COPIES && status.replaced > replaced;
        let is_lent = usage.regions > 0;
        let is_lost = counts.connected < COPIES || counts.losses > before.losses;
        let steps = [
            is_lost || is_lent,
            is_lent || (seen[0].is_some() && counts.connected == COPIES),
            is_lent,
            is_lent && usage.published == usage.regions,
            is_done,
        ];
        for (step, is_over) in seen.iter_mut().zip(steps) {
            if is_over && step.is_none() {
                *step = Some(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    drop(house.peers.remove(victim));
    let mut figures = vec![("total_ms", seen[STEPS.len() - 1].unwrap_or_default())];
    let mut last = 0.0;
    for ((name, _), at) in STEPS.iter().zip(seen) {
        // A step between two looks took no time that is seen.
        let at = at.unwrap_or(last).max(last);
        figures.push((name, at - last));
        last = at;
    }
    Ok(figures)
}
