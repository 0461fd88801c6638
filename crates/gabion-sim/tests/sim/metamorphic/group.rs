//! A group that carries a script out under some options.

use super::script::{Change, EPOCH_MS, KEYS, Look, Model, Operation, Script, WORK_MS};
use super::sets::Set;
use gabion_base::{Error, ErrorKind, LogPosition, crc};
use gabion_engine::{Keyspace, Move, ReadView};
use gabion_node::{AckLevel, WriteGate};
use gabion_sim::client::{decode_value, encode_value, engine_keys};
use gabion_sim::process::ReplicaTables;
use gabion_sim::{Outcome, World};
use std::collections::VecDeque;

/// Time that passes at a step, where the script lets some pass: no member is taken for dead.
const PASSING_MS: u64 = 60;
/// Steps after which what is waited for should have come about.
const STEPS_MAX: u64 = 20_000;

/// A group and what it did so far.
pub(super) struct Group {
    world: World,
    ack: AckLevel,
    /// Whether readers may be ended.
    ends_readers: bool,
    epoch: u64,
    /// The end of the last record.
    end: LogPosition,
    /// Views that are held: whose, and what they have to show.
    held: VecDeque<(usize, ReadView, Model)>,
    answers: usize,
    views_ended: u64,
}

/// What a group came to.
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) answers: usize,
    pub(super) views_ended: u64,
    /// A checksum over the tree's files.
    pub(super) shape: u32,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a look found.
struct Seen {
    found: Vec<Option<(Vec<u8>, Option<u64>)>>,
    forwards: Pairs,
    backwards: Pairs,
}

fn engine_key(key: u64) -> Vec<u8> {
    engine_keys(key).swap_remove(0)
}

async fn look(view: ReadView, tables: ReplicaTables, look: Look) -> Result<Seen, Error> {
    let mut found = Vec::new();
    for key in &look.keys {
        let value = view.look_up(&tables, &engine_key(*key)).await?;
        found.push(value.map(|value| (value.value.to_vec(), value.expires_ms)));
    }
    let [from, to] = [look.range.0, look.range.1].map(engine_key);
    let mut walks = Vec::new();
    for (first, step) in [(Move::First, Move::Next), (Move::Last, Move::Prev)] {
        let mut iterator = view.scan(&tables, &from, Some(&to));
        let (mut pairs, mut to) = (Pairs::new(), first);
        while let Some((key, value)) = iterator.go(to).await? {
            pairs.push((key.to_vec(), value.to_vec()));
            to = step;
        }
        walks.push(pairs);
    }
    let backwards = walks.pop().unwrap_or_default();
    Ok(Seen { found, forwards: walks.pop().unwrap_or_default(), backwards })
}

/// The first pair by which a walk differs from the model, with keys and values by number.
fn first_difference(pairs: &Pairs, wanted: &Pairs) -> String {
    let at = pairs.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
    let tell = |pair: Option<&(Vec<u8>, Vec<u8>)>| {
        pair.map(|(key, value)| (key.escape_ascii().to_string(), decode_value(value)))
    };
    format!("pair {at} is {:?}, wanted {:?}", tell(pairs.get(at)), tell(wanted.get(at)))
}

/// Checks what was seen against what there is to see. Returns the number of answers.
fn compare(seen: &Seen, look: &Look, model: &Model) -> Result<usize, String> {
    for (key, found) in look.keys.iter().zip(&seen.found) {
        let wanted = model.get(key).map(|(value, until)| (encode_value(*value), *until));
        if *found != wanted {
            let number = found.as_ref().map(|(value, until)| (decode_value(value), until));
            return Err(format!("key {key} is {number:?}, wanted {:?}", model.get(key)));
        }
    }
    let range = model.range(look.range.0..look.range.1);
    let mut wanted: Pairs =
        range.map(|(key, (value, _))| (engine_key(*key), encode_value(*value))).collect();
    if seen.forwards != wanted {
        return Err(format!("forwards: {}", first_difference(&seen.forwards, &wanted)));
    }
    wanted.reverse();
    if seen.backwards != wanted {
        return Err(format!("backwards: {}", first_difference(&seen.backwards, &wanted)));
    }
    Ok(look.keys.len() + 2 * wanted.len())
}

impl Group {
    pub(super) fn new(seed: u64, set: &Set) -> Self {
        Self {
            world: World::new(seed, set.options.clone()),
            ack: set.options.ack,
            ends_readers: set.ends_readers,
            epoch: 0,
            end: LogPosition(0),
            held: VecDeque::new(),
            answers: 0,
            views_ended: 0,
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
        // What was written in the last epoch may be there until the next one's end.
        before.retain(|_, (_, until)| until.is_none_or(|at| at > (self.epoch + 1) * EPOCH_MS));
        self.next_epoch()?;
        self.world.finish().map_err(|error| format!("at rest: {error}"))?;
        let all = Look { replica: 0, keys: (0..KEYS).collect(), range: (0, KEYS) };
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
        let (answers, views_ended) = (self.answers, self.views_ended);
        Ok(End { outcome: self.world.outcome(), answers, views_ended, shape })
    }

    fn step(&mut self, operation: &Operation, model: &Model) -> Result<(), String> {
        match operation {
            Operation::Write(changes) => self.write(changes)?,
            Operation::Clear => {
                self.wait_for_gate()?;
                self.end = self.at_head(|head| head.clear().and_then(|()| head.end_turn()))?;
            }
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
            Operation::Kill(number) => self.kill(*number)?,
            Operation::Look(look) => self.look(look, model)?,
            Operation::Hold(number) => {
                let replica = self.caught_up(*number)?;
                let view = self.world.node(replica).ok_or("it is up")?.view();
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

    fn at_head<T>(
        &mut self,
        act: impl FnOnce(&mut gabion_node::Node) -> Result<T, Error>,
    ) -> Result<T, String> {
        let head = self.world.node_mut(0).ok_or("the head is down")?;
        act(head).map_err(|error| error.to_string())
    }

    fn write(&mut self, changes: &[(u64, Change)]) -> Result<(), String> {
        self.wait_for_gate()?;
        self.end = self.at_head(|head| {
            for (key, change) in changes {
                let key = &engine_key(*key)[1..];
                match change {
                    Change::Put(value) => head.put(Keyspace::User, key, &encode_value(*value))?,
                    Change::PutExpiring(value, at) => {
                        head.put_expiring(Keyspace::User, key, &encode_value(*value), *at)?;
                    }
                    Change::Delete => head.delete(Keyspace::User, key)?,
                }
            }
            head.end_turn()
        })?;
        Ok(())
    }

    fn wait_for_acknowledgement(&mut self) -> Result<(), String> {
        let end = self.end;
        self.wait("an acknowledgement", |world| {
            world.node(0).is_some_and(|head| head.acknowledged() >= end)
        })
    }

    /// Which replica a number means, once it has applied everything.
    fn caught_up(&mut self, number: u64) -> Result<usize, String> {
        let replica = number as usize % self.world.len();
        self.wait_for_acknowledgement()?;
        self.wait("a replica that has everything", |world| {
            let (Some(head), Some(node)) = (world.node(0), world.node(replica)) else {
                return false;
            };
            // Commands read at the tail alone; a view of any replica shows the same.
            (node.is_readable() || !node.is_tail())
                && node.tree().last_sequence() == head.tree().last_sequence()
        })?;
        Ok(replica)
    }

    fn look(&mut self, at: &Look, model: &Model) -> Result<(), String> {
        let replica = self.caught_up(at.replica)?;
        let view = self.world.node(replica).ok_or("it is up")?.view();
        let seen = self.world.read_at(replica, |tables| look(view, tables, at.clone()))?;
        let seen = seen.map_err(|error| format!("replica {replica}: {error}"))?;
        self.answers +=
            compare(&seen, at, model).map_err(|error| format!("replica {replica}: {error}"))?;
        Ok(())
    }

    fn look_back(&mut self, at: &Look) -> Result<(), String> {
        for (replica, view, model) in std::mem::take(&mut self.held) {
            let what = |error: String| format!("a view that replica {replica} held: {error}");
            let again = view.clone();
            match self.world.read_at(replica, |tables| look(view, tables, at.clone()))? {
                Ok(seen) => {
                    self.answers += compare(&seen, at, &model).map_err(what)?;
                    self.held.push_back((replica, again, model));
                }
                Err(error) if self.ends_readers && error.kind() == ErrorKind::SnapshotTooOld => {
                    self.views_ended += 1;
                }
                Err(error) => return Err(what(error.to_string())),
            }
        }
        Ok(())
    }

    /// Kills, at level `durable` with the power of the machines.
    fn kill(&mut self, number: u64) -> Result<(), String> {
        self.wait_for_acknowledgement()?;
        let count = self.world.len();
        let which = number as usize % (count + 1);
        let power = self.ack == AckLevel::Durable;
        for replica in (0..count).filter(|replica| which == count || *replica == which) {
            self.held.retain(|(holder, ..)| *holder != replica);
            self.world.stop(replica, power);
            self.world.start(replica);
        }
        self.wait_for_gate()
    }

    /// Lets the time of this epoch pass, and has a record say so.
    fn next_epoch(&mut self) -> Result<(), String> {
        self.epoch += 1;
        while self.world.now_ms() < self.epoch * EPOCH_MS {
            self.world.pass_time(PASSING_MS);
            self.world.advance(1)?;
        }
        // A key that is never there: what it changes is the time of the log.
        self.write(&[(KEYS, Change::Delete)])
    }
}
