use super::*;

fn fault(text: &str) -> Fault {
    Fault::parse(text).unwrap()
}

/// The tests that one file names, as cells by fault.
fn cells(path: &str, text: &str) -> Result<Vec<String>, String> {
    let mut tests = Tests::default();
    of_file(Path::new(path), text, &mut tests)?;
    Ok(tests.0.keys().map(|fault| format!("{fault} {}", tests.cell(*fault).unwrap())).collect())
}

#[test]
fn the_number_of_a_fault_is_a_section_and_a_plain_number() {
    for good in ["A1", "E17", "P37", "F14"] {
        assert_eq!(fault(good).to_string(), good);
    }
    for bad in ["", "E", "E0", "E04", "E+4", "e4", "X4", "4", "E4.", "E 4", "E99999999999", "É4"] {
        assert_eq!(Fault::parse(bad), None, "{bad}");
    }
    assert!(fault("E2") < fault("E10"));
}

#[test]
fn a_line_above_a_test_names_it() {
    let text = "
        /// Longer story.
        /// docs/faults.md: E4, H8
        /// It goes on.
        #[test]
        #[expect(
            clippy::unwrap_used,
            reason = \"…\"
        )]
        fn a_test_by_name() {}

    proptest! {
        /// docs/faults.md: E4
        #[test]
        fn another_one(bytes in any()) {}
    }
    /// docs/faults.md: P1
    #[tokio::test]
    pub(crate) async fn of_another_kind() {}
    /// docs/faults.md: P2
    #[test]
    #[ignore = \"long\"]
    fn a_long_one() {}
    ";
    let expected = [
        "E4 `gabion-pool` a_test_by_name, another_one",
        "H8 `gabion-pool` a_test_by_name",
        "P1 `gabion-pool` of_another_kind",
        "P2 `gabion-pool` a_long_one (ignored)",
    ];
    assert_eq!(cells("crates/gabion-pool/src/tests/life.rs", text).unwrap(), expected);
}

#[test]
fn a_file_that_stands_for_a_fault_is_named_in_place_of_its_tests() {
    let text = "//! Story.\n//!\n//! docs/faults.md: E1, E2\n
/// docs/faults.md: E1, E3\n#[test]\nfn one() {}\n";
    let cells_of = |path| cells(path, text).unwrap();
    let expected = [
        "E1 `gabion-sim` all of crash_points",
        "E2 `gabion-sim` all of crash_points",
        "E3 `gabion-sim` one",
    ];
    assert_eq!(cells_of("crates/gabion-sim/tests/sim/crash_points.rs"), expected);
    assert_eq!(cells_of("baseline/src/lib.rs")[0], "E1 `gabion-baseline` all of src");
    assert_eq!(cells_of("crates/gabion-log/tests/log/golden.rs")[0], {
        "E1 `gabion-log` all of log::golden"
    });
    assert_eq!(cells_of("crates/gabion-node/tests/golden.rs")[0], "E1 `gabion-node` all of golden");
    assert_eq!(cells_of("peers/rocksdb/src/tests.rs")[0], "E1 `peers/rocksdb` all of tests");
}

#[test]
fn a_text_file_is_an_interaction() {
    let path = "crates/gabion-replication/tests/interaction/E-bad-records.txt";
    let text = "# docs/faults.md: H8\n# Story.\ncluster 3\n";
    assert_eq!(cells(path, text).unwrap(), ["H8 `gabion-replication` E-bad-records.txt"]);
}

#[test]
fn a_function_without_the_attribute_is_a_test_where_its_own_harness_names_it() {
    let line = "/// docs/faults.md: P25\nfn a_child_is_refused(dir: &Path) {}\n";
    let harness = format!("{line}\nconst ALL: X = [(\"a_child_is_refused\", a_child_is_refused)];");
    assert_eq!(cells("crates/a/tests/fork.rs", &harness).unwrap(), ["P25 `a` a_child_is_refused"]);
    let error = cells("crates/a/tests/fork.rs", line).unwrap_err();
    assert_eq!(error, "crates/a/tests/fork.rs:1: a_child_is_refused is not a test");
}

#[test]
fn prose_names_no_test() {
    for prose in [
        "/// nothing (docs/faults.md E8).",
        "//! docs/faults.md E13: a file is a function of its recipe.",
        "const FORM: &str = \"docs/faults.md: \";",
        "// as in docs/faults.md: there",
    ] {
        assert_eq!(cells("crates/a/src/lib.rs", prose), Ok(Vec::new()), "{prose}");
    }
}

#[test]
fn a_line_that_cannot_be_meant_so_is_refused_with_its_place() {
    for (text, what) in [
        (
            "/// docs/faults.md: E4.\n#[test]\nfn a() {}",
            "'E4.' is not the number of a fault, like E4",
        ),
        (
            "/// What holds. docs/faults.md: E4, E5\n#[test]\nfn a() {}",
            "'docs/faults.md: E4, E5' stands behind words",
        ),
        ("/// docs/faults.md: E4 E5\n#[test]\nfn a() {}", "'E4 E5' is not the number"),
        ("/// docs/faults.md:\n#[test]\nfn a() {}", "'' is not the number"),
        ("// docs/faults.md: E4\n#[test]\nfn a() {}", "faults are named in a doc comment"),
        ("# docs/faults.md: E4", "faults are named in a doc comment"),
        ("/// docs/faults.md: E4\n\n#[test]\nfn a() {}", "no test is below it"),
        ("/// docs/faults.md: E4\nstruct A {\n}\n#[test]\nfn a() {}", "no test is below it"),
        ("/// docs/faults.md: E4", "no test is below it"),
    ] {
        let error = cells("crates/a/src/lib.rs", text).unwrap_err();
        assert!(error.starts_with(&format!("crates/a/src/lib.rs:1: {what}")), "{error}");
    }
}

#[test]
fn cells_of_tests_are_written_and_all_else_in_the_page_stays() {
    let mut tests = Tests::default();
    tests.add(&[fault("E1"), fault("E2")], "gabion-sim", "b");
    tests.add(&[fault("E1")], "gabion-sim", "a");
    tests.add(&[fault("E1")], "gabion-log", "c");
    let page = "# Faults\n
| id | fault | what must happen | tests |
| --- | --- | --- | --- |
| E1 | a \\| b | holds | old_name; also: the suite `x \\| y` |
| E2 | c | holds |  |
| E3 | d | holds | old_name |
| E4 | d | not built | also: a rig |\n\nE1 | is prose.\n";
    let expected = "# Faults\n
| id | fault | what must happen | tests |
| --- | --- | --- | --- |
| E1 | a \\| b | holds | `gabion-log` c; `gabion-sim` a, b; also: the suite `x \\| y` |
| E2 | c | holds | `gabion-sim` b |
| E3 | d | holds | none |
| E4 | d | not built | also: a rig |\n\nE1 | is prose.\n";
    let filled = fill(page, &tests).unwrap();
    assert_eq!(filled, expected);
    assert_eq!(fill(&filled, &tests).unwrap(), expected, "twice is once");
}

#[test]
fn a_fault_without_a_row_or_with_two_is_refused() {
    let mut tests = Tests::default();
    tests.add(&[fault("E9")], "gabion-sim", "a");
    let row = "| E1 | a | b | none |\n";
    let error = fill(row, &tests).unwrap_err();
    assert!(error.starts_with("E9 has no row in docs/faults.md"), "{error}");
    let error = fill(&row.repeat(2), &Tests::default()).unwrap_err();
    assert_eq!(error, "docs/faults.md:2: E1 has a row already");
    let error = fill("| E1 | a | b | none\n", &Tests::default()).unwrap_err();
    assert_eq!(error, "docs/faults.md:1: a row ends with a cell of tests and |");
}

#[test]
fn a_page_that_is_not_what_the_sources_say_is_told_by_its_first_line() {
    let mut tests = Tests::default();
    tests.add(&[fault("E2")], "gabion-sim", "renamed");
    let page = "| E1 | a | b | none |\n| E2 | a | b | `gabion-sim` old_name |\n";
    let wanted = fill(page, &tests).unwrap();
    let message = difference(page, &wanted);
    assert!(message.starts_with("docs/faults.md:2: not the tests"), "{message}");
    assert!(message.ends_with("`cargo xtask faults` writes them"), "{message}");
}
