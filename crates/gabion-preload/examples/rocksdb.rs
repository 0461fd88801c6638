//! A program that keeps keys in RocksDB, of Debian's library: its WAL is synced at each write, and
//! it tells of each write that RocksDB acknowledged. Tests kill it.
//!
//! ```text
//! rocksdb write DIR THREADS KEPT    `THREAD NUMBER` on standard input is one write of that thread;
//!                                   the same line on standard output: it was acknowledged
//! rocksdb check DIR THREADS         reads all; `THREAD NUMBER`: that many were written
//! ```
//!
//! A write is a batch of two keys: that of the number, and the thread's last number. KEPT is the
//! number of WAL files that are used again.
#![allow(clippy::disallowed_methods, reason = "a program of tests that has files and threads")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "each is one call of RocksDB's library")]

use std::ffi::{CStr, CString, c_char, c_uchar, c_void};
use std::io::BufRead;
use std::ptr::null_mut;
use std::sync::mpsc;

const LIBRARY: &CStr = c"librocksdb.so.7.8";
/// So small that a load of a few hundred writes has flushes, new WALs and compactions.
const WRITE_BUFFER: usize = 64 << 10;

type Handle = *mut c_void;

/// Declares functions of RocksDB's C API, and looks them up by their names.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Rocks { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Rocks {
            fn load() -> Self {
                let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
                assert!(!library.is_null(), "{LIBRARY:?} is missing");
                $(let $name = {
                    let name = CString::new(stringify!($name)).expect("no zero in names");
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!found.is_null(), "{LIBRARY:?} lacks {name:?}");
                    type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                    unsafe { std::mem::transmute::<*mut c_void, Function>(found) }
                };)*
                Self { $($name,)* }
            }
        }
    };
}

functions! {
    rocksdb_options_create: fn() -> Handle;
    rocksdb_options_set_create_if_missing: fn(Handle, c_uchar);
    rocksdb_options_set_write_buffer_size: fn(Handle, usize);
    rocksdb_options_set_recycle_log_file_num: fn(Handle, usize);
    rocksdb_open: fn(Handle, *const c_char, *mut *mut c_char) -> Handle;
    rocksdb_close: fn(Handle);
    rocksdb_writeoptions_create: fn() -> Handle;
    rocksdb_writeoptions_set_sync: fn(Handle, c_uchar);
    rocksdb_readoptions_create: fn() -> Handle;
    rocksdb_writebatch_create: fn() -> Handle;
    rocksdb_writebatch_put: fn(Handle, *const u8, usize, *const u8, usize);
    rocksdb_writebatch_destroy: fn(Handle);
    rocksdb_write: fn(Handle, Handle, Handle, *mut *mut c_char);
    rocksdb_get: fn(Handle, Handle, *const u8, usize, *mut usize, *mut *mut c_char) -> *mut c_char;
    rocksdb_free: fn(*mut c_void);
}

/// An open database, of which RocksDB says that threads may share it.
struct Database {
    rocks: Rocks,
    database: Handle,
    writes: Handle,
    reads: Handle,
}

unsafe impl Sync for Database {}

/// Ends the program with RocksDB's own words, if there are any.
fn fine(error: *mut c_char) {
    if !error.is_null() {
        let text = unsafe { CStr::from_ptr(error) };
        eprintln!("rocksdb: {}", text.to_string_lossy());
        std::process::exit(1);
    }
}

/// The value of a thread's number: of any length up to some pages.
fn value(thread: usize, number: u64) -> Vec<u8> {
    let len = (number * 131 + thread as u64 * 17) % 1500;
    format!("{thread}:{number}.").bytes().cycle().take(len as usize).collect()
}

impl Database {
    fn open(directory: &str, kept: usize) -> Self {
        let rocks = Rocks::load();
        let path = CString::new(directory).expect("no zero in the directory");
        let mut error = null_mut();
        unsafe {
            let options = (rocks.rocksdb_options_create)();
            (rocks.rocksdb_options_set_create_if_missing)(options, 1);
            (rocks.rocksdb_options_set_write_buffer_size)(options, WRITE_BUFFER);
            (rocks.rocksdb_options_set_recycle_log_file_num)(options, kept);
            let database = (rocks.rocksdb_open)(options, path.as_ptr(), &raw mut error);
            fine(error);
            let writes = (rocks.rocksdb_writeoptions_create)();
            (rocks.rocksdb_writeoptions_set_sync)(writes, 1);
            let reads = (rocks.rocksdb_readoptions_create)();
            Self { rocks, database, writes, reads }
        }
    }

    fn write(&self, thread: usize, number: u64) {
        let (rocks, mut error) = (&self.rocks, null_mut());
        let key = format!("{thread}:{number}");
        let last = (format!("last:{thread}"), number.to_string());
        let pairs = [(&*key, &*value(thread, number)), (&*last.0, last.1.as_bytes())];
        unsafe {
            let batch = (rocks.rocksdb_writebatch_create)();
            for (key, value) in pairs {
                let (at, len) = (value.as_ptr(), value.len());
                (rocks.rocksdb_writebatch_put)(batch, key.as_ptr(), key.len(), at, len);
            }
            (rocks.rocksdb_write)(self.database, self.writes, batch, &raw mut error);
            (rocks.rocksdb_writebatch_destroy)(batch);
        }
        fine(error);
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (rocks, mut error, mut len) = (&self.rocks, null_mut(), 0);
        let (at, key_len) = (key.as_ptr(), key.len());
        unsafe {
            let (len, error) = (&raw mut len, &raw mut error);
            let found = (rocks.rocksdb_get)(self.database, self.reads, at, key_len, len, error);
            fine(*error);
            if found.is_null() {
                return None;
            }
            let bytes = std::slice::from_raw_parts(found.cast::<u8>(), *len).to_vec();
            (rocks.rocksdb_free)(found.cast());
            Some(bytes)
        }
    }
}

fn tell(thread: usize, number: u64) {
    say(&format!("{thread} {number}"));
}

/// One write to the descriptor: threads do not mix their lines.
fn say(line: &str) {
    let line = format!("{line}\n");
    let wrote = unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
    assert_eq!(wrote, line.len() as isize, "standard output");
}

/// Writes what standard input says until it ends, each thread its own numbers in their order.
fn write(database: &Database, threads: usize) {
    std::thread::scope(|scope| {
        let mut queues = Vec::new();
        for thread in 0..threads {
            let (queue, numbers) = mpsc::channel();
            queues.push(queue);
            scope.spawn(move || {
                for number in numbers {
                    database.write(thread, number);
                    tell(thread, number);
                }
            });
        }
        say("open");
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("standard input");
            let (thread, number) = line.split_once(' ').expect("a thread and a number");
            let number = number.parse().expect("a number");
            let queue = &queues[thread.parse::<usize>().expect("a thread")];
            queue.send(number).expect("a thread that writes");
        }
    });
}

/// Ends the program if a write is missing below the last one of its thread, or differs.
fn check(database: &Database, threads: usize) {
    for thread in 0..threads {
        let last = database.get(&format!("last:{thread}"));
        let last = last.map_or(0, |last| String::from_utf8_lossy(&last).parse().expect("digits"));
        for number in 1..=last {
            let found = database.get(&format!("{thread}:{number}"));
            let is_there = found.as_deref() == Some(&*value(thread, number));
            assert!(is_there, "{thread}:{number} of {last} is {found:?}");
        }
        tell(thread, last);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let count = |text: &str| text.parse().expect("a number");
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", directory, threads, kept] => {
            let database = Database::open(directory, count(kept));
            write(&database, count(threads));
            unsafe { (database.rocks.rocksdb_close)(database.database) };
        }
        ["check", directory, threads] => {
            let database = Database::open(directory, 0);
            check(&database, count(threads));
            unsafe { (database.rocks.rocksdb_close)(database.database) };
        }
        _ => {
            eprintln!("usage: rocksdb write DIR THREADS KEPT | rocksdb check DIR THREADS");
            std::process::exit(2);
        }
    }
}
