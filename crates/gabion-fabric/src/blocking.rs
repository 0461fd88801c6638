//! Futures over a medium on a thread that may block: flush and compaction jobs, tools, start-up.

use crate::file::FileMedium;
use gabion_media::MediumHandle;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A [`FileMedium`] whose thread sleeps while it waits. Needs no readiness descriptor.
pub struct BlockingMedium {
    handle: MediumHandle,
    medium: Rc<RefCell<FileMedium>>,
    woken: Arc<Woken>,
}

/// Whether a future asked to be polled again: one that lets others run in between does.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl BlockingMedium {
    /// Takes ownership of the medium.
    #[must_use]
    pub fn new(medium: FileMedium) -> Self {
        let medium = Rc::new(RefCell::new(medium));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        Self { handle: MediumHandle::new(medium.clone()), medium, woken }
    }

    /// The handle to hand to the functions of the core crates.
    #[must_use]
    pub const fn handle(&self) -> &MediumHandle {
        &self.handle
    }

    /// Runs a future to its end, sleeping while this medium works.
    ///
    /// # Panics
    /// When the future waits for something else than this medium: it would wait for ever.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = Waker::from(self.woken.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            if self.woken.0.swap(false, Ordering::Relaxed) && self.handle.in_flight() == 0 {
                continue;
            }
            assert!(
                self.handle.in_flight() > 0,
                "a future on a blocking thread waits for something else than its medium"
            );
            self.medium.borrow_mut().wait();
            self.handle.drive();
        }
    }
}
