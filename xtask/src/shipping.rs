//! The promises of shipping, seen from outside: from the kernel's counters, from the wire and from
//! the pools.
//!
//! ```text
//!   tshark on lo ─► up ─► a little load ─► H2CData PDUs of NVMe/TCP carry every live SST, and few
//!                                         of the values that may stay in the log
//!   more load    ─► secondaries: no flush, no compaction, no file data read but what they itemise
//!   verify 0     ─► stop ─► one byte flipped in a pool ─► verify 1 names replica, file, offset
//! ```

use crate::cluster::{
    Cluster, REPLICAS, Random, counter, load, need, need_space, output, program, value_of,
};
use crate::steps::Step;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VALUE_LEN: usize = 1000;
/// Keys written while packets are captured.
const CAPTURED_KEYS: u64 = 20_000;
/// Keys written while packets are captured and values stay in the log: three segments and more.
const STAYING_KEYS: u64 = 60_000;
/// Keys of the load, unless `GABION_SHIPPING_KEYS` gives another number.
const KEYS: u64 = 100_000;
/// Bytes that a check takes beside the pools: rings, logs, the capture.
const OTHER_LEN: u64 = 512 << 20;
const SECONDARIES: [u16; 2] = [2, 3];
/// Bytes that a secondary may read from devices beyond its itemised reads: programs and libraries
/// that the page cache had dropped. Far less than the load.
const READ_NOISE: u64 = 4 << 20;
/// The secondaries' items of read file data.
const ITEMISED: [&str; 5] = [
    "verified_read_bytes",
    "reship_read_bytes",
    "compaction_read_bytes",
    "client_read_bytes",
    "warm_read_bytes",
];
/// The start of an SST's footer: magic, version 1, no flags (`gabion-engine/src/sst/mod.rs`).
const FOOTER: &[u8; 12] = b"GABIONST\x01\0\0\0";
const FOOTER_LEN: usize = 64;
const SLOT_LEN: u64 = 2 << 20;
const H2C_DATA: u8 = 6;
/// Most clusters to capture until no packet is lost.
const CAPTURES_MAX: u32 = 3;
/// The start of the error of a capture that is not whole.
const LOST: &str = "the capture lost packets";

/// The check.
pub(crate) fn check() -> Step {
    println!("\n── shipping: on the wire, in the kernel's counters, in the pools");
    let keys = match std::env::var("GABION_SHIPPING_KEYS") {
        Ok(text) => text.parse().map_err(|_| format!("GABION_SHIPPING_KEYS is {text:?}"))?,
        Err(_) => KEYS,
    };
    is_there_room(keys)?;
    need("tshark", "tshark")?;
    let pool_len = format!("{}MiB", pool_len_mib(keys));
    seen_on_the_wire(&["--pool-size", "1GiB"], values_stay_in_the_log)?;
    let options = ["--pool-size", &pool_len, "--memtable-size", "4MiB", "--large-values", "0"];
    let mut cluster = seen_on_the_wire(&options, every_file_travels)?;
    let checked = secondaries_do_not_compact(&mut cluster, keys)
        .and_then(|()| a_flipped_byte_is_named(&mut cluster));
    checked.map_err(|error| format!("{error}\n{}", cluster.logs()))
}

/// A cluster for which `check` held of the bytes on the wire. A busy machine may lose packets of
/// the capture, which is no fault of Gabion: then another cluster is captured.
fn seen_on_the_wire(
    options: &[&str],
    check: impl Fn(&mut Cluster) -> Step,
) -> Result<Cluster, String> {
    for tries_left in (0..CAPTURES_MAX).rev() {
        let mut cluster = Cluster::new("shipping", &program()?, options)?;
        match check(&mut cluster) {
            Ok(()) => return Ok(cluster),
            Err(error) if error.starts_with(LOST) && tries_left > 0 => {
                println!("{error}; captured once more");
            }
            Err(error) => return Err(format!("{error}\n{}", cluster.logs())),
        }
    }
    Err("no capture was made".into())
}

/// Space for four times the records: compaction writes new files before old ones go.
fn pool_len_mib(keys: u64) -> u64 {
    1024.max(keys.saturating_mul(4 * VALUE_LEN as u64) >> 20)
}

/// Whether the pools of a load fit on the disk, checked before anything is built or written.
pub(crate) fn is_there_room(keys: u64) -> Step {
    let pools = pool_len_mib(keys).saturating_mul(u64::from(REPLICAS) << 20);
    need_space(&format!("shipping of {keys} keys"), pools.saturating_add(OTHER_LEN))
}

/// The ports of the secondaries' targets.
fn target_ports(cluster: &Cluster) -> [u16; 2] {
    SECONDARIES.map(|replica| cluster.port + 200 + replica - 1)
}

/// tshark, which ends with this value.
struct Capture {
    child: Child,
    path: PathBuf,
}

impl Capture {
    /// Captures packets to ports of this machine.
    fn start(dir: &Path, ports: &[u16]) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("tshark: {error}");
        let (path, said) = (dir.join("wire.pcap"), dir.join("tshark.log"));
        let filter: Vec<String> = ports.iter().map(|port| format!("tcp dst port {port}")).collect();
        let child = Command::new("tshark")
            .args(["-i", "lo", "-q", "-s", "0", "-B", "256", "-F", "pcap"])
            .args(["-f", &filter.join(" or "), "-w"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let capture = Self { child, path };
        let begun = Instant::now();
        // The file's header is written once packets are captured.
        while std::fs::metadata(&capture.path).map_or(0, |file| file.len()) < 24 {
            if begun.elapsed() > Duration::from_secs(20) {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                return Err(format!("tshark captures nothing: {said}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(capture)
    }

    /// Ends it as Ctrl-C does, so that it writes its buffer.
    fn finish(mut self) -> Result<PathBuf, String> {
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let begun = Instant::now();
        while self.child.try_wait().map_err(|error| format!("tshark: {error}"))?.is_none() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err("tshark does not end after SIGINT".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(self.path.clone())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // SIGTERM first: it ends the program that captures for it.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
            std::thread::sleep(Duration::from_millis(500));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Data of NVMe/TCP on its way to a secondary.
struct Carried {
    port: u16,
    data: Vec<u8>,
}

impl Carried {
    fn has_value(&self, n: u64) -> bool {
        find(&self.data, &value_of(&format!("wire:{n}"), VALUE_LEN)).is_some()
    }

    /// Numbers of the SSTs in it.
    fn files(&self) -> BTreeSet<u64> {
        footers(&self.data).map(|(_, footer)| footer.file).collect()
    }
}

/// Starts the cluster, loads it, and gives what the secondaries were sent until all was quiet.
fn on_the_wire(cluster: &mut Cluster, keys: u64) -> Result<Vec<Carried>, String> {
    let ports = target_ports(cluster);
    let capture = Capture::start(&cluster.dir, &ports)?;
    cluster.start()?;
    cluster.wait_ready()?;
    load(cluster.port, "wire:", keys, VALUE_LEN)?;
    cluster.wait_quiet()?;
    let path = capture.finish()?;

    // A foreign program's view of it.
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-Y", &format!("nvme-tcp.type == {H2C_DATA}")]);
    for port in ports {
        command.args(["-d", &format!("tcp.port=={port},nvme-tcp")]);
    }
    let decoded = output(command.args(["-T", "fields", "-e", "tcp.dstport"]))?;
    let streams = streams(&std::fs::read(&path).map_err(|error| format!("capture: {error}"))?)?;
    let mut carried = Vec::new();
    for port in ports {
        let frames = decoded.lines().filter(|line| line.trim() == port.to_string()).count();
        let mut to_port = Carried { port, data: Vec::new() };
        for ((_, to), stream) in &streams {
            if *to == port {
                h2c_data(stream, &mut to_port.data)?;
            }
        }
        println!(
            "to target {port}: tshark sees {frames} frames with H2CData; {} bytes, {} SST footers",
            to_port.data.len(),
            to_port.files().len()
        );
        if frames == 0 {
            return Err(format!("tshark sees no H2CData PDU on its way to port {port}"));
        }
        carried.push(to_port);
    }
    std::fs::remove_file(&path).map_err(|error| format!("capture: {error}"))?;
    Ok(carried)
}

/// Every live file travels to every secondary as data of NVMe/TCP.
fn every_file_travels(cluster: &mut Cluster) -> Step {
    let carried = on_the_wire(cluster, CAPTURED_KEYS)?;
    let live = live_files(&cluster.ask(1, "FILES")?);
    if live.is_empty() {
        return Err("no live file after the load".into());
    }
    for to in carried {
        let (port, files) = (to.port, to.files());
        if let Some(missing) = live.keys().find(|file| !files.contains(file)) {
            return Err(format!("file {missing} is live and was in no H2CData PDU to port {port}"));
        }
        if let Some(n) = [0, 1000].into_iter().find(|n| !to.has_value(*n)) {
            return Err(format!("the value of wire:{n} was in no H2CData PDU to port {port}"));
        }
    }
    Ok(())
}

/// By default values of that length stay in the log, which every secondary has: their SSTs travel,
/// and are a small part of what was written.
fn values_stay_in_the_log(cluster: &mut Cluster) -> Step {
    let carried = on_the_wire(cluster, STAYING_KEYS)?;
    let kept = counter(&cluster.ask(1, "STATUS")?, "kept_segments");
    if kept == 0 {
        return Err("no segment of the log keeps values".into());
    }
    let written = STAYING_KEYS * VALUE_LEN as u64;
    for to in carried {
        let (port, len) = (to.port, to.data.len() as u64);
        if to.files().is_empty() {
            return Err(format!("no SST was in the H2CData PDUs to port {port}"));
        }
        // Outside of whole segments the values of a MemTable go into values files.
        let keys = (0..STAYING_KEYS).step_by(1000);
        let (all, travelled) = (keys.clone().count(), keys.filter(|n| to.has_value(*n)).count());
        if travelled * 2 > all || len > written / 2 {
            return Err(format!(
                "{travelled} of {all} values were in H2CData PDUs to port {port}, and {len} bytes \
                 for {written} that were written"
            ));
        }
    }
    println!("{kept} segments of the log keep values");
    Ok(())
}

/// The bytes of each TCP connection by its ports, from a capture in the format pcap.
fn streams(pcap: &[u8]) -> Result<BTreeMap<(u16, u16), Vec<u8>>, String> {
    let u32_le = |at: usize| pcap[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
    if pcap.len() < 24 || u32_le(20) != 1 {
        return Err("capture: no pcap file of an Ethernet device".into());
    }
    let mut streams: BTreeMap<(u16, u16), Stream> = BTreeMap::new();
    let mut at = 24;
    while at + 16 <= pcap.len() {
        let len = u32_le(at + 8) as usize;
        let Some(frame) = pcap.get(at + 16..at + 16 + len) else { break };
        at += 16 + len;
        let Some(segment) = Segment::of(frame) else { continue };
        if segment.is_syn {
            let next = segment.sequence.wrapping_add(1);
            streams.insert(segment.ports, Stream { next, ..Stream::default() });
        } else if let Some(stream) = streams.get_mut(&segment.ports) {
            stream.take(&segment);
        }
    }
    let whole = |(ports, stream): ((u16, u16), Stream)| match stream.ahead.keys().next() {
        None => Ok((ports, stream.bytes)),
        Some(later) => Err(format!(
            "{LOST}: {} bytes are missing behind byte {} to {}",
            later - stream.bytes.len() as u64,
            stream.bytes.len(),
            ports.1
        )),
    };
    streams.into_iter().map(whole).collect()
}

/// One direction of a TCP connection, put together as its receiver does it. A sender that moves to
/// another CPU has its segments overtake each other even on the loopback, and packets that a full
/// queue dropped come once more.
#[derive(Default)]
struct Stream {
    /// Sequence number of the byte behind `bytes`.
    next: u32,
    bytes: Vec<u8>,
    /// Segments that came before their predecessors, by the start of each in the connection.
    ahead: BTreeMap<u64, Vec<u8>>,
}

impl Stream {
    fn take(&mut self, segment: &Segment<'_>) {
        // Behind an end of the connection, an empty segment's number is one too high.
        if segment.payload.is_empty() {
            return;
        }
        let distance = i64::from(segment.sequence.wrapping_sub(self.next) as i32);
        if let Some(from) = (self.bytes.len() as u64).checked_add_signed(distance) {
            let kept = self.ahead.entry(from).or_default();
            if kept.len() < segment.payload.len() {
                *kept = segment.payload.to_vec();
            }
        }
        while let Some(first) = self.ahead.first_entry() {
            let end = self.bytes.len() as u64;
            if *first.key() > end {
                return;
            }
            let (from, bytes) = first.remove_entry();
            if let Some(new) = bytes.get((end - from) as usize..) {
                self.bytes.extend_from_slice(new);
                self.next = self.next.wrapping_add(new.len() as u32);
            }
        }
    }
}

struct Segment<'a> {
    ports: (u16, u16),
    sequence: u32,
    is_syn: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// The TCP segment of an Ethernet frame with IPv4.
    fn of(frame: &'a [u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        if frame[12..14] != [8, 0] || ip.get(9)? != &6 {
            return None;
        }
        // On the loopback a length of 0 stands for a packet that was never cut up.
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let ip = if total == 0 { ip } else { ip.get(..total)? };
        let tcp = ip.get(usize::from(ip[0] & 15) * 4..)?;
        if tcp.len() < 20 {
            return None;
        }
        let u16_at = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some(Self {
            ports: (u16_at(0), u16_at(2)),
            sequence: u32::from(u16_at(4)) << 16 | u32::from(u16_at(6)),
            is_syn: tcp[13] & 2 != 0,
            payload: tcp.get(usize::from(tcp[12] >> 4) * 4..)?,
        })
    }
}

/// Appends the data of every H2CData PDU of a connection.
fn h2c_data(stream: &[u8], data: &mut Vec<u8>) -> Step {
    let mut rest = stream;
    while rest.len() >= 24 {
        let len = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        if len < 8 || rest[0] > 9 {
            return Err(format!("no NVMe/TCP PDU: type {}, {len} bytes", rest[0]));
        }
        if rest.len() < len {
            break; // The capture ended here.
        }
        if rest[0] == H2C_DATA {
            let from = usize::from(rest[3]);
            let count = u32::from_le_bytes([rest[16], rest[17], rest[18], rest[19]]) as usize;
            let payload = rest.get(from..from + count).filter(|_| from + count <= len);
            data.extend_from_slice(payload.ok_or("an H2CData PDU is shorter than it says")?);
        }
        rest = &rest[len..];
    }
    Ok(())
}

/// The needed fields of an SST's footer.
struct Footer {
    file: u64,
    offset: u64,
}

/// Footers in a run of bytes, and their places.
fn footers(bytes: &[u8]) -> impl Iterator<Item = (usize, Footer)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + find(&bytes[from..], FOOTER)?;
        from = at + FOOTER.len();
        let footer = bytes.get(at..at + FOOTER_LEN)?;
        let number = |at: usize, len: usize| {
            footer[at..at + len].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
        };
        Some((at, Footer { file: number(48, 8), offset: number(24, 4) }))
    })
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let last = bytes.len().checked_sub(part.len())?;
        from += bytes.get(from..=last)?.iter().position(|byte| *byte == part[0])?;
        if bytes[from..].starts_with(part) {
            return Some(from);
        }
        from += 1;
    }
}

/// Live files by number, with their lengths.
fn live_files(answer: &Value) -> BTreeMap<u64, u64> {
    let files = answer["files"].as_array().cloned().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    files.iter().map(|file| (number(&file["file"]), number(&file["len"]))).collect()
}

/// Bytes that a process made the devices read, by the kernel's count.
fn kernel_reads(status: &Value) -> Result<u64, String> {
    let path = format!("/proc/{}/io", status["pid"]);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("{path}: {text}"))
}

/// The primary flushes and compacts; the secondaries take files and do not even read them.
fn secondaries_do_not_compact(cluster: &mut Cluster, keys: u64) -> Step {
    let before = cluster.wait_ready()?;
    let reads = before.iter().map(kernel_reads).collect::<Result<Vec<_>, _>>()?;
    load(cluster.port, "ship:", keys, VALUE_LEN)?;
    let after = cluster.wait_quiet()?;
    let (flushes, compactions) = (counter(&after[0], "flushes"), counter(&after[0], "compactions"));
    if flushes == 0 || compactions == 0 {
        return Err(format!("the primary: {flushes} flushes, {compactions} compactions"));
    }
    println!("replica 1: {flushes} flushes, {compactions} compactions");
    for replica in SECONDARIES {
        let i = usize::from(replica) - 1;
        let read = kernel_reads(&after[i])? - reads[i];
        let grown = |name: &str| counter(&after[i], name) - counter(&before[i], name);
        let itemised: u64 = ITEMISED.iter().map(|name| grown(name)).sum();
        let received = grown("received_bytes");
        let (flushes, compactions) =
            (counter(&after[i], "flushes"), counter(&after[i], "compactions"));
        println!(
            "replica {replica}: {flushes} flushes, {compactions} compactions, {received} bytes \
             received, {read} read by the kernel's count, {itemised} itemised"
        );
        if after[i]["pid"] != before[i]["pid"] {
            return Err(format!("replica {replica} ended meanwhile"));
        }
        if flushes + compactions != 0 {
            return Err(format!("replica {replica} flushed or compacted"));
        }
        if received < keys * VALUE_LEN as u64 {
            return Err(format!("replica {replica} received {received} bytes of files"));
        }
        if read > itemised + READ_NOISE {
            return Err(format!(
                "replica {replica} read {read} bytes and itemises {itemised}: more than \
                 {READ_NOISE} beyond"
            ));
        }
    }
    let reads = after.iter().map(kernel_reads).collect::<Result<Vec<_>, _>>()?;
    cluster.verify_same(&[])?;
    // The control: a read of every live byte, as in `verify`, shows in that count.
    let live = after[0]["live_bytes"].as_u64().unwrap_or(0);
    for replica in SECONDARIES {
        let i = usize::from(replica) - 1;
        let read = kernel_reads(&after[i])? - reads[i];
        if read < live {
            return Err(format!(
                "`verify` made replica {replica} read {live} bytes of files, the kernel counts \
                 {read}: its count says nothing where files are not read directly"
            ));
        }
    }
    Ok(())
}

/// One byte of one file of one replica: found, and named.
fn a_flipped_byte_is_named(cluster: &mut Cluster) -> Step {
    let live = live_files(&cluster.ask(1, "FILES")?);
    cluster.stop()?;
    cluster.verify_same(&["--offline"])?;
    let mut random = Random(u64::from(std::process::id()));
    for replica in [1, 3] {
        let pool = cluster.data().join(format!("replica-{replica}/pool"));
        let places = places(&pool, &live)?;
        let index = random.below(places.len().max(1) as u64) as usize;
        let Some((file, offset, slot_at)) = places.get(index) else {
            return Err(format!("{}: no live file was found in it", pool.display()));
        };
        let within = random.below(offset % SLOT_LEN);
        let offset = offset / SLOT_LEN * SLOT_LEN + within;
        flip(&pool, slot_at + within)?;
        let name = sst_name(*file);
        let named = format!("replica {replica}, file {name}, offset {offset}:");
        expect_difference(cluster, &["--offline"], &named)?;
        if replica == 3 {
            // The replicas themselves know the MiB with the wrong checksum.
            cluster.start()?;
            cluster.wait_ready()?;
            let chunk = offset >> 20 << 20;
            let named = format!("replica {replica}, file {name}, offset {chunk}:");
            expect_difference(cluster, &[], &named)?;
            cluster.stop()?;
        }
        flip(&pool, slot_at + within)?;
    }
    cluster.verify_same(&["--offline"])
}

/// The name that Gabion prints for an SST: the term in the upper half of its number, then the
/// counter in the lower.
fn sst_name(number: u64) -> String {
    format!("{}-{:06}.sst", number >> 32, number & u64::from(u32::MAX))
}

fn expect_difference(cluster: &Cluster, options: &[&str], named: &str) -> Step {
    let (code, said) = cluster.verify(options)?;
    let line = said.lines().find(|line| line.starts_with("DIFFERENCE") && line.contains(named));
    match line {
        Some(line) if code == 1 => {
            println!("verify {}: {line}", options.join(" "));
            Ok(())
        }
        _ => Err(format!("verify {options:?} ended with {code}, '{named}' expected: {said}")),
    }
}

/// Live files that stand in a pool once: number, offset of the footer in the file, and the start of
/// the slot with the footer in the pool.
fn places(pool: &Path, live: &BTreeMap<u64, u64>) -> Result<Vec<(u64, u64, u64)>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", pool.display());
    let file = File::open(pool).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let mut found: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut buffer = vec![0; 4 << 20];
    let mut from = 0;
    while from < len {
        let count = buffer.len().min((len - from) as usize);
        file.read_exact_at(&mut buffer[..count], from).map_err(failed)?;
        for (at, footer) in footers(&buffer[..count]) {
            let within = footer.offset % SLOT_LEN;
            let (at, file) = (from + at as u64, footer.file);
            let ends = (footer.offset + FOOTER_LEN as u64).next_multiple_of(4096);
            if live.get(&file) == Some(&ends) && within > 0 && at >= within {
                found.entry(file).or_default().push((footer.offset, at - within));
            }
        }
        // The next piece begins with the end of this one, as a footer may lie across.
        from += if count < buffer.len() { count } else { count - FOOTER_LEN } as u64;
    }
    let once = found.into_iter().filter(|(_, places)| places.len() == 1);
    Ok(once.map(|(file, places)| (file, places[0].0, places[0].1)).collect())
}

/// Flips every bit of one byte.
fn flip(pool: &Path, at: u64) -> Step {
    let failed = |error: std::io::Error| format!("{}: {error}", pool.display());
    let file = File::options().read(true).write(true).open(pool).map_err(failed)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).map_err(failed)?;
    file.write_all_at(&[!byte[0]], at).map_err(failed)?;
    file.sync_all().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = 2;

    /// A capture of a connection from port 9 to port 7: sequence numbers, flags and payloads.
    fn pcap(segments: &[(u32, u8, &[u8])]) -> Vec<u8> {
        let mut pcap = vec![0; 24];
        pcap[20] = 1;
        for (sequence, flags, payload) in segments {
            let mut frame = vec![0; 54];
            frame[12] = 8;
            frame[14] = 0x45;
            frame[14 + 9] = 6;
            frame[34..38].copy_from_slice(&[0, 9, 0, 7]);
            frame[38..42].copy_from_slice(&sequence.to_be_bytes());
            frame[46] = 5 << 4;
            frame[47] = *flags;
            frame.extend_from_slice(payload);
            pcap.extend([0; 8]);
            pcap.extend([(frame.len() as u32).to_le_bytes(); 2].concat());
            pcap.extend(frame);
        }
        pcap
    }

    #[test]
    fn segments_that_overtook_each_other_or_came_twice_are_put_together() {
        let start = u32::MAX - 2;
        let at = |offset: u32| start.wrapping_add(1 + offset);
        let segments: [(u32, u8, &[u8]); 6] = [
            (start, SYN, b""),
            (at(4), 0, b"efgh"),
            (at(2), 0, b"cd"),
            (at(0), 0, b"abcd"),
            (at(2), 0, b"cdefghij"),
            (at(11), 0, b""),
        ];
        let streams = streams(&pcap(&segments)).unwrap();
        assert_eq!(streams.get(&(9, 7)).unwrap(), b"abcdefghij");
    }

    #[test]
    fn what_is_missing_at_the_end_was_lost_by_the_capture() {
        let error = streams(&pcap(&[(0, SYN, b""), (1, 0, b"ab"), (6, 0, b"f")])).unwrap_err();
        assert_eq!(error, format!("{LOST}: 3 bytes are missing behind byte 2 to 7"));
    }
}
