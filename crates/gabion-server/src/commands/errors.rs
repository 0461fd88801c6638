//! The texts of errors, in Redis's words where Redis has the error.

use super::NotSet;
use super::table::Spec;
use bytes::Bytes;
use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_base::{Error, ErrorKind};
use gabion_resp::limits::{BULK_LEN_MAX, REQUEST_LEN_MAX};
use gabion_resp::{Excess, Reply};

pub(crate) const SYNTAX: Reply = Reply::error("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Reply =
    Reply::error("ERR value is not an integer or out of range");
pub(crate) const OVERFLOW: Reply = Reply::error("ERR increment or decrement would overflow");
pub(crate) const DECR_OVERFLOW: Reply = Reply::error("ERR decrement would overflow");
pub(crate) const OFFSET: Reply = Reply::error("ERR offset is out of range");
pub(crate) const NEGATIVE: Reply = Reply::error("ERR value is out of range, must be positive");
pub(crate) const NX_AND_OTHERS: Reply =
    Reply::error("ERR NX and XX, GT or LT options at the same time are not compatible");
pub(crate) const GT_AND_LT: Reply =
    Reply::error("ERR GT and LT options at the same time are not compatible");
pub(crate) const NO_SUCH_KEY: Reply = Reply::error("ERR no such key");
pub(crate) const SAME_OBJECT: Reply =
    Reply::error("ERR source and destination objects are the same");
pub(crate) const NO_DATABASE: Reply = Reply::error("ERR DB index is out of range");
pub(crate) const NOT_AN_INT: Reply =
    Reply::error("ERR value is out of range, value must between -2147483648 and 2147483647");
pub(crate) const NOT_A_FLOAT: Reply = Reply::error("ERR value is not a valid float");
pub(crate) const NO_FINITE_SUM: Reply = Reply::error("ERR increment would produce NaN or Infinity");
pub(crate) const BIT: Reply = Reply::error("ERR bit is not an integer or out of range");
pub(crate) const BIT_ARGUMENT: Reply = Reply::error("ERR The bit argument must be 1 or 0.");
pub(crate) const BIT_OFFSET: Reply =
    Reply::error("ERR bit offset is not an integer or out of range");
pub(crate) const BITOP_NOT: Reply =
    Reply::error("ERR BITOP NOT must be called with a single source key.");
pub(crate) const BITFIELD_TYPE: Reply = Reply::error(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);
pub(crate) const BITFIELD_OVERFLOW: Reply = Reply::error("ERR Invalid OVERFLOW type specified");
pub(crate) const BITFIELD_RO: Reply =
    Reply::error("ERR BITFIELD_RO only supports the GET subcommand");
pub(crate) const BUSY_KEY: Reply = Reply::error("BUSYKEY Target key name already exists.");
pub(crate) const BAD_TTL: Reply = Reply::error("ERR Invalid TTL value, must be >= 0");
pub(crate) const BAD_IDLETIME: Reply = Reply::error("ERR Invalid IDLETIME value, must be >= 0");
pub(crate) const BAD_FREQ: Reply = Reply::error("ERR Invalid FREQ value, must be >= 0 and <= 255");
pub(crate) const BAD_CHECKSUM: Reply =
    Reply::error("ERR DUMP payload version or checksum are wrong");
pub(crate) const BAD_FORMAT: Reply = Reply::error("ERR Bad data format");
pub(crate) const LCS_LEN_AND_IDX: Reply =
    Reply::error("ERR If you want both the length and indexes, please just use IDX.");
pub(crate) const CROSS_SLOT: Reply =
    Reply::error("CROSSSLOT Keys in request don't hash to the same slot");
pub(crate) const NOT_LOCAL: Reply =
    Reply::error("ERR Script attempted to access a non local key in a cluster node");
pub(crate) const ALL_FROM_SCRIPT: Reply = Reply::error(
    "ERR Script attempted to access all keys: it runs in one group, and there are several",
);
pub(crate) const INVALID_CURSOR: Reply = Reply::error("ERR invalid cursor");
pub(crate) const EXEC_ABORT: Reply =
    Reply::error("EXECABORT Transaction discarded because of previous errors.");
pub(crate) const NO_PASSWORD: Reply = Reply::error(
    "ERR AUTH <password> called without any password configured for the default user. \
     Are you sure your configuration is correct?",
);

/// Bytes of a client's word that an error repeats, as in Redis.
const SHOWN_MAX: usize = 128;

/// The part of a client's word that an error repeats.
pub(crate) fn shown(word: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&word[..word.len().min(SHOWN_MAX)])
}

/// The number of arguments does not fit; `name` may be `command|subcommand`.
pub(crate) fn arity(name: &str) -> Reply {
    Reply::error_from(format!("ERR wrong number of arguments for '{name}' command"))
}

/// The name is not in the table.
pub(crate) fn unknown_command(args: &[Bytes]) -> Reply {
    let name = args.first().map_or(&[][..], |name| &name[..name.len().min(SHOWN_MAX)]);
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(name);
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for arg in args.iter().skip(1) {
        let shown = text.len() - start;
        if shown >= SHOWN_MAX {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(&arg[..arg.len().min(SHOWN_MAX - shown)]);
        text.extend_from_slice(b"' ");
    }
    Reply::Error(Bytes::from(text))
}

/// The subcommand is none of `command`'s.
pub(crate) fn unknown_subcommand(command: &str, given: &[u8]) -> Reply {
    let given = shown(given);
    let help = command.to_ascii_uppercase();
    Reply::error_from(format!("ERR unknown subcommand '{given}'. Try {help} HELP."))
}

/// A connection watches more than it may.
pub(crate) fn too_much_watched(keys: usize, bytes: usize) -> Reply {
    let (keys_max, bytes_max) = (super::watch::KEYS_MAX, super::watch::KEY_BYTES_MAX);
    Reply::error_from(format!(
        "ERR {keys} watched keys of {bytes} bytes are over the limit of {keys_max} keys and {bytes_max} bytes"
    ))
}

/// All connections of a node watch more than they may together.
pub(crate) fn too_much_watched_by_all(bytes: usize, bytes_max: usize) -> Reply {
    Reply::error_from(format!(
        "TRYAGAIN the watched keys of all connections would take {bytes} bytes, over the limit of {bytes_max}"
    ))
}

/// The scripts of a transaction take more than it may have.
pub(crate) fn scripts_too_long(bytes: usize, bytes_max: usize) -> Reply {
    Reply::error_from(format!(
        "ERR the scripts of a transaction and their arguments take {bytes} bytes, over the limit of {bytes_max}: no key was changed"
    ))
}

/// CONFIG SET has changed nothing.
pub(crate) fn not_set(not_set: NotSet) -> Reply {
    Reply::error_from(match not_set {
        NotSet::Unknown(name) => {
            format!("ERR Unknown option or number of arguments for CONFIG SET - '{}'", shown(&name))
        }
        NotSet::Refused { name, why } => format!(
            "ERR CONFIG SET failed (possibly related to argument '{}') - {why}",
            shown(&name)
        ),
    })
}

/// The subcommand exists, and its words are not what it takes.
pub(crate) fn subcommand_syntax(command: &str, given: &[u8]) -> Reply {
    let given = shown(given);
    let help = command.to_ascii_uppercase();
    Reply::error_from(format!(
        "ERR unknown subcommand or wrong number of arguments for '{given}'. Try {help} HELP."
    ))
}

/// A time is not positive where it must be, or too large. `name` is the command's.
pub(crate) fn expire_time(name: &[u8]) -> Reply {
    let name = shown(name).to_ascii_lowercase();
    Reply::error_from(format!("ERR invalid expire time in '{name}' command"))
}

/// EXPIRE and its kin have no such option.
pub(crate) fn unsupported_option(word: &[u8]) -> Reply {
    Reply::error_from(format!("ERR Unsupported option {}", shown(word)))
}

/// The key is longer than any key may be.
pub(crate) fn key_too_long(len: usize) -> Reply {
    Reply::error_from(format!("ERR key is {len} bytes long, over the limit of {KEY_LEN_MAX}"))
}

/// A bound of a range is longer than the longest key with a zero byte appended.
pub(crate) fn bound_too_long(len: usize) -> Reply {
    let max = KEY_LEN_MAX + 1;
    Reply::error_from(format!("ERR bound of a range is {len} bytes long, over the limit of {max}"))
}

/// The value is longer than any value may be.
pub(crate) fn value_too_long(len: usize) -> Reply {
    Reply::error_from(format!("ERR value is {len} bytes long, over the limit of {VALUE_LEN_MAX}"))
}

/// A request was over a limit. `spec`: its command, where its name is one's.
pub(crate) fn too_large(spec: Option<&Spec>, excess: Excess) -> Reply {
    match excess {
        Excess::Sum { len } => arguments_too_long(len),
        Excess::Argument { index, count, len } => match spec {
            Some(spec) if spec.is_key(index, count) => key_too_long(len),
            Some(_) => value_too_long(len),
            // Its name is too long to be one.
            None => Reply::error_from(format!(
                "ERR argument {index} is {len} bytes long, over the limit of {BULK_LEN_MAX}"
            )),
        },
    }
}

/// The arguments of a command, or of the commands of a transaction, are together longer than one record can hold.
pub(crate) fn arguments_too_long(len: u64) -> Reply {
    Reply::error_from(format!(
        "ERR the arguments of one command or transaction take {len} bytes, over the limit of \
         {REQUEST_LEN_MAX}"
    ))
}

/// EXEC itself was refused with `error`.
pub(crate) fn exec_abort_because(error: &Reply) -> Reply {
    let Reply::Error(text) = error else { return EXEC_ABORT };
    let text = String::from_utf8_lossy(text.strip_prefix(b"ERR ").unwrap_or(text));
    Reply::error_from(format!("EXECABORT Transaction discarded because of: {text}"))
}

/// APPEND or SETRANGE would make a value longer than any may be.
pub(crate) fn string_too_long() -> Reply {
    Reply::error_from(format!("ERR string exceeds maximum allowed size ({VALUE_LEN_MAX} bytes)"))
}

/// The bit lies behind the end of the longest value.
pub(crate) fn bit_offset_too_large(offset: u64) -> Reply {
    Reply::error_from(format!(
        "ERR bit offset is not an integer or out of range: {offset} is not below {}, the bits of \
         the longest value ({VALUE_LEN_MAX} bytes)",
        VALUE_LEN_MAX * 8
    ))
}

/// The values of LCS are too long.
pub(crate) fn lcs_too_large(cells: u64, max: u64) -> Reply {
    Reply::error_from(format!(
        "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len: the lengths \
         plus one, multiplied, are {cells}, over the limit of {max}"
    ))
}

/// BITOP would read more than it may.
pub(crate) fn sources_too_long(max: usize) -> Reply {
    Reply::error_from(format!("ERR the values that BITOP reads are over the limit of {max} bytes"))
}

/// An error of the store. The codes are those that clients of Redis act on: `OOM` for no space,
/// `TRYAGAIN` for what a retry may cure, `READONLY` for a node that is the head no longer.
pub(crate) fn from_store(error: &Error) -> Reply {
    let kind = error.kind();
    let code = match kind {
        ErrorKind::NoSpace => "OOM",
        ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::SnapshotTooOld => "TRYAGAIN",
        ErrorKind::Fenced => "READONLY",
        _ => "ERR",
    };
    match kind {
        ErrorKind::InvalidInput | ErrorKind::LimitExceeded => {
            Reply::error_from(format!("{code} {error}"))
        }
        _ => Reply::error_from(format!("{code} {}: {error}", kind.as_str())),
    }
}
