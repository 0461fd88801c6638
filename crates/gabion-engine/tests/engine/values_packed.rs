//! Values that were packed before they were logged: whoever reads gets what was written, from
//! memory, from a table, from a values file, and after compactions moved them.

use crate::support::*;
use crate::values::{LARGE, Store, config, dump, values_file};
use gabion_base::{ErrorKind, GroupId, Result, SequenceNumber, Term};
use gabion_engine::*;
use gabion_media::AlignedBuf;
use std::rc::Rc;

const CODECS: [Compression; 2] = [Compression::Lz4, Compression::ZSTD];

/// Writes a value as the head does: packed where that is worth it. Returns whether it is.
fn put(store: &mut Store, codec: Compression, name: &str, value: &[u8], at: Option<u64>) -> bool {
    let mut packer = Packer::of(codec).unwrap();
    let packed = packer.pack(value);
    store.write(|batch| {
        let (user, name) = (Keyspace::User, name.as_bytes());
        match (packed, at) {
            (Some(packed), at) => _ = batch.put_packed(user, name, packed, at).unwrap(),
            (None, Some(at)) => _ = batch.put_expiring(user, name, value, at).unwrap(),
            (None, None) => batch.put(user, name, value).unwrap(),
        }
    });
    packed.is_some()
}

/// A hundred bytes of noise, some times.
fn text(n: u64) -> Vec<u8> {
    let mut random = Random::new(n);
    let noise: Vec<u8> = (0..100).map(|_| random.next() as u8).collect();
    noise.repeat(5)
}

/// All that a reader can ask for is what was written.
fn check(store: &Store, wanted: &[(String, Vec<u8>, Option<u64>)]) {
    let view = store.replica.tree.view();
    let cold = Tables { cache: Rc::new(LocalCache::new(0)), ..tables(&store.replica.files) };
    let names: Vec<_> = wanted.iter().map(|(name, ..)| key(name.as_bytes())).collect();
    for tables in [&store.replica.tables, &cold, &store.replica.tables] {
        for (name, (_, value, at)) in names.iter().zip(wanted) {
            let found = block_on(view.look_up(tables, name)).unwrap().unwrap();
            assert_eq!((&found.value[..], found.expires_ms), (&value[..], *at));
            let found = block_on(view.look_up_len(tables, name)).unwrap().unwrap();
            assert_eq!((found.len, found.expires_ms), (value.len(), *at));
        }
        let give = |at: usize, found: Result<Option<Found>>| {
            assert_eq!(found.unwrap().unwrap().value, wanted[at].1);
            Ok(())
        };
        block_on(view.look_up_many(tables, &names, give)).unwrap();
        let give = |at: usize, found: Result<Option<FoundLen>>| {
            assert_eq!(found.unwrap().unwrap().len, wanted[at].1.len());
            Ok(())
        };
        block_on(view.look_up_len_many(tables, &names, give)).unwrap();
        let mut there = view.scan(tables, &[], None);
        let mut back = view.scan(tables, &[], None);
        let mut keys = view.scan(tables, &[], None).of_keys();
        for (name, value, at) in wanted {
            assert!(
                block_on(there.go(Move::Next)).unwrap() && block_on(keys.go(Move::Next)).unwrap()
            );
            assert_eq!(there.key().unwrap(), key(name.as_bytes()));
            assert_eq!((there.value().unwrap(), there.expires_ms()), (&value[..], *at));
            assert_eq!((there.key(), keys.expires_ms()), (keys.key(), *at));
        }
        for (_, value, at) in wanted.iter().rev() {
            assert!(
                block_on(back.go(Move::Prev)).unwrap() || block_on(back.go(Move::Last)).unwrap()
            );
            assert_eq!((back.value().unwrap(), back.expires_ms()), (&value[..], *at));
        }
    }
}

#[test]
fn packed_values_are_read_as_they_were_written_wherever_they_lie() {
    for codec in CODECS {
        let mut store = Store::new(config());
        let mut wanted = Vec::new();
        for n in 0..60_u64 {
            let (name, at) = (format!("k{n:02}"), (n % 4 == 1).then_some(1_000 + n));
            let value = if n % 5 == 2 { b"small".to_vec() } else { text(n) };
            assert_eq!(put(&mut store, codec, &name, &value, at), n % 5 != 2, "{codec}");
            if n == 7 {
                let operand = Operand::add(3, 0);
                store
                    .write(|batch| batch.merge(Keyspace::User, b"k07", operand).map(drop).unwrap());
            }
            wanted.push((name, value, at));
        }
        check(&store, &wanted);
        let recipe = store.flush();
        assert_eq!((recipe.large_from, store.stats().files), (LARGE, 1), "{codec}");
        let raw: usize = wanted.iter().map(|(_, value, _)| value.len()).sum();
        assert!(store.stats().value_bytes < raw as u64 / 3, "{:?} of {raw}", store.stats());
        check(&store, &wanted);
        // Later flushes make garbage, until the values move to another file.
        let mut moved = 0;
        for round in 0..6 {
            for n in (0..60).filter(|n| (n + round) % 3 > 0) {
                let value = text(100 * round + n);
                put(&mut store, codec, &format!("k{n:02}"), &value, None);
                (wanted[n as usize].1, wanted[n as usize].2) = (value, None);
            }
            store.flush();
            moved += store.compact().iter().filter(|recipe| !recipe.emptied.is_empty()).count();
            check(&store, &wanted);
        }
        assert!(moved > 0, "{codec}");
    }
}

#[test]
fn few_packed_values_stay_in_their_tables_and_expire_there() {
    for codec in CODECS {
        let mut store = Store::new(config());
        put(&mut store, codec, "a", &text(1), Some(500));
        put(&mut store, codec, "b", &text(2), None);
        assert_eq!(store.flush().large_from, 0);
        assert_eq!(store.stats().files, 0);
        let wanted = [("a", 1, Some(500)), ("b", 2, None)];
        let wanted = wanted.map(|(name, n, at)| (name.to_owned(), text(n), at));
        check(&store, &wanted);
        store.apply(&Record::Time(500));
        check(&store, &wanted[1..]);
        assert_eq!(store.get("a"), None);
        store.put("b2", b"x");
        store.flush();
        store.compact();
        assert_eq!(store.get("b").as_deref(), Some(&text(2)[..]));
    }
}

/// The same batch, with other bytes for what a codec made.
fn broken_batch() -> Vec<u8> {
    let mut batch = BatchBuilder::new();
    let mut packer = Packer::of(Compression::Lz4).unwrap();
    let value = text(5);
    let packed = packer.pack(&value).unwrap();
    _ = batch.put_packed(Keyspace::User, b"k", packed, None).unwrap();
    let mut bytes = batch.finish();
    let at = bytes.len() - packed.len() + 5;
    bytes[at..].fill(0xff);
    bytes
}

/// docs/faults.md: E5
#[test]
fn bytes_that_cannot_be_unpacked_are_told_with_their_place() {
    let mut store = Store::new(TreeConfig { memtable_len: 4 << 10, ..config() });
    let first = store.replica.tree.last_sequence().next();
    store.apply(&Record::Batch(first, broken_batch()));
    let read = |store: &Store| {
        let view = store.replica.tree.view();
        let error = block_on(view.get(&store.replica.tables, &key(b"k"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        let mut iterator = view.scan(&store.replica.tables, &[], None);
        assert!(block_on(iterator.next()).is_err());
        error.message().to_owned()
    };
    assert!(read(&store).contains("packed value"), "{}", read(&store));
    (0..40)
        .for_each(|n| _ = put(&mut store, Compression::Lz4, &format!("l{n:02}"), &text(n), None));
    store.flush();
    let [file] = store.values_files()[..] else { panic!("one values file") };
    assert!(read(&store).starts_with(&format!("{file} at offset ")), "{}", read(&store));
    assert_eq!(store.get("l07").as_deref(), Some(&text(7)[..]), "others are whole");
}

#[test]
fn a_batch_with_packed_values_is_checked_when_it_is_read() {
    let mut batch = BatchBuilder::new();
    let mut packer = Packer::of(Compression::Lz4).unwrap();
    let (kind, stored) = batch
        .put_packed(Keyspace::User, b"k", packer.pack(&[b'a'; 100]).unwrap(), Some(9))
        .unwrap();
    assert_eq!(kind, EntryKind::ExpiringPackedPut);
    assert_eq!(stored, b"\x09\0\0\0\0\0\0\0\x01\x64\0\0\0\x1fa\x01\0\x4a\x60aaaaaa");
    let bytes = batch.finish();
    assert_eq!(bytes[..4], *b"\x0b\x02\x01k");
    let read =
        |bytes: &[u8]| BatchReader::new(bytes).collect::<Result<Vec<_>>>().map(|all| all.len());
    assert_eq!(read(&bytes).unwrap(), 1);
    let at = bytes.len() - stored_len(&bytes) + 8;
    for (place, byte, kind) in [
        (at, 0, ErrorKind::Unsupported),
        (at, 7, ErrorKind::Unsupported),
        (at + 1, 5, ErrorKind::Corruption),
        (at + 4, 1, ErrorKind::Corruption),
    ] {
        let mut other = bytes.clone();
        other[place] = byte;
        let error = read(&other).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains("batch: byte 0"), "{error}");
    }
}

/// The length of the value of a batch with one operation on a key of one byte.
fn stored_len(batch: &[u8]) -> usize {
    batch[4] as usize
}

/// docs/faults.md: R15
#[test]
fn a_values_file_with_packed_values_has_these_bytes() {
    let id = values_file(7);
    let buffer = AlignedBuf::with_capacity(4096);
    let mut builder = ValuesBuilder::in_buffer(GroupId(1), id, Term(3), buffer);
    let trailer = |n, kind| Trailer::new(SequenceNumber(n), kind);
    let mut packer = Packer::of(Compression::Lz4).unwrap();
    let value: Vec<u8> = (0..=255).chain(0..=255).chain(0..=255).collect();
    let packed = packer.pack(&value).unwrap();
    let stored = [&[packed.codec() as u8], packed.rest()].concat();
    let len = value.len() as u32;
    builder.add(b"\x01apple", trailer(12, EntryKind::PackedPut), &stored, len);
    builder.add(b"\x01pear", trailer(11, EntryKind::ExpiringPointer), &stored, len);
    let file = builder.finish();
    assert_eq!(
        dump(&file.bytes[..file.meta.len as usize]),
        include_str!("golden/values_packed.hex")
    );
    let records = ValueRecords::new(&file.bytes, GroupId(1), &file.meta).unwrap();
    let records: Vec<_> = records.map(Result::unwrap).collect();
    let kinds = [EntryKind::PackedPut, EntryKind::ExpiringPackedPut];
    for (record, kind) in records.iter().zip(kinds) {
        assert_eq!((record.trailer.kind(), record.pointer.raw_len), (kind, len));
        record.pointer.check(record.value).unwrap();
        assert_eq!(packed::unpack_at(&record.pointer, stored.clone().into()).unwrap(), value);
    }
}
