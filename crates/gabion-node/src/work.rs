//! Work orders: everything that takes long leaves the node as one of these and comes back as its
//! result. The functions that carry them out are `async` over media and know no runtime: the server
//! runs them on threads and in its loop, the simulator in its seeded executor.

use crate::files::{DamageList, JobFiles, LocalStore, PoolSegments, PoolSource, ReadMeter};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use gabion_base::units::{CHUNK_LEN, SLOT_LEN};
use gabion_base::{Error, ErrorKind, FileId, GroupId, LogPosition, ReplicaId, Result, crc};
use gabion_engine::{FileMeta, FileSink, FinishedFile, JobInputs, JobOutput};
use gabion_log::SegmentReader;
use gabion_media::{AlignedBuf, Buffers, MediumHandle};
use gabion_pool::{Commit, FilePlacement, Geometry, Placed};

/// Names a work order until its result is handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// A work order. It owns all it needs, so that it can go to another thread.
pub enum Work {
    /// Write a commit of the placement log and flush.
    Commit(Commit),
    /// Write log blocks into segments, then flush if asked.
    Drain(DrainOrder),
    /// Flush or compaction: make files and write them into local slots.
    Job(Box<JobOrder>),
    /// Write a file into granted slots of a secondary and flush there.
    Ship(Box<ShipOrder>),
    /// Read a whole file and compare it with its checksums, to ship it again.
    ReadFile(VerifyOrder),
    /// Read a whole file at a secondary and compare it with its checksums, as it is damaged here.
    Fetch(Box<FetchOrder>),
    /// Write a whole file into local slots and flush, as it is damaged where it lay.
    Rewrite(RewriteOrder),
    /// Read a file and compare it with its checksums.
    Verify(VerifyOrder),
    /// Read log records that only segments still hold, for a member that lags.
    ReadLog(Box<ReadLogOrder>),
}

/// Blocks of the log on their way to segments.
pub struct DrainOrder {
    /// Segment, byte offset in it, whole blocks.
    pub writes: Vec<(Arc<FilePlacement>, u64, Bytes)>,
    /// Whether to flush after the writes.
    pub flush: bool,
    /// The log is in segments up to here when the order is done.
    pub end: LogPosition,
    /// The last write is the block in which the log ends, with so many bytes of it, in a segment
    /// that keeps values of the tree. Bytes that lie behind them in the block stay as they are: the
    /// log may have yet to come again to values that are there.
    pub keeps_behind: Option<usize>,
}

/// A flush or compaction.
pub struct JobOrder {
    /// The recipe and the inputs that it names.
    pub inputs: JobInputs,
    /// The owner of the files.
    pub group: GroupId,
    /// Slots set aside for the outputs, at least as many as they can take.
    pub slots: Vec<Placed>,
    /// Where the input files lie.
    pub files: BTreeMap<FileId, Arc<FilePlacement>>,
    /// Whether unshipped files hold the job back ([`BuildCredit`]). They never hold flushes back.
    pub is_bounded: bool,
}

/// The driver's account of how much bounded jobs may build: in bytes of memory since the node
/// began.
///
/// ```text
///   node: Output::JobsMayBuild(until) ─► may_build ─┐
///   job: a file is built ─► built ─────────────────► may_go_on? ─► the next file, or wait for the next JobsMayBuild
/// ```
///
/// The node cannot stop a job whose files it has not heard of yet. So it tells a number of bytes
/// and not whether to go on; a job runs ahead of it by no more than that.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildCredit {
    built: u64,
    until: u64,
}

impl BuildCredit {
    /// A bounded job built a file that keeps so many bytes of memory ([`BuiltFile::memory`]). Call
    /// it for each file that the node hears of and for no other, or the two counts drift apart.
    pub const fn built(&mut self, memory: u64) {
        self.built += memory;
    }

    /// Takes the node's new limit ([`crate::Output::JobsMayBuild`]).
    pub const fn may_build(&mut self, until: u64) {
        self.until = until;
    }

    /// Whether a job may begin its next file.
    #[must_use]
    pub const fn may_go_on(&self) -> bool {
        self.built <= self.until
    }
}

/// A file that a job made and writes into local slots; not yet flushed, perhaps not yet written.
#[derive(Clone)]
pub struct BuiltFile {
    /// Its description.
    pub meta: Arc<FileMeta>,
    /// Its bytes, as they were written and are to be shipped.
    pub bytes: Bytes,
    /// Where it lies here.
    pub placement: Arc<FilePlacement>,
    /// Bytes of memory that are kept as long as its bytes are ([`kept_by`]).
    pub memory: u64,
}

/// Bytes of memory that are kept as long as a file's bytes are: the whole buffer in which it was
/// built. A fresh one is touched as far as the file goes, a reused one perhaps to its end.
#[must_use]
pub fn kept_by(file: &FinishedFile) -> u64 {
    let capacity = file.memory.capacity();
    capacity.min(file.bytes.len().max(Buffers::FILE_LEN_MAX)) as u64
}

/// A job's end.
pub struct JobDone {
    /// The content of the edit, and the job's counters.
    pub output: JobOutput,
    /// Slots that were not needed.
    pub unused: Vec<Placed>,
    /// File bytes read from the device.
    pub read_bytes: u64,
}

/// Why a job failed.
#[derive(Clone, Debug)]
pub struct JobFailed {
    /// The error that ended it.
    pub error: Error,
    /// Files in which it met damage, each with its first error.
    pub damaged: BTreeMap<FileId, Error>,
    /// Slots of the file whose failed write ended the job.
    pub refused: Vec<Placed>,
}

impl From<Error> for JobFailed {
    fn from(error: Error) -> Self {
        Self { error, damaged: BTreeMap::new(), refused: Vec::new() }
    }
}

/// A file to be written into a secondary's slots.
pub struct ShipOrder {
    /// The secondary.
    pub to: ReplicaId,
    /// Its session; the order is void in any other.
    pub session: u64,
    /// The secondary's pool.
    pub pool_id: [u8; 16],
    /// The namespace's geometry.
    pub geometry: Geometry,
    /// The owner of the file.
    pub group: GroupId,
    /// CRC32C of each 1 MiB chunk.
    pub chunk_crcs: Vec<u32>,
    /// The file's bytes, rounded up to blocks.
    pub bytes: Bytes,
    /// The file and its granted slots.
    pub placement: FilePlacement,
    /// It was to be sent there before, so it is compared with its checksums first. Else a buffer in
    /// which a bit flipped would be refused and sent again and again.
    pub is_again: bool,
}

/// The outcome of a shipment whose connection did not fail.
#[derive(Debug)]
pub enum Shipped {
    /// It is written and flushed.
    Whole,
    /// Its bytes have rotted since they were built, and nothing was written.
    Rotten(Error),
}

/// A file to be compared with its checksums.
pub struct VerifyOrder {
    /// The file and where it lies.
    pub placement: Arc<FilePlacement>,
    /// CRC32C of each 1 MiB chunk.
    pub chunk_crcs: Vec<u32>,
}

/// A file to be read from a secondary's slots.
pub struct FetchOrder {
    /// The secondary.
    pub from: ReplicaId,
    /// Its session; the order is void in any other.
    pub session: u64,
    /// The namespace's geometry.
    pub geometry: Geometry,
    /// CRC32C of each 1 MiB chunk.
    pub chunk_crcs: Vec<u32>,
    /// The file and where it lies there.
    pub placement: FilePlacement,
}

/// The bytes in a secondary's slots.
#[derive(Debug)]
pub enum Fetched {
    /// The whole file.
    Whole(Bytes),
    /// Not the file: it rotted, or has left these slots since they were told.
    Other(Error),
}

/// A file to be written into local slots.
pub struct RewriteOrder {
    /// The file and its new slots.
    pub placement: Arc<FilePlacement>,
    /// Its bytes, rounded up to blocks.
    pub bytes: Bytes,
    /// CRC32C of each 1 MiB chunk.
    pub chunk_crcs: Vec<u32>,
}

/// Log records to be read from segments.
pub struct ReadLogOrder {
    /// Finds records in segments.
    pub reader: SegmentReader,
    /// Position of the first record.
    pub from: LogPosition,
    /// Bytes to read, unless the first record is longer.
    pub bytes_max: usize,
    /// Where the segments lie.
    pub files: BTreeMap<FileId, Arc<FilePlacement>>,
}

/// The outcome of a work order.
#[expect(clippy::large_enum_variant, reason = "few exist, and each is moved twice")]
pub enum Done {
    /// Of [`Work::Commit`].
    Commit(Result<()>),
    /// Of [`Work::Drain`].
    Drain(Result<()>),
    /// Of [`Work::Job`].
    Job(Result<JobDone, JobFailed>),
    /// Of [`Work::Ship`]; an error is the connection's.
    Ship(Result<Shipped>),
    /// Of [`Work::ReadFile`].
    ReadFile(Result<Bytes>),
    /// Of [`Work::Fetch`]; an error is the connection's.
    Fetch(Result<Fetched>),
    /// Of [`Work::Rewrite`].
    Rewrite(Result<()>),
    /// Of [`Work::Verify`].
    Verify(Result<()>),
    /// Of [`Work::ReadLog`].
    ReadLog(Result<Bytes>),
}

/// Carries out an order that needs the local pool only, and no thread of its own: everything but
/// jobs, shipments and fetches.
///
/// # Panics
/// When given one of these.
pub async fn run_local(work: Work, store: &LocalStore) -> Done {
    match work {
        Work::Commit(commit) => {
            Done::Commit(gabion_pool::write_commit(&store.medium, commit).await)
        }
        Work::Drain(order) => Done::Drain(drain(order, store).await),
        Work::ReadFile(order) => Done::ReadFile(read_whole(&order, store).await),
        Work::Rewrite(order) => Done::Rewrite(rewrite(&order, store).await),
        Work::Verify(order) => Done::Verify(verify(&order, store).await),
        Work::ReadLog(order) => Done::ReadLog(read_log(*order, store).await),
        Work::Job(_) | Work::Ship(_) | Work::Fetch(_) => {
            unreachable!("jobs, shipments and fetches have runners of their own")
        }
    }
}

/// The first `len` bytes of a block, and what its place has behind them. If that cannot be read it
/// is lost, and the block is written as it is: a reader of the values there finds the damage.
async fn with_kept(
    placement: &FilePlacement,
    offset: u64,
    block: &Bytes,
    len: usize,
    store: &LocalStore,
) -> Bytes {
    let LocalStore { medium, geometry, .. } = store;
    let here = gabion_pool::read_file(medium, geometry, placement, offset, block.len() as u64);
    let Ok(here) = here.await else { return block.clone() };
    let mut whole = AlignedBuf::with_capacity(block.len());
    whole.extend(&block[..len]);
    whole.extend(&here[len..]);
    whole.freeze()
}

async fn drain(mut order: DrainOrder, store: &LocalStore) -> Result<()> {
    if let (Some(len), Some((placement, offset, data))) =
        (order.keeps_behind, order.writes.last_mut())
    {
        *data = with_kept(placement, *offset, data, len, store).await;
    }
    let mut writes = Vec::new();
    for (placement, offset, data) in order.writes {
        let mut done = 0;
        let len = data.len() as u64;
        for (at, len) in gabion_pool::extents(&store.geometry, &placement, offset, len) {
            let part = data.slice(done..done + len as usize);
            done += len as usize;
            writes.push(store.medium.write_all(at, part));
        }
    }
    for write in writes {
        write.await?;
    }
    if order.flush { store.medium.flush().await } else { Ok(()) }
}

/// Compares a file's bytes on the device with its checksums.
///
/// # Errors
/// Corruption that names the file and the chunk's offset; the device's error.
pub async fn verify(order: &VerifyOrder, store: &LocalStore) -> Result<()> {
    let placement = &order.placement;
    check_chunk_count(placement, &order.chunk_crcs)?;
    for (i, expected) in order.chunk_crcs.iter().enumerate() {
        let offset = i as u64 * CHUNK_LEN;
        let len = CHUNK_LEN.min(placement.len - offset);
        let read = gabion_pool::read_file(&store.medium, &store.geometry, placement, offset, len);
        check_chunk(placement.file, offset, &read.await?, *expected)?;
    }
    Ok(())
}

fn check_chunk_count(placement: &FilePlacement, chunk_crcs: &[u32]) -> Result<()> {
    let wanted = placement.len.div_ceil(CHUNK_LEN);
    if chunk_crcs.len() as u64 == wanted {
        return Ok(());
    }
    Err(Error::corruption(format!(
        "{} of {} bytes has {} chunk checksums, {wanted} belong to it",
        placement.file,
        placement.len,
        chunk_crcs.len()
    )))
}

fn check_chunk(file: FileId, offset: u64, chunk: &[u8], expected: u32) -> Result<()> {
    check_sum(file, offset, chunk.len(), crc::crc32c(chunk), expected)
}

fn check_sum(file: FileId, offset: u64, len: usize, found: u32, expected: u32) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::corruption(format!(
        "{file} at offset {offset}: {len} bytes have checksum {found:08x}, expected {expected:08x}"
    )))
}

/// Compares a whole file in memory with its checksums.
fn check_chunks(file: FileId, bytes: &[u8], chunk_crcs: &[u32]) -> Result<()> {
    let mut chunks = bytes.chunks(CHUNK_LEN as usize).zip(chunk_crcs).enumerate();
    chunks.try_for_each(|(i, (chunk, expected))| {
        check_chunk(file, i as u64 * CHUNK_LEN, chunk, *expected)
    })
}

/// Reads a whole file. Bytes that do not fit the checksums go to nobody. These are those of the
/// file's description: the place of a segment of the log tells none, as it was made before its
/// bytes came.
async fn read_whole(order: &VerifyOrder, store: &LocalStore) -> Result<Bytes> {
    let VerifyOrder { placement, chunk_crcs } = order;
    let placement = &**placement;
    check_chunk_count(placement, chunk_crcs)?;
    let starts = (0..placement.len).step_by(CHUNK_LEN as usize);
    let chunks = starts.map(|at| (placement, at..(at + CHUNK_LEN).min(placement.len)));
    let chunks: Vec<_> = chunks.collect();
    let read = gabion_pool::read_files(&store.medium, &store.geometry, &chunks).await;
    let mut whole = AlignedBuf::with_capacity(placement.len as usize);
    for (chunk, expected) in read.into_iter().zip(chunk_crcs) {
        let chunk = chunk?;
        check_chunk(placement.file, whole.len() as u64, &chunk, *expected)?;
        whole.extend(&chunk);
        // The thread has requests to answer: a file of 16 MiB takes it several milliseconds.
        yield_now().await;
    }
    Ok(whole.freeze())
}

/// Lets others on the thread have their turn.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Reads a whole file over a connection to a secondary's namespace.
///
/// # Errors
/// The connection's; corruption for an order with too few or too many checksums.
pub async fn run_fetch(order: &FetchOrder, remote: &MediumHandle) -> Result<Fetched> {
    let placement = &order.placement;
    check_chunk_count(placement, &order.chunk_crcs)?;
    let len = placement.len;
    let bytes = gabion_pool::read_file(remote, &order.geometry, placement, 0, len).await?;
    let result = check_chunks(placement.file, &bytes, &order.chunk_crcs);
    Ok(result.map_or_else(Fetched::Other, |()| Fetched::Whole(bytes)))
}

async fn rewrite(order: &RewriteOrder, store: &LocalStore) -> Result<()> {
    gabion_pool::write_file(
        &store.medium,
        &store.geometry,
        store.pool_id,
        store.group,
        &order.placement,
        &order.bytes,
        &order.chunk_crcs,
    )
    .await?;
    store.medium.flush().await.map_err(flush_failed)
}

async fn read_log(order: ReadLogOrder, store: &LocalStore) -> Result<Bytes> {
    let source = PoolSegments { store: store.clone(), files: order.files };
    order.reader.read(&source, order.from, order.bytes_max).await
}

/// Carries out a job. Each built file goes to `built` and into slots of its own at once, so that it
/// is shipped from the same buffer meanwhile. A file is written while the next one is built, so the
/// job has two in memory. Before each next file it awaits `wait`: a bounded job until it may go on,
/// any other to hear that the process ends. All files are flushed when the job is done.
///
/// # Errors
/// The job's error, or that of `wait`: nothing of it counts then.
pub async fn run_job(
    order: JobOrder,
    store: &LocalStore,
    built: impl FnMut(BuiltFile),
    wait: impl AsyncFnMut() -> Result<()>,
) -> Result<JobDone, JobFailed> {
    let JobOrder { inputs, group, slots, files, is_bounded: _ } = order;
    let (meter, damaged) =
        (Rc::new(ReadMeter::default()), Rc::new(RefCell::new(DamageList::default())));
    let locate = JobFiles { places: files, damaged: damaged.clone() };
    let source = PoolSource { store: store.clone(), locate, meter: meter.clone() };
    let slots = slots.into();
    let mut sink = SlotSink { store, slots, built, wait, writing: None, refused: Vec::new() };
    let output = gabion_engine::run_job(&inputs, group, &source, &mut sink).await;
    // Also after an error: the slots are given back then, and nothing must land there later.
    let written = sink.written().await;
    let output = match written.and(output) {
        Ok(output) => output,
        Err(error) => {
            return Err(JobFailed {
                error,
                damaged: damaged.borrow_mut().take(),
                refused: sink.refused,
            });
        }
    };
    let unused = sink.slots.into();
    if inputs.recipe.kind.makes_files() {
        store.medium.flush().await.map_err(flush_failed)?;
    }
    Ok(JobDone { output, unused, read_bytes: meter.bytes() })
}

/// An I/O error, even if the device says 'no space'. Work that wrote files and failed to flush them
/// is not to be tried again, as the next flush proves nothing (docs/faults.md E8).
fn flush_failed(error: Error) -> Error {
    Error::with_source(ErrorKind::Io, "files that were written", error)
}

struct SlotSink<'a, F, W> {
    store: &'a LocalStore,
    slots: alloc::collections::VecDeque<Placed>,
    built: F,
    wait: W,
    /// The file before, while it is written.
    writing: Option<(Arc<FilePlacement>, Writing)>,
    /// As [`JobFailed::refused`].
    refused: Vec<Placed>,
}

type Writing = Pin<Box<dyn Future<Output = Result<()>>>>;

impl<F, W> SlotSink<'_, F, W> {
    /// Waits until the file before is written.
    async fn written(&mut self) -> Result<()> {
        let Some((placement, writing)) = self.writing.take() else { return Ok(()) };
        let result = writing.await;
        self.ended(&placement, result)
    }

    /// The write of a file ended. After an I/O error the device refused its slots; not so if it had
    /// no room or the outcome is unknown.
    fn ended(&mut self, placement: &FilePlacement, result: Result<()>) -> Result<()> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Io
        {
            self.refused.extend(&placement.slots);
        }
        result
    }
}

impl<F, W> FileSink for SlotSink<'_, F, W>
where
    F: FnMut(BuiltFile),
    W: AsyncFnMut() -> Result<()>,
{
    fn buffer(&mut self, capacity: usize) -> AlignedBuf {
        self.store.medium.take_for_file(capacity)
    }

    async fn finished(&mut self, file: FinishedFile) -> Result<()> {
        let wanted = (file.bytes.len() as u64).div_ceil(SLOT_LEN) as usize;
        if wanted > self.slots.len() {
            return Err(Error::limit(format!(
                "{} takes {wanted} slots, the job has {} left",
                file.meta.id,
                self.slots.len()
            )));
        }
        let placement = Arc::new(FilePlacement {
            file: file.meta.id,
            term: file.meta.term,
            len: file.bytes.len() as u64,
            checksum: file.meta.checksum,
            slots: self.slots.drain(..wanted).collect(),
        });
        let kept = kept_by(&file);
        let FinishedFile { meta, bytes, memory: buffer } = file;
        self.store.medium.put_of_file(buffer);
        let meta = Arc::new(meta);
        // Shipping begins at once, while the buffer is still in the processor's cache.
        let (bytes_there, placement_there) = (bytes.clone(), placement.clone());
        (self.built)(BuiltFile {
            meta: meta.clone(),
            bytes: bytes_there,
            placement: placement_there,
            memory: kept,
        });
        self.written().await?;
        let (store, place) = (self.store.clone(), placement.clone());
        let mut writing: Writing = Box::pin(async move {
            gabion_pool::write_file(
                &store.medium,
                &store.geometry,
                store.pool_id,
                store.group,
                &place,
                &bytes,
                &meta.chunk_crcs,
            )
            .await
        });
        // Polled once, so that it begins.
        match poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await {
            Poll::Ready(result) => self.ended(&placement, result)?,
            Poll::Pending => self.writing = Some((placement, writing)),
        }
        (self.wait)().await
    }
}

/// Carries out a shipment over a connection to the secondary's namespace: chunks, then slot
/// headers, then flush (RubbleDB §4.2.1, with the header and the flush that its code lacks). A file
/// that goes again is compared with its checksums first.
///
/// # Errors
/// The connection's error. The outcome is then unknown: nothing may be written to these slots again
/// in this session.
pub async fn run_ship(order: &ShipOrder, remote: &MediumHandle) -> Result<Shipped> {
    if order.is_again
        && let Err(error) = check_chunks(order.placement.file, &order.bytes, &order.chunk_crcs)
    {
        return Ok(Shipped::Rotten(error));
    }
    gabion_pool::write_file(
        remote,
        &order.geometry,
        order.pool_id,
        order.group,
        &order.placement,
        &order.bytes,
        &order.chunk_crcs,
    )
    .await?;
    remote.flush().await.map(|()| Shipped::Whole)
}
