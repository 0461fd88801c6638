//! Sums as Redis 7.0.15 gave them on x86-64: `SET k old`, `INCRBYFLOAT k by`.

use super::LongDouble;
use proptest::prelude::*;

fn sum(old: &str, by: &str) -> Option<String> {
    let [old, by] = [old, by].map(|text| LongDouble::parse(text.as_bytes()));
    Some(String::from_utf8(old?.add(by?)?.to_text()).unwrap())
}

const SUMS: &[(&str, &str, &str)] = &[
    ("0", "1", "1"),
    ("1", "0.25", "1.25"),
    ("17179869184", "1.5", "17179869185.5"),
    ("17179869184", "17179869184", "34359738368"),
    ("1.2", "0.1", "1.3"),
    ("0.1", "0.2", "0.3"),
    ("3", "1.1", "4.1"),
    ("1.5", "-1.5", "0"),
    ("-0", "-0", "0"),
    ("5e3", "2.0e2", "5200"),
    ("10.5", "0.1", "10.6"),
    ("-1", "0.000000000000000001", "-1"),
    ("0", "0.000000000000000005", "0"),
    ("0", "0.0000000000000000051", "0.00000000000000001"),
    ("0", "0.000000000000000015", "0.00000000000000002"),
    ("9223372036854775807", "1", "9223372036854775808"),
    ("18446744073709551615", "1", "18446744073709551616"),
    ("18446744073709551616", "1", "18446744073709551616"),
    ("18446744073709551617", "0.5", "18446744073709551616"),
    ("36893488147419103232", "3", "36893488147419103236"),
    ("3.6e-4951", "0", "0"),
    ("0x1.fffffffffffffffep3", "0", "16"),
    ("0xffffffffffffffffp-64", "0x1p-64", "1"),
    ("1e30", "-1e30", "0"),
    ("1e30", "1", "1000000000000000000024696061952"),
    ("123456789.123456789", "0.000000001", "123456789.12345678999554366"),
    ("-17.25", "4e-3", "-17.246"),
    ("+1", ".5", "1.5"),
    ("5.", "0e99999", "5"),
    ("0.000000001", "1e-17", "0.00000000100000001"),
    ("1e25", "1e5", "10000000000000000000000000"),
    ("99999999999999999999", "1", "100000000000000000000"),
    ("0.1", "-0.1", "0"),
    ("3.141592653589793238462643383279", "0", "3.14159265358979324"),
    ("-2.5", "1e-19", "-2.5"),
    ("1", "5.4210108624275222e-20", "1"),
    ("1", "5.4210108624275221e-20", "1"),
    ("1", "1.6263032587282567e-19", "1"),
    ("9007199254740993", "0.5", "9007199254740993.5"),
    ("0x10", "1", "17"),
    (
        "1000000000000000000000000000000000000000000000000000000000000",
        "7",
        "999999999999999999999373423426722168652130621984886772203520",
    ),
    ("17179869184", "1.2", "17179869185.19999999925494194"),
    ("-9223372036854775808", "123456789123456789.25", "-9099915247731319019"),
    ("834.352626492", "1.2988144535360e-167", "834.35262649200000001"),
    ("79.625", "865088946260474677941", "865088946260474678016"),
];

#[test]
fn sums_have_the_digits_of_redis() {
    for (old, by, expected) in SUMS {
        assert_eq!(sum(old, by).as_deref(), Some(*expected), "{old} + {by}");
    }
}

#[test]
fn long_numbers_have_all_their_digits() {
    let ones = format!("0.{}", "1".repeat(5100));
    for (old, by, begin, len) in [
        ("1e4932", "1", "1000000000000000000006018949387963891323", 4933),
        ("1.18973149535723176502e4932", "1e4912", "1189731495357231765021263853030970205169", 4933),
        (&ones, "1e-17", "0.11111111111111112", 19),
    ] {
        let text = sum(old, by).unwrap();
        assert_eq!((&text[..begin.len()], text.len()), (begin, len), "{old} + {by}");
    }
}

#[test]
fn a_sum_that_is_no_number_is_none() {
    for (old, by) in [
        ("inf", "1"),
        ("1", "-Infinity"),
        ("+inf", "-inf"),
        ("1.18973149535723176502e4932", "1.18973149535723176502e4932"),
    ] {
        assert!(sum(old, by).is_none(), "{old} + {by}");
        assert!(LongDouble::parse(old.as_bytes()).is_some(), "{old} is a number");
    }
}

#[test]
fn texts_that_redis_refuses_are_refused() {
    let too_long = "1".repeat(5120);
    for text in [
        "",
        " 1",
        "1 ",
        "abc",
        "1.2.3",
        ".",
        "-",
        "+",
        "--1",
        "+-1",
        "e5",
        "1e",
        "1e+",
        "1_0",
        "1,5",
        "0x",
        "0x1p",
        "0x.p1",
        "nan",
        "NaN",
        "-nan",
        "nan(1)",
        "infi",
        "inf ",
        "1e4933",
        "-1e4933",
        "1e-5000",
        "1e99999999999999999999",
        "1e-99999999999999999999",
        "0x1p16384",
        "0x1p-16447",
        "1.8e-4951",
        "1.18973149535723176508e4932",
        "1\0",
        &too_long,
    ] {
        assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text:?}");
    }
    let longest = format!("{}1", "0".repeat(5118));
    for text in [
        "0",
        "-0",
        ".5",
        "5.",
        "1E5",
        "0X1P-3",
        "0x.8",
        "1.9e-4951",
        "0e-99999999999999999999",
        &longest,
    ] {
        assert!(LongDouble::parse(text.as_bytes()).is_some(), "{text:?}");
    }
}

proptest! {
    /// 63 bits and a scale that both numbers share: no digit is lost.
    #[test]
    fn exact_sums_are_exact(a in -(1_i64 << 62)..1 << 62, b in -(1_i64 << 62)..1 << 62, scale in 0..16_u32) {
        let text = |number: i64| {
            let (sign, bits) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
            format!("{sign}0x{bits:x}p-{scale}")
        };
        let sum = sum(&text(a), &text(b)).unwrap();
        let exact = (i128::from(a) + i128::from(b)) * 10_i128.pow(scale) / (1 << scale);
        let digits = sum.trim_start_matches('-').split_once('.').map_or((&*sum, ""), |parts| parts);
        let whole: i128 = digits.0.trim_start_matches('-').parse().unwrap();
        let part: i128 = format!("{:0<1$}", digits.1, scale as usize).parse().unwrap_or(0);
        prop_assert_eq!(whole * 10_i128.pow(scale) + part, exact.abs());
    }

    /// What was written is read back as the same number, as long as it has no more than 17 decimals.
    #[test]
    fn what_is_written_is_read_back(mantissa: i64, decimals in 0..=17_usize) {
        let old = format!("{mantissa}e-{decimals}");
        let text = sum(&old, "0").unwrap();
        prop_assert_eq!(sum(&text, "0").unwrap(), text);
    }
}
