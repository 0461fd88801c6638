//! Whether this process is interposed, and which of its descriptors are mirrored.
//!
//! A descriptor's word is 0, or has [`MIRRORED`], the slot in its low bits, the generation above,
//! [`SYNCED`] if each write is to be stored when it returns, and [`SPLIT`] if the descriptor is of
//! the file itself. It is read without a lock by every
//! call; it is written by calls that make, copy or close descriptors.
//!
//! A process that `vfork` made has its parent's memory and descriptors of its own. Changes that it
//! makes to these must not show in the words, which the parent goes on with: so words are written
//! only by the process that they are of, which the number of the process tells.

use crate::ask::Asked;
use crate::names;
use crate::raw::{self, word};
use gabion_mirror::pattern;
use gabion_mirror::shared::{Shared, Slot, state};
use gabion_mirror::wire::{
    ENVIRONMENT, MIRROR, NO_GENERATION, Operation, PATH_MAX, Request, SOCKET,
};
use libc::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// Descriptors that can be mirrored; those above cannot.
pub(crate) const DESCRIPTORS: usize = 1 << 20;
const MIRRORED: u64 = 1 << 63;
const SYNCED: u64 = 1 << 62;
const SPLIT: u64 = 1 << 61;

/// In memory that is all zeros at the start: only pages with descriptors in use are ever there.
static WORDS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// One more than the highest descriptor that ever was mirrored.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicI32 = AtomicI32::new(0);
static PHASE: AtomicU32 = AtomicU32::new(NEW);
static READY: OnceLock<Ready> = OnceLock::new();

const NEW: u32 = 0;
const STARTING: u32 = 1;
const INERT: u32 = 2;
const ACTIVE: u32 = 3;

/// The state of an interposed process.
pub(crate) struct Ready {
    pub(crate) shared: Shared,
    socket: [u8; 108],
    globs: [u8; pattern::LEN_MAX],
    globs_len: usize,
}

impl Ready {
    /// The path of the owner's socket, zeros behind it.
    pub(crate) fn socket(&self) -> &[u8; 108] {
        &self.socket
    }

    /// True if a file of that path might have to be mirrored.
    pub(crate) fn may_match(&self, path: &[u8]) -> bool {
        pattern::may_match(&self.globs[..self.globs_len], path)
    }
}

/// A mirrored or split file, as a descriptor's word has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mirrored {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) synced: bool,
    /// See [`split`](crate::split).
    pub(crate) split: bool,
}

impl Mirrored {
    fn encode(self) -> u64 {
        let synced = if self.synced { SYNCED } else { 0 };
        let split = if self.split { SPLIT } else { 0 };
        let generation = u64::from(self.generation) << 16;
        MIRRORED | synced | split | generation | u64::from(self.slot)
    }

    fn decode(word: u64) -> Option<Self> {
        let (slot, generation) = (word as u32 & 0xffff, (word >> 16) as u32);
        let [synced, split] = [SYNCED, SPLIT].map(|bit| word & bit != 0);
        (word & MIRRORED != 0).then_some(Self { slot, generation, synced, split })
    }

    /// The slot, as long as it is this file's.
    pub(crate) fn slot(self, shared: &Shared) -> Option<&'static Slot> {
        let slot = shared.slot(self.slot)?;
        (slot.generation.load(Acquire) == self.generation).then_some(slot)
    }

    /// True if the file still has a name, so that its bytes are to be stored.
    pub(crate) fn is_live(self, shared: &Shared) -> bool {
        self.slot(shared).is_some_and(|slot| slot.state.load(Acquire) == state::LIVE)
    }
}

/// The state of this process if it is interposed. Constructors of other libraries may call before
/// the library's own: whoever comes first makes it ready.
pub(crate) fn ready() -> Option<&'static Ready> {
    match PHASE.load(Acquire) {
        ACTIVE => READY.get(),
        NEW => {
            start();
            READY.get()
        }
        // STARTING: the calls that starting makes. Nobody has another thread by then.
        _ => None,
    }
}

/// The file of a descriptor: what every call begins with.
pub(crate) fn mirrored(descriptor: c_int) -> Option<Mirrored> {
    let word = WORDS.get(descriptor as usize)?.load(Relaxed);
    if word == 0 { None } else { Mirrored::decode(word) }
}

/// True if this is the process that the words are of. Not in a child of `vfork`, nor in one that
/// was made without the C library's `fork`.
pub(crate) fn is_own() -> bool {
    PROCESS.load(Relaxed) == raw::forward(libc::SYS_getpid, &[]) as c_int
}

/// Notes what a descriptor is; nothing in a process that the words are not of.
pub(crate) fn set(descriptor: c_int, file: Option<Mirrored>) {
    let Some(word) = WORDS.get(descriptor as usize) else {
        return;
    };
    let value = file.map_or(0, Mirrored::encode);
    if word.load(Relaxed) != value && is_own() {
        HIGHEST.fetch_max(descriptor as u32 + 1, Relaxed);
        word.store(value, Relaxed);
    }
}

/// Descriptors that may be mirrored.
pub(crate) fn known() -> std::ops::Range<c_int> {
    0..HIGHEST.load(Relaxed) as c_int
}

extern "C" fn forked() {
    PROCESS.store(raw::forward(libc::SYS_getpid, &[]) as c_int, Relaxed);
}

/// The loader calls this before the program begins.
#[used]
// SAFETY: the section holds addresses of functions that the loader calls, as this one's.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = begin;

extern "C" fn begin() {
    ready();
    crate::exec::prepare();
}

fn start() {
    if PHASE.compare_exchange(NEW, STARTING, AcqRel, Acquire).is_err() {
        return;
    }
    let kept = raw::errno();
    forked();
    let Some(directory) = environment() else {
        PHASE.store(INERT, Release);
        return;
    };
    // SAFETY: the handler takes and returns nothing, and stays loaded as this library does.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    match greet(directory) {
        Ok(ready) => {
            adopt_inherited(&ready);
            let _ = READY.set(ready);
            PHASE.store(ACTIVE, Release);
            #[cfg(feature = "planted")]
            crate::planted::arm();
        }
        Err(why) => {
            raw::tell(&[
                b"the interposer of near-compute logs finds no `gabion ncl run` at ",
                directory,
                b" (",
                why,
                b"); this program is not started, as nothing that it writes would be stored",
            ]);
            raw::exit(125);
        }
    }
    raw::set_errno(kept);
}

fn environment() -> Option<&'static [u8]> {
    let mut name = [0; 32];
    name[..ENVIRONMENT.len()].copy_from_slice(ENVIRONMENT.as_bytes());
    // SAFETY: the name ends with a zero. The value stays there: a program that changes its
    // environment before it has begun is none.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    raw::path(value as usize).filter(|value| !value.is_empty())
}

fn greet(directory: &[u8]) -> Result<Ready, &'static [u8]> {
    let mut socket = [0; 108];
    let len = directory.len() + 1 + SOCKET.len();
    if len >= socket.len() {
        return Err(b"the path is too long");
    }
    socket[..directory.len()].copy_from_slice(directory);
    socket[directory.len()] = b'/';
    socket[directory.len() + 1..len].copy_from_slice(SOCKET.as_bytes());
    let mut globs = [0; pattern::LEN_MAX];
    let hello = Request::new(Operation::Hello);
    let asked = Asked::new(&socket, hello, [&[], &[]], &mut globs);
    let asked = asked.map_err(|_| &b"nobody answers"[..])?;
    let memory = asked.descriptor(true).map_err(|_| &b"it gives no memory"[..])?;
    let shared = Shared::map(memory);
    raw::close(memory);
    let shared = shared.map_err(|_| &b"its memory is of another version"[..])?;
    let globs_len = asked.reply.text as usize;
    Ok(Ready { shared, socket, globs, globs_len })
}

/// Descriptors that were mirrored in the program before this one: the kernel knows their names.
fn adopt_inherited(ready: &Ready) {
    let directory = raw::open(b"/proc/self/fd\0", libc::O_RDONLY | libc::O_CLOEXEC);
    if directory < 0 {
        return;
    }
    let mut entries = [0_u8; 4096];
    loop {
        let (at, len) = (entries.as_mut_ptr() as usize, entries.len());
        let read = raw::forward(libc::SYS_getdents64, &[word(directory), at, len]);
        let Some(mut rest) = usize::try_from(read).ok().and_then(|read| entries.get(..read)) else {
            break;
        };
        if rest.is_empty() {
            break;
        }
        // inode u64, offset u64, length u16, type u8, name with a zero
        while let (Some(len), Some(name)) = (rest.get(16..18), rest.get(19..)) {
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            adopt_descriptor(ready, name);
            rest = rest.get(len..).unwrap_or_default();
        }
    }
    raw::close(directory);
}

fn adopt_descriptor(ready: &Ready, name: &[u8]) {
    let shared = &ready.shared;
    let Some((descriptor, _)) = names::number(name) else {
        return;
    };
    let mut link = [0; PATH_MAX];
    let path = raw::DescriptorPath::new(descriptor as c_int);
    let Some(len) = raw::link(path.bytes(), &mut link) else {
        return;
    };
    let begin = link[..len].strip_prefix(b"/memfd:");
    let split = !begin.is_some_and(|name| name.starts_with(MIRROR.as_bytes()));
    if split && !shared.has_journal() {
        return;
    }
    let status = raw::status(descriptor as c_int).filter(raw::is_regular);
    let found = status.and_then(|status| match split {
        true => shared.find_split(status.st_dev, status.st_ino),
        false => shared.find_mirror(status.st_dev, status.st_ino),
    });
    let flags = raw::flags(descriptor as c_int);
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let is_standard = (1..=2).contains(&descriptor);
    // A file that may be split has no slot while its name is being changed.
    let may_split = split
        && status.is_some()
        && writes
        && !is_standard
        && link[..len].first() == Some(&b'/')
        && ready.may_match(&link[..len]);
    let found = found.or(may_split.then_some((0, NO_GENERATION)));
    // The file may have lost its last name: what is written to it concerns nobody.
    let Some((slot, generation)) = found else {
        return;
    };
    if is_standard && writes {
        raw::tell(&[b"standard output or error leads to a near-compute log; this program is not \
            started, as the C library would write there unseen"]);
        raw::exit(125);
    }
    let synced = flags & libc::O_DSYNC != 0;
    let file = Mirrored { slot, generation, synced, split };
    if split || file.slot(shared).is_some() {
        set(descriptor as c_int, Some(file));
    }
}
