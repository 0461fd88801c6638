//! The end of a run: peace, the last reads and the comparisons.

use super::World;
use super::control::UNHEARD_MS;
use super::machine::Machine;
use crate::check;
use crate::client::{Client, TWINS, twins_agree};
use crate::process::ReplicaTables;
use gabion_engine::Keyspace;
use gabion_node::{CompactionMode, Node, RepairState};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Whether the repair of a damaged file is still under way.
const fn is_being_repaired(state: RepairState) -> bool {
    matches!(state, RepairState::Waiting | RepairState::Repairing)
}

impl World {
    /// Lets everything come to rest: no faults, no new operations.
    ///
    /// # Errors
    /// The broken rule, or that there is no rest.
    pub fn settle(&mut self) -> Result<(), String> {
        for Machine { disk, full_until_ms, hung_until_ms, refused_until_ms, .. } in
            &mut self.machines
        {
            (*full_until_ms, *hung_until_ms, *refused_until_ms) = (0, 0, 0);
            disk.slow_down(1);
            disk.clear_faults();
            disk.release_held();
        }
        self.heal();
        self.note("peace begins".into());
        if self.control.is_some() {
            self.become_whole()?;
        } else {
            self.take_back_now();
            (0..self.machines.len()).for_each(|index| self.tell_view(index));
        }
        self.withdraw_marks();
        let mut calm = 0;
        for _ in 0..30_000 {
            self.step();
            self.tell_again();
            self.go_on_verifying();
            self.look_for_violation()?;
            let asked = self.is_verifying()
                || self.is_loading()
                || !self.clients.iter().all(Client::is_idle);
            // A fault may show late, and have a controller make another view.
            let busy = asked || !self.rests() || self.lacks().is_some();
            calm = if busy { 0 } else { calm + 1 };
            if calm > 300 {
                return Ok(());
            }
        }
        let waiting = self.waiting();
        Err(format!("the cluster does not come to rest: {waiting}, {}", self.describe()))
    }

    /// The clients that still wait for something, in words.
    fn waiting(&mut self) -> String {
        let busy = self.clients.iter().filter(|client| !client.is_idle());
        let at: Vec<usize> = busy.map(|client| client.at + 1).collect();
        let (verifies, loads) = (self.is_verifying(), self.is_loading());
        let unrest = self.unrest().or_else(|| self.lacks());
        format!("clients wait at {at:?}, verifies {verifies}, loads {loads}, unrest {unrest:?}")
    }

    fn rests(&self) -> bool {
        self.unrest().is_none()
    }

    /// The unrest, in words.
    fn unrest(&self) -> Option<String> {
        let Some(head) = self.node(self.writer()) else { return Some("the head is down".into()) };
        let wrong = if !self.expiring.is_empty() {
            "something will expire"
        } else if !head.protocol().is_ready() {
            "the group takes no writes"
        } else if head.looks_at_deletes() {
            "the head looks at deletes"
        } else {
            let members = self.members().into_iter();
            let mut all = members.map(|index| (index, self.unrest_of(index, head)));
            let found = all.find_map(|(index, wrong)| Some((index, wrong?)));
            return found.map(|(index, wrong)| format!("replica {}: {wrong}", index + 1));
        };
        Some(wrong.into())
    }

    /// The machines of the newest view's members.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        let is_member = |index: &usize| self.view.place_of(self.id_of(*index)).is_some();
        (0..self.machines.len()).filter(is_member).collect()
    }

    fn unrest_of(&self, index: usize, head: &Node) -> Option<&'static str> {
        let process = self.machines[index].process.as_ref();
        let Some((process, node)) = process.and_then(|it| Some((it, it.node.as_deref()?))) else {
            return Some("is down");
        };
        let is_local = self.group.compaction == CompactionMode::EveryReplica;
        let checks = [
            (process.is_idle(), "is not idle"),
            (node.edits_waiting() == 0, "edits wait"),
            (node.jobs_running() == 0, "jobs run"),
            (!node.jobs_pause(), "jobs pause"),
            (
                !node.damaged_files().any(|file| is_being_repaired(file.state)),
                "a file is being repaired",
            ),
            (node.tree().sealed_count() == 0, "a MemTable waits for its flush"),
            (node.time_due_ms().is_none(), "time is due"),
            (is_local || node.tree().last_edit() == head.tree().last_edit(), "other edits"),
            (node.log_end() == head.log_end(), "another end of the log"),
            (node.view().group().config == self.view.config, "an older view"),
            // From a connection that a fault has ended unseen another view follows.
            (self.control.is_none() || node.unheard(UNHEARD_MS).is_empty(), "misses a member"),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map(|(_, wrong)| wrong)
    }

    /// Reads every key once more at the tail, as the last operations of the history.
    pub(super) fn final_reads(&mut self) -> Result<(), String> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let tail = self.reader();
        self.clients[0].at = tail;
        for key in (0..self.options.keys).chain(TWINS..TWINS + self.options.twins) {
            for _ in 0..100_000 {
                self.moment += 1;
                let now = self.moment;
                if self.clients[0].is_idle() {
                    let Some(process) = &mut self.machines[tail].process else {
                        return Err("the tail is gone".into());
                    };
                    self.clients[0].read(process, key, self.random.fork(), now);
                    if self.clients[0].is_idle() {
                        let found = self.describe();
                        return Err(format!("the tail does not answer reads at rest: {found}"));
                    }
                }
                self.step();
                self.look_for_violation()?;
                if self.clients[0].is_idle() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// All records of a replica.
    ///
    /// # Errors
    /// When it is down or a read fails.
    pub fn scan(&mut self, index: usize) -> Result<BTreeMap<Vec<u8>, u64>, String> {
        let view =
            self.node(index).ok_or_else(|| format!("replica {index} is not open"))?.read_view();
        let scan = self.read_at(index, move |tables| async move {
            let mut records = Vec::new();
            let mut iterator = view.scan(&tables, &[Keyspace::User as u8], None);
            while let Some((key, value)) = iterator.next().await? {
                records.push((key.to_vec(), value.to_vec()));
            }
            Ok(records)
        });
        let records =
            check::numbers(scan?.map_err(|error: gabion_base::Error| error.to_string())?)?;
        twins_agree(&records).map(|()| records)
    }

    /// Has a replica carry out a read, while all others go on. `read` gets the sources for the
    /// replica's files.
    ///
    /// # Errors
    /// When the replica is not open, or the read has not ended after a million steps.
    pub fn read_at<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        index: usize,
        read: impl FnOnce(ReplicaTables) -> F,
    ) -> Result<T, String> {
        let process = self.machines[index].process.as_mut();
        let process = process.ok_or_else(|| format!("replica {index} is down"))?;
        let tables = process.tables().ok_or_else(|| format!("replica {index} is not open"))?;
        let out = Rc::new(RefCell::new(None));
        let (slot, reading) = (out.clone(), read(tables));
        process.executor.spawn(async move {
            let result = reading.await;
            *slot.borrow_mut() = Some(result);
        });
        for _ in 0..1_000_000 {
            self.step();
            if let Some(result) = out.borrow_mut().take() {
                return Ok(result);
            }
        }
        Err(format!("a read of replica {index} does not end"))
    }

    /// Rings are lost everywhere: the rest must be the result of a whole number of records.
    pub(super) fn check_prefix(&mut self) -> Result<(), String> {
        self.settle()?;
        check::at_rest(self)?;
        let records = self.scan(self.reader())?;
        check::gone(&self.history, &records)?;
        check::prefix(&self.history, &records)
    }
}
