//! Until when a certificate counts: the one field of X.509 that rustls does not give.
//!
//! ```text
//!   Certificate  SEQUENCE
//!     tbsCertificate  SEQUENCE
//!       [0] version, INTEGER serial, SEQUENCE algorithm, SEQUENCE issuer
//!       validity  SEQUENCE  notBefore, notAfter: UTCTime or GeneralizedTime (RFC 5280 §4.1.2.5)
//! ```

use crate::server::certificates;
use gabion_base::{Error, Result};
use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use std::io;
use std::path::Path;
use time::{Date, Month, PrimitiveDateTime, Time};

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Whether a connection did not begin as the other end's certificate has expired.
#[must_use]
pub fn is_expired(error: &io::Error) -> bool {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = found else { return false };
    matches!(why, CertificateError::Expired | CertificateError::ExpiredContext { .. })
}

/// When the certificate in a file of PEM ends, the first one there, in seconds since 1970.
///
/// # Errors
/// I/O; invalid input where the file holds none that can be read.
pub fn certificate_until_s(path: &Path) -> Result<i64> {
    let all = certificates(path)?;
    all.first().and_then(until_s).ok_or_else(|| {
        Error::invalid(format!("{}: does not say until when it is valid", path.display()))
    })
}

/// The end of a certificate, in seconds since 1970; none where its bytes cannot be read.
pub(crate) fn until_s(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (mut certificate, _) = expect(certificate, SEQUENCE)?;
    let mut tbs = take(&mut certificate, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        take(&mut tbs, VERSION)?;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        take(&mut tbs, tag)?;
    }
    let mut validity = take(&mut tbs, SEQUENCE)?;
    element(&mut validity)?;
    let (tag, text) = element(&mut validity)?;
    unix_s(tag, text)
}

/// An element of this tag, and what follows it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let mut rest = bytes;
    let inner = take(&mut rest, tag)?;
    Some((inner, rest))
}

fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    element(bytes).filter(|(found, _)| *found == tag).map(|(_, inner)| inner)
}

/// The next element in DER: its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Up to three bytes of length: no certificate is longer.
        0x81..=0x83 => {
            let (len, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (inner, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    Some((tag, inner))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn unix_s(tag: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (tag, text.len()) {
        (UTC_TIME, 12) => {
            let year: i32 = text[..2].parse().ok()?;
            (year + if year < 50 { 2_000 } else { 1_900 }, &text[2..])
        }
        (GENERALIZED_TIME, 14) => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let part = |at: usize| rest[at..at + 2].parse::<u8>().ok();
    let date = Date::from_calendar_date(year, Month::try_from(part(0)?).ok()?, part(2)?).ok()?;
    let time = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::{Duration, OffsetDateTime};

    #[test]
    fn the_end_is_that_which_the_certificate_was_made_with() {
        // Before 2050 it is written with two digits of the year, from then on with four.
        for until in [1_900_000_000, 2_524_607_999, 2_524_608_000, 4_000_000_000] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(["a".to_owned()]).unwrap();
            params.not_after = OffsetDateTime::UNIX_EPOCH + Duration::seconds(until);
            let made = params.self_signed(&key).unwrap();
            assert_eq!(until_s(made.der()), Some(until));
            let len = made.der().len();
            let cut = CertificateDer::from(&made.der()[..len - 1]);
            assert_eq!(until_s(&cut), None, "it is not whole");
        }
    }

    #[test]
    fn nonsense_has_no_end() {
        for bytes in [&b""[..], &[0x30], &[0x30, 0x84, 0, 0, 0, 0], &[0x30, 0x80], &[0x30, 0]] {
            assert_eq!(until_s(&CertificateDer::from(bytes)), None, "{bytes:?}");
        }
        for (tag, text) in [
            (UTC_TIME, "2613010000Z"),
            (UTC_TIME, "261301000000Z"),
            (GENERALIZED_TIME, "20260101000000"),
            (GENERALIZED_TIME, "2026010100000éZ"),
            (GENERALIZED_TIME, "20260230000000Z"),
        ] {
            assert_eq!(unix_s(tag, text.as_bytes()), None, "{text}");
        }
    }
}
