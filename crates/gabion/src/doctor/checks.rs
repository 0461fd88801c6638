//! The system: kernel, limits, clocks, memory, ports.

use super::{Check, State};
use crate::judgement::{CERTIFICATE_DAYS_MIN, DAY_S, RENEW, days};
use crate::status;
use crate::units::size;
use gabion_base::units::MIB;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::read_to_string;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

/// The first kernel whose io_uring needs no locked memory for what Gabion does.
const KERNEL_MIN: (u32, u32) = (5, 11);
/// Descriptors with which the usual number of clients is served.
const FILES_WANTED: u64 = 20_480;
const FILES_MIN: u64 = 1_024;
/// Locked memory that an old kernel's io_uring takes.
const MEMLOCK_WANTED: u64 = 8 * MIB;
/// Connections that may wait to be accepted.
const BACKLOG: u64 = 511;
/// Sources that are read without a call to the kernel, or nearly.
const CLOCKS: [&str; 5] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"];
/// How far a clock may be slewed: what NTP does at most, in parts of a million.
const DRIFT_MAX_PPM: f64 = 500.0;
/// How long the clocks are compared.
const DRIFT_FOR: Duration = Duration::from_millis(300);
/// Memory of a replica, caches at their defaults and nearly empty, and a little for jobs.
const REPLICA_MEMORY: u64 = 768 * MIB;

/// All of them but the ports.
pub(super) fn system(replicas: u32) -> Vec<Check> {
    let text = |path: &str| read_to_string(path).unwrap_or_default();
    let limit = |resource| getrlimit(resource);
    let files = limit(Resource::Nofile);
    let release = text("/proc/sys/kernel/osrelease");
    let somaxconn = text("/proc/sys/net/core/somaxconn");
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    vec![
        kernel(&release),
        open_files(files.maximum),
        memlock(limit(Resource::Memlock).current, &release),
        backlog(&somaxconn),
        clock_source(text(clock).trim()),
        drift(drift_ppm()),
        huge_pages(&text("/sys/kernel/mm/transparent_hugepage/enabled")),
        memory(memory_limit(), replicas),
    ]
}

/// The certificates in files, by the options that name them.
pub(super) fn certificates(files: &[(&'static str, PathBuf)], unix_s: u64) -> Vec<Check> {
    let look = |(option, path): &(&'static str, PathBuf)| {
        let until_s = gabion_tls::certificate_until_s(path);
        certificate(option, until_s.map_err(|error| error.to_string()), unix_s.cast_signed())
    };
    files.iter().map(look).collect()
}

fn certificate(option: &'static str, until_s: Result<i64, String>, unix_s: i64) -> Check {
    let limit = format!("{CERTIFICATE_DAYS_MIN} days or more");
    let left_s = match until_s {
        Ok(until_s) => until_s - unix_s,
        Err(error) => {
            let change = "a file with a certificate in PEM that this user may read";
            return Check::ok(option, error, limit).but(State::Bad, change);
        }
    };
    let (value, state) = match left_s {
        ..=0 => (format!("expired, {} ago", days(-left_s)), State::Bad),
        _ if left_s < CERTIFICATE_DAYS_MIN * DAY_S => (days(left_s), State::Warn),
        _ => (days(left_s), State::Ok),
    };
    let check = Check::ok(option, value, limit);
    if state == State::Ok { check } else { check.but(state, RENEW) }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Check {
    let (major, minor) = KERNEL_MIN;
    let check = Check::ok("kernel", release.trim(), format!("{major}.{minor} or newer"));
    match version(release) {
        Some(version) if version >= KERNEL_MIN => check,
        Some(_) => check.but(
            State::Warn,
            "a newer kernel; with this one files are read and written by threads",
        ),
        None => Check { value: "unknown".into(), ..check }
            .but(State::Warn, "look at `uname -r`: Gabion is made for Linux"),
    }
}

fn open_files(most: Option<u64>) -> Check {
    let value = most.map_or("unlimited".to_owned(), |most| most.to_string());
    let check = Check::ok("open files", value, format!("{FILES_WANTED} or more"));
    let change = format!("`ulimit -Hn {FILES_WANTED}`, or LimitNOFILE= of the unit");
    match most {
        Some(most) if most < FILES_MIN => check.but(State::Bad, change),
        Some(most) if most < FILES_WANTED => {
            check.but(State::Warn, format!("{change}; there are fewer places for clients"))
        }
        _ => check,
    }
}

fn memlock(most: Option<u64>, release: &str) -> Check {
    let value = most.map_or("unlimited".to_owned(), size);
    if version(release).is_some_and(|version| version > KERNEL_MIN) {
        return Check::ok("locked memory", value, "any, with this kernel");
    }
    let check = Check::ok("locked memory", value, format!("{} or more", size(MEMLOCK_WANTED)));
    if most.is_none_or(|most| most >= MEMLOCK_WANTED) {
        return check;
    }
    let kib = MEMLOCK_WANTED / 1024;
    check.but(State::Warn, format!("`ulimit -l {kib}`, or LimitMEMLOCK= of the unit"))
}

fn backlog(somaxconn: &str) -> Check {
    let most = somaxconn.trim().parse::<u64>();
    let value = most.as_ref().map_or("unknown".to_owned(), u64::to_string);
    let check = Check::ok("waiting connections", value, format!("{BACKLOG} or more"));
    match most {
        Ok(most) if most >= BACKLOG => check,
        _ => check.but(State::Warn, format!("`sysctl net.core.somaxconn={BACKLOG}`")),
    }
}

fn clock_source(name: &str) -> Check {
    let value = if name.is_empty() { "unknown" } else { name };
    let check = Check::ok("clock source", value, CLOCKS[..2].join(", ") + " or the like");
    if CLOCKS.contains(&name) {
        return check;
    }
    let change = "a kernel or host with one of these: each command reads the clock, and this one \
                  is slow or not known";
    check.but(State::Warn, change)
}

/// By how much the clock that Gabion goes by is slewed against the machine's oscillator.
fn drift_ppm() -> f64 {
    let now = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let read = || (now(ClockId::Monotonic), now(ClockId::MonotonicRaw));
    let (slewed, raw) = read();
    std::thread::sleep(DRIFT_FOR);
    let (slewed_after, raw_after) = read();
    ((slewed_after - slewed) / (raw_after - raw) - 1.0) * 1e6
}

fn drift(ppm: f64) -> Check {
    let limit = format!("{DRIFT_MAX_PPM} ppm at most");
    let check = Check::ok("clock drift", format!("{ppm:.0} ppm"), limit);
    // A pause between two readings makes it look larger; the bound leaves room for that.
    if ppm.abs() <= DRIFT_MAX_PPM {
        return check;
    }
    let change = "look at the time service (`chronyc tracking`): it sets a clock right that is far \
                  off, or the oscillator is bad";
    check.but(State::Warn, change)
}

fn huge_pages(enabled: &str) -> Check {
    let name = "huge pages";
    let chosen = enabled.split(['[', ']']).nth(1).unwrap_or("not there");
    let check = Check::ok(name, chosen, "madvise or never");
    if chosen != "always" {
        return check;
    }
    let change = "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`: memory that is \
                  given back in small parts stays with the process, and commands wait for pages";
    check.but(State::Warn, change)
}

/// The least of the machine's memory and the limits of the groups that this process is in.
fn memory_limit() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(limits_of).filter_map(|path| {
        read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok())
    });
    limits.chain(gabion_proc::machine_memory_bytes()).min()
}

/// The files with the limits of a line of `/proc/self/cgroup`, from the group up to the root.
fn limits_of(line: &str) -> Vec<String> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let path = std::path::Path::new(group);
    path.ancestors().map(|it| format!("{root}{}/{file}", it.display())).collect()
}

fn memory(limit: Option<u64>, replicas: u32) -> Check {
    let wanted = REPLICA_MEMORY * u64::from(replicas);
    let value = limit.map_or("unknown".to_owned(), size);
    let check = Check::ok("memory", value, format!("{} or more", size(wanted)));
    match limit {
        Some(limit) if limit < wanted / 4 => check.but(
            State::Bad,
            "more memory, or MemoryMax= of the unit: the kernel ends processes before all start",
        ),
        Some(limit) if limit < wanted => check
            .but(State::Warn, "more memory, or smaller --open-files-bytes and --block-cache-bytes"),
        Some(_) => check,
        None => check.but(State::Warn, "look at /proc/meminfo, which does not say it"),
    }
}

/// Whether a group can listen, or listens, on its ports.
pub(super) fn ports(first: u16, replicas: u32) -> Check {
    let replicas = u16::try_from(replicas).unwrap_or(16);
    let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let all = (0..replicas).flat_map(|n| [0, 100, 200].map(|above| first + above + n));
    let taken: Vec<u16> = all.filter(|port| TcpListener::bind(address(*port)).is_err()).collect();
    let value = match taken[..] {
        [] => format!("{first} and {} others are free", 3 * u32::from(replicas) - 1),
        [port] => format!("port {port} is taken"),
        [port, ..] => format!("port {port} and {} others are taken", taken.len() - 1),
    };
    let check = Check::ok("ports", value, "free, or a group's own");
    if taken.is_empty() {
        return check;
    }
    if status::ask(address(first)).is_ok() {
        return Check { value: format!("a group answers at port {first}"), ..check };
    }
    check.but(State::Bad, "end the program that listens there (`ss -ltnp`), or choose --port")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(check: &Check) -> State {
        assert_eq!(check.state == State::Ok, check.change.is_empty(), "{check:?}");
        assert!(!check.value.is_empty() && !check.limit.is_empty(), "{check:?}");
        check.state
    }

    #[test]
    fn each_thing_is_judged_by_its_limit() {
        use State::{Bad, Ok, Warn};
        for (release, wanted) in [
            ("6.8.0-45-generic", Ok),
            ("5.11.0", Ok),
            ("5.10.200", Warn),
            ("4.19", Warn),
            ("", Warn),
        ] {
            assert_eq!(state(&kernel(release)), wanted, "{release}");
        }
        for (most, wanted) in
            [(None, Ok), (Some(20_480), Ok), (Some(4_096), Warn), (Some(256), Bad)]
        {
            assert_eq!(state(&open_files(most)), wanted, "{most:?}");
        }
        assert_eq!(state(&memlock(Some(65_536), "6.1")), Ok);
        assert_eq!(state(&memlock(Some(65_536), "5.4")), Warn);
        assert_eq!(state(&memlock(None, "5.4")), Ok);
        for (text, wanted) in [("4096\n", Ok), ("128", Warn), ("", Warn)] {
            assert_eq!(state(&backlog(text)), wanted, "{text}");
        }
        for (name, wanted) in [("tsc", Ok), ("kvm-clock", Ok), ("hpet", Warn), ("", Warn)] {
            assert_eq!(state(&clock_source(name)), wanted, "{name}");
        }
        for (ppm, wanted) in [(0.0, Ok), (-480.0, Ok), (900.0, Warn)] {
            assert_eq!(state(&drift(ppm)), wanted, "{ppm}");
        }
        for (text, wanted) in [("always [madvise] never", Ok), ("[always] never", Warn), ("", Ok)] {
            assert_eq!(state(&huge_pages(text)), wanted, "{text}");
        }
        let gib = 1024 * MIB;
        for (limit, wanted) in
            [(Some(4 * gib), Ok), (Some(gib), Warn), (Some(gib / 4), Bad), (None, Warn)]
        {
            assert_eq!(state(&memory(limit, 3)), wanted, "{limit:?}");
        }
    }

    #[test]
    fn a_certificate_is_judged_by_the_days_that_it_is_still_valid() {
        let check = |left_s: i64| certificate("tls.certificate", Ok(1_000_000 + left_s), 1_000_000);
        for (left_s, value, wanted) in [
            (30 * DAY_S, "30 days", State::Ok),
            (13 * DAY_S, "13 days", State::Warn),
            (5, "less than a day", State::Warn),
            (-2 * DAY_S, "expired, 2 days ago", State::Bad),
        ] {
            let check = check(left_s);
            assert_eq!((check.state, &check.value[..]), (wanted, value));
        }
        let missing = certificates(&[("tls.ca", "/not/there.pem".into())], 0);
        assert_eq!(state(&missing[0]), State::Bad);
        assert!(missing[0].value.contains("/not/there.pem"), "{missing:?}");
    }

    #[test]
    fn limits_of_memory_are_looked_for_up_to_the_root() {
        let found = limits_of("0::/a/b");
        assert_eq!(found[0], "/sys/fs/cgroup/a/b/memory.max");
        assert_eq!(found.len(), 3);
        let old = limits_of("7:memory:/x");
        assert_eq!(old[0], "/sys/fs/cgroup/memory/x/memory.limit_in_bytes");
        assert!(limits_of("3:cpu:/x").is_empty() && limits_of("").is_empty());
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        if port < u16::MAX - 216 {
            let check = ports(port, 1);
            assert_eq!(state(&check), State::Bad);
            assert!(check.value.starts_with(&format!("port {port} ")), "{check:?}");
        }
    }
}
