//! Common code of the interposer's tests: an owner in this process, and programs under it.
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../../examples/disk/shadow.rs"]
pub(crate) mod disk;

use gabion_mirror::files::{FileId, Listed, LogFiles, Metadata, NameChange};
use gabion_mirror::local::LocalFiles;
use gabion_mirror::owner::{Owner, Settings, Splits};
use gabion_mirror::shared::Shared;
use gabion_mirror::start;
use gabion_mirror::wire::SOCKET;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An owner with a store in a directory.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) owner: Owner,
    socket: PathBuf,
}

impl Run {
    /// The store is in `home`, the files are below `root`.
    pub(crate) fn start(home: &Path, root: &Path, globs: &str, every_write: bool) -> Self {
        let store = LocalFiles::open(&home.join("store")).unwrap();
        Self::with(Box::new(store), home, root, globs, every_write)
    }

    /// The same, and files are split instead.
    pub(crate) fn start_split(home: &Path, root: &Path, splits: Splits, every_write: bool) -> Self {
        let store = LocalFiles::open(&home.join("store")).unwrap();
        let (settings, splits) = (Self::settings(home, root, ""), Some(splits));
        Self::start_with(Box::new(store), Settings { splits, every_write, ..settings }).unwrap()
    }

    pub(crate) fn with(
        store: Box<dyn LogFiles>,
        home: &Path,
        root: &Path,
        globs: &str,
        every_write: bool,
    ) -> Self {
        Self::try_with(store, home, root, globs, every_write).unwrap()
    }

    pub(crate) fn try_with(
        store: Box<dyn LogFiles>,
        home: &Path,
        root: &Path,
        globs: &str,
        every_write: bool,
    ) -> io::Result<Self> {
        let settings = Settings { every_write, ..Self::settings(home, root, globs) };
        Self::start_with(store, settings)
    }

    pub(crate) fn settings(home: &Path, root: &Path, globs: &str) -> Settings {
        Settings {
            application: "test".to_owned(),
            root: root.to_path_buf(),
            globs: globs.to_owned(),
            splits: None,
            every_write: false,
            directory: home.join("socket"),
        }
    }

    pub(crate) fn start_with(store: Box<dyn LogFiles>, settings: Settings) -> io::Result<Self> {
        let socket = settings.directory.clone();
        let _ = std::fs::remove_dir_all(&socket);
        std::fs::create_dir_all(&socket)?;
        let owner = Owner::start(settings, store)?;
        // A program may run as another user than its owner.
        std::fs::set_permissions(socket.join(SOCKET), Permissions::from_mode(0o777))?;
        Ok(Self { owner, socket })
    }

    /// A program with the interposer.
    pub(crate) fn command(&self, program: &Path) -> Command {
        start::command(program, &interposer(), &self.socket)
    }

    pub(crate) fn stop(self) {
        self.owner.stop().unwrap();
    }

    /// Ends as an owner that was killed: it does nothing more with files or store.
    pub(crate) fn abandon(self) {
        self.owner.shared().fail(libc::EIO);
        self.owner.stop().unwrap_err();
    }
}

/// A store that does something before it takes bytes.
pub(crate) struct Hindered {
    pub(crate) store: LocalFiles,
    pub(crate) before_pwrite: Box<dyn FnMut() -> io::Result<()> + Send>,
}

impl LogFiles for Hindered {
    fn recover(&mut self) -> io::Result<Vec<Listed>> {
        self.store.recover()
    }

    fn attach(&mut self, changes: Shared) {
        self.store.attach(changes);
    }

    fn memory(&mut self, file: FileId) -> io::Result<Option<File>> {
        self.store.memory(file)
    }

    fn create(&mut self, name: &[u8], metadata: Metadata) -> io::Result<FileId> {
        self.store.create(name, metadata)
    }

    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.store.read(file, offset, into)
    }

    fn pwrite(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (self.before_pwrite)()?;
        self.store.pwrite(file, offset, bytes)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.store.truncate(file, len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.store.sync()
    }

    fn edit_names(&mut self, changes: &[NameChange]) -> io::Result<()> {
        self.store.edit_names(changes)
    }

    fn set_metadata(&mut self, file: FileId, metadata: Metadata) -> io::Result<()> {
        self.store.set_metadata(file, metadata)
    }
}

/// A new directory of this test's.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).expect("target/…/deps/program").to_path_buf()
}

/// The library that was built with these tests.
pub(crate) fn interposer() -> PathBuf {
    let built = built();
    let places = ["deps/libgabion_preload.so", "libgabion_preload.so"];
    let found = places.map(|place| built.join(place)).into_iter().find(|path| path.exists());
    found.expect("the interposer is built with its tests")
}

/// A program or library of this crate's tests. `cargo build --examples` makes them.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = built().join("examples").join(name);
    assert!(path.exists(), "{name} is missing: cargo build -p gabion-preload --examples");
    path
}

/// Has the syncs of an interposed program's other files noted, for what a lost disk has.
pub(crate) fn note_syncs(command: &mut Command, shadow: &Path, root: &Path) {
    let libraries = [example("libdisk.so"), interposer()].map(|path| path.into_os_string());
    command.env("LD_PRELOAD", libraries.join(std::ffi::OsStr::new(":")));
    command.env(disk::SHADOW, shadow).env(disk::ROOT, root);
}

/// A command that runs a script of calls in a directory.
pub(crate) fn script_command(run: Option<&Run>, place: &Path, script: &Path) -> Command {
    let program = built().join("examples/script");
    let mut command = run.map_or_else(|| Command::new(&program), |run| run.command(&program));
    command.arg(script).current_dir(place).stdin(Stdio::null());
    command
}

/// Runs a script of calls in a directory, and gives what it printed.
pub(crate) fn script(run: Option<&Run>, place: &Path, script: &Path) -> String {
    let mut command = script_command(run, place, script);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{said}{errors}", script.display(), output.status);
    said
}

/// Copies directories, links, and files that are no placeholders, with modes and owners.
pub(crate) fn copy_plain(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    copy_rights(from, to);
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_plain(&path, &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&path).unwrap(), target).unwrap();
        } else if !std::fs::read(&path).unwrap().starts_with(b"gabion-ncl 1 ") {
            std::fs::copy(&path, &target).unwrap();
            copy_rights(&path, &target);
        }
    }
}

fn copy_rights(from: &Path, to: &Path) {
    let status = from.metadata().unwrap();
    std::os::unix::fs::chown(to, Some(status.uid()), Some(status.gid())).unwrap();
    std::fs::set_permissions(to, status.permissions()).unwrap();
}

/// Numbers that follow from a seed.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
