//! The peers' programs: where they are, and whether they are built from the same sources as this
//! one.

use super::Peer;
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::Build;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that runs workloads on one engine: the words, then the options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The engine's name in rows and tables.
    pub name: String,
    /// The engine's name as its program prints it.
    pub engine: String,
    /// The program.
    pub path: PathBuf,
    /// The words before the options.
    pub words: Vec<OsString>,
    /// Bytes of disk that it reserves beyond the plan of a run.
    pub spare_len: u64,
}

/// The programs of peers, in `directory` or where cargo puts them.
pub(super) fn find(peers: &[Peer], directory: Option<&Path>) -> Result<Vec<Program>> {
    let mut programs: Vec<Program> = Vec::new();
    for (i, peer) in peers.iter().enumerate() {
        let name = peer.as_str().to_owned();
        if peers[i + 1..].contains(peer) {
            return Err(Error::invalid(format!("--vs names {name} twice")));
        }
        // BlobDB is a part of RocksDB.
        let engine = if *peer == Peer::Blobdb { Peer::Rocksdb } else { *peer }.as_str().to_owned();
        let path = locate(&format!("engine-{engine}"), directory)?;
        programs.push(Program { name, engine, path, words: vec!["run".into()], spare_len: 0 });
    }
    Ok(programs)
}

/// A program of the peers' workspace, in `directory` or where cargo puts it.
///
/// # Errors
/// It is not built, or from other sources than this program: workloads, settings of engines or
/// their versions may differ. The message has the command that builds it.
pub(crate) fn locate(file: &str, directory: Option<&Path>) -> Result<PathBuf> {
    let path = place(file, directory)?;
    check_build(&path, file, workspace().as_deref())?;
    Ok(path)
}

/// The same of a program that shares no sources with this one.
///
/// # Errors
/// It is not built.
pub(crate) fn place(file: &str, directory: Option<&Path>) -> Result<PathBuf> {
    place_in(file, directory, workspace().as_deref())
}

fn place_in(file: &str, directory: Option<&Path>, workspace: Option<&Path>) -> Result<PathBuf> {
    let directories: Vec<PathBuf> = match directory {
        Some(directory) => vec![directory.to_path_buf()],
        None => {
            let by_environment = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
            let by_default = workspace.map(|workspace| workspace.join("target"));
            by_environment.into_iter().chain(by_default).map(|dir| dir.join("release")).collect()
        }
    };
    let path = directories.iter().map(|dir| dir.join(file)).find(|path| path.is_file());
    path.ok_or_else(|| missing(file, &directories, workspace))
}

/// Refuses a program that is built from other sources than this one.
fn check_build(path: &Path, file: &str, workspace: Option<&Path>) -> Result<()> {
    let output = Command::new(path).arg(Build::WORD).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Error::with_source(ErrorKind::Io, format!("start {}", path.display()), error)
    })?;
    check_answer(&output.stdout).map_err(|other| {
        Error::unsupported(format!(
            "{} is built from {other}, this program from {}: workloads, engines' settings or versions are \
             others. This builds it anew:\n\n  {}\n",
            path.display(),
            Build::own().sources,
            how_to_build(file, workspace)
        ))
    })
}

/// Whether a program reports the same sources as this one; else its sources, in words.
fn check_answer(said: &[u8]) -> Result<(), String> {
    match Build::parse(said) {
        Some(build) if build.sources == Build::own().sources => Ok(()),
        Some(build) => Err(format!("sources {}", build.sources)),
        None => Err("sources that it does not tell".to_owned()),
    }
}

fn how_to_build(file: &str, workspace: Option<&Path>) -> String {
    let peers = workspace.unwrap_or(Path::new("peers")).display();
    format!("(cd {peers} && cargo build --release -p {file})")
}

/// The peers' workspace: `peers/` beside or above the working directory or this program.
fn workspace() -> Option<PathBuf> {
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    let above = starts.iter().flatten().flat_map(|start| start.ancestors());
    above.map(|dir| dir.join("peers")).find(|peers| peers.join("rocksdb/Cargo.toml").is_file())
}

fn missing(file: &str, directories: &[PathBuf], workspace: Option<&Path>) -> Error {
    let looked: Vec<_> = directories.iter().map(|dir| dir.display().to_string()).collect();
    let places = if looked.is_empty() { "no place".to_owned() } else { looked.join(", ") };
    let takes = match file.contains("rocksdb") {
        true => ", in half an hour on two cores, with a C++ compiler and libclang",
        false => "",
    };
    Error::not_found(format!(
        "{file} is not built (looked in {places}). This builds it{takes}:\n\n  {}\n",
        how_to_build(file, workspace)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_built_is_named_with_the_command_that_builds_it() {
        let error = find(&[Peer::Rocksdb], Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(error.contains("engine-rocksdb is not built (looked in /nowhere)"), "{error}");
        assert!(error.contains("cargo build --release -p engine-rocksdb"), "{error}");
    }

    #[test]
    fn a_program_that_is_built_from_other_sources_is_told_from_one_of_the_same() {
        let answer = |build: &Build| check_answer(build.json().to_string().as_bytes());
        assert_eq!(answer(&Build { profile: "other".to_owned(), ..Build::own() }), Ok(()));
        let older = Build { sources: "0123456789abcdef".to_owned(), ..Build::own() };
        assert_eq!(answer(&older), Err("sources 0123456789abcdef".to_owned()));
        assert!(check_answer(b"ready 127.0.0.1:1 127.0.0.1:2").is_err());
    }

    #[test]
    fn a_program_that_does_not_tell_its_sources_is_refused_with_the_command_that_builds_it() {
        let dir = crate::launch::ScratchDir::new(&env::temp_dir()).unwrap();
        std::os::unix::fs::symlink("/bin/echo", dir.path().join("replica-rocksdb")).unwrap();
        let error = locate("replica-rocksdb", Some(dir.path())).unwrap_err().to_string();
        for part in ["from sources that it does not tell, ", "-p replica-rocksdb)"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn programs_are_found_by_directory_and_named_once() {
        let dir = crate::launch::ScratchDir::new(&env::temp_dir()).unwrap();
        std::fs::write(dir.path().join("engine-fjall"), b"").unwrap();
        let path = place_in("engine-fjall", Some(dir.path()), None).unwrap();
        assert_eq!(path, dir.path().join("engine-fjall"));
        let error = find(&[Peer::Fjall, Peer::Fjall], Some(dir.path())).unwrap_err();
        assert!(error.message().contains("--vs names fjall twice"));
    }
}
