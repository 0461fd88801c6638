//! A TCP connection as two byte queues: any prefix of what was sent may have arrived, and the cut may
//! come anywhere.

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
    broken: bool,
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
        let state = Rc::new(RefCell::new(State { queues, broken: false, random }));
        (Self { state: state.clone(), side: 0 }, Self { state, side: 1 })
    }

    /// Cuts the connection: what is under way is lost.
    pub fn cut(&self) {
        let mut state = self.state.borrow_mut();
        state.broken = true;
        state.queues.iter_mut().for_each(VecDeque::clear);
    }
}

impl Transport for Pipe {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let state = &mut *self.state.borrow_mut();
        if state.broken {
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
        if state.broken {
            return Ok(Some(0));
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
        read.map(|()| Some(len)).map_err(|error| Error::io(error.to_string()))
    }
}
