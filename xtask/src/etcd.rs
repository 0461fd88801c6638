//! The controller's store on a real etcd, and controllers over it.

use crate::cluster::need;
use crate::golang;
use crate::steps::{Step, test};
use std::time::Instant;

/// Builds etcd and has the tests that need one run: of the store with its faults, of controllers.
pub(crate) fn check() -> Step {
    println!("\n── etcd: the controller's store on a real one");
    need("setpriv", "util-linux")?;
    let begun = Instant::now();
    let program = golang::build("etcd", "etcd")?;
    println!("── etcd is built, {:.0} s", begun.elapsed().as_secs_f64());
    let program = program.to_string_lossy();
    let env = [("GABION_ETCD", &*program)];
    // A plain `cargo test` passes over them.
    let ignored = ["--", "--ignored", "--nocapture"];
    test(&[&["-p", "gabion-etcd", "--test", "etcd"][..], &ignored].concat(), &env)?;
    test(&[&["-p", "gabion", "--test", "controllers"][..], &ignored].concat(), &env)
}
