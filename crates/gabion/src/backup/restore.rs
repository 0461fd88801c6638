//! `gabion restore DIR`: new data for `gabion up`, made of a backup; and the founders of a group of
//! nodes. Every replica gets all of it.
//!
//! ```text
//!   manifest, state, memory ─► one view ─► replica-1/pool, replica-2/pool, …   the same in each
//!   files, each compared ──────────────────┘   cluster.json makes them count, as of new data
//! ```

use super::manifest::{Manifest, StoredFile};
use super::place::Place;
use super::{look, several};
use crate::cluster::{self, Lock, Settings};
use crate::options::{DataOption, PORT_DEFAULT, parse_port};
use crate::screen::{Progress, put};
use crate::units::{count, exact_size, size, utc};
use bytes::Bytes;
use clap::Args;
use gabion_base::{Error, FileId, ReplicaId, Result};
use gabion_bench::parse_bytes;
use gabion_engine::{Codecs, FileSource};
use gabion_host::replica::create_member;
use gabion_media::AlignedBuf;
use gabion_node::CompactionMode;
use gabion_node::checkpoint::Origin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct RestoreOptions {
    /// Directory of backups
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Number of the backup [default: the newest]
    #[arg(long, value_name = "N")]
    backup: Option<u64>,
    #[command(flatten)]
    data: DataOption,
    /// RESP port of the first replica [default: 6379]
    #[arg(short, long, value_name = "PORT", value_parser = parse_port)]
    port: Option<u16>,
    /// Replicas, 1 to 16 [default: as many as the group was made with]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: Option<u32>,
    /// Replicas that have to have everything for the group to take writes [default: as many as
    /// there, or 2, or 1 with --replicas 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    min_replicas: Option<u32>,
    /// Bytes reserved for each replica's pool [default: those of the pool that the backup is of]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pool_size: Option<u64>,
}

/// A backup of which a group of nodes is made: each of its founders reads it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    /// Its directory, at each of the nodes.
    dir: PathBuf,
    /// Its number.
    number: u64,
}

impl Stored {
    /// The backup of this number in a directory, or the newest one that all its groups have, and
    /// the settings of a group that is made of it. Nodes say how large pools are.
    ///
    /// # Errors
    /// Not found where there is none; corruption; unsupported; I/O.
    pub(crate) fn find(dir: &Path, number: Option<u64>) -> Result<(Self, Settings)> {
        let dir = std::path::absolute(dir).map_err(|e| cluster::failed(dir, "is no path", e))?;
        let (number, found) = find(&dir, number)?;
        let settings = settings(&Wanted::default(), &found)?;
        Ok((Self { dir, number }, settings))
    }

    /// Makes a founder of one of its groups, with all that it has.
    ///
    /// # Errors
    /// As [`Self::find`]; no space.
    pub(crate) fn make_founder(&self, data: &Path, group: &Settings, number: u32) -> Result<()> {
        let dirs = several::directories(&self.dir)?;
        let dir = dirs.get(group.place as usize).filter(|_| dirs.len() == group.groups as usize);
        let dir = dir.ok_or_else(|| {
            Error::invalid(format!(
                "{}: has backups of {}, and group {} of {} is to be made",
                self.dir.display(),
                count(dirs.len() as u64, "group"),
                group.place + 1,
                group.groups
            ))
        })?;
        let Found { origin, source, .. } = Found::open(dir, self.number)?;
        let member = origin.founder(group.group(), group.members_min as u8, ReplicaId(number))?;
        let dir = cluster::replica_dir(data, number);
        create_member(&dir, group.pool_len, &origin, &member, &source, &mut |_| {})?;
        Ok(())
    }
}

impl Display for Stored {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "backup {} in {}", self.number, self.dir.display())
    }
}

/// The settings of new data that are not to be those of the backup.
#[derive(Default)]
struct Wanted {
    replicas: Option<u32>,
    members_min: Option<u32>,
    pool_len: Option<u64>,
    port: Option<u16>,
}

/// A backup of one group, as it is found.
struct Found {
    manifest: Manifest,
    origin: Origin,
    source: Source,
}

impl Found {
    fn open(dir: &Path, number: u64) -> Result<Self> {
        let place = Place::open(dir)?;
        let manifest = place.manifest(number)?;
        let origin = look::origin(&place, &manifest)?;
        if let Some(file) = manifest.files.iter().find(|file| !place.has(file)) {
            let path = place.file(file);
            return Err(Error::corruption(format!("{}: is missing or short", path.display())));
        }
        let source = Source::of(&place, &manifest);
        Ok(Self { manifest, origin, source })
    }
}

pub(crate) fn run(options: &RestoreOptions) -> Result<u8> {
    let (_, found) = find(&options.directory, options.backup)?;
    let wanted = Wanted {
        replicas: options.replicas,
        members_min: options.min_replicas,
        pool_len: options.pool_size,
        port: options.port,
    };
    let settings = settings(&wanted, &found)?;
    let data = cluster::data_dir(&options.data)?;
    make(&data, &settings, &found)?;
    let newest = found.iter().max_by_key(|found| found.manifest.begun_ms);
    let Some(newest) = newest.map(|found| &found.manifest) else { return Ok(0) };
    put(&format!(
        "{}: {} of backup {} from {}; start them with `gabion up --data {}`. Users and passwords \
         are not part of a backup: anyone on this machine may connect until they are made again\n",
        data.display(),
        count(u64::from(settings.replicas * settings.groups), "replica"),
        newest.number,
        utc(newest.begun_ms),
        data.display()
    ));
    Ok(0)
}

/// The backup of a number, or the newest, of each group.
fn find(dir: &Path, number: Option<u64>) -> Result<(u64, Vec<Found>)> {
    let dirs = several::directories(dir)?;
    let number = match number {
        Some(number) => number,
        None => several::last_of_all(&dirs, dir)?,
    };
    let found = dirs.iter().map(|dir| Found::open(dir, number));
    let found = found.collect::<Result<Vec<_>>>()?;
    check_order(&found, dir)?;
    Ok((number, found))
}

/// Checks that backups of several groups are those of a cluster, in the order of its slots.
fn check_order(found: &[Found], dir: &Path) -> Result<()> {
    let Some(first) = several::first_of(dir)? else { return Ok(()) };
    for (place, found) in (0..).zip(found) {
        let expected = first.get() + place;
        if found.manifest.group != expected {
            return Err(Error::corruption(format!(
                "{}: group-{} has backups of group {}, and those of group {expected} belong there",
                dir.display(),
                place + 1,
                found.manifest.group
            )));
        }
    }
    Ok(())
}

/// The settings of the new data: those of the group, as far as nothing else is said.
fn settings(wanted: &Wanted, found: &[Found]) -> Result<Settings> {
    let first = found.first().ok_or_else(|| Error::invalid("no backup is named"))?;
    let (origin, manifest) = (&first.origin, &first.manifest);
    let group = &origin.group;
    let founders = group.founders.len() as u32;
    let replicas = wanted.replicas.unwrap_or(founders);
    let needed = match (group.compaction, replicas) {
        (CompactionMode::EveryReplica, _) => replicas,
        (_, n) if n == founders => u32::from(origin.view_then.members_min).min(n),
        (_, n) => n.min(2),
    };
    let members_min = wanted.members_min.unwrap_or(needed);
    if members_min > replicas
        || group.compaction == CompactionMode::EveryReplica && members_min != replicas
    {
        return Err(Error::invalid(format!(
            "--min-replicas {members_min}: with {replicas} and --compaction {} up to {replicas} \
             are possible",
            group.compaction.as_str()
        )));
    }
    let settings = Settings {
        groups: found.len() as u32,
        place: 0,
        group: group.group,
        replicas,
        members_min,
        spares: 0,
        port: wanted.port.unwrap_or(PORT_DEFAULT),
        pool_len: wanted.pool_len.unwrap_or(manifest.pool_len),
        compaction: group.compaction,
        ack: group.ack,
        memtable_len: group.tree.memtable_len,
        codecs: Codecs { upper: group.tree.sst.compression, bottom: group.tree.bottom_compression },
        growth_factor: group.tree.level_multiplier,
        large_values: group.tree.large_values,
    };
    check_pool(&settings)?;
    Ok(settings)
}

/// Checks that pools are large enough for what is fixed.
///
/// # Errors
/// Limit exceeded.
pub(crate) fn check_pool(settings: &Settings) -> Result<()> {
    if settings.pool_len < cluster::POOL_LEN_MIN || settings.pool_len / 16 < settings.memtable_len {
        return Err(Error::limit(format!(
            "a pool of {} is too small: at least {}, and 16 MemTables of {}",
            exact_size(settings.pool_len),
            exact_size(cluster::POOL_LEN_MIN),
            exact_size(settings.memtable_len)
        )));
    }
    Ok(())
}

fn make(data: &Path, settings: &Settings, found: &[Found]) -> Result<()> {
    std::fs::create_dir_all(data).map_err(|e| cluster::failed(data, "cannot be made", e))?;
    let _lock = Lock::take(data)?;
    cluster::clear_leftovers(data)?;
    if cluster::load(data)?.is_some() {
        return Err(Error::invalid(format!(
            "{}: has data already, and nothing is restored over it; say another --data",
            data.display()
        )));
    }
    let free = cluster::free_at(data)?;
    if settings.reserved() > free {
        return Err(settings.no_room(data, free, ""));
    }
    let bytes: u64 = found.iter().map(|found| found.manifest.file_bytes()).sum();
    let total = bytes * u64::from(settings.replicas);
    let (mut progress, mut done) = (Progress::new(), 0);
    cluster::create_by(data, settings, |dir, group, number| {
        let Found { origin, source, .. } = &found[group.place as usize];
        let member =
            origin.founder(group.group(), settings.members_min as u8, ReplicaId(number))?;
        let dir = cluster::replica_dir(dir, number);
        let mut step = |bytes| {
            done += bytes;
            progress.bar(done, total, &format!("replica {number}"));
        };
        let copied = create_member(&dir, settings.pool_len, origin, &member, source, &mut step)?;
        progress.say(&format!("replica {number}: {} are there", size(copied.file_bytes)));
        Ok(())
    })?;
    progress.clear();
    Ok(())
}

/// The files of a backup. The copy compares them with the checksums of the state.
struct Source(BTreeMap<FileId, PathBuf>);

impl Source {
    fn of(place: &Place, manifest: &Manifest) -> Self {
        let path = |file: &StoredFile| (file.id, place.file(file));
        Self(manifest.files.iter().map(path).collect())
    }
}

impl FileSource for Source {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let path = self.0.get(&file);
        let path = path.ok_or_else(|| Error::not_found(format!("{file} is in no backup")))?;
        // It is written as it is, past the system's cache.
        let mut bytes = AlignedBuf::zeroed(len);
        std::fs::File::open(path)
            .and_then(|open| open.read_exact_at(&mut bytes, offset))
            .map_err(|e| cluster::failed(path, "cannot be read", e))?;
        Ok(bytes.freeze())
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        if let Some(path) = self.0.get(&file) {
            eprintln!("gabion: {}: {error}", path.display());
        }
    }
}
