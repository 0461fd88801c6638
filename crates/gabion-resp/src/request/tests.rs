//! Requests read from pieces of any size: pipelines, inline commands, limits, and errors in the
//! words of Redis.

use super::*;
use crate::client::encode_request;
use crate::mangle::{change, mangle};
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;

/// A request's words, or the limit that it passed.
type Read = Result<Vec<Vec<u8>>, TooLarge>;
type Outcome = (Vec<Read>, Option<ProtocolError>);

/// The parser's results for `pieces`, handed in one after the other.
fn run<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    run_with(RequestParser::new(), pieces).0
}

/// The same by another parser; and the most bytes that the buffer held when more were needed.
fn run_with<'a>(
    mut parser: RequestParser,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Outcome, usize) {
    let (mut buffer, mut requests, mut kept) = (BytesMut::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buffer) {
                Ok(Some(Incoming::Request(request))) => {
                    requests.push(Ok(request.args.iter().map(|a| a.to_vec()).collect()))
                }
                Ok(Some(Incoming::TooLarge(large))) => requests.push(Err(large)),
                Ok(None) => break,
                Err(error) => return ((requests, Some(error)), kept),
            }
        }
        kept = kept.max(buffer.len());
    }
    ((requests, None), kept)
}

fn words(request: &[&str]) -> Read {
    Ok(request.iter().map(|word| word.as_bytes().to_vec()).collect())
}

fn bulk(len: usize) -> Vec<u8> {
    let mut out = format!("${len}\r\n").into_bytes();
    out.resize(out.len() + len, b'v');
    out.extend_from_slice(b"\r\n");
    out
}

fn error_of(input: &[u8]) -> String {
    run([input]).1.map_or_else(|| "no error".to_string(), |error| error.to_string())
}

#[test]
fn a_pipeline_of_both_kinds_of_request_is_read_in_order() {
    let input =
        b"*1\r\n$4\r\nPING\r\nSET  a 'b c'\r\n\r\n*-1\r\n*0\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\nQUIT\n";
    let expected =
        vec![words(&["PING"]), words(&["SET", "a", "b c"]), words(&["GET", ""]), words(&["QUIT"])];
    assert_eq!(run([&input[..]]), (expected, None));
}

#[test]
fn arguments_share_the_memory_of_the_read_buffer() {
    let mut buffer = BytesMut::from(&b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"[..]);
    let memory = buffer.as_ptr_range();
    let incoming = RequestParser::new().parse(&mut buffer).unwrap().unwrap();
    let Incoming::Request(request) = incoming else { panic!("{incoming:?}") };
    assert!(request.args.iter().all(|arg| memory.contains(&arg.as_ptr())));
    assert!(buffer.is_empty());
}

#[test]
fn protocol_errors_have_the_words_of_redis() {
    for (input, expected) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*1a\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n+4\r\n", "expected '$', got '+'"),
        (b"*1\r\n\x01", "expected '$', got '?'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*11111111111111111111111111111111111", "too big mbulk count string"),
        (b"*1\r\n$11111111111111111111111111111111111", "too big bulk count string"),
        (b"*1\r\n$1\r\nabc", "expected CRLF after a bulk string"),
        (b"get \"a\r\n", "unbalanced quotes in request"),
        (b"get 'a\r\n", "unbalanced quotes in request"),
        (b"get 'a'b\r\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(error_of(input), format!("Protocol error: {expected}"), "{input:?}");
    }
}

#[test]
fn every_cap_admits_its_limit_and_refuses_one_more() {
    assert_eq!(error_of(format!("*{ELEMENTS_MAX}\r\n").as_bytes()), "no error");
    let over = error_of(format!("*{}\r\n", ELEMENTS_MAX + 1).as_bytes());
    assert_eq!(
        over,
        "Protocol error: invalid multibulk length: 1048577 arguments are over the limit of 1048576"
    );
    assert!(error_of(format!("*{}\r\n", i64::MAX).as_bytes()).contains("9223372036854775807"));

    for len in [BULK_LEN_MAX, BULK_LEN_MAX + 1, BULK_LEN_DROPPED_MAX] {
        assert_eq!(error_of(format!("*1\r\n${len}\r\n").as_bytes()), "no error");
    }
    for len in [BULK_LEN_DROPPED_MAX as i64 + 1, i64::MAX] {
        let over = error_of(format!("*1\r\n${len}\r\n").as_bytes());
        let expected = format!("invalid bulk length: {len} bytes are over the limit of 536870912");
        assert_eq!(over, format!("Protocol error: {expected}"));
    }

    assert_eq!(error_of(&vec![b'a'; INLINE_LEN_MAX]), "no error");
    assert_eq!(error_of(&vec![b'a'; INLINE_LEN_MAX + 1]), "Protocol error: too big inline request");
    let mut line = vec![b'a'; INLINE_LEN_MAX + 1];
    line.push(b'\n');
    assert_eq!(error_of(&line), "Protocol error: too big inline request");
}

#[test]
fn what_is_over_a_limit_is_dropped_as_it_comes_and_the_next_request_is_read() {
    let ping = || Ok(vec![b"PING".to_vec()]);
    let large = |name: &'static str, excess| {
        Err(TooLarge { name: Bytes::from_static(name.as_bytes()), excess })
    };
    let argument = |index, count, len| Excess::Argument { index, count, len };
    let set = |value: usize| [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n", &bulk(value)[..]].concat();
    let half = bulk(REQUEST_LEN_MAX / 2);
    let longest = REQUEST_LEN_MAX as u64;
    for (request, expected) in [
        (set(BULK_LEN_MAX + 1), large("SET", argument(2, 3, BULK_LEN_MAX + 1))),
        (set(20 << 20), large("SET", argument(2, 3, 20 << 20))),
        (
            [b"*2\r\n", &bulk(9_000_000)[..], b"$1\r\na\r\n"].concat(),
            large("", argument(0, 2, 9_000_000)),
        ),
        (
            [b"*3\r\n", &half[..], &half[..], b"$1\r\nx\r\n"].concat(),
            large("", Excess::Sum { len: longest + 1 }),
        ),
        (
            [b"*4\r\n$4\r\nMSET\r\n", &half[..], &half[..], &half[..]].concat(),
            large("MSET", Excess::Sum { len: longest / 2 * 3 + 4 }),
        ),
        // The first passed limit is reported, also when a longer argument follows.
        (
            [b"*4\r\n$4\r\nMSET\r\n", &half[..], &half[..], &bulk(9_000_000)[..]].concat(),
            large("MSET", Excess::Sum { len: longest + 4 + 9_000_000 }),
        ),
    ] {
        let wire = [&request[..], b"*1\r\n$4\r\nPING\r\n"].concat();
        for chunk in [1 << 16, 1_000_003, wire.len()] {
            let (outcome, kept) = run_with(RequestParser::new(), wire.chunks(chunk));
            assert_eq!(outcome, (vec![expected.clone(), ping()], None), "{chunk}");
            assert!(kept <= REQUEST_LEN_MAX + 64, "{kept} bytes were kept");
        }
    }
    let whole = [b"*3\r\n", &half[..], &half[..], b"$0\r\n\r\n"].concat();
    assert!(run([&whole[..]]).0[0].is_ok(), "the limits themselves are admitted");
    let (_, kept) = run_with(RequestParser::new(), set(20 << 20).chunks(1000));
    assert!(kept <= 1000, "{kept} bytes of an argument that is too long were kept");
}

#[test]
fn what_is_dropped_must_keep_to_the_protocol_too() {
    let start =
        [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8388609\r\n", &vec![b'v'; 8_388_609][..]].concat();
    assert_eq!(error_of(&start), "no error");
    let error = error_of(&[&start[..], b"xx"].concat());
    assert_eq!(error, "Protocol error: expected CRLF after a bulk string");
    let start = [&bulk(8_388_609)[..], b"$1\r\nx\r\n"].concat();
    for (next, expected) in [
        (&b"+1\r\n"[..], "expected '$', got '+'"),
        (b"$-1\r\n", "invalid bulk length"),
        (b"$536870913\r\n", "invalid bulk length: 536870913 bytes are over the limit of 536870912"),
    ] {
        let error = error_of(&[b"*3\r\n", &start[..], next].concat());
        assert_eq!(error, format!("Protocol error: {expected}"));
    }
}

#[test]
fn a_parser_says_how_much_of_a_long_argument_is_missing() {
    let mut buffer = BytesMut::from(&b"*1\r\n$1000\r\nabc"[..]);
    let mut parser = RequestParser::new();
    assert_eq!(parser.wanted(buffer.len()), 0);
    assert_eq!(parser.parse(&mut buffer), Ok(None));
    assert_eq!(parser.wanted(buffer.len()), 1000 + 2 - 3);
    let mut buffer = BytesMut::from(&b"*1\r\n$8388609\r\nabc"[..]);
    let mut parser = RequestParser::new();
    assert_eq!(parser.parse(&mut buffer), Ok(None));
    assert_eq!((parser.wanted(buffer.len()), buffer.len()), (0, 0), "nothing of it is kept");
}

#[test]
fn inline_words_are_split_and_unescaped_as_redis_does() {
    for (line, expected) in [
        (r#"a "b c" 'd e'"#, vec!["a", "b c", "d e"]),
        (r#""\x41\n\r\t\a\b\q\"""#, vec!["A\n\r\t\x07\x08q\""]),
        (r"'it\'s' '\n'", vec!["it's", r"\n"]),
        (r#"a"b c""#, vec!["ab c"]),
        (r#""""#, vec![""]),
        (r#""\xzz""#, vec!["xzz"]),
        ("\t a\t\x0bb ", vec!["a", "b"]),
    ] {
        let (requests, error) = run([line.as_bytes(), b"\r\n"]);
        assert_eq!((requests, error), (vec![words(&expected)], None), "{line}");
    }
}

/// Bytes that look like the protocol more often than chance would have it.
fn protocol_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"\r\n".to_vec()),
        2 => (0..6_u32).prop_map(|n| format!("*{n}\r\n").into_bytes()),
        4 => "[a-z]{0,5}".prop_map(|s| format!("${}\r\n{s}\r\n", s.len()).into_bytes()),
        1 => (-2..99_i64).prop_map(|n| format!("${n}").into_bytes()),
        1 => "[ -~]{0,8}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn where_the_input_is_split_does_not_matter(
        input in protocol_like(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = run([&input[..]]);
        prop_assert_eq!(&run(input.chunks(1)), &whole);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        ends.push(input.len());
        ends.sort_unstable();
        let mut start = 0;
        let pieces = ends.into_iter().map(|end| {
            let piece = &input[start..end];
            start = end;
            piece
        });
        prop_assert_eq!(&run(pieces), &whole);
    }

    /// With short limits, so that most requests are over one of them. The outcome depends on no
    /// split, no dropped byte is kept, and the lengths alone decide which requests are dropped.
    /// docs/faults.md: E14
    #[test]
    fn requests_over_limits_are_dropped_in_the_same_way_wherever_they_are_split(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..14), 1..6), 1..6),
        changes in prop::collection::vec(change(), 0..3),
        chunk in 1..40_usize,
    ) {
        let caps = || RequestParser::with_caps(8, 20, 12);
        let mut wire = Vec::new();
        requests.iter().for_each(|request| encode_request(request, &mut wire));
        let (whole, _) = run_with(caps(), [&wire[..]]);
        for (request, read) in requests.iter().zip(&whole.0) {
            let fits = request.iter().all(|word| word.len() <= 8);
            let fits = fits && request.iter().map(Vec::len).sum::<usize>() <= 20;
            prop_assert_eq!(read.is_ok(), fits, "{:?}: {:?}", request, read);
        }
        let ends = requests.iter().position(|request| request.iter().any(|word| word.len() > 12));
        prop_assert_eq!(whole.0.len(), ends.unwrap_or(requests.len()));
        prop_assert_eq!(whole.1.is_some(), ends.is_some());
        let mangled = mangle(&wire, &changes);
        for wire in [&wire, &mangled] {
            let (whole, _) = run_with(caps(), [&wire[..]]);
            prop_assert_eq!(&run_with(caps(), wire.chunks(1)).0, &whole);
            prop_assert_eq!(&run_with(caps(), wire.chunks(chunk)).0, &whole);
            for cut in 0..wire.len() {
                let (start, end) = wire.split_at(cut);
                prop_assert_eq!(&run_with(caps(), [start, end]).0, &whole);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(input in prop::collection::vec(any::<u8>(), 0..300)) {
        run([&input[..]]);
    }

    /// Pipelines with changed counts and lengths, and with lines repeated, left out, exchanged or
    /// cut. Their outcome does not depend on the split either, and the parser waits for no more
    /// than a request may have.
    /// docs/faults.md: E14
    #[test]
    fn mangled_pipelines_never_panic_and_never_depend_on_the_split(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5), 1..5),
        changes in prop::collection::vec(change(), 1..6),
        chunk in 1..40_usize,
    ) {
        let mut wire = Vec::new();
        requests.iter().for_each(|request| encode_request(request, &mut wire));
        let wire = mangle(&wire, &changes);
        prop_assert_eq!(run(wire.chunks(chunk)), run([&wire[..]]));
        let (mut parser, mut buffer) = (RequestParser::new(), BytesMut::from(&wire[..]));
        while let Ok(Some(_)) = parser.parse(&mut buffer) {}
        let wanted = parser.wanted(buffer.len());
        prop_assert!(wanted <= BULK_LEN_MAX + 2, "{} bytes would be reserved", wanted);
    }

    #[test]
    fn what_a_client_encodes_is_what_the_server_reads(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..9), 0..9),
    ) {
        let mut wire = Vec::new();
        requests.iter().for_each(|request| encode_request(request, &mut wire));
        let requests = requests.into_iter().map(Ok).collect::<Vec<_>>();
        prop_assert_eq!(run([&wire[..]]), (requests, None));
    }
}
