//! Users that the controller keeps: what it tells, the changes that clients ask it for, and the
//! file in which this replica keeps what it was told.
//!
//! ```text
//!   ACL SETUSER ─► rules applied here ─► ChangeUsers ─► controller ─► Users, then UsersChanged
//!                        ▲                                              │
//!                        └── conflict: applied to the newer record ◄────┤
//!                 Commands ◄── adopted ─► gabion-users: DIR/users ◄─────┘ ─► +OK, as both are done
//! ```
//!
//! One change of a replica is under way at a time, so those of one connection keep their order.
//! Replicas of one process have the users in common, and keep them in the file of the first.

use crate::forward::Origin;
use crate::service::Service;
use bytes::Bytes;
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::users::{ChangeOutcome, RECORD_LEN_MAX, Stamp, UserChange, UserRecord};
use gabion_control::wire::ControlMessage;
use gabion_resp::Reply;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a change may take, in ms.
const CHANGE_MAX_MS: u64 = 5_000;
/// Silence after which the controller is asked once more, in ms.
const ASK_AGAIN_MS: u64 = 1_000;
/// How often controllers are told which record is known here, in ms.
const KNOWN_EVERY_MS: u64 = 1_000;
/// The same while none is known, as nobody is let in before.
const NONE_KNOWN_EVERY_MS: u64 = 50;
/// Changes under way; a further one is refused.
const CHANGES_MAX: usize = 64;
/// Pause after the file could not be written.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

const TOO_MANY: Reply = Reply::error("TRYAGAIN too many changes of users are under way");
const NO_CONTROLLER: Reply = Reply::error(
    "ERR the controller keeps the users, and none is connected: nothing has changed. Try again \
     when it is back",
);
const NO_ANSWER: Reply = Reply::error(
    "UNKNOWN the controller or this replica's disk did not answer in time: ACL LIST shows later \
     whether the users have changed",
);

/// A change that a client waits for.
struct Waiting {
    words: Vec<Bytes>,
    asker: u64,
    origin: Origin,
    until_ms: u64,
    /// When the controller is asked.
    ask_ms: u64,
    /// The number under which it was asked last.
    number: Option<u64>,
    /// The reply, once it is stored.
    reply: Reply,
    /// Version of the record that has it.
    stored: Option<u64>,
}

/// Changes of users of one replica, and its file of users.
pub(crate) struct UserChanges {
    waiting: VecDeque<Waiting>,
    next_number: u64,
    known_due_ms: u64,
    keeper: Option<Keeper>,
}

/// The thread that writes the file.
#[derive(Clone)]
pub(crate) struct Keeper {
    records: Sender<UserRecord>,
    /// The newest that was sent.
    sent: Stamp,
    kept: Arc<Mutex<Stamp>>,
}

impl UserChanges {
    /// None yet, of users whom `keeper` keeps.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn new(keeper: Option<Keeper>) -> Result<Self> {
        // A number of an earlier life is none of this one's.
        let next_number = u64::from_le_bytes(gabion_tls::random()?) >> 1;
        Ok(Self { waiting: VecDeque::new(), next_number, known_due_ms: 0, keeper })
    }
}

impl Keeper {
    /// Starts the thread that keeps the users in this file.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn start(path: &Path) -> Result<Self> {
        let known = read(path)?.map_or_else(Stamp::default, |record| record.stamp());
        let (records, waiting) = channel();
        let kept = Arc::new(Mutex::new(known));
        let (own, path) = (kept.clone(), path.to_owned());
        let body = move || keep_all(&path, &waiting, &own);
        std::thread::Builder::new()
            .name("gabion-users".into())
            .spawn(body)
            .map_err(|e| Error::with_source(ErrorKind::Io, "a thread for users cannot start", e))?;
        Ok(Self { records, sent: known, kept })
    }

    /// Has a record kept, unless it is or a newer one was sent.
    fn send(&mut self, record: &UserRecord) {
        if record.stamp() > self.sent {
            self.sent = record.stamp();
            // The thread ends with this replica.
            let _ = self.records.send(record.clone());
        }
    }

    fn version(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).version
    }
}

/// Keeps the newest of what comes, until nothing comes any more. Groups of a process may be told by
/// controllers of which one knows less.
fn keep_all(path: &Path, records: &Receiver<UserRecord>, kept: &Mutex<Stamp>) {
    let mut next = records.recv().ok();
    while let Some(record) = next.take() {
        let newer = |a: UserRecord, b: UserRecord| if b.stamp() > a.stamp() { b } else { a };
        let record = records.try_iter().fold(record, newer);
        if record.stamp() <= *kept.lock().unwrap_or_else(PoisonError::into_inner) {
            next = records.recv().ok();
            continue;
        }
        match keep(path, &record) {
            Ok(()) => {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = record.stamp();
                next = records.recv().ok();
            }
            Err(error) => {
                note!("users: {error}");
                std::thread::sleep(WRITE_AGAIN);
                next = Some(record);
            }
        }
    }
}

/// Keeps users in a file: whoever reads it has those before or these.
///
/// # Durability
/// They survive a power cut once this returns.
///
/// # Errors
/// I/O.
pub fn keep(path: &Path, record: &UserRecord) -> Result<()> {
    let failed = |error| {
        Error::with_source(ErrorKind::Io, format!("cannot write {}", path.display()), error)
    };
    let new: PathBuf = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&record.encode())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(failed)
}

/// The users that a replica has known last; none where no controller has told any.
///
/// # Errors
/// I/O; corruption, as a replica that does not know its users lets nobody in.
pub(crate) fn read(path: &Path) -> Result<Option<UserRecord>> {
    let failed =
        |error| Error::with_source(ErrorKind::Io, format!("cannot read {}", path.display()), error);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(RECORD_LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match UserRecord::decode(&bytes) {
        Ok(record) => Ok(Some(record)),
        // The controller tells them anew; until then strangers stay outside.
        Err(error) if error.kind() == ErrorKind::Corruption => {
            note!("{}: {error}", path.display());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Service {
    /// Has the controller change users; the answer comes later.
    ///
    /// # Errors
    /// The error that the client gets at once.
    pub(crate) fn begin_user_change(
        &mut self,
        words: Vec<Bytes>,
        asker: u64,
        origin: impl FnOnce() -> Origin,
    ) -> std::result::Result<(), Reply> {
        if self.user_changes.waiting.len() >= CHANGES_MAX {
            return Err(TOO_MANY);
        }
        // A wrong rule is told at once.
        let (_, reply) = self.commands.edits(&words)?;
        self.user_changes.waiting.push_back(Waiting {
            words,
            asker,
            origin: origin(),
            until_ms: self.now_ms + CHANGE_MAX_MS,
            ask_ms: 0,
            number: None,
            reply,
            stored: None,
        });
        if self.user_changes.waiting.len() == 1 {
            // The client is not in its place, so that an error is told by the next tick.
            let _ = self.ask_for_users();
        }
        Ok(())
    }

    /// A controller is connected: it is told at once which users are known.
    pub(crate) fn greet_with_users(&mut self) {
        self.user_changes.known_due_ms = 0;
    }

    /// A controller has told the users.
    pub(crate) fn take_users(&mut self, place: usize, record: UserRecord) {
        if !self.commands.users.are_shared() {
            return;
        }
        // Another group of this process may have heard of it first, and each has a file.
        if let Some(keeper) = &mut self.user_changes.keeper {
            keeper.send(&record);
        }
        if let Some(known) = self.commands.users.record()
            && known.stamp() >= record.stamp()
        {
            if known.stamp() > record.stamp() {
                // Its store was set back.
                self.send_control(place, &ControlMessage::Users(known));
            }
            return;
        }
        let askers: Vec<u64> = self.user_changes.waiting.iter().map(|it| it.asker).collect();
        self.commands.adopt_users(record, &askers);
    }

    /// The controller has answered.
    pub(crate) fn take_users_changed(&mut self, number: u64, outcome: ChangeOutcome) {
        let Some(first) = self.user_changes.waiting.front_mut() else { return };
        if first.number != Some(number) || first.stored.is_some() {
            return;
        }
        match outcome {
            ChangeOutcome::Stored(version) => first.stored = Some(version),
            ChangeOutcome::Conflict => first.ask_ms = 0,
            ChangeOutcome::Refused(why) => {
                return self.end_user_change(Reply::error_from(format!("ERR {why}")));
            }
        }
        self.tick_users();
    }

    fn end_user_change(&mut self, reply: Reply) {
        if let Some(first) = self.user_changes.waiting.pop_front() {
            self.answer(&first.origin, reply);
        }
    }

    /// Goes on with the changes, and tells controllers which users are known.
    pub(crate) fn tick_users(&mut self) {
        if !self.commands.users.are_shared() {
            return;
        }
        let now_ms = self.now_ms;
        if self.user_changes.known_due_ms <= now_ms {
            let stamp = self.commands.users.record().map(|record| record.stamp());
            let every_ms = if stamp.is_some() { KNOWN_EVERY_MS } else { NONE_KNOWN_EVERY_MS };
            self.user_changes.known_due_ms = now_ms + every_ms;
            // One that knows none is told even an empty record: no stamp of a record is this one.
            let message = ControlMessage::UsersKnown(stamp.unwrap_or_default());
            for place in self.idle_controls() {
                self.send_control(place, &message);
            }
        }
        while let Some(first) = self.user_changes.waiting.front() {
            let kept = self.user_changes.keeper.as_ref().map_or(u64::MAX, Keeper::version);
            let reply = match first.stored {
                Some(version) if kept >= version => first.reply.clone(),
                _ if first.until_ms <= now_ms && first.number.is_none() => NO_CONTROLLER,
                _ if first.until_ms <= now_ms => NO_ANSWER,
                None if first.ask_ms <= now_ms => match self.ask_for_users() {
                    Ok(()) => return,
                    Err(error) => error,
                },
                _ => return,
            };
            self.end_user_change(reply);
        }
    }

    /// Asks for the first change, by what is known now, if a controller is there.
    fn ask_for_users(&mut self) -> std::result::Result<(), Reply> {
        let Some(place) = self.newest_control() else { return Ok(()) };
        let is_idle = self.idle_controls().any(|idle| idle == place);
        let is_known = self.commands.users.record().is_some();
        let number = self.user_changes.next_number;
        let Some(first) = self.user_changes.waiting.front_mut() else { return Ok(()) };
        if !is_idle || !is_known {
            return Ok(());
        }
        let (edits, reply) = self.commands.edits(&first.words)?;
        (first.number, first.reply) = (Some(number), reply);
        first.ask_ms = self.now_ms + ASK_AGAIN_MS;
        self.user_changes.next_number += 1;
        self.send_control(place, &ControlMessage::ChangeUsers(UserChange { number, edits }));
        Ok(())
    }
}
