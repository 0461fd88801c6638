//! One peer: its connection, the regions of it that are mapped here, and replies in the order of
//! the commands.
//!
//! ```text
//!   commands ─┬─ chains and reads of mapped regions ─► done at once ──┐
//!             └─ all else ─► socket ─► reply ─┬───────────────────────┴─► slots ─► the core
//!                                             └─ Lent: the region is mapped first
//! ```
//!
//! Replies in slots come in the order of the commands. Beyond 2 MiB a turn parts of a copy have
//! theirs in the next one. Once a chain was refused nothing more is written: its region was taken
//! away, and a number that came after it would tell of more than the peer has.
//!
//! If memory is shared, every region is mapped before the core hears that it was lent. So all
//! chains go the one way, and none overtakes another.

use gabion_base::{Error, Result, Term};
use gabion_fabric::remote::{PeerLink, SharedRegion, write_chain};
use gabion_media::remote::{
    ClientId, Key, Notice, Refusal, RefusalReason, RegionId, Reply, Request, RequestNumber,
};
use gabion_ncl::layout::CELL_LEN;
use gabion_ncl::{ChainPart, Command};
use gabion_tls::MutualTls;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The asker of every request of a link.
pub(crate) struct Client {
    pub(crate) owner: String,
    pub(crate) client: ClientId,
    pub(crate) token: Vec<u8>,
    pub(crate) tls: Option<Arc<MutualTls>>,
}

/// Purpose of a reply over the socket.
enum Wire {
    /// The command of this slot.
    Command(u64),
    /// A region to be lent, in this term.
    Lend(u64, Term),
    /// The mapping of a region that was lent, and the reply that waits for it.
    Map(u64, RegionId, Reply),
    /// The mapping of a region that is read.
    MapRead(RegionId),
}

/// A region that is read, of a former copy.
enum Former {
    /// It is being mapped; reads wait for it: their slots, offsets and lengths.
    Asked(Vec<(u64, u64, u32)>),
    Mapped(SharedRegion),
}

/// After so many bytes of copies to or from mapped regions the next replies wait for a turn: nobody
/// holds the lock for the copy of a whole log. Records are no copies, and have theirs at once.
const BURST_MAX: usize = 2 << 20;

/// Shorter reads go over the socket: to map a region for one of them takes longer.
const MAPPED_READ_LEN: u32 = 32 << 10;

/// A peer that is connected to.
pub(crate) struct Link {
    peer: PeerLink,
    shares_memory: bool,
    regions: BTreeMap<RegionId, SharedRegion>,
    former: BTreeMap<RegionId, Former>,
    /// Replies of commands, in their order; the first is that of the slot `first`.
    slots: VecDeque<Option<Reply>>,
    first: u64,
    wire: VecDeque<Wire>,
    /// Requests of `wire` that were handed to the socket.
    sent: usize,
    /// Bytes of copies to and from mapped regions in this turn.
    burst: usize,
    /// The reply to the chain that was refused first. Those that follow get it, too.
    refused: Option<Reply>,
    /// Whether the socket is watched for room to send.
    pub(crate) is_watched: bool,
}

impl Link {
    pub(crate) fn new(peer: PeerLink, may_share: bool) -> Self {
        Self {
            shares_memory: may_share && peer.shares_memory(),
            peer,
            regions: BTreeMap::new(),
            former: BTreeMap::new(),
            slots: VecDeque::new(),
            first: 0,
            wire: VecDeque::new(),
            sent: 0,
            burst: 0,
            refused: None,
            is_watched: false,
        }
    }

    pub(crate) const fn connection(&self) -> &PeerLink {
        &self.peer
    }

    pub(crate) const fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    /// A region that was lent, if its memory is shared.
    pub(crate) fn region(&self, region: RegionId) -> Option<&SharedRegion> {
        self.regions.get(&region)
    }

    /// Whether a reply waits for [`Self::poll_reply`].
    pub(crate) fn has_reply(&self) -> bool {
        matches!(self.slots.front(), Some(Some(_)))
    }

    /// Begins a turn: writes have their replies at once again.
    pub(crate) const fn begin_turn(&mut self) {
        self.burst = 0;
    }

    /// Whether requests wait to be sent.
    pub(crate) fn is_dirty(&self) -> bool {
        self.sent < self.wire.len()
    }

    /// Whether all that wait are the first ones: no reply is under way that would take them along.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent == 0
    }

    /// Carries out a command, or submits it. A reply comes back if it is the next one.
    pub(crate) fn send(
        &mut self,
        from: &Client,
        term: Term,
        command: &Command,
    ) -> Result<Option<Reply>> {
        if let Command::Write { chain } = command
            && self.shares_memory
        {
            let reply = self.write(chain)?;
            return Ok(self.done(reply, copied_len(chain)));
        }
        if let Command::Read { region, key, offset, len } = *command
            && self.shares_memory
            && len >= MAPPED_READ_LEN
        {
            return self.read((region, key, term), offset, len);
        }
        match command {
            Command::Free { regions } => {
                regions.iter().for_each(|region| drop(self.regions.remove(region)));
            }
            Command::Publish { withdraw, .. } => {
                withdraw.iter().for_each(|region| drop(self.former.remove(region)));
            }
            _ => {}
        }
        let peer = &mut self.peer;
        let (owner, client, token) = (&from.owner, from.client, &from.token);
        let number =
            command.with_request(owner, term, client, token, |request| peer.submit(&request))?;
        self.submitted(number)?;
        let slot = self.first + self.slots.len() as u64;
        self.slots.push_back(None);
        self.wire.push_back(match command {
            Command::Lend { .. } if self.shares_memory => Wire::Lend(slot, term),
            _ => Wire::Command(slot),
        });
        Ok(None)
    }

    /// The reply to a command that is carried out, if it is the next one; `len` bytes of a copy.
    fn done(&mut self, reply: Reply, len: usize) -> Option<Reply> {
        self.burst += len;
        let is_late = len > 0 && self.burst >= BURST_MAX;
        if self.slots.is_empty() && !is_late {
            self.first += 1;
            return Some(reply);
        }
        self.slots.push_back(Some(reply));
        None
    }

    /// Reads a region of a former copy, which is mapped first.
    fn read(
        &mut self,
        (region, key, term): (RegionId, Key, Term),
        offset: u64,
        len: u32,
    ) -> Result<Option<Reply>> {
        let slot = self.first + self.slots.len() as u64;
        match self.former.get_mut(&region) {
            Some(Former::Mapped(shared)) => {
                let reply = read_mapped(shared, offset, len)?;
                return Ok(self.done(reply, len as usize));
            }
            Some(Former::Asked(reads)) => reads.push((slot, offset, len)),
            None => {
                let number = self.peer.submit(&Request::Map { region, key, term })?;
                self.submitted(number)?;
                self.wire.push_back(Wire::MapRead(region));
                self.former.insert(region, Former::Asked(vec![(slot, offset, len)]));
            }
        }
        self.slots.push_back(None);
        Ok(None)
    }

    /// A region of a former copy is mapped: those that waited for it are read.
    fn mapped_to_read(&mut self, region: RegionId, shared: SharedRegion) -> Result<()> {
        // It was freed meanwhile.
        let Some(Former::Asked(reads)) = self.former.remove(&region) else { return Ok(()) };
        for (slot, offset, len) in reads {
            self.fill(slot, read_mapped(&shared, offset, len)?)?;
        }
        self.former.insert(region, Former::Mapped(shared));
        Ok(())
    }

    fn submitted(&self, number: Option<RequestNumber>) -> Result<()> {
        match number {
            Some(_) => Ok(()),
            None => Err(Error::limit(format!(
                "peer {}: {} requests are outstanding, and no more are taken",
                self.peer.peer(),
                self.wire.len()
            ))),
        }
    }

    /// Writes a chain into mapped regions. One that was taken away refuses it and all that follow.
    fn write(&mut self, chain: &[Option<ChainPart>; 3]) -> Result<Reply> {
        if let Some(refused) = &self.refused {
            return Ok(refused.clone());
        }
        let reply = self.try_write(chain)?;
        self.refused = matches!(reply, Reply::Refused(_)).then(|| reply.clone());
        Ok(reply)
    }

    fn try_write(&self, chain: &[Option<ChainPart>; 3]) -> Result<Reply> {
        let mut parts = [const { None }; 3];
        for (place, part) in parts.iter_mut().zip(chain.iter().flatten()) {
            let region = self.regions.get(&part.region);
            let region = region.ok_or_else(|| {
                Error::corruption(format!("region {} is not mapped", part.region))
            })?;
            *place = Some((region, part.offset, &part.data[..]));
        }
        let written = match parts {
            [Some(data), Some(cell), None] => write_chain(&[data, cell]),
            [Some(cell), None, None] => write_chain(&[cell]),
            [Some(data), Some(more), Some(cell)] => write_chain(&[data, more, cell]),
            _ => return Err(Error::corruption("a chain without parts")),
        };
        let refused = |part: &ChainPart| {
            Reply::Refused(Refusal::new(RefusalReason::Revoked, part.region.0, 0))
        };
        match (written, chain) {
            (Ok(()), _) => Ok(Reply::Written),
            (Err(error), [Some(part), ..]) if error.kind() == gabion_base::ErrorKind::Fenced => {
                Ok(refused(part))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Hands to the socket what was submitted.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.peer.flush()?;
        self.sent = self.wire.len();
        Ok(())
    }

    /// Sends once and receives once; [`Self::poll_reply`] is next, also after an error.
    pub(crate) fn progress(&mut self) -> Result<()> {
        let moved = self.peer.progress();
        self.sent = self.wire.len();
        let taken = self.take();
        moved.and(taken)
    }

    fn take(&mut self) -> Result<()> {
        while let Some(completed) = self.peer.poll_completed() {
            let unasked = || Error::corruption("a reply to nothing");
            let wire = self.wire.pop_front().ok_or_else(unasked)?;
            self.sent = self.sent.saturating_sub(1);
            match (wire, completed.reply) {
                (Wire::Lend(slot, term), reply @ Reply::Lent { region, key, .. }) => {
                    let number = self.peer.submit(&Request::Map { region, key, term })?;
                    self.submitted(number)?;
                    self.wire.push_back(Wire::Map(slot, region, reply));
                }
                (Wire::Command(slot) | Wire::Lend(slot, _), reply) => self.fill(slot, reply)?,
                (Wire::Map(slot, region, lent), mapped @ Reply::Mapped { .. }) => {
                    let shared = self.peer.take_mapped(region, &mapped)?;
                    self.regions.insert(region, shared);
                    self.fill(slot, lent)?;
                }
                (Wire::MapRead(region), mapped @ Reply::Mapped { .. }) => {
                    let shared = self.peer.take_mapped(region, &mapped)?;
                    self.mapped_to_read(region, shared)?;
                }
                (Wire::Map(..) | Wire::MapRead(_), Reply::Refused(refusal))
                    if refusal.reason == RefusalReason::NotShared =>
                {
                    self.shares_memory = false;
                    return Err(Error::unsupported(format!(
                        "peer {}: it shares no memory",
                        self.peer.peer()
                    )));
                }
                (Wire::Map(slot, ..), refused @ Reply::Refused(_)) => self.fill(slot, refused)?,
                // Of an older term, say: all that wait for it are refused.
                (Wire::MapRead(region), refused @ Reply::Refused(_)) => {
                    if let Some(Former::Asked(reads)) = self.former.remove(&region) {
                        for (slot, ..) in reads {
                            self.fill(slot, refused.clone())?;
                        }
                    }
                }
                (Wire::Map(..) | Wire::MapRead(_), _) => {
                    return Err(Error::corruption("a region was not mapped"));
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self, slot: u64, reply: Reply) -> Result<()> {
        let place = slot.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize));
        let place = place.ok_or_else(|| Error::corruption("a reply to no command"))?;
        *place = Some(reply);
        Ok(())
    }

    /// The reply to the oldest command, if it is there.
    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        if !self.has_reply() {
            return None;
        }
        self.first += 1;
        self.slots.pop_front().flatten()
    }

    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.peer.poll_notice()
    }
}

/// Bytes of a chain that is part of a copy: one of a record has its cell, too.
fn copied_len(chain: &[Option<ChainPart>; 3]) -> usize {
    match chain {
        [Some(part), None, None] if part.data.len() > CELL_LEN => part.data.len(),
        _ => 0,
    }
}

fn read_mapped(shared: &SharedRegion, offset: u64, len: u32) -> Result<Reply> {
    if offset.checked_add(len.into()).is_none_or(|end| end > shared.len()) {
        return Err(Error::corruption(format!(
            "region {}: {len} bytes at {offset} are read, it has {}",
            shared.region(),
            shared.len()
        )));
    }
    let mut bytes = vec![0; len as usize];
    shared.read(offset, &mut bytes);
    Ok(Reply::Bytes(bytes))
}
