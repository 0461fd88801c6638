//! Peers that have room for what they should have, and those that have none.

use crate::application::{Application, Phase, State};
use crate::files::Images;
use crate::link::{Link, Stage};
use crate::places::NoRoom;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_media::remote::{PeerId, RefusalReason};

/// Free bytes are registered again once they differ by this part of what was told.
const FREE_PART: u64 = 16;

impl NoRoom {
    fn why(&self) -> String {
        match self.refusal.reason {
            RefusalReason::NoMemory => is_free(self.refusal.limit),
            _ => self.refusal.to_string(),
        }
    }
}

fn is_free(bytes: u64) -> String {
    format!("{bytes} are free")
}

impl<S: Images> Application<S> {
    /// The peers that have no room, in words: each behind a semicolon.
    pub(crate) fn memory(&self) -> String {
        let mut text = String::new();
        for link in self.links.values() {
            let (peer, lent) = (link.peer, link.lent_bytes());
            let wanted = self.copy_bytes();
            let free = self.free_bytes(peer);
            let (bytes, why) = match (link.no_room(), free) {
                (Some(no_room), _) => (no_room.bytes, no_room.why()),
                (None, Some(free)) if self.waits_for_room(link) => (wanted, is_free(free)),
                _ => continue,
            };
            text += &format!(
                "; peer {peer} has no room for {bytes} bytes ({why}, {lent} are lent to this \
                 application)"
            );
        }
        text
    }

    /// Bytes of a whole copy, and of what is wanted beside.
    fn copy_bytes(&self) -> u64 {
        let Some(state) = &self.state else { return 0 };
        let files = state
            .files
            .iter()
            .flat_map(|(_, file)| (0..file.parts.len() as u32).map(|part| file.region_bytes(part)));
        files.sum::<u64>() + self.wants.asked.values().sum::<u64>()
    }

    /// Bytes that a peer registered as free.
    fn free_bytes(&self, peer: PeerId) -> Option<u64> {
        Some(self.registry.as_ref()?.get(&peer)?.free_bytes)
    }

    /// Whether a peer has room for a whole copy, as far as is known.
    pub(crate) fn has_room_for_copy(&self, peer: PeerId) -> bool {
        let free = self.free_bytes(peer);
        free.is_none_or(|free| free.saturating_add(free / FREE_PART) >= self.copy_bytes())
    }

    /// Whether a peer has room for a whole copy, and beside it for what the fullest of those that
    /// have one lacks: else it would be as full, and be replaced in its turn.
    pub(crate) fn has_more_room(&self, peer: PeerId) -> bool {
        let full = self.full().into_iter().next().and_then(|full| self.links.get(&full));
        let lacks = full.and_then(Link::no_room).map_or(0, |no_room| no_room.bytes);
        self.free_bytes(peer).is_none_or(|free| free >= self.copy_bytes() + lacks)
    }

    /// The peers that count and have no room for more, the fullest first.
    pub(crate) fn full(&self) -> Vec<PeerId> {
        let full = self.counted().filter(|link| self.is_full(link));
        let mut full: Vec<PeerId> = full.map(|link| link.peer).collect();
        full.sort_by_key(|peer| self.free_bytes(*peer));
        full
    }

    /// Whether a peer is not filled now, as it has no room for a copy.
    pub(crate) fn waits_for_room(&self, link: &Link) -> bool {
        let is_idle = matches!(link.stage, Stage::Ready | Stage::Known);
        let is_filled = matches!(self.phase, Phase::Filling | Phase::Running);
        is_idle && is_filled && (link.rests(self.now_ms) || !self.has_room_for_copy(link.peer))
    }

    /// Whether f+1 other copies count and have room for all records so far.
    pub(crate) fn can_spare(&self, peer: PeerId) -> bool {
        let Some(State { log, .. }) = &self.state else { return true };
        let others = self.counted().filter(|link| link.peer != peer && link.has_needs(log));
        others.count() > self.options.f
    }

    /// Whether a peer has a whole copy, and no room for more.
    pub(crate) fn is_full(&self, link: &Link) -> bool {
        let lacks = |no_room: NoRoom| {
            let free = self.free_bytes(link.peer);
            free.is_none_or(|free| free < no_room.bytes)
        };
        link.stage == Stage::Full && link.no_room().is_some_and(lacks)
    }
}
