//! The interface of a file's two backends: they run one system call per job and give the job back.
//! Chains, short transfers and errors are the business of [`crate::file`].

use gabion_media::{Operation, OperationKind};
use std::collections::VecDeque;
use std::io;

/// An operation on its way, with its buffer and the operations that wait for it.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) kind: OperationKind,
    /// Bytes transferred so far.
    pub(crate) done: usize,
    /// Attempts in a row that transferred nothing.
    pub(crate) stalls: u32,
    /// The operations that start when this one is done.
    pub(crate) chain: VecDeque<Operation>,
}

/// A job that came back: bytes transferred by this attempt, or the system's error.
pub(crate) struct Ended {
    pub(crate) job: Job,
    pub(crate) result: io::Result<usize>,
}

/// A backend.
pub(crate) trait Engine: Send {
    /// Takes a job; it starts at the next [`Self::submit`] at the latest.
    fn start(&mut self, job: Job);

    /// Hands the taken jobs to the system.
    fn submit(&mut self);

    /// Appends the jobs that came back. Never blocks.
    fn collect(&mut self, ended: &mut Vec<Ended>);

    /// Jobs that were taken and did not come back.
    fn running(&self) -> usize;

    /// Blocks until a job came back, unless none is running.
    fn wait(&mut self);
}
