//! The thread that warms the cache after an edit whose files were sent here: it reads from the
//! device what readers had of the files before, so that they need not.
//!
//! ```text
//!   loop ─ Replaced ─► what readers had of the old files ─► new files in line ─► a mebibyte of blocks ─► cache
//!        └ Gone ─────► out of the cache                                             │
//!   loop ◄───────────────────────────────────── damage that was met ────────────────┘
//! ```
//!
//! Both come this way, in their order, so that what readers had is taken down before it goes, and
//! its memory is free before what replaces it is read. What has come is looked at before each
//! mebibyte; a file that leaves the tree leaves the line. Files that jobs build here are warmed by
//! the threads of jobs, from memory (`events`): what is chosen and how much of it is the same
//! (`gabion_host::cache`).

use crate::events::{Event, Mailbox};
use gabion_base::{Error, FileId, Result};
use gabion_engine::FileMeta;
use gabion_engine::cache::{Had, Warming};
use gabion_fabric::BlockingMedium;
use gabion_host::cache::SharedCache;
use gabion_host::jobs::{Alarm, StoreParts, thread};
use gabion_node::{LocalStore, Locate, PoolSource, ReadMeter, Replaced};
use gabion_pool::FilePlacement;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// Files in line at most; the oldest are given up. Each keeps its slots.
const LINE_LEN_MAX: usize = 64;
/// Files at most whose indexes and filters those in line keep: some 40 MiB, so that who is slow
/// does not keep what is long gone.
const HAD_FILES_MAX: usize = 128;

/// What the thread is told.
pub(crate) enum WarmCommand {
    /// An edit was applied.
    Replaced(Replaced),
    /// Files are gone, or lie elsewhere.
    Gone(Vec<FileId>),
}

/// The thread `gabion-warm`.
pub(crate) struct WarmThread {
    commands: Option<Sender<WarmCommand>>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<Shown>,
}

/// What others may know of it.
#[derive(Default)]
struct Shown {
    /// Bytes of files that were read.
    read_bytes: AtomicU64,
    /// Edits that were not looked at yet, and files in line or under way.
    left: AtomicU64,
}

impl WarmThread {
    pub(crate) fn start(
        parts: &StoreParts,
        cache: &Arc<SharedCache>,
        nice: u8,
        mailbox: &Mailbox,
    ) -> Result<Self> {
        let (commands, inbox) = channel();
        let shown = Arc::new(Shown::default());
        let (parts, cache, mailbox) = (parts.clone(), cache.clone(), mailbox.clone());
        let told = shown.clone();
        let thread = thread("gabion-warm", nice, move || {
            let _alarm = Alarm { sink: mailbox.clone(), thread: "gabion-warm" };
            let (line, under_way, device) = (VecDeque::new(), None, OnceCell::new());
            let shown = told;
            Warmer { parts, cache, mailbox, line, under_way, device, shown }.run(&inbox);
        })?;
        Ok(Self { commands: Some(commands), thread: Some(thread), shown })
    }

    pub(crate) fn send(&self, command: WarmCommand) {
        if matches!(command, WarmCommand::Replaced(_)) {
            self.shown.left.fetch_add(1, Ordering::Relaxed);
        }
        // It fails only when the thread is gone, which its alarm has told.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }

    /// Bytes of files that were read for it.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.shown.read_bytes.load(Ordering::Relaxed)
    }

    /// Edits and files that are still to be looked at.
    pub(crate) fn left(&self) -> u64 {
        self.shown.left.load(Ordering::Relaxed)
    }
}

impl Drop for WarmThread {
    /// Waits for the mebibyte that is being read.
    fn drop(&mut self) {
        self.commands = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A file in line.
struct Next {
    /// Keeps the file's slots.
    file: Arc<FileMeta>,
    place: Arc<FilePlacement>,
    /// What readers had of what it was made of; none for a flush.
    had: Option<Arc<Had>>,
}

/// Where one file lies, and who is told of damage in it.
#[derive(Clone)]
struct Place {
    place: Arc<FilePlacement>,
    mailbox: Mailbox,
}

impl Locate for Place {
    fn locate(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        (self.place.file == file).then(|| self.place.clone())
    }

    fn note_damage(&self, _: FileId, error: &Error) {
        self.mailbox.tell(Event::Damaged(self.place.clone(), error.clone()));
    }
}

/// A file that is being read.
struct UnderWay {
    next: Next,
    warming: Warming,
    source: PoolSource<Place>,
}

/// What the thread has.
struct Warmer {
    parts: StoreParts,
    cache: Arc<SharedCache>,
    mailbox: Mailbox,
    line: VecDeque<Next>,
    under_way: Option<UnderWay>,
    /// Made for the first file; nothing when that failed, and then nothing is warmed.
    device: OnceCell<Option<(BlockingMedium, LocalStore)>>,
    shown: Arc<Shown>,
}

impl Warmer {
    /// Until the loop is gone.
    fn run(mut self, inbox: &Receiver<WarmCommand>) {
        loop {
            let command = match self.line.is_empty() && self.under_way.is_none() {
                true => inbox.recv().map_err(|_| TryRecvError::Disconnected),
                false => inbox.try_recv(),
            };
            let mut before = self.files_left();
            match command {
                Ok(WarmCommand::Replaced(replaced)) => {
                    before += 1;
                    self.take_replaced(replaced);
                }
                Ok(WarmCommand::Gone(files)) => self.forget(&files),
                Err(TryRecvError::Empty) => self.work(),
                Err(TryRecvError::Disconnected) => return,
            }
            // In one step, so that nobody sees none left between an edit and its files; a sum that
            // wraps takes away.
            let change = self.files_left().wrapping_sub(before);
            self.shown.left.fetch_add(change, Ordering::Relaxed);
        }
    }

    fn files_left(&self) -> u64 {
        self.line.len() as u64 + u64::from(self.under_way.is_some())
    }

    /// Takes down what readers had, and puts the new files in line that they will look in.
    fn take_replaced(&mut self, Replaced { removed, added }: Replaced) {
        let mut had = match added.is_empty() {
            true => Had::default(),
            false => Had::of(&*self.cache, removed.iter().copied()),
        };
        let mut given_up = 0;
        self.line.retain(|next| {
            let stays = !removed.contains(&next.file.id);
            if let (false, Some(made_of)) = (stays, &next.had) {
                had.add_of(made_of, &next.file);
                given_up += 1;
            }
            stays
        });
        let leaves = |it: &mut UnderWay| removed.contains(&it.next.file.id);
        if let Some(unfinished) = self.under_way.take_if(leaves) {
            had.add_unfinished(&unfinished.warming);
            given_up += 1;
        }
        let had = (!removed.is_empty()).then(|| Arc::new(had));
        for (file, place) in added {
            match &had {
                Some(had) if !had.is_near(&file) => {}
                // Alone it would have all others leave.
                Some(had) if had.open_files() > HAD_FILES_MAX => given_up += 1,
                _ => self.line.push_back(Next { file, place, had: had.clone() }),
            }
        }
        while self.line.len() > LINE_LEN_MAX || self.had_files() > HAD_FILES_MAX {
            let first = self.line.pop_front();
            given_up += u64::from(first.is_some_and(|next| next.had.is_some()));
        }
        self.cache.given_up(given_up);
    }

    /// Files whose indexes those in line keep. Those of one edit are beside each other.
    fn had_files(&self) -> usize {
        let mut last: Option<&Arc<Had>> = None;
        let mut files = 0;
        for had in self.line.iter().filter_map(|next| next.had.as_ref()) {
            if last.is_none_or(|last| !Arc::ptr_eq(last, had)) {
                files += had.open_files();
            }
            last = Some(had);
        }
        files
    }

    /// Files are gone, or lie elsewhere since they were repaired: what is known of them is of no
    /// use.
    fn forget(&mut self, files: &[FileId]) {
        files.iter().for_each(|file| self.cache.evict_file(*file));
        let leaves = |next: &Next| files.contains(&next.file.id);
        let missed = self.line.iter().filter(|next| leaves(next) && next.had.is_some()).count();
        self.line.retain(|next| !leaves(next));
        let half_way = self.under_way.take_if(|it| leaves(&it.next)).is_some();
        self.cache.given_up(missed as u64 + u64::from(half_way));
    }

    /// Begins the next file, or reads a mebibyte of the one that is under way.
    fn work(&mut self) {
        let opened = self.device.get_or_init(|| {
            let opened = self.parts.blocking();
            opened.inspect_err(|error| note!("the cache is not warmed: {error}")).ok()
        });
        let Some((medium, store)) = opened else {
            self.cache.given_up(self.line.len() as u64);
            return self.line.clear();
        };
        let (cache, shown) = (&self.cache, &self.shown);
        let count = |source: &PoolSource<Place>, before: u64| {
            shown.read_bytes.fetch_add(source.meter.bytes() - before, Ordering::Relaxed);
        };
        if let Some(UnderWay { warming, source, .. }) = &mut self.under_way {
            let before = source.meter.bytes();
            // Damage was told; the rest is left to readers.
            let more = medium.block_on(cache.step_warming(source, warming));
            count(source, before);
            if !more.unwrap_or(false) {
                self.under_way = None;
            }
        } else if let Some(next) = self.line.pop_front() {
            let locate = Place { place: next.place.clone(), mailbox: self.mailbox.clone() };
            let meter = Rc::new(ReadMeter::default());
            let source = PoolSource { store: store.clone(), locate, meter };
            let (had, group) = (next.had.as_deref(), self.parts.group);
            let begun = medium.block_on(cache.begin_warming(&source, group, had, &next.file));
            count(&source, 0);
            self.under_way = begun.ok().flatten().map(|warming| UnderWay { next, warming, source });
        }
    }
}

#[cfg(test)]
mod tests;
