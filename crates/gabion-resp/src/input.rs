//! Bytes that a connection has brought and nobody has taken yet: the same at every door that takes
//! requests.
//!
//! ```text
//!   read ─► append ─► bytes ──► next
//!             │         ▲
//!             └► waiting┘   while nothing more is taken, in pieces
//! ```
//!
//! Many connections are read into one buffer, and requests are views of it. A connection with half
//! a request must not hold the memory of all, so its rest moves into memory of its own.
//!
//! A client may send a whole pipeline before it reads a reply. While its requests have to wait,
//! bytes that come are kept in pieces of about one read. The pieces are parsed one after the other,
//! so each byte moves at most twice, however much waits.

use crate::{Incoming, ProtocolError, RequestParser};
use alloc::collections::VecDeque;
use bytes::BytesMut;

/// Most bytes to reserve at once for a request whose end is missing.
const RESERVE_LEN_MAX: usize = 1 << 20;
/// A waiting piece is filled up to this many bytes.
const PIECE_LEN_MAX: usize = 64 << 10;

/// Bytes of one connection that are no request yet.
#[derive(Debug, Default)]
pub struct Input {
    parser: RequestParser,
    bytes: BytesMut,
    /// The bytes lie in memory that holds nothing else, where a request becomes whole.
    is_own: bool,
    /// The bytes that follow.
    waiting: VecDeque<BytesMut>,
    waiting_len: usize,
}

impl Input {
    /// How many bytes it holds.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.waiting_len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds read bytes, in memory cut off `shared` when there is nothing before them.
    pub fn append(&mut self, read: &[u8], shared: &mut BytesMut) {
        if !self.waiting.is_empty() {
            self.wait(read);
        } else if self.bytes.is_empty() {
            shared.extend_from_slice(read);
            self.bytes = shared.split();
            self.is_own = false;
        } else {
            self.extend(read);
        }
    }

    /// Adds bytes that were read while no request may be taken.
    pub fn wait(&mut self, read: &[u8]) {
        self.waiting_len += read.len();
        match self.waiting.back_mut() {
            Some(last) if last.len() + read.len() <= PIECE_LEN_MAX => last.extend_from_slice(read),
            _ => self.waiting.push_back(BytesMut::from(read)),
        }
    }

    /// The next whole request; none when bytes are missing.
    ///
    /// # Errors
    /// As [`RequestParser::parse`].
    #[inline]
    pub fn next_request(&mut self) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            let request = self.parser.parse(&mut self.bytes)?;
            // The bytes after the request lie in its memory, which may be long.
            self.is_own &= request.is_none();
            if request.is_some() || !self.take_piece() {
                return Ok(request);
            }
        }
    }

    /// Goes on to the next waiting piece. Returns whether there was one.
    fn take_piece(&mut self) -> bool {
        let Some(piece) = self.waiting.pop_front() else { return false };
        self.waiting_len -= piece.len();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        if self.bytes.is_empty() {
            self.bytes = piece;
            self.is_own = true;
        } else {
            self.extend(&piece);
        }
        true
    }

    fn extend(&mut self, read: &[u8]) {
        // Cut-off memory has no space behind it, so this moves the bytes; from then on the space
        // doubles.
        let wanted = self.parser.wanted(self.bytes.len());
        self.bytes.reserve(wanted.min(RESERVE_LEN_MAX).max(read.len()));
        self.bytes.extend_from_slice(read);
        self.is_own = true;
    }

    /// Called when no more requests are taken for now. The rest gets memory of its own if it may
    /// hold the shared buffer, which fills by `read_len` bytes at a time. Anything cut off that
    /// buffer ends where it ends.
    pub fn settle(&mut self, read_len: usize) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.is_own = false;
            return;
        }
        let wanted = self.parser.wanted(self.bytes.len()).min(RESERVE_LEN_MAX);
        let room = self.bytes.capacity() - self.bytes.len();
        // A lot of space belongs to a long request before the rest, which would keep it.
        if !self.is_own && !(read_len..=wanted + 2 * read_len).contains(&room) {
            // Once only: a long request in small pieces would be copied with each.
            self.is_own = true;
            let mut own = BytesMut::with_capacity(self.bytes.len() + wanted);
            own.extend_from_slice(&self.bytes);
            self.bytes = own;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, encode_request};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The words of the next request.
    fn next(input: &mut Input) -> Option<Args> {
        match input.next_request().unwrap()? {
            Incoming::Request(request) => Some(request.args),
            Incoming::TooLarge(large) => panic!("{large:?}"),
        }
    }

    /// How often the bytes so far were moved while `request` came in pieces.
    fn moves(request: &[u8], piece_len: usize) -> usize {
        let (mut input, mut shared) = (Input::default(), BytesMut::with_capacity(1 << 17));
        let (mut place, mut moves) = (core::ptr::null(), 0);
        let mut pieces = request.chunks(piece_len).peekable();
        while let Some(piece) = pieces.next() {
            input.append(piece, &mut shared);
            assert_eq!(input.next_request().unwrap().is_some(), pieces.peek().is_none());
            input.settle(1 << 16);
            if !input.bytes.is_empty() && input.bytes.as_ptr() != place {
                place = input.bytes.as_ptr();
                moves += 1;
            }
        }
        moves
    }

    #[test]
    fn a_long_request_that_comes_in_small_pieces_is_not_moved_with_each() {
        let value = vec![b'v'; 8 << 20];
        let set = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8388608\r\n"[..], &value, b"\r\n"].concat();
        // From the shared buffer, and each time that the space has doubled.
        assert!(moves(&set, 1_000) <= 8, "{}", moves(&set, 1_000));
        let words = b"$100\r\n".iter().chain(&value[..100]).chain(b"\r\n").copied();
        let words: Vec<u8> = words.collect::<Vec<_>>().repeat(10_000);
        let many = [&b"*10001\r\n$4\r\nMGET\r\n"[..], &words].concat();
        assert!(moves(&many, 50) <= 20, "{}", moves(&many, 50));
    }

    #[test]
    fn half_a_request_behind_a_long_one_does_not_keep_its_memory() {
        let value = vec![b'v'; 1 << 20];
        let set =
            [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n"[..], &value, b"\r\n*1\r\n$4"].concat();
        let (mut input, mut shared) = (Input::default(), BytesMut::with_capacity(1 << 17));
        let mut taken = 0;
        for piece in set.chunks(1 << 16) {
            input.append(piece, &mut shared);
            taken += usize::from(input.next_request().unwrap().is_some());
            input.settle(1 << 16);
        }
        assert_eq!((taken, &input.bytes[..]), (1, &b"*1\r\n$4"[..]));
        assert!(input.bytes.capacity() < 1 << 10, "{}", input.bytes.capacity());
    }

    #[test]
    fn requests_cut_anywhere_are_whole_again_and_leave_the_shared_buffer() {
        let first = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        let long = vec![b'v'; 3_000];
        let second = [b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3000\r\n", &long[..], b"\r\n"].concat();
        let all = [&first[..], &second, first].concat();
        for cut in 1..all.len() {
            let (mut input, mut shared) = (Input::default(), BytesMut::with_capacity(1 << 14));
            let mut lens = Vec::new();
            for part in [&all[..cut], &all[cut..]] {
                input.append(part, &mut shared);
                while let Some(request) = next(&mut input) {
                    lens.push(request.iter().map(|arg| arg.len()).sum::<usize>());
                }
                input.settle(1 << 12);
                // Nothing holds the shared buffer any more, so it is used again.
                assert!(shared.try_reclaim(1 << 14), "cut at {cut}");
            }
            assert_eq!(lens, [4, 3_004, 4], "cut at {cut}");
        }
    }

    #[test]
    fn what_waits_is_moved_a_bounded_number_of_times_however_much_it_is() {
        let mut wire = Vec::new();
        let count = 400_000;
        for n in 0..count {
            encode_request(&[&b"SET"[..], b"key", &[b'v'; 40][..n % 40]], &mut wire);
        }
        let (mut input, mut shared) = (Input::default(), BytesMut::with_capacity(1 << 17));
        wire.chunks(1 << 16).for_each(|read| input.wait(read));
        assert_eq!(input.len(), wire.len());
        // A thousand requests a turn stay in use, so their memory is not free, while as much comes
        // behind.
        let (mut taken, mut place, mut moves) = (0, core::ptr::null(), 0);
        let mut rest = wire.chunks(1 << 16);
        while taken < 2 * count {
            let under_way: Vec<Args> = (0..1000).map_while(|_| next(&mut input)).collect();
            taken += under_way.len();
            rest.next().into_iter().for_each(|read| input.append(read, &mut shared));
            input.settle(1 << 16);
            if input.bytes.as_ptr() != place {
                place = input.bytes.as_ptr();
                moves += 1;
            }
            // Each move is of one piece, not of all that waits.
            assert!(input.bytes.capacity() <= 3 << 16, "{}", input.bytes.capacity());
        }
        assert!(moves <= 2 * count / 1000 + 1, "{moves}");
        assert_eq!((input.len(), input.waiting.capacity()), (0, 0), "nothing is kept of it");
    }

    #[test]
    fn many_short_reads_that_wait_take_little_more_memory_than_their_bytes() {
        let mut input = Input::default();
        (0..200_000).for_each(|_| input.wait(b"PING\r\n"));
        assert_eq!(input.len(), 1_200_000);
        let memory: usize = input.waiting.iter().map(BytesMut::capacity).sum();
        assert!(memory <= 2 * input.len(), "{memory}");
        assert!(input.waiting.len() <= 1_200_000 / PIECE_LEN_MAX + 1, "{}", input.waiting.len());
    }

    proptest! {
        /// Reads that wait, reads that do not, and requests that are taken in between, in any
        /// order.
        #[test]
        fn requests_come_out_as_they_went_in_whatever_had_to_wait(
            requests in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5), 0..20),
            steps in prop::collection::vec((1..90_usize, any::<bool>(), 0..4_usize), 1..40),
        ) {
            let mut wire = Vec::new();
            requests.iter().for_each(|request| encode_request(request, &mut wire));
            let (mut input, mut shared) = (Input::default(), BytesMut::new());
            let (mut taken, mut rest, mut steps) = (Vec::new(), &wire[..], steps.iter().cycle());
            while taken.len() < requests.len() {
                let &(len, waits, count) = steps.next().unwrap();
                let (read, after) = rest.split_at(len.min(rest.len()));
                rest = after;
                match waits {
                    _ if read.is_empty() => {}
                    true => input.wait(read),
                    false => input.append(read, &mut shared),
                }
                let at_the_end = if rest.is_empty() { usize::MAX } else { count };
                let words = (0..at_the_end).map_while(|_| next(&mut input));
                taken.extend(words.map(|args| args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>()));
                input.settle(64);
            }
            prop_assert_eq!(taken, requests);
            prop_assert!(input.is_empty());
        }
    }
}
