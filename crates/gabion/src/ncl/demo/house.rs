//! All that the demo starts, and its end: processes in groups of their own, and one directory.

use super::super::files::at;
use super::super::run::failed;
use gabion_base::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, WaitOptions};
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// Memory that each peer may lend; no more is taken than is lent.
const PEER_MEMORY: &str = "1GiB";
pub(super) const PEERS: usize = 3;

/// Groups of processes that run.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
/// The signal that ended the demo; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Ends all processes at a signal: whoever waits for one gets an error.
pub(super) fn watch_signals() -> Result<()> {
    crate::signals::watch(|signal| {
        SIGNAL.store(signal, Ordering::SeqCst);
        if let Ok(groups) = GROUPS.lock() {
            groups.iter().for_each(|group| kill(*group));
        }
        true
    })
}

/// The signal that ended the demo.
pub(super) fn signal() -> Option<i32> {
    Some(SIGNAL.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

fn kill(group: Pid) {
    // It may have ended.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
}

/// A process and all that it starts; they are killed with this value.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    is_killed: bool,
}

impl Process {
    /// Its standard error goes to `log`. Must be called by the main thread: gabion's processes end
    /// with the thread that started them.
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let errors = File::create(&log).map_err(at(&log))?;
        let command = command.stdin(Stdio::piped()).stderr(errors).process_group(0);
        let child = command.spawn();
        let named = command.get_program().to_string_lossy();
        let child = child.map_err(|error| failed(&named, error))?;
        let process = Self { child, log, is_killed: false };
        GROUPS.lock().map_err(|_| Error::io("a thread panicked"))?.push(process.group());
        match signal() {
            None => Ok(process),
            Some(_) => Err(process.ended("it was started")),
        }
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(super) fn pipes(&mut self) -> Option<(ChildStdin, BufReader<ChildStdout>)> {
        let out = self.child.stdout.take().map(BufReader::new);
        self.child.stdin.take().zip(out)
    }

    /// Reads its lines up to one with this word.
    fn until(&mut self, word: &str) -> Result<()> {
        let out = self.child.stdout.take().map(BufReader::new);
        let lines = out.into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(std::result::Result::ok) {
            if line.contains(word) {
                return Ok(());
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

    /// SIGKILL to it and all that it started, which are gone when this returns.
    pub(super) fn kill(&mut self) {
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        let group = self.group();
        kill(group);
        let _ = self.child.wait();
        // This process is the reaper of whatever they leave.
        let wait = || rustix::process::waitpgid(group, WaitOptions::empty());
        while let Ok(_) | Err(rustix::io::Errno::INTR) = wait() {}
        if let Ok(mut groups) = GROUPS.lock() {
            groups.retain(|one| *one != group);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A controller, peers, and the directory of all files; gone with this value.
pub(super) struct House {
    pub(super) dir: PathBuf,
    processes: Vec<Process>,
    logs: u32,
}

impl Drop for House {
    fn drop(&mut self) {
        self.processes.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl House {
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let reaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        reaper.map_err(|error| failed("gabion ncl demo", error.into()))?;
        let process = std::process::id();
        let parent = parent.canonicalize().map_err(at(parent))?;
        let make = |number: u32| {
            let dir = parent.join(format!("gabion-ncl-demo-{process}-{number}"));
            DirBuilder::new().mode(0o700).create(&dir).map(|()| dir)
        };
        let made = (0..100).map(make).find(|made| {
            !made.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists)
        });
        let taken = || Error::new(ErrorKind::Io, format!("{}: no free name", parent.display()));
        let dir = made.ok_or_else(taken)?.map_err(at(&parent))?;
        let mut house = Self { dir, processes: Vec::new(), logs: 0 };
        let control = house.dir.join("control");
        let mut command = gabion(&["controller", "--directory"]);
        house.serve(command.arg(&control), "Unix socket")?;
        for number in 0..PEERS {
            let directory = house.dir.join(format!("peer-{number}"));
            let mut command = gabion(&["peer", "--memory", PEER_MEMORY, "--directory"]);
            command.arg(&directory).arg("--controller").arg(&control);
            house.serve(&mut command, "registered")?;
        }
        Ok(house)
    }

    /// Starts a process that says a word once it serves.
    fn serve(&mut self, command: &mut Command, word: &str) -> Result<()> {
        let log = self.log();
        let mut process = Process::start(command.stdout(Stdio::piped()), log)?;
        process.until(word)?;
        self.processes.push(process);
        Ok(())
    }

    /// The name of a new file for the words of a process.
    pub(super) fn log(&mut self) -> PathBuf {
        self.logs += 1;
        self.dir.join(format!("log-{}", self.logs))
    }

    /// A new directory for a program.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::create_dir(&path).map_err(at(&path))?;
        Ok(path)
    }

    /// `gabion ncl run` of a program, as yet without the program.
    pub(super) fn run(&self, application: &str, globs: &str) -> Command {
        let mut command = gabion(&["run", "--app", application, "--match", globs, "--take-over"]);
        command.arg("--controller").arg(self.dir.join("control")).arg("--");
        command
    }
}

/// The running program, which ends with this process.
fn gabion(words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("gabion").arg("ncl").arg(words[0]);
    command.args(["--parent", &std::process::id().to_string()]).args(&words[1..]);
    command
}
