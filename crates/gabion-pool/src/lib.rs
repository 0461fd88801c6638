//! One device or file as one pool, which holds everything that a replica keeps.
//!
//! ```text
//!   device  0        1 MiB                                          2 MiB-aligned
//!           ┌────────┬─────────────────────┬─────────────────────┬──────────────────────────────┐
//!           │super-  │ placement log       │ placement log       │ region of a group            │
//!           │block ×2│ area A              │ area B              │ ┌───────┬──────┬──────┬───   │
//!           │        │ snapshot commits …  │ (they take turns)   │ │headers│slot 0│slot 1│ …    │
//!           └────────┴─────────────────────┴─────────────────────┴─┴───────┴──────┴──────┴──────┘
//!
//!   allocate ─┐                                        ┌─► write_file / shipment ─► slots, headers
//!   grant  ───┤    Pool (no I/O)      take_commit      │
//!   add_file ─┼──► slot table,   ───► Commit ───► write_commit ───► committed(number)
//!   retire ───┤    file map           (one at a time: a group commit)
//!   opaque ───┘
//! ```
//!
//! - [`superblock`]: what the device is, in two copies, written last at creation.
//! - [`geometry`]: where slots and their headers lie; the same arithmetic on device and namespace.
//! - [`slot_header`]: whose bytes a slot holds; written after the bytes.
//! - [`placement_log`]: the journal's records and operations, as bytes.
//! - [`slots`]: every slot in exactly one state; the transitions stand in one place.
//! - [`pool`]: the state of a pool and what may be done to it.
//! - [`recovery`]: creation and opening; [`creation`]: of a pool that holds files from the first
//!   moment.
//! - [`file_io`]: reading and writing files through their placements.
//! - [`label`]: whose a file is that does not say so itself: a ring, a pool that is being made.
//! - [`inspect`]: looking at a pool that may be damaged, for tools; nothing is written.
#![no_std]

extern crate alloc;

pub mod creation;
pub mod file_io;
pub mod geometry;
pub mod inspect;
mod journal;
pub mod label;
pub mod placement_log;
pub mod pool;
pub mod recovery;
pub mod slot_header;
pub mod slots;
pub mod superblock;

/// Whether steps end with costly checks of what must hold: in tests and the simulator. A build with
/// optimisations for users or measurements has none, whatever features its workspace turns on.
const CHECKED: bool = cfg!(all(feature = "invariants", debug_assertions));

pub use creation::Creation;
pub use file_io::{
    extents, file_headers, read_file, read_files, read_slot_header, verify_file, write_commit,
    write_file,
};
pub use geometry::{Extent, Geometry};
pub use journal::{Commit, Stage};
pub use label::{Label, Purpose};
pub use placement_log::{FilePlacement, Placed, QuarantineOrigin};
pub use pool::{Drained, Pool};
pub use recovery::{AtRest, Recovered, Trust, create, open, read};
pub use slot_header::SlotHeader;
pub use slots::{Counts, SlotState};
pub use superblock::{PoolConfig, PoolId, Superblock};

#[cfg(test)]
mod tests;
