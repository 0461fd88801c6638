//! Draining: ring → segments, as work orders.
//!
//! ```text
//!            durable      drained                next          end
//!   ───────────┼─────────────┼─────────────────────┼─────────────┼──► positions
//!    flushed   │ written, not│ handed out, in any  │ in the ring │
//!              │ flushed yet │ order of completion │ only        │
//! ```
//!
//! Only whole blocks are handed out, so no block is written twice with different content: a block
//! is complete when the log has grown past it, or when `BLOCK_END` or the end of a span fills it.
//! The one exception is the block in which the log ends when a process stops (`Drains::last`):
//! where the log goes on in it, it is written again with the same beginning, so whatever tears that
//! write, what was there stays. After a failed flush nothing since the last good one counts
//! (`Drains::rewind`, docs/faults.md E8); the ring still has it all, because it never overwrites
//! what is not flushed.

use crate::ring::Ring;
use crate::{LogConfig, block_ceil, block_floor};
use alloc::collections::VecDeque;
use gabion_base::units::{BLOCK_LEN, KIB, TRANSFER_LEN_MAX};
use gabion_base::{FileId, LogPosition};
use gabion_media::{Buffers, Bytes};

/// Without force, less than this waits for more. Cyclone (§2.2) drains 128 KiB; here what waits is
/// in the ring of every replica, and a device takes four times as much for little more.
pub const DRAIN_LEN_MIN: u64 = 512 * KIB;
/// Longest drain: one transfer.
pub const DRAIN_LEN_MAX: u64 = TRANSFER_LEN_MAX as u64;
/// Buffers kept for drains to come.
const BUFFERS_LEN_MAX: usize = 4 * TRANSFER_LEN_MAX;

/// Whole blocks to write into a segment.
#[derive(Clone, Debug)]
pub struct Drain {
    /// The segment, a numbered file of the pool.
    pub segment: FileId,
    /// Where in the segment, a multiple of 4 KiB.
    pub offset_in_segment: u64,
    /// What, in aligned memory.
    pub data: Bytes,
    /// The position after the last byte: names the order when it is done.
    pub end: LogPosition,
}

#[derive(Debug)]
struct Piece {
    end: u64,
    done: bool,
}

#[derive(Debug)]
pub(crate) struct Drains {
    next: u64,
    pieces: VecDeque<Piece>,
    drained: u64,
    durable: u64,
    buffers: Buffers,
}

impl Drains {
    /// Everything below `in_segments` was written; what is below `durable` was also flushed.
    pub(crate) fn new(in_segments: u64, durable: u64) -> Self {
        let durable = durable.min(in_segments);
        Self {
            next: block_floor(in_segments),
            pieces: VecDeque::new(),
            drained: in_segments,
            durable,
            buffers: Buffers::default(),
        }
    }

    /// Bytes of memory of the buffers of drains, under way or kept.
    pub(crate) fn memory_used(&self) -> usize {
        self.buffers.memory_used()
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    pub(crate) fn drained(&self) -> u64 {
        self.drained
    }

    /// Ring bytes from here on are still needed.
    pub(crate) fn floor(&self) -> u64 {
        block_floor(self.durable).min(self.next)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn next(
        &mut self,
        ring: &Ring,
        end: u64,
        config: &LogConfig,
        force: bool,
    ) -> Option<Drain> {
        let (start, segment_len) = (self.next, config.segment_len);
        let segment_end = (start / segment_len + 1) * segment_len;
        let stop = block_floor(end).min(segment_end).min(start + DRAIN_LEN_MAX);
        let len = stop.checked_sub(start).filter(|&len| len > 0)?;
        if len < DRAIN_LEN_MIN && stop != segment_end && !force {
            return None;
        }
        let mut data = self.buffers.take(TRANSFER_LEN_MAX);
        ring.read(start, &mut data[..len as usize]);
        let (data, lent) = Buffers::lend(data);
        self.buffers.put(lent, BUFFERS_LEN_MAX);
        self.next = stop;
        self.pieces.push_back(Piece { end: stop, done: false });
        self.end_step();
        Some(Drain {
            segment: config.segment_at(start),
            offset_in_segment: start % segment_len,
            data: data.slice(..len as usize),
            end: LogPosition(stop),
        })
    }

    /// The block in which the log ends, up to there, and zeros behind: once all before it is handed
    /// out.
    pub(crate) fn last(&mut self, ring: &Ring, end: u64, config: &LogConfig) -> Option<Drain> {
        let start = block_floor(end);
        let is_handed_out = self.pieces.back().is_some_and(|piece| piece.end >= end);
        if start == end || self.next < start || self.drained >= end || is_handed_out {
            return None;
        }
        assert!(ring.from() <= start, "the ring holds the block in which the log ends");
        let mut data = self.buffers.take(TRANSFER_LEN_MAX);
        let block = &mut data[..BLOCK_LEN];
        block.fill(0);
        ring.read(start, &mut block[..(end - start) as usize]);
        let (data, lent) = Buffers::lend(data);
        self.buffers.put(lent, BUFFERS_LEN_MAX);
        self.pieces.push_back(Piece { end, done: false });
        Some(Drain {
            segment: config.segment_at(start),
            offset_in_segment: start % config.segment_len,
            data: data.slice(..BLOCK_LEN),
            end: LogPosition(end),
        })
    }

    pub(crate) fn done(&mut self, end: u64) {
        if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.end == end) {
            piece.done = true;
        }
        while self.pieces.front().is_some_and(|piece| piece.done) {
            if let Some(piece) = self.pieces.pop_front() {
                self.drained = self.drained.max(piece.end);
            }
        }
        self.end_step();
    }

    pub(crate) fn flushed(&mut self, end: u64) {
        self.durable = self.durable.max(end.min(self.drained));
        self.end_step();
    }

    /// What lies below `at` is needed no more, so it is not written where it is not yet. Nothing
    /// may be under way.
    pub(crate) fn skip(&mut self, at: u64) {
        assert!(self.is_idle(), "a drain under way would land in a segment that is gone");
        self.drained = self.drained.max(at);
        self.durable = self.durable.max(at);
        self.next = self.next.max(block_floor(at));
        self.end_step();
    }

    pub(crate) fn rewind(&mut self) {
        self.pieces.clear();
        self.drained = self.durable;
        self.next = self.next.min(block_floor(self.durable));
        self.end_step();
    }

    /// The log ends at `at` and goes on at the next block: what of the last block is already in its
    /// segment stays there as it is.
    pub(crate) fn cut(&mut self, at: u64) {
        if self.drained >= at {
            let all_durable = self.durable >= at;
            self.next = block_ceil(at);
            self.drained = self.next;
            self.durable = if all_durable { self.next } else { self.durable };
        }
        self.end_step();
    }

    /// The log goes on at `at` in the span that it was thought to end in: the block there, which
    /// may have been written with zeros behind `at`, is written again with the same beginning.
    pub(crate) fn reopen(&mut self, at: u64) {
        self.next = self.next.min(block_floor(at));
        self.drained = self.drained.min(at);
        self.durable = self.durable.min(at);
        self.end_step();
    }

    /// Ends each step: see the drawing above.
    fn end_step(&self) {
        assert!(self.durable <= self.drained, "what is flushed was written");
        assert!(block_floor(self.drained) <= self.next, "what is written was handed out");
        if crate::CHECKED {
            let ends = self.pieces.iter().map(|piece| piece.end);
            assert!(ends.clone().is_sorted_by(|a, b| a < b), "drains are handed out in order");
            assert!(ends.max().is_none_or(|end| block_floor(end) <= self.next), "{self:?}");
        }
    }
}
