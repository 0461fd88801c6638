//! Figures as they are measured, and medians over their rounds.

use super::Part;
use crate::figures::median;
use serde_json::{Map, Value, json};

/// How a write is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// In the kernel's memory: the paper's weak.
    Unsynced,
    /// At log peers whose memory is mapped.
    Shared,
    /// At log peers over TCP loopback.
    Tcp,
    /// Synced to the disk: the paper's strong.
    Synced,
    /// In files that are split: small writes at log peers whose memory is mapped.
    Split,
}

impl Side {
    /// Those of the paper.
    pub(crate) const ALL: [Self; 4] = [Self::Unsynced, Self::Shared, Self::Tcp, Self::Synced];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unsynced => "unsynced",
            Self::Shared => "peers, shared memory",
            Self::Tcp => "peers, TCP",
            Self::Synced => "synced",
            Self::Split => "split files",
        }
    }
}

/// The file system of files that are not at peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Local,
    /// Its syncs take as long as `--slow-sync` says.
    Slow,
}

impl Disk {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Slow => "slow syncs",
        }
    }
}

/// The measured rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) part: Part,
    /// `library`, or a program.
    pub(crate) program: &'static str,
    pub(crate) load: &'static str,
    pub(crate) side: Side,
    /// None where no disk takes part.
    pub(crate) disk: Option<Disk>,
    pub(crate) clients: u64,
    /// Bytes of a write, a read, a log, or a memory.
    pub(crate) bytes: u64,
}

impl Key {
    /// Of the library over log peers, by one thread.
    pub(crate) fn library(part: Part, load: &'static str, side: Side, bytes: u64) -> Self {
        Self { part, program: "library", load, side, disk: None, clients: 1, bytes }
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) key: Key,
    pub(crate) round: u64,
    pub(crate) figures: Vec<(&'static str, f64)>,
    /// Records of each slice of 10 ms, and what happened when, in seconds.
    pub(crate) slices: Vec<u64>,
    pub(crate) marks: Vec<(f64, String)>,
}

impl Row {
    pub(crate) fn new(key: Key, round: u64, figures: Vec<(&'static str, f64)>) -> Self {
        Self { key, round, figures, slices: Vec::new(), marks: Vec::new() }
    }

    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    pub(crate) fn json(&self, config: Map<String, Value>) -> Value {
        let key = &self.key;
        let mut value = json!({
            "benchmark": "ncl",
            "part": key.part.as_str(),
            "program": key.program,
            "load": key.load,
            "side": key.side.as_str(),
            "disk": key.disk.map(Disk::as_str),
            "clients": key.clients,
            "bytes": key.bytes,
            "round": self.round,
        });
        for (name, figure) in &self.figures {
            value[*name] = (*figure).into();
        }
        if !self.slices.is_empty() {
            value["slices_of_10_ms"] = self.slices.clone().into();
            let marks = self.marks.iter().map(|(at, text)| json!({"seconds": at, "what": text}));
            value["marks"] = marks.collect();
        }
        value["config"] = config.into();
        value
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    pub(crate) fn push(&mut self, row: Row) {
        self.0.push(row);
    }

    pub(crate) fn of(&self, part: Part) -> impl Iterator<Item = &Row> {
        self.0.iter().filter(move |row| row.key.part == part)
    }

    /// The values of a key's field in the order in which they came, each once.
    pub(crate) fn each<T: PartialEq>(&self, part: Part, of: impl Fn(&Key) -> T) -> Vec<T> {
        let mut found = Vec::new();
        for row in self.of(part) {
            let value = of(&row.key);
            if !found.contains(&value) {
                found.push(value);
            }
        }
        found
    }

    /// The median of a figure over the rounds.
    pub(crate) fn figure(&self, key: &Key, name: &str) -> Option<f64> {
        let rows = self.0.iter().filter(|row| row.key == *key);
        median(&mut rows.filter_map(|row| row.figure(name)).collect::<Vec<_>>())
    }
}
