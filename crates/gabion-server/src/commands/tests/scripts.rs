//! EVAL and its kin: what scripts can do, what they cannot, and what clients of Redis expect of them.

use super::support::{Client, FixedHost, Node, request, request_of};
use crate::commands::Step;
use crate::commands::scripts::KEPT_TOGETHER_MAX;
use core::future::Future;
use core::task::{Context, Poll, Waker};
use gabion_resp::{Protocol, Reply};

/// The reply to a request of these words.
fn ask(client: &mut Client, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = client.reply(request_of(&words));
    let mut out = Vec::new();
    reply.encode(client.session.protocol(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// The reply to a script without keys, of a new node.
fn eval(script: &str) -> String {
    ask(&mut Node::new().client(), &["EVAL", script, "0"])
}

fn digest(script: &str) -> String {
    let reply = ask(&mut Node::new().client(), &["SCRIPT", "LOAD", script]);
    reply.lines().nth(1).unwrap().to_owned()
}

const VALUES: &[(&str, &str)] = &[
    ("return 'hello'", "$5\r\nhello\r\n"),
    ("return 100.9", ":100\r\n"),
    ("return -3.9", ":-3\r\n"),
    ("return true", ":1\r\n"),
    ("return false", "$-1\r\n"),
    ("return nil", "$-1\r\n"),
    ("return", "$-1\r\n"),
    ("return {ok='fine'}", "+fine\r\n"),
    ("return {err='this is an error'}", "-this is an error\r\n"),
    (
        "return {1,2,3.7,'ciao',{1,{}},nil,4}",
        "*5\r\n:1\r\n:2\r\n:3\r\n$4\r\nciao\r\n*2\r\n:1\r\n*0\r\n",
    ),
    ("return {1,false,true}", "*3\r\n:1\r\n$-1\r\n:1\r\n"),
    ("return {KEYS, ARGV}", "*2\r\n*0\r\n*0\r\n"),
    ("return {double=3.25}", "$4\r\n3.25\r\n"),
    ("return {map={a=1}}", "*2\r\n$1\r\na\r\n:1\r\n"),
    (
        "return print",
        "-ERR user_script:1: Script attempted to access nonexistent global variable 'print' script: 7ad8ac1ee8e9d5cea4c1ed0f3af1ed3d8d1e8ab0, on @user_script:1.\r\n",
    ),
    ("return redis.call", "$-1\r\n"),
    ("return redis.status_reply('YES')", "+YES\r\n"),
    ("return redis.error_reply('MY error')", "-MY error\r\n"),
    ("return redis.error_reply('-MY error')", "-MY error\r\n"),
    ("return redis.error_reply('error')", "-ERR error\r\n"),
    ("return redis.sha1hex('')", "$40\r\nda39a3ee5e6b4b0d3255bfef95601890afd80709\r\n"),
    ("return redis.REDIS_VERSION", "$5\r\n7.4.0\r\n"),
    ("return redis.replicate_commands()", ":1\r\n"),
    ("return {redis.LOG_DEBUG, redis.LOG_WARNING}", "*2\r\n:0\r\n:3\r\n"),
    ("return 'hello' --trailing comment", "$5\r\nhello\r\n"),
    ("#!lua\nreturn 7", ":7\r\n"),
];

#[test]
fn values_of_lua_become_replies_as_in_redis() {
    for (script, expected) in VALUES {
        let expected =
            expected.replace("7ad8ac1ee8e9d5cea4c1ed0f3af1ed3d8d1e8ab0", &digest(script));
        assert_eq!(eval(script), expected, "{script}");
    }
}

#[test]
fn replies_become_values_of_lua_as_in_redis() {
    let node = Node::new();
    let mut client = node.client();
    ask(&mut client, &["MSET", "x", "0", "name", "val"]);
    for (script, expected) in [
        (
            "local v = redis.call('incr', KEYS[1]) return {type(v), v}",
            "*2\r\n$6\r\nnumber\r\n:1\r\n",
        ),
        (
            "local v = redis.call('get', 'name') return {type(v), v}",
            "*2\r\n$6\r\nstring\r\n$3\r\nval\r\n",
        ),
        (
            "local v = redis.call('get', 'none') return {type(v), v == false}",
            "*2\r\n$7\r\nboolean\r\n:1\r\n",
        ),
        (
            "local v = redis.call('set', KEYS[1], 5) return {type(v), v.ok}",
            "*2\r\n$5\r\ntable\r\n$2\r\nOK\r\n",
        ),
        (
            "local v = redis.pcall('incr', 'name') return {type(v), v.err}",
            "*2\r\n$5\r\ntable\r\n$43\r\nERR value is not an integer or out of range\r\n",
        ),
        (
            "local v = redis.call('mget', 'x', 'none', 'name') return {#v, v[1], v[2], v[3]}",
            "*4\r\n:3\r\n$1\r\n5\r\n$-1\r\n$3\r\nval\r\n",
        ),
        ("return redis.call('range', '-', '+', 'LIMIT', 1)", "*2\r\n$4\r\nname\r\n$3\r\nval\r\n"),
        ("redis.call('set', 'n', 12.5) return redis.call('get', 'n')", "$4\r\n12.5\r\n"),
        (
            "redis.call('set', 'n', 1e15) return redis.call('get', 'n')",
            "$16\r\n1000000000000000\r\n",
        ),
        ("return redis.call('time')[1] + 0", ":0\r\n"),
        ("return {redis.call('ping'), redis.call('echo', 'a')}", "*2\r\n+PONG\r\n$1\r\na\r\n"),
        ("return redis.call('select', 0)", "+OK\r\n"),
    ] {
        assert_eq!(ask(&mut client, &["EVAL", script, "1", "x"]), expected, "{script}");
    }
}

#[test]
fn the_version_of_the_protocol_is_the_scripts_own() {
    let node = Node::new();
    let mut client = node.client();
    let null = "redis.setresp(3) return {type(redis.call('get', 'none')), 1}";
    let double = "return {double=2.5}";
    for (script, resp2, resp3) in [
        ("return true", ":1\r\n", ":1\r\n"),
        ("return false", "$-1\r\n", "_\r\n"),
        ("redis.setresp(3) return true", ":1\r\n", "#t\r\n"),
        ("redis.setresp(3) return false", ":0\r\n", "#f\r\n"),
        (null, "*2\r\n$3\r\nnil\r\n:1\r\n", "*2\r\n$3\r\nnil\r\n:1\r\n"),
        (double, "$3\r\n2.5\r\n", ",2.5\r\n"),
        ("return {set={a=true}}", "*1\r\n$1\r\na\r\n", "~1\r\n$1\r\na\r\n"),
        ("return {big_number='12'}", "$2\r\n12\r\n", "(12\r\n"),
        ("return {verbatim_string={format='txt',string='a'}}", "$1\r\na\r\n", "=5\r\ntxt:a\r\n"),
        (
            "redis.setresp(4)",
            "-ERR RESP version must be 2 or 3. script: SHA, on @user_script:1.\r\n",
            "-ERR RESP version must be 2 or 3. script: SHA, on @user_script:1.\r\n",
        ),
    ] {
        let sha = digest(script);
        ask(&mut client, &["HELLO", "2"]);
        assert_eq!(
            ask(&mut client, &["EVAL", script, "0"]),
            resp2.replace("SHA", &sha),
            "{script}"
        );
        ask(&mut client, &["HELLO", "3"]);
        assert_eq!(
            ask(&mut client, &["EVAL", script, "0"]),
            resp3.replace("SHA", &sha),
            "{script}"
        );
    }
}

const ERRORS: &[(&str, &str)] = &[
    (
        "return redis.call('nosuchcommand')",
        "ERR Unknown Redis command called from script script: SHA, on @user_script:1.",
    ),
    (
        "redis.call('get', 'a', 'b')",
        "ERR Wrong number of args calling Redis command from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call()",
        "ERR Please specify at least one argument for this redis lib call script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('get', {})",
        "ERR Lua redis lib command arguments must be strings or integers script: SHA, on @user_script:1.",
    ),
    (
        "redis.call('set', 'a', 'b')\nreturn redis.call('incr', 'a')",
        "ERR value is not an integer or out of range script: SHA, on @user_script:2.",
    ),
    (
        "return redis.call('multi')",
        "ERR This Redis command is not allowed from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('eval', 'return 1', 0)",
        "ERR This Redis command is not allowed from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('watch', 'a')",
        "ERR This Redis command is not allowed from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('config', 'get', 'x')",
        "ERR This Redis command is not allowed from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('info')",
        "ERR 'info' is answered by the node that a client is connected to and not allowed from script script: SHA, on @user_script:1.",
    ),
    (
        "return redis.call('hset', 'a', 'b', 'c')",
        "ERR Unknown Redis command called from script script: SHA, on @user_script:1.",
    ),
    ("error('boom')", "ERR user_script:1: boom script: SHA, on @user_script:1."),
    ("error({err='MY own'})", "MY own script: SHA, on @user_script:1."),
    ("error({err='MY own'}, 0)", "MY own script: SHA, on @user_script:1."),
    (
        "local a = nil\nreturn a.b",
        "ERR user_script:2: attempt to index local 'a' (a nil value) script: SHA, on @user_script:2.",
    ),
    (
        "return ('x'):rep(1, 2)()",
        "ERR user_script:1: attempt to call a string value script: SHA, on @user_script:1.",
    ),
    (
        "return string.find('a')",
        "ERR user_script:1: bad argument #2 to 'find' (string expected, got no value) script: SHA, on @user_script:1.",
    ),
    (
        "return string.find('a', '[a')",
        "ERR user_script:1: malformed pattern (missing ']') script: SHA, on @user_script:1.",
    ),
    (
        "return foo",
        "ERR user_script:1: Script attempted to access nonexistent global variable 'foo' script: SHA, on @user_script:1.",
    ),
    ("return redis.pcall('incr')", "ERR Wrong number of args calling Redis command from script"),
    ("return pcall(redis.call, 'incr')", ""),
    (
        "return 1 +",
        "ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'",
    ),
    (
        "#!lua\nfoo bar",
        "ERR Error compiling script (new function): user_script:2: '=' expected near 'bar'",
    ),
    ("#!python\nreturn 1", "ERR Unexpected engine in script shebang: python"),
    ("#!lua flags=nope\nreturn 1", "ERR Unexpected flag in script shebang: nope"),
    ("#!lua x=1\nreturn 1", "ERR Unknown lua shebang option: x=1"),
];

#[test]
fn errors_have_the_words_of_redis_and_the_place_in_the_script() {
    for (script, expected) in ERRORS {
        let expected = if expected.is_empty() {
            "$-1\r\n".to_owned()
        } else {
            let known = if expected.contains("SHA") { digest(script) } else { String::new() };
            format!("-{}\r\n", expected.replace("SHA", &known))
        };
        assert_eq!(eval(script), expected, "{script}");
    }
}

#[test]
fn the_number_of_keys_is_checked_and_keys_and_arguments_are_given() {
    let mut client = Node::new().client();
    let list = "return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}";
    for (words, expected) in [
        (&["EVAL", list, "2", "a", "b", "c"][..], "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
        (&["EVAL", "return 1"], "-ERR wrong number of arguments for 'eval' command\r\n"),
        (&["EVAL", "return 1", "x"], "-ERR value is not an integer or out of range\r\n"),
        (
            &["EVAL", "return 1", "1"],
            "-ERR Number of keys can't be greater than number of args\r\n",
        ),
        (&["EVAL", "return 1", "-1"], "-ERR Number of keys can't be negative\r\n"),
        (&["EVALSHA", "nope", "0"], "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
    ] {
        assert_eq!(ask(&mut client, words), expected, "{words:?}");
    }
}

#[test]
fn scripts_are_known_by_their_digest_where_they_were_sent() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    let sha = "a27e7e8a43702b7046d4f6a7ccf5b60cef6b9bd9";
    let unknown = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    assert_eq!(ask(&mut client, &["EVALSHA", sha, "0"]), unknown);
    assert_eq!(ask(&mut client, &["EVAL", "return 1+1", "0"]), ":2\r\n");
    assert_eq!(ask(&mut other, &["EVALSHA", &sha.to_uppercase(), "0"]), ":2\r\n");
    assert_eq!(ask(&mut other, &["EVALSHA_RO", sha, "0"]), ":2\r\n");
    assert_eq!(ask(&mut client, &["SCRIPT", "EXISTS", sha, "nope"]), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(ask(&mut client, &["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(ask(&mut client, &["EVALSHA", sha, "0"]), unknown);
    assert_eq!(ask(&mut client, &["SCRIPT", "LOAD", "return 1+1"]), format!("$40\r\n{sha}\r\n"));
    assert_eq!(ask(&mut client, &["EVALSHA", sha, "0"]), ":2\r\n");
    client.script(&[
        ("SCRIPT FLUSH sync", "+OK\r\n"),
        ("SCRIPT FLUSH now", "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n"),
        ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.\r\n"),
        ("SCRIPT LOAD 'return ('", "-ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'\r\n"),
    ]);
    // None that cannot be compiled is kept.
    assert_eq!(node.commands.scripts.stats().0, 0);
}

#[test]
fn what_a_script_writes_is_one_record_and_seen_by_itself() {
    let node = Node::new();
    let mut client = node.client();
    let script = "redis.call('set', KEYS[1], 1) redis.call('incr', KEYS[1]) redis.call('set', KEYS[2], 'b')
        redis.call('del', KEYS[2]) return {redis.call('get', KEYS[1]), redis.call('exists', KEYS[2])}";
    assert_eq!(ask(&mut client, &["EVAL", script, "2", "a", "b"]), "*2\r\n$1\r\n2\r\n:0\r\n");
    assert_eq!(node.store.records.borrow().len(), 1);
    // As in Redis, what was written before an error of the script stays.
    let script = "redis.call('set', KEYS[1], 'x') error('late')";
    assert!(ask(&mut client, &["EVAL", script, "1", "a"]).starts_with("-ERR user_script:1: late"));
    assert_eq!(ask(&mut client, &["GET", "a"]), "$1\r\nx\r\n");
    assert_eq!(node.store.records.borrow().len(), 2);
}

#[test]
fn a_script_that_may_not_write_does_not() {
    let node = Node::new();
    let mut client = node.client();
    ask(&mut client, &["SET", "a", "1"]);
    let refused = "Write commands are not allowed from read-only scripts.";
    for words in [
        ["EVAL_RO", "return redis.call('del', KEYS[1])"],
        ["EVAL", "#!lua flags=no-writes\nreturn redis.call('del', KEYS[1])"],
    ] {
        let reply = ask(&mut client, &[words[0], words[1], "1", "a"]);
        assert!(reply.contains(refused), "{reply}");
    }
    let get = "return redis.call('get', KEYS[1])";
    assert_eq!(ask(&mut client, &["EVAL_RO", get, "1", "a"]), "$1\r\n1\r\n");
}

#[test]
fn keys_that_were_not_declared_are_locked_when_they_are_needed() {
    let node = Node::new();
    let mut client = node.client();
    let script = "for i = 1, 40 do redis.call('incr', 'k' .. i) end return redis.call('dbsize')";
    assert_eq!(ask(&mut client, &["EVAL", script, "0"]), ":40\r\n");
    assert_eq!(ask(&mut client, &["EVAL", script, "0"]), ":40\r\n");
    assert_eq!(ask(&mut client, &["GET", "k40"]), "$1\r\n2\r\n");
    let script = "return {#redis.call('keys', 'k1*'), redis.call('scan', 0, 'count', 100)[1], redis.call('flushall')}";
    assert_eq!(ask(&mut client, &["EVAL", script, "0"]), "*3\r\n:11\r\n$1\r\n0\r\n+OK\r\n");
    assert_eq!(ask(&mut client, &["DBSIZE"]), ":0\r\n");
    assert!(node.commands.locks.is_idle());
}

#[test]
fn scripts_run_in_transactions_and_under_watch() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    let incr = "return redis.call('incr', KEYS[1])";
    ask(&mut client, &["SCRIPT", "LOAD", incr]);
    let run = |client: &mut Client| {
        ask(client, &["MULTI"]);
        ask(client, &["SET", "n", "4"]);
        ask(client, &["EVAL", incr, "1", "n"]);
        ask(client, &["EVALSHA", &digest(incr), "1", "n"]);
        ask(client, &["EVALSHA", &digest("nope()"), "1", "n"]);
        ask(client, &["EVAL", "redis.call('incr', 'other') return redis.call('get', 'n')", "0"]);
        ask(client, &["EVAL", "redis.call('set', 'n', 9) while true do end", "0"]);
        ask(client, &["GET", "n"]);
        ask(client, &["EXEC"])
    };
    let reply = run(&mut client);
    assert_eq!(
        reply,
        "*7\r\n+OK\r\n:5\r\n:6\r\n-NOSCRIPT No matching script. Please use EVAL.\r\n$1\r\n6\r\n\
         -ERR script ran over the limit of 100 ms, so nothing was written\r\n$1\r\n6\r\n"
    );
    assert_eq!(node.store.records.borrow().len(), 1);
    ask(&mut client, &["WATCH", "n"]);
    ask(&mut other, &["EVAL", incr, "1", "n"]);
    assert_eq!(run(&mut client), "*-1\r\n");
}

/// Each of the queued calls is short, and what goes to the head for it is not.
#[test]
fn the_scripts_of_a_transaction_are_bounded_together() {
    let node = Node::new();
    let mut client = node.client();
    let script = format!("return 1 --{}", "x".repeat(60 << 10));
    let sha = digest(&script);
    ask(&mut client, &["SCRIPT", "LOAD", &script]);
    ask(&mut client, &["MULTI"]);
    (0..600).for_each(|_| drop(ask(&mut client, &["EVALSHA", &sha, "0"])));
    let reply = ask(&mut client, &["EXEC"]);
    let expected = "-ERR the scripts of a transaction and their arguments take ";
    assert!(reply.starts_with(expected) && reply.contains("over the limit of 3"), "{reply}");
    assert_eq!(ask(&mut client, &["EVALSHA", &sha, "0"]), ":1\r\n");
}

#[test]
fn nothing_leads_out_of_the_world_of_a_script_or_stays_for_the_next() {
    let node = Node::new();
    let mut client = node.client();
    let readonly = "Attempt to modify a readonly table";
    for script in [
        "a = 10",
        "redis = function() return 1 end",
        "_G = {}",
        "setmetatable(_G, {})",
        "getmetatable(_G).__index = {}",
        "redis.call = function() return 1 end",
        "cjson.encode = function() return 1 end",
        "string.rep = 1",
        "rawset(_G, 'x', 1)",
        "rawset(string, 'rep', 1)",
        "getmetatable('').__index = function() end",
        "setmetatable(string, {})",
        "tostring = 1",
    ] {
        let reply = ask(&mut client, &["EVAL", script, "0"]);
        assert!(reply.contains(readonly), "{script}: {reply}");
    }
    for name in [
        "dofile", "loadfile", "print", "require", "package", "io", "debug", "getfenv", "setfenv",
        "newproxy", "module",
    ] {
        let reply = ask(&mut client, &["EVAL", &format!("return {name}"), "0"]);
        assert!(reply.contains("nonexistent global variable"), "{name}: {reply}");
    }
    for (script, expected) in [
        (
            "return os.getenv == nil and os.execute == nil and type(os.clock()) == 'number'",
            ":1\r\n",
        ),
        ("return string.dump == nil", ":1\r\n"),
        ("return loadstring('\\27Lua') == nil", ":1\r\n"),
        ("return loadstring('return ...')(7)", ":7\r\n"),
        ("return loadstring('return KEYS')() == KEYS", ":1\r\n"),
        ("table.insert(string, 'x') return #string", ":1\r\n"),
        ("return #string", ":0\r\n"),
        ("table.insert(getmetatable(''), 'x') return #getmetatable('')", ":0\r\n"),
        ("local t = {} for k in pairs(_G) do t[#t + 1] = k end return #t", ":0\r\n"),
    ] {
        assert_eq!(ask(&mut client, &["EVAL", script, "0"]), expected, "{script}");
    }
}

const LIBRARIES: &[(&str, &str)] = &[
    ("return {('a,b'):match('(%w),(%w)')}", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
    ("return {('hello'):find('l')}", "*2\r\n:3\r\n:3\r\n"),
    ("return {('a.b'):find('.', 2, true)}", "*2\r\n:2\r\n:2\r\n"),
    ("return {('hello'):find('l+', -2)}", "*2\r\n:4\r\n:4\r\n"),
    ("return {('x'):find('y')}", "*0\r\n"),
    ("return {('hello world'):gsub('o', '0')}", "*2\r\n$11\r\nhell0 w0rld\r\n:2\r\n"),
    ("return (('hello'):gsub('', '-'))", "$11\r\n-h-e-l-l-o-\r\n"),
    ("return (('abc'):gsub('%w', '%0%0'))", "$6\r\naabbcc\r\n"),
    ("return (('a=1, b=2'):gsub('(%w)=(%w)', '%2=%1'))", "$8\r\n1=a, 2=b\r\n"),
    ("return (('abc'):gsub('b', {b='X'}))", "$3\r\naXc\r\n"),
    (
        "return (('abc'):gsub('%w', function(c) if c == 'b' then return 'Y' end end, 2))",
        "$3\r\naYc\r\n",
    ),
    ("return (('abab'):gsub('^a', 'x'))", "$4\r\nxbab\r\n"),
    (
        "local t = {} for k, v in ('a=1;b=2'):gmatch('(%w)=(%w)') do t[#t+1] = k .. v end return t",
        "*2\r\n$2\r\na1\r\n$2\r\nb2\r\n",
    ),
    ("local n = 0 for w in ('one two'):gmatch('%a*') do n = n + 1 end return n", ":4\r\n"),
    ("return ('ab'):rep(3)", "$6\r\nababab\r\n"),
    ("local t = {3,1,2} table.sort(t) return t", "*3\r\n:1\r\n:2\r\n:3\r\n"),
    ("local t = {} for i = 1, 3000 do t[i] = -i end table.sort(t) return t[1]", ":-3000\r\n"),
    ("return {math.random(100), math.random(100)}", "*2\r\n:18\r\n:75\r\n"),
    ("return tostring(math.floor(-0.5))", "$2\r\n-1\r\n"),
    (
        "math.randomseed(7) local a = math.random() math.randomseed(7) return a == math.random()",
        ":1\r\n",
    ),
    ("return bit.band(0xff, 0x0f) + bit.bor(1,2,4) + bit.bxor(1,2)", ":25\r\n"),
    (
        "return {bit.tobit(0xffffffff), bit.bnot(0), bit.lshift(1,31), bit.arshift(-2,1), bit.tohex(255)}",
        "*5\r\n:-1\r\n:-1\r\n:-2147483648\r\n:-1\r\n$8\r\n000000ff\r\n",
    ),
    ("return cjson.encode({1, 'a', true, cjson.null})", "$15\r\n[1,\"a\",true,nul\r\n"),
    ("return cjson.encode({a={b={}}})", "$14\r\n{\"a\":{\"b\":{}}}\r\n"),
    ("return cjson.encode('a\"/\\n')", "$9\r\n\"a\\\"\\/\\n\"\r\n"),
    (
        "return table.concat(cjson.decode('[0.0, -5e3, -1, 0.3e-3, 1023.2, 0e10]'), ' ')",
        "$26\r\n0 -5000 -1 0.0003 1023.2 0\r\n",
    ),
    (
        "local d = cjson.decode('{\"a\":\"\\\\u00e9\\\\ud83d\\\\ude00\",\"b\":[null]}') return {d.a, d.b[1] == cjson.null}",
        "*2\r\n$6\r\né😀\r\n:1\r\n",
    ),
    ("return pcall(cjson.decode, '[1,')", "$-1\r\n"),
    (
        "local t = setmetatable({}, {__index = function(_, k) return k .. '!' end}) return t.x",
        "$2\r\nx!\r\n",
    ),
    (
        "local c = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return {c(1), c(5)}",
        "*2\r\n:2\r\n:10\r\n",
    ),
    (
        "local ok, err = pcall(error, {code=7}) return {tostring(ok), err.code}",
        "*2\r\n$5\r\nfalse\r\n:7\r\n",
    ),
    (
        "local ok, err = pcall(redis.call, 'incr') return err",
        "$58\r\nERR Wrong number of args calling Redis command from script\r\n",
    ),
    (
        "return {xpcall(function() error('a', 0) end, function(e) return e .. '!' end)}",
        "*2\r\n$-1\r\n$2\r\na!\r\n",
    ),
    ("return select('#', unpack({1, 2, nil, 4}, 1, 4))", ":4\r\n"),
    ("return tostring(0.1 + 0.2)", "$3\r\n0.3\r\n"),
];

#[test]
fn the_libraries_do_what_those_of_lua_and_redis_do() {
    for (script, expected) in LIBRARIES {
        let expected =
            expected.replace("$15\r\n[1,\"a\",true,nul\r\n", "$17\r\n[1,\"a\",true,null]\r\n");
        assert_eq!(eval(script), expected, "{script}");
    }
}

/// Scripts that would take all memory, or hide that they were told to end for it, once a key was written.
const GREEDY: &[&str] = &[
    "local t = {} while true do t[#t + 1] = ('x'):rep(1000000) .. #t end",
    "local s = 'x' while true do s = s .. s end",
    "local t = {} pcall(function() while true do t[#t + 1] = ('x'):rep(1000000) .. #t end end) return 1",
    "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1000000) .. #t end) end",
    "coroutine.wrap(function() local s = 'x' while true do s = s .. s end end)()",
    "pcall(coroutine.wrap(function() local s = 'x' while true do s = s .. s end end)) return 1",
    "coroutine.resume(coroutine.create(function() local s = 'x' while true do s = s .. s end end)) return 1",
    "return #string.gsub(string.rep('a', 2^24), '.*', string.rep('%0', 2^20))",
    "pcall(string.gsub, string.rep('a', 2^22), '(.*)', string.rep('%1', 2^20)) return 1",
];

/// Scripts that would keep C or Rust busy for long, where no hook interrupts it.
const BUSY: &[&str] = &[
    "table.insert({}, -2147483648, 1)",
    "table.insert({}, -1/0, 1)",
    "local t = {} for i = 1, 20000 do t[i] = i end while true do table.insert(t, 1, 1) end",
    "local t = {} for i = 1, 20000 do t[i] = i end while true do table.insert(t, table.remove(t, 1)) end",
    "local t = {} for i = 1, 20000 do t[i] = true end while true do pcall(table.sort, t, rawequal) end",
    "while true do loadstring((' or x'):rep(100)) end",
];

#[test]
fn no_script_takes_what_it_may_not_have_and_what_it_wrote_is_gone() {
    const TIME: &str = "-ERR script ran over the limit of 100 ms, so nothing was written\r\n";
    const MEMORY: &str =
        "-ERR script took over the limit of 67108864 bytes of memory, so nothing was written\r\n";
    let node = Node::new();
    let mut client = node.client();
    let scripts = GREEDY.iter().map(|script| (script, MEMORY));
    for (script, expected) in scripts.chain(BUSY.iter().map(|script| (script, TIME))) {
        let script = format!("redis.call('set', KEYS[1], 1) {script}");
        assert_eq!(ask(&mut client, &["EVAL", &script, "1", "k"]), expected, "{script}");
        assert_eq!(ask(&mut client, &["GET", "k"]), "$-1\r\n", "{script}");
    }
}

#[test]
fn arguments_of_a_command_are_bounded_before_they_are_copied() {
    let arguments = "-ERR the arguments of one command or transaction take 100663296003 bytes, over the \
                     limit of 16777216\r\n";
    let script = "redis.call('set', KEYS[1], 1) local s, t = string.rep('x', 2^24), {}
        for i = 1, 6000 do t[i] = s end pcall(redis.call, 'DEL', unpack(t)) return 1";
    let node = Node::new();
    let mut client = node.client();
    assert_eq!(ask(&mut client, &["EVAL", script, "1", "k"]), arguments);
    assert_eq!(ask(&mut client, &["GET", "k"]), "$-1\r\n");
    let script = "local s, t = string.rep('x', 2^24), {} for i = 1, 4000 do t[i] = s end
        return redis.pcall('PING', 'a') and redis.sha1hex(unpack(t))";
    let reply = ask(&mut client, &["EVAL", script, "0"]);
    assert!(reply.starts_with("-ERR wrong number of arguments script: "), "{reply}");
}

#[test]
fn every_value_of_a_reply_counts_wherever_it_stands() {
    let tables = [
        "local m={map={}} for d=1,5 do local t={} for i=1,1000 do t[i]=m end m={map=t} end return m",
        "local m={set={}} for d=1,2 do local t={} for i=1,1000 do t[{m}]=1 end m={set=t} end return m",
        "local t={} for i=1,60000 do t[i]=i end local m={} for i=1,10 do m[i]={map=t} end return m",
        "local t={} for i=1,1100 do t[i]={double=1} end local m={} for i=1,1100 do m[i]=t end return m",
    ];
    let node = Node::new();
    let mut client = node.client();
    for script in tables {
        let reply = ask(&mut client, &["EVAL", script, "0"]);
        let large = "-ERR the reply of the script is over the limit of 1048576 elements or 67108864 \
                     bytes, so nothing was written\r\n";
        assert!(reply == large, "{script}: {} {:.200}", reply.len(), reply);
    }
    let small = "local t={} for i=1,1000 do t[i]=i end return {map=t}";
    assert!(ask(&mut client, &["EVAL", small, "0"]).starts_with("*2000\r\n"));
}

#[test]
fn so_many_values_are_unpacked_and_a_command_takes_them() {
    let node = Node::new();
    let mut client = node.client();
    let of = |count: usize, call: &str| {
        format!("local t = {{}} for i = 1, {count} do t[i] = tostring(i) end return {call}")
    };
    let exists = "redis.call('EXISTS', unpack(t))";
    assert_eq!(ask(&mut client, &["EVAL", &of(6_000, exists), "0"]), ":0\r\n");
    for call in [exists, "redis.sha1hex(unpack(t))", "#unpack(t, 1, 6001)", "bit.bor(unpack(t, 2))"]
    {
        let reply = ask(&mut client, &["EVAL", &of(6_002, call), "0"]);
        let count = if call.contains('6') || call.contains(", 2") { 6_001 } else { 6_002 };
        let text = format!("too many results to unpack: {count}, the limit is 6000");
        assert!(reply.starts_with('-') && reply.contains(&text), "{call}: {reply}");
    }
}

#[test]
fn others_come_between_scripts_that_take_long() {
    let node = Node::new();
    let mut client = node.client();
    let busy = "redis.call('set', KEYS[1], 1) for i = 1, 200000 do end return 1";
    ask(&mut client, &["MULTI"]);
    (0..4).for_each(|_| drop(ask(&mut client, &["EVAL", busy, "1", "k"])));
    let step = node.commands.handle(&mut client.session, request("EXEC"), &FixedHost);
    let Step::Run(work) = step else { panic!("{step:?}") };
    let mut exec = Box::pin(node.commands.execute(&*node.store, &work));
    let mut cx = Context::from_waker(Waker::noop());
    let mut turns = 0;
    let reply = loop {
        node.commands.begin_turn();
        turns += 1;
        match exec.as_mut().poll(&mut cx) {
            Poll::Ready(reply) => break reply,
            // Nothing of it shows before its end.
            Poll::Pending => assert!(node.store.keys.borrow().is_empty()),
        }
    };
    assert_eq!(reply, Reply::Array(vec![Reply::Integer(1); 4]));
    assert_eq!(turns, 4, "each took more than its part of a turn");
}

#[test]
fn a_line_that_a_script_makes_up_is_bounded() {
    let node = Node::new();
    let mut client = node.client();
    for (script, first) in [
        ("return {err=('x'):rep(2^24)}", "-"),
        ("return redis.error_reply(('x'):rep(2^22) .. ' y')", "-"),
        ("return {ok=('x'):rep(2^24)}", "+"),
        ("return {{ok=('x'):rep(2^24)}}", "*1\r\n+"),
        ("error({err=('x'):rep(2^24)})", "-"),
    ] {
        let expected = format!("{first}{}\r\n", "x".repeat(32 << 10));
        assert!(ask(&mut client, &["EVAL", script, "0"]) == expected, "{script}");
    }
    ask(&mut client, &["HELLO", "3"]);
    let number = ask(&mut client, &["EVAL", "return {big_number=('1'):rep(2^24)}", "0"]);
    assert_eq!(number.len(), (32 << 10) + 3);
    let errors = node.commands.stats.errors();
    assert!(errors.iter().all(|(word, _)| word.len() <= 64), "{}", errors.len());
}

#[test]
fn a_text_that_takes_long_to_compile_is_none() {
    let node = Node::new();
    let mut client = node.client();
    let long = format!("return x{}", " or x".repeat(80_000));
    for words in [&["EVAL", &long, "0"][..], &["SCRIPT", "LOAD", &long]] {
        assert_eq!(
            ask(&mut client, words),
            "-ERR Error compiling script (new function): the script is 400008 bytes long, over the \
             limit of 65536\r\n"
        );
    }
    for f in ["loadstring(s)", "load(function() local part = s s = nil return part end)"] {
        let script = format!("local s = ('x'):rep(65537) return select(2, {f})");
        let text = "the script is 65537 bytes long, over the limit of 65536";
        assert_eq!(ask(&mut client, &["EVAL", &script, "0"]), format!("$55\r\n{text}\r\n"));
    }
    let fits = format!("return 1 --{}", "x".repeat(65_536 - 11));
    assert_eq!(ask(&mut client, &["EVAL", &fits, "0"]), ":1\r\n");
}

#[test]
fn a_plain_search_takes_time_with_the_length_of_texts_only() {
    // With the product of the two it would be 2^45 steps: the test would not end.
    let script = "local a, b = string.rep('a', 2^23), string.rep('a', 2^22)
        return {a:find(b .. 'b', 1, true) or 0, a:find(b, 2, true) or 0}";
    assert_eq!(eval(script), "*2\r\n:0\r\n:2\r\n");
}

#[test]
fn coroutines_and_lists_are_as_in_lua() {
    for (script, expected) in [
        (
            "local ok, e = pcall(coroutine.wrap(function() error({code=7}) end)) return e.code",
            ":7\r\n",
        ),
        (
            "local f = coroutine.wrap(function() error('x', 0) end)\nlocal ok, e = pcall(function()\nlocal a = f() return a end) return e",
            "$16\r\nuser_script:3: x\r\n",
        ),
        (
            "local ok, e = pcall(coroutine.wrap(function() redis.call('incr') end)) return e",
            "$58\r\nERR Wrong number of args calling Redis command from script\r\n",
        ),
        (
            "local n = 0 for i in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) do n = n + i end return n",
            ":6\r\n",
        ),
        (
            "local f = coroutine.wrap(function() end) f() local ok, e = pcall(f) return e",
            "$28\r\ncannot resume dead coroutine\r\n",
        ),
        (
            "local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) table.insert(t, 3, 1.5) return table.concat(t, ' ')",
            "$11\r\n0 1 1.5 2 3\r\n",
        ),
        ("local t = {1} table.insert(t, 5, 7) return t[5]", ":7\r\n"),
        (
            "local t = {} for i = 1, 5000 do t[i] = i end table.insert(t, 1, 0) return {#t, t[1], t[2], t[5001]}",
            "*4\r\n:5001\r\n:0\r\n:1\r\n:5000\r\n",
        ),
        (
            "local t = {} for i = 1, 5000 do t[i] = i end local a = table.remove(t, 1) return {a, #t, t[1], t[4999]}",
            "*4\r\n:1\r\n:4999\r\n:2\r\n:5000\r\n",
        ),
        (
            "local t = {1, 2, 3} return {table.remove(t), table.remove(t, 1), #t, table.remove(t, 9) == nil}",
            "*4\r\n:3\r\n:1\r\n:1\r\n:1\r\n",
        ),
        (
            "local ok, e = pcall(table.insert, {}, 1, 2, 3) return e",
            "$37\r\nwrong number of arguments to 'insert'\r\n",
        ),
    ] {
        assert_eq!(eval(script), expected, "{script}");
    }
}

/// Were it not refused in order, the process of the tests would end here.
#[test]
fn references_of_many_arguments_need_no_memory() {
    let node = Node::new();
    let mut client = node.client();
    let script = "local t = {} for i = 1, 4000 do t[i] = 'x' end
        local fill = {} while collectgarbage('count') < 65536 - 300 do fill[#fill + 1] = ('y'):rep(2^17) .. #fill end
        while collectgarbage('count') < 65536 - 30 do fill[#fill + 1] = ('z'):rep(512) .. #fill end
        return redis.sha1hex(unpack(t, 1, 4000))";
    let reply = ask(&mut client, &["EVAL", script, "0"]);
    assert!(reply.starts_with("-ERR "), "{reply}");
    assert_eq!(ask(&mut client, &["EVAL", "return 1", "0"]), ":1\r\n");
}

/// Scripts, and a part of what they are answered.
const REFUSED: &[(&str, &str)] = &[
    ("local function f(n) return 1 + f(n) end return f(1)", "stack overflow"),
    ("local function f() local ok, e = pcall(f) return e end return f()", "$"),
    ("local function f() return coroutine.wrap(f)() end return f()", "C stack overflow"),
    ("local function f() return (('x'):gsub('x', f)) end return f()", "stack overflow"),
    (
        "local m = {} m.__index = function(t, k) return t[k] end return setmetatable({}, m).x",
        "stack overflow",
    ),
    (
        "local function f(a, b) table.sort({2, 1}, f) return a < b end return f(1, 2)",
        "C stack overflow",
    ),
    ("return ('x'):rep(1e9)", "resulting string too large"),
    ("return ('x'):rep(2^60)", "resulting string too large"),
    ("return #('') .. (''):rep(1e18)", "$1\r\n0"),
    ("return ('a'):rep(1000):find(('a?'):rep(10000))", "pattern too complex"),
    ("return ('a'):find(('('):rep(100))", "too many captures"),
    ("local t = {} t[1] = t return t", "nested over 7 deep"),
    ("local t = {} for i = 1, 60 do t = {t, t} end return t", "nested over 7 deep"),
    (
        "local s, t = ('x'):rep(1000000), {} for i = 1, 100 do t[i] = s end return t",
        "over the limit of 1048576 elements or 67108864 bytes",
    ),
    ("local t = {} t[1] = t return cjson.encode(t)", "excessive depth"),
    ("return cjson.decode(('['):rep(2000))", "too many nested"),
    (
        "error(setmetatable({}, {__tostring = function() error('x') end}))",
        "-ERR unknown error script: ",
    ),
    ("return loadstring(('('):rep(1000) .. '1' .. (')'):rep(1000)) == nil", ":1"),
    (
        "for i = 1, 9 do redis.call('append', KEYS[1], ('x'):rep(1000000)) end return 1",
        "string exceeds maximum",
    ),
    (
        "for i = 1, 70000 do redis.call('set', i, '') end return 1",
        "-ERR script ran over the limit of 100 ms",
    ),
];

/// Each would run for ever, take all memory, or hide that it was told to end.
#[test]
fn what_is_over_a_limit_ends_and_writes_nothing() {
    const TIME: &str = "-ERR script ran over the limit of 100 ms, so nothing was written\r\n";
    let node = Node::new();
    let mut client = node.client();
    for (script, expected) in [
        ("while true do end", TIME),
        ("while true do pcall(function() while true do end end) end", TIME),
        ("pcall(function() while true do end end) return 'swallowed'", TIME),
        (
            "while true do xpcall(function() while true do end end, function() while true do end end) end",
            TIME,
        ),
        ("xpcall(error, function() while true do end end) return 1", TIME),
        (
            "local c = coroutine.create(function() while true do end end) coroutine.resume(c) return 1",
            TIME,
        ),
        (
            "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
            TIME,
        ),
        (
            "while true do local c = coroutine.wrap(function() while true do end end) pcall(c) end",
            TIME,
        ),
        ("while true do redis.pcall('get', KEYS[1]) end", TIME),
        ("repeat pcall(redis.call, 'incr', KEYS[1]) until false", TIME),
        ("return ('a'):rep(10000):find(('.-'):rep(50) .. 'b')", TIME),
        ("local function f() return f() end return f()", TIME),
        ("for i = 1, math.huge do local _ = ('x'):upper() end", TIME),
    ] {
        let script = format!("redis.call('set', KEYS[1], 1) {script}");
        assert_eq!(ask(&mut client, &["EVAL", &script, "1", "k"]), expected, "{script}");
        assert_eq!(ask(&mut client, &["GET", "k"]), "$-1\r\n", "{script}");
    }
    for (script, part) in REFUSED {
        let reply = ask(&mut client, &["EVAL", script, "1", "k"]);
        assert!(reply.contains(part), "{script}: {reply}");
    }
    // Whatever they left, the next one runs.
    assert_eq!(ask(&mut client, &["EVAL", "return 1", "0"]), ":1\r\n");
    assert!(node.commands.locks.is_idle());
}

/// Runs a command, whose reads all wait, to its end.
fn run_with_slow_reads(node: &Node, client: &mut Client, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
    let step = node.commands.handle(&mut client.session, request_of(&words), &FixedHost);
    let Step::Run(work) = step else { panic!("{step:?}") };
    let mut run = Box::pin(node.commands.execute(&*node.store, &work));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        if let Poll::Ready(reply) = run.as_mut().poll(&mut cx) {
            let mut out = Vec::new();
            reply.encode(Protocol::Resp2, &mut out);
            return String::from_utf8_lossy(&out).into_owned();
        }
        node.store.release(0);
    }
    panic!("it comes to no end");
}

#[test]
fn what_scripts_read_while_they_wait_is_bounded_for_all_together() {
    let node = Node::new();
    let mut client = node.client();
    ask(&mut client, &["SET", "a", "1"]);
    node.store.is_slow.set(true);
    let words = ["EVAL", "return redis.call('incr', 'a')", "1", "a"];
    // Others have read nearly as much as all may.
    let others = KEPT_TOGETHER_MAX - 10;
    node.commands.scripts.kept_bytes.set(others);
    let reply = run_with_slow_reads(&node, &mut client, &words);
    assert!(reply.starts_with("-ERR") && reply.contains("all scripts that wait"), "{reply}");
    assert_eq!(node.commands.scripts.kept_bytes.get(), others);
    node.commands.scripts.kept_bytes.set(0);
    assert_eq!(run_with_slow_reads(&node, &mut client, &words), ":2\r\n");
    assert_eq!(node.commands.scripts.kept_bytes.get(), 0);
}

#[test]
fn a_script_does_not_wait_for_an_lcs_which_waits_for_it() {
    let node = Node::new();
    let mut client = node.client();
    ["a", "b", "c", "d"].iter().for_each(|key| drop(ask(&mut client, &["SET", key, "12"])));
    node.store.is_slow.set(true);
    let words = [&b"LCS"[..], b"a", b"b"];
    let step = node.commands.handle(&mut client.session, request_of(&words), &FixedHost);
    let Step::Run(work) = step else { panic!("{step:?}") };
    let mut lcs = Box::pin(node.commands.execute(&*node.store, &work));
    assert!(lcs.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let script = ["EVAL", "return redis.call('lcs', 'c', 'd')", "2", "c", "d"];
    let reply = run_with_slow_reads(&node, &mut node.client(), &script);
    assert!(reply.starts_with("-TRYAGAIN another LCS"), "{reply}");
    drop(lcs);
    assert_eq!(run_with_slow_reads(&node, &mut client, &script), "$2\r\n12\r\n");
}

#[test]
fn scripts_that_wait_for_reads_begin_anew_and_run_once() {
    let node = Node::new();
    let mut client = node.client();
    ["a", "b", "c", "d"].iter().for_each(|key| drop(ask(&mut client, &["SET", key, "1"])));
    node.store.is_slow.set(true);
    // Two that are declared, two that are not, one through pcall, a walk.
    let script = "local sum = redis.call('incr', KEYS[1]) + redis.call('incr', KEYS[2])
        local ok, c = pcall(redis.call, 'incr', 'c')
        return {sum, c, redis.call('incrby', 'd', ARGV[1]), #redis.call('keys', '*')}";
    let reply = run_with_slow_reads(&node, &mut client, &["EVAL", script, "2", "a", "b", "5"]);
    assert_eq!(reply, "*4\r\n:4\r\n:2\r\n:6\r\n:4\r\n");
    assert_eq!(node.store.records.borrow().len(), 5, "one record of the script");
    assert!(node.commands.locks.is_idle());
}

/// The scripts of redis-py's `Lock`.
#[test]
fn the_locks_of_clients_work() {
    let node = Node::new();
    let mut client = node.client();
    let release = "local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        redis.call('del', KEYS[1])
        return 1";
    let extend = "local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        local expiration = redis.call('pttl', KEYS[1])
        if not expiration then expiration = 0 end
        if expiration < 0 then return 0 end
        local newttl = ARGV[2]
        if ARGV[3] == \"0\" then newttl = ARGV[2] + expiration end
        redis.call('pexpire', KEYS[1], newttl)
        return 1";
    let reacquire = "local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        redis.call('pexpire', KEYS[1], ARGV[2])
        return 1";
    for (words, expected) in [
        (&["SET", "lock", "mine", "NX", "PX", "10000"][..], "+OK\r\n"),
        (&["SET", "lock", "yours", "NX", "PX", "10000"], "$-1\r\n"),
        (&["EVAL", extend, "1", "lock", "mine", "5000", "0"], ":1\r\n"),
        (&["PTTL", "lock"], ":15000\r\n"),
        (&["EVAL", extend, "1", "lock", "mine", "7000", "1"], ":1\r\n"),
        (&["PTTL", "lock"], ":7000\r\n"),
        (&["EVAL", extend, "1", "lock", "yours", "7000", "1"], ":0\r\n"),
        (&["EVAL", reacquire, "1", "lock", "mine", "9000"], ":1\r\n"),
        (&["PTTL", "lock"], ":9000\r\n"),
        (&["EVAL", release, "1", "lock", "yours"], ":0\r\n"),
        (&["EVAL", release, "1", "lock", "mine"], ":1\r\n"),
        (&["EVAL", release, "1", "lock", "mine"], ":0\r\n"),
    ] {
        assert_eq!(ask(&mut client, words), expected, "{words:?}");
    }
    // Redisson's lock is a hash, which is not there: its client is told so.
    let redisson = "if (redis.call('exists', KEYS[1]) == 0) then redis.call('hincrby', KEYS[1], ARGV[2], 1) end return nil";
    let reply = ask(&mut client, &["EVAL", redisson, "1", "lock", "30000", "id:1"]);
    assert!(reply.starts_with("-ERR Unknown Redis command called from script script: "), "{reply}");
}

#[test]
fn the_usual_limiters_of_rates_work() {
    let node = Node::new();
    let mut client = node.client();
    let window = "local n = redis.call('INCR', KEYS[1])
        if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
        if n > tonumber(ARGV[2]) then return 0 end return 1";
    let takes: Vec<_> =
        (0..5).map(|_| ask(&mut client, &["EVAL", window, "1", "ip", "10", "3"])).collect();
    assert_eq!(takes.concat(), ":1\r\n:1\r\n:1\r\n:0\r\n:0\r\n");
    assert_eq!(ask(&mut client, &["TTL", "ip"]), ":10\r\n");
    node.store.pass(10_000);
    assert_eq!(ask(&mut client, &["EVAL", window, "1", "ip", "10", "3"]), ":1\r\n");
    let bucket = "local rate, size, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
        local time = redis.call('TIME')
        local now = time[1] + time[2] / 1000000
        local state = redis.call('GET', KEYS[1])
        local left, then_ = size, now
        if state then local d = cjson.decode(state) left, then_ = d.left, d.at end
        left = math.min(size, left + (now - then_) * rate)
        local allowed = left >= want
        if allowed then left = left - want end
        redis.call('SET', KEYS[1], cjson.encode({left = left, at = now}), 'EX', math.ceil(size / rate))
        return {allowed and 1 or 0, tostring(left)}";
    let mut take = |want: &str| ask(&mut client, &["EVAL", bucket, "1", "bucket", "2", "10", want]);
    assert_eq!(take("7"), "*2\r\n:1\r\n$1\r\n3\r\n");
    assert_eq!(take("7"), "*2\r\n:0\r\n$1\r\n3\r\n");
    node.store.pass(2_000);
    assert_eq!(take("7"), "*2\r\n:1\r\n$1\r\n0\r\n");
}
