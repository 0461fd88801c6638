//! The newest records of the log, as they were encoded or came. They go on to the successor as they
//! are, without a read from the ring. Parts leave when they are sent; parts that do not fit are
//! read from the ring when their turn comes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{LogPosition, Term};

/// Whole records of one term, back to back.
struct Part {
    from: LogPosition,
    end: LogPosition,
    term: Term,
    bytes: Vec<Bytes>,
}

/// Parts of the log without a gap but where a span ends, oldest first.
pub(super) struct Recent {
    parts: VecDeque<Part>,
    len: u64,
    len_max: u64,
}

/// Records that can be sent.
pub(super) struct Ready {
    pub(super) from: LogPosition,
    pub(super) end: LogPosition,
    pub(super) term: Term,
    pub(super) bytes: Vec<Bytes>,
}

impl Recent {
    /// Holds up to so many bytes.
    pub(super) const fn new(len_max: u64) -> Self {
        Self { parts: VecDeque::new(), len: 0, len_max }
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// These records come behind all that are here.
    pub(super) fn push(&mut self, from: LogPosition, term: Term, bytes: Vec<Bytes>) {
        let len = bytes.iter().map(|part| part.len() as u64).sum::<u64>();
        let end = LogPosition(from.get() + len);
        assert!(self.parts.back().is_none_or(|last| last.end <= from), "records come in order");
        self.parts.push_back(Part { from, end, term, bytes });
        self.len += len;
        while self.len > self.len_max {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Part> {
        let part = self.parts.pop_front()?;
        self.len -= part.end.get() - part.from.get();
        Some(part)
    }

    /// Takes the records of one term that begin at `from` and end by `until`: up to `bytes_max` in
    /// all, or the first part if that is longer and within `room`. None where they are not here.
    /// Drops those before `from`.
    pub(super) fn take(
        &mut self,
        from: LogPosition,
        until: LogPosition,
        (bytes_max, room): (u64, u64),
    ) -> Option<Ready> {
        while self.parts.front().is_some_and(|part| part.from < from) {
            self.pop();
        }
        let is_first = |part: &&Part| {
            part.from == from && part.end <= until && part.end.get() - from.get() <= room
        };
        let first = self.parts.front().filter(is_first)?;
        let (term, mut end, mut bytes) = (first.term, from, Vec::new());
        while let Some(part) = self.parts.front() {
            let is_next = part.from == end && part.term == term && part.end <= until;
            let fits = bytes.is_empty() || part.end.get() - from.get() <= bytes_max;
            if !is_next || !fits {
                break;
            }
            let Some(part) = self.pop() else { break };
            end = part.end;
            bytes.extend(part.bytes);
        }
        Some(Ready { from, end, term, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn at(position: u64) -> LogPosition {
        LogPosition(position)
    }

    fn bytes(len: usize) -> Vec<Bytes> {
        vec![Bytes::from(vec![0; len])]
    }

    /// Start and end of the taken part.
    fn take(recent: &mut Recent, from: u64, until: u64, max: u64) -> Option<(u64, u64)> {
        let ready = recent.take(at(from), at(until), (max, 500))?;
        let len = ready.bytes.iter().map(Bytes::len).sum::<usize>() as u64;
        assert_eq!(ready.end.get() - ready.from.get(), len);
        Some((ready.from.get(), ready.end.get()))
    }

    #[test]
    fn records_are_taken_once_in_order_within_what_is_asked() {
        let mut recent = Recent::new(1_000);
        (0..4).for_each(|n| recent.push(at(n * 100), Term(1), bytes(100)));
        assert_eq!(take(&mut recent, 0, 1_000, 250), Some((0, 200)));
        assert_eq!(take(&mut recent, 0, 1_000, 250), None, "they are gone");
        assert_eq!(take(&mut recent, 200, 250, 250), None, "it is not placed");
        assert_eq!(take(&mut recent, 200, 300, 10), Some((200, 300)), "one, if that is longer");
        // Records of two terms, with the gap between their spans.
        recent.push(at(4_096), Term(2), bytes(100));
        assert_eq!(take(&mut recent, 300, 9_000, 1_000), Some((300, 400)));
        assert_eq!(take(&mut recent, 400, 9_000, 1_000), None, "the span ends");
        assert_eq!(take(&mut recent, 4_096, 9_000, 1_000), Some((4_096, 4_196)));
        assert_eq!(recent.len, 0);
    }

    #[test]
    fn what_the_receiver_has_no_room_for_is_not_taken() {
        let mut recent = Recent::new(1_000);
        recent.push(at(0), Term(1), bytes(600));
        assert_eq!(take(&mut recent, 0, 1_000, 1_000), None);
        assert_eq!(recent.len, 600);
    }

    #[test]
    fn what_does_not_fit_is_let_go_from_the_front() {
        let mut recent = Recent::new(250);
        (0..4).for_each(|n| recent.push(at(n * 100), Term(1), bytes(100)));
        assert_eq!((recent.len, take(&mut recent, 0, 1_000, 1_000)), (200, None));
        assert_eq!(take(&mut recent, 200, 1_000, 1_000), Some((200, 400)));
        recent.push(at(400), Term(1), bytes(300));
        assert_eq!((recent.len, recent.parts.len()), (0, 0), "it is longer than all");
        // A reader that is in the middle of a part has read the rest elsewhere.
        recent.push(at(700), Term(1), bytes(100));
        assert_eq!(take(&mut recent, 750, 1_000, 1_000), None);
        assert_eq!(recent.len, 0);
    }
}
