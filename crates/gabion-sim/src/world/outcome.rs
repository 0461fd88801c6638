//! The counts of a run, and its description when a rule is broken.

use super::World;
use crate::check;

/// The counts of a run, and a checksum over all its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations of clients in the history.
    pub operations: u64,
    /// Checksum over every frame, kill, and break, in order.
    pub trace: u32,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Power cuts, of several machines at once counted as several.
    pub power_cuts: u64,
    /// Power cuts while a member was down, behind, or lost power at the same time.
    pub power_cuts_amid_others: u64,
    /// Views in which the members stand in another order.
    pub moves: u64,
    /// Views without the head, which came back with a later one.
    pub absences: u64,
    /// Ends of controllers' processes.
    pub controller_crashes: u64,
    /// Stores of controllers that were set back.
    pub set_backs: u64,
    /// Disks that came back empty.
    pub wipes: u64,
    /// Disks that came back as they were earlier.
    pub older_disks: u64,
    /// Most ms until a group was whole again after the last fault.
    pub whole_ms_max: u64,
    /// Reads that a survivor answered in a view that waits for members.
    pub reads_alone: u64,
    /// Replicas that were opened anew in their process, as their log was cut.
    pub reopenings: u64,
    /// Pauses of processes for longer than others wait for them.
    pub pauses: u64,
    /// Directions in which nothing went from one machine to another for a while.
    pub one_ways: u64,
    /// Bits that flipped in headers of frames and in control messages.
    pub flipped_frames: u64,
    /// Bits that flipped on NVMe/TCP connections.
    pub flipped_transfers: u64,
    /// Bits that flipped in records on their way.
    pub flipped_records: u64,
    /// Flushes, over all processes.
    pub flushes: u64,
    /// Compactions.
    pub compactions: u64,
    /// Edits applied.
    pub edits: u64,
    /// Bulk loads that came to their end.
    pub loads: u64,
    /// Files shipped.
    pub shipped_files: u64,
    /// File bytes shipped.
    pub shipped_bytes: u64,
    /// File bytes that secondaries accepted.
    pub received_bytes: u64,
    /// File bytes read for comparison with their checksums.
    pub verified_read_bytes: u64,
    /// Writes that a foreign target damaged.
    pub damaged_writes: u64,
    /// Files that a member asked for.
    pub pulled_files: u64,
    /// Files that an edit added and that a member neither had nor asked for.
    pub skipped_files: u64,
    /// Commits of placement logs that a disk lost, several at once counted as one.
    pub lost_commits: u64,
    /// Logs that were not whole at a start.
    pub rotten_logs: u64,
    /// Flushes and compactions that found no space on the disk.
    pub jobs_without_space: u64,
    /// Views and iterators that were past their pin budget.
    pub readers_ended: u64,
    /// Comparisons of a replica with another at a mark.
    pub marks: u64,
    /// Comparisons that ended when the log had gone on.
    pub marks_under_load: u64,
    /// Pairs of replicas that captured different places for a mark.
    pub marks_apart: u64,
    /// Pairs apart that were not compared, as a power cut had taken the records that told one of
    /// them the time.
    pub marks_at_other_times: u64,
    /// Bits of files that flipped on disks.
    pub rotten: u64,
    /// Reads of clients that met damage.
    pub failed_reads: u64,
    /// Compactions that were set aside as they met damage.
    pub jobs_set_aside: u64,
    /// Files that were repaired from another replica.
    pub repaired_files: u64,
    /// Segments of the log in which edits left values, over all replicas.
    pub kept_segments: u64,
}

impl Outcome {
    /// Adds the counts of another run; the checksum stays.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.power_cuts_amid_others += other.power_cuts_amid_others;
        self.absences += other.absences;
        self.moves += other.moves;
        self.controller_crashes += other.controller_crashes;
        self.set_backs += other.set_backs;
        self.wipes += other.wipes;
        self.older_disks += other.older_disks;
        self.whole_ms_max = self.whole_ms_max.max(other.whole_ms_max);
        self.reads_alone += other.reads_alone;
        self.reopenings += other.reopenings;
        self.pauses += other.pauses;
        self.one_ways += other.one_ways;
        self.flipped_frames += other.flipped_frames;
        self.flipped_transfers += other.flipped_transfers;
        self.flipped_records += other.flipped_records;
        self.flushes += other.flushes;
        self.compactions += other.compactions;
        self.edits += other.edits;
        self.loads += other.loads;
        self.shipped_files += other.shipped_files;
        self.shipped_bytes += other.shipped_bytes;
        self.received_bytes += other.received_bytes;
        self.verified_read_bytes += other.verified_read_bytes;
        self.damaged_writes += other.damaged_writes;
        self.pulled_files += other.pulled_files;
        self.skipped_files += other.skipped_files;
        self.lost_commits += other.lost_commits;
        self.rotten_logs += other.rotten_logs;
        self.jobs_without_space += other.jobs_without_space;
        self.readers_ended += other.readers_ended;
        self.marks += other.marks;
        self.marks_under_load += other.marks_under_load;
        self.marks_apart += other.marks_apart;
        self.marks_at_other_times += other.marks_at_other_times;
        self.rotten += other.rotten;
        self.failed_reads += other.failed_reads;
        self.jobs_set_aside += other.jobs_set_aside;
        self.repaired_files += other.repaired_files;
        self.kept_segments += other.kept_segments;
    }
}

impl World {
    /// The counts until now.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome.clone();
        outcome.operations = self.history.len() as u64;
        (0..self.machines.len()).for_each(|index| self.count_work(index, &mut outcome));
        outcome
    }

    /// Adds the counts of a living process until now.
    pub(super) fn count_work(&self, index: usize, outcome: &mut Outcome) {
        if let Some(process) = &self.machines[index].process {
            outcome.damaged_writes += process.damaged_writes();
        }
        let Some(node) = self.node(index) else { return };
        outcome.readers_ended += node.readers().ended;
        let counters = node.counters();
        outcome.flushes += counters.flushes;
        outcome.compactions += counters.compactions;
        outcome.edits += counters.edits;
        outcome.shipped_files += counters.shipped_files;
        outcome.shipped_bytes += counters.shipped_bytes;
        outcome.received_bytes += counters.received_bytes;
        outcome.verified_read_bytes += counters.verified_read_bytes;
        outcome.pulled_files += counters.pulled_files;
        outcome.skipped_files += counters.skipped_files;
        outcome.kept_segments += counters.kept_segments;
        outcome.jobs_without_space += counters.jobs_without_space;
        outcome.jobs_set_aside += counters.jobs_set_aside;
        outcome.repaired_files += counters.repaired_files;
    }

    /// The state of every replica, in words, for reports of failure.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!(
            "time {} ms, links {:?}, {}",
            self.now_ms,
            self.links.keys(),
            self.describe_net()
        );
        for (i, machine) in self.machines.iter().enumerate() {
            let process = machine.process.as_ref();
            let node = process.and_then(|process| process.node.as_ref());
            text += &match node {
                Some(node) => format!(
                    "\n  replica {}: drain {} ships {:?} session {} log {} commit {} durable {} edit {} waiting {} jobs {} sealed {} orders {} ready {:?} gate {:?} pool {:?} in {} told {:?} began {} fill {:?} {:?} filled {}",
                    i + 1,
                    node.drain_status(),
                    self.group.founders.iter().map(|m| node.shipping_to(*m)).collect::<Vec<_>>(),
                    node.state().session,
                    node.log_end(),
                    node.protocol().commit(),
                    node.durable_everywhere(),
                    node.tree().last_edit(),
                    node.edits_waiting(),
                    node.jobs_running(),
                    node.tree().sealed_count(),
                    node.orders_in_flight(),
                    node.protocol().not_ready_reason(),
                    node.write_gate(),
                    node.pool().counts(),
                    node.view().group().config,
                    node.view_told().map(|view| view.config.get()),
                    node.founded(),
                    node.state().copy,
                    node.fill_status(),
                    node.is_filled()
                ),
                None => format!("\n  replica {}: not open", i + 1),
            };
            for damaged in node.into_iter().flat_map(|node| node.damaged_files()) {
                let (file, state) = (damaged.file, damaged.state.as_str());
                text += &format!("\n    {file} is damaged: {state}, {:?}", damaged.failure);
            }
            // A pool full of grants that nobody knows of is one reason for unrest.
            if let Some(Err(error)) = node.map(|node| check::grants(self, node)) {
                text += &format!("\n    {error}");
            }
        }
        for death in self.deaths.iter().rev().take(5) {
            text += &format!("\n  died: {death}");
        }
        text + &format!("\n  seed {}", self.seed)
    }
}
