//! The functions that take the place of the C library's, by its names. Each hands its arguments to
//! the function that does the work.
//!
//! `open`, `openat` and `fcntl` take any number of arguments in C. On Linux's 64-bit machines the
//! first six arguments of any function lie in the same registers, so these take the one more that
//! they may have; they look at it only where it was given, or the kernel does.
#![allow(non_snake_case, reason = "the C library's names")]

use crate::bytes::{self, End, Place, Source, Write, write as write_bytes};
use crate::raw::{self, Answer, forward, word};
use crate::state::mirrored;
use crate::{attributes, descriptors, exec, names, streams};
use libc::{FILE, c_char, c_int, c_uint, c_ulong, c_void, iovec, mode_t, off64_t, size_t, ssize_t};

/// Defines functions of the C library. All that they do is safe: pointers go on as addresses, which
/// the program vouches for as it would to the C library.
macro_rules! functions {
    (
        $($names:ident),+ => ($($argument:ident: $type:ty),*) -> $result:ty $body:block $($rest:tt)*
    ) => {
        functions!(@each ($($names)+) ($($argument: $type),*) -> $result $body);
        functions!($($rest)*);
    };
    (@each ($($name:ident)+) $arguments:tt -> $result:ty $body:block) => {
        $(functions!(@one $name $arguments -> $result $body);)+
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        // SAFETY: the type is the C library's function's of that name, so callers of either call
        // both rightly.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $result $body
    };
    () => {};
}

type Path = *const c_char;
const HERE: c_int = libc::AT_FDCWD;

fn int(answer: Answer) -> c_int {
    answer as c_int
}

functions! {
    open, open64, __open, __open64 => (path: Path, flags: c_int, mode: mode_t) -> c_int {
        int(names::open(HERE, path as usize, flags, mode))
    }
    __open_2, __open64_2 => (path: Path, flags: c_int) -> c_int {
        int(names::open(HERE, path as usize, flags, 0))
    }
    openat, openat64 => (at: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int {
        int(names::open(at, path as usize, flags, mode))
    }
    __openat_2, __openat64_2 => (at: c_int, path: Path, flags: c_int) -> c_int {
        int(names::open(at, path as usize, flags, 0))
    }
    creat, creat64 => (path: Path, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        int(names::open(HERE, path as usize, flags, mode))
    }
    open_by_handle_at => (mount: c_int, handle: *const c_void, flags: c_int) -> c_int {
        int(names::open_by_handle(mount, handle as usize, flags))
    }
    mkstemp => (path: *mut c_char) -> c_int { streams::temporary(path, 0, 0, c"mkstemp") }
    mkstemp64 => (path: *mut c_char) -> c_int { streams::temporary(path, 0, 0, c"mkstemp64") }
    mkostemp => (path: *mut c_char, flags: c_int) -> c_int {
        streams::temporary(path, flags, 0, c"mkostemp")
    }
    mkostemp64 => (path: *mut c_char, flags: c_int) -> c_int {
        streams::temporary(path, flags, 0, c"mkostemp64")
    }
    mkstemps => (path: *mut c_char, suffix: c_int) -> c_int {
        streams::temporary(path, suffix, 0, c"mkstemps")
    }
    mkstemps64 => (path: *mut c_char, suffix: c_int) -> c_int {
        streams::temporary(path, suffix, 0, c"mkstemps64")
    }
    mkostemps => (path: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        streams::temporary(path, suffix, flags, c"mkostemps")
    }
    mkostemps64 => (path: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        streams::temporary(path, suffix, flags, c"mkostemps64")
    }
    fopen => (path: Path, mode: Path) -> *mut FILE { streams::open(path, mode, c"fopen") }
    fopen64 => (path: Path, mode: Path) -> *mut FILE { streams::open(path, mode, c"fopen64") }
    fdopen => (descriptor: c_int, mode: Path) -> *mut FILE { streams::on(descriptor, mode) }
    freopen => (path: Path, mode: Path, stream: *mut FILE) -> *mut FILE {
        streams::open_again(path, mode, stream, c"freopen")
    }
    freopen64 => (path: Path, mode: Path, stream: *mut FILE) -> *mut FILE {
        streams::open_again(path, mode, stream, c"freopen64")
    }
}

functions! {
    write, __write => (descriptor: c_int, from: *const c_void, len: size_t) -> ssize_t {
        let call = &|| forward(libc::SYS_write, &[word(descriptor), from as usize, len]);
        if mirrored(descriptor).is_none() {
            return call();
        }
        let source = Source::Bytes { address: from as usize, len };
        let (place, append, synced) = (Place::Current, false, false);
        write_bytes(&Write { descriptor, place, source, append, synced, call })
    }
    pwrite, pwrite64, __pwrite64 => (
        descriptor: c_int,
        from: *const c_void,
        len: size_t,
        offset: off64_t
    ) -> ssize_t {
        let arguments = [word(descriptor), from as usize, len, offset as usize];
        let call = &|| forward(libc::SYS_pwrite64, &arguments);
        let place = Place::At(offset as u64);
        let source = Source::Bytes { address: from as usize, len };
        write_bytes(&Write { descriptor, place, source, append: false, synced: false, call })
    }
    writev => (descriptor: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let arguments = [word(descriptor), parts as usize, word(count)];
        let call = &|| forward(libc::SYS_writev, &arguments);
        let source = Source::Parts { address: parts as usize, count: count as usize };
        let (place, append, synced) = (Place::Current, false, false);
        write_bytes(&Write { descriptor, place, source, append, synced, call })
    }
    pwritev, pwritev64 => (
        descriptor: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off64_t
    ) -> ssize_t {
        let arguments = [word(descriptor), parts as usize, word(count), offset as usize, 0];
        let call = &|| forward(libc::SYS_pwritev, &arguments);
        let source = Source::Parts { address: parts as usize, count: count as usize };
        let place = Place::At(offset as u64);
        write_bytes(&Write { descriptor, place, source, append: false, synced: false, call })
    }
    pwritev2, pwritev64v2 => (
        descriptor: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off64_t,
        flags: c_int
    ) -> ssize_t {
        let (address, count) = (parts as usize, count as usize);
        let at = [offset as usize, 0, word(flags)];
        let arguments = [word(descriptor), address, count, at[0], at[1], at[2]];
        let call = &|| forward(libc::SYS_pwritev2, &arguments);
        let place = if offset == -1 { Place::Current } else { Place::At(offset as u64) };
        let source = Source::Parts { address, count };
        let append = flags & libc::RWF_APPEND != 0;
        let synced = flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0;
        write_bytes(&Write { descriptor, place, source, append, synced, call })
    }
    truncate, truncate64 => (path: Path, len: off64_t) -> c_int {
        int(bytes::truncate(path as usize, len))
    }
    ftruncate, ftruncate64 => (descriptor: c_int, len: off64_t) -> c_int {
        int(bytes::ftruncate(descriptor, len))
    }
    fallocate, fallocate64 => (
        descriptor: c_int,
        mode: c_int,
        offset: off64_t,
        len: off64_t
    ) -> c_int {
        int(bytes::fallocate(descriptor, mode, offset, len))
    }
    posix_fallocate, posix_fallocate64 => (
        descriptor: c_int,
        offset: off64_t,
        len: off64_t
    ) -> c_int {
        // The reason is the result, and `errno` stays.
        let kept = raw::errno();
        let failed = bytes::fallocate(descriptor, 0, offset, len) != 0;
        let reason = raw::errno();
        raw::set_errno(kept);
        if failed { reason } else { 0 }
    }
    fsync => (descriptor: c_int) -> c_int { int(bytes::sync(libc::SYS_fsync, descriptor)) }
    fdatasync => (descriptor: c_int) -> c_int { int(bytes::sync(libc::SYS_fdatasync, descriptor)) }
    syncfs => (descriptor: c_int) -> c_int {
        int(bytes::sync_all(&|| forward(libc::SYS_syncfs, &[word(descriptor)])))
    }
    sync => () -> () { bytes::sync_all(&|| forward(libc::SYS_sync, &[])); }
    sync_file_range => (
        descriptor: c_int,
        offset: off64_t,
        len: off64_t,
        flags: c_uint
    ) -> c_int {
        let arguments = [word(descriptor), offset as usize, len as usize, flags as usize];
        int(forward(libc::SYS_sync_file_range, &arguments))
    }
    sendfile, sendfile64 => (
        to: c_int,
        from: c_int,
        offset: *mut off64_t,
        len: size_t
    ) -> ssize_t {
        if mirrored(to).is_none() {
            return forward(libc::SYS_sendfile, &[word(to), word(from), offset as usize, len]);
        }
        let from = End { descriptor: from, offset: offset as usize };
        bytes::copy(from, End { descriptor: to, offset: 0 }, len, false)
    }
    copy_file_range => (
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        len: size_t,
        flags: c_uint
    ) -> ssize_t {
        let (first, second) = (from_offset as usize, to_offset as usize);
        // From a split file the kernel copies as from any.
        if mirrored(from).is_none_or(|file| file.split) && mirrored(to).is_none() {
            let arguments = [word(from), first, word(to), second, len, flags as usize];
            return forward(libc::SYS_copy_file_range, &arguments);
        }
        let from = End { descriptor: from, offset: first };
        bytes::copy_range(from, End { descriptor: to, offset: second }, len, flags)
    }
    splice => (
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        len: size_t,
        flags: c_uint
    ) -> ssize_t {
        let (first, second) = (from_offset as usize, to_offset as usize);
        if mirrored(to).is_none() {
            let arguments = [word(from), first, word(to), second, len, flags as usize];
            return forward(libc::SYS_splice, &arguments);
        }
        let from = End { descriptor: from, offset: first };
        bytes::copy(from, End { descriptor: to, offset: second }, len, true)
    }
    aio_write => (control: *const c_int) -> c_int {
        streams::aio(control, c"aio_write", None)
    }
    aio_write64 => (control: *const c_int) -> c_int {
        streams::aio(control, c"aio_write64", None)
    }
    aio_fsync => (kind: c_int, control: *const c_int) -> c_int {
        streams::aio(control, c"aio_fsync", Some(kind))
    }
    aio_fsync64 => (kind: c_int, control: *const c_int) -> c_int {
        streams::aio(control, c"aio_fsync64", Some(kind))
    }
    lio_listio => (
        mode: c_int,
        list: *const *const c_void,
        count: c_int,
        event: *const c_void
    ) -> c_int {
        streams::aio_list(mode, list, count, event, c"lio_listio")
    }
    lio_listio64 => (
        mode: c_int,
        list: *const *const c_void,
        count: c_int,
        event: *const c_void
    ) -> c_int {
        streams::aio_list(mode, list, count, event, c"lio_listio64")
    }
    ioctl => (descriptor: c_int, request: c_ulong, argument: usize) -> c_int {
        // Clones of ranges would be changes that nobody sees; programs copy instead.
        let clones = [libc::FICLONE, libc::FICLONERANGE].contains(&request);
        if clones && mirrored(descriptor).is_some() {
            return int(raw::refuse(libc::EOPNOTSUPP));
        }
        int(forward(libc::SYS_ioctl, &[word(descriptor), request as usize, argument]))
    }
}

functions! {
    rename => (old: Path, new: Path) -> c_int {
        int(names::rename([(HERE, old as usize), (HERE, new as usize)], 0))
    }
    renameat => (from: c_int, old: Path, to: c_int, new: Path) -> c_int {
        int(names::rename([(from, old as usize), (to, new as usize)], 0))
    }
    renameat2 => (from: c_int, old: Path, to: c_int, new: Path, flags: c_uint) -> c_int {
        int(names::rename([(from, old as usize), (to, new as usize)], flags))
    }
    link => (old: Path, new: Path) -> c_int {
        int(names::link([(HERE, old as usize), (HERE, new as usize)], 0))
    }
    linkat => (from: c_int, old: Path, to: c_int, new: Path, flags: c_int) -> c_int {
        int(names::link([(from, old as usize), (to, new as usize)], flags))
    }
    unlink => (path: Path) -> c_int { int(names::unlink(HERE, path as usize, 0)) }
    unlinkat => (at: c_int, path: Path, flags: c_int) -> c_int {
        int(names::unlink(at, path as usize, flags))
    }
    remove => (path: Path) -> c_int { int(names::remove(path as usize)) }
}

functions! {
    stat, stat64 => (path: Path, into: *mut c_void) -> c_int {
        int(attributes::stat(HERE, path as usize, into as usize, 0))
    }
    lstat, lstat64 => (path: Path, into: *mut c_void) -> c_int {
        int(attributes::stat(HERE, path as usize, into as usize, libc::AT_SYMLINK_NOFOLLOW))
    }
    fstat, fstat64 => (descriptor: c_int, into: *mut c_void) -> c_int {
        int(attributes::fstat(descriptor, into as usize))
    }
    fstatat, fstatat64 => (at: c_int, path: Path, into: *mut c_void, flags: c_int) -> c_int {
        int(attributes::stat(at, path as usize, into as usize, flags))
    }
    __xstat, __xstat64 => (_version: c_int, path: Path, into: *mut c_void) -> c_int {
        int(attributes::stat(HERE, path as usize, into as usize, 0))
    }
    __lxstat, __lxstat64 => (_version: c_int, path: Path, into: *mut c_void) -> c_int {
        int(attributes::stat(HERE, path as usize, into as usize, libc::AT_SYMLINK_NOFOLLOW))
    }
    __fxstat, __fxstat64 => (_version: c_int, descriptor: c_int, into: *mut c_void) -> c_int {
        int(attributes::fstat(descriptor, into as usize))
    }
    __fxstatat, __fxstatat64 => (
        _version: c_int,
        at: c_int,
        path: Path,
        into: *mut c_void,
        flags: c_int
    ) -> c_int {
        int(attributes::stat(at, path as usize, into as usize, flags))
    }
    statx => (
        at: c_int,
        path: Path,
        flags: c_int,
        mask: c_uint,
        into: *mut c_void
    ) -> c_int {
        let arguments = [word(at), path as usize, word(flags), mask as usize, into as usize];
        int(attributes::statx(arguments))
    }
    chmod => (path: Path, mode: mode_t) -> c_int {
        int(attributes::chmod(HERE, path as usize, mode))
    }
    fchmod => (descriptor: c_int, mode: mode_t) -> c_int {
        let call = &|| forward(libc::SYS_fchmod, &[word(descriptor), mode as usize]);
        int(attributes::of_descriptor(descriptor, call))
    }
    fchmodat => (at: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int {
        if flags != 0 {
            return int(raw::refuse(libc::ENOTSUP));
        }
        int(attributes::chmod(at, path as usize, mode))
    }
    chown => (path: Path, user: c_uint, group: c_uint) -> c_int {
        int(attributes::chown((HERE, path as usize), user, group, 0))
    }
    lchown => (path: Path, user: c_uint, group: c_uint) -> c_int {
        int(attributes::chown((HERE, path as usize), user, group, libc::AT_SYMLINK_NOFOLLOW))
    }
    fchown => (descriptor: c_int, user: c_uint, group: c_uint) -> c_int {
        let arguments = [word(descriptor), user as usize, group as usize];
        int(attributes::of_descriptor(descriptor, &|| forward(libc::SYS_fchown, &arguments)))
    }
    fchownat => (at: c_int, path: Path, user: c_uint, group: c_uint, flags: c_int) -> c_int {
        int(attributes::chown((at, path as usize), user, group, flags))
    }
    utimensat => (at: c_int, path: Path, times: *const c_void, flags: c_int) -> c_int {
        int(attributes::set_times(at, path as usize, times as usize, flags))
    }
    utimes => (path: Path, times: *const [libc::timeval; 2]) -> c_int {
        int(attributes::set_times_in_microseconds(path as usize, times as usize, 0))
    }
    lutimes => (path: Path, times: *const [libc::timeval; 2]) -> c_int {
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        int(attributes::set_times_in_microseconds(path as usize, times as usize, flags))
    }
    utime => (path: Path, times: *const [i64; 2]) -> c_int {
        int(attributes::set_times_in_seconds(path as usize, times as usize))
    }
}

functions! {
    close, __close => (descriptor: c_int) -> c_int { int(descriptors::close(descriptor)) }
    close_range => (first: c_uint, last: c_uint, flags: c_int) -> c_int {
        int(descriptors::close_range(first, last, flags))
    }
    closefrom => (first: c_int) -> () {
        descriptors::close_range(first.max(0) as u32, u32::MAX, 0);
    }
    dup => (descriptor: c_int) -> c_int { int(descriptors::dup(descriptor)) }
    dup2, __dup2 => (from: c_int, to: c_int) -> c_int { int(descriptors::dup2(from, to)) }
    dup3 => (from: c_int, to: c_int, flags: c_int) -> c_int {
        int(descriptors::dup3(from, to, flags))
    }
    fcntl, fcntl64, __fcntl => (descriptor: c_int, command: c_int, argument: usize) -> c_int {
        int(descriptors::fcntl(descriptor, command, argument))
    }
    mmap, mmap64 => (
        address: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: off64_t
    ) -> *mut c_void {
        let first = [address as usize, len, word(protection)];
        let [address, len, protection] = first;
        let rest = [word(flags), word(descriptor), offset as usize];
        let [flags, descriptor, offset] = rest;
        descriptors::mmap([address, len, protection, flags, descriptor, offset]) as *mut c_void
    }
}

type Strings = *const *const c_char;

functions! {
    execve => (path: Path, arguments: Strings, variables: usize) -> c_int {
        int(exec::execve(path, arguments, variables))
    }
    execv => (path: Path, arguments: Strings) -> c_int {
        int(exec::execve(path, arguments, exec::environment()))
    }
    execvp => (name: Path, arguments: Strings) -> c_int {
        exec::search(name, arguments, exec::environment())
    }
    execvpe => (name: Path, arguments: Strings, variables: usize) -> c_int {
        exec::search(name, arguments, variables)
    }
    fexecve => (descriptor: c_int, arguments: Strings, variables: usize) -> c_int {
        exec::look_at_open(descriptor);
        let path = c"".as_ptr() as usize;
        let flags = word(libc::AT_EMPTY_PATH);
        let all = [word(descriptor), path, arguments as usize, variables, flags];
        int(forward(libc::SYS_execveat, &all))
    }
    execveat => (
        at: c_int,
        path: Path,
        arguments: Strings,
        variables: usize,
        flags: c_int
    ) -> c_int {
        match flags & libc::AT_EMPTY_PATH {
            0 => exec::look(at, path as usize),
            _ => exec::look_at_open(at),
        }
        let all = [word(at), path as usize, arguments as usize, variables, word(flags)];
        int(forward(libc::SYS_execveat, &all))
    }
    posix_spawn => (
        process: *mut c_int,
        path: Path,
        actions: usize,
        attributes: usize,
        arguments: Strings,
        variables: usize
    ) -> c_int {
        exec::look(HERE, path as usize);
        let actions = [actions, attributes];
        exec::spawn(c"posix_spawn", process, path, actions, arguments, variables)
    }
    posix_spawnp => (
        process: *mut c_int,
        name: Path,
        actions: usize,
        attributes: usize,
        arguments: Strings,
        variables: usize
    ) -> c_int {
        exec::look_for(name);
        let actions = [actions, attributes];
        exec::spawn(c"posix_spawnp", process, name, actions, arguments, variables)
    }
}
