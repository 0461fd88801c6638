//! The status page of a controller, as a browser asks for it.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The answer for a path: its head, and its body. None while nobody listens.
pub(crate) fn get(address: SocketAddr, path: &str, host: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut text = String::new();
    stream.write_all(request.as_bytes()).ok()?;
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// Waits until the page's numbers are as wanted.
pub(crate) fn wait(address: SocketAddr, patience: Duration, is_so: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let answer = get(address, "/status.json", &address.to_string());
        let body = answer.map_or_else(String::new, |(_, body)| body);
        if serde_json::from_str(&body).is_ok_and(|told| is_so(&told)) {
            return;
        }
        assert!(begun.elapsed() < patience, "it is not so after {patience:?}: {body}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
