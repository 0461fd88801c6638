//! The users of a cluster: one record, the same at every node.
//!
//! ```text
//!   door ── ChangeUsers: expected lines, new lines ──► Keeper ── swap ──► store: `users`
//!        ◄── UsersChanged: stored, conflict, refused ──┤
//!   all doors ◄── Users: the record ───────────────────┘ ◄── Users: a newer one that a replica has
//! ```
//!
//! A change says what it expects of each user that it touches. So the controller needs to know no
//! rule: a door whose knowledge is old hears of a conflict, and applies its rules anew to what
//! it is told with it. Changes have one order, that of the record's versions.
//!
//! The record, in the store, on the wire and in the file of a replica:
//!
//! ```text
//!   "GUSR" | u16 format, 1 | u16 zero | u64 version | u32 users
//!   | users by name, each: prefixed name | prefixed rules | u32 CRC32C of all before
//! ```
//!
//! Of two records the one with the greater [`Stamp`] counts, everywhere. A store that was set back
//! takes the record that replicas have. Versions that it gave twice are told apart by checksums:
//! all nodes end with the same one of the two.

use crate::store::{Swapped, Version, Versioned};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, ErrorKind, Result, crc};

/// The name of the record in a store.
pub const USERS: &str = "users";
/// Most users of a cluster.
pub const USERS_MAX: usize = 10_000;
/// Longest record in bytes. Two of them fit into one message.
pub const RECORD_LEN_MAX: usize = 384 * 1024;
/// Most users that one change touches.
pub const EDITS_MAX: usize = 1_000;
/// Changes that wait for the store; a further one is refused.
const WAITING_MAX: usize = 256;

const WHAT: &str = "record of users";
const MAGIC: [u8; 4] = *b"GUSR";
const FORMAT: u16 = 1;
const HEAD_LEN: usize = 4 + 2 + 2 + 8 + 4;
const CRC_LEN: usize = 4;

/// Identity of a record, by which two are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Changes that are in it; zero for none.
    pub version: u64,
    /// Checksum of its bytes.
    pub sum: u32,
}

/// All users: the rules of each under its name, as ACL LIST shows them. Passwords are hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRecord {
    version: u64,
    users: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The change of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Its name.
    pub name: Vec<u8>,
    /// Its rules before, which have to be these; none: there is no such user.
    pub expected: Option<Vec<u8>>,
    /// Its rules after; none: it is removed.
    pub rules: Option<Vec<u8>>,
}

/// A change of users: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserChange {
    /// The replica's number for it, which the answer repeats.
    pub number: u64,
    /// One for each user that it touches.
    pub edits: Vec<Edit>,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// It is stored, in the record of this version and all later ones.
    Stored(u64),
    /// A user is not as expected. The record as it is was told before.
    Conflict,
    /// It cannot be, for this reason.
    Refused(String),
}

impl UserRecord {
    /// Changes that are in it.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The rules of a user.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.users.get(name).map(Vec::as_slice)
    }

    /// Names and rules, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.users.iter().map(|(name, rules)| (name.as_slice(), rules.as_slice()))
    }

    /// Its identity.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let bytes = self.encode();
        let sum = bytes.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
        Stamp { version: self.version, sum }
    }

    /// The record in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.put_bytes(&MAGIC);
        out.put_u16(FORMAT);
        out.put_u16(0);
        out.put_u64(self.version);
        out.put_u32(self.users.len() as u32);
        for (name, rules) in self.iter() {
            out.put_prefixed(name);
            out.put_prefixed(rules);
        }
        let sum = crc::crc32c(&out);
        out.put_u32(sum);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Limit exceeded; corruption; unsupported for another format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| Error::corruption(format!("{WHAT}: {what}"));
        if bytes.len() > RECORD_LEN_MAX {
            return Err(too_long(bytes.len()));
        }
        let end = bytes.len().checked_sub(CRC_LEN).ok_or_else(|| corrupt("it is cut off"))?;
        let (body, sum) = bytes.split_at(end);
        if crc::crc32c(body).to_le_bytes() != sum {
            return Err(corrupt("bad checksum"));
        }
        let mut r = Reader::new(body, WHAT);
        if r.array()? != MAGIC {
            return Err(corrupt("it is something else"));
        }
        match (r.u16()?, r.u16()?) {
            (FORMAT, 0) => {}
            (FORMAT, _) => return Err(corrupt("a zero is none")),
            (format, _) => {
                return Err(Error::unsupported(format!(
                    "{WHAT}: it has format {format}, this build reads {FORMAT}"
                )));
            }
        }
        let (version, count) = (r.u64()?, r.u32()? as usize);
        if count > USERS_MAX {
            return Err(too_many(count));
        }
        let mut users = BTreeMap::new();
        for _ in 0..count {
            let name = r.prefixed(RECORD_LEN_MAX)?.to_vec();
            let rules = r.prefixed(RECORD_LEN_MAX)?.to_vec();
            if users.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(corrupt("its users are not in order"));
            }
            users.insert(name, rules);
        }
        r.finish()?;
        Ok(Self { version, users })
    }

    /// The record after a change; none where a user is not as expected.
    ///
    /// # Errors
    /// Limit exceeded: there would be too much.
    pub fn changed(&self, edits: &[Edit]) -> Result<Option<Self>> {
        let is_expected = |edit: &Edit| self.get(&edit.name) == edit.expected.as_deref();
        if !edits.iter().all(is_expected) {
            return Ok(None);
        }
        let mut next = self.clone();
        for Edit { name, rules, .. } in edits {
            match rules {
                Some(rules) => drop(next.users.insert(name.clone(), rules.clone())),
                None => drop(next.users.remove(name)),
            }
        }
        if next.users == self.users {
            return Ok(Some(next));
        }
        next.version += 1;
        if next.users.len() > USERS_MAX {
            return Err(too_many(next.users.len()));
        }
        match next.encode().len() {
            len if len > RECORD_LEN_MAX => Err(too_long(len)),
            _ => Ok(Some(next)),
        }
    }
}

fn too_long(len: usize) -> Error {
    Error::limit(format!(
        "{WHAT}: it would take {len} bytes, and all users together take {RECORD_LEN_MAX} at most"
    ))
}

fn too_many(count: usize) -> Error {
    Error::limit(format!("{WHAT}: there would be {count} users, {USERS_MAX} are the most"))
}

/// Everything that a keeper wants done, for askers of type `A`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserOutput<A> {
    /// The record is to be read.
    Read,
    /// The record is to be swapped.
    Swap {
        /// The version that it has to have.
        expected: Version,
        /// The bytes.
        record: Vec<u8>,
    },
    /// The record is to be told, to one replica or to all.
    Tell {
        /// The replica; none: all.
        to: Option<A>,
        /// The record.
        record: UserRecord,
    },
    /// A change has an outcome.
    Answer {
        /// The replica that asked.
        to: A,
        /// Its number for the change.
        number: u64,
        /// The outcome.
        outcome: ChangeOutcome,
    },
}

/// A record on its way to the store, and the change in it; none where a replica had it.
type Swap<A> = (UserRecord, Option<(A, UserChange)>);

/// The controller's part: the one who changes the record.
///
/// Call a `handle_*`, then [`Self::poll_output`] until there is no more.
#[derive(Debug)]
pub struct UserKeeper<A> {
    /// The record as it is stored; none while it is to be read.
    stored: Option<(Version, UserRecord)>,
    /// At most one swap is under way, or was when the store last failed.
    swap: Option<Swap<A>>,
    /// A record that a replica has and the store lacks.
    newer: Option<UserRecord>,
    waiting: VecDeque<(A, UserChange)>,
    /// The store's record is of a later format: nothing is changed here.
    is_unreadable: Option<String>,
    outputs: VecDeque<UserOutput<A>>,
}

impl<A: Copy + PartialEq> Default for UserKeeper<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Copy + PartialEq> UserKeeper<A> {
    /// One that begins by reading the record.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stored: None,
            swap: None,
            newer: None,
            waiting: VecDeque::new(),
            is_unreadable: None,
            outputs: VecDeque::from([UserOutput::Read]),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<UserOutput<A>> {
        self.outputs.pop_front()
    }

    /// The record was read.
    pub fn handle_read(&mut self, read: Result<Option<Versioned>>) {
        match read {
            Err(_) => self.outputs.push_back(UserOutput::Read),
            Ok(found) => {
                self.take(found);
                // The swap before may have been carried out all the same.
                if let Some((record, change)) = self.swap.take() {
                    match &self.stored {
                        Some((_, stored)) if *stored == record => self.is_stored(change),
                        _ => self.wait_first(change),
                    }
                }
                self.go_on();
            }
        }
    }

    /// The record was swapped, or not.
    pub fn handle_swapped(&mut self, swapped: Result<Swapped>) {
        match (swapped, self.swap.take()) {
            (Err(_), swap) => {
                (self.stored, self.swap) = (None, swap);
                self.outputs.push_back(UserOutput::Read);
            }
            (Ok(Swapped::Stored(version)), Some((record, change))) => {
                let before = self.stored.replace((version, record));
                assert!(before.is_none_or(|(before, _)| before < version), "versions grow");
                self.tell_all();
                self.is_stored(change);
                self.go_on();
            }
            (Ok(Swapped::Lost(theirs)), swap) => {
                self.take(theirs);
                self.wait_first(swap.and_then(|(_, change)| change));
                self.go_on();
            }
            (Ok(Swapped::Stored(_)), None) => {}
        }
    }

    /// A replica says which record it has.
    pub fn handle_known(&mut self, from: A, stamp: Stamp) {
        if let Some((_, record)) = &self.stored
            && record.stamp() != stamp
        {
            // One that has a newer one answers with it.
            self.outputs.push_back(UserOutput::Tell { to: Some(from), record: record.clone() });
        }
    }

    /// A replica has this record.
    pub fn handle_record(&mut self, record: UserRecord) {
        let known = [self.stored.as_ref().map(|(_, known)| known), self.newer.as_ref()];
        if known.into_iter().flatten().all(|known| known.stamp() < record.stamp()) {
            self.newer = Some(record);
            self.go_on();
        }
    }

    /// A replica asks for a change.
    pub fn handle_change(&mut self, from: A, change: UserChange) {
        if self.waiting.len() >= WAITING_MAX {
            let text = format!("{WAITING_MAX} changes of users wait for the store already");
            return self.answer(from, change.number, ChangeOutcome::Refused(text));
        }
        self.waiting.push_back((from, change));
        self.go_on();
    }

    /// The record is what the store has.
    fn take(&mut self, found: Option<Versioned>) {
        self.is_unreadable = None;
        let (version, record) = match found {
            None => (Version::NONE, UserRecord::default()),
            Some(Versioned { version, value }) => match UserRecord::decode(&value) {
                Ok(record) => (version, record),
                Err(error) => {
                    // A damaged one is replaced by what replicas have; a later one never is.
                    let is_later = error.kind() == ErrorKind::Unsupported;
                    self.is_unreadable = is_later.then(|| error.message().to_string());
                    (version, UserRecord::default())
                }
            },
        };
        self.stored = Some((version, record));
        if self.is_unreadable.is_none() {
            self.tell_all();
        }
    }

    /// A change whose swap came to nothing is the next one again.
    fn wait_first(&mut self, change: Option<(A, UserChange)>) {
        if let Some(change) = change {
            self.waiting.push_front(change);
        }
    }

    fn tell_all(&mut self) {
        if let Some((_, record)) = &self.stored {
            self.outputs.push_back(UserOutput::Tell { to: None, record: record.clone() });
        }
    }

    fn answer(&mut self, to: A, number: u64, outcome: ChangeOutcome) {
        self.outputs.push_back(UserOutput::Answer { to, number, outcome });
    }

    fn is_stored(&mut self, change: Option<(A, UserChange)>) {
        if let (Some((to, change)), Some((_, record))) = (change, &self.stored) {
            let outcome = ChangeOutcome::Stored(record.version);
            self.answer(to, change.number, outcome);
        }
    }

    /// Begins the next swap, if none is under way.
    fn go_on(&mut self) {
        while self.swap.is_none() {
            let Some((version, record)) = &self.stored else { return };
            if let Some(why) = self.is_unreadable.clone() {
                let Some((to, change)) = self.waiting.pop_front() else { return };
                self.answer(to, change.number, ChangeOutcome::Refused(why));
                continue;
            }
            if let Some(newer) = self.newer.take() {
                if newer.stamp() > record.stamp() {
                    self.begin(*version, newer, None);
                }
                continue;
            }
            let version = *version;
            let Some((to, change)) = self.waiting.pop_front() else { return };
            match record.changed(&change.edits) {
                Ok(Some(next)) if next == *record => self.is_stored(Some((to, change))),
                Ok(Some(next)) => self.begin(version, next, Some((to, change))),
                Ok(None) => {
                    let record = record.clone();
                    self.outputs.push_back(UserOutput::Tell { to: Some(to), record });
                    self.answer(to, change.number, ChangeOutcome::Conflict);
                }
                Err(error) => {
                    let text = error.message().to_string();
                    self.answer(to, change.number, ChangeOutcome::Refused(text));
                }
            }
        }
    }

    fn begin(&mut self, expected: Version, record: UserRecord, change: Option<(A, UserChange)>) {
        let bytes = record.encode();
        assert!(bytes.len() <= RECORD_LEN_MAX, "a record is bounded");
        assert!(bytes.len() >= HEAD_LEN + CRC_LEN, "a record has a head");
        self.swap = Some((record, change));
        self.outputs.push_back(UserOutput::Swap { expected, record: bytes });
    }
}

pub(crate) fn put_change(out: &mut Vec<u8>, change: &UserChange) {
    out.put_u64(change.number);
    out.put_u16(change.edits.len() as u16);
    for Edit { name, expected, rules } in &change.edits {
        out.put_prefixed(name);
        for text in [expected, rules] {
            out.put_u8(u8::from(text.is_some()));
            out.put_prefixed(text.as_deref().unwrap_or_default());
        }
    }
}

pub(crate) fn read_change(r: &mut Reader<'_>) -> Result<UserChange> {
    let (number, count) = (r.u64()?, usize::from(r.u16()?));
    if count > EDITS_MAX {
        return Err(Error::limit(format!(
            "change of users: it touches {count} users, {EDITS_MAX} are the most"
        )));
    }
    let mut edits = Vec::new();
    for _ in 0..count {
        let name = r.prefixed(RECORD_LEN_MAX)?.to_vec();
        let (expected, rules) = (read_text(r)?, read_text(r)?);
        edits.push(Edit { name, expected, rules });
    }
    Ok(UserChange { number, edits })
}

fn read_text(r: &mut Reader<'_>) -> Result<Option<Vec<u8>>> {
    let is_there = r.u8()? != 0;
    let text = r.prefixed(RECORD_LEN_MAX)?;
    Ok(is_there.then(|| text.to_vec()))
}

#[cfg(test)]
mod tests;
