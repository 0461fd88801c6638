//! The interaction language: `tests/interaction/*.txt` hold commands and, below `----`, everything
//! that the nodes did. `GABION_REWRITE=1` writes what they did in place of what was expected.
//!
//! ```text
//!   cluster N [window=BYTES] [leases]   a new cluster of N stopped nodes; with a clock of promises
//!   start N… | kill N… | power-cut N…
//!   connect A-B… | connect all | break A-B… (nothing more is heard) | sever A-B (what was sent arrives)
//!   settle                        deliver, work and read until nothing is left
//!   deliver A->B [COUNT]          frames on their way from A to B, oldest connection first
//!   work N [COUNT] | read N       log work (place, truncate, adopt), a read of the log
//!   append COUNT [len=BYTES]      at the head
//!   durable N… | flush N… | trim N…
//!   tick MS                       time passes, every node is told
//!   keep A->B NAME                remember the next frame from A to B without delivering it
//!   replay NAME [old]             hand it in again on the current connection (`old`: as it was)
//!   move N… to A,B,C              the next configuration, whose members stand in this order, is told to N…
//!   move N… to A,B+C              the same, with C as a member that is being filled
//!   amnesia N                     the node's disk and ring are empty again (N is stopped)
//!   rot N POSITION                the record there is not whole, and the log ends there (N is stopped)
//!   fail N REASON                 the device fails the next read of the node's log (`rotten`: its bytes are bad)
//!   flip A->B                     a bit flips in the next records on their way
//!   status                        every node's log, commit and readiness
//!   quiet COMMAND                 the same, with only the last state of readiness shown
//! ```

use super::cluster::{Cluster, describe};
use crate::Frame;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, ReplicaId};
use std::path::PathBuf;

struct Script {
    cluster: Cluster,
    kept: BTreeMap<String, Frame>,
}

impl Script {
    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (command, rest) = words.split_first().expect("a command");
        self.cluster.is_tracing = true;
        self.cluster.trace.clear();
        let mut out = String::new();
        match *command {
            "quiet" => {
                self.run(&rest.join(" "));
                return self.status();
            }
            "cluster" => {
                self.cluster = Cluster::new(number(rest[0]) as u32);
                self.cluster.has_leases = rest.contains(&"leases");
                if let Some(window) = option(rest, "window") {
                    self.cluster.window_bytes = window;
                }
                self.kept.clear();
            }
            "status" => out = self.status(),
            "move" => self.move_head(rest),
            "settle" => assert!(self.cluster.settle(), "the cluster does not come to rest"),
            "tick" => self.cluster.tick(number(rest[0])),
            "append" => {
                for _ in 0..number(rest[0]) {
                    if !self.cluster.append(option(rest, "len").unwrap_or(40)) {
                        out.push_str("(refused)\n");
                    }
                }
            }
            "keep" | "replay" | "deliver" | "flip" | "connect" | "break" | "sever" => {
                self.network(command, rest);
            }
            _ => self.node_command(command, rest),
        }
        let trace = self.cluster.trace.join("\n");
        if trace.is_empty() { out } else { format!("{out}{trace}\n") }
    }

    fn move_head(&mut self, rest: &[&str]) {
        let (order, told) = rest.split_last().expect("an order");
        let ids =
            |list: &str| -> Vec<u32> { list.split(',').map(|id| number(id) as u32).collect() };
        let view = match order.split_once('+') {
            None => self.cluster.next_view(&ids(order), &[]),
            Some((full, filled)) => self.cluster.next_view(&ids(full), &ids(filled)),
        };
        for id in told.iter().filter(|word| **word != "to") {
            self.cluster.take_view(number(id) as u32, view.clone());
        }
    }

    fn node_command(&mut self, command: &str, rest: &[&str]) {
        if matches!(command, "work" | "fail" | "rot") {
            let id = number(rest[0]) as u32;
            if command == "rot" {
                return self.cluster.rot(id, number(rest[1]));
            }
            if command == "fail" {
                let reason = rest[1..].join(" ");
                let error = match rest[1] {
                    "rotten" => Error::corruption(reason),
                    _ => Error::new(ErrorKind::Io, reason),
                };
                assert!(self.cluster.fail_read(id, error), "nothing to read");
                return;
            }
            for _ in 0..rest.get(1).map_or(1, |w| number(w)) {
                self.cluster.work(id);
            }
            return;
        }
        for word in rest {
            let id = number(word) as u32;
            match command {
                "start" => self.cluster.start(id),
                "kill" => self.cluster.kill(id, true),
                "power-cut" => self.cluster.kill(id, false),
                "read" => assert!(self.cluster.answer_read(id), "nothing to read"),
                "durable" => self.cluster.make_durable(id),
                "flush" => self.cluster.flush(id),
                "trim" => self.cluster.trim(id),
                "amnesia" => self.cluster.wipe(id),
                other => panic!("unknown command {other}"),
            }
        }
    }

    fn network(&mut self, command: &str, rest: &[&str]) {
        if command == "replay" {
            let mut frame = self.kept[rest[0]].clone();
            let (from, to) = (frame.from.get(), frame.to.get());
            let (i, side) = self.find(from, to);
            let ends = self.cluster.connections[i].ends;
            if rest.get(1) != Some(&"old") {
                frame.connection = ends[side].1;
            }
            self.cluster.hand_in(to, i, ends[1 - side].1, frame);
            return;
        }
        if rest == ["all"] {
            self.cluster.connect_all();
            return;
        }
        if matches!(command, "keep" | "deliver" | "flip") {
            let (a, b) = rest[0].split_once("->").unwrap();
            let (i, side) = self.find(number(a) as u32, number(b) as u32);
            if command == "flip" {
                assert!(self.cluster.flip(i, side, 300), "no records on their way");
                return;
            }
            if command == "keep" {
                let next = self.cluster.connections[i].queues[side][0].clone().unwrap();
                self.kept.insert(rest[1].to_string(), Frame::decode(&next).unwrap());
                return;
            }
            for _ in 0..rest.get(1).map_or(1, |w| number(w)) {
                assert!(self.cluster.deliver(i, side), "nothing to deliver");
            }
            return;
        }
        for pair in rest {
            let (a, b) = pair.split_once('-').unwrap();
            let (a, b) = (number(a) as u32, number(b) as u32);
            if command == "connect" {
                self.cluster.connect(a, b);
                continue;
            }
            let (i, _) = self.find(a, b);
            let keep = if command == "break" { 0 } else { usize::MAX };
            self.cluster.break_connection(i, keep);
        }
    }

    fn find(&self, from: u32, to: u32) -> (usize, usize) {
        let side = |c: &super::cluster::Connection| {
            let side = c.ends.iter().position(|e| e.0 == from)?;
            (c.ends[1 - side].0 == to).then_some(side)
        };
        let mut all = self.cluster.connections.iter().enumerate();
        all.find_map(|(i, c)| Some((i, side(c)?))).expect("a connection")
    }

    fn status(&mut self) -> String {
        let mut out = String::new();
        for node in &self.cluster.nodes {
            let records: Vec<_> = node.records.values().map(describe).collect();
            let state = match &node.chain {
                None => "stopped".to_string(),
                Some(chain) => format!(
                    "{} {} commit {} {}{}",
                    role(node),
                    chain.term(),
                    chain.commit(),
                    chain.not_ready_reason().unwrap_or("ready"),
                    if chain.is_readable() { ", readable" } else { "" }
                ),
            };
            out.push_str(&format!("{} {state} [{}]\n", node.id, records.join(", ")));
        }
        out
    }
}

/// A node's place in its view.
fn role(node: &super::cluster::Node) -> &'static str {
    let (me, view) = (ReplicaId(node.id), &node.view);
    match (view.writer() == me, view.reader() == me) {
        _ if view.place_of(me).is_none() => "Left out",
        (true, _) => "Head",
        (_, true) => "Tail",
        _ if view.has_full(me) => "Middle",
        _ => "Filled",
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn option(words: &[&str], name: &str) -> Option<u64> {
    words.iter().find_map(|w| w.strip_prefix(name)?.strip_prefix('=')).map(number)
}

/// Runs one file and returns it with the trace in place of the expected text.
fn run_file(text: &str) -> String {
    let mut script = Script { cluster: Cluster::new(1), kept: BTreeMap::new() };
    let mut out = String::new();
    let mut is_expected = false;
    for line in text.lines() {
        if is_expected {
            is_expected = !line.is_empty();
            continue;
        }
        if line == "----" {
            is_expected = true;
            continue;
        }
        out.push_str(line);
        out.push('\n');
        if !line.is_empty() && !line.starts_with('#') {
            let happened = script.run(line);
            out.push_str(&format!("----\n{happened}\n"));
        }
    }
    out
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tests read and rewrite their data files")]
fn every_interaction_goes_as_it_is_written() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/interaction");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 17, "only {} interaction files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).unwrap();
        let happened = run_file(&expected);
        if happened == expected {
            continue;
        }
        if std::env::var_os("GABION_REWRITE").is_some() {
            std::fs::write(&file, happened).unwrap();
            continue;
        }
        let pairs = expected.lines().zip(happened.lines()).enumerate();
        let first = pairs.into_iter().find(|(_, (e, h))| e != h);
        wrong.push(format!("{}: first difference {first:?}", file.display()));
    }
    assert!(wrong.is_empty(), "GABION_REWRITE=1 rewrites: {wrong:#?}");
}
