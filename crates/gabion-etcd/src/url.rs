//! How a store is named: `etcd://HOST:PORT,HOST:PORT/PREFIX`, or `etcd+tls://` likewise.

use gabion_base::{Error, Result};
use std::fmt;

const SCHEME: &str = "etcd://";
/// Connections are encrypted. The files of certificates are named beside the URL.
const TLS_SCHEME: &str = "etcd+tls://";
/// Clusters of etcd have 7 members at most in practice.
const ENDPOINTS_MAX: usize = 16;
const PREFIX_LEN_MAX: usize = 128;
const PREFIX_DEFAULT: &str = "gabion";

/// The endpoints of one etcd, and the prefix of all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    is_tls: bool,
    pub(crate) endpoints: Vec<String>,
    pub(crate) prefix: String,
}

impl EtcdUrl {
    /// Whether a text names a store in etcd, rightly or not.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        text.starts_with("etcd:") || text.starts_with("etcd+")
    }

    /// Reads `etcd://HOST:PORT,…/PREFIX` or `etcd+tls://…`. Without a prefix it is `gabion`.
    ///
    /// # Errors
    /// Invalid input that names the part.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::invalid(format!("store {text}: {why}"));
        let of_tls = text.strip_prefix(TLS_SCHEME);
        let is_tls = of_tls.is_some();
        let rest = of_tls.or_else(|| text.strip_prefix(SCHEME)).ok_or_else(|| {
            wrong("a store in etcd is etcd://HOST:PORT,HOST:PORT/PREFIX, or etcd+tls://".to_owned())
        })?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if endpoints.len() > ENDPOINTS_MAX {
            let count = endpoints.len();
            return Err(wrong(format!("{count} endpoints, and {ENDPOINTS_MAX} are the most")));
        }
        for (at, endpoint) in endpoints.iter().enumerate() {
            check_endpoint(endpoint)
                .map_err(|why| wrong(format!("endpoint {endpoint:?}: {why}")))?;
            if endpoints[..at].contains(endpoint) {
                return Err(wrong(format!("endpoint {endpoint:?} is there twice")));
            }
        }
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.is_empty() { PREFIX_DEFAULT } else { prefix };
        check_prefix(prefix).map_err(|why| wrong(format!("prefix {prefix:?}: {why}")))?;
        Ok(Self { is_tls, endpoints, prefix: prefix.to_owned() })
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The key under which the values lie, and the beginning of their keys.
    pub(crate) fn values(&self) -> String {
        format!("{}/values/", self.prefix)
    }

    /// The key of the leader.
    pub(crate) fn leader(&self) -> String {
        format!("{}/leader", self.prefix)
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { TLS_SCHEME } else { SCHEME };
        write!(f, "{scheme}{}/{}", self.endpoints.join(","), self.prefix)
    }
}

fn check_endpoint(endpoint: &str) -> std::result::Result<(), String> {
    let (host, port) = endpoint.rsplit_once(':').ok_or("HOST:PORT is needed")?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if !is_port || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("port {port:?} is no number from 1 to 65535"));
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.len() <= 253 && host.bytes().all(is_fine)
        }
    };
    let form = "a name, an IPv4 address or an IPv6 address in brackets";
    if is_host { Ok(()) } else { Err(format!("host {host:?} is not {form}")) }
}

fn check_prefix(prefix: &str) -> std::result::Result<(), String> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    if !prefix.bytes().all(is_fine) {
        return Err("it may have letters, digits and -._/".to_owned());
    }
    if prefix.starts_with('/') || prefix.contains("//") {
        return Err("it has an empty part".to_owned());
    }
    let len = prefix.len();
    if len > PREFIX_LEN_MAX {
        return Err(format!("{len} bytes, and {PREFIX_LEN_MAX} are the most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_endpoints_and_a_prefix() {
        let url = EtcdUrl::parse("etcd://a.b:2379,[::1]:1,10.0.0.1:65535/x/y/").unwrap();
        assert_eq!(url.endpoints, ["a.b:2379", "[::1]:1", "10.0.0.1:65535"]);
        assert_eq!((&*url.values(), &*url.leader()), ("x/y/values/", "x/y/leader"));
        assert_eq!(EtcdUrl::parse(&url.to_string()).unwrap(), url);
        let tls = EtcdUrl::parse("etcd+tls://a.b:2379,[::1]:1/x").unwrap();
        assert_eq!((url.is_tls(), tls.is_tls()), (false, true));
        assert_eq!(tls.to_string(), "etcd+tls://a.b:2379,[::1]:1/x");
        assert_eq!(EtcdUrl::parse("etcd://a:1").unwrap().prefix, "gabion");
    }

    #[test]
    fn a_wrong_part_of_a_url_is_named() {
        let many = format!("etcd://{}", ["a:1"; 17].join(","));
        let long = format!("etcd://a:1/{}", "x".repeat(129));
        for (text, part) in [
            ("etcd:a:1", "HOST:PORT/PREFIX"),
            ("http://a:1", "HOST:PORT/PREFIX"),
            ("etcd://", "HOST:PORT is needed"),
            ("etcd://a", "HOST:PORT is needed"),
            ("etcd://a:0", "port \"0\""),
            ("etcd://a:+1", "port \"+1\""),
            ("etcd://a:65536", "port \"65536\""),
            ("etcd://:1", "host \"\""),
            ("etcd://u@a:1", "host \"u@a\""),
            ("etcd://[::x]:1", "host \"[::x]\""),
            ("etcd://a:1,,b:1", "endpoint \"\""),
            ("etcd://a:1,a:1", "twice"),
            ("etcd://a:1//x", "empty part"),
            ("etcd://a:1/x y", "letters, digits"),
            (&*many, "17 endpoints, and 16"),
            (&*long, "129 bytes, and 128"),
            ("etcd+tls://a", "HOST:PORT is needed"),
            ("etcd+ssl://a:1", "or etcd+tls://"),
        ] {
            let error = EtcdUrl::parse(text).expect_err(text);
            assert!(error.message().contains(part), "{text}: {error}");
        }
    }
}
