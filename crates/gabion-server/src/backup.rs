//! `GABION BACKUP …`: the state of the group at one moment, given away in parts to one who asks.
//!
//! ```text
//!   BEGIN                        the moment: {"backup": ID, …} as JSON, where reads are answered
//!   IMAGE ID                     the state besides files and entries in memory, as bytes
//!   PAGE ID N                    entries in memory, page by page from 0; nil behind the last
//!   CHUNK ID KIND NUMBER N       the Nth MiB of a file of the state, as it lies in the pool
//!   END ID                       the moment is needed no more
//! ```
//!
//! The moment is that of a read: whatever was acknowledged before BEGIN came is part of it. It is
//! kept as a reader's state is, and no longer: past the pin budget its files go, and the answer is
//! `TRYAGAIN snapshot too old`. The client then begins again at a later moment, with the files
//! that it has: files never change. So a slow or forgotten backup holds up nothing.
//!
//! Bytes of files are not compared here. The one who asks does that by the image, which has their
//! checksums, and has a `GABION SCRUB` repair what differs.

use crate::admin::{self, number};
use crate::commands::errors;
use crate::forward::Origin;
use crate::run::{LEFT_OUT, Owed};
use crate::service::Service;
use crate::store::Places;
use bytes::Bytes;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, FileId, FileKind, Result};
use gabion_engine::{PageCursor, ReadView};
use gabion_node::Locate;
use gabion_node::backup::BackupState;
use gabion_resp::Reply;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Moments that are given away at once at most: each may keep a MemTable.
const MOMENTS_MAX: usize = 4;
/// One that nobody asks about for so long ends.
const IDLE_MS_MAX: u64 = 60_000;
/// Bytes of a page, but for its last entry.
const PAGE_LEN: usize = 1 << 20;

const UNKNOWN: &str = "ERR unknown question. Try GABION BACKUP BEGIN, IMAGE id, PAGE id n, CHUNK \
                       id kind number n or END id.";

/// The question of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Begin,
    Image(u64),
    Page(u64, u64),
    Chunk(u64, FileId, u64),
    End(u64),
}

impl Ask {
    /// The question in the words behind `GABION BACKUP`.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(crate) fn of(words: &[Bytes]) -> Result<Self, Reply> {
        let is = |name: &str| words[0].eq_ignore_ascii_case(name.as_bytes());
        let at = |place: usize, what: &str| number(what, &words[place]);
        match words.len() {
            1 if is("begin") => Ok(Self::Begin),
            2 if is("image") => Ok(Self::Image(at(1, "backup")?)),
            2 if is("end") => Ok(Self::End(at(1, "backup")?)),
            3 if is("page") => Ok(Self::Page(at(1, "backup")?, at(2, "page")?)),
            5 if is("chunk") => {
                let kind = u8::try_from(at(2, "kind of file")?).ok().and_then(FileKind::from_byte);
                let kind = kind.ok_or(Reply::error("ERR no kind of file has this number"))?;
                let file = FileId { kind, number: at(3, "file number")? };
                Ok(Self::Chunk(at(1, "backup")?, file, at(4, "chunk")?))
            }
            _ => Err(Reply::error(UNKNOWN)),
        }
    }
}

/// The moments that are given away.
#[derive(Default)]
pub(crate) struct Moments {
    last: u64,
    kept: BTreeMap<u64, Moment>,
}

struct Moment {
    view: ReadView,
    state: Bytes,
    files: BTreeSet<FileId>,
    /// The page that comes next, and where it begins.
    page: u64,
    cursor: PageCursor,
    used_ms: u64,
}

impl Moments {
    fn get(&mut self, id: u64, now_ms: u64) -> Result<&mut Moment, Reply> {
        let moment = self.kept.get_mut(&id).ok_or_else(|| {
            Reply::error_from(format!(
                "TRYAGAIN backup {id} is not known here, or nobody asked about it for {} s: begin \
                 again",
                IDLE_MS_MAX / 1_000
            ))
        })?;
        moment.used_ms = now_ms;
        Ok(moment)
    }
}

impl Service {
    /// Answers, now or, by whatever `origin` makes, later.
    pub(crate) fn ask_backup(
        &mut self,
        ask: &Ask,
        origin: impl FnOnce() -> Origin,
    ) -> Option<Reply> {
        let answer = match *ask {
            Ask::Begin => self.begin_backup(),
            Ask::Image(id) => self.backups.get(id, self.now_ms).map(|moment| {
                let checked = moment.view.pin().map(drop);
                checked
                    .map_or_else(|e| errors::from_store(&e), |()| Reply::Bulk(moment.state.clone()))
            }),
            Ask::Page(id, page) => self.backup_page(id, page),
            Ask::End(id) => {
                self.backups.kept.remove(&id);
                Ok(Reply::Bulk(Bytes::from_static(b"{}")))
            }
            Ask::Chunk(id, file, chunk) => match self.backup_chunk(id, file, chunk, origin) {
                Ok(()) => return None,
                Err(reply) => Err(reply),
            },
        };
        Some(answer.unwrap_or_else(|reply| reply))
    }

    fn begin_backup(&mut self) -> Result<Reply, Reply> {
        if !self.is_member() {
            return Err(LEFT_OUT);
        }
        if self.reader() != self.me {
            let reader = self.reader().get();
            return Err(Reply::error_from(format!(
                "TRYAGAIN replica {reader} answers reads: ask that one"
            )));
        }
        if let Some(why) = self.why_unreadable() {
            return Err(Reply::error_from(format!("TRYAGAIN {why}")));
        }
        // Those that are over are of no use to whoever asked for them.
        self.backups.kept.retain(|_, moment| moment.view.pin().is_ok());
        if self.backups.kept.len() == MOMENTS_MAX {
            return Err(Reply::error_from(format!(
                "TRYAGAIN {MOMENTS_MAX} backups are made of this replica already, which is the \
                 limit"
            )));
        }
        let mut node = self.replica.node.borrow_mut();
        let (state, view) =
            BackupState::of(&mut node).map_err(|error| errors::from_store(&error))?;
        let pin = view.pin().map_err(|error| errors::from_store(&error))?;
        let files: BTreeSet<_> = pin.version().described().map(|file| file.id).collect();
        let bytes: u64 = pin.version().described().map(|file| file.rounded_len()).sum();
        let encoded = Bytes::from(state.encode());
        self.backups.last += 1;
        let id = self.backups.last;
        let told = json!({
            "backup": id,
            "replica": self.me.get(),
            "group": state.group.group.get(),
            "term": state.view.term.get(),
            "config": state.view.config.get(),
            "log_end": state.log_end.get(),
            "sequence": view.sequence().get(),
            "pool_size": self.replica.local.medium.properties().len,
            "files": files.len(),
            "bytes": bytes,
        });
        let (used_ms, cursor) = (self.now_ms, PageCursor::default());
        let moment = Moment { view, state: encoded, files, page: 0, cursor, used_ms };
        self.backups.kept.insert(id, moment);
        Ok(admin::reply(&told))
    }

    fn backup_page(&mut self, id: u64, page: u64) -> Result<Reply, Reply> {
        let moment = self.backups.get(id, self.now_ms)?;
        if page != moment.page {
            return Err(Reply::error_from(format!(
                "ERR page {page} of backup {id}: page {} comes next",
                moment.page
            )));
        }
        let page = moment.view.page(&mut moment.cursor, PAGE_LEN);
        moment.page += 1;
        let page = page.map_err(|error| errors::from_store(&error))?;
        Ok(page.map_or(Reply::Null, |page| Reply::Bulk(Bytes::from(page))))
    }

    /// Reads from the device as a scrub does; the answer comes later.
    fn backup_chunk(
        &mut self,
        id: u64,
        file: FileId,
        chunk: u64,
        origin: impl FnOnce() -> Origin,
    ) -> Result<(), Reply> {
        let moment = self.backups.get(id, self.now_ms)?;
        if !moment.files.contains(&file) {
            return Err(Reply::error_from(format!("ERR {file} is no file of backup {id}")));
        }
        let pin = moment.view.pin().map_err(|error| errors::from_store(&error))?;
        let placement = Places(self.replica.node.clone()).locate(file);
        let placement = placement
            .ok_or_else(|| Error::unavailable(format!("{file} has no place in the pool")))
            .map_err(|error| errors::from_store(&error))?;
        let begin = chunk.saturating_mul(CHUNK_LEN);
        if begin >= placement.len {
            return Err(Reply::error_from(format!(
                "ERR chunk {chunk} of {file}, which has {} bytes",
                placement.len
            )));
        }
        let len = CHUNK_LEN.min(placement.len - begin);
        let store = self.replica.local.clone();
        let owed = Owed::answer(&self.finished, origin());
        self.replica.executor.spawn(async move {
            let (medium, geometry) = (&store.medium, &store.geometry);
            let read = gabion_pool::read_file(medium, geometry, &placement, begin, len).await;
            // As long as it was read, no other file may lie there.
            drop(pin);
            let reply = read.map_or_else(|error| errors::from_store(&error), Reply::Bulk);
            owed.pay(reply, false);
        });
        Ok(())
    }

    /// Ends the moments that nobody asks about any more.
    pub(crate) fn tick_backups(&mut self) {
        let now_ms = self.now_ms;
        self.backups.kept.retain(|_, moment| now_ms - moment.used_ms < IDLE_MS_MAX);
    }
}
