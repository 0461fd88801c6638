//! Numbers of a served store for its operator.
//!
//! They are kept beside the store, as a store whose disk hangs does not answer: whoever reads them
//! waits for no question.

use crate::address::PeerAddress;
use gabion_control::Versioned;
use gabion_control::tally::StoreTally;
use gabion_mirror::times::{BUCKETS, Times};
use gabion_ncl::map::{PEERS_PREFIX, PeerRecord, is_map_name};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Connections of one kind of socket since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections now, those that have not greeted yet included.
    pub open: u64,
    /// Connections that were served.
    pub accepted: u64,
    /// Connections that were closed at once, as there were too many or the system refused.
    pub rejected: u64,
}

/// A peer's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPeer {
    /// The peer, as its name in the store has it.
    pub peer: String,
    /// Its failure domain.
    pub domain: String,
    /// Bytes that it could lend.
    pub free_bytes: u64,
    /// Whether it said that it lends no more.
    pub has_ended: bool,
    /// Time since it wrote the record; since the store's start, if it was before.
    pub age: Duration,
}

/// The values of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many there are.
    pub values: u64,
    /// Bytes of them and of their names.
    pub bytes: u64,
    /// Applications that have files.
    pub applications: u64,
    /// Peers that were ever registered.
    pub peers: Vec<KeptPeer>,
}

/// All numbers, of one moment.
#[derive(Clone, Debug)]
pub struct StoreFigures {
    /// Questions and refusals.
    pub tally: StoreTally,
    /// Times in which the store took a value: the change and its flush. Counts by bucket, and the
    /// sum in nanoseconds.
    pub stored: ([u64; BUCKETS], u64),
    /// Connections over TCP.
    pub tcp: Traffic,
    /// Connections over the Unix socket.
    pub unix: Traffic,
    /// The values. None after a failure of the store, until it answers again.
    pub kept: Option<Kept>,
}

/// A value that is there.
#[derive(Debug)]
struct Entry {
    len: u64,
    /// When it was written.
    at: Instant,
    peer: Option<PeerRecord>,
}

/// The names of a store with what is told of their values.
#[derive(Debug, Default)]
pub(super) struct Index(BTreeMap<String, Entry>);

impl Index {
    /// Of all that a store has.
    pub(super) fn of(all: Vec<(String, Versioned)>) -> Self {
        let mut index = Self::default();
        all.into_iter().for_each(|(name, found)| index.note(&name, &found.value));
        index
    }

    /// A value was stored.
    pub(super) fn note(&mut self, name: &str, value: &[u8]) {
        let is_peer = name.starts_with(PEERS_PREFIX);
        // One that is no record of a peer is a value like others.
        let peer = is_peer.then(|| PeerRecord::decode(value).ok()).flatten();
        let entry = Entry { len: value.len() as u64, at: Instant::now(), peer };
        self.0.insert(name.to_owned(), entry);
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::default();
        for (name, entry) in &self.0 {
            kept.values += 1;
            kept.bytes += name.len() as u64 + entry.len;
            kept.applications += u64::from(is_map_name(name));
            let Some(record) = &entry.peer else { continue };
            let address = PeerAddress::decode(&record.address).unwrap_or_default();
            kept.peers.push(KeptPeer {
                peer: name.trim_start_matches(PEERS_PREFIX).to_owned(),
                domain: record.domain.clone(),
                free_bytes: record.free_bytes,
                has_ended: address.tcp.is_none() && address.unix.is_none(),
                age: entry.at.elapsed(),
            });
        }
        kept
    }
}

/// The numbers as they are counted. Their lock is not held while the store is asked.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) tally: StoreTally,
    pub(super) tcp: Traffic,
    pub(super) unix: Traffic,
    /// None if it is not known what the store has.
    pub(super) index: Option<Index>,
    stored: Times,
}

impl Figures {
    pub(super) fn new(index: Option<Index>) -> Self {
        Self { index, ..Self::default() }
    }

    /// Connections of one kind of socket.
    pub(super) const fn of(&mut self, is_tcp: bool) -> &mut Traffic {
        match is_tcp {
            true => &mut self.tcp,
            false => &mut self.unix,
        }
    }

    /// A value was stored, which took so long.
    pub(super) fn stored(&mut self, name: &str, value: &[u8], took: Duration) {
        self.stored.count(took);
        if let Some(index) = &mut self.index {
            index.note(name, value);
        }
    }

    pub(super) fn read(&self) -> StoreFigures {
        StoreFigures {
            tally: self.tally,
            stored: self.stored.read(),
            tcp: self.tcp,
            unix: self.unix,
            kept: self.index.as_ref().map(Index::kept),
        }
    }
}
