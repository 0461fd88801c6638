//! FAILOVER: a client has another full member take writes. The controller decides, as it does for
//! `gabion failover`.
//!
//! ```text
//!   FAILOVER ─► checked here ─► Ask ─► controller: plans, or refuses ─► Answer ─► +OK, or an error
//! ```

use crate::commands::errors;
use crate::forward::Origin;
use crate::service::Service;
use bytes::Bytes;
use gabion_base::ReplicaId;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;
use std::net::IpAddr;

/// How long the controller may take to answer, in ms.
const ANSWER_MAX_MS: u64 = 2_000;
/// Questions to the controller under way; a further one is refused.
const ASKED_MAX: usize = 64;

const NONE_TO_ABORT: Reply = Reply::error("ERR No failover in progress.");
const NOT_MASTER: Reply = Reply::error("ERR FAILOVER is not valid when server is a replica.");
const FORCE_ALONE: Reply =
    Reply::error("ERR FAILOVER with force option requires both a timeout and target HOST and IP.");
const NO_TIMEOUT: Reply = Reply::error("ERR FAILOVER timeout must be greater than 0");
const NO_REPLICAS: Reply = Reply::error("ERR FAILOVER requires connected replicas.");
const NO_TARGET: Reply = Reply::error("ERR FAILOVER target HOST and PORT is not a replica.");
const NO_CONTROLLER: Reply = Reply::error(
    "ERR FAILOVER needs a controller, and none is connected: a group of one has none, nor has one \
     whose replicas compact for themselves; else `gabion up` runs it",
);
const NO_ANSWER: Reply = Reply::error(
    "UNKNOWN the controller did not answer: INFO replication shows whether the fail-over was made",
);
const TOO_MANY: Reply = Reply::error("TRYAGAIN too many fail-overs are asked for");

/// The request of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailOver {
    /// Address and port of a member's door for clients.
    to: Option<(Bytes, i64)>,
    aborts: bool,
}

impl FailOver {
    /// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT ms]`, as Redis reads it.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(crate) fn of(words: &[Bytes]) -> Result<Self, Reply> {
        let (mut found, mut forces, mut timeout) = (Self::default(), false, None);
        let mut rest = &words[1..];
        while let [word, more @ ..] = rest {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            rest = match more {
                [ms, more @ ..] if is("timeout") && timeout.is_none() => {
                    let ms = parse_i64(ms).ok_or(errors::NOT_AN_INTEGER)?;
                    timeout = Some(ms).filter(|ms| *ms > 0);
                    timeout.ok_or(NO_TIMEOUT)?;
                    more
                }
                [host, port, more @ ..] if is("to") && found.to.is_none() => {
                    let port = parse_i64(port).ok_or(errors::NOT_AN_INTEGER)?;
                    found.to = Some((Bytes::copy_from_slice(host), port));
                    match more {
                        [force, more @ ..] if force.eq_ignore_ascii_case(b"force") => {
                            forces = true;
                            more
                        }
                        more => more,
                    }
                }
                [] if is("abort") && words.len() == 2 => {
                    found.aborts = true;
                    more
                }
                _ => return Err(errors::SYNTAX),
            };
        }
        if forces && timeout.is_none() {
            return Err(FORCE_ALONE);
        }
        Ok(found)
    }
}

/// A client that waits for the controller.
pub(crate) struct Asked {
    number: u64,
    origin: Origin,
    until_ms: u64,
}

/// The questions to the controller that have no answer yet.
#[derive(Default)]
pub(crate) struct AskedList {
    next: u64,
    list: Vec<Asked>,
}

impl Service {
    /// Asks the controller for a fail-over; the answer comes later.
    ///
    /// # Errors
    /// The error that the client gets at once.
    pub(crate) fn begin_fail_over(
        &mut self,
        wanted: &FailOver,
        origin: impl FnOnce() -> Origin,
    ) -> Result<(), Reply> {
        // A view that was decided is carried out: there is nothing that could be taken back.
        if wanted.aborts {
            return Err(NONE_TO_ABORT);
        }
        if self.writer() != self.me {
            return Err(NOT_MASTER);
        }
        let others: Vec<ReplicaId> = {
            let node = self.replica.node.borrow();
            let full = node.view().group().full().map(|member| member.replica);
            full.filter(|id| *id != self.me).collect()
        };
        if others.is_empty() {
            return Err(NO_REPLICAS);
        }
        let to = match &wanted.to {
            None => None,
            Some((host, port)) => {
                let found = self.member_at(host, *port).filter(|id| others.contains(id));
                Some(found.ok_or(NO_TARGET)?)
            }
        };
        if self.asked.list.len() == ASKED_MAX {
            return Err(TOO_MANY);
        }
        let number = self.asked.next;
        if !self.ask_control(number, to) {
            return Err(NO_CONTROLLER);
        }
        self.asked.next += 1;
        let until_ms = self.now_ms + ANSWER_MAX_MS;
        self.asked.list.push(Asked { number, origin: origin(), until_ms });
        Ok(())
    }

    /// The member whose door for clients has this address.
    fn member_at(&self, host: &[u8], port: i64) -> Option<ReplicaId> {
        let host = std::str::from_utf8(host).ok()?;
        let ip: IpAddr = if host.eq_ignore_ascii_case("localhost") {
            [127, 0, 0, 1].into()
        } else {
            host.parse().ok()?
        };
        let is_there = |at: std::net::SocketAddr| at.ip() == ip && i64::from(at.port()) == port;
        self.host.peers.iter().find(|peer| is_there(peer.resp)).map(|peer| peer.replica)
    }

    /// The controller has answered.
    pub(crate) fn take_answer(&mut self, number: u64, refused: Option<String>) {
        let Some(at) = self.asked.list.iter().position(|asked| asked.number == number) else {
            return;
        };
        let asked = self.asked.list.remove(at);
        let reply = refused.map_or(Reply::OK, |why| Reply::error_from(format!("ERR {why}")));
        self.answer(&asked.origin, reply);
    }

    /// Ends questions that the controller leaves without an answer.
    pub(crate) fn tick_asked(&mut self) {
        let now_ms = self.now_ms;
        while let Some(at) = self.asked.list.iter().position(|asked| asked.until_ms <= now_ms) {
            let asked = self.asked.list.remove(at);
            self.answer(&asked.origin, NO_ANSWER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<FailOver, Reply> {
        let words: Vec<Bytes> =
            words.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        FailOver::of(&words)
    }

    #[test]
    fn the_words_are_read_as_redis_reads_them() {
        assert_eq!(of("FAILOVER"), Ok(FailOver::default()));
        let to = Some((Bytes::from_static(b"127.0.0.1"), 6380));
        let wanted = FailOver { to, aborts: false };
        for words in [
            "failover to 127.0.0.1 6380",
            "FAILOVER TIMEOUT 5 TO 127.0.0.1 6380",
            "FAILOVER TO 127.0.0.1 6380 FORCE TIMEOUT 5",
        ] {
            assert_eq!(of(words).as_ref(), Ok(&wanted), "{words}");
        }
        assert_eq!(of("FAILOVER abort"), Ok(FailOver { to: None, aborts: true }));
        for (words, error) in [
            ("FAILOVER TO 127.0.0.1 6380 FORCE", FORCE_ALONE),
            ("FAILOVER TIMEOUT 0", NO_TIMEOUT),
            ("FAILOVER TIMEOUT soon", errors::NOT_AN_INTEGER),
            ("FAILOVER TO 127.0.0.1", errors::SYNTAX),
            ("FAILOVER FORCE", errors::SYNTAX),
            ("FAILOVER ABORT TIMEOUT 5", errors::SYNTAX),
            ("FAILOVER TIMEOUT 5 TIMEOUT 5", errors::SYNTAX),
        ] {
            assert_eq!(of(words), Err(error), "{words}");
        }
    }
}
