//! Programs in Go, which Go's module proxy has the parts of: a directory beside `src` for each.

use crate::cluster::need;
use crate::steps::target_directory;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory for a program and what it works on.
pub(crate) fn directory(name: &str) -> Result<PathBuf, String> {
    let directory = Path::new(&target_directory()?).join(name);
    let made = fs::create_dir_all(&directory);
    made.map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// Builds a program in its directory, with the versions that `go.sum` names. Go's cache has what is
/// unchanged.
pub(crate) fn build(name: &str, program: &str) -> Result<PathBuf, String> {
    need("go", "golang-go")?;
    let directory = directory(name)?;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    for file in ["main.go", "go.mod", "go.sum"] {
        fs::copy(from.join(file), directory.join(file))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    let built = ["build", "-mod=readonly", "-o", program, "."];
    let mut go = Command::new("go");
    let status = go.args(built).env("GOTOOLCHAIN", "local").current_dir(&directory).status();
    match status {
        Ok(status) if status.success() => Ok(directory.join(program)),
        Ok(status) => Err(format!("go build of {name}: {status}")),
        Err(error) => Err(format!("go build of {name}: {error}")),
    }
}
