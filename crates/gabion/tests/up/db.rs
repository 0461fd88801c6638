//! `gabion db` on the pool that a stopped replica left.

use super::{GABION, Place, said};
use gabion_base::FileId;
use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const KEYS: usize = 400;
const LATE: usize = 5;

impl Place {
    fn db(&self, words: &[&str]) -> Output {
        self.run(&[&["db"], words].concat())
    }

    /// What a command that finds nothing wrong says.
    fn clean(&self, words: &[&str]) -> String {
        let output = self.db(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The objects of a stream.
    fn objects(&self, words: &[&str]) -> Vec<Value> {
        let output = self.db(&[words, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Writes enough for several flushes, and deletes a key.
    fn load(&self) {
        let mut commands = Vec::new();
        for i in 0..KEYS {
            let value = format!("{i:04}").repeat(512);
            commands.extend(format!("SET key-{i:04} {value}\r\n").into_bytes());
        }
        commands.extend(b"DEL key-0007\r\n");
        commands.extend(b"*3\r\n$3\r\nSET\r\n$4\r\n\xff\x00\"k\r\n$2\r\n\r\n\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&commands).unwrap());
        let mut replies = vec![0; (KEYS + 1) * 5 + 4];
        stream.read_exact(&mut replies).unwrap();
        writing.join().unwrap();
        assert!(replies.ends_with(b":1\r\n+OK\r\n"), "{}", String::from_utf8_lossy(&replies));
        // Once flushes are over, some more: the log then has edits, and batches that are in no file.
        std::thread::sleep(Duration::from_millis(500));
        for i in 0..LATE {
            assert_eq!(self.resp(0, &format!("SET key-late-{i} x")), "+OK\r\n");
        }
    }

    /// Turns one byte of the pool over; a second time turns it back.
    fn flip(&self, at: u64) {
        let path = self.data.join("replica-1/pool");
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }

    /// Where a byte of a file lies in the pool.
    fn place_of(&self, file: FileId, offset: u64) -> u64 {
        let pool = PoolFile::open(&self.data.join("replica-1/pool"), DirectIo::Never).unwrap();
        let options = MediumOptions { notify: false, ..MediumOptions::default() };
        let medium = BlockingMedium::new(pool.medium(options).unwrap());
        let pool = medium.block_on(gabion_pool::read(medium.handle())).unwrap().recovered.pool;
        let placement = pool.placement(file).expect("the file is in the pool");
        gabion_pool::extents(&pool.region(), &placement, offset, 1).next().unwrap().0
    }

    fn modified(&self) -> [SystemTime; 2] {
        ["replica-1/pool", "replica-1/ring"]
            .map(|name| self.data.join(name).metadata().unwrap().modified().unwrap())
    }
}

fn find<'a>(objects: &'a [Value], what: &str) -> &'a Value {
    objects.iter().find(|object| object["what"] == what).unwrap_or_else(|| panic!("no {what}"))
}

/// The number of the first SST in the tree.
fn an_sst(place: &Place) -> u64 {
    let edits = place.objects(&["dump", "edits"]);
    let last = edits.iter().rev().find(|object| object["what"] == "added").expect("a file");
    last["file"].as_str().unwrap().trim_end_matches(".sst").parse().unwrap()
}

#[test]
fn a_pool_is_looked_into_while_nothing_runs_on_it_and_damage_is_named() {
    let place = Place::new("db");
    let up = place.up(&["--replicas", "1"]);
    place.load();
    let busy = place.db(&["get", "key-0001"]);
    assert_eq!(busy.status.code(), Some(2), "{}", said(&busy));
    let text = said(&busy);
    assert!(text.contains("must not be running") && text.trim_end().lines().count() == 1, "{text}");
    up.signal("-INT");
    assert_eq!(up.wait(), 0);

    let before = place.modified();
    reads_what_a_start_would(&place);
    let log = tells_what_is_there(&place);
    a_reader_that_leaves_is_no_error(&place);
    refuses_in_one_line(&place);
    assert_eq!(place.modified(), before, "looking writes nothing");

    names_a_flipped_byte_of_a_file(&place);
    names_a_flipped_byte_of_the_log(&place, &log);
    shows_the_other_superblock(&place);
    let scrub: Value = serde_json::from_str(&place.clean(&["scrub", "--json"])).unwrap();
    assert_eq!(scrub["clean"], true);
}

fn reads_what_a_start_would(place: &Place) {
    assert_eq!(place.clean(&["get", "key-0003"]), format!("\"{}\"\n", "0003".repeat(512)));
    let value: Value = serde_json::from_str(&place.clean(&["get", "key-0007", "--json"])).unwrap();
    assert!(value["value"].is_null());
    let part = place.clean(&["scan", "--prefix", "key-03", "--to", "key-0390", "--limit", "100"]);
    assert_eq!(part.lines().count(), 90);
    let last = place.objects(&["scan", "--from", "kez"]);
    assert_eq!(last[0]["key"]["hex"], "ff00226b");
}

/// Returns the log.
fn tells_what_is_there(place: &Place) -> Vec<Value> {
    let stats: Value = serde_json::from_str(&place.clean(&["stats", "--json"])).unwrap();
    let entries = |level: &Value| level["entries"].as_u64().unwrap();
    let in_files: u64 = stats["levels"].as_array().unwrap().iter().map(entries).sum();
    assert!(in_files > 100, "{stats}");
    assert_eq!(stats["memtables"]["last_sequence"], KEYS + 2 + LATE);
    assert_eq!(stats["log"]["ending"], "clean");
    assert_eq!(place.objects(&["dump", "superblock"])[0]["version"], 1);
    let slots = place.objects(&["dump", "slots"]);
    assert!(slots.iter().any(|slot| slot["header"] == "good"), "{slots:?}");
    assert_eq!(slots.len() as u64, used(&stats["slots"]));
    let placements = place.objects(&["dump", "placements"]);
    assert_eq!(placements.iter().filter(|object| object["what"] == "area").count(), 2);
    for what in ["snapshot", "commit", "copy", "file-live", "edit", "state"] {
        find(&placements, what);
    }
    let log = place.objects(&["dump", "log", "--entries"]);
    for what in ["log", "span", "batch", "put"] {
        find(&log, what);
    }
    assert!(find(&place.objects(&["dump", "edits"]), "recipe")["output_first"].is_u64());
    let file = place.objects(&["dump", "file", &an_sst(place).to_string(), "--entries"]);
    for what in ["placement", "in-tree", "footer", "properties", "filter", "block", "put"] {
        find(&file, what);
    }
    let puts = file.iter().filter(|object| object["what"] == "put" || object["what"] == "delete");
    assert_eq!(puts.count() as u64, find(&file, "properties")["entries"]);
    log
}

/// Slots that are not free.
fn used(slots: &Value) -> u64 {
    slots["total"].as_u64().unwrap() - slots["free"].as_u64().unwrap()
}

fn a_reader_that_leaves_is_no_error(place: &Place) {
    let mut child = Command::new(GABION)
        .args(["db", "scan", "--data"])
        .arg(&place.data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("\"key-0000\""), "{line}");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
}

fn refuses_in_one_line(place: &Place) {
    for (words, part) in [
        (&["get", "k", "--replica", "3"][..], "has replicas 1 to 1"),
        (&["dump", "file", "4000000"], "4000000.sst is not in the pool"),
        (&["dump", "everything"], "everything"),
        (&["scan", "--limit", "many"], "--limit"),
    ] {
        let output = place.db(words);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(part) && text.trim_end().lines().count() == 1, "{text}");
    }
}

fn names_a_flipped_byte_of_a_file(place: &Place) {
    let number = an_sst(place);
    let blocks = place.objects(&["dump", "file", &number.to_string()]);
    let block = blocks.iter().find(|object| object["what"] == "block" && object["number"] == 1);
    let offset = block.expect("two blocks")["offset"].as_u64().unwrap();
    let at = place.place_of(FileId::sst(number), offset + 10);
    place.flip(at);
    let scrub = place.db(&["scrub"]);
    assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
    let named = format!("DAMAGED {number:06}.sst, offset {offset}: ");
    assert!(said(&scrub).contains(&named), "{named}\n{}", said(&scrub));
    let dump = place.db(&["dump", "file", &number.to_string()]);
    assert_eq!(dump.status.code(), Some(1));
    let text = said(&dump);
    assert!(text.contains("DAMAGED") && text.contains("block number=2 "), "{text}");
    let slots = place.db(&["dump", "slots"]);
    assert!(slots.status.code() == Some(1) && said(&slots).contains("header=bad"));
    place.flip(at);
}

fn names_a_flipped_byte_of_the_log(place: &Place, log: &[Value]) {
    let drained: Vec<&Value> = log.iter().filter(|object| object["in"] == "segment+ring").collect();
    assert!(!drained.is_empty(), "{log:?}");
    let offset = drained[0]["offset"].as_u64().unwrap();
    let at = place.place_of(FileId::log_segment(0), offset + 100);
    place.flip(at);
    let scrub = place.db(&["scrub", "--json"]);
    assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
    let found: Value = serde_json::from_slice(&scrub.stdout).unwrap();
    assert_eq!(found["damage"][0]["file"], "000000.log");
    assert_eq!(found["damage"][0]["offset"], offset);
    place.flip(at);
}

fn shows_the_other_superblock(place: &Place) {
    place.flip(40);
    let dump = place.db(&["dump", "superblock"]);
    assert_eq!(dump.status.code(), Some(1));
    let text = said(&dump);
    assert!(text.contains("DAMAGED superblock, copy in block 0"), "{text}");
    assert!(text.contains("block=1"), "{text}");
    place.flip(40);
}
