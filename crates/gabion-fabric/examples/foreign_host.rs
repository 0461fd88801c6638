//! Proves our NVMe/TCP target against a foreign initiator; `cargo xtask guest` runs it with
//! Linux's.
//!
//! ```text
//!   foreign_host COMMAND...    serves a temporary file, runs the command, which sees
//!                              NVME_PORT, NVME_NQN, NVME_HOST_NQN, NVME_LEN, NVME_GRANTED_LEN
//!
//!   namespace: 0 ── writes are admitted ── NVME_GRANTED_LEN ── refused ── NVME_LEN
//! ```
//!
//! The command judges the host's view. Afterwards this program judges the target: each write that
//! it reported is in the file, byte for byte, and nothing is beyond the grant. Exit code 0 when
//! both pass.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program of its own: it starts another, reads its file and prints what it found"
)]

use gabion_base::crc::crc32c;
use gabion_fabric::nvme::{TargetCommand, TargetEvent, TargetOptions, TargetServer};
use gabion_fabric::{DirectIo, MediumOptions, PoolFile, preallocate};
use gabion_media::nvme::{Backing, TargetConfig};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The namespace lies in the middle of its file: an offset that forgets this shows.
const START: u64 = MIB;
const LEN: u64 = 64 * MIB;
const GRANTED_LEN: u64 = 48 * MIB;
const HOST: &str = "nqn.2026-01.org.gabion:host";
const SUBSYSTEM: &str = "nqn.2026-01.org.gabion:g1:t1:s1";
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let path = std::env::temp_dir().join(format!("gabion-foreign-host-{}", std::process::id()));
    let result = serve(&path);
    let _ = std::fs::remove_file(&path);
    match result {
        Ok(found) => {
            println!("foreign host: {found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("foreign host: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &Path) -> Result<String, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let program = args.next().ok_or("usage: foreign_host COMMAND...")?;
    preallocate(path, START + LEN + MIB)?;
    let file = PoolFile::open(path, DirectIo::Try)?;
    let (sender, events) = channel();
    let options = TargetOptions {
        listener: TcpListener::bind("127.0.0.1:0")?,
        medium: file.medium(MediumOptions::default())?,
        backing: Backing::from(START..START + LEN),
        config: TargetConfig::new(String::new(), Vec::new(), LEN, [7; 16]),
        buffer_len: 0,
        ciphers: None,
        nice: 0,
    };
    let target = TargetServer::start(options, move |event| {
        let _ = sender.send(event);
    })?;
    target.send(TargetCommand::Open {
        subsystem: SUBSYSTEM.to_owned(),
        session: 1,
        hosts: vec![HOST.to_owned()],
    });
    target.send(TargetCommand::Admit {
        host: HOST.to_owned(),
        ranges: std::iter::once(0..GRANTED_LEN).collect(),
    });
    while !matches!(events.recv_timeout(PATIENCE)?, TargetEvent::Opened { .. }) {}
    let status = Command::new(program)
        .args(args)
        .env("NVME_PORT", target.address().port().to_string())
        .env("NVME_NQN", SUBSYSTEM)
        .env("NVME_HOST_NQN", HOST)
        .env("NVME_LEN", LEN.to_string())
        .env("NVME_GRANTED_LEN", GRANTED_LEN.to_string())
        .status()?;
    target.send(TargetCommand::Close);
    let writes = reported(&events)?;
    drop(target);
    if !status.success() {
        return Err(format!("the command ended with {status}").into());
    }
    judge(&std::fs::read(path)?, &writes)
}

/// The last write to each place, as (length, checksum), up to the end of service.
fn reported(events: &Receiver<TargetEvent>) -> Result<BTreeMap<u64, (u32, u32)>, Box<dyn Error>> {
    let mut writes = BTreeMap::new();
    loop {
        match events.recv_timeout(PATIENCE)? {
            TargetEvent::Wrote { offset, len, crc, .. } => {
                writes.insert(offset, (len, crc));
            }
            TargetEvent::Closed => return Ok(writes),
            TargetEvent::Failed(error) => return Err(error.into()),
            TargetEvent::Refused { error, .. } => return Err(error.into()),
            TargetEvent::Opened { .. } | TargetEvent::Ended { .. } => {}
        }
    }
}

fn judge(file: &[u8], writes: &BTreeMap<u64, (u32, u32)>) -> Result<String, Box<dyn Error>> {
    let mut total = 0;
    for (&offset, &(len, crc)) in writes {
        total += u64::from(len);
        if offset + u64::from(len) > GRANTED_LEN {
            return Err(format!("a write of {len} at {offset} is beyond the grant").into());
        }
        let found = &file[(START + offset) as usize..][..len as usize];
        if crc32c(found) != crc {
            return Err(
                format!("a write of {len} at {offset} is not in the file as it came").into()
            );
        }
    }
    if writes.is_empty() {
        return Err("no write arrived".into());
    }
    let (before, rest) = file.split_at(START as usize);
    let beyond = &rest[GRANTED_LEN as usize..];
    if before.iter().chain(beyond).any(|&byte| byte != 0) {
        return Err("something was written outside the grant".into());
    }
    Ok(format!("{} writes, {total} bytes, all in place and nothing beside it", writes.len()))
}
