//! The owner of an application's files: it makes the mirrors, knows the names, and hands what
//! processes write to the store.
//!
//! ```text
//!  gabion-ncl-ring   ring ─► records ─► LogFiles ─► stored
//!  gabion-ncl-names  socket ─► one request ─► names, placeholders, mirrors ─► one reply
//! ```
//!
//! Both threads change one state under a mutex, and a request first takes all records that
//! are in the ring: so the store gets calls in the order in which the program made them. A thread
//! that takes the lock of the shared memory too takes it first.

mod mirrors;
mod names;
mod plain;
mod room;
mod splits;

use crate::direct::DESCRIPTORS_MAX;
use crate::files::LogFiles;
use crate::pattern;
use crate::shared::{LEN, Reader, Record, SLOTS, Shared};
use crate::wire::{Operation, REQUEST, Reply, Request, SOCKET};
use mirrors::Mirror;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
pub use splits::Splits;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a process may take over its request, once it is connected.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// How often the ring's thread looks whether somebody died with the lock, in milliseconds.
const LOOK_MS: u32 = 100;
/// How often it is looked whether the change is over that a copy waits for.
const MEND_EVERY: Duration = Duration::from_millis(1);
/// Records that are taken before those who wait for the first hear of it.
const RECORDS_AT_ONCE: usize = 64;

/// Grants at most that are left out after one that was of no use.
const GRANTS_SKIPPED_MAX: u32 = 255;

/// The settings of an owner.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The application, whose files these are.
    pub application: String,
    /// Only files below this directory are mirrored, and are named by their paths from here.
    pub root: PathBuf,
    /// Globs of the names that are mirrored, divided by commas. None of them: nothing is.
    pub globs: String,
    /// Files that are split, of those that are not mirrored.
    pub splits: Option<Splits>,
    /// Each write waits until it is stored, not only each sync.
    pub every_write: bool,
    /// A directory of its own for the socket, which only this user may enter.
    pub directory: PathBuf,
}

impl Settings {
    /// Globs of the names that are mirrored or split: of all others a process asks nobody.
    fn all_globs(&self) -> String {
        let splits = self.splits.iter().flat_map(|splits| &splits.globs);
        let globs = [&self.globs].into_iter().chain(splits.map(|(glob, _)| glob));
        let globs: Vec<&str> = globs.map(String::as_str).filter(|glob| !glob.is_empty()).collect();
        globs.join(",")
    }
}

/// An owner that runs.
#[derive(Debug)]
pub struct Owner {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Core {
    shared: Shared,
    memory: File,
    settings: Settings,
    state: Mutex<State>,
    /// Held while the journal of split files is emptied; taken before all others.
    emptying: Mutex<()>,
    greeted: AtomicBool,
    stopping: AtomicBool,
}

/// All that the owner knows; behind one mutex.
struct State {
    shared: Shared,
    settings: Settings,
    store: Box<dyn LogFiles>,
    reader: Reader,
    /// Mirrors by slot.
    mirrors: Vec<Option<Mirror>>,
    /// Names by path below the root.
    names: BTreeMap<Vec<u8>, u32>,
    /// Files that match and stay in the file system, by device and inode.
    plain: BTreeMap<(u64, u64), plain::Plain>,
    /// Split files.
    split: splits::Split,
    /// Somebody was told that a file which matches is not mirrored.
    is_plain_told: bool,
    /// The same of a file that matches and is not split.
    is_unsplit_told: bool,
    /// The bytes of the current record.
    bytes: Vec<u8>,
    /// Why the last request had no room, and whether that was told since there was.
    refusal: Option<io::Error>,
    is_full_told: bool,
    /// Records that processes had written when a grant was last thought of.
    granted_at: u64,
    /// Grants that were left out, and how many are to be.
    grants_skipped: u32,
    grants_to_skip: u32,
    /// The slot that was given last.
    last_slot: u32,
    /// Slots that were ever used.
    used: u32,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("State").field("names", &self.names).finish_non_exhaustive()
    }
}

/// An `errno`.
type Errno = i32;

/// The number of an error; `EIO` for those that are not the kernel's.
fn errno(error: &io::Error) -> Errno {
    let of_kind = match error.kind() {
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::FileTooLarge => libc::EFBIG,
        _ => libc::EIO,
    };
    error.raw_os_error().unwrap_or(of_kind)
}

impl Owner {
    /// Recovers what the store has: each file gets its mirror, and its placeholders below the root.
    /// Then serves processes until [`stop`](Self::stop).
    ///
    /// # Errors
    /// Of the store and of the file system, and if a file of the store has a name that a file with
    /// bytes of its own has too.
    pub fn start(settings: Settings, store: Box<dyn LogFiles>) -> io::Result<Self> {
        check(&settings)?;
        let memory = File::from(rustix::fs::memfd_create("gabion-ncl", MemfdFlags::CLOEXEC)?);
        memory.set_len(LEN as u64)?;
        let shared = Shared::create(memory.as_raw_fd(), settings.every_write)?;
        let root = settings.root.canonicalize()?;
        let settings = Settings { root, ..settings };
        let mut state = State {
            shared,
            settings: settings.clone(),
            store,
            reader: Reader::new(shared),
            mirrors: (0..SLOTS).map(|_| None).collect(),
            names: BTreeMap::new(),
            plain: BTreeMap::new(),
            split: splits::Split::default(),
            is_plain_told: false,
            is_unsplit_told: false,
            bytes: Vec::new(),
            refusal: None,
            is_full_told: false,
            granted_at: 0,
            grants_skipped: 0,
            grants_to_skip: 0,
            last_slot: SLOTS as u32 - 1,
            used: 0,
        };
        state.recover()?;
        let listener = UnixListener::bind(settings.directory.join(SOCKET))?;
        let [greeted, stopping] = [(); 2].map(|()| AtomicBool::new(false));
        let state = Mutex::new(state);
        let emptying = Mutex::new(());
        let core = Core { shared, memory, settings, state, emptying, greeted, stopping };
        let core = Arc::new(core);
        let mut threads = Vec::new();
        let ring = core.clone();
        threads.push(thread("gabion-ncl-ring", move || ring.read_ring())?);
        let names = core.clone();
        threads.push(thread("gabion-ncl-names", move || names.serve(&listener))?);
        Ok(Self { core, threads })
    }

    /// True once a process of the application has been here.
    #[must_use]
    pub fn greeted(&self) -> bool {
        self.core.greeted.load(Ordering::Acquire)
    }

    /// The memory that processes share with this owner: its figures take no lock, and nobody is
    /// held up by them while the store hangs.
    #[must_use]
    pub fn shared(&self) -> Shared {
        self.core.shared
    }

    /// Names and lengths of the mirrored files.
    #[must_use]
    pub fn files(&self) -> Vec<(Vec<u8>, u64)> {
        let state = self.core.state();
        let len = |slot: u32| state.mirrors[slot as usize].as_ref().and_then(Mirror::len);
        state.names.iter().map(|(name, slot)| (name.clone(), len(*slot).unwrap_or(0))).collect()
    }

    /// Stores whatever has been written, and ends. Placeholders stay; split files of which the
    /// journal has frames are synced.
    ///
    /// # Errors
    /// If the store has failed.
    pub fn stop(self) -> io::Result<()> {
        // The error is the store's, which is told below.
        let _ = self.core.remove_journal();
        self.core.stopping.store(true, Ordering::Release);
        self.core.shared.wake_owner();
        // Only so that the accepting thread looks.
        let socket = self.core.settings.directory.join(SOCKET);
        drop(UnixStream::connect(&socket));
        let lost = self.threads.into_iter().filter_map(|thread| thread.join().err()).count();
        std::fs::remove_file(socket)?;
        match self.core.shared.check() {
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
            Ok(()) if lost > 0 => Err(io::Error::other(format!("{lost} threads panicked"))),
            Ok(()) => Ok(()),
        }
    }
}

fn check(settings: &Settings) -> io::Result<()> {
    let application = &settings.application;
    let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    let (len, max) = (settings.all_globs().len(), pattern::LEN_MAX);
    if len == 0 || len > max {
        return bad(format!("the globs of names have {len} bytes, of 1 to {max}"));
    }
    if let Err(text) = settings.splits.as_ref().map_or(Ok(()), splits::check) {
        return bad(text);
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if application.is_empty() || application.len() > 255 || !application.bytes().all(fits) {
        return bad(format!(
            "'{application}' is no name of an application: 1 to 255 letters, digits, '-', '_', '.'"
        ));
    }
    Ok(())
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body)
}

impl Core {
    /// A panic under the mutex has ended a thread of the owner; [`Owner::stop`] tells it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_ring(&self) {
        loop {
            let stopping = self.stopping.load(Ordering::Acquire);
            let read = {
                let mut state = self.state();
                state.drain();
                state.reader.position()
            };
            if stopping {
                return;
            }
            self.shared.wait_for_work(read, LOOK_MS);
            if self.shared.is_busy() {
                self.shared.mend();
            }
        }
    }

    fn serve(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            // A connection that breaks is that process's business: it sees no reply.
            let _ = stream.and_then(|stream| self.answer(stream));
        }
    }

    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_TIME))?;
        stream.set_write_timeout(Some(REQUEST_TIME))?;
        let mut head = [0; REQUEST];
        stream.read_exact(&mut head)?;
        let Some(request) = Request::parse(&head) else {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        };
        let mut paths = [const { Vec::new() }; 2];
        for (path, len) in paths.iter_mut().zip(request.paths) {
            path.resize(len as usize, 0);
            stream.read_exact(path)?;
        }
        let paths = paths.each_ref().map(|path| Path::new(OsStr::from_bytes(path)));
        if request.operation == Operation::Window {
            return self.answer_window(stream, request.value);
        }
        let process = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        let handled = self.with_room(|| self.handle(&request, paths, process));
        let (reply, text, descriptor) = match handled {
            Ok(done) => done,
            Err(errno) => (Reply { errno: errno as u32, ..Reply::default() }, Vec::new(), None),
        };
        let reply = Reply { text: text.len() as u32, ..reply };
        stream.write_all(&reply.encode())?;
        stream.write_all(&text)?;
        descriptor.map_or(Ok(()), |descriptor| send(&stream, &[descriptor.as_fd()]))
    }

    /// The memory of the peers that a process writes to, if it still is what it asks for. Nobody
    /// waits for it: the store may hang, and the process has nothing to wait for.
    fn answer_window(&self, mut stream: UnixStream, number: u64) -> io::Result<()> {
        let window = self.state.try_lock().ok().and_then(|state| state.store.window(number));
        let Some(window) = window else {
            let reply = Reply { errno: libc::EAGAIN as u32, ..Reply::default() };
            return stream.write_all(&reply.encode());
        };
        let text = window.encode();
        let reply = Reply { text: text.len() as u32, ..Reply::default() };
        stream.write_all(&reply.encode())?;
        stream.write_all(&text)?;
        send(&stream, &window.descriptors())
    }

    fn handle(
        &self,
        request: &Request,
        [first, second]: [&Path; 2],
        process: i32,
    ) -> Result<(Reply, Vec<u8>, Option<OwnedFd>), Errno> {
        if request.operation == Operation::Hello {
            self.greeted.store(true, Ordering::Release);
            let memory = self.memory.try_clone().map_err(|error| errno(&error))?;
            let globs = self.settings.all_globs().into_bytes();
            return Ok((Reply::default(), globs, Some(memory.into())));
        }
        // These do not keep the store from others while they sync files.
        let done = |reply| Ok((reply, Vec::new(), None));
        match request.operation {
            Operation::EmptyJournal => {
                return done(self.empty_journal().map(|()| Reply::default())?);
            }
            Operation::Leave => return done(self.leave(request, [first, second], process)?),
            Operation::Reserve => return done(self.state().reserve(request)?),
            Operation::Truncate => drop(self.state().reserve(request)?),
            Operation::Open => {
                if let Some(reply) = self.open_split(request, first)? {
                    return done(reply);
                }
            }
            _ => {}
        }
        let cuts =
            request.operation == Operation::Truncate || request.flags & libc::O_TRUNC as u32 != 0;
        // No process is amid a change of bytes while the owner makes one.
        let mut guard = cuts.then(|| self.shared.lock());
        let guard = guard.as_mut();
        let mut state = self.state();
        state.drain();
        self.shared.check()?;
        match request.operation {
            Operation::Hello
            | Operation::Window
            | Operation::EmptyJournal
            | Operation::Leave
            | Operation::Reserve => unreachable!("answered above"),
            Operation::Arrive => done(state.arrive(request.slot)),
            Operation::Journal => Ok((Reply::default(), Vec::new(), Some(state.journal_memory()?))),
            Operation::Open => {
                let (reply, descriptor) = state.open(request, first, guard)?;
                state.note_plain(request, first, &reply);
                Ok((reply, Vec::new(), descriptor))
            }
            Operation::Renamed => done(state.renamed(request, first, second)?),
            Operation::Linked => done(state.linked(request, second)?),
            Operation::Unlinked => done(state.unlinked(first)?),
            Operation::Attributes => done(state.attributes(request)?),
            Operation::Truncate => done(state.truncate(request, guard)?),
            Operation::FromPlaceholder => done(state.metadata_from_placeholder(request, first)?),
            Operation::TimesFromPlaceholder => done(state.times_from_placeholder(request, first)?),
            Operation::FromMirror => done(state.metadata_from_mirror(request)?),
            Operation::MayName => done(state.may_name(request, first, second)?),
        }
    }
}

/// Descriptors go behind the reply, with a byte of their own: whoever asked takes them when it has
/// numbers free.
fn send(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let rights = SendAncillaryMessage::ScmRights(descriptors);
    assert!(ancillary.push(rights), "there is space for {}", descriptors.len());
    sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl State {
    /// Takes all records out of the ring and hands them to the store. When it returns they are
    /// stored, or the store has failed.
    fn drain(&mut self) {
        while self.shared.check().is_ok() {
            let stored = self.issue().and_then(|()| self.settle());
            match stored {
                Ok(()) => {
                    // The process that waits for these writes the next one.
                    self.grant();
                    self.reader.stored();
                }
                Err(error) => drop(self.failed(&error)),
            }
            if self.reader.position() == self.shared.head() {
                return;
            }
        }
    }

    /// Tells the store of the next records in the ring.
    fn issue(&mut self) -> io::Result<()> {
        for _ in 0..RECORDS_AT_ONCE {
            let mut bytes = std::mem::take(&mut self.bytes);
            let next = self.reader.next(&mut bytes);
            self.bytes = bytes;
            match next {
                Ok(Some(record)) => self.apply(&record)?,
                Ok(None) => return Ok(()),
                Err(text) => return Err(io::Error::new(io::ErrorKind::InvalidData, text)),
            }
            self.reader.issued();
        }
        Ok(())
    }

    /// Has the store grant records of the file that a process waits for, if that is all there is to
    /// do. Not while a process changes a file: it will want it again.
    /// One of which nothing came is followed by more and more that are left out.
    fn grant(&mut self) {
        let Some(slot) = self.shared.wanted() else { return };
        let (records, _) = self.shared.direct_records();
        if std::mem::replace(&mut self.granted_at, records) != records {
            (self.grants_skipped, self.grants_to_skip) = (0, 0);
        }
        if self.grants_skipped < self.grants_to_skip {
            self.grants_skipped += 1;
            return;
        }
        let mirror = self.mirrors.get(slot as usize).and_then(Option::as_ref);
        let guard = self.shared.try_lock(self.reader.position());
        if let (Some(mirror), Some(_guard)) = (mirror, guard) {
            self.store.grant(mirror.file, slot, mirror.generation);
            self.grants_skipped = 0;
            self.grants_to_skip = (2 * self.grants_to_skip + 1).min(GRANTS_SKIPPED_MAX);
        }
    }

    /// Waits until all that the store was told of is stored. As long as a copy waits for changes,
    /// tells it of those that have come since.
    fn settle(&mut self) -> io::Result<()> {
        while !self.store.sync_or_more()? {
            if self.reader.position() != self.shared.head() {
                self.issue()?;
                continue;
            }
            // Somebody is amid a change, or died over it.
            self.shared.mend();
            std::thread::sleep(MEND_EVERY);
        }
        Ok(())
    }

    /// The result of a call of the store, once its change is stored. A refusal is the
    /// caller's business alone: nothing has changed, here or there.
    fn stored<T>(&mut self, done: io::Result<T>) -> Result<T, Errno> {
        if let Some(errno) = done.as_ref().err().and_then(plain::refusal) {
            return Err(errno);
        }
        let done = match done {
            // Nothing was changed.
            Err(error) if room::is_refusal(&error) => return Err(self.refused(error)),
            done => done,
        };
        let stored = done.and_then(|done| self.settle().map(|()| done));
        stored.map_err(|error| self.failed(&error))
    }

    fn apply(&mut self, record: &Record) -> io::Result<()> {
        let mirror = self.mirrors.get(record.slot as usize).and_then(Option::as_ref);
        let current = |mirror: &&Mirror| mirror.generation == record.generation;
        // A record of a file that has lost its last name meanwhile: nobody will recover it.
        let Some(mirror) = mirror.filter(current) else {
            return Ok(());
        };
        mirror.apply(record, &self.bytes, &mut *self.store)
    }

    /// The store has failed: whatever it has by now, nobody may count on it any more.
    fn failed(&self, error: &io::Error) -> Errno {
        eprintln!("gabion ncl: the store failed, and no write is stored any more: {error}");
        self.shared.fail(libc::EIO);
        libc::EIO
    }
}
