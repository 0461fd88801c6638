//! Options, tables and drawings; whole runs are tested with the program, in crates/gabion.

use super::rows::{Key, Side};
use super::*;
use crate::launch::ScratchDir;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: NclArgs,
}

fn args(words: &[&str]) -> NclArgs {
    Line::try_parse_from([&["bench"], words].concat()).unwrap().args
}

#[test]
fn parts_run_in_their_order_whatever_order_they_are_named_in() {
    assert_eq!(args(&[]).parts().len(), Part::value_variants().len());
    let some = args(&["--only", "memory,latency"]).parts();
    assert_eq!(some, [Part::Latency, Part::Memory]);
}

#[test]
fn bad_options_are_refused_with_value_and_limit() {
    let cases: [(&[&str], &str); 9] = [
        (&["--rounds", "0"], "--rounds is 0, allowed are 1 to 100"),
        (&["--seconds", "0"], "--seconds is 0, allowed are 0.05 to 600"),
        (&["--seconds", "NaN"], "--seconds is NaN, allowed are 0.05 to 600"),
        (&["--clients", "1,0"], "--clients is 0, allowed are 1 to 1024"),
        (&["--clients", "4,4"], "--clients names 4 twice"),
        (&["--records", "999"], "--records is 999, allowed are 1000 to 10000000"),
        (&["--log-size", "1023KiB"], "--log-size is 1047552, allowed are 1048576 to 1073741824"),
        (&["--memory", "1KiB"], "--memory is 1024, allowed are 1048576 to 68719476736"),
        (&["--slow-sync", "0"], "--slow-sync is 0, allowed are 1 to 10000"),
    ];
    for (words, message) in cases {
        let error = ncl(&args(words), Path::new("/nowhere"), Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().contains(message), "{words:?}: {error}");
    }
    args(&["--seconds", "0.05", "--slow-sync", "10000", "--clients", "1024"]).check().unwrap();
}

/// Rows of all parts, of a machine on which all is met but what a test changes.
fn rows(change: impl Fn(&mut Row)) -> Rows {
    let mut rows = Rows::default();
    let mut add = |mut row: Row| {
        change(&mut row);
        rows.push(row);
    };
    for (side, disk, us) in [
        (Side::Shared, None, 4.0),
        (Side::Tcp, None, 50.0),
        (Side::Unsynced, Some(Disk::Local), 1.0),
        (Side::Synced, Some(Disk::Local), 900.0),
    ] {
        let key = tables::latency_key((side, disk), 128);
        add(Row::new(key, 1, vec![("mean_us", us)]));
    }
    let threads = Key { clients: 64, ..Key::library(Part::Threads, "write", Side::Tcp, 128) };
    add(Row::new(threads, 1, vec![("per_second", 160_000.0)]));
    for (disk, synced) in [(Disk::Local, 4_000.0), (Disk::Slow, 400.0)] {
        let rates = [10_000.0, 9_800.0, 9_000.0, synced];
        for (load, (side, rate)) in ["write-only", "YCSB A"]
            .into_iter()
            .flat_map(|load| Side::ALL.into_iter().zip(rates).map(move |of| (load, of)))
        {
            let (part, program, disk) = (Part::Programs, "redis", Some(disk));
            let key = Key { part, program, load, side, disk, clients: 1, bytes: 100 };
            let figures = vec![("per_second", rate), ("mean_us", 1e6 / rate)];
            add(Row::new(key, 1, figures));
        }
    }
    let replaced = Key::library(Part::Replacement, "kill", Side::Shared, 60 << 20);
    for (round, total) in [(1, 45.0), (2, 40.0), (3, 400.0)] {
        add(Row::new(replaced.clone(), round, vec![("total_ms", total), ("lent_ms", 2.0)]));
    }
    let read = Key::library(Part::Recovery, "read", Side::Shared, 60 << 20);
    let local = Key { side: Side::Unsynced, disk: Some(Disk::Local), ..read.clone() };
    add(Row::new(local, 1, vec![("total_ms", 100.0)]));
    add(Row::new(read, 1, vec![("total_ms", 125.0)]));
    let key = Key::library(Part::Failures, "write", Side::Shared, 60 << 20);
    let row = Row::new(key, 1, vec![("per_second", 9_000.0), ("two_stall_ms", 40.0)]);
    let marks = vec![(0.02, "1 peer is killed".to_owned())];
    add(Row { slices: vec![90, 91, 0, 90], marks, ..row });
    let lent = Key::library(Part::Memory, "lent", Side::Shared, 4 << 30);
    add(Row::new(lent, 1, vec![("ratio", 1.004)]));
    for program in ["redis", "sqlite"] {
        let above = Key { program, ..Key::library(Part::Memory, "interposed", Side::Shared, 9) };
        let figures = |above| vec![("above_log_bytes", above), ("log_bytes", 123_456.0)];
        // The logs of two rounds need not have the same length.
        add(Row::new(above.clone(), 1, figures(15e6)));
        add(Row::new(above, 2, figures(14e6)));
    }
    for (load, without, with) in [("stat", 1_000.0, 1_060.0), ("open and close", 2_000.0, 2_990.0)]
    {
        let key =
            Key { program: "calls", ..Key::library(Part::Unmatched, load, Side::Shared, 128) };
        let more = ("more_ns", with - without);
        add(Row::new(key, 1, vec![("without_ns", without), ("with_ns", with), more]));
    }
    for (load, clients, rates) in [
        ("tpcb-like", 1, [1_000.0, 900.0, 500.0, 90.0]),
        ("simple-update", 1, [1_500.0, 1_400.0, 700.0, 700.0]),
        ("simple-update", 4, [3_000.0, 2_100.0, 1_500.0, 100.0]),
    ] {
        for (side, rate) in Side::ALL.into_iter().zip(rates) {
            let (part, program, disk) = (Part::Programs, "postgresql", Some(Disk::Local));
            let key = Key { part, program, load, side, disk, clients, bytes: 0 };
            let us = clients as f64 * 1e6 / rate;
            add(Row::new(key, 1, vec![("per_second", rate), ("mean_us", us)]));
        }
    }
    rows
}

fn line_of<'a>(text: &'a str, begin: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start().starts_with(begin));
    found.unwrap_or_else(|| panic!("no line begins with '{begin}':\n{text}"))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn tables_have_medians_losses_gains_and_the_papers_numbers() {
    let text = tables::tables(&rows(|_| {}), Style::Plain);
    assert_eq!(words(line_of(&text, "128 ")), ["128", "1.00", "4.00", "50.0", "900"]);
    let redis = "write-only, 1 10,000 9,800 9,000 4,000 2.00 10.0 2.45 100 102 111 250";
    assert_eq!(words(line_of(&text, "write-only, 1")), words(redis));
    assert!(line_of(&text, "62,914,560 bytes, peers").contains("45.0"), "the median of three");
    assert!(line_of(&text, "library, 62,914,560 bytes, peers, shared").ends_with("1.25"));
    for paper in ["4.6 µs at peers", "total 96.6", "100 k/s at peers", "about 100 ms", "232 k/s"] {
        assert!(text.contains(paper), "{paper}");
    }
    assert!(text.lines().any(|line| line.contains("slow syncs") && line.contains("redis")));
    assert_eq!(words(line_of(&text, "stat ")), ["stat", "1,000", "1,060", "60.0"]);
    assert!(line_of(&text, "sqlite with a log at peers").contains(" 123,456 "));
    assert!(line_of(&text, "sqlite with a log at peers").ends_with("14,500,000"));
}

#[test]
fn aims_are_met_up_to_their_bars_and_missed_beyond() {
    let text = tables::tables(&rows(|_| {}), Style::Plain);
    assert!(!text.contains("MISSED"), "{text}");
    let met = text.lines().filter(|line| line.ends_with(" met")).count();
    // Three of the library, two losses, two gains where a sync is slow, two of recovery, three of
    // memory, one of unmatched files.
    assert_eq!(met, 13, "{text}");
    assert!(line_of(&text, "redis, slow syncs: one writer").contains("24.5×"));
    assert!(!text.contains("redis, local: one writer"), "a sync of 250 µs says nothing");
    for (name, factor, aim) in [
        ("mean_us", 1.3, "128 bytes, shared memory"),
        ("total_ms", 1.2, "a peer is replaced"),
        ("ratio", 1.01, "a peer above what it lends"),
        ("above_log_bytes", 1.2, "redis above its log"),
        ("above_log_bytes", 1.2, "sqlite above its log"),
        ("more_ns", 1.02, "a file that is not matched: open and close"),
    ] {
        let text = tables::tables(&rows(|row| scale(row, name, factor)), Style::Plain);
        assert!(line_of(&text, aim).ends_with("MISSED"), "{text}");
    }
    let slower = rows(|row| {
        if row.key.side == Side::Shared && row.key.load == "YCSB A" {
            scale(row, "per_second", 0.9);
        }
    });
    let text = tables::tables(&slower, Style::Plain);
    let line = line_of(&text, "redis, local: worst loss (YCSB A, 1)");
    assert!(line.contains("11.8 %") && line.ends_with("MISSED"), "{line}");
}

#[test]
fn pgbench_has_a_table_without_a_bar_of_losses_and_a_gain_where_its_syncs_take_long() {
    let text = tables::tables(&rows(|_| {}), Style::Plain);
    let row = "simple-update, 4 3,000 2,100 1,500 100 30.0 50.0 21.0 1,333 1,905 2,667 40,000";
    assert_eq!(words(line_of(&text, "simple-update, 4")), words(row));
    assert!(text.contains("The paper has no PostgreSQL"), "{text}");
    assert!(!text.contains("postgresql, local: worst loss"), "{text}");
    let one = line_of(&text, "postgresql, local: one writer ÷ synced (tpcb-like)");
    assert!(one.contains("10.0×") && one.ends_with(" met"), "{one}");
    // A transaction that takes long by itself says nothing of syncs.
    assert!(!text.contains("one writer ÷ synced (simple-update)"), "{text}");
}

#[test]
fn postgresql_has_few_clients_and_no_split_files() {
    let loads = |program: ProgramChoice, clients: &[u64]| -> Vec<String> {
        let cells = program.cells(clients).into_iter();
        cells.map(|(load, clients)| format!("{} {clients}", load.name)).collect()
    };
    let expected = ["tpcb-like 1", "tpcb-like 16", "simple-update 1", "simple-update 16"];
    assert_eq!(loads(ProgramChoice::Postgresql, &[64, 1, 16]), expected);
    assert_eq!(loads(ProgramChoice::Redis, &[1, 64])[..2], ["write-only 1", "write-only 64"]);
    assert_eq!(loads(ProgramChoice::Sqlite, &[4])[..2], ["write-only 1", "YCSB A 1"]);
    assert_eq!(ProgramChoice::Postgresql.sides(true).count(), Side::ALL.len());
    assert_eq!(ProgramChoice::Sqlite.sides(true).last(), Some(Side::Split));
    assert_eq!(ProgramChoice::Sqlite.sides(false).last(), Some(Side::Synced));
}

#[test]
fn split_files_have_a_table_where_they_were_measured() {
    let mut rows = rows(|_| {});
    assert!(!tables::tables(&rows, Style::Plain).contains("Split files"));
    let (part, program, disk) = (Part::Programs, "redis", Some(Disk::Slow));
    let (load, side) = ("write-only", Side::Split);
    let key = Key { part, program, load, side, disk, clients: 1, bytes: 100 };
    rows.push(Row::new(key, 1, vec![("per_second", 8_000.0), ("p99_us", 300.0)]));
    let text = tables::tables(&rows, Style::Plain);
    let begin = text.find("Split files: redis, disk: slow syncs").expect("a table");
    let row = words(line_of(&text[begin..], "write-only, 1"));
    assert_eq!(row, ["write-only,", "1", "9,800", "8,000", "20.0", "20.0", "300"]);
}

/// A figure of a row, times a factor.
fn scale(row: &mut Row, name: &str, factor: f64) {
    for (known, figure) in &mut row.figures {
        if *known == name {
            *figure *= factor;
        }
    }
}

#[test]
fn nothing_is_told_or_drawn_of_parts_that_were_not_measured() {
    assert_eq!(tables::tables(&Rows::default(), Style::Plain), "");
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    draw::draw(&Rows::default(), dir.path()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn each_figure_is_a_picture_that_can_be_read() {
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let pictures = dir.path().join("new");
    draw::make(&pictures).unwrap();
    draw::draw(&rows(|_| {}), &pictures).unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&pictures).unwrap() {
        let path = entry.unwrap().path();
        let svg = std::fs::read_to_string(&path).unwrap();
        roxmltree::Document::parse(&svg).unwrap();
        names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    names.sort();
    let expected = [
        "figure-10-redis-local",
        "figure-10-redis-slow-syncs",
        "figure-11-recovery",
        "figure-12-shared",
        "figure-8",
        "figure-9-redis-local",
        "figure-9-redis-slow-syncs",
        "pgbench-postgresql-local-simple-update",
        "pgbench-postgresql-local-tpcb-like",
        "table-3",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_row_names_its_place_and_has_its_figures_and_slices() {
    let rows = rows(|_| {});
    let row = rows.of(Part::Failures).next().unwrap().json(provenance());
    assert_eq!(row["part"], "failures");
    assert_eq!(row["side"], "peers, shared memory");
    assert!(row["disk"].is_null());
    assert_eq!(row["two_stall_ms"], 40.0);
    assert_eq!(row["slices_of_10_ms"].as_array().unwrap().len(), 4);
    assert_eq!(row["marks"][0]["what"], "1 peer is killed");
    assert!(row["config"]["machine"]["cores"].is_u64());
}
