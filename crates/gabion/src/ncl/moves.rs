//! `gabion ncl export|import`: an application's files to a directory, and back.
//!
//! ```text
//!  export  files ─► DIR/… ─► fsync ─► read back, compare ─► fsync of directories ─► manifest
//!  import  DIR/… (manifest: nothing missing, nothing changed) ─► lease ─► files without names
//!                 ─► stored ─► all names in one step
//! ```
//!
//! The manifest is the last thing that is written, so a directory that has it is whole. It lists
//! names, lengths, checksums and owners. A directory without one is imported as it is: whoever
//! changes files on purpose removes it.

use super::files::{at, in_json};
use super::opened::{FilesPlace, Opened, Right};
use super::run::failed;
use crate::screen;
use crate::units::{count, size};
use clap::Args;
use gabion_base::{Error, ErrorKind, Result, crc};
use gabion_mirror::files::{FileId, Listed, Metadata, NameChange};
use gabion_mirror::local::unescape;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind as Io, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

const MANIFEST: &str = "gabion-ncl-export.json";
/// Its version.
const VERSION: u64 = 1;
/// Names of files that are not whole yet begin so.
const UNFINISHED: &[u8] = b".gabion-ncl-import/";
/// How placeholders begin: names of files whose bytes are in a store.
const PLACEHOLDER: &[u8] = b"gabion-ncl 1 ";
/// Bytes that are read at a time.
const PART_LEN: usize = 1 << 20;

#[derive(Args, Debug)]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// The directory: made, or empty. All is synced to its disk, read back and compared
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct ImportOptions {
    #[command(flatten)]
    place: FilesPlace,
    /// End an instance that runs: it writes no more; DIR is checked before
    #[arg(long, requires = "controller")]
    take_over: bool,
    /// Files of the same names are replaced; else nothing is imported if there is one
    #[arg(long)]
    replace: bool,
    /// Losses of peers at a time that lose nothing, 1 to 7, of an application that is new
    #[arg(long, value_name = "N", default_value_t = 1, requires = "controller",
        value_parser = clap::value_parser!(u8).range(1..=7))]
    f: u8,
    /// The directory: all files in it, by their paths from there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn export(options: &ExportOptions) -> Result<u8> {
    let directory = &options.directory;
    make(directory)?;
    let mut opened = options.place.open(Right::default())?;
    let (mut directories, mut entries) = (BTreeSet::from([directory.clone()]), Vec::new());
    let files = opened.listed.clone();
    for file in &files {
        let sum = put(&mut opened, file, directory, &mut directories)?;
        entries.push(in_json(file, Some(sum)));
    }
    for one in &directories {
        File::open(one).and_then(|it| it.sync_all()).map_err(at(one))?;
    }
    let application = &options.place.app;
    let value = json!({ "version": VERSION, "application": application, "files": entries });
    write_manifest(directory, &format!("{value:#}\n"))?;
    let bytes = files.iter().map(|file| file.len).sum();
    screen::put(&format!(
        "{}, {}, are in {}: synced, read back, compared\n",
        count(files.len() as u64, "file"),
        size(bytes),
        directory.display()
    ));
    Ok(0)
}

/// An empty directory.
fn make(directory: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == Io::AlreadyExists => {}
        made => return made.map_err(at(directory)),
    }
    let mut found = std::fs::read_dir(directory).map_err(at(directory))?;
    match found.next() {
        None => Ok(()),
        Some(_) => Err(Error::invalid(format!("{}: it is not empty", directory.display()))),
    }
}

/// A path below the directory, from a name.
fn below(directory: &Path, name: &[u8]) -> Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(name));
    let is_plain = |part| matches!(part, Component::Normal(_));
    if name.is_empty() || !path.components().all(is_plain) || name == MANIFEST.as_bytes() {
        let name = path.display().to_string();
        return Err(Error::corruption(format!("'{}' is no path of a file", name.escape_debug())));
    }
    Ok(directory.join(path))
}

/// One file with all of its names. Returns the checksum of its bytes, which were read back.
fn put(
    opened: &mut Opened,
    file: &Listed,
    directory: &Path,
    directories: &mut BTreeSet<PathBuf>,
) -> Result<u32> {
    let paths = file.names.iter().map(|name| below(directory, name));
    let paths = paths.collect::<Result<Vec<_>>>()?;
    for path in &paths {
        let parents = path.ancestors().skip(1).take_while(|it| *it != directory);
        directories.extend(parents.map(Path::to_owned));
        let parent = path.parent().unwrap_or(directory);
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(at(parent))?;
    }
    let Some((first, others)) = paths.split_first() else {
        return Err(Error::corruption(format!("file {} has no name", file.file.0)));
    };
    let mut target = File::options().write(true).create_new(true).open(first).map_err(at(first))?;
    let sum = opened.read(file, |bytes| target.write_all(bytes).map_err(at(first)))?;
    let Metadata { mode, user, group } = file.metadata;
    let found = target.metadata().map_err(at(first))?;
    if (found.uid(), found.gid()) != (user, group)
        && std::os::unix::fs::fchown(&target, Some(user), Some(group)).is_err()
    {
        eprintln!("{}: it is not given to user {user}, group {group}", first.display());
    }
    let permissions = Permissions::from_mode(mode & 0o7777);
    target.set_permissions(permissions).and_then(|()| target.sync_all()).map_err(at(first))?;
    for other in others {
        std::fs::hard_link(first, other).map_err(at(other))?;
    }
    let (found, len) = read(first, |_| Ok(()))?;
    if (found, len) == (sum, file.len) {
        return Ok(sum);
    }
    Err(Error::corruption(format!(
        "{}: {len} bytes of checksum {found:08x} were read back, {} of {sum:08x} were written",
        first.display(),
        file.len
    )))
}

/// All bytes of a file. Returns checksum and length.
fn read(path: &Path, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<(u32, u64)> {
    let mut file = File::open(path).map_err(at(path))?;
    let (mut buffer, mut sum, mut len) = (vec![0; PART_LEN], 0, 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((sum, len)),
            Ok(got) => {
                sum = crc::append(sum, &buffer[..got]);
                len += got as u64;
                take(&buffer[..got])?;
            }
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) => return Err(at(path)(error)),
        }
    }
}

fn write_manifest(directory: &Path, text: &str) -> Result<()> {
    let (new, path) = (directory.join(format!("{MANIFEST}.new")), directory.join(MANIFEST));
    let mut file = File::create_new(&new).map_err(at(&new))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(at(&new))?;
    std::fs::rename(&new, &path).map_err(at(&path))?;
    // The directory's own name too.
    let parent = directory.parent().filter(|it| !it.as_os_str().is_empty());
    for one in [directory, parent.unwrap_or(Path::new("."))] {
        File::open(one).and_then(|it| it.sync_all()).map_err(at(one))?;
    }
    Ok(())
}

/// A file that is to be imported.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    names: Vec<Vec<u8>>,
    metadata: Metadata,
    /// Checksum and length, as the manifest has them.
    expected: Option<(u32, u64)>,
}

impl Source {
    /// Whether checksum and length are those of the manifest, if there is one.
    fn check(&self, found: (u32, u64)) -> Result<()> {
        match self.expected {
            Some((sum, len)) if found != (sum, len) => Err(Error::corruption(format!(
                "{}: {} bytes of checksum {:08x}, the manifest has {len} of {sum:08x}. Remove \
                 {MANIFEST} to import it as it is",
                self.path.display(),
                found.1,
                found.0
            ))),
            _ => Ok(()),
        }
    }
}

pub(super) fn import(options: &ImportOptions) -> Result<u8> {
    let mut sources = find(&options.directory)?;
    if let Some(manifest) = read_manifest(&options.directory)? {
        compare(&mut sources, manifest)?;
    }
    if sources.is_empty() {
        let text = format!("{}: there is no file in it", options.directory.display());
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    let nothing = |error: Error| error.within("nothing was imported");
    sources.iter().try_for_each(check_bytes).map_err(nothing)?;
    let names = || sources.iter().flat_map(|source| &source.names).map(Vec::as_slice);
    if options.take_over
        && !options.replace
        && let Some(reported) = options.place.reported()?
    {
        refuse_taken(reported.taken(names()))?;
    }
    let (takes_over, makes) = (options.take_over, Some(options.f));
    let mut opened = options.place.open(Right { takes_over, makes, ..Right::default() })?;
    if !options.replace {
        refuse_taken(names().find(|name| opened.find(OsStr::from_bytes(name)).is_ok()))?;
    }
    let mut bytes = 0;
    let made = store_all(&mut opened, &sources, &mut bytes);
    if let Err(error) = made {
        remove_unfinished(&mut opened);
        return Err(nothing(error));
    }
    screen::put(&format!("{}, {}, stored\n", count(sources.len() as u64, "file"), size(bytes)));
    Ok(0)
}

fn refuse_taken(name: Option<&[u8]>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    Err(Error::invalid(format!(
        "'{}' is there already; --replace replaces files of the same names",
        String::from_utf8_lossy(name).escape_debug()
    )))
}

/// Whether a file can be read, and is what the manifest says: before a running instance is ended.
fn check_bytes(source: &Source) -> Result<()> {
    let found = read(&source.path, |_| Ok(()))?;
    source.check(found)
}

/// All regular files below a directory, by their paths, links as one file.
fn find(directory: &Path) -> Result<Vec<Source>> {
    let mut sources = BTreeMap::<(u64, u64), Source>::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).map_err(at(&next))? {
            let path = entry.map_err(at(&next))?.path();
            let status = path.symlink_metadata().map_err(at(&path))?;
            let name = path.strip_prefix(directory).unwrap_or(&path).as_os_str().as_bytes();
            if name == MANIFEST.as_bytes() {
                continue;
            }
            if status.is_dir() {
                left.push(path);
                continue;
            }
            if !status.is_file() {
                let text = format!("{}: neither a file nor a directory", path.display());
                return Err(Error::invalid(text));
            }
            let mut begin = Vec::new();
            let file = File::open(&path).map_err(at(&path))?;
            file.take(PLACEHOLDER.len() as u64).read_to_end(&mut begin).map_err(at(&path))?;
            if begin == PLACEHOLDER {
                return Err(Error::invalid(format!(
                    "{}: it has no bytes of its own, they are in a store of logs",
                    path.display()
                )));
            }
            let (mode, user, group) = (status.mode() & 0o7777, status.uid(), status.gid());
            let metadata = Metadata { mode, user, group };
            let name = name.to_vec();
            let source = sources.entry((status.dev(), status.ino()));
            let new = Source { path, names: Vec::new(), metadata, expected: None };
            source.or_insert(new).names.push(name);
        }
    }
    let mut sources: Vec<Source> = sources.into_values().collect();
    sources.iter_mut().for_each(|source| source.names.sort());
    sources.sort_by(|a, b| a.names.cmp(&b.names));
    Ok(sources)
}

/// All names of a file.
type Names = Vec<Vec<u8>>;
/// A manifest's entry of a file: its attributes, checksum and length.
type Entry = (Metadata, u32, u64);
/// Files of a manifest.
type Manifest = BTreeMap<Names, Entry>;

fn read_manifest(directory: &Path) -> Result<Option<Manifest>> {
    let path = directory.join(MANIFEST);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == Io::NotFound => return Ok(None),
        read => read.map_err(at(&path))?,
    };
    let bad = |why: &str| Error::corruption(format!("{}: {why}", path.display()));
    let value: Value = serde_json::from_slice(&text).map_err(|error| bad(&error.to_string()))?;
    match value["version"].as_u64() {
        Some(VERSION) => {}
        version => return Err(bad(&format!("version {version:?}, known is {VERSION}"))),
    }
    let files = value["files"].as_array().ok_or_else(|| bad("it has no list of files"))?;
    let entries = files.iter().map(|file| {
        parse_entry(file).ok_or_else(|| bad(&format!("this is no entry of a file: {file}")))
    });
    entries.collect::<Result<Manifest>>().map(Some)
}

fn parse_entry(file: &Value) -> Option<(Names, Entry)> {
    let names = file["names"].as_array()?.iter().map(|name| unescape(name.as_str()?));
    let mut names = names.collect::<Option<Vec<_>>>()?;
    names.sort();
    let mode = u32::from_str_radix(file["mode"].as_str()?, 8).ok()?;
    let [user, group] = ["user", "group"].map(|key| u32::try_from(file[key].as_u64()?).ok());
    let metadata = Metadata { mode, user: user?, group: group? };
    let sum = u32::from_str_radix(file["crc32c"].as_str()?, 16).ok()?;
    Some((names, (metadata, sum, file["bytes"].as_u64()?)))
}

/// The directory has the manifest's files and no others. Their bytes are compared as they are read.
fn compare(sources: &mut [Source], mut manifest: Manifest) -> Result<()> {
    let differs = |name: &[Vec<u8>], what: &str| {
        let name = name.first().map_or(&b""[..], |name| name);
        Err(Error::corruption(format!(
            "'{}' {what}. Remove {MANIFEST} to import the directory as it is",
            String::from_utf8_lossy(name).escape_debug()
        )))
    };
    for source in sources {
        let Some((metadata, sum, len)) = manifest.remove(&source.names) else {
            return differs(&source.names, "is not in the manifest");
        };
        (source.metadata, source.expected) = (metadata, Some((sum, len)));
    }
    match manifest.pop_first() {
        Some((names, _)) => differs(&names, "is in the manifest, and not in the directory"),
        None => Ok(()),
    }
}

/// Bytes first, under names of their own; then all names at once.
fn store_all(opened: &mut Opened, sources: &[Source], bytes: &mut u64) -> Result<()> {
    remove_unfinished(opened);
    let mut changes = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        let (name, file) = store_one(opened, number, source, bytes)?;
        changes.extend(source.names.iter().map(|name| NameChange::Set(name.clone(), file)));
        changes.push(NameChange::Remove(name));
    }
    let failed = |error| failed("the store", error);
    opened.store.sync().map_err(failed)?;
    opened.store.edit_names(&changes).and_then(|()| opened.store.sync()).map_err(failed)
}

fn store_one(
    opened: &mut Opened,
    number: usize,
    source: &Source,
    bytes: &mut u64,
) -> Result<(Vec<u8>, FileId)> {
    let name = [UNFINISHED, number.to_string().as_bytes()].concat();
    let failed = |error| failed("the store", error);
    let file = opened.store.create(&name, source.metadata).map_err(failed)?;
    let mut len = 0;
    let found = read(&source.path, |part| {
        opened.store.pwrite(file, len, part).map_err(failed)?;
        len += part.len() as u64;
        Ok(())
    })?;
    *bytes += len;
    // It may have changed since it was looked at.
    source.check(found)?;
    Ok((name, file))
}

/// Rests of an import that failed or was killed.
fn remove_unfinished(opened: &mut Opened) {
    // A leftover that cannot be listed or removed shows when the next name is made.
    let Ok(listed) = opened.store.recover() else { return };
    let names = listed.into_iter().flat_map(|file| file.names);
    let names = names.filter(|name| name.starts_with(UNFINISHED));
    let changes: Vec<NameChange> = names.map(NameChange::Remove).collect();
    if !changes.is_empty() {
        let _ = opened.store.edit_names(&changes);
    }
}
