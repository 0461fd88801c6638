//! Medians side by side: a table for each log and value size, a line for each workload and engine.

use super::Cell;
use super::rows::{EngineRow, median};
use crate::text::{Style, Table, grouped, line, megabytes};
use std::collections::BTreeSet;

const HEADER: [&str; 13] = [
    "workload, engine",
    "per second",
    "ratio",
    "CPU µs/op",
    "ratio",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "write amp",
    "read amp",
    "space amp",
    "quiet s",
    "memory MB",
];

/// The tables. Ratios are those of the first engine ÷ the one in the line: more is better for operations,
/// less for CPU.
pub(super) fn tables(
    engines: &[&str],
    cells: &[Cell],
    rows: &[(Cell, EngineRow)],
    style: Style,
) -> String {
    let mut out = String::new();
    let mut table: Option<(String, Table)> = None;
    for cell in cells {
        let title = format!("Values of {} bytes, log {}", cell.value_size, cell.log.as_str());
        if table.as_ref().is_none_or(|(last, _)| *last != title) {
            if let Some((_, done)) = table.take() {
                done.write(style, &mut out);
            }
            table = Some((title.clone(), Table::new(title, &HEADER)));
        }
        if let Some((_, table)) = &mut table {
            add_cell(table, engines, *cell, rows);
        }
    }
    if let Some((_, done)) = table {
        done.write(style, &mut out);
    }
    notes(engines, rows, &mut out);
    out
}

fn add_cell(table: &mut Table, engines: &[&str], cell: Cell, rows: &[(Cell, EngineRow)]) {
    let of = |engine: &str| -> Vec<&EngineRow> {
        let is = |row: &&(Cell, EngineRow)| row.0 == cell && row.1.engine() == engine;
        rows.iter().filter(is).map(|(_, row)| row).collect()
    };
    let first = engines.first().map(|engine| of(engine)).unwrap_or_default();
    for (i, engine) in engines.iter().enumerate() {
        let rows = of(engine);
        let figure = |name| median(&rows, name);
        let ratio = |of: Option<f64>, to: Option<f64>| match (of, to) {
            (Some(of), Some(to)) if i > 0 && to > 0.0 => format!("{:.2}", of / to),
            _ => String::new(),
        };
        let fixed = |name| figure(name).map_or_else(String::new, |value| format!("{value:.2}"));
        let micros = |name| figure(name).map_or_else(String::new, |value| format!("{value:.1}"));
        let per_second = figure("per_second");
        table.row(vec![
            format!("{}, {engine}", cell.workload.as_str()),
            per_second.map_or_else(String::new, |value| grouped(value as u64)),
            ratio(median(&first, "per_second"), per_second),
            cpu(&rows).map_or_else(String::new, |value| format!("{value:.2}")),
            ratio(cpu(&first), cpu(&rows)),
            micros("p50_us"),
            micros("p99_us"),
            micros("p999_us"),
            fixed("write_amp"),
            fixed("read_amp"),
            fixed("space_amp"),
            fixed("quiet_seconds"),
            figure("peak_memory").map_or_else(String::new, |value| megabytes(value as u64)),
        ]);
    }
}

/// Until compaction is quiet where the workload leaves some, so that nobody's debt is left out.
fn cpu(rows: &[&EngineRow]) -> Option<f64> {
    median(rows, "cpu_us_per_op_quiet").or_else(|| median(rows, "cpu_us_per_op"))
}

fn notes(engines: &[&str], rows: &[(Cell, EngineRow)], out: &mut String) {
    if let Some(first) = engines.first() {
        line(
            out,
            &format!("Ratios: {first} ÷ the engine in the line. CPU: until compaction is quiet."),
        );
    }
    let mut said = BTreeSet::new();
    for (_, row) in rows {
        if said.insert(format!("{} {}", row.engine(), row.version())) {
            line(out, &format!("{} is version {}.", row.engine(), row.version()));
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
