//! Disks that answer nothing, for `gabion bench failover --cut-command`: the system lets a process
//! move one byte a second to and from the device, by a cgroup of its own.
//!
//! Machines have the controller of device traffic in cgroup v2 (`io.max`), or else in v1
//! (`blkio.throttle.*`).

use super::links::{CGROUPS, OWN};
use crate::cluster::{output, run};
use crate::steps::Step;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mount point of v1, if the machine has the controller there.
const V1: &str = "/mnt";
/// Its files, with the device and a number: 0 is no limit.
const V1_LIMITS: [&str; 2] = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];
const V2_LIMIT: &str = "io.max";
/// The file of v1 for slow writes, and writes a second of a slow disk.
const V1_WRITES: &str = "blkio.throttle.write_iops_device";
const SLOW_WRITES: u32 = 5;

/// Makes the controller usable, in this mount namespace alone. `links` has mounted v2.
pub(crate) fn mount() -> Step {
    if !is_v2()? {
        return run(Command::new("mount").args(["-t", "cgroup", "-o", "blkio", "none", V1]));
    }
    let root = Path::new(CGROUPS);
    let own = root.join(OWN);
    fs::create_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
    [root, &own].iter().try_for_each(|dir| write(&dir.join("cgroup.subtree_control"), "+io"))
}

/// Whether v2 has the controller. Its own groups may be there in any case, of links.
fn is_v2() -> Result<bool, String> {
    let controllers = read(&Path::new(CGROUPS).join("cgroup.controllers"))?;
    Ok(controllers.split_whitespace().any(|name| name == "io"))
}

/// Lets no read or write of a process end on the device where the directory lies.
pub(super) fn hang(pid: &str, directory: &str) -> Step {
    let device = device_of(Path::new(directory))?;
    let limit = Path::new(CGROUPS).join(OWN).join(pid).join(V2_LIMIT);
    if limit.exists() {
        return write(&limit, &format!("{device} rbps=1 wbps=1"));
    }
    let group = Path::new(V1).join(OWN).join(pid);
    fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
    write(&group.join("cgroup.procs"), pid)?;
    V1_LIMITS.iter().try_for_each(|limit| write(&group.join(limit), &format!("{device} 1")))
}

/// Lets a few writes of a process a second end on the device where the directory lies.
pub(crate) fn slow(pid: &str, directory: &Path) -> Step {
    let device = device_of(directory)?;
    if is_v2()? {
        let group = Path::new(CGROUPS).join(OWN).join(pid);
        fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        write(&group.join("cgroup.procs"), pid)?;
        return write(&group.join(V2_LIMIT), &format!("{device} wiops={SLOW_WRITES}"));
    }
    let group = Path::new(V1).join(OWN).join(pid);
    fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
    write(&group.join("cgroup.procs"), pid)?;
    write(&group.join(V1_WRITES), &format!("{device} {SLOW_WRITES}"))
}

/// Lifts the limits of every process.
pub(crate) fn heal() -> Step {
    for group in groups(V1) {
        for limit in V1_LIMITS.into_iter().chain([V1_WRITES]) {
            for device in devices(&group.join(limit))? {
                write(&group.join(limit), &format!("{device} 0"))?;
            }
        }
    }
    for group in groups(CGROUPS) {
        let limit = group.join(V2_LIMIT);
        if limit.exists() {
            for device in devices(&limit)? {
                write(&limit, &format!("{device} rbps=max wbps=max wiops=max"))?;
            }
        }
    }
    Ok(())
}

/// Removes the cgroups of replicas that have ended.
pub(crate) fn clear() {
    for path in groups(V1).into_iter().chain([Path::new(V1).join(OWN)]) {
        let _ = fs::remove_dir(path);
    }
}

fn groups(root: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(root).join(OWN)).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// The devices that a file of limits names, one a line.
fn devices(limits: &Path) -> Result<Vec<String>, String> {
    let text = read(limits)?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// `major:minor` of the whole disk below a directory: a part of a disk has no limits of its own.
fn device_of(directory: &Path) -> Result<String, String> {
    let device = output(
        Command::new("findmnt")
            .args(["--noheadings", "--output", "MAJ:MIN", "--target"])
            .arg(directory),
    )?;
    let device = device.trim().to_owned();
    let known = fs::canonicalize(format!("/sys/dev/block/{device}")).map_err(|error| {
        format!("{} is on no block device ({device}): {error}", directory.display())
    })?;
    match (known.join("partition").exists(), known.parent()) {
        (true, Some(disk)) => Ok(read(&disk.join("dev"))?.trim().to_owned()),
        _ => Ok(device),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Step {
    fs::write(path, text).map_err(|error| format!("'{text}' to {}: {error}", path.display()))
}
