//! The drawing: one row per replica and, below, the saving of compacting once.
//!
//! ```text
//!   gabion 127.0.0.1:6379   3 replicas   compaction primary   ack replicated   up 12:34
//!   #  role     term MemTable files/level         slots  flush  comp shipped   CPU s
//!   1  primary     1     3.2M 2/4/31           512/2046    120    33    3.2G    12.3
//!   …
//!   CPU so far 34.2 s: requests 12.0, flush 3.2, compact 9.1, ship 4.4, other 5.5
//!   Compacting at every replica: about 54.4 s (estimate). Once: 37 % saved
//! ```
//!
//! The block is redrawn in place: the cursor goes up by the drawn lines. It does not take the
//! screen, so earlier output stays, and messages appear above the block.

use crate::status::{Cpu, Status};
use crate::units::{count, seconds, short_count, short_size, size, span};
use gabion_bench::grouped;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often progress is drawn for work that does not report it.
const SAY_EVERY: Duration = Duration::from_millis(200);

/// Nothing drawn is wider than this on a terminal that does not tell its width.
const WIDTH: usize = 79;

/// CPU roles as they are drawn, each with its parts; both ends of shipping are one.
const PARTS: [(&str, &[&str]); 5] = [
    ("requests", &["requests"]),
    ("flush", &["flush"]),
    ("compact", &["compaction"]),
    ("ship", &["shipping", "target"]),
    ("other", &["other"]),
];

/// Seconds of flush and compaction below which no claim is made. The estimate multiplies them, and
/// with less, the threads' idle wake-ups weigh as much.
const JOBS_MIN: f64 = 1.0;

/// A replica to be drawn.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its group, where there are several.
    pub(crate) group: Option<u32>,
    pub(crate) number: u32,
    /// Its last status; nothing when it does not answer.
    pub(crate) status: Option<Status>,
    /// A note in place of, or besides, its numbers.
    pub(crate) note: Option<String>,
    /// CPU of its processes before this one.
    pub(crate) earlier_cpu: Cpu,
}

/// A replica's name in a sentence.
pub(crate) fn name_of(group: Option<u32>, number: u32) -> String {
    match group {
        Some(group) => format!("group {group}, replica {number}"),
        None => format!("replica {number}"),
    }
}

impl Row {
    fn name(&self) -> String {
        name_of(self.group, self.number)
    }

    fn cpu(&self) -> Cpu {
        let mut cpu = self.earlier_cpu;
        if let Some(status) = &self.status {
            cpu.add(&status.cpu);
        }
        cpu
    }
}

/// The block, line by line. Where it is redrawn, long lines are cut to the screen: a reason may
/// have any length.
pub(crate) fn lines(rows: &[Row], address: SocketAddr) -> Vec<String> {
    let mut lines = vec![heading(rows, address)];
    lines.push(format!(
        "{:<3}{:<9}{:>4} {:>8} {:<14}{:>10}{:>7}{:>6}{:>8}{:>8}",
        "#",
        "role",
        "term",
        "MemTable",
        "files/level",
        "slots",
        "flush",
        "comp",
        "shipped",
        "CPU s"
    ));
    let mut group = None;
    for each in rows {
        if each.group != group {
            group = each.group;
            lines.extend(group.map(|number| format!("group {number}")));
        }
        lines.push(row(each));
    }
    lines.extend(rows.iter().filter_map(slowed));
    lines.extend(rows.iter().filter_map(filled));
    lines.extend(rows.iter().filter_map(ring_lost));
    lines.extend(rows.iter().filter_map(damaged));
    lines.extend(rows.iter().filter_map(set_apart));
    lines.extend(claim(rows));
    lines
}

/// One line for places where nothing can be redrawn.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut line = String::new();
    for row in rows {
        let _ = match &row.status {
            Some(status) if !status.filling.is_empty() => {
                write!(line, "{} is being filled: {}; ", row.name(), status.filling)
            }
            Some(status) if status.is_ready => write!(
                line,
                "{} {} log {} files {}; ",
                row.name(),
                status.role,
                short_size(status.log_end),
                status.level_files.iter().sum::<u64>()
            ),
            _ => write!(line, "{} {}; ", row.name(), note_of(row)),
        };
    }
    let claim = claim(rows).join("; ");
    line.push_str(&claim);
    line
}

/// The replicas that are not ready, and why.
pub(crate) fn obstacles(rows: &[Row]) -> String {
    let is_ready = |row: &&Row| row.status.as_ref().is_some_and(|status| status.is_ready);
    let waiting = rows.iter().filter(|row| !is_ready(row));
    let waiting: Vec<String> =
        waiting.map(|row| format!("{}: {}", row.name(), note_of(row))).collect();
    waiting.join("; ")
}

fn heading(rows: &[Row], address: SocketAddr) -> String {
    let said = rows.iter().find_map(|row| row.status.as_ref());
    let mut line = format!("gabion {address}  {}", count(rows.len() as u64, "replica"));
    if let Some(status) = said {
        let uptime = rows.iter().filter_map(|row| row.status.as_ref()).map(|s| s.uptime_s).max();
        let _ = write!(
            line,
            "  compaction {}  ack {}  up {}",
            status.compaction,
            status.ack,
            span(uptime.unwrap_or(0))
        );
    }
    line
}

fn note_of(row: &Row) -> String {
    match (&row.note, &row.status) {
        (Some(note), _) => note.clone(),
        (None, Some(status)) if status.reason.is_empty() => "not ready".to_owned(),
        (None, Some(status)) => format!("not ready: {}", status.reason),
        (None, None) => "does not answer".to_owned(),
    }
}

fn row(row: &Row) -> String {
    let Some(status) = &row.status else { return format!("{:<3}{}", row.number, note_of(row)) };
    if !status.is_ready {
        return format!(
            "{:<3}{:<9}{:>4} {}",
            row.number,
            status.role,
            short_count(status.term),
            note_of(row)
        );
    }
    let mut memtable = short_size(status.memtable_bytes);
    if status.sealed > 0 {
        let _ = write!(memtable, "+{}", status.sealed);
    }
    format!(
        "{:<3}{:<9}{:>4} {:>8} {:<14}{:>10}{:>7}{:>6}{:>8}{:>8}",
        row.number,
        status.role,
        short_count(status.term),
        memtable,
        levels(&status.level_files),
        format!("{}/{}", short_count(status.slots_used), short_count(status.slots_total)),
        short_count(status.flushes),
        short_count(status.compactions),
        short_size(status.shipped_bytes),
        seconds(row.cpu().total())
    )
}

/// Why a ready replica makes writes wait.
fn slowed(row: &Row) -> Option<String> {
    let status = row.status.as_ref().filter(|status| status.is_ready)?;
    let reason = Some(&status.reason).filter(|reason| !reason.is_empty())?;
    Some(format!("   {}: writes wait: {reason}", row.name()))
}

/// How far a replica is that is being filled.
fn filled(row: &Row) -> Option<String> {
    let status = row.status.as_ref().filter(|status| !status.filling.is_empty())?;
    Some(format!("   {} is being filled: {}", row.name(), status.filling))
}

/// The possible loss with a replica's ring, in a line; `up` and the replica's log have the
/// sentence.
fn ring_lost(row: &Row) -> Option<String> {
    let status = row.status.as_ref().filter(|status| !status.ring.is_empty())?;
    let (name, from) = (row.name(), status.ring_from);
    let what = match status.ring_fate.as_str() {
        "taken-over" => "and its log taken over from another",
        "gone" => "and acknowledged writes may be missing",
        _ => "and it is not known yet whether others have it",
    };
    Some(format!("   {name}: ring lost at {from}, {what}"))
}

/// The damage that a running replica met in its files.
fn damaged(row: &Row) -> Option<String> {
    let status = row.status.as_ref().filter(|status| !status.damage.is_empty())?;
    let Status { damage, damaged_files, repair, .. } = status;
    let name = row.name();
    Some(match damaged_files {
        0 => format!("   {name}: damaged, not compacted: {damage}"),
        1 => format!("   {name}: damaged, {repair}: {damage}"),
        more => format!("   {name}: {more} damaged files, {repair}: {damage}"),
    })
}

/// The primary's time and the system's clock differ, and expiries go by the former.
fn set_apart(row: &Row) -> Option<String> {
    let status = row.status.as_ref().filter(|status| status.role == "primary")?;
    let ahead_s = status.clock_ahead_ms / 1_000;
    let is_ahead = if ahead_s > 0 { "ahead of" } else { "behind" };
    let name = row.name();
    (ahead_s != 0).then(|| {
        let apart_s = ahead_s.unsigned_abs();
        format!("   {name}: the system's clock is {apart_s} s {is_ahead} it: GABION TIME")
    })
}

/// Files per level from L0 on, without the empty ones at the end.
fn levels(files: &[u64]) -> String {
    let used = files.iter().rposition(|count| *count > 0).map_or(1, |last| last + 1);
    let parts: Vec<String> = files.iter().take(used).map(u64::to_string).collect();
    if parts.is_empty() { "0".to_owned() } else { parts.join("/") }
}

/// The spent CPU, and the cost of the other way.
fn claim(rows: &[Row]) -> Vec<String> {
    let mut spent = Cpu::default();
    for row in rows {
        spent.add(&row.cpu());
    }
    let parts = PARTS.iter().map(|(name, roles)| format!("{name} {}", seconds(spent.of(roles))));
    let parts: Vec<String> = parts.collect();
    let by_role = format!("CPU so far {} s: {}", seconds(spent.total()), parts.join(", "));
    vec![by_role, verdict(rows, &spent)]
}

fn verdict(rows: &[Row], spent: &Cpu) -> String {
    let said = || rows.iter().filter_map(|row| row.status.as_ref());
    let jobs = spent.of(&["flush", "compaction"]);
    if said().any(|status| status.compaction == "every-replica") {
        return format!("Every replica compacts for itself: {} s of it", seconds(jobs));
    }
    if jobs < JOBS_MIN {
        let is_idle = said().all(|status| status.flushes + status.compactions == 0);
        let reason = if is_idle { "nothing compacted yet" } else { "too early to say" };
        return format!("Compacting once, not at every replica: {reason}");
    }
    let everywhere = everywhere(spent, rows.len());
    let saved = 100.0 * (1.0 - spent.total() / everywhere);
    let outcome = if saved >= 0.0 {
        format!("{saved:.0} % saved")
    } else {
        format!("{:.0} % more spent", -saved)
    };
    format!(
        "Compacting at every replica: about {} s (estimate). Once: {outcome}",
        seconds(everywhere)
    )
}

/// CPU seconds of the group if every replica had flushed and compacted for itself: the primary's
/// flushes and compactions once per replica, no shipping, the rest as it was.
fn everywhere(spent: &Cpu, replicas: usize) -> f64 {
    let jobs = spent.of(&["flush", "compaction"]);
    jobs * replicas as f64 + spent.of(&["requests", "other"])
}

/// The lines as they are drawn: cut where there is a width, whole where they go to a file or
/// another program.
fn block(lines: &[String], width: Option<usize>) -> String {
    let mut out = String::new();
    for line in lines {
        let end = width.and_then(|width| line.char_indices().nth(width)).map(|(end, _)| end);
        out.push_str(&line[..end.unwrap_or(line.len())]);
        out.push('\n');
    }
    out
}

/// Columns of a terminal, less one, so that no line wraps.
fn width_of(terminal: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(terminal);
    let width = size.map_or(0, |size| usize::from(size.ws_col).saturating_sub(1));
    if width == 0 { WIDTH } else { width }
}

/// The part of the terminal that is redrawn.
pub(crate) struct Screen {
    is_terminal: bool,
    drawn: usize,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stdout().is_terminal(), drawn: 0 }
    }

    pub(crate) const fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Draws the block in place of the last one.
    pub(crate) fn draw(&mut self, lines: &[String]) {
        let mut out = self.erasure();
        out.push_str(&block(lines, self.is_terminal.then(|| width_of(io::stdout()))));
        self.drawn = if self.is_terminal { lines.len() } else { 0 };
        put(&out);
    }

    /// Prints a line that stays, above the block.
    pub(crate) fn say(&mut self, line: &str) {
        let mut out = self.erasure();
        self.drawn = 0;
        out.push_str(line);
        out.push('\n');
        put(&out);
    }

    /// The sequence that removes the block.
    fn erasure(&self) -> String {
        // Up by the lines, to the first column, and everything below erased.
        if self.drawn > 0 { format!("\x1b[{}A\r\x1b[J", self.drawn) } else { String::new() }
    }
}

/// A line about the work under way, on terminals only.
pub(crate) struct Progress {
    drawn: bool,
    /// Whether the line is drawn now.
    is_there: bool,
    /// The last share that a bar showed, so that it is drawn only when it changes.
    share: u64,
}

impl Progress {
    /// A line that is drawn when somebody looks. It goes to standard error, so it does not mix with
    /// the output, JSON or not.
    pub(crate) fn new() -> Self {
        Self { drawn: io::stderr().is_terminal(), is_there: false, share: u64::MAX }
    }

    /// A line that is never drawn.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        Self { drawn: false, ..Self::new() }
    }

    /// A line beside steadily printed lines. It is not drawn where these go to a terminal, as they
    /// show the progress there.
    pub(crate) fn beside_lines() -> Self {
        let drawn = io::stderr().is_terminal() && !io::stdout().is_terminal();
        Self { drawn, ..Self::new() }
    }

    pub(crate) fn say(&mut self, text: &str) {
        if self.drawn {
            let text: String = text.chars().take(width_of(io::stderr())).collect();
            eprint!("\r\x1b[K{text}");
            let _ = io::stderr().flush();
            self.is_there = true;
        }
    }

    /// Draws the done bytes of a whole, and the current step.
    pub(crate) fn bar(&mut self, done: u64, total: u64, now: &str) {
        self.draw(done, total, || format!("{} of {}, {now}", size(done), size(total)));
    }

    /// The same for things that are counted, such as `entries`.
    pub(crate) fn bar_of(&mut self, done: u64, total: u64, things: &str, now: &str) {
        let so_far = || format!("{} of {} {things}, {now}", grouped(done), grouped(total));
        self.draw(done, total, so_far);
    }

    fn draw(&mut self, done: u64, total: u64, so_far: impl Fn() -> String) {
        let share = done * 100 / total.max(1);
        // The next work may begin with the same text as the last one ended with.
        if done == 0 || share != self.share {
            self.share = share;
            self.say(&bar(done, total, &so_far()));
        }
    }

    /// Does `work`, and meanwhile draws its progress again and again, as far as that can be seen
    /// from here.
    pub(crate) fn during<T: Send>(
        &mut self,
        work: impl FnOnce() -> T + Send,
        so_far: impl Fn() -> String,
    ) -> T {
        if !self.drawn {
            return work();
        }
        std::thread::scope(|scope| {
            let (sender, ended) = channel();
            scope.spawn(move || sender.send(work()));
            loop {
                self.say(&so_far());
                match ended.recv_timeout(SAY_EVERY) {
                    Ok(result) => return result,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("it sends before it ends"),
                }
            }
        })
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_there) {
            eprint!("\r\x1b[K");
        }
    }
}

/// An error that ended the work gets a line of its own.
impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// `[####................]  20 %   1.0 GiB of 5.0 GiB, 000007.sst`
fn bar(done: u64, total: u64, so_far: &str) -> String {
    const CELLS: usize = 20;
    let share = (done as f64 / total.max(1) as f64).min(1.0);
    let full = (share * CELLS as f64) as usize;
    format!("[{}{}] {:3.0} %  {so_far}", "#".repeat(full), ".".repeat(CELLS - full), share * 100.0)
}

/// Prints. A reader that stopped has all it wanted; that is no error.
pub(crate) fn put(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bar_shows_the_share_that_is_done() {
        let shown = bar(1 << 30, 4 << 30, "1.0 GiB of 4.0 GiB, 000007.sst");
        assert_eq!(shown, "[#####...............]  25 %  1.0 GiB of 4.0 GiB, 000007.sst");
        assert_eq!(bar(2, 1, "x"), format!("[{}] 100 %  x", "#".repeat(20)));
    }

    fn status(compaction: &str, cpu: [f64; 6]) -> Status {
        let mut status = Status::from_json(&json!({
            "pid": 1, "role": "primary", "term": 12345, "ready": true, "compaction": compaction,
            "ack": "replicated", "uptime_ms": 99_999_999_u64,
            "memtable": {"active_bytes": 1_048_575, "sealed": 4},
            "levels": [{"files": 12}, {"files": 34}, {"files": 567}, {"files": 8901}, {"files": 0}],
            "slots": {"total": 40_960, "free": 1},
            "counters": {"flushes": 99_999, "compactions": 9_999, "shipped_bytes": 1_099_511_627_775_u64}
        }));
        status.cpu = Cpu(cpu);
        status
    }

    fn rows(compaction: &str, cpu: [f64; 6], replicas: u32) -> Vec<Row> {
        (1..=replicas)
            .map(|number| Row {
                group: None,
                number,
                status: Some(status(compaction, cpu)),
                note: None,
                earlier_cpu: Cpu::default(),
            })
            .collect()
    }

    fn address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 65_000))
    }

    #[test]
    fn no_line_is_wider_than_the_screen_whatever_the_numbers_and_in_a_file_it_is_whole() {
        let mut rows = rows("every-replica", [99_999.0; 6], 16);
        rows[1].status = None;
        rows[1].note = Some("x".repeat(200));
        let lines = lines(&rows, address());
        for line in block(&lines, Some(WIDTH)).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert_eq!(block(&lines, None), lines.join("\n") + "\n");
        assert!(lines[3].ends_with(&"x".repeat(200)), "{}", lines[3]);
        assert_eq!(block(&["äöü".into(), "ab".into()], Some(2)), "äö\nab\n");
    }

    #[test]
    fn nothing_of_a_day_of_processor_time_is_cut_off() {
        let lines = lines(&rows("primary", [9_999.0; 6], 1), address());
        assert!(lines[3].ends_with("other 9999"), "{}", lines[3]);
        assert!(lines[4].ends_with("more spent"), "{}", lines[4]);
    }

    #[test]
    fn damage_is_shown_with_how_far_its_repair_is() {
        let mut rows = rows("primary", [1.0; 6], 2);
        let mut status = json!({
            "damage": "000007.sst: block at 0",
            "damaged_files": [{"file": "000007.sst", "state": "no good copy"}],
        });
        rows[0].status = Some(Status::from_json(&status));
        let shown = "   replica 1: damaged, no good copy: 000007.sst: block at 0";
        assert!(lines(&rows, address()).iter().any(|line| line == shown));
        status["damaged_files"] = json!([{"state": "repairing"}, {"state": "waiting"}]);
        rows[0].status = Some(Status::from_json(&status));
        let shown = "   replica 1: 2 damaged files, repairing: 000007.sst: block at 0";
        assert!(lines(&rows, address()).iter().any(|line| line == shown));
    }

    #[test]
    fn a_member_that_is_being_filled_is_shown_with_how_far_it_is() {
        let mut rows = rows("primary", [1.0; 6], 2);
        let filling = json!({
            "step": "copying files", "bytes": 2 << 20, "bytes_done": 1 << 20, "bytes_per_s": 1024,
            "full_in_s": 1024,
        });
        rows[1].status = Some(Status::from_json(&json!({"role": "filling", "filling": filling})));
        let words = "replica 2 is being filled: copying files, 1.0 MiB of 2.0 MiB (50 %), \
                     1.0 KiB/s, all there in about 17:04";
        assert!(lines(&rows, address()).iter().any(|line| line.trim() == words));
        assert!(summary(&rows).contains(&format!("; {words}; ")), "{}", summary(&rows));
        rows[1].status = Some(Status::from_json(&json!({"role": "tail", "filling": null})));
        assert!(!lines(&rows, address()).concat().contains("being filled"));
    }

    #[test]
    fn a_clock_that_was_set_is_told_of_the_primary() {
        let mut rows = rows("primary", [1.0; 6], 2);
        for (ahead_ms, said) in [(-3_600_000, "3600 s behind it"), (9_000, "9 s ahead of it")] {
            let status = json!({"role": "primary", "clock": {"system_ahead_ms": ahead_ms}});
            rows[0].status = Some(Status::from_json(&status));
            let said = format!("   replica 1: the system's clock is {said}: GABION TIME");
            assert!(lines(&rows, address()).contains(&said), "{:?}", lines(&rows, address()));
        }
        let told = |rows: &[Row]| lines(rows, address()).iter().any(|line| line.contains("clock"));
        for quiet in [
            json!({"role": "primary", "clock": {"system_ahead_ms": 0}}),
            json!({"role": "tail", "clock": {"system_ahead_ms": 9_000}}),
        ] {
            rows[0].status = Some(Status::from_json(&quiet));
            assert!(!told(&rows));
        }
    }

    #[test]
    fn columns_stand_under_their_names() {
        let lines = lines(&rows("primary", [1.0; 6], 1), address());
        assert!(lines[1].ends_with("CPU s"), "{}", lines[1]);
        assert_eq!(lines[1].chars().count(), lines[2].chars().count(), "{lines:#?}");
        assert!(lines[2].contains("12/34/567/8901 "), "{}", lines[2]);
    }

    #[test]
    fn what_compacting_everywhere_would_cost_counts_jobs_once_per_replica_and_no_shipping() {
        // Three replicas; requests 3, flush 2, compaction 8, shipping 1, target 1, other 0.
        let spent = Cpu([3.0, 2.0, 8.0, 1.0, 1.0, 0.0]);
        assert_eq!(everywhere(&spent, 3), 33.0);
        let mut rows = rows("primary", [0.0; 6], 3);
        rows[0].earlier_cpu = spent;
        let claim = claim(&rows);
        assert!(claim[0].starts_with("CPU so far 15.0 s: requests 3.0, flush 2.0"), "{claim:?}");
        assert!(claim[1].contains("about 33.0 s (estimate). Once: 55 % saved"), "{claim:?}");
    }

    #[test]
    fn the_claim_is_not_made_before_there_is_anything_to_say_nor_where_all_compact() {
        // An hour of idle wake-ups, and next to nothing flushed.
        let idle = [30.0, 0.1, 0.2, 20.0, 20.0, 1.0];
        let mut group = rows("primary", idle, 3);
        assert!(claim(&group)[1].ends_with("at every replica: too early to say"), "{group:?}");
        for status in group.iter_mut().filter_map(|row| row.status.as_mut()) {
            (status.flushes, status.compactions) = (0, 0);
        }
        assert!(claim(&group)[1].ends_with("at every replica: nothing compacted yet"), "{group:?}");
        let claim = claim(&rows("every-replica", [1.0; 6], 3));
        assert_eq!(claim[1], "Every replica compacts for itself: 6.0 s of it");
    }

    #[test]
    fn a_replica_that_does_not_answer_or_is_not_ready_is_named_with_the_reason() {
        let mut rows = rows("primary", [1.0; 6], 2);
        rows[0].status = None;
        if let Some(status) = &mut rows[1].status {
            status.is_ready = false;
            status.reason = "replica 1 is out".to_owned();
        }
        let lines = lines(&rows, address());
        assert!(lines[2].contains("does not answer"), "{}", lines[2]);
        assert!(lines[3].contains("not ready: replica 1 is out"), "{}", lines[3]);
        assert!(summary(&rows).contains("replica 1 does not answer; replica 2 not ready"));
        let waiting = "replica 1: does not answer; replica 2: not ready: replica 1 is out";
        assert_eq!(obstacles(&rows), waiting);
    }

    #[test]
    fn the_reason_why_writes_wait_is_shown() {
        let mut rows = rows("primary", [1.0; 6], 1);
        if let Some(status) = &mut rows[0].status {
            status.reason = "flush is behind".to_owned();
        }
        let lines = lines(&rows, address());
        assert_eq!(lines[3], "   replica 1: writes wait: flush is behind");
    }

    #[test]
    fn empty_levels_at_the_end_are_left_out() {
        assert_eq!(levels(&[0, 0, 0]), "0");
        assert_eq!(levels(&[]), "0");
        assert_eq!(levels(&[3, 0, 7, 0]), "3/0/7");
    }
}
