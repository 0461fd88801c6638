//! The CPU cost of a written kilobyte, by backend: `cargo bench -p gabion-fabric --bench write_cost
//! -- DIRECTORY [MiB]`. Writes a pool file there in transfers of 1 MiB at depth 4, with a flush
//! every 64 MiB, and prints one line per backend and manner of I/O.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measuring tool: it reads clocks and prints what it found"
)]

use gabion_fabric::{
    BackendChoice, BlockingMedium, DirectIo, FileMedium, MediumOptions, PoolFile, preallocate,
};
use gabion_media::{AlignedBuf, Bytes, Medium, Operation, OperationKind};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TRANSFER_LEN: usize = 1 << 20;
const DEPTH: u64 = 4;
const FLUSH_EVERY: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let directory = PathBuf::from(args.next().ok_or("usage: write_cost DIRECTORY [MiB]")?);
    let transfers: u64 = args.next().map_or(Ok(512), |mib| mib.parse())?;
    let path = directory.join("write-cost.pool");
    for direct in [DirectIo::Try, DirectIo::Never] {
        for backend in [BackendChoice::Uring, BackendChoice::Threads] {
            preallocate(&path, transfers * TRANSFER_LEN as u64)?;
            let result = measure(&path, transfers, direct, backend);
            std::fs::remove_file(&path)?;
            result?;
        }
    }
    Ok(())
}

fn measure(
    path: &Path,
    transfers: u64,
    direct: DirectIo,
    backend: BackendChoice,
) -> Result<(), Box<dyn Error>> {
    let file = PoolFile::open(path, direct)?;
    let options = MediumOptions { backend, depth: DEPTH as u32, notify: false };
    let mut medium = file.medium(options)?;
    let data = AlignedBuf::copy_of(&vec![0x5a; TRANSFER_LEN]).freeze();
    // The first pass turns reserved extents into written ones; the second is measured.
    write_all(&mut medium, transfers, &data)?;
    let (cpu, wall) = (cpu_us(), Instant::now());
    write_all(&mut medium, transfers, &data)?;
    let (cpu, wall) = (cpu_us() - cpu, wall.elapsed());
    println!(
        "{:<8} direct: {:<5} {:.3} us CPU per kB, {:.0} MB/s, {transfers} MiB",
        format!("{backend:?}"),
        file.direct_refusal().is_none(),
        cpu / (transfers as f64 * 1048.576),
        transfers as f64 * 1.048_576 / wall.as_secs_f64(),
    );
    let check = BlockingMedium::new(medium);
    let read = check.block_on(check.handle().read(0, TRANSFER_LEN))?;
    if read[..] == data[..] { Ok(()) } else { Err("read back something else".into()) }
}

fn write_all(medium: &mut FileMedium, transfers: u64, data: &Bytes) -> Result<(), Box<dyn Error>> {
    let mut ended = Vec::new();
    let mut next = 0;
    while next < transfers || medium.in_flight() > 0 {
        while next < transfers && (medium.in_flight() as u64) < DEPTH {
            let offset = next * TRANSFER_LEN as u64;
            let kind = OperationKind::Write { offset, data: data.clone() };
            let flush = (next + 1) % FLUSH_EVERY == 0;
            let mut batch = vec![Operation { tag: 2 * next, kind, then: flush }];
            if flush {
                batch.push(Operation {
                    tag: 2 * next + 1,
                    kind: OperationKind::Flush,
                    then: false,
                });
            }
            medium.submit(batch);
            next += 1;
        }
        medium.wait();
        medium.poll(&mut ended);
        for completion in ended.drain(..) {
            completion.outcome.into_result()?;
        }
    }
    Ok(())
}

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
