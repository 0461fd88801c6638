//! The options of `gabion bench rebuild`.

use crate::args::{AckChoice, VALUE_LEN_MIN, in_range};
use crate::failover::Role;
use clap::{Args, ValueEnum};
use gabion_base::Result;
use gabion_base::units::{GIB, VALUE_LEN_MAX};
use gabion_node::AckLevel;
use gabion_workload::parse_bytes;
use std::path::PathBuf;

/// The load under which a disk is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LoadKind {
    /// None.
    #[default]
    Idle,
    /// Half of the requests a second that the clients had answered with nothing held back.
    Half,
}

impl LoadKind {
    /// The name on the command line, in tables and in JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Half => "half",
        }
    }
}

/// Has a replica of a real `gabion up` lose its disk, idle and under load, and measures how long it
/// takes until it is full again, beside what the device and loopback give.
#[derive(Args, Clone, Debug)]
pub struct RebuildArgs {
    /// Bytes of keys and values that are loaded first.
    #[arg(long, default_value = "2GB", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Loads under which a disk is lost, in turn: half is half of what the clients can have
    /// answered.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle,half")]
    pub loads: Vec<LoadKind>,
    /// How often each.
    #[arg(long, default_value_t = 1)]
    pub rounds: u64,
    /// The replica that loses its disk.
    #[arg(long, value_enum, default_value_t = Role::Tail)]
    pub role: Role,
    /// Seconds of load before a disk is lost: of full load, and of half of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub calm: u64,
    /// Clients: one half writes, the other reads, each with one request under way.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// Bytes of a value: 32 at least.
    #[arg(long, default_value = "1000", value_parser = parse_bytes)]
    pub value_size: u64,
    /// Replicas of the group.
    #[arg(long, default_value_t = 3)]
    pub replicas: u32,
    /// Bytes of each replica's pool [default: three times --bytes, and 1GiB at least].
    #[arg(long, value_parser = parse_bytes)]
    pub pool_size: Option<u64>,
    /// `--rebuild-rate` of the replicas [default: theirs].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub rebuild_rate: Option<u64>,
    /// The meaning of an acknowledgement.
    #[arg(long, value_enum, default_value_t = AckChoice::Replicated)]
    pub ack: AckChoice,
    /// Directory of the group's data while it runs [default: beside the data directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Write each round to this file, which must not be there, as it comes, a JSON object a line;
    /// without a file to standard output, in place of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Print the table as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = 1 << 40;

impl RebuildArgs {
    /// Checks all numbers.
    ///
    /// # Errors
    /// The first option that does not fit, with its limits.
    pub(super) fn check(&self) -> Result<()> {
        in_range("bytes", self.bytes, BYTES_MIN, BYTES_MAX)?;
        in_range("rounds", self.rounds, 1, 1_000)?;
        in_range("calm", self.calm, 1, 3_600)?;
        in_range("clients", u64::from(self.clients), 2, 256)?;
        in_range("value-size", self.value_size, VALUE_LEN_MIN, VALUE_LEN_MAX as u64)?;
        let fewest = if self.role == Role::Middle { 3 } else { 2 };
        in_range("replicas", u64::from(self.replicas), fewest, 9)
    }

    /// Bytes of each replica's pool.
    #[must_use]
    pub fn pool_size(&self) -> u64 {
        self.pool_size.unwrap_or_else(|| self.bytes.saturating_mul(3).max(GIB))
    }

    pub(super) const fn ack_level(&self) -> AckLevel {
        match self.ack {
            AckChoice::Replicated => AckLevel::Replicated,
            AckChoice::Durable => AckLevel::Durable,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RebuildArgs,
    }

    pub(crate) fn args(words: &[&str]) -> RebuildArgs {
        Line::try_parse_from([&["rebuild"], words].concat()).unwrap().args
    }

    #[test]
    fn options_that_do_not_fit_are_refused_with_their_limits() {
        let refused: [(&[&str], &str); 5] = [
            (&["--bytes", "1K"], "--bytes is 1024, allowed are 1048576 to"),
            (&["--rounds", "0"], "--rounds is 0"),
            (&["--clients", "1"], "--clients is 1, allowed are 2 to 256"),
            (&["--value-size", "16"], "--value-size is 16"),
            (&["--replicas", "2", "--role", "middle"], "--replicas is 2, allowed are 3 to 9"),
        ];
        for (words, message) in refused {
            let error = args(words).check().unwrap_err().to_string();
            assert!(error.contains(message), "{message}\nis not in\n{error}");
        }
        args(&[]).check().unwrap();
    }

    #[test]
    fn a_pool_has_room_for_what_compactions_need_besides_the_data() {
        assert_eq!(args(&["--bytes", "4GiB"]).pool_size(), 12 << 30);
        assert_eq!(args(&["--bytes", "1MiB"]).pool_size(), 1 << 30);
        assert_eq!(args(&["--pool-size", "2GiB"]).pool_size(), 2 << 30);
    }
}
