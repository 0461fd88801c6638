//! The door for clients: accepting, taking requests in order, giving replies in order.

use crate::client::{Client, READ_LEN};
use crate::commands::{Command, Read};
use crate::server::{CLIENTS, Server};
use crate::status::status;
use crate::store::{Batch, Store};
use crate::threads::ReadJob;
use crate::wire::TURN_LEN;
use bytes::Bytes;
use gabion_base::Result;
use gabion_resp::{Incoming, Protocol, Reply, put_bulk};
use mio::event::Event;
use mio::{Interest, Token};
use std::io;

/// Bytes that a connection may bring in one turn.
const TURN_BYTES_MAX: usize = 512 << 10;

impl<S: Store> Server<S> {
    /// Accepts whoever waits at the door.
    pub(crate) fn accept_clients(&mut self) {
        while let Ok((mut stream, from)) = self.door.accept() {
            let _ = stream.set_nodelay(true);
            let token = self.free_clients.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() - 1
            });
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if let Err(error) = registry.register(&mut stream, Token(CLIENTS + token), interest) {
                eprintln!("door for clients: {from}: {error}");
                self.free_clients.push(token);
                continue;
            }
            self.next_serial += 1;
            self.clients[token] = Some(Box::new(Client::new(stream, self.next_serial)));
        }
    }

    pub(crate) fn wake_client(&mut self, token: usize, event: &Event) -> Result<()> {
        let Some(Some(client)) = self.clients.get_mut(token) else { return Ok(()) };
        client.is_read_closed |= event.is_read_closed() || event.is_error();
        let can_read = event.is_readable() || client.is_read_closed;
        client.can_read |= can_read;
        if event.is_writable() && !client.can_write {
            client.can_write = true;
            self.list_client(token);
        }
        if can_read { self.serve_client(token) } else { Ok(()) }
    }

    /// Puts a connection on the list of those to look after in this turn.
    pub(crate) fn list_client(&mut self, token: usize) {
        if let Some(Some(client)) = self.clients.get_mut(token)
            && !client.is_listed
        {
            client.is_listed = true;
            self.listed.push(token);
        }
    }

    /// Takes requests of a connection, as many as may be taken now.
    pub(crate) fn serve_client(&mut self, token: usize) -> Result<()> {
        let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else {
            return Ok(());
        };
        let is_alive = self.serve(token, &mut client)?;
        self.put_back(token, client, is_alive);
        Ok(())
    }

    fn put_back(&mut self, token: usize, mut client: Box<Client>, is_alive: bool) {
        if is_alive {
            self.clients[token] = Some(client);
            return;
        }
        let _ = self.poll.registry().deregister(&mut client.stream);
        self.free_clients.push(token);
    }

    /// Returns false when the connection is over.
    fn serve(&mut self, token: usize, client: &mut Client) -> Result<bool> {
        let mut budget = TURN_BYTES_MAX;
        loop {
            self.take_requests(token, client)?;
            if client.is_blocked() || !client.can_read {
                break;
            }
            if self.is_full() {
                self.held.push(token);
                break;
            }
            if budget == 0 {
                self.eager.push(token);
                break;
            }
            match client.read(&mut self.scratch, &mut self.shared_input) {
                Ok(Some(count)) => {
                    budget = budget.saturating_sub(count);
                    self.traffic.clients[1] += count as u64;
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    // It may still want to hear the answers.
                    client.can_read = false;
                    client.is_closing = true;
                    self.mark(token, client);
                }
                Err(_) => return Ok(false),
            }
        }
        client.is_stalled = client.is_blocked();
        client.input.settle(READ_LEN);
        Ok(true)
    }

    fn take_requests(&mut self, token: usize, client: &mut Client) -> Result<()> {
        while !client.is_blocked() {
            let command = match client.input.next_request() {
                Ok(Some(Incoming::Request(request))) => Command::of(&request),
                Ok(Some(Incoming::TooLarge(_))) => {
                    Command::Reply(Reply::error("ERR an argument or the request is too long"))
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    client.is_closing = true;
                    Command::Reply(Reply::error_from(format!("ERR {error}")))
                }
            };
            match command {
                Command::Set(key, value) => self.take_write(token, client, &key, &value)?,
                Command::Read(read) => self.take_read(token, client, read),
                Command::Status => {
                    let text = status(self)?.to_string();
                    self.reply(token, client, |out| put_bulk(out, text.as_bytes()));
                }
                Command::Reply(reply) => {
                    self.reply(token, client, |out| reply.encode(Protocol::Resp2, out));
                }
            }
        }
        Ok(())
    }

    fn take_write(
        &mut self,
        token: usize,
        client: &mut Client,
        key: &Bytes,
        value: &Bytes,
    ) -> Result<()> {
        if !self.place.is_head() {
            self.refuse(token, client, "writes go to the head of the chain, replica 1");
            return Ok(());
        }
        if self.batch_len >= TURN_LEN {
            self.end_batch()?;
        }
        self.batch.put(key, value);
        // Never 0, however short they are.
        self.batch_len += key.len() + value.len() + 1;
        let batch = self.last + 1;
        client.push_write(batch);
        if client.waits_for < batch {
            client.waits_for = batch;
            self.waiting.push_back((batch, token));
        }
        Ok(())
    }

    fn take_read(&mut self, token: usize, client: &mut Client, read: Read) {
        if !self.place.is_tail() {
            return self.refuse(token, client, "reads go to the tail of the chain");
        }
        let slot = client.reserve();
        self.reads.push(ReadJob { token, serial: client.serial, slot, read });
    }

    fn refuse(&mut self, token: usize, client: &mut Client, why: &str) {
        let text = format!("ERR {why}; this is replica {}", self.place.number);
        self.reply(token, client, |out| Reply::error_from(text).encode(Protocol::Resp2, out));
    }

    fn reply(&mut self, token: usize, client: &mut Client, encode: impl FnOnce(&mut Vec<u8>)) {
        let slot = client.reserve();
        client.fill(slot, encode);
        self.mark(token, client);
    }

    /// Lists a connection that is not in its place at the moment.
    fn mark(&mut self, token: usize, client: &mut Client) {
        if !client.is_listed {
            client.is_listed = true;
            self.listed.push(token);
        }
    }

    /// Sends what can be sent to the connections on the list, and lets those go on that were blocked.
    pub(crate) fn flush_clients(&mut self) {
        for token in std::mem::take(&mut self.listed) {
            let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else {
                continue;
            };
            client.is_listed = false;
            let result = client.flush(self.acknowledged);
            self.traffic.clients[0] += result.as_ref().copied().unwrap_or(0) as u64;
            let is_over = result.is_err() || client.is_closing && client.is_done();
            if !is_over && client.is_stalled && !client.is_blocked() {
                client.is_stalled = false;
                self.eager.push(token);
            }
            self.put_back(token, client, !is_over);
        }
    }
}
