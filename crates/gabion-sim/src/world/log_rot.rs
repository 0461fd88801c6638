//! Bits that flip in the log of a stopped replica (docs/faults.md E4).

use super::World;
use super::machine::Machine;
use crate::SimulatedMemory;
use crate::process::Process;
use gabion_base::{LogPosition, Term};
use gabion_log::{RecordScan, Seen};
use gabion_media::MemoryRegion;
use gabion_node::open;

/// Bytes of a long header.
const HEADER_LEN: u64 = 88;
/// The offset of the position in it.
const POSITION_AT: usize = 48;

/// The log of a stopped replica.
pub struct StoppedLog {
    /// Start and end of each record with a long header, from the start of the kept log.
    pub records: Vec<(LogPosition, LogPosition)>,
    /// Records that end here or before were durable, and are known to have been.
    pub watermark: LogPosition,
    /// The term that the replica was in.
    pub term: Term,
}

impl StoppedLog {
    /// The starts of the records that must be whole.
    pub fn durable(&self) -> impl Iterator<Item = LogPosition> + '_ {
        self.records.iter().filter(|(_, end)| *end <= self.watermark).map(|(at, _)| *at)
    }
}

impl World {
    /// Ends a replica's process, with or without the power of its machine, until [`Self::start`].
    pub fn stop(&mut self, index: usize, power: bool) {
        self.kill(index, power);
        self.machines[index].down_until_ms = u64::MAX;
    }

    /// Lets a stopped replica start again.
    pub fn start(&mut self, index: usize) {
        self.machines[index].down_until_ms = 0;
    }

    /// A replica's notices for its operator, over all its processes.
    #[must_use]
    pub fn notices(&self, index: usize) -> &[String] {
        &self.machines[index].notices
    }

    /// Inspects the log of a stopped replica, and changes nothing.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn log_of(&self, index: usize) -> StoppedLog {
        let machine = &self.machines[index];
        assert!(machine.process.is_none(), "replica {} runs", index + 1);
        let handle = machine.disk.handle();
        let ring = || {
            let mut bytes = vec![0; machine.ring.len() as usize];
            machine.ring.read(0, &mut bytes);
            let mut copy = SimulatedMemory::new(bytes.len());
            copy.write(0, &bytes);
            Box::new(copy)
        };
        let looking = async {
            let pool = open::read_pool(&handle).await?;
            let segments = pool.segments();
            let (_, report) = pool.recover_log(ring(), &segments).await?;
            let (config, state) = (pool.log_config(), &pool.state);
            let mut scan = RecordScan::new(config, &state.spans, state.trimmed, Some(ring()))?;
            let mut records = Vec::new();
            while let Some(Seen::Record { record, .. }) = scan.next(&segments).await? {
                if !record.header.is_short {
                    records.push((record.header.position, record.end()));
                }
            }
            let (watermark, term) = (report.watermark, state.term());
            Ok::<_, gabion_base::Error>(StoppedLog { records, watermark, term })
        };
        machine.disk.block_on(&handle, looking).expect("the log can be read")
    }

    /// Flips one bit, which depends on the position, in the header of a record of a stopped
    /// replica, wherever the record is: in its segment and in the ring. A second call restores it.
    ///
    /// # Panics
    /// When the replica runs.
    pub fn rot_record(&mut self, index: usize, position: LogPosition) {
        self.rot_segment(index, position);
        let machine = &self.machines[index];
        let at = position.get();
        let (byte, bit) = place_of_bit(position);
        let in_ring = at % self.group.ring_len;
        let mut found = [0; 8];
        machine.ring.read(in_ring + POSITION_AT as u64, &mut found);
        let flipped = byte as usize / 8 == POSITION_AT / 8;
        let mut wanted = at.to_le_bytes();
        if found != wanted && flipped {
            wanted[byte as usize % 8] ^= 1 << bit;
        }
        if found == wanted {
            machine.ring.flip_bit((in_ring + byte) as usize, bit);
        }
    }

    /// As [`Self::rot_record`], in the segment alone.
    ///
    /// # Panics
    /// When the replica runs.
    pub fn rot_segment(&mut self, index: usize, position: LogPosition) {
        self.events.push(format!("bit rot at {position} of replica {}", index + 1));
        let machine = &self.machines[index];
        assert!(machine.process.is_none(), "replica {} runs", index + 1);
        let at = position.get();
        let (byte, bit) = place_of_bit(position);
        let handle = machine.disk.handle();
        let pool = machine.disk.block_on(&handle, open::read_pool(&handle)).expect("a whole pool");
        let segment = pool.log_config().segment_at(at);
        if let Some(placement) = pool.segments().placements().find(|it| it.file == segment) {
            let slot = pool.pool().region().slot_offset(placement.slots[0].slot);
            machine.disk.flip_bit(slot + at % self.group.segment_len + byte, bit);
        }
    }

    /// Kills a replica with a log that is not whole afterwards, while the others have everything.
    pub(super) fn rot_log(&mut self, index: usize) {
        let is_up = |machine: &Machine| machine.process.as_ref().is_some_and(Process::is_quiet);
        // The log of a member that was left out may be as long as that of those who were not, and
        // have other records.
        if self.is_somebody_absent() {
            return;
        }
        let head = self.node(self.writer()).filter(|head| head.protocol().is_ready());
        let Some(head) = head else { return };
        let end = head.log_end();
        let is_whole = |i: usize| self.node(i).is_some_and(|n| n.log_end().covers(&end));
        if self.len() < 2 || !self.machines.iter().all(is_up) || !(0..self.len()).all(is_whole) {
            return;
        }
        let Some(node) = self.node(index) else { return };
        // Below this, others may have trimmed their logs; records that are durable only here may be
        // lost with their rings.
        let (flushed, known) = (node.tree().flushed().frontier.only(), node.state().durable);
        if node.durable_everywhere().only() < known {
            return;
        }
        self.kill(index, false);
        let log = self.log_of(index);
        let places: Vec<_> = log.durable().filter(|at| *at >= flushed).collect();
        if !places.is_empty() {
            let at = places[self.random.below(places.len() as u64) as usize];
            self.rot_record(index, at);
            self.outcome.rotten_logs += 1;
            self.machines[index].left = None;
        }
    }
}

/// The byte of a record's header, and the bit in it.
fn place_of_bit(position: LogPosition) -> (u64, u8) {
    (position.get() / 8 % HEADER_LEN, (position.get() / 64 % 8) as u8)
}
