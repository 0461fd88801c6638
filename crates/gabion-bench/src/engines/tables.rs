//! Medians side by side. For each log and value size there is a table of figures, a line for each
//! workload and engine, and one of ratios, a line for each workload and engine that is compared
//! with the first.

use super::Cell;
use super::rows::{EngineRow, OTHER_WORK, is_other_work, median};
use crate::text::{Style, Table, grouped, line, megabytes};
use std::collections::BTreeSet;

/// A figure of one engine in one workload; `None` where the workload has none.
struct Column {
    name: &'static str,
    of: fn(&[&EngineRow]) -> Option<f64>,
    show: fn(f64) -> String,
    /// Its name among the ratios, if it is one of them.
    ratio: Option<&'static str>,
}

const COLUMNS: [Column; 11] = [
    Column {
        name: "per second",
        of: |rows| median(rows, "per_second"),
        show: |value| grouped(value as u64),
        ratio: Some("ops/s"),
    },
    Column {
        name: "quiet /s",
        of: |rows| median(rows, "per_second_quiet"),
        show: |value| grouped(value as u64),
        ratio: Some("quiet/s"),
    },
    Column { name: "CPU µs/op", of: cpu, show: hundredths, ratio: Some("CPU/op") },
    Column { name: "p50 µs", of: |rows| median(rows, "p50_us"), show: tenths, ratio: None },
    Column { name: "p99 µs", of: |rows| median(rows, "p99_us"), show: tenths, ratio: Some("p99") },
    Column { name: "p99.9 µs", of: |rows| median(rows, "p999_us"), show: tenths, ratio: None },
    Column {
        name: "longest ms",
        of: |rows| median(rows, "max_us"),
        show: |value| tenths(value / 1000.0),
        ratio: None,
    },
    Column {
        name: "write amp",
        of: |rows| median(rows, "write_amp"),
        show: hundredths,
        ratio: Some("write amp"),
    },
    Column {
        name: "read amp",
        of: |rows| median(rows, "read_amp"),
        show: hundredths,
        ratio: Some("read amp"),
    },
    Column {
        name: "space amp",
        of: |rows| median(rows, "space_amp"),
        show: hundredths,
        ratio: Some("space amp"),
    },
    Column {
        name: "memory MB",
        of: |rows| median(rows, "peak_memory"),
        show: |value| megabytes(value as u64),
        ratio: Some("memory"),
    },
];

fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// The tables. Ratios are those of the first engine ÷ the one in the line: more is better for
/// operations, less for all else.
pub(super) fn tables(
    engines: &[&str],
    cells: &[Cell],
    rows: &[(Cell, EngineRow)],
    style: Style,
) -> String {
    let mut out = String::new();
    let is_of_table = |a: &Cell, b: &Cell| (a.log, a.value_size) == (b.log, b.value_size);
    for cells in cells.chunk_by(is_of_table) {
        figures(engines, cells, rows).write(style, &mut out);
        if engines.len() > 1 {
            ratios(engines, cells, rows).write(style, &mut out);
        }
    }
    other_work(engines, cells, rows).iter().for_each(|text| line(&mut out, text));
    notes(engines, rows, &mut out);
    out
}

fn title(cell: Cell) -> String {
    format!("Values of {} bytes, log {}", cell.value_size, cell.log.as_str())
}

/// All rounds of one engine in one cell.
fn of<'a>(rows: &'a [(Cell, EngineRow)], cell: Cell, engine: &str) -> Vec<&'a EngineRow> {
    let is = |row: &&(Cell, EngineRow)| row.0 == cell && row.1.engine() == engine;
    rows.iter().filter(is).map(|(_, row)| row).collect()
}

fn figures(engines: &[&str], cells: &[Cell], rows: &[(Cell, EngineRow)]) -> Table {
    let names = COLUMNS.iter().map(|column| column.name);
    let header: Vec<&str> = std::iter::once("workload, engine").chain(names).collect();
    let mut table = Table::new(title(cells[0]), &header);
    for &cell in cells {
        for engine in engines {
            let rows = of(rows, cell, engine);
            let name = format!("{}, {engine}", cell.workload.as_str());
            let figure = |column: &Column| (column.of)(&rows).map_or_else(String::new, column.show);
            table.row(std::iter::once(name).chain(COLUMNS.iter().map(figure)).collect());
        }
    }
    table
}

fn ratios(engines: &[&str], cells: &[Cell], rows: &[(Cell, EngineRow)]) -> Table {
    let columns = || COLUMNS.iter().filter_map(|column| Some((column.ratio?, column.of)));
    let header = std::iter::once("workload, ÷ engine").chain(columns().map(|(name, _)| name));
    let header: Vec<&str> = header.collect();
    let [first, others @ ..] = engines else { return Table::new(title(cells[0]), &header) };
    let mut table = Table::new(format!("{}: {first} ÷ others", title(cells[0])), &header);
    for &cell in cells {
        let first = of(rows, cell, first);
        for engine in others {
            let other = of(rows, cell, engine);
            let ratio = |figure: fn(&[&EngineRow]) -> Option<f64>| {
                let pair = figure(&first).zip(figure(&other)).filter(|(_, to)| *to > 0.0);
                pair.map_or_else(String::new, |(of, to)| hundredths(of / to))
            };
            let name = format!("{}, ÷ {engine}", cell.workload.as_str());
            let ratios = columns().map(|(_, of)| ratio(of));
            table.row(std::iter::once(name).chain(ratios).collect());
        }
    }
    table
}

/// Until compaction is quiet if the workload leaves some work, so that nobody's debt is left out.
fn cpu(rows: &[&EngineRow]) -> Option<f64> {
    median(rows, "cpu_us_per_op_quiet").or_else(|| median(rows, "cpu_us_per_op"))
}

/// A line for each engine that did not do as much as the first.
fn other_work(engines: &[&str], cells: &[Cell], rows: &[(Cell, EngineRow)]) -> Vec<String> {
    let [first, others @ ..] = engines else { return Vec::new() };
    let done = |cell, engine| median(&of(rows, cell, engine), "operations");
    let mut texts = Vec::new();
    for &cell in cells {
        for engine in others {
            let Some((own, other)) = done(cell, first).zip(done(cell, engine)) else { continue };
            if is_other_work(cell.workload, [own, other]) {
                texts.push(format!(
                    "{}, {}: {first} did {} operations, {engine} {}; {OTHER_WORK}.",
                    title(cell),
                    cell.workload.as_str(),
                    grouped(own as u64),
                    grouped(other as u64),
                ));
            }
        }
    }
    texts
}

fn notes(engines: &[&str], rows: &[(Cell, EngineRow)], out: &mut String) {
    if let [first, _, ..] = engines {
        let way = "more is better of ops/s and quiet/s, less of all else";
        line(out, &format!("Ratios: {first} ÷ the engine in the line; {way}."));
    }
    line(out, "CPU, and quiet/s: until compaction is quiet.");
    let mut said = BTreeSet::new();
    for (_, row) in rows {
        let described = row.described();
        if said.insert(described.clone()) {
            line(out, &format!("{described}."));
        }
    }
    for (_, row) in rows {
        for limit in row.limits() {
            if said.insert(limit.to_owned()) {
                line(out, &format!("{limit}."));
            }
        }
    }
}
