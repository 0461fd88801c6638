//! `GABION …`: what operators and tests ask of one replica, as JSON. Answered by the node that was asked.

use crate::commands::keyspace::yield_now;
use crate::store::{DoorTables, engine_key};
use bytes::Bytes;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Result, crc};
use gabion_engine::{FileSource, Keyspace, ReadView, Tables};
use gabion_node::{LocalStore, Node};
use gabion_pool::FilePlacement;
use gabion_resp::Reply;
use serde_json::{Value, json};
use std::sync::Arc;

/// Records of a digest between two pauses for others.
const STRIDE: u64 = 256;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Status,
    Files,
    Scrub,
    Digest,
}

/// The question in the words of a `GABION` command.
///
/// # Errors
/// The error that the client gets.
pub(crate) fn question(words: &[Bytes]) -> Result<Question, Reply> {
    let is = |name: &str| words.get(1).is_some_and(|w| w.eq_ignore_ascii_case(name.as_bytes()));
    match words.len() {
        2 if is("status") => Ok(Question::Status),
        2 if is("files") => Ok(Question::Files),
        2 if is("scrub") => Ok(Question::Scrub),
        2 if is("digest") => Ok(Question::Digest),
        _ => Err(Reply::error("ERR unknown question. Try GABION STATUS, FILES, SCRUB or DIGEST.")),
    }
}

/// JSON as a reply.
pub(crate) fn reply(value: &Value) -> Reply {
    Reply::Bulk(Bytes::from(value.to_string()))
}

/// The tree's files, level by level.
pub(crate) fn files(node: &Node) -> Value {
    let tree = node.tree();
    let files: Vec<Value> = tree
        .version()
        .files()
        .map(|(level, meta)| {
            json!({
                "level": level,
                "file": meta.id.number,
                "len": meta.rounded_len(),
                "checksum": format!("{:08x}", meta.checksum),
            })
        })
        .collect();
    json!({ "log_end": node.log_end().get(), "edit": tree.last_edit(), "files": files })
}

/// What a scrub looks at: as of one moment.
pub(crate) struct Scrub {
    log_end: u64,
    edit: u64,
    /// Keeps the files from being reused while they are read.
    _view: ReadView,
    files: Vec<(Arc<FilePlacement>, Vec<u32>)>,
    missing: Vec<u64>,
}

impl Scrub {
    pub(crate) fn of(node: &Node) -> Self {
        let tree = node.tree();
        let map = node.file_map();
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        for (_, meta) in tree.version().files() {
            match map.get(meta.id) {
                Some(placement) => files.push((placement, meta.chunk_crcs.clone())),
                None => missing.push(meta.id.number),
            }
        }
        Self {
            log_end: node.log_end().get(),
            edit: tree.last_edit(),
            _view: node.view(),
            files,
            missing,
        }
    }

    /// Reads every file from the device and compares each chunk with the edit's checksum.
    pub(crate) async fn run(self, store: &LocalStore) -> Value {
        let mut errors: Vec<Value> = Vec::new();
        let mut bytes = 0;
        for number in &self.missing {
            errors
                .push(json!({"file": number, "offset": 0, "message": "has no place in the pool"}));
        }
        for (placement, crcs) in &self.files {
            let mut complain = |offset: u64, message: String| {
                let file = placement.file.number;
                errors.push(json!({"file": file, "offset": offset, "message": message}));
            };
            let chunks = placement.len.div_ceil(CHUNK_LEN);
            if chunks != crcs.len() as u64 {
                complain(0, format!("{chunks} chunks, {} checksums", crcs.len()));
                continue;
            }
            for (i, expected) in crcs.iter().enumerate() {
                let offset = i as u64 * CHUNK_LEN;
                let len = CHUNK_LEN.min(placement.len - offset);
                let read =
                    gabion_pool::read_file(&store.medium, &store.geometry, placement, offset, len);
                match read.await {
                    Ok(data) => {
                        bytes += len;
                        let found = crc::crc32c(&data);
                        if found != *expected {
                            complain(
                                offset,
                                format!("checksum {found:08x}, the edit says {expected:08x}"),
                            );
                        }
                    }
                    Err(error) => complain(offset, error.to_string()),
                }
            }
        }
        json!({
            "log_end": self.log_end,
            "edit": self.edit,
            "files": self.files.len() + self.missing.len(),
            "bytes": bytes,
            "errors": errors,
        })
    }
}

/// Number and checksum of all records of users in a state of the store. Equal at replicas in the same
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordDigest {
    /// How many there are.
    pub records: u64,
    /// CRC32C, in key order, of each one's lengths of key and value (u32, little-endian), then their bytes.
    pub crc: u32,
}

impl RecordDigest {
    /// Reads all of them. Others run in between.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub async fn of<S: FileSource + Clone>(view: ReadView, tables: &Tables<S>) -> Result<Self> {
        let (from, to) = (engine_key(&[]), [Keyspace::User as u8 + 1]);
        let mut scan = view.scan(tables, &from, Some(&to));
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
pub(crate) async fn digest(view: ReadView, log_end: u64, tables: &DoorTables) -> Result<Value> {
    let digest = RecordDigest::of(view, tables).await?;
    Ok(json!({ "log_end": log_end, "records": digest.records, "crc": digest.crc_text() }))
}
