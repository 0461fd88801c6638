//! The lines of a prompt. Where somebody types, a line can be edited and those before it recalled;
//! what a program writes is taken as it comes, byte for byte.

use gabion_base::{Error, ErrorKind, Result};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead, IsTerminal};

/// Lines that are recalled, in memory alone: they may hold what nobody is to find on the disk
/// later.
const RECALLED_MAX: usize = 1000;

/// Where lines come from.
pub(crate) struct Lines {
    /// Nothing where they are not typed.
    editor: Option<Editor<(), MemHistory>>,
}

impl Lines {
    /// The lines of the standard input.
    ///
    /// # Errors
    /// I/O when the terminal cannot be used.
    pub(crate) fn new() -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self { editor: None });
        }
        let unusable = |e| Error::with_source(ErrorKind::Io, "the terminal cannot be used", e);
        let config = Config::builder().max_history_size(RECALLED_MAX).map_err(unusable)?;
        let history = MemHistory::with_config(&config.clone().build());
        let mut editor = Editor::with_history(config.build(), history).map_err(unusable)?;
        editor.set_auto_add_history(true);
        // Lines that are pasted are commands one by one, as if they had been typed.
        editor.enable_bracketed_paste(false);
        Ok(Self { editor: Some(editor) })
    }

    /// Whether somebody types them, who sees what becomes of each.
    pub(crate) const fn are_typed(&self) -> bool {
        self.editor.is_some()
    }

    /// The next line, asked for with `prompt` where it is typed; nothing at the end, which Ctrl-C
    /// and Ctrl-D are too.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn next(&mut self, prompt: &str) -> Result<Option<Vec<u8>>> {
        let Some(editor) = &mut self.editor else {
            let mut line = Vec::new();
            let len = io::stdin().lock().read_until(b'\n', &mut line);
            let len = len.map_err(|e| Error::with_source(ErrorKind::Io, "the input ends", e))?;
            return Ok((len > 0).then_some(line));
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Some(line.into_bytes())),
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
            Err(e) => Err(Error::with_source(ErrorKind::Io, "the terminal cannot be read", e)),
        }
    }
}
