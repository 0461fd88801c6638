//! The memory of peers that a program writes records to itself.

use gabion_fabric::remote::SharedRegion;
use gabion_media::remote::{PeerId, RegionId};
use gabion_mirror::direct::{PARTS_MAX, PEERS_MAX, PeerMemory, Window};
use gabion_ncl::Grant;
use std::io;
use std::sync::Arc;

/// The peers of a grant and their regions.
type Places = Vec<(PeerId, Vec<RegionId>)>;

/// The newest window: processes map it anew only when regions or peers are others.
#[derive(Default)]
pub(crate) struct Windows {
    newest: Option<(Places, Arc<Window>)>,
    count: u64,
}

impl Windows {
    /// The newest window.
    pub(crate) fn window(&self) -> Option<Arc<Window>> {
        self.newest.as_ref().map(|(_, window)| Arc::clone(window))
    }

    /// The number of the window of a grant. None if a peer does not share its memory, or there is
    /// more of it than a process maps.
    pub(crate) fn of<'a>(
        &mut self,
        grant: &Grant,
        region: impl Fn(PeerId, RegionId) -> Option<&'a SharedRegion>,
    ) -> Option<u64> {
        if let Some((places, window)) = &self.newest
            && *places == grant.peers
        {
            return Some(window.number);
        }
        if grant.peers.len() > PEERS_MAX || grant.parts.len() > PARTS_MAX {
            return None;
        }
        self.count += 1;
        let of_peer = |(peer, regions): &(PeerId, Vec<RegionId>)| {
            let shared: Option<Vec<&SharedRegion>> =
                regions.iter().map(|it| region(*peer, *it)).collect();
            memory(&shared?)
        };
        let peers: Option<Vec<PeerMemory>> = grant.peers.iter().map(of_peer).collect();
        let window = Window { number: self.count, parts: grant.parts.clone(), peers: peers? };
        self.newest = Some((grant.peers.clone(), Arc::new(window)));
        Some(self.count)
    }

    /// A peer is lost: its memory is not held here.
    pub(crate) fn lost(&mut self, peer: PeerId) {
        self.newest.take_if(|(places, _)| places.iter().any(|(of, _)| *of == peer));
    }

    /// Regions are given back.
    pub(crate) fn freed(&mut self, peer: PeerId, regions: &[RegionId]) {
        let is_gone = |(of, its): &(PeerId, Vec<RegionId>)| {
            *of == peer && its.iter().any(|region| regions.contains(region))
        };
        self.newest.take_if(|(places, _)| places.iter().any(is_gone));
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
