//! `gabion up`: makes the data if there is none, starts one process per replica, and watches them.
//!
//! ```text
//!   lock ─► ports ─► create ─► controller ─► start ─► ready ─► watch ─► stop
//!                                  │                            │ redraw, restart what died,
//!                                  └──── events ────────────────┘ make anew what is gone
//! ```
//!
//! A replica that dies is restarted, and the group does not wait for it: the [controller](control)
//! leaves it out and takes it back when it is filled. So does a replica whose files are gone, or
//! damaged, as long as the others are enough.
//!
//! This one thread starts all processes, so that each can ask the kernel to end with it.

use crate::child::{self, Death, Replica, Stopped};
use crate::cluster::{self, Lock, Settings};
use crate::control::driver::spawn;
use crate::control::{self, Control, Opened};
use crate::machines::shown;
use crate::options::{PORT_DEFAULT, UpOptions};
use crate::screen::{self, Row, Screen};
use crate::security;
use crate::signals;
use crate::status::{self, Cpu, Status};
use crate::units::{count, size};
use gabion_base::{Error, Result};
use gabion_control::Patience;
use gabion_server::metrics::{Door, Route};
use signal_hook::consts::SIGINT;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often processes are checked.
const TICK: Duration = Duration::from_millis(100);
const REDRAW: Duration = Duration::from_secs(1);
/// How often a line is printed where nothing can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// How long a start may take before `up` prints what it waits for. Some starts take minutes: a
/// replica reads its log and checks its pool before it answers, and `up` does not give up while it
/// lives.
const SILENT_START_MAX: Duration = Duration::from_secs(3);
/// How often that is printed where nothing can be redrawn.
const WAITING_LINE_EVERY: Duration = Duration::from_secs(10);
/// Deaths of one replica during start-up at which `up` gives up.
const START_DEATHS_MAX: u32 = 3;

pub(crate) fn run(options: &UpOptions) -> Result<u8> {
    if options.show_commands {
        return show_commands(options);
    }
    let (events, inbox) = channel();
    options.process.security.check()?;
    security::be_operator()?;
    let told = events.clone();
    signals::watch(move |signal| told.send(Event::Stop(signal)).is_ok())?;
    let data = cluster::data_dir(&options.data)?;
    let mut screen = Screen::new();
    let (mut settings, _lock) = prepare(options, &data, &mut screen, &inbox)?;
    settings
        .nodes()
        .try_for_each(|number| options.process.security.of_replica(number).map(drop))?;
    let controls = begin_controls(options, &data, &mut settings, &mut screen, &events)?;
    let mut group = Group::new(settings, data, options, screen, inbox, controls);
    for replica in &mut group.replicas {
        replica.start()?;
    }
    group.serve_metrics(options, &events)?;
    group.watch_status(&events)?;
    let outcome = group.run();
    let stopped = group.stop();
    outcome.and_then(|code| stopped.code(code))
}

/// `--show-commands`: of the data, or of the data that would be made.
fn show_commands(options: &UpOptions) -> Result<u8> {
    let data = cluster::data_dir(&options.data)?;
    let settings = match cluster::load(&data)? {
        Some(mut settings) => {
            cluster::check_whole(&settings, &data)?;
            settings.check_fixed(&options.fixed, &data)?;
            settings.port = options.port.unwrap_or(settings.port);
            settings
        }
        None => new_settings(options, &data)?,
    };
    let spares = options.spare.unwrap_or(settings.spares);
    let settings = Settings { spares, ..settings };
    let (process, after) = (&options.process, options.replace_after);
    screen::put(&shown::text(&settings, process, after, &data, &program())?);
    Ok(0)
}

/// The events that the supervisor waits for.
enum Event {
    /// SIGINT, SIGTERM or SIGHUP.
    Stop(i32),
    /// A replica's answer, or that there was none.
    ///
    /// By the group's place and the replica's number.
    Status(usize, u32, Option<Box<Status>>),
    /// A line for the screen.
    Said(String),
    /// Something that the controller saw or did.
    Group(Option<u32>, gabion_control::Event),
}

/// Locks the data, makes it if there is none, and checks that the options and the ports fit.
fn prepare(
    options: &UpOptions,
    data: &Path,
    screen: &mut Screen,
    inbox: &Receiver<Event>,
) -> Result<(Settings, Lock)> {
    if !data.exists() {
        // Nothing is made, not even a directory, when the options or the ports do not fit.
        new_settings(options, data)?.check_ports()?;
        std::fs::create_dir_all(data).map_err(|e| cluster::failed(data, "cannot be made", e))?;
    }
    let lock = Lock::take(data)?;
    if cluster::clear_leftovers(data)? {
        screen.say("removed what an interrupted creation or removal had left");
    }
    if let Some(mut settings) = cluster::load(data)? {
        cluster::check_whole(&settings, data)?;
        settings.check_fixed(&options.fixed, data)?;
        let port = options.port.unwrap_or(settings.port);
        let has_moved = port != settings.port;
        settings.port = port;
        settings.check_ports()?;
        if has_moved {
            cluster::save(data, &settings)?;
        }
        return Ok((settings, lock));
    }
    let settings = new_settings(options, data)?;
    settings.check_ports()?;
    screen.say(&format!(
        "making {} in {}",
        count(u64::from(settings.replicas * settings.groups), "replica"),
        data.display()
    ));
    cluster::create(data, &settings, |number| {
        screen.say(&format!("replica {number}: reserving {}", size(settings.replica_len())));
        inbox.try_recv().is_err()
    })?;
    Ok((settings, lock))
}

/// Makes spares, and starts a controller for each group.
fn begin_controls(
    options: &UpOptions,
    data: &Path,
    settings: &mut Settings,
    screen: &mut Screen,
    events: &Sender<Event>,
) -> Result<Vec<Control>> {
    if let Some(spares) = options.spare {
        let len = size(settings.replica_len());
        cluster::make_spares(data, settings, spares, |number| {
            screen.say(&format!("replica {number}: a spare, reserving {len}"));
        })?;
        settings.check_ports()?;
    }
    if settings.has_controller() && settings.members_min == settings.replicas {
        screen.say(&format!(
            "the loss of any replica stops writes until it is back: all {} are needed \
             (--min-replicas)",
            settings.replicas
        ));
    }
    let mut controls = Vec::new();
    for (dir, group) in settings.by_group(data) {
        controls.extend(begin_control(options, &dir, &group, screen, events)?);
    }
    Ok(controls)
}

/// Opens the controller's store of a group, makes what is missing where the others are enough, and
/// starts the controller. Without one, everything has to be there.
fn begin_control(
    options: &UpOptions,
    data: &Path,
    settings: &Settings,
    screen: &mut Screen,
    events: &Sender<Event>,
) -> Result<Option<Control>> {
    if !settings.has_controller() {
        settings.nodes().try_for_each(|number| cluster::check_replica(data, number))?;
        return Ok(None);
    }
    let mut opened = Opened::open(data, settings, |line| screen.say(line))?;
    let missing: Vec<u32> =
        settings.nodes().filter(|number| cluster::is_missing(data, *number)).collect();
    let may_be_made = opened.is_enough_without(&missing);
    for number in settings.nodes() {
        if missing.contains(&number) && may_be_made {
            screen.say(&child::anew(number, "its pool is gone"));
            cluster::make_empty(data, settings, number)?;
        }
        cluster::check_replica(data, number)?;
        if settings.groups == 1 {
            opened.keep_users(&cluster::replica_dir(data, number))?;
        }
    }
    let patience = Patience { replace_ms: options.replace_after, ..Patience::default() };
    let events = events.clone();
    // `up` ends before its controller does.
    let number = (settings.groups > 1).then_some(settings.place + 1);
    let heard = move |event| drop(events.send(Event::Group(number, event)));
    opened.start(data, settings, patience, heard).map(Some)
}

fn new_settings(options: &UpOptions, data: &Path) -> Result<Settings> {
    let free = cluster::free_at(data)?;
    Settings::new(&options.fixed, options.port.unwrap_or(PORT_DEFAULT), data, free)
}

/// The replicas and their known states.
struct Group {
    settings: Settings,
    data: PathBuf,
    is_default_data: bool,
    screen: Screen,
    inbox: Receiver<Event>,
    replicas: Vec<Replica>,
    /// Of the first group's replicas, then of the second's, and so on.
    known: Vec<Known>,
    /// One for each group; none where the members are fixed.
    controls: Vec<Control>,
    metrics: Vec<Door>,
    has_been_ready: bool,
    started: Instant,
}

/// One replica's answer, and the CPU of its earlier processes.
#[derive(Default)]
struct Known {
    last: Option<Status>,
    /// Whether it answered the last question.
    answers: bool,
    earlier_cpu: Cpu,
    /// When its process died, until the next one is ready.
    died_at: Option<Instant>,
}

impl Group {
    fn new(
        settings: Settings,
        data: PathBuf,
        options: &UpOptions,
        screen: Screen,
        inbox: Receiver<Event>,
        controls: Vec<Control>,
    ) -> Self {
        let groups: Vec<PathBuf> =
            settings.by_group(&data).into_iter().map(|(dir, _)| dir).collect();
        let replica = |n| {
            let groups = groups.iter().map(|dir| (dir.clone(), n)).collect();
            Replica::new(n, &data, &options.process).of_groups(groups)
        };
        let replicas: Vec<Replica> = settings.nodes().map(replica).collect();
        let known = (0..replicas.len() * groups.len()).map(|_| Known::default()).collect();
        let is_default_data = options.data.data.is_none();
        Self {
            settings,
            data,
            is_default_data,
            screen,
            inbox,
            replicas,
            known,
            controls,
            metrics: Vec::new(),
            has_been_ready: false,
            started: Instant::now(),
        }
    }

    /// Serves the controller's numbers, and those of this process, if they are to be served.
    fn serve_metrics(&mut self, options: &UpOptions, events: &Sender<Event>) -> Result<()> {
        for (place, (_, group)) in (0..).zip(self.settings.by_group(&self.data)) {
            let ports = options.process.metrics_port.of_group(place);
            let Some(address) = ports.address(group.port, 0) else { continue };
            let events = events.clone();
            let said = move |line: &str| drop(events.send(Event::Said(line.to_owned())));
            self.metrics.push(match self.controls.get(place as usize) {
                Some(control) => {
                    let of =
                        if place > 0 { format!(" of group {}", place + 1) } else { String::new() };
                    self.screen.say(&format!("status page{of}: http://{address}/"));
                    control.serve_metrics(address, said)?
                }
                None => {
                    let numbers = Route::metrics(|| Ok(control::metrics::of_process()));
                    Door::start(address, vec![numbers], said)?
                }
            });
        }
        Ok(())
    }

    /// Asks every replica now and then, each on a thread of its own: a hanging one delays no other.
    fn watch_status(&self, events: &Sender<Event>) -> Result<()> {
        let groups = self.settings.by_group(&self.data).into_iter().enumerate();
        let nodes = groups.flat_map(|(place, (_, group))| {
            group.nodes().map(move |n| (place, n, group.doors(n).resp)).collect::<Vec<_>>()
        });
        for (place, number, address) in nodes {
            let address: SocketAddr = address;
            let events = events.clone();
            let ask = move || {
                loop {
                    let status = status::ask(address).ok().map(|v| Box::new(Status::from_json(&v)));
                    let is_ready = status.as_ref().is_some_and(|s| s.is_ready);
                    if events.send(Event::Status(place, number, status)).is_err() {
                        return;
                    }
                    std::thread::sleep(if is_ready { REDRAW } else { TICK });
                }
            };
            spawn("gabion-status", ask).map(drop)?;
        }
        Ok(())
    }

    /// Until a signal comes, or the start fails.
    fn run(&mut self) -> Result<u8> {
        let mut show_at = self.started + SILENT_START_MAX;
        loop {
            match self.inbox.recv_timeout(TICK) {
                Ok(Event::Stop(signal)) => {
                    if signal != SIGINT {
                        self.screen.say(&format!("signal {signal} came"));
                    }
                    return Ok(0);
                }
                Ok(Event::Status(place, number, status)) => self.learn(place, number, status),
                Ok(Event::Said(line)) => self.screen.say(&line),
                Ok(Event::Group(None, event)) => self.screen.say(&control::ask::told(&event)),
                Ok(Event::Group(Some(number), event)) => {
                    self.screen.say(&format!("group {number}: {}", control::ask::told(&event)));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::io("the thread that watches signals is gone"));
                }
            }
            self.look_after_processes()?;
            if !self.has_been_ready && self.all_ready() {
                self.has_been_ready = true;
                let line = self.ready_line();
                self.screen.say(&line);
                show_at = Instant::now();
            }
            if Instant::now() >= show_at {
                show_at = Instant::now() + self.show_every();
                self.show();
            }
        }
    }

    fn show_every(&self) -> Duration {
        match (self.screen.is_terminal(), self.has_been_ready) {
            (true, _) => REDRAW,
            (false, true) => LINE_EVERY,
            (false, false) => WAITING_LINE_EVERY,
        }
    }

    fn learn(&mut self, place: usize, number: u32, mut status: Option<Box<Status>>) {
        let i = (number - 1) as usize;
        self.replicas[i].bound_log();
        let pid = self.replicas[i].pid().map(u64::from);
        if let Some(status) = status.as_mut().filter(|_| place > 0) {
            // The process's, which is counted with the first group.
            status.cpu = Cpu::default();
        }
        let name = self.name(place, number);
        let i = place * self.replicas.len() + i;
        let known = &mut self.known[i];
        // An answer of a process that died meanwhile says nothing of the current one.
        let status = status.filter(|status| Some(status.pid) == pid);
        known.answers = status.is_some();
        let Some(status) = status else { return };
        if let Some(last) = &known.last
            && last.pid != status.pid
        {
            let spent = last.cpu;
            known.earlier_cpu.add(&spent);
        }
        // A replica that was left out is back when the group has it again.
        let is_back = status.is_ready && status.is_member;
        let ring_before = known.last.as_ref().map_or("", |last| &last.ring);
        let ring = Some(status.ring.clone()).filter(|ring| !ring.is_empty() && ring != ring_before);
        known.last = Some(*status);
        if let Some(ring) = ring {
            self.screen.say(&format!("{name}: {ring}"));
        }
        let known = &mut self.known[i];
        if is_back
            && let Some(died_at) = known.died_at.take()
            && self.has_been_ready
        {
            let line = format!(
                "{name} is back and has caught up, {:.1} s after it died",
                died_at.elapsed().as_secs_f64()
            );
            self.screen.say(&line);
            self.show();
        }
    }

    /// A replica as it is called on the screen.
    fn name(&self, place: usize, number: u32) -> String {
        let group = (self.settings.groups > 1).then_some(place as u32 + 1);
        screen::name_of(group, number)
    }

    fn look_after_processes(&mut self) -> Result<()> {
        for i in 0..self.replicas.len() {
            self.end_without_files(i);
            if let Some(death) = self.replicas[i].check() {
                for known in self.known.iter_mut().skip(i).step_by(self.replicas.len()) {
                    known.answers = false;
                    known.died_at.get_or_insert_with(Instant::now);
                }
                self.mourn(i, &death)?;
            }
            let restarted = self.mend_if_due(i).and_then(|()| self.replicas[i].restart_if_due());
            let line = match restarted {
                Ok(false) => continue,
                Ok(true) => {
                    let pid = self.replicas[i].pid().unwrap_or(0);
                    format!("replica {} starts again as process {pid}", i + 1)
                }
                // The others go on, and the system may have later what it lacks now.
                Err(error) if self.has_been_ready => {
                    format!("replica {}: {error}; tried again soon", i + 1)
                }
                Err(error) => return Err(error),
            };
            self.screen.say(&line);
        }
        Ok(())
    }

    /// Whether the group at a place serves without a replica.
    fn is_enough_without(&self, place: usize, i: usize) -> bool {
        let control = self.controls.get(place);
        control.is_some_and(|control| control.is_enough_without(self.replicas[i].number))
    }

    /// Whether all groups serve without a replica.
    fn is_served_without(&self, i: usize) -> bool {
        let number = self.replicas[i].number;
        let is_enough = |control: &Control| control.is_enough_without(number);
        !self.controls.is_empty() && self.controls.iter().all(is_enough)
    }

    /// Whether enough others have started for the group to serve soon, and none of them died yet.
    fn others_start(&self, i: usize) -> bool {
        let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != i);
        let started = others.filter(|(_, it)| it.pid().is_some() && it.deaths == 0);
        !self.controls.is_empty() && started.count() >= self.settings.members_min as usize
    }

    fn end_without_files(&mut self, i: usize) {
        let is_served = self.is_served_without(i);
        if let Some(line) = self.replicas[i].end_without_files(is_served) {
            self.screen.say(&line);
        }
    }

    fn mend_if_due(&mut self, i: usize) -> Result<()> {
        let missing = self.replicas[i].missing();
        let is_enough = |place: &usize| self.is_enough_without(*place, i);
        if !self.replicas[i].is_due_without_files() || !missing.iter().all(is_enough) {
            return Ok(());
        }
        let number = self.replicas[i].number;
        self.screen.say(&child::anew(number, "its pool is gone"));
        let groups = self.settings.by_group(&self.data);
        let mut missing = missing.into_iter().map(|place| &groups[place]);
        let made = missing.try_for_each(|(dir, group)| cluster::make_empty(dir, group, number));
        made.inspect_err(|_| {
            self.replicas[i].pause();
        })
    }

    fn mourn(&mut self, i: usize, death: &Death) -> Result<()> {
        let is_served = self.is_served_without(i);
        self.replicas[i].is_served = is_served;
        let replica = &self.replicas[i];
        let line = death.in_words(replica.number);
        if let Some(place) = death.damaged.filter(|place| self.is_enough_without(*place, i)) {
            self.screen.say(&line);
            let number = replica.number;
            let line = match replica.put_aside(place) {
                Ok(aside) => format!("replica {number}: its files are now {}", aside.display()),
                Err(error) => format!("replica {number}: {error}"),
            };
            self.screen.say(&line);
            return Ok(());
        }
        let is_hopeless = replica.deaths >= START_DEATHS_MAX && !is_served && !self.others_start(i);
        if !self.has_been_ready && (death.is_final || is_hopeless) {
            let log = replica.log_path();
            return Err(Error::unavailable(format!("{line}; its log: {}", log.display())));
        }
        let line = format!("{line}; next start in {:.1} s", death.restart_in.as_secs_f64());
        self.screen.say(&line);
        Ok(())
    }

    /// Whether every replica that the group serves with is ready.
    fn all_ready(&self) -> bool {
        let is_ready =
            |known: &Known| known.answers && known.last.as_ref().is_some_and(|s| s.is_ready);
        if self.controls.is_empty() {
            return self.known.iter().all(is_ready);
        }
        let groups = self.known.chunks(self.replicas.len());
        self.controls.iter().zip(groups).all(|(control, known)| {
            let Some(serving) = control.serving() else { return false };
            let mut replicas = self.replicas.iter().zip(known);
            replicas.all(|(replica, known)| !serving.contains(&replica.number) || is_ready(known))
        })
    }

    fn ready_line(&self) -> String {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        ready_line(&self.settings, &self.data, self.is_default_data, home.as_deref(), &program())
    }

    fn rows(&self) -> Vec<Row> {
        let is_spread = self.settings.groups > 1;
        let count = self.replicas.len();
        let row = |(i, known): (usize, &Known)| {
            let replica = &self.replicas[i % count];
            let group = is_spread.then_some((i / count) as u32 + 1);
            let mut earlier_cpu = known.earlier_cpu;
            if !known.answers
                && let Some(last) = &known.last
            {
                earlier_cpu.add(&last.cpu);
            }
            let note = silence(replica.pid(), known);
            let status = if known.answers { known.last.clone() } else { None };
            Row { group, number: replica.number, status, note, earlier_cpu }
        };
        self.known.iter().enumerate().map(row).collect()
    }

    fn show(&mut self) {
        let rows = self.rows();
        if self.screen.is_terminal() {
            self.screen.draw(&screen::lines(&rows, self.settings.doors(1).resp));
        } else if self.has_been_ready {
            self.screen.say(&screen::summary(&rows));
        } else {
            let waited = self.started.elapsed().as_secs();
            self.screen.say(&format!("not ready after {waited} s: {}", screen::obstacles(&rows)));
        }
    }

    /// Ends every process: SIGTERM, and after a while, or when told again, SIGKILL.
    fn stop(&mut self) -> Stopped {
        let replicas = count(self.replicas.len() as u64, "replica");
        self.screen.say(&format!("stopping {replicas}; Ctrl-C again stops at once"));
        // Before the first replica stops, which is no failure.
        self.controls.clear();
        self.metrics.clear();
        let (inbox, screen) = (&self.inbox, &mut self.screen);
        let told = |wait| match inbox.recv_timeout(wait) {
            Ok(Event::Stop(signal)) => Some(signal),
            _ => None,
        };
        let stopped = child::stop_all(self.replicas.iter_mut().collect(), told, |left| {
            screen.say(&format!(
                "still writing out the log of replica {left}; Ctrl-C again stops at once, as a \
                 crash would"
            ));
        });
        let how = if matches!(stopped, Stopped::Cleanly) { "stopped" } else { "killed" };
        self.screen.say(&format!("{how}; the data stays in {}", self.data.display()));
        stopped
    }
}

/// Ready, the address, the reserved bytes, and the next command. Paths are long, so each stands
/// there once: a command finds the replicas by their port if the data is not in its default place.
fn ready_line(
    settings: &Settings,
    data: &Path,
    is_default_data: bool,
    home: Option<&Path>,
    program: &str,
) -> String {
    let last = settings.doors(settings.replicas + settings.spares).resp.port();
    let first = settings.port;
    let address = settings.doors(1).resp;
    let doors = if first == last { address.to_string() } else { format!("{address}-{last}") };
    let place = if is_default_data { String::new() } else { format!(" -p {first}") };
    let data = match home.map(|home| data.strip_prefix(home)) {
        Some(Ok(rest)) => Path::new("~").join(rest),
        _ => data.to_owned(),
    };
    format!(
        "ready: {doors}; data in {}, {} reserved; next: `{program} cli{place} set k v` (or status, \
         verify), `redis-cli -p {first}`; Ctrl-C stops",
        data.display(),
        size(settings.reserved()),
    )
}

/// The name of this program, as it can be typed again.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    quoted(&if name.is_empty() { "gabion".into() } else { name.to_string_lossy().into_owned() })
}

/// Why a replica does not answer; nothing when it does. It opens its doors as the last step of its
/// start.
fn silence(pid: Option<u32>, known: &Known) -> Option<String> {
    if known.answers {
        return None;
    }
    let Some(pid) = pid else { return Some("died, waits for its next start".to_owned()) };
    let has_answered = known.last.as_ref().is_some_and(|last| last.pid == u64::from(pid));
    let what = if has_answered {
        "does not answer"
    } else {
        "has not answered yet; first it reads its pool and log"
    };
    Some(format!("process {pid} {what}"))
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FixedOptions;

    #[test]
    fn a_replica_that_says_nothing_is_told_to_be_dead_starting_or_hung() {
        let mut known = Known::default();
        assert_eq!(silence(None, &known).unwrap(), "died, waits for its next start");
        let starting = "process 7 has not answered yet; first it reads its pool and log";
        assert_eq!(silence(Some(7), &known).unwrap(), starting);
        known.last = Some(Status { pid: 6, ..Status::default() });
        assert_eq!(silence(Some(7), &known).unwrap(), starting, "another process had answered");
        known.last = Some(Status { pid: 7, ..Status::default() });
        assert_eq!(silence(Some(7), &known).unwrap(), "process 7 does not answer");
        known.answers = true;
        assert_eq!(silence(Some(7), &known), None);
    }

    /// docs/faults.md: P37
    #[test]
    fn the_line_of_a_start_names_each_thing_once_and_says_what_to_type() {
        let settings = Settings::new(&FixedOptions::default(), 7579, Path::new("/d"), 1 << 50);
        let settings = settings.unwrap();
        let home = Some(Path::new("/home/someone"));
        let line = ready_line(&settings, Path::new("/mnt/my data"), false, home, "/opt/bin/gabion");
        let expected = "ready: 127.0.0.1:7579-7581; data in /mnt/my data, 12.3 GiB reserved; \
                        next: `/opt/bin/gabion cli -p 7579 set k v` (or status, verify), \
                        `redis-cli -p 7579`; Ctrl-C stops";
        assert_eq!(line, expected);
        let data = Path::new("/home/someone/.local/share/gabion");
        let line = ready_line(&settings, data, true, home, "gabion");
        assert!(line.contains("; data in ~/.local/share/gabion, "), "{line}");
        assert!(line.contains("`gabion cli set k v`"), "{line}");
        assert!(line.len() < 160, "two lines of a terminal: {line}");
    }

    #[test]
    fn words_to_type_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("/a/b-c_1.d"), "/a/b-c_1.d");
        assert_eq!(quoted("my data"), "'my data'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
