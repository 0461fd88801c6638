//! Two properties of the dependency graph: rooms depend only along the arrows of
//! docs/architecture.md, and every third-party crate has a licence on the allow-list.

use crate::steps::Step;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// The allowed direct dependencies of each room: the arrows of docs/architecture.md, closed under
/// transitivity by hand so that a new arrow is a change that a reviewer sees.
pub(crate) const ROOMS: &[(&str, &[&str])] = &[
    ("gabion-base", &[]),
    ("gabion-media", &["gabion-base"]),
    ("gabion-pool", &["gabion-base", "gabion-media"]),
    ("gabion-log", &["gabion-base", "gabion-media", "gabion-pool"]),
    ("gabion-engine", &["gabion-base", "gabion-media", "gabion-pool", "gabion-log"]),
    ("gabion-replication", &["gabion-base"]),
    ("gabion-control", &["gabion-base", "gabion-replication"]),
    (
        "gabion-node",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-log",
            "gabion-engine",
            "gabion-replication",
        ],
    ),
    ("gabion-resp", &["gabion-base"]),
    ("gabion-etcd", &["gabion-base", "gabion-control", "gabion-tls"]),
    ("gabion-ncl", &["gabion-base", "gabion-media", "gabion-control"]),
    // The kernel's data on a process, on Gabion's and on those that it is measured beside, and
    // orders to the kernel.
    ("gabion-proc", &[]),
    ("gabion-tls", &["gabion-base"]),
    ("gabion-fabric", &["gabion-base", "gabion-media", "gabion-proc"]),
    (
        "gabion-ncl-driver",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-control",
            "gabion-ncl",
            "gabion-fabric",
            "gabion-mirror",
            "gabion-tls",
        ],
    ),
    // Both ends of what processes of an interposed program share. The interposer is loaded into
    // each of them, and has of a core what it writes log peers' memory with.
    ("gabion-mirror", &["gabion-base", "gabion-ncl"]),
    ("gabion-preload", &["gabion-base", "gabion-mirror", "gabion-ncl"]),
    (
        "gabion-sim",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-log",
            "gabion-engine",
            "gabion-replication",
            "gabion-control",
            "gabion-node",
            "gabion-proc",
        ],
    ),
    (
        "gabion-host",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-engine",
            "gabion-node",
            "gabion-proc",
            "gabion-fabric",
        ],
    ),
    (
        "gabion-db",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-engine",
            "gabion-node",
            "gabion-fabric",
            "gabion-host",
        ],
    ),
    (
        "gabion-server",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-engine",
            "gabion-replication",
            "gabion-control",
            "gabion-node",
            "gabion-resp",
            "gabion-proc",
            "gabion-fabric",
            "gabion-host",
            "gabion-tls",
        ],
    ),
    (
        "gabion-bench",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-engine",
            "gabion-node",
            "gabion-resp",
            "gabion-proc",
            "gabion-fabric",
            "gabion-ncl",
            "gabion-ncl-driver",
            "gabion-workload",
        ],
    ),
    (
        "gabion",
        &[
            "gabion-base",
            "gabion-media",
            "gabion-pool",
            "gabion-log",
            "gabion-engine",
            "gabion-replication",
            "gabion-control",
            "gabion-ncl",
            "gabion-ncl-driver",
            "gabion-node",
            "gabion-resp",
            "gabion-proc",
            "gabion-mirror",
            "gabion-tls",
            "gabion-fabric",
            "gabion-host",
            "gabion-db",
            "gabion-server",
            "gabion-bench",
            "gabion-etcd",
            "gabion-workload",
        ],
    ),
    // Built into the programs of other engines too, so it knows nothing of Gabion's.
    ("gabion-workload", &["gabion-base", "gabion-proc"]),
    // The system that Gabion is measured beside. It shares the codec of clients and nothing that
    // replicates or stores.
    ("gabion-baseline", &["gabion-base", "gabion-resp", "gabion-proc", "gabion-workload"]),
];

/// Core rooms: no standard library, at most five third-party crates each.
pub(crate) const CORES: &[&str] = &[
    "gabion-base",
    "gabion-media",
    "gabion-pool",
    "gabion-log",
    "gabion-engine",
    "gabion-replication",
    "gabion-control",
    "gabion-node",
    "gabion-resp",
    "gabion-ncl",
];

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Apache-2.0 WITH LLVM-exception",
    "Unlicense",
    "CC0-1.0",
    "BSL-1.0",
    "0BSD",
    "MIT-0",
];

/// The workspaces; the peers' one is checked, not built.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "peers/Cargo.toml"];

/// Every package that a workspace depends on, by its lock.
fn packages(manifest: &str) -> Result<Vec<Value>, String> {
    let what = format!("cargo metadata of {manifest}");
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest])
        .output()
        .map_err(|error| format!("{what}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{what}: {error}"))?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err(format!("{what}: no packages")),
    }
}

/// Checks both.
pub(crate) fn check() -> Step {
    println!("\n── rooms, cores and licences");
    let mut wrong = Vec::new();
    let rooms: BTreeMap<&str, &[&str]> = ROOMS.iter().copied().collect();
    for manifest in WORKSPACES {
        let packages = packages(manifest)?;
        for package in &packages {
            let name = package["name"].as_str().unwrap_or_default();
            match rooms.get(name) {
                Some(allowed) => check_room(package, name, allowed, &mut wrong),
                None => check_licence(package, name, &mut wrong),
            }
        }
        println!("{manifest}: {} packages looked at", packages.len());
    }
    for core in CORES {
        let path = format!("crates/{core}/src/lib.rs");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        if !text.contains("#![no_std]") {
            wrong.push(format!("{path}: a core must be #![no_std]"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn check_room(package: &Value, name: &str, allowed: &[&str], wrong: &mut Vec<String>) {
    let mut foreign = 0;
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        if !dependency["kind"].is_null() {
            continue;
        }
        let on = dependency["name"].as_str().unwrap_or_default();
        if !on.starts_with("gabion-") {
            foreign += 1;
        } else if !allowed.contains(&on) {
            wrong.push(format!("{name} may not depend on {on} (docs/architecture.md)"));
        }
    }
    if CORES.contains(&name) && foreign > 5 {
        wrong.push(format!("{name} has {foreign} third-party dependencies; a core has at most 5"));
    }
}

fn check_licence(package: &Value, name: &str, wrong: &mut Vec<String>) {
    let licence = package["license"].as_str().unwrap_or("none stated");
    let fits = |part: &str| {
        part.split(" AND ").all(|one| LICENCES.contains(&one.trim_matches(['(', ')', ' '])))
    };
    if !licence.replace('/', " OR ").split(" OR ").any(fits) {
        wrong.push(format!("{name}: licence '{licence}' is not on the allow-list"));
    }
}
