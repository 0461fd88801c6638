//! A connection's state: the protocol it speaks, its name, its transaction; and the first half of
//! every command: look-up, checks, queueing, and answering what touches no data.

use super::acl::log::Context;
use super::acl::users::User;
use super::keyspace::ReplyRoom;
use super::local;
use super::table::{Id, TABLE, row_of};
use super::watch::{self, KeyMemory, Watch, WatchId};
use super::work::{Call, Transaction, Work};
use super::{Clients, Commands, Host, Route, errors};
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::slice;
use gabion_base::units::RECORD_OPS_MAX;
use gabion_resp::limits::REQUEST_LEN_MAX;
use gabion_resp::{Protocol, Reply, Request, TooLarge};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Most memory that the queued commands of a transaction take: arguments as long as those of one command may be,
/// and as much again for the bookkeeping of many small ones.
const QUEUE_MEMORY_MAX: usize = 2 * REQUEST_LEN_MAX;

/// What a request comes to.
#[derive(Debug)]
pub enum Step {
    /// The answer is known.
    Reply(Reply),
    /// WAIT's: how many other replicas hold the connection's writes, unless the last of those before it is in
    /// doubt when they are answered: then none is known to.
    Wait(Reply),
    /// WAIT's or WAITAOF's that may have to wait until there are as many.
    Await(WaitFor),
    /// To be run where [`Work::route`] says; the reply comes from there.
    Run(Work),
    /// Answer, then close the connection.
    Close(Reply),
    /// Close the connection at once: what came is no request of a Redis client but of a browser.
    Drop,
    /// A question about the replica, which the process answers.
    Ask(Call),
}

/// The condition of a WAIT or WAITAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFor {
    /// WAITAOF: writes are to be on devices.
    pub is_aof: bool,
    /// Of this replica: 1 or 0.
    pub local: u64,
    /// Other replicas.
    pub replicas: u64,
    /// For how long; 0: for ever.
    pub timeout_ms: u64,
}

/// What CLIENT LIST shows of a connection.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local_address: String,
    pub(crate) connected_us: u64,
    pub(crate) active_us: Cell<u64>,
    pub(crate) protocol: Cell<Protocol>,
    /// Queued commands; −1 outside of MULTI.
    pub(crate) queued: Cell<i64>,
    /// Bytes that those take.
    pub(crate) queued_bytes: Cell<usize>,
    /// Watched keys.
    pub(crate) watched: Cell<usize>,
    /// Place of the counters of the last command.
    pub(crate) last_command: Cell<Option<usize>>,
    pub(crate) name: RefCell<Bytes>,
    pub(crate) library_name: RefCell<Bytes>,
    pub(crate) library_version: RefCell<Bytes>,
    /// Its user.
    pub(crate) user: RefCell<Rc<User>>,
    pub(crate) no_evict: Cell<bool>,
    pub(crate) no_touch: Cell<bool>,
    pub(crate) reply_mode: Cell<ReplyMode>,
    /// The command that was handled last gets no reply.
    pub(crate) is_muted: Cell<bool>,
    /// CLIENT KILL named it.
    pub(crate) is_killed: Cell<bool>,
    // The server tells the rest.
    /// Its socket's number.
    pub(crate) descriptor: Cell<i32>,
    /// It uses TLS.
    pub(crate) is_tls: Cell<bool>,
    /// It came through a door of a group alone.
    pub(crate) is_of_group: Cell<bool>,
    /// Bytes of replies that wait for it.
    pub(crate) output_bytes: Cell<usize>,
}

/// Whether a connection gets replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    On,
    /// None until it is told otherwise.
    Off,
    /// None to the next command.
    SkipsNext,
}

/// The state of one connection. Dropping it ends the connection's place in CLIENT LIST.
pub struct Session {
    pub(crate) client: Rc<Client>,
    clients: Clients,
    queue: Option<Queue>,
    watching: Option<Watching>,
}

/// What is watched until the next EXEC.
struct Watching {
    id: WatchId,
    keys: BTreeSet<Bytes>,
    bytes: usize,
    /// What they take, counted in the sum over all connections.
    memory: KeyMemory,
    /// It is not known whether the head knows of all of it, so EXEC fails.
    is_lost: bool,
}

impl Watching {
    /// Takes in those of the keys that are not watched yet, and returns them: a key that has changed since must not
    /// be watched from now on.
    fn add<'a>(&mut self, keys: impl Iterator<Item = &'a Bytes>) -> Result<Vec<Bytes>, Reply> {
        if self.is_lost {
            return Ok(Vec::new());
        }
        let mut new = Vec::new();
        for key in keys.filter(|key| !self.keys.contains(*key)) {
            new.push(Bytes::copy_from_slice(key));
        }
        new.sort_unstable();
        new.dedup();
        let bytes = self.bytes + new.iter().map(Bytes::len).sum::<usize>();
        let count = self.keys.len() + new.len();
        if count > watch::KEYS_MAX || bytes > watch::KEY_BYTES_MAX {
            return Err(errors::too_much_watched(count, bytes));
        }
        self.memory.add(&new)?;
        self.bytes = bytes;
        self.keys.extend(new.iter().cloned());
        Ok(new)
    }
}

/// The commands since MULTI.
#[derive(Default)]
struct Queue {
    calls: Vec<Call>,
    /// What their words take in memory, and how long they are.
    memory: usize,
    len: usize,
    /// A command was refused, so EXEC will be.
    is_spoilt: bool,
}

impl Queue {
    /// What the command that was counted last is too much for, if anything.
    fn excess(&self) -> Option<Reply> {
        if self.len > REQUEST_LEN_MAX {
            return Some(errors::arguments_too_long(self.len as u64));
        }
        if self.memory > QUEUE_MEMORY_MAX {
            return Some(Reply::error_from(format!(
                "ERR the commands of one transaction take {} bytes of memory, over the limit of \
                 {QUEUE_MEMORY_MAX}",
                self.memory
            )));
        }
        (self.calls.len() == RECORD_OPS_MAX).then(|| {
            Reply::error_from(format!(
                "ERR {} commands in one transaction are over the limit of {RECORD_OPS_MAX}",
                RECORD_OPS_MAX + 1
            ))
        })
    }

    /// EXEC will refuse; nothing needs to be kept any longer.
    fn spoil(&mut self) {
        self.is_spoilt = true;
        self.calls = Vec::new();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.clients.borrow_mut().remove(&self.client.id);
    }
}

impl Session {
    /// The version in which to encode the reply of the request that was handled last.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.client.protocol.get()
    }

    /// Whether the request that was handled last gets no reply, also when it is an error.
    #[inline]
    #[must_use]
    pub fn is_muted(&self) -> bool {
        self.client.is_muted.get()
    }

    /// When it last sent or took something, in microseconds since 1970.
    pub(crate) fn active_us(&self) -> u64 {
        self.client.active_us.get()
    }

    /// Whether CLIENT KILL named it.
    pub(crate) fn is_killed(&self) -> bool {
        self.client.is_killed.get()
    }

    /// The client sends or reads, if only a part of a request or of a reply: it does not idle.
    pub(crate) fn note_activity(&self, now_us: u64) {
        self.client.active_us.set(now_us);
    }

    /// Its socket's number, for CLIENT LIST.
    pub(crate) fn set_descriptor(&self, descriptor: i32) {
        self.client.descriptor.set(descriptor);
    }

    /// The connection came through a door of a group alone.
    pub(crate) fn set_of_group(&self) {
        self.client.is_of_group.set(true);
    }

    /// Whether it did.
    pub(crate) fn is_of_group(&self) -> bool {
        self.client.is_of_group.get()
    }

    /// The connection came through a door with TLS.
    pub(crate) fn set_tls(&self) {
        self.client.is_tls.set(true);
    }

    /// Whether it did.
    pub(crate) fn is_tls(&self) -> bool {
        self.client.is_tls.get()
    }

    /// Bytes of replies that wait for the client now, for CLIENT LIST.
    pub(crate) fn set_output(&self, bytes: usize) {
        self.client.output_bytes.set(bytes);
    }

    /// The connection's number, as CLIENT ID gives it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.client.id
    }

    fn set_queue(&mut self, queue: Option<Queue>) {
        self.client.queued.set(queue.as_ref().map_or(-1, |queue| queue.calls.len() as i64));
        self.client.queued_bytes.set(queue.as_ref().map_or(0, |queue| queue.memory));
        self.queue = queue;
    }

    /// Brings the connection back to its beginning.
    fn reset(&mut self) {
        self.set_queue(None);
        self.forget_watch();
        self.client.protocol.set(Protocol::Resp2);
        self.client.name.replace(Bytes::new());
        self.client.no_evict.set(false);
        self.client.no_touch.set(false);
        self.client.reply_mode.set(ReplyMode::On);
        self.client.is_muted.set(false);
    }

    /// Nothing is watched any more; returns what was.
    fn forget_watch(&mut self) -> Option<Watching> {
        self.client.watched.set(0);
        self.watching.take()
    }

    /// A WATCH of this connection was answered with an error: what it says of its keys is not known.
    pub(crate) fn lose_watch(&mut self) {
        if let Some(watching) = &mut self.watching {
            watching.is_lost = true;
            // Nobody asks for them any more.
            watching.keys.clear();
            watching.memory.clear();
            self.client.watched.set(0);
        }
    }

    /// A command was refused: a transaction that it was meant for is lost.
    fn spoil(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.spoil();
        }
    }

    fn enqueue(&mut self, call: &Call) -> Reply {
        let Some(queue) = &mut self.queue else { return Reply::OK };
        if queue.is_spoilt {
            return Reply::simple("QUEUED");
        }
        queue.memory += call.memory();
        queue.len += call.args().iter().map(Bytes::len).sum::<usize>();
        if let Some(error) = queue.excess() {
            queue.spoil();
            return error;
        }
        queue.calls.push(call.detached());
        self.client.queued.set(queue.calls.len() as i64);
        self.client.queued_bytes.set(queue.memory);
        Reply::simple("QUEUED")
    }
}

impl Commands {
    /// The state of a client that stands for a connection at another service of the process, which
    /// has checked its rights and is the one that is listed.
    pub(crate) fn connect_within(&self, host: &impl Host) -> Session {
        let session = self.connect(String::new(), String::new(), host);
        self.clients.borrow_mut().remove(&session.client.id);
        session
    }

    /// A new connection between these two addresses (for CLIENT LIST).
    pub fn connect(&self, address: String, local_address: String, host: &impl Host) -> Session {
        let next_id = &self.everywhere.next_id;
        let id = next_id.replace(next_id.get() + 1);
        let now = host.unix_time_us();
        let client = Rc::new(Client {
            id,
            address,
            local_address,
            connected_us: now,
            active_us: Cell::new(now),
            protocol: Cell::default(),
            queued: Cell::new(-1),
            queued_bytes: Cell::default(),
            watched: Cell::default(),
            last_command: Cell::new(None),
            name: RefCell::default(),
            library_name: RefCell::default(),
            library_version: RefCell::default(),
            user: RefCell::new(self.users.of_stranger()),
            no_evict: Cell::default(),
            no_touch: Cell::default(),
            reply_mode: Cell::new(ReplyMode::On),
            is_muted: Cell::default(),
            is_killed: Cell::default(),
            descriptor: Cell::new(-1),
            is_tls: Cell::default(),
            is_of_group: Cell::default(),
            output_bytes: Cell::default(),
        });
        self.clients.borrow_mut().insert(id, client.clone());
        Session { client, clients: self.clients.clone(), queue: None, watching: None }
    }

    /// Takes a request of a connection. Replies are due in the order of requests, and each is
    /// encoded in what [`Session::protocol`] says right after this call.
    #[inline]
    pub fn handle(&self, session: &mut Session, request: Request, host: &impl Host) -> Step {
        session.client.active_us.set(host.unix_time_us());
        session.client.begin_reply();
        if request.args.first().is_some_and(|name| is_http(name)) {
            return Step::Drop;
        }
        let call = match Call::check(request) {
            Ok(call) => call,
            Err((row, error)) => {
                return Step::Reply(self.refuse(session, row, error));
            }
        };
        session.client.last_command.set(Some(call.counters()));
        if !session.client.user.borrow().is_free()
            && let Err(error) = self.check_call(session, &call, host)
        {
            return Step::Reply(error);
        }
        let spec = call.spec();
        if session.queue.is_some() {
            return self.handle_in_multi(session, call, host);
        }
        self.stats.count_call(call.counters());
        match (spec.route, spec.id) {
            (Route::Local, Id::Quit) => Step::Close(Reply::OK),
            (Route::Local, Id::Gabion | Id::Failover) => Step::Ask(call),
            (Route::Local, Id::Acl | Id::Config) if self.is_for_controller(call.args()) => {
                Step::Ask(call)
            }
            (Route::Local, Id::Watch) => self.watch_keys(session, &call),
            (Route::Local, id) => {
                let reply = self.answer(session, &call, host);
                self.note_answer(&session.client, &call, host);
                match id {
                    Id::Wait | Id::WaitAof => match local::wait_for(&call, host) {
                        Some(wait) => Step::Await(wait),
                        None => Step::Wait(reply),
                    },
                    _ if session.client.is_killed.get() => Step::Close(reply),
                    _ => Step::Reply(reply),
                }
            }
            _ if call.is_script() => match self.prepare_script(&session.client, call) {
                Ok(call) => Step::Run(Work::Call(call)),
                Err(error) => Step::Reply(error),
            },
            _ => Step::Run(Work::Call(call)),
        }
    }

    /// Answers a request of a connection that was over a limit, and of which nothing was kept.
    pub fn handle_too_large(
        &self,
        session: &mut Session,
        large: &TooLarge,
        host: &impl Host,
    ) -> Step {
        session.client.active_us.set(host.unix_time_us());
        session.client.begin_reply();
        if is_http(&large.name) {
            return Step::Drop;
        }
        let row = row_of(&large.name);
        let error = match row {
            None if !large.name.is_empty() => errors::unknown_command(slice::from_ref(&large.name)),
            _ => errors::too_large(row.map(|row| &TABLE[row]), large.excess),
        };
        Step::Reply(self.refuse(session, row, error))
    }

    /// A request did not pass its checks. One for EXEC ends the transaction, and one for WATCH has EXEC answer nil:
    /// whoever goes on all the same relies on keys that nobody watches.
    fn refuse(&self, session: &mut Session, row: Option<usize>, error: Reply) -> Reply {
        session.spoil();
        match row {
            Some(row) => self.stats.count_rejected(row, &error),
            None => self.stats.count_error(&error),
        }
        let id = row.map(|row| TABLE[row].id);
        if id == Some(Id::Watch) {
            self.watching_of(session);
            session.lose_watch();
        }
        if id != Some(Id::Exec) {
            return error;
        }
        session.set_queue(None);
        session.forget_watch();
        errors::exec_abort_because(&error)
    }

    /// Asks for the rights of a user who may not do everything.
    fn check_call(
        &self,
        session: &mut Session,
        call: &Call,
        host: &impl Host,
    ) -> Result<(), Reply> {
        let context = if session.queue.is_some() { Context::Multi } else { Context::Toplevel };
        self.check_rights(&session.client, call, context, host)
            .map_err(|error| self.refuse(session, Some(call.row()), error))
    }

    /// The script to run for EVAL or EVALSHA, which goes on being counted as the latter. It takes
    /// the rights of its user with it.
    fn prepare_script(&self, client: &Client, call: Call) -> Result<Call, Reply> {
        let counters = call.counters();
        let prepared = self.scripts.prepare(call);
        let rights = client.user.borrow().rights();
        prepared.map(|call| call.counted_at(counters).with_rights(rights)).inspect_err(|error| {
            self.stats.count_failed(counters, error);
        })
    }

    /// Between MULTI and EXEC most commands are queued.
    fn handle_in_multi(&self, session: &mut Session, call: Call, host: &impl Host) -> Step {
        let spec = call.spec();
        match spec.id {
            Id::Exec => return self.exec(session, &call, host),
            Id::Quit => return Step::Close(Reply::OK),
            Id::Multi => {
                return Step::Reply(Reply::error("ERR MULTI calls can not be nested"));
            }
            Id::Watch => {
                return Step::Reply(Reply::error("ERR WATCH inside MULTI is not allowed"));
            }
            Id::Discard | Id::Reset => {
                self.stats.count_call(call.counters());
                return Step::Reply(self.answer(session, &call, host));
            }
            _ => {}
        }
        let refusal = if spec.has_flag("no_multi") {
            Some(Reply::error("ERR Command not allowed inside a transaction"))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.stats.count_rejected(call.counters(), &refusal);
            session.spoil();
            return Step::Reply(refusal);
        }
        Step::Reply(session.enqueue(&call))
    }

    /// What a connection watches, from now on if nothing yet.
    fn watching_of<'s>(&self, session: &'s mut Session) -> &'s mut Watching {
        session.watching.get_or_insert_with(|| Watching {
            id: self.next_watch_id(),
            keys: BTreeSet::new(),
            bytes: 0,
            memory: KeyMemory::new(self.watched_memory.clone()),
            is_lost: false,
        })
    }

    /// WATCH: the keys that are not watched yet are noted at the head.
    fn watch_keys(&self, session: &mut Session, call: &Call) -> Step {
        let watching = self.watching_of(session);
        let (id, added) = (watching.id, watching.add(call.spec().keys_of(call.args())));
        let watched = watching.keys.len();
        session.client.watched.set(watched);
        match added {
            Ok(keys) if keys.is_empty() => Step::Reply(Reply::OK),
            Ok(keys) => Step::Run(Work::Watch(Watch { id, keys })),
            Err(error) => {
                // Whoever goes on all the same relies on keys that nobody watches.
                session.lose_watch();
                self.stats.count_failed(call.counters(), &error);
                Step::Reply(error)
            }
        }
    }

    fn exec(&self, session: &mut Session, exec: &Call, host: &impl Host) -> Step {
        self.stats.count_call(exec.counters());
        let queue = session.queue.take().unwrap_or_default();
        session.set_queue(None);
        let watching = session.forget_watch();
        if queue.is_spoilt {
            self.stats.count_failed(exec.counters(), &errors::EXEC_ABORT);
            return Step::Reply(errors::EXEC_ABORT);
        }
        if watching.as_ref().is_some_and(|watching| watching.is_lost) {
            return Step::Reply(Reply::NullArray);
        }
        let watch = watching
            .map(|watching| Watch { id: watching.id, keys: watching.keys.into_iter().collect() });
        let mut transaction = Transaction { watch, ..Transaction::default() };
        let mut room = ReplyRoom::of_exec();
        let mut scripts_memory = 0;
        let is_without_data = queue.calls.iter().all(|call| call.spec().route == Route::Local);
        for (place, call) in queue.calls.into_iter().enumerate() {
            self.stats.count_call(call.counters());
            // It may do less than when it was queued.
            if !session.client.user.borrow().is_free()
                && let Err(error) = self.check_rights(&session.client, &call, Context::Multi, host)
            {
                transaction.ready.push((place, error));
            } else if call.spec().route == Route::Local {
                let mut reply = self.answer(session, &call, host);
                // With data it is shown when that is acknowledged; without, the writes before may be in doubt.
                if is_without_data && matches!(call.spec().id, Id::Wait | Id::WaitAof) {
                    reply = held_by_nobody(reply);
                }
                if let Err(error) = room.take(reply.memory()) {
                    self.stats.count_failed(exec.counters(), &error);
                    return Step::Reply(error);
                }
                transaction.ready.push((place, reply));
            } else if call.is_script() {
                match self.prepare_script(&session.client, call) {
                    Ok(call) => {
                        // A digest was queued, and the script goes to the head.
                        scripts_memory += call.memory();
                        transaction.calls.push(call);
                    }
                    Err(error) => transaction.ready.push((place, error)),
                }
            } else {
                transaction.calls.push(call);
            }
        }
        if scripts_memory > QUEUE_MEMORY_MAX {
            let error = errors::scripts_too_long(scripts_memory, QUEUE_MEMORY_MAX);
            self.stats.count_failed(exec.counters(), &error);
            return Step::Reply(error);
        }
        if transaction.calls.is_empty() && transaction.watch.is_none() {
            self.note_answer(&session.client, exec, host);
            let reply = transaction.merge(Vec::new());
            return if session.client.is_killed.get() {
                Step::Close(reply)
            } else {
                Step::Reply(reply)
            };
        }
        Step::Run(Work::Transaction(transaction))
    }

    /// Answers a command that touches no data.
    fn answer(&self, session: &mut Session, call: &Call, host: &impl Host) -> Reply {
        let reply = match call.spec().id {
            Id::Multi => {
                session.set_queue(Some(Queue::default()));
                Reply::OK
            }
            Id::Exec => Reply::error("ERR EXEC without MULTI"),
            Id::Discard if session.queue.is_none() => Reply::error("ERR DISCARD without MULTI"),
            Id::Discard => {
                session.set_queue(None);
                session.forget_watch();
                Reply::OK
            }
            Id::Unwatch => {
                session.forget_watch();
                Reply::OK
            }
            Id::Reset => {
                session.reset();
                session.client.user.replace(self.users.of_stranger());
                Reply::simple("RESET")
            }
            _ => self.answer_plainly(&session.client, call, host),
        };
        if reply.is_error() {
            self.stats.count_failed(call.counters(), &reply);
        }
        reply
    }
}

/// Whether a request is a line of HTTP. A page on the web can make a browser send `POST` to any port
/// of its machine, with commands as the body; each line of the head would be an unknown command and the
/// body would be run. A `POST` begins with that word, any other method is followed by `Host:`.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

impl Client {
    /// A request came: whether it gets a reply was said by those before it.
    #[inline]
    fn begin_reply(&self) {
        let mode = self.reply_mode.get();
        self.is_muted.set(mode != ReplyMode::On);
        if mode == ReplyMode::SkipsNext {
            self.reply_mode.set(ReplyMode::On);
        }
    }
}

/// What WAIT or WAITAOF says when nobody is known to hold the writes.
pub(crate) fn held_by_nobody(reply: Reply) -> Reply {
    match reply {
        Reply::Integer(_) => Reply::Integer(0),
        Reply::Array(counts) => Reply::Array(vec![Reply::Integer(0); counts.len()]),
        error => error,
    }
}
