//! Reading and writing files of the pool: the engine names files, the pool knows slots, and here
//! the two meet.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use gabion_base::units::{BLOCK_LEN, TRANSFER_LEN_MAX, round_up_to_block};
use gabion_base::{Error, FileId, FileKind, GroupId, HashMap, LogPosition, Result};
use gabion_engine::{FileRange, FileSource};
use gabion_log::{LogConfig, SegmentSource};
use gabion_media::MediumHandle;
use gabion_pool::{FilePlacement, Geometry, Pool, extents, read_file, read_files};

/// The places of the readable files, at one moment. The node changes its own map. A clone costs
/// next to nothing and stays as it is; the node's next change then copies the map.
#[derive(Clone, Default)]
pub struct FileMap(Arc<HashMap<FileId, Arc<FilePlacement>>>);

impl FileMap {
    /// The file's placement.
    #[must_use]
    pub fn get(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.0.get(&file).cloned()
    }

    pub(crate) fn insert(&mut self, placement: Arc<FilePlacement>) {
        Arc::make_mut(&mut self.0).insert(placement.file, placement);
    }

    pub(crate) fn remove(&mut self, file: FileId) {
        Arc::make_mut(&mut self.0).remove(&file);
    }

    /// Bytes of memory that the map takes, beside the placements, which it shares with the pool.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        // A byte of each place says whether it is taken.
        self.0.capacity() * (size_of::<(FileId, Arc<FilePlacement>)>() + 1)
    }
}

/// Damage that reads have met: the first error of each file.
#[derive(Default)]
pub(crate) struct DamageList(BTreeMap<FileId, Error>);

impl DamageList {
    pub(crate) fn note(&mut self, file: FileId, error: &Error) {
        self.0.entry(file).or_insert_with(|| error.clone());
    }

    pub(crate) fn take(&mut self) -> BTreeMap<FileId, Error> {
        core::mem::take(&mut self.0)
    }
}

/// Says where a file lies, and hears of damage there.
pub trait Locate {
    /// The file's placement, if it is readable here.
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>>;

    /// A read of the file met damage, and returns this error. A source without repair does nothing.
    fn note_damage(&self, _file: FileId, _error: &Error) {}
}

impl Locate for FileMap {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.get(file)
    }
}

impl Locate for BTreeMap<FileId, Arc<FilePlacement>> {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.get(&file).cloned()
    }
}

/// The places of the files that a job reads, and the damage that it met there.
pub(crate) struct JobFiles {
    pub(crate) places: BTreeMap<FileId, Arc<FilePlacement>>,
    pub(crate) damaged: Rc<RefCell<DamageList>>,
}

impl Locate for JobFiles {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.places.get(&file).cloned()
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.damaged.borrow_mut().note(file, error);
    }
}

/// One replica's pool as a place to read and write files, on one thread.
#[derive(Clone)]
pub struct LocalStore {
    /// The pool's device.
    pub medium: MediumHandle,
    /// Where slots lie on it.
    pub geometry: Geometry,
    /// The pool's identity, for slot headers.
    pub pool_id: [u8; 16],
    /// The owner of the region.
    pub group: GroupId,
}

impl LocalStore {
    /// The region of an opened pool.
    #[must_use]
    pub fn of(medium: &MediumHandle, pool: &Pool) -> Self {
        Self {
            medium: medium.clone(),
            geometry: pool.region().clone(),
            pool_id: pool.pool_id(),
            group: pool.group(),
        }
    }
}

/// Bytes of file data read from the device for one purpose. Each purpose has its own meter, so that
/// "a secondary reads no file data" can be checked.
#[derive(Default)]
pub struct ReadMeter(Cell<u64>);

impl ReadMeter {
    /// Bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.get()
    }
}

/// A [`FileSource`] over a pool.
#[derive(Clone)]
pub struct PoolSource<L> {
    /// The pool.
    pub store: LocalStore,
    /// Where files lie.
    pub locate: L,
    /// Counts the bytes read.
    pub meter: Rc<ReadMeter>,
}

impl<L: Locate> FileSource for PoolSource<L> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let mut placement = self.locate.locate(file);
        loop {
            let Some(place) = placement else {
                return Err(Error::not_found(format!("{file} has no place in this pool")));
            };
            self.meter.0.set(self.meter.0.get() + len as u64);
            let store = &self.store;
            let read = read_file(&store.medium, &store.geometry, &place, offset, len as u64)
                .await
                .map_err(|error| error.within(format!("{file} at {offset}")));
            // A file that was repaired meanwhile lies elsewhere, and these bytes may be rotten.
            placement = self.locate.locate(file).filter(|now| !Arc::ptr_eq(now, &place));
            if placement.is_none() {
                return read;
            }
        }
    }

    async fn read_many(&self, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        let places: Vec<_> = ranges.iter().map(|range| self.locate.locate(range.file)).collect();
        let placed = ranges.iter().zip(&places).filter_map(|(range, place)| {
            let end = range.offset.saturating_add(range.len as u64);
            place.as_ref().map(|place| (&**place, range.offset..end))
        });
        let placed: Vec<_> = placed.collect();
        let len: u64 = placed.iter().map(|(_, range)| range.end - range.start).sum();
        self.meter.0.set(self.meter.0.get() + len);
        let LocalStore { medium, geometry, .. } = &self.store;
        let mut read = read_files(medium, geometry, &placed).await.into_iter();
        let mut results = Vec::with_capacity(ranges.len());
        for (&FileRange { file, offset, len }, place) in ranges.iter().zip(&places) {
            let now = self.locate.locate(file);
            let here = place.as_ref().and_then(|place| read.next().map(|read| (place, read)));
            results.push(match here {
                Some((place, read)) if now.is_none_or(|now| Arc::ptr_eq(place, &now)) => {
                    read.map_err(|error| error.within(format!("{file} at {offset}")))
                }
                // It had no place, or was repaired meanwhile: these bytes may be rotten.
                _ => self.read(file, offset, len).await,
            });
        }
        results
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.locate.note_damage(file, error);
    }
}

/// The log segments of a pool at one moment.
pub struct PoolSegments {
    pub(crate) store: LocalStore,
    pub(crate) files: BTreeMap<FileId, Arc<FilePlacement>>,
}

impl PoolSegments {
    /// The segments that are live in `pool`.
    #[must_use]
    pub fn of(store: LocalStore, pool: &Pool) -> Self {
        let files = pool.files().filter(|file| file.file.kind == FileKind::LogSegment);
        Self { store, files: files.map(|file| (file.file, file.clone())).collect() }
    }

    /// Writes the blocks that hold the log from `from` to `to` again, as they are.
    pub(crate) async fn write_again(
        &self,
        config: &LogConfig,
        from: LogPosition,
        to: LogPosition,
    ) -> Result<()> {
        let mut at = from.get() - from.get() % BLOCK_LEN as u64;
        while at < to.get() {
            let offset = at % config.segment_len;
            let len = (to.get() - at).min(config.segment_len - offset).min(TRANSFER_LEN_MAX as u64);
            let len = round_up_to_block(len);
            if let Some(placement) = self.files.get(&config.segment_at(at)) {
                let LocalStore { medium, geometry, .. } = &self.store;
                let bytes = read_file(medium, geometry, placement, offset, len).await?;
                let mut done = 0;
                for (place, len) in extents(geometry, placement, offset, len) {
                    medium.write_all(place, bytes.slice(done..done + len as usize)).await?;
                    done += len as usize;
                }
            }
            at += len;
        }
        Ok(())
    }

    /// Where the segments lie, in the order of the log.
    pub fn placements(&self) -> impl Iterator<Item = &Arc<FilePlacement>> {
        self.files.values()
    }
}

impl SegmentSource for PoolSegments {
    async fn read(&self, segment: FileId, offset: u64, len: usize) -> Result<Option<Bytes>> {
        let Some(placement) = self.files.get(&segment) else { return Ok(None) };
        let len = (len as u64).min(placement.len.saturating_sub(offset));
        let store = &self.store;
        read_file(&store.medium, &store.geometry, placement, offset, len).await.map(Some)
    }
}
