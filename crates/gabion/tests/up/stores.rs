//! `gabion db` on stores of their own: loads, copies, outputs and progress.

use super::db::{fine, on};
use super::{GABION, said, terminal};
use bytes::Bytes;
use gabion_base::crc::crc32c;
use gabion_base::{Error, FileId, Result};
use gabion_db::checkpoint::{self, Origin};
use gabion_db::{Db, Options};
use gabion_engine::{FileSource, Tree};
use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use gabion_node::{LocalStore, PoolSource, open};
use gabion_pool::FilePlacement;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

/// Its drawing while somebody looks on: errors and progress go to a terminal.
fn drawn(pool: &Path, words: &[&str], input: &str) -> String {
    let (mut screen, terminal) = terminal();
    let mut child = Command::new(GABION)
        .args(["db", "--pool"])
        .arg(pool)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(terminal)
        .spawn()
        .unwrap();
    let reading = std::thread::spawn(move || {
        let mut shown = Vec::new();
        // An error once the program has ended.
        let _ = screen.read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    });
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success(), "{words:?}");
    reading.join().unwrap()
}

#[test]
fn how_much_a_range_takes_is_told_of_a_pool_at_rest_as_of_an_open_store() {
    let (dir, stores) = stores("size", &["store"]);
    let lines = |from: char| -> String {
        let value = "7".repeat(1_000);
        let line = |n| format!("{{\"key\":\"{from}{n:04}\",\"value\":\"{value}\"}}\n");
        (0..1_000).map(line).collect()
    };
    fine(&stores[0], &["load"], &(lines('a') + &lines('b')));
    fine(&stores[0], &["open", "put", "c", "3"], "");
    let told = |words: &[&str]| -> [u64; 3] {
        let told: Value = serde_json::from_str(&fine(&stores[0], words, "")).unwrap();
        ["file_bytes", "memtable_bytes", "entries"].map(|name| told[name].as_u64().unwrap())
    };
    let all = told(&["size", "--json"]);
    assert!((2_000_000..2_200_000).contains(&all[0]) && all[1] > 0 && all[2] == 2_001, "{all:?}");
    assert_eq!(told(&["--json", "open", "size"])[..2], all[..2]);
    let [files, memory, entries] = told(&["size", "--prefix", "a", "--json"]);
    assert!((990_000..1_050_000).contains(&files) && memory == 0, "{files} {memory}");
    assert!((970..=1_010).contains(&entries), "{entries}");
    assert_eq!(told(&["--json", "open", "size", "a", "b"]), [files, memory, entries]);
    let rest = told(&["size", "--from", "b", "--json"]);
    assert_eq!(told(&["--json", "open", "size", "b", ""]), rest);
    assert_eq!(files + rest[0], all[0]);
    assert_eq!(told(&["size", "--from", "b", "--to", "a", "--json"]), [0; 3]);
    let text = fine(&stores[0], &["size", "--from", "c"], "");
    assert!(text.starts_with("about ") && text.ends_with("in memory; 1 entry\n"), "{text}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_can_be_typed_is_told_to_people_and_to_programs() {
    let (dir, stores) = stores("help", &["store"]);
    let text = fine(&stores[0], &["open", "help"], "");
    let told: Value =
        serde_json::from_str(&fine(&stores[0], &["--json", "open", "help"], "")).unwrap();
    let commands = told["commands"].as_array().unwrap();
    assert_eq!(text.lines().count(), commands.len() + 1);
    for (line, told) in text.lines().zip(commands) {
        let (command, does) = line.split_at(27);
        assert_eq!(told["command"], command.trim_end());
        assert_eq!(told["does"], does);
    }
    assert_eq!(told["words"], text.lines().last().unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_takes_long_shows_how_far_it_is_to_whoever_looks_on() {
    let (dir, stores) = stores("progress", &["store"]);
    let copy = dir.join("copy");
    let shown = drawn(&stores[0], &["load"], "{\"key\":\"a\",\"value\":\"1\"}\n");
    assert!(shown.contains("1 record, waits for flush and compactions: 0 B written"), "{shown}");
    let shown = drawn(&stores[0], &["open", "checkpoint", copy.to_str().unwrap()], "");
    assert!(shown.contains("4.0 KiB of 4.0 KiB, copied, now read back"), "{shown}");
    let shown = drawn(&copy, &["dump", "slots"], "");
    assert!(shown.contains("0 %  0 B of 2.0 MiB, slot "), "{shown}");
    // JSON goes to standard output and does not disturb the drawing.
    let as_json = drawn(&copy, &["dump", "slots", "--json"], "");
    assert!(as_json.contains("0 %  0 B of 2.0 MiB, slot "), "{as_json}");
    let files = fine(&copy, &["dump", "edits"], "");
    let file = files.split("file=").nth(1).unwrap().split('.').next().unwrap();
    let file = file.trim_start_matches('0').to_owned();
    for (store, words, part) in [
        (&stores[0], &["dump", "edits"][..], " entries, edits and states"),
        (&copy, &["dump", "file", &file], "0 of 1 blocks, data"),
        (&copy, &["verify"], "0 of 1 entries, "),
        (&copy, &["scan"], "0 of 1 entries, about"),
        (&copy, &["scan", "--json", "--reverse"], "0 of 1 entries, about"),
    ] {
        let shown = drawn(store, words, "");
        assert!(
            shown.contains("[....................]   0 %  ") && shown.contains(part),
            "{shown}"
        );
    }
    fine(&copy, &["open"], "put b 1\nput c 2\n");
    let shown = drawn(&copy, &["dump", "log"], "");
    assert!(shown.contains(" 0 %  0 B of ") && shown.contains(" B, records"), "{shown}");
    // With an input of known length the bar shows a share of the whole.
    let lines = dir.join("lines");
    let line = |n| format!("{{\"key\":\"d{n:05}\",\"value\":\"1\"}}\n");
    std::fs::write(&lines, (0..100_000).map(line).collect::<String>()).unwrap();
    let shown = drawn(&copy, &["load", lines.to_str().unwrap()], "");
    assert!(shown.contains(" 50 %  ") && shown.contains(", 50,000 records, "), "{shown}");
    for words in [["verify", "--json"], ["compact", "--json"]] {
        assert!(drawn(&copy, &words, "").contains("\r\x1b[K"), "{words:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A directory of this test run, and a small store in each of `names`.
fn stores(test: &str, names: &[&str]) -> (PathBuf, Vec<PathBuf>) {
    let dir = std::env::temp_dir().join(format!("gabion-db-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let options = Options {
        pool_len: 256 << 20,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        ..Options::default()
    };
    let stores: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    stores.iter().for_each(|store| drop(Db::create(store, &options).unwrap()));
    (dir, stores)
}

/// The number of the last SST in a store's edits.
fn newest_sst(store: &Path) -> String {
    let edits = fine(store, &["dump", "edits"], "");
    let is_file = |line: &str| line.starts_with("added ") || line.starts_with("file ");
    let added = edits.lines().rfind(|line| is_file(line.trim_start()));
    let added = added.unwrap_or_else(|| panic!("{edits}"));
    let number = added.split("file=").nth(1).unwrap().split('.').next().unwrap();
    number.trim_start_matches('0').to_owned()
}

#[test]
fn keys_that_expire_are_copied_with_their_times_and_the_others_stay_for_good() {
    let (dir, stores) = stores("expiring", &["from", "to", "last"]);
    let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\
                 {\"key\":\"b\",\"value\":\"2\",\"expires_ms\":99999999999999}\n\
                 {\"key\":{\"hex\":\"ff\"},\"value\":\"\",\"expires_ms\":18446744073709551615}\n";
    fine(&stores[0], &["load"], lines);
    // In memory too, not in files alone.
    fine(&stores[0], &["open", "put", "c", "3"], "");
    let lines = lines.replace("{\"key\":{", "{\"key\":\"c\",\"value\":\"3\"}\n{\"key\":{");
    let told = fine(&stores[0], &["scan", "--json"], "");
    assert_eq!(told, lines);
    fine(&stores[1], &["load"], &told);
    let told = fine(&stores[1], &["--json", "open", "scan"], "");
    assert_eq!(told, lines);
    fine(&stores[2], &["load"], &told);
    assert_eq!(fine(&stores[2], &["scan", "--json"], ""), lines);
    for get in [&["get", "b", "--json"][..], &["--json", "open", "get", "b"]] {
        let told: Value = serde_json::from_str(&fine(&stores[2], get, "")).unwrap();
        assert_eq!(told["value"], "2");
        assert_eq!(told["expires_ms"], 99_999_999_999_999_u64);
    }
    let told = fine(&stores[2], &["get", "a", "--json"], "");
    assert!(!told.contains("expires_ms"), "{told}");
    // In the file, its 8 bytes stand before the value.
    let entries = fine(&stores[2], &["dump", "file", &newest_sst(&stores[2]), "--entries"], "");
    let entry = entries.lines().find(|line| line.contains("expiring-put ")).unwrap();
    assert!(entry.ends_with(" key=b expires_ms=99999999999999 value=2"), "{entry}");
    assert_eq!(fine(&stores[2], &["scan", "--limit", "2"], ""), "\"a\" \"1\"\n\"b\" \"2\"\n");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The files of a store, read while a copy of it is written through another medium.
struct Waited(PoolSource<BTreeMap<FileId, Arc<FilePlacement>>>, BlockingMedium);

impl FileSource for Waited {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.1.block_on(self.0.read(file, offset, len))
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        panic!("{file}: {error}");
    }
}

/// A copy of a store with the number `becomes` in place of `is` in its tree. Its files and all
/// checksums are good.
fn forge(store: &Path, copy: &Path, is: u64, becomes: u64) {
    let pool = PoolFile::open(&store.join("pool"), DirectIo::Never).unwrap();
    let options = MediumOptions { notify: false, ..MediumOptions::default() };
    let medium = BlockingMedium::new(pool.medium(options).unwrap());
    let opened = medium.block_on(open::read_pool(medium.handle())).unwrap();
    let (group, view_then) = (opened.group.clone(), opened.state.view.clone());
    let mut tree = opened.tree().snapshot();
    let at = tree.windows(8).position(|bytes| bytes == is.to_le_bytes()).expect("it is there");
    tree[at..at + 8].copy_from_slice(&becomes.to_le_bytes());
    let (body, crc) = tree.split_last_chunk_mut::<4>().unwrap();
    *crc = crc32c(body).to_le_bytes();
    let tree = Tree::open(group.tree.clone(), group.group, &tree).unwrap();
    let locate = opened.pool().files().map(|file| (file.file, file.clone())).collect();
    let store = LocalStore::of(medium.handle(), opened.pool());
    let source = Waited(PoolSource { store, locate, meter: Rc::default() }, medium);
    let origin = Origin { view: tree.lasting_view(), group, view_then };
    checkpoint::write(copy, 128 << 20, &origin, &source, &mut |_| {}).unwrap();
}

#[test]
fn an_edit_that_tells_other_times_than_the_entries_have_is_named_by_verify() {
    let (dir, stores) = stores("forged", &["store"]);
    let (first, last) = (99_999_999_999_997, 99_999_999_999_999);
    let line =
        |key, at_ms: u64| format!("{{\"key\":\"{key}\",\"value\":\"1\",\"expires_ms\":{at_ms}}}\n");
    fine(&stores[0], &["load"], &(line("a", first) + &line("b", last)));
    // A copy without the log has only the data in files.
    fine(&stores[0], &["open"], "put c 1\nflush\n");
    fine(&stores[0], &["verify"], "");
    let copy = dir.join("copy");
    forge(&stores[0], &copy, last, last - 1);
    let verify = on(&copy, &["verify"], "");
    assert_eq!(verify.status.code(), Some(1), "{}", said(&verify));
    let wanted = format!(
        "holds expiries from {first} to {last} ms, its edit says expiries from {first} to {} ms",
        last - 1
    );
    assert!(said(&verify).contains(&wanted), "{}", said(&verify));
    fine(&copy, &["scrub"], "");
    std::fs::remove_dir_all(&dir).unwrap();
}
