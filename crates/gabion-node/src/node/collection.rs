//! How fast values are copied out of values files with much garbage: the pace that an operator
//! sets, or that of writes where these come faster, and how much was copied of late.
//!
//! ```text
//!   a job begins that copies b bytes      ─► credit − b
//!   time passes                           ─► credit + rate · time    ┐ at most what BURST_MS
//!   a flush begins of b bytes of values   ─► credit + b              ┘ give of the rate
//!   credit > 0: jobs may copy; a job that begins with any credit copies all of its values
//! ```
//!
//! As many bytes become garbage as are written, once nothing is new. With time alone it would be
//! more and more where writes are faster than the rate, until room is short and writers wait.

/// Unused credit of so much time is saved up.
const BURST_MS: u64 = 1_000;
/// Bytes a second are those of so much time.
const WINDOW_MS: u64 = 10_000;

/// The pace of collection, in the node's own time.
#[derive(Default)]
pub(super) struct Collection {
    /// Bytes that may be copied now; below zero, bytes too many.
    credit: i64,
    /// Bytes that may be saved up.
    credit_max: i64,
    now_ms: u64,
    /// Bytes that were copied since the start.
    moved: u64,
    /// Bytes of this window, those of the one before, and when this one began.
    recent: (u64, u64, u64),
}

impl Collection {
    /// Time passed, in which `bytes_per_s` might be copied; 0: as many as there are.
    pub(super) fn pass(&mut self, now_ms: u64, bytes_per_s: u64) {
        let passed_ms = now_ms.saturating_sub(self.now_ms);
        self.now_ms = self.now_ms.max(now_ms);
        let (this, before, since_ms) = self.recent;
        match self.now_ms.saturating_sub(since_ms) {
            age_ms if age_ms >= 2 * WINDOW_MS => self.recent = (0, 0, self.now_ms),
            age_ms if age_ms >= WINDOW_MS => self.recent = (0, this, since_ms + WINDOW_MS),
            _ => self.recent = (this, before, since_ms),
        }
        self.credit_max = bytes(bytes_per_s.saturating_mul(BURST_MS) / 1_000).max(1);
        if bytes_per_s == 0 {
            self.credit = self.credit_max;
            return;
        }
        let more = u128::from(bytes_per_s) * u128::from(passed_ms) / 1_000;
        self.add(u64::try_from(more).unwrap_or(u64::MAX));
    }

    /// So many bytes more may be copied: time gives them, or as many were written.
    pub(super) fn add(&mut self, len: u64) {
        self.credit = self.credit.saturating_add(bytes(len)).min(self.credit_max);
    }

    /// Whether a job may begin that copies values.
    pub(super) const fn may_begin(&self) -> bool {
        self.credit > 0
    }

    /// A job begins that copies so many bytes. Those that are copied for want of room, which knows
    /// no pace, are not owed: else nothing would be copied for as long once there is room.
    pub(super) fn begin(&mut self, len: u64, is_owed: bool) {
        if is_owed {
            self.credit = self.credit.saturating_sub(bytes(len));
        }
        self.moved = self.moved.saturating_add(len);
        self.recent.0 = self.recent.0.saturating_add(len);
    }

    /// Bytes that jobs began to copy since the start.
    pub(super) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Bytes a second, lately.
    pub(super) fn bytes_per_s(&self) -> u64 {
        let (this, before, since_ms) = self.recent;
        let age_ms = self.now_ms.saturating_sub(since_ms).min(WINDOW_MS);
        let before = u128::from(before) * u128::from(WINDOW_MS - age_ms) / u128::from(WINDOW_MS);
        let sum = u128::from(this) + before;
        u64::try_from(sum * 1_000 / u128::from(WINDOW_MS)).unwrap_or(u64::MAX)
    }
}

fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_little_of_it_is_saved_up() {
        let mut collection = Collection::default();
        let (mut moved, mut now_ms) = (0, 0);
        // Much time without garbage.
        collection.pass(3_600_000, 1_000);
        for _ in 0..100_000 {
            now_ms += 1;
            collection.pass(3_600_000 + now_ms, 1_000);
            if collection.may_begin() {
                collection.begin(700, true);
                moved += 700;
            }
        }
        assert_eq!(moved, collection.moved());
        assert!((100_000..=102_000).contains(&moved), "{moved} bytes in 100 s");
        let rate = collection.bytes_per_s();
        assert!((900..=1_100).contains(&rate), "{rate} bytes a second");
        collection.pass(3_600_000 + now_ms + 20_000, 1_000);
        assert_eq!(collection.bytes_per_s(), 0, "nothing was copied since");
    }

    #[test]
    fn as_much_may_be_copied_as_is_written_but_that_is_not_saved_up() {
        let mut collection = Collection::default();
        collection.pass(1_000, 1_000);
        collection.begin(50_000, true);
        collection.add(49_000);
        assert!(!collection.may_begin(), "neither time nor writes have given back all");
        collection.add(1);
        assert!(collection.may_begin());
        collection.add(u64::MAX);
        collection.begin(u64::MAX, false);
        assert!(collection.may_begin(), "for want of room");
        collection.begin(1_000, true);
        assert!(!collection.may_begin(), "a second's worth was saved up");
    }

    #[test]
    fn a_job_that_is_longer_than_the_credit_is_paid_for_afterwards() {
        let mut collection = Collection::default();
        collection.pass(1_000, 1_000);
        assert!(collection.may_begin());
        collection.begin(10_000, true);
        collection.pass(10_000, 1_000);
        assert!(!collection.may_begin(), "9 of 10 seconds have passed");
        collection.pass(10_001, 1_000);
        assert!(collection.may_begin());
        collection.begin(u64::MAX, true);
        collection.pass(u64::MAX, 0);
        assert!(collection.may_begin(), "without a limit no pace is kept");
        collection.pass(u64::MAX, u64::MAX);
        assert!(collection.may_begin());
    }
}
