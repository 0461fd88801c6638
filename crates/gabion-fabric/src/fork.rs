//! Tells whether this is still the process that made something, or a fork of it.
//!
//! A child has a copy of the memory but none of the threads; it shares file offsets, locks and
//! shared mappings. If it wrote to a ring, its parent would lose data. The kernel tells for the
//! price of a load: it clears a page in each child (`MADV_WIPEONFORK`, Linux 4.14), whatever call
//! made the child.

use crate::space::failed;
use gabion_base::Result;
use memmap2::{MmapOptions, MmapRaw};
use rustix::mm::{Advice, madvise};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

const PAGE_LEN: usize = 4096;

/// The process that made it.
pub struct Process {
    page: MmapRaw,
    /// The kernel clears the page in a child.
    is_wiped: bool,
    id: u32,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// The system's, when it has no page of memory.
    pub fn this() -> Result<Self> {
        let page = MmapOptions::new().len(PAGE_LEN).map_anon();
        let page = page.map_err(|e| failed(Path::new("a page"), "cannot be mapped", e))?;
        let page: MmapRaw = page.into();
        // SAFETY: the page is a whole private mapping of this value alone, to which nothing refers
        // but `Self::mark`. The advice changes nothing of it in this process.
        let wiped = unsafe { madvise(page.as_mut_ptr().cast(), PAGE_LEN, Advice::LinuxWipeOnFork) };
        let process = Self { page, is_wiped: wiped.is_ok(), id: std::process::id() };
        process.mark().store(1, Ordering::Relaxed);
        Ok(process)
    }

    /// Whether the calling process is that one. Costs a load, or a system call on kernels before
    /// 4.14.
    #[must_use]
    #[inline]
    pub fn is_this(&self) -> bool {
        match self.is_wiped {
            true => self.mark().load(Ordering::Relaxed) != 0,
            false => self.id == std::process::id(),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    #[inline]
    fn mark(&self) -> &AtomicU8 {
        // SAFETY: the page is mapped, writable and at least a byte long for as long as `self`
        // lives, and is only ever reached through this. The kernel clears it in a child, which has
        // no other thread by then.
        unsafe { AtomicU8::from_ptr(self.page.as_mut_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_on_all_its_threads_and_another_is_not() {
        let process = Process::this().unwrap();
        assert!(process.is_wiped, "this kernel is older than 4.14");
        assert!(process.is_this());
        assert!(std::thread::scope(|scope| scope.spawn(|| process.is_this()).join().unwrap()));
        // Like the page of a child; `gabion-db` tests real forks.
        process.mark().store(0, Ordering::Relaxed);
        assert!(!process.is_this());
        let older = Process { is_wiped: false, ..Process::this().unwrap() };
        assert!(older.is_this() && !Process { id: 1, ..older }.is_this());
    }
}
