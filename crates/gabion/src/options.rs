//! The command line. Every option says what happens without it.

use crate::backup::BackupOptions;
use crate::backup::restore::RestoreOptions;
use crate::door::DoorOptions;
use crate::security::SecurityOptions;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use gabion_base::{FileId, FileKind};
use gabion_bench::{parse_bytes, parse_codec};
use gabion_db::RunOptions;
use gabion_engine::sst::Compression;
use gabion_fabric::BackendChoice;
use gabion_node::{AckLevel, CompactionMode, NodeOptions};
use gabion_server::{ClientCertificates, ServerFiles, TlsDoor};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// The RESP port of the first replica unless said otherwise: Redis's own.
pub(crate) const PORT_DEFAULT: u16 = 6379;

/// Niceness of jobs unless said otherwise. If one request thread wants the same processor, jobs get
/// a tenth of it.
const JOBS_NICE: u8 = 10;

/// A replicated key-value store that compacts once and replicates the result.
#[derive(Parser, Debug)]
#[command(name = "gabion", version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Start the replicas on this machine and watch them. Ctrl-C stops them cleanly.
    Up(UpOptions),
    /// Send a command to a replica, or start a prompt.
    Cli(CliOptions),
    /// Say what each replica is doing.
    Status(StatusOptions),
    /// Show what the replicas do now, again and again: commands, lag, stalls, room.
    Top(TopOptions),
    /// Look at this machine: kernel, limits, disk, clocks, memory, ports; say what to change.
    Doctor(DoctorOptions),
    /// Compare every record and every live file of all the replicas.
    Verify(VerifyOptions),
    /// Copy a running group to a directory, or look at the copies there.
    Backup(BackupOptions),
    /// Make new data of a backup.
    Restore(RestoreOptions),
    /// Say what happened to the group: who was lost, when, and what was done about it.
    Events(EventsOptions),
    /// Say who is a member of the group and how far those are that are being filled, or change it;
    /// make groups of nodes.
    Group(GroupOptions),
    /// Hold replicas on this machine, as a controller says; or ask a controller about its nodes.
    Node(NodeCommandOptions),
    /// Look after groups of replicas on nodes.
    Controller(ControllerOptions),
    /// Have another member take writes, before work on the machine of the one that does.
    Failover(FailoverOptions),
    /// Look into the pool of one replica while nothing runs on it, copy it, or use it as a store.
    Db(DbOptions),
    /// A private authority: certificates of nodes, controllers and clients.
    #[command(subcommand)]
    Ca(crate::ca::CaCommand),
    /// Near-compute logs: lend memory to logs of programs.
    #[command(subcommand)]
    Ncl(crate::ncl::NclCommand),
    /// Measure what a workload costs, on a cluster made for it.
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
    /// Remove all data.
    Destroy(DestroyOptions),
    /// One replica's process. Started by `gabion up`.
    #[command(hide = true)]
    Server(ServerOptions),
}

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct DataOption {
    /// Where the data is [default: $XDG_DATA_HOME/gabion, else ~/.local/share/gabion]
    // Global, so that it may stand behind the words of `gabion group remove 3` as elsewhere.
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data: Option<PathBuf>,
}

/// What `up` takes. An option that is fixed at creation and not given is taken from the data.
#[derive(Args, Debug)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) data: DataOption,
    /// RESP port of the first replica; the others have the next ones. Members use the ports from
    /// 100 and targets those from 200 above it [default: 6379, or the last one]
    #[arg(short, long, value_name = "PORT", value_parser = parse_port)]
    pub(crate) port: Option<u16>,
    /// Replicas without data, up to 16 with the others, which take over for those that stay away;
    /// what was made once stays [default: 0, or as many as were made]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=15))]
    pub(crate) spare: Option<u32>,
    /// How long a replica that failed may stay away before a spare takes its place: seconds, or
    /// with a unit, as 90s, 10m or 2h. A lost disk is replaced at once
    #[arg(long, value_name = "TIME", value_parser = parse_ms, default_value = "10m")]
    pub(crate) replace_after: u64,
    /// Print the files and commands of a controller and nodes that this group stands for, and start
    /// nothing
    #[arg(long)]
    pub(crate) show_commands: bool,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
    #[command(flatten)]
    pub(crate) fixed: FixedOptions,
}

/// How the process of each replica runs: from start to start as whoever starts it says.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessOptions {
    /// How pools are read and written
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Io::Auto)]
    pub(crate) io: Io,
    /// Memory of each replica for decoded blocks of files; 0 keeps none
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "64MiB")]
    pub(crate) block_cache_bytes: usize,
    /// Memory of each replica for indexes and filters of open files, about 2 % of what is read
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "1GiB")]
    pub(crate) open_files_bytes: usize,
    /// Compactions that each replica may run at once, 1 to 64; flushes have a thread of their own
    #[arg(long, value_name = "N", value_parser = compactions(), default_value = "1")]
    pub(crate) compactions_max: usize,
    /// Values of so many bytes, or more, lie apart from the tree from now on, 64 to 8MiB; 0: none
    /// does. Values that are there stay in place [default: as the group was made, from 512 in pools
    /// of 1GiB and more, else none]
    #[arg(long, value_name = "SIZE", value_parser = parse_large_values)]
    pub(crate) large_values: Option<u32>,
    /// How values from --large-values on are compressed, once, before they are logged: none, lz4,
    /// zstd or zstd:LEVEL. Values that are there stay as they are
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub(crate) value_compression: Compression,
    /// Bytes a second of large values that compactions of each replica copy at most out of files
    /// with much garbage, besides as many as are written. Less leaves more garbage; once room is
    /// short there is no limit. 1MiB or more; 0: never held back
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_collection_rate,
        default_value_t = NodeOptions::COLLECTION_RATE
    )]
    pub(crate) collection_rate: u64,
    /// Steps of nice(2), 0 to 19, by which compactions, the shipping and receiving of files and the
    /// warming of the cache stand back behind requests, and flushes by half as many
    #[arg(long, value_name = "N", value_parser = nice(), default_value_t = JOBS_NICE)]
    pub(crate) jobs_nice: u8,
    /// Bytes a second that a member fetches at most while it is being filled and clients write;
    /// while nobody writes it fetches as fast as it can. More has it full sooner, and takes more
    /// from the clients' requests meanwhile. 1MiB or more; 0: never held back
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_rebuild_rate,
        default_value_t = NodeOptions::REBUILD_RATE
    )]
    pub(crate) rebuild_rate: u64,
    #[command(flatten)]
    pub(crate) security: SecurityOptions,
    /// Port of numbers for Prometheus, at /metrics over HTTP on loopback: the controller on PORT,
    /// replica N on PORT + N; or off [default: 300 above --port]
    #[arg(long, value_name = "PORT", value_parser = parse_metrics, default_value = "auto")]
    #[arg(hide_default_value = true)]
    pub(crate) metrics_port: MetricsPort,
    /// Of a node's replica alone, whose options are in `node.toml`.
    #[arg(skip)]
    pub(crate) node: NodeProcess,
}

/// How the process of a node's replica runs, beside what `up` knows too.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeProcess {
    /// Certificate, key and authority for connections with members and controllers
    #[arg(long, value_name = "FILE", requires_all = ["members_key", "members_ca"])]
    pub(crate) members_cert: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub(crate) members_key: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub(crate) members_ca: Option<PathBuf>,
    /// The second door for clients, where all is encrypted
    #[arg(long, value_name = "ADDR", requires_all = ["clients_tls_cert", "clients_tls_key"])]
    pub(crate) clients_tls_listen: Option<SocketAddr>,
    #[arg(long, value_name = "FILE")]
    pub(crate) clients_tls_cert: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub(crate) clients_tls_key: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub(crate) clients_tls_ca: Option<PathBuf>,
    #[arg(long, value_name = "WHETHER", default_value = "yes")]
    pub(crate) clients_tls_auth: ClientCertificates,
}

impl NodeProcess {
    /// The second door for clients, if there is one.
    pub(crate) fn clients_tls(&self) -> Option<TlsDoor> {
        let files = ServerFiles {
            certificate: self.clients_tls_cert.clone()?,
            key: self.clients_tls_key.clone()?,
            authorities: self.clients_tls_ca.clone(),
            clients: self.clients_tls_auth,
        };
        Some(TlsDoor { address: self.clients_tls_listen?, files })
    }

    /// As words of a command line.
    fn words(&self) -> impl Iterator<Item = String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let options = [
            ("--members-cert", path(&self.members_cert)),
            ("--members-key", path(&self.members_key)),
            ("--members-ca", path(&self.members_ca)),
            ("--clients-tls-listen", self.clients_tls_listen.map(|it| it.to_string())),
            ("--clients-tls-cert", path(&self.clients_tls_cert)),
            ("--clients-tls-key", path(&self.clients_tls_key)),
            ("--clients-tls-ca", path(&self.clients_tls_ca)),
            (
                "--clients-tls-auth",
                self.clients_tls_listen.map(|_| self.clients_tls_auth.as_str().to_owned()),
            ),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.to_owned(), value])
    }
}

/// Port of numbers for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsPort {
    /// As the first port of the group says.
    Auto,
    Off,
    /// From this port on.
    From(u16),
}

impl MetricsPort {
    /// The default lies so far above the first port of the group.
    const ABOVE: u16 = 300;
    /// The controller and the replicas of a group take as many.
    const COUNT: u16 = 17;

    /// The first port of a group whose own first port is this; none where metrics are off, or no
    /// ports are left above.
    pub(crate) fn first(self, port: u16) -> Option<u16> {
        let first = match self {
            Self::Off => None,
            Self::From(first) => Some(first),
            Self::Auto => port.checked_add(Self::ABOVE),
        };
        first.filter(|first| *first <= u16::MAX - Self::COUNT)
    }

    /// The same for a further group of the cluster, by its place behind the first.
    pub(crate) fn of_group(self, place: u32) -> Self {
        let above = Self::COUNT.saturating_mul(u16::try_from(place).unwrap_or(u16::MAX));
        match self {
            Self::From(port) => port.checked_add(above).map_or(Self::Off, Self::From),
            other => other,
        }
    }

    /// Address of a replica's numbers for Prometheus, by its own number; 0 is the controller.
    pub(crate) fn address(self, port: u16, number: u32) -> Option<SocketAddr> {
        let port = self.first(port)?.checked_add(u16::try_from(number).ok()?)?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    fn word(self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::From(port) => port.to_string(),
        }
    }
}

/// A first port for metrics, or none.
pub(crate) fn parse_metrics(text: &str) -> Result<MetricsPort, String> {
    let max = u16::MAX - MetricsPort::COUNT;
    match (text, text.parse::<u16>()) {
        ("off", _) => Ok(MetricsPort::Off),
        ("auto", _) => Ok(MetricsPort::Auto),
        (_, Ok(port)) if (1..=max).contains(&port) => Ok(MetricsPort::From(port)),
        _ => Err(format!("a port from 1 to {max}, or off")),
    }
}

impl Default for ProcessOptions {
    fn default() -> Self {
        let run = RunOptions::default();
        Self {
            io: Io::Auto,
            block_cache_bytes: run.block_cache_len,
            open_files_bytes: run.open_files_len,
            compactions_max: run.compactions_max,
            large_values: None,
            value_compression: Compression::None,
            collection_rate: NodeOptions::COLLECTION_RATE,
            jobs_nice: JOBS_NICE,
            rebuild_rate: NodeOptions::REBUILD_RATE,
            security: SecurityOptions::default(),
            metrics_port: MetricsPort::Auto,
            node: NodeProcess::default(),
        }
    }
}

impl ProcessOptions {
    /// As words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![
            "--io".into(),
            self.io.as_str().into(),
            "--block-cache-bytes".into(),
            self.block_cache_bytes.to_string(),
            "--open-files-bytes".into(),
            self.open_files_bytes.to_string(),
            "--compactions-max".into(),
            self.compactions_max.to_string(),
            "--value-compression".into(),
            self.value_compression.to_string(),
            "--collection-rate".into(),
            self.collection_rate.to_string(),
            "--jobs-nice".into(),
            self.jobs_nice.to_string(),
            "--rebuild-rate".into(),
            self.rebuild_rate.to_string(),
            "--metrics-port".into(),
            self.metrics_port.word(),
        ];
        if let Some(large_values) = self.large_values {
            words.extend(["--large-values".into(), large_values.to_string()]);
        }
        words.extend(self.security.words());
        words.extend(self.node.words());
        words
    }
}

/// What is fixed when the data is made.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Fixed when the data is made")]
pub(crate) struct FixedOptions {
    /// Replicas, 1 to 16 [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) replicas: Option<u32>,
    /// Groups over which keys are spread by hash slots, 1 to 16; each has so many replicas, with a
    /// pool each, and the primaries are spread over the processes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) groups: Option<u32>,
    /// Replicas that have to have everything for the group to take writes, 1 to --replicas. With
    /// fewer, writes are refused until others are whole again [default: 2, or 1 with --replicas 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) min_replicas: Option<u32>,
    /// Bytes reserved for each replica's pool, at least 256MiB [default: 4GiB, or less where 80 %
    /// of the free disk is less]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) pool_size: Option<u64>,
    /// Who flushes and compacts: the primary, which ships the files, or each for itself (the
    /// baseline) [default: primary]
    #[arg(long, value_name = "WHO", value_enum)]
    pub(crate) compaction: Option<Compaction>,
    /// When a write is answered: held by every replica's ring, or flushed by every replica
    /// [default: replicated]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub(crate) ack: Option<Ack>,
    /// Memory of a MemTable before it is flushed, 64KiB to 1GiB and a sixteenth of the pool at most
    /// [default: 16MiB, or a sixty-fourth of a pool that is below 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memtable_size: Option<u64>,
    /// Compression of data blocks: none, lz4, zstd, or zstd:LEVEL from 1 to 19 [default: none]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) compression: Option<Compression>,
    /// Compression of the deepest files, which hold most of the data and are seldom rewritten;
    /// usual: --compression lz4 --bottom-compression zstd [default: as --compression]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) bottom_compression: Option<Compression>,
}

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct WhereOptions {
    #[command(flatten)]
    pub(crate) data: DataOption,
    /// RESP port of the first replica, instead of looking it up in the data
    #[arg(
        short,
        long,
        value_name = "PORT",
        value_parser = parse_port,
        conflicts_with = "data",
        global = true
    )]
    pub(crate) port: Option<u16>,
    #[command(flatten)]
    pub(crate) remote: RemoteOptions,
}

/// A group on nodes.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct RemoteOptions {
    /// Address of the controller of a group on nodes, instead of a group of `gabion up`
    // With --port where `DoorOptions` are, too.
    #[arg(long, value_name = "ADDR", conflicts_with = "data", global = true)]
    pub(crate) controller: Option<SocketAddr>,
    /// Group of that controller [default: the only one]
    #[arg(long, value_name = "NAME", requires = "controller", global = true)]
    pub(crate) group: Option<String>,
    /// Certificate of this command for that controller: PATH.pem, with PATH.key and the ca.pem
    /// beside them, as `gabion ca issue --role operator` makes them [default: that of the variable
    /// GABION_IDENTITY]
    #[arg(long, value_name = "PATH", requires = "controller", global = true)]
    pub(crate) identity: Option<PathBuf>,
}

/// The controller that a command about nodes asks.
#[derive(Args, Debug)]
pub(crate) struct AskedController {
    /// Address of the controller
    #[arg(long, value_name = "ADDR")]
    pub(crate) controller: SocketAddr,
    /// Certificate of this command for that controller: PATH.pem, with PATH.key and the ca.pem
    /// beside them, as `gabion ca issue --role operator` makes them [default: that of the variable
    /// GABION_IDENTITY]
    #[arg(long, value_name = "PATH")]
    pub(crate) identity: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ControllerOptions {
    /// Its options: see docs/machines.md and deploy/controller.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Read and check the file, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
}

/// A node's process, or what a controller knows of nodes.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct NodeCommandOptions {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,
    #[command(flatten)]
    pub(crate) run: Option<NodeRunOptions>,
}

#[derive(Args, Debug)]
pub(crate) struct NodeRunOptions {
    /// Its options: see docs/machines.md and deploy/node.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Read and check the file, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// The nodes that have registered, and what they hold
    List {
        #[command(flatten)]
        controller: AskedController,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Move what a node holds to others, which are filled first; it gets nothing more
    Drain {
        /// The node
        #[arg(value_name = "NODE")]
        node: String,
        /// It may be used again
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        controller: AskedController,
    },
}

#[derive(Args, Debug)]
pub(crate) struct CliOptions {
    #[command(flatten)]
    pub(crate) place: WhereOptions,
    #[command(flatten)]
    pub(crate) door: DoorOptions,
    /// The command, as in `gabion cli set key value`; a prompt without it
    // No hyphen before its first word: an option of another name would be sent as a command.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) words: Vec<std::ffi::OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    pub(crate) place: WhereOptions,
    #[command(flatten)]
    pub(crate) door: DoorOptions,
    /// Redraw every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// All numbers of every replica, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TopOptions {
    #[command(flatten)]
    pub(crate) place: WhereOptions,
    #[command(flatten)]
    pub(crate) door: DoorOptions,
    /// Once, with rates since each process began
    #[arg(long)]
    pub(crate) once: bool,
    /// Between two looks, 200ms or more: seconds, or with a unit, as 500ms
    #[arg(long, value_name = "TIME", value_parser = parse_interval, default_value = "1s")]
    pub(crate) interval: u64,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    pub(crate) data: DataOption,
    /// Look at what this node.toml names, its certificates too, and not at data of `up`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "port"])]
    pub(crate) config: Option<PathBuf>,
    /// RESP port of the first replica [default: that of the data, else 6379]
    #[arg(short, long, value_name = "PORT", value_parser = parse_port)]
    pub(crate) port: Option<u16>,
    /// All checks, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EventsOptions {
    #[command(flatten)]
    pub(crate) place: WhereOptions,
    /// For programs: {"events": [{"time", "unix_ms", "text"}]}
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GroupOptions {
    #[command(subcommand)]
    pub(crate) command: Option<GroupCommand>,
    #[command(flatten)]
    pub(crate) place: WhereOptions,
}

/// A change of the members. Each returns when it is carried out, but for the filling of a new
/// member, which `status` shows.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum GroupCommand {
    /// One member more: a spare, or one that was removed
    Add {
        /// Its number, as in `gabion status`; or a node, which gets a replica if it has none
        #[arg(value_name = "REPLICA")]
        replica: Replica,
        /// On a node of a failure domain that another member's node is in
        #[arg(long, requires = "controller")]
        share_domains: bool,
    },
    /// One member fewer. Refused where the group would have too few to take writes
    Remove {
        /// Its number, or its node
        #[arg(value_name = "REPLICA")]
        replica: Replica,
    },
    /// A failed member is gone for good, process and disk: nobody waits for it any more. Say it
    /// only of one that cannot run on: below the minimum it may still answer reads, from the
    /// past then
    GiveUp {
        /// Its number, or its node
        #[arg(value_name = "REPLICA")]
        replica: Replica,
    },
    /// Fill a spare, and then let a member go
    Replace {
        /// The member that goes: its number, or its node
        #[arg(value_name = "REPLICA")]
        replica: Replica,
        /// The one that comes: a number, or a node, which gets a replica if it has none [default: a
        /// spare]
        #[arg(value_name = "BY")]
        by: Option<Replica>,
    },
    /// A member takes writes from now on, as `gabion failover` says it
    Failover {
        /// The full member that is to take writes: its number, or its node [default: the next one]
        #[arg(value_name = "REPLICA")]
        replica: Option<Replica>,
    },
    /// Make a group of nodes that have registered with a controller
    Create(CreateOptions),
    /// The groups of a controller
    List {
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Give up a group that cannot be made: what its nodes made for it is removed
    Abandon {
        /// The group's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// A replica as operators name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Replica {
    Number(u32),
    /// The one of this node.
    Node(String),
}

impl FromStr for Replica {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Ok(Self::Node(text.to_owned()))
            }
            Err(_) => Err("a replica's number or a node's name is expected".to_owned()),
        }
    }
}

/// A group that is to be made, and what is fixed of it then.
#[derive(Args, Clone, Debug)]
pub(crate) struct CreateOptions {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The nodes of its members, from the first to take writes to the one that answers reads
    #[arg(long, value_name = "NODE,NODE,…", value_delimiter = ',', required = true)]
    pub(crate) nodes: Vec<String>,
    /// Members, the first of --nodes; the others get a replica without data [default: all nodes, or
    /// 3 of them where there are several groups]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) replicas: Option<u32>,
    /// Groups, called NAME-1, NAME-2 and so on, over which keys are spread by hash slots; each
    /// node gets a replica of each [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) groups: Option<u32>,
    /// Nodes that get a replica without data, which takes over for a member that stays away
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub(crate) spares: Vec<String>,
    /// Nodes may share a failure domain
    #[arg(long)]
    pub(crate) share_domains: bool,
    /// Directory of backups of which the group, or all groups, are made: a path that this machine
    /// and those of the members have. What is fixed is as there
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["groups", "ack", "memtable_size", "compression", "bottom_compression"]
    )]
    pub(crate) from_backup: Option<PathBuf>,
    /// Number of the backup [default: the newest]
    #[arg(long, value_name = "N", requires = "from_backup")]
    pub(crate) backup: Option<u64>,
    /// Members that have to have everything for the group to take writes [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) min_replicas: Option<u32>,
    /// When a write is answered: held by every member's ring, or flushed by every member [default:
    /// replicated]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub(crate) ack: Option<Ack>,
    /// Memory of a MemTable before it is flushed, 64KiB to 1GiB and a sixteenth of the pool at most
    /// [default: 16MiB, or a sixty-fourth of a pool that is below 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memtable_size: Option<u64>,
    /// Compression of data blocks: none, lz4, zstd, or zstd:LEVEL from 1 to 19 [default: none]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) compression: Option<Compression>,
    /// Compression of the deepest files [default: as --compression]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) bottom_compression: Option<Compression>,
}

#[derive(Args, Debug)]
pub(crate) struct FailoverOptions {
    /// The full member that is to take writes: its number, or its node [default: the next one in
    /// the chain]
    #[arg(value_name = "REPLICA")]
    pub(crate) replica: Option<Replica>,
    #[command(flatten)]
    pub(crate) place: WhereOptions,
}

#[derive(Args, Debug, Clone)]
pub(crate) struct VerifyOptions {
    #[command(flatten)]
    pub(crate) place: WhereOptions,
    #[command(flatten)]
    pub(crate) door: DoorOptions,
    /// Read the pools themselves; the replicas must not be running
    #[arg(long, conflicts_with_all = ["port", "tls"])]
    pub(crate) offline: bool,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which pool is looked into, and how it is told.
#[derive(Args, Debug)]
pub(crate) struct DbOptions {
    #[command(subcommand)]
    pub(crate) command: DbCommand,
    #[command(flatten)]
    pub(crate) place: DbPlace,
}

/// Which pool. Its ring, the newest part of the log, is the file `ring` beside it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Which pool")]
pub(crate) struct DbPlace {
    /// Where the data is [default: $XDG_DATA_HOME/gabion, else ~/.local/share/gabion]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data: Option<PathBuf>,
    /// Which replica, 1 to 16 [default: 1]
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) replica: Option<u32>,
    /// A pool file or device, or the directory of an embedded store, instead of --data and
    /// --replica
    #[arg(long, value_name = "FILE", global = true, conflicts_with_all = ["data", "replica"])]
    pub(crate) pool: Option<PathBuf>,
    /// For programs: one JSON document from a command, one JSON object per line from `scan` and
    /// `dump`. Bytes that are no UTF-8 are {"hex": "00ff"}
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What `gabion db` does. Exit code 1: something is damaged, and named; 2: it could not be carried
/// out.
#[derive(Subcommand, Debug)]
pub(crate) enum DbCommand {
    /// The value of a key, as the replica would have it after a start
    Get {
        /// The key, as it is
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: std::ffi::OsString,
    },
    /// Keys and values in the order of the keys, a pair per line
    Scan(ScanOptions),
    /// About how many bytes a range of keys takes, in files and in memory, and how many entries it
    /// has, without reading it
    Size(RangeOptions),
    /// What the pool holds: slots, levels, log, MemTables, amplification
    Stats,
    /// A part of the pool, readable and complete, one thing per line
    #[command(subcommand)]
    Dump(DumpCommand),
    /// Read every live file and log segment and compare checksums
    Scrub,
    /// As `scrub`, and check all that checksums do not: the order of keys, levels, filters, the
    /// log's replay
    Verify,
    /// Copy what the replica holds into a new directory: a store of its own, a group of one
    Checkpoint {
        /// The directory to be made
        #[arg(value_name = "DIR")]
        target: PathBuf,
        /// Bytes reserved for the copy's pool [default: as many as the pool has]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        pool_size: Option<u64>,
    },
    /// Compact all levels of a store, or a range of its keys, into one. Writes; only in a group of
    /// one
    Compact {
        /// The first key that is wanted [default: the first there is]
        #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
        from: Option<std::ffi::OsString>,
        /// The first key that is no longer wanted [default: none, to the end]
        #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
        to: Option<std::ffi::OsString>,
        #[command(flatten)]
        codecs: CodecOptions,
    },
    /// Load sorted records into a store, all at once and without its log: one JSON object per line,
    /// as `scan --json` prints them. Writes; only in a group of one
    Load {
        /// Where the lines are [default: the standard input]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        codecs: CodecOptions,
    },
    /// Open a store to read and write it: one command, or a prompt; `help` lists them. Only a group
    /// of one
    Open {
        /// The command, as in `gabion db open put key value`; a prompt without it
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        words: Vec<std::ffi::OsString>,
        #[command(flatten)]
        codecs: CodecOptions,
    },
}

/// The codecs of the files that a command makes. Each file says its own, so they need not be those
/// of the store.
#[derive(Args, Debug, Default)]
pub(crate) struct CodecOptions {
    /// Compression of the files that are made meanwhile: none, lz4, zstd, or zstd:LEVEL. The
    /// deepest and those of `load` have that of --bottom-compression [default: the store's]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) compression: Option<Compression>,
    /// Compression of the deepest files and of all that `load` makes; `compact` writes anew what
    /// lies deepest with another [default: the store's; as --compression where it has none]
    #[arg(long, value_name = "CODEC", value_parser = parse_codec)]
    pub(crate) bottom_compression: Option<Compression>,
}

/// Which pairs, and how many.
#[derive(Args, Debug, Default)]
pub(crate) struct ScanOptions {
    #[command(flatten)]
    pub(crate) range: RangeOptions,
    /// From the last pair to the first; with --limit the last ones. `load` takes them in the order
    /// of the keys alone
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most so many pairs [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// Which pairs.
#[derive(Args, Debug, Default)]
pub(crate) struct RangeOptions {
    /// The first key that is wanted [default: the first there is]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) from: Option<std::ffi::OsString>,
    /// The first key that is no longer wanted [default: none, to the end]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) to: Option<std::ffi::OsString>,
    /// Only keys that begin so
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    pub(crate) prefix: Option<std::ffi::OsString>,
}

/// What can be dumped.
#[derive(Subcommand, Debug)]
pub(crate) enum DumpCommand {
    /// Both copies of the superblock
    Superblock,
    /// The header of each slot that is in use, held against the placement log and the slot's bytes
    Slots,
    /// The placement log: both areas, their commits, the operations in them
    Placements,
    /// The log's records, from where it is kept to its end
    Log {
        /// The entries of batches too
        #[arg(long)]
        entries: bool,
    },
    /// The tree of the last checkpoint and the edits applied since, with their recipes
    Edits,
    /// An SST: footer, properties, index, blocks
    File {
        /// The file, as in `dump edits`: 3-000012.sst, 3-12, or its whole number
        #[arg(value_name = "FILE", value_parser = parse_sst)]
        file: FileId,
        /// The entries of blocks too
        #[arg(long)]
        entries: bool,
    },
}

/// What can be measured.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// YCSB through the RESP door
    Ycsb(gabion_bench::YcsbArgs),
    /// YCSB on replicas with a RocksDB each, RubbleDB's baseline, and on Gabion, in turn
    Replication(gabion_bench::ReplicationArgs),
    /// Mixes of small, medium and large values, in the tree and apart: Tebis's evaluation
    Placement(gabion_bench::PlacementArgs),
    /// Workloads on this engine and on others, in turn: operations, CPU, latencies, amplification
    Engine(gabion_bench::EngineArgs),
    /// Faults of replicas under load: every answer checked, and for how long there was none
    Failover(gabion_bench::FailoverArgs),
    /// A replica that loses its disk, idle and under load: how long until it is full again
    Rebuild(gabion_bench::RebuildArgs),
    /// Records on their way into a log peer's memory: latency, rate and CPU by each path
    Fabric(gabion_bench::FabricArgs),
    /// Near-compute logs as SplitFT's evaluation has them: latency, programs, losses of log peers
    Ncl(gabion_bench::NclArgs),
    /// One page with plots, and a summary in Markdown, of the JSON of runs
    Report(gabion_bench::ReportArgs),
    /// One run of one workload on this engine: what `engine` starts
    #[command(hide = true)]
    EngineRun(gabion_workload::RunArgs),
    /// Calls on a file, which `ncl` has under the interposer and without it
    #[command(hide = true)]
    Calls(gabion_bench::CallsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct DestroyOptions {
    #[command(flatten)]
    pub(crate) data: DataOption,
    /// Do not ask. Refused, without --force, where `cluster.json` says nothing that this version
    /// knows
    #[arg(long)]
    pub(crate) yes: bool,
    /// With --yes: also data of another version, or with a damaged `cluster.json`
    #[arg(long, requires = "yes")]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ServerOptions {
    #[arg(long)]
    pub(crate) data: PathBuf,
    #[arg(long)]
    pub(crate) replica: u32,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
    #[command(flatten)]
    pub(crate) node: NodeProcess,
    /// The process that started this one; without it this one ends.
    #[arg(long)]
    pub(crate) parent: i32,
}

/// How pools are read and written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// io_uring, or threads where the kernel refuses it
    Auto,
    /// io_uring, or an error
    Uring,
    /// Threads with pread and pwrite
    Threads,
}

impl Io {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Threads => "threads",
        }
    }

    pub(crate) const fn backend(self) -> BackendChoice {
        match self {
            Self::Auto => BackendChoice::Auto,
            Self::Uring => BackendChoice::Uring,
            Self::Threads => BackendChoice::Threads,
        }
    }
}

/// The members that flush and compact.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compaction {
    /// The primary, which ships finished files to the others
    Primary,
    /// Each replica for itself: the baseline
    EveryReplica,
}

impl Compaction {
    pub(crate) const fn mode(self) -> CompactionMode {
        match self {
            Self::Primary => CompactionMode::Primary,
            Self::EveryReplica => CompactionMode::EveryReplica,
        }
    }
}

/// The meaning of an acknowledgement.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    /// In the ring of every replica: survives the kill of every process
    Replicated,
    /// Flushed by every replica: survives a power cut everywhere
    Durable,
}

impl Ack {
    pub(crate) const fn level(self) -> AckLevel {
        match self {
            Self::Replicated => AckLevel::Replicated,
            Self::Durable => AckLevel::Durable,
        }
    }
}

/// A first port: those of members and targets must fit above it.
pub(crate) fn parse_port(text: &str) -> Result<u16, String> {
    let max = u16::MAX - crate::cluster::PORTS_ABOVE;
    match text.parse::<u16>() {
        Ok(port) if (1..=max).contains(&port) => Ok(port),
        _ => Err(format!("the limits are 1 to {max}")),
    }
}

/// A span of time in ms.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1_000,
        "ms" => 1,
        "m" => 60_000,
        "h" => 3_600_000,
        unit => return Err(format!("`{unit}` is no unit of time: s, m or h")),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("`{text}` is no time, as 90s, 10m or 2h"))
}

/// How often replicas are asked.
fn parse_interval(text: &str) -> Result<u64, String> {
    parse_ms(text).and_then(|ms| match ms {
        200..=3_600_000 => Ok(ms),
        _ => Err(format!("`{text}`: the limits are 200ms and 1h")),
    })
}

/// Bytes of memory.
/// A file as it is shown: its term, unless that is 0, and its counter; or one number for both.
fn parse_sst(text: &str) -> Result<FileId, String> {
    let number = |text: &str| text.parse::<u64>().ok();
    let values = text.strip_suffix(".val");
    let name = values.or_else(|| text.strip_suffix(".sst")).unwrap_or(text);
    let found = match name.split_once('-') {
        None => number(name),
        Some((term, counter)) => {
            let halves = number(term).zip(number(counter));
            let halves =
                halves.map(|(term, counter)| (u32::try_from(term), u32::try_from(counter)));
            halves.and_then(|(term, counter)| {
                Some(u64::from(term.ok()?) << 32 | u64::from(counter.ok()?))
            })
        }
    };
    let kind = if values.is_some() { FileKind::Values } else { FileKind::Sst };
    let found = found.map(|number| FileId { kind, number });
    found.ok_or_else(|| "no SST, which looks like 3-000012.sst or 3-12".to_owned())
}

pub(crate) fn parse_large_values(text: &str) -> Result<u32, String> {
    let len = u32::try_from(parse_bytes(text)?).unwrap_or(u32::MAX);
    gabion_engine::check_large_values(len).map_err(|error| error.message().to_owned())?;
    Ok(len)
}

/// Bytes a second for the collection of garbage.
pub(crate) fn parse_collection_rate(text: &str) -> Result<u64, String> {
    let rate = parse_bytes(text)?;
    NodeOptions::check_collection_rate(rate).map_err(|error| error.message().to_owned())?;
    Ok(rate)
}

/// Bytes a second for the filling of a member.
pub(crate) fn parse_rebuild_rate(text: &str) -> Result<u64, String> {
    let rate = parse_bytes(text)?;
    NodeOptions::check_rebuild_rate(rate).map_err(|error| error.message().to_owned())?;
    Ok(rate)
}

pub(crate) fn parse_memory(text: &str) -> Result<usize, String> {
    let len = parse_bytes(text)?;
    usize::try_from(len).map_err(|_| format!("`{text}` is more memory than there can be"))
}

fn compactions() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=RunOptions::COMPACTIONS_MAX as u64)
}

fn nice() -> RangedU64ValueParser<u8> {
    RangedU64ValueParser::new().range(0..=u64::from(gabion_proc::STEPS_MAX))
}

/// Prints clap's message: help and version as they are, a refusal in one line.
pub(crate) fn refused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        crate::screen::put(&error.to_string());
        return ExitCode::SUCCESS;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{error}");
    } else {
        eprintln!("gabion: {}", one_line(&error.to_string()));
    }
    ExitCode::from(2)
}

/// The sentences of a clap error without its usage and pointers to the help.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let wanted = |line: &&str| {
        !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more information")
    };
    text.lines().map(str::trim).filter(wanted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn refusal(words: &[&str]) -> String {
        one_line(&Options::try_parse_from(words).unwrap_err().to_string())
    }

    #[test]
    fn the_options_contradict_each_other_nowhere() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_bad_option_is_refused_in_one_line_that_names_it() {
        for (words, part) in [
            (&["gabion", "up", "--replicas", "17"][..], "--replicas"),
            (&["gabion", "up", "--port", "65535"], "the limits are 1 to"),
            (&["gabion", "up", "--pool-size", "big"], "`big` is no size"),
            (&["gabion", "up", "--open-files-bytes", "-1"], "-1"),
            (&["gabion", "up", "--compactions-max", "65"], "1..=64"),
            (&["gabion", "up", "--jobs-nice", "20"], "0..=19"),
            (&["gabion", "up", "--rebuild-rate", "1048575"], "1048576 or more"),
            (&["gabion", "up", "--metrics-port", "65535"], "a port from 1 to 65518, or off"),
            (&["gabion", "up", "--metrics-port", "on"], "--metrics-port"),
            (&["gabion", "up", "--rebuild-rate", "1MiB/s"], "`1MiB/s` is no size"),
            (&["gabion", "up", "--compaction", "nobody"], "primary, every-replica"),
            (&["gabion", "up", "--compction", "primary"], "--compaction"),
            (&["gabion", "upp"], "up"),
            (&["gabion", "verify", "--offline", "--port", "1"], "--port"),
        ] {
            let line = refusal(words);
            assert!(line.contains(part), "{line}");
            assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn the_data_stands_before_or_behind_what_is_done_to_a_group() {
        for words in [
            &["gabion", "group", "--data", "/d", "remove", "3"][..],
            &["gabion", "group", "remove", "3", "--data", "/d"],
            &["gabion", "group", "remove", "--data", "/d", "3"],
        ] {
            let options = Options::try_parse_from(words).unwrap();
            let Command::Group(group) = options.command else { panic!("group") };
            assert_eq!(group.place.data.data.as_deref(), Some(std::path::Path::new("/d")));
        }
        let both = ["gabion", "group", "remove", "3", "--data", "/d", "-p", "7000"];
        assert!(refusal(&both).contains("--port"), "{}", refusal(&both));
    }

    #[test]
    fn words_after_cli_are_the_command_whatever_they_look_like() {
        for words in
            [&["set", "k", "--json"][..], &["set", "k", "--", "v"], &["incrby", "-k", "-1"]]
        {
            let options = Options::try_parse_from([&["gabion", "cli"], words].concat()).unwrap();
            let Command::Cli(cli) = options.command else { panic!("cli") };
            assert_eq!(cli.words, words);
        }
    }

    /// docs/faults.md: P36
    #[test]
    fn an_option_that_is_none_is_refused_before_the_command_and_a_word_of_it_after() {
        for option in ["-x", "-x7579", "-px", "--prot"] {
            let line = refusal(&["gabion", "cli", option, "7579", "ping"]);
            assert!(line.contains(&option[..2]) && !line.contains('\n'), "{option}: {line}");
            let options = Options::try_parse_from(["gabion", "cli", "echo", option]).unwrap();
            let Command::Cli(cli) = options.command else { panic!("cli") };
            assert_eq!(cli.words, ["echo", option]);
        }
    }

    #[test]
    fn a_time_is_read_in_its_unit() {
        for (text, ms) in [("90", 90_000), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000)] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "m", "-1s", "1d", "1.5h", "99999999999999999h"] {
            assert!(parse_ms(text).is_err(), "{text}");
        }
    }

    /// docs/faults.md: P36
    #[test]
    fn a_file_is_named_as_it_is_shown_or_by_its_number() {
        let file = FileId::sst(FileId::first_number(gabion_base::Term(3)) + 12);
        for name in [file.to_string(), "3-12".into(), file.number.to_string()] {
            assert_eq!(parse_sst(&name), Ok(file), "{name}");
        }
        assert_eq!(parse_sst("000012.sst"), Ok(FileId::sst(12)));
        assert_eq!(parse_sst("3-12.val"), Ok(FileId { kind: FileKind::Values, ..file }));
        for name in ["3-", "-12", "3-4294967296", "4294967296-1", "twelve", "3-000012.log"] {
            assert!(parse_sst(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_port_is_said_in_short_wherever_it_is_said() {
        let port = |words: &[&str]| match Options::try_parse_from(words).unwrap().command {
            Command::Up(options) => options.port,
            Command::Cli(options) => options.place.port,
            Command::Status(options) => options.place.port,
            Command::Verify(options) => options.place.port,
            other => panic!("{other:?}"),
        };
        for command in ["up", "cli", "status", "verify"] {
            assert_eq!(port(&["gabion", command, "-p", "7579"]), Some(7579), "{command}");
            assert_eq!(port(&["gabion", command, "-p7579"]), Some(7579), "{command}");
        }
    }

    #[test]
    fn the_controller_and_each_replica_serve_their_numbers_on_a_port_of_their_own() {
        let at = |port: MetricsPort, number| port.address(6379, number).map(|at| at.port());
        assert_eq!((at(MetricsPort::Auto, 0), at(MetricsPort::Auto, 16)), (Some(6679), Some(6695)));
        assert_eq!(at(MetricsPort::From(9300), 2), Some(9302));
        assert_eq!(at(MetricsPort::Off, 1), None);
        assert_eq!(MetricsPort::Auto.address(65_300, 0), None, "no ports are left above");
        for port in [MetricsPort::Auto, MetricsPort::Off, MetricsPort::From(1)] {
            assert_eq!(parse_metrics(&port.word()), Ok(port));
        }
    }

    #[test]
    fn a_replica_is_started_with_what_up_was_given() {
        let up = |words: &[&str]| {
            let options = Options::try_parse_from([&["gabion", "up"], words].concat()).unwrap();
            let Command::Up(options) = options.command else { panic!("up") };
            options.process
        };
        assert_eq!(up(&[]), ProcessOptions::default(), "also where nothing is said");
        let words = ["--io", "threads", "--block-cache-bytes", "0"];
        let more = ["--open-files-bytes", "2GiB", "--compactions-max", "4"];
        let given = up(&[
            &words[..],
            &more,
            &["--large-values", "512", "--value-compression", "zstd:5"],
            &["--collection-rate", "2MiB", "--jobs-nice", "19", "--rebuild-rate", "0"],
            &["--tls-port", "7000", "--tls-cert", "c.pem", "--tls-key", "c.key"],
            &["--tls-ca", "ca.pem", "--tls-auth-clients", "optional"],
            &["--aclfile", "users.acl", "--requirepass-file", "password"],
            &["--metrics-port", "9300"],
        ]
        .concat());
        let wanted = ProcessOptions {
            io: Io::Threads,
            block_cache_bytes: 0,
            open_files_bytes: 2 << 30,
            compactions_max: 4,
            large_values: Some(512),
            value_compression: Compression::Zstd { level: 5 },
            collection_rate: 2 << 20,
            jobs_nice: 19,
            rebuild_rate: 0,
            security: SecurityOptions {
                tls_port: Some(7000),
                tls_cert: Some("c.pem".into()),
                tls_key: Some("c.key".into()),
                tls_ca: Some("ca.pem".into()),
                tls_auth_clients: Some(ClientCertificates::Optional),
                aclfile: Some("users.acl".into()),
                requirepass_file: Some("password".into()),
            },
            metrics_port: MetricsPort::From(9300),
            node: NodeProcess::default(),
        };
        assert_eq!(given, wanted);
        let words = given.words();
        let words = words.iter().map(String::as_str);
        let place = ["gabion", "server", "--data", "d", "--replica", "1", "--parent", "7"];
        let options = Options::try_parse_from(place.into_iter().chain(words)).unwrap();
        let Command::Server(server) = options.command else { panic!("server") };
        assert_eq!(server.process, wanted);
    }

    #[test]
    fn names_on_the_command_line_are_those_of_the_modes() {
        for mode in Compaction::value_variants() {
            assert_eq!(mode.to_possible_value().unwrap().get_name(), mode.mode().as_str());
        }
        for ack in Ack::value_variants() {
            assert_eq!(ack.to_possible_value().unwrap().get_name(), ack.level().as_str());
        }
        for io in Io::value_variants() {
            assert_eq!(io.to_possible_value().unwrap().get_name(), io.as_str());
        }
    }
}
