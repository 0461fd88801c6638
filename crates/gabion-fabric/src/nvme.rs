//! NVMe/TCP on sockets: the drivers of the protocol cores in `gabion_media::nvme`.
//!
//! - [`remote`]: the initiators of a shipping thread.
//! - [`target`]: the thread that serves this pool's region to a primary.

pub mod remote;
pub mod target;

#[cfg(test)]
mod tests;

pub use gabion_media::nvme::TargetCommand;
pub use remote::{Readiness, Remote, Remotes};
pub use target::{TargetEvent, TargetOptions, TargetServer, WireBytes};
