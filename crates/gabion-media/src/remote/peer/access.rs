//! Access to regions: which request may, and what it moves.

use super::{Checked, Gate, LentMemory, OwnerIndex, Peer, Region, Supply};
use crate::MemoryRegion;
use crate::remote::message::{
    Key, Parts, Refusal, RefusalReason as Reason, RegionId, Reply, TRANSFER_LEN_MAX,
};
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::Term;

impl<S: Supply> Peer<S> {
    pub(super) fn live(&self, id: RegionId) -> Checked<&Region<S::Memory>> {
        self.regions.get(&id).ok_or_else(|| self.missing(id))
    }

    /// Why there is no such region.
    fn missing(&self, id: RegionId) -> Refusal {
        let last = RegionId::new(self.config.incarnation, self.last_ordinal);
        let was_lent = id.incarnation() == self.config.incarnation && id <= last;
        let reason =
            if was_lent && id.ordinal() > 0 { Reason::Revoked } else { Reason::UnknownRegion };
        Refusal::new(reason, id.0, last.0)
    }

    fn access(&self, id: RegionId, key: Key, term: Term) -> Checked<&Region<S::Memory>> {
        let region = self.live(id)?;
        check_term(term, region.owner_term)?;
        if key != region.key {
            return Err(Refusal::new(Reason::WrongKey, id.0, 0));
        }
        Ok(region)
    }

    pub(super) fn write(&mut self, term: Term, parts: Parts<'_>) -> Checked {
        let mut owner = None;
        for part in parts.iter() {
            let region = self.access(part.region, part.key, term)?;
            if region.term != term {
                return Err(Refusal::new(Reason::ReadOnly, part.region.0, region.term.0));
            }
            if *owner.get_or_insert(region.owner) != region.owner {
                return Err(Refusal::new(Reason::OtherOwner, part.region.0, 0));
            }
            check_bounds(part.offset, part.data.len() as u64, region.memory.len())?;
        }
        for part in parts.iter() {
            if let Some(region) = self.regions.get_mut(&part.region) {
                region.memory.write(part.offset, part.data);
            }
        }
        self.counts.writes += 1;
        self.counts.write_bytes += parts.data_len() as u64;
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        id: RegionId,
        key: Key,
        term: Term,
        offset: u64,
        len: u32,
    ) -> Checked<Vec<u8>> {
        let region = self.access(id, key, term)?;
        if len as usize > TRANSFER_LEN_MAX {
            let most = TRANSFER_LEN_MAX as u64;
            return Err(Refusal::new(Reason::TransferLength, len.into(), most));
        }
        check_bounds(offset, len.into(), region.memory.len())?;
        let mut bytes = vec![0; len as usize];
        region.memory.read(offset, &mut bytes);
        self.counts.reads += 1;
        self.counts.read_bytes += u64::from(len);
        Ok(bytes)
    }

    pub(super) fn map(&mut self, id: RegionId, key: Key, term: Term) -> Checked<Reply> {
        let writable = self.access(id, key, term)?.term == term;
        let Some(region) = self.regions.get_mut(&id) else { return Err(self.missing(id)) };
        let gate = region.memory.share(id, writable);
        let Gate { index, gates_bytes } = gate.ok_or(Refusal::new(Reason::NotShared, 0, 0))?;
        Ok(Reply::Mapped { bytes: region.memory.len(), gate: index, gates_bytes })
    }

    /// New keys for the owner's regions. Those of earlier terms take no writes any more.
    pub(super) fn rotate(&mut self, index: OwnerIndex) {
        let Some(owner) = self.owners.get(&index) else { return };
        // Nothing is between the gates of two regions: a writer that finds the first one closed is
        // to find all closed soon.
        for id in &owner.regions {
            let Some(region) = self.regions.get_mut(id) else { continue };
            if region.term < owner.term {
                region.memory.close();
            }
        }
        for id in &owner.regions {
            let Some(region) = self.regions.get_mut(id) else { continue };
            region.owner_term = owner.term;
            region.key = self.supply.key();
        }
    }
}

pub(super) const fn check_term(term: Term, held: Term) -> Checked {
    if term.0 < held.0 {
        return Err(Refusal::new(Reason::OldTerm, term.0, held.0));
    }
    if term.0 > held.0 {
        return Err(Refusal::new(Reason::NewTerm, term.0, held.0));
    }
    Ok(())
}

const fn check_bounds(offset: u64, len: u64, of: u64) -> Checked {
    match offset.checked_add(len) {
        Some(end) if end <= of => Ok(()),
        end => {
            let end = match end {
                Some(end) => end,
                None => u64::MAX,
            };
            Err(Refusal::new(Reason::OutOfBounds, end, of))
        }
    }
}
