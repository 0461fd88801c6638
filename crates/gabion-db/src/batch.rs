//! Writes that take effect together.

/// Puts and deletes that are all there after a crash, or none of them; later ones win over earlier ones.
/// One batch is one record of the log: at most 65,536 operations and about 16 MiB (`Options::segment_len`).
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    operations: Vec<Operation>,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    key_end: usize,
    value_end: usize,
    is_put: bool,
}

/// One of a batch.
pub(crate) enum Op<'a> {
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
}

impl WriteBatch {
    /// A batch without operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(key, value, true);
    }

    /// Deletes a key, whether it is there or not.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(key, &[], false);
    }

    fn push(&mut self, key: &[u8], value: &[u8], is_put: bool) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.operations.push(Operation { key_end, value_end: self.bytes.len(), is_put });
    }

    /// Operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Forgets all operations and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.operations.clear();
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn operations(&self) -> impl Iterator<Item = Op<'_>> {
        let mut start = 0;
        self.operations.iter().map(move |&Operation { key_end, value_end, is_put }| {
            let key = &self.bytes[start..key_end];
            start = value_end;
            match is_put {
                true => Op::Put(key, &self.bytes[key_end..value_end]),
                false => Op::Delete(key),
            }
        })
    }
}
