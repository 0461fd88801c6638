use super::*;
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: EngineArgs,
}

fn args(words: &[&str]) -> EngineArgs {
    Line::parse_from([&["engine"], words].concat()).args
}

#[test]
fn every_workload_runs_with_every_size_and_log() {
    let cells = args(&["--log", "off,on"]).cells().unwrap();
    assert_eq!(cells.len(), 2 * 3 * Workload::all().len());
    let cells = args(&["--workloads", "fillseq,ycsb-g", "--value-sizes", "100"]).cells().unwrap();
    assert_eq!(cells.len(), 2);
}

#[test]
fn bad_options_are_refused_before_anything_runs() {
    let cases: [(&[&str], &str); 10] = [
        (&["--large-values", "63"], "large_values is 63"),
        (&["--vs", "blobdb", "--large-values", "0"], "with which blobdb is rocksdb"),
        (&["--compression", "zstd"], "rocksdb has no zstd here"),
        (&["--vs", "rocksdb", "--bottom-compression", "zstd"], "rocksdb has no zstd here"),
        (&["--vs", "fjall", "--bottom-compression", "lz4"], "fjall has no --bottom-compression"),
        (&["--rocksdb-write-buffers", "1"], "rocksdb: --write-buffers is 1, allowed are 2 to 64"),
        (&["--rounds", "0"], "--rounds is 0, allowed are 1 to 100"),
        (&["--value-sizes", "15"], "--value-size is 15"),
        (
            &["--value-sizes", "100,100"],
            "fillseq with values of 100 bytes and log off is named twice",
        ),
        (&["--records", "1"], "--records is 1"),
    ];
    for (words, message) in cases {
        let error = args(words).cells().unwrap_err().to_string();
        assert!(error.contains(message), "{words:?}: {error}");
    }
}

#[test]
fn a_disk_with_too_little_room_is_refused_before_anything_runs() {
    let args = args(&["--workloads", "fillseq,overwrite", "--value-sizes", "100,1000"]);
    let cells = args.cells().unwrap();
    let most = args.run_args(cells[3], "", PathBuf::new()).plan().unwrap().disk_len();
    assert!(args.check_room(&cells, Path::new("here"), most, 0).is_ok());
    assert!(args.check_room(&cells, Path::new("here"), most, 1).is_err(), "a ring beside it");
    let error = args.check_room(&cells, Path::new("here"), most - 1, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("overwrite with values of 1000 bytes"), "{error}");
}

#[test]
fn what_is_typed_reaches_the_engines_program() {
    let words = [
        "--quick",
        "--compression=lz4",
        "--bottom-compression=zstd",
        "--compressibility=0.25",
        "--records=1000",
        "--operations=900",
        "--seconds=7",
        "--memtable-size=2MiB",
        "--cache=3MiB",
        "--block-size=8KiB",
        "--background-threads=3",
        "--buffered",
        "--seed=9",
        "--rocksdb-block-size=4KiB",
        "--rocksdb-write-buffers=3",
        "--rocksdb-recycled-logs=2",
        "--large-values=600",
    ];
    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        run: RunArgs,
    }
    for words in [&words[..], &[]] {
        let cell = Cell { log: Log::Synced, value_size: 400, workload: Workload::YcsbF };
        for (engine, own) in [("gabion", 1), ("rocksdb", 3), ("blobdb", 4), ("fjall", 0)] {
            let sent = args(words).run_args(cell, engine, PathBuf::from("d"));
            let received = Run::parse_from([vec!["run".into()], sent.words()].concat()).run;
            assert_eq!(format!("{received:?}"), format!("{sent:?}"));
            let own = if words.is_empty() { usize::from(engine == "blobdb") } else { own };
            assert_eq!(received.own.words().len(), own, "{engine}: {:?}", received.own);
        }
    }
}

#[test]
fn blobdb_s_large_values_are_those_of_this_engine() {
    let cell = Cell { log: Log::On, value_size: 1000, workload: Workload::YcsbG };
    let own = |words: &[&str], engine: &str| {
        args(words).run_args(cell, engine, PathBuf::new()).own.large_values
    };
    let beside = ["--vs", "rocksdb,blobdb"];
    let unsaid = ["gabion", "rocksdb", "blobdb"].map(|engine| own(&beside, engine));
    assert_eq!(unsaid, [None, None, Some(512)]);
    let words = ["--vs", "blobdb", "--large-values", "700"];
    assert_eq!(["gabion", "blobdb"].map(|engine| own(&words, engine)), [Some(700); 2]);
}

fn row(engine: &str, per_second: f64, cpu: f64) -> EngineRow {
    let row = json!({
        "engine": engine, "version": "1.2", "revision": gabion_workload::REVISION,
        "operations": 1000, "per_second": per_second, "per_second_quiet": per_second / 4.0,
        "cpu_us_per_op": 9.0, "cpu_us_per_op_quiet": cpu,
        "p50_us": 1.5, "p99_us": 2.5, "p999_us": 3.5, "write_amp": 4.5, "read_amp": null,
        "space_amp": 1.25, "quiet_seconds": 6.0, "peak_memory": 7_000_000, "limits": ["no wings"],
        "own_options": if engine == "rocksdb" { json!(["--a=1", "--b=2"]) } else { json!([]) },
    });
    EngineRow::parse(engine, row.to_string().as_bytes(), 1, Map::new()).unwrap()
}

/// Three rounds of another engine beside one of the first.
fn compared(style: Style) -> String {
    let cell = Cell { log: Log::Off, value_size: 100, workload: Workload::Fillseq };
    let changed = |engine: &str, changes: &[(&str, f64)]| {
        let mut value = row(engine, 300e3, 2.0).json().clone();
        for (name, figure) in changes {
            value[*name] = (*figure).into();
        }
        let text = value.to_string();
        (cell, EngineRow::parse(engine, text.as_bytes(), 1, Map::new()).unwrap())
    };
    let own = [
        ("per_second_quiet", 15e3),
        ("p99_us", 0.5),
        ("write_amp", 9.0),
        ("space_amp", 1.0),
        ("peak_memory", 14e6),
    ];
    let mut rows = vec![changed("gabion", &own)];
    let rounds = [150e3, 1e3, 1e9].map(|ops| (cell, row("rocksdb", ops, 4.0)));
    rows.extend(rounds);
    tables::tables(&["gabion", "rocksdb"], &[cell], &rows, style)
}

#[test]
fn tables_have_medians_and_the_ratios_of_the_first_engine_to_the_others() {
    let text = compared(Style::Plain);
    let lines: Vec<&str> = text.lines().collect();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(lines[0], "Values of 100 bytes, log off");
    let line = "fillseq, rocksdb 150,000 37,500 4.00 1.5 2.5 3.5 4.50 1.25 7.0";
    assert_eq!(words(lines[3]), line);
    assert_eq!(lines[5], "Values of 100 bytes, log off: gabion ÷ others");
    assert_eq!(
        words(lines[6]),
        "workload, ÷ engine ops/s quiet/s CPU/op p99 write amp read amp space amp memory"
    );
    assert_eq!(words(lines[7]), "fillseq, ÷ rocksdb 2.00 0.40 0.50 0.20 2.00 0.80 2.00");
    assert!(lines[..8].iter().all(|line| line.chars().count() <= 132), "{text}");
    assert!(text.contains("rocksdb is version 1.2 with --a=1 --b=2."), "{text}");
    assert_eq!(text.matches("no wings.").count(), 1, "{text}");
    let markdown = compared(Style::Markdown);
    let line = markdown.lines().find(|line| line.starts_with("| fillseq, ÷ rocksdb ")).unwrap();
    let ratios = "| fillseq, ÷ rocksdb | 2.00 | 0.40 | 0.50 | 0.20 | 2.00 | | 0.80 | 2.00 |";
    assert_eq!(words(line), ratios);
    assert!(!text.contains("different work"), "{text}");
}

#[test]
fn a_workload_of_which_one_engine_did_less_is_told() {
    let told = |workload: Workload, done: u64| {
        let cell = Cell { log: Log::Synced, value_size: 100, workload };
        let mut less = row("rocksdb", 1e3, 1.0).json().clone();
        less["operations"] = done.into();
        let less = EngineRow::parse("rocksdb", less.to_string().as_bytes(), 1, Map::new());
        let rows = [(cell, row("gabion", 1e3, 1.0)), (cell, less.unwrap())];
        tables::tables(&["gabion", "rocksdb"], &[cell], &rows, Style::Plain)
    };
    let text = told(Workload::Fillrandom, 900);
    let line = "Values of 100 bytes, log synced, fillrandom: gabion did 1,000 operations, rocksdb 900; the time was over";
    assert!(text.lines().any(|found| found.starts_with(line)), "{text}");
    assert!(!told(Workload::Fillrandom, 980).contains("different work"));
    assert!(!told(Workload::Readrandom, 10).contains("different work"), "it ends with its time");
}

#[test]
fn an_engine_alone_is_divided_by_nothing() {
    let cell = Cell { log: Log::On, value_size: 100, workload: Workload::Fillseq };
    let rows = [(cell, row("gabion", 1e3, 1.0))];
    let text = tables::tables(&["gabion"], &[cell], &rows, Style::Plain);
    assert!(text.contains("fillseq, gabion") && !text.contains('÷'), "{text}");
}

/// A program that is one line of shell.
fn script(name: &str, text: &str) -> Program {
    let words = vec!["-c".into(), text.into()];
    let (name, engine) = (name.to_owned(), name.to_owned());
    Program { name, engine, path: "/bin/sh".into(), words, spare_len: 0 }
}

#[test]
fn rows_of_before_an_engine_failed_are_kept_and_its_last_words_told() {
    let args = args(&["--workloads", "fillseq", "--value-sizes", "100", "--rounds", "1"]);
    let cells = args.cells().unwrap();
    let line = row("good", 1e3, 1.0).json().to_string();
    let programs = [
        script("good", &format!("echo good: measuring >&2; echo '{line}'")),
        script("bad", "for i in $(seq 30); do echo line $i >&2; done; exit 1"),
    ];
    let mut kept = Vec::new();
    let stop = AtomicBool::new(false);
    let parent = std::env::temp_dir();
    let outcome = run_all(&args, (&cells, &programs), &parent, &stop, &mut |_, row| {
        kept.push(row.engine().to_owned());
        Ok(())
    });
    assert_eq!(kept, ["good"]);
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "exit code 1 is a wrong read");
    let text = error.to_string();
    assert!(text.contains("line 19\nline 20\n") && text.ends_with("line 30"), "{text}");
    assert!(!text.contains("line 18\n"), "{text}");
}

#[test]
fn a_file_of_rows_that_is_there_is_left_alone() {
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let path = dir.path().join("rows.json");
    let row = row("gabion", 1e3, 1.0);
    Sink::open(Some(&path)).unwrap().write(&row.json(), &mut Vec::new()).unwrap();
    let kept = std::fs::read(&path).unwrap();
    let error = Sink::open(Some(&path)).err().unwrap().to_string();
    assert!(error.contains("rows.json, which is there: name another file"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), kept);
}
