//! The pools of stopped replicas, read by this process.
//!
//! A replica is opened as its own process would open it, which also checks its log; nothing is
//! written. If a chunk of a file is damaged and another replica has it whole, the two are compared
//! to name the exact byte.

use super::{Damage, Found, LiveFile};
use crate::at_rest::{AtRest, check_file, differs, is_damage};
use crate::cluster::{self, Lock, replica_dir};
use crate::control;
use crate::options::VerifyOptions;
use crate::screen::Progress;
use crate::units::size;
use gabion_base::{FileId, Result, crc};
use gabion_engine::{FileMeta, FileSource, LocalCache, Tables};
use gabion_fabric::BlockingMedium;
use gabion_node::{CapturedFile, CompactionMode, FileMap, Node, PoolSource};
use gabion_server::RecordDigest;
use std::path::Path;
use std::rc::Rc;

const CACHE_BYTES: usize = 16 << 20;

/// An opened replica.
struct Replica {
    number: u32,
    medium: BlockingMedium,
    node: Node,
    source: PoolSource<FileMap>,
}

pub(super) fn look(options: &VerifyOptions, progress: &mut Progress) -> Result<Vec<Found>> {
    let data = cluster::data_dir(&options.place.data)?;
    let settings = cluster::load_existing(&data)?;
    let _lock = Lock::take(&data).map_err(|e| e.within("the replicas must not be running"))?;
    let mut replicas = Vec::new();
    let mut found = Vec::new();
    // One that is being filled, and a spare, have not what the others have.
    for number in control::members_at_rest(&data, &settings)? {
        progress.say(&format!("opening replica {number}"));
        match open_replica(&replica_dir(&data, number), number) {
            Ok(replica) => replicas.push(replica),
            Err(error) if is_damage(&error) => found.push(Found {
                replica: number,
                damage: vec![Damage { file: None, offset: None, message: error.to_string() }],
                ..Found::default()
            }),
            Err(error) => return Err(error.within(format!("replica {number}"))),
        }
    }
    for replica in &replicas {
        found.push(replica.look(&replicas, progress)?);
    }
    found.sort_by_key(|replica| replica.replica);
    Ok(found)
}

fn open_replica(dir: &Path, number: u32) -> Result<Replica> {
    let (node, _, source, medium) = AtRest::open(&dir.join("pool"))?.into_replica()?;
    Ok(Replica { number, medium, node, source })
}

impl Replica {
    fn look(&self, all: &[Self], progress: &mut Progress) -> Result<Found> {
        let version = self.node.tree().version().clone();
        let mut damage = Vec::new();
        if let Some(loss) = self.node.ring_loss().filter(|loss| loss.may_miss()) {
            damage.push(Damage { file: None, offset: None, message: loss.to_string() });
        }
        let total: u64 = version.described().map(|meta| meta.rounded_len()).sum();
        for meta in version.described() {
            progress.say(&format!(
                "replica {}: {} of {} read, now {}",
                self.number,
                size(self.source.meter.bytes()),
                size(total),
                meta.id
            ));
            self.scrub(meta, all, &mut damage);
        }
        progress.say(&format!("replica {}: reading every record", self.number));
        let bytes_read = self.source.meter.bytes();
        let records = match self.medium.block_on(self.digest()) {
            Ok(records) => Some(records),
            Err(error) if is_damage(&error) && damage.iter().any(|d| d.file.is_some()) => None,
            Err(error) if is_damage(&error) => {
                damage.push(Damage { file: None, offset: None, message: error.to_string() });
                None
            }
            Err(error) => return Err(error.within(format!("replica {}", self.number))),
        };
        let live = |file: CapturedFile| LiveFile {
            level: u64::from(file.level),
            number: file.file.number,
            len: file.len,
            checksum: format!("{:08x}", file.checksum),
        };
        Ok(Found {
            replica: self.number,
            log_end: self.node.log_end(),
            log_crc: None,
            edit: self.node.tree().last_edit(),
            files: CapturedFile::all(&version).map(live).collect(),
            files_read: version.described().map(|meta| meta.id.number).collect(),
            bytes_read,
            damage,
            records,
            has_own_files: self.node.config().compaction == CompactionMode::EveryReplica,
        })
    }

    /// Compares each chunk of a file with the checksum in the edit.
    fn scrub(&self, meta: &FileMeta, all: &[Self], damage: &mut Vec<Damage>) {
        let step = &mut || {};
        check_file(&self.medium, &self.source, meta, step, |offset, expected, found| {
            let (offset, message) = match found {
                Ok(bytes) => {
                    let message = differs(offset, &bytes, expected);
                    match self.first_difference(meta.id, offset, &bytes, expected, all) {
                        Some((at, other)) => {
                            (at, format!("differs from replica {other} there; {message}"))
                        }
                        None => (offset, message),
                    }
                }
                Err(error) => (offset, error.to_string()),
            };
            damage.push(Damage { file: Some(meta.id.number), offset: Some(offset), message });
        });
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> Result<bytes::Bytes> {
        self.medium.block_on(self.source.read(file, offset, len))
    }

    /// The first byte that differs from a replica with whole bytes, and that replica.
    fn first_difference(
        &self,
        file: FileId,
        offset: u64,
        bad: &[u8],
        expected: u32,
        all: &[Self],
    ) -> Option<(u64, u32)> {
        let others = all.iter().filter(|other| other.number != self.number);
        for other in others {
            let Ok(good) = other.read(file, offset, bad.len()) else { continue };
            if crc::crc32c(&good) != expected {
                continue;
            }
            let at = bad.iter().zip(&good).position(|(bad, good)| bad != good)?;
            return Some((offset + at as u64, other.number));
        }
        None
    }

    /// Number and checksum of all records of users, as `GABION DIGEST` counts them.
    async fn digest(&self) -> Result<(u64, String)> {
        let tables = Tables {
            source: self.source.clone(),
            cache: Rc::new(LocalCache::new(CACHE_BYTES)),
            group: self.node.config().group,
        };
        let digest = RecordDigest::of(self.node.read_view(), &tables).await?;
        Ok((digest.records, digest.crc_text()))
    }
}
