//! Mixes of sizes and systems to measure, and the paper's results.

use crate::keys::KEY_LEN;
use crate::replication::System;
use clap::ValueEnum;
use gabion_workload::Sizes;

/// Bytes of small, medium and large pairs, key included (Tebis §4, Table 2b, after Facebook's).
const PAIRS: [usize; 3] = [33, 148, 1228];

/// A mix of sizes, named as in the paper's Table 2b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MixChoice {
    /// Small pairs: 33 bytes of key and value.
    S,
    /// Medium pairs: 148 bytes.
    M,
    /// Large pairs: 1,228 bytes.
    L,
    /// Small ones dominate: 60 % small, 20 % medium, 20 % large.
    Sd,
    /// Medium ones dominate: 20 % small, 60 % medium, 20 % large.
    Md,
    /// Large ones dominate: 20 % small, 20 % medium, 60 % large.
    Ld,
}

impl MixChoice {
    /// Every mix, in the paper's order.
    pub(crate) const ALL: [Self; 6] = [Self::S, Self::M, Self::L, Self::Sd, Self::Md, Self::Ld];

    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::M => "m",
            Self::L => "l",
            Self::Sd => "sd",
            Self::Md => "md",
            Self::Ld => "ld",
        }
    }

    /// Percent of small, medium and large pairs.
    pub(crate) const fn shares(self) -> [u64; 3] {
        match self {
            Self::S => [100, 0, 0],
            Self::M => [0, 100, 0],
            Self::L => [0, 0, 100],
            Self::Sd => [60, 20, 20],
            Self::Md => [20, 60, 20],
            Self::Ld => [20, 20, 60],
        }
    }

    /// Sizes of its values: the pairs without their keys.
    pub(crate) fn sizes(self) -> Sizes {
        let [small, medium, large] = self.shares();
        let [s, m, l] = PAIRS.map(|len| len - KEY_LEN);
        Sizes::mixed(&[(small, s), (medium, m), (large, l)])
    }

    /// Records by default: 100 to 500 MB, so that a run takes seconds. The paper has 100 million
    /// of each, 3 to 114 GB.
    pub(super) const fn records(self) -> u64 {
        match self {
            Self::S => 3_000_000,
            Self::M => 2_000_000,
            Self::L => 400_000,
            Self::Sd | Self::Md => 1_000_000,
            Self::Ld => 600_000,
        }
    }

    /// Whether RocksDB is measured beside it by default.
    pub(super) const fn is_beside_rocksdb(self) -> bool {
        matches!(self, Self::L | Self::Sd)
    }
}

/// A measured system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Each replica flushes and compacts for itself (Build-Index), all values in the tree.
    EveryReplica,
    /// The same with large values apart.
    EveryReplicaApart,
    /// The primary flushes and compacts, files are shipped (Send-Index); all values in the tree.
    Primary,
    /// The same with large values apart.
    PrimaryApart,
    /// A RocksDB in each replica.
    Rocksdb,
    /// The same with BlobDB for large values, its garbage collection on.
    Blobdb,
}

impl Side {
    /// Every system, in the order in which they run.
    pub(crate) const ALL: [Self; 6] = [
        Self::EveryReplica,
        Self::EveryReplicaApart,
        Self::Primary,
        Self::PrimaryApart,
        Self::Rocksdb,
        Self::Blobdb,
    ];

    /// Shipping beside compacting everywhere, with values in the tree and apart.
    pub(crate) const PAIRS: [[Self; 2]; 2] =
        [[Self::Primary, Self::EveryReplica], [Self::PrimaryApart, Self::EveryReplicaApart]];

    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EveryReplica => "every-replica",
            Self::EveryReplicaApart => "every-replica-apart",
            Self::Primary => "primary",
            Self::PrimaryApart => "primary-apart",
            Self::Rocksdb => "rocksdb",
            Self::Blobdb => "blobdb",
        }
    }

    /// The system that replicates.
    pub(super) const fn system(self) -> System {
        match self {
            Self::EveryReplica | Self::EveryReplicaApart => System::EveryReplica,
            Self::Primary | Self::PrimaryApart => System::Primary,
            Self::Rocksdb | Self::Blobdb => System::Rocksdb,
        }
    }

    /// Whether its large values do not lie in the tree.
    pub(crate) const fn is_apart(&self) -> bool {
        matches!(self, Self::EveryReplicaApart | Self::PrimaryApart | Self::Blobdb)
    }

    /// Whether it is no Gabion.
    pub(crate) const fn is_rocksdb(&self) -> bool {
        matches!(self, Self::Rocksdb | Self::Blobdb)
    }
}

/// The least and the most of a ratio over the paper's mixes.
pub(crate) type Range = Option<[f64; 2]>;

/// The paper's results for Send-Index ÷ Build-Index, over all mixes, as its text has them. Its
/// figures have more, as pictures.
pub(crate) struct Paper {
    pub(crate) replicas: usize,
    pub(crate) workload: &'static str,
    /// Throughput.
    pub(crate) throughput: Range,
    /// Requests per CPU cycle.
    pub(crate) efficiency: Range,
    /// Build-Index ÷ Send-Index: amplification of I/O.
    pub(crate) io: Range,
    /// The same: CPU of the backup, of the mix S.
    pub(crate) backup: Range,
    pub(crate) place: &'static str,
}

/// The ranges of two replicas, which are of both workloads together.
const OF_TWO: Paper = Paper {
    replicas: 2,
    workload: "load",
    throughput: Some([1.04, 2.24]),
    efficiency: Some([1.06, 1.9]),
    io: Some([1.08, 1.28]),
    backup: Some([1.8, 4.0]),
    place: "Figures 9 and 10",
};

/// Sections 5.1, 5.2 and 5.4. Of three replicas the text has the ranges of the load.
pub(crate) const PAPER: [Paper; 4] = [
    OF_TWO,
    Paper { workload: "a", ..OF_TWO },
    Paper {
        replicas: 3,
        workload: "load",
        throughput: Some([1.05, 2.46]),
        efficiency: Some([1.2, 2.1]),
        io: Some([1.11, 1.42]),
        backup: None,
        place: "Figure 12",
    },
    Paper {
        replicas: 3,
        workload: "a",
        throughput: None,
        efficiency: None,
        io: None,
        backup: None,
        place: "Figure 12",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_the_papers_shares_and_bytes_by_counting() {
        for mix in MixChoice::ALL {
            let sizes = mix.sizes();
            let count = |len: usize| {
                (0..100_000).filter(|record| sizes.of(*record) + KEY_LEN == len).count()
            };
            for (share, len) in mix.shares().into_iter().zip(PAIRS) {
                let (found, expected) = (count(len), 1000 * share as usize);
                assert!(found.abs_diff(expected) <= 500, "{mix:?}, {len} bytes: {found}");
            }
            // Table 2b: bytes of 100 million pairs, in GiB.
            let gib = (sizes.mean() + KEY_LEN) as f64 * 1e8 / f64::from(1 << 30);
            let papers = match mix {
                MixChoice::S => 3.0,
                MixChoice::M => 13.7,
                MixChoice::L => 114.3,
                MixChoice::Sd => 27.4,
                MixChoice::Md => 31.7,
                MixChoice::Ld => 71.9,
            };
            assert!((gib - papers).abs() < 0.15, "{mix:?}: {gib}, {papers} in the paper");
        }
    }

    #[test]
    fn names_on_the_command_line_and_in_json_are_the_same() {
        for side in Side::ALL {
            assert_eq!(side.to_possible_value().unwrap().get_name(), side.as_str());
        }
        for mix in MixChoice::ALL {
            assert_eq!(mix.to_possible_value().unwrap().get_name(), mix.as_str());
        }
        assert_eq!(
            (Side::value_variants(), MixChoice::value_variants()),
            (&Side::ALL[..], &MixChoice::ALL[..])
        );
    }
}
