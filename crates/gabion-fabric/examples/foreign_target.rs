//! Proves our NVMe/TCP initiator against a foreign target; `cargo xtask guest` runs it against
//! Linux's. Overwrites the target's first 48 MiB.
//!
//! ```text
//!   NVMET_ADDRESS  ip:port       NVMET_LEN        bytes of the namespace (optional)
//!   NVMET_NQN      subsystem     NVMET_BLOCK_LEN  bytes of a block (optional)
//!
//!   (header, data) digests: off off ─► on off ─► off on ─► on on     each: read what the one before
//!                                                                    wrote, then write, read, compare
//! ```
//!
//! One line per check, a last line for all, exit code 0 or 1, at most a minute.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program of its own: it reads clocks and prints what it found"
)]

use gabion_base::crc::crc32c;
use gabion_fabric::nvme::{Readiness, Remote, Remotes};
use gabion_media::nvme::{InitiatorConfig, InitiatorState};
use gabion_media::{AlignedBuf, Bytes, MediumHandle, OperationKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The limit for all checks together.
const TIME_MAX: Duration = Duration::from_secs(60);
const HOST: &str = "nqn.2026-01.org.gabion:host";
/// Large writes at once, each 1 MiB: more than a target takes into its capsules, so each needs
/// R2Ts.
const DEPTH: u64 = 16;
/// Short enough that a target drops a host which forgets its keep-alives during [`IDLE`].
const KEEP_ALIVE_MS: u32 = 2_000;
const IDLE: Duration = Duration::from_secs(6);

type Checked<T = String> = Result<T, String>;

fn main() -> ExitCode {
    match check_all() {
        Ok(passed) => {
            println!("foreign target: {passed} checks passed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("foreign target: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check_all() -> Checked<u32> {
    let variable = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let address = variable("NVMET_ADDRESS")?;
    let mut host = Host {
        address: address.parse().map_err(|e| format!("NVMET_ADDRESS {address}: {e}"))?,
        nqn: variable("NVMET_NQN")?,
        remotes: Remotes::new(Readiness::new().map_err(text)?),
        until: Instant::now() + TIME_MAX,
        passed: 0,
    };
    host.check("a name that the target does not know", Host::wrong_name)?;
    let mut before = None;
    for (salt, (header, data)) in
        (1..).zip([(false, false), (true, false), (false, true), (true, true)])
    {
        let on = |on| if on { "on" } else { "off" };
        println!("-- header digest {}, data digest {}", on(header), on(data));
        host.check_digests((header, data), salt, before)?;
        before = Some(salt);
    }
    Ok(host.passed)
}

/// Our end: one connection at a time, under the key 0.
struct Host {
    address: SocketAddr,
    nqn: String,
    remotes: Remotes<u8>,
    until: Instant,
    passed: u32,
}

impl Host {
    fn check(&mut self, name: &str, run: impl FnOnce(&mut Self) -> Checked) -> Checked<()> {
        let start = Instant::now();
        match run(self) {
            Ok(found) => {
                println!("ok   {name}: {found} ({} ms)", start.elapsed().as_millis());
                self.passed += 1;
                Ok(())
            }
            Err(error) => Err(format!("{name}: {error}")),
        }
    }

    /// All checks with these digests. The previous connection wrote with the salt `before`.
    fn check_digests(
        &mut self,
        digests: (bool, bool),
        salt: u8,
        before: Option<u8>,
    ) -> Checked<()> {
        self.check("connect and identify", |host| host.properties(digests))?;
        if let Some(before) = before {
            self.check("what the last connection wrote", |host| host.compare_large(before))?;
        }
        self.check("small writes within the capsule", |host| host.small(salt))?;
        self.check("1 MiB writes at depth 16", |host| host.large(salt))?;
        self.check("writes across MiB boundaries", |host| host.uneven(salt))?;
        self.check("a chain of operations", |host| host.chain(salt))?;
        self.check("flush", |host| {
            let handle = host.handle()?;
            host.run(async { handle.flush().await })?;
            Ok("done".to_owned())
        })?;
        if digests.1 {
            self.check("a wrong data digest", |host| host.wrong_digest(salt))?;
            self.check("reconnect after it", |host| host.properties(digests))?;
        }
        if digests == (true, true) {
            self.check("6 s without a command", Self::idle)?;
        }
        self.check("all of it once more", |host| host.compare_large(salt))
    }

    fn connect(&mut self, nqn: &str, digests: (bool, bool)) -> Checked<InitiatorState> {
        let mut config = InitiatorConfig::new(HOST.to_owned(), [1; 16], nqn.to_owned());
        (config.header_digest, config.data_digest) = digests;
        config.keep_alive_ms = KEEP_ALIVE_MS;
        self.remotes.connect(0, self.address, config, 0).map_err(text)?;
        loop {
            match self.remote()?.state() {
                InitiatorState::Connecting => self.turn()?,
                state => return Ok(state),
            }
        }
    }

    fn wrong_name(&mut self) -> Checked {
        let unknown = format!("{}-unknown", self.nqn);
        match self.connect(&unknown, (false, false))? {
            InitiatorState::Failed(error) if text(&error).contains("connect parameter") => {
                Ok(text(error))
            }
            state => Err(format!("not a refusal: {state:?}")),
        }
    }

    fn properties(&mut self, digests: (bool, bool)) -> Checked {
        let nqn = self.nqn.clone();
        match self.connect(&nqn, digests)? {
            InitiatorState::Ready => {}
            state => return Err(format!("not ready: {state:?}")),
        }
        let found = self.handle()?.properties();
        let (len, block_len) = (found.len, found.alignment as u64);
        for (name, found) in [("NVMET_LEN", len), ("NVMET_BLOCK_LEN", block_len)] {
            match std::env::var(name) {
                Ok(expected) if expected != found.to_string() => {
                    return Err(format!("{name} is {expected}, the target says {found}"));
                }
                _ => {}
            }
        }
        if len < 48 * MIB || (found.transfer_len_max as u64) < MIB || block_len > 4096 {
            return Err(format!("too small for what follows: {found:?}"));
        }
        Ok(format!("{len} bytes in blocks of {block_len}"))
    }

    /// Blocks of every size that a capsule takes, and one just above what Linux's takes.
    fn small(&mut self, salt: u8) -> Checked {
        let block_len = self.handle()?.properties().alignment as u64;
        let ranges = [(0, block_len), (block_len, 4096), (64 << 10, 8192), (128 << 10, 16_384)];
        let above = (192 << 10, 16_384 + block_len);
        self.write_and_compare(&[&ranges[..], &[above]].concat(), salt)
    }

    /// Half of them with checksums that are known in advance, as files are shipped.
    fn large(&mut self, salt: u8) -> Checked {
        for (offset, len) in large_ranges().into_iter().step_by(2) {
            let crc = crc32c(&pattern(offset, len, salt));
            self.remote()?.note_crc(offset, len as usize, crc);
        }
        self.write_and_compare(&large_ranges(), salt)
    }

    fn compare_large(&mut self, salt: u8) -> Checked {
        self.compare(&large_ranges(), salt)
    }

    /// Aligned to blocks and to nothing else.
    fn uneven(&mut self, salt: u8) -> Checked {
        let block_len = self.handle()?.properties().alignment as u64;
        let ranges: Vec<_> = (0..DEPTH)
            .map(|i| (28 * MIB + i * MIB + (2 * i + 1) * block_len, MIB - (i % 3 + 1) * block_len))
            .collect();
        self.write_and_compare(&ranges, salt)
    }

    /// Two writes of one place, a flush and a read; each waits for the one before.
    fn chain(&mut self, salt: u8) -> Checked {
        let (offset, len) = (46 * MIB, MIB);
        let write = |salt| OperationKind::Write { offset, data: pattern(offset, len, salt) };
        let read = OperationKind::Read { offset, into: AlignedBuf::zeroed(len as usize) };
        let handle = self.handle()?;
        let kinds = vec![write(salt ^ 0x55), write(salt), OperationKind::Flush, read];
        let last = self.run(async {
            let mut last = None;
            for pending in handle.submit(kinds, true) {
                let ended = pending.await;
                ended.outcome.into_result()?;
                last = ended.buffer;
            }
            Ok(last)
        })?;
        match last {
            Some(found) if found[..] == pattern(offset, len, salt)[..] => {
                Ok("the read finds the second write".to_owned())
            }
            _ => Err("the read does not find the second write".to_owned()),
        }
    }

    /// A target that takes this write does not look at its digest.
    fn wrong_digest(&mut self, salt: u8) -> Checked {
        let (offset, data) = (47 * MIB, pattern(47 * MIB, MIB, salt));
        self.remote()?.note_crc(offset, data.len(), !crc32c(&data));
        let handle = self.handle()?;
        match self.run(async { Ok(handle.write(offset, data).await) })? {
            Ok(()) => Err("was taken".to_owned()),
            Err(error) => Ok(text(error)),
        }
    }

    fn idle(&mut self) -> Checked {
        let until = Instant::now() + IDLE;
        while Instant::now() < until {
            self.turn()?;
        }
        let handle = self.handle()?;
        self.run(async { handle.read(0, 4096).await })?;
        Ok(format!("kept alive through {} keep-alive times", IDLE.as_millis() / 2_000))
    }

    fn write_and_compare(&mut self, ranges: &[(u64, u64)], salt: u8) -> Checked {
        let handle = self.handle()?;
        let write = |&(offset, len): &(u64, u64)| OperationKind::Write {
            offset,
            data: pattern(offset, len, salt),
        };
        let kinds = ranges.iter().map(write).collect();
        self.run(async {
            for pending in handle.submit(kinds, false) {
                pending.await.outcome.into_result()?;
            }
            Ok(())
        })?;
        self.compare(ranges, salt)
    }

    /// Reads all ranges at once.
    fn compare(&mut self, ranges: &[(u64, u64)], salt: u8) -> Checked {
        let handle = self.handle()?;
        let read = |&(offset, len): &(u64, u64)| OperationKind::Read {
            offset,
            into: AlignedBuf::zeroed(len as usize),
        };
        let kinds = ranges.iter().map(read).collect();
        let buffers = self.run(async {
            let mut buffers = Vec::new();
            for pending in handle.submit(kinds, false) {
                let ended = pending.await;
                ended.outcome.into_result()?;
                buffers.push(ended.buffer);
            }
            Ok(buffers)
        })?;
        for (&(offset, len), found) in ranges.iter().zip(buffers) {
            let expected = pattern(offset, len, salt);
            if found.is_none_or(|found| found[..] != expected[..]) {
                return Err(format!("{len} bytes at {offset} do not come back as written"));
            }
        }
        let total: u64 = ranges.iter().map(|&(_, len)| len).sum();
        Ok(format!("{} ranges, {total} bytes", ranges.len()))
    }

    fn remote(&self) -> Checked<&Remote> {
        self.remotes.get(&0).ok_or_else(|| "no connection".to_owned())
    }

    fn handle(&self) -> Checked<MediumHandle> {
        Ok(self.remote()?.handle().clone())
    }

    fn run<T>(&mut self, future: impl Future<Output = gabion_base::Result<T>>) -> Checked<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value.map_err(text);
            }
            self.turn()?;
        }
    }

    fn turn(&mut self) -> Checked<()> {
        if Instant::now() > self.until {
            return Err(format!("not done after {} s", TIME_MAX.as_secs()));
        }
        self.remotes.turn(Duration::from_millis(20)).map(drop).map_err(text)
    }
}

fn large_ranges() -> Vec<(u64, u64)> {
    (0..DEPTH).map(|i| ((4 + i) * MIB, MIB)).collect()
}

/// Bytes that differ between places and between salts.
fn pattern(offset: u64, len: u64, salt: u8) -> Bytes {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ salt;
    let bytes: Vec<u8> = (offset..offset + len).map(byte).collect();
    AlignedBuf::copy_of(&bytes).freeze()
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
