//! A peer at the controller: it registers, says again what has changed, and asks which of its
//! regions nobody names any more.
//!
//! # Leaks
//!
//! A client may die between lending a region and entering it in the ap-map. The peer reads its own
//! regions first and the map of their owner then. So a region that is not named, of an epoch that
//! is over by the map, is one that never will be.

use crate::address::PeerAddress;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::{Store, Swapped, Version};
use gabion_fabric::remote::PeerServer;
use gabion_media::remote::peer::RegionCheck;
use gabion_media::remote::{Entry, Incarnation, PeerId, RegionId};
use gabion_ncl::map::{ApMap, Named, PeerRecord, map_name, peer_name};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Regions that are looked up in one go.
const CHECKS_MAX: usize = 1024;
/// Free bytes are told again once they differ by this part of what was told.
const FREE_PART: u64 = 16;

/// A peer's place at the controller.
pub struct Registrar {
    store: Box<dyn Store + Send>,
    peer: PeerId,
    incarnation: Incarnation,
    domain: String,
    address: PeerAddress,
    version: Version,
    told: Option<(PeerRecord, Instant)>,
    renew: Duration,
}

impl Registrar {
    /// For a run of a peer that listens at these places; it registers again every `renew`, or when
    /// something has changed.
    #[must_use]
    pub fn new(
        store: Box<dyn Store + Send>,
        (peer, incarnation): (PeerId, Incarnation),
        domain: &str,
        address: PeerAddress,
        renew: Duration,
    ) -> Self {
        Self {
            store,
            peer,
            incarnation,
            domain: domain.to_owned(),
            address,
            version: Version::NONE,
            told: None,
            renew,
        }
    }

    /// Registers the peer with so many free bytes, if that is due.
    ///
    /// # Errors
    /// Those of the store. Fenced when another process registered the same peer in a later run.
    pub fn register(&mut self, free_bytes: u64) -> Result<()> {
        let record = PeerRecord {
            incarnation: self.incarnation,
            free_bytes,
            domain: self.domain.clone(),
            address: self.address.encode(),
        };
        if let Some((told, at)) = &self.told
            && told.free_bytes.abs_diff(free_bytes) <= told.free_bytes / FREE_PART
            && at.elapsed() < self.renew
        {
            return Ok(());
        }
        // Twice: once to learn the version.
        for _ in 0..2 {
            match self.store.swap(&peer_name(self.peer), self.version, &record.encode())? {
                Swapped::Stored(version) => {
                    self.version = version;
                    self.told = Some((record, Instant::now()));
                    return Ok(());
                }
                Swapped::Lost(found) => {
                    self.version = found.as_ref().map_or(Version::NONE, |found| found.version);
                    let found = found.and_then(|found| PeerRecord::decode(&found.value).ok());
                    let later = found.filter(|found| found.incarnation > self.incarnation);
                    if let Some(later) = later {
                        return Err(Error::new(
                            ErrorKind::Fenced,
                            format!(
                                "peer {}: run {} is registered, this is run {}",
                                self.peer, later.incarnation, self.incarnation
                            ),
                        ));
                    }
                }
            }
        }
        Err(Error::unavailable(format!("peer {}: its record changes", self.peer)))
    }

    /// When the controller took the record last.
    #[must_use]
    pub fn registered_at(&self) -> Option<Instant> {
        self.told.as_ref().map(|(_, at)| *at)
    }

    /// Says that the peer lends no more.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn withdraw(&mut self) -> Result<()> {
        // Its record stays that of its node.
        self.address = PeerAddress { node: self.address.node.take(), ..PeerAddress::default() };
        self.told = None;
        self.register(0)
    }

    /// Asks which regions have leaked, and frees them. Returns how many.
    ///
    /// # Errors
    /// Those of the store; unavailable when the peer's thread is gone.
    pub fn free_leaks(&mut self, server: &PeerServer) -> Result<usize> {
        let (mut after, mut freed) = (RegionId(0), 0);
        loop {
            let page = server.with(move |peer| peer.checks(after, CHECKS_MAX))?;
            let Some(last) = page.last() else { return Ok(freed) };
            after = last.region;
            let entries = self.entries(&page)?;
            freed += server.with(move |peer| {
                let entries = entries.into_iter();
                entries.filter(|(region, entry)| peer.handle_entry(*region, *entry)).count()
            })?;
        }
    }

    /// The controller's word on each of these. No word on an owner without a map: its first
    /// instance may be about to write it.
    fn entries(&mut self, page: &[RegionCheck]) -> Result<Vec<(RegionId, Entry)>> {
        let mut maps: BTreeMap<&str, Option<ApMap>> = BTreeMap::new();
        for check in page {
            if !maps.contains_key(check.owner.as_str()) {
                let found = self.store.get(&map_name(&check.owner))?;
                let map = found.map(|found| ApMap::decode(&found.value)).transpose()?;
                maps.insert(&check.owner, map);
            }
        }
        let entries = page.iter().filter_map(|check| {
            let map = maps.get(check.owner.as_str())?.as_ref()?;
            let named = map.names(self.peer, self.incarnation, check.epoch);
            let is_named = named == Named::Yes;
            Some((check.region, Entry { epoch: map.epoch, is_named }))
        });
        Ok(entries.collect())
    }
}
