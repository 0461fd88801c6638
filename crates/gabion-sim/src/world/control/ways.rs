//! Connections from controllers to the doors of machines: bytes in both directions, late, cut,
//! damaged.
//!
//! A controller has the number of a machine beyond the last one where ways are cut.

use super::Control;
use crate::world::World;
use gabion_control::wire::ControlMessage;
use std::collections::VecDeque;

/// Ms without a report after which a controller connects anew.
const SILENCE_MS_MAX: u64 = 1_000;
/// The directions of a way.
const DOWN: usize = 0;
const UP: usize = 1;

/// A connection.
#[derive(Default)]
pub(super) struct Way {
    /// The machine's start when it was made: another process has no end of it.
    pub(super) starts: u64,
    /// Bytes on their way to the machine, and to the controller, and when they arrive.
    queues: [VecDeque<(u64, Vec<u8>)>; 2],
    /// Bytes that have arrived and are not whole messages.
    inputs: [Vec<u8>; 2],
    /// When the controller heard something.
    heard_ms: u64,
    /// The machine's last words: configuration in effect, configuration that has begun, and
    /// when.
    pub(super) said: Option<(u64, u64, u64)>,
    /// A bit flips in what is sent next.
    pub(super) flips: bool,
    /// Its bytes make no sense.
    is_broken: bool,
}

impl Control {
    /// The number of a controller where machines have theirs.
    pub(super) fn place_of(at: usize, world: &World) -> usize {
        world.machines.len() + at
    }

    /// Makes connections that are missing, and ends those that are of no use.
    pub(super) fn connect(&mut self, at: usize, world: &World) {
        let place = Self::place_of(at, world);
        if self.seats[at].running.is_none() || self.is_asleep(at, world.now_ms) {
            return;
        }
        for index in 0..world.machines.len() {
            let starts = world.machines[index].starts;
            let is_over = |way: &Way| {
                let is_silent = way.heard_ms + SILENCE_MS_MAX < world.now_ms;
                way.is_broken || way.starts != starts || is_silent
            };
            let ways = &mut self.seats[at].ways;
            if ways.get(&index).is_some_and(is_over) {
                ways.remove(&index);
            }
            let is_open = world.node(index).is_some();
            let is_cut = world.is_cut(place, index) || world.is_cut(index, place);
            if is_open && !is_cut && !ways.contains_key(&index) && self.random.once_in(30) {
                let way = Way { starts, heard_ms: world.now_ms, ..Way::default() };
                self.seats[at].ways.insert(index, way);
            }
        }
    }

    fn send(&mut self, at: usize, index: usize, direction: usize, bytes: Vec<u8>, now_ms: u64) {
        let limit = if self.random.once_in(40) { 150 } else { 8 };
        let delay_ms = self.random.below(limit);
        let random = &mut self.random;
        let Some(way) = self.seats[at].ways.get_mut(&index) else { return };
        let last_ms = way.queues[direction].back().map_or(0, |(due_ms, _)| *due_ms);
        let mut bytes = bytes;
        if std::mem::take(&mut way.flips) {
            let bit = random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        way.queues[direction].push_back((last_ms.max(now_ms + delay_ms), bytes));
    }

    pub(super) fn send_to_machine(
        &mut self,
        at: usize,
        index: usize,
        message: &ControlMessage,
        world: &World,
    ) {
        self.send(at, index, DOWN, message.encode(), world.now_ms);
    }

    pub(super) fn send_to_seat(
        &mut self,
        at: usize,
        index: usize,
        message: &ControlMessage,
        world: &World,
    ) {
        self.send(at, index, UP, message.encode(), world.now_ms);
    }

    /// The messages that have arrived at a machine.
    pub(super) fn arrived_at_machine(
        &mut self,
        at: usize,
        index: usize,
        world: &mut World,
    ) -> Vec<ControlMessage> {
        let place = Self::place_of(at, world);
        if world.is_cut(place, index) {
            return Vec::new();
        }
        self.arrived(at, index, DOWN, world)
    }

    /// The messages that have arrived at a controller, from all machines.
    pub(super) fn arrived_at_seat(&mut self, at: usize, world: &mut World) -> Vec<ControlMessage> {
        let place = Self::place_of(at, world);
        let mut all = Vec::new();
        for index in 0..world.machines.len() {
            if !world.is_cut(index, place) {
                let messages = self.arrived(at, index, UP, world);
                if let (false, Some(way)) =
                    (messages.is_empty(), self.seats[at].ways.get_mut(&index))
                {
                    way.heard_ms = world.now_ms;
                }
                all.extend(messages);
            }
        }
        all
    }

    fn arrived(
        &mut self,
        at: usize,
        index: usize,
        direction: usize,
        world: &mut World,
    ) -> Vec<ControlMessage> {
        let now_ms = world.now_ms;
        let Some(way) = self.seats[at].ways.get_mut(&index) else { return Vec::new() };
        let (queue, input) = (&mut way.queues[direction], &mut way.inputs[direction]);
        while queue.front().is_some_and(|(due_ms, _)| *due_ms <= now_ms) {
            let Some((_, bytes)) = queue.pop_front() else { break };
            world.trace(&bytes);
            input.extend(bytes);
        }
        let mut messages = Vec::new();
        while let Ok(Some((message, len))) = ControlMessage::decode(input) {
            input.drain(..len);
            messages.push(message);
        }
        if ControlMessage::decode(input).is_err() {
            way.is_broken = true;
            input.clear();
            queue.clear();
        }
        messages
    }
}
