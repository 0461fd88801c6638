//! Mirrors: files of the kernel's memory that hold the bytes which programs read.

use super::{Errno, State, errno};
use crate::files::{FileId, LogFiles, Metadata, memory_file};
use crate::shared::{Guard, Kind, RECORD_MAX, Record, SLOTS, Slot, state};
use crate::wire::{ATTRIBUTES, Reply, Request};
use gabion_ncl::FILE_LEN_MAX;
use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use std::fs::{File, Metadata as Status, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// One file.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) file: FileId,
    pub(super) generation: u32,
    /// Device and inode of the placeholder.
    pub(super) placeholder: (u64, u64),
    pub(super) memory: File,
}

/// Flags of `open` that a descriptor keeps, and that the mirror is therefore opened with.
const KEPT: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_NOATIME
    | libc::O_CLOEXEC;

impl Mirror {
    /// A mirror in the store's memory, or without bytes. It has the placeholder's mode and owner.
    pub(super) fn new(
        generation: u32,
        file: FileId,
        memory: Option<File>,
        placeholder: &Status,
    ) -> io::Result<Self> {
        let memory = memory.map_or_else(memory_file, Ok)?;
        let inode = (placeholder.dev(), placeholder.ino());
        let mirror = Self { file, generation, placeholder: inode, memory };
        mirror.take_metadata(placeholder)?;
        Ok(mirror)
    }

    /// Fills the mirror with what the store has.
    pub(super) fn fill(&self, len: u64, store: &mut dyn LogFiles) -> io::Result<()> {
        self.memory.set_len(len)?;
        let (mut bytes, mut at) = (vec![0; RECORD_MAX as usize], 0);
        while at < len {
            let part = (len - at).min(RECORD_MAX) as usize;
            let read = store.read(self.file, at, &mut bytes[..part])?;
            if read != part {
                let file = self.file.0;
                let text =
                    format!("file {file}: {len} bytes are listed, {} found", at + read as u64);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            self.memory.write_all_at(&bytes[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    pub(super) fn len(&self) -> Option<u64> {
        self.memory.metadata().ok().map(|status| status.len())
    }

    /// Tells the store what a record says.
    pub(super) fn apply(
        &self,
        record: &Record,
        bytes: &[u8],
        store: &mut dyn LogFiles,
    ) -> io::Result<()> {
        match record.kind {
            Kind::Write => store.pwrite(self.file, record.offset, bytes),
            Kind::Truncate => store.truncate(self.file, record.len),
            Kind::Reread => self.reread(record.offset, record.len, store),
        }
    }

    fn reread(&self, offset: u64, len: u64, store: &mut dyn LogFiles) -> io::Result<()> {
        let size = self.memory.metadata()?.len();
        let end = offset.saturating_add(len).min(size);
        let (mut bytes, mut at) = (vec![0; RECORD_MAX as usize], offset);
        while at < end {
            let part = (end - at).min(RECORD_MAX) as usize;
            let read = self.memory.read_at(&mut bytes[..part], at)?;
            if read == 0 {
                // Cut off by now, of which there will be a record.
                break;
            }
            store.pwrite(self.file, at, &bytes[..read])?;
            at += read as u64;
        }
        store.truncate(self.file, size)
    }

    /// A description of its own, with the flags that the program opened the file with.
    fn open(&self, flags: i32) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        // The program's descriptor has its own; the owner starts processes, too.
        let flags = OFlags::from_bits_retain((flags & KEPT) as u32) | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&path, flags, Mode::empty());
        match open() {
            // The placeholder was opened, so the program may: `open(…, O_CREAT | O_RDWR, 0400)`.
            Err(rustix::io::Errno::ACCESS) => {
                let mode = self.memory.metadata()?.permissions();
                self.memory.set_permissions(Permissions::from_mode(mode.mode() | 0o600))?;
                let opened = open();
                self.memory.set_permissions(mode)?;
                Ok(opened?)
            }
            opened => Ok(opened?),
        }
    }

    fn take_metadata(&self, from: &Status) -> io::Result<()> {
        let own = self.memory.metadata()?;
        if (own.uid(), own.gid()) != (from.uid(), from.gid()) {
            std::os::unix::fs::fchown(&self.memory, Some(from.uid()), Some(from.gid()))?;
        }
        self.memory.set_permissions(Permissions::from_mode(from.mode() & 0o7777))
    }
}

/// The attributes of a file that a store keeps.
pub(super) fn metadata_of(status: &Status) -> Metadata {
    Metadata { mode: status.mode() & 0o7777, user: status.uid(), group: status.gid() }
}

impl State {
    /// A slot for a new file and its generation: one that was never used, else one of a file that
    /// is gone.
    pub(super) fn free_slot(&self) -> Option<(u32, u32)> {
        let count = SLOTS as u32;
        (1..=count).map(|step| (self.last_slot + step) % count).find_map(|number| {
            let slot = self.shared.slot(number)?;
            let free = slot.state.load(Relaxed) != state::LIVE;
            free.then(|| (number, slot.generation.load(Relaxed) + 1))
        })
    }

    /// The slot's fields, so that processes find the file; the state last.
    pub(super) fn publish(&mut self, number: u32, mirror: Mirror) -> io::Result<()> {
        let status = mirror.memory.metadata()?;
        let slot: &Slot = self.shared.slot(number).expect("a slot that was free");
        slot.generation.store(mirror.generation, Release);
        slot.device.store(mirror.placeholder.0, Relaxed);
        slot.inode.store(mirror.placeholder.1, Relaxed);
        slot.mirror_device.store(status.dev(), Relaxed);
        slot.mirror_inode.store(status.ino(), Relaxed);
        slot.links.store(1, Relaxed);
        // Without an answer a process asks.
        let reserved = self.store.reserve(mirror.file, status.len());
        slot.capacity.store(reserved.ok().flatten().unwrap_or(0), Relaxed);
        slot.set_split(0, mirror.generation);
        slot.state.store(state::LIVE, Release);
        self.mirrors[number as usize] = Some(mirror);
        self.count_slot(number);
        Ok(())
    }

    /// The slot is in use.
    pub(super) fn count_slot(&mut self, number: u32) {
        self.last_slot = number;
        // Never less than before: processes hold numbers of slots whose files are gone.
        if number >= self.used {
            self.used = number + 1;
            self.shared.set_used(self.used);
        }
    }

    pub(super) fn mirror(&self, request: &Request) -> Result<&Mirror, Errno> {
        let mirror = self.mirrors.get(request.slot as usize).and_then(Option::as_ref);
        let current = |mirror: &&Mirror| mirror.generation == request.generation;
        mirror.filter(current).ok_or(libc::ENOENT)
    }

    /// A reply with a descriptor of the mirror.
    pub(super) fn opened(
        &mut self,
        slot: u32,
        flags: u32,
        guard: Option<&mut Guard>,
    ) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let mirror = self.mirrors[slot as usize].as_ref().ok_or(libc::ENOENT)?;
        let generation = mirror.generation;
        let descriptor = mirror.open(flags as i32).map_err(|error| errno(&error))?;
        if flags & libc::O_TRUNC as u32 != 0 {
            self.cut(slot, 0, guard)?;
        }
        let kind = crate::wire::kind::MIRRORED;
        Ok((Reply { kind, slot, generation, ..Reply::default() }, Some(descriptor)))
    }

    pub(super) fn truncate(
        &mut self,
        request: &Request,
        guard: Option<&mut Guard>,
    ) -> Result<Reply, Errno> {
        self.mirror(request)?;
        if request.value > FILE_LEN_MAX {
            return Err(libc::EFBIG);
        }
        self.cut(request.slot, request.value, guard)?;
        Ok(Reply::default())
    }

    /// The caller has the lock of the shared memory, and the ring is empty.
    fn cut(&mut self, slot: u32, len: u64, guard: Option<&mut Guard>) -> Result<(), Errno> {
        let mirror = self.mirrors[slot as usize].as_ref().ok_or(libc::ENOENT)?;
        let guard = guard.expect("no process is amid a change");
        guard.begin(slot);
        let cut = mirror.memory.set_len(len);
        let told = cut.as_ref().map_or(Ok(()), |()| self.store.truncate(mirror.file, len));
        guard.end();
        cut.map_err(|error| errno(&error))?;
        // The mirror has changed, so the store may refuse nothing.
        let stored = told.and_then(|()| self.settle());
        stored.map_err(|error| self.failed(&error))
    }

    pub(super) fn attributes(&self, request: &Request) -> Result<Reply, Errno> {
        let mirror = self.mirror(request)?;
        let status = mirror.memory.metadata().map_err(|error| errno(&error))?;
        let attributes: [u64; ATTRIBUTES] = [
            status.size(),
            status.blocks(),
            status.mode().into(),
            status.uid().into(),
            status.gid().into(),
            status.atime() as u64,
            status.atime_nsec() as u64,
            status.mtime() as u64,
            status.mtime_nsec() as u64,
            status.ctime() as u64,
            status.ctime_nsec() as u64,
        ];
        Ok(Reply { attributes, ..Reply::default() })
    }

    pub(super) fn metadata_from_placeholder(
        &mut self,
        request: &Request,
        path: &Path,
    ) -> Result<Reply, Errno> {
        let mirror = self.mirror(request)?;
        let status = std::fs::metadata(path).map_err(|error| errno(&error))?;
        if (status.dev(), status.ino()) != mirror.placeholder {
            return Err(libc::ENOENT);
        }
        mirror.take_metadata(&status).map_err(|error| errno(&error))?;
        let (file, metadata) = (mirror.file, metadata_of(&status));
        let done = self.store.set_metadata(file, metadata);
        self.stored(done)?;
        Ok(Reply::default())
    }

    pub(super) fn times_from_placeholder(
        &mut self,
        request: &Request,
        path: &Path,
    ) -> Result<Reply, Errno> {
        let mirror = self.mirror(request)?;
        let status = std::fs::metadata(path).map_err(|error| errno(&error))?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: status.atime(), tv_nsec: status.atime_nsec() },
            last_modification: Timespec { tv_sec: status.mtime(), tv_nsec: status.mtime_nsec() },
        };
        rustix::fs::futimens(&mirror.memory, &times).map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Reply::default())
    }

    pub(super) fn metadata_from_mirror(&mut self, request: &Request) -> Result<Reply, Errno> {
        let mirror = self.mirror(request)?;
        let status = mirror.memory.metadata().map_err(|error| errno(&error))?;
        let (file, metadata) = (mirror.file, metadata_of(&status));
        if let Some(path) = self.path_of(request.slot) {
            self.give_metadata(&path, metadata).map_err(|error| errno(&error))?;
        }
        let done = self.store.set_metadata(file, metadata);
        self.stored(done)?;
        Ok(Reply::default())
    }

    /// Gives a placeholder mode and owner.
    pub(super) fn give_metadata(&self, path: &Path, metadata: Metadata) -> io::Result<()> {
        let status = std::fs::metadata(path)?;
        if (status.uid(), status.gid()) != (metadata.user, metadata.group) {
            std::os::unix::fs::chown(path, Some(metadata.user), Some(metadata.group))?;
        }
        std::fs::set_permissions(path, Permissions::from_mode(metadata.mode))
    }

    /// The file has no name any more: nothing of it will be recovered, and what still is open lives
    /// in the kernel's memory alone.
    pub(super) fn forget(&mut self, number: u32) {
        if let Some(slot) = self.shared.slot(number) {
            slot.links.store(0, Relaxed);
            slot.state.store(state::GONE, Release);
        }
        self.mirrors[number as usize] = None;
    }
}
