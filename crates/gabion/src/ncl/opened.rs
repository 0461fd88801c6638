//! The files of an application, opened by an operator.
//!
//! ```text
//!  ls of one that runs ──► its own report at the controller: names and lengths
//!  all else ──► the lease ──► keys, newest copy, new copies: an instance of its own ──► LogFiles
//! ```
//!
//! A reader of copies fences them first, which ends the instance that has them. So a running
//! application is refused, and only commands that change files take `--take-over`. These look first
//! at all that can be seen without the lease: a slip of the hand ends no program.

use super::place::parse_controller;
use super::run::failed;
use super::{Shown, waiting};
use clap::Args;
use gabion_base::{Error, ErrorKind, Result, crc};
use gabion_control::Store;
use gabion_fabric::remote::LinkAddress;
use gabion_mirror::files::{FileId, Listed, LogFiles};
use gabion_mirror::local::LocalFiles;
use gabion_ncl::OnLoss;
use gabion_ncl::map::{ApMap, InstanceRecord, instance_name, map_name};
use gabion_ncl_driver::report::{InstanceReport, report_name};
use gabion_ncl_driver::{Logs, LogsOptions, PeerFiles, escape};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a lease is watched that is held. Its holder renews it every 750 ms; one that was late
/// is waited for by whoever wants the lease.
const WATCHED: Duration = Duration::from_millis(1_500);
/// How often the lease is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are read at a time.
const PART_LEN: usize = 1 << 20;

/// The place of an application's files.
#[derive(Args, Debug)]
pub(crate) struct FilesPlace {
    /// The files of an application at log peers that are registered at this controller: ADDR, a
    /// Unix socket, or the directory of one
    #[arg(long, value_name = "PLACE", value_parser = parse_controller, requires = "app",
        required_unless_present = "store")]
    pub(crate) controller: Option<LinkAddress>,
    /// The application, as `ncl run --app` and `ncl status` name it
    #[arg(long, value_name = "NAME", requires = "controller")]
    pub(crate) app: Option<String>,
    /// Seconds to wait for enough peers, 0: without end
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "controller")]
    pub(crate) peer_timeout: u64,
    /// A file with what controller and peers ask for
    #[arg(long, value_name = "FILE", requires = "controller")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of the application or of an operator, for TLS: PATH.pem, with PATH.key and the
    /// ca.pem beside them, as `gabion ca issue` makes them [default: $GABION_IDENTITY, or none]
    #[arg(long, value_name = "PATH", requires = "controller")]
    pub(crate) identity: Option<PathBuf>,
    /// Instead of peers: the store that `ncl run --store` keeps in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "controller")]
    pub(crate) store: Option<PathBuf>,
}

/// The right to open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Right {
    /// A running instance is ended.
    pub(super) takes_over: bool,
    /// It was looked whether one runs.
    pub(super) is_idle: bool,
    /// An application that is not there is made, so that so many losses lose nothing.
    pub(super) makes: Option<u8>,
}

/// Files that nobody else changes while this lives.
pub(super) struct Opened {
    pub(super) store: Box<dyn LogFiles>,
    pub(super) listed: Vec<Listed>,
    /// Its end gives the lease back.
    _logs: Option<Arc<Logs>>,
}

impl FilesPlace {
    fn shown(&self) -> Result<Shown> {
        Shown::open(self.token_file.as_deref(), self.identity.as_deref())
    }

    /// The application by name; the directory of a store has but one, without a name.
    pub(super) fn application(&self) -> &str {
        self.app.as_deref().unwrap_or_default()
    }

    /// Opens the files, of an application that does not run.
    pub(super) fn open(&self, right: Right) -> Result<Opened> {
        let (mut store, logs): (Box<dyn LogFiles>, _) = match (&self.controller, &self.store) {
            (Some(controller), _) => {
                let logs = self.start(controller, right)?;
                (Box::new(PeerFiles::new(Arc::clone(&logs))), Some(logs))
            }
            (None, Some(directory)) => {
                let whole = format!("store {}", directory.display());
                if right.makes.is_none() && !directory.join("names").exists() {
                    return Err(Error::new(ErrorKind::NotFound, format!("{whole}: there is none")));
                }
                let opened = LocalFiles::open(directory).map_err(|error| match error.kind() {
                    std::io::ErrorKind::WouldBlock => {
                        let text = format!("{whole}: an application runs with it; end it first");
                        Error::new(ErrorKind::Busy, text)
                    }
                    _ => failed(&whole, error),
                });
                (Box::new(opened?), None)
            }
            (None, None) => unreachable!("the command line asks for one"),
        };
        let mut listed = store.recover().map_err(|error| failed("the files", error))?;
        listed.iter_mut().for_each(|file| file.names.sort());
        listed.sort_by(|a, b| a.names.cmp(&b.names));
        Ok(Opened { store, listed, _logs: logs })
    }

    fn start(&self, controller: &LinkAddress, right: Right) -> Result<Arc<Logs>> {
        let (shown, name) = (self.shown()?, self.application());
        let mut store = shown.store(controller);
        let map = match store.get(&map_name(name))? {
            Some(found) => ApMap::decode(&found.value)?,
            None => ApMap::default(),
        };
        let f = match (map.members.len(), right.makes) {
            (0, None) => {
                let text = format!("application '{name}' has no files at this controller");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            (0, Some(f)) => usize::from(f),
            (members, _) => members / 2,
        };
        if !right.takes_over && !right.is_idle {
            refuse_running(&mut store, name)?;
        }
        let mut settings = LogsOptions::new(name);
        (settings.core.f, settings.core.takes_over) = (f, right.takes_over);
        settings.core.on_loss = match self.peer_timeout {
            0 => OnLoss::Wait,
            seconds => OnLoss::FailAfter(seconds.saturating_mul(1_000)),
        };
        (settings.token, settings.tls) = (shown.token(), shown.tls);
        let logs = Arc::new(Logs::start(settings, Box::new(store))?);
        waiting::wait_until_ready(&logs)?;
        Ok(logs)
    }

    /// A running instance's word on its files; none if it does not run.
    pub(super) fn report(&self) -> Result<Option<(InstanceReport, u32)>> {
        let Some(controller) = &self.controller else { return Ok(None) };
        let mut store = self.shown()?.store(controller);
        if !runs(&mut store, self.application())? {
            return Ok(None);
        }
        let found = store.get(&report_name(self.application()))?;
        found.map(|found| InstanceReport::decode(&found.value)).transpose()
    }

    /// The files of an instance that is about to be ended; none if none runs, or if it has not
    /// reported yet.
    pub(super) fn reported(&self) -> Result<Option<Reported>> {
        let (Some(report), Some(controller)) = (self.report()?, &self.controller) else {
            return Ok(None);
        };
        let mut store = self.shown()?.store(controller);
        let running = instance(&mut store, self.application())?.map(|record| record.instance);
        Ok(Some(report).filter(|(it, _)| Some(it.instance) == running).map(Reported::new))
    }
}

/// The names of a running instance's files, as it reported them within the last seconds.
pub(super) struct Reported {
    names: BTreeSet<String>,
    /// Whether these are all of them.
    is_whole: bool,
}

impl Reported {
    fn new((report, count): (InstanceReport, u32)) -> Self {
        let is_whole = report.files.len() as u64 == u64::from(count);
        Self { names: report.files.into_iter().map(|file| file.name).collect(), is_whole }
    }

    /// The first of these names that it has.
    pub(super) fn taken<'a>(&self, mut names: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
        names.find(|name| self.names.contains(&escape(name)))
    }

    /// The first of these names that it has not, as far as it told.
    pub(super) fn missing<'a>(
        &self,
        mut names: impl Iterator<Item = &'a [u8]>,
    ) -> Option<&'a [u8]> {
        names.find(|name| self.is_whole && !self.names.contains(&escape(name)))
    }
}

fn instance(store: &mut dyn Store, name: &str) -> Result<Option<InstanceRecord>> {
    let found = store.get(&instance_name(name))?;
    found.map(|found| InstanceRecord::decode(&found.value)).transpose()
}

/// Whether an instance renews its lease.
fn runs(store: &mut dyn Store, name: &str) -> Result<bool> {
    let first = instance(store, name)?;
    let begun = Instant::now();
    loop {
        let Some(record) = instance(store, name)?.filter(|record| record.is_held) else {
            return Ok(false);
        };
        if first != Some(record) {
            return Ok(true);
        }
        if begun.elapsed() > WATCHED {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

fn refuse_running(store: &mut dyn Store, name: &str) -> Result<()> {
    if !runs(store, name)? {
        return Ok(());
    }
    let found = store.get(&report_name(name))?;
    let report = found.map(|found| InstanceReport::decode(&found.value)).transpose()?;
    let process = report.map_or_else(String::new, |(it, _)| format!(" as process {}", it.process));
    let text = format!(
        "application '{name}' runs{process}, and its files cannot be opened beside it: end it first"
    );
    Err(Error::new(ErrorKind::Busy, text))
}

impl Opened {
    /// The file of a name.
    pub(super) fn find(&self, name: &OsStr) -> Result<&Listed> {
        let has = |file: &&Listed| file.names.iter().any(|one| one == name.as_bytes());
        let missing = || {
            let text = format!("there is no file '{}'", name.to_string_lossy().escape_debug());
            Error::new(ErrorKind::NotFound, text)
        };
        self.listed.iter().find(has).ok_or_else(missing)
    }

    /// The files of names, or all without one; an unknown name is an error.
    pub(super) fn select(&self, names: &[OsString]) -> Result<Vec<Listed>> {
        match names {
            [] => Ok(self.listed.clone()),
            names => names.iter().map(|name| self.find(name).cloned()).collect(),
        }
    }

    /// All bytes of a file, in parts. Returns their CRC32C.
    pub(super) fn read(
        &mut self,
        file: &Listed,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<u32> {
        read(&mut *self.store, file.file, file.len, &mut take)
    }
}

fn read(
    store: &mut dyn LogFiles,
    file: FileId,
    len: u64,
    take: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<u32> {
    let mut buffer = vec![0; PART_LEN.min(len as usize)];
    let (mut at, mut sum) = (0, 0);
    while at < len {
        let part = (len - at).min(PART_LEN as u64) as usize;
        let got = store.read(file, at, &mut buffer[..part]);
        let got = got.map_err(|error| failed("the files", error))?;
        if got != part {
            let text = format!("file {}: {got} of {part} bytes at {at} of {len}", file.0);
            return Err(Error::corruption(text));
        }
        sum = crc::append(sum, &buffer[..part]);
        take(&buffer[..part])?;
        at += part as u64;
    }
    Ok(sum)
}
