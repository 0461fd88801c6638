//! Network faults besides delay: directions in which nothing arrives, and bits that flip past TCP's
//! checksum. And paused processes, as others see no difference.
//!
//! ```text
//!   one way:   A ──────── x        B      B hears nothing, and leaves after its timeout
//!              A ◄─ what fits ──── B      A hears B until as much is sent as may be without an acknowledgement
//!   pause:     A ──────► [queue]  (B)     B's machine takes what is sent; B finds it, and what has ended, when it wakes
//! ```

use super::World;
use super::options::TIMEOUT_MS;
use crate::Random;
use crate::pipe::Pipe;
use bytes::Bytes;
use gabion_replication::{Frame, Message};
use std::collections::BTreeMap;

/// Most time, in ms, that a pause or a cut direction lasts beyond the members' timeout.
const LONG_MS: u64 = 1_500;
/// Bytes of a frame's header.
const HEADER_LEN: usize = 64;
/// One of the newest so many connections for files is damaged: nobody may use the older ones any
/// more.
const PIPES_FLIPPED: usize = 4;
/// Most frames that arrive without their acknowledgement coming back.
const UNACKNOWLEDGED_MAX: u64 = 60;

/// The part of a frame in which a bit flips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// In the header of the next frame.
    Header,
    /// In the next message without records.
    Control,
    /// In the next records.
    Records,
}

/// A direction in which nothing arrives.
struct Cut {
    until_ms: u64,
    /// Frames that arrive in the other direction until their sender has to wait for
    /// acknowledgements.
    unacknowledged: u64,
}

/// Lasting faults of the network.
pub(super) struct Net {
    /// A stream of its own, so that the rest of a seed's run stays as it is.
    pub(super) random: Random,
    /// By sender and receiver.
    cuts: BTreeMap<(usize, usize), Cut>,
    /// Bits that will flip: sender, receiver, part.
    flips: Vec<(usize, usize, Part)>,
    /// Connections for files: the accepting ends.
    pipes: Vec<(usize, usize, Pipe)>,
}

impl Net {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x006e_6574);
        Self { random, cuts: BTreeMap::new(), flips: Vec::new(), pipes: Vec::new() }
    }

    /// Two machines, one after the other.
    fn pair(&mut self, count: u64) -> Option<(usize, usize)> {
        let (from, to) = (self.random.below(count) as usize, self.random.below(count) as usize);
        (from != to).then_some((from, to))
    }
}

impl World {
    pub(super) fn inject_net_faults(&mut self) {
        let faults = self.options.faults;
        let count = self.machines.len() as u64;
        let happens = |random: &mut Random, rate: u64| rate > 0 && random.once_in(rate);
        if happens(&mut self.net.random, faults.power_some) {
            let machines = 1 + self.net.random.below((1 << count) - 1);
            self.cut_power(machines);
        }
        if happens(&mut self.net.random, faults.pause) {
            let index = self.net.random.below(count) as usize;
            let least = if self.net.random.once_in(4) { 0 } else { TIMEOUT_MS };
            let ms = least + self.net.random.below(LONG_MS);
            self.pause(index, ms);
        }
        if happens(&mut self.net.random, faults.one_way)
            && let Some((from, to)) = self.net.pair(count)
        {
            let ms = self.net.random.below(LONG_MS);
            self.cut_one_way(from, to, ms);
        }
        if happens(&mut self.net.random, faults.flip)
            && let Some((from, to)) = self.net.pair(count)
        {
            let part = [Part::Header, Part::Control][self.net.random.below(2) as usize];
            self.flip_next_frame(from, to, part);
        }
        if happens(&mut self.net.random, faults.flip_files) {
            self.flip_some_transfer();
        }
        if happens(&mut self.net.random, faults.flip_records)
            && let Some((from, to)) = self.net.pair(count)
        {
            self.flip_next_frame(from, to, Part::Records);
        }
    }

    // ---- pauses

    /// Pauses a process for a time: its connections stand, bytes gather there, and its disk
    /// completes what it has.
    pub fn pause(&mut self, index: usize, ms: u64) {
        if self.node(index).is_none() || self.is_paused(index) {
            return;
        }
        self.trace(b"pause");
        self.note(format!("replica {} is paused for {ms} ms", index + 1));
        self.outcome.pauses += u64::from(ms > TIMEOUT_MS);
        self.machines[index].paused_until_ms = self.now_ms.saturating_add(ms);
        self.machines[index].wakes = true;
    }

    /// Whether a process is paused.
    #[must_use]
    pub fn is_paused(&self, index: usize) -> bool {
        self.machines[index].paused_until_ms > self.now_ms
    }

    // ---- directions in which nothing arrives

    /// Nothing gets from one machine to another for a time, though the other way works.
    pub fn cut_one_way(&mut self, from: usize, to: usize, ms: u64) {
        self.trace(b"one way");
        self.note(format!("replica {} does not hear replica {} for {ms} ms", to + 1, from + 1));
        self.outcome.one_ways += 1;
        let until_ms = self.now_ms.saturating_add(ms);
        let unacknowledged = self.net.random.below(UNACKNOWLEDGED_MAX);
        self.net.cuts.insert((from, to), Cut { until_ms, unacknowledged });
    }

    /// Whether nothing from the one machine gets to the other.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.net.cuts.contains_key(&(from, to))
    }

    /// Whether a frame gets from one machine to another now; for a frame ready to be delivered.
    pub(super) fn may_arrive(&mut self, from: usize, to: usize) -> bool {
        if self.is_cut(from, to) {
            return false;
        }
        let Some(back) = self.net.cuts.get_mut(&(to, from)) else { return true };
        let may = back.unacknowledged > 0;
        back.unacknowledged = back.unacknowledged.saturating_sub(1);
        may
    }

    /// A process has connected to a target.
    pub(super) fn note_pipes(&mut self, from: usize, to: usize, server_ends: &[Pipe]) {
        self.net.pipes.extend(server_ends.iter().map(|pipe| (from, to, pipe.clone())));
    }

    /// Ends cuts whose time is over, and stops the bytes between machines that are cut off.
    pub(super) fn pass_over_net(&mut self) {
        let now_ms = self.now_ms;
        self.net.cuts.retain(|_, cut| cut.until_ms > now_ms);
        let Net { cuts, pipes, .. } = &mut self.net;
        let flipped = pipes.iter().map(|(_, _, pipe)| pipe.take_flipped()).sum::<u64>();
        self.outcome.flipped_transfers += flipped;
        pipes.retain(|(_, _, pipe)| !pipe.is_over() && !pipe.is_alone());
        for (from, to, pipe) in pipes {
            pipe.stop(cuts.contains_key(&(*to, *from)), cuts.contains_key(&(*from, *to)));
        }
        if self.targets == super::Targets::Open && !self.untaken.is_empty() {
            self.reach_targets();
        }
    }

    /// Nobody is paused any more, and everything arrives.
    pub(super) fn heal(&mut self) {
        let is_controlled = self.control.is_some();
        for machine in &mut self.machines {
            machine.paused_until_ms = 0;
            if is_controlled {
                machine.down_until_ms = machine.down_until_ms.min(self.now_ms);
            }
        }
        self.net.cuts.clear();
        self.net.flips.clear();
    }

    /// The paused and the deaf members, in words.
    pub(super) fn describe_net(&self) -> String {
        let paused = (0..self.len()).filter(|index| self.is_paused(*index));
        let paused: Vec<usize> = paused.map(|index| index + 1).collect();
        let cuts: Vec<_> = self.net.cuts.keys().map(|(from, to)| (from + 1, to + 1)).collect();
        format!("paused {paused:?}, cut {cuts:?}")
    }

    // ---- bits that flip

    /// A bit flips in the next frame from one member to another that has such a part.
    pub fn flip_next_frame(&mut self, from: usize, to: usize, part: Part) {
        self.net.flips.push((from, to, part));
    }

    fn flip_some_transfer(&mut self) {
        let Net { random, pipes, .. } = &mut self.net;
        if !pipes.is_empty() {
            let newest = pipes.len().saturating_sub(PIPES_FLIPPED);
            let nth = random.below((pipes.len() - newest) as u64) as usize;
            let (from, to, pipe) = &pipes[newest + nth];
            let received = random.once_in(2);
            pipe.flip_next(received);
            let what = if received { "received" } else { "sent" };
            let (from, to) = (from + 1, to + 1);
            self.note(format!("a bit flips in what the target of replica {to} {what}, for {from}"));
        }
    }

    /// The part of a frame that arrives, and the place of its damage, if any.
    pub(super) fn flip_on_the_way(
        &mut self,
        from: usize,
        to: usize,
        frame: &Frame,
        encoded: &Bytes,
    ) -> (Bytes, Option<Part>) {
        let records_len = match &frame.message {
            Message::Records { bytes, .. } => bytes.iter().map(Bytes::len).sum(),
            _ => 0,
        };
        let len = encoded.len();
        let range_of = |part: Part| match part {
            Part::Header => 0..HEADER_LEN,
            Part::Control if records_len == 0 => HEADER_LEN..len,
            Part::Control => len..len,
            Part::Records => len - records_len..len,
        };
        let is_due = |(a, b, part): &(usize, usize, Part)| {
            (*a, *b) == (from, to) && !range_of(*part).is_empty()
        };
        let Some(at) = self.net.flips.iter().position(is_due) else {
            return (encoded.clone(), None);
        };
        let (.., part) = self.net.flips.remove(at);
        let range = range_of(part);
        let at = range.start + self.net.random.below(range.len() as u64) as usize;
        let bit = self.net.random.below(8);
        let mut bytes = encoded.to_vec();
        bytes[at] ^= 1 << bit;
        self.trace(b"flip");
        let (kind, from) = (frame.message.kind(), from + 1);
        let what = format!("bit {bit} of byte {at} of {len} flips in kind {kind}");
        self.note(format!("{what} from replica {from} to {}", to + 1));
        match part {
            Part::Records => self.outcome.flipped_records += 1,
            _ => self.outcome.flipped_frames += 1,
        }
        (Bytes::from(bytes), Some(part))
    }
}
