//! Random operations against a model, with a crash at every write boundary (docs/faults.md E1, E2).
//!
//! The model knows states of slots and files as plain maps and nothing of the pool's code. At each
//! `take` it is copied: the copy is what the pool must be after a crash once that commit is
//! flushed. Before, it must be the copy before. Several lives follow each other on the same disk,
//! so that what an interrupted commit or checkpoint left behind is in the way of the next.

use super::*;
use crate::recovery::recover;
use crate::{Commit, Drained, QuarantineOrigin, SlotState};
use alloc::collections::{BTreeMap, BTreeSet};
use gabion_base::{Generation, ReplicaId, SlotIndex};
use gabion_media::simulated::Recording;
use proptest::prelude::*;

/// What survives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct View {
    files: BTreeMap<FileId, FilePlacement>,
    granted: BTreeMap<SlotIndex, (Generation, u64)>,
    quarantined: BTreeMap<SlotIndex, QuarantineOrigin>,
    session_floor: u64,
    opaque: u32,
}

impl View {
    /// What a pool and its opaque entries say, for a pool that was just opened.
    fn of(pool: &Pool, snapshot: &[u8], opaque: &[(u16, Vec<u8>)]) -> Self {
        let mut view = Self { session_floor: pool.session_floor(), ..Self::default() };
        for slot in (0..pool.counts().total).map(SlotIndex) {
            match pool.slot_state(slot).unwrap() {
                SlotState::Granted { generation, session, to, .. } => {
                    assert_eq!(to, PEER);
                    view.granted.insert(slot, (generation, session));
                }
                SlotState::Quarantined { origin } => {
                    view.quarantined.insert(slot, origin);
                }
                SlotState::Free | SlotState::Live { .. } => {}
                state => panic!("{slot} is {state:?} after a restart"),
            }
        }
        view.files = pool.files().map(|file| (file.file, (**file).clone())).collect();
        view.opaque = u32::from_le_bytes(snapshot.try_into().unwrap());
        for (kind, bytes) in opaque {
            assert_eq!((*kind, &bytes[..4]), (7, &view.opaque.to_le_bytes()[..]), "in order, once");
            view.opaque += 1;
        }
        view
    }
}

const PEER: ReplicaId = ReplicaId(2);
const TERM: Term = Term(3);

/// One life of a process: its pool, the model of it and what it has under way.
struct Life {
    rig: Rig,
    now: View,
    /// The state as of each commit, and between which effects on the disk it was written.
    views: Vec<(usize, usize, View)>,
    on_its_way: Option<(Commit, View)>,
    allocated: Vec<Vec<Placed>>,
    granted: Vec<Vec<Placed>>,
    /// File, whether the retirement is flushed, and whether its readers have left.
    retired: BTreeMap<FileId, (FilePlacement, bool, bool)>,
    retiring: [BTreeSet<FileId>; 2],
    next_file: u64,
    generations: Generation,
    session: u64,
}

impl Life {
    fn new(rig: Rig, view: View, next_file: u64, generations: Generation) -> Self {
        rig.disk.start_recording();
        Self {
            session: view.session_floor,
            views: alloc::vec![(0, 0, view.clone())],
            now: view,
            rig,
            on_its_way: None,
            allocated: Vec::new(),
            granted: Vec::new(),
            retired: BTreeMap::new(),
            retiring: Default::default(),
            next_file,
            generations,
        }
    }

    fn step(&mut self, what: u8, a: u8, b: u8) {
        let pick = |len: usize| (len > 0).then(|| b as usize % len);
        match what {
            0 | 1 => self.allocate(u32::from(a % 5) + 1),
            2 | 3 => self.grant(u32::from(a % 4) + 1),
            4 | 5 => {
                if let Some(i) = pick(self.allocated.len()) {
                    let slots = self.allocated.swap_remove(i);
                    self.add_file(&slots);
                }
            }
            6 | 7 => {
                if let Some(i) = pick(self.granted.len()) {
                    let slots = self.granted.swap_remove(i);
                    self.add_file(&slots);
                }
            }
            8 | 9 => self.retire(b),
            10 => self.free(b),
            11 => {
                if let Some(i) = pick(self.allocated.len()) {
                    self.rig.pool.release(&self.allocated.swap_remove(i)).unwrap();
                }
            }
            12 if a < 64 => self.new_session(),
            12 | 13 => self.drain(a),
            14 => {
                if let Some(i) = pick(self.allocated.len()) {
                    let slots = self.allocated.swap_remove(i);
                    self.rig.pool.quarantine(&slots).unwrap();
                    for placed in slots {
                        self.now.quarantined.insert(placed.slot, QuarantineOrigin::Local);
                    }
                }
            }
            15 => {
                // Now and then an entry of several blocks, so that commits are torn inside.
                let mut bytes = self.now.opaque.to_le_bytes().to_vec();
                bytes.resize(if a < 200 { 20 } else { 9000 }, a);
                self.rig.pool.stage_opaque(7, bytes);
                self.now.opaque += 1;
            }
            16 => self.take(a < 20),
            17 => {
                if let Some(i) = pick(self.allocated.len()) {
                    self.replace(i, b);
                }
            }
            _ => self.finish(),
        }
    }

    fn hand_out(&mut self, placed: &[Placed]) {
        for placed in placed {
            assert!(placed.generation > self.generations, "no generation twice");
            self.generations = placed.generation;
            assert!(!self.now.granted.contains_key(&placed.slot));
            assert!(!self.now.quarantined.contains_key(&placed.slot));
            let in_use = self.now.files.values().chain(self.retired.values().map(|r| &r.0));
            for file in in_use {
                assert!(file.slots.iter().all(|s| s.slot != placed.slot), "a live slot is reused");
            }
            let held = self.allocated.iter().flatten();
            assert!(held.into_iter().all(|s| s.slot != placed.slot), "an allocated slot is reused");
        }
    }

    fn allocate(&mut self, slots: u32) {
        if let Ok(placed) = self.rig.pool.allocate(slots) {
            self.hand_out(&placed);
            self.allocated.push(placed);
        }
    }

    fn grant(&mut self, slots: u32) {
        let Ok(placed) = self.rig.pool.grant(TERM, self.session, PEER, slots) else { return };
        self.hand_out(&placed);
        for placed in &placed {
            self.now.granted.insert(placed.slot, (placed.generation, self.session));
        }
        self.granted.push(placed);
    }

    fn add_file(&mut self, slots: &[Placed]) {
        self.next_file += 1;
        let file = placement(self.next_file, slots);
        self.rig.pool.add_file(file.clone()).unwrap();
        self.rig.pool.add_file(file.clone()).unwrap();
        for placed in slots {
            self.now.granted.remove(&placed.slot);
        }
        self.now.files.insert(file.file, file);
    }

    fn retire(&mut self, b: u8) {
        let Some(&file) = self.now.files.keys().nth(b as usize % self.now.files.len().max(1))
        else {
            return;
        };
        self.rig.pool.retire_file(file).unwrap();
        let placement = self.now.files.remove(&file).unwrap();
        self.retired.insert(file, (placement, false, false));
        self.retiring[0].insert(file);
    }

    /// Puts a file with as many slots into the allocated ones.
    fn replace(&mut self, i: usize, b: u8) {
        let wanted = self.allocated[i].len();
        let fitting = self.now.files.values().filter(|file| file.slots.len() == wanted);
        let fitting: Vec<_> = fitting.map(|file| file.file).collect();
        let Some(file) = fitting.get(b as usize % fitting.len().max(1)) else { return };
        let slots = self.allocated.swap_remove(i);
        let old = self.now.files[file].clone();
        let new = FilePlacement { slots, ..old.clone() };
        self.rig.pool.replace_file(new.clone()).unwrap();
        for placed in &old.slots {
            self.now.quarantined.insert(placed.slot, QuarantineOrigin::Local);
        }
        self.now.files.insert(*file, new);
    }

    fn free(&mut self, b: u8) {
        let Some(&file) = self.retired.keys().nth(b as usize % self.retired.len().max(1)) else {
            return;
        };
        self.rig.pool.free_file(file).unwrap();
        self.retired.get_mut(&file).unwrap().2 = true;
        self.drop_retired();
    }

    fn drop_retired(&mut self) {
        self.retired.retain(|_, (_, durable, unread)| !(*durable && *unread));
    }

    fn new_session(&mut self) {
        self.session += 1;
        self.now.session_floor = self.session;
        let voided = self.rig.pool.void_grants(self.session);
        assert_eq!(voided.len(), self.now.granted.len());
        for (slot, (_, session)) in core::mem::take(&mut self.now.granted) {
            self.now.quarantined.insert(slot, QuarantineOrigin::Session(session));
        }
        for slots in core::mem::take(&mut self.granted) {
            assert!(self.rig.pool.add_file(placement(u64::MAX, &slots)).is_err(), "H4");
        }
    }

    fn drain(&mut self, a: u8) {
        let below = self.session.saturating_sub(u64::from(a % 2));
        let (drained, origin) = if a.is_multiple_of(3) {
            (Drained::Local, None)
        } else {
            (Drained::SessionsBelow(below), Some(below))
        };
        let freed: BTreeSet<_> = self.rig.pool.release_quarantined(drained).into_iter().collect();
        let mut expected = BTreeSet::new();
        self.now.quarantined.retain(|&slot, of| {
            let ended = match (*of, origin) {
                (QuarantineOrigin::Local, None) => true,
                (QuarantineOrigin::Session(session), Some(below)) => session < below,
                _ => false,
            };
            if ended {
                expected.insert(slot);
            }
            !ended
        });
        assert_eq!(freed, expected);
    }

    fn take(&mut self, checkpoint: bool) {
        if self.on_its_way.is_some() {
            assert!(self.rig.pool.take_commit().is_none());
            return;
        }
        let pool = &mut self.rig.pool;
        let commit = if checkpoint || pool.needs_checkpoint() {
            Some(pool.checkpoint(&self.now.opaque.to_le_bytes()).unwrap())
        } else {
            pool.take_commit()
        };
        if let Some(commit) = commit {
            self.retiring[1] = core::mem::take(&mut self.retiring[0]);
            self.on_its_way = Some((commit, self.now.clone()));
        }
    }

    fn finish(&mut self) {
        let Some((commit, view)) = self.on_its_way.take() else { return };
        let effects = |disk: &SimulatedDisk| disk.recording().unwrap().effects().len();
        let (number, start) = (commit.number, effects(&self.rig.disk));
        self.rig.block_on(write_commit(&self.rig.handle, commit)).unwrap();
        self.rig.pool.committed(number);
        self.views.push((start, effects(&self.rig.disk), view));
        for file in core::mem::take(&mut self.retiring[1]) {
            self.retired.get_mut(&file).unwrap().1 = true;
        }
        self.drop_retired();
    }

    /// The pool in memory is what the model says.
    fn check(&self) {
        self.rig.pool.invariants();
        let counts = self.rig.pool.counts();
        let slots = |files: &mut dyn Iterator<Item = &FilePlacement>| {
            files.map(|file| file.slots.len() as u32).sum::<u32>()
        };
        assert_eq!(counts.live, slots(&mut self.now.files.values()));
        assert_eq!(counts.retired, slots(&mut self.retired.values().map(|r| &r.0)));
        assert_eq!(counts.allocated, self.allocated.iter().flatten().count() as u32);
        assert_eq!(counts.granted, self.now.granted.len() as u32);
        assert_eq!(counts.quarantined, self.now.quarantined.len() as u32);
    }

    /// Opens what a crash at each boundary leaves and holds it against the model.
    fn check_crashes(&self, recording: &Recording, variants: u64, seed: u64) {
        let mut replay = recording.replay();
        loop {
            let k = replay.boundary();
            let several = if replay.unsynced() == 0 { 1 } else { variants };
            for variant in 0..several {
                let variant = if variant < 2 { variant } else { seed.wrapping_add(variant) };
                self.check_image(&replay.image(variant), k, variant, seed);
            }
            if !replay.advance() {
                break;
            }
        }
    }

    fn check_image(&self, image: &SimulatedDisk, k: usize, variant: u64, seed: u64) -> View {
        image.start_recording();
        let rig = Rig::open(image.clone()).unwrap_or_else(|error| {
            panic!("boundary {k}, variant {variant}: {error}");
        });
        let view = View::of(&rig.pool, &rig.snapshot, &rig.opaque);
        let flushed = self.views.iter().rposition(|&(_, end, _)| end <= k).unwrap();
        let begun = self.views.iter().rposition(|&(start, ..)| start < k.max(1)).unwrap();
        let allowed = &self.views[flushed..=begun.max(flushed)];
        assert!(
            allowed.iter().any(|(.., v)| *v == view),
            "boundary {k}, variant {variant}: {view:#?}\nis none of {allowed:#?}"
        );
        let counts = rig.pool.counts();
        assert_eq!(counts.allocated + counts.retired, 0, "no slot leaks");
        // Opening is interrupted too, for one image in four at each of its own boundaries. Once it
        // is through, it is settled whether the commit on its way is there.
        let recording = image.recording().unwrap();
        let end = recording.effects().len();
        let first = if (k as u64).wrapping_add(variant).is_multiple_of(4) { 0 } else { end };
        for inner in first..=end {
            let again = recording.image_at(inner, seed.wrapping_add(variant) | 2);
            let handle = again.handle();
            let found = again.block_on(&handle, recover(&handle)).unwrap().recovered;
            let found = View::of(&found.pool, &found.opaque_snapshot, &found.opaque);
            if inner == end {
                assert_eq!(found, view);
            } else {
                assert!(allowed.iter().any(|(.., v)| *v == found), "opening cut at {inner}");
            }
        }
        view
    }
}

/// The seed of a life's crash, and its steps.
type Script = (u64, Vec<(u8, u8, u8)>);

fn run(area_blocks: u64, lives: &[Script]) {
    let mut rig = Rig::with_area(area_blocks, &0u32.to_le_bytes());
    let (mut view, mut next_file, mut generations) = (View::default(), 0, Generation::ZERO);
    for (seed, steps) in lives {
        let mut life = Life::new(rig, view, next_file, generations);
        for &(what, a, b) in steps {
            life.step(what, a, b);
            life.check();
        }
        let recording = life.rig.disk.recording().unwrap();
        life.check_crashes(&recording, 6, *seed);
        // The next life begins where a crash somewhere in this one left the disk.
        let k = *seed as usize % (recording.effects().len() + 1);
        let image = recording.image_at(k, *seed);
        view = life.check_image(&image.fork(), k, *seed, *seed);
        (next_file, generations) = (life.next_file, life.generations);
        rig = Rig::open(image).unwrap();
        if rig.pool.needs_checkpoint() {
            rig.checkpoint(&view.opaque.to_le_bytes());
        }
    }
}

fn lives() -> impl Strategy<Value = Vec<Script>> {
    let steps = prop::collection::vec((0u8..21, any::<u8>(), any::<u8>()), 1..120);
    prop::collection::vec((any::<u64>(), steps), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// docs/faults.md: E1
    #[test]
    fn after_a_crash_anywhere_a_pool_is_as_of_its_last_commit(
        area_blocks in 16u64..64,
        lives in lives(),
    ) {
        run(area_blocks, &lives);
    }
}
