//! Calls of a program pass the interposer or not, as its file says. The file is looked at
//! ahead of a run, and by interposed processes that start a program, between `vfork` and `exec`
//! too: nothing is allocated.

/// Bytes at the beginning of a file that are looked at.
pub const HEAD: usize = 512;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Bytes of a program's header, as far as it is read.
const HEADER: usize = 40;
/// Bytes of a loader's path, and of notes, that are looked at.
const PART_MAX: usize = 1024;

/// Why a program's calls cannot be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It is no program for the kernel's loader.
    NoProgram,
    /// Of another machine.
    OtherMachine,
    /// Its headers lead out of it.
    Damaged,
    /// It calls the kernel itself.
    Go,
    /// No loader starts it.
    Static,
    /// Another C library's loader starts it.
    OtherLoader,
}

impl Unseen {
    /// In words that go on from its name.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::NoProgram => "it is no 64-bit program of this machine",
            Self::OtherMachine => "it is a program of another machine",
            Self::Damaged => "its headers are damaged",
            Self::Go => "it is a Go program, and calls the kernel itself",
            Self::Static => "it is linked statically",
            Self::OtherLoader => "its loader is not ld-linux, that of the GNU C library",
        }
    }
}

/// The interpreter of a script, by the head of its file.
#[must_use]
pub fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty());
    Some(word.unwrap_or_default())
}

/// Looks at a program. `read` fills what it is given from an offset of the file on, and says how
/// many bytes there were. Bounds are checked: the file may be anything.
///
/// # Errors
/// If its calls cannot be seen.
pub fn look(head: &[u8], read: &dyn Fn(&mut [u8], u64) -> usize) -> Result<(), Unseen> {
    if !head.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return Err(Unseen::NoProgram);
    }
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    if half(head, 18) != Some(machine) {
        return Err(Unseen::OtherMachine);
    }
    let table = long(head, 32).ok_or(Unseen::Damaged)?;
    let size = u64::from(half(head, 54).ok_or(Unseen::Damaged)?);
    let count = u64::from(half(head, 56).ok_or(Unseen::Damaged)?);
    let (mut loader, mut is_go) = (Err(Unseen::Static), false);
    for number in 0..count {
        let mut header = [0; HEADER];
        if read(&mut header, table.saturating_add(number * size)) != HEADER {
            return Err(Unseen::Damaged);
        }
        let kind = word(&header, 0).unwrap_or_default();
        if kind != PT_INTERP && kind != PT_NOTE {
            continue;
        }
        let (offset, len) = (long(&header, 8).unwrap_or_default(), long(&header, 32));
        let len = len.unwrap_or_default().min(PART_MAX as u64) as usize;
        let mut part = [0; PART_MAX];
        if read(&mut part[..len], offset) != len {
            return Err(Unseen::Damaged);
        }
        match kind {
            PT_INTERP => loader = check_loader(&part[..len]),
            // The name of the note that Go's linker writes, with its zero and padding.
            _ => is_go |= part[..len].windows(8).any(|name| name == b"\x04\0\0\0Go\0\0"),
        }
    }
    if is_go { Err(Unseen::Go) } else { loader }
}

/// The interposer is of the same C library as the program.
fn check_loader(path: &[u8]) -> Result<(), Unseen> {
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if last.starts_with(b"ld-linux") { Ok(()) } else { Err(Unseen::OtherLoader) }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
