//! The rate of each engine over the time of a run, as a picture for each workload.

use super::Cell;
use super::rows::EngineRow;
use crate::page::Timeline;
use gabion_base::{Error, ErrorKind, Result};
use std::fs;
use std::io;
use std::path::Path;

fn failed(what: &Path, error: io::Error) -> Error {
    Error::with_source(ErrorKind::Io, format!("write {}", what.display()), error)
}

/// Makes the directory of the pictures, where it is not there.
pub(super) fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))
}

/// Draws the last round of each cell into `WORKLOAD-SIZE-LOG.svg` in `directory`; no picture for a
/// cell whose runs were too short for one slice.
pub(super) fn draw(
    engines: &[&str],
    cells: &[Cell],
    rows: &[(Cell, EngineRow)],
    directory: &Path,
) -> Result<()> {
    for &cell in cells {
        if let Some(timeline) = timeline(engines, cell, rows) {
            let Cell { log, value_size, workload } = cell;
            let name = format!("{}-{value_size}-{}.svg", workload.as_str(), log.as_str());
            let path = directory.join(name);
            fs::write(&path, timeline.svg()).map_err(|error| failed(&path, error))?;
        }
    }
    Ok(())
}

fn timeline(engines: &[&str], cell: Cell, rows: &[(Cell, EngineRow)]) -> Option<Timeline> {
    let mut bin_seconds = None;
    let mut lines = Vec::new();
    for engine in engines {
        let mut of_engine = rows.iter().filter(|(of, row)| *of == cell && row.engine() == *engine);
        let rates = of_engine.next_back().and_then(|(_, row)| row.rates_over_time());
        if let Some((seconds, rates)) = rates.filter(|(_, rates)| !rates.is_empty()) {
            bin_seconds = Some(seconds);
            lines.push(((*engine).to_owned(), rates));
        }
    }
    Some(Timeline {
        title: format!(
            "{}, {} bytes, log {}: requests a second",
            cell.workload.as_str(),
            cell.value_size,
            cell.log.as_str()
        ),
        note: "A line ends with the last whole slice of its run.".to_owned(),
        bin_seconds: bin_seconds?,
        lines,
        marks: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_workload::{Log, REVISION, Workload};
    use serde_json::{Map, json};

    #[test]
    fn each_engine_has_a_line_of_its_last_round_and_a_short_run_none() {
        let cell = Cell { log: Log::On, value_size: 1000, workload: Workload::YcsbG };
        let row = |engine: &str, round: u64, rates: &[f64]| {
            let slices: Vec<_> = rates.iter().map(|rate| json!({"per_second": rate})).collect();
            let row = json!({
                "engine": engine, "revision": REVISION,
                "over_time": {"seconds": 10, "slices": slices},
            });
            let row = EngineRow::parse(engine, row.to_string().as_bytes(), round, Map::new());
            (cell, row.unwrap())
        };
        let rows = [row("a", 1, &[9.0]), row("a", 2, &[5.0, 4.0]), row("b", 2, &[3.0])];
        let timeline = timeline(&["a", "b", "c"], cell, &rows).unwrap();
        assert_eq!(timeline.bin_seconds, 10.0);
        let lines = [("a".to_owned(), vec![5.0, 4.0]), ("b".to_owned(), vec![3.0])];
        assert_eq!(timeline.lines, lines);
        assert!(super::timeline(&["a"], cell, &[row("a", 1, &[])]).is_none());
    }
}
