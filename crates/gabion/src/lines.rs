//! The lines of a prompt. Typed lines can be edited, and earlier ones recalled; lines from
//! a program are taken as they come, byte for byte.

use gabion_base::{Error, ErrorKind, Result};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead, IsTerminal};

/// Lines that are recalled, in memory alone: they may hold secrets that must not reach the disk.
const RECALLED_MAX: usize = 1000;

/// The source of lines.
pub(crate) struct Lines {
    /// Nothing where lines are not typed.
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
        // Pasted lines are commands one by one, as if they had been typed.
        editor.enable_bracketed_paste(false);
        Ok(Self { editor: Some(editor) })
    }

    /// Whether somebody types them, and sees the result of each.
    pub(crate) const fn are_typed(&self) -> bool {
        self.editor.is_some()
    }

    /// The next line, asked for with `prompt` where it is typed; nothing at the end. Ctrl-C and
    /// Ctrl-D end it, too.
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
