//! The arguments of a request: up to four without an allocation (GET, SET, most requests of a
//! store), more in a vector.

use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;
use core::ops::Deref;

const INLINE: usize = 4;

/// A list of byte strings.
#[derive(Clone, Default)]
pub struct Args {
    /// Used while `spill` is empty.
    inline: [Bytes; INLINE],
    len: usize,
    spill: Vec<Bytes>,
}

impl Args {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty list with space for `len` arguments that are already in memory.
    pub(crate) fn with_room(len: usize) -> Self {
        let spill = if len > INLINE { Vec::with_capacity(len) } else { Vec::new() };
        Self { spill, ..Self::default() }
    }

    /// Appends an argument.
    #[inline]
    pub fn push(&mut self, arg: Bytes) {
        if self.spill.capacity() == 0 {
            if self.len < INLINE {
                self.inline[self.len] = arg;
                self.len += 1;
                return;
            }
            self.spill.extend(self.inline.iter_mut().map(core::mem::take));
        }
        self.spill.push(arg);
        self.len += 1;
    }
}

impl Deref for Args {
    type Target = [Bytes];

    #[inline]
    fn deref(&self) -> &[Bytes] {
        if self.spill.is_empty() { &self.inline[..self.len] } else { &self.spill }
    }
}

impl FromIterator<Bytes> for Args {
    fn from_iter<I: IntoIterator<Item = Bytes>>(args: I) -> Self {
        let mut list = Self::new();
        args.into_iter().for_each(|arg| list.push(arg));
        list
    }
}

impl PartialEq for Args {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Args {}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_order_when_it_outgrows_its_inline_room() {
        for count in 0..12_u8 {
            let expected: Vec<Bytes> = (0..count).map(|i| Bytes::copy_from_slice(&[i])).collect();
            let pushed: Args = expected.iter().cloned().collect();
            assert_eq!(&*pushed, &expected[..]);
            let mut roomy = Args::with_room(usize::from(count));
            expected.iter().for_each(|arg| roomy.push(arg.clone()));
            assert_eq!(roomy, pushed);
        }
    }
}
