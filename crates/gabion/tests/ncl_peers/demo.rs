//! `gabion ncl demo`.

use super::*;

/// A directory in which nothing is left.
pub(super) struct Emptied(pub(super) PathBuf);

impl Emptied {
    pub(super) fn new(name: &str) -> Self {
        // Short, as it holds sockets.
        let path = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn demo(&self, words: &[&str]) -> Command {
        let mut command = Command::new(GABION);
        command.args(["ncl", "demo", "--seconds", "1", "--directory"]);
        command.arg(&self.0).args(words);
        command
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        let left = std::fs::read_dir(&self.0).unwrap().count();
        std::fs::remove_dir_all(&self.0).unwrap();
        assert!(std::thread::panicking() || left == 0, "{left} files are left");
    }
}

fn loses_nothing(program: &str) {
    let place = Emptied::new(program);
    let output = place.demo(&["--writes", "300", "--program", program]).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    eprintln!("{said}");
    assert!(said.contains("Nothing that was acknowledged is lost."), "{said}");
    for row in ["no sync", "near-compute log", "fsync"] {
        assert!(said.lines().any(|line| line.starts_with(&format!("  {row}  "))), "{row}: {said}");
    }
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs redis-server: cargo xtask ncl"]
fn the_demo_with_redis_loses_nothing_and_leaves_nothing() {
    loses_nothing("redis");
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn the_demo_with_sqlite_loses_nothing_and_leaves_nothing() {
    loses_nothing("sqlite");
}

#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn the_demo_finds_a_write_that_is_missing_and_ends_with_exit_code_1() {
    let place = Emptied::new("planted");
    let output =
        place.demo(&["--program", "sqlite", "--writes", "300", "--plant-loss"]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stderr));
    // One more than was acknowledged may be there.
    assert!(["LOST: 4 are", "LOST: 5 are"].iter().any(|lost| said.contains(lost)), "{said}");
}

#[test]
#[ignore = "needs sqlite3: cargo xtask ncl"]
fn a_demo_that_is_told_to_end_leaves_neither_files_nor_processes() {
    let place = Emptied::new("ended");
    let mut demo = place.demo(&["--program", "sqlite"]);
    // A load that has no end before the signal.
    let mut demo = Process::start(demo.args(["--size", "9"]).args(["--writes", "9000000"]));
    let until = Instant::now() + PATIENCE;
    let told = |place: &Path| {
        let dir = std::fs::read_dir(place).unwrap().next();
        dir.is_some_and(|dir| dir.unwrap().path().join("before/t.db").exists())
    };
    while !told(&place.0) {
        assert!(Instant::now() < until, "it begins no load");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(demo.pid(), Signal::TERM).unwrap();
    assert_eq!(demo.child.wait().unwrap().code(), Some(128 + 15));
    let name = place.0.to_str().unwrap();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let words = std::fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
        assert!(!text(&words).contains(name), "a process is left: {}", text(&words));
    }
}

#[test]
fn the_demo_says_how_to_install_a_program_if_there_is_none() {
    let place = Emptied::new("none");
    let output = place.demo(&[]).env("PATH", "/nowhere").output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("redis-server or sqlite3 is needed"), "{said}");
    assert!(said.contains("apt install"), "{said}");
}
