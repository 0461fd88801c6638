//! Structures made of typed fields, each of which occurs at most once.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Reader, put_field};
use gabion_base::{Error, Result};

/// Collects fields.
#[derive(Default)]
pub(crate) struct Tlv(Vec<u8>);

impl Tlv {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Appends a field that a reader must know.
    pub(crate) fn critical(&mut self, tag: u16, payload: &[u8]) {
        put_field(&mut self.0, tag, FIELD_CRITICAL, payload);
    }

    /// Appends a field that a reader may skip.
    pub(crate) fn optional(&mut self, tag: u16, payload: &[u8]) {
        put_field(&mut self.0, tag, 0, payload);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The fields of a structure by tag.
pub(crate) struct TlvReader<'a> {
    fields: BTreeMap<u16, &'a [u8]>,
    what: &'static str,
}

impl<'a> TlvReader<'a> {
    /// Reads all fields; unknown ones are skipped unless they are critical.
    pub(crate) fn read(bytes: &'a [u8], what: &'static str, known: &[u16]) -> Result<Self> {
        let mut fields = BTreeMap::new();
        let mut reader = Fields::new(bytes, what);
        while let Some(field) = reader.next_field()? {
            if !known.contains(&field.tag) {
                field.skip_unknown(what)?;
            } else if fields.insert(field.tag, field.payload).is_some() {
                return Err(Error::corruption(format!("{what}: field {} twice", field.tag)));
            }
        }
        Ok(Self { fields, what })
    }

    /// A field's payload.
    pub(crate) fn bytes(&self, tag: u16) -> Result<&'a [u8]> {
        self.fields
            .get(&tag)
            .copied()
            .ok_or_else(|| Error::corruption(format!("{}: field {tag} is missing", self.what)))
    }

    /// A reader over the payload of a field that may be missing.
    pub(crate) fn field_if_there(&self, tag: u16) -> Option<Reader<'a>> {
        self.fields.get(&tag).map(|bytes| Reader::new(bytes, self.what))
    }

    /// A reader over a field's payload.
    pub(crate) fn field(&self, tag: u16) -> Result<Reader<'a>> {
        self.bytes(tag).map(|bytes| Reader::new(bytes, self.what))
    }
}
