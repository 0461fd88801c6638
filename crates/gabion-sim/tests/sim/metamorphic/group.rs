//! A group that carries a script out under some options.

use super::checkpoint;
use super::look::{Look, compare, engine_key, look, user_key};
use super::script::{Change, EPOCH_MS, KEYS, Loaded, Model, Operation, Script, Tuning, WORK_MS};
use super::sets::Set;
use gabion_base::units::{KIB, SLOT_LEN};
use gabion_base::{Error, ErrorKind, Frontier, crc};
use gabion_engine::cache::OPEN_FILES_LEN;
use gabion_engine::{FinishedFile, JobKind, Keyspace, LoadBuilder, ReadView, WriteLimits};
use gabion_node::{
    AckLevel, Captured, CompactionMode, LoadGate, LoadId, LoadState, MarkId, Node, WriteGate,
    checkpoint::Origin,
};
use gabion_sim::{Options, Outcome, World};
use std::collections::VecDeque;

/// Time that passes at a step, where the script lets some pass: no member counts as out.
const PASSING_MS: u64 = 60;
/// Steps within which an awaited event should happen.
const STEPS_MAX: u64 = 20_000;
/// Current views that may end during a look, one after the other.
const LOOKS_MAX: u32 = 20;

/// A group and what it did so far.
pub(super) struct Group {
    world: World,
    options: Options,
    /// Whether readers may be ended.
    ends_readers: bool,
    epoch: u64,
    /// The end of the last record.
    end: Frontier,
    /// Held views: the replica, and the expected content.
    held: VecDeque<(usize, ReadView, Model)>,
    answers: usize,
    views_ended: u64,
    loads: u64,
    past_log: u64,
}

/// The result of a group's run.
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) answers: usize,
    pub(super) views_ended: u64,
    pub(super) loads: u64,
    /// Batches that no record carried.
    pub(super) past_log: u64,
    /// A checksum over the tree's files.
    pub(super) shape: u32,
}

fn write_one(head: &mut Node, key: u64, change: Change) -> Result<(), Error> {
    let name = user_key(key);
    match change {
        Change::Put(value) => head.put(Keyspace::User, &name, &value.bytes()),
        Change::PutExpiring(value, at) => {
            head.put_expiring(Keyspace::User, &name, &value.bytes(), at)
        }
        Change::Add(delta) => head.add(Keyspace::User, &name, delta),
        Change::Delete => head.delete(Keyspace::User, &name),
        Change::DeleteRange(to) => {
            head.delete_range(Keyspace::User, &name, to.map(user_key).as_deref())
        }
        Change::Clear => head.clear(),
    }
}

/// The files of a load, as long as the tree's.
fn load_files(head: &mut Node, id: LoadId, pairs: &[Loaded]) -> Result<Vec<FinishedFile>, Error> {
    let config = head.tree().config();
    let (sst, len) = (config.sst_of_job(JobKind::Load, false), config.sst_len);
    let mut builder = LoadBuilder::new(head.config().group, head.state().term(), sst, len);
    let mut files = Vec::new();
    for (key, value, until) in pairs {
        let number = || head.load_number(id);
        files.extend(builder.put(&user_key(*key), &value.bytes(), *until, number)?);
    }
    files.extend(builder.finish());
    Ok(files)
}

impl Group {
    pub(super) fn new(seed: u64, set: &Set) -> Self {
        Self {
            world: World::new(seed, set.options.clone()),
            options: set.options.clone(),
            ends_readers: set.ends_readers,
            epoch: 0,
            end: Frontier::ZERO,
            held: VecDeque::new(),
            answers: 0,
            views_ended: 0,
            loads: 0,
            past_log: 0,
        }
    }

    /// Carries the script out, and compares all replicas when nothing is left to do.
    pub(super) fn carry_out(mut self, script: &Script) -> Result<End, String> {
        let mut before = Model::new();
        for (number, (operation, model)) in script.steps.iter().enumerate() {
            self.step(operation, model).map_err(|error| format!("operation {number}: {error}"))?;
            before.clone_from(model);
        }
        self.held.clear();
        // Values of the last epoch may be there until the next one's end.
        before.retain(|_, (_, until)| until.is_none_or(|at| at > (self.epoch + 1) * EPOCH_MS));
        self.next_epoch()?;
        self.world.finish().map_err(|error| format!("at rest: {error}"))?;
        let all =
            Look { replica: 0, keys: (0..KEYS).collect(), range: (0, KEYS), steps: Vec::new() };
        for replica in 0..self.world.len() as u64 {
            self.look(&Look { replica, ..all.clone() }, &before)
                .map_err(|error| format!("at rest: {error}"))?;
        }
        let node = self.world.node(0).ok_or("the head is down")?;
        let mut shape = 0;
        for (level, file) in node.tree().version().files() {
            let of_file = [u32::from(level), file.len as u32, file.checksum];
            shape = of_file.iter().fold(shape, |sum, it| crc::append(sum, &it.to_le_bytes()));
        }
        Ok(End {
            outcome: self.world.outcome(),
            answers: self.answers,
            views_ended: self.views_ended,
            loads: self.loads,
            past_log: self.past_log,
            shape,
        })
    }

    fn step(&mut self, operation: &Operation, model: &Model) -> Result<(), String> {
        match operation {
            Operation::Write { changes, is_past_log } => self.write(changes, *is_past_log)?,
            Operation::Load(pairs) => self.load(pairs)?,
            Operation::Seal => {
                self.wait_for_gate()?;
                self.at_head(|head| head.seal_memtable())?;
            }
            Operation::Compact(range) => {
                self.wait_for_gate()?;
                let (from, to) = match range {
                    None => (Vec::new(), None),
                    Some((from, to)) => (engine_key(*from), Some(engine_key(*to))),
                };
                self.at_head(|head| Ok(head.compact_range(&from, to.as_deref())))?;
            }
            Operation::Tune(tuning) => self.tune(*tuning)?,
            Operation::Kill(number) => self.kill(*number)?,
            Operation::Mark(look) => self.mark(look, model)?,
            Operation::Checkpoint(look) => self.checkpoint(look, model)?,
            Operation::Look(look) => self.look(look, model)?,
            Operation::Hold(number) => {
                let replica = self.caught_up(*number)?;
                let view = self.world.node(replica).ok_or("it is up")?.read_view();
                self.held.push_back((replica, view, model.clone()));
            }
            Operation::LookBack(look) => self.look_back(look)?,
            Operation::Release => _ = self.held.pop_front(),
            Operation::Time => self.next_epoch()?,
        }
        self.world.advance(1)?;
        // The script is the same under other options only while no key expires amid the work.
        let of_epoch_ms = self.world.now_ms() - self.epoch * EPOCH_MS;
        if of_epoch_ms > WORK_MS {
            return Err(format!("the work of an epoch takes more than {WORK_MS} ms"));
        }
        Ok(())
    }

    fn wait(&mut self, what: &str, is_there: impl Fn(&World) -> bool) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if is_there(&self.world) {
                return Ok(());
            }
            self.world.advance(1)?;
        }
        let tell = |replica| {
            let node = self.world.node(replica)?;
            let (end, applied) = (node.log_end(), node.tree().last_sequence());
            Some(format!(
                "ends at {end}, has applied {applied}, {} edits wait, readable: {}, gate: {:?}",
                node.edits_waiting(),
                node.is_readable(),
                node.write_gate()
            ))
        };
        let replicas: Vec<_> = (0..self.world.len()).map(tell).collect();
        Err(format!("{what} does not come about: {replicas:#?}"))
    }

    fn wait_for_gate(&mut self) -> Result<(), String> {
        self.wait("an open gate", |world| {
            world.node(0).is_some_and(|head| head.write_gate() == WriteGate::Open)
        })
    }

    fn at_head<T>(&mut self, act: impl FnOnce(&mut Node) -> Result<T, Error>) -> Result<T, String> {
        let head = self.world.node_mut(0).ok_or("the head is down")?;
        act(head).map_err(|error| error.to_string())
    }

    fn write(&mut self, changes: &[(u64, Change)], is_past_log: bool) -> Result<(), String> {
        self.wait_for_gate()?;
        let is_past_log = is_past_log && self.world.len() == 1;
        let end = self.at_head(|head| {
            changes.iter().try_for_each(|(key, change)| write_one(head, *key, *change))?;
            match is_past_log {
                true => head.end_turn_unlogged().map(|()| None),
                false => head.end_turn().map(Some),
            }
        })?;
        self.past_log += u64::from(is_past_log);
        self.end = end.unwrap_or(self.end);
        Ok(())
    }

    /// Loads pairs, and waits until they are there. Replicas that compact for themselves get writes
    /// instead.
    fn load(&mut self, pairs: &[Loaded]) -> Result<(), String> {
        self.wait_for_gate()?;
        if self.options.compaction == CompactionMode::EveryReplica {
            let refused = self.world.node_mut(0).ok_or("the head is down")?.begin_load();
            if refused.as_ref().err().map(Error::kind) != Some(ErrorKind::Unsupported) {
                return Err(format!("a load is not refused: {refused:?}"));
            }
            let puts = pairs.iter().map(|(key, value, until)| match until {
                None => (*key, Change::Put(*value)),
                Some(at) => (*key, Change::PutExpiring(*value, *at)),
            });
            return self.write(&puts.collect::<Vec<_>>(), false);
        }
        let (id, files) = self.at_head(|head| {
            let id = head.begin_load()?;
            Ok((id, load_files(head, id, pairs)?))
        })?;
        for file in files {
            let mut is_taken = false;
            for _ in 0..STEPS_MAX {
                is_taken = self.at_head(|head| {
                    let gate = head.load_gate(id, file.bytes.len() as u64)?;
                    Ok(gate == LoadGate::Open && head.add_to_load(id, &file)?)
                })?;
                if is_taken {
                    break;
                }
                self.world.advance(1)?;
            }
            if !is_taken {
                return Err("a load's file is not taken".into());
            }
        }
        self.at_head(|head| head.end_load(id))?;
        self.wait("the end of a load", |world| {
            world.node(0).is_some_and(|head| !matches!(head.load_state(id), LoadState::Working))
        })?;
        let state = self.at_head(|head| Ok(head.load_state(id)))?;
        self.at_head(|head| {
            head.forget_load(id);
            Ok(())
        })?;
        self.loads += 1;
        match state {
            LoadState::Done => Ok(()),
            state => Err(format!("a load ended as {state:?}")),
        }
    }

    fn tune(&mut self, tuning: Tuning) -> Result<(), String> {
        for replica in 0..self.world.len() {
            // It may have been killed just now.
            self.wait("a replica to tune", |world| world.node(replica).is_some())?;
            match tuning {
                Tuning::Codecs(codecs) => {
                    let node = self.world.node_mut(replica).ok_or("it is down")?;
                    node.set_codecs(codecs).map_err(|error| error.to_string())?;
                }
                Tuning::Cache(lens) => {
                    let (blocks, open) = lens.unwrap_or((self.options.cache_len, OPEN_FILES_LEN));
                    self.world.set_cache(replica, blocks, open);
                }
                Tuning::Limits(limits) => {
                    let node = self.world.node_mut(replica).ok_or("it is down")?;
                    let of_group = node.config().tree.memtable_len;
                    let pool_len = u64::from(node.pool().counts().total) * SLOT_LEN;
                    let most = of_group.max(pool_len / 16);
                    let limits = limits.map(|(quarters, [l0_trigger, l0_slowdown, l0_stop])| {
                        let memtable_len = (of_group / 4 * quarters).clamp(4 * KIB, most);
                        WriteLimits { memtable_len, l0_trigger, l0_slowdown, l0_stop }
                    });
                    node.set_write_limits(limits).map_err(|error| error.to_string())?;
                }
                Tuning::CompactionsMax(count) => {
                    let node = self.world.node_mut(replica).ok_or("it is down")?;
                    node.set_compactions_max(count.unwrap_or(self.options.compactions_max));
                }
            }
        }
        Ok(())
    }

    fn wait_for_acknowledgement(&mut self) -> Result<(), String> {
        let end = self.end;
        self.wait("an acknowledgement", |world| {
            world.node(0).is_some_and(|head| head.acknowledged().covers(&end))
        })
    }

    /// The replica with a number, once it has applied everything.
    fn caught_up(&mut self, number: u64) -> Result<usize, String> {
        let replica = number as usize % self.world.len();
        self.wait_for_acknowledgement()?;
        self.wait("a replica that has everything", |world| {
            let (Some(head), Some(node)) = (world.node(0), world.node(replica)) else {
                return false;
            };
            // Commands read at the tail alone; a view of any replica shows the same.
            (node.is_readable() || !node.duties().serve_reads)
                && node.tree().last_sequence() == head.tree().last_sequence()
        })?;
        Ok(replica)
    }

    fn look(&mut self, at: &Look, model: &Model) -> Result<(), String> {
        let replica = self.caught_up(at.replica)?;
        // Jobs go on meanwhile, and may have the view past its budget before the look is over.
        for _ in 0..LOOKS_MAX {
            let view = self.world.node(replica).ok_or("it is up")?.read_view();
            if self.look_at(replica, view, at, model)? {
                return Ok(());
            }
        }
        Err(format!("replica {replica}: {LOOKS_MAX} views were past their budget"))
    }

    /// Looks at a view. False when it was past its budget, if readers may be.
    fn look_at(
        &mut self,
        replica: usize,
        view: ReadView,
        at: &Look,
        model: &Model,
    ) -> Result<bool, String> {
        let what = |error: String| format!("replica {replica}: {error}");
        match self.world.read_at(replica, |tables| look(view, tables, at.clone()))? {
            Ok(seen) => {
                self.answers += compare(&seen, at, model).map_err(what)?;
                Ok(true)
            }
            Err(error) if self.ends_readers && error.kind() == ErrorKind::SnapshotTooOld => {
                self.views_ended += 1;
                Ok(false)
            }
            Err(error) => Err(what(error.to_string())),
        }
    }

    fn look_back(&mut self, at: &Look) -> Result<(), String> {
        for (replica, view, model) in std::mem::take(&mut self.held) {
            let there = self.look_at(replica, view.clone(), at, &model);
            if there.map_err(|error| format!("a view that was held: {error}"))? {
                self.held.push_back((replica, view, model));
            }
        }
        Ok(())
    }

    /// Has every replica's state captured at the next record, and looks at each.
    fn mark(&mut self, at: &Look, model: &Model) -> Result<(), String> {
        // A replica that was killed may have no connection yet.
        for replica in 0..self.world.len() {
            self.caught_up(replica as u64)?;
        }
        // No step from here until all are armed: an edit logged meanwhile would pass the frontier.
        let frontier = self.at_head(|head| Ok(head.log_end().ahead(1)))?;
        let mut marks = Vec::new();
        for replica in 0..self.world.len() {
            let mark = self.world.arm_mark(replica, frontier);
            marks.push(mark.map_err(|error| format!("replica {replica}: {error}"))?);
        }
        self.write(&[(KEYS, Change::Delete)], false)?;
        let mut states = Vec::new();
        for (replica, mark) in marks.into_iter().enumerate() {
            let Captured { view, log_end, log_crc, edit, files, .. } =
                self.captured(replica, mark)?;
            // Replicas that compact for themselves have files of their own.
            let of_all = self.options.compaction == CompactionMode::Primary;
            states.push((log_end, log_crc, of_all.then_some((edit, files))));
            if states.first() != states.last() {
                return Err(format!("replicas differ at a mark: {states:?}"));
            }
            self.look_at(replica, view, at, model)?;
        }
        Ok(())
    }

    fn captured(&mut self, replica: usize, mark: MarkId) -> Result<Captured, String> {
        for _ in 0..STEPS_MAX {
            if let Some(captured) = self.world.take_marked(replica, mark) {
                return captured.map_err(|error| format!("replica {replica}'s mark: {error}"));
            }
            self.world.advance(1)?;
        }
        Err(format!("replica {replica} does not come to its mark"))
    }

    /// Copies the head's content, and looks at the copy.
    fn checkpoint(&mut self, at: &Look, model: &Model) -> Result<(), String> {
        self.caught_up(0)?;
        let head = self.world.node(0).ok_or("the head is down")?;
        let (view, group) = (head.tree().lasting_view(), head.config().clone());
        let origin = Origin { view, group, view_then: head.state().view.clone() };
        let (now_ms, pool_len) = (self.world.now_ms(), self.options.pool_len);
        let at_copy = at.clone();
        let seen = self.world.read_at(0, move |tables| {
            checkpoint::look_at_copy(origin, pool_len, tables, now_ms, at_copy)
        })?;
        let seen = seen.map_err(|error| format!("a checkpoint: {error}"))?;
        self.answers += compare(&seen, at, model).map_err(|error| format!("a copy: {error}"))?;
        Ok(())
    }

    /// Kills, at level `durable` with the power of the machines. Writes past the log have to be in
    /// files before.
    fn kill(&mut self, number: u64) -> Result<(), String> {
        if self.world.node(0).is_some_and(Node::has_unlogged) {
            self.wait_for_gate()?;
            self.at_head(Node::seal_memtable)?;
            self.wait("a flush of what was written past the log", |world| {
                world.node(0).is_some_and(|head| !head.has_unlogged())
            })?;
        }
        self.wait_for_acknowledgement()?;
        let count = self.world.len();
        let which = number as usize % (count + 1);
        let power = self.options.ack == AckLevel::Durable;
        for replica in (0..count).filter(|replica| which == count || *replica == which) {
            self.held.retain(|(holder, ..)| *holder != replica);
            self.world.stop(replica, power);
            self.world.start(replica);
        }
        self.wait_for_gate()
    }

    /// Lets the time of this epoch pass, and has a record note it.
    fn next_epoch(&mut self) -> Result<(), String> {
        self.epoch += 1;
        while self.world.now_ms() < self.epoch * EPOCH_MS {
            self.world.pass_time(PASSING_MS);
            self.world.advance(1)?;
        }
        // A key that is never there: the delete only moves the log's time.
        self.write(&[(KEYS, Change::Delete)], false)
    }
}
