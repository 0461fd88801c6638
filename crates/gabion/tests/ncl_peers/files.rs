//! `gabion ncl ls|cat|stat|rm|export|import`, and files of an application that runs.

use super::*;

/// Arguments that name the files.
fn place(house: &House) -> [String; 4] {
    let controller = house.place().to_str().unwrap().to_owned();
    ["--controller".to_owned(), controller, "--app".to_owned(), "test".to_owned()]
}

fn ncl(words: &[&str], place: &[String]) -> Output {
    Command::new(GABION).arg("ncl").args(words).args(place).output().unwrap()
}

/// Its output.
fn fine(words: &[&str], place: &[String]) -> String {
    let output = ncl(words, place);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Why it was refused.
fn refused(words: &[&str], place: &[String]) -> String {
    let output = ncl(words, place);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn json(words: &[&str], place: &[String]) -> Value {
    serde_json::from_str(&fine(words, place)).unwrap()
}

/// The steps that both kinds of stores share. `exported` is a directory to be made.
fn seen_and_moved(place: &[String], dir: &Path) {
    let listed = json(&["ls", "--json"], place);
    assert_eq!((&listed["running"], listed["files"].as_array().unwrap().len()), (&false.into(), 2));
    let (one, two) = (&listed["files"][0], &listed["files"][1]);
    assert_eq!(
        (&one["name"], &one["bytes"], &one["mode"]),
        (&"a.log".into(), &4.into(), &"600".into())
    );
    assert_eq!(two["names"], serde_json::json!(["d/100%25.log", "d/b.log"]));
    assert!(fine(&["ls"], place).contains("2 files, 12 B"));
    assert_eq!(fine(&["cat", "d/100%.log", "a.log"], place), "long twoone\n");
    assert_eq!(json(&["stat", "a.log", "--json"], place)[0]["crc32c"].as_str().unwrap().len(), 8);
    assert!(fine(&["stat"], place).contains("d/b.log\n  8 bytes, CRC32C"));
    assert!(refused(&["cat", "a"], place).contains("there is no file 'a'"));

    let to = dir.join("export");
    let exported = fine(&["export", to.to_str().unwrap()], place);
    assert!(exported.starts_with("2 files, 12 B"), "{exported}");
    assert_eq!(std::fs::read(to.join("d/b.log")).unwrap(), b"long two");
    let ino = |name: &str| std::os::unix::fs::MetadataExt::ino(&to.join(name).metadata().unwrap());
    assert_eq!(ino("d/b.log"), ino("d/100%.log"));
    assert!(refused(&["export", to.to_str().unwrap()], place).contains("it is not empty"));

    let import = ["import", to.to_str().unwrap()];
    let said = refused(&["rm", "a.log", "missing"], place);
    assert!(said.contains("'missing'"), "{said}");
    assert!(refused(&import, place).contains("'a.log' is there already"));
    assert_eq!(fine(&["rm", "a.log", "d/100%.log"], place), "2 names removed\n");
    assert_eq!(json(&["ls", "--json"], place)["files"][0]["names"], serde_json::json!(["d/b.log"]));

    // Changed behind the manifest's back: nothing of it is taken.
    std::fs::write(to.join("a.log"), "oNe\n").unwrap();
    let replace = [&import[..], &["--replace"]].concat();
    let said = refused(&replace, place);
    assert!(said.contains("nothing was imported") && said.contains("the manifest has 4"), "{said}");
    assert_eq!(json(&["ls", "--json"], place)["files"].as_array().unwrap().len(), 1);
    std::fs::write(to.join("more"), "x").unwrap();
    assert!(refused(&replace, place).contains("'more' is not in the manifest"));
    std::fs::remove_file(to.join("more")).unwrap();
    std::fs::write(to.join("a.log"), "one\n").unwrap();
    assert!(fine(&replace, place).starts_with("2 files, 12 B"));
    assert_eq!(fine(&["cat", "a.log", "d/b.log"], place), "one\nlong two");
    let again = json(&["ls", "--json"], place);
    let names = |value: &Value| value["files"][1]["names"].clone();
    assert_eq!((names(&again), &again["files"][0]["mode"]), (names(&listed), &"600".into()));
}

const SCRIPT: &str = "umask 077; echo one > a.log; mkdir d; printf 'long two' > d/b.log
                      ln d/b.log d/100%.log; touch d/plain";

#[test]
fn files_at_peers_are_seen_removed_exported_and_imported_by_an_operator() {
    let house = House::new(3);
    let place = place(&house);
    let said = refused(&["ls"], &place);
    assert!(said.contains("application 'test' has no files at this controller"), "{said}");
    let output = house.shell(&house.directory("place"), &[], SCRIPT);
    assert!(output.status.success(), "{}", text(&output.stderr));
    seen_and_moved(&place, &house.dir);
    // An application that is new, by the files of another.
    let mut other = place.clone();
    other[3] = "other".to_owned();
    let export = house.dir.join("export");
    fine(&["import", export.to_str().unwrap()], &other);
    let mut run = house.gabion(&["run", "--app", "other", "--match", GLOBS]);
    run.args(["--", "sh", "-c", "cat a.log d/b.log"]).current_dir(house.directory("other"));
    let output = run.output().unwrap();
    assert_eq!(text(&output.stdout), "one\nlong two", "{}", text(&output.stderr));
}

#[test]
fn files_of_a_local_store_are_seen_removed_exported_and_imported_by_an_operator() {
    let dir = std::env::temp_dir().join(format!("gabion-ncl-store-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("root")).unwrap();
    let store = dir.join("store").to_str().unwrap().to_owned();
    let place = ["--store".to_owned(), store.clone()];
    assert!(refused(&["ls"], &place).contains("there is none"));
    let mut run = Command::new(GABION);
    run.args(["ncl", "run", "--store", &store, "--match", GLOBS, "--", "sh", "-c"]);
    assert!(run.arg(SCRIPT).current_dir(dir.join("root")).status().unwrap().success());
    seen_and_moved(&place, &dir);
    std::fs::remove_dir_all(dir).unwrap();
}

/// docs/faults.md: N7
#[test]
fn files_of_a_running_application_are_listed_by_its_report_and_not_opened_beside_it() {
    let house = House::new(3);
    let place = place(&house);
    let script = "echo one > a.log && echo told; read line; echo two >> a.log && echo told
                  read line; echo three >> a.log || echo refused";
    let root = house.directory("place");
    let mut run = Process::start(&mut house.run(&root, &["--every-write"], &["sh", "-c", script]));
    assert_eq!(run.line(), "told");
    let until = Instant::now() + PATIENCE;
    loop {
        let listed = json(&["ls", "--json"], &place);
        assert_eq!(listed["running"], true, "{listed:#}");
        if listed["files"][0]["name"] == "a.log" {
            break;
        }
        assert!(Instant::now() < until, "{listed:#}");
    }
    assert!(fine(&["ls"], &place).contains("the application runs"));
    let export = house.dir.join("export");
    let export = export.to_str().unwrap();
    for words in [&["cat", "a.log"][..], &["stat"], &["rm", "a.log"], &["export", export]] {
        let said = refused(words, &place);
        assert!(said.contains("application 'test' runs as process"), "{words:?}: {said}");
    }
    slips_end_no_program(&house, &place);
    run.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.line(), "told");
    assert_eq!(fine(&["rm", "a.log", "--take-over"], &place), "1 name removed\n");
    run.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(run.line(), "refused");
    assert_eq!(json(&["ls", "--json"], &place)["files"].as_array().unwrap().len(), 0);
}

/// Commands that would end the application, and are refused before.
fn slips_end_no_program(house: &House, place: &[String]) {
    let said = refused(&["rm", "a.log", "a.lgo", "--take-over"], place);
    assert!(said.contains("there is no file 'a.lgo'") && said.contains("was not ended"), "{said}");
    let import = |directory: &Path, words: &[&str]| {
        let import = ["import", directory.to_str().unwrap(), "--take-over"];
        refused(&[&import[..], words].concat(), place)
    };
    let said = import(&house.dir.join("missing"), &[]);
    assert!(said.contains("missing"), "{said}");
    let from = house.directory("from");
    assert!(import(&from, &[]).contains("there is no file in it"));
    std::fs::write(from.join("a.log"), "four").unwrap();
    assert!(import(&from, &[]).contains("'a.log' is there already"));
    let file = serde_json::json!({ "names": ["a.log"], "mode": "600", "user": 0, "group": 0,
        "bytes": 4, "crc32c": "00000000" });
    let list = serde_json::json!({ "version": 1, "files": [file] });
    std::fs::write(from.join("gabion-ncl-export.json"), list.to_string()).unwrap();
    let said = import(&from, &["--replace"]);
    assert!(said.contains("nothing was imported"), "{said}");
    assert!(said.contains("the manifest has 4 of 00000000"), "{said}");
}

#[test]
fn a_run_beside_another_says_what_it_waits_for_and_is_refused_after_a_while() {
    let house = House::new(3);
    let place = house.directory("place");
    let script = "echo one > a.log && echo told; read line; cat a.log";
    let mut first = Process::start(&mut house.run(&place, &[], &["sh", "-c", script]));
    assert_eq!(first.line(), "told");
    let output = house.shell(&house.directory("other"), &["--peer-timeout", "3"], "touch ran");
    let said = text(&output.stderr);
    assert!(!output.status.success() && !house.directory("other").join("ran").exists(), "{said}");
    let why = "another instance runs and renews its lease";
    assert!(said.contains(&format!("gabion ncl: waits: {why}; 3 peers")), "{said}");
    assert!(said.contains(&format!("application 'test': {why} for ")), "{said}");
    // The first has not noticed.
    first.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(first.line(), "one");
    assert!(first.child.wait().unwrap().success());
}
