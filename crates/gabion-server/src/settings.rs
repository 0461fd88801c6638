//! The options that CONFIG SET changes while a replica runs, until it ends: they are of this
//! process alone.

use crate::commands::{NotSet, SLOWLOG_ENTRIES_MAX, SlowlogLimits};
use bytes::Bytes;
use gabion_base::Result as BaseResult;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_engine::{Codecs, Compression, PinBudget, WriteLimits};
use gabion_host::RunOptions;
use gabion_host::cache::SharedCache;
use gabion_node::{Node, NodeOptions};

pub(crate) const BLOCK_CACHE_BYTES: &str = "gabion-block-cache-bytes";
pub(crate) const BOTTOM_COMPRESSION: &str = "gabion-bottom-compression";
pub(crate) const COLLECTION_RATE: &str = "gabion-collection-rate";
pub(crate) const COMPACTIONS_MAX: &str = "gabion-compactions-max";
pub(crate) const COMPRESSION: &str = "gabion-compression";
pub(crate) const L0_SLOWDOWN: &str = "gabion-l0-slowdown";
pub(crate) const L0_STOP: &str = "gabion-l0-stop";
pub(crate) const L0_TRIGGER: &str = "gabion-l0-trigger";
pub(crate) const MEMTABLE_BYTES: &str = "gabion-memtable-bytes";
pub(crate) const OPEN_FILES_BYTES: &str = "gabion-open-files-bytes";
pub(crate) const READER_AGE_MS: &str = "gabion-reader-age-ms";
pub(crate) const READER_STATES: &str = "gabion-reader-states";
pub(crate) const REBUILD_RATE: &str = "gabion-rebuild-rate";
pub(crate) const VALUE_COMPRESSION: &str = "gabion-value-compression";

pub(crate) const CLIENTS_MAX: &str = "maxclients";
pub(crate) const SLOWLOG_LEN: &str = "slowlog-max-len";
pub(crate) const SLOWLOG_SLOWER_THAN: &str = "slowlog-log-slower-than";
pub(crate) const TCP_KEEPALIVE: &str = "tcp-keepalive";
pub(crate) const TIMEOUT: &str = "timeout";

/// Options of Redis that clients ask for, with the value that is true here. They cannot change.
pub(crate) const FIXED: [(&str, &str); 33] = [
    ("activedefrag", "no"),
    ("appendfsync", "everysec"),
    ("appendonly", "yes"),
    ("daemonize", "no"),
    ("databases", "1"),
    ("enable-debug-command", "no"),
    ("enable-module-command", "no"),
    ("enable-protected-configs", "no"),
    ("io-threads", "1"),
    ("latency-monitor-threshold", "0"),
    ("latency-tracking", "no"),
    ("logfile", ""),
    ("masterauth", ""),
    ("masteruser", ""),
    ("maxmemory", "0"),
    ("maxmemory-clients", "0"),
    ("maxmemory-policy", "noeviction"),
    ("maxmemory-samples", "5"),
    ("min-replicas-to-write", "0"),
    ("min-slaves-to-write", "0"),
    ("notify-keyspace-events", ""),
    ("protected-mode", "yes"),
    ("replica-priority", "100"),
    ("replica-read-only", "no"),
    ("replica-serve-stale-data", "no"),
    ("save", ""),
    ("slave-priority", "100"),
    ("slave-read-only", "no"),
    ("slave-serve-stale-data", "no"),
    ("supervised", "no"),
    ("tcp-backlog", "511"),
    ("tracking-table-max-keys", "0"),
    ("unixsocket", ""),
];

/// Those that CONFIG SET takes.
const SETTABLE: [&str; 19] = [
    BLOCK_CACHE_BYTES,
    BOTTOM_COMPRESSION,
    CLIENTS_MAX,
    COLLECTION_RATE,
    COMPACTIONS_MAX,
    COMPRESSION,
    L0_SLOWDOWN,
    L0_STOP,
    L0_TRIGGER,
    MEMTABLE_BYTES,
    OPEN_FILES_BYTES,
    READER_AGE_MS,
    READER_STATES,
    REBUILD_RATE,
    SLOWLOG_LEN,
    SLOWLOG_SLOWER_THAN,
    TCP_KEEPALIVE,
    TIMEOUT,
    VALUE_COMPRESSION,
];
const NO_INTEGER: &str = "argument couldn't be parsed into an integer";
const NO_SECONDS: &str = "argument must be between 0 and 2147483647 inclusive";
const NO_CLIENTS: &str =
    "argument must be between 1 and the number of clients for which the process has descriptors";
const NO_TIME: &str = "argument must be between -1 and 9223372036854775807 inclusive";
const NO_ENTRIES: &str = "argument must be between 0 and 16384 inclusive";
const _: () = assert!(SLOWLOG_ENTRIES_MAX == 16_384, "NO_ENTRIES says so");
const NO_COUNT: &str = "argument must be between 1 and 64 inclusive";
const _: () = assert!(RunOptions::COMPACTIONS_MAX == 64, "NO_COUNT says so");
const NO_THREAD: &str = "a thread for compactions cannot be started";
const NO_CODEC: &str = "argument must be none, lz4, zstd or zstd:1 to zstd:19";
const NO_LENGTH: &str = "argument must be 4kb to a sixteenth of the pool, and 1gb at most";
const NO_RUNS: &str =
    "gabion-l0-trigger, gabion-l0-slowdown and gabion-l0-stop must not descend, from 1 to 1000";
const NO_RATE: &str = "argument must be 0 or a memory value of at least 1mb";
const _: () = assert!(NodeOptions::REBUILD_RATE_MIN == 1 << 20, "NO_RATE says so");
const _: () = assert!(NodeOptions::COLLECTION_RATE_MIN == 1 << 20, "NO_RATE says so");
/// The codec of the bottom when it is that of all levels.
pub(crate) const SAME: &str = "same";

/// What is set of the door for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoorSettings {
    /// Most connections.
    pub(crate) clients_max: usize,
    /// Seconds after which a connection is closed that asks nothing; 0: never.
    pub(crate) timeout_s: u64,
    /// Seconds of silence after which a new connection's other end is asked whether it lives; 0:
    /// never.
    pub(crate) keepalive_s: u64,
    /// Which commands SLOWLOG keeps.
    pub(crate) slowlog: SlowlogLimits,
}

impl DoorSettings {
    /// Redis's, with as many connections as there may be.
    pub(crate) fn new(clients_max: usize) -> Self {
        Self { clients_max, timeout_s: 0, keepalive_s: 300, slowlog: SlowlogLimits::default() }
    }
}

/// What is to be set, or is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Bytes of memory for decoded blocks of files.
    pub(crate) block_cache_bytes: usize,
    /// Bytes of memory for indexes and filters of open files.
    pub(crate) open_files_bytes: usize,
    /// Compactions that may run at once.
    pub(crate) compactions_max: usize,
    /// What readers may keep of what compactions have replaced.
    pub(crate) readers: PinBudget,
    /// The codecs of files that this replica makes from now on.
    pub(crate) codecs: Codecs,
    /// When MemTables are sealed, and how many runs L0 may have.
    pub(crate) limits: WriteLimits,
    /// Bytes a second that are fetched while this replica is being filled and clients write.
    pub(crate) rebuild_rate: u64,
    /// How large values are packed that are written from now on.
    pub(crate) value_codec: Compression,
    /// Bytes a second of large values that compactions copy out of files with garbage.
    pub(crate) collection_rate: u64,
    /// What counts for connections.
    pub(crate) door: DoorSettings,
}

impl Settings {
    /// Those of a replica.
    pub(crate) fn of(node: &Node, cache: &SharedCache, door: DoorSettings) -> Self {
        Self {
            block_cache_bytes: cache.capacity(),
            open_files_bytes: cache.open_capacity(),
            compactions_max: node.compactions_max(),
            readers: node.pin_budget(),
            codecs: node.tree().config().codecs(),
            limits: node.tree().config().write_limits(),
            rebuild_rate: node.rebuild_rate(),
            value_codec: node.tree().config().value_compression,
            collection_rate: node.collection_rate(),
            door,
        }
    }

    /// These with `options` changed, or why one of them cannot be: as in Redis, names are looked at
    /// before values. `value_of` is the value of the option of a name, in lower case, be it one
    /// that cannot change: that one may be set to what it is.
    pub(crate) fn with<'a>(
        mut self,
        options: &[(Bytes, Bytes)],
        value_of: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, NotSet> {
        let mut names: Vec<String> = Vec::new();
        for (given, _) in options {
            let name = String::from_utf8_lossy(given).to_ascii_lowercase();
            if names.contains(&name) {
                return Err(NotSet::Refused { name: given.clone(), why: "duplicate parameter" });
            }
            if value_of(&name).is_none() && !SETTABLE.contains(&&*name) {
                return Err(NotSet::Unknown(given.clone()));
            }
            names.push(name);
        }
        let mut settable = Vec::new();
        for (name, (given, value)) in names.iter().zip(options) {
            let is_so = |now: &str| value.eq_ignore_ascii_case(now.as_bytes());
            if SETTABLE.contains(&&**name) {
                settable.push((name, given, value));
            } else if !value_of(name).is_some_and(is_so) {
                let why = "can't set immutable config";
                return Err(NotSet::Refused { name: given.clone(), why });
            }
        }
        for (name, given, value) in settable {
            self.set(name, value).map_err(|why| NotSet::Refused { name: given.clone(), why })?;
        }
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), &'static str> {
        let integer = parse_u64(value).ok_or(NO_INTEGER);
        let codec = || {
            let text = std::str::from_utf8(value).unwrap_or_default();
            text.parse().map_err(|_| NO_CODEC)
        };
        match name {
            COMPRESSION => self.codecs.upper = codec()?,
            VALUE_COMPRESSION => self.value_codec = codec()?,
            BOTTOM_COMPRESSION => {
                self.codecs.bottom = if value == SAME.as_bytes() { None } else { Some(codec()?) };
            }
            COMPACTIONS_MAX => {
                let count = usize::try_from(integer?).unwrap_or(usize::MAX);
                if !(1..=RunOptions::COMPACTIONS_MAX).contains(&count) {
                    return Err(NO_COUNT);
                }
                self.compactions_max = count;
            }
            L0_SLOWDOWN => self.limits.l0_slowdown = runs(integer?),
            L0_STOP => self.limits.l0_stop = runs(integer?),
            L0_TRIGGER => self.limits.l0_trigger = runs(integer?),
            SLOWLOG_LEN => {
                let most = usize::try_from(integer?).unwrap_or(usize::MAX);
                self.door.slowlog.entries_max =
                    Some(most).filter(|most| *most <= SLOWLOG_ENTRIES_MAX).ok_or(NO_ENTRIES)?;
            }
            SLOWLOG_SLOWER_THAN => {
                let us = parse_i64(value).ok_or(NO_INTEGER)?;
                self.door.slowlog.slower_than_us =
                    Some(us).filter(|us| *us >= -1).ok_or(NO_TIME)?;
            }
            // Whether there are descriptors for so many comes out when it is applied.
            CLIENTS_MAX => self.door.clients_max = usize::try_from(integer?).unwrap_or(usize::MAX),
            TCP_KEEPALIVE => self.door.keepalive_s = seconds(integer?)?,
            TIMEOUT => self.door.timeout_s = seconds(integer?)?,
            REBUILD_RATE => {
                let rate =
                    memory(value).filter(|rate| NodeOptions::check_rebuild_rate(*rate).is_ok());
                self.rebuild_rate = rate.ok_or(NO_RATE)?;
            }
            COLLECTION_RATE => {
                let rate =
                    memory(value).filter(|rate| NodeOptions::check_collection_rate(*rate).is_ok());
                self.collection_rate = rate.ok_or(NO_RATE)?;
            }
            READER_AGE_MS => self.readers.age_ms_max = integer?,
            READER_STATES => self.readers.states_max = integer? as usize,
            _ => {
                let len = memory(value).and_then(|len| usize::try_from(len).ok());
                let len = len.ok_or("argument must be a memory value")?;
                match name {
                    MEMTABLE_BYTES => self.limits.memtable_len = len as u64,
                    OPEN_FILES_BYTES => self.open_files_bytes = len,
                    _ => self.block_cache_bytes = len,
                }
            }
        }
        Ok(())
    }

    /// Makes them so, or changes nothing; those of the door are the caller's. What is too much for
    /// smaller ones goes at once; compactions under way go on. `grow` starts the threads that are
    /// missing for so many of them, `clients_max` is the most that there may be.
    pub(crate) fn apply(
        self,
        node: &mut Node,
        cache: &SharedCache,
        clients_max: usize,
        grow: impl FnOnce(usize) -> BaseResult<()>,
    ) -> Result<(), NotSet> {
        let refused = |name: &'static str, why| NotSet::Refused { name: name.into(), why };
        if !(1..=clients_max).contains(&self.door.clients_max) {
            return Err(refused(CLIENTS_MAX, NO_CLIENTS));
        }
        let limits = Some(self.limits);
        let before = node.tree().config().write_limits();
        let runs = WriteLimits { memtable_len: before.memtable_len, ..self.limits };
        runs.check().map_err(|_| refused(L0_TRIGGER, NO_RUNS))?;
        node.check_write_limits(limits).map_err(|_| refused(MEMTABLE_BYTES, NO_LENGTH))?;
        grow(self.compactions_max).map_err(|error| {
            note!("{COMPACTIONS_MAX} {}: {error}", self.compactions_max);
            refused(COMPACTIONS_MAX, NO_THREAD)
        })?;
        node.set_write_limits(limits).map_err(|_| refused(MEMTABLE_BYTES, NO_LENGTH))?;
        node.set_codecs(Some(self.codecs)).map_err(|_| refused(COMPRESSION, NO_CODEC))?;
        node.set_compactions_max(self.compactions_max);
        if cache.set_capacity(self.block_cache_bytes, self.open_files_bytes) {
            node.close_files();
        }
        node.set_pin_budget(self.readers);
        node.set_rebuild_rate(self.rebuild_rate).map_err(|_| refused(REBUILD_RATE, NO_RATE))?;
        node.set_collection_rate(self.collection_rate)
            .map_err(|_| refused(COLLECTION_RATE, NO_RATE))?;
        node.set_value_compression(Some(self.value_codec))
            .map_err(|_| refused(VALUE_COMPRESSION, NO_CODEC))?;
        Ok(())
    }
}

/// More than anybody may have are as many as are refused.
fn runs(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn seconds(count: u64) -> Result<u64, &'static str> {
    if count <= i32::MAX as u64 { Ok(count) } else { Err(NO_SECONDS) }
}

/// Bytes as Redis reads them: `k`, `m`, `g` are powers of 1,000; `kb`, `mb`, `gb` of 1,024.
fn memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let factor = match &text[digits..].to_ascii_lowercase()[..] {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    parse_u64(&text[..digits])?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Settings = Settings {
        block_cache_bytes: 64,
        open_files_bytes: 65,
        compactions_max: 2,
        readers: PinBudget { age_ms_max: 5, states_max: 6 },
        codecs: Codecs { upper: Compression::None, bottom: None },
        limits: WriteLimits { memtable_len: 7, l0_trigger: 8, l0_slowdown: 9, l0_stop: 10 },
        rebuild_rate: 13,
        value_codec: Compression::None,
        collection_rate: 14,
        door: DoorSettings {
            clients_max: 100,
            timeout_s: 0,
            keepalive_s: 300,
            slowlog: SlowlogLimits { slower_than_us: 11, entries_max: 12 },
        },
    };

    fn with(options: &[(&str, &str)]) -> Result<Settings, NotSet> {
        let own = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let options: Vec<_> = options.iter().map(|(n, v)| (own(n), own(v))).collect();
        BEFORE.with(&options, |name| match name {
            "port" => Some("6379"),
            "appendonly" => Some("yes"),
            _ => None,
        })
    }

    /// docs/faults.md: P15
    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        assert_eq!(with(&[]), Ok(BEFORE));
        let cache = |text| with(&[(BLOCK_CACHE_BYTES, text)]).map(|set| set.block_cache_bytes);
        for (text, len) in [("0", 0), ("7b", 7), ("2k", 2_000), ("2KB", 2_048), ("3m", 3_000_000)] {
            assert_eq!(cache(text), Ok(len), "{text}");
        }
        for (text, len) in [("3mb", 3 << 20), ("1g", 1_000_000_000), ("1Gb", 1 << 30)] {
            assert_eq!(cache(text), Ok(len), "{text}");
        }
        let set = with(&[(OPEN_FILES_BYTES, "1kb")]);
        assert_eq!(set, Ok(Settings { open_files_bytes: 1_024, ..BEFORE }));
        for (text, compactions_max) in [("1", 1), ("64", 64)] {
            let set = with(&[(COMPACTIONS_MAX, text)]);
            assert_eq!(set, Ok(Settings { compactions_max, ..BEFORE }));
        }
        let readers = PinBudget { age_ms_max: 0, states_max: 9 };
        let set = with(&[(READER_AGE_MS, "0"), (READER_STATES, "9")]);
        assert_eq!(set, Ok(Settings { readers, ..BEFORE }));
        let codecs = |upper, bottom| Ok(Settings { codecs: Codecs { upper, bottom }, ..BEFORE });
        let (lz4, zstd) = (Compression::Lz4, Compression::Zstd { level: 9 });
        assert_eq!(with(&[(COMPRESSION, "lz4")]), codecs(lz4, None));
        let both = [(COMPRESSION, "lz4"), (BOTTOM_COMPRESSION, "zstd:9")];
        assert_eq!(with(&both), codecs(lz4, Some(zstd)));
        assert_eq!(
            with(&[(BOTTOM_COMPRESSION, "none")]),
            codecs(Compression::None, Some(Compression::None))
        );
        assert_eq!(with(&[(BOTTOM_COMPRESSION, SAME)]), Ok(BEFORE));
        let set = with(&[(VALUE_COMPRESSION, "zstd:9")]);
        assert_eq!(set, Ok(Settings { value_codec: zstd, ..BEFORE }));
        let all = [(MEMTABLE_BYTES, "1mb"), (L0_TRIGGER, "2"), (L0_SLOWDOWN, "3"), (L0_STOP, "4")];
        let limits =
            WriteLimits { memtable_len: 1 << 20, l0_trigger: 2, l0_slowdown: 3, l0_stop: 4 };
        assert_eq!(with(&all), Ok(Settings { limits, ..BEFORE }));
        let slowlog = SlowlogLimits { slower_than_us: -1, entries_max: 16_384 };
        let door = DoorSettings { clients_max: 99, timeout_s: 5, keepalive_s: 0, slowlog };
        let all = [
            (CLIENTS_MAX, "99"),
            (TIMEOUT, "5"),
            (TCP_KEEPALIVE, "0"),
            (SLOWLOG_SLOWER_THAN, "-1"),
            (SLOWLOG_LEN, "16384"),
        ];
        assert_eq!(with(&all), Ok(Settings { door, ..BEFORE }));
        let far = with(&[(L0_STOP, "4294967297")]).map(|set| set.limits.l0_stop);
        assert_eq!(far, Ok(u32::MAX), "which no tree takes");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name_and_reason_names_before_values() {
        let name = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let refused = |option: &str, why| Err(NotSet::Refused { name: name(option), why });
        for text in ["", "kb", "-1", "1tb", "1.5g", "20000000000gb"] {
            let wanted = refused(BLOCK_CACHE_BYTES, "argument must be a memory value");
            assert_eq!(with(&[(BLOCK_CACHE_BYTES, text)]), wanted, "{text}");
        }
        for (option, text) in
            [(COMPRESSION, SAME), (COMPRESSION, "gzip"), (BOTTOM_COMPRESSION, "zstd:20")]
        {
            assert_eq!(with(&[(option, text)]), refused(option, NO_CODEC), "{text}");
        }
        for text in [SAME, "zstd:0", "lz4:1", ""] {
            let wanted = refused(VALUE_COMPRESSION, NO_CODEC);
            assert_eq!(with(&[(VALUE_COMPRESSION, text)]), wanted, "{text}");
        }
        for text in ["1048575", "1k", "-1", "fast"] {
            assert_eq!(with(&[(REBUILD_RATE, text)]), refused(REBUILD_RATE, NO_RATE), "{text}");
            let wanted = refused(COLLECTION_RATE, NO_RATE);
            assert_eq!(with(&[(COLLECTION_RATE, text)]), wanted, "{text}");
        }
        for (text, rate) in [("0", 0), ("1mb", 1 << 20), ("300m", 300_000_000)] {
            let wanted = Settings { rebuild_rate: rate, ..BEFORE };
            assert_eq!(with(&[(REBUILD_RATE, text)]), Ok(wanted), "{text}");
            let wanted = Settings { collection_rate: rate, ..BEFORE };
            assert_eq!(with(&[(COLLECTION_RATE, text)]), Ok(wanted), "{text}");
        }
        for text in ["0", "65", "18446744073709551615"] {
            assert_eq!(with(&[(COMPACTIONS_MAX, text)]), refused(COMPACTIONS_MAX, NO_COUNT));
        }
        let wanted = refused(READER_AGE_MS, "argument couldn't be parsed into an integer");
        assert_eq!(with(&[(READER_STATES, "1"), (READER_AGE_MS, "soon")]), wanted);
        for text in ["-1", "2147483648"] {
            let why = if text == "-1" { NO_INTEGER } else { NO_SECONDS };
            assert_eq!(with(&[(TIMEOUT, text)]), refused(TIMEOUT, why), "{text}");
        }
        assert_eq!(with(&[(SLOWLOG_LEN, "16385")]), refused(SLOWLOG_LEN, NO_ENTRIES));
        assert_eq!(with(&[(SLOWLOG_SLOWER_THAN, "-2")]), refused(SLOWLOG_SLOWER_THAN, NO_TIME));
        let soon = (READER_AGE_MS, "soon");
        assert_eq!(with(&[soon, ("Port", "1")]), refused("Port", "can't set immutable config"));
        assert_eq!(with(&[soon, ("Ports", "1")]), Err(NotSet::Unknown(name("Ports"))));
        // What cannot change may be set to what it is, and not twice.
        assert_eq!(with(&[("Port", "6379"), ("appendonly", "YES")]), Ok(BEFORE));
        let twice = [("port", "1"), ("PORT", "2")];
        assert_eq!(with(&twice), refused("PORT", "duplicate parameter"));
        let again = "GABION-reader-age-ms";
        assert_eq!(with(&[soon, (again, "1"), ("x", "1")]), refused(again, "duplicate parameter"));
    }
}
