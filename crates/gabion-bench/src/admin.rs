//! Questions to one replica: a blocking connection beside those of the clients.

use crate::status::Status;
use bytes::BytesMut;
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::{Reply, ReplyParser, encode_request};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a replica may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection for questions.
pub(crate) struct Admin {
    /// Number of the replica's group among those measured together, from 1.
    group: u64,
    address: SocketAddr,
    stream: TcpStream,
    parser: ReplyParser,
    buffer: BytesMut,
}

impl Admin {
    /// Connects to a replica of a group.
    pub(crate) fn connect(group: u64, address: SocketAddr) -> Result<Self> {
        let failed =
            |error| Error::with_source(ErrorKind::Io, format!("{address}: no connection"), error);
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self { group, address, stream, parser: ReplyParser::new(), buffer: BytesMut::new() })
    }

    /// The replica's status.
    pub(crate) fn status(&mut self) -> Result<Status> {
        match self.ask(&["GABION", "STATUS"])? {
            Reply::Bulk(json) | Reply::Verbatim(_, json) => {
                Status::parse(self.group, &json).map_err(|e| e.within(format!("{}", self.address)))
            }
            other => Err(Error::unsupported(format!(
                "{}: GABION STATUS was answered with {other:?}; is this a replica of Gabion?",
                self.address
            ))),
        }
    }

    fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let address = self.address;
        let failed = |error| {
            Error::with_source(
                ErrorKind::Io,
                format!("{address}: {} failed", words.join(" ")),
                error,
            )
        };
        let mut request = Vec::new();
        encode_request(words, &mut request);
        self.stream.write_all(&request).map_err(failed)?;
        loop {
            if let Some(reply) = self.parser.parse(&mut self.buffer)? {
                return Ok(reply);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk).map_err(failed)? {
                0 => return Err(Error::io(format!("{address}: closed the connection"))),
                len => self.buffer.extend_from_slice(&chunk[..len]),
            }
        }
    }
}
