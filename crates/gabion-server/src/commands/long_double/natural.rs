//! Natural numbers of any length, as far as reading and writing decimals needs them.

use core::cmp::Ordering;

/// Decimal digits of one chunk: the most whose power of ten fits into a word.
const CHUNK_DIGITS: usize = 9;
const CHUNK: u32 = 1_000_000_000;

/// A natural number: words of 32 bits, the lowest first, the last of them not 0.
#[derive(Clone, Debug)]
pub(super) struct Natural(Vec<u32>);

impl Natural {
    pub(super) fn from_u64(number: u64) -> Self {
        let mut natural = Self(vec![number as u32, (number >> 32) as u32]);
        natural.trim();
        natural
    }

    /// From digits in a base, the highest first.
    pub(super) fn from_digits(digits: &[u8], base: u32) -> Self {
        let mut natural = Self(Vec::new());
        // As many digits at once as fit into a word of either base.
        for chunk in digits.chunks(7) {
            let factor = base.pow(chunk.len() as u32);
            let part = chunk.iter().fold(0, |part, digit| part * base + u32::from(*digit));
            natural.multiply_and_add(factor, part);
        }
        natural
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn multiply_and_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    pub(super) fn multiply_by_power_of_ten(&mut self, exponent: usize) {
        for _ in 0..exponent / CHUNK_DIGITS {
            self.multiply_and_add(CHUNK, 0);
        }
        self.multiply_and_add(10_u32.pow((exponent % CHUNK_DIGITS) as u32), 0);
    }

    /// How many bits it has.
    pub(super) fn bits(&self) -> usize {
        self.0.last().map_or(0, |word| 32 * self.0.len() - word.leading_zeros() as usize)
    }

    pub(super) fn shift_left(&mut self, bits: usize) {
        if self.0.is_empty() {
            return;
        }
        self.multiply_and_add(1 << (bits % 32), 0);
        self.0.splice(0..0, core::iter::repeat_n(0, bits / 32));
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for word in self.0.iter_mut().rev() {
            let low = *word & 1;
            *word = *word >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    /// Takes away `other`, which is not more.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0;
        for (place, word) in self.0.iter_mut().enumerate() {
            let less = u64::from(other.0.get(place).copied().unwrap_or(0)) + borrow;
            borrow = u64::from(u64::from(*word) < less);
            *word = (*word).wrapping_sub(less as u32);
        }
        assert_eq!(borrow, 0, "no more was taken away than there was");
        self.trim();
    }

    fn is_less(&self, other: &Self) -> bool {
        let by_words = self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then(by_words) == Ordering::Less
    }

    /// The quotient, which must fit, and whether nothing remains.
    pub(super) fn divide(mut self, mut divisor: Self) -> (u128, bool) {
        let steps = self.bits().saturating_sub(divisor.bits());
        assert!(steps < 128, "the quotient would not fit");
        divisor.shift_left(steps);
        let mut quotient = 0;
        for _ in 0..=steps {
            quotient <<= 1;
            if !self.is_less(&divisor) {
                self.subtract(&divisor);
                quotient |= 1;
            }
            divisor.halve();
        }
        (quotient, self.0.is_empty())
    }

    /// Its 97 to 128 highest bits, or all; how many are below them; and whether these are zeros.
    pub(super) fn high_bits(&self) -> (u128, usize, bool) {
        let (low, high) = self.0.split_at(self.0.len().saturating_sub(4));
        let high = high.iter().rev().fold(0, |high, word| high << 32 | u128::from(*word));
        (high, 32 * low.len(), low.iter().all(|word| *word == 0))
    }

    pub(super) fn into_decimal(mut self) -> String {
        let mut chunks = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0;
            for word in self.0.iter_mut().rev() {
                let part = rest << 32 | u64::from(*word);
                *word = (part / u64::from(CHUNK)) as u32;
                rest = part % u64::from(CHUNK);
            }
            self.trim();
            chunks.push(rest);
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        chunks.iter().rev().for_each(|chunk| text.push_str(&format!("{chunk:0CHUNK_DIGITS$}")));
        text
    }
}
