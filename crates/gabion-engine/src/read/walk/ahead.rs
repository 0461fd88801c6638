//! Pairs whose values lie in other files, some steps ahead: an iterator would else wait for the
//! device once for each.
//!
//! ```text
//!   pair here │ pairs ahead: key, value      │ cursors
//!             └ given one by one ◄── read at once ─┘
//! ```
//!
//! The first value after a seek is read by itself, then two at once, then four, as far as
//! [`AHEAD_MAX`] and [`AHEAD_LEN_MAX`] allow. A value in the cache begins nothing.

use super::*;
use crate::read::ahead::{AHEAD_LEN_MAX, AHEAD_MAX, AHEAD_STEPS_MAX};
use alloc::collections::VecDeque;

/// Pairs that the cursors of a walk have passed and that were not given yet.
pub(super) struct Ahead {
    pairs: VecDeque<Pair>,
    is_backwards: bool,
    /// The key that was judged last.
    key: Vec<u8>,
    /// No pair follows: whether the limit of entries is why; or this error does.
    end: Option<Result<bool>>,
}

struct Pair {
    key: Vec<u8>,
    alive: Alive,
    value: Value,
}

enum Value {
    Held(Held),
    /// To be read with the others.
    Apart(Apart),
    /// There is no memory for it yet: the last.
    Later(Apart),
    Failed(Error),
}

/// How far a walk looks ahead.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Pairs that are read at once after a seek.
    first: usize,
    /// And next.
    next: usize,
}

impl Pace {
    /// Of somebody who wants about so many pairs after a seek.
    pub(super) fn expecting(pairs: usize) -> Self {
        let first = pairs.clamp(1, AHEAD_MAX);
        Self { first, next: first }
    }

    fn begin(&mut self) {
        self.next = self.first;
    }

    fn take(&mut self) -> usize {
        let next = (2 * self.next).min(AHEAD_MAX);
        core::mem::replace(&mut self.next, next)
    }
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Walk<S, C> {
    /// Has the value of the pair here unpacked, or notes where it lies.
    pub(super) fn want_of(&mut self, trailer: Trailer, stored: &[u8]) -> Result<()> {
        if trailer.kind().is_pointer() {
            self.want(apart(trailer, stored)?);
            return Ok(());
        }
        let (expires_ms, value_at) = expiry_of(trailer, stored)?;
        self.alive = Alive { expires_ms, value_at: 0 };
        self.held = match self.is_of_keys {
            true => Held::Nothing,
            false => Held::Block(unpacked(trailer, &stored[value_at..])?),
        };
        Ok(())
    }

    /// Notes that the value of the pair here lies in another file.
    pub(super) fn want(&mut self, apart: Apart) {
        self.alive = Alive { expires_ms: apart.expires_ms, value_at: 0 };
        self.held = Held::Nothing;
        self.wanted = (!self.is_of_keys).then_some(apart);
    }

    /// Forgets the pairs ahead: the cursors go elsewhere.
    pub(super) fn forget_ahead(&mut self) {
        (self.ahead, self.wanted) = (None, None);
        self.pace.begin();
    }

    /// To the next pair ahead that way, if there is one with its value.
    #[inline]
    pub(super) fn next_ahead(&mut self, is_backwards: bool) -> Option<Result<bool>> {
        let ahead = self.ahead.as_ref().filter(|ahead| ahead.is_backwards == is_backwards)?;
        match ahead.pairs.front()?.value {
            Value::Later(_) => None,
            _ => self.pop_ahead(),
        }
    }

    fn pop_ahead(&mut self) -> Option<Result<bool>> {
        let ahead = self.ahead.as_mut()?;
        let Pair { key, alive, value } = ahead.pairs.pop_front()?;
        self.way = if ahead.is_backwards { Way::Backwards } else { Way::Past };
        (self.key, self.alive, self.place) = (key, alive, Place::Pair);
        match value {
            Value::Held(held) => self.held = held,
            Value::Failed(error) => return Some(Err(error)),
            Value::Apart(apart) | Value::Later(apart) => {
                assert!(ahead.pairs.is_empty(), "the cursors are right behind this pair");
                self.ahead = None;
                self.want(apart);
            }
        }
        Some(Ok(true))
    }

    /// The end of a move of a walk that is at a pair it had looked ahead to. Nothing where the
    /// cursors are to move: those that go on that way are where they stopped, the key here is the
    /// last that was judged.
    pub(super) fn go_ahead(&mut self, to: Move<'_>) -> Option<Result<bool>> {
        let is_backwards = self.ahead.as_ref()?.is_backwards;
        if to != if is_backwards { Move::Prev } else { Move::Next } {
            self.forget_ahead();
            return None;
        }
        if let Some(popped) = self.pop_ahead() {
            return Some(popped);
        }
        let Ahead { key, end, .. } = *self.ahead.take()?;
        self.key = key;
        Some(end?.map(|is_stopped| {
            self.place = if is_backwards { Place::BeforeFirst } else { Place::AfterLast };
            (self.is_stopped, self.held) = (is_stopped, Held::Nothing);
            false
        }))
    }

    /// Has the value at hand that the pair here has in another file, and those of pairs ahead.
    pub(super) async fn fetch(
        &mut self,
        cursors: &mut Cursors<S, C>,
        apart: Apart,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        assert!(self.ahead.is_none(), "the pair here is the last that the cursors passed");
        let mut ahead = Box::new(Ahead {
            pairs: VecDeque::new(),
            is_backwards: self.way == Way::Backwards,
            key: Vec::new(),
            end: None,
        });
        let (key, alive) = (self.key.clone(), self.alive);
        ahead.pairs.push_back(Pair { key, alive, value: Value::Apart(apart) });
        let (count, left) = (self.pace.take(), self.left);
        self.left = left.min(AHEAD_STEPS_MAX);
        let steps = self.left;
        self.look_ahead(cursors, &mut ahead, count, check).await;
        self.left = left - (steps - self.left);
        if self.left > 0 && matches!(ahead.end, Some(Ok(true))) {
            // It has looked far enough for now.
            (ahead.end, self.is_stopped) = (None, false);
        }
        ahead.key = core::mem::take(&mut self.key);
        self.read_ahead(&mut ahead).await;
        check()?;
        self.ahead = Some(ahead);
        self.pop_ahead().unwrap_or(Ok(false))
    }

    /// Goes on up to `count` pairs, as far as their values have room.
    async fn look_ahead(
        &mut self,
        cursors: &mut Cursors<S, C>,
        ahead: &mut Ahead,
        count: usize,
        check: &impl Fn() -> Result<()>,
    ) {
        let mut len = match ahead.pairs.front() {
            Some(Pair { value: Value::Apart(apart), .. }) => apart.pointer.raw_len as usize,
            _ => 0,
        };
        while ahead.pairs.len() < count && len < AHEAD_LEN_MAX && ahead.end.is_none() {
            let moved = match (ahead.is_backwards, self.way) {
                (true, _) => self.backwards(cursors, Start::Past, check).await,
                (false, Way::Forwards) => self.forwards(cursors, Start::Pair, check).await,
                (false, _) => self.forwards(cursors, Start::Past, check).await,
            };
            match moved {
                Ok(true) => {}
                Ok(false) => {
                    ahead.end = Some(Ok(self.is_stopped));
                    return;
                }
                Err(error) => {
                    ahead.end = Some(Err(error));
                    return;
                }
            }
            let value = self.value_ahead(cursors, &mut len);
            ahead.pairs.push_back(Pair { key: self.key.clone(), alive: self.alive, value });
        }
    }

    /// The value of the pair that the walk looks at. Values in other files add to `len`, and so do
    /// those that were unpacked or have their block held. A MemTable's stay where they are.
    fn value_ahead(&mut self, cursors: &Cursors<S, C>, len: &mut usize) -> Value {
        let Some(apart) = self.wanted.take() else {
            let held = match self.way {
                Way::Forwards => cursors.merge.cursor().map_or(Held::Nothing, Source::hold),
                Way::Past | Way::Backwards => core::mem::replace(&mut self.held, Held::Nothing),
            };
            if let Held::Block(value) = &held {
                *len = len.saturating_add(value.len());
            }
            return Value::Held(held);
        };
        *len = len.saturating_add(apart.pointer.raw_len as usize);
        if *len > AHEAD_LEN_MAX {
            return Value::Later(apart);
        }
        match self.tables.cached_value(&apart.pointer) {
            Some(value) => Value::Held(Held::Block(value)),
            None => Value::Apart(apart),
        }
    }

    /// Reads the values that are wanted.
    async fn read_ahead(&self, ahead: &mut Ahead) {
        let pointer = |pair: &Pair| match pair.value {
            Value::Apart(apart) => Some(apart.pointer),
            _ => None,
        };
        let pointers: Vec<_> = ahead.pairs.iter().filter_map(pointer).collect();
        let mut values = self.tables.read_values(&pointers).await.into_iter();
        let waiting = ahead.pairs.iter_mut().filter(|pair| matches!(pair.value, Value::Apart(_)));
        for (pair, value) in waiting.zip(values.by_ref()) {
            pair.value = match value {
                Ok(value) => Value::Held(Held::Block(value)),
                Err(error) => Value::Failed(error),
            };
        }
        assert!(values.next().is_none(), "each value has its pair");
    }
}
