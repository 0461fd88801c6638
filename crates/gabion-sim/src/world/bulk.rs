//! Bulk loads at the head, one at a time: registers and twins get new values, all of them at once,
//! while everything else goes on and breaks.

use super::World;
use crate::Random;
use crate::client::{TWINS, load_files};
use crate::history::{Action, Operation};
use gabion_engine::FinishedFile;
use gabion_node::{CompactionMode, LoadGate, LoadId, LoadState, Node, WriteGate};
use std::collections::VecDeque;

/// The load under way, and a random stream of its own, so that the rest of a seed's run stays as it
/// is.
pub(super) struct Bulk {
    random: Random,
    running: Option<Running>,
}

impl Bulk {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed ^ 0x6c6f_6164), running: None }
    }
}

struct Running {
    /// The machine at which it runs.
    at: usize,
    /// The head's start.
    incarnation: u64,
    id: LoadId,
    files: VecDeque<FinishedFile>,
    /// The head took all files.
    is_ended: bool,
    called: u64,
    writes: Vec<(u64, u64)>,
    /// The load is given up after so many steps.
    patience: u64,
}

impl World {
    /// Begins a load now and then.
    pub(super) fn begin_load(&mut self) {
        let rate = self.options.loads;
        let may = self.options.compaction == CompactionMode::Primary && self.bulk.running.is_none();
        if rate == 0 || !may || !self.bulk.random.once_in(rate) {
            return;
        }
        let head = self.some_writer();
        if self.is_paused(head) {
            return;
        }
        let random = &mut self.bulk.random;
        // Counters are odd.
        let registers = (0..self.options.keys).filter(|key| key.is_multiple_of(2));
        let twins = TWINS..TWINS + self.options.twins;
        let keys: Vec<u64> = registers.chain(twins).filter(|_| random.once_in(3)).collect();
        let patience = if random.once_in(6) { random.below(60) } else { u64::MAX };
        let Some(process) = &mut self.machines[head].process else { return };
        let incarnation = process.incarnation;
        let Some(node) = process.node.as_deref_mut() else { return };
        if node.write_gate() != WriteGate::Open {
            return;
        }
        let Ok(id) = node.begin_load() else { return };
        let mut writes = Vec::new();
        for key in keys {
            self.next_value += 1;
            writes.push((key, self.next_value << 20));
        }
        let some: Vec<_> = writes.iter().map(|(key, value)| (*key, Some(*value))).collect();
        let files = load_files(node, id, &some).into();
        self.moment += 1;
        let (called, is_ended) = (self.moment, false);
        self.bulk.running =
            Some(Running { at: head, incarnation, id, files, is_ended, called, writes, patience });
    }

    /// Whether a load is under way.
    pub(super) const fn is_loading(&self) -> bool {
        self.bulk.running.is_some()
    }

    /// Brings the load under way on.
    pub(super) fn go_on_loading(&mut self) {
        let at = self.bulk.running.as_ref().map_or(0, |running| running.at);
        if self.is_paused(at) {
            return;
        }
        let Some(mut running) = self.bulk.running.take() else { return };
        let process = self.machines[at].process.as_mut();
        let process = process.filter(|process| process.incarnation == running.incarnation);
        let Some(node) = process.and_then(|process| process.node.as_deref_mut()) else {
            // It ended with its process, or is there: the log decides.
            return self.note_load(&running, false);
        };
        running.patience = running.patience.saturating_sub(1);
        if running.patience == 0 {
            node.forget_load(running.id);
            return self.note_load(&running, false);
        }
        let is_working = match go_on(node, &mut running) {
            Ok(state) => state,
            Err(error) => LoadState::Failed(error),
        };
        match is_working {
            LoadState::Working => self.bulk.running = Some(running),
            LoadState::Failed(_) => node.forget_load(running.id),
            LoadState::Done => {
                node.forget_load(running.id);
                self.outcome.loads += 1;
                self.note_load(&running, true);
            }
        }
    }

    fn note_load(&mut self, running: &Running, is_done: bool) {
        self.moment += 1;
        let (called, returned) = (running.called, is_done.then_some(self.moment));
        let operations = running.writes.iter().map(|(key, value)| Operation {
            key: *key,
            action: Action::Write(Some(*value)),
            called,
            returned,
        });
        self.history.extend(operations);
    }
}

fn go_on(node: &mut Node, running: &mut Running) -> gabion_base::Result<LoadState> {
    let id = running.id;
    while let Some(file) = running.files.front() {
        let is_open = node.load_gate(id, file.bytes.len() as u64)? == LoadGate::Open;
        if !is_open || !node.add_to_load(id, file)? {
            return Ok(LoadState::Working);
        }
        running.files.pop_front();
    }
    if !std::mem::replace(&mut running.is_ended, true) {
        node.end_load(id)?;
    }
    Ok(node.load_state(id))
}
