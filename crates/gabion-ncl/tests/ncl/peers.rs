//! Machines with a log peer each, and their memory, into which a write may land in part.

use gabion_base::Term;
use gabion_media::MemoryRegion;
use gabion_media::remote::peer::Gate;
use gabion_media::remote::{
    ClientId, ConnectionGeneration, Incarnation, Key, LentMemory, Peer, PeerConfig, PeerId,
    RegionId, Reply, Request, Supply,
};
use gabion_ncl::map::{ApMap, Named, PeerRecord};
use gabion_ncl::{ChainPart, Command};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Chance from a seed: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Memory that the simulated network, and a program that has it mapped, can reach into. It stays
/// after its peer died, as long as somebody has it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    is_closed: Arc<AtomicBool>,
    is_shared: bool,
}

impl Memory {
    /// Whether writes of those who have it mapped count.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_closed.load(Relaxed)
    }
}

impl MemoryRegion for Memory {
    fn len(&self) -> u64 {
        self.bytes.lock().expect("one thread").len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut bytes = self.bytes.lock().expect("one thread");
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let bytes = self.bytes.lock().expect("one thread");
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
    }
}

impl LentMemory for Memory {
    fn zero(&mut self, offset: u64, len: u64) {
        self.bytes.lock().expect("one thread")[offset as usize..][..len as usize].fill(0);
    }

    fn bring_in(&mut self, _: u64, _: u64) {}

    fn close(&mut self) {
        self.is_closed.store(true, Relaxed);
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn share(&mut self, _: RegionId, _: bool) -> Option<Gate> {
        None
    }
}

pub(crate) struct Supplied {
    random: Random,
    is_shared: bool,
}

impl Supply for Supplied {
    type Memory = Memory;

    fn make(&mut self, len: u64) -> Option<Memory> {
        let bytes = Arc::new(Mutex::new(vec![0; len as usize]));
        Some(Memory { bytes, is_closed: Arc::default(), is_shared: self.is_shared })
    }

    fn key(&mut self) -> Key {
        Key(u128::from(self.random.number()) << 64 | u128::from(self.random.number()))
    }
}

/// Bytes that a machine lends, unless it has little memory.
pub(crate) const LIMIT: u64 = 1 << 21;

/// A machine. While it is down its memory is gone.
pub(crate) struct Machine {
    pub(crate) id: PeerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) peer: Option<Peer<Supplied>>,
    pub(crate) up_at_ms: u64,
    /// Bytes that it lends; and until when it lends no more than it did at one moment.
    limit: u64,
    pub(crate) is_full_until_ms: u64,
    /// Regions of the copy were revoked: it does not count until another one is published.
    pub(crate) is_broken: bool,
    /// The region that was lent last, and the one before the last revocation.
    lent: RegionId,
    lent_before_broken: RegionId,
    /// A planted defect: keys and terms are not looked at.
    pub(crate) keys_stay: bool,
    /// Regions that clients have mapped, of this run and earlier ones; none: it shares no memory.
    mapped: Option<BTreeMap<RegionId, Memory>>,
}

impl Machine {
    pub(crate) fn new(id: u64) -> Self {
        let (id, incarnation) = (PeerId(id), Incarnation(0));
        let mut machine = Self {
            id,
            incarnation,
            peer: None,
            up_at_ms: 0,
            limit: LIMIT,
            is_full_until_ms: 0,
            is_broken: false,
            lent: RegionId(0),
            lent_before_broken: RegionId(0),
            keys_stay: false,
            mapped: None,
        };
        machine.start();
        machine
    }

    /// Clients map what they are lent, from now on.
    pub(crate) fn share_memory(&mut self) {
        self.mapped = Some(BTreeMap::new());
        if let Some(peer) = &mut self.peer {
            peer.supply_mut().is_shared = true;
        }
    }

    /// A region as clients have it mapped, though its peer may have died.
    pub(crate) fn mapped(&self, region: RegionId) -> Option<&Memory> {
        self.mapped.as_ref()?.get(&region)
    }

    pub(crate) fn start(&mut self) {
        self.incarnation.0 += 1;
        self.is_broken = false;
        let config =
            PeerConfig { ready_bytes: 0, ..PeerConfig::new(self.id, self.incarnation, self.limit) };
        let random = Random(self.id.0 << 32 | u64::from(self.incarnation.0));
        let supply = Supplied { random, is_shared: self.mapped.is_some() };
        self.peer = Some(Peer::new(config, supply).expect("the limits make sense"));
    }

    pub(crate) fn record(&self) -> PeerRecord {
        PeerRecord {
            incarnation: self.incarnation,
            free_bytes: self.peer.as_ref().map_or(0, Peer::free_bytes),
            domain: format!("rack {}", self.id.0 % 4),
            address: format!("machine {}", self.id.0),
        }
    }

    /// Carries out a command of a client's connection; nothing of an older connection.
    pub(crate) fn handle(
        &mut self,
        owner: &str,
        client: ClientId,
        generation: ConnectionGeneration,
        term: Term,
        command: &Command,
    ) -> Option<Reply> {
        let (keys_stay, mapped) = (self.keys_stay, &mut self.mapped);
        let peer = self.peer.as_mut()?;
        command.with_request(owner, term, client, &[], |request| match request {
            Request::Hello { token, .. } => Some(peer.greet(client, generation, token)),
            _ if !peer.is_current(client, generation) => None,
            request => {
                let reply = peer.handle(client, &request);
                // A whole copy has two files of names at least; a part that is new is one region.
                // One that was begun before the revocation may lack what was revoked.
                if let (Command::Publish { regions, .. }, Reply::Published) = (command, &reply) {
                    let is_later = regions.iter().all(|it| *it > self.lent_before_broken);
                    self.is_broken &= regions.len() < 2 || !is_later;
                }
                if let Reply::Lent { region, .. } = reply {
                    self.lent = region;
                    let memory = peer.memory(region).expect("it is lent");
                    mapped.as_mut().map(|mapped| mapped.insert(region, memory.clone()));
                }
                match (command, reply) {
                    (Command::Write { chain }, Reply::Refused(_)) if keys_stay => {
                        let here = |part: &ChainPart| peer.memory(part.region).is_some();
                        chain.iter().flatten().all(here).then(|| {
                            chain.iter().flatten().for_each(|part| {
                                let memory = peer.memory(part.region).expect("it is here");
                                memory.clone().write(part.offset, &part.data);
                            });
                            Reply::Written
                        })
                    }
                    (_, reply) => Some(reply),
                }
            }
        })
    }

    /// A chain lands in part: some of its parts, and of the next one some bytes, in any order.
    ///
    /// docs/faults.md N10
    pub(crate) fn land_in_part(
        &mut self,
        owner: &str,
        client: ClientId,
        term: Term,
        chain: &[Option<ChainPart>],
        random: &mut Random,
    ) {
        let Some(peer) = self.peer.as_mut() else { return };
        let parts: Vec<&ChainPart> = chain.iter().flatten().collect();
        let whole = random.below(parts.len() as u64 + 1) as usize;
        for (at, part) in parts.iter().enumerate().take(whole + 1) {
            // The right to write is the right to read of a region of the owner's term.
            let ChainPart { region, key, offset, data } = part;
            let (region, key, offset) = (*region, *key, *offset);
            let read = Command::Read { region, key, offset, len: data.len() as u32 };
            let reply = read.with_request(owner, term, client, &[], |it| peer.handle(client, &it));
            let (Reply::Bytes(mut bytes), Some(memory)) = (reply, peer.memory(region)) else {
                return;
            };
            let density = 1 + random.below(8);
            for (into, from) in bytes.iter_mut().zip(data.iter()) {
                if at < whole || random.below(8) < density {
                    *into = *from;
                }
            }
            memory.clone().write(offset, &bytes);
        }
    }

    /// Asks about each region whether the map names it; what has leaked goes.
    pub(crate) fn collect(&mut self, map: Option<&ApMap>) {
        let Some(peer) = self.peer.as_mut() else { return };
        for check in peer.checks(RegionId(0), usize::MAX) {
            let entry = gabion_media::remote::Entry {
                epoch: map.map_or(0, |map| map.epoch),
                is_named: map.is_some_and(|map| {
                    map.names(self.id, self.incarnation, check.epoch) == Named::Yes
                }),
            };
            peer.handle_entry(check.region, entry);
        }
    }

    pub(crate) fn regions(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.usage().regions)
    }

    pub(crate) fn published(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.usage().published)
    }

    /// Whether it has a whole copy, of this run or none.
    pub(crate) fn has_copy(&self, incarnation: Incarnation) -> bool {
        self.published() > 0 && !self.is_broken && self.incarnation == incarnation
    }

    /// Memory is short for a moment: one region goes at least, if there are any.
    pub(crate) fn revoke(&mut self) -> Vec<RegionId> {
        let Some(peer) = self.peer.as_mut() else { return Vec::new() };
        let before = peer.usage();
        let revoked = peer.set_limit(before.lent_bytes.saturating_sub(4096).max(4096));
        // A part that was to be published is missed too, by records that are under way.
        if !revoked.is_empty() {
            (self.is_broken, self.lent_before_broken) = (true, self.lent);
        }
        self.set_limit(self.limit);
        revoked
    }

    /// It lends so many bytes from now on, or all that it has lent.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        let Some(peer) = self.peer.as_mut() else { return };
        let lent = peer.usage().lent_bytes;
        assert!(peer.set_limit(limit.max(lent)).is_empty(), "nothing is taken back");
    }

    /// Others have given its memory back.
    pub(crate) fn fill_no_more(&mut self) {
        self.is_full_until_ms = 0;
        self.set_limit(self.limit);
    }

    /// Others take its memory: it lends so many bytes more, for a while.
    pub(crate) fn fill_up(&mut self, more: u64, until_ms: u64) {
        let Some(peer) = self.peer.as_mut() else { return };
        let lent = peer.usage().lent_bytes;
        peer.set_limit((lent + more).max(4096));
        self.is_full_until_ms = until_ms;
    }
}
