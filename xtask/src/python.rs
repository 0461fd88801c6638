//! Environments of Python with packages of fixed versions, made once and found again by later runs.

use crate::cluster::{need, run};
use crate::steps::target_directory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of an environment `name` below cargo's target directory that holds these
/// packages.
pub(crate) fn environment(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let environment = Path::new(&target_directory()?).join(name);
    let python = environment.join("bin/python");
    // Written last: an installation that was cut short is made again.
    let complete = environment.join("complete");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == wanted) && python.exists() {
        return Ok(python);
    }
    need("python3", "python3-venv")?;
    let make = || run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    if make().is_err() {
        // Debian's Python comes without the modules that make environments.
        let apt = ["install", "-y", "-qq", "--no-install-recommends", "python3-venv"];
        run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(apt))?;
        make()?;
    }
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    std::fs::write(&complete, wanted)
        .map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(python)
}
