//! sqlite3 and its one client. Each request is a transaction.

use super::super::house::Process;
use super::{Drove, Load, Server, UNBOUNDED, VALUE};
use crate::keys::key;
use crate::workload::{Hand, Kind, LOADED, Op};
use gabion_base::{Error, Result};
use gabion_workload::{Latencies, Sizes, Values};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most records, as one client writes them all.
pub(super) const RECORDS_MAX: u64 = 20_000;
const SEED: u64 = 1;

pub(super) struct Sqlite {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    records: u64,
    values: Values,
    requests: u64,
    runs: u64,
}

pub(super) fn start(
    mut command: Command,
    log: PathBuf,
    is_synced: bool,
    records: u64,
) -> Result<Box<dyn Server>> {
    let mut process = Process::start(command.arg("t.db").stdout(Stdio::piped()), log)?;
    let (input, output) = process.pipes().ok_or_else(|| process.ended("it was there"))?;
    // Values are text, two digits for a byte.
    let values = Values::new(Sizes::one(VALUE / 2), 0.0, SEED);
    let mut sqlite = Sqlite { process, input, output, records, values, requests: 0, runs: 0 };
    // As in the paper: one process has the database.
    for (ask, answer) in [("locking_mode=exclusive", "exclusive"), ("journal_mode=wal", "wal")] {
        let said = sqlite.ask(&format!("pragma {ask};"));
        let said = said.map_err(|_| sqlite.process.ended("it served"))?;
        if said != answer {
            return Err(Error::unavailable(format!("sqlite3: {ask}: '{said}'")));
        }
    }
    let synchronous = if is_synced { "full" } else { "off" };
    sqlite.expect_done(&format!(
        "pragma synchronous={synchronous}; create table if not exists t(k text primary key, v \
         text) without rowid; select 'done';"
    ))?;
    Ok(Box::new(sqlite))
}

impl Sqlite {
    fn ask(&mut self, text: &str) -> Result<String> {
        let ended = |_| Error::unavailable("sqlite3: it has ended");
        writeln!(self.input, "{text}").map_err(ended)?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end().to_owned()),
            _ => Err(Error::unavailable("sqlite3: it has ended")),
        }
    }

    fn expect_done(&mut self, text: &str) -> Result<()> {
        match self.ask(text)?.as_str() {
            "done" => Ok(()),
            said => Err(Error::unavailable(format!("sqlite3: it says '{said}'"))),
        }
    }

    fn write_words(&self, record: u64, version: u64) -> String {
        let mut value = Vec::new();
        self.values.put(record, version, &mut value);
        let mut text = format!("insert or replace into t values('{}','", key_text(record));
        for byte in value {
            // A string takes all.
            let _ = write!(text, "{byte:02x}");
        }
        text + "');"
    }

    fn read_value(&self, record: u64, text: &str) -> Result<()> {
        let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
        let value: Option<Vec<u8>> = (0..text.len() / 2).map(byte).collect();
        let found = value.is_some_and(|value| self.values.check(record, &value).is_ok());
        match found {
            true => Ok(()),
            false => Err(Error::corruption(format!("sqlite3: record {record} is '{text}'"))),
        }
    }

    fn request(&mut self, op: Op) -> Result<()> {
        let Op { kind, record, version, .. } = op;
        let read = format!("select v from t where k='{}';", key_text(record));
        match kind {
            Kind::Read | Kind::Scan => {
                let found = self.ask(&read)?;
                self.read_value(record, &found)
            }
            Kind::Insert | Kind::Update => {
                let write = self.write_words(record, version);
                self.expect_done(&format!("{write} select 'done';"))
            }
            Kind::ReadModifyWrite => {
                let write = self.write_words(record, version);
                let found = self.ask(&format!("begin; {read} {write} commit; select 'done';"))?;
                self.read_value(record, &found)?;
                match self.line()?.as_str() {
                    "done" => Ok(()),
                    said => Err(Error::unavailable(format!("sqlite3: it says '{said}'"))),
                }
            }
        }
    }
}

fn key_text(record: u64) -> String {
    String::from_utf8_lossy(&key(record)).into_owned()
}

impl Server for Sqlite {
    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn load(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut text = "begin;\n".to_owned();
        for record in 0..self.records {
            text += &self.write_words(record, LOADED);
            text.push('\n');
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Error::unavailable("interrupted"));
        }
        self.expect_done(&format!("{text}commit; select 'done';"))
    }

    fn drive(
        &mut self,
        load: Load,
        _clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Drove> {
        let supply = load.supply(UNBOUNDED, self.records, self.requests);
        let mut hand = Hand::new(&supply, SEED, self.runs, 0);
        let mut latencies = Latencies::new();
        let begun = Instant::now();
        let mut last = begun;
        while last.duration_since(begun) < time && !stop.load(Ordering::Relaxed) {
            let Some(op) = hand.next() else { break };
            self.request(op)?;
            if op.kind == Kind::Insert {
                supply.inserted(op.record);
            }
            let now = Instant::now();
            latencies.record(now.duration_since(last));
            last = now;
        }
        let count = latencies.count();
        (self.runs, self.requests) = (self.runs + 1, self.requests + count);
        Ok(Drove { count, took: last.duration_since(begun), latencies })
    }
}
