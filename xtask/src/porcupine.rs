//! Seeds of groups with controllers, whose histories a checker that is not ours looks at as well.

use crate::golang;
use crate::steps::{Step, run, run_covering};
use std::fs;

/// Runs seeds of `failover` from `first` on, then has Porcupine check what their clients saw.
pub(crate) fn failovers(first: u64, count: u64) -> Step {
    let directory = golang::directory("porcupine")?;
    let histories = directory.join("histories");
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    if histories.exists() {
        fs::remove_dir_all(&histories).map_err(failed)?;
    }
    fs::create_dir_all(&histories).map_err(failed)?;
    let checker = golang::build("porcupine", "check")?;
    let (first, count) = (first.to_string(), count.to_string());
    let shown = histories.to_string_lossy();
    let env =
        [("GABION_SEEDS", &*count), ("GABION_FIRST_SEED", &*first), ("GABION_HISTORIES", &*shown)];
    run_covering("failover", &env)?;
    run(&checker.to_string_lossy(), &[&shown], &[])
}
