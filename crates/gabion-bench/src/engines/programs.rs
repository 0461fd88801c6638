//! Where the programs of peers are.

use super::Peer;
use gabion_base::{Error, Result};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A program that runs workloads on one engine: the words, then the options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The engine's name in rows.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// What stands before the options.
    pub words: Vec<OsString>,
}

/// The programs of peers, in `directory` or where cargo puts them.
pub(super) fn find(peers: &[Peer], directory: Option<&Path>) -> Result<Vec<Program>> {
    let mut programs: Vec<Program> = Vec::new();
    for peer in peers {
        let name = peer.as_str().to_owned();
        if programs.iter().any(|program| program.name == name) {
            return Err(Error::invalid(format!("--vs names {name} twice")));
        }
        let path = locate(&format!("engine-{name}"), directory)?;
        programs.push(Program { name, path, words: vec!["run".into()] });
    }
    Ok(programs)
}

/// A program of the peers' workspace, in `directory` or where cargo puts it.
///
/// # Errors
/// It is not built; the message has the command that builds it.
pub(crate) fn locate(file: &str, directory: Option<&Path>) -> Result<PathBuf> {
    let workspace = workspace();
    let directories: Vec<PathBuf> = match directory {
        Some(directory) => vec![directory.to_path_buf()],
        None => {
            let by_environment = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
            let by_default = workspace.as_ref().map(|workspace| workspace.join("target"));
            by_environment.into_iter().chain(by_default).map(|dir| dir.join("release")).collect()
        }
    };
    let path = directories.iter().map(|dir| dir.join(file)).find(|path| path.is_file());
    path.ok_or_else(|| missing(file, &directories, workspace.as_deref()))
}

/// The peers' workspace: `peers/` beside or above the working directory or this program.
fn workspace() -> Option<PathBuf> {
    let starts = [env::current_dir().ok(), env::current_exe().ok()];
    let above = starts.iter().flatten().flat_map(|start| start.ancestors());
    above.map(|dir| dir.join("peers")).find(|peers| peers.join("rocksdb/Cargo.toml").is_file())
}

fn missing(file: &str, directories: &[PathBuf], workspace: Option<&Path>) -> Error {
    let looked: Vec<_> = directories.iter().map(|dir| dir.display().to_string()).collect();
    let peers = workspace.unwrap_or(Path::new("peers")).display().to_string();
    let places = if looked.is_empty() { "no place".to_owned() } else { looked.join(", ") };
    Error::not_found(format!(
        "{file} is not built (looked in {places}). This builds it, RocksDB in half an hour on two \
         cores, with a C++ compiler and libclang:\n\n  (cd {peers} && cargo build --release -p {file})\n"
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
    fn programs_are_found_by_directory_and_named_once() {
        let dir = crate::launch::ScratchDir::new(&env::temp_dir()).unwrap();
        std::fs::write(dir.path().join("engine-fjall"), b"").unwrap();
        let programs = find(&[Peer::Fjall], Some(dir.path())).unwrap();
        assert_eq!(programs[0].path, dir.path().join("engine-fjall"));
        let error = find(&[Peer::Fjall, Peer::Fjall], Some(dir.path())).unwrap_err();
        assert!(error.message().contains("--vs names fjall twice"));
    }
}
