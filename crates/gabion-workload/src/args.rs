//! The options of a run, and the plan that they make once they are checked.

use crate::engine::{Codec, EngineOptions, Log};
use crate::key::KEY_LEN;
use crate::values::Values;
use crate::workload::Workload;
use clap::Args;
use gabion_base::units::{GIB, KIB, MIB, VALUE_LEN_MAX};
use gabion_base::{Error, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What one run does: one workload, one engine, one row.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The workload.
    #[arg(long, value_enum)]
    pub workload: Workload,
    /// Where the engine keeps its files while it runs: must not exist or be empty, and is removed.
    #[arg(long)]
    pub dir: PathBuf,
    /// Bytes of a value.
    #[arg(long, default_value = "100", value_parser = parse_bytes)]
    pub value_size: u64,
    /// The engine's write-ahead log.
    #[arg(long, value_enum, default_value_t = Log::Off)]
    pub log: Log,
    /// Most bytes of memory that the process may have had resident when everything is checked, this
    /// instrument's own included (4 for each record); over it the run fails. It fails as well when
    /// over 450 MB are resident then that neither the engine tells of nor this instrument has.
    #[arg(long, value_parser = parse_bytes)]
    pub memory_max: Option<u64>,
    /// What this engine has for itself.
    #[command(flatten)]
    pub own: OwnArgs,
    /// What is the same for all runs that are compared.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Options that one engine has for itself: in a comparison others have what their guides recommend.
/// An engine that has no such thing refuses it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnArgs {
    /// Bytes of a block of a file of this engine, where others have another [default: as
    /// --block-size]
    #[arg(long, value_parser = parse_bytes)]
    pub own_block_size: Option<u64>,
    /// Most MemTables, the one that is written to included; further writes wait (RocksDB).
    #[arg(long)]
    pub write_buffers: Option<u64>,
    /// Logs that are kept to be written to again (RocksDB).
    #[arg(long)]
    pub recycled_logs: Option<u64>,
    /// Values of so many bytes, or more, lie apart from the tree: in Gabion's log, in the files of
    /// RocksDB's BlobDB; 0: none does [default: the engine's own]
    #[arg(long, value_parser = parse_bytes)]
    pub large_values: Option<u64>,
}

impl OwnArgs {
    /// The words on a command line for these options; none where nothing is its own.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let options = [
            ("own-block-size", self.own_block_size),
            ("write-buffers", self.write_buffers),
            ("recycled-logs", self.recycled_logs),
            ("large-values", self.large_values),
        ];
        let word = |(name, value): (&str, Option<u64>)| Some(format!("--{name}={}", value?));
        options.into_iter().filter_map(word).collect()
    }

    /// Refuses values that no engine takes.
    fn check(&self) -> Result<()> {
        let limits = [
            ("own-block-size", self.own_block_size, KIB, MIB),
            ("write-buffers", self.write_buffers, 2, 64),
            ("recycled-logs", self.recycled_logs, 0, 64),
            ("large-values", self.large_values, 0, VALUE_LEN_MAX as u64),
        ];
        for (name, value, min, max) in limits {
            value.map_or(Ok(()), |value| in_range(name, value, min, max))?;
        }
        Ok(())
    }
}

/// What is the same for all runs that are compared.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Share of each value that is one repeated byte, from 0 to 1.
    #[arg(long, default_value_t = 0.5)]
    pub compressibility: f64,
    /// How blocks of files are compressed.
    #[arg(long, value_enum, default_value_t = Codec::None)]
    pub compression: Codec,
    /// The same for the bottom of the tree, where most bytes lie [default: as --compression].
    #[arg(long, value_enum)]
    pub bottom_compression: Option<Codec>,
    /// Records in the data set [default: 4,000,000 of up to 128 bytes, 3,000,000 of up to 512, else
    /// 2,000,000; with --quick a quarter of it for workloads that read]
    #[arg(long)]
    pub records: Option<u64>,
    /// Most requests that are measured [default: as many as records; reads: until the time is over]
    #[arg(long)]
    pub operations: Option<u64>,
    /// Most seconds that are measured, without waiting for compaction [default: reads 20, synced
    /// writes 20, YCSB 60, other writes without end; with --quick reads 5, workloads that only
    /// write 15, all others 10]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// For workloads that read a quarter of the records, and ten seconds of requests at most. Those
    /// that only write (fillseq, fillrandom, overwrite, deleterandom, ycsb-g) have all of them, as
    /// a quarter is a burst that logs and MemTables take up, and fifteen seconds.
    #[arg(long)]
    pub quick: bool,
    /// Bytes of a MemTable.
    #[arg(long, default_value = "16MiB", value_parser = parse_bytes)]
    pub memtable_size: u64,
    /// Bytes of the cache, for blocks, indexes and filters [default: twice the data and 64 MiB;
    /// readrandom-uncached: a quarter of the data]
    #[arg(long, value_parser = parse_bytes)]
    pub cache: Option<u64>,
    /// Bytes of a block of a file [default: what the engine's guide recommends]
    #[arg(long, value_parser = parse_bytes)]
    pub block_size: Option<u64>,
    /// Threads that flush and compact.
    #[arg(long, default_value_t = 2)]
    pub background_threads: u32,
    /// Read and write files through the page cache.
    #[arg(long)]
    pub buffered: bool,
    /// Seed of the values and of the choice of records.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl RunArgs {
    /// The words on a command line for these options, for a program of an engine.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        let common = &self.common;
        let mut words: Vec<OsString> = Vec::new();
        let mut add =
            |name: &str, value: OsString| words.extend([format!("--{name}").into(), value]);
        add("workload", self.workload.as_str().into());
        add("dir", self.dir.clone().into());
        add("value-size", self.value_size.to_string().into());
        add("log", self.log.as_str().into());
        add("compressibility", common.compressibility.to_string().into());
        add("compression", common.compression.as_str().into());
        add("memtable-size", common.memtable_size.to_string().into());
        add("background-threads", common.background_threads.to_string().into());
        add("seed", common.seed.to_string().into());
        if let Some(codec) = common.bottom_compression {
            add("bottom-compression", codec.as_str().into());
        }
        let numbers = [
            ("memory-max", self.memory_max),
            ("records", common.records),
            ("operations", common.operations),
            ("seconds", common.seconds),
            ("cache", common.cache),
            ("block-size", common.block_size),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                add(name, number.to_string().into());
            }
        }
        let flags = [("--quick", common.quick), ("--buffered", common.buffered)];
        words.extend(self.own.words().into_iter().map(OsString::from));
        words.extend(flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (*name).into()));
        words
    }
}

/// Most records: their versions and those of the updates are counted with 32 bits.
const RECORDS_MAX: u64 = 1 << 31;
/// Bytes on disk beside the data: logs, metadata, files that a compaction is about to replace.
const DISK_SPARE: u64 = 512 * MIB;

/// A run, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload.
    pub workload: Workload,
    /// Records in the data set.
    pub records: u64,
    /// Most requests that are measured.
    pub operations: u64,
    /// Longest time for the requests; `None` without a limit.
    pub limit: Option<Duration>,
    /// The time of reads before the clock starts.
    pub warm_up: Duration,
    /// Bytes of a value.
    pub value_len: usize,
    /// Share of each value that is one repeated byte.
    pub compressibility: f64,
    /// Seed of the values and of the choice of records.
    pub seed: u64,
    /// Bytes of a block of a file that all engines of a comparison have; `None`: each one's guide
    /// decides.
    pub common_block_len: Option<u64>,
    /// This engine's own options, as [`OwnArgs::words`].
    pub own: Vec<String>,
    /// Most bytes that the process may have had resident at the end.
    pub memory_max: Option<u64>,
    /// The options with which the engine is opened.
    pub engine: EngineOptions,
}

fn in_range(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("--{name} is {value}, allowed are {min} to {max}")))
}

impl RunArgs {
    /// Checks every option.
    ///
    /// # Errors
    /// One is out of its range; the message names it and the range.
    pub fn plan(&self) -> Result<Plan> {
        in_range("value-size", self.value_size, Values::LEN_MIN as u64, VALUE_LEN_MAX as u64)?;
        let records = self.common.records.unwrap_or(self.default_records());
        // A seek goes through 51 of them.
        in_range("records", records, 100, RECORDS_MAX)?;
        let operations = self.common.operations.unwrap_or(match self.workload {
            workload if workload.is_timed_only() => RECORDS_MAX,
            Workload::Deleterandom => records / 2,
            _ => records,
        });
        let most = match self.workload {
            Workload::Fillseq | Workload::Fillrandom => records,
            Workload::Deleterandom => records / 2,
            _ => RECORDS_MAX,
        };
        in_range("operations", operations, 1, most)?;
        if !(0.0..=1.0).contains(&self.common.compressibility) {
            return Err(Error::invalid(format!(
                "--compressibility is {}, allowed are 0 to 1",
                self.common.compressibility
            )));
        }
        in_range("memtable-size", self.common.memtable_size, MIB, GIB)?;
        in_range("background-threads", u64::from(self.common.background_threads), 1, 64)?;
        let data_len = records * (KEY_LEN as u64 + self.value_size);
        let cache_len = self.common.cache.unwrap_or(match self.workload {
            Workload::ReadrandomUncached => (data_len / 4).max(MIB),
            _ => 2 * data_len + 64 * MIB,
        });
        in_range("cache", cache_len, MIB, 1 << 40)?;
        if let Some(block_len) = self.common.block_size {
            in_range("block-size", block_len, KIB, MIB)?;
        }
        self.own.check()?;
        let mut plan = Plan {
            workload: self.workload,
            records,
            operations,
            limit: self.limit()?,
            warm_up: Duration::from_millis(if self.common.quick { 500 } else { 3_000 }),
            value_len: self.value_size as usize,
            compressibility: self.common.compressibility,
            seed: self.common.seed,
            common_block_len: self.common.block_size,
            own: self.own.words(),
            memory_max: self.memory_max,
            engine: EngineOptions {
                directory: self.dir.clone(),
                disk_len: 0,
                memtable_len: self.common.memtable_size,
                cache_len,
                block_len: self.own.own_block_size.or(self.common.block_size),
                write_buffers: self.own.write_buffers,
                recycled_logs: self.own.recycled_logs,
                codec: self.common.compression,
                bottom_codec: self.common.bottom_compression,
                growth_factor: None,
                large_values: self.own.large_values,
                background_threads: self.common.background_threads,
                is_direct: !self.common.buffered,
                log: self.log,
            },
        };
        plan.engine.disk_len = plan.disk_len();
        Ok(plan)
    }

    /// Records where no number is asked for. Write-only workloads have no quick data set: a quarter
    /// is a burst of less than a second, which logs and MemTables take up, or much of it.
    const fn default_records(&self) -> u64 {
        let quick = if self.common.quick && self.workload.reads() { 4 } else { 1 };
        default_records(self.value_size) / quick
    }

    fn limit(&self) -> Result<Option<Duration>> {
        if let Some(seconds) = self.common.seconds {
            in_range("seconds", seconds, 1, 86_400)?;
            return Ok(Some(Duration::from_secs(seconds)));
        }
        let seconds = match (self.common.quick, self.workload.mix().is_some()) {
            _ if self.workload.is_timed_only() => Some(if self.common.quick { 5 } else { 20 }),
            (true, _) => Some(if self.workload.reads() { 10 } else { 15 }),
            _ if self.log == Log::Synced => Some(20),
            (false, true) => Some(60),
            (false, false) => None,
        };
        Ok(seconds.map(Duration::from_secs))
    }
}

/// Long enough that compaction reaches several levels, short enough for a machine of two cores.
const fn default_records(value_len: u64) -> u64 {
    match value_len {
        0..=128 => 4_000_000,
        129..=512 => 3_000_000,
        _ => 2_000_000,
    }
}

impl Plan {
    /// Bytes of all records, keys and values.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.records * (KEY_LEN + self.value_len) as u64
    }

    /// Free bytes on disk without which a run does not begin: the data three times, the updates,
    /// and a spare. The largest compaction keeps its input until it has written its output.
    #[must_use]
    pub fn disk_len(&self) -> u64 {
        let anew = if self.workload.is_loaded() && self.workload.writes() {
            self.operations.min(self.records) * (KEY_LEN + self.value_len) as u64
        } else {
            0
        };
        3 * self.data_len() + anew + DISK_SPARE
    }
}

/// A number of bytes, such as `16MiB`, `256M`, `64k` or `4096`. Units are powers of 1,024.
///
/// # Errors
/// The text is none, or over 2⁶⁴.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is no size: a whole number with K, M, G or T, as in 256MiB");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => GIB << 10,
        _ => return Err(wrong()),
    };
    number.checked_mul(scale).ok_or_else(|| format!("`{text}` is more bytes than 64 bits count"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let words = [&["run", "--dir", "d"], words].concat();
        let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        line.args.plan().map_err(|e| e.to_string())
    }

    #[test]
    fn reads_end_by_time_and_fills_by_records() {
        let reads = plan(&["--workload", "readrandom", "--value-size", "1000"]).unwrap();
        assert_eq!(reads.limit, Some(Duration::from_secs(20)));
        assert_eq!((reads.records, reads.operations), (2_000_000, RECORDS_MAX));
        let fill = plan(&["--workload", "fillrandom"]).unwrap();
        assert_eq!((fill.limit, fill.records, fill.operations), (None, 4_000_000, 4_000_000));
        let synced = plan(&["--workload", "fillrandom", "--log", "synced"]).unwrap();
        assert_eq!(synced.limit, Some(Duration::from_secs(20)));
    }

    #[test]
    fn quick_is_a_quarter_for_what_reads_and_all_of_it_for_what_only_writes() {
        for (size, all) in [("100", 4_000_000), ("400", 3_000_000), ("1000", 2_000_000)] {
            for workload in Workload::all() {
                let words = ["--quick", "--value-size", size, "--workload", workload.as_str()];
                let plan = plan(&words).unwrap();
                let (parts, seconds) = if workload.reads() { (4, 10) } else { (1, 15) };
                assert_eq!(plan.records, all / parts, "{words:?}");
                assert!(plan.limit.unwrap() <= Duration::from_secs(seconds), "{words:?}");
            }
        }
    }

    #[test]
    fn what_only_writes_makes_as_many_requests_with_quick_as_without() {
        for name in ["fillseq", "fillrandom", "overwrite", "deleterandom", "ycsb-g"] {
            for log in ["off", "on", "synced"] {
                let words = ["--workload", name, "--log", log];
                let quick = plan(&[&words[..], &["--quick"]].concat()).unwrap();
                let all = plan(&words).unwrap();
                assert_eq!((quick.records, quick.operations), (all.records, all.operations));
                assert_eq!(quick.limit, Some(Duration::from_secs(15)), "{words:?}");
            }
        }
    }

    #[test]
    fn the_cache_holds_all_data_or_a_quarter_of_it() {
        for workload in Workload::all() {
            let plan = plan(&["--workload", workload.as_str()]).unwrap();
            let (cache, data) = (plan.engine.cache_len, plan.data_len());
            match workload {
                Workload::ReadrandomUncached => assert_eq!(cache, data / 4),
                _ => assert!(cache > 2 * data),
            }
        }
    }

    #[test]
    fn a_bad_option_is_refused_by_name_and_limit() {
        let cases: [(&[&str], &str); 11] = [
            (&["--large-values", "9MiB"], "--large-values is 9437184, allowed are 0 to 8388608"),
            (&["--write-buffers", "1"], "--write-buffers is 1, allowed are 2 to 64"),
            (&["--own-block-size", "1"], "--own-block-size is 1, allowed are 1024 to 1048576"),
            (&["--value-size", "15"], "--value-size is 15, allowed are 16 to 8388608"),
            (&["--records", "99"], "--records is 99, allowed are 100 to 2147483648"),
            (
                &["--records", "100", "--operations", "101"],
                "--operations is 101, allowed are 1 to 100",
            ),
            (&["--compressibility", "NaN"], "--compressibility is NaN, allowed are 0 to 1"),
            (&["--memtable-size", "1"], "--memtable-size is 1, allowed are 1048576 to"),
            (&["--background-threads", "0"], "--background-threads is 0, allowed are 1 to 64"),
            (&["--block-size", "1"], "--block-size is 1, allowed are 1024 to 1048576"),
            (&["--seconds", "0"], "--seconds is 0, allowed are 1 to"),
        ];
        for (words, message) in cases {
            let error = plan(&[&["--workload", "fillseq"], words].concat()).unwrap_err();
            assert!(error.contains(message), "{words:?}: {error}");
        }
        assert!(plan(&["--workload", "fill"]).unwrap_err().contains("fillseq"));
    }

    #[test]
    fn an_engine_s_own_blocks_come_before_those_of_all() {
        let words = ["--workload", "readrandom", "--block-size", "8KiB"];
        let of_all = plan(&words).unwrap();
        assert_eq!((of_all.engine.block_len, of_all.own.len()), (Some(8192), 0));
        let own = plan(&[&words[..], &["--own-block-size", "4KiB"]].concat()).unwrap();
        assert_eq!((own.engine.block_len, own.common_block_len), (Some(4096), Some(8192)));
        assert_eq!(own.own, ["--own-block-size=4096"]);
    }

    #[test]
    fn bytes_are_written_with_binary_units() {
        assert_eq!(parse_bytes("1000"), Ok(1000));
        assert_eq!(parse_bytes("16MiB"), Ok(16 * MIB));
        assert_eq!(parse_bytes("2g"), Ok(2 * GIB));
        for bad in ["", "MiB", "-1", "1.5M", "12 parsecs", "99999999999GiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
