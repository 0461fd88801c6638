//! pgbench: PostgreSQL's own clients, driven by one thread.
//!
//! Its times are whole seconds, and end by SIGALRM, which it sends itself. Here the signal comes
//! from outside, so that they may be shorter.

use super::super::house::{failed, said, words};
use super::{Drove, sleep};
use gabion_base::{Error, Result};
use gabion_workload::Latencies;
use rustix::process::{Pid, Signal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// It ends by itself so long after its time.
const SPARE: u64 = 60;
const TICK: Duration = Duration::from_millis(1);
const CONNECTING_MIN: Duration = Duration::from_millis(5);
/// The one that `initdb` makes.
pub(super) const DATABASE: &str = "postgres";
/// The bit of SIGALRM, the 14th.
const ALARM: u64 = 1 << 13;

pub(super) struct Pgbench {
    pub(super) program: PathBuf,
    /// Options that name the server.
    pub(super) words: Vec<String>,
    /// Begin of the names of its logs, which have a line for each transaction.
    pub(super) log: PathBuf,
    /// Branches of 100,000 accounts.
    pub(super) scale: u64,
    /// How long a connection takes.
    pub(super) connecting: Duration,
}

impl Pgbench {
    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // Its words are read here.
        command.args(&self.words).args(options).env("LC_ALL", "C");
        command
    }

    /// Makes its tables.
    pub(super) fn load(&self) -> Result<()> {
        said(self.command(&["-i", "-q", "-s", &self.scale.to_string()]).arg(DATABASE)).map(drop)
    }

    /// For a time from when all clients are connected, as far as earlier runs tell when that is.
    pub(super) fn drive(
        &mut self,
        script: &str,
        clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Drove> {
        loop {
            let pause = self.connecting.mul_f64(clients as f64);
            if pause.as_secs() > SPARE / 2 {
                let text = format!("pgbench: no transaction of {clients} clients in {pause:?}");
                return Err(Error::unavailable(text));
            }
            let ran = self.run(script, clients, pause + time, stop)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(Drove::none());
            }
            let Some((drove, connecting)) = ran else {
                // They were not connected by then.
                self.connecting = (2 * self.connecting).max(CONNECTING_MIN);
                continue;
            };
            self.connecting = connecting.div_f64(clients as f64);
            return Ok(drove);
        }
    }

    /// A run, and how long its connections took; none without a transaction.
    fn run(
        &self,
        script: &str,
        clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Option<(Drove, Duration)>> {
        let (clients, most) = (clients.to_string(), (time.as_secs() + SPARE).to_string());
        let options = ["-n", "-l", "-b", script, "-c", &clients, "-T", &most];
        let mut command = self.command(&options);
        command.arg("--log-prefix").arg(&self.log).arg(DATABASE).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed(&self.program))?;
        let log = self.log.with_extension(format!("pgbench.{}", child.id()));
        if begins(&mut child)? {
            sleep(time, stop);
            // Its status says why, if it has ended.
            let _ = rustix::process::kill_process(Pid::from_child(&child), Signal::ALARM);
        }
        let output = child.wait_with_output().map_err(failed(&self.program))?;
        let said = words(&self.program, &output)?;
        let lines = std::fs::read_to_string(&log).map_err(failed(&log))?;
        std::fs::remove_file(&log).map_err(failed(&log))?;
        let bad = || Error::corruption(format!("pgbench: it says '{said}'"));
        let latencies = read_log(&lines).ok_or_else(bad)?;
        let Summary { count, per_second, connecting } = read_summary(&said).ok_or_else(bad)?;
        if latencies.count() != count {
            let text = format!("pgbench: {count} transactions, {} in its log", latencies.count());
            return Err(Error::corruption(text));
        }
        let took = |per_second| Duration::from_secs_f64(count as f64 / per_second);
        let drove = |per_second| Drove { count, took: took(per_second), latencies };
        Ok(per_second.map(drove).zip(connecting))
    }
}

/// Waits until it takes SIGALRM for its end. Before, the signal would kill it.
fn begins(child: &mut Child) -> Result<bool> {
    let path = format!("/proc/{}/status", child.id());
    loop {
        let status = std::fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
        if takes_alarms(&status) {
            return Ok(true);
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return Ok(false);
        }
        std::thread::sleep(TICK);
    }
}

/// Whether a process has a handler for SIGALRM.
fn takes_alarms(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & ALARM != 0)
}

/// Its words at the end.
#[derive(Debug, PartialEq)]
struct Summary {
    count: u64,
    /// Without the time that connections took. None if there was no transaction.
    per_second: Option<f64>,
    connecting: Option<Duration>,
}

fn read_summary(said: &str) -> Option<Summary> {
    let after = |begin: &str| said.lines().find_map(|line| line.strip_prefix(begin));
    let count = after("number of transactions actually processed: ")?.parse().ok()?;
    if count == 0 {
        return Some(Summary { count, per_second: None, connecting: None });
    }
    let positive =
        |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    let rate = after("tps = ")?.strip_suffix(" (without initial connection time)")?;
    let connecting = after("initial connection time = ")?.strip_suffix(" ms")?;
    let connecting = Duration::from_secs_f64(positive(connecting)? / 1e3);
    Some(Summary { count, per_second: Some(positive(rate)?), connecting: Some(connecting) })
}

/// The third word of each line is the µs that a transaction took.
fn read_log(lines: &str) -> Option<Latencies> {
    let mut latencies = Latencies::new();
    for line in lines.lines() {
        let us = line.split(' ').nth(2)?.parse().ok()?;
        latencies.record(Duration::from_micros(us));
    }
    Some(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "pgbench (15.6)\ntransaction type: <builtin: TPC-B (sort of)>\n\
                        number of transactions actually processed: 30\n\
                        number of failed transactions: 0 (0.000%)\n\
                        latency average = 4.000 ms\ninitial connection time = 8.123 ms\n\
                        tps = 250.500000 (without initial connection time)\n";

    #[test]
    fn transactions_and_their_rate_are_read_and_a_summary_without_them_is_none() {
        let connecting = Some(Duration::from_micros(8123));
        let summary = Summary { count: 30, per_second: Some(250.5), connecting };
        assert_eq!(read_summary(SAID), Some(summary));
        let cases = [("250.500000", "0.0"), ("250.500000", "inf"), ("30", "30/30"), ("8.1", "-")];
        for (word, other) in cases {
            assert_eq!(read_summary(&SAID.replacen(word, other, 1)), None, "{other}");
        }
        assert_eq!(read_summary(&SAID.replace("without initial", "with")), None);
        // Clients that were not connected in time.
        let early = read_summary("number of transactions actually processed: 0\n").unwrap();
        assert_eq!((early.count, early.per_second), (0, None));
    }

    #[test]
    fn latencies_are_the_third_words_of_a_log() {
        let read = read_log("0 1 1500 0 1764325 10\n1 1 2500 0 1764325 12\n").unwrap();
        // They are kept to some digits.
        let most = read.max_us().round();
        assert!(read.count() == 2 && (2490.0..2510.0).contains(&most), "{most}");
        assert!(read_log("0 1 failed 0 1764325 10\n").is_none());
        assert!(read_log("0 1\n").is_none());
    }

    #[test]
    fn a_handler_for_alarms_is_the_fourteenth_bit() {
        assert!(takes_alarms("Name:\tpgbench\nSigCgt:\t0000000000002000\n"));
        assert!(!takes_alarms("SigIgn:\t0000000000002000\nSigCgt:\t0000000000001000\n"));
        assert!(!takes_alarms("Name:\tpgbench\n"));
    }
}
