//! `gabion doctor`: whether this machine is one that Gabion can keep its promises on.
//!
//! ```text
//!   ok    kernel       6.8.0                        5.11 or newer
//!   bad   flush        0.01 ms                      0.03 ms or more, as the cache is volatile
//!         change: the disk says that data is on it before it is …
//! ```
//!
//! [`checks`] reads what the system says; each judgement is a function of what was read, so that
//! it can be tested without such a machine. Nothing is changed but for a file that is written in
//! the data directory, and removed.

mod checks;
mod disk;

use crate::cluster;
use crate::control::unix_ms;
use crate::machines::config::NodeConfig;
use crate::machines::hosted::Hosted;
use crate::options::{DoctorOptions, PORT_DEFAULT};
use crate::screen::put;
use gabion_base::Result;
use gabion_base::units::GIB;
use serde_json::{Value, json};

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    /// It works, and could work better or be safer.
    Warn,
    /// Something that Gabion promises, or needs, is not so.
    Bad,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    name: &'static str,
    state: State,
    /// As it is.
    value: String,
    /// As it should be.
    limit: String,
    /// How to change it; empty where it is well.
    change: String,
}

impl Check {
    fn ok(name: &'static str, value: impl Into<String>, limit: impl Into<String>) -> Self {
        let (value, limit) = (value.into(), limit.into());
        Self { name, state: State::Ok, value, limit, change: String::new() }
    }

    /// The same where it is not well.
    fn but(self, state: State, change: impl Into<String>) -> Self {
        Self { state, change: change.into(), ..self }
    }

    fn json(&self) -> Value {
        json!({
            "check": self.name,
            "state": self.state.as_str(),
            "value": self.value,
            "limit": self.limit,
            "change": self.change,
        })
    }

    fn lines(&self) -> Vec<String> {
        let (state, name) = (self.state.as_str(), self.name);
        let mut lines = vec![format!("{state:<6}{name:<20}{:<30}  {}", self.value, self.limit)];
        if !self.change.is_empty() {
            lines.push(format!("      change: {}", self.change));
        }
        lines
    }
}

/// `gabion doctor`. The exit code is 1 where something is bad.
pub(crate) fn run(options: &DoctorOptions) -> Result<u8> {
    let all = match &options.config {
        Some(path) => of_node(&NodeConfig::load(path)?),
        None => of_up(options)?,
    };
    let is_bad = all.iter().any(|check| check.state == State::Bad);
    if options.json {
        let all: Vec<Value> = all.iter().map(Check::json).collect();
        put(&format!("{:#}\n", json!({ "checks": all })));
    } else {
        let lines: Vec<String> = all.iter().flat_map(Check::lines).collect();
        put(&(lines.join("\n") + "\n"));
        let count = |state| all.iter().filter(|check| check.state == state).count();
        let (bad, warn) = (count(State::Bad), count(State::Warn));
        put(&format!("{} checks: {bad} bad, {warn} to be thought about\n", all.len()));
    }
    Ok(u8::from(is_bad))
}

/// The machine of a node. Its doors are its own as long as it runs, so ports are not looked at.
fn of_node(config: &NodeConfig) -> Vec<Check> {
    let groups = config.groups_max();
    let mut all = checks::system(groups);
    // Room for pools that are there already is not asked for again.
    let is_new = !Hosted::is_any(&config.data);
    let to_make = is_new.then(|| config.room_needed());
    all.extend(disk::checks(&config.data, to_make));
    all.extend(checks::certificates(&config.certificate_files(), unix_ms() / 1_000));
    all
}

/// The machine of a group of `up`.
fn of_up(options: &DoctorOptions) -> Result<Vec<Check>> {
    let data = cluster::data_dir(&options.data)?;
    let settings = cluster::load(&data).ok().flatten();
    let kept = settings.as_ref().map(|settings| settings.port);
    let port = options.port.or(kept).unwrap_or(PORT_DEFAULT);
    let replicas = settings.as_ref().map_or(3, |settings| settings.replicas + settings.spares);
    let to_make = settings.is_none().then_some(GIB);
    let mut all = checks::system(replicas);
    all.extend(disk::checks(&data, to_make));
    all.push(checks::ports(port, replicas));
    Ok(all)
}
