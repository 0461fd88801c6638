//! The controller's store on a real etcd.

use crate::cluster::need;
use crate::golang;
use crate::steps::{Step, test};
use std::time::Instant;

/// Builds etcd and has the store's tests run on it, those of its faults among them.
pub(crate) fn check() -> Step {
    println!("\n── etcd: the controller's store on a real one");
    need("setpriv", "util-linux")?;
    let begun = Instant::now();
    let program = golang::build("etcd", "etcd")?;
    println!("── etcd is built, {:.0} s", begun.elapsed().as_secs_f64());
    let program = program.to_string_lossy();
    // Without them it would be the build alone that is tested.
    let ignored = ["-p", "gabion-etcd", "--test", "etcd", "--", "--ignored", "--nocapture"];
    test(&ignored, &[("GABION_ETCD", &*program)])
}
