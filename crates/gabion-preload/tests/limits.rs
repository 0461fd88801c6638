//! Names and lengths that log peers do not take: whoever asks for them is refused, before anything
//! is changed, and all else goes on.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;
#[path = "../../gabion-ncl-driver/tests/support/peers.rs"]
mod peers;

use common::{Run, directory, script};
use gabion_fabric::remote::PeerServer;
use gabion_media::remote::{Incarnation, PeerConfig, PeerId};
use gabion_mirror::owner::{Settings, Splits};
use gabion_ncl::OnLoss;
use gabion_ncl_driver::registry::Registrar;
use gabion_ncl_driver::{Logs, LogsOptions, PeerFiles};
use peers::{Shared, Way};
use std::path::PathBuf;
use std::sync::Arc;

struct House {
    home: PathBuf,
    root: PathBuf,
    run: Run,
    logs: Arc<Logs>,
    _peers: Vec<(PeerServer, Registrar)>,
}

impl House {
    fn new(name: &str) -> Self {
        let home = directory(name);
        let root = home.join("root");
        std::fs::create_dir_all(&root).unwrap();
        let store = Shared::default();
        let peers = (1..=3).map(|index| {
            let config = PeerConfig::new(PeerId(index), Incarnation(1), 512 << 20);
            let way = if index == 1 { Way::Tcp } else { Way::SharedMemory };
            peers::start(&store, way, &home.join(format!("peer-{index}")), config)
        });
        let peers = peers.collect();
        let mut options = LogsOptions::new("limits");
        options.has_program = true;
        options.core.on_loss = OnLoss::FailAfter(60_000);
        let logs = Arc::new(Logs::start(options, Box::new(store)).unwrap());
        logs.wait_until_ready().unwrap();
        let splits = Splits { globs: vec![("*.db".to_owned(), 1_000)], journal_len: 1 << 20 };
        let settings = Run::settings(&home, &root, "*.log");
        let settings = Settings { splits: Some(splits), ..settings };
        let run = Run::start_with(Box::new(PeerFiles::new(Arc::clone(&logs))), settings).unwrap();
        Self { home, root, run, logs, _peers: peers }
    }

    fn script(&self, text: &str) -> Vec<String> {
        let path = self.home.join("script");
        std::fs::write(&path, text).unwrap();
        let said = script(Some(&self.run), &self.root, &path);
        said.lines().map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect()
    }

    /// Makes a directory below each of the names.
    fn deep(&self, first: &str, names: usize) -> String {
        // Each of its bytes is three in the store.
        let name = "%".repeat(240);
        let path = format!("{first}/{}", vec![name; names].join("/"));
        std::fs::create_dir_all(self.root.join(&path)).unwrap();
        path
    }

    /// All that was synced is there, and the run ends as it should.
    fn end(self, files: &[(&str, u64)]) {
        let said = self.script("open 0 last.log 66 600\nwrite 0 1 10\nfsync 0\nunlink last.log");
        assert_eq!(said, ["3", "10", "0", "0"], "the store works");
        let mut found = self.run.owner.files();
        found.retain(|(name, _)| name.ends_with(b".log"));
        let of = |(name, len): &(&str, u64)| (name.as_bytes().to_vec(), *len);
        assert_eq!(found, files.iter().map(of).collect::<Vec<_>>());
        self.run.stop();
        drop(self.logs);
        std::fs::remove_dir_all(self.home).unwrap();
    }
}

#[test]
fn names_that_the_store_does_not_take_are_refused_before_they_are_changed() {
    let house = House::new("limits-names");
    let deep = house.deep("d", 6);
    let said = house.script(&format!(
        "open 0 a.log 66 600\nwrite 0 1 10\nopen 1 {deep}/b.log 66 600\n\
         rename a.log {deep}/a.log 0\nlink a.log {deep}/a.log\nfsync 0\n\
         rename a.log b.log 0\nlink b.log c.log"
    ));
    assert_eq!(said, ["3", "10", "E36", "E36", "E36", "0", "0", "0"]);
    assert!(house.root.join("b.log").exists() && !house.root.join(&deep).join("a.log").exists());
    house.end(&[("b.log", 10), ("c.log", 10)]);
}

#[test]
fn a_directory_of_more_names_than_change_at_once_is_not_moved() {
    let house = House::new("limits-directory");
    let deep = house.deep("d", 4);
    let open = |file: u32| format!("open 0 {deep}/{file}.log 66 600\n");
    let text: String = (0..21).map(open).collect();
    let said = house.script(&format!("{text}write 0 1 10\nfsync 0\nrename d e 0"));
    assert_eq!(said[21..], ["10", "0", "0"], "{said:?}");
    let deep = house.deep("e", 4);
    let open = |file: u32| format!("open 0 {deep}/{file}.log 66 600\n");
    let text: String = (21..25).map(open).collect();
    let said = house.script(&format!("{text}rename e f 0\nwrite 0 1 10\nfsync 0"));
    assert_eq!(said[4..], ["E18", "10", "0"], "{said:?}");
    assert!(house.root.join("e").exists() && !house.root.join("f").exists());
    let mut names: Vec<String> = (0..25).map(|file| format!("{deep}/{file}.log")).collect();
    names.sort();
    let len =
        |name: &String| if name.ends_with("/20.log") || name.ends_with("/24.log") { 10 } else { 0 };
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), len(name))).collect();
    house.end(&files);
}

#[test]
fn lengths_that_the_store_does_not_take_are_refused_before_the_mirror_has_them() {
    let house = House::new("limits-lengths");
    let (far, limit) = (300_u64 << 30, 255_u64 << 30);
    let said = house.script(&format!(
        "open 0 a.log 66 600\nwrite 0 1 10\nftruncate 0 {}\nftruncate 0 {far}\n\
         truncate a.log {far}\npwrite 0 1 1 {far}\npwrite 0 1 1 {limit}\npwritev 0 1 300 {limit}\n\
         pwrite 0 1 0 {far}\npwrite 0 1 1 -1\nfallocate 0 0 {limit} 1\nfallocate 0 1 {far} 1\n\
         pallocate 0 {limit} 1\nftruncate 0 -1\nwrite 0 1 5\nfsync 0",
        (1_u64 << 40) + 1
    ));
    let expected = [
        "3", "10", "E27", "E27", "E27", "E27", "E27", "E27", "0", "E22", "E27", "0", "27", "E22",
        "5", "0",
    ];
    assert_eq!(said, expected);
    house.end(&[("a.log", 15)]);
}

#[test]
fn a_file_of_a_name_that_the_store_does_not_take_is_not_split() {
    let house = House::new("limits-split");
    let deep = house.deep("d", 6);
    let said = house.script(&format!(
        "open 0 {deep}/a.db 66 600\nfsync 0\nwrite 0 1 10\nfsync 0\nopen 1 b.db 66 600\nfsync 1\n\
         write 1 1 10\nfsync 1"
    ));
    assert_eq!(said, ["3", "0", "10", "0", "4", "0", "10", "0"]);
    let shared = house.run.owner.shared();
    assert_eq!((shared.split_counts().frames, shared.split_files()), (1, (1, 1)));
    house.end(&[]);
}
