//! Slows writers down while L0 grows faster than it is compacted, or garbage among large values
//! faster than it is collected, so that they need not stop: a stop lasts as long as a compaction of
//! all of L0, or as it takes to make room in a full pool.
//!
//! ```text
//!   bytes a millisecond ÷ pace of L0's compactions
//!    2 ┤────╲            below l0_slowdown: as fast as writers like
//!      │     ╲
//!    1 ┤      ╲          where as much comes in as goes out, L0 stays as it is
//!      │       ╲
//!    0 ┤        ╲───     from l0_stop on: nothing
//!      └────┬────┬──► runs in L0
//!       slowdown stop, and so for garbage between once and twice what is too much
//! ```
//!
//! The pace is measured, so there is nothing to set: bytes that compactions took out of L0, their
//! values wherever they lie included, by the time that they took. Writers are held back by the
//! bytes that they owe (bLSM, SIGMOD 2012, section 4: progress of merges and of writers are tied
//! together; RocksDB's delayed write rate).

/// Milliseconds of unused credit that writers may save up.
const BURST_MS: u64 = 2;
/// The least that writers are given, in bytes a millisecond.
const LEAST: u64 = 1024;

/// How fast writers may go, in the node's own time.
#[derive(Default)]
pub(super) struct Pace {
    /// Bytes a second that compactions take out of L0, lately; 0: none was measured.
    compacted: u64,
    /// Bytes a millisecond that may be written; none: as many as writers like.
    allowed: Option<u64>,
    /// Bytes that may be written now; below zero, bytes that are owed.
    credit: i64,
    now_ms: u64,
}

impl Pace {
    /// A compaction took so many bytes out of L0, if any.
    pub(super) fn compacted(&mut self, bytes: u64, took_ms: u64) {
        if bytes == 0 {
            return;
        }
        let rate = bytes.saturating_mul(1000) / took_ms.max(1);
        self.compacted = if self.compacted == 0 { rate } else { self.compacted / 4 * 3 + rate / 4 };
    }

    /// Time passed. `fill` is how far L0 is on its way from `l0_slowdown` to `l0_stop`, or garbage
    /// on its, in thousandths; none below that.
    pub(super) fn pass(&mut self, now_ms: u64, fill: Option<u64>) {
        let passed_ms = now_ms.saturating_sub(self.now_ms);
        self.now_ms = self.now_ms.max(now_ms);
        let was_slow = self.allowed.is_some();
        self.allowed = fill.filter(|_| self.compacted > 0).map(|fill| {
            let way_left = u128::from(1000 - fill.min(1000));
            let allowed = u128::from(self.compacted) * 2 * way_left / 1_000_000;
            u64::try_from(allowed).unwrap_or(u64::MAX).max(LEAST)
        });
        let Some(allowed) = self.allowed.filter(|_| was_slow) else {
            self.credit = 0;
            return;
        };
        let most = bytes(allowed.saturating_mul(BURST_MS));
        self.credit =
            self.credit.saturating_add(bytes(allowed.saturating_mul(passed_ms))).min(most);
    }

    /// A record of so many bytes was written.
    pub(super) fn wrote(&mut self, len: usize) {
        if self.allowed.is_some() {
            self.credit = self.credit.saturating_sub(bytes(len as u64));
        }
    }

    /// When writers may go on, if they wait: the last writes may have exceeded the credit.
    /// `pending` bytes are written and are no record yet.
    pub(super) fn wait_until_ms(&self, pending: usize) -> Option<u64> {
        let allowed = self.allowed?;
        let credit = self.credit.saturating_sub(bytes(pending as u64));
        let owed = u64::try_from(credit.checked_neg()?).ok().filter(|owed| *owed > 0)?;
        Some(self.now_ms + owed.div_ceil(allowed))
    }
}

fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    /// docs/faults.md: P27
    #[test]
    fn writers_are_held_back_by_what_they_owe_and_save_up_little() {
        let mut pace = Pace::default();
        pace.pass(10, Some(0));
        pace.wrote(1 << 30);
        assert_eq!(pace.wait_until_ms(0), None, "nothing tells how fast L0 is compacted");
        pace.compacted(8_000 * KIB, 1_000);
        pace.wrote(1 << 30);
        pace.pass(20, Some(0));
        assert_eq!(pace.wait_until_ms(0), None);
        // Twice as fast as L0 is compacted: 16 KiB a millisecond.
        pace.wrote(160 * KIB as usize);
        assert_eq!(pace.wait_until_ms(0), Some(30));
        pace.pass(29, Some(0));
        assert_eq!(pace.wait_until_ms(0), Some(30));
        pace.pass(30, Some(0));
        assert_eq!(pace.wait_until_ms(0), None);
        // Half way to the stop: 8 KiB; a second without writers leaves two milliseconds of credit.
        pace.pass(1_030, Some(500));
        pace.wrote(16 * KIB as usize);
        assert_eq!(pace.wait_until_ms(0), None);
        pace.wrote(1);
        assert_eq!(pace.wait_until_ms(0), Some(1_031));
        pace.pass(1_031, Some(1_000));
        pace.wrote(20 * KIB as usize);
        assert_eq!(pace.wait_until_ms(0), Some(1_051), "a mebibyte a second is the least");
        pace.pass(1_032, None);
        assert_eq!(pace.wait_until_ms(0), None, "L0 was compacted");
        // A clock that goes back is no time that passed.
        pace.pass(1_033, Some(0));
        pace.wrote(64 * KIB as usize);
        pace.pass(5, Some(0));
        assert_eq!(pace.wait_until_ms(0), Some(1_037));
    }

    /// docs/faults.md: P27
    #[test]
    fn what_a_turn_has_written_already_is_owed() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait_until_ms(1 << 30), None, "nobody is slowed down");
        pace.compacted(8_000 * KIB, 1_000);
        pace.pass(10, Some(0));
        pace.pass(11, Some(0));
        // 16 KiB a millisecond.
        let (credit, more) = (16 * KIB as usize, 8 * KIB as usize);
        assert_eq!(pace.wait_until_ms(credit), None);
        assert_eq!(pace.wait_until_ms(credit + 1), Some(12));
        assert_eq!(pace.wait_until_ms(credit + 3 * more), Some(13));
        pace.wrote(credit + 3 * more);
        assert_eq!(pace.wait_until_ms(0), Some(13), "as a record it is owed once");
    }

    /// docs/faults.md: P27
    #[test]
    fn the_pace_follows_the_compactions() {
        let mut pace = Pace::default();
        pace.compacted(u64::MAX, 0);
        pace.pass(0, Some(0));
        pace.pass(1, Some(0));
        pace.wrote(usize::MAX);
        pace.pass(u64::MAX, Some(u64::MAX));
        let mut pace = Pace::default();
        for _ in 0..50 {
            pace.compacted(8_000 * KIB, 1_000);
        }
        for _ in 0..50 {
            pace.compacted(80, 1_000);
        }
        pace.pass(0, Some(0));
        pace.pass(1, Some(0));
        pace.wrote(4 * KIB as usize);
        assert_eq!(pace.wait_until_ms(0), Some(4), "no slower than a mebibyte a second");
    }

    /// Files of 64 KiB; writers that would write ten in a millisecond; a compaction of the files in
    /// L0 at its start, 20 at most, a millisecond each.
    /// docs/faults.md: P27
    #[test]
    fn l0_comes_to_rest_between_slowdown_and_stop_and_writers_never_stop() {
        const FILE: u64 = 64 * KIB;
        const SLOWDOWN: u64 = 20;
        const STOP: u64 = 36;
        let (mut pace, mut written, mut compacting) = (Pace::default(), 0, None);
        let (mut at_most, mut at_half, mut longest_pause, mut pause) = (0, 0, 0, 0);
        let mut l0 = 0;
        for now_ms in 0..20_000 {
            let fill = (l0 >= SLOWDOWN).then(|| (l0 - SLOWDOWN) * 1000 / (STOP - SLOWDOWN));
            pace.pass(now_ms, fill);
            let before = written;
            // 16 records of 40 KiB.
            for _ in 0..16 {
                if pace.wait_until_ms(0).is_none() && l0 < STOP {
                    written += 40 * KIB;
                    pace.wrote(40 * KIB as usize);
                }
            }
            l0 += written / FILE - before / FILE;
            match compacting {
                None if l0 >= 4 => compacting = Some((l0.min(20), now_ms)),
                Some((files, begun)) if now_ms - begun == files => {
                    pace.compacted(files * FILE, now_ms - begun);
                    l0 -= files;
                    compacting = None;
                }
                _ => {}
            }
            pause = if written == before { pause + 1 } else { 0 };
            if now_ms > 2_000 {
                at_most = at_most.max(l0);
                longest_pause = longest_pause.max(pause);
            }
            if now_ms == 10_000 {
                at_half = written;
            }
        }
        assert!(at_most > SLOWDOWN && at_most < STOP, "{at_most} files in L0");
        assert!(longest_pause <= 8, "nothing written in {longest_pause} ms");
        let files_per_second = (written - at_half) / FILE / 10;
        assert!((900..=1000).contains(&files_per_second), "{files_per_second} of 1,000 compacted");
    }
}
