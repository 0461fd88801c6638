//! The trust between processes on machines of their own, and so the addresses that they may use.
//!
//! There are no certificates yet: whoever reaches a port may use it. So every address is one of
//! this machine, 127.0.0.0/8 or ::1, and anything else is refused before a socket is opened. This
//! is the one place that decides it, and through which connections between a node or a command and
//! a controller are made: certificates come here.

use gabion_base::{Error, ErrorKind, Result};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long a connection may be in the making.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Refuses an address that other machines may reach, or that is on another machine. `what` names
/// the option.
///
/// # Errors
/// Invalid input, with option, address and limit.
pub(crate) fn check(what: &str, address: SocketAddr) -> Result<()> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} is {address}: there are no certificates yet, so only loopback addresses are \
         possible, 127.0.0.1 to 127.255.255.254 or ::1"
    )))
}

/// Listens for nodes and commands.
///
/// # Errors
/// As [`check`]; busy, naming the address; I/O.
pub(crate) fn listen(what: &str, address: SocketAddr) -> Result<TcpListener> {
    check(what, address)?;
    TcpListener::bind(address).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => ErrorKind::Busy,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("{what} is {address}, which cannot be listened on"), error)
    })
}

/// Connects with a controller.
///
/// # Errors
/// As [`check`]; unavailable, naming the address.
pub(crate) fn connect(what: &str, address: SocketAddr) -> Result<TcpStream> {
    check(what, address)?;
    let connect = || {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    connect().map_err(|error: io::Error| {
        let what = format!("no controller answers on {address}");
        Error::with_source(ErrorKind::Unavailable, what, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_beyond_this_machine_is_refused_with_option_value_and_limit() {
        for text in ["127.0.0.1:1", "127.0.0.2:1", "127.255.255.254:1", "[::1]:1"] {
            check("listen", text.parse().unwrap()).unwrap();
        }
        for text in ["0.0.0.0:7400", "10.0.0.1:7400", "[::]:7400", "128.0.0.1:7400"] {
            let error = check("clients.listen", text.parse().unwrap()).unwrap_err();
            let expected = format!("clients.listen is {text}: there are no certificates yet");
            assert!(error.message().starts_with(&expected), "{error}");
            assert!(listen("listen", text.parse().unwrap()).is_err());
        }
    }
}
