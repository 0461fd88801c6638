//! Decimal numbers as Redis reads and writes them.

use alloc::vec::Vec;

/// `text` as an integer of Redis: an optional `-`, no `+`, no blanks, no leading zeros, within 64
/// bits. `None` otherwise (`string2ll` in Redis).
#[inline]
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] if digits != b"0" => {
            let magnitude = parse_u64(digits)?;
            0_i64.checked_sub_unsigned(magnitude)
        }
        digits => i64::try_from(parse_u64(digits)?).ok(),
    }
}

/// The same for an unsigned number.
#[inline]
#[must_use]
pub fn parse_u64(digits: &[u8]) -> Option<u64> {
    match digits {
        [] => return None,
        [b'0'] => return Some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    let mut value = 0_u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Appends `value` in decimal.
#[inline]
pub fn put_decimal(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn numbers_that_redis_refuses_are_refused() {
        for text in ["", "-", "+1", " 1", "1 ", "01", "-0", "00", "1.0", "0x1", "-01", "--1"] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_i64(b"9223372036854775808"), None);
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
        assert_eq!(parse_i64(b"99999999999999999999999"), None);
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value: i64) {
            let mut out = Vec::new();
            put_decimal(&mut out, value);
            prop_assert_eq!(&out, &value.to_string().into_bytes());
            prop_assert_eq!(parse_i64(&out), Some(value));
        }
    }

    #[test]
    fn the_ends_of_the_range_are_read_and_written() {
        for value in [i64::MIN, -1, 0, 1, i64::MAX] {
            let mut out = Vec::new();
            put_decimal(&mut out, value);
            assert_eq!(parse_i64(&out), Some(value));
        }
    }
}
