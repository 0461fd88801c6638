//! The options of a run: its group, its load, and its faults.

use super::UNSHIPPED_BYTES_MAX;
use super::control::ControlOptions;
use gabion_base::units::MIB;
use gabion_base::{GroupId, ReplicaId};
use gabion_engine::{Compression, PinBudget, SstOptions, TreeConfig};
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};

/// How long members wait for each other, in ms.
pub(super) const TIMEOUT_MS: u64 = 200;

/// The faults, each about once in so many steps; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Kill of one process.
    pub kill: u64,
    /// A process is paused for up to some 1.7 s, mostly for longer than others wait for it. Its
    /// connections stand, and bytes gather there.
    pub pause: u64,
    /// Nothing gets from one machine to another for up to 1.5 s, while the other way works.
    pub one_way: u64,
    /// A bit flips in a frame between members, in its header or in the body of a control message.
    pub flip: u64,
    /// A bit flips on an NVMe/TCP connection, in the next bytes of a direction.
    pub flip_files: u64,
    /// A bit flips in records that are streamed from one member to another.
    pub flip_records: u64,
    /// The next view has its members in another order: the head and the tail move.
    pub moves: u64,
    /// The next view is without the head, which does not hear of it and goes on as it can. A later
    /// one has it again, at any place but the first: its log has records that the group's lacks.
    pub absences: u64,
    /// Kill of every process at once.
    pub kill_all: u64,
    /// Power cut of one machine. Its ring is lost: with the level `replicated`, a member that comes
    /// back shorter pulls the missing log. It also comes while others are down or behind, as long
    /// as some member keeps everything that was acknowledged.
    pub power: u64,
    /// Power cut of several machines at once, maybe of all: as `power`, while everything
    /// acknowledged survives it.
    pub power_some: u64,
    /// Break of the connection between two members.
    pub link: u64,
    /// Break of the NVMe/TCP connections of one process.
    pub pipe: u64,
    /// One disk becomes some twenty times slower, for a while.
    pub slow: u64,
    /// One of the next writes to a disk is held back, for up to half a second (docs/faults.md H5).
    pub hold: u64,
    /// The disk of a secondary turns out to have lost the last commits of its placement log, files
    /// and applied edits with them (docs/faults.md E7), at a kill of its process.
    pub lost: u64,
    /// One disk has no space for files, for up to two seconds (docs/faults.md E10).
    pub full: u64,
    /// A record that was durable turns out not to be whole (docs/faults.md E4), at a kill of a
    /// process, while the other members have everything.
    pub log_rot: u64,
    /// A bit of a file flips on one disk, while all members are up and have the file whole
    /// (docs/faults.md E5, R13).
    pub rot: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members of the group.
    pub replicas: u32,
    /// Steps with clients and faults.
    pub steps: u64,
    /// Clients.
    pub clients: usize,
    /// Keys.
    pub keys: u64,
    /// Faults.
    pub faults: Faults,
    /// The members that compact.
    pub compaction: CompactionMode,
    /// The meaning of an acknowledgement.
    pub ack: AckLevel,
    /// How files are compressed; with LZ4, in every other seed those at the bottom with zstd.
    pub compression: Compression,
    /// The limits for slow reads on files that compactions replaced.
    pub pin_budget: PinBudget,
    /// Bytes of each machine's disk.
    pub pool_len: u64,
    /// Pairs of keys that are always written together.
    pub twins: u64,
    /// Once in so many steps the replicas' states are compared at a position of the log; 0 is
    /// never.
    pub marks: u64,
    /// Whether replicas that compact for themselves must have the same time at one position of the
    /// log also after power cuts, which they do not.
    pub compares_times: bool,
    /// Once in so many steps a bulk load begins, of registers and twins; 0 is never.
    pub loads: u64,
    /// Whether half of the keys are counters, which only increments, additions and deletes touch.
    pub counters: bool,
    /// The step at which every machine loses power at once (docs/faults.md R10). At level
    /// `replicated` clients end there.
    pub power_all_at: Option<u64>,
    /// Targets are of another make: they do not report their received bytes (docs/faults.md H8).
    /// One in so many writes of a file's bytes is damaged in their memory, where no digest of the
    /// wire covers it; 0 is none.
    pub foreign_targets: Option<u64>,
    /// The tree's shape, with the compression of its files. None: one that grows deep with little
    /// data, compressed as `compression` says.
    pub tree: Option<TreeConfig>,
    /// Values of so many bytes, or more, lie apart from a tree of the usual shape; 0: none does.
    pub large_values: u32,
    /// Large values stay in the log: a MemTable of the usual tree is as long as so many segments,
    /// and writers write no counters. 0: none does.
    pub kept_segments: u64,
    /// How these are packed.
    pub value_compression: Compression,
    /// As [`NodeOptions::collection_bytes_per_s`]: a rate that no operator may ask for, as time
    /// passes slowly here. None: its default.
    pub collection_bytes_per_s: Option<u64>,
    /// Bytes of a log segment; the ring has four.
    pub segment_len: u64,
    /// Bytes of each replica's cache of blocks.
    pub cache_len: usize,
    /// Compactions that a replica may run at once.
    pub compactions_max: usize,
    /// As [`NodeOptions::rebuild_bytes_per_s`]. None: its default.
    pub rebuild_bytes_per_s: Option<u64>,
    /// Controllers, in place of the world: [`Faults::moves`] and [`Faults::absences`] must be 0.
    pub control: Option<ControlOptions>,
    /// A defect of the controllers that the run has to show.
    #[cfg(feature = "planted")]
    pub planted_control: Option<gabion_control::Mutant>,
    /// A defect that the run has to show.
    #[cfg(feature = "planted")]
    pub planted: Option<gabion_node::Mutant>,
}

impl Options {
    /// The options that vary with the seed besides chance itself.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let compaction =
            if seed % 5 == 4 { CompactionMode::EveryReplica } else { CompactionMode::Primary };
        let ack = if seed % 3 == 2 { AckLevel::Durable } else { AckLevel::Replicated };
        let replicas = [3, 3, 2, 3, 1, 3, 4][(seed % 7) as usize];
        let compression = if seed % 4 == 1 { Compression::Lz4 } else { Compression::None };
        let mut options = Self { replicas, compaction, ack, compression, ..Self::default() };
        if seed % 4 == 3 {
            // A calm seed: trees grow deeper between crashes.
            options.faults.kill *= 5;
            options.faults.power *= 5;
            options.faults.kill_all *= 5;
        }
        if seed % 4 == 2 {
            options.faults.lost = 300;
        }
        if seed.is_multiple_of(4) {
            options.faults.hold = 200;
        }
        if seed % 4 == 1 {
            options.faults.log_rot = 700;
        }
        if seed % 8 == 5 {
            options.faults.rot = 60;
        }
        if seed % 6 == 5 {
            options.faults.full = 1_000;
        }
        if [0, 3, 4, 5].contains(&(seed % 9)) {
            options.faults.pause = 1_500;
        }
        if [1, 3, 5, 6].contains(&(seed % 9)) {
            options.faults.one_way = 1_000;
        }
        if [1, 4, 5, 7].contains(&(seed % 9)) {
            options.faults.flip = 300;
            options.faults.flip_files = 200;
            options.faults.flip_records = 800;
        }
        if [0, 2, 5, 8].contains(&(seed % 9)) {
            options.faults.moves = 1_500;
        }
        if seed % 4 == 3 {
            options.faults.absences = 300;
        }
        if [0, 4, 5, 7].contains(&(seed % 9)) {
            options.faults.power = 1_000;
            options.faults.power_some = 1_500;
        }
        if seed % 5 == 1 {
            options.loads = 150;
        }
        if [1, 4, 7, 8].contains(&(seed % 11)) {
            options.large_values = 64 + 100 * (seed % 3) as u32;
        }
        match seed % 22 {
            15 => options.keep_in_log(1),
            19 => options.keep_in_log(1 + seed / 22 % 3),
            _ => {}
        }
        if seed % 3 == 1 {
            // Less than slow scans need.
            options.pin_budget = PinBudget { age_ms_max: 50, states_max: 3 };
        }
        options
    }

    /// Has large values stay in the log, of MemTables that are as long as so many segments.
    pub const fn keep_in_log(&mut self, segments: u64) {
        (self.large_values, self.kept_segments, self.counters) = (64, segments, false);
        // Values live for a while, and edits take little of the log.
        (self.segment_len, self.keys) = (64 * 1024, 200);
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 3,
            steps: 6_000,
            clients: 4,
            keys: 40,
            faults: Faults {
                kill: 900,
                pause: 0,
                one_way: 0,
                flip: 0,
                flip_files: 0,
                flip_records: 0,
                moves: 0,
                absences: 0,
                kill_all: 5_000,
                power: 2_500,
                power_some: 0,
                link: 1_500,
                pipe: 1_500,
                slow: 1_500,
                hold: 0,
                lost: 0,
                full: 0,
                log_rot: 0,
                rot: 0,
            },
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            compression: Compression::None,
            pin_budget: PinBudget::default(),
            pool_len: 320 * MIB,
            twins: 8,
            marks: 40,
            compares_times: false,
            loads: 0,
            counters: true,
            power_all_at: None,
            foreign_targets: None,
            tree: None,
            large_values: 0,
            kept_segments: 0,
            value_compression: Compression::None,
            collection_bytes_per_s: None,
            segment_len: 256 * 1024,
            cache_len: 1 << 16,
            compactions_max: 1,
            rebuild_bytes_per_s: None,
            control: None,
            #[cfg(feature = "planted")]
            planted_control: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// The answer that a primary gets from the NVMe/TCP target of a secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The target.
    Open,
    /// Nobody: the connection ends at once.
    Refused,
    /// Nobody as yet: sent bytes lie there until targets are open.
    Silent,
}

/// A group whose trees grow deep with little data.
pub(super) fn group(seed: u64, options: &Options) -> GroupConfig {
    let sst = SstOptions { compression: options.compression, ..SstOptions::default() };
    let keeps = options.kept_segments > 0;
    let is_mixed = options.compression == Compression::Lz4 && seed % 8 == 1;
    let tree = options.tree.clone().unwrap_or_else(|| TreeConfig {
        sst,
        bottom_compression: is_mixed.then_some(Compression::ZSTD),
        memtable_len: if keeps { options.kept_segments * options.segment_len } else { 19 * 1024 },
        l0_trigger: if keeps { 4 } else { 2 + (seed % 3) as u32 },
        sst_len: 64 * 1024,
        level1_len: if keeps { 1 << 20 } else { 256 * 1024 },
        large_values: options.large_values,
        value_compression: options.value_compression,
        ..TreeConfig::default()
    });
    GroupConfig {
        group: GroupId(1),
        founders: (1..=options.replicas).map(ReplicaId).collect(),
        compaction: options.compaction,
        ack: options.ack,
        ring_len: 4 * options.segment_len,
        segment_len: options.segment_len,
        tree,
    }
}

pub(super) fn node_options(options: &Options) -> NodeOptions {
    let usual = NodeOptions::default();
    let rebuild_bytes_per_s = options.rebuild_bytes_per_s.unwrap_or(usual.rebuild_bytes_per_s);
    NodeOptions {
        #[cfg(feature = "planted")]
        planted: options.planted,
        rebuild_bytes_per_s,
        collection_bytes_per_s: options
            .collection_bytes_per_s
            .unwrap_or(usual.collection_bytes_per_s),
        heartbeat_ms: 20,
        timeout_ms: TIMEOUT_MS,
        granted_slots: 12,
        placement_wait_ms: 100,
        unshipped_bytes_max: UNSHIPPED_BYTES_MAX,
        window_bytes: 256 * 1024,
        pin_budget: options.pin_budget,
        compactions_max: options.compactions_max,
        ..usual
    }
}
