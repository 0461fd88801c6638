//! Peers are alike: of states that differ only in which of them is which, one is explored.

use crate::instance::Phase;
use crate::world::{World, peer_id, place_of};
use gabion_media::remote::Incarnation;
use gabion_ncl::map::ApMap;

impl World {
    /// The state of its kind that stands for all.
    pub(crate) fn representative(&mut self) {
        self.forget();
        let mut order: Vec<usize> = (0..self.peers.len()).collect();
        order.sort_by_cached_key(|p| self.key(*p));
        if order.is_sorted() {
            return;
        }
        self.peers = order.iter().map(|p| self.peers[*p].clone()).collect();
        for instance in &mut self.instances {
            instance.links = order.iter().map(|p| instance.links[*p]).collect();
        }
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| places[*from] = to);
        self.maps_mut().for_each(|map| {
            let members = map.members.iter_mut();
            members.for_each(|member| member.peer = peer_id(places[place_of(member.peer)]));
            map.members.sort_unstable();
        });
    }

    fn maps(&self) -> impl Iterator<Item = &ApMap> {
        let asked = self.instances.iter().flat_map(|it| {
            let asked = [&it.asked, &it.stray].into_iter().flatten();
            asked.map(|(_, map)| map).chain([&it.map])
        });
        asked.chain([&self.store.map])
    }

    fn maps_mut(&mut self) -> impl Iterator<Item = &mut ApMap> {
        let asked = self.instances.iter_mut().flat_map(|it| {
            let asked = [&mut it.asked, &mut it.stray].into_iter().flatten();
            asked.map(|(_, map)| map).chain([&mut it.map])
        });
        asked.chain([&mut self.store.map])
    }

    /// All that tells a peer from others.
    fn key(&self, p: usize) -> impl Ord + use<> {
        let links: Vec<_> = self.instances.iter().map(|it| it.links[p]).collect();
        let entry = |map: &ApMap| -> Option<(Incarnation, u64)> {
            map.member(peer_id(p)).map(|member| (member.incarnation, member.epoch))
        };
        let entries: Vec<_> = self.maps().map(entry).collect();
        (self.peers[p].clone(), links, entries)
    }

    /// An instance that has ended has nothing more to do with its knowledge, but for the bytes that
    /// it showed.
    fn forget(&mut self) {
        for instance in self.instances.iter_mut().filter(|it| it.phase == Phase::Ended) {
            (instance.map, instance.version) = (ApMap::default(), 0);
            (instance.epochs, instance.map_differs) = (0, false);
            (instance.issued, instance.acknowledged) = (instance.base_number, instance.base_number);
        }
    }
}
