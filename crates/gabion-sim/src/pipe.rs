//! A TCP connection as two byte queues: any prefix of the sent bytes may have arrived, and the cut
//! may come anywhere.

use crate::Random;
use gabion_base::{Error, Result};
use gabion_media::transport::Transport;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Read as _;
use std::rc::Rc;

const CAPACITY: usize = 256 * 1024;

struct State {
    queues: [VecDeque<u8>; 2],
    /// Whether the connection has ended, from each end's side.
    broken: [bool; 2],
    /// Whether an end's bytes stay on the way, and the end of its connection, too.
    stopped: [bool; 2],
    /// Whether a bit will flip in the next bytes received from an end.
    flips: [bool; 2],
    /// Bits that flipped.
    flipped: u64,
    random: Random,
}

/// One end of a connection.
#[derive(Clone)]
pub struct Pipe {
    state: Rc<RefCell<State>>,
    side: usize,
}

impl Pipe {
    /// Both ends of a new connection.
    #[must_use]
    pub fn pair(random: Random) -> (Self, Self) {
        let queues = [VecDeque::new(), VecDeque::new()];
        let state = Rc::new(RefCell::new(State {
            queues,
            broken: [false; 2],
            stopped: [false; 2],
            flips: [false; 2],
            flipped: 0,
            random,
        }));
        (Self { state: state.clone(), side: 0 }, Self { state, side: 1 })
    }

    /// Cuts the connection from this end: bytes under way are lost. The other end learns of it,
    /// unless nothing gets there.
    pub fn cut(&self) {
        let mut state = self.state.borrow_mut();
        state.broken[self.side] = true;
        state.broken[1 - self.side] |= !state.stopped[self.side];
        state.queues.iter_mut().for_each(VecDeque::clear);
    }

    /// Stops the bytes that this end sends, and those of the other, or lets them go on.
    pub fn stop(&self, sent: bool, received: bool) {
        let mut state = self.state.borrow_mut();
        state.stopped[self.side] = sent;
        state.stopped[1 - self.side] = received;
        for side in 0..2 {
            let has_left = state.broken[side] && !state.stopped[side];
            state.broken[1 - side] |= has_left;
        }
    }

    /// A bit flips in the next bytes that this end receives, or in those that it sends.
    pub fn flip_next(&self, received: bool) {
        let side = if received { 1 - self.side } else { self.side };
        self.state.borrow_mut().flips[side] = true;
    }

    /// Bits that flipped since the last call.
    pub fn take_flipped(&self) -> u64 {
        std::mem::take(&mut self.state.borrow_mut().flipped)
    }

    /// Whether nobody else has either end.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Rc::strong_count(&self.state) == 1
    }

    /// Whether both ends know that the connection has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.borrow().broken == [true; 2]
    }
}

impl Transport for Pipe {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let state = &mut *self.state.borrow_mut();
        if state.broken[self.side] {
            return Err(Error::io("the connection was cut"));
        }
        let queue = &mut state.queues[self.side];
        let mut room = CAPACITY.saturating_sub(queue.len());
        if state.random.once_in(4) {
            room = room.min(state.random.below(5_000) as usize);
        }
        let mut sent = 0;
        for part in parts {
            let len = part.len().min(room - sent);
            queue.extend(&part[..len]);
            sent += len;
        }
        Ok(sent)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        let state = &mut *self.state.borrow_mut();
        if state.broken[self.side] {
            return Ok(Some(0));
        }
        if state.stopped[1 - self.side] {
            return Ok(None);
        }
        let queue = &mut state.queues[1 - self.side];
        let mut len = queue.len().min(into.len());
        if state.random.once_in(4) {
            len = len.min(state.random.below(5_000) as usize);
        }
        if len == 0 {
            return Ok(None);
        }
        let read = queue.read_exact(&mut into[..len]);
        if std::mem::take(&mut state.flips[1 - self.side]) {
            into[state.random.below(len as u64) as usize] ^= 1 << state.random.below(8);
            state.flipped += 1;
        }
        read.map(|()| Some(len)).map_err(|error| Error::io(error.to_string()))
    }
}
