//! The clients' operations, and the keys that they share.

use super::World;
use crate::Random;
use crate::client::{LONG_VALUE, ReadFailure, TWINS};
use crate::history::{Action, Operation};

/// Longest life of a client's key, in ms.
const EXPIRY_MS_MAX: u64 = 400;

impl World {
    fn note_expiry(&mut self, writes: &[(u64, Option<u64>)], expires_ms: Option<u64>) {
        for (key, value) in writes {
            if let (Some(value), Some(expires_ms)) = (value, expires_ms) {
                self.expiring.push((expires_ms, *key, *value));
            }
        }
    }

    /// From now on, and not before, values that expire by this time may be found gone.
    pub(super) fn expire(&mut self) {
        let (now_ms, called) = (self.now_ms, self.moment);
        for (_, key, value) in self.expiring.extract_if(.., |(at, ..)| *at <= now_ms) {
            let action = Action::Expire(value);
            self.history.push(Operation { key, action, called, returned: None });
        }
    }

    pub(super) fn clients_act(&mut self) {
        for i in 0..self.clients.len() {
            if self.clients[i].is_idle() && self.random.once_in(3) {
                self.moment += 1;
                self.client_acts(i);
            }
        }
    }

    fn client_acts(&mut self, i: usize) {
        let key = self.random.below(self.options.keys);
        let twins = TWINS + self.random.below(self.options.twins);
        let kind = self.random.below(40);
        let (mut head, mut tail) = (self.some_writer(), self.some_reader());
        if let Some(door) = self.some_door() {
            (head, tail) = (door, door);
        }
        let random = self.random.fork();
        let at = if kind < 16 { tail } else { head };
        if self.is_paused(at) {
            return;
        }
        self.clients[i].at = at;
        self.pass_lease_time(at);
        match kind {
            0..16 => self.client_reads(i, (kind, key, twins), random),
            _ => self.client_writes(i, (kind, key, twins), random),
        }
        let config = self.clients[i].reads_in();
        self.clients[i].reads_late = config.is_some_and(|config| self.is_late(config));
    }

    fn client_reads(&mut self, i: usize, (kind, key, twins): (u64, u64, u64), random: Random) {
        let now = self.moment;
        let client = &mut self.clients[i];
        let Some(process) = &mut self.machines[client.at].process else { return };
        match kind {
            0 => client.scan(process, vec![key, twins, key / 2, key / 3], random, now),
            1..4 => client.read(process, twins, random, now),
            _ => client.read(process, key, random, now),
        }
    }

    fn client_writes(&mut self, i: usize, (kind, key, twins): (u64, u64, u64), random: Random) {
        let now = self.moment;
        let client = &mut self.clients[i];
        let Some(process) = &mut self.machines[client.at].process else { return };
        self.next_value += 1;
        let long = if self.options.kept_segments > 0 { LONG_VALUE } else { 0 };
        let value = Some(self.next_value << 20 | long);
        // One write in four expires, soon: keys are then read, deleted and written anew around that
        // time.
        let mixed = self.next_value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let expires_ms = mixed.is_multiple_of(4).then(|| self.now_ms + mixed / 4 % EXPIRY_MS_MAX);
        if self.control.is_some() && mixed % 5 == 1 && key.is_multiple_of(2) {
            return client.look(process, key, random, now);
        }
        match kind {
            16 if self.random.once_in(30) => {
                let (keys, twins) = (0..self.options.keys, TWINS..TWINS + self.options.twins);
                client.clear(process, &self.locks, keys.chain(twins), now);
            }
            // Ranges are deleted beside single keys.
            18 if mixed % 8 < 6 => {
                let end = (key + 1 + mixed / 8 % 10).min(self.options.keys);
                client.delete_range(process, &self.locks, key..end, now);
            }
            19 if mixed % 8 < 3 => {
                let end = (twins + 1 + mixed / 8 % 3).min(TWINS + self.options.twins);
                client.delete_range(process, &self.locks, twins..end, now);
            }
            16..19 => _ = client.write(process, &self.locks, &[(key, None)], None, now),
            19 => _ = client.write(process, &self.locks, &[(twins, None)], None, now),
            20..24 => {
                let other = (key / 2 * 2 + 2) % (self.options.keys / 2 * 2);
                let writes = [(twins, value), (key / 2 * 2, value), (other, value)];
                if client.write(process, &self.locks, &writes, expires_ms, now) {
                    self.note_expiry(&writes, expires_ms);
                }
            }
            _ if key.is_multiple_of(2) || !self.options.counters => {
                let writes = [(key, value)];
                if client.write(process, &self.locks, &writes, expires_ms, now) {
                    self.note_expiry(&writes, expires_ms);
                }
            }
            // Counters are added to, mostly without being read.
            _ if !(mixed / 4).is_multiple_of(4) => {
                client.add(process, &self.locks, key, 1 + mixed % 3, now)
            }
            _ => client.increment(process, &mut self.locks, key, random, now),
        }
    }

    pub(super) fn poll_clients(&mut self) {
        for number in 0..self.clients.len() {
            self.moment += 1;
            let index = self.clients[number].at;
            if self.is_paused(index) {
                continue;
            }
            let client = &mut self.clients[number];
            let process = self.machines[index].process.as_mut();
            let polled = client.poll(process, &mut self.locks, &mut self.history, self.moment);
            let late_in = client.answered_late_in.take();
            self.outcome.reads_alone += u64::from(std::mem::take(&mut client.answered_alone));
            if let Some(config) = client.acknowledged_in.take() {
                self.note_acknowledged(index, config);
            }
            if let Some(config) = late_in {
                let what = format!(
                    "replica {} answers reads in {config}, and a newer one had acknowledged writes \
                     before",
                    index + 1
                );
                self.violation.get_or_insert(what);
            }
            match polled {
                Err(ReadFailure::Damage(_)) if self.outcome.rotten > 0 => {
                    self.outcome.failed_reads += 1;
                }
                Err(failure) if self.is_of_failing_call(index, &failure.to_string()) => {
                    self.outcome.failed_reads += 1;
                }
                Err(failure) => {
                    self.violation.get_or_insert(failure.to_string());
                }
                Ok(()) => {}
            }
        }
    }
}
