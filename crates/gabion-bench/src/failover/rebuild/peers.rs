//! Limits of the machine: the same bytes to the same file system, from one file to another, and
//! through a connection of loopback.

use gabion_base::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Bytes of one call, as replicas write.
const CHUNK: usize = 1 << 20;
const ALIGN: usize = 4096;
/// Chunks that are read ahead of the writing thread.
const AHEAD: usize = 8;

/// Bytes a second of each peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// Written past the page cache, then flushed.
    pub(super) write: f64,
    /// Read and written by two threads, past the page cache, then flushed: a rebuild on one device
    /// does both.
    pub(super) copy: f64,
    /// Sent and received.
    pub(super) loopback: f64,
}

impl Peers {
    /// Measures with so many bytes, in files that are removed.
    pub(super) fn measure(dir: &Path, bytes: u64) -> Result<Self> {
        let (from, to) = (dir.join("peer-1"), dir.join("peer-2"));
        let measured = || {
            let write = rate(bytes, || write(&from, bytes))?;
            let copy = rate(bytes, || copy(&from, &to))?;
            let loopback = rate(bytes, || loopback(bytes))?;
            Ok(Self { write, copy, loopback })
        };
        let measured = measured();
        let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
        measured
    }
}

fn rate(bytes: u64, work: impl FnOnce() -> std::io::Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work().map_err(|error| Error::with_source(ErrorKind::Io, "a peer is measured", error))?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// A buffer whose bytes begin at a boundary that direct I/O needs.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new() -> Self {
        let bytes = vec![7; CHUNK + ALIGN];
        let at = bytes.as_ptr().align_offset(ALIGN);
        Self(bytes, at)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + CHUNK]
    }
}

fn direct(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    match options.custom_flags(OFlags::DIRECT.bits() as i32).open(path) {
        // A file system that has no direct I/O; replicas on it go through the page cache as well.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            options.custom_flags(0).create_new(false).open(path)
        }
        opened => opened,
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    direct(OpenOptions::new().write(true).create_new(true), path)
}

fn write(path: &Path, bytes: u64) -> std::io::Result<()> {
    let (mut file, mut buffer) = (create(path)?, Aligned::new());
    for _ in 0..bytes.div_ceil(CHUNK as u64) {
        file.write_all(buffer.bytes())?;
    }
    file.sync_all()
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let (mut from, mut to) = (direct(OpenOptions::new().read(true), from)?, create(to)?);
    let (filled, full) = sync_channel::<Aligned>(AHEAD);
    let (emptied, empty) = sync_channel::<Aligned>(AHEAD);
    for _ in 0..AHEAD {
        let _ = emptied.send(Aligned::new());
    }
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            for mut buffer in empty {
                // The file has whole chunks.
                match from.read_exact(buffer.bytes()) {
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                    read => read?,
                }
                if filled.send(buffer).is_err() {
                    break;
                }
            }
            std::io::Result::Ok(())
        });
        for mut buffer in full {
            to.write_all(buffer.bytes())?;
            let _ = emptied.send(buffer);
        }
        drop(emptied);
        reading.join().unwrap_or(Ok(()))
    })?;
    to.sync_all()
}

fn loopback(bytes: u64) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let (mut stream, mut buffer) = (TcpStream::connect(address)?, Aligned::new());
            for _ in 0..bytes.div_ceil(CHUNK as u64) {
                stream.write_all(buffer.bytes())?;
            }
            std::io::Result::Ok(())
        });
        let (mut stream, _) = listener.accept()?;
        let mut buffer = Aligned::new();
        while stream.read(buffer.bytes())? > 0 {}
        sending.join().unwrap_or(Ok(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ScratchDir;

    #[test]
    fn peers_are_measured_and_leave_nothing() {
        let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let peers = Peers::measure(dir.path(), 8 << 20).unwrap();
        assert!([peers.write, peers.copy, peers.loopback].iter().all(|rate| *rate > 0.0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
