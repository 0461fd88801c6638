//! `gabion db` on the pool of a stopped replica.

use super::{GABION, Place, said};
use gabion_base::{FileId, GroupId, ReplicaId, ShardId};
use gabion_engine::TreeConfig;
use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use gabion_node::{AckLevel, CompactionMode, GroupConfig};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const KEYS: usize = 400;
const LATE: usize = 5;

impl Place {
    fn db(&self, words: &[&str]) -> Output {
        self.run(&[&["db"], words].concat())
    }

    /// The output of a command that finds nothing wrong.
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
        // Once flushes are over, some more: the log then has batches that are in no file.
        std::thread::sleep(Duration::from_millis(500));
        for i in 0..LATE {
            assert_eq!(self.resp(0, &format!("SET key-late-{i} x")), "+OK\r\n");
        }
    }

    /// Flips one byte of the pool; a second call restores it.
    fn flip(&self, at: u64) {
        let path = self.data.join("replica-1/pool");
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }

    /// The place of a file's byte in the pool.
    fn place_of(&self, name: &str, offset: u64) -> u64 {
        let pool = PoolFile::open(&self.data.join("replica-1/pool"), DirectIo::Never).unwrap();
        let options = MediumOptions { notify: false, ..MediumOptions::default() };
        let medium = BlockingMedium::new(pool.medium(options).unwrap());
        let pool = medium.block_on(gabion_pool::read(medium.handle())).unwrap().recovered.pool;
        let mut files = pool.files();
        let placement = files.find(|it| it.file.to_string() == name).expect("it is in the pool");
        gabion_pool::extents(pool.region(), placement, offset, 1).next().unwrap().0
    }

    fn modified(&self) -> [SystemTime; 2] {
        ["replica-1/pool", "replica-1/ring"]
            .map(|name| self.data.join(name).metadata().unwrap().modified().unwrap())
    }
}

fn find<'a>(objects: &'a [Value], what: &str) -> &'a Value {
    objects.iter().find(|object| object["what"] == what).unwrap_or_else(|| panic!("no {what}"))
}

/// The name of the first SST in the tree.
fn an_sst(place: &Place) -> String {
    let edits = place.objects(&["dump", "edits"]);
    let last = edits.iter().rev().find(|object| object["what"] == "added").expect("a file");
    last["file"].as_str().unwrap().to_owned()
}

/// docs/faults.md: P22, P35
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
    tells_what_is_there(&place);
    a_reader_that_leaves_is_no_error(&place);
    refuses_in_one_line(&place);
    copies_it_into_a_store_of_its_own(&place);
    assert_eq!(place.modified(), before, "looking writes nothing");

    names_a_flipped_byte_of_a_file(&place);
    names_a_flipped_byte_of_the_log(&place);
    shows_the_other_superblock(&place);
    let scrub: Value = serde_json::from_str(&place.clean(&["scrub", "--json"])).unwrap();
    assert_eq!(scrub["clean"], true);
    let verify: Value = serde_json::from_str(&place.clean(&["verify", "--json"])).unwrap();
    assert_eq!(verify["clean"], true);
    assert!(verify["entries"].as_u64() > Some(100), "{verify}");
    // A replica of a group of one may be compacted, and runs afterwards.
    place.clean(&["compact"]);
    let up = place.up(&[]);
    assert_eq!(place.resp(0, "GET key-late-1"), "$1\r\nx\r\n");
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
}

/// `gabion db` on a pool or directory, with the given input.
pub(super) fn on(pool: &Path, words: &[&str], input: &str) -> Output {
    let mut child = Command::new(GABION)
        .args(["db", "--pool"])
        .arg(pool)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that has read enough has ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Its output when nothing is wrong.
pub(super) fn fine(pool: &Path, words: &[&str], input: &str) -> String {
    let output = on(pool, words, input);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn copies_it_into_a_store_of_its_own(place: &Place) {
    let copy = place.data.join("copy");
    let target = copy.to_str().unwrap();
    let told = place.clean(&["checkpoint", target, "--json", "--pool-size", "128MiB"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["last_sequence"], KEYS + 2 + LATE);
    let again = place.db(&["checkpoint", target]);
    assert_eq!(again.status.code(), Some(2));
    assert!(said(&again).contains("copy: is there already"), "{}", said(&again));
    assert_eq!(copy.join("pool").metadata().unwrap().len(), 128 << 20);

    assert_eq!(fine(&copy, &["scan"], ""), place.clean(&["scan"]));
    fine(&copy, &["verify"], "");
    assert_eq!(fine(&copy, &["open", "put", "stone", "grey"], ""), "OK\n");
    assert_eq!(fine(&copy, &["get", "stone"], ""), "\"grey\"\n");
    let typed =
        "put cage \"a b\\x00\"\nget cage\ndel stone\nscan s t\nscan c d 1\nflush\nquit\nget x\n";
    let shown = "OK\n\"a b\\x00\"\nOK\n\"cage\" \"a b\\x00\"\nOK\n";
    assert_eq!(fine(&copy, &["open"], typed), shown);
    let unknown = on(&copy, &["open"], "bake cake\nget cage\n");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown).contains("no such command"), "{}", said(&unknown));
    assert!(said(&unknown).contains("a b"), "the next line is carried out");

    let compacted: Value = serde_json::from_str(&fine(&copy, &["compact", "--json"], "")).unwrap();
    let after = compacted["after"].as_array().unwrap();
    assert_eq!(after.iter().filter(|level| level["files"].as_u64() > Some(0)).count(), 1);
    // 399 keys of the load, the later ones, and the cage.
    assert_eq!(fine(&copy, &["scan"], "").lines().count(), KEYS + LATE + 1);
    fine(&copy, &["verify"], "");
    let stats = fine(&copy, &["open"], "stats\n");
    assert!(stats.contains("in files"), "{stats}");
    assert!(stats.contains("\nslots ") && stats.contains("\nheld moments 0"), "{stats}");
    assert!(stats.contains("  block cache hits  "), "{stats}");
    assert!(stats.contains("  client read bytes  "), "{stats}");
    let typed = "put stats 1\nflush\nget cage\nstats\n";
    let told = fine(&copy, &["open", "--json"], typed);
    let stats = serde_json::Deserializer::from_str(&told).into_iter::<Value>().last();
    let stats = stats.unwrap().unwrap();
    assert_eq!(stats["counters"]["flushes"], 1, "{stats}");
    assert!(stats["counters"]["block_cache_misses"].as_u64() >= Some(1), "{stats}");
    assert!(stats["counters"]["client_read_bytes"].as_u64() >= Some(4096), "{stats}");
    let slots = |state| stats["slots"][state].as_u64().unwrap();
    let states = ["free", "live", "allocated", "retired", "quarantined"];
    assert_eq!(states.map(slots).iter().sum::<u64>(), slots("total"), "{stats}");
    assert_eq!(stats["held"], serde_json::json!({ "moments": 0, "oldest_ms": 0 }));
    std::fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn pairs_are_told_from_both_ends_at_the_prompt_and_a_key_is_put_for_some_time() {
    let dir = std::env::temp_dir().join(format!("gabion-db-ways-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let options = gabion_db::Options { pool_len: 128 << 20, ..gabion_db::Options::default() };
    drop(gabion_db::Db::create(&dir, &options).unwrap());
    let typed = "put a 1\nput ab 2\nput abc 3\nput b 4\n\
                 rscan\nrscan a b 2\nscan \"\" \"\" 1\nrscan b\nscan a b 0\n\
                 prefix ab\nprefix ab 1\nrprefix a\nrprefix ab 1\nprefix \"\" 1\nprefix x\n";
    let told = fine(&dir, &["open"], typed);
    let told: Vec<&str> = told.lines().skip(4).filter_map(|line| line.split('"').nth(1)).collect();
    let wanted = "b abc ab a  abc ab  a  b  ab abc  ab  abc ab a  abc  a";
    assert_eq!(told, wanted.split_whitespace().collect::<Vec<_>>());

    let expires_ms = |key| {
        let told: Value = serde_json::from_str(&fine(&dir, &["get", key, "--json"], "")).unwrap();
        told["expires_ms"].as_u64()
    };
    assert_eq!(fine(&dir, &["open", "put", "c", "5", "1000"], ""), "OK\n");
    assert!(expires_ms("c") > Some(1_000_000), "{:?}", expires_ms("c"));
    assert_eq!(fine(&dir, &["open", "put", "c", "5"], ""), "OK\n");
    assert_eq!(expires_ms("c"), None);
    for (words, part) in [
        (&["open", "put", "c", "5", "0"][..], "SECONDS is \"0\""),
        (&["open", "put", "c", "5", "1.5"], "no whole number from 1 on"),
        (&["open", "prefix", "c", "-1"], "LIMIT is \"-1\""),
        (&["open", "rscan", "a", "b", "1", "2"], "no such command"),
    ] {
        let wrong = on(&dir, words, "");
        assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
        assert!(said(&wrong).contains(part), "{}", said(&wrong));
    }
    // Commands that `help` lists also work where there is no prompt to end.
    for word in ["quit", "exit"] {
        assert_eq!(fine(&dir, &["open", word], ""), "");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// docs/faults.md: P13
#[test]
fn counters_are_added_to_by_hand_and_shown_by_what_looks_into_a_pool() {
    let dir = std::env::temp_dir().join(format!("gabion-db-counters-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let options = gabion_db::Options {
        pool_len: 256 << 20,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        ..gabion_db::Options::default()
    };
    drop(gabion_db::Db::create(&dir, &options).unwrap());
    let typed = "put n 40\nflush\nadd n 5\nadd n -3\nadd m -7\nflush\nget n\nadd n 1\n";
    assert_eq!(fine(&dir, &["open"], typed).lines().nth(6), Some("\"42\""));
    assert_eq!(fine(&dir, &["get", "n"], ""), "\"43\"\n");
    assert_eq!(fine(&dir, &["scan"], ""), "\"m\" \"-7\"\n\"n\" \"43\"\n");
    let log = fine(&dir, &["dump", "log", "--entries"], "");
    let last = log.lines().rfind(|line| line.contains("merge ")).unwrap();
    assert!(last.contains("operator=add-i64") && last.contains("delta=1"), "{last}");
    let files = fine(&dir, &["dump", "edits"], "");
    let added =
        files.lines().find(|line| line.contains("operands=2")).unwrap_or_else(|| panic!("{files}"));
    let number = added.split("file=").nth(1).unwrap().split('.').next().unwrap();
    assert!(files.contains("merge_operator=add-i64"), "{files}");
    let file = fine(&dir, &["dump", "file", number, "--entries"], "");
    // 5, then -3: one operand that stops 5 before the upper end and then goes back.
    let top = i64::MAX - 3;
    assert!(file.contains("to_0=2") && file.contains(&format!("to_largest={top}")), "{file}");
    assert!(file.contains("delta=-7"), "{file}");
    fine(&dir, &["verify"], "");
    let wrong = on(&dir, &["open", "add", "n", "1.5"], "");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("NUMBER is \"1.5\""), "{}", said(&wrong));
    fine(&dir, &["compact"], "");
    assert_eq!(fine(&dir, &["scan"], ""), "\"m\" \"-7\"\n\"n\" \"43\"\n");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// docs/faults.md: P16
#[test]
fn ranges_are_deleted_by_hand_and_shown_by_what_looks_into_a_pool() {
    let dir = std::env::temp_dir().join(format!("gabion-db-delrange-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let options = gabion_db::Options {
        pool_len: 256 << 20,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        ..gabion_db::Options::default()
    };
    let db = gabion_db::Db::create(&dir, &options).unwrap();
    let value = [7; 1_000];
    (0..9_000).for_each(|n| db.put(format!("n{n:04}").as_bytes(), &value).unwrap());
    db.flush().unwrap();
    drop(db);
    let typed = "put m 1\nput x 2\ndelrange n0010 n8990\nput n0500 3\n";
    fine(&dir, &["open"], typed);
    assert_eq!(fine(&dir, &["scan"], "").lines().count(), 2 + 10 + 10 + 1);
    assert_eq!(fine(&dir, &["get", "n0500"], ""), "\"3\"\n");
    assert_eq!(on(&dir, &["get", "n0011"], "").stdout, b"(nil)\n");
    let log = fine(&dir, &["dump", "log", "--entries"], "");
    let line = log.lines().find(|line| line.contains("range-delete ")).unwrap();
    assert!(line.contains("n0010") && line.contains("n8990"), "{line}");
    fine(&dir, &["open", "flush"], "");
    let files = fine(&dir, &["dump", "edits"], "");
    let added = files.lines().find(|line| line.contains("range_deletes=1"));
    let added = added.unwrap_or_else(|| panic!("{files}"));
    let number = added.split("file=").nth(1).unwrap().split('.').next().unwrap();
    let file = fine(&dir, &["dump", "file", number, "--entries"], "");
    assert!(file.lines().any(|line| line.contains("range-delete start=")), "{file}");
    fine(&dir, &["verify"], "");
    let stats: Value = serde_json::from_str(&fine(&dir, &["stats", "--json"], "")).unwrap();
    let levels = stats["levels"].as_array().unwrap();
    let ranges: u64 = levels.iter().map(|level| level["range_deletes"].as_u64().unwrap()).sum();
    let text = fine(&dir, &["stats"], "");
    assert_eq!(text.contains("range delete"), ranges > 0, "{text}");
    fine(&dir, &["compact"], "");
    assert_eq!(fine(&dir, &["scan"], "").lines().count(), 23);
    fine(&dir, &["open", "delrange", "n", ""], "");
    assert_eq!(fine(&dir, &["scan"], ""), "\"m\" \"1\"\n");
    fine(&dir, &["verify"], "");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// docs/faults.md: P35
#[test]
fn a_member_of_a_group_of_several_is_copied_but_not_changed() {
    let dir = std::env::temp_dir().join(format!("gabion-db-member-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let group = GroupConfig {
        group: GroupId(7),
        founders: vec![ReplicaId(1), ReplicaId(2)],
        compaction: CompactionMode::EveryReplica,
        ack: AckLevel::Replicated,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        tree: TreeConfig::default(),
    };
    let member = dir.join("member");
    gabion_host::replica::create_replica(&member, 256 << 20, &group, ReplicaId(2)).unwrap();
    for words in [&["compact"][..], &["open", "put", "a", "b"]] {
        let output = on(&member, words, "");
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        let text = said(&output);
        assert!(text.contains("belongs to a group of 2 replicas"), "{text}");
    }
    let copy = dir.join("copy");
    fine(&member, &["checkpoint", copy.to_str().unwrap()], "");
    assert_eq!(fine(&copy, &["open", "put", "a", "b"], ""), "OK\n");
    assert_eq!(fine(&copy, &["get", "a"], ""), "\"b\"\n");
    fine(&copy, &["verify"], "");
    std::fs::remove_dir_all(&dir).unwrap();
}

fn reads_what_a_start_would(place: &Place) {
    assert_eq!(place.clean(&["get", "key-0003"]), format!("\"{}\"\n", "0003".repeat(512)));
    let value: Value = serde_json::from_str(&place.clean(&["get", "key-0007", "--json"])).unwrap();
    assert!(value["value"].is_null());
    let part = place.clean(&["scan", "--prefix", "key-03", "--to", "key-0390", "--limit", "100"]);
    assert_eq!(part.lines().count(), 90);
    let last = place.objects(&["scan", "--from", "kez"]);
    assert_eq!(last[0]["key"]["hex"], "ff00226b");
    let all = ["scan", "--prefix", "key-03", "--to", "key-0390"];
    let forwards = place.clean(&all);
    let backwards = place.clean(&[&all[..], &["--reverse"]].concat());
    assert!(backwards.lines().eq(forwards.lines().rev()));
    let last = place.clean(&[&all[..], &["--reverse", "--limit", "2"]].concat());
    assert!(last.lines().eq(forwards.lines().rev().take(2)), "{last}");
}

/// Returns the log.
fn tells_what_is_there(place: &Place) {
    let stats: Value = serde_json::from_str(&place.clean(&["stats", "--json"])).unwrap();
    let entries = |level: &Value| level["entries"].as_u64().unwrap();
    let in_files: u64 = stats["levels"].as_array().unwrap().iter().map(entries).sum();
    assert!(in_files > 100, "{stats}");
    assert_eq!(stats["memtables"]["last_sequence"], KEYS + 2 + LATE);
    assert_eq!(stats["log"]["ending"], "clean");
    assert_eq!(place.objects(&["dump", "superblock"])[0]["version"], 2);
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
    let file = place.objects(&["dump", "file", &an_sst(place), "--entries"]);
    for what in ["placement", "in-tree", "footer", "properties", "filter", "block", "put"] {
        find(&file, what);
    }
    let puts = file.iter().filter(|object| object["what"] == "put" || object["what"] == "delete");
    assert_eq!(puts.count() as u64, find(&file, "properties")["entries"]);
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
    let name = an_sst(place);
    let blocks = place.objects(&["dump", "file", &name]);
    let block = blocks.iter().find(|object| object["what"] == "block" && object["number"] == 1);
    let offset = block.expect("two blocks")["offset"].as_u64().unwrap();
    let at = place.place_of(&name, offset + 10);
    place.flip(at);
    for command in ["scrub", "verify"] {
        let scrub = place.db(&[command]);
        assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
        let named = format!("DAMAGED {name}, offset {offset}: ");
        assert!(said(&scrub).contains(&named), "{named}\n{}", said(&scrub));
    }
    let target = place.data.join("damaged");
    let copy = place.db(&["checkpoint", target.to_str().unwrap()]);
    assert_eq!(copy.status.code(), Some(1), "{}", said(&copy));
    assert!(said(&copy).contains(&name), "{}", said(&copy));
    assert!(!target.exists());
    let dump = place.db(&["dump", "file", &name]);
    assert_eq!(dump.status.code(), Some(1));
    let text = said(&dump);
    assert!(text.contains("DAMAGED") && text.contains("block number=2 "), "{text}");
    let slots = place.db(&["dump", "slots"]);
    assert!(slots.status.code() == Some(1) && said(&slots).contains("header=bad"));
    place.flip(at);
}

fn names_a_flipped_byte_of_the_log(place: &Place) {
    // Writes without a wish for durability are in the ring alone.
    fine(&place.data.join("replica-1"), &["open"], "put synced x\nsync\n");
    let log = place.objects(&["dump", "log"]);
    let drained: Vec<&Value> = log.iter().filter(|object| object["in"] == "segment+ring").collect();
    assert!(!drained.is_empty(), "{log:?}");
    let offset = drained[0]["offset"].as_u64().unwrap();
    let segment = FileId::log_segment(ShardId::ZERO, 0);
    let at = place.place_of(&segment.to_string(), offset + 100);
    place.flip(at);
    let scrub = place.db(&["scrub", "--json"]);
    assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
    let verify = place.db(&["verify"]);
    assert_eq!(verify.status.code(), Some(1), "{}", said(&verify));
    assert!(said(&verify).contains("000000.log"), "{}", said(&verify));
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
    let verify = place.db(&["verify"]);
    assert_eq!(verify.status.code(), Some(1), "{}", said(&verify));
    assert!(said(&verify).contains("superblock, copy 0"), "{}", said(&verify));
    place.flip(40);
}
