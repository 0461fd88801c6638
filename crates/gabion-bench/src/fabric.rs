//! `gabion bench fabric`: what a record costs on its way into a peer's memory, by each path.
//!
//! ```text
//!   this thread ─┬─ shared memory: data, cell, fence, gate ──────────► region of the peer
//!                └─ socket: a chain of data and cell ─► gabion-peer ─► region of the peer
//! ```
//!
//! A record is a chain of its data and a cell of 64 bytes with its number and the checksum of the
//! data, as near-compute logs write it. One record at a time gives the latency, several outstanding
//! the rate. The peer is a thread of this process, so its processor time is told apart by name.

use crate::ncl::memory::used_by;
use crate::provenance::provenance;
use crate::text::{Style, Table};
use clap::Args;
use gabion_base::{Error, ErrorKind, Result, Term, crc};
use gabion_fabric::remote::{
    LinkAddress, PeerLink, PeerServer, ServerOptions, SharedRegion, write_chain,
};
use gabion_media::remote::message::Parts;
use gabion_media::remote::{
    ClientConfig, ClientId, ConnectionGeneration, Incarnation, Key, Part, PeerConfig, PeerId,
    RegionId, Reply, Request,
};
use gabion_workload::{Latencies, parse_bytes};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TERM: Term = Term(1);
const CELL_LEN: usize = 64;
/// Cells of a region, before its data.
const CELLS: u64 = 64;
const DATA_AT: u64 = CELLS * CELL_LEN as u64;
const REGION_LEN: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
const PEER_THREAD: &str = "gabion-peer";

/// The options of `gabion bench fabric`.
#[derive(Args, Debug, Clone)]
pub struct FabricArgs {
    /// Records of each run
    #[arg(long, value_name = "N", default_value_t = 200_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub records: u64,
    /// Bytes of a record, 1 to 64KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_record, default_value = "128")]
    pub record_size: u64,
    /// Records outstanding where the rate is measured, 2 to 1,024
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(2..=1024))]
    pub outstanding: u64,
    /// Memory that a peer lends in full, to see what it uses in all
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "256MiB")]
    pub memory: u64,
    /// For programs
    #[arg(long)]
    pub json: bool,
}

fn parse_record(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        len @ 1..=65_536 => Ok(len),
        _ => Err(format!("`{text}` is no length of a record: 1 to 64KiB are valid")),
    }
}

/// One run.
struct Row {
    path: &'static str,
    outstanding: u64,
    records: u64,
    took: Duration,
    latencies: Latencies,
    /// Processor seconds of this thread and of the peer's.
    cpu_s: [f64; 2],
}

impl Row {
    fn per_record(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.records as f64
    }

    fn rate(&self) -> f64 {
        self.records as f64 / self.took.as_secs_f64()
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path,
            "outstanding": self.outstanding,
            "records": self.records,
            "seconds": self.took.as_secs_f64(),
            "records_per_s": self.rate(),
            "mean_us": self.per_record(self.took.as_secs_f64()) * self.outstanding as f64,
            "p50_us": self.latencies.quantile_us(0.5),
            "p99_us": self.latencies.quantile_us(0.99),
            "client_cpu_us": self.per_record(self.cpu_s[0]),
            "peer_cpu_us": self.per_record(self.cpu_s[1]),
        })
    }
}

/// A peer and where it listens; its socket's directory is removed with it.
struct Served {
    _server: PeerServer,
    tcp: LinkAddress,
    unix: LinkAddress,
    dir: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn serve(limit_bytes: u64) -> Result<Served> {
    let failed = |e| Error::with_source(ErrorKind::Io, "the sockets of a peer", e);
    let dir = std::env::temp_dir().join(format!("gabion-bench-fabric-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let path = dir.join("socket");
    let _ = std::fs::remove_file(&path);
    let tcp = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = LinkAddress::Tcp(tcp.local_addr().map_err(failed)?);
    let unix = UnixListener::bind(&path).map_err(failed)?;
    let server = PeerServer::start(ServerOptions {
        config: PeerConfig::new(PeerId(1), Incarnation(1), limit_bytes),
        tcp: Some(tcp),
        ciphers: None,
        unix: Some(unix),
        greeting_timeout_ms: 5_000,
    })?;
    Ok(Served { _server: server, tcp: address, unix: LinkAddress::Unix(path), dir })
}

fn link(address: &LinkAddress, client: u64) -> Result<PeerLink> {
    let config = ClientConfig::new(ClientId(client), ConnectionGeneration(1));
    PeerLink::connect(address.clone(), config)
}

fn lend(link: &mut PeerLink, bytes: u64) -> Result<(RegionId, Key)> {
    let request = Request::Lend { owner: "bench", label: b"log", epoch: 1, term: TERM, bytes };
    match link.call(&request)? {
        Reply::Lent { region, key, .. } => Ok((region, key)),
        other => Err(refused(&other)),
    }
}

fn refused(reply: &Reply) -> Error {
    match reply {
        Reply::Refused(refusal) => refusal.error(),
        other => Error::corruption(format!("the peer replies {other:?}")),
    }
}

/// Offsets of a record's data and cell, and the cell.
fn placed(number: u64, data: &mut [u8]) -> (u64, u64, [u8; CELL_LEN]) {
    let len = data.len() as u64;
    data.fill(number as u8);
    let mut cell = [0; CELL_LEN];
    cell[..8].copy_from_slice(&number.to_le_bytes());
    cell[8..12].copy_from_slice(&crc::crc32c(data).to_le_bytes());
    let slots = (REGION_LEN - DATA_AT) / len;
    (DATA_AT + number % slots * len, number % CELLS * CELL_LEN as u64, cell)
}

/// Processor seconds of this thread and of the peer's.
fn processor() -> [f64; 2] {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let own = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let peers = gabion_proc::threads().into_iter().filter(|(name, _)| name == PEER_THREAD);
    [own, peers.map(|(_, seconds)| seconds).sum()]
}

fn measured(
    (path, outstanding, records): (&'static str, u64, u64),
    body: impl FnOnce(&mut Latencies) -> Result<()>,
) -> Result<Row> {
    let mut latencies = Latencies::new();
    let (before, begun) = (processor(), Instant::now());
    body(&mut latencies)?;
    let took = begun.elapsed();
    let after = processor();
    let cpu_s = [after[0] - before[0], after[1] - before[1]];
    Ok(Row { path, outstanding, records, took, latencies, cpu_s })
}

fn over_shared_memory(shared: &SharedRegion, args: &FabricArgs) -> Result<Row> {
    let mut data = vec![0; args.record_size as usize];
    measured(("shared memory", 1, args.records), |latencies| {
        for number in 1..=args.records {
            let begun = Instant::now();
            let (data_at, cell_at, cell) = placed(number, &mut data);
            write_chain(&[(shared, data_at, &data), (shared, cell_at, &cell)])?;
            latencies.record(begun.elapsed());
        }
        Ok(())
    })
}

fn over_socket(
    (path, outstanding): (&'static str, u64),
    link: &mut PeerLink,
    (region, key): (RegionId, Key),
    args: &FabricArgs,
) -> Result<Row> {
    let mut data = vec![0; args.record_size as usize];
    let mut begun = VecDeque::with_capacity(outstanding as usize);
    measured((path, outstanding, args.records), |latencies| {
        let mut sent = 0;
        while sent < args.records || !begun.is_empty() {
            while sent < args.records && (begun.len() as u64) < outstanding {
                sent += 1;
                begun.push_back(Instant::now());
                let (data_at, cell_at, cell) = placed(sent, &mut data);
                let parts = [
                    Part { region, key, offset: data_at, data: &data },
                    Part { region, key, offset: cell_at, data: &cell },
                ];
                let write = Request::Write { term: TERM, parts: Parts::Given(&parts) };
                let submitted = link.submit(&write)?;
                assert!(submitted.is_some(), "a link takes 1,024 requests");
            }
            link.flush()?;
            link.wait(PATIENCE)?;
            while let Some(completed) = link.poll_completed() {
                if completed.reply != Reply::Written {
                    return Err(refused(&completed.reply));
                }
                let first = begun.pop_front();
                latencies.record(first.map_or(Duration::ZERO, |begun| begun.elapsed()));
            }
        }
        Ok(())
    })
}

/// Bytes that a peer's process uses more once it has lent `memory`, every page of it in use.
fn memory_used(memory: u64) -> Result<u64> {
    let served = serve(memory)?;
    let mut link = link(&served.unix, 9)?;
    let process = std::process::id();
    let before = used_by(process)?;
    let mut left = memory;
    let data = vec![1; gabion_media::remote::message::TRANSFER_LEN_MAX];
    while left > 0 {
        let len = left.min(REGION_LEN);
        let (region, key) = lend(&mut link, len)?;
        let mut offset = 0;
        while offset < len {
            let some = (len - offset).min(data.len() as u64);
            let parts = [Part { region, key, offset, data: &data[..some as usize] }];
            let write = Request::Write { term: TERM, parts: Parts::Given(&parts) };
            match link.call(&write)? {
                Reply::Written => offset += some,
                other => return Err(refused(&other)),
            }
        }
        left -= len;
    }
    Ok(used_by(process)?.saturating_sub(before))
}

/// Measures each path and prints the figures.
///
/// # Errors
/// The system's, or the peer's.
pub fn fabric(args: &FabricArgs, out: &mut impl Write) -> Result<()> {
    let served = serve(8 * REGION_LEN)?;
    let mut rows = Vec::new();
    let mut unix = link(&served.unix, 1)?;
    let (region, key) = lend(&mut unix, REGION_LEN)?;
    let shared = unix.map(region, key, TERM)?;
    rows.push(over_shared_memory(&shared, args)?);
    let mut tcp = link(&served.tcp, 2)?;
    for (path, link) in [("Unix socket", &mut unix), ("TCP loopback", &mut tcp)] {
        let lent = lend(link, REGION_LEN)?;
        for outstanding in [1, args.outstanding] {
            rows.push(over_socket((path, outstanding), link, lent, args)?);
        }
    }
    drop(served);
    let used = memory_used(args.memory)?;
    let text = match args.json {
        true => {
            let mut value = provenance();
            value.insert("record_bytes".into(), args.record_size.into());
            value.insert("rows".into(), rows.iter().map(Row::json).collect());
            value.insert("memory".into(), json!({ "lent": args.memory, "used": used }));
            format!("{}\n", Value::Object(value))
        }
        false => table(&rows, args, used),
    };
    out.write_all(text.as_bytes())
        .map_err(|e| Error::with_source(ErrorKind::Io, "the output cannot be written", e))
}

fn table(rows: &[Row], args: &FabricArgs, used: u64) -> String {
    let title = format!("Records of {} bytes into a peer's memory", args.record_size);
    let header =
        ["path", "outstanding", "records/s", "p50 µs", "p99 µs", "client CPU µs", "peer CPU µs"];
    let mut table = Table::new(title, &header);
    for row in rows {
        table.row(vec![
            row.path.to_owned(),
            row.outstanding.to_string(),
            format!("{:.0}", row.rate()),
            format!("{:.2}", row.latencies.quantile_us(0.5)),
            format!("{:.2}", row.latencies.quantile_us(0.99)),
            format!("{:.2}", row.per_record(row.cpu_s[0])),
            format!("{:.2}", row.per_record(row.cpu_s[1])),
        ]);
    }
    let mut text = String::new();
    table.write(Style::Plain, &mut text);
    let more = (used as f64 / args.memory as f64 - 1.0) * 100.0;
    text + &format!("A peer that has lent {} bytes uses {used}: {more:+.2} %\n", args.memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_measured_and_told_for_programs() {
        let args = FabricArgs {
            records: 500,
            record_size: 128,
            outstanding: 16,
            memory: 16 << 20,
            json: true,
        };
        let mut out = Vec::new();
        fabric(&args, &mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        let rows = value["rows"].as_array().unwrap();
        let paths: Vec<_> = rows.iter().map(|row| (&row["path"], &row["outstanding"])).collect();
        assert_eq!(paths.len(), 5, "{paths:?}");
        assert!(rows.iter().all(|row| row["records"] == 500));
        assert!(rows.iter().all(|row| row["records_per_s"].as_f64().is_some_and(|n| n > 0.0)));
        assert!(value["memory"]["used"].is_u64());
        // Other tests of this process may give back as much meanwhile.
        assert!((0..20).any(|_| memory_used(16 << 20).unwrap() >= 15 << 20));
    }
}
