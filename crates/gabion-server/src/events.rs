//! What threads tell the loop.

use gabion_base::{Error, GroupId};
use gabion_engine::FileMeta;
use gabion_fabric::nvme::TargetEvent;
use gabion_host::cache::SharedCache;
use gabion_host::jobs::JobSink;
use gabion_node::work::{BuiltFile, Done, WorkId};
use gabion_pool::FilePlacement;
use mio::Waker;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Something that happened on a thread.
#[expect(clippy::large_enum_variant, reason = "a few at a time, each moved once")]
pub(crate) enum Event {
    /// A job built a file.
    JobFile(WorkId, BuiltFile),
    /// A work order ended.
    Done(WorkId, Done),
    /// Of the embedded target.
    Target(TargetEvent),
    /// What lies of a file at this place is not what was written: its reader met this.
    Damaged(Arc<FilePlacement>, Error),
    /// A thread is gone that should not be.
    Died(&'static str),
}

/// Where threads put what they have to tell the loop, and what they leave for readers.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Event>,
    waker: Arc<Waker>,
    cache: Arc<SharedCache>,
    group: GroupId,
}

impl Mailbox {
    pub(crate) const fn new(
        sender: Sender<Event>,
        waker: Arc<Waker>,
        cache: Arc<SharedCache>,
        group: GroupId,
    ) -> Self {
        Self { sender, waker, cache, group }
    }

    /// Tells the loop. Nothing happens when the loop is gone: the process ends then.
    pub(crate) fn tell(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            let _ = self.waker.wake();
        }
    }

    /// Leaves for the loop what it need not know before it wakes for something else, at the latest
    /// for its tick.
    pub(crate) fn leave(&self, event: Event) {
        let _ = self.sender.send(event);
    }
}

impl JobSink for Mailbox {
    fn built(&self, id: WorkId, inputs: &[(u8, Arc<FileMeta>)], file: BuiltFile) {
        self.tell(Event::JobFile(id, file.clone()));
        // While it is shipped. No edit has it before the job is done.
        if let Err(error) = self.cache.warm(self.group, inputs, &file) {
            note!("{}: not kept for readers: {error}", file.meta.id);
        }
    }

    fn done(&self, id: WorkId, done: Done) {
        self.tell(Event::Done(id, done));
    }

    fn died(&self, thread: &'static str) {
        self.tell(Event::Died(thread));
    }
}
