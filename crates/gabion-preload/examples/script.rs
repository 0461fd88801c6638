//! A program that makes the calls that a script says, through the C library, and prints their
//! results: what the differential runner runs with and without the interposer.
//!
//! ```text
//! script FILE      the calls of a file, one a line: `open 0 a.log 66 644`, `write 0 7 100`, …
//! ```
//!
//! Descriptors and streams have registers, 0 to 7. `fork N` has a child make the next N calls, and
//! waits for it. A result is the call's value or `errno`, and what the kernel wrote back.
#![allow(clippy::disallowed_methods, reason = "a program of tests that makes system calls")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each is one call, with memory of its own")]
#![allow(unsafe_op_in_unsafe_fn, reason = "as above")]

#[path = "script/bytes.rs"]
mod bytes;
#[path = "script/rare.rs"]
mod rare;

use bytes::bytes;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::ptr::null_mut;

struct Machine {
    descriptors: [c_int; 8],
    streams: [*mut libc::FILE; 8],
    lines: Vec<String>,
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: script FILE");
    let text = std::fs::read_to_string(&path).expect("the script");
    let lines = text.lines().map(str::to_owned).collect();
    let mut machine = Machine { descriptors: [-1; 8], streams: [null_mut(); 8], lines };
    machine.run(0, machine.lines.len());
}

fn say(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let wrote = unsafe { libc::write(1, rest.as_ptr().cast(), rest.len()) };
        assert!(wrote > 0, "standard output");
        rest = &rest[wrote as usize..];
    }
}

/// The value, or the reason.
fn result(value: i64) -> String {
    if value >= 0 {
        return value.to_string();
    }
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(String::new(), |errno| format!("E{errno}"))
}

fn name(text: &str) -> CString {
    CString::new(text).expect("no zero in names")
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn told(status: &libc::stat) -> String {
    let mtime = if status.st_mtime < 1_000_000 { status.st_mtime } else { -1 };
    let directory = status.st_mode & libc::S_IFMT == libc::S_IFDIR;
    // The length of a directory is its file system's business.
    let size = if directory { 0 } else { status.st_size };
    format!(
        "mode {:o} links {} size {size} owner {}:{} mtime {mtime}",
        status.st_mode, status.st_nlink, status.st_uid, status.st_gid
    )
}

impl Machine {
    fn run(&mut self, from: usize, to: usize) {
        let mut at = from;
        while at < to {
            let line = self.lines[at].clone();
            let words: Vec<&str> = line.split(' ').collect();
            at += 1;
            if words[0] == "fork" {
                let count: usize = words[1].parse().expect("a number of calls");
                let end = (at + count).min(to);
                self.fork(at, end);
                at = end;
                continue;
            }
            let said = unsafe { self.call(&words) };
            say(&format!("{at} {line}: {said}\n"));
        }
    }

    fn fork(&mut self, from: usize, to: usize) {
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.run(from, to);
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        say(&format!("child: {status}\n"));
    }

    unsafe fn call(&mut self, words: &[&str]) -> String {
        let number = |at: usize| words[at].parse::<i64>().expect("a number");
        match words[0] {
            "open" | "handle" | "close" | "dup" | "dup2" | "getfl" | "setfl" | "flock" | "lock"
            | "lowest" => self.call_descriptor(words, &number),
            "write" | "pwrite" | "writev" | "pwritev" | "ftruncate" | "fallocate" | "fsync"
            | "fdatasync" | "lio" | "sendfile" | "copy" | "pallocate" | "splice" | "append2" => {
                self.call_change(words, &number)
            }
            "read" | "pread" | "seek" | "fstat" | "blocks" | "map" | "mapshared" | "fstatx" => {
                self.call_read(words, &number)
            }
            "fopen" | "fdopen" | "fwrite" | "fprintf" | "fflush" | "fread" | "fseek" | "ftell"
            | "fclose" | "fileno" => self.call_stream(words, &number),
            "exec" => rare::exec(words[1], words[2]),
            "linkfd" => link_descriptor(self.descriptors[number(1) as usize], words[2]),
            _ => call_path(words, &number),
        }
    }

    unsafe fn call_descriptor(&mut self, words: &[&str], number: &dyn Fn(usize) -> i64) -> String {
        let at = number(1) as usize;
        let descriptor = self.descriptors[at];
        match words[0] {
            "open" | "handle" => {
                let (path, flags) = (name(words[2]), number(3) as c_int);
                let opened = match words.get(4) {
                    Some(mode) => {
                        let mode = u32::from_str_radix(mode, 8).expect("a mode");
                        libc::open(path.as_ptr(), flags, mode)
                    }
                    None => rare::open_by_handle(words[2], flags),
                };
                if self.descriptors[at] >= 0 && opened >= 0 {
                    libc::close(self.descriptors[at]);
                }
                if opened >= 0 {
                    self.descriptors[at] = opened;
                }
                result(opened.into())
            }
            "close" => {
                self.descriptors[at] = -1;
                result(libc::close(descriptor).into())
            }
            "dup" => {
                let made = libc::dup(descriptor);
                let to = number(2) as usize;
                if made >= 0 {
                    libc::close(self.descriptors[to]);
                    self.descriptors[to] = made;
                }
                result(made.into())
            }
            "dup2" => result(libc::dup2(descriptor, self.descriptors[number(2) as usize]).into()),
            // The kernel remembers O_NOFOLLOW of a description, which means nothing by then.
            "getfl" => match libc::fcntl(descriptor, libc::F_GETFL) {
                flags @ 0.. => (flags & !libc::O_NOFOLLOW).to_string(),
                failed => result(failed.into()),
            },
            "setfl" => result(libc::fcntl(descriptor, libc::F_SETFL, number(2) as c_int).into()),
            "flock" => result(libc::flock(descriptor, number(2) as c_int).into()),
            "lock" => {
                let mut lock: libc::flock = std::mem::zeroed();
                lock.l_type = number(3) as i16;
                (lock.l_start, lock.l_len) = (number(4), 10);
                let (set, get) = match number(2) {
                    0 => (libc::F_SETLK, libc::F_GETLK),
                    _ => (libc::F_OFD_SETLK, libc::F_OFD_GETLK),
                };
                let set = libc::fcntl(descriptor, set, &lock);
                let said = result(set.into());
                lock.l_type = libc::F_WRLCK as i16;
                let got = libc::fcntl(descriptor, get, &mut lock);
                format!("{said} {} {}", result(got.into()), lock.l_type)
            }
            _ => {
                // The number that the next descriptor gets shows whether any was left open.
                let lowest = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
                libc::close(lowest);
                lowest.to_string()
            }
        }
    }

    unsafe fn call_change(&mut self, words: &[&str], number: &dyn Fn(usize) -> i64) -> String {
        if words[0] == "append2" {
            return append_twice(words[1], number(2) as usize, number(3) as usize);
        }
        let descriptor = self.descriptors[number(1) as usize];
        let value = match words[0] {
            "lio" => return rare::write_list(descriptor, number(2) as u64, number(3) as usize),
            "write" => {
                let bytes = bytes(number(2) as u64, number(3) as usize);
                libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) as i64
            }
            "pwrite" => {
                let bytes = bytes(number(2) as u64, number(3) as usize);
                libc::pwrite(descriptor, bytes.as_ptr().cast(), bytes.len(), number(4)) as i64
            }
            "writev" | "pwritev" => {
                let parts: Vec<Vec<u8>> =
                    (0..3).map(|part| bytes(number(2) as u64 + part, number(3) as usize)).collect();
                let vectors: Vec<libc::iovec> = parts
                    .iter()
                    .map(|part| libc::iovec {
                        iov_base: part.as_ptr().cast_mut().cast(),
                        iov_len: part.len(),
                    })
                    .collect();
                if words[0] == "writev" {
                    libc::writev(descriptor, vectors.as_ptr(), 3) as i64
                } else {
                    libc::pwritev(descriptor, vectors.as_ptr(), 3, number(4)) as i64
                }
            }
            "ftruncate" => libc::ftruncate(descriptor, number(2)).into(),
            "fallocate" => {
                libc::fallocate(descriptor, number(2) as c_int, number(3), number(4)).into()
            }
            "pallocate" => libc::posix_fallocate(descriptor, number(2), number(3)).into(),
            "fsync" => libc::fsync(descriptor).into(),
            "fdatasync" => libc::fdatasync(descriptor).into(),
            "sendfile" => {
                let from = self.descriptors[number(2) as usize];
                // Into itself the result depends on how many bytes the kernel copies at once.
                if are_same(descriptor, from) {
                    return "itself".to_owned();
                }
                let mut offset = number(3);
                let sent = libc::sendfile(descriptor, from, &mut offset, number(4) as usize);
                return format!("{} {offset}", result(sent as i64));
            }
            "copy" => {
                let from = self.descriptors[number(2) as usize];
                let (mut first, mut second) = (number(3), number(4));
                let len = number(5) as usize;
                let copied =
                    libc::copy_file_range(from, &mut first, descriptor, &mut second, len, 0);
                return format!("{} {first} {second}", result(copied as i64));
            }
            _ => splice_in(descriptor, number(2) as u64, number(3) as usize),
        };
        result(value)
    }

    unsafe fn call_read(&mut self, words: &[&str], number: &dyn Fn(usize) -> i64) -> String {
        let descriptor = self.descriptors[number(1) as usize];
        let mut buffer = vec![0_u8; 1 << 16];
        let into: *mut c_void = buffer.as_mut_ptr().cast();
        match words[0] {
            "read" | "pread" => {
                let len = (number(2) as usize).min(buffer.len());
                let read = if words[0] == "read" {
                    libc::read(descriptor, into, len)
                } else {
                    libc::pread(descriptor, into, len, number(3))
                };
                format!("{} {:x}", result(read as i64), hash(&buffer[..read.max(0) as usize]))
            }
            "seek" => result(libc::lseek(descriptor, number(2), number(3) as c_int)),
            "fstat" => {
                let mut status: libc::stat = std::mem::zeroed();
                let done = libc::fstat(descriptor, &mut status);
                format!("{} {}", result(done.into()), told(&status))
            }
            "blocks" => {
                let mut status: libc::stat = std::mem::zeroed();
                libc::fstat(descriptor, &mut status);
                status.st_blocks.to_string()
            }
            "fstatx" => {
                let mut status: libc::statx = std::mem::zeroed();
                let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_ALL);
                let done = libc::statx(descriptor, c"".as_ptr(), flags, mask, &mut status);
                let (mode, links, size) = (status.stx_mode, status.stx_nlink, status.stx_size);
                format!("{} {mode:o} {links} {size}", result(done.into()))
            }
            "mapshared" => {
                let (protection, kind) = (number(2) as c_int, libc::MAP_SHARED);
                let map = libc::mmap(null_mut(), 4096, protection, kind, descriptor, 0);
                result(if map == libc::MAP_FAILED { -1 } else { 0 })
            }
            _ => {
                // Shared mappings of descriptors that may write are refused by design.
                let writes = libc::fcntl(descriptor, libc::F_GETFL) & libc::O_RDWR != 0;
                let kind = if writes { libc::MAP_PRIVATE } else { number(2) as c_int };
                let map = libc::mmap(null_mut(), 4096, libc::PROT_READ, kind, descriptor, 0);
                if map == libc::MAP_FAILED {
                    return result(-1);
                }
                let mut status: libc::stat = std::mem::zeroed();
                libc::fstat(descriptor, &mut status);
                let len = (status.st_size as usize).min(4096);
                let said = hash(std::slice::from_raw_parts(map.cast::<u8>(), len));
                libc::munmap(map, 4096);
                format!("{said:x}")
            }
        }
    }

    unsafe fn call_stream(&mut self, words: &[&str], number: &dyn Fn(usize) -> i64) -> String {
        let at = number(1) as usize;
        if words[0] == "fopen" || words[0] == "fdopen" {
            if !self.streams[at].is_null() {
                libc::fclose(self.streams[at]);
                self.streams[at] = null_mut();
            }
            let mode = name(words[3]);
            self.streams[at] = if words[0] == "fopen" {
                libc::fopen(name(words[2]).as_ptr(), mode.as_ptr())
            } else {
                // The stream closes its descriptor, so it has one of its own.
                let own = libc::dup(self.descriptors[number(2) as usize]);
                let stream = libc::fdopen(own, mode.as_ptr());
                if stream.is_null() {
                    let said = result(-1);
                    libc::close(own);
                    return said;
                }
                stream
            };
            if self.streams[at].is_null() {
                return result(-1);
            }
            // Streams have buffers of the file system's blocks, those of the interposer BUFSIZ,
            // which shows as long as nothing is flushed.
            let buffer: &'static mut [u8] = Box::leak(vec![0; 8192].into_boxed_slice());
            libc::setvbuf(self.streams[at], buffer.as_mut_ptr().cast(), libc::_IOFBF, 8192);
            return "a stream".to_owned();
        }
        let stream = self.streams[at];
        if stream.is_null() {
            return "none".to_owned();
        }
        match words[0] {
            "fwrite" => {
                let bytes = bytes(number(2) as u64, number(3) as usize);
                libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream).to_string()
            }
            "fprintf" => {
                libc::fprintf(stream, c"%s and %d\n".as_ptr(), c"text".as_ptr(), number(2) as c_int)
                    .to_string()
            }
            "fflush" => result(libc::fflush(stream).into()),
            // The C library gives out bytes that a seek has read ahead, whatever the mode.
            "fread" if __freadable(stream) == 0 => "not to be read".to_owned(),
            "fread" => {
                let mut buffer = vec![0_u8; number(2) as usize];
                let read = libc::fread(buffer.as_mut_ptr().cast(), 1, buffer.len(), stream);
                format!("{read} {:x}", hash(&buffer[..read]))
            }
            "fseek" => result(libc::fseek(stream, number(2), number(3) as c_int).into()),
            "ftell" => result(libc::ftell(stream)),
            "fileno" => {
                let descriptor = libc::fileno(stream);
                format!("{} {}", descriptor, result(libc::fsync(descriptor).into()))
            }
            _ => {
                self.streams[at] = null_mut();
                result(libc::fclose(stream).into())
            }
        }
    }
}

/// Gives a file that is open a name, as one of `O_TMPFILE` gets it.
unsafe fn link_descriptor(descriptor: c_int, path: &str) -> String {
    let (from, to) = (name(&format!("/proc/self/fd/{descriptor}")), name(path));
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    result(libc::linkat(here, from.as_ptr(), here, to.as_ptr(), flags).into())
}

unsafe fn splice_in(to: c_int, seed: u64, len: usize) -> i64 {
    let mut ends = [0; 2];
    assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
    let bytes = bytes(seed, len);
    libc::write(ends[1], bytes.as_ptr().cast(), bytes.len());
    libc::close(ends[1]);
    let mut total = 0;
    loop {
        let moved = libc::splice(ends[0], null_mut(), to, null_mut(), len, 0);
        if moved <= 0 {
            let said = if total == 0 { moved as i64 } else { total };
            let errno = *libc::__errno_location();
            libc::close(ends[0]);
            *libc::__errno_location() = errno;
            return said;
        }
        total += moved as i64;
    }
}

unsafe extern "C" {
    /// Whether the stream's mode lets it be read (stdio_ext.h).
    fn __freadable(stream: *mut libc::FILE) -> c_int;
}

/// Both are of one file. The number of a mirrored one that has no name any more may be another's by
/// now, so the kernel tells.
fn are_same(one: c_int, other: c_int) -> bool {
    let identity = |descriptor: c_int| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"));
        let text = text.unwrap_or_default();
        let is_it = |line: &&str| line.starts_with("ino:") || line.starts_with("mnt_id:");
        text.lines().filter(is_it).map(str::to_owned).collect::<Vec<_>>()
    };
    identity(one) == identity(other)
}

/// Two processes append records of one byte value each; afterwards each record must be whole.
unsafe fn append_twice(path: &str, count: usize, len: usize) -> String {
    let path = name(path);
    let children: Vec<c_int> = (0..2)
        .map(|child| {
            let pid = libc::fork();
            if pid == 0 {
                let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
                let descriptor = libc::open(path.as_ptr(), flags, 0o600);
                for record in 0..count {
                    let bytes = vec![(child * count + record) as u8; len];
                    libc::write(descriptor, bytes.as_ptr().cast(), len);
                }
                libc::_exit(0);
            }
            pid
        })
        .collect();
    for child in children {
        libc::waitpid(child, null_mut(), 0);
    }
    let descriptor = libc::open(path.as_ptr(), libc::O_RDONLY);
    let mut status: libc::stat = std::mem::zeroed();
    libc::fstat(descriptor, &mut status);
    // No directory, or a link that leads nowhere: nothing was opened.
    let Some(begin) = (status.st_size as usize).checked_sub(2 * count * len) else {
        return format!("nothing, {descriptor}");
    };
    let mut records = Vec::new();
    for record in 0..2 * count {
        let mut bytes = vec![0_u8; len];
        let at = (begin + record * len) as i64;
        libc::pread(descriptor, bytes.as_mut_ptr().cast(), len, at);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn record");
        records.push(bytes[0]);
    }
    libc::close(descriptor);
    records.sort_unstable();
    // The order of the processes differs from run to run, and must not show later.
    let descriptor = libc::open(path.as_ptr(), libc::O_WRONLY);
    for (at, record) in records.iter().enumerate() {
        let (bytes, at) = (vec![*record; len], (begin + at * len) as i64);
        libc::pwrite(descriptor, bytes.as_ptr().cast(), len, at);
    }
    libc::close(descriptor);
    format!("{} {records:?}", status.st_size)
}

unsafe fn call_path(words: &[&str], number: &dyn Fn(usize) -> i64) -> String {
    let path = name(words[1]);
    let first: *const c_char = path.as_ptr();
    let second = words.get(2).map(|word| name(word));
    let second = second.as_ref().map_or(std::ptr::null(), |word| word.as_ptr());
    let here = libc::AT_FDCWD;
    match words[0] {
        "stat" | "lstat" => {
            let mut status: libc::stat = std::mem::zeroed();
            let done = if words[0] == "stat" {
                libc::stat(first, &mut status)
            } else {
                libc::lstat(first, &mut status)
            };
            let said = if done == 0 { told(&status) } else { String::new() };
            format!("{} {said}", result(done.into()))
        }
        // Is a path's inode that of a descriptor which is opened by it?
        "same" => {
            let descriptor = libc::open(first, libc::O_RDONLY);
            let mut statuses: [libc::stat; 2] = std::mem::zeroed();
            let done = libc::stat(first, &mut statuses[0]);
            libc::fstat(descriptor, &mut statuses[1]);
            libc::close(descriptor);
            let [one, other] =
                statuses.map(|status| (status.st_dev, status.st_ino, status.st_size));
            format!("{done} {}", one == other)
        }
        "access" => result(libc::access(first, number(2) as c_int).into()),
        "chmod" => result(libc::chmod(first, number(2) as u32).into()),
        "truncate" => result(libc::truncate(first, number(2)).into()),
        "utimes" => {
            let time = libc::timespec { tv_sec: number(2), tv_nsec: 0 };
            result(libc::utimensat(here, first, [time; 2].as_ptr(), 0).into())
        }
        "rename" => result(libc::renameat2(here, first, here, second, number(3) as u32).into()),
        "link" => result(libc::link(first, second).into()),
        "symlink" => result(libc::symlink(first, second).into()),
        "unlink" => result(libc::unlink(first).into()),
        "remove" => result(libc::remove(first).into()),
        "rmdir" => result(libc::rmdir(first).into()),
        "mkdir" => result(libc::mkdir(first, 0o755).into()),
        "uring" => {
            let mut parameters = [0_u8; 120];
            let made = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr());
            if made >= 0 {
                libc::close(made as c_int);
            }
            result(made)
        }
        "list" => list(words[1]),
        // So that others get further.
        "pause" => {
            let milliseconds = words[1].parse().expect("a number");
            std::thread::sleep(std::time::Duration::from_millis(milliseconds));
            "over".to_owned()
        }
        // Until another process has made it.
        "await" => {
            while libc::access(first, libc::F_OK) != 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            "there".to_owned()
        }
        "dump" => dump(words[1]),
        other => panic!("no call is named {other}"),
    }
}

fn list(path: &str) -> String {
    let Ok(entries) = std::fs::read_dir(path) else {
        return "none".to_owned();
    };
    let mut entries: Vec<String> = entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("its type");
            format!("{} {kind:?}", entry.file_name().to_string_lossy())
        })
        .collect();
    entries.sort();
    entries.join(", ")
}

/// All that a directory holds, with contents.
fn dump(path: &str) -> String {
    let mut said = String::new();
    let mut names: Vec<_> = std::fs::read_dir(path)
        .expect("the directory")
        .map(|entry| entry.expect("one").path())
        .collect();
    names.sort();
    for path in names {
        let status = path.symlink_metadata().expect("its status");
        if status.is_dir() {
            let _ = write!(said, "[{} {}]", path.display(), dump(path.to_str().expect("text")));
        } else if status.is_file() {
            let bytes = std::fs::read(&path).expect("its bytes");
            let _ = write!(said, "[{} {} {:x}]", path.display(), bytes.len(), hash(&bytes));
        } else {
            let _ = write!(said, "[{}]", path.display());
        }
    }
    said
}
