//! The workloads: the steps of each, before the clock and on it.
//!
//! | workload | before | measured | threads |
//! | --- | --- | --- | --- |
//! | `fillseq` | | every record once, in the order of keys | 1 |
//! | `fillrandom` | | every record once, in no order | 1 |
//! | `overwrite` | loaded | records drawn evenly, written anew | 1 |
//! | `deleterandom` | loaded | every other record deleted, in no order | 1 |
//! | `readrandom` | loaded, in the cache | records drawn evenly | 2 |
//! | `readrandom-uncached` | loaded, 4 times the cache | records drawn evenly | 4 |
//! | `readmissing` | loaded, in the cache | keys between records | 2 |
//! | `multireadrandom` | loaded, in the cache | 10 records at a time | 2 |
//! | `seekrandom` | loaded, in the cache | seeks to a record, then 50 nexts | 2 |
//! | `readwhilewriting` | loaded, in the cache | `readrandom` beside one writer of 10 MB/s | 2 |
//! | `ycsb-a` … `ycsb-g` | loaded, in the cache | the standard mixes; G is all updates | 2 |
//!
//! YCSB's have hashed keys, all others `db_bench`'s names and keys in their order. Records
//! are loaded in no order, then the engine is flushed, waited for, closed and opened again.

use crate::choose::Distribution;
use crate::key::KeySpace;
use clap::ValueEnum;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Every record once, in the order of keys.
    Fillseq,
    /// Every record once, in no order.
    Fillrandom,
    /// Records that are there, drawn evenly, written anew.
    Overwrite,
    /// Every other record deleted, in no order.
    Deleterandom,
    /// Records drawn evenly; all data in the cache.
    Readrandom,
    /// Records drawn evenly by four readers; data four times the cache.
    ReadrandomUncached,
    /// Keys that are not there, between those that are.
    Readmissing,
    /// Ten records drawn evenly at a time.
    Multireadrandom,
    /// A seek to a record, then 50 nexts.
    Seekrandom,
    /// Records drawn evenly, beside a writer of a fixed rate.
    Readwhilewriting,
    /// YCSB A: half reads, half updates.
    YcsbA,
    /// YCSB B: 95 % reads, 5 % updates.
    YcsbB,
    /// YCSB C: reads.
    YcsbC,
    /// YCSB D: 95 % reads of the latest, 5 % inserts.
    YcsbD,
    /// YCSB E: 95 % scans of 1 to 100 records, 5 % inserts.
    YcsbE,
    /// YCSB F: half reads, half reads with an update of what was read.
    YcsbF,
    /// All updates, as RubbleDB's evaluation adds it to YCSB.
    YcsbG,
}

/// Shares of requests, in percent; the rest are reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// Existing records, written anew.
    pub updates: u64,
    /// New records.
    pub inserts: u64,
    /// Reads of records that follow each other.
    pub scans: u64,
    /// Reads whose record is then written anew.
    pub read_modify_writes: u64,
}

impl Workload {
    /// Every workload, in the order of the table.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fillseq => "fillseq",
            Self::Fillrandom => "fillrandom",
            Self::Overwrite => "overwrite",
            Self::Deleterandom => "deleterandom",
            Self::Readrandom => "readrandom",
            Self::ReadrandomUncached => "readrandom-uncached",
            Self::Readmissing => "readmissing",
            Self::Multireadrandom => "multireadrandom",
            Self::Seekrandom => "seekrandom",
            Self::Readwhilewriting => "readwhilewriting",
            Self::YcsbA => "ycsb-a",
            Self::YcsbB => "ycsb-b",
            Self::YcsbC => "ycsb-c",
            Self::YcsbD => "ycsb-d",
            Self::YcsbE => "ycsb-e",
            Self::YcsbF => "ycsb-f",
            Self::YcsbG => "ycsb-g",
        }
    }

    /// Whether all records exist before the clock starts.
    #[must_use]
    pub const fn is_loaded(self) -> bool {
        !matches!(self, Self::Fillseq | Self::Fillrandom)
    }

    /// Whether it leaves the engine something to flush and compact.
    #[must_use]
    pub const fn writes(self) -> bool {
        !matches!(
            self,
            Self::Readrandom
                | Self::ReadrandomUncached
                | Self::Readmissing
                | Self::Multireadrandom
                | Self::Seekrandom
                | Self::YcsbC
        )
    }

    /// Whether it reads the engine's data.
    #[must_use]
    pub const fn reads(self) -> bool {
        !matches!(
            self,
            Self::Fillseq | Self::Fillrandom | Self::Overwrite | Self::Deleterandom | Self::YcsbG
        )
    }

    /// Whether only the time ends it: then no figure depends on the number of requests. For any
    /// other workload, amplification and speed until compaction is quiet compare two engines only
    /// where both did as much.
    #[must_use]
    pub const fn is_timed_only(self) -> bool {
        !self.writes() || matches!(self, Self::Readwhilewriting)
    }

    /// Threads that make the counted requests.
    #[must_use]
    pub const fn threads(self) -> u64 {
        match self {
            Self::Fillseq | Self::Fillrandom | Self::Overwrite | Self::Deleterandom => 1,
            Self::ReadrandomUncached => 4,
            _ => 2,
        }
    }

    /// How keys are made of records.
    #[must_use]
    pub const fn key_space(self) -> KeySpace {
        match self.mix() {
            Some(_) => KeySpace::Hashed,
            None => KeySpace::Ordered,
        }
    }

    /// The records that requests ask for.
    pub(crate) const fn distribution(self) -> Distribution {
        match self {
            Self::YcsbD => Distribution::Latest,
            _ if self.mix().is_some() => Distribution::Zipfian,
            _ => Distribution::Uniform,
        }
    }

    /// The requests of a workload of YCSB; `None` for any other.
    #[must_use]
    pub const fn mix(self) -> Option<Mix> {
        let reads = Mix { updates: 0, inserts: 0, scans: 0, read_modify_writes: 0 };
        match self {
            Self::YcsbA => Some(Mix { updates: 50, ..reads }),
            Self::YcsbB => Some(Mix { updates: 5, ..reads }),
            Self::YcsbC => Some(reads),
            Self::YcsbD => Some(Mix { inserts: 5, ..reads }),
            Self::YcsbE => Some(Mix { inserts: 5, scans: 95, ..reads }),
            Self::YcsbF => Some(Mix { read_modify_writes: 50, ..reads }),
            Self::YcsbG => Some(Mix { updates: 100, ..reads }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_command_line_and_in_rows_are_the_same() {
        for workload in Workload::all() {
            let value = workload.to_possible_value().unwrap();
            assert_eq!(value.get_name(), workload.as_str());
        }
    }

    #[test]
    fn what_a_mix_writes_and_reads_is_what_the_workload_says() {
        for workload in Workload::all() {
            let Some(mix) = workload.mix() else { continue };
            let writes = mix.updates + mix.inserts + mix.read_modify_writes;
            assert_eq!(workload.writes(), writes > 0, "{}", workload.as_str());
            assert_eq!(workload.reads(), mix.updates < 100, "{}", workload.as_str());
        }
    }
}
