//! The group under test: `gabion up` as a child process, and what its replicas say.

use super::args::Role;
use super::door::Door;
use gabion_base::{Error, ErrorKind, Result};
use gabion_node::AckLevel;
use gabion_resp::{Reply, encode_request};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a replica may take to say how it is; one that is stopped does not.
const STATUS_MAX: Duration = Duration::from_millis(300);
/// Longer than `up` gives its replicas to stop.
const STOP_MAX: Duration = Duration::from_secs(75);
const TICK: Duration = Duration::from_millis(20);
/// Lines of `up` that are shown with a failure.
const LINES_SHOWN: usize = 12;

/// The program whose `up` is tested, and places for it.
#[derive(Clone, Debug)]
pub struct UpProgram {
    /// The program.
    pub program: PathBuf,
    /// Data goes below it unless an option names another directory.
    pub data_dir: PathBuf,
    /// The first of free ports.
    pub port: u16,
}

/// The options that `up` is started with; everything else is its default.
pub(super) struct UpSpec {
    pub(super) replicas: u32,
    pub(super) pool_size: u64,
    pub(super) ack: AckLevel,
    /// Further words of its command line.
    pub(super) words: Vec<String>,
}

/// A replica's answer to `GABION STATUS`, as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) replica: u64,
    pub(super) pid: i32,
    pub(super) role: String,
    is_ready: bool,
    reason: String,
    config: u64,
    members: Vec<u64>,
    /// Members that are being filled.
    filling: Vec<u64>,
    /// Bytes of the state that it copies itself, and how many of them are there.
    pub(super) copied: Option<(u64, u64)>,
    /// Flushes and compactions so far.
    pub(super) jobs: u64,
    /// Ports where other replicas connect.
    pub(super) ports: [u64; 2],
}

impl Member {
    /// Reads an answer; nothing of one without a process or a number.
    fn of(status: &Value) -> Option<Self> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let members = status["members"].as_array()?;
        let replicas = status["replicas"].as_array()?.iter();
        let filling = replicas.filter(|replica| replica["is_full"] != true);
        Some(Self {
            replica: status["replica"].as_u64()?,
            pid: i32::try_from(status["pid"].as_u64()?).ok()?,
            role: status["role"].as_str()?.to_owned(),
            is_ready: status["ready"].as_bool()?,
            reason: status["reason"].as_str().unwrap_or("no reason is given").to_owned(),
            config: number(&status["config"]),
            members: members.iter().map(number).collect(),
            filling: filling.map(|replica| number(&replica["replica"])).collect(),
            copied: Some(["bytes", "bytes_done"].map(|name| number(&status["filling"][name])))
                .filter(|[bytes, _]| *bytes > 0)
                .map(|[bytes, done]| (bytes, done)),
            jobs: number(&status["counters"]["flushes"])
                + number(&status["counters"]["compactions"]),
            ports: ["peer", "target"].map(|door| number(&status["ports"][door])),
        })
    }
}

/// Why the group is not whole: some replica does not answer or is not ready, or not all are full
/// members, or they differ in their configuration.
pub(super) fn obstacle(answers: &[Option<Member>]) -> Option<String> {
    for (i, answer) in answers.iter().enumerate() {
        let number = i + 1;
        let Some(member) = answer else {
            return Some(format!("replica {number} does not answer"));
        };
        if !member.is_ready {
            return Some(format!("replica {number} is not ready: {}", member.reason));
        }
        if member.members.len() != answers.len() {
            let members = member.members.len();
            return Some(format!("replica {number} counts {members} members"));
        }
        if let Some(filling) = member.filling.first() {
            return Some(format!("replica {filling} is being filled, says replica {number}"));
        }
    }
    let mut configs = answers.iter().flatten().map(|member| member.config);
    let first = configs.next()?;
    let other = configs.find(|config| *config != first)?;
    Some(format!("one replica has configuration {first}, another {other}"))
}

/// The replica in a role. `round` chooses among several.
pub(super) fn in_role(members: &[Member], role: Role, round: u64) -> Result<&Member> {
    let fit: Vec<&Member> = members.iter().filter(|m| m.role == role.in_status()).collect();
    match fit.len() {
        0 => Err(Error::unavailable(format!("no replica says that it is the {}", role.as_str()))),
        len => Ok(fit[(round % len as u64) as usize]),
    }
}

/// The neighbour of a replica: the next in the chain, after the tail the head.
pub(super) fn neighbour<'a>(members: &'a [Member], of: &Member) -> Result<&'a Member> {
    let at = of.members.iter().position(|number| *number == of.replica);
    let next = at.map(|at| of.members[(at + 1) % of.members.len()]);
    members.iter().find(|member| Some(member.replica) == next).ok_or_else(|| {
        Error::unavailable(format!("replica {} has no neighbour in the chain", of.replica))
    })
}

/// Whether a process or the configuration is another one than before.
pub(super) fn has_changed(before: &[Member], now: &[Member]) -> bool {
    let state = |member: &Member| (member.pid, member.config);
    !before.iter().map(state).eq(now.iter().map(state))
}

/// A process that is told from its successors with the same number.
pub(super) struct Process(OwnedFd);

impl Process {
    pub(super) fn of(member: &Member) -> Result<Self> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::unavailable(format!(
                "process {} of replica {}: {why}",
                member.pid, member.replica
            ))
        };
        let pid = Pid::from_raw(member.pid).ok_or_else(|| failed(&"no such number"))?;
        pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(|error| failed(&error))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.0, signal)
            .map_err(|error| Error::with_source(ErrorKind::Io, "a signal to a replica", error))
    }
}

/// A process that is stopped until this is dropped.
pub(super) struct Stopped(pub(super) Process);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = self.0.signal(Signal::CONT);
    }
}

/// `gabion up` and connections for questions to its replicas.
pub(super) struct Group {
    up: Child,
    program: PathBuf,
    data: PathBuf,
    log: PathBuf,
    pub(super) addresses: Vec<SocketAddr>,
    doors: Vec<Option<Door>>,
}

impl Group {
    /// Starts it with its data in a directory.
    pub(super) fn start(spec: &UpSpec, up: &UpProgram, dir: &Path) -> Result<Self> {
        let (data, log) = (dir.join("data"), dir.join("up.log"));
        let failed = |what: &Path, error| {
            Error::with_source(ErrorKind::Io, format!("{}: cannot be made", what.display()), error)
        };
        let out = File::create(&log).map_err(|error| failed(&log, error))?;
        let errors = out.try_clone().map_err(|error| failed(&log, error))?;
        let child = Command::new(&up.program)
            .arg("up")
            .arg("--data")
            .arg(&data)
            .args(["--port", &up.port.to_string()])
            .args(["--replicas", &spec.replicas.to_string()])
            .args(["--pool-size", &spec.pool_size.to_string()])
            .args(["--ack", spec.ack.as_str()])
            .args(&spec.words)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            // Ctrl-C is for this process, which then stops the group.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&up.program, error))?;
        let ports = up.port..up.port + spec.replicas as u16;
        let addresses: Vec<SocketAddr> =
            ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
        let doors = addresses.iter().map(|_| None).collect();
        Ok(Self { up: child, program: up.program.clone(), data, log, addresses, doors })
    }

    /// The directory of a replica's files.
    pub(super) fn directory_of(&self, member: &Member) -> PathBuf {
        self.data.join(format!("replica-{}", member.replica))
    }

    /// The status of each replica; nothing for one that does not answer.
    pub(super) fn ask(&mut self) -> Vec<Option<Member>> {
        let doors = self.doors.iter_mut().zip(&self.addresses);
        doors.map(|(door, address)| ask(door, *address)).collect()
    }

    /// The directory of its data.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Fails once `up` has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.up.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::unavailable(format!(
                "`gabion up` ended ({status}); it said:\n{}",
                self.said()
            ))),
            Err(error) => Err(Error::with_source(ErrorKind::Io, "gabion up", error)),
        }
    }

    /// The last lines of `up`.
    pub(super) fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }

    /// `gabion verify`: whether all replicas are the same, and what it said.
    pub(super) fn verify(&self) -> Result<(bool, String)> {
        let output =
            Command::new(&self.program).arg("verify").arg("--data").arg(&self.data).output();
        let output =
            output.map_err(|error| Error::with_source(ErrorKind::Io, "gabion verify", error))?;
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        match output.status.code() {
            Some(0) => Ok((true, said)),
            Some(1) => Ok((false, said)),
            _ => Err(Error::unavailable(format!("gabion verify: {}: {said}", output.status))),
        }
    }
}

fn ask(door: &mut Option<Door>, address: SocketAddr) -> Option<Member> {
    let mut request = Vec::new();
    encode_request(&["GABION", "STATUS"], &mut request);
    let mut open = door.take().or_else(|| Door::open(address, STATUS_MAX).ok())?;
    let Ok(Reply::Bulk(json)) = open.call(&request, STATUS_MAX) else { return None };
    *door = Some(open);
    Member::of(&serde_json::from_slice(&json).ok()?)
}

/// The replicas end with `up`, whatever becomes of it.
impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.up.id() as i32) {
            let _ = rustix::process::kill_process(pid, Signal::INT);
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP_MAX && matches!(self.up.try_wait(), Ok(None)) {
            std::thread::sleep(TICK);
        }
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    fn member(replica: u64, role: &str) -> Member {
        let replicas = [2, 1, 3].map(|replica| json!({"replica": replica, "is_full": true}));
        let status = json!({
            "replica": replica, "pid": 100 + replica, "role": role, "ready": true,
            "reason": null, "config": 7, "members": [2, 1, 3],
            "replicas": replicas,
            "ports": {"resp": 1, "peer": 50 + replica, "target": 60 + replica},
        });
        Member::of(&status).unwrap()
    }

    pub(crate) fn whole() -> Vec<Member> {
        vec![member(1, "middle"), member(2, "primary"), member(3, "tail")]
    }

    fn obstacle_of(change: impl Fn(&mut Vec<Option<Member>>)) -> Option<String> {
        let mut answers: Vec<Option<Member>> = whole().into_iter().map(Some).collect();
        change(&mut answers);
        obstacle(&answers)
    }

    #[test]
    fn a_group_is_whole_when_all_are_ready_members_of_one_configuration() {
        assert_eq!(obstacle_of(|_| {}), None);
        let silent = obstacle_of(|answers| answers[1] = None);
        assert_eq!(silent.unwrap(), "replica 2 does not answer");
        let not_ready = obstacle_of(|answers| {
            let member = answers[2].as_mut().unwrap();
            (member.is_ready, member.reason) = (false, "it is behind".to_owned());
        });
        assert_eq!(not_ready.unwrap(), "replica 3 is not ready: it is behind");
        let without_one = obstacle_of(|answers| {
            answers.iter_mut().flatten().for_each(|member| member.members.truncate(2));
        });
        assert_eq!(without_one.unwrap(), "replica 1 counts 2 members");
        let filling = obstacle_of(|answers| answers[1].as_mut().unwrap().filling.push(3));
        assert_eq!(filling.unwrap(), "replica 3 is being filled, says replica 2");
        let behind = obstacle_of(|answers| answers[2].as_mut().unwrap().config = 6);
        assert_eq!(behind.unwrap(), "one replica has configuration 7, another 6");
    }

    #[test]
    fn roles_and_neighbours_are_those_of_the_chain_not_of_the_numbers() {
        let members = whole();
        let next = |role| {
            let victim = in_role(&members, role, 0).unwrap();
            (victim.replica, neighbour(&members, victim).unwrap().replica)
        };
        assert_eq!([Role::Head, Role::Middle, Role::Tail].map(next), [(2, 1), (1, 3), (3, 2)]);
        assert_eq!(members[0].ports, [51, 61]);
        let error = in_role(&members[1..], Role::Middle, 0).unwrap_err();
        assert!(error.to_string().contains("no replica says that it is the middle"));
    }

    #[test]
    fn another_process_or_configuration_is_a_change_and_a_role_alone_is_none() {
        assert!(!has_changed(&whole(), &whole()));
        let with = |change: fn(&mut Member)| {
            let mut now = whole();
            change(&mut now[1]);
            has_changed(&whole(), &now)
        };
        assert!(with(|member| member.pid = 7));
        assert!(with(|member| member.config = 8));
        assert!(!with(|member| member.role.clear()));
    }

    #[test]
    fn an_answer_without_a_number_or_a_process_is_none() {
        for answer in [json!({}), json!([1]), json!({"replica": 1, "members": []})] {
            assert_eq!(Member::of(&answer), None);
        }
    }
}
