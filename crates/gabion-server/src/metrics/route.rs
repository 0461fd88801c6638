//! The paths that an HTTP door answers, and what it says besides the page itself.
//!
//! A page for browsers is given only to those who asked for it by a name of this machine: a name of
//! a stranger's that leads to 127.0.0.1 (DNS rebinding) would let the stranger's scripts read it.
//! It runs its own script and style and no other, and talks to its own door alone.

use super::http::{Answer, KEPT};
use gabion_base::Result;
use ring::digest;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

const TYPE_METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(super) const TYPE_TEXT: &str = "text/plain; charset=utf-8";
const TYPE_HTML: &str = "text/html; charset=utf-8";
const TYPE_JSON: &str = "application/json; charset=utf-8";
/// Nobody guesses types, keeps pages, frames them, or learns where a link was followed from.
const FOR_BROWSERS: &str = "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
                            Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
                            Cross-Origin-Resource-Policy: same-origin\r\n";

/// One path of a door, and its page.
pub struct Route {
    pub(super) path: &'static str,
    content: &'static str,
    headers: String,
    is_for_browsers: bool,
    make: Box<dyn FnMut() -> Result<String> + Send>,
    last: Option<(Instant, Answer)>,
}

impl Route {
    fn new(
        path: &'static str,
        content: &'static str,
        make: impl FnMut() -> Result<String> + Send + 'static,
    ) -> Self {
        let (make, headers) = (Box::new(make), String::new());
        Self { path, content, headers, is_for_browsers: false, make, last: None }
    }

    /// `/metrics`, for whoever asks. `make` may wait for a while.
    pub fn metrics(make: impl FnMut() -> Result<String> + Send + 'static) -> Self {
        Self::new("/metrics", TYPE_METRICS, make)
    }

    /// A page of HTML for browsers. Its scripts and styles are those in it.
    #[must_use]
    pub fn html(path: &'static str, text: &'static str) -> Self {
        let policy = format!(
            "Content-Security-Policy: default-src 'none'; script-src{}; style-src{}; \
             connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'\r\n",
            hashes(text, "script"),
            hashes(text, "style")
        );
        Self {
            headers: policy + FOR_BROWSERS,
            is_for_browsers: true,
            ..Self::new(path, TYPE_HTML, move || Ok(text.to_owned()))
        }
    }

    /// JSON for the scripts of such a page. `make` may wait for a while.
    pub fn json(path: &'static str, make: impl FnMut() -> Result<String> + Send + 'static) -> Self {
        Self {
            headers: FOR_BROWSERS.to_owned(),
            is_for_browsers: true,
            ..Self::new(path, TYPE_JSON, make)
        }
    }

    /// The page, for somebody who asked by these names; kept for a moment.
    pub(super) fn get(&mut self, headers: &[httparse::Header<'_>]) -> Answer {
        if self.is_for_browsers && !is_by_own_name(headers) {
            let text = "this page is given to those who ask for it by a name of this machine: \
                        localhost, 127.0.0.1 or [::1]\n";
            return answer("421 Misdirected Request", TYPE_TEXT, "", text);
        }
        if let Some((at, page)) = &self.last
            && at.elapsed() < KEPT
        {
            return page.clone();
        }
        let page = match (self.make)() {
            Ok(text) => answer("200 OK", self.content, &self.headers, &text),
            Err(error) => {
                let text = format!("{}\n", error.message());
                answer("503 Service Unavailable", TYPE_TEXT, "", &text)
            }
        };
        // From now on: the page may have been waited for.
        self.last = Some((Instant::now(), page.clone()));
        page
    }
}

/// Whether somebody said which host is meant, and each time it was this machine.
fn is_by_own_name(headers: &[httparse::Header<'_>]) -> bool {
    let mut hosts = headers.iter().filter(|it| it.name.eq_ignore_ascii_case("host")).peekable();
    hosts.peek().is_some() && hosts.all(|host| is_own(host.value))
}

fn is_own(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        let Some((name, port)) = rest.split_once(']') else { return false };
        let is_port = port.is_empty() || port.starts_with(':');
        return is_port && name.parse().is_ok_and(|ip: Ipv6Addr| ip.is_loopback());
    }
    let name = host.split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|ip: Ipv4Addr| ip.is_loopback())
}

/// The hash of each element of this name in a page, as a policy lists them; none there: ` 'none'`.
fn hashes(text: &str, element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let mut list = String::new();
    for after in text.split(&begin).skip(1) {
        let inner = after.split(&end).next().unwrap_or_default();
        let hash = digest::digest(&digest::SHA256, inner.as_bytes());
        let _ = write!(list, " 'sha256-{}'", base64(hash.as_ref()));
    }
    if list.is_empty() { " 'none'".to_owned() } else { list }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

pub(super) fn answer(status: &str, content: &str, headers: &str, body: &str) -> Answer {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {len}\r\n\
         {headers}Connection: close\r\n\r\n"
    );
    [head.as_bytes(), body.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_own() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.3.2.1:6679", "[::1]", "[::1]:9"]
        {
            assert!(is_own(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":80",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "10.0.0.1",
            "[::2]:80",
            "[::1",
            "[::1]x",
            "0.0.0.0",
            "127.1",
            "\u{e9}",
        ] {
            assert!(!is_own(host.as_bytes()), "{host}");
        }
        assert!(!is_own(b"\xff"));
    }

    #[test]
    fn a_host_is_said_and_each_that_is_said_is_own() {
        let header = |name, value| httparse::Header { name, value };
        let (own, other) = (header("Host", b"localhost"), header("HOST", b"example.org"));
        assert!(is_by_own_name(&[header("Accept", b"*/*"), own]));
        for headers in [&[][..], &[header("Accept", b"*/*")], &[other], &[own, other]] {
            assert!(!is_by_own_name(headers));
        }
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|it| base64(it.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
        // printf 'abc' | openssl dgst -sha256 -binary | base64
        let expected = " 'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='";
        assert_eq!(hashes("<style>abc</style><p>", "style"), expected);
        assert_eq!(hashes("<style>abc</style>", "script"), " 'none'");
    }
}
