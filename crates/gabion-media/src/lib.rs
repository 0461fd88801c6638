//! Media: everything that takes a positioned write.
//!
//! ```text
//!    pool, log, node ── async ──► MediumHandle ── submit/poll ──► dyn Medium
//!                                                                   ├─ SimulatedMedium   (here, with faults and a recorder)
//!                                                                   ├─ files and devices (gabion-fabric)
//!                                                                   └─ NVMe/TCP namespace: protocol here (nvme), sockets in gabion-fabric
//!    ring of a log   ── copies ──► MemoryRegion (a mapped file; simulated memory)
//! ```
//!
//! - [`medium`]: the trait, operations and their three outcomes: done, failed, *unknown*.
//! - [`buffer`]: owned, aligned, reference-counted memory that operations carry; [`buffers`]: some
//!   of it that is used again.
//! - [`handle`]: `async` reads, writes and flushes over any medium, without a runtime.
//! - [`task`]: the small executor that drives such futures, in the server and in the simulator.
//! - [`memory`]: byte-addressable regions (the ring of a log).
//! - [`simulated`]: a disk in memory with delays, faults, crashes and a recorder.
#![no_std]

extern crate alloc;

pub mod buffer;
pub mod buffers;
pub mod handle;
pub mod medium;
pub mod memory;
pub mod nvme;
pub mod remote;
pub mod simulated;
pub mod task;
pub mod transport;

pub use buffer::{AlignedBuf, BufferMeter};
pub use buffers::Buffers;
pub use bytes::{Buf, Bytes};
pub use handle::MediumHandle;
pub use medium::{Completion, Medium, MediumProperties, Operation, OperationKind, Outcome};
pub use memory::MemoryRegion;
