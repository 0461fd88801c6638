//! A replica's own report (`GABION STATUS`), and the difference between two of them.

use gabion_base::{Error, Result};
use serde_json::Value;

/// Roles of work, in the order of the report. `gabion-server` names the threads that do them.
pub(crate) const ROLES: [&str; 6] =
    ["requests", "flush", "compaction", "shipping", "target", "other"];
/// Kinds of traffic, in the order of the report.
pub(crate) const KINDS: [&str; 3] = ["client", "peer", "nvme"];

/// Counters that only grow while a replica's process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor seconds of the process.
    pub(crate) cpu_seconds: f64,
    /// The same by role, in the order of [`ROLES`].
    pub(crate) cpu_by_role: [f64; ROLES.len()],
    pub(crate) flushes: u64,
    pub(crate) compactions: u64,
    pub(crate) trivial_moves: u64,
    pub(crate) compaction_read_bytes: u64,
    /// Bytes of the files that flushes and compactions made.
    pub(crate) job_written_bytes: u64,
    /// File bytes sent to secondaries, once for each of them.
    pub(crate) shipped_bytes: u64,
    /// Bytes read from the device, as the kernel counts them.
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    /// Network bytes by kind, in the order of [`KINDS`].
    pub(crate) sent: [u64; KINDS.len()],
    pub(crate) received: [u64; KINDS.len()],
}

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    /// Number of its group among those measured together, from 1: the asker gives it, not the
    /// replica.
    pub(crate) group: u64,
    /// The version of the storing program: of Gabion itself, or of the baseline's store.
    pub(crate) version: String,
    pub(crate) replica: u64,
    pub(crate) role: String,
    pub(crate) is_ready: bool,
    pub(crate) compaction: String,
    /// Replicas of the group.
    pub(crate) members: usize,
    pub(crate) live_files: u64,
    pub(crate) live_bytes: u64,
    /// MemTables that wait for their flush, or for its edit to be applied.
    pub(crate) sealed: u64,
    /// Resident bytes of the process.
    pub(crate) memory_bytes: u64,
    /// Bytes of the device that its store takes, logs included.
    pub(crate) space_bytes: u64,
    pub(crate) usage: Usage,
}

/// The use of a replica between two answers, and its state at the second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReplicaUse {
    /// Number of its group among those measured together, from 1.
    pub(crate) group: u64,
    pub(crate) replica: u64,
    pub(crate) role: String,
    pub(crate) live_files: u64,
    pub(crate) live_bytes: u64,
    /// As in [`Status`].
    pub(crate) memory_bytes: u64,
    pub(crate) space_bytes: u64,
    pub(crate) usage: Usage,
}

/// A field by its path, such as `counters.flushes`.
fn field<'a>(status: &'a Value, path: &str) -> Result<&'a Value> {
    path.split('.').try_fold(status, |value, name| value.get(name)).ok_or_else(|| {
        Error::invalid(format!(
            "GABION STATUS has no field `{path}`: the server is of another version"
        ))
    })
}

fn wrong_type(path: &str, value: &Value) -> Error {
    Error::invalid(format!("GABION STATUS: `{path}` is {value}"))
}

fn count(status: &Value, path: &str) -> Result<u64> {
    let value = field(status, path)?;
    value.as_u64().ok_or_else(|| wrong_type(path, value))
}

fn seconds(status: &Value, path: &str) -> Result<f64> {
    let value = field(status, path)?;
    value.as_f64().ok_or_else(|| wrong_type(path, value))
}

fn text(status: &Value, path: &str) -> Result<String> {
    let value = field(status, path)?;
    Ok(value.as_str().ok_or_else(|| wrong_type(path, value))?.to_owned())
}

impl Status {
    /// Reads an answer of a replica of a group.
    ///
    /// # Errors
    /// It is no JSON, or a field is missing or of another type.
    pub(crate) fn parse(group: u64, json: &[u8]) -> Result<Self> {
        let status: Value = serde_json::from_slice(json)
            .map_err(|e| Error::invalid(format!("GABION STATUS is no JSON: {e}")))?;
        let is_ready = field(&status, "ready")?;
        let members = field(&status, "members")?;
        Ok(Self {
            group,
            version: text(&status, "version")?,
            replica: count(&status, "replica")?,
            role: text(&status, "role")?,
            is_ready: is_ready.as_bool().ok_or_else(|| wrong_type("ready", is_ready))?,
            compaction: text(&status, "compaction")?,
            members: members.as_array().ok_or_else(|| wrong_type("members", members))?.len(),
            live_files: count(&status, "live_files")?,
            live_bytes: count(&status, "live_bytes")?,
            sealed: count(&status, "memtable.sealed")?,
            memory_bytes: count(&status, "memory_bytes")?,
            space_bytes: count(&status, "space_bytes")?,
            usage: usage(&status)?,
        })
    }

    /// The use since `before`, an earlier answer of the same replica.
    ///
    /// # Errors
    /// A counter fell: the replica has another process.
    pub(crate) fn since(&self, before: &Self) -> Result<ReplicaUse> {
        let usage = self.usage.since(&before.usage);
        let has_restarted = (self.group, self.replica) != (before.group, before.replica)
            || self.usage.cpu_seconds < before.usage.cpu_seconds
            || self.usage.flushes < before.usage.flushes;
        if has_restarted {
            return Err(Error::unavailable(format!(
                "replica {} of group {}: its counters fell, so it was started anew during the \
                 measurement",
                before.replica, before.group
            )));
        }
        Ok(ReplicaUse {
            group: self.group,
            replica: self.replica,
            role: self.role.clone(),
            live_files: self.live_files,
            live_bytes: self.live_bytes,
            memory_bytes: self.memory_bytes,
            space_bytes: self.space_bytes,
            usage,
        })
    }
}

fn usage(status: &Value) -> Result<Usage> {
    let mut usage = Usage {
        cpu_seconds: seconds(status, "cpu_seconds")?,
        flushes: count(status, "counters.flushes")?,
        compactions: count(status, "counters.compactions")?,
        trivial_moves: count(status, "counters.trivial_moves")?,
        compaction_read_bytes: count(status, "counters.compaction_read_bytes")?,
        job_written_bytes: count(status, "counters.job_written_bytes")?,
        shipped_bytes: count(status, "counters.shipped_bytes")?,
        read_bytes: count(status, "read_bytes")?,
        write_bytes: count(status, "write_bytes")?,
        ..Usage::default()
    };
    for (value, role) in usage.cpu_by_role.iter_mut().zip(ROLES) {
        *value = seconds(status, &format!("cpu_seconds_by_role.{role}"))?;
    }
    for (i, kind) in KINDS.iter().enumerate() {
        usage.sent[i] = count(status, &format!("net.sent.{kind}"))?;
        usage.received[i] = count(status, &format!("net.received.{kind}"))?;
    }
    Ok(usage)
}

impl Usage {
    /// Combines two, value by value.
    fn zip(&self, other: &Self, seconds: fn(f64, f64) -> f64, count: fn(u64, u64) -> u64) -> Self {
        fn both<T: Copy, const N: usize>(a: [T; N], b: [T; N], f: fn(T, T) -> T) -> [T; N] {
            std::array::from_fn(|i| f(a[i], b[i]))
        }
        Self {
            cpu_seconds: seconds(self.cpu_seconds, other.cpu_seconds),
            cpu_by_role: both(self.cpu_by_role, other.cpu_by_role, seconds),
            flushes: count(self.flushes, other.flushes),
            compactions: count(self.compactions, other.compactions),
            trivial_moves: count(self.trivial_moves, other.trivial_moves),
            compaction_read_bytes: count(self.compaction_read_bytes, other.compaction_read_bytes),
            job_written_bytes: count(self.job_written_bytes, other.job_written_bytes),
            shipped_bytes: count(self.shipped_bytes, other.shipped_bytes),
            read_bytes: count(self.read_bytes, other.read_bytes),
            write_bytes: count(self.write_bytes, other.write_bytes),
            sent: both(self.sent, other.sent, count),
            received: both(self.received, other.received, count),
        }
    }

    fn since(&self, before: &Self) -> Self {
        self.zip(before, |a, b| (a - b).max(0.0), u64::saturating_sub)
    }

    /// The sum of both.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a + b, |a, b| a + b)
    }

    /// Processor seconds of the roles that `names` names.
    pub(crate) fn cpu_of(&self, names: &[&str]) -> f64 {
        let roles = ROLES.iter().zip(self.cpu_by_role);
        roles.filter(|(role, _)| names.contains(role)).map(|(_, seconds)| seconds).sum()
    }

    /// Whether only the work of an idle process lies between `before` and this: no job, nothing
    /// shipped, and less than 1 % of a processor for job roles over `elapsed_seconds`.
    pub(crate) fn is_quiet_since(&self, before: &Self, elapsed_seconds: f64) -> bool {
        const JOBS: [&str; 4] = ["flush", "compaction", "shipping", "target"];
        let used = self.since(before);
        let jobs = used.flushes + used.compactions + used.trivial_moves;
        jobs == 0
            && used.job_written_bytes + used.shipped_bytes == 0
            && used.cpu_of(&JOBS) < 0.01 * elapsed_seconds
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// An answer as a server gives it, with figures that follow from `scale`.
    pub(crate) fn status_json(replica: u64, role: &str, scale: u64) -> Value {
        json!({
            "version": "1.2.3", "replica": replica, "role": role, "ready": true, "compaction": "primary",
            "members": [1, 2, 3],
            "live_files": 3, "live_bytes": 3_000,
            "memory_bytes": 90_000_000, "space_bytes": 4_000_000,
            "levels": [{"files": 3, "bytes": 3_000}],
            "memtable": {"active_bytes": 10, "sealed": 0},
            "counters": {
                "flushes": scale, "compactions": scale, "trivial_moves": 0,
                "compaction_read_bytes": 10 * scale, "job_written_bytes": 100 * scale,
                "shipped_bytes": 200 * scale,
            },
            "cpu_seconds": 10.0 * scale as f64,
            "cpu_seconds_by_role": {
                "requests": 4.0 * scale as f64, "flush": 1.0 * scale as f64,
                "compaction": 3.0 * scale as f64, "shipping": 0.5 * scale as f64,
                "target": 0.5 * scale as f64, "other": 1.0 * scale as f64,
            },
            "read_bytes": 1_000 * scale, "write_bytes": 2_000 * scale,
            "net": {
                "sent": {"client": scale, "peer": 2 * scale, "nvme": 3 * scale},
                "received": {"client": 4 * scale, "peer": 5 * scale, "nvme": 6 * scale},
            },
        })
    }

    fn parse(json: &Value) -> Result<Status> {
        Status::parse(1, json.to_string().as_bytes())
    }

    #[test]
    fn what_was_used_is_the_difference_of_two_answers() {
        let before = parse(&status_json(1, "primary", 2)).unwrap();
        let after = parse(&status_json(1, "primary", 5)).unwrap();
        let used = after.since(&before).unwrap();
        assert_eq!(used.usage.cpu_seconds, 30.0);
        assert_eq!(used.usage.cpu_of(&["flush", "compaction"]), 12.0);
        assert_eq!(used.usage.sent, [3, 6, 9]);
        assert_eq!(used.usage.received, [12, 15, 18]);
        assert_eq!((used.live_files, used.usage.shipped_bytes), (3, 600));
    }

    #[test]
    fn a_replica_that_was_started_anew_is_told_from_one_that_worked() {
        let before = parse(&status_json(1, "primary", 2)).unwrap();
        let after = parse(&status_json(1, "primary", 1)).unwrap();
        assert!(after.since(&before).unwrap_err().message().contains("started anew"));
        let mut log_is_gone = status_json(1, "primary", 2);
        log_is_gone["write_bytes"] = 0.into();
        let used = parse(&log_is_gone).unwrap().since(&before).unwrap().usage;
        assert_eq!(used.write_bytes, 0, "what was removed from the page cache was never written");
    }

    #[test]
    fn a_missing_or_odd_field_is_named() {
        let mut json = status_json(1, "primary", 2);
        json["counters"]["flushes"] = Value::from("many");
        let error = parse(&json).unwrap_err().to_string();
        assert!(error.contains("`counters.flushes` is \"many\""), "{error}");
        json["counters"].as_object_mut().unwrap().remove("flushes");
        let error = parse(&json).unwrap_err().to_string();
        assert!(error.contains("no field `counters.flushes`"), "{error}");
        assert!(Status::parse(1, b"ERR").unwrap_err().message().contains("no JSON"));
    }

    #[test]
    fn quiet_is_no_job_and_no_work_of_jobs() {
        let before = parse(&status_json(1, "primary", 2)).unwrap().usage;
        assert!(before.is_quiet_since(&before, 2.0));
        let mut after = before;
        after.cpu_by_role[0] += 1.0;
        assert!(after.is_quiet_since(&before, 2.0), "requests are no jobs");
        after.cpu_by_role[2] += 0.1;
        assert!(!after.is_quiet_since(&before, 2.0), "a compaction that runs");
        let shipped = Usage { shipped_bytes: before.shipped_bytes + 1, ..before };
        assert!(!shipped.is_quiet_since(&before, 2.0));
    }
}
