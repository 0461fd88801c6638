//! Owner and role of a certificate: a URI among its names, `urn:gabion:ROLE:NAME`.
//!
//! The common name says the name once more, for people. Nothing reads it.

use gabion_base::{Error, Result};
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes.
pub const NAME_LEN_MAX: usize = 64;
const SCHEME: &str = "urn:gabion:";

/// The part that the holder of a certificate plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A process that holds replicas. Shows its certificate at both ends.
    Node,
    /// A process that makes views. Shows its certificate at both ends.
    Controller,
    /// A program or a person that gives commands to a controller. Its certificate opens no door.
    Operator,
    /// A program or a person that reads and writes keys. Its certificate opens no door of its own.
    Client,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Node, Self::Controller, Self::Operator, Self::Client];

    /// The role as a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Controller => "controller",
            Self::Operator => "operator",
            Self::Client => "client",
        }
    }

    /// Whether others connect to it.
    #[must_use]
    pub const fn listens(self) -> bool {
        matches!(self, Self::Node | Self::Controller)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            Error::invalid(format!(
                "role '{text}': node, controller, operator or client are possible"
            ))
        })
    }
}

/// A name and a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    role: Role,
    name: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

impl Identity {
    /// An identity of this name.
    ///
    /// # Errors
    /// Invalid input: the name cannot be one.
    pub fn new(role: Role, name: &str) -> Result<Self> {
        check_name(name)?;
        Ok(Self { role, name: name.to_owned() })
    }

    /// The role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URI that stands in the certificate.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}:{}", self.role, self.name)
    }

    /// The identity in a certificate, whose signature has been checked by then. None in one that
    /// another authority made without such a name.
    ///
    /// # Errors
    /// Invalid input: the certificate cannot be read, or names two identities.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Option<Self>> {
        let certificate = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| Error::invalid(format!("a certificate cannot be read: {error}")))?;
        let mut found = certificate.valid_uri_names().filter(|uri| uri.starts_with(SCHEME));
        let Some(uri) = found.next() else { return Ok(None) };
        if found.next().is_some() {
            return Err(Error::invalid("a certificate names two identities of Gabion's"));
        }
        let (role, name) = uri[SCHEME.len()..].split_once(':').unwrap_or_default();
        Self::new(role.parse()?, name).map(Some)
    }
}

/// Names are of files too, so they hold nothing that a path could mean.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(is_fine)
        && !name.starts_with(['.', '-']);
    if is_name {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_LEN_MAX).collect();
    Err(Error::invalid(format!(
        "name '{}': 1 to {NAME_LEN_MAX} letters, digits, '-', '_' and '.' are possible, and \
         neither '.' nor '-' at the front",
        shown.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_file_and_of_nothing_else() {
        for name in ["a", "node-1.example", "A_b", &"n".repeat(64)] {
            assert_eq!(Identity::new(Role::Node, name).unwrap().name(), name);
        }
        for name in ["", ".", "..", "a/b", "-a", "a b", "a\0", "ä", &"n".repeat(65)] {
            let error = Identity::new(Role::Client, name).unwrap_err();
            assert!(error.to_string().contains("1 to 64 letters"), "{error}");
        }
        let identity = Identity::new(Role::Controller, "c1").unwrap();
        assert_eq!(identity.uri(), "urn:gabion:controller:c1");
    }
}
