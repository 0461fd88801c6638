//! Figures 8 to 12 as pictures.

use super::house::failed;
use super::library::SIZES;
use super::programs::ProgramChoice;
use super::replacement::STEPS;
use super::rows::{Disk, Key, Row, Rows, Side};
use super::tables::{READERS, WAYS, cells, latency_key, of_sides, read_key};
use super::{Part, failures, paper};
use crate::page::{Bars, Mark, Plot, PlotLine, Point, Ruler, Timeline};
use clap::ValueEnum;
use gabion_base::Result;
use std::path::Path;

/// Makes the directory, where it is not there.
pub(super) fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(failed(directory))
}

/// Draws what was measured.
pub(super) fn draw(rows: &Rows, directory: &Path) -> Result<()> {
    for (name, svg) in pictures(rows) {
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, svg).map_err(failed(&path))?;
    }
    Ok(())
}

/// Names of files, and pictures.
fn pictures(rows: &Rows) -> Vec<(String, String)> {
    let mut all = Vec::new();
    all.extend(latency(rows).map(|plot| ("figure-8".to_owned(), plot.svg())));
    for program in ProgramChoice::value_variants() {
        for disk in [Disk::Local, Disk::Slow] {
            let name = |figure: &str| {
                let disk = disk.as_str().replace(' ', "-");
                format!("{figure}-{}-{disk}", program.as_str())
            };
            for load in program.writes() {
                let name = match program {
                    ProgramChoice::Postgresql => {
                        format!("{}-{}", name("pgbench"), load.name)
                    }
                    _ => name("figure-9"),
                };
                let plot = writes(rows, *program, disk, load.name);
                all.extend(plot.map(|plot| (name, plot.svg())));
            }
            all.extend(ycsb(rows, *program, disk).map(|bars| (name("figure-10"), bars.svg())));
        }
    }
    all.extend(reads(rows).map(|plot| ("figure-11-reads".to_owned(), plot.svg())));
    all.extend(recovery(rows).map(|bars| ("figure-11-recovery".to_owned(), bars.svg())));
    all.extend(replacement(rows).map(|bars| ("table-3".to_owned(), bars.svg())));
    for row in rows.of(Part::Failures) {
        let name = if row.key.side == Side::Shared { "shared" } else { "tcp" };
        all.push((format!("figure-12-{name}"), over_time(row).svg()));
    }
    all
}

fn sizes() -> Ruler {
    Ruler::At("bytes".to_owned(), SIZES.map(|size| size as f64).to_vec())
}

/// A line through those points that were measured, if there are any.
fn line(name: &str, points: impl Iterator<Item = (f64, Option<f64>)>) -> Option<PlotLine> {
    let points: Vec<Point> = points.filter_map(|(x, y)| Some((x, y?))).collect();
    (!points.is_empty()).then(|| PlotLine { name: name.to_owned(), points })
}

fn latency(rows: &Rows) -> Option<Plot> {
    let lines = WAYS.iter().filter_map(|(side, disk, name)| {
        line(
            name,
            SIZES.into_iter().map(|size| {
                let key = latency_key((*side, *disk), size);
                (size as f64, rows.figure(&key, "mean_us"))
            }),
        )
    });
    let lines: Vec<PlotLine> = lines.collect();
    (!lines.is_empty()).then(|| Plot {
        title: "Figure 8: mean latency of a write by one thread".to_owned(),
        note: "Lower is better. Diamonds: the paper, peers by RDMA and a file unsynced.".to_owned(),
        x: sizes(),
        y: Ruler::Powers("µs".to_owned()),
        lines,
        others: vec![
            ((SIZES[0] as f64, paper::WRITE_128_AT_PEERS_US), "4.6 at peers".to_owned()),
            ((SIZES[0] as f64, paper::WRITE_128_UNSYNCED_US), "1.2 unsynced".to_owned()),
        ],
    })
}

/// Figure 9: a point for each number of clients.
fn writes(rows: &Rows, program: ProgramChoice, disk: Disk, load: &str) -> Option<Plot> {
    let all = cells(rows, program, disk);
    let cells: Vec<_> = all.into_iter().filter(|cell| cell.0 == load).collect();
    let of = |name| -> Vec<[Option<f64>; 4]> {
        cells.iter().map(|cell| of_sides(rows, (program, disk), *cell, name)).collect()
    };
    let (rates, times) = (of("per_second"), of("mean_us"));
    let lines = Side::ALL.iter().enumerate().filter_map(|(side, name)| {
        let points = rates.iter().zip(&times);
        line(name.as_str(), points.filter_map(|(x, y)| Some((x[side]?, y[side]))))
    });
    let lines: Vec<PlotLine> = lines.collect();
    let counts: Vec<String> = cells.iter().map(|cell| cell.1.to_string()).collect();
    let (name, disk) = (program.as_str(), disk.as_str());
    let title = match program {
        ProgramChoice::Postgresql => format!("{name}: pgbench, {load}, disk: {disk}"),
        _ => format!("Figure 9: {name}, writes only, disk: {disk}"),
    };
    (!lines.is_empty()).then(|| Plot {
        title,
        note: format!("Clients: {}. {}", counts.join(", "), paper::writes(program)),
        x: Ruler::Linear("requests/s".to_owned()),
        y: Ruler::Powers("mean latency, µs".to_owned()),
        lines,
        others: Vec::new(),
    })
}

fn ycsb(rows: &Rows, program: ProgramChoice, disk: Disk) -> Option<Bars> {
    let all = cells(rows, program, disk);
    let cells: Vec<_> = all.into_iter().filter(|cell| !program.is_write(cell.0)).collect();
    let figures: Vec<_> =
        cells.iter().map(|cell| of_sides(rows, (program, disk), *cell, "per_second")).collect();
    let series = Side::ALL.iter().enumerate().map(|(side, name)| {
        (name.as_str().to_owned(), figures.iter().map(|of| of[side]).collect())
    });
    (!cells.is_empty()).then(|| Bars {
        title: format!("Figure 10: {}, disk: {}", program.as_str(), disk.as_str()),
        note: format!("Requests a second; more is better. {}", paper::ycsb(program)),
        groups: cells.iter().map(|cell| cell.0.to_owned()).collect(),
        series: series.collect(),
        is_stacked: false,
    })
}

fn reads(rows: &Rows) -> Option<Plot> {
    let lines = READERS.iter().filter_map(|(side, disk, name)| {
        line(
            name,
            SIZES
                .into_iter()
                .map(|size| (size as f64, rows.figure(&read_key((*side, *disk), size), "mean_us"))),
        )
    });
    let lines: Vec<PlotLine> = lines.collect();
    (!lines.is_empty()).then(|| Plot {
        title: "Figure 11: mean time of a read, for a log that is read as a whole".to_owned(),
        note: "Lower is better. Bytes fetched ahead are part of each read.".to_owned(),
        x: sizes(),
        y: Ruler::Powers("µs".to_owned()),
        lines,
        others: Vec::new(),
    })
}

fn recovery(rows: &Rows) -> Option<Bars> {
    let keys = rows.each(Part::Recovery, |key| (key.program, key.load, key.bytes));
    let keys: Vec<_> = keys.into_iter().filter(|(_, load, _)| *load != "read by size").collect();
    let of = |side: Side| {
        let figure = |(program, load, bytes): &(&'static str, &'static str, u64)| {
            let all = rows.each(Part::Recovery, Key::clone);
            let found = all.iter().find(|key| {
                key.side == side && (key.program, key.load, key.bytes) == (*program, *load, *bytes)
            });
            found.and_then(|key| rows.figure(key, "total_ms"))
        };
        keys.iter().map(figure).collect()
    };
    let names = [
        (Side::Unsynced, "local file, not cached"),
        (Side::Shared, Side::Shared.as_str()),
        (Side::Tcp, Side::Tcp.as_str()),
    ];
    (!keys.is_empty()).then(|| Bars {
        title: "Figure 11: milliseconds until a log is there".to_owned(),
        note: "Lower is better. Paper, Redis: 1.15 times CephFS's.".to_owned(),
        groups: keys.iter().map(|(program, ..)| (*program).to_owned()).collect(),
        series: names.map(|(side, name)| (name.to_owned(), of(side))).to_vec(),
        is_stacked: false,
    })
}

fn replacement(rows: &Rows) -> Option<Bars> {
    let keys = rows.each(Part::Replacement, Key::clone);
    let series = STEPS.map(|(figure, name)| {
        (name.to_owned(), keys.iter().map(|key| rows.figure(key, figure)).collect())
    });
    (!keys.is_empty()).then(|| Bars {
        title: "Table 3: milliseconds until a killed peer is replaced".to_owned(),
        note: "The paper has 96.6 ms: 3.6 to find one, 64.9 to connect and set up memory, 23.4 to \
               copy, 4.7 for the map."
            .to_owned(),
        groups: keys.iter().map(|key| key.side.as_str().to_owned()).collect(),
        series: series.to_vec(),
        is_stacked: true,
    })
}

fn over_time(row: &Row) -> Timeline {
    let per_second = |count: &u64| *count as f64 / failures::SLICE_SECONDS;
    let marks = row.marks.iter().map(|(at, text)| Mark { at: *at, text: text.clone() });
    let name = row.key.side.as_str();
    Timeline {
        title: format!("Figure 12: synced records a second while peers are killed ({name}, f = 1)"),
        note: paper::FAILURES.to_owned(),
        bin_seconds: failures::SLICE_SECONDS,
        lines: vec![(name.to_owned(), row.slices.iter().map(per_second).collect())],
        marks: marks.collect(),
    }
}
