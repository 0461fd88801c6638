//! `gabion ncl run`, as a user types it: the interposer comes out of the program itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test with real processes")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn directory(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn run(place: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gabion"));
    command.args(["ncl", "run", "--app", "test"]).args(words).current_dir(place);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_programs_logs_are_there_again_in_another_directory_and_the_rest_is_not_touched() {
    let home = directory("ncl-run");
    let (one, other) = (home.join("one"), home.join("other"));
    for place in [&one, &other] {
        std::fs::create_dir(place).unwrap();
    }
    let store = home.join("store");
    let words = ["--match", "*.log", "--store", store.to_str().unwrap(), "--", "sh", "-c"];
    let script = "umask 027; mkdir d; echo first > d/a.log; echo second >> d/a.log; \
                  echo plain > b.txt; cat d/a.log; umask; exit 3";
    let output = run(&one, &[&words[..], &[script]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(text(&output.stdout), "first\nsecond\n0027\n", "{said}");
    assert!(said.contains("NOT REPLICATED") && said.contains("test: files *.log"), "{said}");
    assert_eq!(std::fs::read(one.join("b.txt")).unwrap(), b"plain\n");
    assert!(std::fs::read(one.join("d/a.log")).unwrap().starts_with(b"gabion-ncl 1 test "));
    // The process that wrote is killed, and the next one sees what it wrote, elsewhere.
    let output = run(&one, &[&words[..], &["echo third >> d/a.log; kill -9 $$"]].concat());
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
    let output = run(&other, &[&words[..], &["cat d/a.log; stat -c '%s %a' d/a.log; ls"]].concat());
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "first\nsecond\nthird\n19 640\nd\n", "{said}");
    // A daemon's files are the application's as long as it runs.
    let daemon = "(sleep 0.2; echo fourth >> d/a.log) >/dev/null 2>&1 &";
    assert!(run(&other, &[&words[..], &[daemon]].concat()).status.success());
    let output = run(&other, &[&words[..], &["tail -n 1 d/a.log"]].concat());
    assert_eq!(text(&output.stdout), "fourth\n", "{}", text(&output.stderr));
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn the_first_file_that_is_written_and_not_mirrored_although_its_name_matches_is_told_of() {
    let home = directory("ncl-plain");
    let store = home.join("store");
    for name in ["old.log", "older.log"] {
        std::fs::write(home.join(name), b"before\n").unwrap();
    }
    let words = ["--match", "*.log", "--store", store.to_str().unwrap(), "--", "sh", "-c"];
    let told = |script: &str| {
        let output = run(&home, &[&words[..], &[script]].concat());
        let said = text(&output.stderr);
        said.lines().filter(|line| line.contains("stays in the file system")).collect::<String>()
    };
    assert_eq!(told("cat old.log; echo new > new.log; echo more >> new.log"), "");
    let said = told("echo more >> old.log; echo more >> older.log; echo more >> old.log");
    assert_eq!(said.matches("old.log had bytes before it was mirrored").count(), 1, "{said}");
    // A name that a file gets later does not bring its bytes to the store.
    let said = told("echo text > a.txt; mv a.txt a.log; echo more >> a.log");
    assert!(said.contains("a.log got its name by a rename or a link"), "{said}");
    assert_eq!(std::fs::read(home.join("a.log")).unwrap(), b"text\nmore\n");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn the_first_file_that_is_written_and_not_split_although_its_name_matches_is_told_of() {
    let home = directory("ncl-left");
    let store = home.join("store");
    for name in ["a.db", "b.db"] {
        std::fs::write(home.join(name), b"before\n").unwrap();
        std::fs::hard_link(home.join(name), home.join(name).with_extension("txt")).unwrap();
    }
    let words = ["--split", "*.db", "--store", store.to_str().unwrap(), "--", "sh", "-c"];
    let script = "cat a.db; echo more > c.db; echo more >> a.db; echo more >> b.db";
    let output = run(&home, &[&words[..], &[script]].concat());
    let said = text(&output.stderr);
    assert_eq!(
        said.matches("a.db has or had several names, so it is left alone").count(),
        1,
        "{said}"
    );
    assert_eq!(said.matches("is left alone").count(), 1, "{said}");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_split_file_lies_in_the_file_system_and_the_run_leaves_nothing_in_the_store() {
    let home = directory("ncl-split");
    let store = home.join("store");
    let words = ["--split", "*.db,*.wal=4KiB", "--store", store.to_str().unwrap(), "--"];
    let script = "echo one > a.db; echo two >> a.db; cat a.db; mv a.db b.db; rm -f c.wal";
    let output = run(&home, &[&words[..], &["sh", "-c", script]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("*.db (writes below 16KiB), *.wal (writes below 4KiB)"), "{said}");
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    assert_eq!(std::fs::read(home.join("b.db")).unwrap(), b"one\ntwo\n");
    let names = std::fs::read_to_string(store.join("names")).unwrap();
    assert!(!names.contains("name "), "{names}");
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N14
#[test]
fn without_peers_or_a_store_and_for_programs_that_are_none_nothing_is_run() {
    let home = directory("ncl-refused");
    let store = home.join("store");
    let with_store = ["--store", store.to_str().unwrap()];
    let statically = home.join("static");
    std::fs::write(&statically, b"\x7fELF").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&statically, mode).unwrap();
    let refused = [
        (vec!["--match", "*", "--", "touch", "ran"], "--store DIR"),
        ([&with_store[..], &["--", "touch", "ran"]].concat(), "--match <GLOB,...>|--split"),
        ([&["--match", ""][..], &with_store, &["--", "touch", "ran"]].concat(), "globs"),
        ([&["--split", "*=65KiB"][..], &with_store, &["--", "touch", "ran"]].concat(), "64KiB"),
        ([&["--split", "=1KiB"][..], &with_store, &["--", "touch", "ran"]].concat(), "a glob"),
        (
            [&["--split", "*", "--journal", "1KiB"][..], &with_store, &["--", "touch", "ran"]]
                .concat(),
            "--journal <SIZE>': 1024 bytes, of 1MiB to 1GiB",
        ),
        ([&["--match", "*"][..], &with_store, &["--", "no-such"]].concat(), "no-such"),
        ([&["--match", "*"][..], &with_store, &["--", "./static"]].concat(), "64-bit"),
    ];
    for (words, why) in refused {
        let output = run(&home, &words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
        assert!(!home.join("ran").exists());
    }
    std::fs::remove_dir_all(home).unwrap();
}
