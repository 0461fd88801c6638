//! Changes of valid inputs that follow from a seed.

use crate::Random;
use gabion_base::codec::FIELD_HEADER_LEN;
use std::ops::Range;

/// Changes inputs.
pub(super) struct Mutator(Random);

impl Mutator {
    pub(super) fn new(seed: u64) -> Self {
        Self(Random::new(seed ^ 0x0068_6f73_7469_6c65))
    }

    fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { self.0.below(limit as u64) as usize }
    }

    /// One of the samples with one to four changes.
    pub(super) fn change(
        &mut self,
        samples: &[Vec<u8>],
        fields_at: Option<usize>,
        keeps_len: bool,
    ) -> Vec<u8> {
        let which = self.below(samples.len());
        let mut bytes = samples[which].clone();
        let changes = 1 + self.below(4);
        for _ in 0..changes {
            match fields_at.filter(|_| self.below(2) == 0) {
                Some(at) => self.change_field(&mut bytes, at),
                None if keeps_len => self.change_in_place(&mut bytes),
                None => match self.below(3) {
                    0 => self.change_parts(&mut bytes, samples),
                    _ => self.change_in_place(&mut bytes),
                },
            }
        }
        bytes
    }

    /// Bits and numbers.
    fn change_in_place(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        // Headers are short and payloads long: one place in two is among the first.
        let reach = if self.below(2) == 0 { bytes.len().min(128) } else { bytes.len() };
        let at = self.below(reach);
        match self.below(6) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.0.number() as u8,
            2 => {
                let len = 1 + self.below(16);
                let from = self.below(bytes.len());
                for i in 0..len.min(bytes.len() - at.max(from)) {
                    bytes[at + i] = bytes[from + i];
                }
            }
            _ => {
                let width = 1 << self.below(4);
                let at = if self.below(2) == 0 { at / width * width } else { at };
                let number = self.extreme(bytes.len(), at).to_le_bytes();
                for (to, from) in bytes[at..].iter_mut().zip(&number[..width]) {
                    *to = *from;
                }
            }
        }
    }

    /// A possible wrong value of a length.
    fn extreme(&mut self, len: usize, at: usize) -> u64 {
        let (len, left) = (len as u64, (len - at) as u64);
        let numbers = [
            0,
            1,
            2,
            7,
            left,
            left.wrapping_sub(1),
            left.wrapping_sub(4),
            left.wrapping_sub(8),
            left + 1,
            len,
            len + 1,
            0x7f,
            0x80,
            0xff,
            0x100,
            0x7fff,
            0xffff,
            1 << 20,
            (1 << 24) + 1,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fff8,
            0xffff_ffff,
            1 << 32,
            1 << 53,
            1 << 56,
            u64::MAX >> 1,
            1 << 63,
            u64::MAX - 7,
            u64::MAX - 1,
            u64::MAX,
        ];
        numbers[self.below(numbers.len())]
    }

    fn any_range(&mut self, len: usize) -> Range<usize> {
        let start = self.below(len + 1);
        start..start + self.below((len - start).min(64) + 1)
    }

    /// Parts that are cut, left out, repeated, exchanged, put in or come from another sample.
    fn change_parts(&mut self, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
        let range = self.any_range(bytes.len());
        match self.below(7) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => drop(bytes.drain(range)),
            2 => {
                let part = bytes[range.clone()].to_vec();
                let times = 1 + self.below(3);
                for _ in 0..times {
                    bytes.splice(range.end..range.end, part.iter().copied());
                }
            }
            3 => {
                let part: Vec<u8> = bytes.drain(range).collect();
                let at = self.below(bytes.len() + 1);
                bytes.splice(at..at, part);
            }
            4 => {
                // A varint in place of a shorter number.
                let number = self.extreme(bytes.len(), range.start);
                let mut varint = Vec::new();
                gabion_base::codec::Put::put_varint(&mut varint, number);
                let end = (range.start + 1).min(bytes.len());
                bytes.splice(range.start..end, varint);
            }
            5 => {
                let noise: Vec<u8> = (0..self.below(16)).map(|_| self.0.number() as u8).collect();
                bytes.splice(range.start..range.start, noise);
            }
            _ => {
                let other = &samples[self.below(samples.len())];
                let from = if self.below(2) == 0 { range.start } else { self.below(other.len()) };
                bytes.truncate(range.start);
                bytes.extend_from_slice(other.get(from..).unwrap_or_default());
            }
        }
    }

    /// A typed field, with its length right.
    fn change_field(&mut self, bytes: &mut Vec<u8>, fields_at: usize) {
        let fields = fields_of(bytes, fields_at);
        if fields.is_empty() {
            return;
        }
        let field = fields[self.below(fields.len())].clone();
        match self.below(6) {
            0 => drop(bytes.drain(field)),
            1 => {
                let again = bytes[field.clone()].to_vec();
                let to = fields[self.below(fields.len())].end;
                bytes.splice(to..to, again);
            }
            2 => bytes[field.start] = self.below(16) as u8,
            3 => bytes[field.start + 2] ^= 1,
            _ => {
                let mut payload = bytes[field.start + FIELD_HEADER_LEN..field.end].to_vec();
                match self.below(3) {
                    0 => self.change_parts(&mut payload, std::slice::from_ref(bytes)),
                    _ => self.change_in_place(&mut payload),
                }
                let len = payload.len() as u32;
                bytes.splice(field.start + FIELD_HEADER_LEN..field.end, payload);
                bytes[field.start + 4..field.start + 8].copy_from_slice(&len.to_le_bytes());
            }
        }
    }
}

/// The places of an input's typed fields.
fn fields_of(bytes: &[u8], fields_at: usize) -> Vec<Range<usize>> {
    let (mut fields, mut at) = (Vec::new(), fields_at);
    while let Some(len) = bytes.get(at + 4..at + 8) {
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let end = at + FIELD_HEADER_LEN + len;
        if end > bytes.len() {
            break;
        }
        fields.push(at..end);
        at = end;
    }
    fields
}
