//! `gabion ncl run`: a program whose log files go to a store of logs.
//!
//! ```text
//!  gabion ncl run ─┬─ owner: mirrors, names, ring ──► store
//!                  ├─ a private directory: socket, the interposer
//!                  └─ program, and all that it starts, until the last has ended
//! ```
//!
//! The interposer is a shared library that `build.rs` builds and this program carries.

use super::metrics::{self, of_application};
use super::{RunOptions, Shown, waiting};
use crate::units::exact_size;
use gabion_base::{Error, ErrorKind, Result};
use gabion_mirror::files::LogFiles;
use gabion_mirror::local::LocalFiles;
use gabion_mirror::owner::{Owner, Settings, Splits};
use gabion_mirror::{program, start};
use gabion_ncl::OnLoss;
use gabion_ncl_driver::{Logs, LogsOptions, PeerFiles};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static INTERPOSER: &[u8] = include_bytes!(env!("GABION_INTERPOSER"));

/// How long a program may take until its interposer has said that it is there.
const GREETING: Duration = Duration::from_secs(10);

/// An I/O error as one of ours.
pub(super) fn failed(what: &str, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::WouldBlock => ErrorKind::Busy,
        std::io::ErrorKind::TimedOut => ErrorKind::Unavailable,
        std::io::ErrorKind::InvalidData => ErrorKind::Corruption,
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::Unsupported => {
            ErrorKind::InvalidInput
        }
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{what}: {error}"))
}

/// `mask` is the one that files of the program are made with.
pub(super) fn run(options: &RunOptions, mask: Mode) -> Result<u8> {
    let name = Path::new(&options.program[0]);
    let program = program::find(name).map_err(|error| failed("gabion ncl run", error))?;
    let default = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let application = options.app.clone().unwrap_or(default);
    let root = options.root.clone().unwrap_or_else(|| PathBuf::from("."));
    let place = Place::new()?;
    let (files, logs, kept) = open(options, &application)?;
    let splits = (!options.splits.is_empty())
        .then(|| Splits { globs: options.splits.clone(), journal_len: options.journal });
    let settings = Settings {
        application: application.clone(),
        root: root.clone(),
        globs: options.globs.clone().unwrap_or_default(),
        splits,
        every_write: options.every_write,
        directory: place.0.clone(),
    };
    let owner = Owner::start(settings, files)
        .map_err(|error| failed(&format!("files below {}", root.display()), error))?;
    let (shared, app, f) = (owner.shared(), application.clone(), options.f);
    let of_logs = logs.clone();
    let page = move || of_application::page(&app, shared, of_logs.as_deref().map(|it| (it, f)));
    let door = metrics::serve(options.metrics, page, |line| eprintln!("gabion ncl: {line}"));
    let door = match door {
        Ok(door) => door,
        Err(error) => {
            // The lease is given back with the last of its threads.
            owner.stop().map_err(|error| failed("the store", error))?;
            return Err(error);
        }
    };
    let files = in_words(options);
    eprintln!("gabion ncl: {application}: files {files} below {}; {kept}", root.display());
    let ended = supervise(options, &program, &place, &owner, mask);
    let greeted = owner.greeted();
    let stopped = owner.stop().map_err(|error| failed("the store", error));
    // The lease is given back, so that the next run need not wait.
    drop((door, logs));
    stopped?;
    let code = ended?;
    if greeted { Ok(code) } else { Err(unseen(&program)) }
}

/// The files that are mirrored, and those that are split.
fn in_words(options: &RunOptions) -> String {
    let splits = options.splits.iter();
    let splits =
        splits.map(|(glob, below)| format!("{glob} (writes below {})", exact_size(*below)));
    options.globs.iter().cloned().chain(splits).collect::<Vec<_>>().join(", ")
}

type Opened = (Box<dyn LogFiles>, Option<Arc<Logs>>, String);

/// The store of the files, and how it keeps them, in words.
fn open(options: &RunOptions, application: &str) -> Result<Opened> {
    let Some(controller) = &options.controller else {
        let Some(store) = &options.store else {
            return Err(Error::invalid(
                "where are the files kept? --controller PLACE keeps them at log peers; --store DIR \
                 in a directory of this machine, not replicated and never synced to its disk: they \
                 survive the program, but not the machine",
            ));
        };
        let files = LocalFiles::open(store)
            .map_err(|error| failed(&format!("store {}", store.display()), error))?;
        let kept = format!(
            "store {}, NOT REPLICATED: what is acknowledged survives the program, not this machine",
            store.display()
        );
        return Ok((Box::new(files), None, kept));
    };
    let shown = Shown::open(options.token_file.as_deref(), options.identity.as_deref())?;
    let mut settings = LogsOptions::new(application);
    settings.core.f = options.f.into();
    settings.core.takes_over = options.take_over;
    settings.core.on_loss = match options.peer_timeout {
        0 => OnLoss::Wait,
        seconds => OnLoss::FailAfter(seconds.saturating_mul(1_000)),
    };
    let store = shown.store(controller);
    (settings.token, settings.tls) = (shown.token(), shown.tls);
    settings.has_program = true;
    let logs = Arc::new(Logs::start(settings, Box::new(store))?);
    waiting::wait_until_ready(&logs)?;
    let (status, counts) = logs.status()?;
    if status.copies <= usize::from(options.f) {
        return Err(Error::unavailable(format!(
            "log peers were lost at once: {} copies are within reach, {} are needed",
            status.copies,
            options.f + 1
        )));
    }
    let elsewhere = counts.connected.saturating_sub(counts.shared) > usize::from(options.f);
    let kept = format!(
        "{} log peers, {} of them on this machine: what is acknowledged survives the loss of any \
         {}, and {}",
        counts.connected,
        counts.shared,
        options.f,
        if elsewhere { "of this machine" } else { "of the program; NOT of this machine" }
    );
    Ok((Box::new(PeerFiles::new(Arc::clone(&logs))), Some(logs), kept))
}

fn unseen(program: &Path) -> Error {
    let text = format!(
        "{} ran without the interposer, and nothing that it wrote is in the store",
        program.display()
    );
    Error::new(ErrorKind::Unsupported, text)
}

/// Starts the program and waits until it and all of its descendants have ended. Its exit code.
fn supervise(
    options: &RunOptions,
    program: &Path,
    place: &Place,
    owner: &Owner,
    mask: Mode,
) -> Result<u8> {
    let interposer = place.0.join("libgabion_preload.so");
    std::fs::write(&interposer, INTERPOSER).map_err(|error| failed("the interposer", error))?;
    // Daemons too: their files are this application's as long as they run.
    let reaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    reaper.map_err(|error| failed("gabion ncl run", error.into()))?;
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(|error| failed("signals", error))?;
    let mut command = start::command(program, &interposer, &place.0);
    command.args(&options.program[1..]);
    let own = rustix::process::umask(mask);
    let child = command.spawn();
    rustix::process::umask(own);
    let child = child.map_err(|error| failed(&program.display().to_string(), error))?;
    let pid = Pid::from_child(&child);
    let handle = signals.handle();
    let over = Arc::new(AtomicBool::new(false));
    let code = std::thread::scope(|scope| {
        scope.spawn(|| {
            for signal in signals.forever() {
                // A terminal sends these two to the program as well.
                if signal == SIGHUP || signal == SIGTERM {
                    let signal = if signal == SIGHUP { Signal::HUP } else { Signal::TERM };
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        scope.spawn(|| end_unless_greeted(owner, pid, &over));
        let code = wait_for_all(&child);
        over.store(true, Ordering::Release);
        handle.close();
        code
    });
    Ok(code)
}

/// A program whose loader left the interposer out would write unseen: it does not go on.
fn end_unless_greeted(owner: &Owner, pid: Pid, over: &AtomicBool) {
    let step = Duration::from_millis(20);
    let mut left = GREETING;
    while !owner.greeted() && !over.load(Ordering::Acquire) {
        if left.is_zero() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            return;
        }
        std::thread::sleep(step);
        left = left.saturating_sub(step);
    }
}

/// The exit code of the program, as a shell has it, once nobody is left.
fn wait_for_all(child: &Child) -> u8 {
    let mut code = 0;
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == Pid::from_child(child) => {
                let signal = || status.terminating_signal().map(|signal| 128 + signal);
                code = status.exit_status().or_else(signal).unwrap_or(0) as u8;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // There are no children any more.
            Err(_) => return code,
        }
    }
}

/// A directory that only this user may enter, as long as this value lives.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let parent = runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
        let process = std::process::id();
        let free = (0..100).find_map(|number| {
            let path = parent.join(format!("gabion-ncl-{process}-{number}"));
            std::fs::DirBuilder::new().mode(0o700).create(&path).ok().map(|()| path)
        });
        let text = || format!("no directory can be made in {}", parent.display());
        free.map(Self).ok_or_else(|| Error::new(ErrorKind::Io, text()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
