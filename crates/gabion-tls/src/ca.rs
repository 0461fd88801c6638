//! The private authority: a directory with its certificate, its key, and what it issued.
//!
//! ```text
//!   DIR/ca.pem    certificate of the authority: whom members and clients trust
//!   DIR/ca.key    its key, 0600: whoever reads it can be anybody
//!   DIR/issued    a JSON object a line for each certificate, the newest of a name counts
//!   DIR/NAME.pem  certificate of NAME: whoever shows it needs the key too
//!   DIR/NAME.key  its key, 0600
//! ```
//!
//! A key is made once and never overwritten. A renewal has the key, the name, the role and the
//! addresses of the certificate before it, so nobody who trusts the authority has to be told.

use crate::files;
use crate::identity::{Identity, Role};
use gabion_base::{Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use time::OffsetDateTime;

/// Days that the authority's certificate is valid, unless said otherwise.
pub const AUTHORITY_DAYS: u32 = 3650;
/// Days that another certificate is valid, unless said otherwise.
pub const DAYS: u32 = 365;
/// Most days.
pub const DAYS_MAX: u32 = 36_500;
/// Most addresses in a certificate.
pub const ADDRESSES_MAX: usize = 64;
/// The name of the authority's own files.
const OWN: &str = "ca";
const DAY_S: i64 = 86_400;
/// A certificate is valid from a little before it was made, as clocks differ.
const CLOCKS_DIFFER_S: i64 = 300;
/// Addresses of a node or controller, if no others are said.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The authority in a directory.
pub struct Authority {
    directory: PathBuf,
    name: String,
    until_s: i64,
    key: KeyPair,
}

/// One line of `issued`.
struct Issued {
    identity: Identity,
    addresses: Vec<String>,
}

/// A certificate that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
    /// Until when the certificate is valid, in seconds since 1970.
    pub until_s: i64,
}

impl Made {
    /// Days until the certificate is valid no more, rounded.
    ///
    /// # Errors
    /// Invalid input: the clock shows a time before 1970.
    pub fn days_left(&self) -> Result<i64> {
        Ok((self.until_s - now_s()? + DAY_S / 2) / DAY_S)
    }
}

impl Authority {
    /// Makes an authority in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// Invalid input: there is one already, or `days` is out of bounds. I/O.
    pub fn init(directory: &Path, days: u32) -> Result<Made> {
        let until_s = until(days)?;
        std::fs::create_dir_all(directory).map_err(files::failed("cannot make", directory))?;
        let tag = u32::from_le_bytes(crate::random()?);
        let name = format!("Gabion authority {tag:08x}");
        let key = KeyPair::generate().map_err(failed("a key"))?;
        let made =
            Made { certificate: directory.join("ca.pem"), key: directory.join("ca.key"), until_s };
        files::create(&made.key, key.serialize_pem().as_bytes())?;
        let certificate = own_params(&name, until_s)?.self_signed(&key).map_err(failed(OWN))?;
        files::create(&made.certificate, certificate.pem().as_bytes())?;
        let line = json!({ "authority": name, "until": until_s });
        files::append(&directory.join("issued"), &format!("{line}\n"))?;
        files::sync_directory(&made.key)?;
        Ok(made)
    }

    /// Opens the authority of a directory.
    ///
    /// # Errors
    /// I/O; corruption of one of its files, which is named.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("ca.key");
        let key = read_key(&path)?;
        let mut authority = None;
        for_each_line(directory, |line| {
            if let Some(name) = line["authority"].as_str() {
                let until_s = line["until"].as_i64().ok_or("no time 'until'")?;
                authority = Some((name.to_owned(), until_s));
            }
            Ok(())
        })?;
        let path = directory.join("issued");
        let (name, until_s) = authority
            .ok_or_else(|| Error::corruption(format!("{}: names no authority", path.display())))?;
        Ok(Self { directory: directory.to_owned(), name, until_s, key })
    }

    /// Makes a key and a certificate for a name that has none.
    ///
    /// # Errors
    /// Invalid input: the name is taken, cannot be one, or the certificate would outlive the
    /// authority. I/O.
    pub fn issue(&self, identity: &Identity, addresses: &[String], days: u32) -> Result<Made> {
        self.issue_until(identity, addresses, until(days)?)
    }

    /// The same, for a certificate that is valid until a time, in seconds since 1970: for hours,
    /// or no more, as tests want it.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_until(
        &self,
        identity: &Identity,
        addresses: &[String],
        until_s: i64,
    ) -> Result<Made> {
        if identity.name() == OWN {
            return Err(Error::invalid(format!("name '{OWN}' is that of the authority's files")));
        }
        let addresses = match addresses {
            [] if identity.role().listens() => LOOPBACK.map(str::to_owned).to_vec(),
            given => given.to_vec(),
        };
        let made = self.places(identity.name(), until_s)?;
        // Before the key is made, so that a refused name leaves nothing behind.
        let issued = Issued { identity: identity.clone(), addresses };
        let params = self.params(&issued, made.until_s)?;
        if made.certificate.exists() {
            let path = made.certificate.display();
            return Err(Error::invalid(format!(
                "{path} is there already: `gabion ca renew` makes it anew with the same key"
            )));
        }
        let key = KeyPair::generate().map_err(failed("a key"))?;
        files::create(&made.key, key.serialize_pem().as_bytes())?;
        let certificate = self.sign(&params, &key)?;
        files::create(&made.certificate, certificate.as_bytes())?;
        self.note(&issued, made.until_s)?;
        files::sync_directory(&made.key)?;
        Ok(made)
    }

    /// Makes the certificate of a name anew, with the key that it has. A reader of the file
    /// meanwhile has the one or the other.
    ///
    /// # Errors
    /// Invalid input: nothing was issued to the name, or the certificate would outlive the
    /// authority. I/O.
    pub fn renew(&self, name: &str, days: u32) -> Result<Made> {
        let issued = self.find(name)?;
        let made = self.places(name, until(days)?)?;
        let key = read_key(&made.key)?;
        let certificate = self.sign(&self.params(&issued, made.until_s)?, &key)?;
        files::replace(&made.certificate, certificate.as_bytes())?;
        self.note(&issued, made.until_s)?;
        Ok(made)
    }

    /// Makes the authority's own certificate anew, with its key: what it issued stays valid for
    /// whoever has the old one or the new one.
    ///
    /// # Errors
    /// Invalid input: `days` is out of bounds. I/O.
    pub fn renew_authority(&self, days: u32) -> Result<Made> {
        let until_s = until(days)?;
        let made = Made {
            certificate: self.directory.join("ca.pem"),
            key: self.directory.join("ca.key"),
            until_s,
        };
        let params = own_params(&self.name, until_s)?;
        let certificate = params.self_signed(&self.key).map_err(failed(OWN))?;
        files::replace(&made.certificate, certificate.pem().as_bytes())?;
        let line = json!({ "authority": self.name, "until": until_s });
        files::append(&self.directory.join("issued"), &format!("{line}\n"))?;
        Ok(made)
    }

    /// The files of a name, and until when its certificate is valid.
    fn places(&self, name: &str, until_s: i64) -> Result<Made> {
        if until_s > self.until_s {
            let now_s = now_s()?;
            let (days, left) =
                ((until_s - now_s + DAY_S - 1) / DAY_S, (self.until_s - now_s).max(0) / DAY_S);
            return Err(Error::invalid(format!(
                "{days} days: the authority's own certificate is valid for {left} days more; \
                 `gabion ca renew --authority` makes it anew"
            )));
        }
        let path = |ending| self.directory.join(format!("{name}.{ending}"));
        Ok(Made { certificate: path("pem"), key: path("key"), until_s })
    }

    fn params(&self, issued: &Issued, until_s: i64) -> Result<CertificateParams> {
        let Issued { identity, addresses } = issued;
        if addresses.len() > ADDRESSES_MAX {
            let count = addresses.len();
            let text = format!("{count} addresses: {ADDRESSES_MAX} are possible at most");
            return Err(Error::invalid(text));
        }
        let mut params = base_params(identity.name(), until_s)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if identity.role().listens() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let uri = identity.uri().try_into().map_err(failed(identity.name()))?;
        params.subject_alt_names.push(SanType::URI(uri));
        for address in addresses {
            params.subject_alt_names.push(address_name(address)?);
        }
        Ok(params)
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair) -> Result<String> {
        let own = own_params(&self.name, self.until_s)?;
        let issuer = Issuer::from_params(&own, &self.key);
        let certificate = params.signed_by(key, &issuer).map_err(failed("a certificate"))?;
        Ok(certificate.pem())
    }

    fn note(&self, issued: &Issued, until_s: i64) -> Result<()> {
        let line = json!({
            "name": issued.identity.name(),
            "role": issued.identity.role().as_str(),
            "addresses": issued.addresses,
            "until": until_s,
        });
        files::append(&self.directory.join("issued"), &format!("{line}\n"))
    }

    /// The certificate that was issued to a name last.
    fn find(&self, name: &str) -> Result<Issued> {
        let mut found = None;
        for_each_line(&self.directory, |line| {
            if line["name"].as_str() == Some(name) {
                let role = line["role"].as_str().unwrap_or_default().parse::<Role>();
                let identity = role.and_then(|role| Identity::new(role, name));
                let addresses = line["addresses"].as_array().ok_or("no list 'addresses'")?;
                let addresses = addresses.iter().filter_map(Value::as_str).map(str::to_owned);
                let identity = identity.map_err(|_| "no identity")?;
                found = Some(Issued { identity, addresses: addresses.collect() });
            }
            Ok(())
        })?;
        found.ok_or_else(|| {
            let path = self.directory.display();
            Error::invalid(format!("{path}: nothing was issued to '{}'", name.escape_debug()))
        })
    }
}

fn failed(what: &str) -> impl FnOnce(rcgen::Error) -> Error {
    let what = what.to_owned();
    move |error| Error::invalid(format!("{what}: {error}"))
}

fn read_key(path: &Path) -> Result<KeyPair> {
    let text = String::from_utf8(files::read(path)?).unwrap_or_default();
    KeyPair::from_pem(&text)
        .map_err(|error| Error::corruption(format!("{}: no key: {error}", path.display())))
}

fn for_each_line(
    directory: &Path,
    mut take: impl FnMut(&Value) -> std::result::Result<(), &'static str>,
) -> Result<()> {
    let path = directory.join("issued");
    let text = files::read(&path)?;
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let value = serde_json::from_slice(line).map_err(|error| error.to_string());
        let taken = value.and_then(|value| take(&value).map_err(str::to_owned));
        taken.map_err(|why| {
            Error::corruption(format!("{}: line {}: {why}", path.display(), at + 1))
        })?;
    }
    Ok(())
}

fn now_s() -> Result<i64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map(|now| now.as_secs() as i64)
        .map_err(|_| Error::invalid("the system's clock shows a time before 1970"))
}

fn until(days: u32) -> Result<i64> {
    if !(1..=DAYS_MAX).contains(&days) {
        return Err(Error::invalid(format!("{days} days: 1 to {DAYS_MAX} are possible")));
    }
    Ok(now_s()? + i64::from(days) * DAY_S)
}

fn date(seconds: i64) -> Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|_| Error::invalid(format!("time {seconds}: no date of a certificate")))
}

fn base_params(common_name: &str, until_s: i64) -> Result<CertificateParams> {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    let mut serial: [u8; 16] = crate::random()?;
    // A positive number of full length.
    serial[0] = serial[0] & 0x3f | 0x40;
    let mut params = CertificateParams::default();
    params.not_before = date(now_s()? - CLOCKS_DIFFER_S)?;
    params.not_after = date(until_s)?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = name;
    Ok(params)
}

fn own_params(name: &str, until_s: i64) -> Result<CertificateParams> {
    let mut params = base_params(name, until_s)?;
    // It signs what people and processes show, and no further authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// An address as a certificate names it: of a machine by number, or by name.
fn address_name(address: &str) -> Result<SanType> {
    if let Ok(number) = address.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(number));
    }
    let refused = || {
        Error::invalid(format!(
            "address '{}': an IP address or a host's name is possible, without a port",
            address.escape_debug()
        ))
    };
    rustls::pki_types::DnsName::try_from(address).map_err(|_| refused())?;
    Ok(SanType::DnsName(address.try_into().map_err(|_| refused())?))
}

#[cfg(test)]
pub(crate) mod tests;
