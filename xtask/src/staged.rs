//! Five faults of nodes, one after the other, as an operator meets them: the first sentence of the
//! status page names the member and the fault within a minute, `gabion status`, `gabion top` and
//! `gabion doctor` agree, and it is gone after the repair.
//!
//! ```text
//!   xtask staged ─► unshare: network, mounts, processes ─► xtask staged inside
//!     gabion controller, its page ◄── Chromium
//!     gabion node  a  b  c        ◄── kill, expired certificate, cgroup of slow writes, full pools
//! ```

mod place;

use crate::cluster::{need, need_space, program, run, scratch};
use crate::failovers::{disks, links};
use crate::page::{self, CHROMIUM};
use crate::steps::{Step, target_directory};
use place::{PAGE_PORT, Place};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Three pools and rings, and logs.
const DISK: u64 = 3 << 30;
/// Bytes of the values that fill the pools.
const VALUE_LEN: usize = 1 << 20;
/// More of them than a pool has room for.
const VALUES_MAX: u64 = 1_000;

/// A fault of the suite.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// `kill -9` of a node and its replica.
    Stopped,
    /// The certificate of a node, which runs on with it.
    Expired,
    /// Each write to the disk of a node takes a fifth of a second.
    SlowDisk,
    /// `kill -9` of two of three nodes.
    BelowMinimum,
    /// Writes until there is no room.
    FullDisk,
}

impl Fault {
    const ALL: [Self; 5] =
        [Self::Stopped, Self::Expired, Self::SlowDisk, Self::BelowMinimum, Self::FullDisk];

    const fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Expired => "expired",
            Self::SlowDisk => "slow-disk",
            Self::BelowMinimum => "below-minimum",
            Self::FullDisk => "full-disk",
        }
    }

    /// Words of the first sentence, and those that would name somebody else.
    const fn told(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Stopped => {
                (&["on node b is lost", "2 of 3 full members are left"], &["node a", "node c"])
            }
            Self::Expired => {
                (&["certificate", "on node c", "has expired, 1 day ago"], &["node a", "node b"])
            }
            Self::SlowDisk => (&["disk", "on node b is slow"], &["node a", "node c"]),
            Self::BelowMinimum => {
                (&["below its minimum", "takes no writes", "1 full member is left"], &["on node"])
            }
            Self::FullDisk => (
                &["no room left", "pools of all its members are full", "writes are refused"],
                &["on node"],
            ),
        }
    }

    fn strike(self, place: &mut Place) -> Step {
        match self {
            Self::Stopped => place.kill("b"),
            Self::Expired => place.renew("c", true),
            Self::SlowDisk => disks::slow(&place.pid_of("b")?, &place.data("b")),
            Self::BelowMinimum => ["b", "c"].iter().try_for_each(|node| place.kill(node)),
            Self::FullDisk => place.fill(VALUE_LEN, VALUES_MAX),
        }
    }

    fn mend(self, place: &mut Place) -> Step {
        match self {
            Self::Stopped => place.start("b"),
            Self::Expired => place.renew("c", false),
            Self::SlowDisk => disks::heal(),
            Self::BelowMinimum => ["b", "c"].iter().try_for_each(|node| place.start(node)),
            Self::FullDisk => place.empty(),
        }
    }
}

/// The check, or the part of it in a network of its own.
pub(crate) fn check(words: &[&str]) -> Step {
    match words {
        [] => outside(),
        ["inside", dir, program] => inside(dir, program),
        _ => Err(format!("{words:?}: `staged` takes none")),
    }
}

fn outside() -> Step {
    println!("\n── Five faults of nodes, as page and commands tell them");
    let begun = Instant::now();
    need(CHROMIUM, CHROMIUM)?;
    need("node", "nodejs")?;
    need("ip", "iproute2")?;
    need("faketime", "faketime")?;
    need_space("staged", DISK)?;
    let (program, dir) = (program()?, scratch("staged")?);
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "--"]).arg(own).args(["staged", "inside"]);
    let ran = run(command.arg(&dir).arg(program));
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    match ran {
        // Files of options and logs of processes say more.
        Err(error) => Err(format!("{error}; see {}", dir.display())),
        Ok(()) => std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display())),
    }
}

/// The part in a network of its own.
fn inside(dir: &str, program: &str) -> Step {
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    links::mount_cgroups()?;
    disks::mount()?;
    let pictures = Path::new(&target_directory()?).join("page");
    std::fs::create_dir_all(&pictures)
        .map_err(|error| format!("{}: {error}", pictures.display()))?;
    let mut place = Place::make(Path::new(dir), program)?;
    let staged = Fault::ALL.into_iter().try_for_each(|fault| stage(&mut place, fault, &pictures));
    let logs = staged.as_ref().err().map(|_| place.logs()).unwrap_or_default();
    drop(place);
    disks::clear();
    links::clear_cgroups();
    staged.map_err(|error| format!("{error}\n{logs}"))
}

/// A fault, until page and commands tell it, and its repair, until they do not.
fn stage(place: &mut Place, fault: Fault, pictures: &Path) -> Step {
    let name = fault.name();
    let begun = Instant::now();
    fault.strike(place)?;
    let (words, others) = fault.told();
    let (text, advice) = place.wait_told(words)?;
    println!("── {name}, after {:.1} s: {text} {advice}", begun.elapsed().as_secs_f64());
    if let Some(other) = others.iter().find(|other| text.contains(**other)) {
        return Err(format!("{name}: the sentence names '{other}', and it is another's: {text}"));
    }
    place.agree(&text)?;
    if let Fault::Expired = fault {
        place.doctor_says("c", "bad   tls.certificate", "expired, 1 day ago")?;
    }
    // Of the sentence the words, as its times grow.
    let wanted: Vec<String> = words.iter().map(|word| format!("top:{word}")).collect();
    page::look_at(PAGE_PORT, pictures, &[&format!("staged-{name}"), &wanted.join("|")])?;
    let begun = Instant::now();
    fault.mend(place)?;
    place.wait_well()?;
    println!("   all is well {:.1} s after the repair", begun.elapsed().as_secs_f64());
    Ok(())
}
