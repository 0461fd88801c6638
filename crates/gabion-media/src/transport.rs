//! A byte stream that never blocks: what a protocol core needs of a connection. The TCP socket of
//! `gabion-fabric` implements it, and so does the pipe of the simulator.

use gabion_base::Result;

/// One end of a reliable, ordered byte stream.
pub trait Transport {
    /// Sends a prefix of the concatenation of `parts` and returns its length. `Ok(0)` means that it
    /// would block; the same bytes are offered again later.
    ///
    /// # Errors
    /// The connection is broken; nothing more can be sent or received.
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize>;

    /// Receives into the front of `into`, which is never empty. `Ok(None)` means that it would
    /// block, `Ok(Some(0))` that the peer closed its end.
    ///
    /// # Errors
    /// The connection is broken; nothing more can be sent or received.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>>;

    /// Whether the other end may call itself the host, or speak for the application, of this name.
    /// One that has not shown who it is may call itself anything.
    ///
    /// # Errors
    /// Invalid input: it has shown that it is another one.
    fn admits(&self, _host: &str) -> Result<()> {
        Ok(())
    }
}
