//! What a connection has brought and was not asked for yet: the same at every door that takes requests.
//!
//! Many connections are read into one buffer, and requests are views of it. So that a connection with half a request
//! does not hold the memory of all, its rest is moved into memory of its own.

use crate::{ProtocolError, Request, RequestParser};
use bytes::BytesMut;

/// Most bytes that are set aside at once for a request of which the end is missing.
const RESERVE_LEN_MAX: usize = 1 << 20;

/// Bytes of one connection that are no request yet.
#[derive(Debug, Default)]
pub struct Input {
    parser: RequestParser,
    bytes: BytesMut,
    /// They lie in memory that holds nothing else, where a request becomes whole.
    is_own: bool,
}

impl Input {
    /// Adds what was read, in memory cut off `shared` when there is nothing before it.
    pub fn append(&mut self, read: &[u8], shared: &mut BytesMut) {
        if self.bytes.is_empty() {
            shared.extend_from_slice(read);
            self.bytes = shared.split();
            self.is_own = false;
        } else {
            // What was cut off has no room behind it, so this moves it away; from then on room doubles.
            let wanted = self.parser.wanted(self.bytes.len());
            self.bytes.reserve(wanted.min(RESERVE_LEN_MAX).max(read.len()));
            self.bytes.extend_from_slice(read);
            self.is_own = true;
        }
    }

    /// The next whole request; none when bytes are missing.
    ///
    /// # Errors
    /// As [`RequestParser::parse`].
    pub fn next_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        let request = self.parser.parse(&mut self.bytes)?;
        // What follows it lies in its memory, which may be long.
        self.is_own &= request.is_none();
        Ok(request)
    }

    /// To be called when all whole requests were taken: the rest gets memory of its own if it may hold the buffer
    /// that all share, of which `read_len` bytes are filled at a time. Whatever is cut off that ends where it ends.
    pub fn settle(&mut self, read_len: usize) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.is_own = false;
            return;
        }
        let wanted = self.parser.wanted(self.bytes.len()).min(RESERVE_LEN_MAX);
        let room = self.bytes.capacity() - self.bytes.len();
        // Much room is that of a long request before it, which it would keep.
        if !self.is_own && !(read_len..=wanted + 2 * read_len).contains(&room) {
            // Once: a long request that comes in small pieces would be copied with each.
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
    use alloc::vec;
    use alloc::vec::Vec;

    /// How often what has come so far was moved while `request` came in pieces.
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
        // From the buffer of all, and each time that its room has doubled.
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
                while let Some(request) = input.next_request().unwrap() {
                    lens.push(request.args.iter().map(|arg| arg.len()).sum::<usize>());
                }
                input.settle(1 << 12);
                // Nothing holds the buffer of all any more, so it is used again.
                assert!(shared.try_reclaim(1 << 14), "cut at {cut}");
            }
            assert_eq!(lens, [4, 3_004, 4], "cut at {cut}");
        }
    }
}
