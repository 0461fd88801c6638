//! Batches: the payload of a log record of kind *batch*.
//!
//! Operations follow each other to the end of the payload; operation `i` has the sequence number
//! `first + i`, where `first` and the count stand in the record's header.
//!
//! ```text
//!  ┌─────────┬─────────────────┬───────────────────┬────────────────────────┬────────────┐
//!  │ kind u8 │ key length (var)│ key, keyspace byte│ value length (var)     │ value      │
//!  │         │                 │ first             │ (not of deletes)       │ (likewise) │
//!  └─────────┴─────────────────┴───────────────────┴────────────────────────┴────────────┘
//!   Delete 0:       key ≥ 1 byte
//!   Put 1:          key ≥ 1 byte, value
//!   Clear 3:        the key is the bare keyspace byte: the whole keyspace is cleared
//!   Merge 4:        key ≥ 1 byte, an operand of the merge operator as the value (see `counter`)
//!   ExpiringPut 5:  key ≥ 1 byte, value that begins with `expiry_ms u64`, which the value length counts
//!   RangeDelete 8:  the first key that is gone; as the value the key, with its keyspace byte, that ends the range
//!                   and is not gone itself. At most 1,024 in a batch (see `range_delete`)
//!   PackedPut 10:   key ≥ 1 byte, value that is packed (see `packed`)
//!   ExpiringPackedPut 11: the same, and before it an expiry, as in an ExpiringPut
//!   2, 6, 7, 9:     reserved, or in files alone
//! ```
//!
//! A batch without operations, and so without a sequence number of its own, carries time: the record's `now_ms`. One whose
//! header counts some and that has none leaves out so many sequence numbers: one is a bulk load's (see [`crate::load`]),
//! several are of writes past the log.
//!
//! Numbers are shortest-form LEB128, so a batch has one encoding only.

use crate::counter::{OPERAND_LEN_MAX, Operand};
use crate::entry::{ENGINE_KEY_LEN_MAX, EntryKind, Keyspace};
use crate::expiry::{EXPIRY_LEN, STORED_LEN_MAX};
use crate::packed::{self, Packed};
use crate::range_delete::{MEMTABLE_RANGES_MAX, check_range, end_of};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader, varint_len};
use gabion_base::units::{KEY_LEN_MAX, RECORD_OPS_MAX, VALUE_LEN_MAX};
use gabion_base::{Error, Result};

/// Bytes of operations that a batch may hold: a record without its header and extensions.
pub const BATCH_LEN_MAX: usize = gabion_base::units::RECORD_LEN_MAX - 64 * 1024;
/// Bytes that an operation takes besides key and value, at most: its kind, the keyspace, both lengths and an
/// expiry.
pub const OPERATION_OVERHEAD_MAX: usize =
    2 + varint_len(ENGINE_KEY_LEN_MAX as u64) + varint_len(STORED_LEN_MAX as u64) + EXPIRY_LEN;

/// Appends operations to a payload that the caller owns.
///
/// A refused operation leaves no trace.
pub struct BatchBuilder {
    bytes: Vec<u8>,
    start: usize,
    count: usize,
    ranges: usize,
}

impl BatchBuilder {
    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn memory_used(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// An empty batch with a buffer of its own.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), start: 0, count: 0, ranges: 0 }
    }

    /// A batch that appends to `bytes`, for instance behind a record header. What `bytes` holds
    /// already does not count as part of the batch.
    #[must_use]
    pub fn append_to(bytes: Vec<u8>) -> Self {
        let start = bytes.len();
        Self { bytes, start, count: 0, ranges: 0 }
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// Limit exceeded, naming the key's or value's length, the count or the batch's length.
    pub fn put(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        let more = varint_len(value.len() as u64) + value.len();
        self.operation(EntryKind::Put, keyspace, key, more)?;
        self.bytes.put_prefixed(value);
        Ok(())
    }

    /// Sets `key` to `value` until group time is `expires_ms`, in milliseconds since 1970. Returns the value as
    /// it is stored.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`].
    pub fn put_expiring(
        &mut self,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<&[u8]> {
        check_value(value)?;
        let len = EXPIRY_LEN + value.len();
        self.operation(EntryKind::ExpiringPut, keyspace, key, varint_len(len as u64) + len)?;
        self.bytes.put_varint(len as u64);
        self.bytes.put_u64(expires_ms);
        self.bytes.put_bytes(value);
        Ok(&self.bytes[self.bytes.len() - len..])
    }

    /// Sets `key` to a value that is packed, until a group time if there is one. Returns the kind
    /// of the operation, and the value as it is stored.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`].
    pub fn put_packed(
        &mut self,
        keyspace: Keyspace,
        key: &[u8],
        packed: Packed<'_>,
        expires_ms: Option<u64>,
    ) -> Result<(EntryKind, &[u8])> {
        let (kind, at) = match expires_ms {
            Some(_) => (EntryKind::ExpiringPackedPut, EXPIRY_LEN),
            None => (EntryKind::PackedPut, 0),
        };
        let len = at + packed.len();
        self.operation(kind, keyspace, key, varint_len(len as u64) + len)?;
        self.bytes.put_varint(len as u64);
        if let Some(expires_ms) = expires_ms {
            self.bytes.put_u64(expires_ms);
        }
        self.bytes.put_u8(packed.codec() as u8);
        self.bytes.put_bytes(packed.rest());
        Ok((kind, &self.bytes[self.bytes.len() - len..]))
    }

    /// Adds to the counter `key`. Returns the operand as it is stored.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`].
    pub fn merge(&mut self, keyspace: Keyspace, key: &[u8], operand: Operand) -> Result<&[u8]> {
        let len = operand.encoded_len();
        self.operation(EntryKind::Merge, keyspace, key, varint_len(len as u64) + len)?;
        self.bytes.put_varint(len as u64);
        operand.encode_to(&mut self.bytes);
        Ok(&self.bytes[self.bytes.len() - len..])
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`].
    pub fn delete(&mut self, keyspace: Keyspace, key: &[u8]) -> Result<()> {
        self.operation(EntryKind::Delete, keyspace, key, 0)
    }

    /// Removes every key of a keyspace.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`].
    pub fn clear(&mut self, keyspace: Keyspace) -> Result<()> {
        self.operation(EntryKind::Clear, keyspace, &[], 0)
    }

    /// Removes every key of `from..to`, or from `from` to the end of the keyspace. Returns the end of the range as
    /// it is stored: an engine key.
    ///
    /// # Errors
    /// As for [`BatchBuilder::put`]; limit exceeded for more than [`MEMTABLE_RANGES_MAX`] in one batch; invalid
    /// input when `to` is not after `from`.
    pub fn delete_range(
        &mut self,
        keyspace: Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<&[u8]> {
        if let Some(to) = to {
            check_key(to)?;
            if to <= from {
                return Err(Error::invalid("a range delete ends at or before its first key"));
            }
        }
        if self.ranges == MEMTABLE_RANGES_MAX {
            return Err(Error::limit(format!(
                "a batch holds at most {MEMTABLE_RANGES_MAX} range deletes"
            )));
        }
        let len = 1 + to.map_or(0, <[u8]>::len);
        self.operation(EntryKind::RangeDelete, keyspace, from, varint_len(len as u64) + len)?;
        self.ranges += 1;
        self.bytes.put_varint(len as u64);
        match to {
            Some(to) => {
                self.bytes.put_u8(keyspace as u8);
                self.bytes.put_bytes(to);
            }
            None => self.bytes.put_bytes(&end_of(keyspace)),
        }
        Ok(&self.bytes[self.bytes.len() - len..])
    }

    fn operation(
        &mut self,
        kind: EntryKind,
        keyspace: Keyspace,
        key: &[u8],
        more: usize,
    ) -> Result<()> {
        check_key(key)?;
        if self.count == RECORD_OPS_MAX {
            return Err(Error::limit(format!("a batch holds at most {RECORD_OPS_MAX} operations")));
        }
        let key_len = 1 + key.len();
        let len = self.len() + 1 + varint_len(key_len as u64) + key_len + more;
        if len > BATCH_LEN_MAX {
            return Err(Error::limit(format!(
                "batch of {len} bytes is over the limit of {BATCH_LEN_MAX}"
            )));
        }
        self.bytes.put_u8(kind as u8);
        self.bytes.put_varint(key_len as u64);
        self.bytes.put_u8(keyspace as u8);
        self.bytes.put_bytes(key);
        self.count += 1;
        Ok(())
    }

    /// Bytes of the batch so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether no operation was added.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Operations so far.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Range deletes among them.
    #[must_use]
    pub const fn range_deletes(&self) -> usize {
        self.ranges
    }

    /// The bytes of the batch so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The buffer, with what it held before the batch.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.len() <= KEY_LEN_MAX {
        return Ok(());
    }
    Err(Error::limit(format!("key of {} bytes is over the limit of {KEY_LEN_MAX}", key.len())))
}

fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= VALUE_LEN_MAX {
        return Ok(());
    }
    Err(Error::limit(format!(
        "value of {} bytes is over the limit of {VALUE_LEN_MAX}",
        value.len()
    )))
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<'a> {
    /// `Put`, `ExpiringPut`, one of their packed kinds, `Merge`, `Delete`, `RangeDelete`, `Clear`.
    pub kind: EntryKind,
    /// Engine key, keyspace byte included; never empty.
    pub key: &'a [u8],
    /// As it is stored: begins with the expiry of what expires; the operand of a `Merge`; the
    /// engine key that
    /// ends a `RangeDelete`. Empty for the other deletes.
    pub value: &'a [u8],
}

impl Operation<'_> {
    /// The keyspace of the key.
    #[must_use]
    pub fn keyspace(&self) -> Keyspace {
        Keyspace::from_byte(self.key[0]).expect("checked when the operation was read")
    }
}

/// The operations of a batch in order. After an error nothing follows.
#[derive(Clone)]
pub struct BatchReader<'a> {
    reader: Reader<'a>,
    count: usize,
    ranges: usize,
}

impl<'a> BatchReader<'a> {
    /// Reads `payload`, the operations of one record.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::new(payload, "batch"), count: 0, ranges: 0 }
    }

    fn operation(&mut self) -> Result<Operation<'a>> {
        if self.count == RECORD_OPS_MAX {
            return Err(Error::corruption(format!("batch: more than {RECORD_OPS_MAX} operations")));
        }
        let at = self.reader.offset();
        let byte = self.reader.u8()?;
        let kind = EntryKind::from_byte(byte).ok_or_else(|| {
            Error::corruption(format!("batch: unknown operation {byte} at byte {at}"))
        })?;
        let key = self.reader.prefixed(ENGINE_KEY_LEN_MAX)?;
        let keyspace_known = key.first().is_some_and(|&b| Keyspace::from_byte(b).is_some());
        if !keyspace_known || (kind == EntryKind::Clear && key.len() != 1) {
            return Err(Error::corruption(format!("batch: operation at byte {at} has a bad key")));
        }
        let value = match kind {
            EntryKind::Put => self.reader.prefixed(VALUE_LEN_MAX)?,
            EntryKind::ExpiringPut => {
                let stored = self.reader.prefixed(STORED_LEN_MAX)?;
                if stored.len() < EXPIRY_LEN {
                    return Err(Error::corruption(format!(
                        "batch: expiring put at byte {at} has {} bytes, its expiry alone has \
                         {EXPIRY_LEN}",
                        stored.len()
                    )));
                }
                stored
            }
            EntryKind::PackedPut | EntryKind::ExpiringPackedPut => {
                let stored = self.reader.prefixed(STORED_LEN_MAX)?;
                let value_at = if kind.is_expiring() { EXPIRY_LEN } else { 0 };
                packed::raw_len(stored.get(value_at..).unwrap_or_default())
                    .map_err(|e| e.within(format!("batch: byte {at}")))?;
                stored
            }
            EntryKind::Merge => {
                let stored = self.reader.prefixed(OPERAND_LEN_MAX)?;
                Operand::decode(stored).map_err(|e| e.within(format!("batch: byte {at}")))?;
                stored
            }
            EntryKind::RangeDelete => {
                let end = self.reader.prefixed(ENGINE_KEY_LEN_MAX)?;
                self.ranges += 1;
                if self.ranges > MEMTABLE_RANGES_MAX {
                    return Err(Error::corruption(format!(
                        "batch: more than {MEMTABLE_RANGES_MAX} range deletes"
                    )));
                }
                let bad =
                    |e: Error| Error::corruption(format!("batch: byte {at}: {}", e.message()));
                check_range(key, end).map_err(bad)?;
                end
            }
            EntryKind::Delete | EntryKind::Clear => &[],
            other => {
                return Err(Error::unsupported(format!(
                    "batch: operation {other:?} at byte {at} is reserved"
                )));
            }
        };
        self.count += 1;
        Ok(Operation { kind, key, value })
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Result<Operation<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let operation = self.operation();
        if operation.is_err() {
            self.reader = Reader::new(&[], "batch");
        }
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_of_a_batch() {
        let mut batch = BatchBuilder::append_to(vec![0xaa]);
        batch.put(Keyspace::User, b"key", b"value").unwrap();
        batch.delete(Keyspace::System, b"").unwrap();
        batch.clear(Keyspace::User).unwrap();
        assert_eq!((batch.count(), batch.len()), (3, 18));
        assert_eq!(batch.as_bytes(), b"\x01\x04\x01key\x05value\x00\x01\x00\x03\x01\x01");
        let stored = batch.put_expiring(Keyspace::User, b"k", b"v", 0x0201).unwrap();
        assert_eq!(stored, b"\x01\x02\0\0\0\0\0\0v");
        assert_eq!(&batch.as_bytes()[18..], b"\x05\x02\x01k\x09\x01\x02\0\0\0\0\0\0v");
        let stored = batch.merge(Keyspace::User, b"k", Operand::add(-1, 7)).unwrap();
        assert_eq!(stored, Operand::add(-1, 7).encode());
        let operand =
            b"\x04\x02\x01k\x12\x01\x01\x07\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(&batch.as_bytes()[32..], operand);
        let end = batch.delete_range(Keyspace::User, b"a", Some(b"c")).unwrap();
        assert_eq!(end, b"\x01c");
        assert_eq!(batch.delete_range(Keyspace::User, b"", None).unwrap(), b"\x02");
        assert_eq!(&batch.as_bytes()[55..], b"\x08\x02\x01a\x02\x01c\x08\x01\x01\x01\x02");
        assert_eq!(batch.range_deletes(), 2);
        assert_eq!(batch.finish()[0], 0xaa);
    }

    #[test]
    fn limits_are_checked_and_a_refused_operation_leaves_no_trace() {
        let mut batch = BatchBuilder::new();
        let error = batch.put(Keyspace::User, &vec![0; KEY_LEN_MAX + 1], b"").unwrap_err();
        assert_eq!(error.message(), "key of 65537 bytes is over the limit of 65536");
        let error = batch.put(Keyspace::User, b"k", &vec![0; VALUE_LEN_MAX + 1]).unwrap_err();
        assert_eq!(error.message(), "value of 8388609 bytes is over the limit of 8388608");
        let long = vec![0; VALUE_LEN_MAX + 1];
        let error = batch.put_expiring(Keyspace::User, b"k", &long, 1).unwrap_err();
        assert_eq!(error.message(), "value of 8388609 bytes is over the limit of 8388608");
        assert_eq!((batch.len(), batch.count()), (0, 0));
        batch.put(Keyspace::User, &vec![0; KEY_LEN_MAX], &vec![0; VALUE_LEN_MAX]).unwrap();
        let before = batch.len();
        let error = batch.put(Keyspace::User, b"k", &vec![0; VALUE_LEN_MAX]).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::LimitExceeded);
        assert_eq!((batch.len(), batch.count()), (before, 1));
        let mut batch = BatchBuilder::new();
        for _ in 0..RECORD_OPS_MAX {
            batch.delete(Keyspace::User, b"").unwrap();
        }
        assert!(batch.delete(Keyspace::User, b"").is_err());
        assert_eq!(BatchReader::new(batch.as_bytes()).filter(Result::is_ok).count(), 65_536);
        let mut batch = BatchBuilder::new();
        for to in [&b"a"[..], b"b"] {
            let error = batch.delete_range(Keyspace::User, b"b", Some(to)).unwrap_err();
            assert_eq!(error.message(), "a range delete ends at or before its first key");
        }
        batch.delete_range(Keyspace::User, b"", Some(&vec![0; KEY_LEN_MAX + 1])).unwrap_err();
        assert!(batch.is_empty());
        for _ in 0..MEMTABLE_RANGES_MAX {
            batch.delete_range(Keyspace::User, b"", None).unwrap();
        }
        let error = batch.delete_range(Keyspace::User, b"", None).unwrap_err();
        assert_eq!(error.message(), "a batch holds at most 1024 range deletes");
        let mut bytes = batch.finish();
        bytes.extend_from_within(..5);
        let last = BatchReader::new(&bytes).last().unwrap().unwrap_err();
        assert_eq!(last.message(), "batch: more than 1024 range deletes");
    }

    #[test]
    fn reserved_and_malformed_operations_are_refused() {
        let kind = |bytes: &[u8]| BatchReader::new(bytes).next().unwrap().unwrap_err().kind();
        for pointer in [b"\x06\x02\x01k", b"\x09\x02\x01k"] {
            assert_eq!(kind(pointer), gabion_base::ErrorKind::Unsupported);
        }
        let other = BatchReader::new(b"\x04\x02\x01k\x02\x07\x01").next().unwrap().unwrap_err();
        assert_eq!(other.kind(), gabion_base::ErrorKind::Unsupported);
        assert!(format!("{other}").contains("merge operator 7 in version 1"), "{other}");
        let short = BatchReader::new(b"\x05\x02\x01k\x07\0\0\0\0\0\0\0").next().unwrap();
        assert_eq!(
            short.unwrap_err().message(),
            "batch: expiring put at byte 0 has 7 bytes, its expiry alone has 8"
        );
        for bytes in [
            &b"\x0a\x01\x01"[..],
            b"\x00\x00",
            b"\x00\x01\x02",
            b"\x03\x02\x01k",
            b"\x01",
            // No end, one that is not after the start, one in another keyspace, one past it.
            b"\x08\x02\x01k",
            b"\x08\x02\x01k\x02\x01k",
            b"\x08\x01\x00\x02\x01a",
            b"\x08\x02\x01k\x02\x02a",
        ] {
            assert_eq!(kind(bytes), gabion_base::ErrorKind::Corruption, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_built_is_read(ops: Vec<(u8, Vec<u8>, Vec<u8>)>) {
            let mut batch = BatchBuilder::new();
            for (kind, key, value) in &ops {
                match kind % 6 {
                    0 => batch.put(Keyspace::User, key, value).unwrap(),
                    1 => batch.delete(Keyspace::System, key).unwrap(),
                    2 => {
                        let expires_ms = u64::from(*kind) << 40;
                        batch.put_expiring(Keyspace::User, key, value, expires_ms).unwrap();
                    }
                    3 => {
                        let operand = Operand::add(i64::from(*kind) - 100, u64::from(*kind));
                        batch.merge(Keyspace::User, key, operand).unwrap();
                    }
                    4 => {
                        let to = [&key[..], &[*kind], value].concat();
                        batch.delete_range(Keyspace::User, key, Some(&to)).unwrap();
                    }
                    _ => batch.clear(Keyspace::User).unwrap(),
                }
            }
            let read: Vec<_> = BatchReader::new(batch.as_bytes()).map(Result::unwrap).collect();
            prop_assert_eq!(read.len(), ops.len());
            for (op, (kind, key, value)) in read.iter().zip(&ops) {
                match kind % 6 {
                    4 => {
                        let end = [&[1][..], key, &[*kind], value].concat();
                        prop_assert_eq!((op.kind, op.value), (EntryKind::RangeDelete, &end[..]));
                        prop_assert_eq!(&op.key[1..], &key[..]);
                    }
                    3 => {
                        let operand = Operand::add(i64::from(*kind) - 100, u64::from(*kind));
                        prop_assert_eq!((op.kind, op.value), (EntryKind::Merge, &operand.encode()[..]));
                        prop_assert_eq!(&op.key[1..], &key[..]);
                    }
                    2 => {
                        let expires_ms = (u64::from(*kind) << 40).to_le_bytes();
                        prop_assert_eq!(op.kind, EntryKind::ExpiringPut);
                        prop_assert_eq!(op.value, [&expires_ms[..], value].concat());
                        prop_assert_eq!(&op.key[1..], &key[..]);
                    }
                    0 => {
                        prop_assert_eq!((op.kind, op.keyspace()), (EntryKind::Put, Keyspace::User));
                        prop_assert_eq!((&op.key[1..], op.value), (&key[..], &value[..]));
                    }
                    1 => prop_assert_eq!((op.kind, &op.key[1..]), (EntryKind::Delete, &key[..])),
                    _ => prop_assert_eq!((op.kind, op.key), (EntryKind::Clear, &[1][..])),
                }
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            for operation in BatchReader::new(&bytes).flatten() {
                let _ = operation.keyspace();
            }
        }
    }
}
