//! Builds the interposer, which this program carries within itself (`src/ncl.rs`).
//!
//! Cargo has no stable way to depend on a shared library of the workspace, and a file beside the
//! program is lost when the program is copied or installed. So Cargo is called once more, for the
//! one package, in a directory of this build's own. It needs no network: the package's two crates
//! from elsewhere are among those of this program, so they are there by now.

#![allow(clippy::disallowed_methods, reason = "a build script")]

use std::path::PathBuf;
use std::process::Command;

const PACKAGE: &str = "../gabion-preload";

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    for path in ["../gabion-preload/src", "../gabion-mirror/src", "../gabion-mirror/Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-changed={PACKAGE}/Cargo.toml");
    println!("cargo::rerun-if-changed=build.rs");
    let (directory, target) = (PathBuf::from(variable("OUT_DIR")), variable("TARGET"));
    let directory = directory.join("interposer");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--lib", "--offline", "--locked", "--quiet"]);
    cargo.args(["--manifest-path", &format!("{PACKAGE}/Cargo.toml"), "--target", &target]);
    cargo.arg("--target-dir").arg(&directory);
    // No information for debuggers: it would be most of what this program carries.
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    cargo.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Settings by a lint, a model checker or a sanitizer of the build outside are not for this one.
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "CLIPPY_ARGS",
        "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS",
    ] {
        cargo.env_remove(name);
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?}: {error}"));
    assert!(status.success(), "{cargo:?}: {status}");
    let library = directory.join(target).join("release/libgabion_preload.so");
    println!("cargo::rustc-env=GABION_INTERPOSER={}", library.display());
}
