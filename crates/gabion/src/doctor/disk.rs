//! The disk under the data: file system, room, io_uring, and whether a flush is one.
//!
//! A flush cannot be proved to be honest without cutting the power. It can be found out to be
//! dishonest: a disk whose cache forgets all in a power cut, and that flushes faster than any
//! medium takes data, has not written it.

use super::{Check, State};
use crate::cluster::free_at;
use crate::units::size;
use gabion_base::units::{BLOCK_LEN, MIB};
use gabion_base::{Error, Result};
use gabion_fabric::{BackendChoice, DirectIo, MediumOptions, PoolFile};
use rustix::fs::{major, minor, stat, statfs};
use std::fs::{File, OpenOptions, read_to_string};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Blocks that are written and flushed, one after the other.
const FLUSHES: usize = 48;
/// No more time than this for them.
const FLUSHING_MAX: Duration = Duration::from_secs(3);
/// A flash chip takes some 0.1 ms or more, and a controller a part of it: what is faster, with a
/// cache that forgets, has not reached anything.
const SOLID_MIN: Duration = Duration::from_micros(30);
/// Half a turn of a fast disk is 2 ms; a flush that waits for the platter waits for nearly that.
/// A virtual disk may say that it turns, so a faster flush of one is no proof.
const TURNING_MIN: Duration = Duration::from_micros(1_500);
/// Slower ones hold up writes whenever the log is flushed.
const FLUSH_MAX: Duration = Duration::from_millis(20);
const SCRATCH_LEN: u64 = MIB;

/// The cache and the kind of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    /// Whether it says that its cache forgets all in a power cut; none where it is not known.
    is_volatile: Option<bool>,
    turns: bool,
}

/// All of them, for data that is or is to be here, with room for pools of so many bytes that are to
/// be made; none are to be where they are there.
pub(super) fn checks(data: &Path, to_make: Option<u64>) -> Vec<Check> {
    let dir = existing(data);
    let mut all = vec![file_system(file_system_of(&dir)), room(free_at(&dir).ok(), to_make)];
    let device = device_of(&dir);
    all.push(cache(device));
    match Scratch::make(&dir) {
        Ok(scratch) => {
            all.extend(backend(&scratch.path));
            all.push(flush(scratch.flush_time().map_err(|error| error.to_string()), device));
        }
        Err(error) => {
            let check = Check::ok("flush", error.to_string(), "a file can be written");
            all.push(check.but(State::Bad, format!("let this user write to {}", dir.display())));
        }
    }
    all
}

/// The directory, or the next one above it that is there.
fn existing(data: &Path) -> PathBuf {
    let found = data.ancestors().find(|path| path.is_dir());
    found.map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// A file for a moment.
struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn make(dir: &Path) -> Result<Self> {
        let path = dir.join(format!(".gabion-doctor-{}", std::process::id()));
        let io = |e| crate::cluster::failed(&path, "cannot be written", e);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let scratch = Self { file: file.map_err(io)?, path: path.clone() };
        // Whole, so that what is timed changes nothing of the file system's own.
        let zeros = vec![0; SCRATCH_LEN as usize];
        scratch.file.write_all_at(&zeros, 0).and_then(|()| scratch.file.sync_all()).map_err(io)?;
        Ok(scratch)
    }

    /// The time of a block's write and flush: the median.
    fn flush_time(&self) -> Result<Duration> {
        let io = |e| crate::cluster::failed(&self.path, "cannot be flushed", e);
        let (begun, mut times) = (Instant::now(), Vec::new());
        let mut block = [0; BLOCK_LEN];
        while times.len() < FLUSHES && begun.elapsed() < FLUSHING_MAX {
            let number = times.len() as u64;
            block[0] = number as u8 + 1;
            let offset = number * BLOCK_LEN as u64 % SCRATCH_LEN;
            let start = Instant::now();
            self.file
                .write_all_at(&block, offset)
                .and_then(|()| self.file.sync_data())
                .map_err(io)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        times.get(times.len() / 2).copied().ok_or_else(|| Error::io("nothing was flushed"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn file_system_of(dir: &Path) -> Option<u64> {
    statfs(dir).ok().map(|stat| stat.f_type as u64 & 0xffff_ffff)
}

fn file_system(magic: Option<u64>) -> Check {
    let (name, state, change) = match magic {
        Some(0xef53) => ("ext4", State::Ok, ""),
        Some(0x5846_5342) => ("xfs", State::Ok, ""),
        Some(0x9123_683e) => (
            "btrfs",
            State::Warn,
            "ext4 or xfs, or `chattr +C` for the directory before the data is made: pools are \
             written in place, and copies of each block scatter them",
        ),
        Some(0x2fc1_2fc1) => {
            ("zfs", State::Warn, "ext4 or xfs: zfs caches and checks what Gabion does itself")
        }
        Some(0x794c_7630) => {
            ("overlay", State::Warn, "a volume for the data: what a container keeps goes with it")
        }
        Some(0x0102_1994) => {
            ("tmpfs", State::Bad, "a disk: this is memory, and gone with the power")
        }
        Some(0x6969 | 0x6573_5546 | 0xff53_4d42) => (
            "network or fuse",
            State::Bad,
            "a disk of this machine: locks and flushes of such file systems are not what they say",
        ),
        _ => ("not known", State::Warn, "ext4 or xfs: Gabion is tried on these"),
    };
    let check = Check::ok("file system", name, "ext4 or xfs");
    if state == State::Ok { check } else { check.but(state, change) }
}

/// Room for pools that are to be made, or for logs and reports beside those that are.
fn room(free: Option<u64>, to_make: Option<u64>) -> Check {
    let wanted = to_make.unwrap_or(64 * MIB);
    let value = free.map_or("unknown".to_owned(), |free| format!("{} free", size(free)));
    let check = Check::ok("free space", value, format!("{} or more", size(wanted)));
    match free {
        Some(free) if free >= wanted => check,
        Some(_) => {
            check.but(State::Bad, "a larger disk, --data elsewhere, or a smaller --pool-size")
        }
        None => check.but(State::Warn, "look at `df`: the system does not say it"),
    }
}

/// How files are read and written: by io_uring and past the page cache, or not.
fn backend(path: &Path) -> Vec<Check> {
    let ring = Check::ok("io_uring", "works", "works");
    let direct = Check::ok("direct I/O", "works", "works");
    let file = match PoolFile::open(path, DirectIo::default()) {
        Ok(file) => file,
        Err(error) => {
            let value = error.to_string();
            return vec![
                Check { value, ..direct }.but(State::Bad, "a file system that locks files"),
            ];
        }
    };
    let direct = match file.direct_refusal() {
        None => direct,
        Some(why) => Check { value: why.to_owned(), ..direct }
            .but(State::Warn, "ext4 or xfs: all goes through the page cache here"),
    };
    let options = MediumOptions { backend: BackendChoice::Auto, ..MediumOptions::default() };
    let refused = match file.medium(options) {
        Ok(medium) => medium.fallback().map(str::to_owned),
        Err(error) => Some(error.to_string()),
    };
    let ring = match refused {
        None => ring,
        Some(why) => Check { value: why, ..ring }.but(
            State::Warn,
            "`sysctl kernel.io_uring_disabled=0`, and a seccomp profile that allows io_uring; \
             threads read and write meanwhile, at a higher cost",
        ),
    };
    vec![ring, direct]
}

/// The device that has the directory.
fn device_of(dir: &Path) -> Option<Device> {
    let stat = stat(dir).ok()?;
    let node = format!("/sys/dev/block/{}:{}", major(stat.st_dev), minor(stat.st_dev));
    let node = std::fs::canonicalize(node).ok()?;
    // A partition has its queue at the disk.
    let queue = [node.join("queue"), node.parent()?.join("queue")];
    let queue = queue.into_iter().find(|path| path.is_dir())?;
    let read = |name: &str| read_to_string(queue.join(name)).unwrap_or_default();
    let is_volatile = match read("write_cache").trim() {
        "write back" => Some(true),
        "write through" => Some(false),
        _ => None,
    };
    // Virtual disks say that they turn, whatever they are.
    let is_virtual = ["/virtio", "/vbd-"].iter().any(|part| node.to_string_lossy().contains(part));
    Some(Device { is_volatile, turns: !is_virtual && read("rotational").trim() == "1" })
}

fn cache(device: Option<Device>) -> Check {
    let (name, limit) = ("write cache", "write through, or flushes that empty it");
    match device.and_then(|device| device.is_volatile) {
        Some(false) => Check::ok(name, "write through", limit),
        Some(true) => Check::ok(name, "write back: volatile", limit),
        None => Check::ok(name, "not known", limit).but(
            State::Warn,
            "look at the settings of the volume: the system does not say whether its cache \
             survives a power cut",
        ),
    }
}

/// Whether the time of a flush is one that the device can have.
fn flush(median: Result<Duration, String>, device: Option<Device>) -> Check {
    let name = "flush";
    let median = match median {
        Ok(median) => median,
        Err(why) => {
            let check = Check::ok(name, why, "it ends well");
            return check.but(State::Bad, "replace the disk: it does not take what is written");
        }
    };
    let value = format!("{:.3} ms", median.as_secs_f64() * 1e3);
    let is_volatile = device.is_some_and(|device| device.is_volatile == Some(true));
    let turns = device.is_some_and(|device| device.turns);
    let least = match (is_volatile, turns) {
        (true, true) => TURNING_MIN,
        (true, false) => SOLID_MIN,
        (false, _) => Duration::ZERO,
    };
    let (least_ms, most_ms) = (least.as_micros() as f64 / 1e3, FLUSH_MAX.as_millis());
    if median < least {
        let limit = format!("{least_ms} ms or more, as the cache is volatile");
        let state = if median < SOLID_MIN { State::Bad } else { State::Warn };
        return Check::ok(name, value, limit).but(
            state,
            "flushes end before data can be on the medium: turn the lie off at the host (of a \
             virtual disk: cache=none or directsync), or turn the disk's cache off (`hdparm -W0`)",
        );
    }
    let check = Check::ok(name, value, format!("{least_ms} to {most_ms} ms"));
    if median > FLUSH_MAX {
        let change = "a faster disk, best with power-loss protection: writes wait for the log";
        return check.but(State::Warn, change);
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::units::GIB;

    #[test]
    fn a_flush_that_is_faster_than_its_medium_is_found_out() {
        let device = |is_volatile, turns| Some(Device { is_volatile, turns });
        let us = |us| Ok(Duration::from_micros(us));
        for (median, device, wanted) in [
            (us(400), device(Some(true), false), State::Ok),
            (us(9), device(Some(true), false), State::Bad),
            (us(9), device(Some(false), false), State::Ok),
            (us(400), device(Some(true), true), State::Warn),
            (us(9), device(Some(true), true), State::Bad),
            (us(8_000), device(Some(true), true), State::Ok),
            (us(9), None, State::Ok),
            (us(30_000), None, State::Warn),
            (Err("Input/output error".to_owned()), None, State::Bad),
        ] {
            let check = flush(median.clone(), device);
            assert_eq!(check.state, wanted, "{median:?} {device:?}: {check:?}");
        }
        assert_eq!(cache(device(None, false)).state, State::Warn);
        assert_eq!(cache(device(Some(true), false)).state, State::Ok);
    }

    #[test]
    fn file_systems_and_room_are_judged() {
        for (magic, wanted) in [
            (Some(0xef53), State::Ok),
            (Some(0x9123_683e), State::Warn),
            (Some(0x0102_1994), State::Bad),
            (Some(0x6969), State::Bad),
            (None, State::Warn),
        ] {
            assert_eq!(file_system(magic).state, wanted, "{magic:?}");
        }
        assert_eq!(room(Some(2 * GIB), Some(GIB)).state, State::Ok);
        assert_eq!(room(Some(GIB / 2), Some(GIB)).state, State::Bad);
        assert_eq!(room(Some(GIB / 2), None).state, State::Ok);
        assert_eq!(room(Some(MIB), None).state, State::Bad);
        assert_eq!(room(None, None).state, State::Warn);
    }

    #[test]
    fn the_disk_here_is_looked_at_and_nothing_stays() {
        let dir = std::env::temp_dir().join(format!("gabion-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let checks = checks(&dir.join("not/there/yet"), None);
        assert!(checks.iter().any(|check| check.name == "flush"), "{checks:?}");
        assert!(checks.iter().all(|check| check.change.is_empty() == (check.state == State::Ok)));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
