//! The counters of a replica.

use super::StoppedMs;

/// Work that a replica did, for status, metrics and benchmarks. Bytes unless the name says
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flushes done here.
    pub flushes: u64,
    /// Compactions done here, trivial moves not counted.
    pub compactions: u64,
    /// Milliseconds from the beginnings of flushes to their edits.
    pub flush_ms: u64,
    /// The same of compactions.
    pub compaction_ms: u64,
    /// Trivial moves decided here.
    pub trivial_moves: u64,
    /// Bulk loads that came to their end here.
    pub loads: u64,
    /// File bytes of bulk loads.
    pub loaded_bytes: u64,
    /// Milliseconds in which a write waited as writers were slowed down: L0 grew faster than it was
    /// compacted.
    pub writes_slowed_ms: u64,
    /// Milliseconds in which a write waited as none was taken, by reason.
    pub writes_stopped_ms: StoppedMs,
    /// Jobs that ended because the device had no room for their files.
    pub jobs_without_space: u64,
    /// Slots that are not used until the next start, as the device failed to write them.
    pub refused_slots: u64,
    /// Compactions given up as their inputs are damaged; they begin again once those are repaired.
    pub jobs_set_aside: u64,
    /// Files in which a read met damage.
    pub damaged_files: u64,
    /// Damaged files that were put whole into other slots.
    pub repaired_files: u64,
    /// File bytes read by jobs.
    pub job_read_bytes: u64,
    /// File bytes written by jobs.
    pub job_written_bytes: u64,
    /// Of these, by flushes. `job_written_bytes` ÷ this is the write amplification of the tree.
    pub flushed_bytes: u64,
    /// Bytes of records that came into the log here, those of seals and edits included.
    pub logged_bytes: u64,
    /// Bytes of the log that were ordered to be written to its segments, whole blocks.
    pub log_written_bytes: u64,
    /// File bytes shipped to others.
    pub shipped_bytes: u64,
    /// Files shipped to others.
    pub shipped_files: u64,
    /// File bytes that others shipped here.
    pub received_bytes: u64,
    /// File bytes read to verify files that were shipped here.
    pub verified_read_bytes: u64,
    /// File bytes read to ship a file again.
    pub reship_read_bytes: u64,
    /// Files that were to be shipped again and whose bytes in memory had rotted.
    pub rotten_buffers: u64,
    /// Files asked for because an edit named them and they were not here.
    pub pulled_files: u64,
    /// Files that an edit added and that were missing here, but not needed: a later edit that was
    /// applied together with it removed them.
    pub skipped_files: u64,
    /// Segments of the log in which applied edits left values.
    pub kept_segments: u64,
    /// Edits applied.
    pub edits: u64,
    /// Most bytes of built files that waited to be shipped when a job was begun; only files of
    /// flushes count when it was a flush.
    pub unshipped_bytes_at_job_max: u64,
}
