//! What threads tell the loop.

use gabion_db::jobs::JobSink;
use gabion_engine::FileMeta;
use gabion_fabric::nvme::TargetEvent;
use gabion_node::work::{BuiltFile, Done, WorkId};
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
    /// A thread is gone that should not be.
    Died(&'static str),
}

/// Where threads put what they have to tell.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Event>,
    waker: Arc<Waker>,
}

impl Mailbox {
    pub(crate) const fn new(sender: Sender<Event>, waker: Arc<Waker>) -> Self {
        Self { sender, waker }
    }

    /// Tells the loop. Nothing happens when the loop is gone: the process ends then.
    pub(crate) fn tell(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

impl JobSink for Mailbox {
    fn built(&self, id: WorkId, _: &[(u8, Arc<FileMeta>)], file: BuiltFile) {
        self.tell(Event::JobFile(id, file));
    }

    fn done(&self, id: WorkId, done: Done) {
        self.tell(Event::Done(id, done));
    }

    fn died(&self, thread: &'static str) {
        self.tell(Event::Died(thread));
    }
}
