//! `gabion bench report`: the JSON of runs as one page with plots, and as Markdown.
//!
//! ```text
//!   files ─► input ─► clusters, engines: rounds ─► contents: a document ─┬─► html
//!              │                │                  (text, tables, plots) └─► markdown
//!              └ field: errors  ├ stats: medians, ratios
//!                               ├ loads: which rounds of an open loop are one figure
//!                               ├ replication, twitter, placement, engines: the sections
//!                               └ commands: what is missing
//! ```
//!
//! Nothing is drawn without a run: missing figures are named, with the command that makes them.
//! Plots are drawn by hand ([`chart`]): bars need little code, and a library's fixed colours would
//! not follow the page into the dark and on to paper. Some pictures have no page: [`Timeline`] of
//! `bench failover`, [`Plot`] and [`Bars`] of `bench ncl`.

mod alone;
mod chart;
mod clusters;
mod commands;
mod contents;
mod document;
mod engines;
mod field;
mod html;
mod input;
mod loads;
mod markdown;
mod placement;
mod plot;
mod replication;
mod stats;
mod timeline;
mod twitter;

pub(crate) use alone::Bars;
use clap::{ArgGroup, Args};
use gabion_base::{Error, ErrorKind, Result};
use input::Inputs;
pub(crate) use plot::{Plot, PlotLine, Point, Ruler};
use std::io::Write;
use std::path::{Path, PathBuf};
pub(crate) use timeline::{Mark, Timeline};

/// Makes one page, and a summary in Markdown, of the JSON of one or many runs: who is ahead, by how
/// much, and at what cost.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("outputs").args(["html", "markdown"]).required(true).multiple(true))]
pub struct ReportArgs {
    /// Files that `bench ycsb`, `bench replication`, `bench placement` and `bench engine` wrote
    /// with `--json FILE`, mixed. Runs of the same settings, machine, commit and build are rounds,
    /// of which medians are taken.
    #[arg(required = true, value_name = "RUN.json")]
    pub runs: Vec<PathBuf>,
    /// Write the page to this file: HTML that needs neither network nor scripts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the summary to this file; `-` is the standard output.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Reads the runs and writes the wanted files; `out` is the standard output.
///
/// # Errors
/// A run cannot be read, is named twice or is not one: the message has file, line, field and value,
/// and nothing is written. A file cannot be written.
pub fn report(args: &ReportArgs, out: &mut dyn Write) -> Result<()> {
    check_paths(args)?;
    let document = contents::document(&Inputs::read(&args.runs)?);
    if let Some(path) = &args.html {
        write(path, &html::page(&document))?;
    }
    match &args.markdown {
        Some(path) if path == Path::new("-") => out
            .write_all(markdown::summary(&document).as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| Error::with_source(ErrorKind::Io, "the summary cannot be written", e)),
        Some(path) => write(path, &markdown::summary(&document)),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| {
        Error::with_source(ErrorKind::Io, format!("write {}", path.display()), error)
    })
}

/// A file named twice would be two rounds; one that is written over would be lost.
fn check_paths(args: &ReportArgs) -> Result<()> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let outputs = [&args.html, &args.markdown].into_iter().flatten();
    for path in args.runs.iter().chain(outputs) {
        // A missing file is told apart by its name alone.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        if seen.contains(&real) {
            return Err(Error::invalid(format!(
                "{} is named twice, allowed is once",
                path.display()
            )));
        }
        seen.push(real);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
