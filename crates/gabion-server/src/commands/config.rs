//! CONFIG.

use super::{Commands, Host, errors};
use bytes::Bytes;
use gabion_resp::{Reply, glob_match};

impl Commands {
    pub(crate) fn config(&self, args: &[Bytes], host: &impl Host) -> Reply {
        let sub = args[1].to_ascii_lowercase();
        match (&sub[..], &args[2..]) {
            (b"get", patterns) => {
                let patterns: Vec<_> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
                let is_asked = |name: &str| patterns.iter().any(|p| glob_match(p, name.as_bytes()));
                let mut options = host.options();
                options.sort_unstable();
                options.retain(|(name, _)| is_asked(name));
                let bulk = |text: String| Reply::Bulk(Bytes::from(text));
                Reply::Map(options.into_iter().map(|(name, v)| (bulk(name), bulk(v))).collect())
            }
            (b"resetstat", []) => {
                self.stats.reset();
                Reply::OK
            }
            (b"set", _) => {
                let (pairs, rest) = args[2..].as_chunks();
                let pairs: Vec<_> =
                    pairs.iter().cloned().map(|[name, value]| (name, value)).collect();
                match rest {
                    [] => host.set_options(&pairs).map_or_else(errors::not_set, |()| Reply::OK),
                    _ => errors::SYNTAX,
                }
            }
            (b"rewrite", []) => Reply::error("ERR The server is running without a config file"),
            _ => errors::subcommand_syntax("config", &args[1]),
        }
    }
}
