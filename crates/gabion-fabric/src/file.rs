//! A pool file or block device as a [`Medium`].
//!
//! ```text
//!   PoolFile: one descriptor, locked, direct where the file system allows it
//!      ├─ medium()  ─► FileMedium ─► io_uring, or threads with pread/pwrite where it is refused
//!      ├─ medium()  ─► …  one per thread that does I/O: loop, jobs, target
//!      └─ flushes go through a descriptor per medium: the system reports a failed write-back once
//!         per descriptor, and no medium may miss it
//! ```
//!
//! This module keeps chains, not the kernel: the next operation starts when the one before it is
//! done, whatever the backend. After a failed flush, every later flush of the pool file fails: data
//! that was not durable then may never be, and a second flush that succeeds would prove nothing
//! (docs/faults.md E8). A flush that succeeded beside it proves nothing either: it fails too.

use crate::engine::{Ended, Engine, Job};
use crate::ledger::Ledger;
use crate::lock::lock_exclusive;
use crate::pool_io::{ThreadPool, Threads};
use crate::space::failed;
use crate::uring::{Uring, is_passing};
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX};
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::medium::{chains, check_operation};
use gabion_media::{
    AlignedBuf, Completion, Medium, MediumProperties, Operation, OperationKind, Outcome,
};
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(test)]
mod tests;

/// Attempts in a row that transfer nothing before an operation fails.
const STALLS_MAX: u32 = 100;

/// Whether reads and writes go past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Where the file system allows it (the default).
    #[default]
    Try,
    /// Through the page cache.
    Never,
}

/// The choice of a medium's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// io_uring, or threads where the kernel refuses it (the default).
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads.
    Threads,
}

/// The backend in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring.
    Uring,
    /// A few threads with pread and pwrite.
    Threads,
}

/// How a [`FileMedium`] works.
#[derive(Clone, Copy, Debug)]
pub struct MediumOptions {
    /// The backend.
    pub backend: BackendChoice,
    /// Most operations in the kernel at a time, 1 to 4,096 (default 64); more wait their turn.
    pub depth: u32,
    /// Whether [`FileMedium::readiness_fd`] exists. A blocking thread needs none, and makes its
    /// flushes itself: io_uring leaves them to a kernel thread, which costs two thread switches, a
    /// quarter of a small synced write.
    pub notify: bool,
}

impl Default for MediumOptions {
    fn default() -> Self {
        Self { backend: BackendChoice::Auto, depth: 64, notify: true }
    }
}

struct Shared {
    path: PathBuf,
    file: Arc<File>,
    len: u64,
    direct: bool,
    direct_refusal: Option<String>,
    ledger: Ledger,
    threads: Mutex<Option<Arc<ThreadPool>>>,
    /// Media that are not dropped.
    media: AtomicUsize,
}

impl Shared {
    /// This name stands beside the file while a failed flush may have left unflushed data behind.
    fn mark(&self) -> PathBuf {
        mark_of(&self.path)
    }

    /// From now on no flush of this process counts, and a mark tells the next process. Returns the
    /// error; it says so if the mark could not be made.
    fn note_failed_flush(&self, number: u64, error: io::Error) -> io::Error {
        let besides = self.make_mark();
        // Only now: a caller that learns of the failure may end the process.
        self.ledger.fail(number, besides.clone());
        if besides.is_empty() {
            return error;
        }
        io::Error::new(error.kind(), format!("{error}{besides}"))
    }

    /// Makes the mark. Returns the text that errors must add when that fails, else nothing.
    fn make_mark(&self) -> String {
        let mark = self.mark();
        // A link that leads nowhere takes neither a descriptor nor a data block. So the pool gets
        // its mark even where the process or the file system has no more of these.
        match std::os::unix::fs::symlink(MARK, &mark) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => format!(
                "; and {} cannot be made, so the next process must be told: {error}",
                mark.display()
            ),
            _ => String::new(),
        }
    }
}

/// The target of the link that marks a failed flush.
const MARK: &str = "a flush failed";

fn mark_of(pool: &Path) -> PathBuf {
    let mut path = pool.to_owned().into_os_string();
    path.push(".unflushed");
    path.into()
}

/// Removes the mark of a failed flush beside a pool, if there is one: the link, or an empty file as
/// older versions and operators make it. Anything else is foreign and stays; the text to report
/// then is returned.
///
/// # Errors
/// I/O.
pub fn remove_mark(pool: &Path) -> Result<Option<String>> {
    let mark = mark_of(pool);
    let is_ours = match mark.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&mark, "cannot be looked at", error)),
        Ok(data) if data.is_symlink() => {
            std::fs::read_link(&mark).is_ok_and(|to| to.as_os_str() == MARK)
        }
        Ok(data) => data.is_file() && data.len() == 0,
    };
    if !is_ours {
        return Ok(Some(format!(
            "{}: stays, as it is not Gabion's; while it is there each start takes a flush to have failed",
            mark.display()
        )));
    }
    match std::fs::remove_file(&mark) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed(&mark, "cannot be removed", error))
        }
        _ => Ok(None),
    }
}

/// An open and locked pool file or block device; a clone is the same descriptor. The lock ends with
/// the last clone and medium.
#[derive(Clone)]
pub struct PoolFile(Arc<Shared>);

impl PoolFile {
    /// Opens and locks the file. Its length is rounded down to whole blocks.
    ///
    /// # Errors
    /// Busy when another process, or another `open` of this one, has it; not found; invalid input
    /// when it is neither a file nor a block device; I/O.
    pub fn open(path: &Path, direct: DirectIo) -> Result<Self> {
        Self::open_as(path, direct, true)
    }

    /// Opens and locks the file as [`Self::open`] does, but on a descriptor that cannot write: for
    /// tools that look at a pool.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_read_only(path: &Path, direct: DirectIo) -> Result<Self> {
        Self::open_as(path, direct, false)
    }

    fn open_as(path: &Path, direct: DirectIo, write: bool) -> Result<Self> {
        let cannot = |e| failed(path, "cannot be opened", e);
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        // Checked before the open: a FIFO would wait for its other end, and other devices may act
        // on it.
        if !kind.is_file() && !kind.is_block_device() {
            let message = format!("{}: is neither a file nor a block device", path.display());
            return Err(Error::invalid(message));
        }
        let file = OpenOptions::new().read(true).write(write).open(path).map_err(cannot)?;
        lock_exclusive(&file, path)?;
        let len = length(&file, path)?;
        let direct_refusal = match direct {
            DirectIo::Never => Some("not asked for".to_owned()),
            DirectIo::Try => set_direct(&file, len).err().map(|error| error.to_string()),
        };
        Ok(Self(Arc::new(Shared {
            // Absolute, as it is used again for further descriptors and the mark of a failed flush,
            // in whatever directory the process is by then.
            path: std::path::absolute(path).map_err(|e| failed(path, "has no absolute path", e))?,
            file: Arc::new(file),
            len,
            direct: direct_refusal.is_none(),
            direct_refusal,
            ledger: Ledger::default(),
            threads: Mutex::new(None),
            media: AtomicUsize::new(0),
        })))
    }

    /// Whether a flush failed in a process that ran since the machine started, and nobody has
    /// cleared that since. The sign is a symbolic link beside this file, or a file (older versions
    /// made one). Nothing flushes it: after a power cut all that can be read is on the device, and
    /// the mark may be lost with the page cache.
    #[must_use]
    pub fn flush_had_failed(&self) -> bool {
        // The link itself, as it leads nowhere. If the system does not say, writing again does no
        // harm.
        let found = self.0.mark().symlink_metadata();
        !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// All unflushed data was written again and flushed. If something else has the name of the
    /// mark, it stays, and the text to report is returned.
    ///
    /// # Errors
    /// I/O, when the mark cannot be removed.
    pub fn forget_failed_flush(&self) -> Result<Option<String>> {
        remove_mark(&self.0.path)
    }

    /// The path that it was opened with, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Usable bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a pool file is a device, not a collection")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Why reads and writes go through the page cache; nothing when they are direct.
    #[must_use]
    pub fn direct_refusal(&self) -> Option<&str> {
        self.0.direct_refusal.as_deref()
    }

    /// Whether a medium on this file is left: from then on operations of others may still land.
    #[must_use]
    pub fn has_medium(&self) -> bool {
        self.0.media.load(Ordering::Acquire) > 0
    }

    /// A medium on this file, for one thread.
    ///
    /// # Errors
    /// Invalid input for a bad depth; I/O when the path no longer names this file, or when the
    /// backend that was asked for is refused.
    pub fn medium(&self, options: MediumOptions) -> Result<FileMedium> {
        FileMedium::new(self.clone(), options)
    }

    /// Reads `buffer` full from `offset`; the calling thread waits. With direct I/O, address,
    /// offset and length must be multiples of 4 KiB, as an `AlignedBuf` and whole blocks are.
    ///
    /// # Errors
    /// I/O, and for bytes past the end, naming the path and the range.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.0.file.read_exact_at(buffer, offset).map_err(|error| {
            failed(&self.0.path, &format!("read of {} bytes at {offset}", buffer.len()), error)
        })
    }

    /// A second descriptor of the same file, for the flushes of one medium.
    fn reopen(&self) -> Result<File> {
        let path = &self.0.path;
        let file = File::open(path).map_err(|e| failed(path, "cannot be opened again", e))?;
        let identity = |file: &File| {
            file.metadata()
                .map(|m| (m.dev(), m.ino(), m.rdev()))
                .map_err(|e| failed(path, "has no identity", e))
        };
        if identity(&file)? == identity(&self.0.file)? {
            return Ok(file);
        }
        Err(Error::new(
            ErrorKind::Io,
            format!("{}: names another file since it was opened", path.display()),
        ))
    }

    fn threads(&self) -> Result<Arc<ThreadPool>> {
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*threads {
            return Ok(pool.clone());
        }
        let pool = ThreadPool::start()
            .map_err(|e| failed(&self.0.path, "gets no threads for its I/O", e))?;
        Ok(threads.insert(Arc::new(pool)).clone())
    }
}

fn length(mut file: &File, path: &Path) -> Result<u64> {
    let metadata = file.metadata().map_err(|e| failed(path, "has no metadata", e))?;
    let len = if metadata.is_file() {
        metadata.len()
    } else if metadata.file_type().is_block_device() {
        file.seek(SeekFrom::End(0)).map_err(|e| failed(path, "has no length", e))?
    } else {
        let message = format!("{}: is neither a file nor a block device", path.display());
        return Err(Error::invalid(message));
    };
    Ok(len / BLOCK_LEN as u64 * BLOCK_LEN as u64)
}

/// Turns direct I/O on and proves that a read works with it; turns it off again when not.
fn set_direct(file: &File, len: u64) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?;
    if len == 0 {
        return Ok(());
    }
    let mut block = AlignedBuf::zeroed(BLOCK_LEN);
    let read = file.read_at(&mut block, 0);
    if let Err(error) = read {
        rustix::fs::fcntl_setfl(file, flags)?;
        return Err(error);
    }
    Ok(())
}

/// A [`PoolFile`] as a medium. Dropping it waits for what is in flight.
pub struct FileMedium {
    file: PoolFile,
    engine: Box<dyn Engine>,
    backend: Backend,
    fallback: Option<String>,
    notify: Option<Arc<OwnedFd>>,
    properties: MediumProperties,
    /// Completions that `poll` has not returned yet.
    ended: Vec<Completion>,
    in_flight: usize,
    scratch: Vec<Ended>,
    flushes: Flushes,
    /// The descriptor with which the thread flushes by itself, if it does.
    flush_here: Option<Arc<File>>,
    /// Dropped last, behind the engine, which waits for what the kernel has of it.
    _counted: Counted,
}

/// A medium among those of its file.
struct Counted(PoolFile);

impl Counted {
    fn new(file: PoolFile) -> Self {
        file.0.media.fetch_add(1, Ordering::AcqRel);
        Self(file)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.media.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Flushes of one medium, one at a time. If two ran side by side on a descriptor, the system would
/// report a failed write-back to only one, and the other's success might be read first. Flushes
/// that wait meanwhile share the next one.
#[derive(Default)]
struct Flushes {
    /// Asked for before the flush under way began, if one is.
    sharing: Vec<Job>,
    /// The number in the ledger of the flush whose call is under way.
    number: Option<u64>,
    /// A flush that is done. It counts once all flushes before this number are judged.
    held: Option<(Job, u64)>,
    waiting: Vec<Job>,
}

impl Flushes {
    const fn is_under_way(&self) -> bool {
        self.number.is_some() || self.held.is_some()
    }
}

impl FileMedium {
    fn new(file: PoolFile, options: MediumOptions) -> Result<Self> {
        if !(1..=4096).contains(&options.depth) {
            let message = format!("queue depth {} is not in 1..=4096", options.depth);
            return Err(Error::invalid(message));
        }
        let path = &file.0.path;
        let new_fd = || {
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| failed(path, "gets no event counter", e))
        };
        let notify = if options.notify { Some(new_fd()?) } else { None };
        let flush_file = Arc::new(file.reopen()?);
        let chosen = choose_engine(&file, &flush_file, options, notify.as_ref())?;
        let mut medium = Self::with_engine(file, chosen, notify);
        medium.flush_here = (!options.notify).then_some(flush_file);
        Ok(medium)
    }

    /// A medium on an engine that was chosen.
    pub(crate) fn with_engine(file: PoolFile, chosen: Chosen, notify: Option<OwnedFd>) -> Self {
        let properties = MediumProperties {
            len: file.0.len,
            alignment: BLOCK_LEN,
            align_memory: file.0.direct,
            transfer_len_max: TRANSFER_LEN_MAX,
            durable_at_completion: false,
        };
        let (engine, backend, fallback) = chosen;
        Self {
            _counted: Counted::new(file.clone()),
            file,
            engine,
            backend,
            fallback,
            notify: notify.map(Arc::new),
            properties,
            ended: Vec::new(),
            in_flight: 0,
            scratch: Vec::new(),
            flushes: Flushes::default(),
            flush_here: None,
        }
    }

    /// The backend in use.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Why the backend is not io_uring, for the opener of the pool to report once; nothing when it
    /// is, or when threads were asked for.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Becomes readable when an operation ends; nothing when `notify` was not asked for. Nobody
    /// reads it, so watch it for edges (as mio does), and call [`Medium::poll`] after each. The end
    /// of an operation also interrupts a system call that the thread sleeps in: `EINTR` from the
    /// wait for events only means "look again".
    #[must_use]
    pub fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.notify.as_ref().map(AsFd::as_fd)
    }

    /// Blocks until [`Medium::poll`] has something to return. Returns at once when nothing is in
    /// flight.
    ///
    /// A flush that is done counts once all flushes of the pool file's other media that ran when it
    /// ended are judged. Those are judged when their medium is polled or dropped, not by a thread
    /// that waits here meanwhile.
    pub fn wait(&mut self) {
        while self.ended.is_empty() && self.in_flight > 0 {
            self.engine.submit();
            match &self.flushes.held {
                // Nothing else will end anything.
                Some((_, before)) if self.engine.running() == 0 => self.file.0.ledger.wait(*before),
                _ => self.engine.wait(),
            }
            self.advance();
        }
    }

    fn start_chain(&mut self, mut chain: VecDeque<Operation>) {
        let Some(Operation { tag, kind, .. }) = chain.pop_front() else { return };
        match check_operation(&kind, &self.properties) {
            Ok(()) => self.start(Job { tag, kind, done: 0, stalls: 0, chain }),
            Err(error) => self.finish(tag, kind, Outcome::Failed(error), chain),
        }
    }

    fn start(&mut self, job: Job) {
        if matches!(job.kind, OperationKind::Flush) {
            if self.flushes.is_under_way() {
                return self.flushes.waiting.push(job);
            }
            self.flushes.number = Some(self.file.0.ledger.begin());
            if let Some(file) = &self.flush_here {
                let result = file.sync_data().map(|()| 0);
                return self.judge_flush(job, result);
            }
        }
        self.engine.start(job);
    }

    /// Reports an operation, and starts or fails the operations that wait for it.
    fn finish(
        &mut self,
        tag: u64,
        kind: OperationKind,
        outcome: Outcome,
        chain: VecDeque<Operation>,
    ) {
        let done = matches!(outcome, Outcome::Done);
        self.report(tag, kind, outcome);
        if done {
            return self.start_chain(chain);
        }
        for Operation { tag, kind, .. } in chain {
            let error = Error::io("not started: an operation before it in its chain was not done");
            self.report(tag, kind, Outcome::Failed(error));
        }
    }

    fn report(&mut self, tag: u64, kind: OperationKind, outcome: Outcome) {
        self.ended.push(kind.ended(tag, outcome));
    }

    /// Takes the jobs that came back and sends on their next steps.
    fn advance(&mut self) {
        let mut ended = std::mem::take(&mut self.scratch);
        self.engine.collect(&mut ended);
        for Ended { job, result } in ended.drain(..) {
            self.judge(job, result);
        }
        self.scratch = ended;
        self.judge_held();
        self.engine.submit();
    }

    fn judge(&mut self, mut job: Job, result: io::Result<usize>) {
        let len = match &job.kind {
            OperationKind::Read { into, .. } => into.len(),
            OperationKind::Write { data, .. } => data.len(),
            OperationKind::Flush => return self.judge_flush(job, result),
        };
        let progress = match result {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(n) => Ok(n),
            Err(error) if is_passing(&error) && job.stalls < STALLS_MAX => Ok(0),
            Err(error) => Err(error),
        };
        let outcome = match progress {
            Ok(n) if job.done + n >= len => Outcome::Done,
            Ok(n) => {
                // A direct transfer continues at a block boundary, so a part of a block is done
                // again.
                let unit = if self.file.0.direct { BLOCK_LEN } else { 1 };
                let done = (job.done + n) / unit * unit;
                job.stalls = if done > job.done { 0 } else { job.stalls + 1 };
                job.done = done;
                if job.stalls <= STALLS_MAX {
                    return self.engine.start(job);
                }
                Outcome::Failed(self.describe(&job, io::Error::other("no progress")))
            }
            Err(error) => Outcome::Failed(self.describe(&job, error)),
        };
        self.finish(job.tag, job.kind, outcome, job.chain);
    }

    fn judge_flush(&mut self, job: Job, result: io::Result<usize>) {
        let Some((job, result)) = self.enter_flush(job, result) else { return };
        match result {
            Ok(before) => {
                self.flushes.held = Some((job, before));
                self.judge_held();
            }
            Err(error) => {
                let outcome = Outcome::Failed(self.describe(&job, error));
                self.finish_flush(job, outcome);
            }
        }
    }

    /// Enters a flush's result. Returns the number before which all must be judged for it to count.
    /// An interrupted flush goes on under its number.
    fn enter_flush(
        &mut self,
        mut job: Job,
        result: io::Result<usize>,
    ) -> Option<(Job, io::Result<u64>)> {
        if let Err(error) = &result
            && is_passing(error)
            && job.stalls < STALLS_MAX
        {
            job.stalls += 1;
            self.engine.start(job);
            return None;
        }
        let number = self.flushes.number.take()?;
        let shared = &self.file.0;
        let entered = match result {
            Ok(_) => Ok(shared.ledger.hold(number, self.notify.as_ref())),
            Err(error) => Err(shared.note_failed_flush(number, error)),
        };
        Some((job, entered))
    }

    /// Ends the flush that is done, once all flushes that ran when it ended are judged.
    fn judge_held(&mut self) {
        let ledger = &self.file.0.ledger;
        let held = self.flushes.held.take_if(|(_, before)| !ledger.is_held(*before));
        let Some((job, _)) = held else { return };
        let outcome = match ledger.failure() {
            None => Outcome::Done,
            Some(besides) => {
                let before = format!(
                    "an earlier flush failed, or one beside it; nothing since counts{besides}"
                );
                Outcome::Failed(self.describe(&job, io::Error::other(before)))
            }
        };
        self.finish_flush(job, outcome);
    }

    fn finish_flush(&mut self, job: Job, outcome: Outcome) {
        let sharing = std::mem::take(&mut self.flushes.sharing);
        let mut waiting = std::mem::take(&mut self.flushes.waiting);
        if let Some(next) = waiting.pop() {
            self.flushes.sharing = waiting;
            self.start(next);
        }
        for Job { tag, kind, chain, .. } in std::iter::once(job).chain(sharing) {
            self.finish(tag, kind, outcome.clone(), chain);
        }
    }

    fn describe(&self, job: &Job, error: io::Error) -> Error {
        let what = match &job.kind {
            OperationKind::Read { offset, into } => {
                format!("read of {} bytes at {offset} failed", into.len())
            }
            OperationKind::Write { offset, data } => {
                format!("write of {} bytes at {offset} failed", data.len())
            }
            OperationKind::Flush => "flush failed".to_owned(),
        };
        failed(&self.file.0.path, &what, error)
    }
}

pub(crate) type Chosen = (Box<dyn Engine>, Backend, Option<String>);

fn choose_engine(
    file: &PoolFile,
    flush_file: &Arc<File>,
    options: MediumOptions,
    notify: Option<&OwnedFd>,
) -> Result<Chosen> {
    let main = file.0.file.clone();
    let path = &file.0.path;
    let fallback = match options.backend {
        BackendChoice::Threads => None,
        BackendChoice::Auto | BackendChoice::Uring => {
            match Uring::new(main.clone(), flush_file.clone(), options.depth, notify) {
                Ok(ring) => return Ok((Box::new(ring), Backend::Uring, None)),
                Err(error) if options.backend == BackendChoice::Uring => {
                    return Err(failed(path, "gets no io_uring", error));
                }
                Err(error) => Some(format!("io_uring: {error}")),
            }
        }
    };
    let notify = notify
        .map(OwnedFd::try_clone)
        .transpose()
        .map_err(|e| failed(path, "gets no event counter", e))?;
    let threads = Threads::new(file.threads()?, main, flush_file.clone(), notify);
    Ok((Box::new(threads), Backend::Threads, fallback))
}

impl Medium for FileMedium {
    fn properties(&self) -> MediumProperties {
        self.properties
    }

    fn submit(&mut self, batch: Vec<Operation>) {
        self.in_flight += batch.len();
        chains(batch).for_each(|chain| self.start_chain(chain));
        self.engine.submit();
    }

    fn poll(&mut self, completed: &mut Vec<Completion>) {
        if self.engine.running() > 0 || self.flushes.held.is_some() {
            self.advance();
        }
        self.in_flight -= self.ended.len();
        completed.append(&mut self.ended);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for FileMedium {
    /// Other media wait for the result of a flush under way, and must learn of its failure even
    /// though nobody waits for it here any more.
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.flushes.number.is_some() && self.engine.running() > 0 {
            self.engine.submit();
            self.engine.wait();
            self.engine.collect(&mut ended);
            for Ended { job, result } in ended.drain(..) {
                if matches!(job.kind, OperationKind::Flush) {
                    let _ = self.enter_flush(job, result);
                }
            }
        }
        // After a panic amid its end.
        if let Some(number) = self.flushes.number.take() {
            let lost = io::Error::other("nobody knows what it came to");
            let _ = self.file.0.note_failed_flush(number, lost);
        }
    }
}
