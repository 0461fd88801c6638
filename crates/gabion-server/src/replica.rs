//! One replica in this process: its locked files, node, threads and turns.
//!
//! ```text
//!   directory ─ lock ─► Held ─ read ─► Contents ─ start ─► Replica ─ close ─► Closed
//!                        ▲    (any thread)     (the loop's)   (the loop's)      │
//!                        └───────────── Reopening: gabion-open ◄────────────────┘
//! ```
//!
//! A replica is opened again in place: its node, MemTables, tasks, threads and media go, and all is
//! built anew from the same pool and ring. The lock of the files stays, and the port of the target.
//! To members it is as if the process had ended and begun again.
//!
//! No write of before lands in what is built then, and none is waited for longer than the device
//! takes: [`Replica::close`] drops the loop's tasks and its medium, whose drop waits for what the
//! kernel has. Thread `gabion-open` ends the other threads, whose media do the same. Only then are
//! the files read, and [`ReplicaFiles::open`] refuses that while a medium of them is left. What was
//! on its way to other members' targets may land there, as after a kill: a session fences it.

use crate::events::{Event, Mailbox};
use crate::host::Shown;
use crate::shipping::{SOCKET_LEN, ShipCommand, ShipThread};
use crate::store::{NodeStore, Places, ProbeSource, SharedNode};
use crate::trust::MembersTls;
use crate::warm::WarmThread;
use crate::{ServerConfig, store::DoorTables};
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, ErrorKind, Frontier, ReplicaId, Result};
use gabion_fabric::nvme::{TargetEvent, TargetOptions, TargetServer};
use gabion_fabric::{BlockingMedium, Ciphers};
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_host::jobs::{JobThreads, StoreParts, thread};
use gabion_host::replica::{LostRing, OpenedReplica, ReplicaFiles};
use gabion_media::MediumHandle;
use gabion_media::nvme::{Backing, TargetConfig};
use gabion_media::task::Executor;
use gabion_node::work::{self, Work, WorkId};
use gabion_node::{
    GroupConfig, LocalStore, Node, NodeOptions, Output, PoolSource, ReadMeter, View,
};
use mio::Waker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

/// Bytes of data that one connection to the target has under way: four transfers keep the device
/// busy, and their buffers nearly stay in the processor's cache.
const TARGET_IN_FLIGHT_LEN: usize = 4 * TRANSFER_LEN_MAX;

/// Threads of a replica. Their order here is that in which they end.
pub(crate) struct Threads {
    pub(crate) jobs: Rc<RefCell<JobThreads>>,
    pub(crate) ship: ShipThread,
    pub(crate) target: TargetServer,
    pub(crate) warm: WarmThread,
}

/// A turn that ended and whose replies wait.
pub(crate) struct OpenTurn {
    pub(crate) number: u64,
    /// The end of the log by then.
    pub(crate) end: Frontier,
    /// When it ended.
    pub(crate) since_ms: u64,
    /// The same by [`Clock::running_us`], for how long it waits; 0 where nothing was written.
    pub(crate) ended_us: u64,
    /// Something was written in it.
    pub(crate) has_record: bool,
}

/// Turns of the loop, by which clients and members wait for the log. Their numbers go on when the
/// replica is opened again.
pub(crate) struct Turns {
    /// The turn whose record is being filled; the first is 1.
    pub(crate) current: u64,
    /// A reply depends on it.
    pub(crate) is_used: bool,
    /// Turns that are not acknowledged.
    pub(crate) open: VecDeque<OpenTurn>,
    pub(crate) acknowledged: u64,
    pub(crate) acknowledged_at: Frontier,
    /// The end of the log when the last turn ended.
    pub(crate) last_end: Frontier,
}

impl Turns {
    pub(crate) const fn new() -> Self {
        Self {
            current: 0,
            is_used: false,
            open: VecDeque::new(),
            acknowledged: 0,
            acknowledged_at: Frontier::ZERO,
            last_end: Frontier::ZERO,
        }
    }

    /// How many of the open turns are acknowledged, and can be shown. One in which nothing was
    /// written may have seen a state that is of the past, if another replica writes by now: not so
    /// while `is_current`, nor if a turn behind it has a record that is in the log. That follows on
    /// what was seen.
    pub(crate) fn shown(&self, acknowledged: Frontier, is_current: bool) -> usize {
        let covered = self.open.iter().take_while(|turn| acknowledged.covers(&turn.end));
        if is_current {
            return covered.count();
        }
        let with_record = covered.enumerate().filter(|(_, turn)| turn.has_record);
        with_record.last().map_or(0, |(place, _)| place + 1)
    }

    /// The log was read and ends at `end`: turns that were open are nobody's.
    fn begin(&mut self, end: Frontier) {
        self.open.clear();
        self.current += 1;
        self.is_used = false;
        self.acknowledged_at = self.acknowledged_at.meet(end);
        self.last_end = end;
    }
}

/// A part that is there while the replica is open. A service whose replica is closed hands no event
/// to what needs it ([`crate::service::Service::is_open`]).
pub(crate) struct WhileOpen<T>(Option<T>);

impl<T> WhileOpen<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Puts it in.
    pub(crate) fn open(&mut self, value: T) {
        self.0 = Some(value);
    }

    /// Takes it out.
    pub(crate) const fn close(&mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Deref for WhileOpen<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let Some(value) = &self.0 else { unreachable!("the replica is closed") };
        value
    }
}

impl<T> DerefMut for WhileOpen<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let Some(value) = &mut self.0 else { unreachable!("the replica is closed") };
        value
    }
}

/// What stays while a replica is opened again: the lock of its files, the port of its target.
pub(crate) struct Held {
    files: ReplicaFiles,
    target: TcpListener,
    options: NodeOptions,
    nice: u8,
    tls: Option<MembersTls>,
    clock: Arc<Clock>,
    waker: Arc<Waker>,
}

/// What was read from the files: all that a replica is made of, on no thread yet.
pub(crate) struct Contents {
    node: Box<Node>,
    parts: StoreParts,
    /// What an operator should know, a line each.
    remarks: Vec<String>,
}

impl Contents {
    fn of(opened: OpenedReplica) -> Self {
        // The medium of the thread that read goes: each thread has its own.
        let OpenedReplica { node, parts, remarks, .. } = opened;
        Self { node, parts, remarks }
    }

    /// The view that was kept.
    pub(crate) fn view(&self) -> &View {
        self.node.view()
    }

    /// Adds what an operator should know.
    pub(crate) fn remark(&mut self, remark: Option<String>) {
        self.remarks.extend(remark);
    }
}

impl Held {
    /// Locks the files of the replica that `config` names, reads them, and listens for those who
    /// ship files. The clock goes by the replica's time from then on.
    ///
    /// # Errors
    /// As [`gabion_host::replica::open_replica`]; I/O for the port.
    pub(crate) fn lock(
        config: &ServerConfig,
        clock: &Arc<Clock>,
        waker: &Arc<Waker>,
        check: impl FnOnce(&GroupConfig, ReplicaId) -> Result<()>,
    ) -> Result<(Self, Contents)> {
        let files = ReplicaFiles::lock(&config.data, config.io)?;
        let opened = files.open(config.node.clone(), LostRing::GoOn, clock, check)?;
        let mut contents = Contents::of(opened);
        contents.remarks.extend(clock.open_at(contents.node.tree().now_ms()));
        let held = Self {
            files,
            target: listen_for_shipments(config.target_listen)?,
            options: config.node.clone(),
            nice: config.jobs_nice,
            tls: config.security.members.clone(),
            clock: clock.clone(),
            waker: waker.clone(),
        };
        held.begin(&mut contents)?;
        Ok((held, contents))
    }

    /// Reads the files anew. Time goes on: a clock that somebody has said to be right is not
    /// doubted again.
    fn read_again(&self) -> Result<Contents> {
        let (options, clock) = (self.options.clone(), &self.clock);
        // While it was closed nobody else had the files: a ring that is gone was taken away.
        let opened = self.files.open(options, LostRing::Refuse, clock, |_, _| Ok(()))?;
        let mut contents = Contents::of(opened);
        clock.follow(contents.node.tree().now_ms());
        self.begin(&mut contents)?;
        Ok(contents)
    }

    fn begin(&self, contents: &mut Contents) -> Result<()> {
        contents.node.begin_at(self.clock.now_ms());
        contents.remarks.extend(contents.parts.file.forget_failed_flush()?);
        Ok(())
    }
}

fn listen_for_shipments(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let what = format!("NVMe/TCP target: cannot listen on {address}");
        Error::with_source(ErrorKind::Io, what, error)
    })
}

/// An open replica. The loop owns it; a field is dropped before those below it.
pub(crate) struct Replica {
    /// Tasks, which hold the node and the medium.
    pub(crate) executor: Executor,
    pub(crate) store: NodeStore,
    pub(crate) node: SharedNode,
    pub(crate) local: LocalStore,
    pub(crate) medium: MediumHandle,
    /// Of the medium, when it has results.
    pub(crate) readiness: Option<i32>,
    /// What its threads tell, and no other replica's.
    pub(crate) inbox: Receiver<Event>,
    /// What tasks of the loop's thread have to tell.
    pub(crate) local_events: Rc<RefCell<Vec<Event>>>,
    /// Room for what the node wants done.
    pub(crate) outputs: Vec<Output>,
    pub(crate) turns: Turns,
    /// Below all that holds the medium, which goes first: a flush of a job that is waited for here
    /// may itself wait for what one of the loop's comes to.
    pub(crate) threads: Threads,
    pub(crate) cache: Arc<SharedCache>,
    pub(crate) parts: StoreParts,
    /// The lock, which is given back last: by then nothing is in flight any more.
    held: Held,
}

impl Replica {
    /// Starts what was read: its threads, and its medium for this one.
    ///
    /// # Errors
    /// The system's, for a medium, a thread or the target.
    pub(crate) fn start(
        held: Held,
        contents: Contents,
        cache: SharedCache,
        mut turns: Turns,
    ) -> Result<Self> {
        let Contents { node, parts, remarks } = contents;
        for remark in remarks {
            note!("{remark}");
        }
        let cache = Arc::new(cache);
        let (sender, inbox) = channel();
        let mailbox = Mailbox::new(sender, held.waker.clone(), cache.clone(), parts.group);
        let threads = start_threads(&held, &parts, &cache, &mailbox)?;
        let medium = parts.file.medium(parts.options)?;
        let readiness = medium.readiness_fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
        let medium = BlockingMedium::new(medium).handle().clone();
        medium.count_buffers_by(parts.buffers.clone());
        let local = LocalStore {
            medium: medium.clone(),
            geometry: parts.geometry.clone(),
            pool_id: parts.pool_id,
            group: parts.group,
        };
        turns.begin(node.log_end());
        let node: SharedNode = Rc::new(RefCell::new(node));
        let tables = tables(&node, &local, &cache);
        Ok(Self {
            executor: Executor::new(),
            store: NodeStore::new(node.clone(), held.clock.clone(), tables),
            node,
            local,
            medium,
            readiness,
            inbox,
            local_events: Rc::default(),
            outputs: Vec::new(),
            turns,
            threads,
            cache,
            parts,
            held,
        })
    }

    /// What commands may know of it.
    pub(crate) fn shown(&self) -> Shown {
        Shown {
            node: self.node.clone(),
            cache: self.cache.clone(),
            jobs: Rc::downgrade(&self.threads.jobs),
            buffers: self.parts.buffers.clone(),
        }
    }

    /// Has an order carried out: by a thread, or by a task of the loop.
    pub(crate) fn begin_work(&mut self, id: WorkId, work: Work) {
        match work {
            Work::Job(order) => self.threads.jobs.borrow().begin(id, order),
            Work::Ship(order) => self.threads.ship.send(ShipCommand::Ship(id, order)),
            Work::Fetch(order) => self.threads.ship.send(ShipCommand::Fetch(id, order)),
            work => {
                let (store, events) = (self.local.clone(), self.local_events.clone());
                self.executor.spawn(async move {
                    let done = work::run_local(work, &store).await;
                    events.borrow_mut().push(Event::Done(id, done));
                });
            }
        }
    }

    /// Drops the tasks, the medium of the loop and all that views the files by way of it, and waits
    /// for what the kernel has of it. Tasks say by their drop that they were cut off.
    ///
    /// # Errors
    /// I/O when something else than the replica still holds its node or its threads: it cannot be
    /// opened again then.
    pub(crate) fn close(self) -> Result<Closed> {
        let Self { executor, store, node, local, medium, threads, turns, parts, held, .. } = self;
        drop(executor);
        drop(store);
        drop((local, medium));
        drop(parts);
        let in_use = |what: &str| Error::io(format!("{what} of a closed replica is in use"));
        let node = Rc::try_unwrap(node).map_err(|_| in_use("the node"))?.into_inner();
        let Threads { jobs, ship, target, warm } = threads;
        let jobs = Rc::try_unwrap(jobs).map_err(|_| in_use("a thread"))?.into_inner();
        Ok(Closed { held, node, threads: (jobs, ship, target, warm), turns })
    }
}

/// A replica of which nothing runs on the loop any more.
pub(crate) struct Closed {
    held: Held,
    node: Box<Node>,
    /// In the order in which they end.
    threads: (JobThreads, ShipThread, TargetServer, WarmThread),
    turns: Turns,
}

impl Closed {
    /// Ends the threads, drops the node and reads the files anew, on a thread of its own: other
    /// replicas of the process go on meanwhile. The loop is woken at the end.
    ///
    /// # Errors
    /// The system's, when it gives no thread.
    pub(crate) fn reopen(self) -> Result<Reopening> {
        let Self { held, node, threads, turns } = self;
        let (sender, outcome) = channel();
        let waker = held.waker.clone();
        let thread = thread("gabion-open", 0, move || {
            drop(threads);
            drop(node);
            let read = held.read_again().map(|contents| (held, contents));
            // It fails only when the process ends.
            let _ = sender.send(read);
            let _ = waker.wake();
        })?;
        Ok(Reopening { outcome, thread: Some(thread), turns: Some(turns) })
    }
}

/// A replica that is being opened again.
pub(crate) struct Reopening {
    outcome: Receiver<Result<(Held, Contents)>>,
    thread: Option<JoinHandle<()>>,
    turns: Option<Turns>,
}

impl Reopening {
    /// What was read, once it is there.
    ///
    /// # Errors
    /// Why the replica cannot be opened again.
    pub(crate) fn poll(&mut self) -> Result<Option<(Held, Contents, Turns)>> {
        let (held, contents) = match self.outcome.try_recv() {
            Ok(read) => read?,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => {
                return Err(Error::io("thread gabion-open ended by a panic"));
            }
        };
        Ok(self.turns.take().map(|turns| (held, contents, turns)))
    }
}

impl Drop for Reopening {
    /// Waits: writes of the replica's threads must not land after the lock is given back.
    fn drop(&mut self) {
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn tables(node: &SharedNode, local: &LocalStore, cache: &Arc<SharedCache>) -> DoorTables {
    let pool = PoolSource {
        store: local.clone(),
        locate: Places(node.clone()),
        meter: Rc::new(ReadMeter::default()),
    };
    let source = Rc::new(ProbeSource { pool, is_probing: Cell::new(false) });
    DoorTables { source, cache: cache.clone(), group: local.group }
}

fn start_threads(
    held: &Held,
    parts: &StoreParts,
    cache: &Arc<SharedCache>,
    mailbox: &Mailbox,
) -> Result<Threads> {
    let nice = held.nice;
    let listener = held.target.try_clone().map_err(|error| {
        Error::with_source(ErrorKind::Io, "NVMe/TCP target: its port cannot be shared", error)
    })?;
    let options = TargetOptions {
        listener,
        medium: parts.file.medium(parts.options)?,
        backing: Backing::new(parts.geometry.extents().map(|extent| extent.range()).collect()),
        config: TargetConfig {
            data_in_flight_max: TARGET_IN_FLIGHT_LEN,
            ..TargetConfig::new(String::new(), Vec::new(), parts.geometry.len(), parts.pool_id)
        },
        buffer_len: SOCKET_LEN,
        ciphers: held.tls.clone().map(|tls| Arc::new(tls) as Arc<dyn Ciphers>),
        nice,
    };
    let target_mailbox = mailbox.clone();
    let target = TargetServer::start(options, move |event| {
        match event {
            // Looked at when the primary says what the bytes are, once it knows that they are here;
            // the loop takes what was left for it before it acts on what peers said.
            TargetEvent::Wrote { .. } | TargetEvent::Refused { .. } => {
                target_mailbox.leave(Event::Target(event))
            }
            _ => target_mailbox.tell(Event::Target(event)),
        }
    })?;
    let jobs = JobThreads::start(parts, held.options.compactions_max, nice, mailbox)?;
    Ok(Threads {
        jobs: Rc::new(RefCell::new(jobs)),
        warm: WarmThread::start(parts, cache, nice, mailbox)?,
        ship: ShipThread::start(nice, held.tls.clone(), mailbox)?,
        target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::LogPosition;

    /// docs/faults.md: R5
    #[test]
    fn a_reply_that_rests_on_no_record_waits_for_promises_or_for_a_record_behind_it() {
        let at = |position| Frontier::of(LogPosition(position));
        let mut turns = Turns::new();
        for (number, end, has_record) in
            [(1, 10, false), (2, 20, true), (3, 20, false), (4, 30, true), (5, 30, false)]
        {
            turns.open.push_back(OpenTurn {
                number,
                end: at(end),
                since_ms: 0,
                ended_us: 0,
                has_record,
            });
        }
        let shown = |acknowledged| [true, false].map(|is| turns.shown(at(acknowledged), is));
        assert_eq!([9, 10, 19].map(shown), [[0, 0], [1, 0], [1, 0]]);
        assert_eq!([20, 29].map(shown), [[3, 2], [3, 2]], "the third saw no less than the second");
        assert_eq!([30, 99].map(shown), [[5, 4], [5, 4]]);
    }
}
