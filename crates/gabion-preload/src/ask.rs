//! One request to the owner, over a connection of its own: a descriptor that stayed open could be
//! closed, or taken for another, by the program that it is in.

use crate::raw::{self, word};
use crate::state::{self, Ready};
use gabion_mirror::direct::DESCRIPTORS_MAX;
use gabion_mirror::wire::{REPLY, REQUEST, Reply, Request};
use libc::c_int;

/// Asks, and waits for the reply.
///
/// # Errors
/// The owner's; `EIO` if there is no owner.
pub(crate) fn ask(ready: &Ready, request: Request, paths: [&[u8]; 2]) -> Result<Reply, c_int> {
    let kept = raw::errno();
    let asked = Asked::new(ready.socket(), request, paths, &mut []);
    raw::set_errno(kept);
    asked.map(|asked| asked.reply)
}

/// A request that was answered, whose descriptor has not been taken yet.
pub(crate) struct Asked {
    pub(crate) reply: Reply,
    connection: c_int,
}

impl Asked {
    /// Asks the owner at a socket. The text of the reply goes to `text`.
    pub(crate) fn new(
        socket: &[u8; 108],
        request: Request,
        paths: [&[u8]; 2],
        text: &mut [u8],
    ) -> Result<Self, c_int> {
        let connection = connect(socket)?;
        let mut asked = Self { reply: Reply::default(), connection };
        let paths_len = paths.map(|path| path.len() as u32);
        let head = Request { paths: paths_len, ..request }.encode();
        asked.reply = exchange(connection, &head, paths, text)?;
        match asked.reply.errno {
            0 => Ok(asked),
            reason => Err(reason as c_int),
        }
    }

    /// The descriptor that comes with the reply: the lowest number that is free, as of calls that
    /// open. There never is a second one to be closed: closing any descriptor of a file would end
    /// all locks that the process has of it.
    pub(crate) fn descriptor(&self, closed_by_exec: bool) -> Result<c_int, c_int> {
        receive_descriptor(self.connection, closed_by_exec)
    }

    /// All descriptors that come with the reply, which a program that is started does not inherit.
    /// How many they are.
    pub(crate) fn descriptors(&self, into: &mut [c_int; DESCRIPTORS_MAX]) -> usize {
        receive_descriptors(self.connection, into)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let kept = raw::errno();
        raw::close(self.connection);
        raw::set_errno(kept);
    }
}

/// True if somebody listens at the owner's socket.
pub(crate) fn alive() -> bool {
    let kept = raw::errno();
    let connection = state::ready().map_or(Err(libc::EIO), |ready| connect(ready.socket()));
    if let Ok(connection) = connection {
        raw::close(connection);
    }
    raw::set_errno(kept);
    // Without a free descriptor nobody knows; the next look may tell.
    matches!(connection, Ok(_) | Err(libc::EMFILE | libc::ENFILE))
}

fn connect(socket: &[u8; 108]) -> Result<c_int, c_int> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let connection = raw::forward(libc::SYS_socket, &[word(libc::AF_UNIX), word(kind), 0]);
    if connection < 0 {
        return Err(raw::errno());
    }
    let mut address = [0_u8; 110];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    address[2..].copy_from_slice(socket);
    let arguments = [connection as usize, address.as_ptr() as usize, address.len()];
    let connected = again(|| raw::forward(libc::SYS_connect, &arguments));
    if connected == 0 || raw::errno() == libc::EISCONN {
        return Ok(connection as c_int);
    }
    raw::close(connection as c_int);
    raw::tell(&[b"`gabion ncl run` does not answer; what this program writes is not stored"]);
    Err(libc::EIO)
}

fn exchange(
    connection: c_int,
    head: &[u8; REQUEST],
    paths: [&[u8]; 2],
    text: &mut [u8],
) -> Result<Reply, c_int> {
    for part in [&head[..], paths[0], paths[1]] {
        send(connection, part)?;
    }
    let mut bytes = [0; REPLY];
    receive_all(connection, &mut bytes)?;
    let reply = Reply::parse(&bytes);
    let len = reply.text as usize;
    let Some(text) = text.get_mut(..len) else {
        return Err(libc::EIO);
    };
    receive_all(connection, text)?;
    Ok(reply)
}

fn again(call: impl Fn() -> isize) -> isize {
    loop {
        let answer = call();
        if answer >= 0 || raw::errno() != libc::EINTR {
            return answer;
        }
    }
}

fn send(connection: c_int, mut bytes: &[u8]) -> Result<(), c_int> {
    while !bytes.is_empty() {
        let (at, len) = (bytes.as_ptr() as usize, bytes.len());
        let arguments = [word(connection), at, len, word(libc::MSG_NOSIGNAL), 0, 0];
        match again(|| raw::forward(libc::SYS_sendto, &arguments)) {
            sent @ 1.. => bytes = &bytes[sent as usize..],
            _ => return Err(libc::EIO),
        }
    }
    Ok(())
}

fn receive_all(connection: c_int, mut into: &mut [u8]) -> Result<(), c_int> {
    while !into.is_empty() {
        let arguments = [word(connection), into.as_mut_ptr() as usize, into.len(), 0, 0, 0];
        match again(|| raw::forward(libc::SYS_recvfrom, &arguments)) {
            got @ 1.. => into = &mut into[got as usize..],
            _ => return Err(libc::EIO),
        }
    }
    Ok(())
}

/// One byte, and the descriptor that comes with it.
fn receive_descriptor(connection: c_int, closed_by_exec: bool) -> Result<c_int, c_int> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // A header of 16 bytes, one descriptor of 4, padding.
    let mut control = [0_u64; 3];
    let (parts, control_at) = (&raw mut part as usize, control.as_mut_ptr() as usize);
    let header = [0, 0, parts, 1, control_at, size_of_val(&control), 0];
    let flags = if closed_by_exec { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let arguments = [word(connection), header.as_ptr() as usize, word(flags)];
    let got = again(|| raw::forward(libc::SYS_recvmsg, &arguments));
    if got <= 0 {
        return Err(libc::EIO);
    }
    // The kernel writes back how much control data there is: none if no number is free.
    let [len, kind, data] = control;
    let rights = u64::from(libc::SCM_RIGHTS as u32) << 32 | libc::SOL_SOCKET as u64;
    if len == 20 && kind == rights { Ok(data as u32 as c_int) } else { Err(libc::EMFILE) }
}

/// Room for a header of 16 bytes and all descriptors.
const CONTROL_WORDS: usize = 2 + DESCRIPTORS_MAX.div_ceil(2);

/// One byte, and the descriptors that come with it.
fn receive_descriptors(connection: c_int, into: &mut [c_int; DESCRIPTORS_MAX]) -> usize {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0_u64; CONTROL_WORDS];
    let (parts, control_at) = (&raw mut part as usize, control.as_mut_ptr() as usize);
    let header = [0, 0, parts, 1, control_at, size_of_val(&control), 0];
    let arguments = [word(connection), header.as_ptr() as usize, word(libc::MSG_CMSG_CLOEXEC)];
    let got = again(|| raw::forward(libc::SYS_recvmsg, &arguments));
    let rights = u64::from(libc::SCM_RIGHTS as u32) << 32 | libc::SOL_SOCKET as u64;
    if got <= 0 || control[1] != rights {
        return 0;
    }
    // As many as there were numbers for.
    let count = ((control[0] as usize).saturating_sub(16) / 4).min(DESCRIPTORS_MAX);
    let words = control[2..].iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    into.iter_mut().zip(words).take(count).for_each(|(place, word)| *place = word as c_int);
    count
}
