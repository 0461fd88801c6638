//! The files of an application: an instance that runs, for all threads of a program.

use crate::images::{Changes, Mirrors};
use crate::link::Client;
use crate::report::{FileReport, InstanceReport, report_name};
use crate::tls::check_application;
use crate::turn::{Attempt, Job, State, readiness, refused};
use crate::waiters::Place;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::{Store, Swapped, Version};
use gabion_media::remote::ClientId;
use gabion_mirror::direct::Window;
use gabion_ncl::{Application, FileNumber, Metadata, NameEdit, Number, Options, Stat, Status};
use gabion_tls::MutualTls;
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The longest sleep of a thread that takes turns: time is told to the core that often.
const TURN_MAX: Duration = Duration::from_millis(20);
/// How long the own thread leaves the sockets to those who wait, after one did.
const STANDS_BACK: Duration = Duration::from_millis(10);
/// How often an instance tells the store of itself, if something changed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Lengths alone are told less often.
const LENGTHS_EVERY: Duration = Duration::from_secs(10);
/// A longer write is made in pieces of so many bytes, each of which waits for room.
const PIECE_LEN: usize = 1 << 20;

/// Options of an instance: the core's and those of its connections.
#[derive(Clone, Debug)]
pub struct LogsOptions {
    /// Names and limits. The number of the instance is made anew by each [`Logs::start`]: two that
    /// have the same would take each other for one.
    pub core: Options,
    /// Token that peers ask for; empty for none.
    pub token: Vec<u8>,
    /// Certificates for peers of other machines; none: they are spoken to in plain text.
    pub tls: Option<Arc<MutualTls>>,
    /// The mirrors are memory files that a program changes itself ([`Logs::attach`]), before
    /// [`Logs::write`] and [`Logs::truncate`] tell of it: these change no mirror then. Else mirrors
    /// are of this process alone.
    pub has_program: bool,
    /// How long a peer may take to be connected to, and over a reply, in ms.
    pub timeout_ms: u64,
}

impl LogsOptions {
    /// The defaults of [`Options::new`], for an application of this name; 2 s for a reply.
    #[must_use]
    pub fn new(owner: &str) -> Self {
        let core = Options::new(owner, 0);
        Self { core, token: Vec::new(), tls: None, has_program: false, timeout_ms: 2_000 }
    }
}

/// Losses of an instance since it started, and its peers now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times at which copies were missing.
    pub losses: u64,
    /// Copies that were made in the place of lost ones.
    pub replaced: u64,
    /// How long the last such time was, in ms.
    pub last_loss_ms: u64,
    /// Connected peers that share their memory.
    pub shared: usize,
    /// Connected peers.
    pub connected: usize,
}

/// A number that nobody else has.
fn random() -> u64 {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0; 8];
    while getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {}
    u64::from_le_bytes(bytes)
}

struct Shared {
    state: Mutex<State>,
    changes: Changes,
    /// Records up to it are acknowledged, for those who need nothing else of the state.
    acknowledged: AtomicU64,
    /// Held by whoever takes the turns of the sockets.
    turns: Mutex<()>,
    epoll: Arc<OwnedFd>,
    started: Instant,
    waiting: AtomicUsize,
    /// When somebody last waited, in µs since the start.
    waited_us: AtomicU64,
    instance: u64,
}

type Guard<'a> = MutexGuard<'a, State>;
type Woken = BTreeMap<Place, Thread>;

fn wake(woken: Woken) {
    woken.into_values().for_each(|thread| thread.unpark());
}

/// The files of an application, as long as this lives. All calls may be made by any thread.
pub struct Logs {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Logs {
    /// Begins to recover the application's files. [`Self::wait_until_ready`] is next.
    ///
    /// # Errors
    /// Invalid input for options that cannot be, and for a certificate of another application; I/O
    /// when the system refuses threads.
    pub fn start(options: LogsOptions, store: Box<dyn Store + Send>) -> Result<Self> {
        let LogsOptions { mut core, token, tls, has_program, timeout_ms } = options;
        core.instance = random();
        if timeout_ms == 0 {
            return Err(Error::invalid("the time for a reply: 0 ms; 1 or more is valid"));
        }
        let (owner, instance) = (core.owner.clone(), core.instance);
        if let Some(tls) = &tls {
            check_application(tls.identity(), &owner)?;
        }
        let client = Client { owner: owner.clone(), client: ClientId(random()), token, tls };
        let (jobs, work) = channel();
        let (epoll, started) = (readiness()?, Instant::now());
        let changes = Changes::default();
        let mirrors = Mirrors { program: has_program.then(|| Arc::clone(&changes)) };
        let core = Application::new(core, mirrors, 0)?;
        let around = (Arc::clone(&epoll), started);
        let mut state = State::new(core, client, timeout_ms, around, jobs);
        state.drive();
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changes,
            acknowledged: AtomicU64::new(0),
            turns: Mutex::new(()),
            epoll,
            started,
            waiting: AtomicUsize::new(0),
            waited_us: AtomicU64::new(0),
            instance,
        });
        let mut logs = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let of_store = Arc::clone(&shared);
        let name = report_name(&owner);
        logs.spawn("gabion-ncl-store", move || of_store.answer(store, &work, &name))?;
        logs.spawn("gabion-ncl-logs", move || shared.run())?;
        Ok(logs)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        let failed = |e| Error::with_source(ErrorKind::Io, format!("thread {name}"), e);
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }

    /// Waits until the files are there.
    ///
    /// # Errors
    /// Fenced once a newer instance runs; unavailable by the options' `on_loss`.
    pub fn wait_until_ready(&self) -> Result<()> {
        let is_ready = |state: &mut State| Ok(state.core.is_ready()?.then_some(()));
        self.shared.wait(Number::ZERO, is_ready)
    }

    /// In words, the lack for which [`Self::wait_until_ready`] waits; none once files can be used,
    /// or never can be.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        let state = self.shared.lock().ok()?;
        let waits = state.core.is_ready().is_ok_and(|is_ready| !is_ready);
        waits.then(|| format!("{}; {}", state.core.shortage(), reasons(&state)))
    }

    /// Makes a change once there is room for its records, and peers have lent what it needs.
    pub(crate) fn change<T>(
        &self,
        change: impl Fn(&mut Application<Mirrors>) -> Result<T>,
    ) -> Result<(T, Number)> {
        self.shared.wait(Number::ZERO, |state| {
            state.handle_time();
            if !state.core.is_ready()? || !state.core.has_room() {
                return Ok(None);
            }
            let changed = change(&mut state.core);
            let number = state.core.issued();
            state.drive();
            match changed {
                Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
                changed => changed.map(|changed| Some((changed, number))),
            }
        })
    }

    /// Has peers lend what a file of `end` bytes needs. Returns the length up to which it need not
    /// be asked for again; or nothing, as a new copy waits for records of changes that a program's
    /// mirrors have already.
    ///
    /// # Errors
    /// No space where f+1 copies cannot have it; limit exceeded; not found; as [`Self::wait_for`].
    pub(crate) fn reserve(&self, file: FileNumber, end: u64) -> Result<Option<u64>> {
        self.shared.wait(Number::ZERO, |state| {
            state.handle_time();
            if !state.core.is_ready()? || !state.core.has_room() {
                return Ok(state.core.wants_changes().then_some(None));
            }
            let reserved = state.core.reserve(file, end);
            state.drive();
            match reserved {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    Ok(state.core.wants_changes().then_some(None))
                }
                reserved => reserved.map(|capacity| Some(Some(capacity))),
            }
        })
    }

    /// Waits until a record and all before it are acknowledged.
    ///
    /// # Durability
    /// They survive the loss of any f peers at a time, and of this machine.
    ///
    /// # Errors
    /// Fenced once a newer instance runs; unavailable by the options' `on_loss`. Then nobody knows
    /// whether the record will be there.
    pub fn wait_for(&self, number: Number) -> Result<()> {
        if number.0 <= self.shared.acknowledged.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.wait(number, |state| Ok(state.core.check(number)?.then_some(())))
    }

    /// Waits until all records so far are acknowledged.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn sync(&self) -> Result<()> {
        let number = self.shared.lock()?.core.issued();
        self.wait_for(number)
    }

    /// Waits until all records so far are acknowledged: true; or until a new copy waits for records
    /// of changes that a program's mirrors have already.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub(crate) fn sync_or_more(&self) -> Result<bool> {
        let number = self.shared.lock()?.core.issued();
        if number.0 <= self.shared.acknowledged.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.shared.wait(number, |state| match state.core.check(number)? {
            true => Ok(Some(true)),
            false => Ok(state.core.wants_changes().then_some(false)),
        })
    }

    /// A new file. It ends with its last name.
    ///
    /// # Errors
    /// Invalid input where the name is taken or no name; as [`Self::wait_for`].
    pub fn create(&self, path: &str, metadata: Metadata) -> Result<FileNumber> {
        let (file, number) = self.change(|core| core.create(path, metadata))?;
        self.wait_for(number).map(|()| file)
    }

    /// Bytes at an offset, or zero bytes. They are acknowledged after [`Self::wait_for`] this
    /// number.
    ///
    /// # Errors
    /// Limit exceeded for a file that is too long; not found; as [`Self::wait_for`].
    pub fn write(&self, file: FileNumber, offset: u64, data: &[u8]) -> Result<Number> {
        let mut last = Number::ZERO;
        let mut at = offset;
        for piece in data.chunks(PIECE_LEN) {
            last = self.change(|core| core.write(file, at, piece))?.0;
            at += piece.len() as u64;
        }
        Ok(last)
    }

    /// Bytes at the end.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn append(&self, file: FileNumber, data: &[u8]) -> Result<Number> {
        Ok(self.change(|core| core.append(file, data))?.0)
    }

    /// Another length.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn truncate(&self, file: FileNumber, len: u64) -> Result<Number> {
        Ok(self.change(|core| core.truncate(file, len))?.0)
    }

    /// Other metadata, acknowledged when this returns.
    ///
    /// # Errors
    /// Not found; as [`Self::wait_for`].
    pub fn set_metadata(&self, file: FileNumber, metadata: Metadata) -> Result<()> {
        let (_, number) = self.change(|core| core.set_metadata(file, metadata))?;
        self.wait_for(number)
    }

    /// Whether the files would take several changes of names, for which there is memory then.
    ///
    /// # Errors
    /// Limit exceeded if they are too many at once, or a name too long; not found for a file that
    /// does not exist; no space where f+1 copies cannot have the memory; as [`Self::wait_for`].
    pub(crate) fn prepare_names(&self, edits: &[NameEdit]) -> Result<()> {
        let are_prepared = self.shared.lock()?.core.are_prepared(edits)?;
        if are_prepared {
            return Ok(());
        }
        self.change(|core| core.prepare_names(edits)).map(|_| ())
    }

    /// Several changes of names, all or none, acknowledged when this returns.
    ///
    /// # Errors
    /// Not found for a file that does not exist; as [`Self::wait_for`].
    pub fn edit_names(&self, edits: &[NameEdit]) -> Result<()> {
        let (_, number) = self.change(|core| core.edit_names(edits))?;
        self.wait_for(number)
    }

    /// Another name; a file that has it loses it. Acknowledged when this returns.
    ///
    /// # Errors
    /// Not found; as [`Self::wait_for`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (_, number) = self.change(|core| core.rename(from, to))?;
        self.wait_for(number)
    }

    /// A name less, acknowledged when this returns.
    ///
    /// # Errors
    /// Not found; as [`Self::wait_for`].
    pub fn unlink(&self, path: &str) -> Result<()> {
        let (_, number) = self.change(|core| core.unlink(path))?;
        self.wait_for(number)
    }

    /// The file of a name.
    ///
    /// # Errors
    /// As [`Self::wait_until_ready`].
    pub fn find(&self, path: &str) -> Result<Option<FileNumber>> {
        self.shared.lock()?.core.find(path)
    }

    /// The names that begin with a text, in their order.
    ///
    /// # Errors
    /// As [`Self::wait_until_ready`].
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, FileNumber)>> {
        self.shared.lock()?.core.list(prefix)
    }

    /// Number, length and parts of a file.
    ///
    /// # Errors
    /// Not found; as [`Self::wait_until_ready`].
    pub fn stat(&self, file: FileNumber) -> Result<Stat> {
        let mut state = self.shared.lock()?;
        state.core.recall();
        state.core.stat(file)
    }

    /// Bytes of a file, from this process's mirror. Returns how many there are before its end.
    ///
    /// # Errors
    /// Not found; as [`Self::wait_until_ready`].
    pub fn read(&self, file: FileNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut state = self.shared.lock()?;
        state.core.recall();
        state.core.read(file, offset, into)
    }

    /// Processes of a program, which note here what they are about to change, may change the
    /// mirrors from now on.
    ///
    /// # Panics
    /// If there is such a program already.
    pub fn attach(&self, changes: gabion_mirror::shared::Shared) {
        assert!(self.shared.changes.set(changes).is_ok(), "one program changes the mirrors");
    }

    /// Lets the program write records of a file itself, if it can.
    pub(crate) fn grant(&self, file: FileNumber, slot: u32, generation: u32) {
        // Another thread that has the lock has something to do: there is no rest.
        let (Ok(mut state), Some(changes)) =
            (self.shared.state.try_lock(), self.shared.changes.get())
        else {
            return;
        };
        state.grant(file, (slot, generation), changes);
    }

    /// The memory of this number, which goes with a grant.
    pub(crate) fn window(&self, number: u64) -> Option<Arc<Window>> {
        self.shared.lock().ok()?.windows.get(number)
    }

    /// A descriptor of a file's memory, if the mirrors are the program's.
    ///
    /// # Errors
    /// Not found; I/O when there is no descriptor for it; as [`Self::wait_until_ready`].
    pub fn memory(&self, file: FileNumber) -> Result<Option<File>> {
        let state = self.shared.lock()?;
        let memory = state.core.image(file)?.memory();
        memory.map_err(|e| Error::with_source(ErrorKind::Io, format!("memory of {file}"), e))
    }

    /// Names and lengths of the files.
    ///
    /// # Errors
    /// As [`Self::wait_until_ready`].
    pub fn files(&self) -> Result<Vec<FileReport>> {
        let mut state = self.shared.lock()?;
        state.core.recall();
        files(&state)
    }

    /// State of the instance, for operators.
    ///
    /// # Errors
    /// I/O after a panic.
    pub fn status(&self) -> Result<(Status, Counts)> {
        let mut state = self.shared.lock()?;
        state.core.recall();
        let status = state.core.status();
        let (shared, connected) = state.connected();
        let (losses, last_loss_ms) = (state.losses.count, state.losses.last_ms);
        let counts = Counts { losses, replaced: status.replaced, last_loss_ms, shared, connected };
        Ok((status, counts))
    }
}

impl Drop for Logs {
    /// Ends the instance, and tells the store, so that the next one need not wait. Records that are
    /// not acknowledged may be lost.
    fn drop(&mut self) {
        match self.shared.state.lock() {
            Ok(mut state) => state.close(),
            // The core stopped in the middle of something; its threads end all the same.
            Err(poisoned) => poisoned.into_inner().give_up(),
        }
        self.shared.wake_all();
        // A panic of a thread was printed there.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn lock(&self) -> Result<Guard<'_>> {
        let panicked = |_| Error::io("near-compute logs: a thread panicked, nothing more is done");
        self.state.lock().map_err(panicked)
    }

    /// Connects to the peers that the core asked for, each on a thread of its own.
    fn connect_asked(self: &Arc<Self>, state: &mut State) {
        for attempt in state.to_connect.drain(..) {
            let shared = Arc::clone(self);
            let body = move || shared.connect(&attempt);
            // Without a thread the peer is late, and is lost.
            drop(std::thread::Builder::new().name("gabion-ncl-connect".into()).spawn(body));
        }
    }

    /// The threads that go on, after the state may have changed. They want the lock, so they are
    /// woken once it is free.
    fn settle(self: &Arc<Self>, state: &mut State) -> Woken {
        self.connect_asked(state);
        match state.core.acknowledged() {
            Ok(number) => {
                self.acknowledged.fetch_max(number.0, Ordering::Release);
                state.waiters.take(number)
            }
            Err(_) => state.waiters.take_all(),
        }
    }

    /// Leaves the state after it may have changed: those go on who waited for that.
    fn leave(self: &Arc<Self>, mut state: Guard<'_>) {
        let woken = self.settle(&mut state);
        drop(state);
        wake(woken);
    }

    fn wake_all(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = state.waiters.take_all();
        drop(state);
        wake(woken);
    }

    fn connect(self: &Arc<Self>, attempt: &Attempt) {
        let made = attempt.run();
        if let Ok(mut state) = self.lock() {
            state.connected_to(attempt, made);
            state.flush(true);
            self.leave(state);
        }
    }

    /// Calls `ask` until it has something, with turns of the sockets between: at once, and when the
    /// record of this number is acknowledged.
    fn wait<T>(
        self: &Arc<Self>,
        number: Number,
        mut ask: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut state = self.lock()?;
        if let Some(found) = ask(&mut state).transpose() {
            let found = found.map_err(|error| explained(&state, error));
            self.leave(state);
            return found;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let found = self.wait_in_turns(state, number, &mut ask);
        self.waited_us.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.hand_turns_over();
        found
    }

    /// Another one that waits takes the turns from here on, if nobody does.
    fn hand_turns_over(&self) {
        if self.turns.try_lock().is_err() {
            return;
        }
        let last = self.lock().ok().and_then(|mut state| state.waiters.take_last());
        last.iter().for_each(Thread::unpark);
    }

    fn wait_in_turns<'a, T>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        number: Number,
        ask: &mut impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            match self.turns.try_lock() {
                Ok(turns) => {
                    state.flush(true);
                    let may_sleep = !state.has_replies();
                    self.leave(state);
                    self.take_turn(may_sleep)?;
                    drop(turns);
                    state = self.lock()?;
                }
                Err(TryLockError::WouldBlock) => {
                    let woken = self.settle(&mut state);
                    let place = state.waiters.add(number, std::thread::current());
                    drop(state);
                    wake(woken);
                    std::thread::park_timeout(TURN_MAX);
                    state = self.lock()?;
                    state.waiters.remove(place);
                }
                Err(TryLockError::Poisoned(_)) => {
                    return Err(Error::io("near-compute logs: a thread panicked"));
                }
            }
            if let Some(found) = ask(&mut state).transpose() {
                let found = found.map_err(|error| explained(&state, error));
                self.leave(state);
                return found;
            }
        }
    }

    /// Looks at the sockets once, or waits for them, and does what follows. The caller has the
    /// turns.
    fn take_turn(self: &Arc<Self>, may_sleep: bool) -> Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; 32];
        let nanos = if may_sleep { TURN_MAX.as_nanos() } else { 0 };
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanos as _ };
        let ready = match epoll::wait(&*self.epoll, &mut events, Some(&timeout)) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(error) => return Err(refused("readiness of sockets", error)),
        };
        let mut state = self.lock()?;
        state.begin_turn();
        for event in ready.iter() {
            let number = event.data.u64();
            state.handle_ready(number);
        }
        state.handle_time();
        state.flush(true);
        if let Some(changes) = self.changes.get() {
            changes.looked();
        }
        self.leave(state);
        Ok(())
    }

    /// The instance's own thread: turns while nobody waits, and reports.
    fn run(self: &Arc<Self>) {
        let mut reports = Reports::default();
        loop {
            let since = self.started.elapsed().as_micros() as u64;
            let since = since.saturating_sub(self.waited_us.load(Ordering::Relaxed));
            let is_wanted = self.waiting.load(Ordering::Relaxed) > 0;
            let has_replies = self.lock().is_ok_and(|state| state.has_replies());
            if !has_replies && (is_wanted || since < STANDS_BACK.as_micros() as u64) {
                std::thread::sleep(STANDS_BACK);
            }
            let taken = match self.turns.try_lock() {
                Ok(_turns) => {
                    let may_sleep = !self.lock().is_ok_and(|state| state.has_replies());
                    self.take_turn(may_sleep)
                }
                Err(_) => Ok(()),
            };
            let Ok(mut state) = self.lock() else { return };
            if state.is_closed || taken.is_err() {
                return;
            }
            if let Some(report) = reports.next(&mut state, self.instance) {
                state.report(report);
            }
            state.handle_time();
            self.leave(state);
        }
    }

    /// The store's thread.
    fn answer(
        self: &Arc<Self>,
        mut store: Box<dyn Store + Send>,
        work: &Receiver<Job>,
        report_name: &str,
    ) {
        let mut report_version = Version::NONE;
        for job in work {
            match job {
                Job::Core(asker, operation) => {
                    let reply = operation.run(&mut *store);
                    let Ok(mut state) = self.lock() else { return };
                    let now_ms = state.now_ms();
                    state.store_failure = reply.as_ref().err().map(Error::to_string);
                    state.core.handle_store(now_ms, asker, reply);
                    state.drive();
                    state.flush(true);
                    self.leave(state);
                }
                Job::Report(bytes) => {
                    // It is told again when something changes.
                    match store.swap(report_name, report_version, &bytes) {
                        Ok(Swapped::Stored(version)) => report_version = version,
                        Ok(Swapped::Lost(found)) => {
                            report_version = found.map_or(Version::NONE, |found| found.version);
                            let again = store.swap(report_name, report_version, &bytes);
                            if let Ok(Swapped::Stored(version)) = again {
                                report_version = version;
                            }
                        }
                        Err(_) => {}
                    }
                }
                Job::Last(operation) => {
                    // The lease ends by itself if nobody is told.
                    operation.into_iter().for_each(|operation| {
                        let _ = operation.run(&mut *store);
                    });
                    return;
                }
            }
        }
    }
}

/// Names and lengths of the files.
fn files(state: &State) -> Result<Vec<FileReport>> {
    let files = state.core.list("")?.into_iter();
    files.map(|(name, file)| Ok(FileReport { name, len: state.core.stat(file)?.len })).collect()
}

/// When an instance tells of itself.
#[derive(Default)]
struct Reports {
    told: Option<(InstanceReport, Instant)>,
}

impl Reports {
    fn next(&mut self, state: &mut State, instance: u64) -> Option<Vec<u8>> {
        if self.told.as_ref().is_some_and(|(_, at)| at.elapsed() < REPORT_EVERY) {
            return None;
        }
        // Lengths are known then.
        state.core.recall();
        let files = files(state).ok()?;
        let (status, (shared, _)) = (state.core.status(), state.connected());
        let report = InstanceReport {
            term: status.term,
            instance,
            process: std::process::id(),
            copies: status.copies as u32,
            wanted: status.wanted as u32,
            shared: shared as u32,
            losses: state.losses.count,
            replaced: status.replaced,
            last_loss_ms: state.losses.last_ms,
            files,
        };
        let is_new = match &self.told {
            None => true,
            Some((told, at)) => {
                !told.is_alike(&report) || (*told != report && at.elapsed() >= LENGTHS_EVERY)
            }
        };
        if !is_new {
            if let Some((_, at)) = &mut self.told
                && at.elapsed() > LENGTHS_EVERY
            {
                *at = Instant::now();
            }
            return None;
        }
        let bytes = report.encode();
        self.told = Some((report, Instant::now()));
        Some(bytes)
    }
}

/// An error of an instance that lacks copies, with the reasons.
fn explained(state: &State, error: Error) -> Error {
    if error.kind() != ErrorKind::Unavailable || state.is_closed {
        return error;
    }
    Error::new(error.kind(), format!("{}; {}", error.message(), reasons(state)))
}

/// The controller's failure or the registered peers, and why known peers cannot be used.
fn reasons(state: &State) -> String {
    let status = state.core.status();
    let mut text = match &state.store_failure {
        // It may never have been asked about peers.
        Some(why) => why.clone(),
        None => format!("{} peers are registered", status.registered),
    };
    if state.store_failure.is_none() && status.map.members.is_empty() {
        text += &format!(", a new application takes {}", status.wanted);
    }
    for (peer, why) in &state.losses.reasons {
        text += &format!("; {peer}: {why}");
    }
    text
}
