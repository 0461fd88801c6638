//! Calls that open files, and that change names.

use crate::ask::{Asked, ask};
use crate::direct;
use crate::raw::{self, Answer, word};
use crate::split;
use crate::state::{self, Mirrored, Ready, mirrored, ready};
use gabion_mirror::wire::{HAS_NAMES, Operation, PATH_MAX, Request, kind, moved};
use libc::c_int;

/// An absolute path.
pub(crate) struct Absolute {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Absolute {
    /// Of a path as the program gave it; nothing if it is too long, or the directory has none.
    pub(crate) fn new(directory: c_int, path: &[u8]) -> Option<Self> {
        let mut absolute = Self { bytes: [0; PATH_MAX], len: 0 };
        if path.first() != Some(&b'/') {
            let into = &mut absolute.bytes[..];
            absolute.len = match directory {
                libc::AT_FDCWD => raw::working_directory(into)?,
                _ => raw::link(raw::DescriptorPath::new(directory).bytes(), into)?,
            };
            absolute.push(b"/")?;
        }
        absolute.push(path)?;
        Some(absolute)
    }

    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len + bytes.len();
        self.bytes.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decimal digits at the beginning, and the rest.
pub(crate) fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digit = |sum: u32, byte: &u8| sum.checked_mul(10)?.checked_add(u32::from(byte - b'0'));
    let value = text[..digits].iter().try_fold(0, digit)?;
    (digits > 0).then_some((value, &text[digits..]))
}

pub(crate) fn open(directory: c_int, path: usize, flags: c_int, mode: u32) -> Answer {
    let call = |flags| {
        raw::forward(libc::SYS_openat, &[word(directory), path, word(flags), mode as usize])
    };
    let temporary = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let nothing = flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 || temporary;
    let Some(ready) = ready().filter(|_| !nothing) else {
        return call(flags);
    };
    let matches = raw::path(path).is_some_and(|path| ready.may_match(path));
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    // By another name too: a link that leads to a mirrored file, or one that was renamed; or a link
    // that leads to one which is to be.
    if !matches && !writes && !ready.shared.has_files() {
        return call(flags);
    }
    // The placeholder of a mirrored file keeps its line.
    let descriptor = call(flags & !libc::O_TRUNC) as c_int;
    if descriptor < 0 {
        return -1;
    }
    adopt(ready, descriptor, flags, matches).map_or_else(raw::refuse, |number| number as Answer)
}

/// `open_by_handle_at`: the program gives no path, but the kernel knows one of what it opened.
pub(crate) fn open_by_handle(mount: c_int, handle: usize, flags: c_int) -> Answer {
    let call =
        |flags| raw::forward(libc::SYS_open_by_handle_at, &[word(mount), handle, word(flags)]);
    let nothing = flags & (libc::O_PATH | libc::O_DIRECTORY) != 0;
    let Some(ready) = ready().filter(|_| !nothing) else {
        return call(flags);
    };
    let descriptor = call(flags & !libc::O_TRUNC) as c_int;
    if descriptor < 0 {
        return -1;
    }
    let matches = split::may_match(ready, descriptor);
    adopt(ready, descriptor, flags, matches).map_or_else(raw::refuse, |number| number as Answer)
}

/// A descriptor that the kernel opened is exchanged for that of a mirror, if its file has one; else
/// it stays, as it does not if anything fails. `O_TRUNC` is in the flags and has not been done yet.
fn adopt(ready: &Ready, descriptor: c_int, flags: c_int, matches: bool) -> Result<c_int, c_int> {
    let adopted = mirror_of(ready, descriptor, flags, matches).and_then(|asked| match asked {
        None => truncate_plain(descriptor, flags).map(|()| None),
        Some(asked) if asked.reply.kind == kind::SPLIT => {
            split::adopt(descriptor, asked.reply.slot, asked.reply.generation)?;
            let file = mirrored(descriptor);
            let cut = || truncate_plain(descriptor, flags).map_or_else(raw::refuse, |()| 0);
            let is_cut = flags & libc::O_TRUNC != 0;
            match file.filter(|_| is_cut).map_or(0, |file| split::change(descriptor, file, 0, &cut))
            {
                0 => Ok(None),
                _ => Err(raw::errno()),
            }
        }
        asked => Ok(asked),
    });
    let asked = match adopted {
        Ok(None) => return Ok(descriptor),
        Ok(Some(asked)) => asked,
        Err(reason) => {
            state::set(descriptor, None);
            raw::close(descriptor);
            return Err(reason);
        }
    };
    // Its number is free now, and the next to be given; the placeholder is of no use any more.
    raw::close(descriptor);
    let mirror = asked.descriptor(flags & libc::O_CLOEXEC != 0)?;
    let synced = flags & libc::O_DSYNC != 0;
    let (slot, generation) = (asked.reply.slot, asked.reply.generation);
    if mirror as usize >= state::DESCRIPTORS {
        raw::close(mirror);
        return Err(libc::EMFILE);
    }
    state::set(mirror, Some(Mirrored { slot, generation, synced, split: false }));
    Ok(mirror)
}

/// The owner's reply, if the descriptor is of a placeholder, or becomes one.
fn mirror_of(
    ready: &Ready,
    descriptor: c_int,
    flags: c_int,
    matches: bool,
) -> Result<Option<Asked>, c_int> {
    let Some(status) = raw::status(descriptor).filter(raw::is_regular) else {
        return Ok(None);
    };
    let (device, inode) = (status.st_dev, status.st_ino);
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let may_split = writes && ready.shared.has_journal();
    let has_names = status.st_nlink > 1 && may_split;
    // Empty files that match get mirrored.
    let may_be_mirrored = writes && (status.st_size == 0 || flags & libc::O_TRUNC != 0);
    // By a symbolic link, or by another name: whoever writes to a file that gets split or mirrored
    // has to be seen.
    let leads =
        || has_names || (may_split || may_be_mirrored) && split::may_match(ready, descriptor);
    if !matches && ready.shared.find(device, inode).is_none() && !leads() {
        return Ok(None);
    }
    let value = if has_names { HAS_NAMES } else { 0 };
    let asked = ask_of(ready, descriptor, flags, &status, value)?;
    Ok((asked.reply.kind != kind::PLAIN).then_some(asked))
}

/// The owner's reply about a file that is open.
pub(crate) fn ask_of(
    ready: &Ready,
    descriptor: c_int,
    flags: c_int,
    status: &libc::stat,
    value: u64,
) -> Result<Asked, c_int> {
    let mut path = [0; PATH_MAX];
    let link = raw::link(raw::DescriptorPath::new(descriptor).bytes(), &mut path);
    let path = link.and_then(|len| path.get(..len)).ok_or(libc::ENAMETOOLONG)?;
    if !state::is_own() {
        raw::tell(&[
            b"a process made by vfork or clone opens a near-compute log, which is refused: ",
            path,
        ]);
        return Err(libc::ENOTSUP);
    }
    let (device, inode) = (status.st_dev, status.st_ino);
    let request = Request::new(Operation::Open);
    let request = Request { flags: flags as u32, device, inode, value, ..request };
    Asked::new(ready.socket(), request, [path, &[]], &mut [])
}

/// Slot and generation of the mirrored file with that placeholder.
pub(crate) fn find_mirrored(ready: &Ready, device: u64, inode: u64) -> Option<(u32, u32)> {
    let found = ready.shared.find(device, inode)?;
    ready.shared.slot(found.0).filter(|slot| !slot.is_split()).map(|_| found)
}

/// `O_TRUNC` of a file whose bytes are in the file system.
fn truncate_plain(descriptor: c_int, flags: c_int) -> Result<(), c_int> {
    if flags & libc::O_TRUNC == 0 {
        return Ok(());
    }
    // Pipes and devices are not cut, and to open them once more may do something.
    if !raw::status(descriptor).is_some_and(|status| raw::is_regular(&status)) {
        return Ok(());
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        let done = raw::forward(libc::SYS_ftruncate, &[word(descriptor), 0]);
        return if done == 0 { Ok(()) } else { Err(raw::errno()) };
    }
    // Opened once more, as the program has asked for no right to write.
    let path = raw::DescriptorPath::new(descriptor);
    let opened = raw::open(path.bytes(), libc::O_WRONLY | libc::O_TRUNC | libc::O_CLOEXEC);
    if opened < 0 {
        return Err(raw::errno());
    }
    raw::close(opened);
    Ok(())
}

/// A file that `mkstemp` or its kin made.
pub(crate) fn made_temporary(descriptor: c_int, path: usize, flags: c_int) -> c_int {
    let (Some(ready), Some(name)) = (ready(), raw::path(path)) else {
        return descriptor;
    };
    if descriptor < 0 || !ready.may_match(name) {
        return descriptor;
    }
    let adopted = adopt(ready, descriptor, flags | libc::O_RDWR, true);
    adopted.unwrap_or_else(|reason| raw::refuse(reason) as c_int)
}

/// A path of the program and what is there, the last part not followed if it is a link.
struct Named<'a> {
    directory: c_int,
    address: usize,
    path: &'a [u8],
    status: Option<libc::stat>,
}

impl Named<'_> {
    fn new(directory: c_int, address: usize, flags: c_int) -> Option<Self> {
        let path = raw::path(address)?;
        let status = raw::status_at(directory, address, flags);
        Some(Self { directory, address, path, status })
    }

    fn is(&self, kind: fn(&libc::stat) -> bool) -> bool {
        self.status.as_ref().is_some_and(kind)
    }

    /// Slot and generation, if a mirrored file is there.
    fn mirrored(&self, ready: &Ready) -> Option<(u32, u32)> {
        let status = self.status.as_ref().filter(|status| raw::is_regular(status))?;
        find_mirrored(ready, status.st_dev, status.st_ino)
    }

    /// Whether a split file is there.
    fn is_split(&self, ready: &Ready) -> bool {
        let status = self.status.as_ref().filter(|status| raw::is_regular(status));
        let find = |status: &libc::stat| ready.shared.find_split(status.st_dev, status.st_ino);
        status.and_then(find).is_some()
    }

    fn absolute(&self) -> Result<Absolute, c_int> {
        Absolute::new(self.directory, self.path).ok_or(libc::ENAMETOOLONG)
    }
}

pub(crate) fn rename(ends: [(c_int, usize); 2], flags: u32) -> Answer {
    let call = || {
        let [(from, old), (to, new)] = ends;
        raw::forward(libc::SYS_renameat2, &[word(from), old, word(to), new, flags as usize])
    };
    let Some(ready) = ready() else {
        return call();
    };
    let matching = |path| raw::path(path).is_some_and(|path| ready.may_match(path));
    let exchanged = flags & libc::RENAME_EXCHANGE != 0;
    let matches = matching(ends[1].1) || exchanged && matching(ends[0].1);
    if !matches && !ready.shared.has_files() {
        return call();
    }
    let may_split = ready.shared.has_journal() && (matching(ends[0].1) || matching(ends[1].1));
    let named = ends.map(|(at, path)| Named::new(at, path, libc::AT_SYMLINK_NOFOLLOW));
    let [Some(from), Some(to)] = named else {
        return call();
    };
    let [moves, replaces] = [&from, &to].map(|named| named.mirrored(ready).is_some());
    let moved = from.is(raw::is_directory) || exchanged && to.is(raw::is_directory);
    let directory = moved && ready.shared.has_files();
    let arrives = matches && from.is(raw::is_regular);
    let splits = may_split || from.is_split(ready) || to.is_split(ready);
    if !(moves || replaces || directory || arrives || splits) {
        return call();
    }
    let answer = match splits || directory && ready.shared.has_journal() {
        true => parted(ready, [&from, &to], directory, &|| {
            renamed(ready, [&from, &to], flags, directory, &call)
        }),
        false => renamed(ready, [&from, &to], flags, directory, &call),
    };
    direct::let_go(ready);
    answer.unwrap_or_else(raw::refuse)
}

/// A change of names of split files, which are not split while it is made.
fn parted(
    ready: &Ready,
    named: [&Named<'_>; 2],
    directory: bool,
    change: &dyn Fn() -> Result<Answer, c_int>,
) -> Result<Answer, c_int> {
    let (first, second) = (named[0].absolute()?, named[1].absolute()?);
    let paths = [first.bytes(), second.bytes()];
    let value = if directory { moved::DIRECTORY } else { 0 };
    let reply = ask(ready, Request { value, ..Request::new(Operation::Leave) }, paths)?;
    let changed = change();
    let reason = raw::errno();
    let arrive = Request { slot: reply.slot, ..Request::new(Operation::Arrive) };
    ask(ready, arrive, [&[], &[]])?;
    raw::set_errno(reason);
    changed
}

fn renamed(
    ready: &Ready,
    [from, to]: [&Named<'_>; 2],
    flags: u32,
    directory: bool,
    call: &dyn Fn() -> Answer,
) -> Result<Answer, c_int> {
    let exchanged = flags & libc::RENAME_EXCHANGE != 0;
    if exchanged && (directory || to.is(raw::is_directory)) {
        return Err(libc::EINVAL);
    }
    let (old, new) = (from.absolute()?, to.absolute()?);
    let paths = [old.bytes(), new.bytes()];
    let mut value = 0;
    if exchanged {
        value |= moved::EXCHANGED;
    }
    if directory {
        value |= moved::DIRECTORY;
    }
    // Names outside the root are none, and the store may have no room. Asked before, as a rename
    // cannot be taken back. A name less needs none.
    let is_mirrored = from.mirrored(ready).is_some() || exchanged && to.mirrored(ready).is_some();
    if directory || is_mirrored {
        ask(ready, Request { value, ..Request::new(Operation::MayName) }, paths)?;
    }
    let answer = call();
    if answer != 0 {
        return Ok(answer);
    }
    let inode = from.status.map_or((0, 0), |status| (status.st_dev, status.st_ino));
    let request = Request::new(Operation::Renamed);
    let request = Request { device: inode.0, inode: inode.1, value, ..request };
    ask(ready, request, paths)?;
    Ok(0)
}

pub(crate) fn link(ends: [(c_int, usize); 2], flags: c_int) -> Answer {
    let call = || {
        let [(from, old), (to, new)] = ends;
        raw::forward(libc::SYS_linkat, &[word(from), old, word(to), new, word(flags)])
    };
    // Of a file that may be split by either name.
    let may = |ready: &Ready, path| raw::path(path).is_some_and(|path| ready.may_match(path));
    let matches = |ready: &&Ready| {
        may(ready, ends[1].1) || ready.shared.has_journal() && may(ready, ends[0].1)
    };
    let Some(ready) = ready().filter(|ready| ready.shared.has_files() || matches(ready)) else {
        return call();
    };
    let follow = if flags & libc::AT_SYMLINK_FOLLOW == 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    let from = Named::new(ends[0].0, ends[0].1, follow | flags & libc::AT_EMPTY_PATH);
    if from.as_ref().is_some_and(|from| from.is_split(ready)) {
        return call();
    }
    let Some((slot, generation)) = from.as_ref().and_then(|from| from.mirrored(ready)) else {
        return link_plain(ready, from, ends[1], matches(&ready), &call);
    };
    let linked = || {
        let to = Named::new(ends[1].0, ends[1].1, libc::AT_SYMLINK_NOFOLLOW).ok_or(libc::EFAULT)?;
        let new = to.absolute()?;
        let paths = [&[][..], new.bytes()];
        let file = |operation| Request { slot, generation, ..Request::new(operation) };
        ask(ready, file(Operation::MayName), paths)?;
        let answer = call();
        if answer == 0 {
            ask(ready, file(Operation::Linked), paths)?;
        }
        Ok(answer)
    };
    linked().unwrap_or_else(raw::refuse)
}

/// A link of a file whose bytes stay in the file system, though its new name may match. Nobody has
/// it split by that name before the owner knows.
fn link_plain(
    ready: &Ready,
    from: Option<Named<'_>>,
    to: (c_int, usize),
    matches: bool,
    call: &dyn Fn() -> Answer,
) -> Answer {
    let to = Named::new(to.0, to.1, libc::AT_SYMLINK_NOFOLLOW);
    let (Some(status), Some(to), true) = (from.and_then(|from| from.status), to, matches) else {
        return call();
    };
    let linked = || {
        let answer = call();
        if answer == 0 {
            let (device, inode) = (status.st_dev, status.st_ino);
            let request = Request { device, inode, ..Request::new(Operation::Linked) };
            let path = to.absolute().ok();
            let path = path.as_ref().map_or(&[][..], Absolute::bytes);
            ask(ready, request, [&[], path])?;
        }
        Ok(answer)
    };
    let answer = match ready.shared.has_journal() {
        true => parted(ready, [&to, &to], false, &linked),
        false => linked(),
    };
    answer.unwrap_or_else(raw::refuse)
}

pub(crate) fn unlink(directory: c_int, path: usize, flags: c_int) -> Answer {
    let call = || raw::forward(libc::SYS_unlinkat, &[word(directory), path, word(flags)]);
    let nothing = flags & libc::AT_REMOVEDIR != 0;
    let Some(ready) = ready().filter(|ready| !nothing && ready.shared.has_files()) else {
        return call();
    };
    let Some(named) = Named::new(directory, path, libc::AT_SYMLINK_NOFOLLOW) else {
        return call();
    };
    if named.mirrored(ready).is_none() {
        let may_split = ready.shared.has_journal() && ready.may_match(named.path);
        if !may_split && !named.is_split(ready) {
            return call();
        }
        let unlinked = parted(ready, [&named; 2], false, &|| Ok(call()));
        return unlinked.unwrap_or_else(raw::refuse);
    }
    let unlinked = || {
        let path = named.absolute()?;
        let answer = call();
        if answer == 0 {
            ask(ready, Request::new(Operation::Unlinked), [path.bytes(), &[]])?;
        }
        Ok(answer)
    };
    let answer = unlinked();
    direct::let_go(ready);
    answer.unwrap_or_else(raw::refuse)
}

/// `remove`: a file or a directory.
pub(crate) fn remove(path: usize) -> Answer {
    let answer = unlink(libc::AT_FDCWD, path, 0);
    if answer == 0 || raw::errno() != libc::EISDIR {
        return answer;
    }
    unlink(libc::AT_FDCWD, path, libc::AT_REMOVEDIR)
}

/// Mode, ownership or times of a path were changed in the file system: those of the mirror are to
/// follow.
pub(crate) fn follow(
    answer: Answer,
    (directory, path): (c_int, usize),
    flags: c_int,
    operation: Operation,
) -> Answer {
    let Some(ready) = ready().filter(|ready| answer == 0 && ready.shared.has_files()) else {
        return answer;
    };
    let named = Named::new(directory, path, flags & libc::AT_SYMLINK_NOFOLLOW);
    let Some(named) = named else {
        return answer;
    };
    let Some((slot, generation)) = named.mirrored(ready) else {
        return answer;
    };
    assert_eq!(named.address, path, "the path that was changed");
    let asked = named.absolute().and_then(|path| {
        let request = Request { slot, generation, ..Request::new(operation) };
        ask(ready, request, [path.bytes(), &[]])
    });
    asked.map_or_else(raw::refuse, |_| answer)
}
