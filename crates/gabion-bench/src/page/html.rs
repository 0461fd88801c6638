//! A report as one HTML file: nothing is loaded, nothing runs. It is well-formed XML too, so that
//! any parser can check it.

use super::chart::Chart;
use super::document::{Block, Cell, Document, Section, Sheet, Verdict};
use super::stats::Tone;
use std::fmt::Write;

pub(super) const STYLE: &str = include_str!("style.css");

/// Text as it stands between tags and in attributes. Control characters are shown as a replacement,
/// as XML has no place for them.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Narrowest plot with its words, in pixels.
const FIGURE_WIDTH_MIN: f64 = 340.0;

// Writing to a String cannot fail, here and below.

/// The page.
pub(super) fn page(document: &Document) -> String {
    let title = escaped(&document.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n"
    );
    out.push_str("<nav aria-label=\"Contents\">\n<ul>\n");
    for (i, section) in document.sections.iter().enumerate() {
        let _ = writeln!(out, "<li><a href=\"#s{i}\">{}</a></li>", escaped(&section.title));
    }
    out.push_str("</ul>\n</nav>\n");
    for (i, section) in document.sections.iter().enumerate() {
        write_section(section, i, &mut out);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn write_section(section: &Section, number: usize, out: &mut String) {
    let title = escaped(&section.title);
    let _ =
        writeln!(out, "<section aria-labelledby=\"s{number}\">\n<h2 id=\"s{number}\">{title}</h2>");
    for (i, block) in section.blocks.iter().enumerate() {
        let id = format!("s{number}b{i}");
        match block {
            Block::Text(text) => {
                let _ = writeln!(out, "<p>{}</p>", escaped(text));
            }
            Block::Facts { title, facts } => write_facts(title, facts, out),
            Block::Warnings(warnings) => write_warnings(warnings, out),
            Block::Verdicts(verdicts) => write_verdicts(verdicts, out),
            Block::Sheet(sheet) => write_sheet(sheet, out),
            Block::Charts(charts) => write_charts(charts, &id, out),
            Block::Command { what, command } => {
                let (what, command) = (escaped(what), escaped(command));
                let _ = writeln!(out, "<p>{what}</p>\n<pre><code>{command}</code></pre>");
            }
        }
    }
    out.push_str("</section>\n");
}

fn write_facts(title: &str, facts: &[(&'static str, String)], out: &mut String) {
    let _ = writeln!(out, "<h3>{}</h3>\n<dl class=\"facts\">", escaped(title));
    for (name, fact) in facts {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact));
    }
    out.push_str("</dl>\n");
}

fn write_warnings(warnings: &[String], out: &mut String) {
    out.push_str("<ul class=\"warnings\">\n");
    for warning in warnings {
        let _ = writeln!(out, "<li>{}</li>", escaped(warning));
    }
    out.push_str("</ul>\n");
}

/// The class of a tone, and a sign that needs no colour.
const fn tone(tone: Tone) -> (&'static str, &'static str) {
    match tone {
        Tone::Ahead => ("ahead", "▲"),
        Tone::Behind => ("behind", "▼"),
        Tone::Even => ("even", "≈"),
    }
}

fn write_verdicts(verdicts: &[Verdict], out: &mut String) {
    out.push_str("<div class=\"verdicts\">\n");
    for verdict in verdicts {
        let (sides, place) = (escaped(&verdict.sides), escaped(&verdict.place));
        let _ = writeln!(out, "<div class=\"verdict\">\n<h3>{sides}</h3>\n<p>{place}</p>\n<dl>");
        for kind in [Tone::Ahead, Tone::Behind, Tone::Even] {
            let figures = verdict.with_tone(kind);
            if figures.is_empty() {
                continue;
            }
            let (class, sign) = tone(kind);
            let _ = writeln!(out, "<dt class=\"{class}\">{sign} {}</dt>", kind.as_str());
            for figure in figures {
                let _ = writeln!(out, "<dd>{}</dd>", escaped(&figure));
            }
        }
        out.push_str("</dl>\n</div>\n");
    }
    out.push_str("</div>\n");
}

fn write_cell(cell: &Cell, out: &mut String) {
    let Some((ratio, of)) = &cell.ratio else {
        let text = if cell.text.is_empty() { "–".to_owned() } else { escaped(&cell.text) };
        let _ = write!(out, "<td>{text}</td>");
        return;
    };
    let (class, sign) = tone(*of);
    let space = if cell.text.is_empty() { "" } else { " " };
    let _ = write!(
        out,
        "<td>{}{space}<span class=\"{class}\" title=\"{}\">{sign}&#160;{}</span></td>",
        escaped(&cell.text),
        of.as_str(),
        escaped(ratio)
    );
}

fn write_sheet(sheet: &Sheet, out: &mut String) {
    let caption = escaped(&sheet.title);
    // A reader without a pointer has to reach the part beyond the edge.
    let _ = writeln!(
        out,
        "<div class=\"sheet\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n<table>\n\
         <caption>{caption}</caption>\n<thead><tr>"
    );
    for word in &sheet.header {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(word));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &sheet.rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            if i == 0 {
                let _ = write!(out, "<th scope=\"row\">{}</th>", escaped(&cell.text));
            } else {
                write_cell(cell, out);
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

fn write_charts(charts: &[Chart], id: &str, out: &mut String) {
    out.push_str("<div class=\"charts\">\n");
    for (i, chart) in charts.iter().enumerate() {
        let (title, note) = (escaped(&chart.title), escaped(&chart.note));
        let _ = writeln!(
            out,
            "<figure style=\"width:{:.0}px\">\n<figcaption><strong>{title}</strong>\
             <br/>{note}</figcaption>\n<ul class=\"legend\">",
            chart.width().max(FIGURE_WIDTH_MIN)
        );
        for series in &chart.series {
            let _ = writeln!(
                out,
                "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\" \
                 xmlns=\"http://www.w3.org/2000/svg\"><rect class=\"{}\" width=\"12\" \
                 height=\"12\"/></svg> {}</li>",
                series.class,
                escaped(&series.name)
            );
        }
        out.push_str("</ul>\n");
        out.push_str(&chart.svg(&format!("{id}c{i}")));
        out.push_str("<details>\n<summary>Figures</summary>\n");
        write_sheet(&chart.sheet(), out);
        out.push_str("</details>\n</figure>\n");
    }
    out.push_str("</div>\n");
}
