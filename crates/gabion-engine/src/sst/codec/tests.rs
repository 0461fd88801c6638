//! Codecs by themselves: every length and level, hostile bytes, and that nothing shows of what came
//! before.

use super::*;
use alloc::string::ToString;
use alloc::vec;
use gabion_base::ErrorKind;
use proptest::prelude::*;

const ID: FileId = FileId::sst(7);

/// A body of which about half compresses.
fn body(len: usize, seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |i: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (i / 16).is_multiple_of(2) { (random >> 56) as u8 } else { b'a' + (i / 64 % 7) as u8 }
    };
    (0..len).map(byte).collect()
}

/// A stored block without a true checksum: who decompresses has checked it.
fn stored(compressed: &[u8], codec: BlockCodec) -> Vec<u8> {
    [compressed, &[codec as u8], &[0; 4]].concat()
}

/// A body of few letters: each place has many earlier ones that are like it, among which an encoder
/// has to choose.
fn letters(len: usize, seed: u64) -> Vec<u8> {
    // Of a body, the noise.
    let letters = body(2 * len + 32, seed);
    let noise = letters.iter().enumerate().filter(|(i, _)| (i / 16).is_multiple_of(2));
    noise.take(len).map(|(_, byte)| b"etao"[usize::from(byte >> 6)]).collect()
}

fn round_trip(compressor: &mut Compressor, raw: &[u8]) -> Option<Vec<u8>> {
    let (compressed, codec) = compressor.compress(raw)?;
    let (compressed, mut out) = (compressed.to_vec(), vec![1; 9]);
    decompress(ID, &stored(&compressed, codec), 0, codec, &mut out).unwrap();
    assert!(out == raw);
    Some(compressed)
}

/// Every codec, and of zstd each level that searches in another way.
const CODECS: [Compression; 9] = [
    Compression::Lz4,
    Compression::Zstd { level: 1 },
    Compression::Zstd { level: 2 },
    Compression::ZSTD,
    Compression::Zstd { level: 4 },
    Compression::Zstd { level: 6 },
    Compression::Zstd { level: 11 },
    Compression::Zstd { level: 14 },
    Compression::Zstd { level: Compression::ZSTD_LEVEL_MAX },
];

/// docs/faults.md: P12
#[test]
fn a_body_survives_and_its_bytes_show_nothing_of_what_was_compressed_before() {
    let lengths = [100, 513, 4_100, 4_096, 17_000, 4_097, 70_000, 300_000, 5_000, 40_000, 600];
    for codec in CODECS {
        let mut used = Compressor::of(codec).unwrap();
        for (n, len) in lengths.into_iter().enumerate() {
            for raw in [body(len, n as u64), letters(len, n as u64)] {
                let again = round_trip(&mut used, &raw);
                let fresh = round_trip(&mut Compressor::of(codec).unwrap(), &raw);
                assert!(again == fresh, "{codec}, {len} bytes");
            }
        }
    }
}

/// docs/faults.md: P12
#[test]
fn zstd_is_smaller_than_lz4_at_every_level() {
    for len in [4 << 10, 64 << 10] {
        let raw = body(len, 1);
        let lens = CODECS
            .map(|codec| round_trip(&mut Compressor::of(codec).unwrap(), &raw).unwrap().len());
        assert!(lens[1..].iter().all(|zstd| zstd + zstd / 12 < lens[0]), "{len}: {lens:?}");
    }
}

/// docs/faults.md: P12
#[test]
fn what_saves_less_than_an_eighth_or_is_too_long_stays_as_it_is() {
    let mut random = 1u64;
    let mut noise = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    for codec in CODECS {
        let mut compressor = Compressor::of(codec).unwrap();
        let random: Vec<u8> = (0..4_000).map(|_| noise()).collect();
        assert!(compressor.compress(&random).is_none());
        assert!(compressor.compress(&[]).is_none());
        // At any ratio up to 64 KiB, up to 64 beyond.
        assert!(round_trip(&mut compressor, &[0; 64 << 10]).is_some());
        assert!(compressor.compress(&vec![0; 3 << 20]).is_none_or(|(out, _)| out.len() >= 3 << 14));
        assert!(compressor.compress(&vec![b'x'; SST_BLOCK_LEN_MAX + 1]).is_none());
    }
    assert!(Compressor::of(Compression::None).is_none());
}

/// What goes wrong with these stored bytes.
fn refused(compressed: &[u8], codec: BlockCodec) -> Error {
    let mut raw = Vec::new();
    let error = decompress(ID, &stored(compressed, codec), 4_096, codec, &mut raw).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().starts_with("000007.sst: block at 4096 "), "{error}");
    assert!(raw.capacity() <= 64 << 10, "{} bytes were reserved: {error}", raw.capacity());
    error
}

/// docs/faults.md: P12
#[test]
fn a_body_that_says_too_much_is_refused_before_memory_is_reserved() {
    let frame = |raw: &[u8]| {
        let mut compressor = Compressor::of(Compression::ZSTD).unwrap();
        compressor.compress(raw).unwrap().0[RAW_LEN..].to_vec()
    };
    let with_len = |len: u32, rest: &[u8]| [&len.to_le_bytes()[..], rest].concat();
    for codec in [BlockCodec::Lz4, BlockCodec::Zstd] {
        assert!(refused(&[1, 2, 3], codec).message().ends_with("has no raw length"));
        for len in [65_537, 4 << 20, u32::MAX] {
            let error = refused(&with_len(len, &[0; 100]), codec);
            assert!(error.message().ends_with("would be larger than its compression allows"));
        }
    }
    // A frame that is longer than the block says, shorter, cut off, or none; one of 2 GiB by its
    // own word.
    let whole = frame(&[7; 5_000]);
    let mut huge = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    huge.extend_from_slice(&[0, 0, 0, 0x80, 0x03, 0, 0, 7]);
    let cases: [(u32, &[u8]); 6] = [
        (4_999, &whole),
        (5_001, &whole),
        (5_000, &whole[..whole.len() - 1]),
        (5_000, &whole[1..]),
        (5_000, &huge),
        (5_000, &[]),
    ];
    for (len, frame) in cases {
        let error = refused(&with_len(len, frame), BlockCodec::Zstd);
        assert!(error.message().ends_with("does not decompress to its length"), "{error}");
    }
    let mut raw = Vec::new();
    let fine = stored(&with_len(5_000, &whole), BlockCodec::Zstd);
    decompress(ID, &fine, 0, BlockCodec::Zstd, &mut raw).unwrap();
    assert_eq!(raw, [7; 5_000]);
}

#[test]
fn codecs_are_written_as_they_are_read() {
    let read = |text: &str| text.parse::<Compression>();
    for codec in CODECS.into_iter().chain([Compression::None]) {
        assert_eq!(read(&codec.to_string()).unwrap(), codec);
        let encoded = codec.encode();
        assert_eq!(Compression::decode(Reader::new(&encoded, "x"), "x").unwrap(), codec);
    }
    assert_eq!(read("zstd").unwrap(), Compression::ZSTD);
    assert_eq!(Compression::ZSTD.to_string(), "zstd:3");
    for bad in ["", "gzip", "LZ4", "lz4:1", "none:0", "zstd:", "zstd:x", "zstd:+3", "zstd:256"] {
        let error = read(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(
            error.message().starts_with(&format!("`{bad}` is no codec: none, lz4,")),
            "{error}"
        );
    }
    for level in [0, 20] {
        let error = read(&format!("zstd:{level}")).unwrap_err();
        assert_eq!(
            error.message(),
            format!("codec: zstd level is {level}, the limits are 1 to 19")
        );
    }
}

/// docs/faults.md: P12
#[test]
fn a_codec_of_another_build_is_unsupported() {
    let cases: [(u16, u16, &[u8]); 8] = [
        (2, 0, b"lz4"),
        (1, 3, b"lz4"),
        (2, 3, b"zstd"),
        (1, 0, b"zstd"),
        (1, 20, b"zstd"),
        (1, 259, b"zstd"),
        (1, 0, b"brotli"),
        (1, 0, b""),
    ];
    for (version, level, name) in cases {
        let mut codec = Vec::new();
        codec.put_u16(version);
        codec.put_u16(level);
        codec.put_bytes(name);
        let error = Compression::decode(Reader::new(&codec, "x"), "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

/// docs/faults.md: P12
#[test]
#[expect(clippy::disallowed_methods, reason = "decoders go from thread to thread")]
fn decoders_are_shared_by_more_threads_than_are_kept() {
    let raw = body(9_000, 3);
    let mut compressor = Compressor::of(Compression::ZSTD).unwrap();
    let (compressed, codec) = compressor.compress(&raw).unwrap();
    let stored = stored(compressed, codec);
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut out = Vec::new();
                for _ in 0..50 {
                    decompress(ID, &stored, 0, codec, &mut out).unwrap();
                    assert!(out == raw);
                }
            });
        }
    });
}

proptest! {
    /// docs/faults.md: P12
    #[test]
    fn no_bytes_panic_or_reserve_more_than_allowed(
        len in any::<u32>(),
        noise in prop::collection::vec(any::<u8>(), 0..2_000),
        seed: u64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
    ) {
        for codec in [BlockCodec::Lz4, BlockCodec::Zstd] {
            let mut raw = Vec::new();
            let noise = stored(&[&len.to_le_bytes()[..], &noise].concat(), codec);
            let _ = decompress(ID, &noise, 0, codec, &mut raw);
            let compression =
                if codec == BlockCodec::Lz4 { Compression::Lz4 } else { Compression::ZSTD };
            let mut compressor = Compressor::of(compression).unwrap();
            let mut flipped = stored(compressor.compress(&body(4_000, seed)).unwrap().0, codec);
            for (at, bit) in &flips {
                let at = at.index(flipped.len() - BLOCK_TRAILER_LEN);
                flipped[at] ^= 1 << bit;
            }
            let _ = decompress(ID, &flipped, 0, codec, &mut raw);
            prop_assert!(raw.capacity() <= raw_len_max(noise.len().max(flipped.len())));
        }
    }
}

#[test]
fn a_block_that_is_not_compressed_is_not_undone() {
    let stored = [&7_u32.to_le_bytes()[..], b"entries", &[0; BLOCK_TRAILER_LEN]].concat();
    let error = decompress(ID, &stored, 9, BlockCodec::None, &mut Vec::new());
    assert!(format!("{}", error.unwrap_err()).contains("block at 9 is not compressed"));
}
