use super::*;

/// The numbers of a core with the files, beside a document.
fn measured(files: &[(&str, &str)]) -> Measured {
    let mut texts = Texts::from([
        ("README.md".to_owned(), "x".repeat(101)),
        ("crates/gabion-base/Cargo.toml".to_owned(), "y".repeat(101)),
    ]);
    for (path, text) in files {
        texts.insert(format!("crates/gabion-base/{path}"), (*text).to_owned());
    }
    measure(&texts).expect("numbers")
}

fn function(name: &str, lines: usize) -> String {
    format!("fn {name}() {{{}}}\n", "\n".repeat(lines - 1))
}

#[test]
fn numbers_are_those_of_each_crate_and_of_the_documents() {
    let lib = [
        "mod a; mod b; #[cfg(test)] mod tests;\n".to_owned(),
        function("fits", 70),
        function("long", 71),
        function("longer", 72),
    ];
    let measured = measured(&[
        ("src/lib.rs", &lib.concat()),
        ("src/a.rs", "const _: () = assert!(true); fn a() { super::b::b() }"),
        ("src/b.rs", "fn b() { super::a::a(); assert!(true) }"),
        ("src/tests.rs", &format!("{}fn a() {{ assert!(true) }}", function("test", 80))),
        ("tests/all.rs", &format!("// {}", "z".repeat(98))),
    ]);
    let number = |measure| measured.record.number("gabion-base", measure);
    assert_eq!(MEASURES.map(number), [2, 2, 2, 2, 1]);
    assert_eq!(measured.record.number("documents", Measure::LongLines), 1);
    assert_eq!(measured.functions["gabion-base"], (1, 3));
    let places = &measured.places[&("gabion-base".to_owned(), Measure::LongFunctions)];
    let lines = places.iter().map(|place| (place.first, place.last, &*place.what));
    let expected = [(143, 214, "longer: 72 lines"), (72, 142, "long: 71 lines")];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn a_long_line_is_one_of_over_100_characters_that_nothing_generated() {
    let of = |path: &str, text: &str| {
        long_lines(path, text).iter().map(|place| place.first).collect::<Vec<_>>()
    };
    let (fits, long) = ("ä".repeat(100), "ä".repeat(101));
    let text = format!(
        "{fits}\n{long}\n{fits}\n<!-- table: begin -->\n{long}\n<!-- table: end -->\n{long}"
    );
    assert_eq!(of("docs/testing.md", &text), [2, 5, 7]);
    assert_eq!(of("docs/redis.md", &text), [2, 7]);
    assert!(of("crates/gabion-bench/src/page/samples/summary.md", &text).is_empty());
}

#[test]
fn what_is_generated_is_there() {
    for (path, between) in GENERATED {
        let text = std::fs::read_to_string(format!("../{path}")).expect(path);
        for line in between.iter().flat_map(|(begin, end)| [begin, end]) {
            assert!(text.lines().any(|one| one == *line), "{path}: {line}");
        }
    }
}

#[test]
fn a_file_of_a_core_is_too_long_by_its_lines_without_tests() {
    let tests = format!("#[cfg(test)]\nmod tests {{{}}}\n", "\n".repeat(100));
    let long = |lines: usize| {
        let text = format!("{}{tests}", "//\n".repeat(lines));
        measured(&[("src/lib.rs", &text)])
    };
    assert!(long(800).lengths.is_empty());
    let long = long(801);
    assert_eq!(long.lengths, BTreeMap::from([("crates/gabion-base/src/lib.rs".into(), 801)]));
    let mut record = long.record.clone();
    assert!(worse(&long, &record, &Changed::new()).is_empty());
    record.long_files.clear();
    let worse = worse(&long, &record, &Changed::new());
    assert_eq!(
        worse,
        ["crates/gabion-base/src/lib.rs:1 has 801 lines without tests; a file of a core has \
          at most 800"]
    );
    record.long_files = BTreeSet::from(["crates/gabion-base/src/other.rs".to_owned()]);
    let better = better(&long, &record);
    assert_eq!(better, ["crates/gabion-base/src/other.rs is no longer over 800 lines"]);
}

#[test]
fn worse_numbers_are_refused_with_the_worst_places_and_better_ones_are_told() {
    let text = [function("one", 71), function("two", 72), function("bare", 11)].concat();
    let text = format!("{text}fn asserts() {{ assert!(true);{} }}", "\n".repeat(11));
    let measured = measured(&[("src/lib.rs", &text)]);
    let with = |assertions, functions| {
        let mut record = measured.record.clone();
        let numbers = record.numbers.get_mut("gabion-base").expect("numbers");
        numbers.insert(Measure::Assertions, assertions);
        numbers.insert(Measure::LongFunctions, functions);
        let worse = worse(&measured, &record, &Changed::new());
        (worse, better(&measured, &record))
    };
    assert_eq!(with(1, 2), (vec![], vec![]));
    let (refused, told) = with(0, 3);
    assert!(refused.is_empty());
    assert_eq!(
        told,
        ["gabion-base: assertions 0, now 1", "gabion-base: functions over 70 lines 3, now 2"]
    );
    let (refused, told) = with(2, 1);
    assert!(told.is_empty());
    let path = "crates/gabion-base/src/lib.rs";
    assert_eq!(
        refused,
        [
            format!(
                "gabion-base: 1 assertions, recorded are 2; the longest functions without one\n  \
                 {path}:72 two: 72 lines\n  {path}:1 one: 71 lines\n  {path}:144 bare: 11 lines"
            ),
            format!(
                "gabion-base: 2 functions over 70 lines, recorded are 1; the worst\n  \
                 {path}:72 two: 72 lines\n  {path}:1 one: 71 lines"
            ),
        ]
    );
}

#[test]
fn places_that_changed_since_the_record_are_shown_alone() {
    let text = [function("one", 71), function("two", 72)].concat();
    let measured = measured(&[("src/lib.rs", &text)]);
    let path = "crates/gabion-base/src/lib.rs".to_owned();
    let shown = |changed: Option<Vec<(usize, usize)>>| {
        let changed = Changed::from([(path.clone(), changed)]);
        let worse = worse(&measured, &Record::default(), &changed);
        let lines: Vec<_> = worse[1].lines().skip(1).map(|line| line.rsplit_once(' ')).collect();
        (worse[1].contains("that changed since"), lines.len())
    };
    assert_eq!(shown(None), (true, 2));
    assert_eq!(shown(Some(vec![(1, 1)])), (true, 1));
    assert_eq!(shown(Some(vec![(70, 80)])), (true, 2));
    assert_eq!(shown(Some(vec![(144, 150)])), (false, 2));
}

#[test]
fn a_crate_without_a_record_has_to_be_clean_and_one_that_is_gone_is_told() {
    let long = measured(&[("src/lib.rs", &function("long", 71))]);
    let worse_ones = worse(&long, &Record::default(), &Changed::new());
    assert_eq!(worse_ones.len(), 2, "{worse_ones:?}");
    let mut record = long.record.clone();
    let gone = BTreeMap::from([(Measure::Assertions, 3)]);
    record.numbers.insert("gabion-gone".to_owned(), gone);
    assert!(worse(&long, &record, &Changed::new()).is_empty());
    assert_eq!(better(&long, &record), ["gabion-gone is gone"]);
}

#[test]
fn lines_of_a_diff_are_those_of_the_new_text() {
    let diff = "diff --git a.rs a.rs\n--- a.rs\n+++ a.rs\n@@ -3,2 +5,4 @@ fn a()\n-x\n+y\n\
                @@ -9 +12 @@\n@@ -20,3 +22,0 @@\n--- b.rs\n+++ /dev/null\n@@ -1,2 +0,0 @@\n";
    let lines: Vec<String> = diff.lines().map(str::to_owned).collect();
    let changed = changed_in(&lines);
    assert_eq!(changed["a.rs"], Some(vec![(5, 8), (12, 12), (22, 22)]));
    assert!(!changed.contains_key("b.rs"));
}

#[test]
fn the_record_that_is_committed_is_one() {
    let text = std::fs::read_to_string(format!("../{PATH}")).expect(PATH);
    let record = Record::parse(&text).expect(PATH);
    assert_eq!(record.text(), text, "it is as the command writes it");
    for core in CORES {
        assert_eq!(record.numbers[*core].len(), MEASURES.len(), "{core}");
    }
}
