//! Bulk loads at the head: files that a caller made of sorted input (see [`gabion_engine::load`]).
//!
//! ```text
//!   begin_load ─► load_number, load_gate, add_to_load for each file ─► end_load
//!      file: slots set aside ─► written and flushed here, shipped to every secondary at once
//!      then: places durable here ─► every secondary has them
//!         ─► settling: what is in memory is flushed, compactions come to their end and none begins
//!         ─► writes wait: the load's number, a seal, the flush of the little that came since ─► edit appended
//!         ─► applied by every member: the load is there, and writes go on
//! ```
//!
//! Writes wait from the number to the end, some commits of the log and one small flush: a write
//! that found a key absent would else win over the load that was before it. Reads do not wait. A
//! command that reads at the head before it writes and waits for the device in between may span all
//! of it: whoever lets such commands and loads meet begins the former anew.
//!
//! Until its edit is appended a load can be given up: what it took comes back when its last write
//! has ended. A process that ends leaves files that no edit names, as jobs do, and their slots are
//! free with the next start.

use super::effects::{Effects, Signal};
use super::facts::Facts;
use super::orders::{After, Order};
use super::{Counters, LoadId};
use crate::work::{BuiltFile, RewriteOrder, Work, kept_by};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::{EDIT_LEN_MAX, SLOT_LEN};
use gabion_base::{Ends, Error, Failed, FileId, MemTableId, Result, SequenceNumber, Term};
use gabion_engine::{Edit, FileMeta, FinishedFile, JobKind};
use gabion_pool::{FilePlacement, Placed, Pool};

/// Files of a load that are being written here at a time: one while the next is made.
const WRITES_MAX: usize = 2;
/// A load is given up that has waited so long, in ms, for a flush that has not begun.
const STUCK_MS: u64 = 5_000;
/// What an edit takes besides its files, at most.
const EDIT_OVERHEAD: usize = 4096;

/// How a load is doing.
#[derive(Clone, Debug)]
pub enum LoadState {
    /// It takes files, or is on its way to be seen.
    Working,
    /// It is there: reads that begin now see all of it.
    Done,
    /// It cannot be taken any more, and nothing of it is there.
    Failed(Error),
}

/// Whether a load takes a file now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadGate {
    /// Yes.
    Open,
    /// Not yet.
    Wait(&'static str),
}

/// Loads by number: one is brought to its end after the other.
#[derive(Default)]
pub(super) struct Loads {
    loads: BTreeMap<LoadId, Load>,
    next: u64,
    ended: u64,
    loaded_bytes: u64,
}

/// Something that the log is to do for a load; [`Loads`] is told once it is done.
pub(super) enum LoadStep {
    /// Have what is in memory flushed, so that little is left to be flushed while writes wait.
    Settle,
    /// Give it a sequence number: a batch of one write that writes nothing.
    Number,
    /// Complete the MemTable that has what was written before its number.
    Seal(SequenceNumber),
    /// Append its edit, above which nothing older lies any more.
    Append(SequenceNumber),
}

/// The state of the other machines, as far as a load waits for them.
pub(super) struct LoadFacts<'a> {
    /// MemTables below this one are flushed.
    pub(super) flushed_below: MemTableId,
    /// No compaction is under way.
    pub(super) no_compaction: bool,
    /// No job is under way, and no edit.
    pub(super) is_idle: bool,
    /// Records may go into the log.
    pub(super) may_write: bool,
    /// The last edit that every member has applied.
    pub(super) applied: u64,
    /// Whether every secondary has a file.
    pub(super) is_held: &'a dyn Fn(FileId) -> bool,
}

struct Load {
    stage: Stage,
    /// The term that its files are of.
    term: Term,
    /// Its files, in the order of keys.
    files: Vec<(FileMeta, Arc<FilePlacement>)>,
    /// Bytes that these will take in the edit.
    edit_len: usize,
    /// Files that are being written here.
    writing: usize,
    /// Nobody asks for it any more.
    is_forgotten: bool,
}

enum Stage {
    /// Files come.
    Taking,
    /// All files came.
    Ending,
    /// Their places are being made durable.
    Placing,
    /// They are; secondaries may still lack some.
    Placed,
    /// MemTables below this one are being flushed, since this moment.
    Settling(MemTableId, u64),
    /// It has its number, and what was written before is to be sealed.
    Numbered(SequenceNumber),
    /// What was written before is in MemTables below this one, and is being flushed since this
    /// moment.
    Sealed(SequenceNumber, MemTableId, u64),
    /// Its edit is in the log.
    Appended(u64),
    /// Its edit is applied here.
    Applied(u64),
    Done,
    Failed(Error),
}

impl Load {
    fn slots(&self) -> impl Iterator<Item = Placed> {
        self.files.iter().flat_map(|(_, placement)| placement.slots.iter().copied())
    }

    /// Whether it is on its way into the tree, and writes wait for it.
    const fn takes_effect(&self) -> bool {
        matches!(
            self.stage,
            Stage::Numbered(_) | Stage::Sealed(..) | Stage::Appended(_) | Stage::Applied(_)
        )
    }

    /// Whether its slots are neither in the tree nor given back.
    const fn holds_slots(&self) -> bool {
        !matches!(self.stage, Stage::Applied(_) | Stage::Done)
    }
}

fn given_up() -> Stage {
    Stage::Failed(Error::invalid("the load was given up"))
}

impl Loads {
    // ---- questions

    /// Whether a load made the file that no edit names yet.
    pub(super) fn made(&self, file: FileId) -> bool {
        let mut files = self.loads.values().flat_map(|load| &load.files);
        files.any(|(meta, _)| meta.id == file)
    }

    /// Slots of files that no edit names yet.
    pub(super) fn slots(&self) -> u64 {
        let holding = self.loads.values().filter(|load| load.holds_slots());
        holding.map(|load| load.slots().count() as u64).sum()
    }

    /// Whether compactions are not to begin, as the place of a load in the tree is being decided.
    pub(super) fn hold_compactions(&self) -> bool {
        let is_settling = |load: &Load| matches!(load.stage, Stage::Settling(..));
        self.hold_writes() || self.loads.values().any(is_settling)
    }

    /// Whether writes wait, as a load takes effect.
    pub(super) fn hold_writes(&self) -> bool {
        self.loads.values().any(Load::takes_effect)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }

    /// Loads by number.
    pub(super) fn ids(&self) -> Vec<LoadId> {
        self.loads.keys().copied().collect()
    }

    /// Files of a load that no edit names yet, in the order of keys.
    pub(super) fn files_of(&self, id: LoadId) -> Vec<FileMeta> {
        let files = self.loads.get(&id).map_or(&[][..], |load| &load.files);
        files.iter().map(|(meta, _)| meta.clone()).collect()
    }

    /// As [`super::Node::load_state`].
    pub(super) fn state(&self, id: LoadId) -> LoadState {
        match self.loads.get(&id).map(|load| &load.stage) {
            Some(Stage::Done) => LoadState::Done,
            Some(Stage::Failed(error)) => LoadState::Failed(error.clone()),
            Some(_) => LoadState::Working,
            None => LoadState::Failed(Error::invalid(format!("there is no load {}", id.0))),
        }
    }

    /// As [`super::Node::may_give_up_load`].
    pub(super) fn may_give_up(&self, id: LoadId) -> bool {
        let stage = self.loads.get(&id).map(|load| &load.stage);
        !matches!(stage, Some(Stage::Appended(_) | Stage::Applied(_) | Stage::Done))
    }

    /// Loads that are not done, and files of them that are written or being written here.
    pub(super) fn open(&self) -> (usize, usize) {
        let open = || self.loads.values().filter(|load| load.holds_slots());
        (open().count(), open().map(|load| load.files.len()).sum())
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.loads += self.ended;
        counters.loaded_bytes += self.loaded_bytes;
    }

    /// Checks what holds between steps: one load at a time finds its place in the tree.
    pub(super) fn invariants(&self) {
        let decides =
            |load: &&Load| load.takes_effect() || matches!(load.stage, Stage::Settling(..));
        let deciding = self.loads.values().filter(decides).count();
        assert!(deciding <= 1, "{deciding} loads at a time take their places");
        for (id, load) in &self.loads {
            let may_write = matches!(load.stage, Stage::Taking | Stage::Ending | Stage::Failed(_));
            assert!(load.writing == 0 || may_write, "load {} is written and placed", id.0);
            assert!(load.edit_len <= EDIT_LEN_MAX, "load {} has too many files", id.0);
        }
    }

    fn begun(&mut self, id: LoadId) -> Result<&mut Load> {
        let load = self.loads.get_mut(&id);
        load.ok_or_else(|| Error::invalid(format!("there is no load {}", id.0)))
    }

    /// A load that takes files.
    fn taking(&mut self, id: LoadId) -> Result<&mut Load> {
        let load = self.begun(id)?;
        match &load.stage {
            Stage::Taking => Ok(load),
            Stage::Failed(error) => Err(error.clone()),
            _ => Err(Error::invalid(format!("load {} takes no more files", id.0))),
        }
    }

    // ---- files come

    /// Begins a load.
    pub(super) fn begin(&mut self, term: Term) -> LoadId {
        let id = LoadId(self.next);
        self.next += 1;
        let (files, stage) = (Vec::new(), Stage::Taking);
        let edit_len = EDIT_OVERHEAD;
        let load = Load { stage, term, files, edit_len, writing: 0, is_forgotten: false };
        self.loads.insert(id, load);
        id
    }

    /// Whether so many of its files are being written that the next one waits.
    ///
    /// # Errors
    /// What made the load fail; invalid input for a load that takes no files any more.
    pub(super) fn is_busy(&mut self, id: LoadId) -> Result<bool> {
        self.taking(id).map(|load| load.writing >= WRITES_MAX)
    }

    /// Takes the next file of a load. False when slots are free but wait for a commit.
    ///
    /// # Errors
    /// As [`super::Node::add_to_load`].
    pub(super) fn add(
        &mut self,
        effects: &mut Effects,
        pool: &mut Pool,
        id: LoadId,
        file: &FinishedFile,
    ) -> Result<bool> {
        let load = self.taking(id)?;
        let edit_len = load.edit_len + Edit::ADDED_OVERHEAD_LEN + file.meta.encoded_len();
        if edit_len > EDIT_LEN_MAX {
            let (files, len) = (load.files.len(), file.meta.len);
            return Err(Error::limit(format!(
                "a load of more than {files} files of {len} bytes: one edit names them all, and has \
                 at most {EDIT_LEN_MAX} bytes"
            )));
        }
        let wanted = (file.bytes.len() as u64).div_ceil(SLOT_LEN) as u32;
        let Ok(slots) = pool.allocate(wanted) else { return Ok(false) };
        let placement = Arc::new(FilePlacement {
            file: file.meta.id,
            term: file.meta.term,
            len: file.bytes.len() as u64,
            checksum: file.meta.checksum,
            slots,
        });
        load.edit_len = edit_len;
        load.writing += 1;
        load.files.push((file.meta.clone(), placement.clone()));
        self.loaded_bytes += placement.len;
        let built = BuiltFile {
            meta: Arc::new(file.meta.clone()),
            bytes: file.bytes.clone(),
            placement: placement.clone(),
            memory: kept_by(file),
        };
        effects.signal(Signal::FileBuilt { file: built, is_flush: false });
        let order = RewriteOrder {
            placement,
            bytes: file.bytes.clone(),
            chunk_crcs: file.meta.chunk_crcs.clone(),
        };
        effects.begin(Order::LoadFile(id), Work::Rewrite(order));
        Ok(true)
    }

    /// No more files come.
    ///
    /// # Errors
    /// As [`Self::is_busy`].
    pub(super) fn end(&mut self, id: LoadId) -> Result<()> {
        let load = self.taking(id)?;
        load.stage = if load.files.is_empty() { Stage::Done } else { Stage::Ending };
        Ok(())
    }

    /// A file of a load is written and flushed, or is not.
    pub(super) fn file_done(
        &mut self,
        effects: &mut Effects,
        pool: &mut Pool,
        id: LoadId,
        result: Result<()>,
    ) {
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.writing -= 1;
        if let Err(error) = result {
            let ends = Failed::LoadFile.ends(&error);
            if !matches!(load.stage, Stage::Failed(_)) {
                load.stage = Stage::Failed(error.clone());
            }
            if ends != Ends::Operation {
                return effects.failed(Failed::LoadFile, error.within("a file of a load"));
            }
        }
        self.clean(effects, pool, id);
    }

    // ---- given up

    /// Nobody asks for a load any more. One whose edit is not in the log is given up; one whose
    /// edit is comes to its end.
    pub(super) fn forget(&mut self, effects: &mut Effects, pool: &mut Pool, id: LoadId) {
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.is_forgotten = true;
        match load.stage {
            Stage::Taking | Stage::Ending => load.stage = given_up(),
            Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..) => {
                self.drop_placed(effects, id, given_up());
            }
            // Its places are on their way to be durable, and are given back then.
            Stage::Placing => {}
            Stage::Appended(_) | Stage::Applied(_) | Stage::Done | Stage::Failed(_) => {}
        }
        self.clean(effects, pool, id);
    }

    /// Another term begins, or another member takes writes: loads whose edits are not in the log
    /// fail.
    pub(super) fn give_up(&mut self, effects: &mut Effects, pool: &mut Pool) {
        let ids: Vec<LoadId> = self.loads.keys().copied().collect();
        for id in ids {
            let error = || Stage::Failed(Error::fenced("the term in which the load began is over"));
            let Some(load) = self.loads.get_mut(&id) else { continue };
            match load.stage {
                Stage::Taking | Stage::Ending => load.stage = error(),
                Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..) => {
                    self.drop_placed(effects, id, error());
                }
                // Its places are on their way to be durable, and are given back then.
                Stage::Placing => load.is_forgotten = true,
                Stage::Appended(_) | Stage::Applied(_) | Stage::Done | Stage::Failed(_) => {}
            }
            self.clean(effects, pool, id);
        }
    }

    /// The term that a load's files are of.
    ///
    /// # Errors
    /// As [`Self::is_busy`].
    pub(super) fn term_of(&mut self, id: LoadId) -> Result<Term> {
        self.taking(id).map(|load| load.term)
    }

    /// Gives up a load whose files have their places.
    fn drop_placed(&mut self, effects: &mut Effects, id: LoadId, failed: Stage) {
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.stage = failed;
        let files: Vec<FileId> = load.files.drain(..).map(|(meta, _)| meta.id).collect();
        effects.signal(Signal::Discard(files.clone()));
        files.into_iter().for_each(|file| effects.signal(Signal::Orphan(file)));
    }

    /// Gives up the load that made a file which cannot be shipped, if one did whose edit is not in
    /// the log.
    pub(super) fn give_up_load_of(
        &mut self,
        effects: &mut Effects,
        pool: &mut Pool,
        file: FileId,
        error: &Error,
    ) -> bool {
        let is_of = |load: &Load| {
            let is_placed = matches!(
                load.stage,
                Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..)
            );
            is_placed && load.files.iter().any(|(meta, _)| meta.id == file)
        };
        let Some((&id, _)) = self.loads.iter().find(|(_, load)| is_of(load)) else {
            return false;
        };
        let what = format!("{file}, of a load, is whole neither in memory nor here");
        self.drop_placed(effects, id, Stage::Failed(error.clone().within(what)));
        self.clean(effects, pool, id);
        true
    }

    /// Gives back what a load took that failed, once nothing of it is on its way to the device; and
    /// forgets one that nobody asks for.
    fn clean(&mut self, effects: &mut Effects, pool: &mut Pool, id: LoadId) {
        let Some(load) = self.loads.get_mut(&id) else { return };
        if load.writing > 0 {
            return;
        }
        if matches!(load.stage, Stage::Failed(_)) && !load.files.is_empty() {
            let slots: Vec<Placed> = load.slots().collect();
            let files: Vec<FileId> = load.files.drain(..).map(|(meta, _)| meta.id).collect();
            if let Err(error) = pool.release(&slots) {
                return effects.failed(Failed::Accounts, error);
            }
            effects.signal(Signal::Discard(files));
        }
        let is_over = matches!(load.stage, Stage::Failed(_) | Stage::Done);
        if load.is_forgotten && is_over {
            self.loads.remove(&id);
        }
    }

    // ---- to its end

    /// Carries on with a load that has all its files. Returns what the log is to do for it, if
    /// anything: where it cannot do that now, the same is asked for again in the next turn.
    pub(super) fn next_step(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &mut Pool,
        given: &LoadFacts,
        id: LoadId,
    ) -> Option<LoadStep> {
        let holds_compactions = self.hold_compactions();
        let load = self.loads.get_mut(&id)?;
        let is_settled = |below| given.flushed_below >= below && given.no_compaction;
        match load.stage {
            Stage::Ending if load.writing == 0 => {
                place(effects, id, load);
                None
            }
            Stage::Placed => {
                let held = || load.files.iter().all(|(meta, _)| (given.is_held)(meta.id));
                let may_settle = held() && !holds_compactions && given.may_write;
                may_settle.then_some(LoadStep::Settle)
            }
            Stage::Settling(below, _) if is_settled(below) => Some(LoadStep::Number),
            Stage::Numbered(sequence) => Some(LoadStep::Seal(sequence)),
            Stage::Sealed(sequence, below, _) if is_settled(below) => {
                Some(LoadStep::Append(sequence))
            }
            Stage::Settling(_, since_ms) | Stage::Sealed(_, _, since_ms) => {
                // A flush that does not begin for want of room must not keep writes waiting.
                let is_late = facts.now_ms.saturating_sub(since_ms) >= STUCK_MS;
                if given.is_idle && is_late && given.may_write {
                    self.give_up_stuck(effects, pool, id);
                }
                None
            }
            Stage::Applied(edit) if given.applied >= edit => {
                load.stage = Stage::Done;
                self.clean(effects, pool, id);
                None
            }
            _ => None,
        }
    }

    fn give_up_stuck(&mut self, effects: &mut Effects, pool: &mut Pool, id: LoadId) {
        let counts = pool.counts();
        let error = Error::no_space(format!(
            "a load waits for a flush that does not begin: {} slots of {} are free",
            counts.free, counts.total
        ));
        self.drop_placed(effects, id, Stage::Failed(error));
        self.clean(effects, pool, id);
    }

    fn set_stage(&mut self, id: LoadId, stage: Stage) {
        if let Some(load) = self.loads.get_mut(&id) {
            load.stage = stage;
        }
    }

    /// The places of a load's files are durable.
    pub(super) fn placed(&mut self, effects: &mut Effects, pool: &mut Pool, id: LoadId) {
        let Some(load) = self.loads.get_mut(&id) else { return };
        load.stage = Stage::Placed;
        if load.is_forgotten {
            self.drop_placed(effects, id, given_up());
            self.clean(effects, pool, id);
        }
    }

    /// What is in MemTables below this one is to be flushed before the load gets its number.
    pub(super) fn settles(&mut self, id: LoadId, below: MemTableId, now_ms: u64) {
        self.set_stage(id, Stage::Settling(below, now_ms));
    }

    /// The load has its number.
    pub(super) fn numbered(&mut self, id: LoadId, sequence: SequenceNumber) {
        self.set_stage(id, Stage::Numbered(sequence));
    }

    /// What was written before the load is in MemTables below this one.
    pub(super) fn sealed(
        &mut self,
        id: LoadId,
        sequence: SequenceNumber,
        below: MemTableId,
        now_ms: u64,
    ) {
        self.set_stage(id, Stage::Sealed(sequence, below, now_ms));
    }

    /// The load's edit is in the log.
    pub(super) fn appended(&mut self, id: LoadId, edit: u64) {
        self.set_stage(id, Stage::Appended(edit));
    }

    /// An edit is applied here: its load is there, and about to be at every member.
    pub(super) fn edit_applied(&mut self, edit: &Edit) {
        if edit.kind != JobKind::Load {
            return;
        }
        let number = |load: &Load| matches!(load.stage, Stage::Appended(n) if n == edit.number);
        let found = self.loads.values_mut().find(|load| number(load));
        let Some(load) = found else { return };
        load.stage = Stage::Applied(edit.number);
        load.files.clear();
        self.ended += 1;
    }
}

/// Has the places of a load's files made durable.
fn place(effects: &mut Effects, id: LoadId, load: &mut Load) {
    load.stage = Stage::Placing;
    let places = load.files.iter().map(|(_, placement)| placement.clone()).collect();
    effects.place(places, After::LoadPlaced(id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, built, commit, one_of_two};
    use alloc::string::ToString;

    /// docs/faults.md: E17
    #[test]
    fn a_load_whose_file_is_whole_nowhere_fails_and_gives_its_slots_back() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let before = node.pool.counts();
        let file = FileId::sst(1);
        let slots = node.pool.allocate(1).unwrap();
        let built = built(file, Term(1), slots, 4_096);
        node.ship.ship(&built, false);
        let BuiltFile { meta, placement, .. } = built;
        let (stage, files) = (Stage::Ending, alloc::vec![((*meta).clone(), placement.clone())]);
        let (term, edit_len) = (Term(1), EDIT_OVERHEAD);
        let load = Load { stage, term, files, edit_len, writing: 0, is_forgotten: false };
        node.loads.loads.insert(LoadId(0), load);
        node.advance_loads();
        commit(&mut node);
        assert!(node.files.get(file).is_some());
        node.reread_done(&placement, Err(Error::corruption("a bit flipped")));
        let LoadState::Failed(error) = node.load_state(LoadId(0)) else {
            panic!("the load goes on");
        };
        let what = format!("{file}, of a load, is whole neither in memory nor here: a bit flipped");
        assert_eq!((error.kind(), error.to_string()), (gabion_base::ErrorKind::Corruption, what));
        assert_eq!((node.unshipped_bytes(), node.loads.slots()), (0, 0));
        commit(&mut node);
        assert_eq!(node.pool.counts(), before, "its slots are free");
    }

    #[test]
    fn a_load_takes_its_place_step_by_step_and_no_other_one_meanwhile() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let (mut loads, mut asked) = (Loads::default(), Effects::default());
        let (first, second) = (loads.begin(Term(1)), loads.begin(Term(1)));
        loads.loads.values_mut().for_each(|load| load.stage = Stage::Placed);
        let mut step = |loads: &mut Loads, id, flushed: u64, applied: u64| {
            let given = LoadFacts {
                flushed_below: MemTableId(flushed),
                no_compaction: true,
                is_idle: false,
                may_write: true,
                applied,
                is_held: &|_| true,
            };
            loads.invariants();
            loads.next_step(&facts!(node), &mut asked, &mut node.pool, &given, id)
        };
        assert!(matches!(step(&mut loads, first, 1, 0), Some(LoadStep::Settle)));
        loads.settles(first, MemTableId(2), 0);
        assert!(step(&mut loads, second, 1, 0).is_none(), "the first one settles");
        assert!(step(&mut loads, first, 1, 0).is_none(), "a flush is due");
        assert!(!loads.hold_writes());
        assert!(matches!(step(&mut loads, first, 2, 0), Some(LoadStep::Number)));
        loads.numbered(first, SequenceNumber(9));
        assert!(loads.hold_writes());
        assert!(matches!(step(&mut loads, first, 2, 0), Some(LoadStep::Seal(_))));
        loads.sealed(first, SequenceNumber(9), MemTableId(3), 0);
        assert!(step(&mut loads, first, 2, 0).is_none(), "what came since is not flushed");
        assert!(matches!(step(&mut loads, first, 3, 0), Some(LoadStep::Append(_))));
        loads.appended(first, 4);
        assert!(!loads.may_give_up(first));
        let edit = Edit {
            number: 4,
            kind: JobKind::Load,
            term: Term(1),
            removed: Vec::new(),
            added: Vec::new(),
            values: Vec::new(),
            flushed: None,
            next_file: 0,
            floor: None,
            recipe: None,
        };
        loads.edit_applied(&edit);
        assert!(step(&mut loads, first, 3, 3).is_none());
        assert!(loads.hold_writes(), "a member has not applied it");
        assert!(step(&mut loads, first, 3, 4).is_none());
        assert!(matches!(loads.state(first), LoadState::Done) && !loads.hold_writes());
        assert!(matches!(step(&mut loads, second, 3, 4), Some(LoadStep::Settle)));
    }
}
