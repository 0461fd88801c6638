//! `GABION …`: what operators and tests ask of one replica, as JSON. Answered by the node that was
//! asked.

use crate::backup::Ask;
use crate::client::Presence;
use crate::commands::errors;
use crate::commands::keyspace::yield_now;
use crate::failover::FailOver;
use crate::store::{DoorTables, Places, SharedNode, engine_key};
use bytes::Bytes;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, FileId, Frontier, LogPosition, Result, crc};
use gabion_engine::{FileMeta, FileSource, Keyspace, ReadCache, ReadView, Tables};
use gabion_host::clock::Clock;
use gabion_node::{CapturedFile, LocalStore, Locate, Node};
use gabion_pool::FilePlacement;
use gabion_resp::Reply;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

/// Why an answer is not given that nobody seems to wait for.
pub(crate) const CLOSED: &str = "the connection was closed at its other end";
/// Records of a digest between two pauses for others.
const STRIDE: u64 = 256;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Status,
    Files,
    /// Of all files, or of those with these numbers.
    Scrub(Option<BTreeSet<u64>>),
    Digest,
    /// Where the log covers this with the end of a record.
    DigestAt(Frontier),
    /// What time it is, by the replica and by the system.
    Time,
    /// The system's clock is right: the primary's time goes on to it.
    AdoptTime,
    /// Another member takes writes.
    FailOver(FailOver),
    /// A part of a backup.
    Backup(Ask),
    /// The controller's users change, by this request.
    ChangeUsers(Vec<Bytes>),
}

/// The question in the words of a `GABION` command, or of FAILOVER.
///
/// # Errors
/// The error that the client gets.
pub(crate) fn question(words: &[Bytes]) -> Result<Question, Reply> {
    if words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"failover")) {
        return FailOver::of(words).map(Question::FailOver);
    }
    let changes =
        |word: &Bytes| [&b"acl"[..], b"config"].iter().any(|it| word.eq_ignore_ascii_case(it));
    if words.first().is_some_and(changes) {
        return Ok(Question::ChangeUsers(words.to_vec()));
    }
    let is = |name: &str| words.get(1).is_some_and(|w| w.eq_ignore_ascii_case(name.as_bytes()));
    match words.len() {
        2 if is("status") => Ok(Question::Status),
        2 if is("files") => Ok(Question::Files),
        2 if is("scrub") => Ok(Question::Scrub(None)),
        3.. if is("scrub") => {
            let numbers: Result<_, Reply> =
                words[2..].iter().map(|word| number("file number", word)).collect();
            numbers.map(|numbers| Question::Scrub(Some(numbers)))
        }
        2 if is("digest") => Ok(Question::Digest),
        3 if is("digest") => {
            let at = number("log position", &words[2])?;
            Ok(Question::DigestAt(Frontier::of(LogPosition(at))))
        }
        3.. if is("backup") => Ask::of(&words[2..]).map(Question::Backup),
        2 if is("time") => Ok(Question::Time),
        3 if is("time") && words[2].eq_ignore_ascii_case(b"adopt") => Ok(Question::AdoptTime),
        _ => Err(Reply::error(
            "ERR unknown question. Try GABION STATUS, FILES, SCRUB, DIGEST, BACKUP or TIME.",
        )),
    }
}

pub(crate) fn number(what: &str, word: &[u8]) -> Result<u64, Reply> {
    let parsed = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        let word = errors::shown(word);
        Reply::error_from(format!("ERR {what} '{word}' is no number from 0 to {}", u64::MAX))
    })
}

/// JSON as a reply.
pub(crate) fn reply(value: &Value) -> Reply {
    Reply::Bulk(Bytes::from(value.to_string()))
}

/// An answer that took long, or why there is none, as a reply.
pub(crate) fn reply_to(result: Result<Value>) -> Reply {
    result.map_or_else(|error| errors::from_store(&error), |value| reply(&value))
}

/// What time it is for the replica, and by the system's clock.
pub(crate) fn time(node: &Node, clock: &Clock) -> Value {
    json!({
        "now_ms": node.now_ms(),
        "system_ms": clock.system_us() / 1_000,
        "system_ahead_ms": clock.system_ahead_ms(),
    })
}

/// Has the primary's time go on to the system's clock. Time that passed at another replica would be
/// told nobody.
pub(crate) fn adopt_time(node: &Node, clock: &Clock) -> Reply {
    if !node.duties().append {
        let head = node.view().writer().get();
        return Reply::error_from(format!(
            "ERR this replica's clock tells nobody the time, that of the primary, replica {head}, does"
        ));
    }
    reply(&json!({ "passed_ms": clock.adopt() }))
}

/// A frontier as it is told: a number, as groups have one shard. [`question`] reads it.
pub(crate) fn place(frontier: &Frontier) -> Value {
    json!(frontier.only().get())
}

/// The tree's files, level by level.
pub(crate) fn files(node: &Node) -> Value {
    let tree = node.tree();
    let files: Vec<Value> = CapturedFile::all(tree.version()).map(|it| file(&it)).collect();
    json!({ "log_end": place(&node.log_end()), "edit": tree.last_edit(), "files": files })
}

/// A file of the tree, as an edit names it.
pub(crate) fn file(file: &CapturedFile) -> Value {
    json!({
        "level": file.level,
        "file": file.file.number,
        "len": file.len,
        "checksum": format!("{:08x}", file.checksum),
    })
}

/// What a scrub looks at: the files of one moment, as far as they are still in the tree when their
/// turn comes. Only the file that is being read is kept from being used again: a scrub may last for
/// hours.
pub(crate) struct Scrub {
    log_end: Value,
    edit: u64,
    places: Places,
    files: Vec<FileId>,
    /// Numbers of the files that were read.
    read: Vec<u64>,
    bytes: u64,
    errors: Vec<Value>,
}

impl Scrub {
    /// Of the files of now, or of those of them with the numbers `only`.
    pub(crate) fn of(shared: &SharedNode, only: Option<&BTreeSet<u64>>) -> Self {
        let node = shared.borrow();
        let tree = node.tree();
        let files = tree.version().described().map(|meta| meta.id);
        let is_asked = |file: &FileId| only.is_none_or(|only| only.contains(&file.number));
        Self {
            log_end: place(&node.log_end()),
            edit: tree.last_edit(),
            places: Places(shared.clone()),
            files: files.filter(is_asked).collect(),
            read: Vec::new(),
            bytes: 0,
            errors: Vec::new(),
        }
    }

    /// Reads every file from the device and compares each chunk with the edit's checksum. A file
    /// that differs is told, and noted as damaged, which lets it be repaired.
    ///
    /// # Errors
    /// Unavailable when nobody waits for the answer any more. None of a file: those are part of the
    /// answer.
    pub(crate) async fn run(mut self, store: &LocalStore, asker: &Presence) -> Result<Value> {
        for file in std::mem::take(&mut self.files) {
            if !asker.is_there() {
                return Err(Error::unavailable(CLOSED));
            }
            let pin = self.places.0.borrow().read_view().pin()?;
            let placement = self.places.locate(file);
            let found = pin.version().described().find(|meta| meta.id == file);
            let Some(meta) = found.cloned() else { continue };
            self.read.push(file.number);
            match placement {
                Some(placement) => self.read(&meta, &placement, store).await,
                None => self.complain(&meta, None, 0, &"has no place in the pool"),
            }
            drop(pin);
        }
        Ok(json!({
            "log_end": self.log_end,
            "edit": self.edit,
            "files": self.read.len(),
            "read": self.read,
            "bytes": self.bytes,
            "errors": self.errors,
        }))
    }

    async fn read(&mut self, meta: &FileMeta, placement: &Arc<FilePlacement>, store: &LocalStore) {
        let chunks = placement.len.div_ceil(CHUNK_LEN);
        if chunks != meta.chunk_crcs.len() as u64 {
            let text = format!("{chunks} chunks, {} checksums", meta.chunk_crcs.len());
            return self.complain(meta, Some(placement), 0, &text);
        }
        for (i, expected) in meta.chunk_crcs.iter().enumerate() {
            let offset = i as u64 * CHUNK_LEN;
            let len = CHUNK_LEN.min(placement.len - offset);
            let read =
                gabion_pool::read_file(&store.medium, &store.geometry, placement, offset, len);
            match read.await {
                Ok(data) => {
                    self.bytes += len;
                    let found = crc::crc32c(&data);
                    if found != *expected {
                        let text = format!("checksum {found:08x}, the edit says {expected:08x}");
                        self.complain(meta, Some(placement), offset, &text);
                    }
                }
                Err(error) => self.complain(meta, Some(placement), offset, &error),
            }
        }
    }

    fn complain(
        &mut self,
        meta: &FileMeta,
        placement: Option<&Arc<FilePlacement>>,
        offset: u64,
        message: &dyn Display,
    ) {
        let (file, message) = (meta.id.number, message.to_string());
        // What was repaired since it was read lies elsewhere.
        let now = self.places.locate(meta.id);
        if now.zip(placement).is_some_and(|(now, read)| Arc::ptr_eq(&now, read)) {
            let what = format!("{} at offset {offset}: {message}", meta.id);
            self.places.note_damage(meta.id, &Error::corruption(what));
        }
        self.errors.push(json!({"file": file, "offset": offset, "message": message}));
    }
}

/// Number and checksum of all records of users in a state of the store. Equal at replicas in the
/// same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordDigest {
    /// How many there are.
    pub records: u64,
    /// CRC32C, in key order, of each one's lengths of key and value (u32, little-endian), then
    /// their bytes.
    pub crc: u32,
}

impl RecordDigest {
    /// Reads all of them. Others run in between.
    ///
    /// # Errors
    /// A file cannot be read or is damaged; snapshot too old when it took longer than the pin
    /// budget of readers while compactions went on.
    pub async fn of<S, C>(view: ReadView, tables: &Tables<S, C>) -> Result<Self>
    where
        S: FileSource + Clone + 'static,
        C: ReadCache + Clone + 'static,
    {
        let (from, to) = (engine_key(&[]), [Keyspace::User as u8 + 1]);
        let mut scan = view.scan(tables, &from, Some(&to));
        drop(view);
        let (mut records, mut crc) = (0_u64, 0_u32);
        while let Some((key, value)) = scan.next().await? {
            let key = &key[1..];
            crc = crc::append(crc, &(key.len() as u32).to_le_bytes());
            crc = crc::append(crc, &(value.len() as u32).to_le_bytes());
            crc = crc::append(crc, key);
            crc = crc::append(crc, &value);
            records += 1;
            if records.is_multiple_of(STRIDE) {
                yield_now().await;
            }
        }
        Ok(Self { records, crc })
    }

    /// The checksum as operators see it.
    #[must_use]
    pub fn crc_text(&self) -> String {
        format!("{:08x}", self.crc)
    }
}

/// The answer to `GABION DIGEST`.
pub(crate) async fn digest(
    view: ReadView,
    log_end: Frontier,
    tables: &DoorTables,
) -> Result<Value> {
    let digest = RecordDigest::of(view, tables).await?;
    Ok(json!({ "log_end": place(&log_end), "records": digest.records, "crc": digest.crc_text() }))
}
