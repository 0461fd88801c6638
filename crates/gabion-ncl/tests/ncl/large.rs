//! A file beyond 4 GiB. Memory and images are pages; only those that were written are there.

use crate::peers::Random;
use gabion_base::{ErrorKind, Result, Term};
use gabion_control::store::MemoryStore;
use gabion_control::{Store, Version};
use gabion_media::MemoryRegion;
use gabion_media::remote::peer::Gate;
use gabion_media::remote::{
    ClientId, ConnectionGeneration, Incarnation, Key, LentMemory, Peer, PeerConfig, PeerId,
    RegionId, Reply, Request, Supply,
};
use gabion_ncl::map::{PeerRecord, peer_name};
use gabion_ncl::{
    Application, Command, FileNumber, Image, Images, Metadata, Number, Options, Output, Sizes,
};
use std::collections::{BTreeMap, VecDeque};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

/// Bytes, of which those that are zeros take no memory.
#[derive(Debug, Default)]
struct Sparse {
    len: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Sparse {
    /// Calls with the page, the place in it, and the range of the bytes.
    fn each(offset: u64, len: usize, mut call: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut at = 0;
        while at < len {
            let place = ((offset + at as u64) % PAGE) as usize;
            let end = len.min(at + PAGE as usize - place);
            call((offset + at as u64) / PAGE, place, at..end);
            at = end;
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        Self::each(offset, data.len(), |page, place, range| {
            let data = &data[range];
            let is_zero = data.iter().fold(0, |all, byte| all | byte) == 0;
            if is_zero && !self.pages.contains_key(&page) {
                return;
            }
            let page = self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            page[place..][..data.len()].copy_from_slice(data);
        });
    }

    fn get(&self, offset: u64, into: &mut [u8]) {
        let len = into.len();
        Self::each(offset, len, |page, place, range| match self.pages.get(&page) {
            Some(page) => into[range.clone()].copy_from_slice(&page[place..][..range.len()]),
            None => into[range].fill(0),
        });
    }
}

impl Image for Sparse {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.len = self.len.max(offset + data.len() as u64);
        self.put(offset, data);
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.get(offset, into);
        Ok(())
    }

    fn resize(&mut self, len: u64) -> Result<()> {
        assert!(len >= self.len, "nothing is cut off here");
        self.len = len;
        Ok(())
    }
}

impl MemoryRegion for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.put(offset, data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.get(offset, into);
    }
}

impl LentMemory for Sparse {
    fn zero(&mut self, offset: u64, len: u64) {
        assert!(offset == 0 || len <= self.len, "a region is zeroed from its beginning");
        self.pages.clear();
    }

    fn bring_in(&mut self, _: u64, _: u64) {}

    fn close(&mut self) {}

    fn is_shared(&self) -> bool {
        false
    }

    fn share(&mut self, _: RegionId, _: bool) -> Option<Gate> {
        None
    }
}

struct Pages(Random);

impl Supply for Pages {
    type Memory = Sparse;

    fn make(&mut self, len: u64) -> Option<Sparse> {
        Some(Sparse { len, ..Sparse::default() })
    }

    fn key(&mut self) -> Key {
        Key(u128::from(self.0.number()))
    }
}

struct Mirrors;

impl Images for Mirrors {
    type Image = Sparse;

    fn create(&mut self, _: FileNumber) -> Result<Sparse> {
        Ok(Sparse::default())
    }
}

/// Three peers and a store, which answer at once.
struct Room {
    peers: BTreeMap<PeerId, Peer<Pages>>,
    store: MemoryStore,
    now_ms: u64,
}

impl Room {
    fn new() -> Self {
        let (mut peers, mut store) = (BTreeMap::new(), MemoryStore::default());
        for id in 1..=3 {
            let (peer, incarnation, free_bytes) = (PeerId(id), Incarnation(1), 64 * GIB);
            let config = PeerConfig::new(peer, incarnation, free_bytes);
            let config = PeerConfig { ready_bytes: 0, ..config };
            peers.insert(peer, Peer::new(config, Pages(Random(id))).expect("limits make sense"));
            let (domain, address) = (format!("rack {id}"), String::new());
            let record = PeerRecord { incarnation, free_bytes, domain, address };
            store.swap(&peer_name(peer), Version::NONE, &record.encode()).expect("it is stored");
        }
        Self { peers, store, now_ms: 1_000 }
    }

    fn start(&mut self, instance: u64) -> Application<Mirrors> {
        let sizes = Sizes { part_max: 2 * GIB, ..Sizes::default() };
        let options = Options { takes_over: true, sizes, ..Options::new("app", instance) };
        let mut application = Application::new(options, Mirrors, self.now_ms).expect("valid");
        while !application.is_ready().expect("nobody else runs") {
            self.turn(&mut application, instance);
        }
        application
    }

    /// Does all that the application wants.
    fn turn(&mut self, application: &mut Application<Mirrors>, instance: u64) {
        self.now_ms += 10;
        application.handle_time(self.now_ms);
        let mut replies = VecDeque::new();
        loop {
            while let Some(output) = application.poll_output() {
                match output {
                    Output::Send { peer, term, command } => {
                        replies.push_back((peer, self.ask(peer, instance, term, &command)));
                    }
                    Output::Store { asker, operation } => {
                        let reply = operation.run(&mut self.store);
                        application.handle_store(self.now_ms, asker, reply);
                    }
                    Output::Connect { .. } => {}
                    Output::Disconnect { peer, error } => panic!("{peer}: {error}"),
                }
            }
            let Some((peer, reply)) = replies.pop_front() else { return };
            application.handle_reply(self.now_ms, peer, reply);
        }
    }

    fn ask(&mut self, peer: PeerId, client: u64, term: Term, command: &Command) -> Reply {
        let (client, peer) = (ClientId(client), self.peers.get_mut(&peer).expect("it is there"));
        let generation = ConnectionGeneration(1);
        command.with_request("app", term, client, &[], |request| match request {
            Request::Hello { token, .. } => peer.greet(client, generation, token),
            request => peer.handle(client, &request),
        })
    }

    fn make<T>(
        &mut self,
        application: &mut Application<Mirrors>,
        mut call: impl FnMut(&mut Application<Mirrors>) -> Result<T>,
    ) -> T {
        loop {
            match call(application) {
                Err(error) if error.kind() == ErrorKind::Busy => self.turn(application, 1),
                done => return done.expect("there is room"),
            }
        }
    }
}

/// docs/faults.md: N9
#[test]
fn bytes_beyond_4_gib_are_recovered_at_their_places() {
    let written: [(u64, &[u8]); 5] = [
        (7, b"the beginning"),
        (4 * GIB - 3, b"over 4 GiB"),
        (5 * GIB - 2, b"over the border of two parts and on"),
        (5 * GIB + 1_000, b"the end"),
        (GIB + 5, b"over what would be one place in 32 bits"),
    ];
    let mut room = Room::new();
    let mut first = room.start(1);
    let file = room.make(&mut first, |it| it.create("big.log", Metadata::default()));
    for (offset, data) in written {
        let number = room.make(&mut first, |it| it.write(file, offset, data));
        room.turn(&mut first, 1);
        assert!(first.check(number).expect("it runs") && number > Number::ZERO);
    }
    drop(first);
    let second = room.start(2);
    let file = second.find("big.log").expect("it runs").expect("it is there");
    assert_eq!(second.stat(file).expect("it is there").len, 5 * GIB + 1_007);
    for (offset, data) in written {
        let mut found = vec![1; data.len() + 8];
        let len = second.read(file, offset, &mut found).expect("it is there");
        assert_eq!(&found[..data.len()], data, "at {offset}");
        assert!(found[data.len()..len].iter().all(|byte| *byte == 0), "behind {offset}");
    }
    let image = second.image(file).expect("it is there");
    assert!(image.pages.len() <= 7, "{} pages have bytes", image.pages.len());
}
