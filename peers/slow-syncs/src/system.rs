//! The calls of the kernel, each on the backing directory.

use crate::files::{Opened, Paths};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long the kernel may keep what it was told: nobody else changes the backing directory.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// The kernel's number of the root.
const ROOT: u64 = 1;

pub(crate) struct SlowSyncs {
    paths: Paths,
    opened: Opened,
    /// How long a sync takes.
    takes: Duration,
    backing: PathBuf,
}

impl SlowSyncs {
    pub(crate) fn new(backing: PathBuf, takes: Duration) -> Self {
        let paths = Paths::new(ROOT, backing.clone());
        Self { paths, opened: Opened::default(), takes, backing }
    }

    /// The kind of a path, which the kernel will ask for by number.
    fn found(&self, path: PathBuf) -> io::Result<FileAttr> {
        let attr = attr(&path.symlink_metadata()?);
        self.paths.set(attr.ino.0, path);
        Ok(attr)
    }

    fn by_number(&self, inode: u64, file: Option<FileHandle>) -> io::Result<FileAttr> {
        let metadata = match file.map(|file| self.opened.get(file.0)) {
            Some(Ok(file)) => file.metadata()?,
            _ => self.paths.get(inode)?.symlink_metadata()?,
        };
        let attr = attr(&metadata);
        Ok(FileAttr { ino: INodeNo(inode), ..attr })
    }

    fn open_file(&self, inode: u64, flags: i32) -> io::Result<u64> {
        let path = self.paths.get(inode)?;
        // The kernel writes back what others wrote, so it reads what it has in part.
        let is_written = flags & 3 != 0;
        let file = OpenOptions::new().read(true).write(is_written).open(path)?;
        Ok(self.opened.add(file))
    }

    /// The kind of a new path, which belongs to whoever made it.
    fn made(&self, path: PathBuf, request: &Request) -> io::Result<FileAttr> {
        std::os::unix::fs::lchown(&path, Some(request.uid()), Some(request.gid()))?;
        self.found(path)
    }

    fn create_file(
        &self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
    ) -> io::Result<(FileAttr, u64)> {
        let path = self.paths.child(parent, name)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(mode);
        let file = options.open(&path)?;
        Ok((self.made(path, request)?, self.opened.add(file)))
    }

    fn change(&self, inode: u64, change: &Change, file: Option<FileHandle>) -> io::Result<()> {
        let path = self.paths.get(inode)?;
        if let Some(mode) = change.mode {
            std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            std::os::unix::fs::chown(&path, change.uid, change.gid)?;
        }
        if let Some(len) = change.len {
            match file.map(|file| self.opened.get(file.0)) {
                Some(Ok(file)) => file.set_len(len)?,
                _ => OpenOptions::new().write(true).open(&path)?.set_len(len)?,
            }
        }
        Ok(())
    }

    fn list(&self, inode: u64, from: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        let path = self.paths.get(inode)?;
        let mut entries = vec![
            (inode, FileType::Directory, ".".into()),
            (ROOT, FileType::Directory, "..".into()),
        ];
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            entries.push((metadata.ino(), kind(&metadata), entry.file_name()));
        }
        for (at, (inode, kind, name)) in entries.iter().enumerate().skip(from as usize) {
            if reply.add(INodeNo(*inode), at as u64 + 1, *kind, name) {
                break;
            }
        }
        Ok(())
    }

    /// Waits on a thread of its own, so that no other call does. The kernel has written back all
    /// dirty bytes of the file by now.
    fn sync(&self, reply: ReplyEmpty) {
        let takes = self.takes;
        std::thread::spawn(move || {
            std::thread::sleep(takes);
            reply.ok();
        });
    }
}

/// The attributes that a call sets.
struct Change {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    len: Option<u64>,
}

fn done(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn entry(result: io::Result<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&KNOWN_FOR, &attr, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn kind(metadata: &Metadata) -> FileType {
    match metadata.file_type() {
        kind if kind.is_dir() => FileType::Directory,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_socket() => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn attr(metadata: &Metadata) -> FileAttr {
    let time = |seconds: i64| {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    };
    FileAttr {
        ino: INodeNo(metadata.ino()),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime()),
        mtime: time(metadata.mtime()),
        ctime: time(metadata.ctime()),
        crtime: time(metadata.ctime()),
        kind: kind(metadata),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for SlowSyncs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it each write would be a call of this process, as no disk's is.
        let wanted = InitFlags::FUSE_WRITEBACK_CACHE;
        let lacking = |_| io::Error::other("this kernel writes nothing back: 3.15 or later does");
        config.add_capabilities(wanted).map_err(lacking)
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.paths.child(parent.0, name).and_then(|path| self.found(path)), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.by_number(ino.0, fh) {
            Ok(attr) => reply.attr(&KNOWN_FOR, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, len: size };
        let changed = self.change(ino.0, &change, fh).and_then(|()| self.by_number(ino.0, fh));
        match changed {
            Ok(attr) => reply.attr(&KNOWN_FOR, &attr),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.paths.get(ino.0).and_then(std::fs::read_link) {
            Ok(path) => reply.data(path.as_os_str().as_encoded_bytes()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let made = self.paths.child(parent.0, name).and_then(|path| {
            DirBuilder::new().mode(mode).create(&path)?;
            self.made(path, request)
        });
        entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.paths.child(parent.0, name).and_then(std::fs::remove_file), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.paths.child(parent.0, name).and_then(std::fs::remove_dir), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: &Path,
        reply: ReplyEntry,
    ) {
        let made = self.paths.child(parent.0, name).and_then(|path| {
            std::os::unix::fs::symlink(to, &path)?;
            self.made(path, request)
        });
        entry(made, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // An exchange of names, or one that replaces nothing.
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self.paths.child(parent.0, name).and_then(|from| {
            let to = self.paths.child(newparent.0, newname)?;
            std::fs::rename(&from, &to)?;
            self.paths.rename(&from, &to);
            Ok(())
        });
        done(renamed, reply);
    }

    fn link(
        &self,
        _: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.paths.child(newparent.0, newname).and_then(|to| {
            std::fs::hard_link(self.paths.get(ino.0)?, &to)?;
            self.found(to)
        });
        entry(linked, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino.0, flags.0) {
            Ok(number) => reply.opened(FileHandle(number), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size as usize];
        match self.opened.get(fh.0).and_then(|file| read_all(&file, offset, &mut data)) {
            Ok(len) => reply.data(&data[..len]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.opened.get(fh.0).and_then(|file| file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.opened.remove(fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync(reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync(reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(ino.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.backing) {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(error) => reply.error(io::Error::from(error).into()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(request, parent.0, name, mode) {
            Ok((attr, number)) => {
                let handle = FileHandle(number);
                reply.created(&KNOWN_FOR, &attr, Generation(0), handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error.into()),
        }
    }
}

/// Bytes that are there, as many as are wanted up to the end.
fn read_all(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match file.read_at(&mut into[len..], offset + len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    Ok(len)
}
