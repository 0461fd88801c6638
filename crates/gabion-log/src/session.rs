//! The session extension of a batch record: which of its entries are whose write, for exactly-once.
//!
//! ```text
//!   0       4         12       20      24      28          29
//!   ┌───────┬─────────┬────────┬───────┬───────┬───────────┬───────┬─ ─ ─ ─ ─
//!   │ count │ session │ number │ first │ count │ reply len │ reply │ the next
//!   └───────┴─────────┴────────┴───────┴───────┴───────────┴───────┴─ ─ ─ ─ ─
//!     u32   │ u64       u64      u32     u32     u8 ≤ 64           │
//!           └───────── once for each write, in the order of entries
//! ```
//!
//! One record carries the writes of many clients, so the extension is a list. A session gives its
//! writes rising numbers. A member that meets a number again knows that the write is made, and
//! answers with the reply that stands here.
//!
//! - Each write has one entry of the record or more. A write without entries changed nothing and
//!   may be judged again when it is repeated, so no record has to remember it.
//! - Writes stand in the order of their entries and do not overlap. Some entries may be nobody's.
//! - The field is critical: a reader that skipped it would make a repeated write twice.
//! - All extensions of a record have 64 KiB together, which is 736 writes with the longest replies
//!   and 2,620 without. A batch of more writes becomes several records.

use crate::record::{Header, RecordKind};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, Result};

/// Longest reply that a record remembers, in bytes.
pub const REPLY_LEN_MAX: usize = 64;
/// Bytes of a write without a reply.
const WRITE_LEN_MIN: usize = 25;
/// Bytes of a write with the longest reply.
pub const WRITE_LEN_MAX: usize = WRITE_LEN_MIN + REPLY_LEN_MAX;

/// One write of a session, in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionWrite<'a> {
    /// The client's session.
    pub session: u64,
    /// The number that the session gave to the write.
    pub number: u64,
    /// The first of its entries, counted in the record from 0.
    pub first: u32,
    /// How many entries it has, 1 or more.
    pub count: u32,
    /// The answer to the client, at most [`REPLY_LEN_MAX`] bytes.
    pub reply: &'a [u8],
}

impl SessionWrite<'_> {
    /// The entry behind its last. What breaks a rule is said in words: nobody before has an entry
    /// from `from` on, and the record has `entries`.
    fn end(&self, from: u32, entries: u32) -> core::result::Result<u32, String> {
        let Self { session, number, first, count, reply } = *self;
        let write = || format!("write {number} of session {session}");
        if reply.len() > REPLY_LEN_MAX {
            let len = reply.len();
            return Err(format!("{} has a reply of {len}, the limit is {REPLY_LEN_MAX}", write()));
        }
        if count == 0 || first < from {
            return Err(format!(
                "{} has {count} entries from {first} on, others have those below {from}",
                write()
            ));
        }
        let end = first.checked_add(count).filter(|end| *end <= entries);
        end.ok_or_else(|| {
            format!("{} has {count} entries from {first} on, the record has {entries}", write())
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session);
        out.put_u64(self.number);
        out.put_u32(self.first);
        out.put_u32(self.count);
        out.put_u8(self.reply.len() as u8);
        out.put_bytes(self.reply);
    }
}

/// Appends the list of `writes` to `out` and returns the entry behind the last that is somebody's.
///
/// # Errors
/// Invalid input for a write that breaks a rule; `out` may then have a part of the list.
pub(crate) fn encode_list<'a>(
    writes: impl IntoIterator<Item = SessionWrite<'a>>,
    out: &mut Vec<u8>,
) -> Result<u32> {
    let (count_at, mut count, mut end) = (out.len(), 0_u32, 0);
    out.put_u32(count);
    for write in writes {
        end = write.end(end, u32::MAX).map_err(Error::invalid)?;
        write.encode(out);
        count += 1;
    }
    out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    Ok(end)
}

/// The writes of sessions that a record carries, in the order of their entries. The whole list was
/// checked.
#[derive(Clone)]
pub struct SessionWrites<'a> {
    left: u32,
    reader: Reader<'a>,
}

impl<'a> SessionWrites<'a> {
    /// No write.
    pub(crate) const NONE: Self = Self { left: 0, reader: Reader::new(&[], "session extension") };

    /// The list in `bytes`, of a record with so many entries.
    ///
    /// # Errors
    /// Corruption when it is cut off, empty or longer than it says, or when a write breaks a rule.
    pub fn decode(bytes: &'a [u8], entries: u32) -> Result<Self> {
        let mut reader = Reader::new(bytes, "session extension");
        let left = reader.u32()?;
        if left == 0 || left > entries || left as usize > reader.remaining() / WRITE_LEN_MIN {
            return Err(Error::corruption(format!(
                "session extension: {left} writes in {} bytes, of a record of {entries} entries",
                reader.remaining()
            )));
        }
        let list = Self { left, reader };
        let (mut rest, mut end) = (list.clone(), 0);
        while rest.left > 0 {
            let why = |why| Error::corruption(format!("session extension: {why}"));
            end = rest.read()?.end(end, entries).map_err(why)?;
        }
        rest.reader.finish()?;
        Ok(list)
    }

    /// The list in the session extension of a record.
    pub(crate) fn of_record(bytes: &'a [u8], header: &Header) -> Result<Self> {
        if header.kind != RecordKind::Batch {
            return Err(Error::corruption(format!(
                "log record at {}: a session extension in a record of kind {}",
                header.position, header.kind as u8
            )));
        }
        Self::decode(bytes, header.count)
            .map_err(|error| error.within(format!("log record at {}", header.position)))
    }

    fn read(&mut self) -> Result<SessionWrite<'a>> {
        self.left -= 1;
        let r = &mut self.reader;
        let (session, number, first, count) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
        let len = usize::from(r.u8()?);
        Ok(SessionWrite { session, number, first, count, reply: r.bytes(len)? })
    }
}

impl<'a> Iterator for SessionWrites<'a> {
    type Item = SessionWrite<'a>;

    fn next(&mut self) -> Option<SessionWrite<'a>> {
        if self.left == 0 {
            return None;
        }
        let write = self.read();
        debug_assert!(write.is_ok(), "the list was checked");
        write.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use gabion_base::ErrorKind;

    fn write(first: u32, count: u32, reply: &[u8]) -> SessionWrite<'_> {
        SessionWrite { session: 7, number: u64::from(first) + 1, first, count, reply }
    }

    fn encoded(writes: &[SessionWrite<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(writes.len() as u32);
        writes.iter().for_each(|write| write.encode(&mut out));
        out
    }

    #[test]
    fn a_list_comes_back_as_it_was_written() {
        let writes = [write(0, 1, b"+OK"), write(1, 3, &[9; REPLY_LEN_MAX]), write(6, 1, b"")];
        let mut out = Vec::new();
        assert_eq!(encode_list(writes, &mut out).unwrap(), 7);
        assert_eq!(out, encoded(&writes));
        let list = SessionWrites::decode(&out, 7).unwrap();
        assert_eq!(list.collect::<Vec<_>>(), writes);
        for len in 0..out.len() {
            let error = SessionWrites::decode(&out[..len], 7).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{len}");
        }
    }

    #[test]
    fn writes_out_of_order_or_out_of_the_record_are_refused_on_both_sides() {
        let long = [0; REPLY_LEN_MAX + 1];
        for (bad, why) in [
            (vec![write(0, 2, b""), write(1, 1, b"")], "others have those below 2"),
            (vec![write(4, 1, b""), write(0, 1, b"")], "others have those below 5"),
            (vec![write(3, 0, b"")], "has 0 entries from 3 on"),
            (vec![write(u32::MAX, 2, b"")], "has 2 entries from 4294967295 on"),
            (vec![write(0, 1, &long)], "has a reply of 65, the limit is 64"),
        ] {
            let refused = encode_list(bad.clone(), &mut Vec::new()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
            assert!(refused.message().contains(why), "{refused}");
            let bytes = encoded(&bad);
            let refused = SessionWrites::decode(&bytes, 8).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
            assert!(refused.message().contains(why), "{refused}");
        }
    }

    #[test]
    fn a_list_has_no_more_writes_than_the_record_has_entries_and_the_bytes_have_room_for() {
        let three = encoded(&[write(0, 1, b""), write(1, 1, b""), write(2, 1, b"")]);
        let refused = |bytes: &[u8], entries| SessionWrites::decode(bytes, entries).err().unwrap();
        let error = refused(&three, 2);
        assert!(error.message().contains("3 writes in 75 bytes, of a record of 2"), "{error}");
        let many = [&u32::MAX.to_le_bytes(), &three[4..]].concat();
        let error = refused(&many, u32::MAX);
        assert!(error.message().contains("4294967295 writes in 75 bytes"), "{error}");
        assert_eq!(refused(&[0; 4], 2).kind(), ErrorKind::Corruption, "a list of none");
        assert_eq!(refused(&[&three[..], &[0]].concat(), 3).kind(), ErrorKind::Corruption);
        let error = refused(&encoded(&[write(1, 2, b"")]), 2);
        assert!(error.message().contains("2 entries from 1 on, the record has 2"), "{error}");
    }
}
