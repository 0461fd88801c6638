//! Random requests to the peer and to a naive one, which keeps lists and nothing else.
//!
//! docs/faults.md: N1, N2, N7

use super::*;
use crate::remote::peer::Entry;
use RefusalReason as Why;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use proptest::collection::vec as many;
use proptest::prelude::*;

/// A region by its place among all that were ever lent, and which of its keys is shown.
#[derive(Clone, Debug)]
struct Named {
    place: usize,
    old_key: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Lend { owner: u8, label: u8, epoch: u64, term: u64, bytes: u64 },
    Fence { owner: u8, term: u64 },
    List { owner: u8, term: u64 },
    Write { term: u64, parts: Vec<(Named, u64, Vec<u8>)> },
    Read { named: Named, term: u64, offset: u64, len: u32 },
    Publish { owner: u8, term: u64, regions: Vec<usize>, withdraw: Vec<usize> },
    Free { owner: u8, term: u64, regions: Vec<usize> },
    Limit { pages: u64 },
    Entry { place: usize, epoch: u64, is_named: bool },
    Zero { budget: u64 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let owner = || 0u8..3;
    let term = || 1u64..4;
    let named = || (0usize..12, 0u8..8).prop_map(|(place, key)| Named { place, old_key: key == 0 });
    let places = || many(0usize..12, 0..4);
    let data = || many(1u8..255, 0..40);
    prop_oneof![
        4 => (owner(), 0u8..3, 0u64..4, term(), 0u64..3 * PAGE + 9).prop_map(
            |(owner, label, epoch, term, bytes)| Step::Lend { owner, label, epoch, term, bytes }
        ),
        1 => (owner(), term()).prop_map(|(owner, term)| Step::Fence { owner, term }),
        1 => (owner(), term()).prop_map(|(owner, term)| Step::List { owner, term }),
        6 => (term(), many((named(), 0u64..2 * PAGE, data()), 1..4))
            .prop_map(|(term, parts)| Step::Write { term, parts }),
        3 => (named(), term(), 0u64..2 * PAGE, 0u32..64).prop_map(|(named, term, offset, len)| {
            Step::Read { named, term, offset, len }
        }),
        2 => (owner(), term(), places(), places()).prop_map(
            |(owner, term, regions, withdraw)| Step::Publish { owner, term, regions, withdraw }
        ),
        1 => (owner(), term(), places())
            .prop_map(|(owner, term, regions)| Step::Free { owner, term, regions }),
        1 => (0u64..20).prop_map(|pages| Step::Limit { pages }),
        1 => (0usize..12, 0u64..5, any::<bool>())
            .prop_map(|(place, epoch, is_named)| Step::Entry { place, epoch, is_named }),
        2 => (1u64..3 * PAGE).prop_map(|budget| Step::Zero { budget }),
    ]
}

#[derive(Clone, Debug)]
struct NaiveRegion {
    owner: String,
    label: Vec<u8>,
    epoch: u64,
    term: u64,
    key: Key,
    is_published: bool,
    bytes: Vec<u8>,
}

/// Its answer to a request: a refusal's reason, or the bytes of a read.
type Said<T = ()> = core::result::Result<T, Why>;

struct Naive {
    limit: u64,
    terms: BTreeMap<String, u64>,
    regions: BTreeMap<RegionId, NaiveRegion>,
    /// Every region that was ever lent, and its first key.
    lent: Vec<(RegionId, Key)>,
}

impl Naive {
    fn used(&self) -> u64 {
        self.regions.values().map(|region| region.bytes.len() as u64).sum()
    }

    fn name(&self, named: &Named) -> (RegionId, Key) {
        let Some(&(id, first)) = self.lent.get(named.place) else {
            return (RegionId::new(Incarnation(5), 1000), Key(1));
        };
        let now = self.regions.get(&id).map_or(first, |region| region.key);
        let old = if first == now { Key(now.0 ^ 1) } else { first };
        (id, if named.old_key { old } else { now })
    }

    fn ids(&self, places: &[usize]) -> Vec<RegionId> {
        let named = |place: &usize| self.name(&Named { place: *place, old_key: false }).0;
        places.iter().map(named).collect()
    }

    fn was_lent(&self, id: RegionId) -> bool {
        self.lent.iter().any(|(lent, _)| *lent == id)
    }

    fn term_of(&self, owner: &str, term: u64) -> Said {
        let held = self.terms.get(owner).copied().unwrap_or(0);
        match term.cmp(&held) {
            core::cmp::Ordering::Less => Err(Why::OldTerm),
            core::cmp::Ordering::Greater => Err(Why::NewTerm),
            core::cmp::Ordering::Equal => Ok(()),
        }
    }

    fn find(&self, id: RegionId) -> Said<&NaiveRegion> {
        let why = if self.was_lent(id) { Why::Revoked } else { Why::UnknownRegion };
        self.regions.get(&id).ok_or(why)
    }

    fn access(&self, (id, key): (RegionId, Key), term: u64, offset: u64, len: usize) -> Said {
        let region = self.find(id)?;
        self.term_of(&region.owner, term)?;
        if region.key != key {
            return Err(Why::WrongKey);
        }
        if offset + len as u64 > region.bytes.len() as u64 {
            return Err(Why::OutOfBounds);
        }
        Ok(())
    }

    fn lend(&self, owner: &str, term: u64, bytes: u64) -> Said<u64> {
        if term < self.terms.get(owner).copied().unwrap_or(0) {
            return Err(Why::OldTerm);
        }
        if bytes == 0 || bytes > config().region_bytes_max {
            return Err(Why::RegionLength);
        }
        let len = bytes.div_ceil(PAGE) * PAGE;
        if self.used() + len > self.limit {
            return Err(Why::NoMemory);
        }
        Ok(len)
    }

    fn write(&mut self, term: u64, parts: &[Part<'_>]) -> Said {
        let mut owners = BTreeSet::new();
        for part in parts {
            let at = (part.region, part.key);
            // The bounds come last.
            let access = self.access(at, term, part.offset, part.data.len());
            if let Err(why) = access
                && why != Why::OutOfBounds
            {
                return Err(why);
            }
            let region = self.find(part.region)?;
            if region.term != term {
                return Err(Why::ReadOnly);
            }
            owners.insert(region.owner.clone());
            if owners.len() > 1 {
                return Err(Why::OtherOwner);
            }
            access?;
        }
        for part in parts {
            let region = self.regions.get_mut(&part.region).unwrap();
            region.bytes[part.offset as usize..][..part.data.len()].copy_from_slice(part.data);
        }
        Ok(())
    }

    fn may_free(&self, owner: &str, ids: &[RegionId]) -> Said {
        for id in ids {
            match self.regions.get(id) {
                Some(region) if region.owner != owner => return Err(Why::OtherOwner),
                None if !self.was_lent(*id) => return Err(Why::UnknownRegion),
                _ => {}
            }
        }
        Ok(())
    }

    fn publish(&mut self, owner: &str, term: u64, ids: &[RegionId], gone: &[RegionId]) -> Said {
        self.term_of(owner, term)?;
        let mut labels = BTreeSet::new();
        for id in ids {
            let region = self.find(*id)?;
            if region.owner != owner {
                return Err(Why::OtherOwner);
            }
            if region.term != term {
                return Err(Why::ReadOnly);
            }
            if !labels.insert(region.label.clone()) {
                return Err(Why::NamedTwice);
            }
        }
        self.may_free(owner, gone)?;
        if ids.iter().any(|id| gone.contains(id)) {
            return Err(Why::NamedTwice);
        }
        self.regions.retain(|id, region| {
            let replaced = region.owner == owner
                && region.is_published
                && labels.contains(&region.label)
                && !ids.contains(id);
            !replaced && !gone.contains(id)
        });
        for id in ids {
            self.regions.get_mut(id).unwrap().is_published = true;
        }
        Ok(())
    }

    /// The list that the owner has to get, keys aside.
    fn list(&self, owner: &str) -> Vec<(RegionId, u64, u64, u64, bool, Vec<u8>)> {
        let owned = self.regions.iter().filter(|(_, region)| region.owner == owner);
        owned
            .map(|(id, it)| {
                let bytes = it.bytes.len() as u64;
                (*id, bytes, it.epoch, it.term, it.is_published, it.label.clone())
            })
            .collect()
    }
}

fn said(reply: &Reply) -> Said {
    match reply {
        Reply::Refused(refusal) => Err(refusal.reason),
        _ => Ok(()),
    }
}

fn owner_name(owner: u8) -> String {
    ["a", "b", "c"][usize::from(owner)].to_string()
}

struct Both {
    naive: Naive,
    peer: Peer<SimulatedSupply>,
}

impl Both {
    fn adopt(&mut self, owner: &str, reply: &Reply) {
        let list = regions(reply);
        let shown: Vec<_> = list
            .iter()
            .map(|it| (it.region, it.bytes, it.epoch, it.term.0, it.is_published, it.label.clone()))
            .collect();
        assert_eq!(shown, self.naive.list(owner));
        for entry in list {
            self.naive.regions.get_mut(&entry.region).unwrap().key = entry.key;
        }
    }

    fn lend(&mut self, owner: &str, label: u8, epoch: u64, (term, bytes): (u64, u64)) {
        let label = [label];
        let request = Request::Lend { owner, label: &label, epoch, term: Term(term), bytes };
        let reply = self.peer.handle(CLIENT, &request);
        match self.naive.lend(owner, term, bytes) {
            Err(why) => assert_eq!(said(&reply), Err(why)),
            Ok(len) => {
                let (region, key, bytes) = lent(&reply);
                assert_eq!(bytes, len);
                self.naive.lent.push((region, key));
                let is_raised = self.naive.terms.insert(owner.to_string(), term) != Some(term);
                let bytes = vec![0; len as usize];
                let (owner, label) = (owner.to_string(), label.to_vec());
                let it = NaiveRegion { owner, label, epoch, term, key, is_published: false, bytes };
                let owner = it.owner.clone();
                self.naive.regions.insert(region, it);
                if is_raised {
                    // The keys are new without being told: the owner asks.
                    self.list(&owner, term);
                }
            }
        }
    }

    fn list(&mut self, owner: &str, term: u64) {
        let request = Request::List { owner, term: Term(term), after: RegionId(0) };
        let reply = self.peer.handle(CLIENT, &request);
        match self.naive.term_of(owner, term) {
            Err(why) => assert_eq!(said(&reply), Err(why)),
            Ok(()) => self.adopt(owner, &reply),
        }
    }

    fn fence(&mut self, owner: &str, term: u64) {
        let reply = self.peer.handle(CLIENT, &Request::Fence { owner, term: Term(term) });
        if term < self.naive.terms.get(owner).copied().unwrap_or(0) {
            return assert_eq!(said(&reply), Err(Why::OldTerm));
        }
        self.naive.terms.insert(owner.to_string(), term);
        let before: Vec<_> = regions(&reply).iter().map(|it| it.key).collect();
        let known = self.naive.regions.values().any(|region| before.contains(&region.key));
        assert!(!known, "a fence changes every key");
        self.adopt(owner, &reply);
    }

    fn limit(&mut self, bytes: u64) {
        for region in self.peer.set_limit(bytes) {
            assert!(self.naive.used() > bytes, "no more goes than has to");
            let gone = self.naive.regions.remove(&region).unwrap();
            let others = self.naive.regions.values().all(|it| it.is_published);
            assert!(!gone.is_published || others, "copies under way go first");
        }
        self.naive.limit = bytes;
        assert!(self.naive.used() <= bytes);
    }

    fn entry(&mut self, place: usize, entry: Entry) {
        let (id, _) = self.naive.name(&Named { place, old_key: false });
        let lent = self.naive.regions.get(&id);
        let is_leak = lent.is_some_and(|it| !entry.is_named && entry.epoch >= it.epoch);
        assert_eq!(self.peer.handle_entry(id, entry), is_leak);
        if is_leak {
            self.naive.regions.remove(&id);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Lend { owner, label, epoch, term, bytes } => {
                self.lend(&owner_name(*owner), *label, *epoch, (*term, *bytes));
            }
            Step::Fence { owner, term } => self.fence(&owner_name(*owner), *term),
            Step::List { owner, term } => self.list(&owner_name(*owner), *term),
            Step::Write { term, parts } => {
                let parts: Vec<_> = parts
                    .iter()
                    .map(|(named, offset, data)| {
                        let (region, key) = self.naive.name(named);
                        Part { region, key, offset: *offset, data }
                    })
                    .collect();
                let request = Request::Write { term: Term(*term), parts: Parts::Given(&parts) };
                let reply = self.peer.handle(CLIENT, &request);
                assert_eq!(said(&reply), self.naive.write(*term, &parts));
            }
            Step::Read { named, term, offset, len } => {
                let at = self.naive.name(named);
                let reply = read(&mut self.peer, at, *term, *offset, *len);
                match self.naive.access(at, *term, *offset, *len as usize) {
                    Err(why) => assert_eq!(said(&reply), Err(why)),
                    Ok(()) => {
                        let bytes = &self.naive.regions[&at.0].bytes[*offset as usize..];
                        assert_eq!(reply, Reply::Bytes(bytes[..*len as usize].to_vec()));
                    }
                }
            }
            Step::Publish { owner, term, regions, withdraw } => {
                let owner = &owner_name(*owner);
                let (ids, gone) = (self.naive.ids(regions), self.naive.ids(withdraw));
                let (regions, withdraw) = (Regions::Given(&ids), Regions::Given(&gone));
                let request = Request::Publish { owner, term: Term(*term), regions, withdraw };
                let reply = self.peer.handle(CLIENT, &request);
                assert_eq!(said(&reply), self.naive.publish(owner, *term, &ids, &gone));
            }
            Step::Free { owner, term, regions } => {
                let (owner, ids) = (&owner_name(*owner), self.naive.ids(regions));
                let regions = Regions::Given(&ids);
                let request = Request::Free { owner, term: Term(*term), regions };
                let reply = self.peer.handle(CLIENT, &request);
                let may = self.naive.term_of(owner, *term);
                let may = may.and_then(|()| self.naive.may_free(owner, &ids));
                assert_eq!(said(&reply), may);
                if may.is_ok() {
                    self.naive.regions.retain(|id, _| !ids.contains(id));
                }
            }
            Step::Limit { pages } => self.limit(pages * PAGE),
            Step::Entry { place, epoch, is_named } => {
                self.entry(*place, Entry { epoch: *epoch, is_named: *is_named });
            }
            Step::Zero { budget } => assert!(self.peer.step(*budget) <= *budget),
        }
        self.peer.invariants();
        let usage = self.peer.usage();
        assert_eq!(usage.regions, self.naive.regions.len() as u64);
        assert_eq!(usage.lent_bytes, self.naive.used());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_requests_have_the_replies_of_a_naive_peer(steps in many(any_step(), 1..120)) {
        let naive = Naive {
            limit: config().limit_bytes,
            terms: BTreeMap::new(),
            regions: BTreeMap::new(),
            lent: Vec::new(),
        };
        let mut both = Both { naive, peer: peer() };
        for step in &steps {
            both.step(step);
        }
    }
}
