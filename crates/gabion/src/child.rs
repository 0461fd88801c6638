//! One replica's process, from its supervisor's side.

use crate::cluster::{self, check_replica, failed, is_missing, replica_dir};
use crate::options::ProcessOptions;
use crate::owned::{self, is_log, log_text};
use crate::security;
use gabion_base::{Error, Result};
use rustix::process::{Pid, Signal};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A log longer than this is put aside, and replaces the one put aside before.
const LOG_LEN_MAX: u64 = 4 << 20;
/// How long a replica may take to stop before it is killed: it writes out the bytes that only its
/// ring holds.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How long it may take before it is said which is waited for.
const SILENT_STOP_MAX: Duration = Duration::from_secs(2);
/// A signal so soon after the first counts as the same wish: `timeout` and others signal the
/// process and its group, and the supervisor belongs to it.
const SAME_WISH: Duration = Duration::from_millis(300);
/// How often it is looked whether processes have ended.
const STOP_TICK: Duration = Duration::from_millis(25);
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The same where the group needs this replica to be whole again, and not to serve: the others do.
const BACKOFF_MAX_SERVED: Duration = Duration::from_secs(2);
/// The next pause is half as long for each such time that a process lived.
const HALVED_AFTER: Duration = Duration::from_secs(2);

/// A replica's place: its process, or the time when the next one starts.
pub(crate) struct Replica {
    /// Its number in the first group.
    pub(crate) number: u32,
    data: PathBuf,
    /// The directories of its groups, with its numbers there: one of the data, and more where there
    /// are several groups.
    groups: Vec<(PathBuf, u32)>,
    options: ProcessOptions,
    child: Option<Child>,
    started: Instant,
    /// How long the process ran that died last.
    last_life: Duration,
    restart_at: Option<Instant>,
    backoff: Duration,
    is_condemned: bool,
    /// Whether the group serves without it.
    pub(crate) is_served: bool,
    /// How often its process died.
    pub(crate) deaths: u32,
}

/// The unexpected end of a process.
pub(crate) struct Death {
    pub(crate) pid: u32,
    pub(crate) how: String,
    /// Every further process would end like this, because of its options or its environment.
    pub(crate) is_final: bool,
    /// The place of the group whose pool or log is damaged, if one is.
    pub(crate) damaged: Option<usize>,
    /// The last line that it printed.
    pub(crate) last_words: Option<String>,
    pub(crate) restart_in: Duration,
}

/// How the replicas ended.
pub(crate) enum Stopped {
    Cleanly,
    /// They were killed, as this signal came while they were about to stop.
    ByForce(i32),
    /// They were killed, as they did not stop.
    TooSlowly,
}

impl Stopped {
    /// The exit code of the supervisor, which is this one after a clean stop.
    ///
    /// # Errors
    /// I/O, when the replicas took too long.
    pub(crate) fn code(self, code: u8) -> Result<u8> {
        match self {
            Self::Cleanly => Ok(code),
            // The code that a shell gives for a program ended by a signal: no script takes it for
            // a clean stop.
            Self::ByForce(signal) => Ok(128 + signal as u8),
            Self::TooSlowly => Err(Error::io(format!(
                "replicas did not stop within {} s and were killed; the data is as after a crash \
                 of their processes",
                STOP_MAX.as_secs()
            ))),
        }
    }
}

/// Ends every process: SIGTERM, and after a while, or when told again, SIGKILL. `told` waits for so
/// long for a signal; `late` gets the numbers of those that take long.
pub(crate) fn stop_all(
    mut replicas: Vec<&mut Replica>,
    mut told: impl FnMut(Duration) -> Option<i32>,
    mut late: impl FnMut(&str),
) -> Stopped {
    replicas.iter().for_each(|replica| replica.signal(Signal::TERM));
    let begun = Instant::now();
    let mut stopped = Stopped::Cleanly;
    let mut is_told = false;
    while !replicas.iter_mut().fold(true, |all, replica| all & replica.is_gone()) {
        let signal = told(STOP_TICK);
        if !matches!(stopped, Stopped::Cleanly) {
            continue;
        }
        if !is_told && begun.elapsed() > SILENT_STOP_MAX {
            is_told = true;
            let left = replicas.iter().filter(|replica| replica.pid().is_some());
            let left: Vec<String> = left.map(|replica| replica.number.to_string()).collect();
            late(&left.join(", "));
        }
        stopped = match signal {
            Some(signal) if begun.elapsed() > SAME_WISH => Stopped::ByForce(signal),
            _ if begun.elapsed() > STOP_MAX => Stopped::TooSlowly,
            _ => continue,
        };
        replicas.iter().for_each(|replica| replica.signal(Signal::KILL));
    }
    stopped
}

/// The line on a replica that begins again with nothing.
pub(crate) fn anew(number: u32, why: &str) -> String {
    format!("replica {number}: {why}; it is made anew, empty, and the others fill it")
}

impl Death {
    /// The line on it.
    pub(crate) fn in_words(&self, number: u32) -> String {
        let line = format!("replica {number} (process {}) died: {}", self.pid, self.how);
        match &self.last_words {
            Some(words) => format!("{line}: {words}"),
            None => line,
        }
    }
}

impl Replica {
    pub(crate) fn new(number: u32, data: &Path, options: &ProcessOptions) -> Self {
        Self {
            number,
            data: data.to_owned(),
            groups: vec![(data.to_owned(), number)],
            options: options.clone(),
            child: None,
            started: Instant::now(),
            last_life: Duration::ZERO,
            restart_at: None,
            backoff: BACKOFF_MIN,
            is_condemned: false,
            is_served: false,
            deaths: 0,
        }
    }

    /// The same, of several groups in one process: directories and numbers, in their order.
    pub(crate) fn of_groups(mut self, groups: Vec<(PathBuf, u32)>) -> Self {
        self.groups = groups;
        self
    }

    /// The places of the groups whose files of this replica are gone.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let groups = self.groups.iter().enumerate();
        groups
            .filter(|(_, (dir, number))| is_missing(dir, *number))
            .map(|(place, _)| place)
            .collect()
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        replica_dir(&self.data, self.number).join("log")
    }

    /// Starts the process, in a process group of its own: Ctrl-C is for the supervisor alone. Must
    /// be called by the main thread: the child ends with the thread that started it.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.groups.iter().try_for_each(|(dir, number)| check_replica(dir, *number))?;
        self.bound_log();
        let path = self.log_path();
        let log = owned::open_log(&path, self.number)?;
        // The running program, even if it was rebuilt or replaced and its name now belongs to
        // another file, or to none.
        let program = Path::new("/proc/self/exe");
        let name = std::env::args_os().next().unwrap_or_else(|| program.into());
        let child = Command::new(program)
            .arg0(name)
            .arg("server")
            .arg("--data")
            .arg(&self.data)
            .args(["--replica", &self.number.to_string()])
            .args(self.options.words())
            .args(["--parent", &std::process::id().to_string()])
            .envs(security::operator().map(|secret| (security::OPERATOR_OF, secret)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|e| failed(program, "cannot be started", e))?;
        self.child = Some(child);
        self.started = Instant::now();
        self.restart_at = None;
        self.is_condemned = false;
        Ok(())
    }

    /// Puts the log aside if it is long. Called now and then: any client can make a replica write
    /// lines, and its process may run for years.
    pub(crate) fn bound_log(&self) {
        // The next call tries again; the replica must not end for it.
        let _ = bound(&self.log_path(), self.number, LOG_LEN_MAX);
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether its process runs; a death is returned once.
    pub(crate) fn check(&mut self) -> Option<Death> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok().flatten()?;
        let pid = child.id();
        self.child = None;
        self.deaths += 1;
        self.last_life = self.started.elapsed();
        self.backoff = after_a_life(self.backoff, self.last_life);
        let restart_in = self.pause();
        let said_something = status.code().is_some_and(|code| code != 0);
        let last_words = if said_something { last_line(&self.log_path()) } else { None };
        let is_final = status.code() == Some(i32::from(gabion_server::EXIT_CONFIGURATION));
        let damaged = status.code().and_then(gabion_server::damaged_place);
        let damaged = damaged.filter(|place| *place < self.groups.len());
        let how = how_it_ended(status);
        Some(Death { pid, how, is_final, damaged, last_words, restart_in })
    }

    /// Whether its process has run longer than the one that died last, by so much.
    pub(crate) fn outlives_the_last_by(&self, time: Duration) -> bool {
        self.child.is_some() && self.started.elapsed() >= self.last_life + time
    }

    /// Starts the next process when it is due. Returns whether it did.
    ///
    /// # Errors
    /// It could not be started; it is tried again after a pause, as after a death.
    pub(crate) fn restart_if_due(&mut self) -> Result<bool> {
        if !self.is_due() {
            return Ok(false);
        }
        self.start().map(|()| true).inspect_err(|_| {
            self.pause();
        })
    }

    /// Whether the next process is to start now.
    pub(crate) fn is_due(&self) -> bool {
        self.restart_at.is_some_and(|at| at <= Instant::now())
    }

    /// Whether the next process is to start now, and there is nothing for it to start from.
    pub(crate) fn is_due_without_files(&self) -> bool {
        self.is_due() && !self.missing().is_empty()
    }

    /// Kills a process whose files were removed under it, if the others are enough: it would go on
    /// with files that no later process finds. Returns what is to be said.
    pub(crate) fn end_without_files(&mut self, is_served: bool) -> Option<String> {
        let number = self.number;
        let is_gone = self.pid().is_some() && !self.missing().is_empty();
        (is_gone && is_served && self.condemn())
            .then(|| format!("replica {number}: its pool is gone while its process runs: killed"))
    }

    /// Puts the damaged files of the group at a place aside. Returns where they are then.
    ///
    /// # Errors
    /// I/O: they stay where they are.
    pub(crate) fn put_aside(&self, place: usize) -> Result<PathBuf> {
        let now_s = crate::control::unix_ms() / 1_000;
        let (dir, number) = &self.groups[place];
        cluster::put_aside(dir, *number, now_s)
    }

    /// Kills the process, if there is one and it was not killed here before.
    pub(crate) fn condemn(&mut self) -> bool {
        let is_news = self.child.is_some() && !self.is_condemned;
        if is_news {
            self.signal(Signal::KILL);
            self.is_condemned = true;
        }
        is_news
    }

    /// The next process starts after a pause, twice as long as the one before.
    pub(crate) fn pause(&mut self) -> Duration {
        let max = if self.is_served { BACKOFF_MAX_SERVED } else { BACKOFF_MAX };
        let pause = self.backoff.min(max);
        self.restart_at = Some(Instant::now() + pause);
        self.backoff = (pause * 2).min(max);
        pause
    }

    /// Sends a signal, if there is a process.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Whether the process is gone; it is not started again.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.restart_at = None;
        if let Some(child) = &mut self.child
            && matches!(child.try_wait(), Ok(None))
        {
            return false;
        }
        self.child = None;
        true
    }
}

/// The next pause after a process that lived so long.
fn after_a_life(backoff: Duration, lived: Duration) -> Duration {
    let halvings = lived.as_millis() / HALVED_AFTER.as_millis();
    let halved = backoff / (1 << halvings.min(16) as u32);
    halved.max(BACKOFF_MIN)
}

/// No path out of the supervisor leaves a process behind.
impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Copies a log that is longer than `len_max` to `log.old` and empties it. The process goes on
/// writing at the end of the same file; a line that it writes between the two steps is lost.
fn bound(path: &Path, number: u32, len_max: u64) -> Result<()> {
    let io = |e| failed(path, "cannot be put aside", e);
    if std::fs::metadata(path).map_err(io)?.len() <= len_max || !owned::is_there(path, is_log)? {
        return Ok(());
    }
    // Emptied even if the disk has no space for the copy, or its name is taken: the limit is for
    // that.
    let old = path.with_extension("old");
    let copied = match owned::is_there(&old, is_log) {
        Ok(_) => std::fs::copy(path, &old).map(drop).map_err(io),
        Err(error) => Err(error),
    };
    let mut log = OpenOptions::new().append(true).open(path).map_err(io)?;
    log.set_len(0).and_then(|()| log.write_all(log_text(number).as_bytes())).map_err(io)?;
    copied
}

fn how_it_ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(9)) => "killed (signal 9)".to_owned(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

/// The last line of a log that is not empty.
fn last_line(path: &Path) -> Option<String> {
    let mut file = std::fs::File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(4096))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thing_said_is_found_behind_empty_lines() {
        let path = std::env::temp_dir().join(format!("gabion-last-words-{}", std::process::id()));
        std::fs::write(&path, format!("{}\nthe pool is broken\n\n", "x".repeat(10_000))).unwrap();
        assert_eq!(last_line(&path).as_deref(), Some("the pool is broken"));
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(last_line(&path), None);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_start_that_fails_is_tried_again_after_pauses_that_double_up_to_a_limit() {
        let data = std::env::temp_dir().join(format!("gabion-no-start-{}", std::process::id()));
        // Its directory is not there.
        let mut replica = Replica::new(1, &data, &ProcessOptions::default());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            replica.restart_at = Some(Instant::now());
            pauses.push(replica.backoff.as_millis());
            assert!(replica.restart_if_due().is_err());
            assert!(!replica.restart_if_due().unwrap(), "not before the pause is over");
        }
        assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!((replica.pid(), replica.deaths), (None, 0));
        // While others serve a replica that is whole soon is worth more than a quiet machine.
        replica.is_served = true;
        replica.restart_at = Some(Instant::now());
        assert!(replica.restart_if_due().is_err());
        assert!(replica.backoff <= BACKOFF_MAX_SERVED);
    }

    #[test]
    fn a_pause_is_shorter_the_longer_a_process_lived() {
        let after = |seconds| after_a_life(BACKOFF_MAX, Duration::from_secs(seconds)).as_millis();
        assert_eq!([0, 1, 2, 4, 8, 30].map(after), [10_000, 10_000, 5_000, 2_500, 625, 200]);
        assert_eq!(after(u64::MAX / 4), 200);
    }

    #[test]
    fn a_long_log_is_put_aside_under_the_process_that_writes_it() {
        let path = std::env::temp_dir().join(format!("gabion-long-log-{}", std::process::id()));
        let old = path.with_extension("old");
        let _ = std::fs::remove_file(&path);
        let mut log = owned::open_log(&path, 7).unwrap();
        let first = log_text(7);
        let len = first.len() as u64 + 5;
        log.write_all(b"first").unwrap();
        bound(&path, 7, len).unwrap();
        assert!(!old.exists(), "no longer than the limit");
        log.write_all(b" second").unwrap();
        bound(&path, 7, len).unwrap();
        log.write_all(b"third line").unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&old), format!("{first}first second"));
        assert_eq!(read(&path), format!("{first}third line"));
        bound(&path, 7, len).unwrap();
        assert_eq!(read(&old), format!("{first}third line"), "one old log is kept");
        assert_eq!(read(&path), first);
        // A foreign file of that name stays; the log is emptied all the same.
        std::fs::write(&old, "somebody's words").unwrap();
        log.write_all(b"fourth line").unwrap();
        bound(&path, 7, len).unwrap_err();
        assert_eq!((read(&old), read(&path)), ("somebody's words".to_owned(), first));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&old).unwrap();
    }

    #[test]
    fn an_end_is_told_by_code_or_signal() {
        assert_eq!(how_it_ended(ExitStatus::from_raw(9)), "killed (signal 9)");
        assert_eq!(how_it_ended(ExitStatus::from_raw(6)), "signal 6");
        assert_eq!(how_it_ended(ExitStatus::from_raw(70 << 8)), "exit code 70");
    }
}
