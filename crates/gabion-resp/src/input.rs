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
}

impl Input {
    /// Adds what was read, in memory cut off `shared` when there is nothing before it.
    pub fn append(&mut self, read: &[u8], shared: &mut BytesMut) {
        if self.bytes.is_empty() {
            shared.extend_from_slice(read);
            self.bytes = shared.split();
        } else {
            let wanted = self.parser.wanted(self.bytes.len());
            self.bytes.reserve(wanted.min(RESERVE_LEN_MAX).max(read.len()));
            self.bytes.extend_from_slice(read);
        }
    }

    /// The next whole request; none when bytes are missing.
    ///
    /// # Errors
    /// As [`RequestParser::parse`].
    pub fn next_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        self.parser.parse(&mut self.bytes)
    }

    /// To be called when all whole requests were taken: the rest gets memory of its own if it may hold the buffer
    /// that all share, of which `read_len` bytes are filled at a time. Whatever is cut off that ends where it ends.
    pub fn settle(&mut self, read_len: usize) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        } else if self.bytes.capacity() < self.bytes.len() + read_len {
            let wanted = self.parser.wanted(self.bytes.len()).min(RESERVE_LEN_MAX);
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
