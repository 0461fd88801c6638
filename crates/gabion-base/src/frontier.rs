//! A frontier: one log position per shard of a group (Cyclone §3: independent logs of one store).
//!
//! Members compare frontiers to tell how far a group or a replica has come. Two frontiers of
//! several shards may be unordered: each can be ahead of the other in some shard. Therefore the
//! type has no `<`; callers say what they mean with [`Frontier::covers`], [`Frontier::join`] and
//! [`Frontier::meet`].
//!
//! The chain has one shard, and every group of today is a chain or a single replica. The length is
//! a constant for that reason. Formats and messages that hold frontiers state their length, so
//! their layout stays with more shards. A single log's own facts (a member's Hello, spans, the
//! state of a replica) will have to be told for each shard.

use crate::codec::{Put, Reader};
use crate::{Error, LogPosition, Result, ShardId};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;

/// Shards of every group.
pub const SHARDS: usize = 1;

/// A position in each shard of a group's log, in the order of the shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Frontier([LogPosition; SHARDS]);

impl Frontier {
    /// The beginning of every shard.
    pub const ZERO: Self = Self([LogPosition::ZERO; SHARDS]);
    /// A frontier that covers all others.
    pub const MAX: Self = Self([LogPosition(u64::MAX); SHARDS]);
    /// Bytes of an encoded frontier.
    pub const ENCODED_LEN: usize = 2 + SHARDS * 8;

    /// The frontier of a group with one shard, whose position is `position`.
    #[must_use]
    pub const fn of(position: LogPosition) -> Self {
        const { assert!(SHARDS == 1, "a position does not say which of several shards it is of") }
        Self([position])
    }

    /// The position of the only shard.
    #[must_use]
    pub const fn only(&self) -> LogPosition {
        const { assert!(SHARDS == 1, "a group of several shards has no single position") }
        self.0[0]
    }

    /// The position in `shard`.
    ///
    /// # Panics
    /// When the group has no such shard; [`Frontier::has`] tells.
    #[must_use]
    pub fn at(&self, shard: ShardId) -> LogPosition {
        self.0[usize::from(shard.get())]
    }

    /// Whether groups have this shard. Callers ask it of every shard that a wire or a disk names.
    #[must_use]
    pub const fn has(shard: ShardId) -> bool {
        (shard.get() as usize) < SHARDS
    }

    /// Whether no shard is behind `other`'s.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine >= theirs)
    }

    /// The later position in each shard: the least frontier that covers both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let mut out = self;
        for (mine, theirs) in out.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
        out
    }

    /// The earlier position in each shard: the greatest frontier that both cover.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        let mut out = self;
        for (mine, theirs) in out.0.iter_mut().zip(other.0) {
            *mine = (*mine).min(theirs);
        }
        out
    }

    /// Bytes of log between `start` and this frontier, over all shards; nothing where it is behind.
    #[must_use]
    pub fn bytes_since(&self, start: &Self) -> u64 {
        let lens = self.0.iter().zip(&start.0).map(|(end, at)| end.get().saturating_sub(at.get()));
        lens.fold(0, u64::saturating_add)
    }

    /// The frontier that is `bytes` further in every shard.
    #[must_use]
    pub fn ahead(mut self, bytes: u64) -> Self {
        for position in &mut self.0 {
            *position = LogPosition(position.get().saturating_add(bytes));
        }
        self
    }

    /// Each shard with its position.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, LogPosition)> + '_ {
        (0..).map(ShardId).zip(self.0.iter().copied())
    }

    /// Appends it: u16 number of shards, u64 position each.
    pub fn encode(&self, out: &mut Vec<u8>) {
        #[expect(clippy::cast_possible_truncation, reason = "a constant that is far smaller")]
        out.put_u16(SHARDS as u16);
        for position in self.0 {
            out.put_u64(position.get());
        }
    }

    /// The next frontier in `reader`, whose subject is `what`.
    ///
    /// # Errors
    /// Corruption when bytes are missing or no shard is named; Unsupported for another number of
    /// shards than this build's.
    pub fn decode(reader: &mut Reader<'_>, what: &str) -> Result<Self> {
        let shards = reader.u16()?;
        if shards == 0 {
            return Err(Error::corruption(format!("{what}: a frontier of no shard")));
        }
        if usize::from(shards) != SHARDS {
            return Err(Error::unsupported(format!(
                "{what}: a frontier of {shards} shards, this build has {SHARDS}"
            )));
        }
        let mut out = Self::ZERO;
        for position in &mut out.0 {
            *position = LogPosition(reader.u64()?);
        }
        Ok(out)
    }
}

impl fmt::Display for Frontier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shard, position) in self.iter() {
            if shard.get() > 0 {
                f.write_str(",")?;
            }
            write!(f, "{position}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Frontier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn at(position: u64) -> Frontier {
        Frontier::of(LogPosition(position))
    }

    #[test]
    fn a_frontier_covers_what_lies_behind_it() {
        assert!(at(8).covers(&at(8)));
        assert!(at(9).covers(&at(8)));
        assert!(!at(7).covers(&at(8)));
        assert!(Frontier::MAX.covers(&at(u64::MAX)));
        assert_eq!(at(3).join(at(5)), at(5));
        assert_eq!(at(3).meet(at(5)), at(3));
        assert_eq!((at(8).bytes_since(&at(3)), at(3).bytes_since(&at(8))), (5, 0));
        assert_eq!(at(3).ahead(5), at(8));
    }

    #[test]
    fn an_encoded_frontier_comes_back_and_others_are_refused() {
        let mut bytes = Vec::new();
        at(7).encode(&mut bytes);
        assert_eq!(bytes.len(), Frontier::ENCODED_LEN);
        let mut reader = Reader::new(&bytes, "test");
        assert_eq!(Frontier::decode(&mut reader, "test").expect("it was encoded"), at(7));
        let refused = |bytes: &[u8]| {
            Frontier::decode(&mut Reader::new(bytes, "test"), "test").unwrap_err().kind()
        };
        assert_eq!(refused(&[0, 0]), ErrorKind::Corruption);
        assert_eq!(refused(&[255, 255]), ErrorKind::Unsupported);
        assert_eq!(refused(&bytes[..9]), ErrorKind::Corruption);
        assert!(!Frontier::has(ShardId(u16::MAX)));
    }
}
