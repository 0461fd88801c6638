//! The memory of peers that a program writes records to itself.

use gabion_fabric::remote::SharedRegion;
use gabion_media::remote::{PeerId, RegionId};
use gabion_mirror::direct::{PARTS_MAX, PEERS_MAX, PeerMemory, Window};
use gabion_ncl::Grant;
use std::io;
use std::sync::Arc;

/// The peers of a grant and their regions.
type Places = Vec<(PeerId, Vec<RegionId>)>;

/// Windows that are kept: a process maps one anew only when regions or peers are others, also where
/// several files have a grant by turns.
const KEPT: usize = 4;

/// The windows that were used last, the newest at the end.
#[derive(Default)]
pub(crate) struct Windows {
    kept: Vec<(Places, Arc<Window>)>,
    count: u64,
}

impl Windows {
    /// A window by its number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Window>> {
        let found = self.kept.iter().find(|(_, window)| window.number == number);
        found.map(|(_, window)| Arc::clone(window))
    }

    /// The number of the window of a grant. None if a peer does not share its memory, or there is
    /// more of it than a process maps.
    pub(crate) fn of<'a>(
        &mut self,
        grant: &Grant,
        region: impl Fn(PeerId, RegionId) -> Option<&'a SharedRegion>,
    ) -> Option<u64> {
        if let Some(at) = self.kept.iter().position(|(places, _)| *places == grant.peers) {
            let found = self.kept.remove(at);
            let number = found.1.number;
            self.kept.push(found);
            return Some(number);
        }
        if grant.peers.len() > PEERS_MAX || grant.parts.len() > PARTS_MAX {
            return None;
        }
        let of_peer = |(peer, regions): &(PeerId, Vec<RegionId>)| {
            let shared: Option<Vec<&SharedRegion>> =
                regions.iter().map(|it| region(*peer, *it)).collect();
            memory(&shared?)
        };
        let peers: Option<Vec<PeerMemory>> = grant.peers.iter().map(of_peer).collect();
        let (peers, parts) = (peers?, grant.parts.clone());
        self.count += 1;
        if self.kept.len() == KEPT {
            self.kept.remove(0);
        }
        let window = Window { number: self.count, parts, peers };
        self.kept.push((grant.peers.clone(), Arc::new(window)));
        Some(self.count)
    }

    /// A peer is lost: its memory is not held here.
    pub(crate) fn lost(&mut self, peer: PeerId) {
        self.kept.retain(|(places, _)| places.iter().all(|(of, _)| *of != peer));
    }

    /// Regions are given back.
    pub(crate) fn freed(&mut self, peer: PeerId, regions: &[RegionId]) {
        let is_gone = |(of, its): &(PeerId, Vec<RegionId>)| {
            *of == peer && its.iter().any(|region| regions.contains(region))
        };
        self.kept.retain(|(places, _)| !places.iter().any(is_gone));
    }
}

/// The memory of one peer; none without descriptors for it.
fn memory(regions: &[&SharedRegion]) -> Option<PeerMemory> {
    let first = regions.first()?;
    let [_, gates] = first.memory();
    let copied = || -> io::Result<PeerMemory> {
        let regions = regions.iter().map(|shared| {
            let [memory, _] = shared.memory();
            Ok((shared.region().0, shared.gate(), memory.try_clone_to_owned()?))
        });
        let gates = (gates.try_clone_to_owned()?, first.gates_len());
        Ok(PeerMemory { regions: regions.collect::<io::Result<_>>()?, gates })
    };
    copied().ok().filter(|_| regions.iter().all(|it| it.gates_len() == first.gates_len()))
}
