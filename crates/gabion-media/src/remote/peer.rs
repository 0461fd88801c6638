//! A log peer as a core: who holds which region, under which term and key.
//!
//! ```text
//!   owner ── term ──┬─ region: label, epoch, key, lent in term, published or not, memory
//!                   └─ region …
//!   limit = lent + free;  at hand (stock) ⊆ free
//! ```
//!
//! Invariants, checked by [`Peer::invariants`]: lent bytes are the sum of the regions' and within
//! the limit; memory at hand is within what is free; a label has one published region of an owner
//! at most; no region was lent in a term above its owner's.
//!
//! # Revocation
//!
//! When the limit falls below what is lent, regions go: first those that are not published, the
//! newest in front, as nothing but the time of a copy is lost with them. Of the published ones the
//! smallest that is large enough, or the largest if none is: so the fewest files lose a copy, and
//! of these the fewest bytes are copied anew.
//!
//! # Leaks
//!
//! A client lends for an entry that it writes later, and may die in between. A region of epoch *p*
//! may be named only by the entry that has epoch *p* when it is written, or by later ones once it
//! was named. So a region that the entry of epoch *e* does not name is free once *e ≥ p*; while
//! *e < p* its lender may still be at work. (SplitFT also frees on *e > p* alone, which would take
//! the regions of the peers that stay when one of them is replaced.)

mod access;
mod tally;

use self::access::check_term;
use super::codec::PAGE_LEN_MAX;
use super::message::{
    ClientId, ConnectionGeneration, DOMAIN_LEN_MAX, Incarnation, Key, LABEL_LEN_MAX, Notice,
    OWNER_LEN_MAX, PeerId, Refusal, RefusalReason as Reason, RegionEntry, RegionId, Regions, Reply,
    Request, TOKEN_LEN_MAX, Usage,
};
use super::stock::Stock;
use crate::MemoryRegion;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::{Error, HashMap, Result, Term};

pub use tally::{Refusals, Tally};

/// Regions are whole pages.
pub const PAGE_LEN: u64 = 4096;

/// The memory of a region.
pub trait LentMemory: MemoryRegion {
    /// Fills bytes with zeros.
    fn zero(&mut self, offset: u64, len: u64);

    /// Has the system provide bytes that nobody wrote yet, and that are zeros, ahead of their first
    /// access.
    fn bring_in(&mut self, offset: u64, len: u64);

    /// From the return on no write of another process counts: its gate is closed, and numbers read
    /// afterwards are those of all writes that count.
    fn close(&mut self);

    /// Whether another process has it mapped, which nobody can take back.
    fn is_shared(&self) -> bool;

    /// Gets ready to be mapped by another process, as this region; its gate opens if writes are to
    /// count. Nothing where that cannot be.
    fn share(&mut self, region: RegionId, writable: bool) -> Option<Gate>;
}

/// The place of a shared region's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Its index, 8 bytes each.
    pub index: u32,
    /// Bytes of all gates.
    pub gates_bytes: u32,
}

/// Memory and its sharing, which a peer gets from its driver.
pub trait Supply {
    /// Memory of a region.
    type Memory: LentMemory;

    /// Memory of zeros, or nothing when the system has none.
    fn make(&mut self, len: u64) -> Option<Self::Memory>;

    /// A key that nobody guesses, different from all before.
    fn key(&mut self) -> Key;
}

/// Names and limits of a peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// The peer, for life.
    pub peer: PeerId,
    /// This run of it, from 1.
    pub incarnation: Incarnation,
    /// Bytes that it lends at most.
    pub limit_bytes: u64,
    /// Longest region in bytes.
    pub region_bytes_max: u64,
    /// Most regions. Each may take a descriptor.
    pub regions_max: u32,
    /// Most owners, those without regions that are remembered for their term included.
    pub owners_max: u32,
    /// Bytes to keep zeroed ahead, out of those not lent.
    pub ready_bytes: u64,
    /// Lengths of regions that clients will ask for first, the likeliest in front: a peer that
    /// takes the place of a lost one has them ready.
    pub expected: Vec<u64>,
    /// The token that clients have to show; none: all are welcome.
    pub token: Option<Vec<u8>>,
    /// The machine or rack that it fails together with; told, not used here.
    pub failure_domain: String,
}

impl PeerConfig {
    /// Limits for `limit_bytes` of memory: regions up to all of it, 4,096 of them, as many owners,
    /// 64 MiB ready.
    #[must_use]
    pub const fn new(peer: PeerId, incarnation: Incarnation, limit_bytes: u64) -> Self {
        Self {
            peer,
            incarnation,
            limit_bytes,
            region_bytes_max: limit_bytes,
            regions_max: 4096,
            owners_max: 4096,
            ready_bytes: 64 << 20,
            expected: Vec::new(),
            token: None,
            failure_domain: String::new(),
        }
    }

    fn validate(&self) -> Result<()> {
        let invalid = |what: &str, value: u64, limit: &str| {
            Err(Error::invalid(alloc::format!("{what}: {value}; {limit} is valid")))
        };
        if self.incarnation.0 == 0 {
            return invalid("incarnation of a peer", 0, "1 or more");
        }
        if self.limit_bytes < PAGE_LEN {
            return invalid("memory of a peer", self.limit_bytes, "4,096 bytes or more");
        }
        if self.region_bytes_max < PAGE_LEN || self.regions_max == 0 || self.owners_max == 0 {
            let least = self.region_bytes_max.min(self.regions_max.min(self.owners_max).into());
            return invalid("limit of a peer", least, "a page, a region and an owner or more");
        }
        if self.failure_domain.len() > DOMAIN_LEN_MAX {
            let len = self.failure_domain.len() as u64;
            return invalid("bytes of a failure domain's name", len, "255 or less");
        }
        match &self.token {
            Some(token) if token.is_empty() || token.len() > TOKEN_LEN_MAX => {
                invalid("bytes of a peer's token", token.len() as u64, "1 to 1,024")
            }
            _ => Ok(()),
        }
    }
}

/// The controller's entry, as far as it concerns a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its epoch; zero where there never was one.
    pub epoch: u64,
    /// Whether it names the region.
    pub is_named: bool,
}

/// A region to be looked up at the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionCheck {
    /// The region.
    pub region: RegionId,
    /// Its owner.
    pub owner: String,
    /// Its label.
    pub label: Vec<u8>,
    /// The epoch under which it was lent.
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnerIndex(u64);

struct Owner {
    name: String,
    term: Term,
    /// The client that fenced or lent last: it hears of revocations.
    client: ClientId,
    regions: BTreeSet<RegionId>,
    published: BTreeMap<Vec<u8>, RegionId>,
}

struct Region<M> {
    owner: OwnerIndex,
    /// The owner's term.
    owner_term: Term,
    /// The term in which it was lent.
    term: Term,
    key: Key,
    epoch: u64,
    is_published: bool,
    label: Vec<u8>,
    memory: M,
}

struct Client {
    generation: ConnectionGeneration,
    revoked: Vec<RegionId>,
    heard_draining: bool,
}

/// A peer.
pub struct Peer<S: Supply> {
    config: PeerConfig,
    supply: S,
    /// Their order never shows: what is listed goes by the owners' sets.
    regions: HashMap<RegionId, Region<S::Memory>>,
    lent_bytes: u64,
    last_ordinal: u32,
    owners: BTreeMap<OwnerIndex, Owner>,
    names: BTreeMap<String, OwnerIndex>,
    last_owner: u64,
    stock: Stock<S::Memory>,
    clients: BTreeMap<ClientId, Client>,
    /// Owners' regions in the order of their numbers, for checks of leaks and for revocation.
    order: BTreeSet<RegionId>,
    is_draining: bool,
    counts: Usage,
    tally: Tally,
}

/// The end of a check: go on, or the refusal.
type Checked<T = ()> = core::result::Result<T, Refusal>;

impl<S: Supply> Peer<S> {
    /// A peer without regions.
    ///
    /// # Errors
    /// Invalid input for limits that make no sense.
    pub fn new(config: PeerConfig, supply: S) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            stock: Stock::new(config.ready_bytes, &config.expected),
            supply,
            regions: HashMap::default(),
            lent_bytes: 0,
            last_ordinal: 0,
            owners: BTreeMap::new(),
            names: BTreeMap::new(),
            last_owner: 0,
            clients: BTreeMap::new(),
            order: BTreeSet::new(),
            is_draining: false,
            counts: Usage::default(),
            tally: Tally::default(),
            config,
        })
    }

    /// Names and limits.
    #[must_use]
    pub const fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// Carries out a request of a client whose greeting was taken. `Hello` is [`Self::greet`]'s.
    pub fn handle(&mut self, client: ClientId, request: &Request<'_>) -> Reply {
        self.tally.requests[request.kind()] += 1;
        let done = match *request {
            Request::Write { term, parts } => self.write(term, parts).map(|()| Reply::Written),
            Request::Read { region, key, term, offset, len } => {
                self.read(region, key, term, offset, len).map(Reply::Bytes)
            }
            Request::Lend { owner, label, epoch, term, bytes } => {
                self.lend(client, Lend { owner, label, epoch, term, bytes })
            }
            Request::Fence { owner, term } => self.fence(client, owner, term),
            Request::List { owner, term, after } => {
                self.owned(owner, term).map(|index| self.page(index, after))
            }
            Request::Publish { owner, term, regions, withdraw } => {
                self.publish(owner, term, regions, withdraw).map(|()| Reply::Published)
            }
            Request::Free { owner, term, regions } => {
                self.free(owner, term, regions).map(|bytes| Reply::Freed { bytes })
            }
            Request::Map { region, key, term } => self.map(region, key, term),
            Request::Usage => Ok(Reply::Usage(self.usage())),
            Request::Hello { .. } => Err(Refusal::new(Reason::OldConnection, 0, 0)),
        };
        done.unwrap_or_else(|refusal| Reply::Refused(self.refuse(request, refusal)))
    }

    /// Takes a client's connection; its older ones are over from now on.
    pub fn greet(
        &mut self,
        client: ClientId,
        generation: ConnectionGeneration,
        token: &[u8],
    ) -> Reply {
        let proven = self.config.token.as_ref().is_none_or(|wanted| same_bytes(wanted, token));
        let newest = self.clients.get(&client).map_or(0, |client| client.generation.0);
        let refusal = if !proven {
            Some(Refusal::new(Reason::BadToken, 0, 0))
        } else if generation.0 <= newest {
            Some(Refusal::new(Reason::OldConnection, generation.0, newest))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.counts.refusals += 1;
            self.tally.refuse(false, refusal);
            return Reply::Refused(refusal);
        }
        let new = Client { generation, revoked: Vec::new(), heard_draining: false };
        self.clients.insert(client, new);
        Reply::Welcome {
            peer: self.config.peer,
            incarnation: self.config.incarnation,
            free_bytes: self.free_bytes(),
        }
    }

    /// Whether this is the newest connection of the client.
    #[must_use]
    pub fn is_current(&self, client: ClientId, generation: ConnectionGeneration) -> bool {
        self.clients.get(&client).is_some_and(|found| found.generation == generation)
    }

    /// The connection is over. The client's regions stay.
    pub fn leave(&mut self, client: ClientId, generation: ConnectionGeneration) {
        if self.is_current(client, generation) {
            self.clients.remove(&client);
        }
    }

    /// The next notice to the client.
    pub fn poll_notice(&mut self, client: ClientId) -> Option<Notice> {
        let found = self.clients.get_mut(&client)?;
        if !found.revoked.is_empty() {
            return Some(Notice::Revoked(core::mem::take(&mut found.revoked)));
        }
        (self.is_draining && !found.heard_draining).then(|| {
            found.heard_draining = true;
            Notice::Draining
        })
    }

    /// Zeroes memory ahead of need, `budget` bytes at most, and returns how many. None: there is
    /// nothing to do until something is lent or comes back.
    pub fn step(&mut self, budget: u64) -> u64 {
        self.stock.step(budget, self.free_bytes(), &mut self.supply)
    }

    /// Whether [`Self::step`] may have something to do.
    #[must_use]
    pub fn has_step(&self) -> bool {
        self.stock.has_step(self.free_bytes())
    }

    /// Lends no more, and tells so.
    pub fn drain(&mut self) {
        self.is_draining = true;
        self.stock.trim(0);
    }

    /// Lends `bytes` at most from now on. If more is lent, regions are revoked by the rule of this
    /// module and returned.
    pub fn set_limit(&mut self, bytes: u64) -> Vec<RegionId> {
        self.config.limit_bytes = bytes;
        let mut revoked = Vec::new();
        while self.lent_bytes > bytes {
            let Some(region) = self.victim(self.lent_bytes - bytes) else { break };
            self.revoke(region);
            revoked.push(region);
        }
        self.stock.trim(self.free_bytes());
        self.check();
        revoked
    }

    /// Regions above `after` to be looked up at the controller, in the order of their numbers.
    #[must_use]
    pub fn checks(&self, after: RegionId, most: usize) -> Vec<RegionCheck> {
        let above = self.order.range(RegionId(after.0 + 1)..).take(most);
        above
            .filter_map(|id| {
                let region = self.regions.get(id)?;
                let owner = self.owners.get(&region.owner)?;
                Some(RegionCheck {
                    region: *id,
                    owner: owner.name.clone(),
                    label: region.label.clone(),
                    epoch: region.epoch,
                })
            })
            .collect()
    }

    /// Takes the controller's word on a region, and frees it if nobody can name it any more.
    pub fn handle_entry(&mut self, region: RegionId, entry: Entry) -> bool {
        let Some(found) = self.regions.get(&region) else { return false };
        if entry.is_named || entry.epoch < found.epoch {
            return false;
        }
        self.counts.leaks_freed += 1;
        self.release(region);
        self.check();
        true
    }

    /// Bytes that can still be lent.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        if self.is_draining { 0 } else { self.config.limit_bytes.saturating_sub(self.lent_bytes) }
    }

    /// The memory of a region, for the driver that shares it.
    #[must_use]
    pub fn memory(&self, region: RegionId) -> Option<&S::Memory> {
        self.regions.get(&region).map(|region| &region.memory)
    }

    /// The supply that it was made with.
    pub const fn supply_mut(&mut self) -> &mut S {
        &mut self.supply
    }

    /// Each change ends with it in builds that check: it looks at every region.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }

    /// Checks that all agrees.
    ///
    /// # Panics
    /// When it does not.
    pub fn invariants(&self) {
        assert_eq!(self.order.len(), self.regions.len(), "each region has a place in the order");
        assert_eq!(self.lens(&self.order), self.lent_bytes, "lent bytes are those of the regions");
        assert!(self.lent_bytes <= self.config.limit_bytes, "no more is lent than may be");
        assert!(self.stock.bytes() <= self.config.limit_bytes - self.lent_bytes, "stock is free");
        assert_eq!(self.names.len(), self.owners.len(), "owners have names of their own");
        let mut owned = 0;
        for (index, owner) in &self.owners {
            owned += owner.regions.len();
            assert_eq!(self.names.get(&owner.name), Some(index), "the name finds its owner");
            for (label, id) in &owner.published {
                let region = self.regions.get(id).expect("a published region is there");
                assert!(region.is_published, "what is published by its label is published");
                assert_eq!(*label, region.label, "a region is published under its label");
            }
            for id in &owner.regions {
                let region = self.regions.get(id).expect("a region of an owner is there");
                assert_eq!(region.owner, *index, "a region has one owner");
                assert_eq!(region.owner_term, owner.term, "a region knows its owner's term");
                assert!(region.term <= owner.term, "none was lent in a later term");
                let is_listed = owner.published.get(&region.label) == Some(id);
                assert_eq!(region.is_published, is_listed, "published is who is listed");
            }
        }
        assert_eq!(owned, self.regions.len(), "each region has an owner");
        let Tally { lent_ready, lent_made, given_back, .. } = self.tally;
        let ended = given_back + self.counts.leaks_freed + self.counts.revocations;
        let held = self.regions.len() as u64;
        assert_eq!(lent_ready + lent_made, ended + held, "each lent region is held or has ended");
    }
}

/// Whether the bytes are the same, in a time that does not tell where they differ.
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

struct Lend<'a> {
    owner: &'a str,
    label: &'a [u8],
    epoch: u64,
    term: Term,
    bytes: u64,
}

// Lending, fencing and giving back.
impl<S: Supply> Peer<S> {
    fn lend(&mut self, client: ClientId, lend: Lend<'_>) -> Checked<Reply> {
        if self.is_draining {
            return Err(Refusal::new(Reason::Draining, 0, 0));
        }
        self.check_owner(lend.owner, lend.term)?;
        assert!(lend.label.len() <= LABEL_LEN_MAX, "a label that was decoded has a checked length");
        let most = self.config.region_bytes_max;
        let len = lend.bytes.checked_next_multiple_of(PAGE_LEN).unwrap_or(u64::MAX);
        if lend.bytes == 0 || lend.bytes > most {
            return Err(Refusal::new(Reason::RegionLength, lend.bytes, most));
        }
        let regions_max = u64::from(self.config.regions_max);
        if self.regions.len() as u64 >= regions_max || self.last_ordinal == u32::MAX {
            let with = self.regions.len() as u64 + 1;
            return Err(Refusal::new(Reason::TooManyRegions, with, regions_max));
        }
        if len > self.free_bytes() {
            return Err(Refusal::new(Reason::NoMemory, len, self.free_bytes()));
        }
        let memory = match self.stock.take(len) {
            Some(memory) => {
                self.tally.lent_ready += 1;
                memory
            }
            None => {
                self.stock.trim(self.free_bytes() - len);
                let made = self.supply.make(len);
                let made = made.ok_or(Refusal::new(Reason::SystemMemory, len, 0))?;
                self.tally.lent_made += 1;
                made
            }
        };
        assert_eq!(memory.len(), len, "memory has the length that was asked");
        let owner = self.raise(client, lend.owner, lend.term);
        self.last_ordinal += 1;
        let id = RegionId::new(self.config.incarnation, self.last_ordinal);
        let key = self.supply.key();
        let region = Region {
            owner,
            owner_term: lend.term,
            term: lend.term,
            key,
            epoch: lend.epoch,
            is_published: false,
            label: lend.label.to_vec(),
            memory,
        };
        self.regions.insert(id, region);
        self.order.insert(id);
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.regions.insert(id);
        }
        self.lent_bytes += len;
        self.stock.trim(self.free_bytes());
        self.check();
        Ok(Reply::Lent { region: id, key, bytes: len })
    }

    /// Whether this owner may be raised to this term, and has a place if it is new.
    fn check_owner(&self, name: &str, term: Term) -> Checked {
        if name.is_empty() || name.len() > OWNER_LEN_MAX {
            let (len, most) = (name.len() as u64, OWNER_LEN_MAX as u64);
            return Err(Refusal::new(Reason::OwnerLength, len, most));
        }
        match self.names.get(name).and_then(|index| self.owners.get(index)) {
            Some(owner) if term < owner.term => {
                Err(Refusal::new(Reason::OldTerm, term.0, owner.term.0))
            }
            Some(_) => Ok(()),
            None => {
                let most = u64::from(self.config.owners_max);
                let idle = self.owners.values().any(|owner| owner.regions.is_empty());
                let with = self.owners.len() as u64 + 1;
                if with <= most || idle {
                    return Ok(());
                }
                Err(Refusal::new(Reason::TooManyOwners, with, most))
            }
        }
    }

    /// The owner, which is in this term from now on: after [`Self::check_owner`].
    fn raise(&mut self, client: ClientId, name: &str, term: Term) -> OwnerIndex {
        let Some(&index) = self.names.get(name) else {
            if self.owners.len() >= self.config.owners_max as usize {
                self.forget_owner();
            }
            self.last_owner += 1;
            let index = OwnerIndex(self.last_owner);
            let name = name.to_string();
            self.names.insert(name.clone(), index);
            let (regions, published) = (BTreeSet::new(), BTreeMap::new());
            self.owners.insert(index, Owner { name, term, client, regions, published });
            return index;
        };
        let Some(owner) = self.owners.get_mut(&index) else { return index };
        assert!(term >= owner.term, "a term that was checked is not below the owner's");
        owner.client = client;
        if term > owner.term {
            owner.term = term;
            self.rotate(index);
        }
        index
    }

    /// The oldest owner without regions makes room. Its old instances hold no region here, and one
    /// that they lend anew is not entered at the controller.
    fn forget_owner(&mut self) {
        let idle = self.owners.iter().find(|(_, owner)| owner.regions.is_empty());
        let Some(index) = idle.map(|(index, _)| *index) else { return };
        if let Some(owner) = self.owners.remove(&index) {
            self.names.remove(&owner.name);
        }
    }

    fn fence(&mut self, client: ClientId, name: &str, term: Term) -> Checked<Reply> {
        self.check_owner(name, term)?;
        let before = self.names.get(name).and_then(|index| self.owners.get(index));
        let was_same = before.is_some_and(|owner| owner.term == term);
        let index = self.raise(client, name, term);
        if was_same {
            self.rotate(index);
        }
        self.counts.fences += 1;
        self.check();
        Ok(self.page(index, RegionId(0)))
    }

    /// The owner, if this is its term.
    fn owned(&self, name: &str, term: Term) -> Checked<OwnerIndex> {
        let Some(&index) = self.names.get(name) else {
            return Err(Refusal::new(Reason::NewTerm, term.0, 0));
        };
        let held = self.owners.get(&index).map_or(Term(0), |owner| owner.term);
        check_term(term, held)?;
        Ok(index)
    }

    fn page(&self, index: OwnerIndex, after: RegionId) -> Reply {
        let mut regions: Vec<RegionEntry> = Vec::new();
        let (mut len, mut more) = (0, false);
        let Some(owner) = self.owners.get(&index) else {
            return Reply::Regions { term: Term(0), regions, more };
        };
        let above = RegionId(after.0.saturating_add(1))..;
        for id in owner.regions.range(above) {
            let Some(region) = self.regions.get(id) else { continue };
            let entry = RegionEntry {
                region: *id,
                key: region.key,
                bytes: region.memory.len(),
                epoch: region.epoch,
                term: region.term,
                is_published: region.is_published,
                label: region.label.clone(),
            };
            len += entry.encoded_len_max();
            if len > PAGE_LEN_MAX {
                more = true;
                break;
            }
            regions.push(entry);
        }
        Reply::Regions { term: owner.term, regions, more }
    }

    fn publish(
        &mut self,
        name: &str,
        term: Term,
        regions: Regions<'_>,
        withdraw: Regions<'_>,
    ) -> Checked {
        let index = self.owned(name, term)?;
        let mut labels = BTreeSet::new();
        for id in regions.iter() {
            let region = self.live(id)?;
            if region.owner != index {
                return Err(Refusal::new(Reason::OtherOwner, id.0, 0));
            }
            if region.term != term {
                return Err(Refusal::new(Reason::ReadOnly, id.0, region.term.0));
            }
            if !labels.insert(&region.label) {
                return Err(Refusal::new(Reason::NamedTwice, id.0, 0));
            }
        }
        self.check_free(index, withdraw)?;
        if let Some(both) = regions.iter().find(|id| withdraw.iter().any(|it| it == *id)) {
            return Err(Refusal::new(Reason::NamedTwice, both.0, 0));
        }
        for id in regions.iter() {
            let (Some(region), Some(owner)) =
                (self.regions.get_mut(&id), self.owners.get_mut(&index))
            else {
                continue;
            };
            region.is_published = true;
            let before = owner.published.insert(region.label.clone(), id);
            if let Some(before) = before.filter(|before| *before != id) {
                self.take_back(before);
            }
        }
        withdraw.iter().for_each(|id| self.take_back(id));
        self.check();
        Ok(())
    }

    fn free(&mut self, name: &str, term: Term, regions: Regions<'_>) -> Checked<u64> {
        let index = self.owned(name, term)?;
        self.check_free(index, regions)?;
        let before = self.lent_bytes;
        regions.iter().for_each(|id| self.take_back(id));
        self.check();
        Ok(before - self.lent_bytes)
    }

    /// Whether the owner may free these: each is its own, or gone.
    fn check_free(&self, index: OwnerIndex, regions: Regions<'_>) -> Checked {
        for id in regions.iter() {
            match self.live(id) {
                Ok(region) if region.owner != index => {
                    return Err(Refusal::new(Reason::OtherOwner, id.0, 0));
                }
                Err(refusal) if refusal.reason != Reason::Revoked => return Err(refusal),
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends a region that its owner gives back, if it is there.
    fn take_back(&mut self, id: RegionId) {
        self.tally.given_back += u64::from(self.regions.contains_key(&id));
        self.release(id);
    }

    /// Ends a region, if it is there. Its memory goes back to the stock, or to the system if a
    /// client can still reach it.
    fn release(&mut self, id: RegionId) {
        let Some(mut region) = self.regions.remove(&id) else { return };
        self.order.remove(&id);
        region.memory.close();
        if let Some(owner) = self.owners.get_mut(&region.owner) {
            owner.regions.remove(&id);
            if owner.published.get(&region.label) == Some(&id) {
                owner.published.remove(&region.label);
            }
        }
        self.lent_bytes -= region.memory.len();
        if !self.is_draining {
            self.stock.give_back(region.memory);
        }
    }

    fn revoke(&mut self, id: RegionId) {
        let Some(region) = self.regions.get(&id) else { return };
        let owner = self.owners.get(&region.owner);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(&owner.client)) {
            client.revoked.push(id);
        }
        self.counts.revocations += 1;
        self.release(id);
    }

    /// The region that goes next when `bytes` are missing.
    fn victim(&self, bytes: u64) -> Option<RegionId> {
        let is_published = |id: &RegionId| self.regions.get(id).is_some_and(|it| it.is_published);
        if let Some(id) = self.order.iter().rev().find(|id| !is_published(id)) {
            return Some(*id);
        }
        let len = |id: &RegionId| self.regions.get(id).map_or(0, |it| it.memory.len());
        let enough = self.order.iter().filter(|id| len(id) >= bytes).min_by_key(|id| len(id));
        enough.or_else(|| self.order.iter().max_by_key(|id| len(id))).copied()
    }
}
