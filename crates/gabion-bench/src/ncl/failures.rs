//! Figure 12: records in slices of 10 ms while one peer is killed, and then two at once; f is 1.

use super::house::{COPIES, House};
use super::library::RECORD;
use super::replacement::fill;
use super::rows::{Key, Row, Side};
use super::{Bench, Part};
use gabion_base::{Error, Result};
use gabion_ncl::Metadata;
use gabion_ncl_driver::Logs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(10);
pub(super) const SLICE_SECONDS: f64 = 0.01;
const THREADS: u64 = 4;
const RING: u64 = 1024;
/// Peers that are killed at a time.
const KILLS: [usize; 2] = [1, 2];
/// Slices in a row that show that the rate is back.
const STEADY: usize = 5;
/// Before each kill, and after the last one.
const LULL: Duration = Duration::from_millis(1000);

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    for side in [Side::Shared, Side::Tcp] {
        bench.begin(&format!("writes while peers are killed: {}", side.as_str()))?;
        let spares: usize = KILLS.iter().sum();
        let mut house = House::start(bench, side, COPIES + spares)?;
        let logs = house.open("failures")?;
        fill(&logs, "large.log", bench.args.log_size)?;
        // Spare peers zero memory ahead.
        std::thread::sleep(LULL);
        let (slices, marks) = run(&mut house, &logs)?;
        let figures = figures(&slices, &marks);
        let key = Key {
            clients: THREADS,
            ..Key::library(Part::Failures, "write", side, bench.args.log_size)
        };
        bench.keep(Row { slices, marks, ..Row::new(key, 1, figures) })?;
    }
    Ok(())
}

type Marks = Vec<(f64, String)>;

/// Records of each slice, and the kills.
fn run(house: &mut House, logs: &Logs) -> Result<(Vec<u64>, Marks)> {
    let count = (LULL.as_millis() / SLICE.as_millis()) as usize * (KILLS.len() + 1);
    let slices: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let make = |thread| logs.create(&format!("{thread}.log"), Metadata::default());
    let files = (0..THREADS).map(make).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let write = |file| -> Result<()> {
        for number in 0.. {
            let record = logs.write(file, number % RING * RECORD as u64, &[5; RECORD])?;
            logs.wait_for(record)?;
            let slice = (begun.elapsed().as_millis() / SLICE.as_millis()) as usize;
            let Some(slice) = slices.get(slice) else { break };
            slice.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let (written, marks) = std::thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = files.iter().map(|file| scope.spawn(move || write(*file))).collect();
        let marks = kill_some(house, logs, begun);
        let join = |writer: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            writer.join().map_err(|_| Error::io("a thread of the benchmark panicked"))?
        };
        (writers.into_iter().try_for_each(join), marks)
    });
    written?;
    Ok((slices.into_iter().map(AtomicU64::into_inner).collect(), marks?))
}

/// Kills peers of the map at their times.
fn kill_some(house: &mut House, logs: &Logs, begun: Instant) -> Result<Marks> {
    let mut marks = Vec::new();
    for (number, kills) in (1..).zip(KILLS) {
        let at = LULL * number;
        std::thread::sleep(at.saturating_sub(begun.elapsed()));
        let status = logs.status()?.0;
        let members: Vec<String> =
            status.map.members.iter().map(|member| member.peer.to_string()).collect();
        let named = house.peers.iter().filter(|peer| members.contains(&peer.id));
        let victims: Vec<String> = named.take(kills).map(|peer| peer.id.clone()).collect();
        let at = begun.elapsed().as_secs_f64();
        let (gone, left) = std::mem::take(&mut house.peers)
            .into_iter()
            .partition::<Vec<_>, _>(|peer| victims.contains(&peer.id));
        gone.iter().for_each(|peer| peer.process.signal());
        house.peers = left;
        let noun = if kills == 1 { "peer is" } else { "peers are" };
        marks.push((at, format!("{kills} {noun} killed")));
    }
    Ok(marks)
}

/// The rate before the first kill; for each kill the longest time without a record, and the time
/// until half of that rate is back for some slices in a row.
fn figures(slices: &[u64], marks: &Marks) -> Vec<(&'static str, f64)> {
    let slice_of = |at: f64| ((at / SLICE_SECONDS) as usize).min(slices.len());
    let mean = |slices: &[u64]| slices.iter().sum::<u64>() as f64 / slices.len().max(1) as f64;
    let first = marks.first().map_or(slices.len(), |(at, _)| slice_of(*at));
    let before = mean(&slices[..first]);
    let mut figures = vec![("per_second", before / SLICE_SECONDS)];
    let names = [("one_stall_ms", "one_half_ms"), ("two_stall_ms", "two_half_ms")];
    for (number, (stall, half)) in names.into_iter().enumerate() {
        let Some((at, _)) = marks.get(number) else { continue };
        let until = marks.get(number + 1).map_or(slices.len(), |(at, _)| slice_of(*at));
        let after = &slices[slice_of(*at)..until];
        let ms = |slices: usize| slices as f64 * SLICE_SECONDS * 1e3;
        let empty = after.split(|count| *count > 0).map(<[u64]>::len).max();
        figures.push((stall, ms(empty.unwrap_or(0))));
        let is_back = |slices: &[u64]| slices.iter().all(|count| *count as f64 >= before / 2.0);
        let back = after.windows(STEADY).position(is_back);
        figures.push((half, ms(back.unwrap_or(after.len()))));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_the_longest_run_of_empty_slices_after_a_kill() {
        let mut slices = vec![100; 60];
        slices[20] = 10;
        slices[41..44].fill(0);
        slices[46] = 0;
        let marks = vec![(0.2, "one".to_owned()), (0.4, "two".to_owned())];
        let expected = [
            ("per_second", 10_000.0),
            ("one_stall_ms", 0.0),
            ("one_half_ms", 10.0),
            ("two_stall_ms", 30.0),
            ("two_half_ms", 70.0),
        ];
        assert_eq!(figures(&slices, &marks), expected);
        let none = [("per_second", 0.0), ("one_stall_ms", 0.0), ("one_half_ms", 0.0)];
        assert_eq!(figures(&[], &vec![(0.2, "one".to_owned())]), none);
    }
}
