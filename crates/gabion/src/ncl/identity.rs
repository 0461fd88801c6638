//! The peer that a directory is, and the run of it that begins.
//!
//! `DIR/identity` is JSON: `format`, `made_by`, `id`, `machine`, `directory`, `incarnation`. Each
//! start raises the incarnation durably before anything is served, so that no two runs are taken
//! for one. The identity is bound to the machine and to the directory's inode: a copy would be the
//! same peer with other memory. `DIR/lock` is held while the peer runs.

use crate::cluster::failed;
use gabion_base::{Error, Result, crc};
use gabion_fabric::lock::lock_exclusive;
use gabion_media::remote::{Incarnation, PeerId};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FORMAT: u64 = 1;
const MADE_BY: &str = "gabion ncl peer";
/// Longest file that is read as one.
const LEN_MAX: u64 = 4096;

/// The identity of a peer that runs. Its directory is locked as long as this lives.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) id: PeerId,
    pub(super) incarnation: Incarnation,
    _lock: File,
}

impl Identity {
    /// Begins a run of the peer of this directory, which is made if it is not there.
    ///
    /// # Errors
    /// Busy while another process runs it; invalid input for a directory of another machine, a
    /// copy of one, or a file that is none of ours; I/O.
    pub(super) fn begin(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| failed(dir, "cannot be made", e))?;
        let lock_path = dir.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(&lock_path);
        let lock = lock.map_err(|e| failed(&lock_path, "cannot be opened", e))?;
        lock_exclusive(&lock, &lock_path)?;

        let path = dir.join("identity");
        let here = Place::of(dir)?;
        let (id, before) = match read(&path)? {
            Some(found) => {
                here.check(&found.place, dir)?;
                (found.id, found.incarnation)
            }
            None => (PeerId(random()), 0),
        };
        let Some(incarnation) = before.checked_add(1) else {
            return Err(Error::limit(format!(
                "{}: incarnation {before} is the last",
                dir.display()
            )));
        };
        let value = json!({
            "format": FORMAT,
            "made_by": MADE_BY,
            "id": id.to_string(),
            "machine": here.machine,
            "directory": here.directory,
            "incarnation": incarnation,
        });
        replace(dir, &path, format!("{value:#}\n").as_bytes())?;
        Ok(Self { id, incarnation: Incarnation(incarnation), _lock: lock })
    }
}

/// The machine, and the directory on it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    machine: String,
    directory: u64,
}

impl Place {
    fn of(dir: &Path) -> Result<Self> {
        // Not the number itself: it is the machine's secret. Without one all machines are alike.
        let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
        let salted = [MADE_BY.as_bytes(), machine.trim_ascii()].concat();
        let machine = format!("{:08x}", crc::crc32c(&salted));
        let directory = dir.metadata().map_err(|e| failed(dir, "cannot be looked at", e))?.ino();
        Ok(Self { machine, directory })
    }

    fn check(&self, kept: &Self, dir: &Path) -> Result<()> {
        let what = if self.machine != kept.machine {
            format!("machine {}, this is {}", kept.machine, self.machine)
        } else if self.directory != kept.directory {
            format!("directory {} on this machine, this is {}", kept.directory, self.directory)
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "{}: it is the peer of {what}. A copy would be the same peer with other memory: give a \
             new directory to --directory",
            dir.display()
        )))
    }
}

struct Kept {
    id: PeerId,
    place: Place,
    incarnation: u32,
}

fn read(path: &Path) -> Result<Option<Kept>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, "cannot be opened", error)),
        Ok(file) => file
            .take(LEN_MAX)
            .read_to_end(&mut bytes)
            .map_err(|e| failed(path, "cannot be read", e))?,
    };
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if value["made_by"] != MADE_BY {
        return Err(Error::invalid(format!("{}: is no identity of a peer", path.display())));
    }
    if value["format"] != FORMAT {
        return Err(Error::unsupported(format!(
            "{}: has format {}, this build knows {FORMAT}",
            path.display(),
            value["format"]
        )));
    }
    let id = value["id"].as_str().and_then(|id| u64::from_str_radix(id, 16).ok());
    let incarnation = value["incarnation"].as_u64().and_then(|number| u32::try_from(number).ok());
    let (machine, directory) = (value["machine"].as_str(), value["directory"].as_u64());
    match (id, incarnation, machine, directory) {
        (Some(id), Some(incarnation), Some(machine), Some(directory)) => {
            let place = Place { machine: machine.to_owned(), directory };
            Ok(Some(Kept { id: PeerId(id), place, incarnation }))
        }
        _ => Err(Error::corruption(format!("{}: a field is missing or no number", path.display()))),
    }
}

/// Replaces the file durably: by all of the new one, or not.
fn replace(dir: &Path, path: &Path, content: &[u8]) -> Result<()> {
    let new: PathBuf = dir.join("identity.new");
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| failed(path, "cannot be written", e))
}

/// A number that nobody else has.
fn random() -> u64 {
    let mut bytes = [0; 8];
    while getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(bytes.len()) {}
    u64::from_le_bytes(bytes)
}

/// A random number for a client.
pub(super) fn client_number() -> u64 {
    random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ErrorKind;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let name = format!("gabion-identity-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// docs/faults.md: N1
    #[test]
    fn each_run_of_a_peer_has_a_greater_incarnation_and_the_same_identity() {
        let dir = Dir::new("runs");
        let first = Identity::begin(&dir.0).unwrap();
        assert_eq!(first.incarnation, Incarnation(1));
        let id = first.id;
        drop(first);
        for run in 2..5 {
            let again = Identity::begin(&dir.0).unwrap();
            assert_eq!((again.id, again.incarnation), (id, Incarnation(run)));
        }
    }

    #[test]
    fn one_process_runs_a_peer() {
        let dir = Dir::new("lock");
        let _first = Identity::begin(&dir.0).unwrap();
        assert_eq!(Identity::begin(&dir.0).unwrap_err().kind(), ErrorKind::Busy);
    }

    #[test]
    fn a_copy_of_a_directory_and_one_of_another_machine_are_no_peer() {
        let (dir, copy) = (Dir::new("original"), Dir::new("copy"));
        drop(Identity::begin(&dir.0).unwrap());
        std::fs::create_dir_all(&copy.0).unwrap();
        let (from, to) = (dir.0.join("identity"), copy.0.join("identity"));
        std::fs::copy(&from, &to).unwrap();
        let error = Identity::begin(&copy.0).unwrap_err();
        assert!(error.message().contains("give a new directory"), "{error}");
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap(), "nothing changed");

        let text = std::fs::read_to_string(&from).unwrap();
        let machine = Place::of(&dir.0).unwrap().machine;
        std::fs::write(&from, text.replace(&machine, "00000000")).unwrap();
        let error = Identity::begin(&dir.0).unwrap_err();
        assert!(error.message().contains("machine 00000000"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_identity_is_refused_and_kept() {
        for (text, kind) in [
            ("notes", ErrorKind::InvalidInput),
            (r#"{"made_by": "gabion ncl peer", "format": 2}"#, ErrorKind::Unsupported),
            (r#"{"made_by": "gabion ncl peer", "format": 1}"#, ErrorKind::Corruption),
        ] {
            let dir = Dir::new("foreign");
            std::fs::create_dir_all(&dir.0).unwrap();
            let path = dir.0.join("identity");
            std::fs::write(&path, text).unwrap();
            assert_eq!(Identity::begin(&dir.0).unwrap_err().kind(), kind, "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
