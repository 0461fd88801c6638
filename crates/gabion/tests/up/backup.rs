//! `gabion backup` and `gabion restore` of a group that clients write to.

use super::logged::{self, Logged};
use super::{PATIENCE, Place, kill, said};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory of backups.
struct Backups(PathBuf);

impl Backups {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-bk-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn run(&self, words: &[&str], more: &[&str]) -> Output {
        Command::new(super::GABION)
            .args(words)
            .arg(&self.0)
            .args(more)
            .stdin(Stdio::null())
            .output()
            .expect("the program starts")
    }

    fn make(&self, of: &Place) -> Value {
        let made = self.run(&["backup"], &["--json", "--data", text(&of.data)]);
        assert!(made.status.success(), "{}", said(&made));
        serde_json::from_slice(&made.stdout).expect("it is JSON")
    }

    fn verify(&self) -> Output {
        self.run(&["backup", "verify"], &[])
    }

    fn restore(&self, to: &Place, more: &[&str]) -> Output {
        let port = to.port.to_string();
        self.run(&["restore"], &[&["--data", text(&to.data), "--port", &port], more].concat())
    }

    /// Its files of pools, the largest first.
    fn files(&self) -> Vec<(u64, PathBuf)> {
        let entries = std::fs::read_dir(self.0.join("files")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.map(|path| (path.metadata().unwrap().len(), path)).collect();
        files.sort();
        files.reverse();
        files
    }
}

impl Drop for Backups {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

/// Values of 512 KiB.
fn put_large(place: &Place, count: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", place.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for i in 0..count {
        let (key, value) = (format!("large-{i:02}"), format!("{i:08}").repeat(64 << 10));
        let set = format!("*3\r\n$3\r\nSET\r\n$8\r\n{key}\r\n${}\r\n{value}\r\n", value.len());
        stream.write_all(set.as_bytes()).unwrap();
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} in {value}"))
}

/// Every write that was acknowledged before the backup began is in the group that is made of it,
/// and what is there are the first so many of one client's writes. A second backup takes little,
/// and a fail-over in between does no harm.
/// docs/faults.md: P9
#[test]
fn a_group_that_is_made_of_a_backup_under_load_has_all_that_was_acknowledged_before() {
    let place = Place::new("backup");
    let up = place.up(&[]);
    place.fill();
    let client = Logged::start(([127, 0, 0, 1], place.port).into());
    client.goes_on();
    let backups = Backups::new("load");
    let before = place.resp(0, "DBSIZE");
    let first = backups.make(&place);
    client.goes_on();
    // The replica that answers reads goes; whoever answers next gives the moment.
    kill(place.pids()[2], "-9");
    let second = backups.make(&place);
    let acknowledged = client.end();
    assert_eq!((number(&first, "backup"), number(&second, "backup")), (1, 2));
    assert!(number(&first, "fetched_bytes") > 0, "{first}");
    assert!(number(&second, "fetched_bytes") < number(&second, "bytes"), "{second}");
    assert!(number(&second, "sequence") > number(&first, "sequence"));
    let third = backups.make(&place);
    let verify = backups.verify();
    assert!(verify.status.success(), "{}", said(&verify));
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);

    // Of the third backup nothing may be missing.
    let to = Place::new("restored");
    let made = backups.restore(&to, &[]);
    assert!(made.status.success(), "{}", said(&made));
    let again = backups.restore(&to, &[]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("nothing is restored over it"), "{}", said(&again));
    let up = to.up(&[]);
    logged::has_all(([127, 0, 0, 1], to.port).into(), &acknowledged);
    assert_eq!(to.resp(0, "STRLEN key-39"), ":16384\r\n");
    assert_eq!(to.resp(0, "SET new 1"), "+OK\r\n");
    let verify = to.run(&["verify"]);
    assert!(verify.status.success(), "{}", said(&verify));
    // The restored group goes on in the same directory.
    let fourth = backups.make(&to);
    assert_eq!(fourth["group"], third["group"]);
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);

    // The first backup is a beginning of what came.
    let old = Place::new("restored-old");
    let made = backups.restore(&old, &["--backup", "1", "--replicas", "1"]);
    assert!(made.status.success(), "{}", said(&made));
    let up = old.up(&[]);
    let count = |reply: &str| reply.trim_start_matches(':').trim_end().parse::<u64>().unwrap();
    let size = count(&old.resp(0, "DBSIZE"));
    assert!(size >= count(&before), "{size} keys, {before} were acknowledged");
    drop(up);
    let pruned = backups.run(&["backup", "prune"], &["--keep", "1"]);
    assert!(pruned.status.success(), "{}", said(&pruned));
    assert!(said(&pruned).contains("3 backups removed"), "{}", said(&pruned));
    assert!(backups.verify().status.success());
}

/// A backup that is killed leaves no backup, and the files that it had fetched serve the next one.
/// A flipped bit is found, restores nothing, and is made good by the next backup that looks.
/// docs/faults.md: P9
#[test]
fn a_backup_that_was_killed_goes_on_and_a_flipped_bit_is_found_and_never_restored() {
    let place = Place::new("killed");
    let up = place.up(&["--replicas", "1", "--large-values", "1KiB"]);
    place.fill();
    // At the rate below it takes seconds.
    put_large(&place, 12);
    assert_eq!(place.resp(0, "SET round 3"), "+OK\r\n");
    let backups = Backups::new("killed");
    let mut child = Command::new(super::GABION)
        .arg("backup")
        .arg(&backups.0)
        .args(["--rate", "1MiB", "--data", text(&place.data)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !backups.0.join("files").exists() || backups.files().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "nothing is fetched");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let made = backups.make(&place);
    assert_eq!(number(&made, "backup"), 1);
    assert!(number(&made, "bytes") > 0);
    assert!(backups.files().iter().all(|(_, path)| !text(path).ends_with(".part")));

    let (len, path) = backups.files()[0].clone();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[len as usize / 2] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let found = backups.verify();
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    assert!(said(&found).contains(text(&path)), "{}", said(&found));
    let to = Place::new("never");
    let refused = backups.restore(&to, &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(text(&path)), "{}", said(&refused));
    assert!(!to.data.join("cluster.json").exists());
    assert!(!to.data.join("replica-1").exists());
    let mended = backups.run(&["backup"], &["--check", "--data", text(&place.data)]);
    assert!(mended.status.success(), "{}", said(&mended));
    assert!(backups.verify().status.success());
    let made = backups.restore(&to, &[]);
    assert!(made.status.success(), "{}", said(&made));
    drop(up);
    let up = to.up(&[]);
    assert_eq!(to.resp(0, "GET round"), "$1\r\n3\r\n");
    assert_eq!(to.resp(0, "STRLEN key-39"), ":16384\r\n");
    assert_eq!(to.resp(0, "STRLEN large-11"), ":524288\r\n");
    drop(up);

    // Another group has no place there.
    let other = Place::new("another");
    let up = other.up(&["--replicas", "1"]);
    let refused = backups.run(&["backup"], &["--data", text(&other.data)]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("has backups of group"), "{}", said(&refused));
    drop(up);
}
