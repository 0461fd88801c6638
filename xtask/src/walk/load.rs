//! Clients that write numbered values and log each acknowledgement; what a fault has cost them, and
//! whether all that was acknowledged is there.
//!
//! A line of a log is `MILLISECONDS TAG NUMBER`: the key `walk:{TAG}:CLIENT:NUMBER` has NUMBER as
//! its value. A client has a thread or task for each tag, and each group has a tag, so that one
//! group's writes wait for no other's.

use super::place::{PREFIX, Place, USER, USER_PASSWORD};
use super::write;
use crate::cluster::{Client, Reply};
use crate::steps::Step;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Pause of each tag between an acknowledgement and the next write, in ms.
const PAUSE_MS: u64 = 15;
/// How long a client may take to begin, to go on after a fault, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Acknowledgements of a tag that show that it goes on.
const GOES_ON: usize = 20;
/// Keys of one MGET.
const BATCH: usize = 128;

/// A time in which something was lost and came back, in milliseconds of the system's clock.
pub(super) struct Window {
    pub(super) name: String,
    /// The groups that lost a member, by their places.
    pub(super) hit: Vec<usize>,
    /// The longest time without an answer that these, and the others, should see.
    pub(super) allowed_ms: u64,
    pub(super) calm_ms: u64,
    pub(super) from: u64,
    pub(super) until: u64,
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

/// A client's program.
struct Writer {
    name: String,
    child: Child,
    log: PathBuf,
}

pub(super) struct Load {
    writers: Vec<Writer>,
    groups: usize,
}

impl Drop for Load {
    fn drop(&mut self) {
        for writer in &mut self.writers {
            let _ = writer.child.kill();
            let _ = writer.child.wait();
        }
    }
}

/// The log of a client: for each group the times of its acknowledgements and their numbers.
pub(super) struct Log {
    name: String,
    acknowledged: Vec<Vec<(u64, u64)>>,
}

impl Load {
    /// Starts all clients, and waits until each writes to each group.
    pub(super) fn start(place: &Place, setup: &Value) -> Result<Self, String> {
        let groups = place.groups().len();
        let mut load = Self { writers: Vec::new(), groups };
        let doors: Vec<String> = place.doors().iter().map(SocketAddr::to_string).collect();
        let tags: Vec<String> = (0..groups).map(|group| tag_of(group, groups)).collect();
        for writer in setup["writers"].as_array().ok_or("setup.json")? {
            let name = writer[0].as_str().ok_or("setup.json")?;
            let line: Option<Vec<&str>> =
                writer[1].as_array().and_then(|words| words.iter().map(Value::as_str).collect());
            let line = line.filter(|line| !line.is_empty()).ok_or("setup.json")?;
            let log = place.file(&format!("{name}.acknowledged"));
            let options = json!({
                "cluster": groups > 1,
                "doors": doors,
                "ca": place.authority(),
                "user": USER,
                "password": USER_PASSWORD,
                "prefix": PREFIX,
                "tags": tags,
                "pause_ms": PAUSE_MS,
                "log": log,
            });
            let file = place.file(&format!("{name}.json"));
            write(&file, &options.to_string())?;
            let said = place.file(&format!("{name}.log"));
            let said = File::create(said).map_err(|error| format!("{name}: {error}"))?;
            let errors = said.try_clone().map_err(|error| format!("{name}: {error}"))?;
            let mut command = place.network.command("clients", line[0]);
            command.args(&line[1..]).arg(file);
            // The end of its input tells it to end.
            command.stdin(Stdio::piped()).stdout(said).stderr(errors);
            let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
            load.writers.push(Writer { name: name.to_owned(), child, log });
        }
        load.all_go_on()?;
        Ok(load)
    }

    /// Waits until each client has written to each group anew.
    pub(super) fn all_go_on(&self) -> Step {
        for writer in &self.writers {
            let (begun, from) = (Instant::now(), now_ms());
            let is_new = |times: &Vec<(u64, u64)>| {
                times.iter().rev().take_while(|(at, _)| *at > from).count() >= GOES_ON
            };
            loop {
                let log = writer.read(self.groups)?;
                let Some(group) = log.acknowledged.iter().position(|times| !is_new(times)) else {
                    break;
                };
                if begun.elapsed() > PATIENCE {
                    return Err(format!("{} does not write to group {}", writer.name, group + 1));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Ends all clients.
    pub(super) fn finish(mut self) -> Result<Vec<Log>, String> {
        for writer in &mut self.writers {
            drop(writer.child.stdin.take());
        }
        let mut logs = Vec::new();
        for writer in &mut self.writers {
            let begun = Instant::now();
            let status = loop {
                let status = writer.child.try_wait();
                if let Some(status) = status.map_err(|e| format!("{}: {e}", writer.name))? {
                    break status;
                }
                if begun.elapsed() > PATIENCE {
                    return Err(format!("{} does not end", writer.name));
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            if !status.success() {
                return Err(format!("{}: {status}", writer.name));
            }
            logs.push(writer.read(self.groups)?);
        }
        Ok(logs)
    }
}

impl Writer {
    fn read(&self, groups: usize) -> Result<Log, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.log.display());
        let text = match std::fs::read_to_string(&self.log) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| failed(&error))?,
        };
        let places: BTreeMap<String, usize> =
            (0..groups).map(|group| (tag_of(group, groups), group)).collect();
        let mut acknowledged = vec![Vec::new(); groups];
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let parsed = match words[..] {
                [at, tag, number] => at.parse().ok().zip(number.parse().ok()).zip(places.get(tag)),
                _ => None,
            };
            let (entry, group) = parsed.ok_or_else(|| failed(&format!("'{line}'")))?;
            acknowledged[*group].push(entry);
        }
        Ok(Log { name: self.name.clone(), acknowledged })
    }
}

/// A hash tag whose keys are of a group: groups have runs of slots of equal length.
fn tag_of(group: usize, groups: usize) -> String {
    let mut tags = (0..).map(|number: u32| format!("t{number}"));
    let found = tags.find(|tag| usize::from(slot_of(tag)) * groups / SLOTS == group);
    found.unwrap_or_default()
}

/// The slot of Redis Cluster: CRC16 of XMODEM.
fn slot_of(tag: &str) -> u16 {
    let step = |crc: u16, byte: u8| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    };
    tag.bytes().fold(0, step) % SLOTS as u16
}

/// The longest time between two acknowledgements that ends in a window.
fn longest_ms(times: &[(u64, u64)], window: &Window) -> u64 {
    let gaps = times.windows(2).map(|pair| (pair[0].0, pair[1].0));
    let within = gaps.filter(|(_, end)| (window.from..window.until).contains(end));
    let longest = within.map(|(begin, end)| end - begin).max();
    longest.unwrap_or(window.until - window.from)
}

/// A time that is longer than it should be by half fails the suite: clients share the processors
/// with all nodes, and with whatever else the machine does.
const fn is_too_long(ms: u64, allowed: u64) -> bool {
    ms > allowed + allowed / 2
}

/// Prints the longest times without an answer, and returns those that are too long.
pub(super) fn table(windows: &[Window], logs: &[Log], groups: &[String]) -> Vec<String> {
    let mut too_long = Vec::new();
    println!(
        "\nlongest time between two answers, in ms; [ ]: the group lost a member; !: too long"
    );
    let names: String = groups.iter().map(|name| format!("{name:>12}")).collect();
    println!("{:<36} {:<10} {names}", "fault", "client");
    for window in windows {
        for log in logs {
            let mut cells = String::new();
            for (group, times) in log.acknowledged.iter().enumerate() {
                let (ms, is_hit) = (longest_ms(times, window), window.hit.contains(&group));
                let allowed = if is_hit { window.allowed_ms } else { window.calm_ms };
                let mark = if ms > allowed { "!" } else { "" };
                let cell = if is_hit { format!("{mark}[{ms}]") } else { format!("{mark}{ms} ") };
                cells.push_str(&format!("{cell:>12}"));
                if is_too_long(ms, allowed) {
                    too_long.push(format!(
                        "{}: {} waited {ms} ms for an answer of {}, and should {allowed} at most",
                        window.name, log.name, groups[group]
                    ));
                }
            }
            println!("{:<36} {:<10} {cells}", window.name, log.name);
        }
    }
    println!();
    too_long
}

/// Every acknowledged write is there, through each door of its group.
pub(super) fn read_back(place: &Place, logs: &[Log]) -> Step {
    let groups = place.groups().len();
    let mut keys = 0;
    for group in 0..groups {
        for (turn, door) in place.plain_doors(group)?.into_iter().enumerate() {
            let mut client = place.connect(door)?;
            for log in logs {
                let numbers: Vec<u64> =
                    log.acknowledged[group].iter().map(|(_, number)| *number).collect();
                for numbers in numbers.chunks(BATCH) {
                    let key = |number| {
                        let tag = tag_of(group, groups);
                        format!("{PREFIX}{{{tag}}}:{}:{number}", log.name)
                    };
                    has(&mut client, numbers, key)?;
                }
                if turn == 0 {
                    keys += numbers.len();
                }
            }
        }
    }
    println!("── {keys} acknowledged writes are there, through each door of their group");
    if keys == 0 { Err("nothing was acknowledged".into()) } else { Ok(()) }
}

fn has(client: &mut Client, numbers: &[u64], key: impl Fn(u64) -> String) -> Step {
    let keys: Vec<String> = numbers.iter().map(|number| key(*number)).collect();
    let mut words: Vec<&[u8]> = vec![b"MGET"];
    words.extend(keys.iter().map(String::as_bytes));
    let values = match client.call(&words)? {
        Reply::Array(values) if values.len() == keys.len() => values,
        other => return Err(format!("MGET of {}: {other:?}", keys[0])),
    };
    for ((key, number), value) in keys.iter().zip(numbers).zip(values) {
        if value != Reply::Bulk(Some(number.to_string().into_bytes())) {
            return Err(format!("{key} was acknowledged and is {value:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_tag_whose_keys_are_its_own() {
        // The vector of the specification of Redis Cluster, 0x31c3, and a slot that Redis gives.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("hash_tag"), 2_515);
        for groups in 1..=4 {
            for group in 0..groups {
                let slot = usize::from(slot_of(&tag_of(group, groups)));
                assert!((group * SLOTS / groups..(group + 1) * SLOTS / groups).contains(&slot));
            }
        }
    }

    #[test]
    fn a_gap_counts_in_the_window_in_which_it_ends_and_silence_is_as_long_as_that() {
        let window = Window {
            name: String::new(),
            hit: Vec::new(),
            allowed_ms: 0,
            calm_ms: 0,
            from: 1_000,
            until: 2_000,
        };
        let longest = |times: &[u64]| {
            longest_ms(&times.iter().map(|at| (*at, 0)).collect::<Vec<_>>(), &window)
        };
        assert_eq!(longest(&[0, 900, 1_100, 1_150, 2_100, 9_000]), 200);
        assert_eq!(longest(&[0, 990, 1_010, 1_990, 4_000]), 980);
        assert_eq!(longest(&[0, 10]), 1_000);
    }
}
