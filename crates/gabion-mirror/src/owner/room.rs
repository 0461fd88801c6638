//! Memory of the store for mirrors that grow: it is asked for before a mirror is longer.
//!
//! ```text
//!   process: end > capacity of the slot? ─► let the lock go ─► Reserve ─► owner ─► store
//!              ▲                                                            │
//!              └────── again, under the lock ◄── capacity of the slot ◄─────┤
//!                                                                 ENOSPC ◄──┘ after a trim
//! ```
//!
//! Files that were cut keep their memory as long as nobody else wants it. Then the owner, under the
//! lock, so that no process makes a file longer meanwhile, has all of them give up what they do not
//! need.

use super::mirrors::Mirror;
use super::{Core, Errno, MEND_EVERY, State, errno};
use crate::files::FileId;
use crate::shared::state;
use crate::wire::{Reply, Request};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Core {
    /// Handles a request, once more if there was no memory for it and files have some to give up.
    pub(super) fn with_room<T>(&self, handle: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let mut handled = handle();
        if self.has_no_room(&handled) && self.trim()? {
            self.state().refusal = None;
            handled = handle();
        }
        if self.has_no_room(&handled) {
            self.state().tell();
        }
        handled
    }

    fn has_no_room<T>(&self, handled: &Result<T, Errno>) -> bool {
        matches!(handled, Err(libc::ENOSPC)) && self.state().refusal.is_some()
    }

    fn trim(&self) -> Result<bool, Errno> {
        let _guard = self.shared.lock();
        let mut state = self.state();
        state.drain();
        self.shared.check()?;
        state.trim()
    }
}

impl State {
    /// Makes sure that a file may have `value` bytes.
    pub(super) fn reserve(&mut self, request: &Request) -> Result<Reply, Errno> {
        loop {
            self.shared.check()?;
            let file = self.mirror(request)?.file;
            match self.store.reserve(file, request.value) {
                Ok(Some(capacity)) => {
                    self.set_capacity(request.slot, capacity);
                    self.is_full_told = false;
                    return Ok(Reply::default());
                }
                Ok(None) => {
                    self.drain();
                    self.shared.mend();
                    std::thread::sleep(MEND_EVERY);
                }
                Err(error) if is_refusal(&error) => return Err(self.refused(error)),
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// The store has no room, and has changed nothing.
    pub(super) fn refused(&mut self, error: io::Error) -> Errno {
        let reason = errno(&error);
        self.refusal = Some(error).filter(|_| reason == libc::ENOSPC);
        reason
    }

    /// Says why there is no room, once until there is again.
    fn tell(&mut self) {
        let Some(error) = self.refusal.take() else { return };
        if !std::mem::replace(&mut self.is_full_told, true) {
            eprintln!("gabion ncl: {error}; what needs more fails with ENOSPC until there is");
        }
    }

    fn set_capacity(&self, number: u32, capacity: u64) {
        if let Some(slot) = self.shared.slot(number) {
            slot.capacity.store(capacity, Relaxed);
        }
    }

    /// All files give up the memory that they do not need. The caller has the lock of the shared
    /// memory, and the ring is empty.
    fn trim(&mut self) -> Result<bool, Errno> {
        let is_live = |number: usize| {
            let slot = self.shared.slot(number as u32);
            slot.is_some_and(|slot| slot.state.load(Acquire) == state::LIVE)
        };
        let mirrors = self.mirrors.iter().enumerate();
        let live = mirrors.filter(|(number, _)| is_live(*number));
        let files: Vec<(u32, FileId, u64)> = live
            .filter_map(|(number, mirror)| {
                let mirror = mirror.as_ref()?;
                Some((number as u32, mirror.file, Mirror::len(mirror)?))
            })
            .collect();
        let lens: Vec<(FileId, u64)> = files.iter().map(|(_, file, len)| (*file, *len)).collect();
        let trimmed = self.store.trim(&lens);
        if !self.stored(trimmed)? {
            return Ok(false);
        }
        for (number, file, len) in files {
            // Without an answer a process asks.
            let reserved = self.store.reserve(file, len);
            self.set_capacity(number, reserved.ok().flatten().unwrap_or(0));
        }
        Ok(true)
    }
}

/// Whether the store goes on after this error.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge)
}
