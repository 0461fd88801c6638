//! The caches that a read looks in, as it sees them, and those of one thread.

use super::{BlockCache, OPEN_FILES_LEN, OpenFiles, WarmCache};
use crate::sst::SstReader;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use gabion_base::FileId;
use gabion_media::Bytes;

/// What reads leave for each other: decoded blocks and open files. Shared by reference, so every
/// call takes `&self`.
pub trait ReadCache {
    /// The block at `offset` of `file`, if it is here.
    fn block(&self, file: FileId, offset: u64) -> Option<Bytes>;
    /// The blocks at `offsets` of `file`, which ascend, up to the first that is not here: added to
    /// `found` in this order. They count as used and as hits, whether or not who takes them in hand
    /// comes to them; that one counts as no miss, as nobody is in need of it yet.
    fn blocks(&self, file: FileId, offsets: &[u64], found: &mut Vec<Bytes>);
    /// Keeps a block, at the cost of others, or does not.
    fn keep_block(&self, file: FileId, offset: u64, block: Bytes);
    /// The reader of `file`, if it is open.
    fn reader(&self, file: FileId) -> Option<Arc<SstReader>>;
    /// Keeps the reader of a live file and returns the one that is kept: somebody may have been
    /// faster.
    fn keep_reader(&self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader>;
    /// Whether the reader of a file that is open may be kept elsewhere until the file is retired.
    fn pin_reader(&self, file: FileId) -> bool;
}

macro_rules! forward_cache {
    ($($pointer:ty),*) => {$(
        impl<C: ReadCache + ?Sized> ReadCache for $pointer {
            fn block(&self, file: FileId, offset: u64) -> Option<Bytes> {
                (**self).block(file, offset)
            }

            fn blocks(&self, file: FileId, offsets: &[u64], found: &mut Vec<Bytes>) {
                (**self).blocks(file, offsets, found);
            }

            fn keep_block(&self, file: FileId, offset: u64, block: Bytes) {
                (**self).keep_block(file, offset, block);
            }

            fn reader(&self, file: FileId) -> Option<Arc<SstReader>> {
                (**self).reader(file)
            }

            fn keep_reader(&self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
                (**self).keep_reader(file, reader)
            }

            fn pin_reader(&self, file: FileId) -> bool {
                (**self).pin_reader(file)
            }
        }
    )*};
}

forward_cache!(&C, Rc<C>, Arc<C>);

/// The caches of one thread.
pub struct LocalCache {
    /// Decoded blocks.
    pub blocks: BlockCache,
    /// Open files.
    pub open: RefCell<OpenFiles>,
}

impl LocalCache {
    /// Empty caches; of blocks at most `capacity` bytes, of open files [`OPEN_FILES_LEN`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let open = RefCell::new(OpenFiles::new(OPEN_FILES_LEN));
        Self { blocks: BlockCache::new(capacity), open }
    }

    /// Forgets a file that is no longer live.
    pub fn evict_file(&self, file: FileId) {
        self.blocks.evict_file(file);
        self.open.borrow_mut().remove(file);
    }
}

impl WarmCache for LocalCache {
    fn blocks_here(&self, file: FileId) -> Vec<u64> {
        let mut offsets = Vec::new();
        self.blocks.blocks_of(file, &mut offsets);
        offsets.sort_unstable();
        offsets
    }

    fn blocks_in_use(&self, file: FileId) -> Vec<u64> {
        let mut offsets = Vec::new();
        self.blocks.blocks_in_use(file, &mut offsets);
        offsets.sort_unstable();
        offsets
    }

    fn warm_block(&self, file: FileId, offset: u64, block: Bytes) -> bool {
        self.blocks.insert_warm(file, offset, block)
    }
}

impl ReadCache for LocalCache {
    fn block(&self, file: FileId, offset: u64) -> Option<Bytes> {
        self.blocks.get(file, offset)
    }

    fn blocks(&self, file: FileId, offsets: &[u64], found: &mut Vec<Bytes>) {
        self.blocks.get_run(file, offsets, found);
    }

    fn keep_block(&self, file: FileId, offset: u64, block: Bytes) {
        self.blocks.insert(file, offset, block);
    }

    fn reader(&self, file: FileId) -> Option<Arc<SstReader>> {
        self.open.borrow().get(file)
    }

    fn keep_reader(&self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
        self.open.borrow_mut().keep(file, reader)
    }

    fn pin_reader(&self, file: FileId) -> bool {
        self.open.borrow_mut().pin(file)
    }
}
