//! Keeps freed buffers in the process.
//!
//! By default glibc gives each freed buffer of a transfer's size back to the system, and the next one
//! costs a system call and a page fault per 4 KiB again. On a busy machine an aligned, zeroed buffer
//! cost 0.40 µs per kB of 1 MiB and 0.52 of 16 MiB; with memory that the process keeps, 0.07 and 0.12.
//! An SST in the making and every read of a medium need such a buffer. So do the stores of RubbleDB's baseline, whose
//! programs ask for the same.

/// Allocations up to this many bytes come from memory that the process keeps: the largest value that
/// glibc takes, and enough for an SST in the making.
const KEPT_LEN_MAX: i32 = 32 << 20;
/// Free memory at the end of a heap beyond this many bytes is still given back.
const SLACK_LEN_MAX: i32 = 128 << 20;

/// Tells the allocator to keep what is freed, up to a slack of 128 MiB per heap. To be called once,
/// at the start of a process that moves data; resident memory then stays near its peak. Does nothing
/// where the allocator is not glibc's. Returns whether it took effect.
pub fn keep_freed_memory() -> bool {
    keep(KEPT_LEN_MAX, SLACK_LEN_MAX)
}

/// The same for a process that has few megabytes of its own: buffers of 1 MiB at most are kept, and
/// a slack of 4 MiB per heap.
pub fn keep_freed_transfers() -> bool {
    keep(1 << 20, 4 << 20)
}

fn keep(kept_len_max: i32, slack_len_max: i32) -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `mallopt` takes two numbers, touches nothing but the allocator's own parameters
        // and takes its lock for that, so it may be called at any time from any thread.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, kept_len_max) == 1
                && libc::mallopt(libc::M_TRIM_THRESHOLD, slack_len_max) == 1
        }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = (kept_len_max, slack_len_max);
        false
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_come_from_memory_that_the_process_keeps() {
        // What is mapped for one buffer alone begins behind the two words in which glibc keeps its size.
        let is_mapped =
            |buffer: &Vec<u8>| buffer.as_ptr() as usize % 4096 == 2 * size_of::<usize>();
        let buffers = || [24, 25, 26, 27].map(|mib| Vec::<u8>::with_capacity(mib << 20));
        // Kept, as the allocator learns from what is given back.
        let before = buffers();
        assert!(before.iter().all(is_mapped));
        assert!(keep_freed_memory());
        assert!(!buffers().iter().all(is_mapped));
    }
}
