//! Tells the program the commit that it is built from, for the JSON of its runs.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::path::Path;
use std::process::Command;

/// One line of git's; `None` where there is no git, no repository, or no commit yet.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Sources unpacked inside another repository do not belong to its commit.
    if git(&["rev-parse", "--show-prefix"]).as_deref() != Some("crates/gabion-bench/") {
        return;
    }
    // Each commit and each checkout appends to the log of HEAD. Without a log, HEAD itself changes
    // at least when another branch is checked out.
    for name in ["logs/HEAD", "HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=GABION_COMMIT={commit}");
    }
}
