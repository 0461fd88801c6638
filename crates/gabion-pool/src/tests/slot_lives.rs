//! Every life of a slot (docs/faults.md H1, H3, H4): a small world of two slots and three files, of
//! which each sequence of steps is taken until no new state comes up, after some 20,000.
//!
//! ```text
//!   primary ── ships into what it was granted ──► bytes that land, at once, late or never
//!      │                                            │
//!      └── placement, once, late or never ──► Pool ─┴─► commit on its way ──► what a restart finds
//!                                               ▲
//!   secondary: grants, jobs of its own, edits that remove, readers that leave, new sessions, kills
//! ```
//!
//! The world follows the rules of those who use a pool and no others: a slot is written by whom it
//! was given to, grants are told when they are durable, a session is opened when nothing of older
//! ones is in flight. What it knows of slots is who may write into which use of one, and whose
//! bytes lie there.
//!
//! In each state: no slot has parts of two files; what is handed out is written by nobody else, and
//! holds nothing that a reader or a restart would still want; what is live, retired or durable has
//! its own bytes; whatever comes a second time, or once its time is over, changes nothing; and from
//! there every slot can become free again, with and without a restart, also one into which a file
//! was written by half.

use super::*;
use crate::placement_log::{Operation, RecordHeader};
use crate::slots::Counts;
use crate::{Commit, Drained, Geometry, QuarantineOrigin, SlotState};
use alloc::collections::{BTreeMap, VecDeque};
use gabion_base::{ErrorKind, Generation, HashSet, ReplicaId, SlotIndex, crc};
use std::eprintln;

const PEER: ReplicaId = ReplicaId(2);
const TERM: Term = Term(3);
const SLOTS: u32 = 2;
const FILES: usize = 3;

/// Who writes into a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// A job of this replica.
    Job,
    /// The primary, in a session.
    Primary(u64),
}

/// What became of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    Unmade,
    /// Its bytes are in flight.
    Written(Placed, Writer),
    /// Its bytes landed, and its placement is on its way to the pool.
    Whole(Placed, Writer),
    /// The pool took its placement, or will refuse it: whatever comes of it now comes again or too
    /// late.
    Over,
}

impl File {
    const fn placed(self) -> Option<Placed> {
        match self {
            Self::Unmade | Self::Over => None,
            Self::Written(placed, _) | Self::Whole(placed, _) => Some(placed),
        }
    }
}

/// How far the commit is that retires a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retirement {
    Staged,
    OnItsWay,
    Durable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Grant,
    /// The primary ships the file into a granted slot.
    Ship(usize, SlotIndex),
    /// A job of this replica makes the file.
    Make(usize),
    /// The file's bytes land.
    Land(usize),
    /// They never will: the target is drained of them, or the job's write failed.
    Fail(usize),
    /// Its placement comes in time.
    Place(usize),
    /// The outcome of a job's write is not known.
    Quarantine(usize),
    /// The job is given up.
    GiveUp(usize),
    /// The file's bytes rotted and it is written into another slot.
    Repair(usize),
    /// An edit removes it.
    Retire(usize),
    /// The last reader leaves it.
    Free(usize),
    /// The connection with the primary is made anew.
    RaiseSession,
    /// The target has drained what came before the session, and opens.
    Open,
    /// What is staged becomes a commit, or with everything else a checkpoint.
    Take,
    Committed,
    /// The process is killed, and the commit on its way is there or not.
    Restart {
        kept: bool,
    },
}

#[derive(Clone)]
struct World {
    pool: Pool,
    /// What a restart finds: an empty pool to which every commit was replayed.
    durable: Pool,
    /// A commit, and what a restart finds with it.
    on_its_way: Option<(u64, Pool)>,
    is_staged: bool,
    session: u64,
    /// The session whose writes the target takes.
    open: u64,
    files: [File; FILES],
    retired: [Option<Retirement>; FILES],
    /// Retired files that nobody reads any more.
    unread: [bool; FILES],
    /// Whose bytes were written into a slot last.
    bytes: [Option<usize>; SLOTS as usize],
    /// Uses of slots in which a file may still be placed, and who has them.
    held: Vec<(Placed, Writer)>,
    generations: Generation,
}

fn empty() -> Pool {
    let mut superblock = Superblock::plan(&config()).unwrap();
    // Areas without end: what happens when one is full is not the question here.
    superblock.areas.iter_mut().for_each(|area| area.len = 1 << 40);
    Pool::new(&superblock, Geometry::new(0, SLOTS), GROUP)
}

fn id(file: usize) -> FileId {
    FileId::sst(file as u64 + 1)
}

fn replay(pool: &mut Pool, commit: &Commit) {
    for stage in &commit.stages {
        let (_, header) = RecordHeader::peek(&stage.data).unwrap();
        for operation in Operation::decode_all(&header.body(&stage.data)).unwrap() {
            pool.replay(operation).unwrap();
        }
    }
    pool.resume(0, 1, commit.number, 0, 0);
    pool.invariants();
}

fn slots(pool: &Pool) -> impl Iterator<Item = SlotState> + '_ {
    (0..SLOTS).map(|slot| pool.slot_state(SlotIndex(slot)).unwrap())
}

/// What a restart goes on from.
fn view(pool: &Pool) -> (Vec<SlotState>, u64) {
    (slots(pool).collect(), pool.session_floor())
}

/// All of a pool that a call could have changed, and the checksum of what it would write.
fn all(pool: &Pool) -> (Vec<SlotState>, Counts, u64, Vec<FileId>, Option<u32>) {
    let staged = pool.clone().take_commit().map(|commit| crc::crc32c(&commit.stages[0].data));
    let files = pool.files().map(|placement| placement.file).collect();
    (slots(pool).collect(), pool.counts(), pool.session_floor(), files, staged)
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            pool: empty(),
            durable: empty(),
            on_its_way: None,
            is_staged: false,
            session: 0,
            open: 0,
            files: [File::Unmade; FILES],
            retired: [None; FILES],
            unread: [false; FILES],
            bytes: [None; SLOTS as usize],
            held: Vec::new(),
            generations: Generation::ZERO,
        };
        let commit = world.pool.checkpoint(b"").unwrap();
        replay(&mut world.durable, &commit);
        world.start(world.durable.clone());
        world
    }

    /// A process opens the pool, as [`crate::open`] and whoever calls it do.
    fn start(&mut self, found: Pool) {
        self.durable = found.clone();
        self.pool = found;
        self.on_its_way = None;
        self.pool.reserve_generations();
        if let Some(commit) = self.pool.take_commit() {
            replay(&mut self.durable, &commit);
            self.pool.committed(commit.number);
        }
        // Nothing that an earlier process wrote is in flight: it had the device's lock.
        for file in &mut self.files {
            if let File::Written(..) | File::Whole(..) = *file {
                *file = File::Over;
            }
        }
        (self.retired, self.unread) = ([None; FILES], [false; FILES]);
        self.held.clear();
        self.pool.release_quarantined(Drained::Local);
        self.session = self.pool.session_floor();
        self.raise_session();
    }

    fn raise_session(&mut self) {
        self.session += 1;
        self.pool.void_grants(self.session);
        self.is_staged = true;
        self.held.retain(|&(_, by)| by == Writer::Job);
        for file in &mut self.files {
            if let File::Whole(_, Writer::Primary(_)) = file {
                *file = File::Over;
            }
        }
    }

    fn is_live(&self, file: usize) -> bool {
        self.pool.files().any(|placement| placement.file == id(file))
    }

    fn is_retired(&self, file: usize) -> bool {
        !self.is_live(file) && self.pool.placement(id(file)).is_some()
    }

    fn is_open(&self) -> bool {
        self.open == self.session
    }

    /// Every step that somebody may take next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let has_free = self.pool.counts().free > 0;
        if self.is_open() && has_free {
            steps.push(Step::Grant);
        }
        // Files differ in their names only: the next one is the first that is not made.
        if let Some(next) = self.files.iter().position(|file| *file == File::Unmade) {
            if has_free {
                steps.push(Step::Make(next));
            }
            steps.extend(self.told().map(|placed| Step::Ship(next, placed.slot)));
        }
        for (file, state) in self.files.iter().enumerate() {
            match *state {
                File::Written(placed, by) => {
                    steps.push(Step::Land(file));
                    // While its session lasts the primary waits for a write to end.
                    if by != Writer::Primary(self.session) {
                        steps.push(Step::Fail(file));
                    }
                    if self.held.contains(&(placed, Writer::Job)) {
                        steps.push(Step::Quarantine(file));
                    }
                }
                File::Whole(_, by) => {
                    steps.push(Step::Place(file));
                    if by == Writer::Job {
                        steps.push(Step::GiveUp(file));
                    }
                }
                File::Unmade | File::Over => {}
            }
            if self.is_live(file) {
                steps.push(Step::Retire(file));
                if has_free {
                    steps.push(Step::Repair(file));
                }
            }
            if self.is_retired(file) && !self.unread[file] {
                steps.push(Step::Free(file));
            }
        }
        let is_drained = !self.files.iter().any(|file| {
            matches!(file, File::Written(_, Writer::Primary(session)) if *session < self.session)
        });
        if is_drained && !self.is_open() && self.durable.session_floor() == self.session {
            steps.push(Step::Open);
        }
        if self.is_open() {
            steps.push(Step::RaiseSession);
        }
        match self.on_its_way {
            Some(_) => steps.extend([Step::Committed, Step::Restart { kept: true }]),
            None if self.is_staged => steps.push(Step::Take),
            None => {}
        }
        steps.push(Step::Restart { kept: false });
        steps
    }

    /// What the primary was granted, has heard of and not used.
    fn told(&self) -> impl Iterator<Item = Placed> + '_ {
        let is_used = |placed| self.files.iter().any(|file| file.placed() == Some(placed));
        let granted = self.held.iter().filter(|(_, by)| *by != Writer::Job).map(|held| held.0);
        granted.filter(move |placed| {
            let durable = self.durable.slot_state(placed.slot);
            let is_durable = matches!(durable, Some(SlotState::Granted { generation, .. })
                if generation == placed.generation);
            is_durable && !is_used(*placed)
        })
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Grant => {
                let granted = self.pool.grant(TERM, self.session, PEER, 1).unwrap();
                self.is_staged = true;
                self.hand_out(granted[0], Writer::Primary(self.session));
            }
            Step::Make(file) => {
                let placed = self.pool.allocate(1).unwrap()[0];
                self.hand_out(placed, Writer::Job);
                self.files[file] = File::Written(placed, Writer::Job);
            }
            Step::Ship(file, slot) => {
                let placed = self.told().find(|placed| placed.slot == slot).unwrap();
                self.files[file] = File::Written(placed, Writer::Primary(self.session));
            }
            Step::Land(file) => self.land(file),
            Step::Place(file) => self.place(file),
            Step::Quarantine(file) => {
                let placed = self.files[file].placed().unwrap();
                self.pool.quarantine(&[placed]).unwrap();
                self.is_staged = true;
                self.let_go(placed);
            }
            Step::Fail(file) | Step::GiveUp(file) => self.give_up(file),
            Step::Repair(file) => self.repair(file),
            Step::Retire(file) => {
                self.pool.retire_file(id(file)).unwrap();
                self.is_staged = true;
                self.retired[file] = Some(Retirement::Staged);
            }
            Step::Free(file) => {
                self.pool.free_file(id(file)).unwrap();
                self.unread[file] = true;
            }
            Step::RaiseSession => self.raise_session(),
            Step::Open => {
                self.open = self.session;
                let freed = self.pool.release_quarantined(Drained::SessionsBelow(self.session));
                self.is_staged |= !freed.is_empty();
            }
            Step::Take => self.take_commit(),
            Step::Committed => {
                let (number, durable) = self.on_its_way.take().unwrap();
                self.pool.committed(number);
                self.durable = durable;
                self.move_on(Retirement::OnItsWay, Retirement::Durable);
            }
            Step::Restart { kept } => {
                let found = self.on_its_way.take().filter(|_| kept).map(|(_, with)| with);
                self.start(found.unwrap_or_else(|| self.durable.clone()));
            }
        }
    }

    fn hand_out(&mut self, placed: Placed, to: Writer) {
        let slot = placed.slot;
        assert!(placed.generation > self.generations, "{} is given out again", placed.generation);
        self.generations = placed.generation;
        assert!(self.held.iter().all(|(held, _)| held.slot != slot), "{slot} is held by another");
        for file in &self.files {
            let is_in_flight = matches!(file, File::Written(at, _) if at.slot == slot);
            assert!(!is_in_flight, "{slot} is handed out, and a write may still land in it");
        }
        let restarts = self.on_its_way.iter().map(|(_, with)| with).chain([&self.durable]);
        for found in restarts {
            let is_live = found.files().any(|file| file.slots[0].slot == slot);
            assert!(!is_live, "{slot} is handed out, and a restart would find a file in it");
        }
        let mut here = (0..FILES).filter_map(|file| self.pool.placement(id(file)));
        assert!(here.all(|file| file.slots[0].slot != slot), "{slot} is handed out with a file");
        self.held.push((placed, to));
    }

    fn let_go(&mut self, placed: Placed) {
        self.held.retain(|(held, _)| *held != placed);
    }

    fn is_held(&self, placed: Placed) -> bool {
        self.held.iter().any(|(held, _)| *held == placed)
    }

    /// The bytes are there; whoever waits for them places the file.
    fn land(&mut self, file: usize) {
        let File::Written(placed, by) = self.files[file] else { unreachable!() };
        self.bytes[placed.slot.0 as usize] = Some(file);
        let is_awaited = self.is_held(placed);
        self.files[file] = if is_awaited { File::Whole(placed, by) } else { File::Over };
    }

    /// The writing ended, and the file is not wanted.
    fn give_up(&mut self, file: usize) {
        let placed = self.files[file].placed().unwrap();
        if self.held.contains(&(placed, Writer::Job)) {
            self.pool.release(&[placed]).unwrap();
            self.let_go(placed);
        }
        self.files[file] = File::Over;
    }

    fn place(&mut self, file: usize) {
        let placed = self.files[file].placed().unwrap();
        self.pool.add_file(placement(id(file).number, &[placed])).unwrap();
        self.is_staged = true;
        self.let_go(placed);
        self.files[file] = File::Over;
    }

    fn repair(&mut self, file: usize) {
        let placed = self.pool.allocate(1).unwrap()[0];
        self.hand_out(placed, Writer::Job);
        self.bytes[placed.slot.0 as usize] = Some(file);
        self.pool.replace_file(placement(id(file).number, &[placed])).unwrap();
        self.is_staged = true;
        self.let_go(placed);
    }

    fn take_commit(&mut self) {
        let checkpoint = self.pool.clone().checkpoint(b"").unwrap();
        let commit = self.pool.take_commit().unwrap();
        let (mut with, mut anew) = (self.durable.clone(), empty());
        replay(&mut with, &commit);
        replay(&mut anew, &checkpoint);
        assert_eq!(view(&with), view(&anew), "a checkpoint says what the commits before it say");
        self.on_its_way = Some((commit.number, with));
        self.is_staged = false;
        self.move_on(Retirement::Staged, Retirement::OnItsWay);
    }

    fn move_on(&mut self, from: Retirement, to: Retirement) {
        let retired = self.retired.iter_mut().flatten();
        retired.filter(|it| **it == from).for_each(|it| *it = to);
    }

    /// What holds in every state.
    fn check(&self) {
        self.pool.invariants();
        for file in 0..FILES {
            let is_done = self.retired[file] == Some(Retirement::Durable) && self.unread[file];
            let is_kept = self.retired[file].is_some() && !is_done;
            assert_eq!(
                self.is_retired(file),
                is_kept,
                "file {file} is freed when nothing wants it"
            );
        }
        let mut owners = BTreeMap::new();
        for file in 0..FILES {
            let Some(placement) = self.pool.placement(id(file)) else { continue };
            let slot = placement.slots[0].slot;
            assert_eq!(owners.insert(slot, file), None, "{slot} has parts of two files");
            assert!(
                self.unread[file] || self.bytes[slot.0 as usize] == Some(file),
                "{slot} of file {file}, which may be read, was overwritten"
            );
        }
        let restarts = self.on_its_way.iter().map(|(_, with)| with).chain([&self.durable]);
        for found in restarts {
            for placement in found.files() {
                let slot = placement.slots[0].slot;
                let bytes = self.bytes[slot.0 as usize].map(id);
                assert_eq!(bytes, Some(placement.file), "what a restart finds was overwritten");
            }
        }
        for (file, state) in self.files.iter().enumerate() {
            match *state {
                File::Written(placed, by) => self.check_in_flight(placed, by),
                File::Whole(placed, _) => {
                    assert!(self.is_held(placed), "file {file} has lost its slot");
                    assert_eq!(
                        self.bytes[placed.slot.0 as usize],
                        Some(file),
                        "before it was placed"
                    );
                }
                File::Unmade | File::Over => {}
            }
        }
        let uses = (0..).map(SlotIndex).zip(slots(&self.pool)).filter_map(|(slot, state)| {
            let by = match state {
                SlotState::Allocated { .. } => Writer::Job,
                SlotState::Granted { session, .. } => Writer::Primary(session),
                _ => return None,
            };
            Some((Placed { slot, generation: state.generation()? }, by))
        });
        let mut held = self.held.clone();
        held.sort_by_key(|(placed, _)| *placed);
        assert!(uses.eq(held), "slots are held by others than they were given to");
    }

    fn check_in_flight(&self, placed: Placed, by: Writer) {
        let state = self.pool.slot_state(placed.slot).unwrap();
        let is_kept = match state {
            SlotState::Granted { generation, .. } | SlotState::Allocated { generation } => {
                generation == placed.generation
            }
            SlotState::Quarantined { origin: QuarantineOrigin::Local } => by == Writer::Job,
            SlotState::Quarantined { origin: QuarantineOrigin::Session(session) } => {
                by == Writer::Primary(session)
            }
            _ => false,
        };
        assert!(is_kept, "a write may land in {}, which is {state:?}", placed.slot);
    }

    /// Uses of slots: those that are, and those before and after them.
    fn uses(&self) -> Vec<Placed> {
        let mut generations = alloc::vec![1, self.generations.get() + 1];
        let now = slots(&self.pool).chain(slots(&self.durable)).filter_map(SlotState::generation);
        generations.extend(now.map(Generation::get).flat_map(|it| [it - 1, it, it + 1]));
        generations.sort_unstable();
        generations.dedup();
        let of = |slot| {
            let uses = generations.iter().map(|it| Generation(*it));
            uses.map(move |generation| Placed { slot: SlotIndex(slot), generation })
        };
        (0..SLOTS).flat_map(of).collect()
    }

    /// Whatever comes twice, or when its time is over, changes nothing.
    fn check_repetitions(&self) {
        let mut pool = self.pool.clone();
        let before = all(&pool);
        if self.on_its_way.is_none() {
            assert_eq!(
                before.4.is_some(),
                self.is_staged,
                "what changed is staged, and nothing else"
            );
        }
        for file in (0..FILES).filter(|file| self.files[*file] == File::Over) {
            let (live, retired) = (self.is_live(file), self.is_retired(file));
            assert!(live || pool.retire_file(id(file)).is_err(), "file {file} was retired twice");
            assert!(retired || pool.free_file(id(file)).is_err(), "file {file} was freed");
            for placed in self.uses() {
                let repeated = placement(id(file).number, &[placed]);
                let place = pool.placement(id(file));
                let is_there = live && place.as_deref() == Some(&repeated);
                // A slot that is held takes a file, but none that was placed before; see
                // `File::Over`.
                if is_there || live || retired || !self.is_held(placed) {
                    assert_eq!(
                        pool.add_file(repeated).is_ok(),
                        is_there,
                        "file {file} in {placed:?}"
                    );
                }
            }
        }
        for placed in self.uses() {
            if !self.held.contains(&(placed, Writer::Job)) {
                assert!(pool.release(&[placed]).is_err(), "{placed:?} was released");
                assert!(pool.quarantine(&[placed]).is_err(), "{placed:?} was quarantined");
            }
        }
        let floor = self.pool.session_floor();
        let late = pool.grant(TERM, floor - 1, PEER, 1).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
        assert_eq!(pool.void_grants(floor), [], "grants of this session were voided");
        assert_eq!(pool.release_quarantined(Drained::SessionsBelow(0)), []);
        assert_eq!(all(&pool), before, "what was refused changed something");
    }

    /// All that is under way ends, and every slot is free again, but those in which a job's write
    /// of unknown outcome may land until the next start, or something rotted.
    fn check_end(mut self, restarts: bool) {
        if restarts {
            self.take(Step::Restart { kept: false });
        }
        for file in 0..FILES {
            if self.files[file].placed().is_some() {
                self.give_up(file);
            }
            if self.is_live(file) {
                self.take(Step::Retire(file));
            }
            if self.is_retired(file) && !self.unread[file] {
                self.take(Step::Free(file));
            }
        }
        self.raise_session();
        while self.on_its_way.is_some() || self.is_staged {
            if self.on_its_way.is_none() {
                self.take(Step::Take);
            }
            self.take(Step::Committed);
        }
        self.take(Step::Open);
        for state in slots(&self.pool) {
            let rests = SlotState::Quarantined { origin: QuarantineOrigin::Local };
            let may_rest = state == rests && !restarts;
            assert!(state == SlotState::Free || may_rest, "a slot is lost: it stays {state:?}");
        }
    }

    /// The state as far as it decides what can happen next. Generations, sessions and files count
    /// by being the same or not.
    fn key(&self) -> Vec<u8> {
        let mut names = Names { session: self.session, ..Names::default() };
        let mut key = Vec::with_capacity(64);
        names.add_pool(&self.pool, &mut key);
        let writers = self.files.iter().enumerate().filter_map(|(file, state)| match *state {
            File::Written(placed, by) => Some((placed, by, file, 1)),
            File::Whole(placed, by) => Some((placed, by, file, 2)),
            File::Unmade | File::Over => None,
        });
        let mut writers: Vec<_> = writers.collect();
        writers.sort_by_key(|(placed, ..)| *placed);
        for (placed, by, file, tag) in writers {
            let is_now = by == Writer::Primary(self.session);
            let by = u8::from(by != Writer::Job) + u8::from(is_now);
            let (slot, use_of) = (placed.slot.0 as u8, names.generation(placed.generation));
            key.extend([tag, slot, use_of, by, names.file(id(file))]);
        }
        let mut retired: Vec<_> = (0..FILES).filter(|file| self.is_retired(*file)).collect();
        retired.sort_by_key(|file| names.file(id(*file)));
        for file in retired {
            let commit = self.retired[file].map_or(0, |it| it as u8);
            key.extend([names.file(id(file)), u8::from(self.unread[file]), commit]);
        }
        let unmade = self.files.iter().filter(|file| **file == File::Unmade).count();
        key.extend([unmade as u8, u8::from(self.is_open())]);
        key.push(u8::from(self.is_staged));
        names.add_pool(&self.durable, &mut key);
        if let Some((_, with)) = &self.on_its_way {
            names.add_pool(with, &mut key);
        }
        key
    }
}

/// Small numbers for what counts by being the same or not.
#[derive(Default)]
struct Names {
    generations: Vec<Generation>,
    files: Vec<FileId>,
    session: u64,
}

impl Names {
    fn of<T: PartialEq>(names: &mut Vec<T>, thing: T) -> u8 {
        let known = names.iter().position(|it| *it == thing);
        known.unwrap_or_else(|| {
            names.push(thing);
            names.len() - 1
        }) as u8
    }

    fn generation(&mut self, generation: Generation) -> u8 {
        Self::of(&mut self.generations, generation)
    }

    fn file(&mut self, file: FileId) -> u8 {
        Self::of(&mut self.files, file)
    }

    fn add_pool(&mut self, pool: &Pool, key: &mut Vec<u8>) {
        for state in slots(pool) {
            key.extend(match state {
                SlotState::Free => [0; 3],
                SlotState::Allocated { generation } => [1, self.generation(generation), 0],
                SlotState::Granted { generation, session, .. } => {
                    [2, self.generation(generation), u8::from(session == self.session)]
                }
                SlotState::Live { generation, file } => {
                    [3, self.generation(generation), self.file(file)]
                }
                SlotState::Retired { generation, file } => {
                    [4, self.generation(generation), self.file(file)]
                }
                SlotState::Quarantined { origin: QuarantineOrigin::Local } => [5, 0, 0],
                // A target is drained of all sessions before the current one at once.
                SlotState::Quarantined { origin: QuarantineOrigin::Session(_) } => [6, 0, 0],
            });
        }
        key.push(u8::from(pool.session_floor() == self.session));
    }
}

/// Prints the steps that led to a panic.
struct Trail<'a>(&'a [(usize, Option<Step>)], usize);

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (mut steps, mut at) = (Vec::new(), self.1);
        while let (before, Some(step)) = self.0[at] {
            steps.push(step);
            at = before;
        }
        steps.reverse();
        eprintln!("after {steps:?}");
    }
}

/// docs/faults.md: E12, H1, H3, H4
#[test]
fn no_sequence_of_steps_loses_a_slot_or_gives_it_to_two() {
    let mut seen = HashSet::default();
    let mut trail = alloc::vec![(0, None)];
    let mut next = VecDeque::from([(0, World::new())]);
    seen.insert(next[0].1.key());
    let mut taken = HashSet::default();
    while let Some((at, world)) = next.pop_front() {
        for step in world.steps() {
            trail.push((at, Some(step)));
            let here = trail.len() - 1;
            let told = Trail(&trail, here);
            let mut world = world.clone();
            world.take(step);
            world.check();
            let is_new = seen.insert(world.key());
            if is_new {
                world.check_repetitions();
                world.clone().check_end(false);
                world.clone().check_end(true);
            }
            drop(told);
            taken.insert(core::mem::discriminant(&step));
            if is_new {
                next.push_back((here, world));
            } else {
                trail.pop();
            }
        }
    }
    assert_eq!(taken.len(), 16, "every kind of step is possible somewhere");
}
