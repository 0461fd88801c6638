//! Processes: a controller and log peers, and programs that are measured.

use super::Bench;
use super::rows::Side;
use crate::launch::ScratchDir;
use gabion_base::units::MIB;
use gabion_base::{Error, ErrorKind, Result};
use gabion_fabric::remote::{LinkAddress, PeerLink};
use gabion_media::remote::{ClientConfig, ClientId, ConnectionGeneration, Reply, Request, Usage};
use gabion_ncl_driver::store::RemoteStore;
use gabion_ncl_driver::{Logs, LogsOptions};
use rustix::process::{Pid, Signal, WaitOptions};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// f = 1.
pub(super) const COPIES: usize = 3;
/// Memory that a peer lends at most, but for the one whose memory is measured.
pub(super) const PEER_MEMORY: u64 = 2 << 30;
/// Memory that they zero ahead.
const READY: u64 = 128 * MIB;
const PATIENCE: Duration = Duration::from_secs(30);
/// A program may take so long to end by itself.
const STOP_MAX: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(2);

pub(super) fn failed(what: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::with_source(ErrorKind::Io, what.display().to_string(), error)
}

/// Has this process be the parent of whatever its children leave, so that it can wait for them.
pub(super) fn reap() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| Error::with_source(ErrorKind::Io, "this process's children", e))
}

/// A new directory, which programs of other users may enter.
pub(super) fn directory(parent: &Path, name: &str) -> Result<PathBuf> {
    let path = parent.join(name);
    std::fs::create_dir(&path).map_err(failed(&path))?;
    open(&path)?;
    Ok(path)
}

/// Lets other users enter a directory, and not see what is in it.
fn open(path: &Path) -> Result<()> {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o711)).map_err(failed(path))
}

/// The same of a new directory that goes with this value.
pub(super) fn scratch(parent: &Path) -> Result<ScratchDir> {
    let dir = ScratchDir::new(parent)?;
    open(dir.path())?;
    Ok(dir)
}

/// The words of a command that ends by itself.
pub(super) fn said(command: &mut Command) -> Result<String> {
    let name = PathBuf::from(command.get_program());
    // A signal to this process's group is not for it.
    let output = command.stdin(Stdio::null()).process_group(0).output().map_err(failed(&name))?;
    words(&name, &output)
}

/// The output of a command that did what it was to do. An error has all that it said.
pub(super) fn words(name: &Path, output: &Output) -> Result<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(text.into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let (name, status) = (name.display(), output.status);
    Err(Error::unavailable(format!("{name}: {status}: {}{}", text, errors.trim_end())))
}

/// A process and all that it starts; they are killed with this value.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    is_gone: bool,
}

impl Process {
    /// Its standard error goes to `log`. To be called by the main thread: gabion's processes end
    /// with the thread that started them.
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let errors = File::create(&log).map_err(failed(&log))?;
        let command = command.stdin(Stdio::piped()).stderr(errors).process_group(0);
        let name = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(failed(&name))?;
        Ok(Self { child, log, is_gone: false })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn pipes(&mut self) -> Option<(ChildStdin, BufReader<ChildStdout>)> {
        let out = self.child.stdout.take().map(BufReader::new);
        self.child.stdin.take().zip(out)
    }

    /// Its lines up to one with this word.
    pub(super) fn until(&mut self, word: &str) -> Result<Vec<String>> {
        let out = self.child.stdout.take().map(BufReader::new);
        let mut lines = Vec::new();
        for line in out.into_iter().flat_map(BufRead::lines).map_while(std::io::Result::ok) {
            let is_last = line.contains(word);
            lines.push(line);
            if is_last {
                return Ok(lines);
            }
        }
        Err(self.ended(&format!("it said '{word}'")))
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// An error with the last words of a process that ended.
    pub(super) fn ended(&self, before: &str) -> Error {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = said.lines().last().unwrap_or("it said nothing");
        Error::unavailable(format!("a process ended before {before}: {last}"))
    }

    /// SIGTERM, and SIGKILL for whatever is left then.
    pub(super) fn stop(&mut self) {
        self.stop_by(Pid::from_child(&self.child), Signal::TERM);
    }

    /// The same by a signal to a process of it, with whose end it ends.
    pub(super) fn stop_by(&mut self, process: Pid, signal: Signal) {
        let _ = rustix::process::kill_process(process, signal);
        let begun = Instant::now();
        while begun.elapsed() < STOP_MAX && !self.has_ended() {
            std::thread::sleep(TICK);
        }
        self.kill();
    }

    /// SIGKILL to it and all that it started, which are gone when this returns.
    pub(super) fn kill(&mut self) {
        if std::mem::replace(&mut self.is_gone, true) {
            return;
        }
        self.signal();
        let _ = self.child.wait();
        let group = Pid::from_child(&self.child);
        let wait = || rustix::process::waitpgid(group, WaitOptions::empty());
        while let Ok(_) | Err(rustix::io::Errno::INTR) = wait() {}
    }

    /// SIGKILL, without a wait.
    pub(super) fn signal(&self) {
        // It may have ended.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A log peer.
pub(super) struct Peer {
    /// Its number, as text.
    pub(super) id: String,
    /// A connection of this process.
    pub(super) link: PeerLink,
    pub(super) process: Process,
}

impl Peer {
    pub(super) fn usage(&mut self) -> Result<Usage> {
        match self.link.call(&Request::Usage)? {
            Reply::Usage(usage) => Ok(usage),
            other => Err(Error::corruption(format!("the peer replies {other:?}"))),
        }
    }
}

/// A controller and peers, which programs reach in one way.
pub(super) struct House {
    /// Processes end before their files do.
    pub(super) peers: Vec<Peer>,
    _controller: Process,
    dir: ScratchDir,
    program: PathBuf,
    side: Side,
    memory: u64,
    number: u32,
}

impl House {
    pub(super) fn start(bench: &Bench<'_>, side: Side, peers: usize) -> Result<Self> {
        Self::with_memory(bench, side, peers, PEER_MEMORY)
    }

    pub(super) fn with_memory(
        bench: &Bench<'_>,
        side: Side,
        peers: usize,
        memory: u64,
    ) -> Result<Self> {
        let (dir, program) = (scratch(bench.scratch)?, bench.program.to_owned());
        let mut command = gabion(&program, "controller");
        command.arg("--directory").arg(dir.path().join("control")).stdout(Stdio::piped());
        let mut controller = Process::start(&mut command, dir.path().join("controller.log"))?;
        controller.until("Unix socket")?;
        let mut house = Self {
            peers: Vec::new(),
            _controller: controller,
            dir,
            program,
            side,
            memory,
            number: 0,
        };
        for _ in 0..peers {
            house.add_peer()?;
        }
        Ok(house)
    }

    /// Starts one more peer.
    pub(super) fn add_peer(&mut self) -> Result<()> {
        self.number += 1;
        let directory = self.dir.path().join(format!("peer-{}", self.number));
        let mut command = gabion(&self.program, "peer");
        command.args(["--memory", &self.memory.to_string()]);
        command.args(["--ready", &READY.min(self.memory).to_string(), "--directory"]);
        command.arg(&directory).arg("--controller").arg(self.controller());
        if self.side == Side::Tcp {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut process = Process::start(command.stdout(Stdio::piped()), self.log())?;
        let lines = process.until("registered")?;
        let told = lines.iter().find_map(|line| line.strip_prefix("peer ")?.split_once(','));
        let id = told.map(|(id, _)| id.to_owned()).ok_or_else(|| process.ended("it was named"))?;
        let socket = directory.join("socket");
        let config = ClientConfig::new(ClientId(1), ConnectionGeneration(1));
        let link = PeerLink::connect(LinkAddress::Unix(socket.clone()), config)?;
        if self.side == Side::Tcp {
            // Without it programs come over TCP.
            std::fs::remove_file(&socket).map_err(failed(&socket))?;
        }
        self.peers.push(Peer { id, link, process });
        Ok(())
    }

    /// Lets programs of this user and group in, if this process is root's.
    pub(super) fn admit(&self, (user, group): (u32, u32)) -> Result<()> {
        let own = |path: &Path| chown(path, Some(user), Some(group)).map_err(failed(path));
        // Its runs keep what they have there.
        own(self.dir.path())?;
        for entry in std::fs::read_dir(self.dir.path()).map_err(failed(self.dir.path()))? {
            let directory = entry.map_err(failed(self.dir.path()))?.path();
            let socket = directory.join("socket");
            if socket.exists() {
                own(&directory)?;
                own(&socket)?;
            }
        }
        Ok(())
    }

    fn controller(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    pub(super) fn log(&mut self) -> PathBuf {
        self.number += 1;
        self.dir.path().join(format!("log-{}", self.number))
    }

    /// The files of an application, of which no other instance runs any more, as soon as they are
    /// there.
    pub(super) fn recover(&self, application: &str) -> Result<Logs> {
        let socket = LinkAddress::Unix(self.controller().join("socket"));
        let mut options = LogsOptions::new(application);
        options.core.takes_over = true;
        let logs = Logs::start(options, Box::new(RemoteStore::new(socket, Vec::new())))?;
        logs.wait_until_ready()?;
        Ok(logs)
    }

    /// The same once all copies are there.
    pub(super) fn open(&self, application: &str) -> Result<Logs> {
        let logs = self.recover(application)?;
        self.wait_until_whole(&logs)?;
        Ok(logs)
    }

    pub(super) fn wait_until_whole(&self, logs: &Logs) -> Result<()> {
        let begun = Instant::now();
        loop {
            let (status, counts) = logs.status()?;
            if status.copies == COPIES && counts.connected == COPIES {
                let is_shared = counts.shared == COPIES;
                assert_eq!(is_shared, self.side == Side::Shared, "peers are reached as wanted");
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let text = format!("{} of {COPIES} copies are there", status.copies);
                return Err(Error::unavailable(text));
            }
            std::thread::sleep(TICK);
        }
    }

    /// `gabion ncl run` of a program, as yet without the program.
    pub(super) fn run(&self, application: &str, files: &[&str]) -> Command {
        let mut command = gabion(&self.program, "run");
        command.args(["--app", application, "--take-over"]).args(files);
        // The remains of a killed run go with this house.
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command.arg("--controller").arg(self.controller()).arg("--");
        command
    }
}

/// A command of this program that ends with this process.
fn gabion(program: &Path, word: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["ncl", word, "--parent", &std::process::id().to_string()]);
    command
}
