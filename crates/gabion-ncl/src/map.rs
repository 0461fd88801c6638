//! Records of an application in the store: its instance, its ap-map, and the registry of peers.
//!
//! ```text
//!   ncl/apps/<owner>/instance   version u16 = 1 | term u64 | instance u64 | beat u64 | is held u8
//!   ncl/apps/<owner>/map        version u16 = 1 | term u64 | epoch u64 | count u8, each:
//!                               peer u64, incarnation u32, epoch u64
//!   ncl/peers/<peer, hex>       version u16 = 1 | incarnation u32 | free bytes u64
//!                               | domain prefixed | address prefixed
//! ```
//!
//! The ap-map names the copies that count: a copy is the regions of one epoch at one peer in one of
//! its runs. Every change of it is a compare-and-set. Its term is that of the instance that wrote
//! it, so an instance that was replaced changes nothing more.
//!
//! # Epochs
//!
//! An attempt to bring a copy into the map has an epoch of its own: the term of its instance in the
//! upper half and a count in the lower. The map's epoch says which attempts have ended. A peer asks
//! [`ApMap::names`] about regions of an epoch: they are named, or may yet be, or have leaked.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, Result, Term};
use gabion_media::remote::{Incarnation, PeerId};

/// Most peers of an application: f up to 7.
pub const MEMBERS_MAX: usize = 15;
/// Names of the registry begin with it.
pub const PEERS_PREFIX: &str = "ncl/peers/";
/// Names of all applications begin with it.
pub const APPS_PREFIX: &str = "ncl/apps/";
const VERSION: u16 = 1;

/// Name of the instance's record.
#[must_use]
pub fn instance_name(owner: &str) -> String {
    format!("{APPS_PREFIX}{owner}/instance")
}

/// Name of the ap-map.
#[must_use]
pub fn map_name(owner: &str) -> String {
    format!("{APPS_PREFIX}{owner}/map")
}

/// Whether this is the name of an application's ap-map.
#[must_use]
pub fn is_map_name(name: &str) -> bool {
    let rest = name.strip_prefix(APPS_PREFIX).and_then(|rest| rest.split_once('/'));
    rest.is_some_and(|(_, what)| what == "map")
}

/// Name of a peer in the registry.
#[must_use]
pub fn peer_name(peer: PeerId) -> String {
    format!("{PEERS_PREFIX}{peer}")
}

/// The instance of an application that may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstanceRecord {
    /// Its term: one more than that before.
    pub term: Term,
    /// The instance, by a random number of its own.
    pub instance: u64,
    /// Grows as long as it lives.
    pub beat: u64,
    /// False once it has ended by itself.
    pub is_held: bool,
}

impl InstanceRecord {
    /// In bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.put_u64(self.term.0);
        out.put_u64(self.instance);
        out.put_u64(self.beat);
        out.put_u8(u8::from(self.is_held));
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// Corruption; unsupported for a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = begin(bytes, "record of an instance", VERSION)?;
        Ok(Self {
            term: Term(reader.u64()?),
            instance: reader.u64()?,
            beat: reader.u64()?,
            is_held: reader.u8()? != 0,
        })
    }
}

/// A copy that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The peer.
    pub peer: PeerId,
    /// The run in which it has the copy.
    pub incarnation: Incarnation,
    /// The epoch of the copy's regions.
    pub epoch: u64,
}

/// The peers that have the copies of an application that count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ApMap {
    /// The instance that wrote it.
    pub term: Term,
    /// Attempts up to this epoch have ended.
    pub epoch: u64,
    /// The copies, each at a peer of its own.
    pub members: Vec<Member>,
}

/// Whether the map names the regions of an epoch at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// It does: they stay.
    Yes,
    /// An attempt may be under way: they stay.
    NotYet,
    /// No, and it never will: they have leaked.
    Never,
}

impl ApMap {
    /// The first epoch of a term.
    #[must_use]
    pub const fn first_epoch(term: Term) -> u64 {
        term.0 << 32
    }

    /// The member at this peer.
    #[must_use]
    pub fn member(&self, peer: PeerId) -> Option<Member> {
        self.members.iter().find(|member| member.peer == peer).copied()
    }

    /// Whether the map names regions of this epoch in this run of a peer.
    #[must_use]
    pub fn names(&self, peer: PeerId, incarnation: Incarnation, epoch: u64) -> Named {
        let asked = Member { peer, incarnation, epoch };
        if self.members.contains(&asked) {
            Named::Yes
        } else if epoch > self.epoch {
            Named::NotYet
        } else {
            Named::Never
        }
    }

    /// In bytes.
    ///
    /// # Panics
    /// With more than [`MEMBERS_MAX`] members, or two at one peer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.members.len() <= MEMBERS_MAX, "{} members", self.members.len());
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.put_u64(self.term.0);
        out.put_u64(self.epoch);
        out.put_u8(self.members.len() as u8);
        for member in &self.members {
            let same = self.members.iter().filter(|other| other.peer == member.peer);
            assert_eq!(same.count(), 1, "peer {} is one member", member.peer);
            out.put_u64(member.peer.0);
            out.put_u32(member.incarnation.0);
            out.put_u64(member.epoch);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// Corruption; unsupported for a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "ap-map";
        let mut reader = begin(bytes, WHAT, VERSION)?;
        let (term, epoch) = (Term(reader.u64()?), reader.u64()?);
        let (count, mut members) = (reader.u8()?, Vec::new());
        if count as usize > MEMBERS_MAX {
            return Err(Error::corruption(format!("{WHAT}: {count} members, limit {MEMBERS_MAX}")));
        }
        for _ in 0..count {
            let (peer, incarnation) = (PeerId(reader.u64()?), Incarnation(reader.u32()?));
            members.push(Member { peer, incarnation, epoch: reader.u64()? });
        }
        Ok(Self { term, epoch, members })
    }
}

/// A peer as it registered itself. Free bytes are a hint: it may refuse all the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerRecord {
    /// Its run.
    pub incarnation: Incarnation,
    /// Bytes that it could lend.
    pub free_bytes: u64,
    /// Its failure domain: the machines that fail together with it, a rack, say.
    pub domain: String,
    /// The address at which it listens.
    pub address: String,
}

impl PeerRecord {
    /// In bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.put_u32(self.incarnation.0);
        out.put_u64(self.free_bytes);
        out.put_prefixed(self.domain.as_bytes());
        out.put_prefixed(self.address.as_bytes());
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// Corruption; unsupported for a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = begin(bytes, "record of a peer", VERSION)?;
        let (incarnation, free_bytes) = (Incarnation(reader.u32()?), reader.u64()?);
        let mut text = || -> Result<String> {
            let len = reader.varint()?;
            let bytes = reader.bytes(usize::try_from(len).unwrap_or(usize::MAX))?;
            let text = core::str::from_utf8(bytes).map(ToString::to_string);
            text.map_err(|_| Error::corruption("record of a peer: text is not UTF-8"))
        };
        Ok(Self { incarnation, free_bytes, domain: text()?, address: text()? })
    }
}

/// The peer that a name of the registry means.
#[must_use]
pub fn peer_of(name: &str) -> Option<PeerId> {
    u64::from_str_radix(name.strip_prefix(PEERS_PREFIX)?, 16).ok().map(PeerId)
}

/// The fields of a record of the store, which stand behind its version.
///
/// # Errors
/// Corruption; unsupported for another version than the known one.
pub fn begin<'a>(bytes: &'a [u8], what: &'static str, known: u16) -> Result<Reader<'a>> {
    let mut reader = Reader::new(bytes, what);
    match reader.u16()? {
        version if version == known => Ok(reader),
        version => Err(Error::unsupported(format!("{what}: version {version}, known is {known}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn map() -> ApMap {
        let member =
            |peer, epoch| Member { peer: PeerId(peer), incarnation: Incarnation(1), epoch };
        let members = vec![member(7, 3 << 32 | 1), member(8, 2 << 32 | 5)];
        ApMap { term: Term(3), epoch: 3 << 32 | 1, members }
    }

    #[test]
    fn the_name_of_a_map_is_none_of_another_value() {
        assert!(is_map_name(&map_name("redis")));
        for other in [&instance_name("redis"), "ncl/apps/map", "ncl/peers/map", "ncl/apps/a/map/b"]
        {
            assert!(!is_map_name(other), "{other}");
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_and_cut_ones_are_refused() {
        let (instance, beat) = (u64::MAX, 12);
        let instance = InstanceRecord { term: Term(4), instance, beat, is_held: true };
        let (domain, address) = ("rack 1".to_string(), "127.0.0.1:7000".to_string());
        let peer = PeerRecord { incarnation: Incarnation(9), free_bytes: 1 << 40, domain, address };
        assert_eq!(InstanceRecord::decode(&instance.encode()).expect("whole"), instance);
        assert_eq!(PeerRecord::decode(&peer.encode()).expect("whole"), peer);
        assert_eq!(ApMap::decode(&map().encode()).expect("whole"), map());
        for cut in 0..map().encode().len() {
            assert!(ApMap::decode(&map().encode()[..cut]).is_err(), "{cut} bytes");
        }
        let mut later = map().encode();
        later[0] = 2;
        let error = ApMap::decode(&later).expect_err("a later version");
        assert!(error.message().contains("version 2, known is 1"), "{error}");
        assert_eq!(peer_of(&peer_name(PeerId(0xab))), Some(PeerId(0xab)));
        assert_eq!(peer_of("ncl/peers/x"), None);
    }

    /// docs/faults.md: N6
    #[test]
    fn regions_have_leaked_once_their_attempt_has_ended_without_a_place_in_the_map() {
        let names = |peer, run, epoch| map().names(PeerId(peer), Incarnation(run), epoch);
        assert_eq!(names(7, 1, 3 << 32 | 1), Named::Yes);
        assert_eq!(names(8, 1, 2 << 32 | 5), Named::Yes, "older than the map, and named");
        assert_eq!(names(7, 2, 3 << 32 | 1), Named::Never, "another run of the peer");
        assert_eq!(names(9, 1, 3 << 32 | 1), Named::Never);
        assert_eq!(names(7, 1, 2 << 32 | 9), Named::Never, "an attempt of an earlier instance");
        assert_eq!(names(9, 1, 3 << 32 | 2), Named::NotYet);
    }
}
