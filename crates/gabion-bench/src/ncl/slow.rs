//! The file system with slow syncs, as a process of `peers/slow-syncs`.

use super::NclArgs;
use super::house::{Process, directory};
use crate::engines::programs::place;
use gabion_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "slow-syncs";

/// It is there as long as this value.
pub(super) struct SlowDisk {
    pub(super) path: PathBuf,
    process: Process,
}

impl SlowDisk {
    /// Mounts it below `parent`.
    pub(super) fn mount(parent: &Path, ms: u64, args: &NclArgs) -> Result<Self> {
        let program = place(PROGRAM, args.peer_dir.as_deref())?;
        let (backing, path) = (directory(parent, "backing")?, directory(parent, "slow")?);
        let mut command = Command::new(program);
        command.arg(backing).arg(&path).arg(ms.to_string()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, parent.join("slow.log"))?;
        process.until("mounted").map_err(|error| {
            Error::unavailable(format!(
                "--slow-sync takes a file system in user space, so /dev/fuse and root: {error}"
            ))
        })?;
        Ok(Self { path, process })
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // It unmounts at SIGTERM.
        self.process.stop();
    }
}
