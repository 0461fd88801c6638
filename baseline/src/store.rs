//! What a replica needs of its store.

use bytes::Bytes;
use gabion_base::Result;
use gabion_workload::EngineOptions;

/// Writes that take effect together.
pub trait Batch: Default + Send + 'static {
    /// Adds a pair.
    fn put(&mut self, key: &[u8], value: &[u8]);

    /// Takes everything out.
    fn clear(&mut self);

    /// The batch as it is sent to other replicas, whose stores read it with [`Store::batch`].
    fn bytes(&self) -> &[u8];
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in the store.
    Done,
    /// The store would have had to wait, which it was not allowed to. Nothing is written.
    WouldWait,
}

/// What was found of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// Its value.
    Value(&'a [u8]),
    /// It is not there.
    Nothing,
    /// The answer is on the device, for which the store was not allowed to wait.
    WouldWait,
}

/// Counters that only grow while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// MemTables that became files.
    pub flushes: u64,
    /// Compactions that read and wrote.
    pub compactions: u64,
    /// Files that changed their level and nothing else.
    pub trivial_moves: u64,
    /// Bytes that compactions read.
    pub compaction_read_bytes: u64,
    /// Bytes of the files that flushes and compactions made.
    pub job_written_bytes: u64,
}

/// How a store is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// What its jobs have done.
    pub counters: Counters,
    /// Bytes of the MemTable that is written to.
    pub active_bytes: u64,
    /// MemTables that wait for their flush, and jobs that run or are due: 0 when the store is quiet.
    pub pending: u64,
    /// Files of each level.
    pub levels: Vec<u64>,
    /// Bytes of all files.
    pub live_bytes: u64,
    /// Bytes that the store's directory takes of the device, logs included.
    pub space_bytes: u64,
    /// What has held writes back since the store was opened: `seconds` in all, and what else tells why.
    pub stalls: Vec<(String, f64)>,
}

/// A store, called from several threads at once; one of them writes at a time.
pub trait Store: Sized + Send + Sync + 'static {
    /// Its batches.
    type Batch: Batch;

    /// As it is named in rows, and as the mode of compaction of its clusters.
    const NAME: &'static str;

    /// The names of its threads that flush, and of those that compact, as the kernel has them.
    const THREADS: [&'static [&'static str]; 2];

    /// The version that is measured.
    fn version() -> String;

    /// Opens a store, which is made if it is not there.
    ///
    /// # Errors
    /// The store's.
    fn open(options: &EngineOptions) -> Result<Self>;

    /// One batch of what others made, in this order.
    ///
    /// # Errors
    /// Corruption: one of them is none.
    fn batch(&self, parts: &[&[u8]]) -> Result<Self::Batch>;

    /// Writes a batch. With `may_wait` it waits for flushes and compactions where the store wants that,
    /// and is not `WouldWait`.
    ///
    /// # Errors
    /// The store's.
    fn write(&self, batch: &Self::Batch, may_wait: bool) -> Result<Written>;

    /// Reads keys and tells for each, in their order, what was found. With `may_wait` none is
    /// `WouldWait`.
    ///
    /// # Errors
    /// The store's.
    fn get(
        &self,
        keys: &[Bytes],
        may_wait: bool,
        found: &mut dyn FnMut(usize, Found<'_>),
    ) -> Result<()>;

    /// Reads at most `limit` pairs in the order of keys, from a key on. Returns false when the device
    /// has to be read for it and it may not wait; the pairs until there were told.
    ///
    /// # Errors
    /// The store's.
    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        may_wait: bool,
        found: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<bool>;

    /// How it is.
    ///
    /// # Errors
    /// The store's.
    fn state(&self) -> Result<State>;
}
