//! CONFIG.

use super::{Commands, Host, errors};
use bytes::Bytes;
use gabion_resp::{Reply, glob_match};

/// The option that is the password of the user `default`.
const PASSWORD: &str = "requirepass";

impl Commands {
    pub(crate) fn config(&self, args: &[Bytes], host: &impl Host) -> Reply {
        let sub = args[1].to_ascii_lowercase();
        match (&sub[..], &args[2..]) {
            (b"get", patterns) => {
                let patterns: Vec<_> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
                let is_asked = |name: &str| patterns.iter().any(|p| glob_match(p, name.as_bytes()));
                let mut options = host.options();
                options.extend(self.user_options());
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
                    [] => {
                        self.set_options(pairs, host).map_or_else(errors::not_set, |()| Reply::OK)
                    }
                    _ => errors::SYNTAX,
                }
            }
            (b"rewrite", []) => Reply::error("ERR The server is running without a config file"),
            _ => errors::subcommand_syntax("config", &args[1]),
        }
    }

    /// Options of users, which every connection of the node shares.
    fn user_options(&self) -> [(String, String); 2] {
        let file = self.users.file().map_or(String::new(), |path| path.display().to_string());
        // A password is kept as its hash alone.
        [("aclfile".to_owned(), file), (PASSWORD.to_owned(), String::new())]
    }

    /// Sets options: all or none.
    fn set_options(
        &self,
        mut pairs: Vec<(Bytes, Bytes)>,
        host: &impl Host,
    ) -> Result<(), super::NotSet> {
        let is_password =
            |(name, _): &(Bytes, Bytes)| name.eq_ignore_ascii_case(PASSWORD.as_bytes());
        let password = pairs.iter().position(is_password).map(|at| pairs.remove(at).1);
        if let Some((name, _)) = pairs.iter().find(|pair| is_password(pair)) {
            let why = "duplicate parameter";
            return Err(super::NotSet::Refused { name: name.clone(), why });
        }
        let name = Bytes::from_static(PASSWORD.as_bytes());
        let refused = |why| super::NotSet::Refused { name, why };
        if password.is_some() && self.users.are_shared() {
            let why = "the controller keeps it: set it outside of transactions";
            return Err(refused(why));
        }
        host.set_options(&pairs)?;
        if let Some(password) = password {
            self.users.set_password(&password).map_err(refused)?;
        }
        Ok(())
    }
}
