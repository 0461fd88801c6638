//! The numbers of INCRBYFLOAT. Redis reckons in C's `long double`, on x86 a floating point with 64 bits of mantissa,
//! and writes 17 decimals without the zeros at their end. With an `f64` other digits would come out: 1.2 + 0.1 would be
//! 1.30000000000000004, not 1.3. So the same arithmetic is done here:
//!
//! ```text
//!   text ──parse──► mantissa × 2^exponent ──add──► the same, rounded ──text──► text
//!          exact, then rounded to nearest, ties to even: as x86 and the C library do
//! ```

mod natural;

use core::cmp::Ordering;
use natural::Natural;

/// Longest text that Redis takes for a number: one byte less than its buffer.
const TEXT_LEN_MAX: usize = 5 * 1024 - 1;
/// The exponent of the numbers next to zero.
const EXPONENT_MIN: i64 = -16_445;
/// The exponent of the largest numbers.
const EXPONENT_MAX: i64 = 16_320;
/// Numbers of more decimal digits before the point are infinite, whatever the digits are.
const DIGITS_MAX: i64 = 4_940;
/// Numbers with more zeros behind the point are zero.
const ZEROS_MAX: i64 = 4_980;
/// Decimals that are written.
const DECIMALS: usize = 17;
/// Ten to the power of [`DECIMALS`].
const DECIMALS_SCALE: u128 = 100_000_000_000_000_000;

/// A number: `mantissa * 2^exponent`, with its sign. The mantissa has its highest bit set, unless the exponent is the
/// smallest or the number is 0. An exponent over [`EXPONENT_MAX`] means infinity, or no number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongDouble {
    is_negative: bool,
    mantissa: u64,
    exponent: i64,
}

impl LongDouble {
    pub(crate) const ZERO: Self = Self { is_negative: false, mantissa: 0, exponent: EXPONENT_MIN };
    const INFINITY: Self =
        Self { is_negative: false, mantissa: 1 << 63, exponent: EXPONENT_MAX + 1 };

    const fn is_finite(self) -> bool {
        self.exponent <= EXPONENT_MAX
    }

    /// The number that a text means to C's `strtold`, all of it: decimal, hexadecimal or `inf`. `None` for any other, and
    /// where a number is too large, or too small to be told from 0.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        let (is_negative, magnitude) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let is = |word: &[u8]| magnitude.eq_ignore_ascii_case(word);
        let number = match magnitude {
            _ if is(b"inf") || is(b"infinity") => Self::INFINITY,
            [b'0', b'x' | b'X', digits @ ..] => Self::parse_hexadecimal(digits)?,
            digits => Self::parse_decimal(digits)?,
        };
        Some(Self { is_negative, ..number })
    }

    fn parse_decimal(text: &[u8]) -> Option<Self> {
        let numeral = Numeral::parse(text, 10, b'e')?;
        let exponent = numeral.exponent.saturating_sub(numeral.decimals);
        // Digits before the point, or zeros behind it when negative.
        let digits = (numeral.digits.len() as i64).saturating_add(exponent);
        if numeral.digits.is_empty() {
            return Some(Self::ZERO);
        }
        if !(-ZEROS_MAX..=DIGITS_MAX).contains(&digits) {
            return None;
        }
        let mut number = Natural::from_digits(&numeral.digits, 10);
        if exponent >= 0 {
            number.multiply_by_power_of_ten(exponent as usize);
            return Self::round_natural(&number, 0);
        }
        let mut divisor = Natural::from_digits(&[1], 10);
        divisor.multiply_by_power_of_ten(-exponent as usize);
        // A few more bits than a mantissa has.
        let shift = number.bits() as i64 - divisor.bits() as i64 - 67;
        if shift > 0 {
            divisor.shift_left(shift as usize)
        } else {
            number.shift_left(-shift as usize)
        }
        let (quotient, is_exact) = number.divide(divisor);
        Self::round(quotient, shift, !is_exact)
    }

    fn parse_hexadecimal(text: &[u8]) -> Option<Self> {
        let numeral = Numeral::parse(text, 16, b'p')?;
        if numeral.digits.is_empty() {
            return Some(Self::ZERO);
        }
        let exponent = numeral.exponent.saturating_sub(4 * numeral.decimals);
        Self::round_natural(&Natural::from_digits(&numeral.digits, 16), exponent)
    }

    fn round_natural(number: &Natural, exponent: i64) -> Option<Self> {
        let (high, dropped, is_exact) = number.high_bits();
        Self::round(high, exponent.saturating_add(dropped as i64), !is_exact)
    }

    /// The number next to `bits * 2^exponent`, or to a little more when `is_more`; then there are over 65 bits. `None`
    /// where that is infinity, or 0.
    fn round(bits: u128, exponent: i64, is_more: bool) -> Option<Self> {
        let rounded = Self::round_any(bits, exponent, is_more);
        (rounded.is_finite() && rounded.mantissa != 0).then_some(rounded)
    }

    fn round_any(bits: u128, exponent: i64, is_more: bool) -> Self {
        assert!(bits != 0, "zero has no highest bit");
        let len = 128 - i64::from(bits.leading_zeros());
        // So many bits have no place; fewer than none: there is place for more.
        let excess = (len - 64).max(EXPONENT_MIN.saturating_sub(exponent));
        let mut exponent = exponent.saturating_add(excess);
        if exponent > EXPONENT_MAX {
            return Self::INFINITY;
        }
        let mut mantissa = match excess {
            // Less than half of the smallest number.
            129.. => 0,
            1.. => {
                let kept = bits.checked_shr(excess as u32).unwrap_or(0);
                let rest = bits << (128 - excess);
                let is_up = match rest.cmp(&(1 << 127)) {
                    Ordering::Less => false,
                    Ordering::Equal => is_more || kept % 2 == 1,
                    Ordering::Greater => true,
                };
                kept + u128::from(is_up)
            }
            _ => bits << -excess,
        };
        if mantissa > u128::from(u64::MAX) {
            mantissa >>= 1;
            exponent += 1;
        }
        if exponent > EXPONENT_MAX {
            return Self::INFINITY;
        }
        Self { is_negative: false, mantissa: mantissa as u64, exponent }
    }

    /// The sum, rounded; `None` when it is no finite number.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        if !self.is_finite() || !other.is_finite() {
            return None;
        }
        let (large, small) =
            if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        if small.mantissa == 0 {
            return Some(large);
        }
        if large.mantissa == 0 {
            return Some(small);
        }
        // One bit is left for the carry.
        let above = u128::from(large.mantissa) << 63;
        let whole = u128::from(small.mantissa) << 63;
        let shift = u32::try_from(large.exponent - small.exponent).unwrap_or(u32::MAX);
        let below = whole.checked_shr(shift).unwrap_or(0);
        let is_cut = below.checked_shl(shift) != Some(whole);
        let exponent = large.exponent - 63;
        let (is_negative, bits) = if large.is_negative == small.is_negative {
            (large.is_negative, above + below)
        } else if above >= below {
            // What was cut off is to be taken away too: a little more than one less.
            (large.is_negative, above - below - u128::from(is_cut))
        } else {
            (small.is_negative, below - above)
        };
        if bits == 0 {
            return Some(Self::ZERO);
        }
        let sum = Self { is_negative, ..Self::round_any(bits, exponent, is_cut) };
        sum.is_finite().then_some(sum)
    }

    /// The number as Redis writes it for people: 17 decimals, rounded, without the zeros at their end.
    pub(crate) fn to_text(self) -> Vec<u8> {
        assert!(self.is_finite(), "no sum is infinite");
        let mut text = String::new();
        if self.exponent >= 0 {
            let mut number = Natural::from_u64(self.mantissa);
            number.shift_left(self.exponent as usize);
            text = number.into_decimal();
        } else {
            let scaled = round_shifted(u128::from(self.mantissa) * DECIMALS_SCALE, -self.exponent);
            let (whole, part) = (scaled / DECIMALS_SCALE, scaled % DECIMALS_SCALE);
            text.push_str(&format!("{whole}.{part:0DECIMALS$}"));
            text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        }
        if self.is_negative && text != "0" {
            text.insert(0, '-');
        }
        text.into_bytes()
    }
}

/// `number / 2^shift`, rounded to nearest, ties to even.
fn round_shifted(number: u128, shift: i64) -> u128 {
    // It has fewer than 122 bits.
    if shift >= 128 {
        return 0;
    }
    let (kept, rest) = (number >> shift, number & ((1 << shift) - 1));
    let is_up = match rest.cmp(&(1 << (shift - 1))) {
        Ordering::Less => false,
        Ordering::Equal => kept % 2 == 1,
        Ordering::Greater => true,
    };
    kept + u128::from(is_up)
}

/// A numeral: digits, of which the last `decimals` stand behind the point, and an exponent.
struct Numeral {
    /// Without zeros before the first other digit.
    digits: Vec<u8>,
    decimals: i64,
    exponent: i64,
}

impl Numeral {
    /// `mark` begins the exponent, in either case.
    fn parse(text: &[u8], base: u32, mark: u8) -> Option<Self> {
        let mut digits = Vec::new();
        let (mut decimals, mut has_point, mut has_digit) = (0, false, false);
        let mut rest = text;
        while let [byte, more @ ..] = rest {
            match char::from(*byte).to_digit(base) {
                Some(digit) => {
                    has_digit = true;
                    decimals += i64::from(has_point);
                    if digit > 0 || !digits.is_empty() {
                        digits.push(digit as u8);
                    }
                }
                None if *byte == b'.' && !has_point => has_point = true,
                None => break,
            }
            rest = more;
        }
        let exponent = match rest {
            [] => 0,
            [byte, text @ ..] if byte.to_ascii_lowercase() == mark => parse_exponent(text)?,
            _ => return None,
        };
        has_digit.then_some(Self { digits, decimals, exponent })
    }
}

/// An exponent in decimal, which may have a sign. One that is too large for any number stays so.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: i64, digit: &u8| (number * 10 + i64::from(digit - b'0')).min(1 << 40);
    Some(sign * digits.iter().fold(0, add))
}

#[cfg(test)]
mod tests;
