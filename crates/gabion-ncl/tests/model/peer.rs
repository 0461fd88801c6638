//! A log peer: regions, and the instance whose keys are right.

/// Most records of a log.
pub(crate) const RECORDS_MAX: usize = 4;

/// Bytes of a log: those of each record are one number, zero for every second one, so that logs
/// end in zeros, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub(crate) len: u8,
    pub(crate) bytes: [u8; RECORDS_MAX],
}

impl Content {
    /// The first `len` records of it.
    pub(crate) fn prefix(&self, len: u8) -> Self {
        let mut bytes = self.bytes;
        bytes[len as usize..].fill(0);
        Self { len, bytes }
    }

    pub(crate) fn begins_with(&self, other: &Self) -> bool {
        self.len >= other.len && self.prefix(other.len) == *other
    }
}

/// The newest cell of a copy: how far it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cell {
    pub(crate) term: u8,
    pub(crate) number: u8,
    pub(crate) len: u8,
}

/// A copy at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Region {
    /// The instance that has it, and the epoch of its attempt.
    pub(crate) by: u8,
    pub(crate) epoch: u64,
    pub(crate) is_published: bool,
    pub(crate) cell: Cell,
    pub(crate) bytes: [u8; RECORDS_MAX],
}

/// A machine with a log peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Peer {
    pub(crate) is_up: bool,
    pub(crate) incarnation: u8,
    /// The greatest term that it was fenced with, and by which instance last: its keys are right.
    pub(crate) term: u8,
    pub(crate) holder: Option<u8>,
    pub(crate) regions: Vec<Region>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self { is_up: true, incarnation: 1, term: 0, holder: None, regions: Vec::new() }
    }

    /// Its memory is gone.
    pub(crate) fn kill(&mut self) {
        (self.is_up, self.term, self.holder) = (false, 0, None);
        self.regions.clear();
    }

    pub(crate) fn restart(&mut self) {
        (self.is_up, self.incarnation) = (true, self.incarnation + 1);
    }

    /// Raises the term and changes all keys; refused for an older one.
    pub(crate) fn fence(&mut self, by: u8, term: u8) -> bool {
        if term < self.term {
            return false;
        }
        (self.term, self.holder) = (term, Some(by));
        true
    }

    /// The copy that is recovered: the published one of the latest attempt.
    pub(crate) fn published(&self) -> Option<&Region> {
        self.regions.iter().filter(|region| region.is_published).max_by_key(|region| region.epoch)
    }

    pub(crate) fn place(&self, by: u8, epoch: u64) -> Option<usize> {
        self.regions.iter().position(|region| region.by == by && region.epoch == epoch)
    }

    /// Makes a region the copy of this peer; all others go.
    pub(crate) fn publish(&mut self, by: u8, epoch: u64) {
        self.regions.retain(|region| region.by == by && region.epoch == epoch);
        self.regions.iter_mut().for_each(|region| region.is_published = true);
    }
}
