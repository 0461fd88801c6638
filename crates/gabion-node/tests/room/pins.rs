//! A reader against an edit that takes its file out of the tree (docs/faults.md E12): both in steps
//! as long as a lock is held where threads share a store, in every order that leaves each one's own
//! order as it is.
//!
//! ```text
//!   reader: takes the published view │ looks up where a file lies │ reads a half │ and the other │ lets go
//!   writer: applies the edit, gives back what nobody reads │ publishes the new view │ gives back again
//! ```

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::{FileId, crc};
use gabion_engine::{FileMeta, JobKind, ReadView};
use gabion_pool::{FilePlacement, SlotState, extents};
use std::sync::Arc;

const READER_STEPS: u32 = 5;
const WRITER_STEPS: u32 = 3;

/// One thread, which reads a whole file.
#[derive(Default)]
struct Reader {
    steps: u32,
    pinned: Option<(ReadView, Arc<FileMeta>)>,
    place: Option<Arc<FilePlacement>>,
    bytes: Vec<u8>,
}

impl Reader {
    fn step(&mut self, replica: &Replica, published: &ReadView) {
        self.steps += 1;
        if self.steps == 1 {
            let view = published.clone();
            let pin = view.pin().expect("it lasts");
            let file = pin.version().files().next().expect("the tree has files").1.clone();
            self.pinned = Some((view, file));
            return;
        }
        let (_, file) = self.pinned.as_ref().expect("the first step takes a view");
        match self.steps {
            2 => self.place = replica.node.file_map().get(file.id),
            3 | 4 => {
                let place = self.place.as_ref().expect("a file that is read has a place");
                let half = place.len / 2;
                let from = u64::from(self.steps - 3) * half;
                for (at, len) in extents(&replica.store.geometry, place, from, half) {
                    self.bytes.extend(replica.disk.peek(at, len as usize));
                }
            }
            _ => {
                assert_eq!(crc::crc32c(&self.bytes), file.checksum, "{} was overwritten", file.id);
                self.pinned = None;
            }
        }
    }
}

/// The thread of the machine, and what readers find published.
struct Writer {
    steps: u32,
    replica: Replica,
    published: ReadView,
    /// Where the files lie that the edit removes.
    inputs: Vec<Arc<FilePlacement>>,
}

impl Writer {
    /// The next job is a compaction of all files.
    fn new() -> Self {
        let mut replica = start();
        while replica.kinds() != [JobKind::Compaction] {
            replica.seal();
            replica.succeed(JobKind::Flush);
            replica.pass(0);
        }
        let inputs: Vec<FileId> = replica.jobs[0].1.inputs.files.iter().map(|it| it.1.id).collect();
        assert_eq!(inputs.len(), replica.node.tree().version().files().count(), "all files");
        let place = |file| replica.node.pool().placement(file).expect("it is in the tree");
        let inputs = inputs.into_iter().map(place).collect();
        let published = replica.node.tree().lasting_view();
        Self { steps: 0, replica, published, inputs }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.steps {
            1 => {
                let edits = self.replica.node.counters().edits;
                self.replica.succeed(JobKind::Compaction);
                self.replica.pass(1);
                assert_eq!(self.replica.node.counters().edits, edits + 1, "the edit is applied");
            }
            2 => self.published = self.replica.node.tree().lasting_view(),
            _ => self.replica.pass(1),
        }
        self.overwrite_free();
    }

    /// What is free others write into at once.
    fn overwrite_free(&self) {
        for placed in self.inputs.iter().flat_map(|file| &file.slots) {
            if self.replica.node.pool().slot_state(placed.slot) == Some(SlotState::Free) {
                let at = self.replica.store.geometry.slot_offset(placed.slot);
                self.replica.disk.poke(at, &[0xa5; 64 << 10]);
            }
        }
    }

    fn retired(&self) -> u32 {
        self.replica.node.pool().counts().retired
    }
}

/// The reader takes the steps whose bits are set. Returns whether slots were kept for it alone.
fn interleave(order: u32) -> bool {
    let (mut writer, mut reader) = (Writer::new(), Reader::default());
    let mut is_kept = false;
    for step in 0..READER_STEPS + WRITER_STEPS {
        if order >> step & 1 == 1 {
            reader.step(&writer.replica, &writer.published);
        } else {
            writer.step();
        }
        is_kept |= writer.steps == WRITER_STEPS && reader.pinned.is_some() && writer.retired() > 0;
    }
    writer.replica.pass(1);
    assert_eq!(writer.retired(), 0, "all slots come back when nobody reads");
    is_kept
}

/// docs/faults.md: E12
#[test]
fn in_no_order_of_steps_is_a_slot_freed_under_a_reader_or_kept_after_it() {
    let all = READER_STEPS + WRITER_STEPS;
    let orders: Vec<u32> =
        (0..1 << all).filter(|it: &u32| it.count_ones() == READER_STEPS).collect();
    assert_eq!(orders.len(), 56, "8 steps of which 3 are the writer's");
    let kept = orders.into_iter().filter(|order| {
        eprintln!(
            "order {order:#010b}, the reader's steps are ones, the first step the last digit"
        );
        interleave(*order)
    });
    assert!(kept.count() > 10, "a reader that begins before the new view is published keeps slots");
}
