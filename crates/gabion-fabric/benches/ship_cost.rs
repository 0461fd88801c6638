//! The CPU cost of a shipped kilobyte, both ends together over loopback: `cargo bench -p
//! gabion-fabric --bench ship_cost -- DIRECTORY [MiB]`. Writes of 1 MiB at a given depth into the
//! region of an embedded target, with and without digests, CRCs known in advance or taken here.
//! `RETURN_MEMORY=1` leaves the allocator as it is, `BUFFER_LEN=n` sets the socket buffers.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measuring tool: it reads clocks and prints what it found"
)]

use gabion_fabric::nvme::{
    Readiness, Remotes, TargetCommand, TargetEvent, TargetOptions, TargetServer,
};
use gabion_fabric::{DirectIo, MediumOptions, PoolFile, preallocate};
use gabion_media::nvme::{Backing, InitiatorConfig, InitiatorState, TargetConfig};
use gabion_media::{AlignedBuf, OperationKind};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const TRANSFER_LEN: usize = 1 << 20;
const DEPTH: u64 = 8;
const HOST: &str = "nqn.2026-01.org.gabion:host";
const SUBSYSTEM: &str = "nqn.2026-01.org.gabion:measured";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let directory = PathBuf::from(args.next().ok_or("usage: ship_cost DIRECTORY [MiB]")?);
    let transfers: u64 = args.next().map_or(Ok(512), |mib| mib.parse())?;
    let path = directory.join("ship-cost.pool");
    if std::env::var_os("RETURN_MEMORY").is_none() {
        gabion_proc::keep_freed_memory();
    }
    preallocate(&path, transfers * TRANSFER_LEN as u64)?;
    let result = measure_all(&path, transfers);
    std::fs::remove_file(&path)?;
    result
}

fn measure_all(path: &std::path::Path, transfers: u64) -> Result<(), Box<dyn Error>> {
    let len = transfers * TRANSFER_LEN as u64;
    let file = PoolFile::open(path, DirectIo::Try)?;
    let (sender, events) = channel();
    let options = TargetOptions {
        listener: TcpListener::bind("127.0.0.1:0")?,
        medium: file.medium(MediumOptions::default())?,
        backing: Backing::from(0..len),
        config: TargetConfig::new(String::new(), Vec::new(), len, [7; 16]),
        buffer_len: buffer_len(),
        ciphers: None,
        nice: 0,
    };
    let target = TargetServer::start(options, move |event| {
        let _ = sender.send(event);
    })?;
    // The first round turns reserved extents into written ones.
    for (name, digests, known) in [
        ("warming up", true, true),
        ("digests, CRCs known", true, true),
        ("digests, CRCs taken", true, false),
        ("no digests", false, false),
    ] {
        measure(&target, &events, transfers, name, digests, known)?;
    }
    Ok(())
}

fn buffer_len() -> usize {
    std::env::var("BUFFER_LEN").ok().and_then(|len| len.parse().ok()).unwrap_or(0)
}

fn measure(
    target: &TargetServer,
    events: &Receiver<TargetEvent>,
    transfers: u64,
    name: &str,
    digests: bool,
    known: bool,
) -> Result<(), Box<dyn Error>> {
    target.send(TargetCommand::Open {
        subsystem: SUBSYSTEM.to_owned(),
        session: 1,
        hosts: vec![HOST.to_owned()],
    });
    while !matches!(events.recv()?, TargetEvent::Opened { .. }) {}
    target.send(TargetCommand::Admit {
        host: HOST.to_owned(),
        ranges: std::iter::once(0..transfers * TRANSFER_LEN as u64).collect(),
    });
    let mut config = InitiatorConfig::new(HOST.to_owned(), [1; 16], SUBSYSTEM.to_owned());
    (config.header_digest, config.data_digest) = (digests, digests);
    let mut remotes = Remotes::new(Readiness::new()?);
    remotes.connect(0, target.address(), config, buffer_len())?;
    while remotes.get(&0).is_some_and(|r| matches!(r.state(), InitiatorState::Connecting)) {
        remotes.turn(Duration::from_millis(10))?;
    }
    let data = AlignedBuf::copy_of(&vec![0x5a; TRANSFER_LEN]).freeze();
    let crc = gabion_base::crc::crc32c(&data);
    let remote = remotes.get(&0).ok_or("no remote")?.handle().clone();
    let (cpu, wall) = (cpu_us(), Instant::now());
    let mut under_way: Vec<Pin<Box<dyn Future<Output = _>>>> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    let mut next = 0;
    while next < transfers || !under_way.is_empty() {
        while next < transfers && (under_way.len() as u64) < DEPTH {
            let offset = next * TRANSFER_LEN as u64;
            if known && let Some(remote) = remotes.get(&0) {
                remote.note_crc(offset, TRANSFER_LEN, crc);
            }
            let kind = OperationKind::Write { offset, data: data.clone() };
            for pending in remote.submit(vec![kind], false) {
                under_way.push(Box::pin(pending));
            }
            next += 1;
        }
        remotes.turn(Duration::from_millis(10))?;
        let mut result = Ok(());
        under_way.retain_mut(|write| match write.as_mut().poll(&mut context) {
            std::task::Poll::Ready(ended) => {
                if let Err(error) = ended.outcome.into_result() {
                    result = Err(error);
                }
                false
            }
            std::task::Poll::Pending => true,
        });
        result?;
    }
    let (cpu, wall) = (cpu_us() - cpu, wall.elapsed());
    println!(
        "{name:<20} {:.3} us CPU per kB (both ends), {:.0} MB/s, {transfers} MiB",
        cpu / (transfers as f64 * 1048.576),
        transfers as f64 * 1.048_576 / wall.as_secs_f64(),
    );
    Ok(())
}

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
