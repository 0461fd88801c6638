//! Handles by which the kernel knows files (`name_to_handle_at`). The number of an inode is given
//! to another file once the first one is gone, on ext4 to the very next; a handle is not: it has
//! the inode's generation too.
//!
//! Considered and dropped: times of birth, as two files of one number may be born within a tick of
//! the clock, and descriptors that keep inodes from being freed, as these keep their bytes on the
//! disk, and names of removed files on NFS.

use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a handle at most (`MAX_HANDLE_SZ`).
const BYTES_MAX: usize = 128;
/// A handle to compare is enough (`AT_HANDLE_FID`): file systems such as overlayfs have no other.
const TO_COMPARE: i32 = 0x200;

#[repr(C)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; BYTES_MAX],
}

/// The handle of an open file, also of one that was opened as a path alone; `None` if the file
/// system, or the kernel, gives none.
pub(crate) fn of(file: &OwnedFd) -> Option<Vec<u8>> {
    let found = |flags| {
        let mut handle = Handle { len: BYTES_MAX as u32, kind: 0, bytes: [0; BYTES_MAX] };
        let (descriptor, mut mount) = (file.as_raw_fd(), 0);
        // SAFETY: the path ends with a zero; the structure is the kernel's, and says how many bytes
        // there is room for behind its head.
        let done = unsafe {
            let into = (&raw mut handle).cast();
            libc::name_to_handle_at(descriptor, c"".as_ptr(), into, &mut mount, flags)
        };
        let bytes = handle.bytes.get(..handle.len as usize).filter(|_| done == 0)?;
        Some([&handle.kind.to_le_bytes(), bytes].concat())
    };
    found(libc::AT_EMPTY_PATH).or_else(|| found(libc::AT_EMPTY_PATH | TO_COMPARE))
}
