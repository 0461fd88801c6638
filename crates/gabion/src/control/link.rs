//! The connection with the door for members of one replica: reports in, views out.
//!
//! ```text
//!   connect ─► preamble ─┬─► reads: Report, Ask ─► heard     lost ─► 50 to 500 ms ─► connect
//!                        └─► gabion-tell: what is to be told ─► writes
//! ```

use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::wire::{CONTROLLER, ControlMessage};
use gabion_tls::{BlockingStream, Expected, MutualTls};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a connection may be in the making.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Silence after which a connection is given up. A replica reports ten times a second.
const SILENCE_MAX: Duration = Duration::from_secs(2);
const WRITE_MAX: Duration = Duration::from_secs(1);
/// Shortest and longest pause before another connection.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Messages on their way to one replica. One more gets lost: its next report, word on users or
/// question has it told again.
const TELLS_MAX: usize = 16;
const READ_LEN: usize = 16 << 10;

/// A replica's door for members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaDoor {
    pub(crate) address: SocketAddr,
    /// The node whose certificate is expected there, where there are any.
    pub(crate) node: Option<String>,
}

impl From<SocketAddr> for ReplicaDoor {
    /// One on this machine.
    fn from(address: SocketAddr) -> Self {
        Self { address, node: None }
    }
}

/// The other end.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) group: GroupId,
    pub(super) replica: ReplicaId,
    pub(super) door: ReplicaDoor,
    /// Certificates of this process.
    pub(super) tls: Option<Arc<MutualTls>>,
}

/// A connection that is made again whenever it is lost, on a thread of its own.
/// It ends some time after this is dropped.
pub(super) struct Link {
    tells: Tells,
    stopped: Arc<AtomicBool>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// The queue from which the connection that stands takes its next words.
type Tells = Arc<Mutex<Option<SyncSender<Vec<u8>>>>>;

impl Link {
    /// Starts the thread. `noted` gets after each attempt whether the certificate at the other end
    /// has expired.
    ///
    /// # Errors
    /// I/O when it cannot start.
    pub(super) fn start(
        target: Target,
        heard: impl Fn(ControlMessage) + Send + 'static,
        noted: impl Fn(bool) + Send + 'static,
    ) -> Result<Self> {
        let (tells, stopped) = (Tells::default(), Arc::new(AtomicBool::new(false)));
        let link = Self { tells: tells.clone(), stopped: stopped.clone() };
        super::driver::spawn("gabion-link", move || {
            let mut pause = PAUSES.0;
            while !stopped.load(Ordering::Relaxed) {
                let mut is_heard = false;
                // The detector tells of a silent replica, and its log says why.
                let ended = serve(&target, &tells, &stopped, &mut |message| {
                    if !is_heard {
                        noted(false);
                    }
                    is_heard = true;
                    heard(message);
                });
                noted(ended.is_err_and(|error| has_expired(&error)));
                pause = if is_heard { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
                std::thread::sleep(pause);
            }
        })?;
        Ok(link)
    }

    /// Tells the replica, if there is a connection. It may get lost.
    pub(super) fn tell(&self, message: &ControlMessage) {
        let tells = self.tells.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tells) = &*tells {
            let _ = tells.try_send(message.encode());
        }
    }
}

/// Whether a connection was not made as the certificate of its other end has expired.
fn has_expired(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|it| it.downcast_ref::<io::Error>()).is_some_and(gabion_tls::is_expired)
}

/// Makes a connection and reads from it until it is lost.
fn serve(
    target: &Target,
    tells: &Tells,
    stopped: &AtomicBool,
    heard: &mut dyn FnMut(ControlMessage),
) -> Result<()> {
    let failed = |error| Error::with_source(ErrorKind::Io, "a connection with a replica", error);
    let socket = TcpStream::connect_timeout(&target.door.address, CONNECT_MAX).map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    let mut stream = match &target.tls {
        None => BlockingStream::plain(socket),
        Some(tls) => {
            let node = target.door.node.clone().unwrap_or_default();
            let tls = tls.connect(Expected::Node(node))?;
            BlockingStream::handshake(socket, tls).map_err(failed)?
        }
    };
    stream.socket().set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
    stream.socket().set_write_timeout(Some(WRITE_MAX)).map_err(failed)?;
    let greeting = gabion_server::preamble(target.group, CONTROLLER, target.replica);
    stream.write_all(&greeting).map_err(failed)?;
    let writing = stream.clone();
    let (sender, waiting) = sync_channel(TELLS_MAX);
    let put = |sender| *tells.lock().unwrap_or_else(PoisonError::into_inner) = sender;
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("gabion-tell".into())
            .spawn_scoped(scope, move || write(writing, &waiting))
            .map_err(failed)?;
        put(Some(sender));
        let outcome = read(&mut stream, target, stopped, heard);
        // Both have the writing thread end.
        put(None);
        stream.shutdown();
        outcome
    })
}

fn write(mut stream: BlockingStream, waiting: &Receiver<Vec<u8>>) {
    for message in waiting {
        if stream.write_all(&message).is_err() {
            // The reading thread learns of it.
            stream.shutdown();
            return;
        }
    }
}

fn read(
    stream: &mut BlockingStream,
    target: &Target,
    stopped: &AtomicBool,
    heard: &mut dyn FnMut(ControlMessage),
) -> Result<()> {
    let (mut input, mut scratch) = (Vec::new(), [0; READ_LEN]);
    while !stopped.load(Ordering::Relaxed) {
        let len = match stream.read(&mut scratch) {
            Ok(0) => return Err(Error::io("a replica ended the connection")),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Error::with_source(ErrorKind::Io, "a replica is silent", error));
            }
        };
        input.extend_from_slice(&scratch[..len]);
        while let Some((message, len)) = ControlMessage::decode(&input)? {
            input.drain(..len);
            let report = match &message {
                ControlMessage::Report(report) => report,
                ControlMessage::Ask { .. }
                | ControlMessage::Users(_)
                | ControlMessage::UsersKnown(_)
                | ControlMessage::ChangeUsers(_) => {
                    heard(message);
                    continue;
                }
                ControlMessage::Tell { .. }
                | ControlMessage::Answer { .. }
                | ControlMessage::UsersChanged { .. } => {
                    return Err(Error::corruption("a replica talks like a controller"));
                }
            };
            if report.group != target.group || report.member.replica != target.replica {
                return Err(Error::corruption(format!(
                    "{} of {} answers where {} of {} was expected",
                    report.member.replica, report.group, target.replica, target.group
                )));
            }
            heard(message);
        }
    }
    Ok(())
}
