//! Clients: each has one operation under way, writes at the head, reads at the tail, and remembers
//! when it called and when it was answered.

use crate::history::{Action, Operation};
use crate::process::Process;
use gabion_base::LogPosition;
use gabion_engine::Keyspace;
use gabion_node::WriteGate;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The bytes of a value: its number, and filler whose length follows from it.
#[must_use]
pub fn encode_value(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + (value.wrapping_mul(0x9e37_79b9) % 600) as usize, value as u8);
    bytes
}

/// The number of a value's bytes.
///
/// # Panics
/// When they are no value that [`encode_value`] made.
#[must_use]
pub fn decode_value(bytes: &[u8]) -> u64 {
    let (number, _) = bytes.split_first_chunk::<8>().expect("a value has its number");
    let value = u64::from_le_bytes(*number);
    assert_eq!(bytes, encode_value(value), "a value was damaged");
    value
}

/// The engine key of a register.
#[must_use]
pub fn engine_key(key: u64) -> Vec<u8> {
    let mut bytes = vec![Keyspace::User as u8];
    bytes.extend(user_key(key));
    bytes
}

fn user_key(key: u64) -> Vec<u8> {
    format!("key-{key:06}").into_bytes()
}

/// What an operation waits for.
enum Waits {
    /// A task reads; the result appears here.
    Read(Rc<RefCell<Option<Option<u64>>>>),
    /// As `Read`, and then the counter is written.
    Increment(Rc<RefCell<Option<Option<u64>>>>),
    /// The log must be acknowledged up to here.
    Acknowledged(LogPosition, Action),
}

struct Pending {
    key: u64,
    called: u64,
    incarnation: u64,
    waits: Waits,
}

/// One client.
#[derive(Default)]
pub struct Client {
    pending: Option<Pending>,
}

/// Keys with a read-modify-write under way: other writers wait, as the server's key locks do.
pub type Locks = BTreeSet<u64>;

impl Client {
    /// Whether it has nothing under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// Sets a key, or deletes it. Nothing happens when the head does not take writes.
    pub fn write(
        &mut self,
        head: &mut Process,
        locks: &Locks,
        key: u64,
        value: Option<u64>,
        now: u64,
    ) {
        let Some(node) = &mut head.node else { return };
        if node.write_gate() != WriteGate::Open || locks.contains(&key) {
            return;
        }
        let result = match value {
            Some(value) => node.put(Keyspace::User, &user_key(key), &encode_value(value)),
            None => node.delete(Keyspace::User, &user_key(key)),
        };
        result.expect("keys and values are within their limits");
        let position = node.end_turn().expect("the gate was open");
        let waits = Waits::Acknowledged(position, Action::Write(value));
        let incarnation = head.incarnation;
        self.pending = Some(Pending { key, called: now, incarnation, waits });
    }

    /// Reads a key at the tail.
    pub fn read(&mut self, tail: &mut Process, key: u64, now: u64) {
        let Some(node) = &tail.node else { return };
        if !node.is_readable() {
            return;
        }
        let waits = Waits::Read(spawn_get(tail, key));
        let incarnation = tail.incarnation;
        self.pending = Some(Pending { key, called: now, incarnation, waits });
    }

    /// Adds one to a counter: reads the head's newest state, then writes.
    pub fn increment(&mut self, head: &mut Process, locks: &mut Locks, key: u64, now: u64) {
        let Some(node) = &head.node else { return };
        if node.write_gate() != WriteGate::Open || !locks.insert(key) {
            return;
        }
        let waits = Waits::Increment(spawn_get(head, key));
        let incarnation = head.incarnation;
        self.pending = Some(Pending { key, called: now, incarnation, waits });
    }

    /// Looks whether the operation ended.
    pub fn poll(
        &mut self,
        head: Option<&mut Process>,
        tail: Option<&mut Process>,
        locks: &mut Locks,
        history: &mut Vec<Operation>,
        now: u64,
    ) {
        let Some(pending) = &mut self.pending else { return };
        let is_read = matches!(pending.waits, Waits::Read(_));
        let process = if is_read { tail } else { head };
        let alive = process.filter(|process| process.incarnation == pending.incarnation);
        let Some(process) = alive else {
            // The server died: a write may have happened, a read says nothing.
            if let Waits::Acknowledged(_, action) = &pending.waits {
                history.push(ended(pending, action.clone(), None));
            }
            locks.remove(&pending.key);
            self.pending = None;
            return;
        };
        let ended = match &pending.waits {
            Waits::Read(slot) => slot.borrow_mut().take().map(Action::Read),
            Waits::Increment(slot) => {
                let read = slot.borrow_mut().take();
                if let Some(value) = read {
                    pending.waits = write_counter(process, pending.key, value);
                    locks.remove(&pending.key);
                }
                None
            }
            Waits::Acknowledged(position, action) => {
                let node = process.node.as_ref();
                let acknowledged = node.is_some_and(|node| node.acknowledged() >= *position);
                acknowledged.then(|| action.clone())
            }
        };
        if let Some(action) = ended {
            history.push(self::ended(pending, action, Some(now)));
            self.pending = None;
        }
    }

    /// Gives up waiting: what happened to a write is not known.
    pub fn give_up(&mut self, history: &mut Vec<Operation>) {
        if let Some(pending) = self.pending.take()
            && let Waits::Acknowledged(_, action) = &pending.waits
        {
            history.push(ended(&pending, action.clone(), None));
        }
    }
}

fn ended(pending: &Pending, action: Action, returned: Option<u64>) -> Operation {
    Operation { key: pending.key, action, called: pending.called, returned }
}

/// Writes the counter that was read plus one. A gate that closed meanwhile is not waited for: the key
/// is locked and the record fits the turn.
fn write_counter(head: &mut Process, key: u64, value: Option<u64>) -> Waits {
    let next = value.unwrap_or(0) + 1;
    let node = head.node.as_mut().expect("the process is open");
    node.put(Keyspace::User, &user_key(key), &encode_value(next)).expect("within the limits");
    let position = node.end_turn().expect("the ring has room for small records beyond the gate");
    Waits::Acknowledged(position, Action::Increment(next))
}

fn spawn_get(process: &mut Process, key: u64) -> Rc<RefCell<Option<Option<u64>>>> {
    let slot = Rc::new(RefCell::new(None));
    let (Some(tables), Some(node)) = (process.tables(), process.node.as_ref()) else {
        return slot;
    };
    let (view, out) = (node.view(), slot.clone());
    process.executor.spawn(async move {
        let value =
            view.get(&tables, &engine_key(key)).await.expect("no fault hits a client's read");
        *out.borrow_mut() = Some(value.map(|bytes| decode_value(&bytes)));
    });
    slot
}
