//! The description of one backup. A backup whose manifest is whole is whole: it is written last.
//!
//! ```text
//!   gabion-backup 1 LENGTH CRC32C\n     of what follows, decimal and hexadecimal
//!   JSON: group, moment, time, version; parts and files with lengths and checksums
//! ```

use gabion_base::{Error, FileId, FileKind, Result, crc};
use gabion_engine::FileMeta;
use serde_json::{Value, json};

const MAGIC: &str = "gabion-backup";
const FORMAT: u64 = 1;
/// A line that is longer is none of ours.
const HEADER_LEN_MAX: usize = 64;

/// A file of a group, as it lies in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredFile {
    pub(super) id: FileId,
    /// In whole blocks, as in a pool.
    pub(super) len: u64,
    pub(super) checksum: u32,
    /// Of each MiB.
    pub(super) chunks: Vec<u32>,
}

impl StoredFile {
    pub(super) fn of(meta: &FileMeta) -> Self {
        let (len, chunks) = (meta.rounded_len(), meta.chunk_crcs.clone());
        Self { id: meta.id, len, checksum: meta.checksum, chunks }
    }

    /// Its name. Files with the same name have the same bytes, also where one comes from a group
    /// that was restored and went on by itself under the same numbers.
    pub(super) fn name(&self) -> String {
        let kind = match self.id.kind {
            FileKind::Sst => "sst",
            FileKind::LogSegment => "log",
            FileKind::Values => "val",
        };
        format!("{:016x}-{:x}-{:08x}.{kind}", self.id.number, self.len, self.checksum)
    }
}

/// Whether a name is one of [`StoredFile::name`], or that of such a file on its way.
pub(super) fn is_name(name: &str) -> bool {
    let name = name.strip_suffix(PART).unwrap_or(name);
    let stem = [".sst", ".log", ".val"].iter().find_map(|end| name.strip_suffix(end));
    let parts: Vec<&str> = stem.unwrap_or("").split('-').collect();
    let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    parts.len() == 3
        && parts[0].len() == 16
        && parts[2].len() == 8
        && parts.iter().all(|p| is_hex(p))
}

/// The end of the name of what is not whole yet.
pub(super) const PART: &str = ".part";

/// A file beside the manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) len: u64,
    pub(super) crc: u32,
}

impl Part {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { len: bytes.len() as u64, crc: crc::crc32c(bytes) }
    }
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) number: u64,
    pub(super) group: u64,
    /// The replica that it is of.
    pub(super) replica: u64,
    pub(super) term: u64,
    pub(super) config: u64,
    /// All of the log up to here is in it.
    pub(super) log_end: u64,
    /// The last write that is in it.
    pub(super) sequence: u64,
    /// When its moment was asked for, in ms since 1970, by the clock of whoever asked.
    pub(super) begun_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) pool_len: u64,
    /// The program that made it.
    pub(super) version: String,
    pub(super) state: Part,
    pub(super) memory: Part,
    /// Bytes of files that were not there before.
    pub(super) copied: u64,
    pub(super) files: Vec<StoredFile>,
}

impl Manifest {
    /// Bytes of its files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    pub(super) fn to_json(&self) -> Value {
        let part = |part: Part| json!({ "len": part.len, "crc32c": hex(part.crc) });
        let files: Vec<Value> = self
            .files
            .iter()
            .map(|file| {
                let chunks: Vec<String> = file.chunks.iter().map(|crc| hex(*crc)).collect();
                json!({
                    "name": file.name(),
                    "kind": file.id.kind as u8,
                    "number": file.id.number,
                    "len": file.len,
                    "checksum": hex(file.checksum),
                    "chunks": chunks,
                })
            })
            .collect();
        json!({
            "backup": self.number,
            "group": self.group,
            "replica": self.replica,
            "term": self.term,
            "config": self.config,
            "log_end": self.log_end,
            "sequence": self.sequence,
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "pool_size": self.pool_len,
            "version": self.version,
            "state": part(self.state),
            "memory": part(self.memory),
            "copied_bytes": self.copied,
            "files": files,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = format!("{:#}\n", self.to_json());
        let crc = crc::crc32c(text.as_bytes());
        format!("{MAGIC} {FORMAT} {} {crc:08x}\n{text}", text.len()).into_bytes()
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption; unsupported, of another version.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::corruption(format!("the manifest {what}"));
        let head = &bytes[..bytes.len().min(HEADER_LEN_MAX)];
        let line = head.iter().position(|byte| *byte == b'\n');
        let line = line.ok_or_else(|| damaged("has no first line"))?;
        let words = std::str::from_utf8(&head[..line]).unwrap_or("");
        let words: Vec<&str> = words.split(' ').collect();
        let [MAGIC, format, len, crc] = words[..] else {
            return Err(damaged("is none of a backup"));
        };
        if format != FORMAT.to_string() {
            return Err(Error::unsupported(format!(
                "the manifest has format {format}, this build knows {FORMAT}"
            )));
        }
        let text = &bytes[line + 1..];
        if len != text.len().to_string() || crc != hex(crc::crc32c(text)) {
            return Err(damaged("differs from its own length or checksum"));
        }
        let value: Value =
            serde_json::from_slice(text).map_err(|e| damaged(&format!("is no JSON: {e}")))?;
        Self::from_json(&value).ok_or_else(|| damaged("lacks what it should say"))
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value[name].as_u64();
        let part = |name: &str| {
            let part = &value[name];
            Some(Part { len: part["len"].as_u64()?, crc: of_hex(&part["crc32c"])? })
        };
        let file = |value: &Value| {
            let kind = FileKind::from_byte(u8::try_from(value["kind"].as_u64()?).ok()?)?;
            let chunks: Option<Vec<u32>> = value["chunks"].as_array()?.iter().map(of_hex).collect();
            let file = StoredFile {
                id: FileId { kind, number: value["number"].as_u64()? },
                len: value["len"].as_u64()?,
                checksum: of_hex(&value["checksum"])?,
                chunks: chunks?,
            };
            (value["name"] == file.name()).then_some(file)
        };
        let files: Option<Vec<_>> = value["files"].as_array()?.iter().map(file).collect();
        Some(Self {
            number: number("backup")?,
            group: number("group")?,
            replica: number("replica")?,
            term: number("term")?,
            config: number("config")?,
            log_end: number("log_end")?,
            sequence: number("sequence")?,
            begun_ms: number("begun_ms")?,
            ended_ms: number("ended_ms")?,
            pool_len: number("pool_size")?,
            version: value["version"].as_str()?.to_owned(),
            state: part("state")?,
            memory: part("memory")?,
            copied: number("copied_bytes")?,
            files: files?,
        })
    }
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

fn of_hex(value: &Value) -> Option<u32> {
    let text = value.as_str().filter(|text| text.len() == 8)?;
    u32::from_str_radix(text, 16).ok()
}
