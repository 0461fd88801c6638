//! Calls that change bytes, and those that wait for them to be stored.

use crate::ask::{self, ask};
use crate::direct;
use crate::names;
use crate::raw::{self, Answer, SignalsHeld, word};
use crate::split;
use crate::state::{self, Mirrored, Ready, mirrored, ready};
use gabion_mirror::shared::{Guard, Kind, RECORD_MAX, Record, Shared, Slot};
use gabion_mirror::wire::{Operation, Request};
use gabion_ncl::FILE_LEN_MAX;
use libc::c_int;

/// The place of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the description's offset, which it moves.
    Current,
    At(u64),
}

/// The bytes of a write in the program's memory.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Bytes { address: usize, len: usize },
    Parts { address: usize, count: usize },
}

impl Source {
    /// How many bytes the program gave. Parts are read through the kernel, which has not read them
    /// yet: `None` if they are not there.
    pub(crate) fn len(self) -> Option<u64> {
        match self {
            Self::Bytes { len, .. } => Some(len as u64),
            Self::Parts { address, count } => raw::len_of_parts(address, count),
        }
    }

    /// The first `len` bytes, of which the kernel has just read as many, piece by piece. A program
    /// that still fills what it did not mean to be stored, as PostgreSQL does with a page's end,
    /// may change them meanwhile: nobody takes two readings for equal.
    pub(crate) fn each(self, len: usize, take: &mut dyn FnMut(&[u8])) {
        let (address, count) = match self {
            Self::Bytes { address, .. } => return take(raw::memory(address, len)),
            Self::Parts { address, count } => (address, count),
        };
        let mut rest = len;
        for part in raw::parts(address, count) {
            let len = part.iov_len.min(rest);
            take(raw::memory(part.iov_base as usize, len));
            rest -= len;
        }
    }
}

/// A write that the kernel will make.
pub(crate) struct Write<'a> {
    pub(crate) descriptor: c_int,
    pub(crate) place: Place,
    pub(crate) source: Source,
    /// Of this call alone: `RWF_APPEND`, `RWF_DSYNC`.
    pub(crate) append: bool,
    pub(crate) synced: bool,
    pub(crate) call: &'a dyn Fn() -> Answer,
}

/// The program's own call, and a record of it if the file is mirrored.
pub(crate) fn write(write: &Write<'_>) -> Answer {
    let Some(file) = mirrored(write.descriptor) else {
        return (write.call)();
    };
    if file.split {
        return split::write(file, write);
    }
    let change = |locked: &mut Locked<'_>| {
        let append = write.append || raw::flags(write.descriptor) & libc::O_APPEND != 0;
        let place = match write.place {
            _ if append => locked.status.st_size as u64,
            Place::At(offset) => offset,
            Place::Current => raw::position(write.descriptor) as u64,
        };
        if is_too_long(place, write.source) {
            return Err(libc::EFBIG);
        }
        if write.source.len() != Some(0) {
            locked.reach(write.descriptor, place, write.source.len())?;
        }
        let written = (write.call)();
        if written <= 0 {
            return Ok(written);
        }
        let moved = write.place == Place::Current && !append;
        let end = place + written as u64;
        if moved && raw::position(write.descriptor) as u64 != end {
            // Another process moved the offset amid this, by a read, which takes no lock.
            locked.put(Kind::Reread, 0, u64::MAX, &[])?;
        } else {
            locked.note(place, write.source, written as usize)?;
        }
        Ok(written)
    };
    locked(write.descriptor, file, write.synced, &change, write.call)
}

/// Whether a write reaches beyond what the store takes of a file. Those far within it are not asked
/// for their length, as parts have to be read for it.
fn is_too_long(place: u64, source: Source) -> bool {
    /// Of one call, by the kernel.
    const WRITE_MAX: u64 = 0x7fff_f000;
    // Negative offsets are the kernel's to refuse.
    let is_near = (FILE_LEN_MAX - WRITE_MAX..=i64::MAX as u64).contains(&place);
    let ends_beyond = |len: u64| len > 0 && place + len.min(WRITE_MAX) > FILE_LEN_MAX;
    is_near && source.len().is_some_and(ends_beyond)
}

/// The lock, and the file that is changed under it.
pub(crate) struct Locked<'a> {
    pub(crate) guard: &'a mut Guard,
    pub(crate) file: Mirrored,
    /// As of before the change.
    pub(crate) status: libc::stat,
    /// The length that the file would have, for which nobody has asked yet.
    pub(crate) lacks: Option<u64>,
}

impl Locked<'_> {
    /// The store has memory for bytes at an offset, or is to be asked for it first. A call that
    /// the kernel refuses anyway is the kernel's to refuse.
    fn reach(&mut self, descriptor: c_int, place: u64, len: Option<u64>) -> Result<(), c_int> {
        let end = place.saturating_add(len.unwrap_or(0).min(WRITTEN_MAX));
        let is_valid = len.is_some() && end <= i64::MAX as u64;
        if !is_valid || end <= capacity(self.guard.shared(), self.file) {
            return Ok(());
        }
        if raw::flags(descriptor) & libc::O_ACCMODE == libc::O_RDONLY {
            return Ok(());
        }
        self.lacks = Some(end);
        Err(libc::ENOSPC)
    }

    fn put(&mut self, kind: Kind, offset: u64, len: u64, bytes: &[u8]) -> Result<(), c_int> {
        let Mirrored { slot, generation, .. } = self.file;
        self.guard.put(&Record { kind, slot, generation, offset, len }, bytes, &mut ask::alive)
    }

    fn put_bytes(&mut self, mut place: u64, bytes: &[u8]) -> Result<(), c_int> {
        for part in bytes.chunks(RECORD_MAX as usize) {
            self.put(Kind::Write, place, part.len() as u64, part)?;
            place += part.len() as u64;
        }
        Ok(())
    }

    /// Bytes that were written: the record goes to the peers, or into the ring.
    pub(crate) fn note(&mut self, mut place: u64, source: Source, len: usize) -> Result<(), c_int> {
        if direct::write(self.guard, self.file, place, source, len) {
            return Ok(());
        }
        let mut put = Ok(());
        source.each(len, &mut |bytes| {
            if put.is_ok() {
                put = self.put_bytes(place, bytes);
            }
            place += bytes.len() as u64;
        });
        put
    }
}

/// The kernel writes no more at once.
const WRITTEN_MAX: u64 = 0x7fff_f000;

/// The length that a mirrored file may have without asking.
fn capacity(shared: &Shared, file: Mirrored) -> u64 {
    let capacity = |slot: &Slot| slot.capacity.load(std::sync::atomic::Ordering::Relaxed);
    file.slot(shared).map_or(u64::MAX, capacity)
}

/// Changes a file under the lock, once the store has memory for it.
fn locked(
    descriptor: c_int,
    file: Mirrored,
    synced: bool,
    change: &dyn Fn(&mut Locked<'_>) -> Result<Answer, c_int>,
    plain: &dyn Fn() -> Answer,
) -> Answer {
    loop {
        match locked_once(descriptor, file, synced, change, plain) {
            Ok(answer) => return answer,
            Err(end) => {
                let Some(ready) = ready() else { return raw::refuse(libc::EIO) };
                let Mirrored { slot, generation, .. } = file;
                let request = Request::new(Operation::Reserve);
                let request = Request { slot, generation, value: end, ..request };
                match ask(ready, request, [&[], &[]]) {
                    Ok(_) => {}
                    // Without its last name meanwhile, it is a file like any other.
                    Err(libc::ENOENT) => return plain(),
                    // No write says so: it has a descriptor.
                    Err(libc::EMFILE | libc::ENFILE) => return raw::refuse(libc::ENOSPC),
                    Err(reason) => return raw::refuse(reason),
                }
            }
        }
    }
}

/// The same; or the length that the file would have, for which memory is to be asked for first.
/// `plain` is the same call on a file that is not mirrored after all: the descriptor was closed and
/// given anew behind this library's back, or the file has lost its last name.
fn locked_once(
    descriptor: c_int,
    file: Mirrored,
    synced: bool,
    change: &dyn Fn(&mut Locked<'_>) -> Result<Answer, c_int>,
    plain: &dyn Fn() -> Answer,
) -> Result<Answer, u64> {
    let Some(ready) = ready().filter(|ready| file.is_live(&ready.shared)) else {
        return Ok(plain());
    };
    if let Err(reason) = ready.shared.check() {
        return Ok(raw::refuse(reason));
    }
    let signals = SignalsHeld::new();
    let mut guard = ready.shared.lock();
    let Some(status) = raw::status(descriptor).filter(|status| is_mirror(ready, file, status))
    else {
        drop((guard, signals));
        state::set(descriptor, None);
        return Ok(plain());
    };
    guard.begin(file.slot);
    let mut locked = Locked { guard: &mut guard, file, status, lacks: None };
    let (answer, lacks) = (change(&mut locked), locked.lacks);
    let (reason, position) = (raw::errno(), ready.shared.head());
    guard.end();
    drop((guard, signals));
    if let Some(end) = lacks {
        return Err(end);
    }
    let waits = synced || file.synced || ready.shared.every_write();
    let stored = match answer {
        Ok(answer) if answer >= 0 && waits => wait_for(ready, file, position).map(|()| answer),
        other => other,
    };
    raw::set_errno(reason);
    Ok(stored.unwrap_or_else(raw::refuse))
}

/// Waits for records of a file; a process that does so often writes them itself from then on.
pub(crate) fn wait_for(ready: &Ready, file: Mirrored, position: u64) -> Result<(), c_int> {
    let is_missed = ready.shared.stored() < position;
    if is_missed {
        direct::missed(ready, file);
    }
    ready.shared.wait_stored(position, &mut ask::alive)?;
    if is_missed {
        direct::adopt(ready, file);
    }
    Ok(())
}

fn is_mirror(ready: &Ready, file: Mirrored, status: &libc::stat) -> bool {
    use std::sync::atomic::Ordering::Relaxed;
    file.slot(&ready.shared).is_some_and(|slot| {
        slot.mirror_inode.load(Relaxed) == status.st_ino
            && slot.mirror_device.load(Relaxed) == status.st_dev
    })
}

pub(crate) fn ftruncate(descriptor: c_int, len: i64) -> Answer {
    let call = || raw::forward(libc::SYS_ftruncate, &[word(descriptor), len as usize]);
    let Some(file) = mirrored(descriptor) else {
        return call();
    };
    if file.split {
        return split::change(descriptor, file, len as u64, &call);
    }
    let change = |locked: &mut Locked<'_>| {
        if len > FILE_LEN_MAX as i64 {
            return Err(libc::EFBIG);
        }
        locked.reach(descriptor, len as u64, Some(0))?;
        let answer = call();
        if answer == 0 {
            locked.put(Kind::Truncate, 0, len as u64, &[])?;
        }
        Ok(answer)
    };
    locked(descriptor, file, false, &change, &call)
}

pub(crate) fn truncate(path: usize, len: i64) -> Answer {
    let call = || raw::forward(libc::SYS_truncate, &[path, len as usize]);
    let Some(ready) = ready().filter(|ready| ready.shared.has_files()) else {
        return call();
    };
    let status = raw::status_at(libc::AT_FDCWD, path, 0).filter(raw::is_regular);
    let found = status.and_then(|status| names::find_mirrored(ready, status.st_dev, status.st_ino));
    let Some((slot, generation)) = found else {
        return match ready.shared.has_journal() {
            true => split::change_at(ready, path, len as u64, &call),
            false => call(),
        };
    };
    if len < 0 {
        return raw::refuse(libc::EINVAL);
    }
    let arguments = [word(libc::AT_FDCWD), path, word(libc::W_OK), word(libc::AT_EACCESS)];
    if raw::forward(libc::SYS_faccessat2, &arguments) != 0 {
        return -1;
    }
    let request = Request::new(Operation::Truncate);
    let request = Request { slot, generation, value: len as u64, ..request };
    ask(ready, request, [&[], &[]]).map_or_else(raw::refuse, |_| 0)
}

pub(crate) fn fallocate(descriptor: c_int, mode: c_int, offset: i64, len: i64) -> Answer {
    let arguments = [word(descriptor), word(mode), offset as usize, len as usize];
    let call = || raw::forward(libc::SYS_fallocate, &arguments);
    let Some(file) = mirrored(descriptor) else {
        return call();
    };
    if file.split {
        // Room alone is neither bytes nor length.
        return match mode == libc::FALLOC_FL_KEEP_SIZE {
            true => call(),
            false => split::change(descriptor, file, offset as u64, &call),
        };
    }
    let change = |locked: &mut Locked<'_>| {
        if mode == libc::FALLOC_FL_KEEP_SIZE {
            return reserve(descriptor, offset, len);
        }
        if offset.saturating_add(len) > FILE_LEN_MAX as i64 && mode == 0 && offset >= 0 {
            return Err(libc::EFBIG);
        }
        let end = offset.saturating_add(len);
        let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let is_valid = offset >= 0 && len > 0;
        locked.reach(descriptor, end as u64, (is_valid && !keeps).then_some(0))?;
        let answer = call();
        if answer == 0 && mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            locked.put(Kind::Reread, offset as u64, len as u64, &[])?;
        }
        if answer == 0 && !keeps && end > locked.status.st_size {
            locked.put(Kind::Truncate, 0, end as u64, &[])?;
        }
        Ok(answer)
    };
    locked(descriptor, file, false, &change, &call)
}

/// Room on a disk ahead of later writes, which a mirror does not need: the kernel would take memory
/// for it at once. The checks are the kernel's, in its order. It counts as a modification.
fn reserve(descriptor: c_int, offset: i64, len: i64) -> Result<Answer, c_int> {
    if offset < 0 || len <= 0 {
        return Err(libc::EINVAL);
    }
    if raw::flags(descriptor) & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(libc::EBADF);
    }
    offset.checked_add(len).ok_or(libc::EFBIG)?;
    Ok(raw::touch(descriptor))
}

/// `fsync` and `fdatasync`, by number.
pub(crate) fn sync(number: libc::c_long, descriptor: c_int) -> Answer {
    let call = || raw::forward(number, &[word(descriptor)]);
    let Some(file) = mirrored(descriptor) else {
        return call();
    };
    if file.split {
        return split::sync(descriptor, file, &call);
    }
    match ready().filter(|ready| file.is_live(&ready.shared)) {
        Some(ready) => {
            let same =
                raw::status(descriptor).is_some_and(|status| is_mirror(ready, file, &status));
            if same { wait_for_all(ready, Some(file)) } else { call() }
        }
        None => call(),
    }
}

/// Waits for whatever was written to mirrored files before; it is one of them that is synced.
fn wait_for_all(ready: &Ready, file: Option<Mirrored>) -> Answer {
    wait_for_change(ready);
    let head = ready.shared.head();
    let stored = match file {
        Some(file) => wait_for(ready, file, head),
        None => ready.shared.wait_stored(head, &mut ask::alive),
    };
    stored.map_or_else(raw::refuse, |()| 0)
}

/// Somebody writes, or died over it: what others see already is part of what they sync.
pub(crate) fn wait_for_change(ready: &Ready) {
    if ready.shared.is_busy() {
        let signals = SignalsHeld::new();
        drop(ready.shared.lock());
        drop(signals);
    }
}

/// `sync` and `syncfs`: of all files, the mirrored ones included.
pub(crate) fn sync_all(call: &dyn Fn() -> Answer) -> Answer {
    let answer = call();
    let Some(ready) = ready().filter(|ready| answer >= 0 && ready.shared.has_files()) else {
        return answer;
    };
    if wait_for_all(ready, None) < 0 {
        return -1;
    }
    split::synced_all(ready).map_or_else(raw::refuse, |()| answer)
}

/// Bytes that are copied at once; on the stack of whoever calls.
const COPIED: usize = 8 << 10;

/// One end of a copy: a descriptor, and where the program has its offset; 0: the description's.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) descriptor: c_int,
    pub(crate) offset: usize,
}

impl End {
    fn offset(self) -> Option<&'static mut i64> {
        (self.offset != 0).then(|| raw::filled(self.offset))
    }
}

/// Both are open, the one to read, the other to write.
fn may_copy(from: End, to: End) -> bool {
    let ways = |end: End| raw::flags(end.descriptor) & libc::O_ACCMODE;
    let open = raw::status(from.descriptor).is_some();
    open && ways(from) != libc::O_WRONLY && ways(to) != libc::O_RDONLY
}

/// Copies into or out of a mirrored file, as `sendfile`, `copy_file_range` and `splice` do; the
/// kernel copies none between memory files and those of disks. `once`: only what can be read at
/// once, as of a pipe.
pub(crate) fn copy(from: End, to: End, len: usize, once: bool) -> Answer {
    if !may_copy(from, to) {
        return raw::refuse(libc::EBADF);
    }
    // As the kernel: `sendfile` and `splice` do not append.
    if raw::flags(to.descriptor) & libc::O_APPEND != 0 {
        return raw::refuse(libc::EINVAL);
    }
    let mut buffer = [0_u8; COPIED];
    let mut copied = 0;
    while copied < len {
        let part = COPIED.min(len - copied);
        let at = buffer.as_mut_ptr() as usize;
        let read = match from.offset() {
            Some(offset) => {
                let arguments = [word(from.descriptor), at, part, *offset as usize];
                raw::forward(libc::SYS_pread64, &arguments)
            }
            None => raw::forward(libc::SYS_read, &[word(from.descriptor), at, part]),
        };
        if read <= 0 {
            return if copied > 0 { copied as Answer } else { read };
        }
        let written = write_part(to, at, read as usize);
        if written < 0 {
            return if copied > 0 { copied as Answer } else { written };
        }
        for end in [from, to] {
            if let Some(offset) = end.offset() {
                *offset += written as i64;
            }
        }
        copied += written as usize;
        if written < read || once {
            break;
        }
    }
    copied as Answer
}

fn write_part(to: End, address: usize, len: usize) -> Answer {
    let descriptor = to.descriptor;
    let (source, append, synced) = (Source::Bytes { address, len }, false, false);
    match to.offset() {
        Some(offset) => {
            let arguments = [word(descriptor), address, len, *offset as usize];
            let call = &|| raw::forward(libc::SYS_pwrite64, &arguments);
            let place = Place::At(*offset as u64);
            write(&Write { descriptor, place, source, append, synced, call })
        }
        None => {
            let call = &|| raw::forward(libc::SYS_write, &[word(descriptor), address, len]);
            write(&Write { descriptor, place: Place::Current, source, append, synced, call })
        }
    }
}

/// `copy_file_range`, where a file is mirrored. The checks are the kernel's, in its order.
pub(crate) fn copy_range(from: End, to: End, len: usize, flags: u32) -> Answer {
    if flags != 0 {
        return raw::refuse(libc::EINVAL);
    }
    let Some(status) = raw::status(from.descriptor).filter(|_| may_copy(from, to)) else {
        return raw::refuse(libc::EBADF);
    };
    if raw::flags(to.descriptor) & libc::O_APPEND != 0 {
        return raw::refuse(libc::EBADF);
    }
    let place =
        |end: End| end.offset().map_or_else(|| raw::position(end.descriptor), |offset| *offset);
    let rest = status.st_size.saturating_sub(place(from)).max(0);
    let len = len.min(rest as usize);
    let is_same = raw::status(to.descriptor)
        .is_some_and(|to| (to.st_dev, to.st_ino) == (status.st_dev, status.st_ino));
    if is_same && place(from).abs_diff(place(to)) < len as u64 {
        return raw::refuse(libc::EINVAL);
    }
    copy(from, to, len, false)
}
