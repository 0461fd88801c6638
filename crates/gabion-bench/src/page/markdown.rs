//! A report as Markdown, as docs/benchmarks-history.md has parts of one. Plots are left out, as all
//! their figures are in tables.

use super::document::{Block, Cell, Document, Sheet, Verdict};
use super::stats::Tone;
use crate::text::{Style, Table, line};

/// Text without markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '#' | '~' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The summary. Its headings are of the second and third level, below a page's own.
pub(super) fn summary(document: &Document) -> String {
    let mut out = String::new();
    line(&mut out, &format!("## {}", escaped(&document.title)));
    for section in &document.sections {
        line(&mut out, &format!("\n### {}\n", escaped(&section.title)));
        for block in &section.blocks {
            write_block(block, &mut out);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

fn write_block(block: &Block, out: &mut String) {
    match block {
        Block::Text(text) => line(out, &format!("{}\n", escaped(text))),
        Block::Facts { title, facts } => {
            line(out, &format!("**{}**\n", escaped(title)));
            for (name, fact) in facts {
                line(out, &format!("- {}: {}", escaped(name), escaped(fact)));
            }
            out.push('\n');
        }
        Block::Warnings(warnings) => {
            for warning in warnings {
                line(out, &format!("- {}", escaped(warning)));
            }
            out.push('\n');
        }
        Block::Verdicts(verdicts) => {
            for verdict in verdicts {
                line(out, &sentence(verdict));
            }
            out.push('\n');
        }
        Block::Sheet(sheet) => write_sheet(sheet, out),
        Block::Charts(_) => {}
        Block::Command { what, command } => {
            line(out, &format!("{}\n", escaped(what)));
            // Indented, as a command may hold any fence.
            let command: String =
                command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            line(out, &format!("    {command}\n"));
        }
    }
}

fn sentence(verdict: &Verdict) -> String {
    let parts = [Tone::Ahead, Tone::Behind, Tone::Even].map(|tone| {
        let figures = verdict.with_tone(tone);
        (!figures.is_empty()).then(|| format!("{} in {}", tone.as_str(), figures.join(", ")))
    });
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    format!("- **{}** ({}): {}.", escaped(&verdict.sides), escaped(&verdict.place), escaped(&parts))
}

fn write_sheet(sheet: &Sheet, out: &mut String) {
    let header: Vec<String> = sheet.header.iter().map(|word| escaped(word)).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(escaped(&sheet.title), &header);
    for row in &sheet.rows {
        table.row(row.iter().map(cell).collect());
    }
    table.write(Style::Markdown, out);
}

/// A ratio that is not even has a sign, as a table has no colours.
fn cell(cell: &Cell) -> String {
    let ratio = cell.ratio.as_ref().map(|(ratio, tone)| match tone {
        Tone::Ahead => format!("▲ {ratio}"),
        Tone::Behind => format!("▼ {ratio}"),
        Tone::Even => format!("≈ {ratio}"),
    });
    let text = escaped(&cell.text);
    match ratio {
        None => text,
        Some(ratio) if text.is_empty() => escaped(&ratio),
        Some(ratio) => format!("{text} ({})", escaped(&ratio)),
    }
}
