//! The options of `gabion bench failover`.

use crate::args::{AckChoice, VALUE_LEN_MIN, in_range};
use clap::{Args, ValueEnum};
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, Result};
use gabion_node::AckLevel;
use gabion_workload::parse_bytes;
use std::path::PathBuf;
use std::time::Duration;

/// A fault of a replica, its disk or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// Its process is killed (`kill -9`).
    Kill,
    /// Its process is stopped for a while (SIGSTOP).
    Stop,
    /// Nothing passes between it and its neighbour, either way.
    Cut,
    /// Nothing that it sends to its neighbour arrives.
    CutOut,
    /// Nothing that its neighbour sends to it arrives.
    CutIn,
    /// Its disk answers nothing for a while.
    Hang,
}

impl Fault {
    /// The name on the command line, in tables and in JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Cut => "cut",
            Self::CutOut => "cut-out",
            Self::CutIn => "cut-in",
            Self::Hang => "hang",
        }
    }

    /// Whether it takes a command of whoever runs the benchmark.
    pub(super) const fn needs_command(self) -> bool {
        matches!(self, Self::Cut | Self::CutOut | Self::CutIn | Self::Hang)
    }
}

/// The place in the chain of the replica that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// The replica that takes writes.
    Head,
    /// One between head and tail.
    Middle,
    /// The replica that answers reads.
    Tail,
}

impl Role {
    /// The name on the command line, in tables and in JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Middle => "middle",
            Self::Tail => "tail",
        }
    }

    /// The name of the role in `GABION STATUS`.
    pub(super) const fn in_status(self) -> &'static str {
        match self {
            Self::Head => "primary",
            Self::Middle => "middle",
            Self::Tail => "tail",
        }
    }
}

/// Kills and stops replicas of a real `gabion up` under load, checks every answer, and measures for
/// how long nobody was answered.
#[derive(Args, Clone, Debug)]
pub struct FailoverArgs {
    /// Rounds, each with one fault: every fault at every role in turn.
    #[arg(long, default_value_t = 6)]
    pub rounds: u64,
    /// The first round has this fault of the turn, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u64,
    /// Faults to inject, in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,stop")]
    pub faults: Vec<Fault>,
    /// To which replicas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "head,middle,tail")]
    pub roles: Vec<Role>,
    /// Seconds for which a replica stays stopped, a link cut, or a disk silent.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub stop_for: u64,
    /// Seconds of load on a whole group before each fault. The figures before a fault are theirs.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub calm: u64,
    /// Seconds for which a round goes on once the group is whole again.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub after: u64,
    /// Clients: one half writes, the other reads the same keys, each with one request under way.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// Milliseconds after which a client gives up a request and its connection.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub timeout_ms: u64,
    /// Records that are loaded, then written and read by the clients.
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Bytes of a value: 32 at least.
    #[arg(long, default_value = "1000", value_parser = parse_bytes)]
    pub value_size: u64,
    /// Replicas of the group.
    #[arg(long, default_value_t = 3)]
    pub replicas: u32,
    /// Bytes of each replica's pool. Everything else that `up` is not told here is its default.
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    pub pool_size: u64,
    /// The meaning of an acknowledgement.
    #[arg(long, value_enum, default_value_t = AckChoice::Replicated)]
    pub ack: AckChoice,
    /// A command for a shell that cuts links and holds disks up, needed for such faults. It gets
    /// these words: `prepare PID...` with the replicas' processes, before each round; `cut PID
    /// PORTS PID PORTS`, to drop what the first sends to the second (PORTS: where others connect to
    /// it, with commas); `hang PID DIR`, to let no read or write of the process end on the device
    /// of that directory; `heal`.
    #[arg(long, value_name = "COMMAND")]
    pub cut_command: Option<String>,
    /// Directory of the group's data while it runs [default: beside the data directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Write each round to this file, which must not be there, as it comes, a JSON object a line;
    /// without a file to standard output, in place of the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Draw the round whose writes had the longest gap to this file, which must not be there.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print the tables as Markdown.
    #[arg(long)]
    pub markdown: bool,
}

const ROUNDS_MAX: u64 = 100_000;
const SECONDS_MAX: u64 = 3600;
const CLIENTS_MAX: u64 = 256;
const RECORDS_MAX: u64 = 100_000_000;
/// Fewest records of a client: some are lost to it with each fault.
const RECORDS_OF_CLIENT_MIN: u64 = 100;
const REPLICAS_MAX: u64 = 9;

impl FailoverArgs {
    /// Checks all numbers.
    ///
    /// # Errors
    /// The first option that does not fit, with its limits.
    pub(super) fn check(&self) -> Result<()> {
        in_range("rounds", self.rounds, 1, ROUNDS_MAX)?;
        in_range("stop-for", self.stop_for, 1, SECONDS_MAX)?;
        in_range("calm", self.calm, 1, SECONDS_MAX)?;
        in_range("after", self.after, 1, SECONDS_MAX)?;
        in_range("clients", u64::from(self.clients), 2, CLIENTS_MAX)?;
        if !self.clients.is_multiple_of(2) {
            let clients = self.clients;
            return Err(Error::invalid(format!(
                "--clients is {clients}, allowed are even numbers: one half writes, one reads"
            )));
        }
        in_range("timeout-ms", self.timeout_ms, 1, SECONDS_MAX * 1000)?;
        let fewest = RECORDS_OF_CLIENT_MIN * u64::from(self.clients);
        in_range("records", self.records, fewest, RECORDS_MAX)?;
        in_range("value-size", self.value_size, VALUE_LEN_MIN, VALUE_LEN_MAX as u64)?;
        in_range("replicas", u64::from(self.replicas), 2, REPLICAS_MAX)?;
        if self.replicas == 2 && self.roles.contains(&Role::Middle) {
            return Err(Error::invalid(
                "--roles names the middle, and a group of --replicas 2 has none",
            ));
        }
        if let Some(fault) = self.faults.iter().find(|fault| fault.needs_command())
            && self.cut_command.is_none()
        {
            return Err(Error::invalid(format!(
                "--faults names {}, which needs a --cut-command",
                fault.as_str()
            )));
        }
        Ok(())
    }

    /// The fault of a round, counted from 0: all faults at one role, then at the next.
    pub(super) fn fault(&self, round: u64) -> (Fault, Role) {
        let turns = (self.faults.len() * self.roles.len()) as u64;
        let turn = (round % turns + self.first % turns) % turns;
        let (role, fault) = (turn as usize / self.faults.len(), turn as usize % self.faults.len());
        (self.faults[fault], self.roles[role])
    }

    pub(super) fn pairs(&self) -> usize {
        self.clients as usize / 2
    }

    pub(super) const fn ack_level(&self) -> AckLevel {
        match self.ack {
            AckChoice::Replicated => AckLevel::Replicated,
            AckChoice::Durable => AckLevel::Durable,
        }
    }

    pub(super) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FailoverArgs,
    }

    pub(crate) fn args(words: &[&str]) -> FailoverArgs {
        Line::try_parse_from([&["failover"], words].concat()).unwrap().args
    }

    #[test]
    fn every_fault_hits_every_role_in_turn() {
        let args = args(&["--first", "4"]);
        args.check().unwrap();
        let turns: Vec<(Fault, Role)> = (0..6).map(|round| args.fault(round)).collect();
        let expected = [
            (Fault::Kill, Role::Tail),
            (Fault::Stop, Role::Tail),
            (Fault::Kill, Role::Head),
            (Fault::Stop, Role::Head),
            (Fault::Kill, Role::Middle),
            (Fault::Stop, Role::Middle),
        ];
        assert_eq!(turns, expected);
        assert_eq!(args.fault(6), turns[0]);
    }

    #[test]
    fn options_that_do_not_fit_are_refused_with_their_limits() {
        let refused: [(&[&str], &str); 8] = [
            (&["--rounds", "0"], "--rounds is 0, allowed are 1 to 100000"),
            (&["--clients", "7"], "--clients is 7, allowed are even numbers"),
            (&["--records", "10"], "--records is 10, allowed are 800 to"),
            (&["--value-size", "16"], "--value-size is 16"),
            (&["--replicas", "1"], "--replicas is 1, allowed are 2 to 9"),
            (&["--replicas", "2"], "--roles names the middle"),
            (&["--faults", "kill,cut-in"], "names cut-in, which needs a --cut-command"),
            (&["--faults", "hang"], "names hang, which needs a --cut-command"),
        ];
        for (words, message) in refused {
            let error = args(words).check().unwrap_err().to_string();
            assert!(error.contains(message), "{message}\nis not in\n{error}");
        }
        args(&["--faults", "cut", "--cut-command", "x"]).check().unwrap();
    }
}
