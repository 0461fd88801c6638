//! The configuration of a group (fixed at its creation) and the options of one member.

use crate::tlv::{Tlv, TlvReader};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::Put;
use gabion_base::units::{GIB, MIB, RECORD_LEN_MAX, SLOT_LEN};
use gabion_base::{Error, GroupId, ReplicaId, Result, ShardId};
use gabion_engine::{Compression, PinBudget, TreeConfig};
use gabion_log::LogConfig;
use gabion_replication::{GroupView, LogKind};

/// The members that flush and compact. Fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompactionMode {
    /// The primary alone; finished files are shipped (RubbleDB §4.2).
    Primary = 1,
    /// Every replica for itself, nothing is shipped: RubbleDB's baseline (§5.1).
    EveryReplica = 2,
}

impl CompactionMode {
    /// The mode as it is named on command lines and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::EveryReplica => "every-replica",
        }
    }
}

/// The meaning of an acknowledgement. README.md has the table of the failures that each survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AckLevel {
    /// The record is in the ring of every member: survives the kill of every process, not a power
    /// cut everywhere at once.
    Replicated = 1,
    /// Every member has flushed it to its device.
    Durable = 2,
}

impl AckLevel {
    /// The level as it is named on command lines and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Durable => "durable",
        }
    }
}

/// The configuration that all members share. Stored in each member's pool.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupConfig {
    /// The group.
    pub group: GroupId,
    /// The members that it was made with, in order: the first takes writes, the last answers reads.
    /// The current members stand in the view.
    pub founders: Vec<ReplicaId>,
    /// The members that compact.
    pub compaction: CompactionMode,
    /// The level of a write that names none.
    pub ack: AckLevel,
    /// Bytes of the log's ring: a multiple of `segment_len`, at least four segments.
    pub ring_len: u64,
    /// Bytes of a log segment. Default 16 MiB, which is also the largest record.
    pub segment_len: u64,
    /// The shape of the tree.
    pub tree: TreeConfig,
}

/// The lengths that suit a pool, in bytes: the defaults of a new group. A full pool keeps back room
/// to flush its memory, to compact a dozen files and to let the log grow. So a small pool gets
/// short lengths; from 2 GiB on they are the usual ones. Where values lie apart it keeps back room
/// to collect their garbage as well, which a small pool has better for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLengths {
    /// Of a MemTable: a 64th of the pool, 16 MiB at most.
    pub memtable_len: u64,
    /// Of a file: whole slots, a 128th of the pool, 16 MiB at most.
    pub sst_len: u64,
    /// Of L1: four MemTables.
    pub level1_len: u64,
    /// Of a log segment, and so of the longest record: a power of two, a 32nd of the pool, 16 MiB
    /// at most.
    pub segment_len: u64,
    /// Of the ring of a store alone: eight segments.
    pub ring_len: u64,
    /// Of values, from which on they lie apart: [`Self::LARGE_VALUES`] in pools of
    /// [`Self::LARGE_VALUES_POOL`] and more; 0 in smaller ones: none does.
    pub large_values: u32,
}

impl PoolLengths {
    /// The length from which on values lie apart by default. At 512 bytes a pointer is a
    /// thirteenth of what it stands for; docs/benchmarks.md has what 1,000 bytes gain.
    pub const LARGE_VALUES: u32 = 512;
    /// The least pool in which they do. From here on a segment of the log is no longer than a
    /// MemTable, so that values can stay where they were logged.
    pub const LARGE_VALUES_POOL: u64 = GIB;

    /// Those for a pool of so many bytes.
    #[must_use]
    pub fn of(pool_len: u64) -> Self {
        let usual = TreeConfig::default();
        let memtable_len = usual.memtable_len.min(pool_len / 64).max(MIB);
        let sst_len = usual.sst_len.min(pool_len / 128 / SLOT_LEN * SLOT_LEN).max(SLOT_LEN);
        let segment_len = prev_power_of_two(pool_len / 32).clamp(MIB, RECORD_LEN_MAX as u64);
        Self {
            memtable_len,
            sst_len,
            level1_len: usual.level1_len.min(4 * memtable_len).max(sst_len),
            segment_len,
            ring_len: 8 * segment_len,
            large_values: match pool_len >= Self::LARGE_VALUES_POOL {
                true => Self::LARGE_VALUES,
                false => 0,
            },
        }
    }
}

impl PoolLengths {
    /// Those that a group was made with.
    #[must_use]
    pub const fn of_group(made: &GroupConfig) -> Self {
        Self {
            memtable_len: made.tree.memtable_len,
            sst_len: made.tree.sst_len,
            level1_len: made.tree.level1_len,
            segment_len: made.segment_len,
            ring_len: made.ring_len,
            large_values: made.tree.large_values,
        }
    }
}

const fn prev_power_of_two(len: u64) -> u64 {
    if len == 0 { 0 } else { 1 << len.ilog2() }
}

const TAG_IDENTITY: u16 = 1;
const TAG_FOUNDERS: u16 = 2;
const TAG_MODES: u16 = 3;
const TAG_LOG: u16 = 4;
const TAG_TREE: u16 = 5;

impl GroupConfig {
    /// Largest number of members.
    pub const MEMBERS_MAX: usize = GroupView::MEMBERS_MAX;

    /// Checks the values, alone and against each other.
    ///
    /// # Errors
    /// Invalid input that names the value and its limit.
    pub fn validate(&self) -> Result<()> {
        let count = self.founders.len();
        if count == 0 || count > Self::MEMBERS_MAX {
            return Err(Error::invalid(format!(
                "a group of {count} replicas: 1 to {} are possible",
                Self::MEMBERS_MAX
            )));
        }
        self.log_config(self.first_log_kind()).check()?;
        if self.ring_len < self.segment_len.saturating_mul(4) {
            return Err(Error::invalid(format!(
                "ring of {} bytes: it must be at least four log segments of {}, so that one can be \
                 filled while another is flushed",
                self.ring_len, self.segment_len
            )));
        }
        for (i, member) in self.founders.iter().enumerate() {
            if self.founders[..i].contains(member) {
                return Err(Error::invalid(format!("{member} is named twice in the chain")));
            }
        }
        self.tree.validate()
    }

    /// The configuration of the group's log, which is of this kind.
    #[must_use]
    pub const fn log_config(&self, kind: LogKind) -> LogConfig {
        LogConfig {
            group: self.group,
            shard: ShardId::ZERO,
            ring_len: self.ring_len,
            segment_len: self.segment_len,
            kind,
        }
    }

    /// The kind of log that a new group has. From then on its view says it.
    const fn first_log_kind(&self) -> LogKind {
        match self.founders.len() {
            1 => LogKind::Private,
            _ => LogKind::Shared,
        }
    }

    /// The group's first view.
    #[must_use]
    pub fn founding_view(&self) -> GroupView {
        GroupView::founding(self.group, &self.founders, self.first_log_kind())
    }

    /// The configuration in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Tlv::new();
        let mut identity = Vec::new();
        identity.put_u64(self.group.get());
        out.critical(TAG_IDENTITY, &identity);
        let mut founders = Vec::new();
        for founder in &self.founders {
            founders.put_u32(founder.get());
        }
        out.critical(TAG_FOUNDERS, &founders);
        out.critical(TAG_MODES, &[self.compaction as u8, self.ack as u8]);
        let mut log = Vec::new();
        log.put_u64(self.ring_len);
        log.put_u64(self.segment_len);
        out.critical(TAG_LOG, &log);
        let mut tree = Vec::new();
        self.tree.encode(&mut tree);
        out.critical(TAG_TREE, &tree);
        out.finish()
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption; unsupported for a critical field of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let fields = TlvReader::read(
            bytes,
            "group configuration",
            &[TAG_IDENTITY, TAG_FOUNDERS, TAG_MODES, TAG_LOG, TAG_TREE],
        )?;
        let mut identity = fields.field(TAG_IDENTITY)?;
        let group = GroupId(identity.u64()?);
        identity.finish()?;
        let mut list = fields.field(TAG_FOUNDERS)?;
        let mut founders = Vec::new();
        while !list.is_empty() && founders.len() < Self::MEMBERS_MAX {
            founders.push(ReplicaId(list.u32()?));
        }
        list.finish()?;
        let mut modes = fields.field(TAG_MODES)?;
        let compaction = match modes.u8()? {
            1 => CompactionMode::Primary,
            2 => CompactionMode::EveryReplica,
            n => return Err(Error::unsupported(format!("compaction mode {n} is unknown"))),
        };
        let ack = match modes.u8()? {
            1 => AckLevel::Replicated,
            2 => AckLevel::Durable,
            n => return Err(Error::unsupported(format!("acknowledgement level {n} is unknown"))),
        };
        let mut log = fields.field(TAG_LOG)?;
        let (ring_len, segment_len) = (log.u64()?, log.u64()?);
        let tree = TreeConfig::decode(&mut fields.field(TAG_TREE)?)?;
        let config = Self { group, founders, compaction, ack, ring_len, segment_len, tree };
        config.validate()?;
        Ok(config)
    }
}

/// The options of one member; they may differ between members and between starts.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Heartbeat between members, in ms. Default 100.
    pub heartbeat_ms: u64,
    /// A member that is silent for this long, in ms, is out: writes are refused. Default 2,000.
    pub timeout_ms: u64,
    /// How long a promise about reads lasts, in ms, and so how long a newer view waits before it
    /// takes effect. A member that answers reads asks for promises with each heartbeat, and answers
    /// none for as long as it lacks one. Longer than `heartbeat_ms`. Default 300.
    pub lease_ms: u32,
    /// Writes wait above this many sealed MemTables here, and above four times as many edits that
    /// some member has not applied. Default 4.
    pub sealed_max: usize,
    /// Bytes of log records on their way to one member. Default 8 MiB.
    pub window_bytes: u64,
    /// Slots that a secondary keeps granted to the primary. Default 128 (256 MiB).
    pub granted_slots: u32,
    /// Jobs that may run at once, a flush not counted. Default 1.
    pub compactions_max: usize,
    /// Bytes of memory of built files that some secondary lacks; above it no compaction and no file
    /// of a load begins. A running compaction waits before its next file, so each of
    /// `compactions_max` may add one file. Flushes wait for files of flushes alone, so the files of
    /// all sealed MemTables may come on top. Default 256 MiB.
    pub unshipped_bytes_max: u64,
    /// How long a secondary waits for the placement of a file before it asks, in ms. Default 500.
    pub placement_wait_ms: u64,
    /// How long, and how many, old states of the tree readers may keep before the oldest end with
    /// an error. Default 300,000 ms and 64 states of the tree. Jobs are not subject to it.
    pub pin_budget: PinBudget,
    /// Bytes of files per second that are fetched for a full copy of the group's state, while this
    /// member is being filled and the group's log grows; where it does not, nothing holds fetches
    /// back. Files that the member has itself do not count. [`Self::REBUILD_RATE_MIN`] or more, or
    /// 0: never a limit. Default [`Self::REBUILD_RATE`].
    pub rebuild_bytes_per_s: u64,
    /// Values of so many bytes, or more, go to values files apart from the tree when this member
    /// flushes; 0: none does. Default none: as the group's [`TreeConfig::large_values`] says.
    /// Values that are there stay where they are, so it may be another at each start, and at each
    /// member.
    pub large_values: Option<u32>,
    /// The codec with which this replica packs values that it takes from `large_values` on. Default
    /// none: as the group's [`TreeConfig::value_compression`] says. It holds for the replica's
    /// process alone.
    pub value_compression: Option<Compression>,
    /// Bytes a second of large values that jobs copy at most out of files with much garbage,
    /// besides as many as are written, while there is room; 0: as many as there are. Default
    /// 100,000,000. With less more garbage stays, and a pool is short of room sooner, which ends
    /// the limit until it is not.
    pub collection_bytes_per_s: u64,
    /// A defect to be shown by tests. None by default.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::Mutant>,
}

impl NodeOptions {
    /// The default of `collection_bytes_per_s`.
    pub const COLLECTION_RATE: u64 = 100_000_000;

    /// The least that can be asked for: garbage would else outgrow any pool.
    pub const COLLECTION_RATE_MIN: u64 = 1 << 20;

    /// Refuses a rate of collection that is out of its limits.
    ///
    /// # Errors
    /// Invalid input that names the option, the value and the limit.
    pub fn check_collection_rate(bytes_per_s: u64) -> Result<()> {
        if bytes_per_s == 0 || bytes_per_s >= Self::COLLECTION_RATE_MIN {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "collection_bytes_per_s is {bytes_per_s}, possible are 0, for no limit, and {} or more",
            Self::COLLECTION_RATE_MIN
        )))
    }

    /// The default of `rebuild_bytes_per_s`: docs/benchmarks.md has the figures behind it.
    pub const REBUILD_RATE: u64 = 100_000_000;
    /// The least that can be asked for: below it the log outgrows its room before a copy of a few
    /// gigabytes is whole, and each copy begins anew.
    pub const REBUILD_RATE_MIN: u64 = 1 << 20;

    /// Refuses a rate that is out of its limits.
    ///
    /// # Errors
    /// Invalid input that names the option, the value and the limit.
    pub fn check_rebuild_rate(bytes_per_s: u64) -> Result<()> {
        if bytes_per_s == 0 || bytes_per_s >= Self::REBUILD_RATE_MIN {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "rebuild_bytes_per_s is {bytes_per_s}, possible are 0, for no limit, and {} or more",
            Self::REBUILD_RATE_MIN
        )))
    }
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            heartbeat_ms: 100,
            timeout_ms: 2_000,
            lease_ms: 300,
            sealed_max: 4,
            window_bytes: 8 << 20,
            granted_slots: 128,
            compactions_max: 1,
            unshipped_bytes_max: 256 << 20,
            placement_wait_ms: 500,
            pin_budget: PinBudget::default(),
            rebuild_bytes_per_s: Self::REBUILD_RATE,
            large_values: None,
            value_compression: None,
            collection_bytes_per_s: Self::COLLECTION_RATE,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}
