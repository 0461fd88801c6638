//! The data directory: its fixed settings, its users, its creation and removal.
//!
//! ```text
//!   DATA/cluster.json       what is fixed, the first port, the version of this layout
//!        lock               held (flock) by `up` and by whatever reads or removes the pools
//!        replica-N/pool     preallocated; replica-N/ring; replica-N/log: what the process said
//!        group-2/           the same of each further group, which cluster.json counts
//!        control/           the controller's store, and the socket of a running `up`
//!        unfinished         there while data is made or removed: then nothing of it counts
//! ```
//!
//! `cluster.json` makes the rest count: creation writes it last, removal takes it first, and both
//! leave `unfinished` until they are done. So the remains of a kill are either whole or marked. The
//! next `up` removes marked ones, as far as they are Gabion's by [`crate::owned`].

use crate::control;
use crate::door;
use crate::options::{DataOption, FixedOptions, WhereOptions};
use crate::owned::{self, Owner};
use crate::units::{count, exact_size, size};
use gabion_base::units::{GIB, KIB, MIB};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_engine::sst::SstOptions;
use gabion_engine::{Codecs, LEVEL1_MEMTABLES, TreeConfig, check_large_values};
use gabion_fabric::fresh::{NewFile, rename_new};
use gabion_fabric::lock::lock_held_by;
use gabion_node::{AckLevel, CompactionMode, GroupConfig, PoolLengths};
use gabion_pool::superblock::POOL_LEN_MAX;
use gabion_server::commands::slots::GROUPS_MAX;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The version of the layout above and of `cluster.json`.
const FORMAT: u64 = 2;
/// The highest port of a group lies at most this far above its first one.
pub(crate) const PORTS_ABOVE: u16 = PORT_TARGET + 15;
/// The first port of a group lies so far above that of the group before.
pub(crate) const PORTS_OF_GROUP: u16 = 400;
/// The first group's replicas as nodes of a cluster: at their other ports they answer for all
/// groups.
const PORT_NODE: u16 = 50;
const PORT_PEER: u16 = 100;
const PORT_TARGET: u16 = 200;

/// How long, and how often, an occupied port is tried again.
const PORTS_MAX: Duration = Duration::from_secs(2);
const PORTS_EVERY: Duration = Duration::from_millis(20);

/// Replicas of a group at most, spares too.
pub(crate) const REPLICAS_MAX: u32 = 16;
/// Members that a group of several needs to take writes, without `--min-replicas`.
const MIN_DEFAULT: u32 = 2;
const POOL_LEN_DEFAULT: u64 = 4 * GIB;
pub(crate) const POOL_LEN_MIN: u64 = 256 * MIB;
const SEGMENT_LEN: u64 = 16 * MIB;
/// Writes wait while less than half of it is free; draining begins at a quarter.
pub(crate) const RING_LEN: u64 = 4 * SEGMENT_LEN;
/// The same for a replica alone: it holds all MemTables that may wait for their flush, so that
/// their log need not be drained.
const RING_LEN_ALONE: u64 = 2 * RING_LEN;

const fn ring_len(replicas: u32) -> u64 {
    if replicas == 1 { RING_LEN_ALONE } else { RING_LEN }
}
const MEMTABLE_LEN_MIN: u64 = 64 * KIB;
const MEMTABLE_LEN_MAX: u64 = GIB;

/// The settings that are fixed when the data is made, and the port, which may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Random, so that no replica takes another cluster's directory for its own.
    pub(crate) group: GroupId,
    pub(crate) replicas: u32,
    /// Groups over which keys are spread.
    pub(crate) groups: u32,
    /// The group that these settings are of, counted from 0.
    pub(crate) place: u32,
    /// Full members with which the group takes writes.
    pub(crate) members_min: u32,
    /// Replicas that were made without data, to take over for others.
    pub(crate) spares: u32,
    pub(crate) port: u16,
    pub(crate) pool_len: u64,
    pub(crate) compaction: CompactionMode,
    pub(crate) ack: AckLevel,
    pub(crate) memtable_len: u64,
    pub(crate) codecs: Codecs,
    /// Bytes at which a level of the tree aims ÷ those of the level above it.
    pub(crate) growth_factor: u32,
    /// Bytes of a value from which on it lies apart from the tree, if no option says otherwise; 0:
    /// none does, as in groups that were made before there was a default.
    pub(crate) large_values: u32,
}

/// The three doors of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doors {
    pub(crate) resp: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) target: SocketAddr,
}

/// Succeeds when the address can be listened on before the moment is over.
pub(crate) fn free_by(moment: Instant, address: SocketAddr) -> io::Result<()> {
    loop {
        match TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse || Instant::now() > moment => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(PORTS_EVERY),
        }
    }
}

/// A group that no other cluster has, as far as 32 random bits go: short enough to read in
/// messages.
pub(crate) fn new_group() -> Result<GroupId> {
    let [a, b, c, d, ..] = gabion_server::random_id()?;
    Ok(GroupId(u64::from(u32::from_le_bytes([a, b, c, d]).max(1))))
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The least number of members in `cluster.json`. It is absent in data of an earlier build, which
/// could lose no member: that gets the default, as the members learn the number with the first view
/// that a controller makes. So the format is no other one.
const MEMBERS_MIN: &str = "min_replicas";
/// The number of spares in `cluster.json`, where there are some.
const SPARES: &str = "spares";
/// The number of groups in `cluster.json`, where there are several.
const GROUPS: &str = "groups";
/// The place of the group among them, where it is not the first: of a group on nodes.
const PLACE: &str = "place";
/// The codec of the bottom in `cluster.json`, where it has one of its own.
const BOTTOM: &str = "bottom_compression";
/// By how much levels grow in `cluster.json`, where it is not as usual: in data of a benchmark.
const GROWTH: &str = "growth_factor";
const LARGE_VALUES: &str = "large_values";
/// The same as usual.
pub(crate) fn growth_usual() -> u32 {
    TreeConfig::default().level_multiplier
}

impl Settings {
    /// The numbers of the replicas that the group was made with, from the head of the chain to its
    /// tail.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + use<> {
        // So that the heads of several groups are spread over the processes.
        let (count, first) = (self.replicas, self.place);
        (0..count).map(move |i| (i + first) % count + 1)
    }

    /// The settings of each group, with the directory of its replicas in that of the data.
    pub(crate) fn by_group(&self, data: &Path) -> Vec<(PathBuf, Self)> {
        (0..self.groups).map(|place| (group_dir(data, place), self.of_group(place))).collect()
    }

    /// The settings of a group, from those of the first.
    pub(crate) fn of_group(&self, place: u32) -> Self {
        assert!(place < self.groups, "group {place} of {}", self.groups);
        assert_eq!(self.place, 0, "counted from the first group");
        Self {
            place,
            group: GroupId(self.group.get() + u64::from(place)),
            port: self.port + PORTS_OF_GROUP * place as u16,
            ..self.clone()
        }
    }

    /// The address at which clients of clusters reach a replica; none where there is one group.
    pub(crate) fn node_door(&self, number: u32) -> Option<SocketAddr> {
        let above = if self.place == 0 { PORT_NODE } else { 0 };
        (self.groups > 1).then(|| loopback(self.port + above + (number - 1) as u16))
    }

    /// Refuses ports that lie too high for all groups.
    fn check_highest_port(&self) -> Result<()> {
        let above = u32::from(PORTS_ABOVE) + u32::from(PORTS_OF_GROUP) * (self.groups - 1);
        let most = u32::from(u16::MAX) - above;
        if u32::from(self.port) <= most {
            return Ok(());
        }
        Err(Error::limit(format!(
            "--port {}: with {} groups {most} is the highest that is possible",
            self.port, self.groups
        )))
    }

    /// The numbers of all replicas, spares too.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.replicas + self.spares
    }

    /// The addresses of replica `number`.
    pub(crate) fn doors(&self, number: u32) -> Doors {
        let port = self.port + (number - 1) as u16;
        Doors {
            resp: loopback(port),
            peer: loopback(port + PORT_PEER),
            target: loopback(port + PORT_TARGET),
        }
    }

    /// Bytes of disk that one replica reserves: pool and ring.
    pub(crate) const fn replica_len(&self) -> u64 {
        self.pool_len + ring_len(self.replicas)
    }

    /// Bytes of disk that the whole group reserves, its controller included.
    pub(crate) fn reserved(&self) -> u64 {
        let of_group = u64::from(self.replicas + self.spares) * self.replica_len();
        u64::from(self.groups) * (of_group + self.control_len())
    }

    /// Whether a controller looks after the group: one whose replicas compact each for itself has
    /// the same members for ever, and one of one has nobody who could take over.
    pub(crate) fn has_controller(&self) -> bool {
        self.replicas > 1 && self.compaction == CompactionMode::Primary
    }

    /// Bytes of disk that the controller's store reserves.
    fn control_len(&self) -> u64 {
        if self.has_controller() { control::STORE_LEN } else { 0 }
    }

    /// The members without `--min-replicas`.
    fn members_min_default(replicas: u32, compaction: CompactionMode) -> u32 {
        match compaction {
            CompactionMode::Primary => MIN_DEFAULT.min(replicas),
            // No member can be lost.
            CompactionMode::EveryReplica => replicas,
        }
    }

    /// The configuration of every pool of the group.
    pub(crate) fn group(&self) -> GroupConfig {
        let sst_len = PoolLengths::of(self.pool_len).sst_len;
        let level1_len = LEVEL1_MEMTABLES * self.memtable_len;
        GroupConfig {
            group: self.group,
            founders: self.members().map(ReplicaId).collect(),
            compaction: self.compaction,
            ack: self.ack,
            ring_len: ring_len(self.replicas),
            segment_len: SEGMENT_LEN,
            tree: TreeConfig {
                memtable_len: self.memtable_len,
                sst_len,
                level1_len: level1_len.max(sst_len),
                sst: SstOptions { compression: self.codecs.upper, ..SstOptions::default() },
                bottom_compression: self.codecs.bottom,
                level_multiplier: self.growth_factor,
                large_values: self.large_values,
                ..TreeConfig::default()
            },
        }
    }

    /// Waits a moment for occupied ports: the processes of an `up` that was just killed close
    /// theirs as they end, maybe after they left the process table.
    ///
    /// # Errors
    /// Busy, naming the first port that stays occupied, purpose and option.
    pub(crate) fn check_ports(&self) -> Result<()> {
        self.check_highest_port()?;
        let groups = (0..self.groups).map(|place| self.of_group(place));
        groups.into_iter().try_for_each(|group| group.check_ports_of_group(self.port))
    }

    fn check_ports_of_group(&self, first: u16) -> Result<()> {
        let begun = Instant::now();
        for number in self.nodes() {
            let doors = self.doors(number);
            let node = self.node_door(number).filter(|door| *door != doors.resp);
            let doors =
                [(doors.resp, "clients"), (doors.peer, "members"), (doors.target, "NVMe/TCP")];
            let node = node.map(|door| (door, "clients of clusters"));
            for (address, purpose) in doors.into_iter().chain(node) {
                let Err(error) = free_by(begun + PORTS_MAX, address) else { continue };
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "port {} ({purpose} of replica {number}) cannot be used: {error}; choose \
                         others with --port (now {first})",
                        address.port(),
                    ),
                ));
            }
        }
        Ok(())
    }

    /// As it stands in `cluster.json`.
    pub(crate) fn to_json(&self) -> Value {
        let mut value = json!({
            "format": FORMAT,
            "made_by": env!("CARGO_PKG_VERSION"),
            "group": self.group.get(),
            "replicas": self.replicas,
            MEMBERS_MIN: self.members_min,
            "port": self.port,
            "pool_size": self.pool_len,
            "compaction": self.compaction.as_str(),
            "ack": self.ack.as_str(),
            "memtable_size": self.memtable_len,
            "compression": self.codecs.upper.to_string(),
        });
        if self.groups > 1 {
            value[GROUPS] = self.groups.into();
        }
        if self.place > 0 {
            value[PLACE] = self.place.into();
        }
        if self.spares > 0 {
            value[SPARES] = self.spares.into();
        }
        if let Some(codec) = self.codecs.bottom {
            value[BOTTOM] = codec.to_string().into();
        }
        if self.growth_factor != growth_usual() {
            value[GROWTH] = self.growth_factor.into();
        }
        if self.large_values > 0 {
            value[LARGE_VALUES] = self.large_values.into();
        }
        value
    }

    /// The bytes of `cluster.json`.
    fn to_text(&self) -> String {
        format!("{:#}\n", self.to_json())
    }

    /// Reads [`Self::to_text`], which lies at a path.
    fn from_text(text: &[u8], path: &Path) -> Result<Self> {
        let value: Value = serde_json::from_slice(text)
            .map_err(|e| Error::corruption(format!("{}: is no JSON: {e}", path.display())))?;
        Self::from_json(&value)
            .map_err(|e| Error::new(ErrorKind::Unsupported, format!("{}: {e}", path.display())))
    }

    /// Reads [`Self::to_json`].
    pub(crate) fn from_json(value: &Value) -> Result<Self, String> {
        let number = |name: &str| number_of(value, name);
        let format = number("format")?;
        if format != FORMAT {
            let by = value["made_by"].as_str().unwrap_or("another version");
            return Err(format!(
                "has format {format}, made by gabion {by}; this is gabion {}, which knows format {FORMAT}",
                env!("CARGO_PKG_VERSION")
            ));
        }
        let unknown = |name: &str| format!("`{name}` is {}, which is unknown", value[name]);
        let codec = |name: &str| {
            let codec = value[name].as_str().and_then(|text| text.parse().ok());
            codec.ok_or_else(|| unknown(name))
        };
        // No group is made with more, and sums of smaller values stay in 64 bits.
        let size = |name: &str, max: u64| {
            let len = number(name)?;
            if len > max {
                return Err(format!("`{name}` is {len}, the limit is {max}"));
            }
            Ok(len)
        };
        let group = number("group")?;
        let replicas = number("replicas")?;
        let port = number("port")?;
        let replicas = u32::try_from(replicas)
            .ok()
            .filter(|n| (1..=REPLICAS_MAX).contains(n))
            .ok_or_else(|| unknown("replicas"))?;
        let compaction = match value["compaction"].as_str() {
            Some("primary") => CompactionMode::Primary,
            Some("every-replica") => CompactionMode::EveryReplica,
            _ => return Err(unknown("compaction")),
        };
        let least = Self::members_min_default(replicas, compaction);
        let members_min = count_if_there(value, MEMBERS_MIN, least, 1..=replicas)?;
        let groups = count_if_there(value, GROUPS, 1, 1..=GROUPS_MAX)?;
        let place = count_if_there(value, PLACE, 0, 0..=groups - 1)?;
        let spares = count_if_there(value, SPARES, 0, 0..=REPLICAS_MAX - replicas)?;
        Ok(Self {
            group: GroupId(group),
            replicas,
            groups,
            place,
            members_min,
            spares,
            port: u16::try_from(port)
                .ok()
                .filter(|port| {
                    let above = PORTS_ABOVE + PORTS_OF_GROUP * (groups - 1) as u16;
                    *port <= u16::MAX - above
                })
                .ok_or_else(|| unknown("port"))?,
            pool_len: size("pool_size", POOL_LEN_MAX)?,
            compaction,
            ack: match value["ack"].as_str() {
                Some("replicated") => AckLevel::Replicated,
                Some("durable") => AckLevel::Durable,
                _ => return Err(unknown("ack")),
            },
            memtable_len: size("memtable_size", MEMTABLE_LEN_MAX)?,
            codecs: Codecs {
                upper: codec("compression")?,
                bottom: value.get(BOTTOM).map(|_| codec(BOTTOM)).transpose()?,
            },
            growth_factor: count_if_there(value, GROWTH, growth_usual(), 2..=100)?,
            large_values: large_values_of(value)?,
        })
    }

    /// The settings of new data.
    ///
    /// # Errors
    /// An option out of its limits, or too little space; nothing is made then.
    pub(crate) fn new(wanted: &FixedOptions, port: u16, data: &Path, free: u64) -> Result<Self> {
        let replicas = wanted.replicas.unwrap_or(3);
        let compaction = wanted.compaction.map_or(CompactionMode::Primary, |it| it.mode());
        let members_min = members_min_of(wanted, replicas, compaction)?;
        let mut settings = Self {
            group: new_group()?,
            replicas,
            groups: wanted.groups.unwrap_or(1),
            place: 0,
            members_min,
            spares: 0,
            port,
            pool_len: wanted.pool_size.unwrap_or(POOL_LEN_DEFAULT),
            compaction,
            ack: wanted.ack.map_or(AckLevel::Replicated, |it| it.level()),
            memtable_len: wanted.memtable_size.unwrap_or(0),
            codecs: Codecs {
                upper: wanted.compression.unwrap_or_default(),
                bottom: wanted.bottom_compression,
            },
            growth_factor: growth_usual(),
            large_values: 0,
        };
        if wanted.pool_size.is_none() {
            let of_group = free / 5 * 4 / u64::from(settings.groups);
            let share = of_group.saturating_sub(settings.control_len()) / u64::from(replicas);
            let capped = share.saturating_sub(ring_len(replicas)) / MIB * MIB;
            settings.pool_len = settings.pool_len.min(capped);
        } else if settings.pool_len < POOL_LEN_MIN {
            return Err(Error::limit(format!(
                "--pool-size {} is too small: at least {}",
                exact_size(settings.pool_len),
                exact_size(POOL_LEN_MIN)
            )));
        }
        settings.pool_len = settings.pool_len / MIB * MIB;
        if settings.pool_len < POOL_LEN_MIN || settings.reserved() > free {
            settings.pool_len = settings.pool_len.max(POOL_LEN_MIN);
            let rule = if wanted.pool_size.is_none() {
                let share = size(free / 5 * 4);
                format!(", of which 80 % ({share}) are used at most without --pool-size")
            } else {
                String::new()
            };
            return Err(settings.no_room(data, free, &rule));
        }
        let fit = PoolLengths::of(settings.pool_len);
        settings.large_values = fit.large_values;
        if wanted.memtable_size.is_none() {
            settings.memtable_len = fit.memtable_len;
        }
        let memtable_max = MEMTABLE_LEN_MAX.min(settings.pool_len / 16);
        if !(MEMTABLE_LEN_MIN..=memtable_max).contains(&settings.memtable_len) {
            return Err(Error::limit(format!(
                "--memtable-size is {}, the limits are {} and a sixteenth of the pool, at most {}",
                exact_size(settings.memtable_len),
                exact_size(MEMTABLE_LEN_MIN),
                size(memtable_max)
            )));
        }
        settings.check_highest_port()?;
        settings.group().validate()?;
        Ok(settings)
    }

    /// The message when the whole group does not fit. `rule`: another limit, if any.
    pub(crate) fn no_room(&self, data: &Path, free: u64, rule: &str) -> Error {
        Error::no_space(format!(
            "{} has {} free{rule}; {} with --pool-size {} need{} {}",
            data.display(),
            size(free),
            count(u64::from(self.replicas * self.groups), "replica"),
            exact_size(self.pool_len),
            if self.replicas * self.groups == 1 { "s" } else { "" },
            size(self.reserved())
        ))
    }

    /// Refuses options that contradict the settings of the data.
    ///
    /// # Errors
    /// Invalid input, naming option, both values and the data.
    pub(crate) fn check_fixed(&self, wanted: &FixedOptions, data: &Path) -> Result<()> {
        let refused = |option: &str, wanted: &str, made: &str| {
            Error::invalid(format!(
                "{option} {wanted}: {} was made with {made}, and that is fixed; take another --data, \
                 or remove this one with `gabion destroy`",
                data.display()
            ))
        };
        let same = |option: &str, wanted: Option<String>, made: String| match wanted {
            Some(wanted) if wanted != made => Err(refused(option, &wanted, &made)),
            _ => Ok(()),
        };
        same("--replicas", wanted.replicas.map(|n| n.to_string()), self.replicas.to_string())?;
        same("--groups", wanted.groups.map(|n| n.to_string()), self.groups.to_string())?;
        let min = wanted.min_replicas.map(|n| n.to_string());
        same("--min-replicas", min, self.members_min.to_string())?;
        // A pool is made of whole MiB, whatever was typed; the message quotes the typed value.
        if let Some(len) = wanted.pool_size
            && len / MIB * MIB != self.pool_len
        {
            return Err(refused("--pool-size", &exact_size(len), &exact_size(self.pool_len)));
        }
        let mode = wanted.compaction.map(|it| it.mode().as_str().to_owned());
        same("--compaction", mode, self.compaction.as_str().to_owned())?;
        let level = wanted.ack.map(|it| it.level().as_str().to_owned());
        same("--ack", level, self.ack.as_str().to_owned())?;
        let len = wanted.memtable_size.map(exact_size);
        same("--memtable-size", len, exact_size(self.memtable_len))?;
        let codec = wanted.compression.map(|it| it.to_string());
        same("--compression", codec, self.codecs.upper.to_string())?;
        // Compared as stored: a bottom codec equal to the upper one differs from none.
        let made = self.codecs.bottom.map_or("that of --compression".into(), |it| it.to_string());
        same("--bottom-compression", wanted.bottom_compression.map(|it| it.to_string()), made)
    }
}

fn number_of(value: &Value, name: &str) -> Result<u64, String> {
    let number = value[name].as_u64();
    number.ok_or_else(|| format!("`{name}` is {}, a number was expected", value[name]))
}

/// A number of replicas that need not be there.
fn large_values_of(value: &Value) -> Result<u32, String> {
    let large_values = count_if_there(value, LARGE_VALUES, 0, 0..=u32::MAX)?;
    check_large_values(large_values).map_err(|error| error.message().to_owned())?;
    Ok(large_values)
}

fn count_if_there(
    value: &Value,
    name: &str,
    default: u32,
    limits: RangeInclusive<u32>,
) -> Result<u32, String> {
    if value.get(name).is_none() {
        return Ok(default);
    }
    let count = u32::try_from(number_of(value, name)?).ok().filter(|n| limits.contains(n));
    count.ok_or_else(|| {
        let (least, most) = (limits.start(), limits.end());
        format!("`{name}` is {}, {least} to {most} are possible", value[name])
    })
}

/// The members with which a new group takes writes.
fn members_min_of(wanted: &FixedOptions, replicas: u32, compaction: CompactionMode) -> Result<u32> {
    let default = Settings::members_min_default(replicas, compaction);
    let min = wanted.min_replicas.unwrap_or(default);
    if min > replicas {
        return Err(Error::invalid(format!(
            "--min-replicas {min}: the group has {replicas}, which is the most that it can need"
        )));
    }
    if compaction == CompactionMode::EveryReplica && min != replicas {
        return Err(Error::invalid(format!(
            "--min-replicas {min}: with --compaction every-replica the members are fixed, and all \
             {replicas} are needed"
        )));
    }
    Ok(min)
}

/// The data directory, unless `--data` names another.
///
/// # Errors
/// Invalid input when neither the option nor the environment names it.
pub(crate) fn data_dir(option: &DataOption) -> Result<PathBuf> {
    if let Some(data) = &option.data {
        return std::path::absolute(data)
            .map_err(|e| failed(data, "is no path that can be used", e));
    }
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    match (from("XDG_DATA_HOME"), from("HOME")) {
        (Some(share), _) => Ok(share.join("gabion")),
        (None, Some(home)) => Ok(home.join(".local/share/gabion")),
        _ => Err(Error::invalid("neither XDG_DATA_HOME nor HOME is set: say --data DIR")),
    }
}

/// Free bytes where a directory is or would be made, however much of its path exists.
///
/// # Errors
/// I/O, naming the path.
pub(crate) fn free_at(dir: &Path) -> Result<u64> {
    let there = dir.ancestors().find(|path| path.exists()).unwrap_or(dir);
    gabion_fabric::free_space(there)
}

/// The directory of the controller.
pub(crate) fn control_dir(data: &Path) -> PathBuf {
    data.join("control")
}

/// The directory of the replicas of a group, by its place among several.
pub(crate) fn group_dir(data: &Path, place: u32) -> PathBuf {
    match place {
        0 => data.to_owned(),
        _ => data.join(format!("{GROUP_DIR}{}", place + 1)),
    }
}

const GROUP_DIR: &str = "group-";

/// The number of a directory of [`group_dir`]; none of the first.
fn group_number(dir: &Path) -> Option<u32> {
    let number = dir.file_name()?.to_str()?.strip_prefix(GROUP_DIR)?.parse().ok()?;
    (2..=GROUPS_MAX).contains(&number).then_some(number)
}

/// The directories of groups behind the first that are there.
fn further_groups(data: &Path) -> Vec<PathBuf> {
    let dirs = (1..GROUPS_MAX).map(|place| group_dir(data, place));
    dirs.filter(|dir| dir.is_dir() && !dir.is_symlink()).collect()
}

/// The directory of a replica.
pub(crate) fn replica_dir(data: &Path, number: u32) -> PathBuf {
    data.join(format!("replica-{number}"))
}

fn settings_path(data: &Path) -> PathBuf {
    data.join("cluster.json")
}

fn unfinished_path(data: &Path) -> PathBuf {
    data.join("unfinished")
}

/// The settings of the data; nothing where there is none.
///
/// # Errors
/// Another version, a file that is no `cluster.json` of ours, I/O.
pub(crate) fn load(data: &Path) -> Result<Option<Settings>> {
    let path = settings_path(data);
    // Opening a FIFO would block.
    if path.metadata().is_ok_and(|data| !data.is_file()) {
        return Err(Error::corruption(format!("{}: is no file", path.display())));
    }
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return load_group(data),
        Err(error) => return Err(failed(&path, "cannot be read", error)),
    };
    Settings::from_text(&text, &path).map(Some)
}

/// The settings of a group behind the first, of whose replicas this is the directory.
fn load_group(data: &Path) -> Result<Option<Settings>> {
    let (Some(number), Some(parent)) = (group_number(data), data.parent()) else { return Ok(None) };
    let path = settings_path(parent);
    let Ok(text) = std::fs::read(&path) else { return Ok(None) };
    let settings = Settings::from_text(&text, &path)?;
    Ok((number <= settings.groups).then(|| settings.of_group(number - 1)))
}

/// Refuses a directory of one of several groups.
///
/// # Errors
/// Invalid input.
pub(crate) fn check_whole(settings: &Settings, data: &Path) -> Result<()> {
    if settings.place == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: is of group {} of {}; say the directory of all as --data",
        data.display(),
        settings.place + 1,
        settings.groups
    )))
}

/// The same where data must exist.
///
/// # Errors
/// Not found, with the command to type; see [`load`].
pub(crate) fn load_existing(data: &Path) -> Result<Settings> {
    if let Some(settings) = load(data)? {
        return Ok(settings);
    }
    if data.is_dir()
        && !is_unfinished(data)?
        && let Some(dir) = replica_dirs(data)?.first()
    {
        return Err(without_settings(data, dir));
    }
    let place = data.display();
    Err(Error::not_found(format!("no data in {place}: start with `gabion up`, or say --data")))
}

/// The error for replicas without their settings.
fn without_settings(data: &Path, dir: &Path) -> Error {
    Error::not_found(format!(
        "{} is there, but {} is missing: put it back from a copy, or say another --data; nothing was \
         touched",
        dir.display(),
        settings_path(data).display()
    ))
}

/// Checks that a replica has all that its start needs, so that the error names the missing file and
/// not a step on the way.
///
/// # Errors
/// Not found, with the way out; I/O where it exists and cannot be used.
pub(crate) fn check_replica(data: &Path, number: u32) -> Result<()> {
    let dir = replica_dir(data, number);
    let pool = dir.join("pool");
    let missing = |path: &Path| {
        Error::not_found(format!(
            "replica {number}: {} is missing: put it back from where it was moved or from a copy, or \
             remove all data with `gabion destroy` and begin anew",
            path.display()
        ))
    };
    let check = |path: &Path, what: &str, result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(path)),
        result => result.map_err(|e| failed(path, what, e)),
    };
    check(&dir, "cannot be read", std::fs::read_dir(&dir).map(drop))?;
    let open = File::options().read(true).write(true).open(&pool);
    check(&pool, "cannot be opened", open.map(drop))
}

/// The addresses for clients of all replicas: from a controller, from the data or, with `--port`,
/// from the replica that answers there.
///
/// # Errors
/// See [`load_existing`]; unavailable when nothing answers.
pub(crate) fn addresses(place: &WhereOptions) -> Result<Vec<(u32, SocketAddr)>> {
    if place.remote.controller.is_some() {
        return crate::machines::commands::addresses(place);
    }
    if let (Some(host), Some(port)) = (door::host(), place.port) {
        return ask_for_address(host, port);
    }
    let data = data_dir(&place.data);
    let settings = match place.port {
        None => load_existing(&data?)?,
        // Unreadable data tells nothing of this port.
        Some(port) => match data.and_then(|data| load(&data)) {
            Ok(Some(known)) if known.port == port => known,
            _ => return ask_for_addresses(port),
        },
    };
    Ok(settings.nodes().map(|number| (number, settings.doors(number).resp)).collect())
}

/// The same of every group, with the group's number where there are several and the data tells it.
///
/// # Errors
/// As [`addresses`].
pub(crate) fn addresses_by_group(
    place: &WhereOptions,
) -> Result<Vec<(Option<u32>, u32, SocketAddr)>> {
    let of_first = addresses(place)?;
    let known = match place.remote.controller {
        Some(_) => None,
        None => data_dir(&place.data).ok().map(|data| (load(&data), data)),
    };
    if let Some((Ok(Some(settings)), data)) = known
        && (settings.groups > 1 && settings.place == 0)
        && of_first.first().is_some_and(|(_, at)| *at == settings.doors(1).resp)
    {
        let groups = settings.by_group(&data).into_iter().flat_map(|(_, group)| {
            let at = |number| (Some(group.place + 1), number, group.doors(number).resp);
            group.nodes().map(at).collect::<Vec<_>>()
        });
        return Ok(groups.collect());
    }
    Ok(of_first.into_iter().map(|(number, at)| (None, number, at)).collect())
}

/// The data directory of a group that is named by its data or by its port. A port is looked up in
/// the data, or else in the command line of the replica that answers there.
///
/// # Errors
/// Unavailable when nothing answers on the port; not found when its replica does not tell.
pub(crate) fn data_of(place: &WhereOptions) -> Result<PathBuf> {
    let data = data_dir(&place.data);
    let Some(port) = place.port else { return data };
    if let Ok(data) = data
        && load(&data).is_ok_and(|known| known.is_some_and(|known| known.port == port))
    {
        return Ok(data);
    }
    let status = crate::status::ask(loopback(port)).map_err(|error| error.within(IS_UP_RUNNING))?;
    let pid = status["pid"].as_u64().unwrap_or(0);
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0).skip_while(|word| *word != b"--data");
    let found = words.nth(1).map(|word| PathBuf::from(OsStr::from_bytes(word)));
    found.ok_or_else(|| {
        Error::not_found(format!("the replica on port {port} does not tell its data: say --data"))
    })
}

/// The hint in errors that find no replica.
pub(crate) const IS_UP_RUNNING: &str = "is `gabion up` running?";

/// Asks the replica behind the door of a host for its number.
fn ask_for_address(host: &str, port: u16) -> Result<Vec<(u32, SocketAddr)>> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = (bare, port).to_socket_addrs().map_err(|error| {
        Error::with_source(ErrorKind::Unavailable, format!("--host {host}: no address"), error)
    })?;
    let mut why = Error::unavailable(format!("--host {host}: no address"));
    for address in found {
        match crate::status::ask(address) {
            Ok(status) => {
                let number = status["replica"].as_u64().and_then(|it| u32::try_from(it).ok());
                return Ok(vec![(number.unwrap_or(1), address)]);
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Asks the replica behind a port how many there are: they have adjacent ports.
fn ask_for_addresses(port: u16) -> Result<Vec<(u32, SocketAddr)>> {
    let status = crate::status::ask(loopback(port)).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => error,
        _ => error.within(IS_UP_RUNNING),
    })?;
    let me = status["replica"].as_u64().unwrap_or(1).clamp(1, 16) as u16;
    let count = status["members"].as_array().map_or(1, Vec::len).clamp(1, 16) as u16;
    let first = port.saturating_sub(me - 1);
    Ok((0..count).map(|i| (u32::from(i) + 1, loopback(first + i))).collect())
}

/// Whether a replica has no pool: its directory, or what was in it, is gone.
pub(crate) fn is_missing(data: &Path, number: u32) -> bool {
    let found = replica_dir(data, number).join("pool").symlink_metadata();
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Makes a replica that the group begins with.
///
/// # Errors
/// As [`gabion_server::create_founder`].
pub(crate) fn make_founder(data: &Path, settings: &Settings, number: u32) -> Result<()> {
    let (dir, replica) = (replica_dir(data, number), ReplicaId(number));
    let members_min = settings.members_min as u8;
    gabion_server::create_founder(&dir, settings.pool_len, &settings.group(), members_min, replica)
}

/// Makes a replica without data: the group tells it a view, and fills it.
///
/// # Errors
/// As [`gabion_server::create_joining`].
pub(crate) fn make_empty(data: &Path, settings: &Settings, number: u32) -> Result<()> {
    let (dir, replica) = (replica_dir(data, number), ReplicaId(number));
    gabion_server::create_joining(&dir, settings.pool_len, &settings.group(), replica)
}

/// Makes spares until there are so many. `made` is called before each.
///
/// # Errors
/// Invalid input for more than a group can have, for fewer than there are, or where no controller
/// could have them take over; no space; I/O. Those made so far stay.
pub(crate) fn make_spares(
    data: &Path,
    settings: &mut Settings,
    wanted: u32,
    mut made: impl FnMut(u32),
) -> Result<()> {
    let most = REPLICAS_MAX - settings.replicas;
    if wanted > most {
        return Err(Error::invalid(format!(
            "--spare {wanted}: with {} replicas {most} are possible",
            settings.replicas
        )));
    }
    if wanted < settings.spares {
        return Err(Error::invalid(format!(
            "--spare {wanted}: {} were made, and may hold data by now",
            settings.spares
        )));
    }
    if wanted > 0 && settings.groups > 1 {
        return Err(Error::invalid(format!(
            "--spare {wanted}: with {} groups none is possible",
            settings.groups
        )));
    }
    if wanted > 0 && !settings.has_controller() {
        return Err(Error::invalid(format!("--spare {wanted}: {}", control::ask::NO_CONTROLLER)));
    }
    while settings.spares < wanted {
        let number = settings.replicas + settings.spares + 1;
        made(number);
        // No replica ever ran on what an interrupted attempt left: the settings did not name it.
        owned::remove_replica_dir(&replica_dir(data, number))?;
        let free = free_at(data)?;
        if settings.replica_len() > free {
            return Err(Error::no_space(format!(
                "{} has {} free; replica {number} needs {}",
                data.display(),
                size(free),
                size(settings.replica_len())
            )));
        }
        make_empty(data, settings, number)?;
        let more = Settings { spares: settings.spares + 1, ..settings.clone() };
        save(data, &more)?;
        *settings = more;
    }
    Ok(())
}

/// Puts the files of a replica aside. Returns where they are.
///
/// # Errors
/// I/O.
pub(crate) fn put_aside(data: &Path, number: u32, unix_s: u64) -> Result<PathBuf> {
    let dir = replica_dir(data, number);
    let aside = data.join(format!("replica-{number}{BROKEN}{unix_s}"));
    std::fs::rename(&dir, &aside).map_err(|e| failed(&dir, "cannot be put aside", e))?;
    flush_dir(data)?;
    Ok(aside)
}

/// A directory of a replica that was put aside, if there is one: the oldest.
pub(crate) fn found_aside(data: &Path, number: u32) -> Option<PathBuf> {
    let start = format!("replica-{number}{BROKEN}");
    let entries = std::fs::read_dir(data).ok()?.flatten();
    let is_aside = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start))
    };
    entries.map(|entry| entry.path()).filter(is_aside).min()
}

/// Between the name of a directory that was put aside and the time when it was.
pub(crate) const BROKEN: &str = ".broken-";

/// The data directory's lock. Released when dropped, and by the end of the process.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of an existing directory, also from a process that is about to end.
    ///
    /// # Errors
    /// Busy, naming the holder; invalid input when `lock` is a foreign file.
    pub(crate) fn take(data: &Path) -> Result<Self> {
        let path = data.join("lock");
        owned::ensure(&path, &owned::lock_text(0), owned::is_lock)?;
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|e| failed(&path, "cannot be opened", e))?;
        let holder = || owned::holder(&std::fs::read(&path).ok()?).filter(|&process| process > 0);
        lock_held_by(&file, data, holder)?;
        let text = owned::lock_text(std::process::id());
        // One write of a constant length: a kill always leaves a lock that names somebody.
        file.write_all_at(text.as_bytes(), 0)
            .and_then(|()| file.set_len(text.len() as u64))
            .map_err(|e| failed(&path, "cannot be written", e))?;
        Ok(Self { _file: file })
    }
}

/// Makes the data: every pool and ring, then `cluster.json`. `made` is called after each replica
/// and returns whether to go on.
///
/// # Durability
/// Survives a power cut when it returns.
///
/// # Errors
/// Invalid input when something has a needed name; no space, I/O, [`ErrorKind::Unavailable`] when
/// told to stop. The files made so far are removed.
pub(crate) fn create(
    data: &Path,
    settings: &Settings,
    mut made: impl FnMut(u32) -> bool,
) -> Result<()> {
    create_by(data, settings, |dir, group, number| {
        if !made(number) {
            return Err(Error::new(ErrorKind::Unavailable, "stopped while data was made"));
        }
        make_founder(dir, group, number)
    })
}

/// As [`create`], with replicas that `make` makes: in the directory of their group, by its
/// settings.
///
/// # Durability
/// As [`create`].
///
/// # Errors
/// As [`create`]; those of `make`.
pub(crate) fn create_by(
    data: &Path,
    settings: &Settings,
    mut make: impl FnMut(&Path, &Settings, u32) -> Result<()>,
) -> Result<()> {
    check_names(data, settings)?;
    mark_unfinished(data)?;
    let mut make = || {
        for (dir, group) in settings.by_group(data) {
            if group.place > 0 {
                std::fs::create_dir(&dir).map_err(|e| failed(&dir, "cannot be made", e))?;
            }
            group.members().try_for_each(|number| make(&dir, &group, number))?;
            flush_dir(&dir)?;
        }
        save(data, settings)
    };
    if let Err(error) = make() {
        let _ = remove_unfinished(data);
        return Err(error);
    }
    let mark = unfinished_path(data);
    std::fs::remove_file(&mark).map_err(|e| failed(&mark, "cannot be removed", e))?;
    flush_dir(data)
}

/// Refuses a directory where something has a name that the data needs.
fn check_names(data: &Path, settings: &Settings) -> Result<()> {
    let replicas = settings.members().map(|number| replica_dir(data, number));
    let groups = (1..settings.groups).map(|place| group_dir(data, place));
    for path in replicas.chain(groups).chain([settings_path(data)]) {
        if path.symlink_metadata().is_ok() {
            return Err(owned::in_the_way(&path, "no data is made over what is there"));
        }
    }
    owned::is_there(&new_settings_path(data), owned::is_settings).map(drop)
}

/// Writes `cluster.json`, whole or not at all.
///
/// # Errors
/// Invalid input when a file of that name, or of its temporary name, is foreign; I/O.
pub(crate) fn save(data: &Path, settings: &Settings) -> Result<()> {
    write_settings(&settings_path(data), &new_settings_path(data), &settings.to_text())
}

/// Writes a file of settings, by way of another name, whole or not at all.
///
/// # Errors
/// As [`save`].
pub(crate) fn write_settings(path: &Path, new: &Path, text: &str) -> Result<()> {
    let is_replaced = owned::is_there(path, owned::is_settings)?;
    if owned::is_there(new, owned::is_settings)? {
        std::fs::remove_file(new).map_err(|e| failed(new, "cannot be removed", e))?;
    }
    NewFile::write(new, text.as_bytes())?;
    match is_replaced {
        true => std::fs::rename(new, path).map_err(|e| failed(path, "cannot be written", e))?,
        false => rename_new(new, path)?,
    }
    path.parent().map_or(Ok(()), flush_dir)
}

/// The name of a new `cluster.json` until it replaces the old one.
fn new_settings_path(data: &Path) -> PathBuf {
    data.join("cluster.json.unfinished")
}

fn mark_unfinished(data: &Path) -> Result<()> {
    owned::ensure(&unfinished_path(data), owned::UNFINISHED, owned::is_mark)?;
    flush_dir(data)
}

/// Whether a creation or a removal was interrupted.
///
/// # Errors
/// The system's.
pub(crate) fn is_unfinished(data: &Path) -> Result<bool> {
    Ok(owned::owner(&unfinished_path(data), owned::is_mark)? == Owner::Gabion)
}

/// Removes the remains of an interrupted creation or removal. Returns whether there were any.
///
/// # Errors
/// Not found when replicas are there without `cluster.json` and no mark explains it; I/O.
pub(crate) fn clear_leftovers(data: &Path) -> Result<bool> {
    let has_settings = settings_path(data).symlink_metadata().is_ok();
    if is_unfinished(data)? {
        if has_settings {
            // The creation was complete but for the mark.
            let mark = unfinished_path(data);
            std::fs::remove_file(&mark).map_err(|e| failed(&mark, "cannot be removed", e))?;
            return Ok(false);
        }
        remove_unfinished(data)?;
        return Ok(true);
    }
    if !has_settings && let Some(dir) = replica_dirs(data)?.first() {
        return Err(without_settings(data, dir));
    }
    Ok(false)
}

/// Removes the data, the lock last. Returns the paths that stay, as they are not Gabion's.
///
/// # Errors
/// I/O; the rest is removed by the next attempt.
pub(crate) fn remove(data: &Path) -> Result<Vec<PathBuf>> {
    mark_unfinished(data)?;
    owned::remove_ours(&settings_path(data), owned::is_settings)?;
    flush_dir(data)?;
    remove_unfinished(data)?;
    remove_place(data)
}

/// Removes the lock, and the directory unless it holds foreign files. Returns those.
///
/// # Errors
/// I/O.
pub(crate) fn remove_place(data: &Path) -> Result<Vec<PathBuf>> {
    owned::remove_ours(&data.join("lock"), owned::is_lock)?;
    let _ = std::fs::remove_dir(data);
    let mut left = Vec::new();
    for path in owned::left_in(data)? {
        if group_number(&path).is_some() && path.is_dir() && !path.is_symlink() {
            left.append(&mut remove_place(&path)?);
            continue;
        }
        // For a directory of ours: its content.
        let is_ours = is_replica_dir(&path) || path == control_dir(data);
        let within = match is_ours && path.is_dir() && !path.is_symlink() {
            true => owned::left_in(&path)?,
            false => Vec::new(),
        };
        match within.is_empty() {
            true => left.push(path),
            false => left.extend(within),
        }
    }
    Ok(left)
}

fn remove_unfinished(data: &Path) -> Result<()> {
    for dir in replica_dirs(data)? {
        owned::remove_replica_dir(&dir)?;
    }
    owned::remove_control_dir(&control_dir(data))?;
    for dir in further_groups(data) {
        for replica in replica_dirs(&dir)? {
            owned::remove_replica_dir(&replica)?;
        }
        owned::remove_control_dir(&control_dir(&dir))?;
        owned::remove_ours(&dir.join("lock"), owned::is_lock)?;
        // If it is not empty, the owner is told.
        let _ = std::fs::remove_dir(&dir);
    }
    owned::remove_ours(&new_settings_path(data), owned::is_settings)?;
    let mark = unfinished_path(data);
    std::fs::remove_file(&mark).map_err(|e| failed(&mark, "cannot be removed", e))
}

fn is_replica_dir(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("replica-")).unwrap_or("");
    // Also one that was put aside.
    let (number, since) = number.split_once(BROKEN).unwrap_or((number, "0"));
    number.parse::<u32>().is_ok() && since.parse::<u64>().is_ok()
}

fn replica_dirs(data: &Path) -> Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(data).map_err(|e| failed(data, "cannot be listed", e))?;
    let mut dirs = Vec::new();
    for entry in list {
        let path = entry.map_err(|e| failed(data, "cannot be listed", e))?.path();
        if is_replica_dir(&path) {
            dirs.push(path);
        }
    }
    dirs.sort();
    Ok(dirs)
}

pub(crate) fn flush_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(dir, "cannot be flushed", e))
}

/// An error of the system on a path.
pub(crate) fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("{}: {what}", path.display()), error)
}

#[cfg(test)]
mod tests;
