//! How a program is started so that the interposer is in it, and in all that it starts.

use crate::wire::ENVIRONMENT;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// A command that runs the program with the interposer and without the kernel's asynchronous I/O:
/// what a program writes through a ring passes no function that could be seen. `io_uring_setup` and
/// `io_setup` give `ENOSYS`, as on a kernel without them, and programs write as they do there.
///
/// `directory` is that of the owner's socket.
#[must_use]
pub fn command(program: &Path, interposer: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    let mut preload = OsString::from(interposer);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload).env(ENVIRONMENT, directory);
    let former = FORMER.get().copied();
    // SAFETY: between fork and exec the closure makes a few system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            former.map_or(Ok(()), |former| set_limits(&former))?;
            refuse_io_uring()
        })
    };
    command
}

/// Resources of which an owner needs more than programs usually may have: an open file for each
/// mirror and each region at a peer, and files as long as any region.
const RESOURCES: [libc::__rlimit_resource_t; 2] = [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE];

type Limits = [libc::rlimit; RESOURCES.len()];

/// The limits that this process had before it raised its own.
static FORMER: OnceLock<Limits> = OnceLock::new();

/// Raises this process's limits of open files and of lengths of files as far as it may. A program
/// that [`command`] starts afterwards has those of before.
///
/// # Errors
/// The kernel's.
pub fn raise_limits() -> io::Result<()> {
    let mut limits: Limits = [libc::rlimit { rlim_cur: 0, rlim_max: 0 }; RESOURCES.len()];
    for (resource, limit) in RESOURCES.iter().zip(&mut limits) {
        // SAFETY: the kernel writes one limit, for which there is room.
        if unsafe { libc::getrlimit(*resource, limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    FORMER.get_or_init(|| limits);
    set_limits(&limits.map(|limit| libc::rlimit { rlim_cur: limit.rlim_max, ..limit }))
}

fn set_limits(limits: &Limits) -> io::Result<()> {
    for (resource, limit) in RESOURCES.iter().zip(limits) {
        // SAFETY: the kernel reads one limit.
        if unsafe { libc::setrlimit(*resource, limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Offsets in the filter's input, `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// Bit of the numbers of x32's system calls.
const X32: u32 = 0x4000_0000;

fn refuse_io_uring() -> io::Result<()> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |k, jt, jf| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
    let give = |k| op(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let (ring, queue) = (libc::SYS_io_uring_setup as u32, libc::SYS_io_setup as u32);
    let mut filter = [
        load(ARCHITECTURE_AT),
        // Calls of another architecture, as of 32-bit code, have other numbers: none is of use.
        equal(ARCHITECTURE, 1, 0),
        give(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        load(NUMBER_AT),
        equal(ring, 3, 0),
        equal(ring | X32, 2, 0),
        equal(queue, 1, 0),
        equal(queue | X32, 0, 1),
        give(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls concern this process alone; the filter lives until the second returns.
    let done = unsafe {
        // Asked for by the kernel of whoever is not root: no program gains rights below this one.
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}
