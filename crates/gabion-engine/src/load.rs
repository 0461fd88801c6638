//! Bulk load: files made of sorted input of a client's, past log, MemTables and compaction.
//!
//! ```text
//!   records, ascending ─► LoadBuilder ─► finished files ─► slots here, shipped there  (nobody sees them)
//!                                                                  │
//!   log:  … batches │ the load's sequence number S │ seal │ batches … │ edit: these files, at S
//!                                                    └─► flush ─────────┘
//! ```
//!
//! The load takes effect with its edit, all of it at once, as one write with the number S would: it replaces what
//! was written before, and what is written afterwards replaces it. S is known only when all files are
//! there, so their entries are stored without one (as number 0, which no write has), and the number in the
//! edit counts for all of them. So the bytes of a file do not depend on when its load ends (the scheme of
//! RocksDB's global sequence number, but in the edit in place of the file).
//!
//! What was written before S is flushed before the edit, so that the load lies above it, and each file goes as
//! deep as nothing of its range lies at a level or above it. No compaction is under way then until the edit is
//! applied: it might put something into the range that a file of the load is given.
//!
//! The recipe in the edit names no inputs. It says with what options the files were made and lets nobody make
//! them again; a replica that lacks one has it as bytes, from another, by its checksum.

use crate::entry::{EntryKind, Keyspace, Trailer};
use crate::expiry::EXPIRY_LEN;
use crate::file::FinishedFile;
use crate::job::{ENTRY_OVERHEAD_LEN, OwnBounds, Parting, bounds_touch};
use crate::sst::{SstBuilder, SstOptions};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_base::{Error, FileId, GroupId, Result, SequenceNumber, Term};
use gabion_media::AlignedBuf;

pub use crate::tree::Loaded;

/// Makes the files of a load from records in ascending order of keys.
pub struct LoadBuilder {
    group: GroupId,
    term: Term,
    options: SstOptions,
    output_len: u64,
    open: Option<SstBuilder>,
    /// Bounds of the open file beside those which its keys give.
    bounds: OwnBounds,
    /// The last engine key; empty before the first.
    last: Vec<u8>,
    /// The next engine key, and a value as it is stored.
    key: Vec<u8>,
    stored: Vec<u8>,
}

/// Where the next key goes.
enum Next {
    /// Into the open file.
    Here,
    /// Into another.
    Another,
    /// Into another, which only bounds longer than usual tell from the open one.
    Parted(Parting),
}

impl LoadBuilder {
    /// A builder of files of `group` that end at `output_len` bytes, as the group's tree is configured.
    #[must_use]
    pub fn new(group: GroupId, term: Term, options: SstOptions, output_len: u64) -> Self {
        let (open, last, key, stored) = (None, Vec::new(), Vec::new(), Vec::new());
        let bounds = OwnBounds::default();
        Self { group, term, options, output_len, open, bounds, last, key, stored }
    }

    /// Adds a pair of the user keyspace, which is gone at `expires_ms` of group time if that is said. Returns the
    /// file that ended before it, if one did. `number` is asked for the number of a file when one begins.
    ///
    /// # Errors
    /// Invalid input when the key is not after the last one, naming both; limit exceeded for a key or value that is too
    /// long; what `number` reports. Nothing was added then.
    ///
    /// # Panics
    /// When `number` gives the number of something that is no SST.
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<u64>,
        number: impl FnOnce() -> Result<FileId>,
    ) -> Result<Option<FinishedFile>> {
        check_lengths(key, value)?;
        self.key.clear();
        self.key.push(Keyspace::User as u8);
        self.key.extend_from_slice(key);
        if !self.last.is_empty() && self.key <= self.last {
            return Err(not_ascending(key, &self.last[1..]));
        }
        let next = self.next(value.len());
        let mut ended = None;
        if !matches!(next, Next::Here) {
            let capacity = self.output_len.min(64 << 20) as usize + 64 * 1024;
            let (group, term) = (self.group, self.term);
            let (number, buffer) = (number()?, AlignedBuf::with_capacity(capacity));
            let builder = SstBuilder::in_buffer(&self.options, group, number, term, buffer);
            let mut lower = Vec::new();
            if let Next::Parted(parting) = next {
                lower.extend_from_slice(&self.key[..parting.lower_len]);
                self.bounds.upper = Some(parting.upper);
            }
            ended = self.end();
            self.bounds.lower = lower;
            self.open = Some(builder);
        }
        let (kind, value) = match expires_ms {
            None => (EntryKind::Put, value),
            Some(at_ms) => {
                self.stored.clear();
                self.stored.extend_from_slice(&at_ms.to_le_bytes());
                self.stored.extend_from_slice(value);
                (EntryKind::ExpiringPut, &self.stored[..])
            }
        };
        if let Some(open) = &mut self.open {
            open.add(&self.key, Trailer::new(SequenceNumber::ZERO, kind), value);
        }
        core::mem::swap(&mut self.last, &mut self.key);
        Ok(ended)
    }

    /// Where the next key goes, as the cut rule of jobs has it.
    fn next(&self, value_len: usize) -> Next {
        let Some(open) = &self.open else { return Next::Another };
        let stored_len = (2 * self.key.len() + EXPIRY_LEN + value_len) as u64;
        let len = open.estimated_len();
        if len + stored_len + ENTRY_OVERHEAD_LEN <= self.output_len {
            return Next::Here;
        }
        if !bounds_touch(&self.last, &self.key) {
            return Next::Another;
        }
        let parting = Parting::of_file(&self.last, &self.key, len);
        parting.map_or(Next::Here, Next::Parted)
    }

    fn end(&mut self) -> Option<FinishedFile> {
        let mut file = self.open.take()?.finish();
        core::mem::take(&mut self.bounds).narrow(&mut file.meta);
        let meta = &file.meta;
        assert!(meta.smallest <= meta.largest, "{}: bounds that were narrowed hold keys", meta.id);
        Some(file)
    }

    /// The last file, if anything was added.
    #[must_use]
    pub fn finish(mut self) -> Option<FinishedFile> {
        self.end()
    }
}

fn check_lengths(key: &[u8], value: &[u8]) -> Result<()> {
    for (what, len, max) in [("key", key.len(), KEY_LEN_MAX), ("value", value.len(), VALUE_LEN_MAX)]
    {
        if len > max {
            return Err(Error::limit(format!("{what} of {len} bytes is over the limit of {max}")));
        }
    }
    Ok(())
}

#[cold]
fn not_ascending(key: &[u8], last: &[u8]) -> Error {
    let (key, last) = (shown(key), shown(last));
    Error::invalid(format!("key {key} is not after {last}: a load takes keys in ascending order"))
}

/// A key as it may stand in a sentence: the first 64 bytes.
fn shown(key: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in key.iter().take(64) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}", byte.escape_ascii());
    }
    text.push_str(if key.len() > 64 { "\"…" } else { "\"" });
    text
}
