//! The state of a pool and what may be done to it. Nothing here waits or does I/O.
//!
//! A call changes the state at once and *stages* what has to survive. [`Pool::take_commit`] makes
//! one record of everything staged; the caller writes and flushes it ([`crate::write_commit`]) and
//! then calls [`Pool::committed`]. One commit is on its way at a time; what is staged meanwhile
//! goes with the next: a group commit. Until its commit is confirmed, a change must not be shown to
//! anybody else: a grant is not sent, an edit not acknowledged.
//!
//! When a write of a commit fails, the pool is of no more use: nothing since the last good flush
//! counts and a repeated flush proves nothing (docs/faults.md E8). Open it anew.

use crate::journal::{Commit, Journal};
use crate::placement_log::{
    FilePlacement, Operation, Placed, QuarantineOrigin, encode_opaque_snapshot,
};
use crate::slots::{Counts, SlotState, SlotTable};
use crate::{Geometry, PoolId, Superblock};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{
    Error, FileId, FileKind, Generation, GroupId, ReplicaId, Result, SlotIndex, Term,
};

/// Generations reserved at a time. Each start skips what is left of the last reservation; there is
/// room for 2^43 starts.
const GENERATION_STEP: u64 = 1 << 20;
/// No pool comes near it; a number above is not one that was written.
const GENERATION_MAX: u64 = 1 << 63;

/// What is known to have ended, so that slots may leave quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The device was opened anew under its lock; no write of an earlier process is under way.
    Local,
    /// The connections of all sessions below this one are closed and nothing of them is in flight.
    SessionsBelow(u64),
}

/// Where a file is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// Retired; `durable` once the commit that says so is, `unread` once the last reader left.
    Retired {
        durable: bool,
        unread: bool,
    },
}

#[cfg_attr(test, derive(Clone))]
struct FileEntry {
    placement: Arc<FilePlacement>,
    life: Life,
}

/// One pool: slots, files and the placement log that makes them last.
// A device has one. Only a test that tries every sequence of calls goes on from one state in
// several ways.
#[cfg_attr(test, derive(Clone))]
pub struct Pool {
    geometry: Geometry,
    group: GroupId,
    slots: SlotTable,
    files: BTreeMap<FileId, FileEntry>,
    journal: Journal,
    next_generation: u64,
    /// Generations below this one may be given out: the reservation is durable.
    generation_limit: u64,
    /// The reservation staged or on its way.
    generation_reserved: u64,
    /// Grants of sessions below this one are void.
    session_floor: u64,
    /// Files retired by what is staged.
    retiring: Vec<FileId>,
    /// Files retired by the commit on its way, and the reservation that it makes durable.
    in_flight: (Vec<FileId>, u64),
}

impl Pool {
    pub(crate) fn new(superblock: &Superblock, geometry: Geometry, group: GroupId) -> Self {
        Self {
            slots: SlotTable::new(geometry.slots()),
            geometry,
            group,
            files: BTreeMap::new(),
            journal: Journal::new(superblock.pool_id, superblock.areas),
            next_generation: 1,
            generation_limit: 1,
            generation_reserved: 1,
            session_floor: 0,
            retiring: Vec::new(),
            in_flight: (Vec::new(), 1),
        }
    }

    /// The pool's name.
    #[must_use]
    pub const fn pool_id(&self) -> PoolId {
        self.journal.pool_id
    }

    /// The group that the region belongs to.
    #[must_use]
    pub const fn group(&self) -> GroupId {
        self.group
    }

    /// Where the slots lie on the device; [`Geometry::namespace`] is the remote view.
    #[must_use]
    pub const fn region(&self) -> &Geometry {
        &self.geometry
    }

    /// The first session of the peer connection that may hold grants; durable with its commit.
    #[must_use]
    pub const fn session_floor(&self) -> u64 {
        self.session_floor
    }

    /// How many slots are in which state.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.slots.counts()
    }

    /// The state of a slot, if the region has it. What an embedded target asks before it admits a
    /// write: only a granted slot (and its header) of the right session may be written.
    #[must_use]
    pub fn slot_state(&self, slot: SlotIndex) -> Option<SlotState> {
        self.slots.state(slot)
    }

    /// Bytes of memory that slots, files and what is staged take, about: nodes of trees are taken
    /// to be two thirds full.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        const NODE: usize = (size_of::<FileId>() + size_of::<FileEntry>()) * 3 / 2;
        let files = self.files.values().map(|entry| NODE + entry.placement.memory_used());
        self.slots.memory_used() + files.sum::<usize>() + self.journal.staged.capacity()
    }

    /// Where a file lies; also a retired one that still has readers.
    #[must_use]
    pub fn placement(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.files.get(&file).map(|entry| entry.placement.clone())
    }

    /// The files that are live, in the order of their ids.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FilePlacement>> {
        let live = self.files.values().filter(|entry| entry.life == Life::Live);
        live.map(|entry| &entry.placement)
    }

    /// Takes free slots for a local job, all or none, adjacent where possible. Nothing is staged:
    /// after a restart they are free again.
    ///
    /// # Errors
    /// No space when fewer are free; unavailable when a commit has to be made
    /// first (right after a start that found no room for one).
    pub fn allocate(&mut self, slots: u32) -> Result<Vec<Placed>> {
        let placed = self.choose(slots)?;
        for placed in &placed {
            self.enter(placed.slot, SlotState::Allocated { generation: placed.generation });
        }
        self.end_step();
        Ok(placed)
    }

    /// Gives back what a local job did not need.
    ///
    /// # Errors
    /// Fenced, and nothing is released, when one of them is not allocated in that generation.
    pub fn release(&mut self, slots: &[Placed]) -> Result<()> {
        self.check_allocated(slots)?;
        for placed in slots {
            self.enter(placed.slot, SlotState::Free);
        }
        self.end_step();
        Ok(())
    }

    /// Takes allocated slots out of use because a local write into them failed or had an unknown
    /// outcome. Staged.
    ///
    /// # Errors
    /// Fenced, and nothing changes, when one of them is not allocated in that generation.
    pub fn quarantine(&mut self, slots: &[Placed]) -> Result<()> {
        self.check_allocated(slots)?;
        let origin = QuarantineOrigin::Local;
        for placed in slots {
            self.enter(placed.slot, SlotState::Quarantined { origin });
        }
        if !slots.is_empty() {
            let slots = slots.iter().map(|placed| placed.slot).collect();
            self.journal.stage(&Operation::SlotsQuarantined { origin, slots });
        }
        self.end_step();
        Ok(())
    }

    /// Lets a peer write into free slots. Staged; the grant must not be sent before its commit is
    /// confirmed, else a crash could give the slots to somebody else.
    ///
    /// # Errors
    /// Fenced when the session's grants are void already; no space and unavailable as
    /// [`Self::allocate`].
    pub fn grant(
        &mut self,
        term: Term,
        session: u64,
        to: ReplicaId,
        slots: u32,
    ) -> Result<Vec<Placed>> {
        if session < self.session_floor {
            return Err(Error::fenced(format!(
                "grants of session {session} are void, the first that may hold any is {}",
                self.session_floor
            )));
        }
        let placed = self.choose(slots)?;
        for &Placed { slot, generation } in &placed {
            self.enter(slot, SlotState::Granted { generation, term, session, to });
        }
        if !placed.is_empty() {
            let slots = placed.clone();
            self.journal.stage(&Operation::SlotsGranted { term, session, to, slots });
        }
        self.end_step();
        Ok(placed)
    }

    /// Voids all grants of sessions below this one: what is granted and not live goes into
    /// quarantine, as a late write may still land there (docs/faults.md H5). Staged. Returns the
    /// slots.
    pub fn void_grants(&mut self, below_session: u64) -> Vec<SlotIndex> {
        let voided = self.apply_void(below_session);
        if below_session > self.session_floor || !voided.is_empty() {
            self.session_floor = self.session_floor.max(below_session);
            self.journal.stage(&Operation::GrantsVoided { below_session });
        }
        self.end_step();
        voided
    }

    /// Frees what is in quarantine because of something that has ended by now. Staged. Returns the
    /// slots.
    pub fn release_quarantined(&mut self, drained: Drained) -> Vec<SlotIndex> {
        self.release_quarantined_but(drained, &BTreeSet::new())
    }

    /// As [`Self::release_quarantined`], without slots that nothing is to be written to again in
    /// this process.
    pub fn release_quarantined_but(
        &mut self,
        drained: Drained,
        but: &BTreeSet<SlotIndex>,
    ) -> Vec<SlotIndex> {
        let has_ended = |origin| match (drained, origin) {
            (Drained::Local, QuarantineOrigin::Local) => true,
            (Drained::SessionsBelow(below), QuarantineOrigin::Session(session)) => session < below,
            _ => false,
        };
        let mut slots = self.slots_where(
            |state| matches!(state, SlotState::Quarantined { origin } if has_ended(origin)),
        );
        slots.retain(|slot| !but.contains(slot));
        for &slot in &slots {
            self.enter(slot, SlotState::Free);
        }
        if !slots.is_empty() {
            self.journal.stage(&Operation::SlotsReleased(slots.clone()));
        }
        self.end_step();
        slots
    }

    /// Makes a file live in slots that are allocated here or granted, in those very generations.
    /// Staged. The same file in the same place once more changes nothing (docs/faults.md H2).
    ///
    /// # Errors
    /// Fenced when a slot is not held in that generation (voided, freed, reused: docs/faults.md
    /// H4); invalid input when length and slots disagree or the file lies elsewhere. Nothing
    /// changes.
    pub fn add_file(&mut self, placement: FilePlacement) -> Result<()> {
        placement.check(&self.geometry)?;
        if let Some(entry) = self.files.get(&placement.file) {
            if entry.life == Life::Live && *entry.placement == placement {
                return Ok(());
            }
            return Err(Error::invalid(format!(
                "{} is in the pool already, {:?}",
                placement.file, entry.life
            )));
        }
        for &placed in &placement.slots {
            self.slots.check_held(placed).map_err(|e| e.within(format!("{}", placement.file)))?;
        }
        let placement = Arc::new(placement);
        self.journal.stage(&Operation::FileLive(placement.clone()));
        self.insert_file(placement);
        self.end_step();
        Ok(())
    }

    /// Puts a live file, of which a part rotted, into other slots, which are held as
    /// [`Self::add_file`] wants them and hold the same bytes as were written first. Staged as a
    /// whole: a crash finds the file in the old slots or in the new ones.
    ///
    /// The old slots go into quarantine until the next start: what was written there came back as
    /// something else. Nothing is written there meanwhile, so no reader of them need be waited for.
    ///
    /// # Errors
    /// Not found when no such file is live; corruption when the placement is of another file of
    /// that number; otherwise as [`Self::add_file`]. Nothing changes.
    pub fn replace_file(&mut self, placement: FilePlacement) -> Result<()> {
        placement.check(&self.geometry)?;
        let file = placement.file;
        let live = self.files.get(&file).filter(|entry| entry.life == Life::Live);
        let Some(old) = live.map(|entry| entry.placement.clone()) else {
            return Err(Error::not_found(format!("{file} is not live in the pool")));
        };
        // A segment of the log got its place before its bytes: that tells neither term nor checksum
        // of the file that it has become.
        let is_segment = file.kind == FileKind::LogSegment;
        let content = |of: &FilePlacement| match is_segment {
            true => (Term::ZERO, of.len, 0),
            false => (of.term, of.len, of.checksum),
        };
        if content(&old) != content(&placement) {
            return Err(Error::corruption(format!(
                "{file}: its place was to be taken by {} bytes of {} with checksum {:08x}; it has {} of {} \
                 with {:08x}",
                placement.len, placement.term, placement.checksum, old.len, old.term, old.checksum
            )));
        }
        for &placed in &placement.slots {
            self.slots.check_held(placed).map_err(|e| e.within(format!("{file}")))?;
        }
        let origin = QuarantineOrigin::Local;
        for &Placed { slot, generation } in &old.slots {
            self.enter(slot, SlotState::Retired { generation, file });
            self.enter(slot, SlotState::Quarantined { origin });
        }
        let placement = Arc::new(placement);
        self.journal.stage(&Operation::FileRetired(file));
        self.journal.stage(&Operation::FileLive(placement.clone()));
        let slots = old.slots.iter().map(|placed| placed.slot).collect();
        self.journal.stage(&Operation::SlotsQuarantined { origin, slots });
        self.insert_file(placement);
        self.end_step();
        Ok(())
    }

    /// Takes a file out of the live ones. Staged. It stays readable until [`Self::free_file`]; a
    /// restart frees it.
    ///
    /// # Errors
    /// Not found when no such file is live.
    pub fn retire_file(&mut self, file: FileId) -> Result<()> {
        let entry = self.files.get_mut(&file).filter(|entry| entry.life == Life::Live);
        let Some(entry) = entry else {
            return Err(Error::not_found(format!("{file} is not live in the pool")));
        };
        entry.life = Life::Retired { durable: false, unread: false };
        let placement = entry.placement.clone();
        for placed in &placement.slots {
            let generation = placed.generation;
            self.enter(placed.slot, SlotState::Retired { generation, file });
        }
        self.retiring.push(file);
        self.journal.stage(&Operation::FileRetired(file));
        self.end_step();
        Ok(())
    }

    /// The last reader of a retired file left. Its slots are free as soon as the retirement is also
    /// durable: before, a crash would bring the file back, and its bytes must still be there.
    ///
    /// # Errors
    /// Not found when the file is not retired.
    pub fn free_file(&mut self, file: FileId) -> Result<()> {
        match self.files.get_mut(&file).map(|entry| &mut entry.life) {
            Some(Life::Retired { unread, .. }) => *unread = true,
            _ => return Err(Error::not_found(format!("{file} is not retired in the pool"))),
        }
        self.drop_if_done(file);
        self.end_step();
        Ok(())
    }

    /// Stages an entry of an upper layer; [`crate::open`] gives it back in order.
    pub fn stage_opaque(&mut self, kind: u16, bytes: Vec<u8>) {
        self.journal.stage(&Operation::Opaque { kind, bytes });
    }

    /// Everything staged as one commit, applied as a whole or not at all after a crash. Nothing
    /// when nothing is staged, a commit is on its way, or the area has no room for it, which
    /// [`Self::needs_checkpoint`] tells.
    pub fn take_commit(&mut self) -> Option<Commit> {
        let commit = self.journal.take()?;
        assert!(self.in_flight.0.is_empty(), "one commit is on its way at a time");
        self.in_flight = (core::mem::take(&mut self.retiring), self.generation_reserved);
        Some(commit)
    }

    /// Whether [`Self::checkpoint`] is due: the open area is three quarters full or has no room for
    /// what is staged.
    #[must_use]
    pub fn needs_checkpoint(&self) -> bool {
        self.journal.is_nearly_full()
    }

    /// The whole state, with everything staged, as a commit that opens the other area.
    /// `opaque_snapshot` is the upper layer's state and must already contain what its staged
    /// entries say.
    ///
    /// # Errors
    /// Unavailable while a commit is on its way; limit exceeded when the state takes more than half
    /// an area. Nothing changes.
    pub fn checkpoint(&mut self, opaque_snapshot: &[u8]) -> Result<Commit> {
        let body = self.encode_state(opaque_snapshot);
        let commit = self.journal.checkpoint(&body)?;
        assert!(self.in_flight.0.is_empty(), "one commit is on its way at a time");
        self.in_flight = (core::mem::take(&mut self.retiring), self.generation_reserved);
        Ok(commit)
    }

    /// The commit on its way was written and flushed.
    ///
    /// # Panics
    /// When another number, or none, is on its way.
    pub fn committed(&mut self, number: u64) {
        self.journal.committed(number);
        let (retired, limit) = core::mem::take(&mut self.in_flight);
        assert!(limit >= self.generation_limit, "a reservation is never taken back");
        self.generation_limit = limit;
        for file in retired {
            if let Some(Life::Retired { durable, .. }) =
                self.files.get_mut(&file).map(|entry| &mut entry.life)
            {
                *durable = true;
            }
            self.drop_if_done(file);
        }
        self.end_step();
    }

    /// Ends each call that changes slots or files.
    fn end_step(&self) {
        let Counts { total, free, allocated, granted, live, retired, quarantined } = self.counts();
        let in_use = allocated + granted + live + retired + quarantined;
        assert_eq!(free + in_use, total, "each slot is in one state");
        assert!(
            self.next_generation <= self.generation_limit,
            "generations are durably reserved before they are given out"
        );
        if crate::CHECKED {
            self.invariants();
        }
    }

    /// Checks that every slot is in exactly one state, that counts add up, and that files and slots
    /// agree. For tests and simulators, at the end of each step.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub fn invariants(&self) {
        self.slots.invariants();
        let mut in_files = 0;
        for (&file, entry) in &self.files {
            assert_eq!(file, entry.placement.file);
            for &Placed { slot, generation } in &entry.placement.slots {
                let expected = match entry.life {
                    Life::Live => SlotState::Live { generation, file },
                    Life::Retired { .. } => SlotState::Retired { generation, file },
                };
                assert_eq!(self.slots.state(slot), Some(expected), "{slot} of {file}");
                in_files += 1;
            }
        }
        let counts = self.counts();
        assert_eq!(in_files, counts.live + counts.retired, "no slot holds a part of no file");
        for (slot, state) in self.slots.iter() {
            if let Some(generation) = state.generation() {
                assert!(
                    generation.get() < self.next_generation,
                    "{slot}: {generation} is given out"
                );
            }
            if let SlotState::Granted { session, .. } = state {
                assert!(session >= self.session_floor, "{slot}: grants below the floor are void");
            }
        }
        assert!(self.next_generation <= self.generation_limit.max(1));
        assert!(self.generation_limit <= self.generation_reserved);
    }

    fn slots_where(&self, is_wanted: impl Fn(SlotState) -> bool) -> Vec<SlotIndex> {
        let wanted = self.slots.iter().filter(|&(_, state)| is_wanted(state));
        wanted.map(|(slot, _)| slot).collect()
    }

    /// A change of state that was checked before.
    fn enter(&mut self, slot: SlotIndex, next: SlotState) {
        self.slots.change(slot, next).expect("the caller has checked the slot's state");
    }

    fn check_allocated(&self, slots: &[Placed]) -> Result<()> {
        for placed in slots {
            let state = self.slots.state(placed.slot);
            let allocated = SlotState::Allocated { generation: placed.generation };
            if state != Some(allocated) {
                return Err(Error::fenced(format!(
                    "{} {} is not allocated: it is {state:?}",
                    placed.slot, placed.generation
                )));
            }
        }
        // Sorted: a job that is given up gives back thousands.
        let mut named: Vec<SlotIndex> = slots.iter().map(|placed| placed.slot).collect();
        named.sort_unstable();
        match named.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid(format!("{} is named twice", pair[0]))),
            None => Ok(()),
        }
    }

    /// Chooses free slots and gives each a new generation, keeping `kept` slots back.
    fn choose(&mut self, slots: u32) -> Result<Vec<Placed>> {
        let free = self.counts().free;
        if slots > free {
            return Err(Error::no_space(format!(
                "{slots} slots wanted, {free} free of {}",
                self.counts().total
            )));
        }
        if self.next_generation + u64::from(slots) > self.generation_limit {
            return Err(Error::unavailable(format!(
                "{slots} slots wanted, generations are durably reserved up to {}: commit first",
                self.generation_limit
            )));
        }
        let mut placed = Vec::with_capacity(slots as usize);
        if slots > 0 {
            for slot in self.slots.choose_free(slots) {
                placed.push(Placed { slot, generation: Generation(self.next_generation) });
                self.next_generation += 1;
            }
        }
        self.reserve_generations();
        assert_eq!(placed.len(), slots as usize, "as many slots were free");
        Ok(placed)
    }

    /// Generations may be given out before a commit reserves them: of a pool whose superblock is
    /// not written yet nothing outlives a crash, and its first checkpoint reserves what was given
    /// out.
    pub(crate) fn give_out_at_once(&mut self) {
        self.reserve_generations();
        self.generation_limit = self.generation_reserved;
    }

    /// Stages a new reservation when half of the last one is used.
    pub(crate) fn reserve_generations(&mut self) {
        if self.next_generation + GENERATION_STEP / 2 >= self.generation_reserved {
            let up_to = self.next_generation + GENERATION_STEP;
            self.generation_reserved = up_to;
            self.journal.stage(&Operation::GenerationReserved { up_to });
        }
    }

    fn apply_void(&mut self, below_session: u64) -> Vec<SlotIndex> {
        let mut voided = Vec::new();
        for (slot, state) in self.slots.iter() {
            if let SlotState::Granted { session, .. } = state
                && session < below_session
            {
                voided.push((slot, session));
            }
        }
        for &(slot, session) in &voided {
            let origin = QuarantineOrigin::Session(session);
            self.enter(slot, SlotState::Quarantined { origin });
        }
        voided.into_iter().map(|(slot, _)| slot).collect()
    }

    fn insert_file(&mut self, placement: Arc<FilePlacement>) {
        let file = placement.file;
        for placed in &placement.slots {
            let generation = placed.generation;
            self.enter(placed.slot, SlotState::Live { generation, file });
        }
        let before = self.files.insert(file, FileEntry { placement, life: Life::Live });
        let was_live = before.is_some_and(|before| before.life != Life::Live);
        assert!(!was_live, "{file}: its place is not taken while it has readers elsewhere");
    }

    fn drop_if_done(&mut self, file: FileId) {
        let done = Life::Retired { durable: true, unread: true };
        if self.files.get(&file).is_none_or(|entry| entry.life != done) {
            return;
        }
        if let Some(entry) = self.files.remove(&file) {
            for placed in &entry.placement.slots {
                self.enter(placed.slot, SlotState::Free);
            }
        }
    }
}

/// The durable state as operations, and back.
impl Pool {
    /// The whole durable state: what a restart would find, as the body of a snapshot.
    pub(crate) fn encode_state(&self, opaque_snapshot: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        let up_to = self.generation_reserved;
        Operation::GenerationReserved { up_to }.encode(&mut body);
        Operation::GrantsVoided { below_session: self.session_floor }.encode(&mut body);
        for placement in self.files() {
            Operation::FileLive(placement.clone()).encode(&mut body);
        }
        let mut granted: BTreeMap<_, Vec<Placed>> = BTreeMap::new();
        let mut quarantined: BTreeMap<_, Vec<SlotIndex>> = BTreeMap::new();
        for (slot, state) in self.slots.iter() {
            match state {
                SlotState::Granted { generation, term, session, to } => granted
                    .entry((term, session, to))
                    .or_default()
                    .push(Placed { slot, generation }),
                SlotState::Quarantined { origin } => {
                    quarantined.entry(origin).or_default().push(slot);
                }
                _ => {}
            }
        }
        for ((term, session, to), slots) in granted {
            Operation::SlotsGranted { term, session, to, slots }.encode(&mut body);
        }
        for (origin, slots) in quarantined {
            Operation::SlotsQuarantined { origin, slots }.encode(&mut body);
        }
        encode_opaque_snapshot(opaque_snapshot, &mut body);
        body
    }

    /// Applies an operation of the placement log; opaque ones are the caller's.
    ///
    /// # Errors
    /// Invalid input when the state does not allow it: to the caller, who reads it from a whole
    /// record, that is corruption.
    pub(crate) fn replay(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::FileLive(placement) => self.replay_file(placement),
            Operation::FileRetired(file) => {
                self.retire_file(file)?;
                self.retiring.clear();
                let life = Life::Retired { durable: true, unread: true };
                if let Some(entry) = self.files.get_mut(&file) {
                    entry.life = life;
                }
                self.drop_if_done(file);
                Ok(())
            }
            Operation::SlotsGranted { term, session, to, slots } => {
                if session < self.session_floor {
                    let floor = self.session_floor;
                    return Err(Error::invalid(format!(
                        "session {session} is below the floor of {floor}, and granted slots"
                    )));
                }
                slots.into_iter().try_for_each(|Placed { slot, generation }| {
                    self.check_reserved(generation)?;
                    let next = SlotState::Granted { generation, term, session, to };
                    self.slots.change(slot, next)
                })
            }
            Operation::GrantsVoided { below_session } => {
                self.apply_void(below_session);
                self.session_floor = self.session_floor.max(below_session);
                Ok(())
            }
            Operation::SlotsQuarantined { origin, slots } => {
                slots.into_iter().try_for_each(|slot| self.replay_quarantine(slot, origin))
            }
            Operation::SlotsReleased(slots) => {
                slots.into_iter().try_for_each(|slot| match self.slots.state(slot) {
                    Some(SlotState::Quarantined { .. }) => self.slots.change(slot, SlotState::Free),
                    state => Err(Error::invalid(format!("{slot} is {state:?} and released"))),
                })
            }
            Operation::GenerationReserved { up_to } => {
                if !(self.generation_reserved..=GENERATION_MAX).contains(&up_to) {
                    return Err(Error::invalid(format!(
                        "generations reserved up to {up_to} after {}, the limit is {GENERATION_MAX}",
                        self.generation_reserved
                    )));
                }
                (self.generation_reserved, self.generation_limit) = (up_to, up_to);
                self.next_generation = up_to;
                Ok(())
            }
            Operation::Opaque { .. } | Operation::OpaqueSnapshot(_) => Ok(()),
        }
    }

    /// Local allocations leave no record, so a slot may be free when a file appears in it.
    fn replay_file(&mut self, placement: Arc<FilePlacement>) -> Result<()> {
        placement.check(&self.geometry)?;
        if self.files.contains_key(&placement.file) {
            return Err(Error::invalid(format!("{} is live twice", placement.file)));
        }
        for &Placed { slot, generation } in &placement.slots {
            self.check_reserved(generation)?;
            if self.slots.state(slot) == Some(SlotState::Free) {
                self.slots.change(slot, SlotState::Allocated { generation })?;
            }
            self.slots.check_held(Placed { slot, generation })?;
        }
        self.insert_file(placement);
        Ok(())
    }

    fn replay_quarantine(&mut self, slot: SlotIndex, origin: QuarantineOrigin) -> Result<()> {
        if self.slots.state(slot) == Some(SlotState::Free) {
            let generation = Generation::ZERO;
            self.slots.change(slot, SlotState::Allocated { generation })?;
        }
        self.slots.change(slot, SlotState::Quarantined { origin })
    }

    fn check_reserved(&self, generation: Generation) -> Result<()> {
        if generation.get() < self.generation_reserved {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{generation} is in use, {} and above were never reserved",
            self.generation_reserved
        )))
    }

    /// Ends a replay: the journal goes on where the log read ends.
    pub(crate) fn resume(
        &mut self,
        area: usize,
        epoch: u64,
        number: u64,
        previous_crc: u32,
        used: u64,
    ) {
        self.journal.resume(area, epoch, number, previous_crc, used);
    }
}
