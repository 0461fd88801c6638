//! Drains on the threads that wait for them.
//!
//! ```text
//!   writer: append ─► carry on ─► the order stays with it ─► lock given back ─► write, flush ─► lock ─► handed in
//!                                                             (others write on, and wait for it)
//! ```
//!
//! The I/O thread would have to be woken for a drain and then wake its caller: two thread switches,
//! which cost as much processor time as the write and the flush of a few bytes. The machine has one
//! drain under way at a time. Writes that come meanwhile are taken by the next waiting caller, or
//! by the I/O thread.

use gabion_base::Result;
use gabion_fabric::{FileMedium, MediumOptions};
use gabion_host::jobs::StoreParts;
use gabion_media::{Completion, Medium, Operation, OperationKind};
use gabion_node::work::DrainOrder;
use gabion_pool::{Geometry, extents};
use std::sync::{Mutex, PoisonError};

/// The state for a drain, on any thread.
pub(crate) struct Drains {
    medium: Mutex<FileMedium>,
    geometry: Geometry,
}

impl Drains {
    /// # Errors
    /// As [`gabion_fabric::PoolFile::medium`].
    pub(crate) fn new(parts: &StoreParts) -> Result<Self> {
        let options = MediumOptions { notify: false, ..parts.options };
        Ok(Self {
            medium: Mutex::new(parts.file.medium(options)?),
            geometry: parts.geometry.clone(),
        })
    }

    /// Carries a drain out: the calling thread sleeps meanwhile.
    ///
    /// # Errors
    /// The same as on the I/O thread: the device's error, with the place.
    pub(crate) fn carry_out(&self, order: DrainOrder) -> Result<()> {
        let mut kinds = Vec::new();
        for (placement, at, data) in order.writes {
            let mut done = 0;
            for (offset, len) in extents(&self.geometry, &placement, at, data.len() as u64) {
                let part = data.slice(done..done + len as usize);
                kinds.push(OperationKind::Write { offset, data: part });
                done += len as usize;
            }
        }
        kinds.extend(order.flush.then_some(OperationKind::Flush));
        // Each begins when the one before it is done, so the first error is the cause of all.
        let chained = |(tag, kind)| Operation { tag, kind, then: true };
        // A panic amid a drain has failed the store, and no drain follows.
        let medium = &mut *self.medium.lock().unwrap_or_else(PoisonError::into_inner);
        medium.submit((0..).zip(kinds).map(chained).collect());
        let (mut ended, mut result) = (Vec::new(), Ok(()));
        while medium.in_flight() > 0 {
            medium.wait();
            medium.poll(&mut ended);
            for Completion { outcome, .. } in ended.drain(..) {
                result = result.and(outcome.into_result());
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use crate::{Db, Durability, Options};
    use std::path::PathBuf;

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gabion-db-{name}-{}", std::process::id()));
        let _absent = std::fs::remove_dir_all(&dir);
        dir
    }

    fn flushed(db: &Db, thread: u8, n: u8) {
        db.put_with(&[thread, n], &[n; 100], Durability::Flushed).unwrap();
    }

    fn check(dir: &PathBuf, threads: u8, count: u8) {
        let db = Db::open(dir, &Options::small()).unwrap();
        for (thread, n) in (0..threads).flat_map(|thread| (0..count).map(move |n| (thread, n))) {
            assert_eq!(db.get(&[thread, n]).unwrap().as_deref(), Some(&[n; 100][..]));
        }
        drop(db);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn who_waits_for_a_flush_writes_and_flushes_itself() {
        let dir = directory("own-drain");
        let db = Db::create(&dir, &Options::small()).unwrap();
        // The log's segment has its place then: only a commit gives it one.
        flushed(&db, 0, 0);
        // No other thread is left to do it.
        let threads = db.lock().threads.take();
        drop(threads);
        (1..100).for_each(|n| flushed(&db, 0, n));
        db.put(b"ring", b"value").unwrap();
        db.sync().unwrap();
        drop(db);
        check(&dir, 1, 100);
    }

    #[test]
    fn of_many_who_wait_each_is_done_whoever_does_it() {
        let dir = directory("many-drains");
        let db = Db::create(&dir, &Options::small()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let db = &db;
                scope.spawn(move || (0..100).for_each(|n| flushed(db, thread, n)));
            }
            (0..100_u8).for_each(|n| db.put(&[9, n], b"not waited for").unwrap());
        });
        drop(db);
        check(&dir, 4, 100);
    }
}
