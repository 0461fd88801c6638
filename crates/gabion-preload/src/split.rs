//! Split files: the descriptor is the file's own, and what small writes change is in the journal
//! too. The rules are in `gabion_mirror::split`.
//!
//! A descriptor's word may be of a slot that its file has no more, as after a renaming: then its
//! file is looked for by its inode, and the owner asked. Until there is a slot again, changes are
//! those of the file system alone, and syncs its own.

use crate::ask::{Asked, ask};
use crate::bytes::{self, Locked, Place, Source, Write};
use crate::direct;
use crate::names;
use crate::raw::{self, Answer, SignalsHeld};
use crate::state::{self, Mirrored, Ready, ready};
use gabion_mirror::journal::{self, FRAME, Frame, frame_len};
use gabion_mirror::shared::{Guard, Slot, state::LIVE};
use gabion_mirror::split::Room;
use gabion_mirror::wire::{Operation, PATH_MAX, Request, WAS_SPLIT, kind};
use libc::c_int;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// The address of the journal in this process; 0: it is not mapped.
static JOURNAL: AtomicUsize = AtomicUsize::new(0);

/// A split file that has its slot.
#[derive(Clone, Copy)]
struct Split {
    number: u32,
    generation: u32,
    slot: &'static Slot,
}

impl Split {
    fn new(ready: &Ready, number: u32, generation: u32) -> Option<Self> {
        let split = Self { number, generation, slot: ready.shared.slot(number)? };
        (split.is_current() && split.slot.is_split()).then_some(split)
    }

    /// Whether the slot is the file's still.
    fn is_current(&self) -> bool {
        let is_it = self.slot.generation.load(Acquire) == self.generation;
        is_it && self.slot.state.load(Acquire) == LIVE
    }

    /// The file of a descriptor, by its word or by its inode.
    fn of(ready: &Ready, file: Mirrored, status: &libc::stat) -> Option<Self> {
        let (device, inode) = (status.st_dev, status.st_ino);
        let is_it = |split: &Self| {
            split.slot.inode.load(Relaxed) == inode && split.slot.device.load(Relaxed) == device
        };
        Self::new(ready, file.slot, file.generation).filter(is_it).or_else(|| {
            let (number, generation) = ready.shared.find_split(device, inode)?;
            Self::new(ready, number, generation)
        })
    }
}

/// Notes what the owner says of a file: its descriptor's is a split one.
pub(crate) fn adopt(descriptor: c_int, slot: u32, generation: u32) -> Result<(), c_int> {
    if descriptor as usize >= state::DESCRIPTORS {
        return Err(libc::EMFILE);
    }
    let file = Mirrored { slot, generation, synced: false, split: true };
    state::set(descriptor, Some(file));
    Ok(())
}

/// Whether the path of a descriptor may be that of a split file.
pub(crate) fn may_match(ready: &Ready, descriptor: c_int) -> bool {
    let mut path = [0; PATH_MAX];
    let len = raw::link(raw::DescriptorPath::new(descriptor).bytes(), &mut path);
    len.is_some_and(|len| ready.may_match(&path[..len]))
}

/// Sees to it that a file has its slot, if it can have one.
fn find(ready: &Ready, descriptor: c_int, file: Mirrored) {
    if Split::new(ready, file.slot, file.generation).is_some() {
        return;
    }
    let Some(status) = raw::status(descriptor).filter(raw::is_regular) else {
        return;
    };
    if let Some(Split { number: slot, generation, .. }) = Split::of(ready, file, &status) {
        state::set(descriptor, Some(Mirrored { slot, generation, ..file }));
        return;
    }
    // Without a name nobody else can open it, and none of it will be there after a crash.
    if status.st_nlink == 0 {
        state::set(descriptor, None);
        return;
    }
    let kept = raw::errno();
    let flags = raw::flags(descriptor) & libc::O_ACCMODE;
    if let Ok(asked) = names::ask_of(ready, descriptor, flags, &status, WAS_SPLIT) {
        let (slot, generation) = (asked.reply.slot, asked.reply.generation);
        let found = Mirrored { slot, generation, ..file };
        // If it is not, it never is again in this run: the owner has noted it.
        state::set(descriptor, (asked.reply.kind == kind::SPLIT).then_some(found));
    }
    raw::set_errno(kept);
}

/// Maps the journal, once in a process.
fn map_journal(ready: &Ready) -> Option<usize> {
    let mapped = JOURNAL.load(Acquire);
    // A child of `vfork` has its parent's memory.
    if mapped != 0 || !state::is_own() {
        return (mapped != 0).then_some(mapped);
    }
    let (.., len) = ready.shared.journal_file();
    let kept = raw::errno();
    let request = Request::new(Operation::Journal);
    let asked = Asked::new(ready.socket(), request, [&[], &[]], &mut []);
    let memory = asked.and_then(|asked| asked.descriptor(true));
    let mapped = memory.ok().and_then(|memory| {
        let mapped = direct::map(memory, len as usize);
        raw::close(memory);
        mapped
    });
    raw::set_errno(kept);
    // Two threads may map it at once. Both mappings are good, and one of them is never used again.
    JOURNAL.store(mapped?, Release);
    mapped
}

/// The journal, as the mirrored file that it is.
fn journal_file(ready: &Ready) -> Mirrored {
    let (slot, generation, _) = ready.shared.journal_file();
    Mirrored { slot, generation, synced: false, split: false }
}

fn empty_journal(ready: &Ready) -> Result<(), c_int> {
    ask(ready, Request::new(Operation::EmptyJournal), [&[], &[]]).map(|_| ())
}

/// The lock, and the file that is changed under it.
struct Change<'a> {
    guard: Guard,
    ready: &'a Ready,
    split: Option<Split>,
    status: libc::stat,
}

impl Change<'_> {
    /// Whether frames lie in a range, which is about to be changed in the file system alone.
    fn has_frames_in(&self, from: u64, to: u64) -> bool {
        self.split.is_some_and(|split| split.slot.has_frames_in(from, to))
    }

    fn begin(&mut self) {
        if let Some(split) = self.split {
            self.guard.begin(split.number);
        }
    }

    /// The file was changed in the file system alone. One that has no slot yet gets it under the
    /// lock, with an unsynced change.
    fn changed(&mut self) {
        if let Some(split) = self.split {
            self.guard.changed(split.slot);
        }
    }

    fn end(mut self) {
        if self.split.is_some() {
            self.guard.end();
        }
    }

    /// Puts bytes that the file has got into the journal.
    fn frame(
        &mut self,
        split: Split,
        room: Room,
        place: u64,
        source: Source,
        len: usize,
    ) -> Result<(), c_int> {
        let address = JOURNAL.load(Acquire) + room.at as usize;
        let mut at = address + FRAME;
        source.each(len, &mut |bytes| {
            raw::put(at, bytes);
            at += bytes.len();
        });
        raw::put(at, &[0; 7][..len.next_multiple_of(8) - len]);
        let file = journal::file(split.number, split.generation);
        let frame = Frame { salt: room.salt, file, offset: place, len: len as u32 };
        // Read from there, as the program's own bytes may be others by now.
        let head = frame.encode(raw::memory(address + FRAME, len));
        raw::put(address, &head);
        let whole = frame_len(len as u64) as usize;
        let (file, status) = (journal_file(self.ready), self.status);
        let source = Source::Bytes { address, len: whole };
        Locked { guard: &mut self.guard, file, status, lacks: None }
            .note(room.at, source, whole)?;
        self.guard.framed(split.slot, room, place, len as u64);
        Ok(())
    }
}

/// A write of the program's.
pub(crate) fn write(file: Mirrored, write: &Write<'_>) -> Answer {
    let Some(ready) = ready() else {
        return (write.call)();
    };
    if let Err(reason) = ready.shared.check() {
        return raw::refuse(reason);
    }
    loop {
        match try_write(ready, file, write) {
            Ok(Some(answer)) => {
                let waits = answer >= 0 && (ready.shared.every_write() || write.synced);
                let call = || raw::forward(libc::SYS_fdatasync, &[raw::word(write.descriptor)]);
                return match waits && sync(write.descriptor, file, &call) < 0 {
                    true => -1,
                    false => answer,
                };
            }
            // Frames lie where it writes.
            Ok(None) => match empty_journal(ready) {
                Ok(()) => {}
                Err(reason) => return raw::refuse(reason),
            },
            Err(reason) => return raw::refuse(reason),
        }
    }
}

/// The write, unless the journal has to be emptied before.
fn try_write(ready: &Ready, file: Mirrored, write: &Write<'_>) -> Result<Option<Answer>, c_int> {
    let descriptor = write.descriptor;
    find(ready, descriptor, file);
    let is_mapped = map_journal(ready).is_some();
    let signals = SignalsHeld::new();
    let Some(mut change) = lock(ready, descriptor, file) else {
        return Ok(Some((write.call)()));
    };
    let flags = raw::flags(descriptor);
    let append = write.append || flags & libc::O_APPEND != 0;
    let place = match write.place {
        _ if append => change.status.st_size as u64,
        Place::At(offset) => offset,
        Place::Current => raw::position(descriptor) as u64,
    };
    // The kernel syncs those itself.
    let is_synced = write.synced || flags & libc::O_DSYNC != 0;
    let split = change.split.filter(|_| is_mapped && !is_synced);
    let asked = write.source.len();
    let room = split.zip(asked).and_then(|(split, len)| change.guard.room(split.slot, len));
    let end = asked.map_or(u64::MAX, |len| place.saturating_add(len));
    if room.is_none() && change.has_frames_in(place, end) {
        return Ok(None);
    }
    change.begin();
    let written = (write.call)();
    let reason = raw::errno();
    let mut noted = Ok(());
    match written {
        1.. => noted = note(&mut change, split, write, (place, append), written as usize),
        0 => {}
        // One that failed may have changed some of it.
        _ => change.changed(),
    }
    let is_uncertain = change.split.is_some_and(|split| split.slot.is_uncertain());
    change.end();
    noted?;
    // Nobody need sync what the kernel has synced.
    if is_synced && is_uncertain {
        drop(signals);
        empty_journal(ready)?;
    }
    raw::set_errno(reason);
    Ok(Some(written))
}

/// Notes a write that the kernel has made: as a frame, or a change of the file system's alone.
fn note(
    change: &mut Change<'_>,
    split: Option<Split>,
    write: &Write<'_>,
    (place, append): (u64, bool),
    written: usize,
) -> Result<(), c_int> {
    let end = place + written as u64;
    let moved = write.place == Place::Current && !append;
    if moved && raw::position(write.descriptor) as u64 != end {
        // Another process moved the offset amid this, by a read, which takes no lock.
        change.split.into_iter().for_each(|split| change.guard.changed_somewhere(split.slot));
        return Ok(());
    }
    let room = split
        .and_then(|split| change.guard.room(split.slot, written as u64).map(|room| (split, room)));
    match room {
        Some((split, room)) => change.frame(split, room, place, write.source, written),
        None => {
            change.changed();
            Ok(())
        }
    }
}

/// The lock, and what is known of a descriptor's file under it.
fn lock(ready: &Ready, descriptor: c_int, file: Mirrored) -> Option<Change<'_>> {
    let guard = ready.shared.lock();
    let status = raw::status(descriptor).filter(raw::is_regular);
    let Some(status) = status else {
        // Closed, and opened anew, behind this library's back.
        state::set(descriptor, None);
        return None;
    };
    // The word may have become that of another slot.
    let file = state::mirrored(descriptor).unwrap_or(file);
    Some(Change { guard, ready, split: Split::of(ready, file, &status), status })
}

/// A change of the file's length, or of bytes from an offset on, in the file system alone.
pub(crate) fn change(
    descriptor: c_int,
    file: Mirrored,
    from: u64,
    call: &dyn Fn() -> Answer,
) -> Answer {
    let Some(ready) = ready() else {
        return call();
    };
    find(ready, descriptor, file);
    let locked = || lock(ready, descriptor, file);
    changed(ready, &locked, from, call)
}

/// The same of a file by its path.
pub(crate) fn change_at(
    ready: &Ready,
    path: usize,
    from: u64,
    call: &dyn Fn() -> Answer,
) -> Answer {
    let locked = || {
        let guard = ready.shared.lock();
        let status = raw::status_at(libc::AT_FDCWD, path, 0)?;
        let found = ready.shared.find_split(status.st_dev, status.st_ino);
        let split = found.and_then(|(slot, generation)| Split::new(ready, slot, generation));
        Some(Change { guard, ready, split, status })
    };
    changed(ready, &locked, from, call)
}

fn changed<'a>(
    ready: &Ready,
    locked: &dyn Fn() -> Option<Change<'a>>,
    from: u64,
    call: &dyn Fn() -> Answer,
) -> Answer {
    if let Err(reason) = ready.shared.check() {
        return raw::refuse(reason);
    }
    loop {
        let signals = SignalsHeld::new();
        let Some(mut change) = locked() else {
            return call();
        };
        if !change.has_frames_in(from, u64::MAX) {
            change.begin();
            let answer = call();
            let reason = raw::errno();
            // One that failed may have done some of it.
            change.changed();
            change.end();
            raw::set_errno(reason);
            return answer;
        }
        drop((change, signals));
        if let Err(reason) = empty_journal(ready) {
            return raw::refuse(reason);
        }
    }
}

/// `fsync` and `fdatasync`: waits for the frames, or is the file system's own.
pub(crate) fn sync(descriptor: c_int, file: Mirrored, call: &dyn Fn() -> Answer) -> Answer {
    let Some(ready) = ready() else {
        return call();
    };
    if let Err(reason) = ready.shared.check() {
        return raw::refuse(reason);
    }
    find(ready, descriptor, file);
    let file = state::mirrored(descriptor).unwrap_or(file);
    let status = raw::status(descriptor);
    let Some(split) = status.and_then(|status| Split::of(ready, file, &status)) else {
        return call();
    };
    bytes::wait_for_change(ready);
    let head = ready.shared.head();
    let unsynced = split.slot.unsynced();
    if !split.is_current() {
        // The file left since, and those are another one's changes.
        return call();
    }
    if let Some(written) = unsynced {
        let is_full = ready.shared.is_journal_full(split.slot.split_below());
        if (is_full || split.slot.is_uncertain())
            && let Err(reason) = empty_journal(ready)
        {
            return raw::refuse(reason);
        }
        let answer = call();
        if answer != 0 {
            return answer;
        }
        split.slot.note_synced(written);
    }
    // Beside the file system's own, too: a start would put older frames over bytes whose frame the
    // peers do not have.
    bytes::wait_for(ready, journal_file(ready), head).map_or_else(raw::refuse, |()| 0)
}

/// The file system has synced all files. Frames of uncertain ones must go, as they may be older.
pub(crate) fn synced_all(ready: &Ready) -> Result<(), c_int> {
    if ready.shared.is_any_uncertain() { empty_journal(ready) } else { Ok(()) }
}
