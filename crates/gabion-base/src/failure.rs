//! The end of a failure: the operation, a connection, the node or the process. This table is the
//! only one of it. Every place that meets a failure asks it, so no two places answer the same one
//! differently.
//!
//! | what failed | of which kind | ends |
//! | --- | --- | --- |
//! | [`Append`](Failed::Append) | no space | operation |
//! | | any other | process |
//! | [`Log`](Failed::Log) | any | process |
//! | [`Placement`](Failed::Placement) | any | process |
//! | [`Apply`](Failed::Apply) | any | process |
//! | [`Cut`](Failed::Cut) | unavailable | node |
//! | | any other | process |
//! | [`Accounts`](Failed::Accounts) | any | process |
//! | [`Job`](Failed::Job) | fenced, no space | operation |
//! | | any other | process |
//! | [`LoadFile`](Failed::LoadFile) | no space | operation |
//! | | any other | process |
//! | [`RepairWrite`](Failed::RepairWrite) | no space | operation |
//! | | any other | process |
//! | [`LogForPeer`](Failed::LogForPeer) | not found | operation |
//! | | corruption | process |
//! | | any other | connection |
//!
//! Some ends of connections need no row, as nothing else can follow: a peer's frame or record that
//! is not whole or that the log here refuses, and a shipped file's write that the target refuses. A
//! view that ends a term ends its jobs, loads and shipments with it; no failure does that alone. A
//! read of a damaged file ends, and the file is repaired; a job that reads it is set aside until
//! then. A thread that ends takes the process with it.

use crate::{Error, ErrorKind};

/// The act that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A record is added to the log here. A full ring is drained, and the next turn tries again.
    /// After any other failure memory may hold more than the log.
    Append,
    /// The log is drained, cut, trimmed or flushed. Nothing since the last good flush counts, and a
    /// second flush proves nothing (docs/faults.md E8).
    Log,
    /// A commit or checkpoint of the placement log. As [`Self::Log`].
    Placement,
    /// A record, edit, term or view of the log is applied. No replica may go on from a state that
    /// the others do not have.
    Apply,
    /// The log is cut below the records applied here, as the group goes on without them. MemTables
    /// are rebuilt from the rest; files of an applied edit cannot be.
    Cut,
    /// The books of slots, files and orders are kept. Wrong books may free what is in use.
    Accounts,
    /// A flush or compaction that neither another slot nor the repair of an input can save. Fenced:
    /// the current writer does it. No space: it is tried again once there is room. Any other:
    /// corrupt bytes would be compacted into new ones.
    Job,
    /// A file of a bulk load is written. Without room the load is refused; else as [`Self::Log`].
    LoadFile,
    /// A copy of a damaged file is written. Without room the next round tries again; else as
    /// [`Self::Log`].
    RepairWrite,
    /// Log is read for a peer that lacks it. A position below the log's beginning is refused. A
    /// rotten record is repaired from others at the next start. After any other failure the peer
    /// comes again.
    LogForPeer,
}

/// How much ends with a failure. Nothing is left half alive: the rest goes on whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The act alone. It is tried again or refused.
    Operation,
    /// The connection with the act's peer. The peer opens a new one.
    Connection,
    /// The node with its MemTables, which the process opens anew from pool and ring.
    Node,
    /// The process. The next start recovers from disk and ring.
    Process,
}

impl Failed {
    /// The part that ends when the act failed with this error.
    #[must_use]
    pub fn ends(self, error: &Error) -> Ends {
        match (self, error.kind()) {
            (Self::Append | Self::Job | Self::LoadFile | Self::RepairWrite, ErrorKind::NoSpace)
            | (Self::Job, ErrorKind::Fenced)
            | (Self::LogForPeer, ErrorKind::NotFound) => Ends::Operation,
            (Self::Cut, ErrorKind::Unavailable) => Ends::Node,
            (Self::LogForPeer, kind) if !matches!(kind, ErrorKind::Corruption) => Ends::Connection,
            _ => Ends::Process,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    const ALL: [Failed; 10] = [
        Failed::Append,
        Failed::Log,
        Failed::Placement,
        Failed::Apply,
        Failed::Cut,
        Failed::Accounts,
        Failed::Job,
        Failed::LoadFile,
        Failed::RepairWrite,
        Failed::LogForPeer,
    ];

    const KINDS: [ErrorKind; 12] = [
        ErrorKind::InvalidInput,
        ErrorKind::LimitExceeded,
        ErrorKind::Corruption,
        ErrorKind::Io,
        ErrorKind::Unknown,
        ErrorKind::NoSpace,
        ErrorKind::Unavailable,
        ErrorKind::Fenced,
        ErrorKind::Unsupported,
        ErrorKind::SnapshotTooOld,
        ErrorKind::NotFound,
        ErrorKind::Busy,
    ];

    /// The rows of the table above: whose, of which kinds, and what ends.
    fn rows() -> Vec<(String, String, String)> {
        let mut whose = String::new();
        let mut rows = Vec::new();
        for line in include_str!("failure.rs").lines() {
            let Some(row) = line.strip_prefix("//! | ") else { continue };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            if let Some((name, _)) = cells[0].strip_prefix("[`").and_then(|c| c.split_once('`')) {
                whose = name.to_string();
            }
            if !whose.is_empty() {
                rows.push((whose.clone(), cells[1].to_string(), cells[2].to_string()));
            }
        }
        rows
    }

    #[test]
    fn the_table_says_what_ends() {
        let rows = rows();
        for what in ALL {
            let name = alloc::format!("{what:?}");
            let of_it: Vec<_> = rows.iter().filter(|(whose, ..)| *whose == name).collect();
            assert!(!of_it.is_empty(), "{name} has no row");
            for kind in KINDS {
                let named = |cell: &str| cell.split(", ").any(|word| word == kind.as_str());
                let row = of_it.iter().find(|(_, kinds, _)| named(kinds)).or(of_it.last());
                let ends = alloc::format!("{:?}", what.ends(&Error::new(kind, "x"))).to_lowercase();
                assert_eq!(row.map(|(.., ends)| ends.as_str()), Some(&*ends), "{name} {kind:?}");
            }
        }
        assert!(
            rows.iter().all(|(whose, ..)| ALL.iter().any(|w| alloc::format!("{w:?}") == *whose))
        );
    }
}
