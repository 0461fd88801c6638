//! `/metrics` of log peers, of their controller and of `gabion ncl run`, for Prometheus
//! (docs/seeing.md).
//!
//! - [`of_peer`]: memory that is lent, regions, requests, connections, the place at the controller.
//! - [`of_controller`]: requests and refusals, flushes, values, registered peers.
//! - [`of_application`]: copies, records, files, the ring, and how long the program waits.
//!
//! The door is that of the replicas: its thread asks for the numbers when somebody wants a page.

pub(super) mod of_application;
pub(super) mod of_controller;
pub(super) mod of_peer;

use gabion_base::Result;
use gabion_server::metrics::{Door, Kind, Page, Route, write_process};
use std::net::SocketAddr;

const COUNTER: Kind = Kind::Counter;
const GAUGE: Kind = Kind::Gauge;

/// An address of `--metrics`. Nobody is asked there who he is.
pub(super) fn parse_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let is_valid = |address: &SocketAddr| address.ip().is_loopback() && address.port() > 0;
    let valid = "an address of loopback with a port, as 127.0.0.1:6690, is valid: nobody is asked \
                 there who he is";
    text.parse().ok().filter(is_valid).ok_or_else(|| valid.to_owned())
}

/// A door with this page, which is asked for again and again, if there is an address.
pub(super) fn serve(
    address: Option<SocketAddr>,
    page: impl FnMut() -> Result<String> + Send + 'static,
    said: impl Fn(&str) + Send + 'static,
) -> Result<Option<Door>> {
    address.map(|address| Door::start(address, vec![Route::metrics(page)], said)).transpose()
}

/// The end of a page: the numbers of this process.
fn finish(page: Page) -> String {
    let mut process = Page::new(&[]);
    write_process(&mut process);
    page.finish() + &process.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served_on_loopback_alone() {
        for valid in ["127.0.0.1:6690", "[::1]:1"] {
            assert_eq!(parse_address(valid).unwrap().to_string(), valid);
        }
        for other in ["0.0.0.0:6690", "10.0.0.1:6690", "127.0.0.1:0", "127.0.0.1", "6690", ""] {
            assert!(parse_address(other).unwrap_err().contains("loopback"), "{other}");
        }
    }
}
