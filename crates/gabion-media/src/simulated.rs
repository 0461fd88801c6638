//! A disk that exists only in memory, with everything that can go wrong with one (docs/faults.md,
//! "SimFs crash semantics").
//!
//! ```text
//!   SimulatedMedium ──submit──► in flight ──tick: any order──► visible ──flush──► durable
//!                                   │                             │                 │
//!      process killed: lands, torn, late, or not              it stays          it stays
//!      power cut:      any sectors of it                any sectors of it       it stays
//! ```
//!
//! A [`SimulatedDisk`] is a cheap handle on one machine's disk: the test keeps it, injects faults
//! and crashes, and makes [`SimulatedMedium`]s for what runs on the machine. After a crash the
//! media made before it are dead: their operations never end. In *immediate* mode an operation
//! takes effect when it is submitted; with *delays* each takes a random number of
//! [`SimulatedDisk::tick`]s. All chance comes from seeds; the same calls give the same disk.

mod crash;
mod faults;
mod pages;
mod random;
mod recording;
mod state;
#[cfg(test)]
mod tests;

pub use crash::SECTOR_LEN;
pub use faults::{Fault, OperationClass};
pub use recording::{Recorded, Recording, Replay};

use crate::medium::{Completion, Medium, MediumProperties, Operation};
use crate::{Bytes, MediumHandle};
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::{Context, Poll, Waker};
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX};
use pages::Pages;
use state::State;

/// Size and manner of a simulated disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Bytes on the disk.
    pub len: u64,
    /// Where its chance comes from.
    pub seed: u64,
    /// The most ticks that an operation takes; 0 is immediate mode.
    pub delay_ticks_max: u32,
}

impl DiskOptions {
    /// Operations take effect at once, in order.
    #[must_use]
    pub const fn immediate(len: u64) -> Self {
        Self { len, seed: 0, delay_ticks_max: 0 }
    }

    /// Operations take 1 to `delay_ticks_max` ticks and end in any order.
    #[must_use]
    pub const fn delayed(len: u64, seed: u64, delay_ticks_max: u32) -> Self {
        Self { len, seed, delay_ticks_max }
    }
}

/// What a disk did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads that ended.
    pub reads: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
}

/// One machine's disk.
#[derive(Clone)]
pub struct SimulatedDisk(Rc<RefCell<State>>);

impl SimulatedDisk {
    /// An empty disk (all zeros).
    #[must_use]
    pub fn new(options: DiskOptions) -> Self {
        Self::from_pages(options, Pages::default())
    }

    fn from_pages(options: DiskOptions, pages: Pages) -> Self {
        Self(Rc::new(RefCell::new(State::new(options, pages))))
    }

    /// A new medium on this disk. Writes that a killed process left in flight land now at the
    /// latest.
    #[must_use]
    pub fn medium(&self) -> SimulatedMedium {
        let (id, properties) = self.0.borrow_mut().attach();
        SimulatedMedium { disk: self.clone(), id, properties }
    }

    /// [`Self::medium`] behind a handle.
    #[must_use]
    pub fn handle(&self) -> MediumHandle {
        MediumHandle::new(self.medium())
    }

    /// Lets one unit of time pass. Returns how many operations ended.
    pub fn tick(&self) -> usize {
        self.0.borrow_mut().tick()
    }

    /// Operations of living media that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.borrow().in_flight()
    }

    /// Runs a future that waits for `handle`, which belongs to this disk, to its end.
    ///
    /// # Panics
    /// When the future waits for something that no tick brings.
    pub fn block_on<T>(&self, handle: &MediumHandle, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0u32;
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            if handle.drive() > 0 {
                idle = 0;
                continue;
            }
            self.tick();
            idle += 1;
            assert!(idle < 1_000_000, "the future waits for what the disk will never bring");
        }
    }

    /// A second disk with this one's visible content, nothing unflushed and no faults.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.0.borrow();
        Self::from_pages(state.options, state.visible.clone())
    }

    /// The bytes that a read would see now, at any offset and length.
    #[must_use]
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.borrow().visible.read(offset, &mut bytes);
        bytes
    }

    /// Changes bytes behind everybody's back, durably.
    ///
    /// # Panics
    /// When the range reaches past the end.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.0.borrow_mut().poke(offset, data);
    }

    /// Inverts one bit (0 to 7) of the byte at `offset`, durably.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let byte = self.peek(offset, 1)[0];
        self.poke(offset, &[byte ^ (1 << (bit % 8))]);
    }

    /// What the disk did so far.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.0.borrow().stats
    }

    /// Writes and flushes that ended, counted on: for a ring that notes when it is written, which
    /// may be anywhere.
    #[must_use]
    pub fn effects(&self) -> Arc<AtomicU64> {
        self.0.borrow().effects.clone()
    }

    /// The power goes. Of everything that no flush covered, any sectors survive, torn or damaged.
    /// Seeds 0 and 1 mean: nothing of it, all of it.
    pub fn crash_power(&self, seed: u64) {
        self.0.borrow_mut().crash_power(seed);
    }

    /// The process is killed. What had ended stays (unflushed as before); each write in flight
    /// lands or not, or in part, now or before the next medium is made.
    pub fn crash_process(&self, seed: u64) {
        self.0.borrow_mut().crash_process(seed);
    }

    /// Plans a fault for the `nth` operation of a class from now on (1 is the next one).
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn plan(&self, class: OperationClass, nth: u64, fault: Fault) {
        assert!(nth > 0, "operations are counted from 1");
        self.0.borrow_mut().faults.plan(class, nth, fault);
    }

    /// Reads that touch this range fail from now on.
    pub fn fail_reads_in(&self, offset: u64, len: u64) {
        self.0.borrow_mut().faults.bad_ranges.push((offset, len));
    }

    /// Writes that touch this range fail from now on, as [`Fault::Fail`] says.
    pub fn fail_writes_in(&self, offset: u64, len: u64) {
        self.0.borrow_mut().faults.refusing_ranges.push((offset, len));
    }

    /// From now on there is no room for writes that touch one of these ranges, pairs of offset and
    /// length: they end as [`Fault::NoSpace`] says. An empty list gives room everywhere.
    pub fn fill_up(&self, ranges: Vec<(u64, u64)>) {
        self.0.borrow_mut().faults.full_ranges = ranges;
    }

    /// Forgets all planned faults, and ranges that are bad or full.
    pub fn clear_faults(&self) {
        self.0.borrow_mut().faults = faults::Faults::default();
    }

    /// Planned faults that have not happened.
    #[must_use]
    pub fn faults_to_come(&self) -> usize {
        self.0.borrow().faults.to_come()
    }

    /// Whether a flush failed since the power was last cut, and [`Self::forget_failed_flush`] was
    /// not called since: what the mark beside a pool's file says.
    #[must_use]
    pub fn flush_had_failed(&self) -> bool {
        self.0.borrow().flush_had_failed
    }

    /// Puts that mark there, as an earlier process does whose flush failed.
    pub fn note_failed_flush(&self) {
        self.0.borrow_mut().flush_had_failed = true;
    }

    /// What no flush had covered was written again and flushed.
    pub fn forget_failed_flush(&self) {
        self.0.borrow_mut().flush_had_failed = false;
    }

    /// Makes every operation take `factor` times as many ticks (1 is normal). Immediate mode has
    /// none.
    pub fn slow_down(&self, factor: u32) {
        self.0.borrow_mut().slow_factor = factor.max(1);
    }

    /// Lets operations that [`Fault::Hold`] keeps go on; they end within the usual delay.
    pub fn release_held(&self) {
        self.0.borrow_mut().release_held();
    }

    /// Starts to record every effect, from the durable state of now. What is not flushed yet counts
    /// as the first effects. Ends a recording under way; a crash restarts it.
    pub fn start_recording(&self) {
        self.0.borrow_mut().start_recording();
    }

    /// What was recorded so far; nothing when no recording is under way.
    #[must_use]
    pub fn recording(&self) -> Option<Recording> {
        self.0.borrow().recording.clone()
    }
}

/// One process's access to a [`SimulatedDisk`].
pub struct SimulatedMedium {
    disk: SimulatedDisk,
    id: u64,
    properties: MediumProperties,
}

impl Medium for SimulatedMedium {
    fn properties(&self) -> MediumProperties {
        self.properties
    }

    fn submit(&mut self, batch: Vec<Operation>) {
        self.disk.0.borrow_mut().submit(self.id, batch);
    }

    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.disk.0.borrow_mut().collect(self.id, completed);
    }

    fn in_flight(&self) -> usize {
        self.disk.0.borrow().in_flight_of(self.id)
    }
}

impl Drop for SimulatedMedium {
    fn drop(&mut self) {
        self.disk.0.borrow_mut().detach(self.id);
    }
}

/// What every simulated disk needs and promises.
const fn properties(len: u64) -> MediumProperties {
    MediumProperties {
        len,
        alignment: BLOCK_LEN,
        align_memory: true,
        transfer_len_max: TRANSFER_LEN_MAX,
        durable_at_completion: false,
    }
}

/// A copy of `bytes` that lies as direct I/O needs it.
fn aligned_copy(bytes: &[u8]) -> Bytes {
    crate::AlignedBuf::copy_of(bytes).freeze()
}
