//! Marks: a verifier asks every replica for its state at one position of the log, while everything
//! else goes on and breaks. The captured states must be the same.

use super::World;
use crate::Random;
use crate::check;
use crate::client::{ReadFailure, twins_agree};
use gabion_base::{Frontier, Result};
use gabion_engine::Keyspace;
use gabion_node::{Captured, CapturedFile, CompactionMode, LogEra, MarkId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

type Records = BTreeMap<Vec<u8>, u64>;
type Read = core::result::Result<Records, ReadFailure>;
type Slot = Rc<RefCell<Option<Read>>>;

/// A question that goes to all replicas at once.
pub(super) struct Marking {
    random: Random,
    asked: Vec<Asked>,
}

impl Marking {
    pub(super) fn new(seed: u64) -> Self {
        // A stream of its own, so that the rest of a seed's run stays as it is.
        Self { random: Random::new(seed ^ 0x6d61_726b), asked: Vec::new() }
    }
}

/// Its outcome at one replica.
struct Asked {
    incarnation: u64,
    state: State,
}

enum State {
    /// The log has not reached it.
    Armed(MarkId),
    /// The records are being read.
    Reading(What, Slot),
    /// A replica's whole answer.
    Told(What, Records),
    /// There is no answer: refused, ended, killed.
    None,
}

/// The captured state, without the records.
struct What {
    log_end: Frontier,
    log_crc: u32,
    now_ms: u64,
    edit: u64,
    files: Vec<CapturedFile>,
    era: LogEra,
}

impl World {
    /// Has a replica's state captured at a frontier of the log.
    ///
    /// # Errors
    /// The replica's.
    ///
    /// # Panics
    /// When it is not up.
    pub fn arm_mark(&mut self, index: usize, frontier: Frontier) -> Result<MarkId> {
        let now_ms = self.now_ms;
        self.node_mut(index).expect("the replica is up").arm_mark(frontier, now_ms)
    }

    /// The outcome of a mark of a replica that is up, once it is known.
    pub fn take_marked(&mut self, index: usize, mark: MarkId) -> Option<Result<Captured>> {
        self.machines[index].process.as_mut()?.take_marked(mark)
    }

    /// Goes on with the question, or asks one now and then.
    pub(super) fn verify(&mut self) {
        let rate = self.options.marks;
        if self.is_verifying() {
            self.go_on_verifying();
        } else if rate > 0 && self.marking.random.once_in(rate) {
            self.ask_all();
        }
    }

    /// Whether answers are still to come.
    pub(super) fn is_verifying(&self) -> bool {
        !self.marking.asked.is_empty()
    }

    /// Stops waiting for marks that were not reached: nobody writes any more.
    pub(super) fn withdraw_marks(&mut self) {
        for index in 0..self.marking.asked.len() {
            let State::Armed(mark) = self.marking.asked[index].state else { continue };
            self.marking.asked[index].state = State::None;
            let Some(process) = &mut self.machines[index].process else { continue };
            process.withdraw_mark(mark);
            let armed = process.node.as_ref().map_or(0, |node| node.marks_armed());
            assert_eq!(armed, 0, "one was armed at most");
        }
    }

    pub(super) fn go_on_verifying(&mut self) {
        for index in 0..self.marking.asked.len() {
            let state = std::mem::replace(&mut self.marking.asked[index].state, State::None);
            self.marking.asked[index].state = self.follow(index, state);
        }
        let is_done = |asked: &Asked| matches!(asked.state, State::Told(..) | State::None);
        if self.is_verifying() && self.marking.asked.iter().all(is_done) {
            let asked = std::mem::take(&mut self.marking.asked);
            if let Err(difference) = self.compare(&asked) {
                self.violation.get_or_insert(difference);
            }
        }
    }

    fn ask_all(&mut self) {
        let ends = (0..self.len()).filter_map(|index| self.node(index)).map(|node| node.log_end());
        let Some(end) = ends.reduce(Frontier::join) else { return };
        let lead = self.marking.random.below(4) * 2_000;
        let frontier = end.ahead(self.marking.random.below(lead + 1));
        for index in 0..self.len() {
            let now_ms = self.now_ms;
            let incarnation = self.machines[index].starts;
            let is_paused = self.is_paused(index);
            let node = self.node_mut(index).filter(|_| !is_paused);
            let armed = node.map(|node| node.arm_mark(frontier, now_ms));
            let state = match armed {
                Some(Ok(mark)) => State::Armed(mark),
                Some(Err(_)) | None => State::None,
            };
            self.marking.asked.push(Asked { incarnation, state });
        }
    }

    fn follow(&mut self, index: usize, state: State) -> State {
        let incarnation = self.marking.asked[index].incarnation;
        let Some(process) =
            self.machines[index].process.as_mut().filter(|it| it.incarnation == incarnation)
        else {
            return match state {
                State::Told(..) => state,
                _ => State::None,
            };
        };
        match state {
            State::Armed(mark) => match process.take_marked(mark) {
                Some(Ok(captured)) => self.read(index, captured),
                Some(Err(_)) => State::None,
                None => State::Armed(mark),
            },
            State::Reading(what, slot) => {
                let read = slot.borrow_mut().take();
                let Some(read) = read else { return State::Reading(what, slot) };
                let is_valid =
                    process.node.as_ref().is_some_and(|node| node.check_era(what.era).is_ok());
                match read {
                    Ok(records) if is_valid => State::Told(what, records),
                    Err(failure) if self.is_of_failing_call(index, &failure.to_string()) => {
                        State::None
                    }
                    Err(ReadFailure::Wrong(error)) => {
                        self.violation.get_or_insert(format!("replica {index}: {error}"));
                        State::None
                    }
                    Err(ReadFailure::Damage(_)) if self.outcome.rotten == 0 => {
                        self.violation.get_or_insert(format!("replica {index}: damage at a mark"));
                        State::None
                    }
                    Ok(_) | Err(_) => State::None,
                }
            }
            State::Told(..) | State::None => state,
        }
    }

    /// Reads the captured state, as a task.
    fn read(&mut self, index: usize, captured: Captured) -> State {
        let Captured { view, log_end, log_crc, edit, files, era } = captured;
        let now_ms = view.now_ms();
        let slot = Slot::default();
        let out = slot.clone();
        let Some(process) = &mut self.machines[index].process else { return State::None };
        let Some(tables) = process.tables() else { return State::None };
        process.executor.spawn(async move {
            let mut iterator = view.scan(&tables, &[Keyspace::User as u8], None);
            drop(view);
            let mut records = Vec::new();
            let result = loop {
                match iterator.next().await {
                    Ok(Some((key, value))) => records.push((key.to_vec(), value.to_vec())),
                    Ok(None) => break Ok(records),
                    Err(error) => break Err(ReadFailure::of("a read at a mark", &error)),
                }
            };
            let result = result.and_then(|records| {
                let records = check::numbers(records)?;
                twins_agree(&records)?;
                Ok(records)
            });
            *out.borrow_mut() = Some(result);
        });
        State::Reading(What { log_end, log_crc, now_ms, edit, files, era }, slot)
    }

    /// Whether a replica's files may have another time than the log: it compacted for itself, and a
    /// power cut took the records with the time.
    fn may_times_differ(&self) -> bool {
        let is_known = self.group.compaction == CompactionMode::EveryReplica;
        is_known && !self.options.compares_times && self.outcome.power_cuts_amid_others > 0
    }

    fn compare(&mut self, asked: &[Asked]) -> core::result::Result<(), String> {
        let told = asked.iter().enumerate().filter_map(|(index, asked)| match &asked.state {
            State::Told(what, records) => Some((index, what, records)),
            _ => None,
        });
        let told: Vec<_> = told.collect();
        let Some((&(first, what, records), others)) = told.split_first() else { return Ok(()) };
        let head_end = self.node(self.writer()).map_or(Frontier::ZERO, |head| head.log_end());
        for &(other, their, their_records) in others {
            let place = format!("at a mark, at {} and {}", what.log_end, their.log_end);
            if (what.log_end, what.log_crc) != (their.log_end, their.log_crc) {
                self.outcome.marks_apart += 1;
                continue;
            }
            if what.now_ms != their.now_ms && self.may_times_differ() {
                self.outcome.marks_at_other_times += 1;
                continue;
            }
            self.outcome.marks += 1;
            self.outcome.marks_under_load += u64::from(!what.log_end.covers(&head_end));
            if records != their_records {
                return Err(format!("{place}, replica {other} has other records than {first}"));
            }
            let is_one = self.group.compaction == CompactionMode::Primary;
            if is_one && (what.edit, &what.files) != (their.edit, &their.files) {
                return Err(format!(
                    "{place}, replica {other} has edit {} and files {:?}, replica {first} edit {} and \
                     files {:?}",
                    their.edit, their.files, what.edit, what.files
                ));
            }
        }
        Ok(())
    }
}
