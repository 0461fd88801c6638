//! Memory that is not lent: some lies zeroed and ready, some came back and is still to be zeroed.
//!
//! ```text
//!   lent ◄── take ── ready ◄── step: zeroed, so many bytes at a time ── dirty ◄── give back
//!                                                                         ▲
//!                             lengths asked for lately: made ahead ───────┘
//! ```
//!
//! Lending never waits: without memory of the right length at hand, new memory is made, which the
//! system hands out as zeros. Memory at hand saves the first touch of each page. All of it counts
//! as free, and is dropped once others need the room.

use super::peer::{LentMemory, Supply};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Requests that tell which lengths will be asked for next.
const ASKED_MAX: usize = 16;

struct Dirty<M> {
    memory: M,
    zeroed: u64,
    /// Zeros already: its pages are brought in, no more.
    is_new: bool,
}

/// Memory at hand.
pub struct Stock<M> {
    /// By length. No list is empty.
    ready: BTreeMap<u64, Vec<M>>,
    ready_bytes: u64,
    dirty: VecDeque<Dirty<M>>,
    dirty_bytes: u64,
    /// Memory that a client can still reach: it goes to the system, which takes its time.
    leaving: Vec<M>,
    leaving_bytes: u64,
    /// The lengths asked for last, the newest in front.
    asked: VecDeque<u64>,
    /// Bytes to keep ready at most.
    target_bytes: u64,
    /// Bytes that were zeroed or brought in since the beginning.
    readied_bytes: u64,
}

impl<M: LentMemory> Stock<M> {
    /// An empty one, which keeps `target_bytes` ready at most: at first of the lengths that are
    /// expected, later of those that were asked for.
    #[must_use]
    pub fn new(target_bytes: u64, expected: &[u64]) -> Self {
        Self {
            ready: BTreeMap::new(),
            ready_bytes: 0,
            dirty: VecDeque::new(),
            dirty_bytes: 0,
            leaving: Vec::new(),
            leaving_bytes: 0,
            asked: expected.iter().take(ASKED_MAX).copied().collect(),
            target_bytes,
            readied_bytes: 0,
        }
    }

    /// Bytes at hand, zeroed or not, and those that are on their way to the system.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.ready_bytes + self.dirty_bytes + self.leaving_bytes
    }

    /// Bytes that are zeroed.
    #[must_use]
    pub const fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Bytes that were zeroed or brought in since the beginning.
    #[must_use]
    pub const fn readied_bytes(&self) -> u64 {
        self.readied_bytes
    }

    /// Zeroed memory of exactly this length, if there is some; the length is remembered.
    pub fn take(&mut self, len: u64) -> Option<M> {
        // Its gate may be needed by what is lent.
        self.drop_leaving();
        self.asked.truncate(ASKED_MAX - 1);
        self.asked.push_front(len);
        let list = self.ready.get_mut(&len)?;
        let memory = list.pop();
        if list.is_empty() {
            self.ready.remove(&len);
        }
        let memory = memory?;
        self.ready_bytes -= len;
        Some(memory)
    }

    /// Takes memory back. It is zeroed before it is lent again; if a client can still reach it, it
    /// never is, and goes to the system with the next step.
    pub fn give_back(&mut self, memory: M) {
        if !memory.is_shared() {
            return self.push(memory, false);
        }
        self.leaving_bytes += memory.len();
        self.leaving.push(memory);
    }

    fn drop_leaving(&mut self) -> Option<u64> {
        let len = self.leaving.pop()?.len();
        self.leaving_bytes -= len;
        Some(len)
    }

    fn push(&mut self, memory: M, is_new: bool) {
        assert!(!memory.is_shared(), "memory that a client can reach is never lent again");
        self.dirty_bytes += memory.len();
        self.dirty.push_back(Dirty { memory, zeroed: 0, is_new });
    }

    /// Drops memory until `room` bytes are left at most: what leaves anyway, then the dirty, then
    /// the longest.
    pub fn trim(&mut self, room: u64) {
        while self.bytes() > room {
            if self.drop_leaving().is_some() {
                continue;
            }
            if let Some(dirty) = self.dirty.pop_back() {
                self.dirty_bytes -= dirty.memory.len();
                continue;
            }
            let Some(mut longest) = self.ready.last_entry() else { break };
            let len = *longest.key();
            longest.get_mut().pop();
            if longest.get().is_empty() {
                longest.remove();
            }
            self.ready_bytes -= len;
        }
        assert!(self.bytes() <= room, "{} bytes are at hand, {room} may be", self.bytes());
    }

    /// Whether [`Self::step`] may have something to do.
    #[must_use]
    pub fn has_step(&self, room: u64) -> bool {
        let has_some = !self.dirty.is_empty() || !self.leaving.is_empty();
        has_some || self.wanted().is_some_and(|len| self.bytes() + len <= room)
    }

    /// Gives memory that leaves to the system, or zeroes `budget` bytes at most of memory that came
    /// back, or brings in as many of new memory of the lengths that were asked for lately. `room`
    /// bytes may be at hand. Returns the bytes; none: there is nothing to do.
    pub fn step(&mut self, budget: u64, room: u64, supply: &mut impl Supply<Memory = M>) -> u64 {
        self.trim(room);
        if let Some(len) = self.drop_leaving() {
            return len;
        }
        self.drop_unwanted();
        if self.dirty.is_empty()
            && let Some(len) = self.wanted().filter(|len| self.bytes() + len <= room)
            && let Some(memory) = supply.make(len)
        {
            self.push(memory, true);
        }
        let Some(Dirty { memory, zeroed, is_new }) = self.dirty.front_mut() else { return 0 };
        let len = budget.min(memory.len() - *zeroed);
        match is_new {
            true => memory.bring_in(*zeroed, len),
            false => memory.zero(*zeroed, len),
        }
        *zeroed += len;
        self.readied_bytes += len;
        if *zeroed == memory.len()
            && let Some(Dirty { memory, .. }) = self.dirty.pop_front()
        {
            self.dirty_bytes -= memory.len();
            self.ready_bytes += memory.len();
            self.ready.entry(memory.len()).or_default().push(memory);
        }
        len
    }

    /// Memory that came back and is of no length asked for lately goes to the system at once.
    fn drop_unwanted(&mut self) {
        while let Some(dirty) = self.dirty.front() {
            let len = dirty.memory.len();
            if dirty.zeroed > 0 || self.wanted_of(len) {
                return;
            }
            self.dirty.pop_front();
            self.dirty_bytes -= len;
        }
    }

    /// The first length, newest first, of which less is ready than was asked for lately.
    fn wanted(&self) -> Option<u64> {
        self.asked.iter().copied().find(|len| self.wanted_of(*len))
    }

    fn wanted_of(&self, len: u64) -> bool {
        let asked = self.asked.iter().filter(|asked| **asked == len).count();
        let ready = self.ready.get(&len).map_or(0, Vec::len);
        ready < asked && self.ready_bytes + len <= self.target_bytes
    }
}
