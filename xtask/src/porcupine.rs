//! Seeds of groups with controllers, whose histories a checker that is not ours looks at as well.

use crate::cluster::need;
use crate::steps::{Step, run, run_covering, target_directory};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs seeds of `failover` from `first` on, then has Porcupine check what their clients saw.
pub(crate) fn failovers(first: u64, count: u64) -> Step {
    let directory = Path::new(&target_directory()?).join("porcupine");
    let histories = directory.join("histories");
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    if histories.exists() {
        fs::remove_dir_all(&histories).map_err(failed)?;
    }
    fs::create_dir_all(&histories).map_err(failed)?;
    let checker = build(&directory)?;
    let (first, count) = (first.to_string(), count.to_string());
    let shown = histories.to_string_lossy();
    let env =
        [("GABION_SEEDS", &*count), ("GABION_FIRST_SEED", &*first), ("GABION_HISTORIES", &*shown)];
    run_covering("failover", &env)?;
    run(&checker.to_string_lossy(), &[&shown], &[])
}

fn build(directory: &Path) -> Result<PathBuf, String> {
    need("go", "golang-go")?;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("porcupine");
    for file in ["main.go", "go.mod", "go.sum"] {
        fs::copy(from.join(file), directory.join(file))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    let built = ["build", "-mod=readonly", "-o", "check", "."];
    let mut go = Command::new("go");
    let status = go.args(built).env("GOTOOLCHAIN", "local").current_dir(directory).status();
    match status {
        Ok(status) if status.success() => Ok(directory.join("check")),
        Ok(status) => Err(format!("go build: {status}")),
        Err(error) => Err(format!("go build: {error}")),
    }
}
