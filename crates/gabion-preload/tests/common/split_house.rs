//! A house for tests of split files: a store, a root, and an owner after the other.
#![allow(dead_code, reason = "each test program uses a part of it")]

use crate::common::{self, Run, directory, disk, script_command};
use gabion_mirror::files::LogFiles;
use gabion_mirror::local::LocalFiles;
use gabion_mirror::owner::{Settings, Splits};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const BELOW: u64 = 1_000;
pub(crate) const JOURNAL_LEN: u64 = 1 << 20;

/// `*.db` are split, `*.log` mirrored.
pub(crate) struct House {
    pub(crate) home: PathBuf,
    pub(crate) root: PathBuf,
    /// Globs of split files.
    pub(crate) globs: &'static str,
    /// The bytes of the disk, if they are noted.
    pub(crate) shadow: Option<PathBuf>,
    /// Disks that were lost.
    lost: u32,
}

impl House {
    pub(crate) fn new(name: &str) -> Self {
        let home = directory(name).canonicalize().unwrap();
        let root = home.join("root");
        std::fs::create_dir_all(&root).unwrap();
        Self { home, root, globs: "*.db", shadow: None, lost: 0 }
    }

    pub(crate) fn store(&self) -> LocalFiles {
        LocalFiles::open(&self.home.join("store")).unwrap()
    }

    pub(crate) fn try_start(&self) -> io::Result<Run> {
        self.start_with(Box::new(self.store()))
    }

    pub(crate) fn start_with(&self, store: Box<dyn LogFiles>) -> io::Result<Run> {
        let globs = vec![(self.globs.to_owned(), BELOW)];
        let splits = Splits { globs, journal_len: JOURNAL_LEN };
        let settings = Run::settings(&self.home, &self.root, "*.log");
        Run::start_with(store, Settings { splits: Some(splits), ..settings })
    }

    pub(crate) fn start(&self) -> Run {
        self.try_start().unwrap()
    }

    /// A command that runs a script, which is written to a file of that name.
    pub(crate) fn command(&self, run: &Run, name: &str, text: &str) -> Command {
        let path = self.home.join(name);
        std::fs::write(&path, text).unwrap();
        let mut command = script_command(Some(run), &self.root, &path);
        if let Some(shadow) = &self.shadow {
            common::note_syncs(&mut command, shadow, &self.root);
            command.env(disk::MARKS, &self.home);
        }
        command
    }

    /// Runs a script, and gives the result of each line.
    pub(crate) fn script(&self, run: &Run, text: &str) -> Vec<String> {
        let output = self.command(run, "script", text).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{}\n{errors}", output.status);
        results(&output.stdout)
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.root.join(name)).unwrap()
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.root.join(name), bytes).unwrap();
    }

    /// Names of the store.
    pub(crate) fn stored(&self) -> Vec<String> {
        let names = self.store().recover().unwrap().into_iter().flat_map(|file| file.names);
        names.map(|name| String::from_utf8(name).unwrap()).collect()
    }

    /// The machine is lost: another root has what was synced at this one.
    pub(crate) fn next_root(&mut self) -> PathBuf {
        self.lost += 1;
        let next = self.home.join(format!("root-{}", self.lost));
        let shadow = self.shadow.as_ref().expect("a house whose syncs are noted");
        disk::after_a_loss(shadow, &self.root, &next).unwrap();
        next
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.home).unwrap();
        }
    }
}

/// The result of each line of a script.
pub(crate) fn results(said: &[u8]) -> Vec<String> {
    let said = String::from_utf8_lossy(said);
    said.lines().map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect()
}

/// Copies the files of a directory, and those below it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => std::fs::copy(entry.path(), target).map(drop).unwrap(),
        }
    }
}
