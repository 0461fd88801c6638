//! What a session hands to the server to be run where the data is: one command, or the commands
//! of a transaction.
//!
//! To run it at another node, the server sends the words ([`Call::args`], as a request) and the
//! protocol of the connection. There [`Call::new`] and [`Transaction::of`] make the same work of
//! them; each reply is encoded there, for that protocol, and put in here as [`Reply::Encoded`]
//! (those of a transaction through [`Transaction::merge`]).

use super::acl::rules::Rights;
use super::errors;
use super::locks::KeySet;
use super::scripts::{self, is_script};
use super::subcommands;
use super::table::{Id, Route, Spec, TABLE, row_of};
use super::watch::Watch;
use bytes::Bytes;
use gabion_base::units::KEY_LEN_MAX;
use gabion_resp::{Reply, Request};
use std::rc::Rc;

/// A request whose command is known, with a fitting number of arguments and keys that may be keys.
#[derive(Clone, Debug)]
pub struct Call {
    row: u32,
    /// Where its calls are counted: the row, or that of its subcommand.
    counters: u32,
    request: Request,
    /// Of a script: what its user may do, if that is not everything.
    rights: Option<Rc<Rights>>,
}

impl Call {
    /// Checks a request against the table.
    ///
    /// # Errors
    /// The error that the client gets: unknown command or subcommand, wrong number of arguments, key too long.
    pub fn new(request: Request) -> Result<Self, Reply> {
        Self::check(request).map_err(|(_, error)| error)
    }

    /// The same; an error comes with the row of the command that was meant, if it is known.
    #[inline]
    pub(crate) fn check(request: Request) -> Result<Self, (Option<usize>, Reply)> {
        let name = request.args.first().map_or(&b""[..], |name| name);
        let Some(row) = row_of(name) else {
            return Err((None, errors::unknown_command(&request.args)));
        };
        let spec = &TABLE[row];
        if !spec.accepts(request.args.len()) {
            return Err((Some(row), errors::arity(spec.name)));
        }
        let counters = subcommands::check(spec, &request.args);
        let counters = counters.map_err(|error| (Some(row), error))?.unwrap_or(row);
        let is_long = |key: &&Bytes| key.len() > KEY_LEN_MAX;
        let mut long = spec.keys_of(&request.args).find(is_long).map(Bytes::len);
        if is_script(spec.id)
            && let Ok((keys, _)) = scripts::arguments(&request.args)
        {
            long = keys.iter().find(is_long).map(Bytes::len);
        }
        if let Some(len) = long {
            return Err((Some(row), errors::key_too_long(len)));
        }
        Ok(Self { row: row as u32, counters: counters as u32, request, rights: None })
    }

    /// The same call with memory of its own. What is kept for long must not keep a read buffer,
    /// which may be much larger, in memory with it.
    pub(crate) fn detached(&self) -> Self {
        let own = Bytes::from(self.args().concat());
        let mut start = 0;
        let args = self.args().iter().map(|arg| {
            start += arg.len();
            own.slice(start - arg.len()..start)
        });
        Self { request: Request { args: args.collect() }, rights: self.rights.clone(), ..*self }
    }

    /// The command's row in the table.
    #[inline]
    #[must_use]
    pub fn spec(&self) -> &'static Spec {
        &TABLE[self.row as usize]
    }

    /// The place of its counters.
    #[inline]
    pub(crate) const fn counters(&self) -> usize {
        self.counters as usize
    }

    /// The number of the command's row.
    pub(crate) const fn row(&self) -> usize {
        self.row as usize
    }

    /// Rights of a script's user, if they are not all.
    pub(crate) fn rights(&self) -> Option<&Rc<Rights>> {
        self.rights.as_ref()
    }

    /// The same call, of a user that may do this.
    pub(crate) fn with_rights(mut self, rights: Option<Rc<Rights>>) -> Self {
        self.rights = rights;
        self
    }

    /// The same call, counted at this place.
    pub(crate) fn counted_at(mut self, counters: usize) -> Self {
        self.counters = counters as u32;
        self
    }

    /// The words of the request, the command's name first.
    #[inline]
    #[must_use]
    pub fn args(&self) -> &[Bytes] {
        &self.request.args
    }

    /// Where it runs. SET with an option has to look before it writes.
    #[inline]
    #[must_use]
    pub fn route(&self) -> Route {
        let spec = self.spec();
        if spec.id == Id::Set && self.args().len() > 3 { Route::ReadWrite } else { spec.route }
    }

    /// The memory that its words take, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.args().iter().map(|arg| arg.len() + size_of::<Bytes>()).sum()
    }

    /// Whether it runs a script.
    pub(crate) fn is_script(&self) -> bool {
        is_script(self.spec().id)
    }

    /// The keys that it locks; of a script those that it declares.
    pub(crate) fn key_set(&self) -> KeySet {
        if self.is_script() {
            let keys = scripts::arguments(self.args()).map_or(&[][..], |(keys, _)| keys);
            return KeySet::of(keys.iter());
        }
        if self.spec().keys.first == 0 {
            return KeySet::All;
        }
        KeySet::of(self.spec().keys_of(self.args()))
    }
}

/// The commands between MULTI and EXEC.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub(crate) calls: Vec<Call>,
    /// Replies of commands that touch no data, with their places among all.
    pub(crate) ready: Vec<(usize, Reply)>,
    /// Keys that have to be unchanged for it to run.
    pub(crate) watch: Option<Watch>,
}

impl Transaction {
    /// A transaction of these commands, as another node has sent them.
    #[must_use]
    pub const fn of(calls: Vec<Call>) -> Self {
        Self { calls, ready: Vec::new(), watch: None }
    }

    /// The commands that touch data, in order.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// EXEC's reply, from the replies to [`Self::calls`] in order.
    ///
    /// # Panics
    /// When there is not one reply for each call.
    #[must_use]
    pub fn merge(&self, replies: Vec<Reply>) -> Reply {
        assert_eq!(replies.len(), self.calls.len(), "one reply for each call");
        let mut merged = Vec::with_capacity(replies.len() + self.ready.len());
        let mut ready = self.ready.iter().peekable();
        let mut replies = replies.into_iter();
        loop {
            match ready.next_if(|(place, _)| *place == merged.len()) {
                Some((_, reply)) => merged.push(reply.clone()),
                None => match replies.next() {
                    Some(reply) => merged.push(reply),
                    None => return Reply::Array(merged),
                },
            }
        }
    }

    /// The keys that it locks: all, when one of its commands names none.
    pub(crate) fn key_set(&self) -> KeySet {
        let mut keys: Vec<Bytes> = self.watch.iter().flat_map(|watch| watch.keys.clone()).collect();
        for call in &self.calls {
            match call.key_set() {
                KeySet::All => return KeySet::All,
                KeySet::Some(more) => keys.extend(more),
            }
        }
        KeySet::of(keys.iter())
    }

    /// Whether one of its commands is a script.
    pub(crate) fn has_script(&self) -> bool {
        self.calls.iter().any(Call::is_script)
    }
}

/// What is to be run where the data is.
#[derive(Clone, Debug)]
pub enum Work {
    /// One command.
    Call(Call),
    /// Several as one.
    Transaction(Transaction),
    /// Keys are to be watched.
    Watch(Watch),
}

impl Work {
    /// Where it runs. A transaction runs at the head even if it only reads, under locks, as nothing
    /// keeps writes from being applied between its reads at the tail. WATCH does, as the head knows who writes.
    #[inline]
    #[must_use]
    pub fn route(&self) -> Route {
        match self {
            Self::Call(call) => call.route(),
            Self::Transaction(_) | Self::Watch(_) => Route::ReadWrite,
        }
    }

    /// The memory that its words take, in bytes.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Call(call) => call.memory(),
            Self::Transaction(transaction) => {
                let watch = transaction.watch.as_ref().map_or(0, Watch::memory);
                transaction.calls.iter().map(Call::memory).sum::<usize>() + watch
            }
            Self::Watch(watch) => watch.memory(),
        }
    }
}
