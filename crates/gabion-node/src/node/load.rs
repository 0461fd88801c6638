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
//! Writes wait from the number to the end, some commits of the log and one small flush: a write that found a key
//! absent would else win over the load that was before it. Reads do not wait. A command that reads at the head
//! before it writes and waits for the device in between may span all of it: whoever lets such commands and loads
//! meet begins the former anew.
//!
//! Until its edit is appended a load can be given up: what it took comes back when its last write has ended. A
//! process that ends leaves files that no edit names, as jobs do, and their slots are free with the next start.

use super::{After, Node, Order};
use crate::work::{BuiltFile, RewriteOrder, Work, kept_by};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::{EDIT_LEN_MAX, SLOT_LEN};
use gabion_base::{Error, ErrorKind, FileId, MemTableId, Result, SequenceNumber, Term};
use gabion_engine::load::Loaded;
use gabion_engine::{Edit, FileMeta, FinishedFile, JobKind};
use gabion_log::{RecordFlags, RecordKind};
use gabion_pool::{FilePlacement, Placed};

/// Files of a load that are being written here at a time: one while the next is made.
const WRITES_MAX: usize = 2;
/// A load is given up that has waited so long, in ms, for a flush that has not begun.
const STUCK_MS: u64 = 5_000;
/// What an edit takes besides its files, at most.
const EDIT_OVERHEAD: usize = 4096;

/// Names a load until it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(u64);

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
    /// What was written before is in MemTables below this one, and is being flushed since this moment.
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

    /// Whether its slots are neither in the tree nor given back.
    const fn holds_slots(&self) -> bool {
        !matches!(self.stage, Stage::Applied(_) | Stage::Done)
    }
}

fn given_up() -> Stage {
    Stage::Failed(Error::invalid("the load was given up"))
}

impl Loads {
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
        let takes_effect = |load: &Load| {
            matches!(
                load.stage,
                Stage::Numbered(_) | Stage::Sealed(..) | Stage::Appended(_) | Stage::Applied(_)
            )
        };
        self.loads.values().any(takes_effect)
    }

    fn begun(&mut self, id: LoadId) -> Result<&mut Load> {
        let load = self.loads.get_mut(&id);
        load.ok_or_else(|| Error::invalid(format!("there is no load {}", id.0)))
    }
}

impl Node {
    /// Begins a load, which takes files until [`Self::end_load`]. Several may be under way.
    ///
    /// # Errors
    /// Unavailable where writes are refused; unsupported in a group whose replicas compact for themselves, as nobody
    /// else can make a load's files.
    ///
    /// # Panics
    /// When called at another member than the head.
    pub fn begin_load(&mut self) -> Result<LoadId> {
        assert!(self.duties().append, "loads go to the head");
        if !self.view.has_one_tree() {
            return Err(Error::unsupported(
                "a group whose replicas compact for themselves takes no bulk load: they would have to make its \
                 files too",
            ));
        }
        if let Some(reason) = self.not_writing() {
            return Err(Error::unavailable(reason));
        }
        let id = LoadId(self.loads.next);
        self.loads.next += 1;
        let (files, stage) = (Vec::new(), Stage::Taking);
        let (term, edit_len) = (self.chain.term(), EDIT_OVERHEAD);
        let load = Load { stage, term, files, edit_len, writing: 0, is_forgotten: false };
        self.loads.loads.insert(id, load);
        Ok(id)
    }

    /// The number for a load's next file.
    ///
    /// # Errors
    /// As [`Self::load_gate`]; unavailable when a term began since the load did; limit exceeded when the
    /// term has no number left.
    pub fn load_number(&mut self, id: LoadId) -> Result<FileId> {
        let (term, of_load) = (self.chain.term(), self.taking(id)?.term);
        if term != of_load {
            return Err(Error::unavailable(format!(
                "the load began in {of_load}, now it is {term}: its files would not be of one term"
            )));
        }
        self.tree.number_file(term)
    }

    /// Whether a load takes a file of `len` bytes now; to be asked again after [`Self::advance`] when it does not.
    ///
    /// # Errors
    /// No space when the pool of a member has no room for it beside what flushes, compactions and the log may need,
    /// and nothing is under way that may make room; what made the load fail; invalid input for a load that takes no
    /// files any more.
    pub fn load_gate(&mut self, id: LoadId, len: u64) -> Result<LoadGate> {
        let writing = self.taking(id)?.writing;
        if let Some(reason) = self.jobs.out_of_space() {
            return Err(Error::no_space(format!("the pool is full: {reason}")));
        }
        if self.not_writing().is_some() {
            return Ok(LoadGate::Wait("a member is away"));
        }
        if writing >= WRITES_MAX {
            return Ok(LoadGate::Wait("files are being written"));
        }
        if self.too_much_is_unshipped() {
            return Ok(LoadGate::Wait("secondaries have yet to take files"));
        }
        let wanted = len.div_ceil(SLOT_LEN);
        match self.room_for_load(wanted) {
            Ok(()) => Ok(LoadGate::Open),
            Err(_) if self.makes_room() => Ok(LoadGate::Wait("compaction makes room")),
            Err(error) => Err(error),
        }
    }

    /// Takes the next file of a load, whose keys are behind those of the one before. It is written and shipped at once.
    /// False when slots are free but wait for a commit that is on its way: to be tried again.
    ///
    /// # Errors
    /// Limit exceeded when one edit cannot name so many files; as [`Self::load_gate`], which is asked first.
    pub fn add_to_load(&mut self, id: LoadId, file: &FinishedFile) -> Result<bool> {
        let term = self.chain.term();
        let load = self.taking(id)?;
        let edit_len = load.edit_len + Edit::ADDED_OVERHEAD_LEN + file.meta.encoded_len();
        if edit_len > EDIT_LEN_MAX {
            let (files, len) = (load.files.len(), file.meta.len);
            return Err(Error::limit(format!(
                "a load of more than {files} files of {len} bytes: one edit names them all, and has at most \
                 {EDIT_LEN_MAX} bytes"
            )));
        }
        let wanted = (file.bytes.len() as u64).div_ceil(SLOT_LEN) as u32;
        let Ok(slots) = self.pool.allocate(wanted) else { return Ok(false) };
        debug_assert!(file.meta.term <= term);
        let placement = Arc::new(FilePlacement {
            file: file.meta.id,
            term: file.meta.term,
            len: file.bytes.len() as u64,
            checksum: file.meta.checksum,
            slots,
        });
        let load = self.loads.begun(id)?;
        load.edit_len = edit_len;
        load.writing += 1;
        load.files.push((file.meta.clone(), placement.clone()));
        self.counters.loaded_bytes += placement.len;
        self.ship_built(
            &BuiltFile {
                meta: Arc::new(file.meta.clone()),
                bytes: file.bytes.clone(),
                placement: placement.clone(),
                memory: kept_by(file),
            },
            false,
        );
        let order = RewriteOrder {
            placement,
            bytes: file.bytes.clone(),
            chunk_crcs: file.meta.chunk_crcs.clone(),
        };
        self.order(Order::LoadFile(id), Work::Rewrite(order));
        Ok(true)
    }

    /// No more files come. What follows is done by [`Self::advance`]; [`Self::load_state`] tells when.
    ///
    /// # Errors
    /// As [`Self::load_gate`].
    pub fn end_load(&mut self, id: LoadId) -> Result<()> {
        let load = self.taking(id)?;
        load.stage = if load.files.is_empty() { Stage::Done } else { Stage::Ending };
        Ok(())
    }

    /// How a load is doing.
    #[must_use]
    pub fn load_state(&self, id: LoadId) -> LoadState {
        match self.loads.loads.get(&id).map(|load| &load.stage) {
            Some(Stage::Done) => LoadState::Done,
            Some(Stage::Failed(error)) => LoadState::Failed(error.clone()),
            Some(_) => LoadState::Working,
            None => LoadState::Failed(Error::invalid(format!("there is no load {}", id.0))),
        }
    }

    /// Whether [`Self::forget_load`] still gives the load up: its edit is not in the log.
    #[must_use]
    pub fn may_give_up_load(&self, id: LoadId) -> bool {
        let stage = self.loads.loads.get(&id).map(|load| &load.stage);
        !matches!(stage, Some(Stage::Appended(_) | Stage::Applied(_) | Stage::Done))
    }

    /// Nobody asks for a load any more. One whose edit is not in the log is given up; one whose edit is comes to its
    /// end.
    pub fn forget_load(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        load.is_forgotten = true;
        match load.stage {
            Stage::Taking | Stage::Ending => load.stage = given_up(),
            Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..) => {
                self.drop_placed(id, given_up());
            }
            // Its places are on their way to be durable, and are given back then.
            Stage::Placing => {}
            Stage::Appended(_) | Stage::Applied(_) | Stage::Done | Stage::Failed(_) => {}
        }
        self.clean_load(id);
    }

    /// Another term begins, or another member takes writes: loads whose edits are not in the log
    /// fail.
    pub(super) fn give_up_loads(&mut self) {
        let ids: Vec<LoadId> = self.loads.loads.keys().copied().collect();
        for id in ids {
            let error = || Stage::Failed(Error::fenced("the term in which the load began is over"));
            let Some(load) = self.loads.loads.get_mut(&id) else { continue };
            match load.stage {
                Stage::Taking | Stage::Ending => load.stage = error(),
                Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..) => {
                    self.drop_placed(id, error());
                }
                // Its places are on their way to be durable, and are given back then.
                Stage::Placing => load.is_forgotten = true,
                Stage::Appended(_) | Stage::Applied(_) | Stage::Done | Stage::Failed(_) => {}
            }
            self.clean_load(id);
        }
    }

    /// Gives up a load whose files have their places.
    fn drop_placed(&mut self, id: LoadId, failed: Stage) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        load.stage = failed;
        let files: Vec<FileId> = load.files.drain(..).map(|(meta, _)| meta.id).collect();
        self.discard_built(&files);
        files.iter().for_each(|file| self.drop_orphan(*file));
    }

    /// Gives up the load that made a file which cannot be shipped, if one did whose edit is not in the log.
    pub(super) fn give_up_load_of(&mut self, file: FileId, error: &Error) -> bool {
        let is_of = |load: &Load| {
            let is_placed = matches!(
                load.stage,
                Stage::Placed | Stage::Settling(..) | Stage::Numbered(_) | Stage::Sealed(..)
            );
            is_placed && load.files.iter().any(|(meta, _)| meta.id == file)
        };
        let Some((&id, _)) = self.loads.loads.iter().find(|(_, load)| is_of(load)) else {
            return false;
        };
        let what = format!("{file}, of a load, is whole neither in memory nor here");
        self.drop_placed(id, Stage::Failed(error.clone().within(what)));
        self.clean_load(id);
        true
    }

    /// Loads that are not done, and files of them that are written or being written here.
    #[must_use]
    pub fn loads(&self) -> (usize, usize) {
        let open = || self.loads.loads.values().filter(|load| load.holds_slots());
        (open().count(), open().map(|load| load.files.len()).sum())
    }

    /// A load that takes files.
    fn taking(&mut self, id: LoadId) -> Result<&mut Load> {
        let load = self.loads.begun(id)?;
        match &load.stage {
            Stage::Taking => Ok(load),
            Stage::Failed(error) => Err(error.clone()),
            _ => Err(Error::invalid(format!("load {} takes no more files", id.0))),
        }
    }

    pub(super) fn load_file_done(&mut self, id: LoadId, result: Result<()>) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        load.writing -= 1;
        if let Err(error) = result {
            let is_room = error.kind() == ErrorKind::NoSpace;
            if !matches!(load.stage, Stage::Failed(_)) {
                load.stage = Stage::Failed(error.clone());
            }
            if !is_room {
                return self.fatal(error.within("a file of a load"));
            }
        }
        self.clean_load(id);
    }

    /// Gives back what a load took that failed, once nothing of it is on its way to the device; and forgets one that
    /// nobody asks for.
    fn clean_load(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        if load.writing > 0 {
            return;
        }
        if matches!(load.stage, Stage::Failed(_)) && !load.files.is_empty() {
            let slots: Vec<Placed> = load.slots().collect();
            let files: Vec<FileId> = load.files.drain(..).map(|(meta, _)| meta.id).collect();
            if let Err(error) = self.pool.release(&slots) {
                return self.fatal(error);
            }
            self.discard_built(&files);
        }
        let is_over = |load: &Load| matches!(load.stage, Stage::Failed(_) | Stage::Done);
        if self.loads.loads.get(&id).is_some_and(|load| load.is_forgotten && is_over(load)) {
            self.loads.loads.remove(&id);
        }
    }

    // ---- to its end

    /// Carries on with loads that have all their files.
    pub(super) fn advance_loads(&mut self) {
        let ids: Vec<LoadId> = self.loads.loads.keys().copied().collect();
        for id in ids {
            // One stage after the other, as far as they go without waiting.
            let stage = |node: &Self| {
                node.loads.loads.get(&id).map(|load| core::mem::discriminant(&load.stage))
            };
            let mut before = None;
            while !self.ended && before != stage(self) {
                before = stage(self);
                self.advance_load(id);
            }
        }
    }

    fn advance_load(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get(&id) else { return };
        match load.stage {
            Stage::Ending if load.writing == 0 => self.place_load(id),
            Stage::Placed => self.settle_before_load(id),
            Stage::Settling(below, _) if self.is_settled(below) => self.number_load(id),
            Stage::Settling(_, since_ms) => self.give_up_if_stuck(id, since_ms),
            Stage::Numbered(sequence) => self.seal_before_load(id, sequence),
            Stage::Sealed(sequence, below, _) if self.is_settled(below) => {
                self.append_load(id, sequence);
            }
            Stage::Sealed(_, _, since_ms) => self.give_up_if_stuck(id, since_ms),
            Stage::Applied(edit) if self.chain.edits_applied_min() >= edit => {
                self.set_stage(id, Stage::Done);
                self.clean_load(id);
            }
            _ => {}
        }
    }

    /// Whether MemTables below this one are flushed and no compaction is under way.
    fn is_settled(&self, below: MemTableId) -> bool {
        self.tree.flushed().memtable.next() >= below && self.compactions_open() == 0
    }

    /// A flush that does not begin for want of room must not keep writes waiting.
    fn give_up_if_stuck(&mut self, id: LoadId, since_ms: u64) {
        let is_idle = self.jobs_running() == 0 && self.apply.waiting_count() == 0;
        let is_late = self.now_ms.saturating_sub(since_ms) >= STUCK_MS;
        if is_idle && is_late && self.not_writing().is_none() {
            let counts = self.pool.counts();
            let error = Error::no_space(format!(
                "a load waits for a flush that does not begin: {} slots of {} are free",
                counts.free, counts.total
            ));
            self.drop_placed(id, Stage::Failed(error));
            self.clean_load(id);
        }
    }

    /// Has what is in memory flushed, so that little is left to be flushed while writes wait.
    fn settle_before_load(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get(&id) else { return };
        let is_everywhere = load.files.iter().all(|(meta, _)| self.held_everywhere(meta.id));
        if !is_everywhere || self.loads.hold_compactions() || self.not_writing().is_some() {
            return;
        }
        if self.end_turn().is_err() {
            return; // which is fatal, and told
        }
        if !self.tree.active_is_empty() {
            self.append_seal();
        }
        self.set_stage(id, Stage::Settling(self.tree.active_id(), self.now_ms));
    }

    fn set_stage(&mut self, id: LoadId, stage: Stage) {
        if let Some(load) = self.loads.loads.get_mut(&id) {
            load.stage = stage;
        }
    }

    fn place_load(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        load.stage = Stage::Placing;
        for (_, placement) in &load.files {
            if let Err(error) = self.pool.add_file((**placement).clone()) {
                return self.fatal(error);
            }
        }
        self.commits.staged.push(After::LoadPlaced(id));
    }

    pub(super) fn load_placed(&mut self, id: LoadId) {
        let Some(load) = self.loads.loads.get_mut(&id) else { return };
        load.stage = Stage::Placed;
        let is_forgotten = load.is_forgotten;
        let files: Vec<FileId> = load.files.iter().map(|(meta, _)| meta.id).collect();
        for file in files {
            self.file_placed(file, false);
        }
        if is_forgotten {
            self.drop_placed(id, given_up());
            self.clean_load(id);
        }
    }

    /// Gives a load its sequence number: a batch of one write that writes nothing.
    fn number_load(&mut self, id: LoadId) {
        if self.not_writing().is_some() || self.end_turn().is_err() {
            return; // an error is fatal, and told
        }
        let sequence = self.tree.last_sequence().next();
        let appended = self.append_record(RecordKind::Batch, &[], sequence, 1, RecordFlags::NONE);
        let skipped = match appended {
            Ok(end) => {
                self.pass_marks(end, self.log.last().crc);
                self.tree.skip_sequences(sequence, 1)
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => return, // tried again
            Err(error) => Err(error),
        };
        match skipped {
            Ok(()) => self.set_stage(id, Stage::Numbered(sequence)),
            Err(error) => self.fatal(error),
        }
    }

    /// Completes the MemTable that has what was written before a load's number.
    fn seal_before_load(&mut self, id: LoadId, sequence: SequenceNumber) {
        if !self.tree.active_is_empty() && self.tree.sealed_sequence() < sequence {
            if self.not_writing().is_some() {
                return;
            }
            self.append_seal();
            if self.tree.sealed_sequence() < sequence {
                return; // the ring is full
            }
        }
        self.set_stage(id, Stage::Sealed(sequence, self.tree.active_id(), self.now_ms));
    }

    /// Whether the log has, or needs not have, every edit before the next: where it does not have those of jobs, these must be
    /// kept in the placement log first, or a start would find their successor without them.
    fn may_log_edit(&self) -> bool {
        self.duties().log_edits
            || self.chain.edits_applied_min() == self.apply.last_appended(self.tree.last_edit())
    }

    /// Appends the edit of a load above which nothing older lies any more.
    fn append_load(&mut self, id: LoadId, sequence: SequenceNumber) {
        if self.not_writing().is_some() || !self.may_log_edit() {
            return;
        }
        let Some(load) = self.loads.loads.get(&id) else { return };
        let files = load.files.iter().map(|(meta, _)| meta.clone()).collect();
        let number = self.apply.last_appended(self.tree.last_edit()) + 1;
        let loaded = Loaded { term: self.chain.term(), files, sequence };
        let made = self.apply.version_at_the_end(self.tree.version()).and_then(|version| {
            let edit = self.tree.finish_load(loaded, &version, number)?;
            edit.encode().map(|encoded| (edit, encoded))
        });
        let (edit, encoded) = match made {
            Ok(made) => made,
            Err(error) => return self.fatal(error),
        };
        let at = self.tree.last_sequence();
        let flags = RecordFlags::BLOCK_END;
        let Ok(end) = self.append_record(RecordKind::Edit, &encoded, at, 0, flags) else {
            return; // the ring is full: tried again when it drained
        };
        if let Err(error) = self.queue_edit(edit, encoded, end) {
            return self.fatal(error);
        }
        self.pass_marks(self.log.end(), self.log.last().crc);
        self.set_stage(id, Stage::Appended(number));
    }

    /// An edit is applied here: its load is there, and about to be at every member.
    pub(super) fn loads_edit_applied(&mut self, edit: &Edit) {
        if edit.kind != JobKind::Load {
            return;
        }
        let number = |load: &Load| matches!(load.stage, Stage::Appended(n) if n == edit.number);
        let found = self.loads.loads.iter_mut().find(|(_, load)| number(load));
        let Some((_, load)) = found else { return };
        load.stage = Stage::Applied(edit.number);
        load.files.clear();
        self.counters.loads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
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
        node.ship_built(&built, false);
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
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Corruption, what));
        assert_eq!((node.unshipped_bytes(), node.loads.slots()), (0, 0));
        commit(&mut node);
        assert_eq!(node.pool.counts(), before, "its slots are free");
    }
}
