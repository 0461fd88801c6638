//! The writing side of the placement log: what is staged, where the next record goes, and which one
//! is on its way. Formats and reasons stand in [`crate::placement_log`].

use crate::PoolId;
use crate::placement_log::{Operation, RecordHeader, RecordKind, encode_record, record_padded_len};
use crate::superblock::Area;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// One write of a commit, to be flushed before the next one begins.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Where on the device, in bytes.
    pub offset: u64,
    /// What; whole blocks, aligned in memory.
    pub data: Bytes,
}

/// A record of the placement log on its way to the device.
#[derive(Clone, Debug)]
#[must_use = "a commit is to be written and then confirmed with `Pool::committed`"]
pub struct Commit {
    /// Its number.
    pub number: u64,
    /// Its writes: one for a commit, two for a checkpoint (snapshot, then opening).
    pub stages: Vec<Stage>,
}

/// Where the placement log stands.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Journal {
    pub(crate) pool_id: PoolId,
    pub(crate) areas: [Area; 2],
    /// Which area is open.
    pub(crate) current: usize,
    pub(crate) epoch: u64,
    /// The last number given out.
    pub(crate) number: u64,
    pub(crate) previous_crc: u32,
    /// Bytes of the open area in use.
    pub(crate) used: u64,
    pub(crate) staged: Vec<u8>,
    pub(crate) in_flight: Option<u64>,
}

impl Journal {
    pub(crate) fn new(pool_id: PoolId, areas: [Area; 2]) -> Self {
        Self {
            pool_id,
            areas,
            current: 1,
            epoch: 0,
            number: 0,
            previous_crc: 0,
            used: 0,
            staged: Vec::new(),
            in_flight: None,
        }
    }

    /// Goes on after what was read from the device; what the replay staged is there already.
    pub(crate) fn resume(
        &mut self,
        area: usize,
        epoch: u64,
        number: u64,
        previous_crc: u32,
        used: u64,
    ) {
        self.current = area;
        (self.epoch, self.number) = (epoch, number);
        (self.previous_crc, self.used) = (previous_crc, used);
        self.staged.clear();
    }

    pub(crate) fn stage(&mut self, operation: &Operation) {
        operation.encode(&mut self.staged);
    }

    fn staged_len(&self) -> u64 {
        2 * record_padded_len(self.staged.len())
    }

    fn staged_fits(&self) -> bool {
        self.used + self.staged_len() <= self.areas[self.current].len
    }

    /// Three quarters of the area are in use, or what is staged does not fit.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.used > self.areas[self.current].len / 4 * 3 || !self.staged_fits()
    }

    fn header(&self, kind: RecordKind) -> RecordHeader {
        RecordHeader {
            kind,
            body_len: 0,
            pool_id: self.pool_id,
            epoch: self.epoch,
            number: self.number,
            previous_crc: self.previous_crc,
            crc: 0,
        }
    }

    /// Encodes a record at the end of the open area.
    fn append(&mut self, kind: RecordKind, body: &[u8], copies: usize) -> Stage {
        let (crc, data) = encode_record(&self.header(kind), body, copies);
        let area = self.areas[self.current];
        let offset = area.offset + self.used;
        self.used += data.len() as u64;
        self.previous_crc = crc;
        assert!(self.used <= area.len, "the caller has checked that the record fits");
        Stage { offset, data: data.freeze() }
    }

    /// Everything staged as one commit; nothing when there is none, one is on its way, or it would
    /// not fit.
    pub(crate) fn take(&mut self) -> Option<Commit> {
        if self.staged.is_empty() || self.in_flight.is_some() || !self.staged_fits() {
            return None;
        }
        self.number += 1;
        let body = core::mem::take(&mut self.staged);
        let stages = alloc::vec![self.append(RecordKind::Commit, &body, 2)];
        self.in_flight = Some(self.number);
        Some(Commit { number: self.number, stages })
    }

    /// Opens the other area with `body`, the whole state. What was staged is in it.
    pub(crate) fn checkpoint(&mut self, body: &[u8]) -> Result<Commit> {
        if let Some(number) = self.in_flight {
            return Err(Error::unavailable(format!(
                "no checkpoint while commit {number} is on its way"
            )));
        }
        let other = 1 - self.current;
        let len_max = self.areas[other].len / 2;
        if record_padded_len(body.len()) > len_max {
            return Err(Error::limit(format!(
                "a checkpoint of {} bytes is over the limit of {len_max}, half an area",
                body.len()
            )));
        }
        self.staged.clear();
        self.current = other;
        self.epoch += 1;
        self.number += 1;
        self.used = 0;
        let snapshot = self.append(RecordKind::Snapshot, body, 1);
        let opening = self.append(RecordKind::Commit, &[], 2);
        self.in_flight = Some(self.number);
        Ok(Commit { number: self.number, stages: alloc::vec![snapshot, opening] })
    }

    /// # Panics
    /// When `number` is not the one on its way.
    pub(crate) fn committed(&mut self, number: u64) {
        assert_eq!(self.in_flight.take(), Some(number), "the commit on its way is confirmed");
    }
}
